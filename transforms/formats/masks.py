"""The section `source.masks`: where the mask of each image is, and what its pixels mean."""

from __future__ import annotations

import abc
import csv
import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar

from imagebeam import concurrency, errors, storage
from imagebeam.transforms import elements
from imagebeam.transforms.formats import base_format
from imagebeam.transforms.images import class_masks
from imagebeam.transforms.sources import files, input_places, listing_rules

SPLIT_GROUP = "split"  # group of the pattern for images that matches the split
_REQUESTS_AT_ONCE = 16
_Found = TypeVar("_Found")
_GROUP = re.compile(r"\\(?:\d+|g<\w+>)")  # a reference in the mask's path to a part of the image's path


_Partner: TypeAlias = tuple[str, int, int]  # address, size and version of a file


def look_up_ahead(
    root: str, refs: Sequence[elements.ImageRef], look_up: Callable[[elements.ImageRef], _Found]
) -> Iterator[_Found]:
    """Yields what `look_up` finds for each image below a folder; over a network several requests are under way."""
    num_ahead = 1 if storage.storage_of(root).is_local else _REQUESTS_AT_ONCE
    return concurrency.map_ahead(look_up, refs, num_ahead)


class PartnerRule(abc.ABC):
    """Finds the files that belong to an image, by a pattern for its path; see `files.PairingRule`."""

    OPTION: ClassVar[str]  # section of the config, for errors
    image: str | None
    missing: Literal["reject", "skip"]

    @property
    def names_split(self) -> bool:
        """True if an image's path states its split."""
        return SPLIT_GROUP in self._image.groupindex

    def is_image(self, path: str) -> bool:
        """Returns whether `path` is the path of an image."""
        return self._image.fullmatch(path) is not None

    def files_of(self, path: str) -> list[str]:
        """Returns the paths of the files that belong to an image."""
        match = self._image.fullmatch(path)
        return [match.expand(template) for _, template in self._templates()] if match else []

    def add_masks(
        self, root: str, refs: Sequence[elements.ImageRef]
    ) -> Iterator[elements.ImageRef | elements.Reject | None]:
        """Looks up the files of each image; over a network with threads, since each takes a request.

        Yields:
            The image with its files, and with its split if `image` has such a group; a reject; None if the image is
            skipped.

        Raises:
            UnavailableError: if the storage does not answer.
        """
        return look_up_ahead(root, refs, functools.partial(self._add_partners, root))

    def _add_partners(self, root: str, ref: elements.ImageRef) -> elements.ImageRef | elements.Reject | None:
        match = self._image.fullmatch(ref.key)
        assert match is not None
        partners = []
        for what, template in self._templates():
            path = match.expand(template)
            found = _find_partner(root, ref, path, what)
            if found is None and self.missing == "skip":
                return None
            if found is None:
                detail = f"there is no {what} {path!r}; add it, or change {self.OPTION}"
                return _reject(ref, elements.Reason.NOT_FOUND, detail)
            if isinstance(found, elements.Reject):
                return found
            partners.append(found)
        split = (match[SPLIT_GROUP] or "") if self.names_split else ref.split
        return self._with_partners(ref._replace(split=split), partners)

    @abc.abstractmethod
    def _templates(self) -> Iterable[tuple[str, str]]:
        """Returns each file in a few words, such as `mask`, and its path with groups of `image`."""

    @abc.abstractmethod
    def _with_partners(self, ref: elements.ImageRef, partners: Sequence[_Partner]) -> elements.ImageRef:
        """Returns the image with its files."""

    @functools.cached_property
    def _image(self) -> re.Pattern[str]:
        return re.compile(self.image or "(?!)")


