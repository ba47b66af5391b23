"""Tars of WebDataset: consecutive members with one stem are an image and its label and other cells.

    shard-000000.tar: cat/0001.jpg cat/0001.cls cat/0001.json cat/0002.jpg ...

Source: https://github.com/webdataset/webdataset (webdataset/tariterators.py: base_plus_ext, group_by_keys).
"""

from __future__ import annotations

import collections
import dataclasses
import json
import posixpath
import re
import struct
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeAlias

from imagebeam import plural
from imagebeam.transforms import elements
from imagebeam.transforms.formats import base_format
from imagebeam.transforms.images import image_formats
from imagebeam.transforms.packed import packed_file, unpacked_content
from imagebeam.transforms.sources import containers, files, folder_probe, image_source, shard_names, table_rows
from imagebeam.transforms.sources.folder_probe import Finding, Folder, FolderProbe, name_some

STEM, TAR, SPLIT = "__key__", "__url__", "split"  # cells that every image has

_STEM = re.compile(r"((?:.*/)?[^./]+)\.([^/]*)", re.DOTALL)  # stem up to the first dot of the base name, and extension
_META = re.compile(r"__[^/]*__($|/)")  # WebDataset's own members
_SPLIT = re.compile(r"(?:.*[-_.])?(?P<split>[A-Za-z]+)[-_]\d+\.(?:tar(?:\.gz)?|tgz)")
_MAX_CELL_BYTES = 16 << 20
_JSON = "json"
_MAX_NAMED = 8

# Kinds of members that are skipped and counted, beside those in files.py; DIRECTORY is one, too.
META = "webdataset_meta"

_Read: TypeAlias = Callable[[int, int], bytes]  # offset and length of a range of a tar -> its bytes, fewer at the end


@dataclasses.dataclass(frozen=True)
class Tar(base_format.Format):
    """Tars of WebDataset."""

    ABOUT: ClassVar[str] = "tars of WebDataset"
    PRESETS: ClassVar[tuple[str, ...]] = ("webdataset", "cifar10", "cifar100")

    def gives(self) -> base_format.Gives:
        return base_format.Gives(columns=True, takes=frozenset({"include"}))

    @classmethod
    def hint_on_file(cls, uri: str) -> str:
        named = TarSource.FILE_NAME.fullmatch(uri.rpartition("/")[2])
        return f"for {TarSource.EXPECTED} set source.by: tar" if named else ""

    def open(self, request: base_format.Request) -> TarSource:
        return TarSource(*TarSource.find(request.uri, request.include, request.output), request.fields)

    @classmethod
    def is_container(cls, name: str) -> bool:
        return TarSource.FILE_NAME.fullmatch(name) is not None

    @classmethod
    def detect(cls, probe: FolderProbe, at: str) -> Iterator[Finding]:
        """Finds tars with files of one stem for each image."""
        for folder in folder_probe.with_inner(probe, at):
            names = [name for name in folder.files if TarSource.FILE_NAME.fullmatch(name)]
            if not names:
                continue
            members = _first_names(_unpacked(probe.head(folder.below(names[0]))))
            if "cifar" in names[0].lower() and members and not any(map(_is_image, members)):
                yield _packed_cifar(folder, names[0], members[0], at)
                return
            images = [name for name in members if _is_image(name)]
            cells = sorted({posixpath.basename(name).partition(".")[2].lower() for name in members} - {""})
            others = [each for each in cells if not _is_image(f"x.{each}")]
            evidence = folder.count(len(names), "tar") + (
                f" with members such as {name_some(members)}" if members else ""
            )
            settings, notes = _settings_of(others)
            further, is_unsure = _further_images(images)
            notes += (further,) if further and not is_unsure else ()
            of_splits, unsure = _find_splits(probe, at)
            settings |= of_splits
            doubts = unsure if images else ("its first members are no images",)
            if images and not others:
                doubts = (
                    "nothing names labels: if the folders in the tar are classes, unpack it, and plan the folder",
                )
            doubts += (further,) if is_unsure else ()
            notes += (*shard_names.missing(names),)
            doubts += (*shard_names.repeated(names),)
            yield Finding("webdataset", evidence, settings, notes, doubts=doubts)
            return


