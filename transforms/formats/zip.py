"""Images in zip archives, as Kaggle and others give them: nothing is unpacked to a disk.

An archive that is given is read like the folder that it would be unpacked to; archives in a folder like folders of
their names. So keys, splits and labels by folder are those of the unpacked images.
"""

from __future__ import annotations

import array
import bisect
import contextlib
import dataclasses
import errno
import glob
import posixpath
import re
import struct
import zipfile
from collections.abc import Iterable, Iterator
from typing import ClassVar, NamedTuple

from imagebeam import errors, storage
from imagebeam.storage import remote
from imagebeam.transforms import elements
from imagebeam.transforms.formats import base_format
from imagebeam.transforms.images import structure
from imagebeam.transforms.packed import packed_file
from imagebeam.transforms.sources import containers, files, input_places

_IN_ARCHIVE = re.compile(r"(.+?\.zip)(?:/(.*))?", re.IGNORECASE)  # an archive, and a folder in it
_METHODS = {9: "deflate64", 12: "bzip2", 14: "lzma", 93: "zstd", 95: "xz", 98: "ppmd"}
_ARCHIVES = (".zip", ".tar", ".tgz", ".gz", ".7z", ".rar")
_OF_MAC = "__MACOSX/"  # resource forks
_SYMBOLIC_LINK = 0o120000  # type bits of a Unix mode
_UNIX = (3, 19)  # systems whose attributes hold a mode: Unix, OS X

# Kinds of members that are skipped and counted, beside those in files.py.
DIRECTORY = "directory"
ARCHIVE = "archive_in_archive"


@dataclasses.dataclass(frozen=True)
class Zip(base_format.Format):
    """Zip archives; an archive that is given instead of a folder is read by `by: files`, too."""

    ABOUT: ClassVar[str] = "the zip archives of a folder, each a folder of its name"

    def gives(self) -> base_format.Gives:
        return base_format.Gives(folders=True, takes=frozenset({"include"}))

    def open(self, request: base_format.Request) -> ZipSource:
        """Returns the source of one archive, of a folder in it, or of all archives of a folder."""
        uri = request.uri
        if request.masks is not None:
            raise errors.ConfigError(
                "zip-no-masks", f"source.masks cannot read {uri!r}, a zip archive: unpack it, and give the folder"
            )
        if request.has_lists:
            raise errors.ConfigError(
                "zip-no-lists",
                f"lists of images or labels (split.lists, label.lists) name files of a folder, and {uri!r} is a zip "
                "archive: unpack it, and give the folder",
            )
        with remote.budget(remote.CHECK_BUDGET_SEC):
            match = _IN_ARCHIVE.fullmatch(uri) if is_archive(uri) else None
            if match is not None:
                input_places.stat_input(match[1], uri)
                root, name = posixpath.split(match[1])
                place, inside = containers.Listable(root, request.include, ""), (match[2] or "").strip("/")
            elif input_places.stat_input(uri, uri).kind == storage.DIRECTORY:
                exclude = input_places.leave_out(request.output, uri)
                place, name, inside = containers.Listable(uri, request.include, exclude), "", ""
            else:
                raise errors.ConfigError(
                    "input-wrong-kind", f"--input {uri!r} is neither a folder nor {ZipSource.EXPECTED}"
                )
        return ZipSource(*place, archive=name, inside=inside, max_image_bytes=request.max_image_bytes)

    @classmethod
    def is_container(cls, name: str) -> bool:
        return ZipSource.FILE_NAME.fullmatch(name) is not None


def is_archive(uri: str) -> bool:
    """Returns whether an address is that of a zip archive, or of a folder in one."""
    return _IN_ARCHIVE.fullmatch(uri) is not None and not input_places.is_folder(uri)


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
        members: Iterable[Member]
        members, folder = read_members(container.uri, container.version), ""
        try:
            if not self.archive:
                members = [*members]
                folder = _folder_of(container.path, members)
            for member in members:
                found = self._make(container, member, folder)
                if found is not None:
                    yield found
        except ZipError as e:
            raise containers.ContainerError(
                f"zip archive {container.uri!r}: {e}; its images would be lost: fetch it again, or move it away"
            ) from e

    def _make(self, container: containers.Container, member: Member, folder: str) -> containers.Found | None:
        """Returns the reference or reject of a member, or its kind if it is skipped; None outside of `inside`."""
        path = member.name.removeprefix("./")
        uri = packed_file.member_address(container.uri, path)
        if path.endswith("/"):
            return None
        if _leaves(path):
            detail = f"its path {member.name!r} leaves the archive: pack it again with relative paths"
            return elements.Reject(f"{folder}{path}", uri, "list", elements.Reason.OUTSIDE_ROOT, detail)
        if self.inside and not path.startswith(f"{self.inside}/"):
            return None
        path = path.removeprefix(f"{self.inside}/") if self.inside else path
        key = f"{folder}{path}"
        if (kind := _skipped(member, key)) is not None:
            return containers.Skipped(kind)
        if self.include != files.EVERYTHING and not files.is_included(self.include, key):
            return containers.Skipped(files.NOT_INCLUDED)
        if (refused := _refuse(member, self.max_image_bytes)) is not None:
            return elements.Reject(key, uri, "list", *refused)
        entry = member.entry
        return elements.ImageRef(
            key, uri, entry.file_size, container.version, offset=entry.header_offset, length=member.length
        )