@dataclasses.dataclass(frozen=True)
class Masks(PartnerRule):
    """Masks: images with the class of each pixel, one for each image."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}
    OPTION: ClassVar[str] = "source.masks"
    PARTNER: ClassVar[str] = files.MASK
    WITHOUT: ClassVar[str] = files.WITHOUT_MASK

    image: str | None = None
    """Regular expression for an image's path below `source.uri`, such as `images/(.*)\\.jpg`; other files are
    skipped. A group `(?P<split>...)` is the split for `split.by: source`."""
    mask: str | None = None
    """Path of the image's mask, with the groups of `image`, such as `annotations/\\1.png`."""
    missing: Literal["reject", "skip"] = "reject"
    """What to do with an image without a mask: reject it, or skip it (if only some images have masks)."""
    colors: dict[str, tuple[base_format.Level, base_format.Level, base_format.Level]] | str | None = dataclasses.field(
        default=None, hash=False
    )
    """For masks whose classes are drawn in colors: red, green and blue of each class, such as `road: [128, 64, 128]`,
    numbered from 0 in this order; or a file below `source.uri` with a line `name,r,g,b` or `r g b name` for each. A
    gray mask of 0 and 255 has the colors `{background: [0, 0, 0], foreground: [255, 255, 255]}`. By default the number
    of a pixel in the file, for a palette its index, is the class."""
    ignore: tuple[str, ...] = ()
    """Names in `colors` that are no classes: their pixels become 255."""
    bits: base_format.Bits = 8
    """Bits of each class that is stored. With 8, a class above 255 is a reject, and a gray PNG of 16 bits stays as it
    is; with 16, all masks are stored with 16."""

    def __post_init__(self) -> None:
        if (self.image is None) != (self.mask is None):
            raise ValueError("source.masks.image and source.masks.mask go together")
        if self.ignore and self.colors is None:
            raise ValueError("source.masks.ignore names colors of source.masks.colors, which is not set")
        if self.image is None and self.colors is not None:
            raise ValueError("source.masks.colors is for masks: set source.masks.image and source.masks.mask")
        if self.image is not None and self.mask is not None:
            check_pattern("source.masks.image", self.image, "source.masks.mask", self.mask)

    @property
    def rule(self) -> Masks | None:
        """These options, if images have masks."""
        return None if self.image is None else self

    def policy(self, root: str) -> class_masks.MaskPolicy:
        """Returns what the pixels of masks mean; `root` is the folder that the address of a file is relative to.

        Raises:
            ConfigError: if the file with the colors cannot be read, or two classes have one color.
        """
        return class_masks.MaskPolicy(_read_colors(self, root), bits=self.bits)

    @property
    def pairing(self) -> list[str | None]:
        """The options that decide which mask an image has."""
        return [self.image, self.mask, self.missing]

    def is_mask(self, path: str) -> bool:
        """Returns whether `path` has the form of a mask's path."""
        return self._mask.fullmatch(path) is not None

    def mask_of(self, path: str) -> str | None:
        """Returns the path of the mask of an image, which may not exist; None if `path` is no image's."""
        match = self._image.fullmatch(path)
        return None if match is None else match.expand(self.mask or "")

    def _templates(self) -> Iterable[tuple[str, str]]:
        return [("mask", self.mask or "")]

    def _with_partners(self, ref: elements.ImageRef, partners: Sequence[_Partner]) -> elements.ImageRef:
        return ref._replace(mask=elements.Mask(*partners[0]))

    @functools.cached_property
    def _mask(self) -> re.Pattern[str]:
        return pattern_of(self.mask or "")


def pattern_of(template: str) -> re.Pattern[str]:
    """Returns a pattern for all paths that a template can give, whatever its groups are."""
    return re.compile(".*".join(map(re.escape, _GROUP.split(template))), re.DOTALL)


def check_pattern(image_key: str, image: str, mask_key: str, mask: str) -> None:
    """Checks that a pattern for the path of an image and the path of the file that belongs to it go together.

    Raises:
        ValueError: if they do not. It names the keys of the config.
    """
    pattern = listing_rules.compile_pattern(image_key, image)
    if "\\" in _GROUP.sub("", mask):
        raise ValueError(
            f"{mask_key} {mask!r} is a path, not a regular expression: "
            rf"only groups of {image_key}, \1 or \g<name>, take a backslash"
        )
    if mask.startswith("/") or ".." in mask.split("/"):
        raise ValueError(f"{mask_key} {mask!r} leaves the folder: give a path below source.uri")
    if not _GROUP.search(mask):
        raise ValueError(rf"{mask_key} {mask!r} names one file for all images: add a group, such as \1")
    try:
        pattern.sub(mask, "")
    except (re.error, IndexError) as e:
        raise ValueError(f"{mask_key} {mask!r} does not fit {image_key} {image!r}: {e}") from e


def _find_partner(root: str, ref: elements.ImageRef, path: str, what: str) -> _Partner | elements.Reject | None:
    """Returns a file that belongs to an image; a reject; None if there is none. `path` is relative to `root`."""
    if ".." in path.split("/"):
        return _reject(ref, elements.Reason.OUTSIDE_ROOT, f"its {what} {path!r} leaves {root!r}")
    uri = storage.join(root, path)
    try:
        entry = storage.storage_of(uri).stat(uri)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as e:
        if storage.is_fault(e):
            raise
        return _reject(ref, elements.Reason.of_error(e), f"its {what} {path!r} cannot be read ({e.strerror or e})")
    if entry.kind != storage.FILE:
        return _reject(ref, elements.Reason.UNREADABLE, f"its {what} {path!r} is not a regular file ({entry.kind})")
    return uri, entry.size, entry.version


def _reject(ref: elements.ImageRef, reason: elements.Reason, detail: str) -> elements.Reject:
    return elements.Reject(ref.key, ref.uri, "list", reason, detail)


# --- colors of classes ----------------------------------------------------------------------------------------------