def _further_images(names: Sequence[str]) -> tuple[str, bool]:
    """Returns in words that examples have several images, and whether none of them is the one that is read: x.jpg."""
    cells: dict[str, list[str]] = collections.defaultdict(list)
    for name in names:
        folder, base = posixpath.split(name)
        stem, _, cell = base.partition(".")
        cells[posixpath.join(folder, stem)].append(cell)
    several = [each for each in cells.values() if len(each) > 1]
    dotted = {f".{cell}" for each in several for cell in each if "." in cell}
    shown = name_some(sorted(dotted or {f".{cell}" for each in several for cell in each}))
    if any(all("." in cell for cell in each) for each in several):
        return f"examples have several images ({shown}), and none of them is one that is read, such as .jpg", True
    return f"examples have several images, and of these members in {shown} are not read" if several else "", False


_TEXTS = ("txt", "caption", "caption.txt")  # cells that are texts on an image


def _settings_of(cells: Sequence[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Returns the settings for tars whose examples have these cells beside the image, and notes on them."""
    settings: dict[str, Any] = {} if "cls" in cells else {"label": {"by": "none"}}
    texts = [each for each in cells if each in _TEXTS]
    notes: tuple[str, ...] = ()
    if "cls" not in cells:
        notes = ("no member names the label; for one in JSON set label.column, such as json.label",)
    if texts:
        settings["columns"] = {each: {} for each in texts}
        notes += (f"the texts in {folder_probe.and_list([f'.{each}' for each in texts])} are stored as columns",)
    if left := [f".{each}" for each in cells if each not in (*_TEXTS, "cls")]:
        notes += (f"members in {name_some(left)} are not stored unless columns names them, or keys of JSON: json.KEY",)
    return settings, notes


def _find_splits(probe: FolderProbe, at: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Returns the setting for tars whose folders or names tell their splits, or a doubt if only some do."""
    tars = [
        (folder, name)
        for folder in folder_probe.with_inner(probe, at)
        for name in filter(TarSource.FILE_NAME.fullmatch, folder.files)
    ]
    folders = {posixpath.basename(folder.path) for folder, _ in tars if folder.path != at}
    words = {match["split"] for _, name in tars if (match := _SPLIT.fullmatch(name))}
    for found, how in ((folders, {"by": "directory"}), (words, {"by": "column", "column": SPLIT})):
        splits = {name: folder_probe.split_meant(name) for name in sorted(found)}
        meant = {*splits.values()}
        if (
            len(meant) == len(splits)
            and None not in meant
            and ("train" in meant or len(meant) == 1)
            and meant != {"train"}
        ):
            rename = {name: split for name, split in splits.items() if name != split}
            return {"split": {**how, **({"rename": rename} if rename else {})}}, ()
        if len(splits) > 1 and meant != {None}:
            where = (
                "folder (split.by=directory)"
                if how["by"] == "directory"
                else f"name (split={{by: column, column: {SPLIT}}})"
            )
            return {}, (f"tars may be of several splits, {name_some(sorted(found))}, by their {where}",)
    return {}, ()


_MAX_HEAD_BYTES = 1 << 20  # unpacked to see the first members of a tar


def _packed_cifar(folder: Folder, name: str, member: str, at: str) -> Finding:
    """Returns the finding for CIFAR as it is downloaded: the arrays in a tar."""
    preset = "cifar100" if "100" in name else "cifar10"
    note = f"unpack it first, by tar xf {folder.below(name)}, and give the folder that is in it as --input"
    evidence = f"{name} is a tar with {member}"
    return Finding(preset, evidence, doubts=(note,), input=folder.path if folder.path != at else "")


def _unpacked(head: bytes) -> bytes:
    """Returns the beginning of the content of a file that may be gzip."""
    if not head.startswith(packed_file.GZIP_MAGIC):
        return head
    try:
        return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(head, _MAX_HEAD_BYTES)
    except zlib.error:
        return b""


def _is_image(name: str) -> bool:
    return name.rpartition(".")[2].lower() in image_formats.BY_EXTENSION


def _first_names(head: bytes) -> list[str]:
    """Returns the names of the first files in a tar, from its beginning."""

    def read(offset: int, num_bytes: int) -> bytes:
        if offset >= len(head):
            raise TarError(offset, "only the beginning was read")
        return head[offset : offset + num_bytes]

    names = []
    try:
        for member in read_members(read, sys.maxsize):
            names += [member.name] if member.kind == FILE else []
    except TarError:
        pass
    return names


class _Part(NamedTuple):
    """A member of the group of one stem."""

    extension: str  # everything after the first dot, in lower case
    member: Member


@dataclasses.dataclass(frozen=True)
class TarSource(containers.ContainerSource):
    """The tars of a folder, plain or compressed by gzip, whatever their names say."""

    NOUN = "tar"
    FILE_NAME = re.compile(r".+\.(tar|tar\.gz|tgz)", re.IGNORECASE)
    EXPECTED = "a file whose name ends in .tar or .tar.gz"
    CELL = "member or key of .json"

    def facts(self) -> image_source.SourceFacts:
        return image_source.SourceFacts(on_repeated_key="rename one of the two members, or leave one out")

    def scan(self, container: containers.Container) -> Iterator[containers.Found]:
        """Yields the images of one tar."""
        read, num_bytes = _open(container)
        names: set[str] = set()
        stem = ""
        parts: list[_Part] = []
        try:
            for member in read_members(read, num_bytes):
                found = _split_name(member, read)
                if isinstance(found, containers.Skipped):
                    yield found
                    continue
                if found[0] != stem and parts:
                    yield self._make(container, stem, parts, read, names)
                    parts = []
                stem = found[0]
                parts.append(_Part(found[1], member))
        except TarError as e:
            raise containers.ContainerError(
                f"tar {container.uri!r}: {e}; all examples after this point ({num_bytes - e.offset:,} bytes) would be "
                "lost: fetch it again, or leave it out with source.include",
                e.offset,
            ) from e
        if parts:
            yield self._make(container, stem, parts, read, names)
        yield containers.Cells(frozenset(names))

    def _make(
        self, container: containers.Container, stem: str, parts: Sequence[_Part], read: _Read, names: set[str]
    ) -> elements.ImageRef | elements.Reject:
        """Returns the reference or reject of one stem; adds the names of its cells to `names`."""
        key = f"{container.path}/{stem.removeprefix('./')}"
        try:
            image = _find_image(parts)
            cells = self._cells(container, stem, parts, read)
            names.update(cells, (part.extension for part in parts))
            ref = elements.ImageRef(
                key, container.address, image.size, container.version, offset=image.offset, length=image.size
            )
            return containers.fill(self.fields, ref, cells)
        except table_rows.BadRowError as e:
            detail = f"{stem!r} of {container.uri} at byte offset {parts[0].member.offset}: {e.detail}"
            return elements.Reject(key, container.uri, "list", e.reason, detail)

    def _cells(self, container: containers.Container, stem: str, parts: Sequence[_Part], read: _Read) -> dict[str, Any]:
        """Returns the cells that the config asks for: members as bytes, values of .json as `json.KEY`."""
        split = _SPLIT.fullmatch(container.uri.rpartition("/")[2])
        cells: dict[str, Any] = {STEM: stem, TAR: container.path, SPLIT: split["split"] if split else None}
        names = (self.fields.label, self.fields.split, self.fields.group)  # stripped of white space
        in_json = [name for name in self.fields.needed if name.startswith("json.")]
        for extension, member in parts:
            if extension in self.fields.needed or (extension == _JSON and in_json):
                data = _read_cell(extension, member, read)
                cells[extension] = data.strip() if extension in names else data
                if extension == _JSON and in_json:
                    cells |= find_in_json(data, in_json)
        return {name: value for name, value in cells.items() if value is not None}


def _open(container: containers.Container) -> tuple[_Read, int]:
    """Returns a function that reads a range of the (unpacked) tar, and the tar's size in bytes."""
    if unpacked_content.is_packed(container.address):
        unpacked = unpacked_content.unpack(container.address, container.version)
        return containers.RangeWindow(unpacked.read, containers.LOCAL).read, unpacked.size
    return containers.open_window(container.uri, container.size, container.version).read, container.size


def _split_name(member: Member, read: _Read) -> tuple[str, str] | containers.Skipped:
    """Returns stem and extension of a member, or the kind under which it is skipped."""
    if member.kind == DIRECTORY:
        return containers.Skipped(DIRECTORY)
    if member.kind == SPECIAL:
        return containers.Skipped(files.SPECIAL)
    if _META.match(member.name):
        return containers.Skipped(META)
    match = _STEM.fullmatch(member.name)
    if match is not None:
        return match[1], match[2].lower()
    if member.name.rpartition("/")[2].startswith("."):
        return containers.Skipped(files.HIDDEN)
    if image_formats.sniff_format(read(member.offset, min(image_formats.SNIFF_BYTES, member.size))):
        return member.name, ""  # an image without an extension: becomes a reject, not silently lost
    return containers.Skipped(files.NON_IMAGE)


def _find_image(parts: Sequence[_Part]) -> Member:
    found = [part.member for part in parts if part.extension in files.IMAGE_EXTENSIONS]
    if len(found) == 1:
        return _check_stored(found[0])
    listed = plural.name_some([repr(part.member.name) for part in parts], _MAX_NAMED)
    if found:
        raise containers.bad_row(f"{len(found)} images with one stem, expected one: {listed}")
    raise containers.bad_row(
        f"no image among its members, {listed}; members of one example must be adjacent and share their name up to the "
        "first dot; one must be .jpg or .png (or another image's extension)"
    )


def _check_stored(member: Member) -> Member:
    if member.kind == FILE:
        return member
    raise containers.bad_row(
        f"{member.name!r} is stored as {'a link' if member.kind == LINK else 'a sparse file'}, so its "
        "bytes are not contiguous; create the tar without links or sparse files (GNU tar: --hard-dereference "
        "--dereference, no --sparse)"
    )


def _read_cell(extension: str, member: Member, read: _Read) -> bytes:
    size = _check_stored(member).size
    if size > _MAX_CELL_BYTES:
        detail = f".{extension} has {size:,} bytes, a cell takes up to {_MAX_CELL_BYTES:,}"
        raise table_rows.BadRowError(elements.Reason.BAD_VALUE, detail)
    return read(member.offset, size)


def find_in_json(data: bytes, names: Sequence[str], file: str = ".json") -> dict[str, Any]:
    """Returns the values of `json.KEY` and, for nested objects, of `json.KEY.KEY`.

    Raises:
        BadRowError: if the data, those of `file`, are not a JSON object.
    """
    try:
        whole = json.loads(data)
        if b"\\u" in data:  # half a surrogate pair cannot be stored in a label or feature
            json.dumps(whole, ensure_ascii=False).encode("utf-8", "surrogateescape")
    except (ValueError, RecursionError) as e:
        raise containers.bad_row(f"{file} is not JSON: {e}") from e
    if not isinstance(whole, dict):
        raise containers.bad_row(f"{file} holds a {type(whole).__name__}, expected an object")
    return {name: containers.look_up(whole, name.partition(".")[2]) for name in names}


# --- members of a tar -------------------------------------------------------------------------------------------------
#
# A tar ends with blocks of zeros, as POSIX says. Anything else (a broken header, a missing end) is an error with its
# byte offset, because members after it would be lost.
#
# Python's tarfile takes a broken header for the end of the tar, or with `ignore_zeros` searches for the next header
# that looks right. A subclass of TarInfo can raise for a broken header, but it still accepts broken pax headers (4 of
# the 7 kinds in the tests) and reports offsets outside of the file. It takes 1.7 s of CPU time for 100,000 members,
# this reader 0.66 s.
#
# Source: https://pubs.opengroup.org/onlinepubs/9799919799/utilities/pax.html and GNU tar's manual, "Basic Tar Format".

BLOCK_BYTES = 512

FILE, DIRECTORY, LINK, SPARSE, SPECIAL = "file", "directory", "link", "sparse", "special"

_ENCODING = "utf-8", "surrogateescape"  # names keep any bytes
_MAX_EXTENSION_BYTES = 16 << 20  # a long name or a pax header
_KINDS: Mapping[bytes, str] = {
    **dict.fromkeys((tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE), FILE),
    **dict.fromkeys((tarfile.LNKTYPE, tarfile.SYMTYPE), LINK),
    tarfile.DIRTYPE: DIRECTORY,
    tarfile.GNUTYPE_SPARSE: SPARSE,
}
# Whatever size their headers state.
_WITHOUT_DATA = (tarfile.DIRTYPE, tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE)
_FIELDS = struct.Struct("100s24x12s12x8sc100s6s82x155s12x")  # name, size, checksum, type, link, magic, prefix
_SIGNED = struct.Struct("148b8x356b")  # all bytes but those of the checksum
_OCTAL = re.compile(rb"[0-7]+")
_MAX_DIGITS = 20
_PAX = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE)
# Bytes in GNU's headers of sparse members: true if another block follows.
_IS_EXTENDED, _EXTENSION_IS_EXTENDED = 482, 504


class TarError(ValueError):
    """The tar is broken at `offset`, so later members cannot be found."""

    def __init__(self, offset: int, detail: str):
        super().__init__(f"{detail} at byte offset {offset}")
        self.offset = offset
        self.detail = detail


class Member(NamedTuple):
    """One member and the place of its bytes."""

    name: str
    kind: str  # FILE, DIRECTORY, LINK, SPARSE or SPECIAL
    offset: int  # byte offset of its data in the tar
    size: int  # bytes


def read_members(read: _Read, num_bytes: int) -> Iterator[Member]:
    """Yields every member of a tar, or of several tars joined end to end.

    A hard link to an earlier file is yielded as that file under another name: tar stores the bytes of hard-linked files
    once.

    Args:
        read: returns the bytes at an offset and of a length; fewer at the end.
        num_bytes: size of the tar.

    Raises:
        TarError: if a header is broken, or the tar is cut short.
    """
    offset, has_ended = 0, False
    long_name = long_link = ""
    files: dict[str, tuple[int, int]] = {}  # offset and size by name, for links
    pax: dict[str, str] = {}
    while offset < num_bytes:
        block = read(offset, BLOCK_BYTES)
        if not block.strip(b"\0"):
            if long_name or long_link or pax:
                raise TarError(offset, "a tar's long name belongs to no member")
            has_ended |= len(block) == BLOCK_BYTES
            offset += BLOCK_BYTES
            continue
        has_ended = False
        header = _parse_header(block, offset)
        size, start = _size_of(header, pax, offset), offset + BLOCK_BYTES
        if header.type == tarfile.GNUTYPE_SPARSE and block[_IS_EXTENDED]:
            start = _skip_sparse_headers(read, start)
        end = start if header.type in _WITHOUT_DATA else start + size
        if end > num_bytes:
            raise TarError(
                offset, f"the tar is cut short: member {header.name!r} of {size:,} bytes lacks {end - num_bytes:,}"
            )
        if header.type == tarfile.GNUTYPE_LONGNAME:
            long_name = _parse_text(_read_extension(read, start, size))
        elif header.type in _PAX:
            pax |= _parse_pax(_read_extension(read, start, size), start)
        elif header.type == tarfile.GNUTYPE_LONGLINK:
            long_link = _parse_text(_read_extension(read, start, size))
        elif header.type != tarfile.XGLTYPE:
            is_sparse = any(key.startswith("GNU.sparse.") for key in pax)
            kind = SPARSE if is_sparse else _KINDS.get(header.type, SPECIAL)
            link = pax.get("linkpath") or long_link or header.link
            name = pax.get("GNU.sparse.name") or pax.get("path") or long_name or header.name
            if kind == FILE and name.endswith("/"):
                kind = DIRECTORY  # in tars older than POSIX
            if kind == FILE:
                files[name] = start, size
            elif header.type == tarfile.LNKTYPE and link in files:
                kind, (start, size) = FILE, files[link]
            yield Member(name, kind, start, size)
            long_name, long_link, pax = "", "", {}
        offset = end + -end % BLOCK_BYTES
    if not has_ended:
        raise TarError(
            num_bytes,
            "the tar ends without the zeros that end a tar, so members may be missing (if none is: "
            "`truncate -s +1024 FILE` ends it)",
        )


class _Header(NamedTuple):
    name: str
    type: bytes
    size: int  # as the header states; a pax header may override it
    link: str  # name of the member that it links to


def _parse_header(block: bytes, offset: int) -> _Header:
    if len(block) < BLOCK_BYTES:
        raise TarError(offset, f"the tar is cut short in a header, after {len(block)} of {BLOCK_BYTES} bytes")
    name, size, checksum, kind, link, magic, prefix = _FIELDS.unpack(block)
    expected = _parse_number(checksum)
    # The checksum counts its own 8 bytes as blanks; some old tars have that of signed bytes.
    if sum(block) - sum(checksum) + 8 * 0x20 != expected and sum(_SIGNED.unpack(block)) + 8 * 0x20 != expected:
        raise TarError(offset, "the checksum of a member's header does not match" if offset else "this is not a tar")
    num_bytes = _parse_number(size)
    if num_bytes is None or num_bytes < 0:
        raise TarError(offset, f"the size of a member is not a number, {size!r}")
    text = _parse_text(name)
    if magic == b"ustar\0" and prefix[0]:  # GNU's headers have other fields there
        text = f"{_parse_text(prefix)}/{text}"
    return _Header(text, kind, num_bytes, _parse_text(link))


def _parse_text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode(*_ENCODING)


def _parse_number(field: bytes) -> int | None:
    """Parses octal digits, or GNU's binary number after a byte 0x80 or 0xFF; returns None for anything else."""
    if field[0] in (0x80, 0xFF):
        return int.from_bytes(field[1:], "big") - (256 ** (len(field) - 1) if field[0] == 0xFF else 0)
    digits = field.partition(b"\0")[0].strip()
    if not digits:
        return 0
    return int(digits, 8) if _OCTAL.fullmatch(digits) else None


def _size_of(header: _Header, pax: Mapping[str, str], offset: int) -> int:
    """Returns the size of a member's data in bytes; from the pax header if the header has too few digits."""
    text = pax.get("size") if header.type not in _PAX else None
    if text is None:
        return header.size
    if not text.isdecimal() or len(text) > _MAX_DIGITS:
        raise TarError(offset, f"member {header.name!r} has the size {text!r}, expected a number of bytes")
    return int(text)


def _skip_sparse_headers(read: _Read, offset: int) -> int:
    """Returns the byte offset of the data of a sparse member."""
    while True:
        block = read(offset, BLOCK_BYTES)
        if len(block) < BLOCK_BYTES:
            raise TarError(offset, "the tar is cut short in the header of a sparse member")
        offset += BLOCK_BYTES
        if not block[_EXTENSION_IS_EXTENDED]:
            return offset


def _read_extension(read: _Read, offset: int, size: int) -> bytes:
    if size > _MAX_EXTENSION_BYTES:
        raise TarError(offset, f"a header of {size:,} bytes, the most is {_MAX_EXTENSION_BYTES:,}")
    return read(offset, size)


def _parse_pax(data: bytes, offset: int) -> dict[str, str]:
    """Parses the records `length key=value` of a pax header."""
    parsed, position = {}, 0
    while position < len(data) and data[position]:
        digits, space, _ = data[position : position + 20].partition(b" ")
        length = int(digits) if space and digits.isdigit() else 0  # at most 20 digits
        record = data[position + len(digits) + 1 : position + length]
        key, equals, value = record[:-1].partition(b"=")
        if not equals or record[-1:] != b"\n" or position + length > len(data):
            raise TarError(offset + position, "a pax header is broken")
        parsed[key.decode(*_ENCODING)] = value.decode(*_ENCODING)
        position += length
    return parsed