def _folder_of(path: str, members: list[Member]) -> str:
    """Returns the folder that an archive stands for, with a slash; its members may all be in one of that name."""
    folder, _, name = path.rpartition("/")
    stem = name[: -len(".zip")]
    parent = f"{folder}/" if folder else ""
    own = (member.name for member in members if not member.name.startswith(_OF_MAC))
    return parent if all(name.startswith(f"{stem}/") for name in own) else f"{parent}{stem}/"


def _leaves(path: str) -> bool:
    """Returns whether a path leads out of the folder to which the archive is unpacked."""
    return path.startswith("/") or path[1:2] == ":" or ".." in path.split("/") or "\0" in path


def _skipped(member: Member, path: str) -> str | None:
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


def _refuse(member: Member, max_bytes: int) -> tuple[elements.Reason, str] | None:
    """Returns why a member cannot be read; None if it can."""
    method, size, packed_bytes = member.entry.compress_type, member.entry.file_size, member.entry.compress_size
    if member.is_encrypted:
        return elements.Reason.UNREADABLE, "it is encrypted: unpack the archive with its password"
    if method not in (packed_file.ZIP_STORED, packed_file.ZIP_DEFLATED):
        name = _METHODS.get(method, f"method {method}")
        return elements.Reason.UNSUPPORTED_FORMAT, f"it is compressed by {name}: pack it again by deflate, or unpack it"
    if size > max_bytes:
        return elements.Reason.TOO_LARGE, f"it unpacks to {size:,} bytes, up to {max_bytes:,} are taken"
    if size > packed_file.ZIP_MAX_RATIO * (packed_bytes + 1):
        detail = f"{packed_bytes:,} bytes cannot unpack to {size:,}, as the archive says"
        return elements.Reason.CORRUPT, detail
    if method == packed_file.ZIP_STORED and size != packed_bytes:
        return elements.Reason.CORRUPT, "it is stored, and has two sizes"
    return None


# --- directory of an archive ------------------------------------------------------------------------------------------

_UTF8 = 0x800  # flag of a name
_MAX_FIELD_BYTES = 0xFFFF  # a name, or the extra fields
_DESCRIPTOR_BYTES = 24  # checksum and sizes behind the content


class ZipError(ValueError):
    """The archive cannot be read as a whole."""


class Member(NamedTuple):
    """One member of an archive."""

    name: str  # with slashes
    entry: zipfile.ZipInfo
    length: int  # bytes from its header to the next one

    @property
    def is_encrypted(self) -> bool:
        """True if the content needs a password."""
        return self.entry.flag_bits & (0x01 | 0x40) != 0


def read_members(uri: str, version: int = 0) -> Iterator[Member]:
    """Yields the members in the order of the directory. Of members with one name, only the last one counts.

    Raises:
        ZipError: if it is no archive, or one that cannot be read: cut short, of several files.
        OSError: if it cannot be read, or has another version.
    """
    archive = _open(uri, version)
    entries, end = archive.infolist(), archive.start_dir
    if any(entry.volume for entry in entries):
        raise ZipError("it is one of several files of an archive: join them first (zip -s 0)")
    offsets = array.array("q", sorted(entry.header_offset for entry in entries))
    for entry in entries:
        if archive.getinfo(entry.filename) is not entry:
            continue
        following = bisect.bisect_right(offsets, entry.header_offset)
        stop = offsets[following] if following < len(offsets) else end
        # the bytes up to the next header may belong to no member
        most = packed_file.LOCAL_HEADER.size + 2 * _MAX_FIELD_BYTES + entry.compress_size + _DESCRIPTOR_BYTES
        length = min(stop - entry.header_offset, most)
        if entry.header_offset < 0 or length < packed_file.LOCAL_HEADER.size + entry.compress_size:
            raise ZipError(f"its directory says that {_name(entry)!r} lies outside of the archive: it was cut short")
        yield Member(_name(entry), entry, length)


def _open(uri: str, version: int) -> zipfile.ZipFile:
    try:
        with packed_file.open_version(uri, version) as file, zipfile.ZipFile(file) as archive:
            return archive
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError, struct.error) as e:
        raise ZipError(f"it was cut short, is one of several files, or is no zip archive ({e})") from e
    except OSError as e:
        if e.errno == errno.EINVAL:  # an offset before the file's beginning
            raise ZipError(f"its directory is not where it says: it was cut short ({e})") from e
        raise


def _name(entry: zipfile.ZipInfo) -> str:
    """Returns a name. Archives say whether it is UTF-8; many are wrong, so what can be UTF-8 is taken as such."""
    name = entry.orig_filename
    if not entry.flag_bits & _UTF8:
        with contextlib.suppress(UnicodeDecodeError):
            name = name.encode("cp437").decode()
    return name.replace("\\", "/")  # some programs for Windows write their own separator