_MAX_MIB = 1
_MAX_CLASSES = 1 << 12
_LEVELS = (("r", "g", "b"), ("red", "green", "blue"))  # names of columns
_NAMES = ("name", "class", "label")
_NUMBERS = r"(?P<r>\d{1,3})[\s,;]+(?P<g>\d{1,3})[\s,;]+(?P<b>\d{1,3})"
_LINES = tuple(
    map(
        re.compile,
        (
            rf"{_NUMBERS}[\s,;]+(?P<name>\S.*)",  # CamVid's label_colors.txt: 64 128 64  Animal
            rf"(?P<name>[^\s,;:][^,;:\t]*?)\s*[\s,;:]\s*{_NUMBERS}\s*(?::.*)?",  # class_dict.csv; CVAT's road:0,0,0::
        ),
    )
)
_OPTION = "source.masks.colors"


def _read_colors(masks: Masks, root: str) -> class_masks.MaskColors | None:
    """Returns the colors of the classes; None if masks hold numbers.

    Raises:
        ConfigError: if the file cannot be read, or two classes have one color.
    """
    given = masks.colors
    if given is None:
        return None
    if isinstance(given, str):
        uri = input_places.resolve(given, root)
        where, pairs = f"{_OPTION}: {uri!r}", tuple(_read_file(uri))
    else:
        where, pairs = _OPTION, tuple(given.items())
    _check(pairs, where)
    if unknown := sorted(set(masks.ignore) - {name for name, _ in pairs}):
        raise errors.ConfigError(
            "masks-unknown-color",
            f"source.masks.ignore names {unknown[0]!r}, and {where} has {', '.join(name for name, _ in pairs)}",
        )
    if len(pairs) > _MAX_CLASSES:
        raise errors.ConfigError(
            "masks-too-many-colors", f"{where} has {len(pairs):,} colors, expected up to {_MAX_CLASSES:,}"
        )
    colors = class_masks.MaskColors(pairs, frozenset(masks.ignore))
    highest = class_masks.IGNORED if masks.ignore else class_masks.IGNORED + 1
    if masks.bits == 8 and len(colors.names) > highest:
        raise errors.ConfigError(
            "masks-too-many-classes", f"{where} has {len(colors.names):,} classes: set source.masks.bits: 16"
        )
    return colors


def _check(pairs: Iterable[tuple[str, tuple[int, int, int]]], where: str) -> None:
    named: dict[tuple[int, int, int], str] = {}
    names: set[str] = set()
    for name, color in pairs:
        if not name.strip() or name in names:
            raise errors.ConfigError(
                "masks-name-twice", f"{where} has the name {name!r} twice, or an empty one; give each class its own"
            )
        names.add(name)
        other = named.setdefault(color, name)
        if other != name:
            raise errors.ConfigError(
                "masks-color-twice", f"{where} gives {other!r} and {name!r} the same color {list(color)}; remove one"
            )
    if not named:
        raise errors.ConfigError(
            "masks-no-colors", f"{where} has no color; write NAME: [red, green, blue] for each class"
        )


def _read_file(uri: str) -> Iterator[tuple[str, tuple[int, int, int]]]:
    """Yields names and colors in the order of a file.

    Raises:
        ConfigError: if it cannot be read, or a line has no name and color.
    """
    remedy = "give a file below --input, or a mapping"
    lines = input_places.read_text(uri, _MAX_MIB, f"{_OPTION}: {uri!r}", remedy, "no list of colors").splitlines()
    columns = _columns_of(lines[0]) if lines else None
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#") or (number == 1 and not re.search(r"\d", line)):
            continue
        found = _parse(line, columns)
        if found is None or max(found[1]) > 255:
            raise errors.ConfigError(
                "masks-bad-color",
                f"{_OPTION}: {uri!r}, line {number}: {line[:80]!r}; expected name,r,g,b or r g b name, with 0 to 255",
            )
        yield found


def _columns_of(head: str) -> tuple[int, int, int, int] | None:
    """Returns the places of name, red, green and blue, if the first line of a file names them."""
    names = [name.strip().lower() for name in next(csv.reader([head]), [])]
    name = next((each for each in _NAMES if each in names), None)
    levels = next((each for each in _LEVELS if set(each) <= set(names)), None)
    if name is None or levels is None:
        return None
    return names.index(name), *map(names.index, levels)  # type: ignore[return-value]


def _parse(line: str, columns: tuple[int, int, int, int] | None) -> tuple[str, tuple[int, int, int]] | None:
    fields: Mapping[str, str] | None = None
    if columns is not None:
        cells = next(csv.reader([line]), [])
        if len(cells) > max(columns):
            fields = dict(zip(("name", "r", "g", "b"), (cells[place].strip() for place in columns)))
    else:
        match = next(filter(None, (form.fullmatch(line.strip()) for form in _LINES)), None)
        fields = match.groupdict() if match else None
    if fields is None or not all(fields[each].isdecimal() for each in "rgb"):
        return None
    return fields["name"].strip(), (int(fields["r"]), int(fields["g"]), int(fields["b"]))
