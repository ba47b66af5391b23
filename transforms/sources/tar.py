"""Images in the tars of a WebDataset: consecutive members with one stem are an image and its label and other cells.

    shard-000000.tar: cat/0001.jpg cat/0001.cls cat/0001.json cat/0002.jpg ...

Source: https://github.com/webdataset/webdataset (webdataset/tariterators.py: base_plus_ext, group_by_keys).
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from imagebeam import plural
from imagebeam.transforms import elements
from imagebeam.transforms.arrays import unpacked_content
from imagebeam.transforms.images import image_formats
from imagebeam.transforms.sources import containers, files, image_source, range_window, table_rows, tar_members

STEM, TAR, SPLIT = "__key__", "__url__", "split"  # cells that every image has

_STEM = re.compile(r"((?:.*/)?[^./]+)\.([^/]*)", re.DOTALL)  # stem up to the first dot of the base name, and extension
_META = re.compile(r"__[^/]*__($|/)")  # WebDataset's own members
_SPLIT = re.compile(r"(?:.*[-_.])?(?P<split>[A-Za-z]+)[-_]\d+\.(?:tar(?:\.gz)?|tgz)")
_MAX_CELL_BYTES = 16 << 20
_JSON = "json"
_MAX_NAMED = 8

# Kinds of members that are passed over and counted, beside those in files.py.
DIRECTORY = "directory"
META = "webdataset_meta"


class _Part(NamedTuple):
    """A member of the group of one stem."""

    extension: str  # everything after the first dot, in lower case
    member: tar_members.Member


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
            for member in tar_members.read_members(read, num_bytes):
                found = _split_name(member, read)
                if isinstance(found, containers.PassedOver):
                    yield found
                    continue
                if found[0] != stem and parts:
                    yield self._make(container, stem, parts, read, names)
                    parts = []
                stem = found[0]
                parts.append(_Part(found[1], member))
        except tar_members.TarError as e:
            packed = containers.as_gzip(container) if e.offset == 0 else None
            if packed is not None:
                yield from self.scan(packed)
                return
            yield containers.ListingProblem(
                f"tar {container.uri!r}: {e}; all examples after this point ({num_bytes - e.offset:,} bytes) would be "
                "lost: fetch it again, or leave it out with source.include"
            )
            return
        if parts:
            yield self._make(container, stem, parts, read, names)
        yield containers.Cells(frozenset(names))

    def _make(
        self,
        container: containers.Container,
        stem: str,
        parts: Sequence[_Part],
        read: Callable[[int, int], bytes],
        names: set[str],
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

    def _cells(
        self, container: containers.Container, stem: str, parts: Sequence[_Part], read: Callable[[int, int], bytes]
    ) -> dict[str, Any]:
        """Returns the cells that the config asks for: members as bytes, values of .json as `json.KEY`."""
        split = _SPLIT.fullmatch(container.uri.rpartition("/")[2])
        cells: dict[str, Any] = {STEM: stem, TAR: container.path, SPLIT: split["split"] if split else None}
        in_json = [name for name in self.fields.needed if name.startswith("json.")]
        for extension, member in parts:
            if extension in self.fields.needed or (extension == _JSON and in_json):
                data = _read_cell(extension, member, read)
                cells[extension] = data.strip() if extension in self._names else data
                if extension == _JSON and in_json:
                    cells |= _find_in_json(data, in_json)
        return {name: value for name, value in cells.items() if value is not None}

    @property
    def _names(self) -> tuple[str | None, ...]:
        """Cells that hold a name, which is stripped of white space."""
        return (self.fields.label, self.fields.split, self.fields.group)


def _open(container: containers.Container) -> tuple[Callable[[int, int], bytes], int]:
    """Returns a function that reads a range of the (unpacked) tar, and the tar's size in bytes."""
    if unpacked_content.is_packed(container.address):
        unpacked = unpacked_content.unpack(container.address, container.version)
        return range_window.RangeWindow(unpacked.read, range_window.LOCAL).read, unpacked.size
    return range_window.open_window(container.uri, container.size, container.version).read, container.size


def _split_name(
    member: tar_members.Member, read: Callable[[int, int], bytes]
) -> tuple[str, str] | containers.PassedOver:
    """Returns stem and extension of a member, or the kind under which it is passed over."""
    if member.kind == tar_members.DIRECTORY:
        return containers.PassedOver(DIRECTORY)
    if member.kind == tar_members.SPECIAL:
        return containers.PassedOver(files.SPECIAL)
    if _META.match(member.name):
        return containers.PassedOver(META)
    match = _STEM.fullmatch(member.name)
    if match is not None:
        return match[1], match[2].lower()
    if member.name.rpartition("/")[2].startswith("."):
        return containers.PassedOver(files.HIDDEN)
    if image_formats.sniff_format(read(member.offset, min(image_formats.SNIFF_BYTES, member.size))):
        return member.name, ""  # an image without an extension: becomes a reject, not silently lost
    return containers.PassedOver(files.NON_IMAGE)


def _find_image(parts: Sequence[_Part]) -> tar_members.Member:
    found = [part.member for part in parts if part.extension in files.IMAGE_EXTENSIONS]
    names = [part.member.name for part in parts]
    listed = plural.name_some(list(map(repr, names)), _MAX_NAMED)
    if len(found) == 1:
        return _check_stored(found[0])
    if found:
        raise table_rows.BadRowError(
            elements.Reason.BAD_ROW, f"{len(found)} images with one stem, expected one: {listed}"
        )
    raise table_rows.BadRowError(
        elements.Reason.BAD_ROW,
        f"no image among its members, {listed}; members of one example must be adjacent and share their name up to the "
        "first dot; one must be .jpg or .png (or another image's extension)",
    )


def _check_stored(member: tar_members.Member) -> tar_members.Member:
    if member.kind == tar_members.FILE:
        return member
    raise table_rows.BadRowError(
        elements.Reason.BAD_ROW,
        f"{member.name!r} is stored as {'a link' if member.kind == tar_members.LINK else 'a sparse file'}, so its "
        "bytes are not contiguous; create the tar without links or sparse files (GNU tar: --hard-dereference "
        "--dereference, no --sparse)",
    )


def _read_cell(extension: str, member: tar_members.Member, read: Callable[[int, int], bytes]) -> bytes:
    size = _check_stored(member).size
    if size > _MAX_CELL_BYTES:
        raise table_rows.BadRowError(
            elements.Reason.BAD_VALUE, f".{extension} has {size:,} bytes, a cell takes up to {_MAX_CELL_BYTES:,}"
        )
    return read(member.offset, size)


def _find_in_json(data: bytes, names: Sequence[str]) -> dict[str, Any]:
    """Returns the values of `json.KEY` and, for nested objects, of `json.KEY.KEY`."""
    try:
        whole = json.loads(data)
        if b"\\u" in data:  # half a surrogate pair cannot be stored in a label or feature
            json.dumps(whole, ensure_ascii=False).encode("utf-8", "surrogateescape")
    except (ValueError, RecursionError) as e:
        raise table_rows.BadRowError(elements.Reason.BAD_ROW, f".json is not JSON: {e}") from e
    if not isinstance(whole, dict):
        raise table_rows.BadRowError(
            elements.Reason.BAD_ROW, f".json holds a {type(whole).__name__}, expected an object"
        )
    return {name: _look_up(whole, name.partition(".")[2]) for name in names}


def _look_up(whole: Any, path: str) -> Any:
    if not isinstance(whole, dict) or path in whole:
        return whole.get(path) if isinstance(whole, dict) else None
    first, dot, rest = path.partition(".")
    return _look_up(whole.get(first), rest) if dot else None
