"""Images in zip archives, as Kaggle and others give them: nothing is unpacked to a disk.

An archive that is given is read like the folder that it would be unpacked to; archives in a folder like folders of
their names. So keys, splits and labels by folder are those of the unpacked images.
"""

from __future__ import annotations

import dataclasses
import glob
import posixpath
import re
from collections.abc import Iterable, Iterator

from imagebeam.transforms import elements
from imagebeam.transforms.images import structure
from imagebeam.transforms.packed import zip_members
from imagebeam.transforms.sources import containers, files, zip_directory

_METHODS = {9: "deflate64", 12: "bzip2", 14: "lzma", 93: "zstd", 95: "xz", 98: "ppmd"}
_ARCHIVES = (".zip", ".tar", ".tgz", ".gz", ".7z", ".rar")
_OF_MAC = "__MACOSX/"  # resource forks
_SYMBOLIC_LINK = 0o120000  # of the mode
_UNIX = (3, 19)  # systems whose attributes hold a mode: Unix, OS X

# Kinds of members that are passed over and counted, beside those in files.py.
DIRECTORY = "directory"
ARCHIVE = "archive_in_archive"


@dataclasses.dataclass(frozen=True)
class ZipSource(containers.ContainerSource):
    """The zip archives of a folder, or one archive; `include` are globs for the paths of the images."""

    NOUN = "zip archive"
    FILE_NAME = re.compile(r".+\.zip", re.IGNORECASE)
    EXPECTED = "a file whose name ends in .zip"
    CELL = "member"

    archive: str = ""  # path below the root of the only archive to read; "" reads all, each as a folder
    inside: str = ""  # folder in the archive to which all paths are relative; "" is the whole
    max_image_bytes: int = structure.MAX_IMAGE_BYTES  # larger ones are rejected without being unpacked

    @property
    def globs(self) -> tuple[str, ...]:
        return (glob.escape(self.archive),) if self.archive else files.EVERYTHING

    def scan(self, container: containers.Container) -> Iterator[containers.Found]:
        """Yields the images of one archive; reads its directory alone."""
        members: Iterable[zip_directory.Member]
        members, folder = zip_directory.read_members(container.uri, container.version), ""
        try:
            if not self.archive:
                members = [*members]
                folder = _folder_of(container.path, members)
            for member in members:
                found = self._make(container, member, folder)
                if found is not None:
                    yield found
        except zip_directory.ZipError as e:
            yield containers.ListingProblem(
                f"zip archive {container.uri!r}: {e}; its images would be lost: fetch it again, or move it away"
            )

    def _make(
        self, container: containers.Container, member: zip_directory.Member, folder: str
    ) -> containers.Found | None:
        """Returns the reference or reject of a member, or its kind if it is passed over; None outside of `inside`."""
        path = member.name.removeprefix("./")
        uri = zip_members.address_of(container.uri, path)
        if path.endswith("/"):
            return None
        if _leaves(path):
            detail = f"its path {member.name!r} leaves the archive: pack it again with relative paths"
            return elements.Reject(f"{folder}{path}", uri, "list", elements.Reason.OUTSIDE_ROOT, detail)
        if self.inside and not path.startswith(f"{self.inside}/"):
            return None
        path = path.removeprefix(f"{self.inside}/") if self.inside else path
        key = f"{folder}{path}"
        if (kind := _passed_over(member, key)) is not None:
            return containers.PassedOver(kind)
        if self.include != files.EVERYTHING and not files.is_included(self.include, key):
            return containers.PassedOver(files.NOT_INCLUDED)
        if (refused := _refuse(member, self.max_image_bytes)) is not None:
            return elements.Reject(key, uri, "list", *refused)
        return elements.ImageRef(
            key,
            uri,
            member.entry.file_size,
            container.version,
            offset=member.entry.header_offset,
            length=member.length,
        )


def _folder_of(path: str, members: list[zip_directory.Member]) -> str:
    """Returns the folder that an archive stands for, with a slash; its members may all be in one of that name."""
    folder, _, name = path.rpartition("/")
    stem = name[: -len(".zip")]
    parent = f"{folder}/" if folder else ""
    own = (member.name for member in members if not member.name.startswith(_OF_MAC))
    return parent if all(name.startswith(f"{stem}/") for name in own) else f"{parent}{stem}/"


def _leaves(path: str) -> bool:
    """Returns whether a path leads out of the folder to which the archive is unpacked."""
    return path.startswith("/") or path[1:2] == ":" or ".." in path.split("/") or "\0" in path


def _passed_over(member: zip_directory.Member, path: str) -> str | None:
    """Returns the kind of a member that is no image; None for an image."""
    if any(part.startswith(".") for part in path.split("/")) or member.name.startswith(_OF_MAC):
        return files.HIDDEN
    if member.entry.create_system in _UNIX and member.entry.external_attr >> 16 & 0o170000 == _SYMBOLIC_LINK:
        return files.SPECIAL
    if path.lower().endswith(_ARCHIVES):
        return ARCHIVE
    extension = posixpath.basename(path).rpartition(".")
    is_image = bool(extension[0]) and extension[2].lower() in files.IMAGE_EXTENSIONS
    return None if is_image else files.NON_IMAGE


def _refuse(member: zip_directory.Member, max_bytes: int) -> tuple[elements.Reason, str] | None:
    """Returns why a member cannot be read; None if it can."""
    method, size, packed_bytes = member.entry.compress_type, member.entry.file_size, member.entry.compress_size
    if member.is_encrypted:
        return elements.Reason.UNREADABLE, "it is encrypted: unpack the archive with its password"
    if method not in (zip_members.STORED, zip_members.DEFLATED):
        name = _METHODS.get(method, f"method {method}")
        return elements.Reason.UNSUPPORTED_FORMAT, f"it is compressed by {name}: pack it again by deflate, or unpack it"
    if size > max_bytes:
        return elements.Reason.TOO_LARGE, f"it unpacks to {size:,} bytes, up to {max_bytes:,} are taken"
    if size > zip_members.MAX_RATIO * (packed_bytes + 1):
        detail = f"{packed_bytes:,} bytes cannot unpack to {size:,}, as the archive says"
        return elements.Reason.CORRUPT, detail
    if method == zip_members.STORED and size != packed_bytes:
        return elements.Reason.CORRUPT, "it is stored, and has two sizes"
    return None
