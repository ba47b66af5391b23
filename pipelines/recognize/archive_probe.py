"""Looks into zip archives as into the folders that they would be unpacked to."""

from __future__ import annotations

import collections
import itertools
import posixpath
import zlib
from collections.abc import Sequence

from imagebeam import errors, storage
from imagebeam.transforms.formats import zip as zip_format
from imagebeam.transforms.packed import packed_file
from imagebeam.transforms.sources.folder_probe import HEAD_BYTES, Folder, FolderProbe

_MAX_ARCHIVES = 20
_MAX_MEMBERS = 50_000  # in all archives together
_MAX_HEADER_BYTES = 4_096  # before the content of a member


class ArchiveProbe(FolderProbe):
    """A probe of zip archives by their directories: of one, or of several as folders of their names.

    Attributes:
        places: by the folder that an archive stands for, "" for the only one, what --input is for that folder.
    """

    def __init__(self, root: str, names: Sequence[str]):
        """Reads the directories of archives; one that cannot be read is left out.

        Args:
            root: address of the folder that they are in.
            names: of the archives.
        """
        super().__init__(root)
        self.places: dict[str, str] = {}
        self._members: dict[str, tuple[str, zip_format.Member]] = {}  # with the address of the archive, by path
        self._files: dict[str, dict[str, int]] = collections.defaultdict(dict)
        self._inner: dict[str, set[str]] = collections.defaultdict(set)
        self._is_whole = len(names) <= _MAX_ARCHIVES
        for name in names[:_MAX_ARCHIVES]:
            self._add(name, is_only=len(names) == 1)

    def _add(self, name: str, is_only: bool) -> None:
        uri = storage.join(self.root, name)
        most = max(0, _MAX_MEMBERS - len(self._members))
        try:
            found = itertools.islice(zip_format.read_members(uri), most + 1)
            members = [each for each in found if not each.name.endswith("/")]
        except (OSError, zip_format.ZipError, errors.ConfigError):
            return
        self._is_whole &= len(members) <= most
        own = [each for each in members if not each.name.startswith("__MACOSX/")]
        folder = "" if is_only else posixpath.splitext(name)[0]
        repeats = folder != "" and all(each.name.startswith(f"{folder}/") for each in own)
        self.places[folder] = f"{name}/{folder}" if repeats else name
        for member in own[:most]:
            path = posixpath.normpath(posixpath.join("" if repeats else folder, member.name))
            if path.startswith(("/", "..")):
                continue
            self._members[path] = uri, member
            above, base = posixpath.split(path)
            self._files[above][base] = member.entry.file_size
            while above:
                above, base = posixpath.split(above)
                self._inner[above].add(base)

    def _list(self, path: str) -> Folder:
        shown = sorted(name for name in self._inner[path] if not name.startswith("."))
        files = {name: size for name, size in sorted(self._files[path].items()) if not name.startswith(".")}
        self._num_entries += len(shown) + len(files)
        most = self._bounds.entries
        files = dict(itertools.islice(files.items(), most))
        return Folder(path, tuple(shown[:most]), files, self._is_whole)

    def _read(self, path: str, offset: int, num_bytes: int) -> bytes:
        if path not in self._members or offset:  # a member is unpacked from its beginning
            return b""
        uri, member = self._members[path]
        if member.is_encrypted:
            return b""
        length = min(member.length, _MAX_HEADER_BYTES + num_bytes)
        data = storage.storage_of(uri).read(uri, member.entry.header_offset, length)
        if len(data) < packed_file.LOCAL_HEADER.size:
            return b""
        *_, name_bytes, extra_bytes = packed_file.LOCAL_HEADER.unpack_from(data)
        content = data[packed_file.LOCAL_HEADER.size + name_bytes + extra_bytes :]
        if member.entry.compress_type == packed_file.ZIP_STORED:
            return content[: min(num_bytes, member.entry.file_size)]
        try:
            return zlib.decompressobj(-zlib.MAX_WBITS).decompress(content, min(num_bytes, HEAD_BYTES))
        except zlib.error:
            return b""

    def input_of(self, path: str) -> str | None:
        """Returns what to give as --input, below the root, for a folder in an archive; None if it is in several."""
        for folder, place in self.places.items():
            if not folder or path == folder or path.startswith(f"{folder}/"):
                return posixpath.join(place, path[len(folder) :].strip("/")).rstrip("/")
        return None
