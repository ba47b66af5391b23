"""Lists the members of a zip archive by its directory. Nothing is unpacked here, and no name is used as a path."""

from __future__ import annotations

import array
import bisect
import contextlib
import errno
import struct
import zipfile
from collections.abc import Iterator
from typing import NamedTuple

from imagebeam.transforms.arrays import found_array
from imagebeam.transforms.packed import zip_members

_UTF8 = 0x800  # flag of a name
_MAX_FIELD_BYTES = 0xFFFF  # of a name, or of the extra fields
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
        """Whether the content needs a password."""
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
        # what follows may be no member
        most = zip_members.LOCAL_HEADER.size + 2 * _MAX_FIELD_BYTES + entry.compress_size + _DESCRIPTOR_BYTES
        length = min(stop - entry.header_offset, most)
        if entry.header_offset < 0 or length < zip_members.LOCAL_HEADER.size + entry.compress_size:
            raise ZipError(f"its directory says that {_name(entry)!r} lies outside of the archive: it was cut short")
        yield Member(_name(entry), entry, length)


def _open(uri: str, version: int) -> zipfile.ZipFile:
    try:
        with found_array.open_version(uri, version) as file, zipfile.ZipFile(file) as archive:
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
