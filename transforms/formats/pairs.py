r"""Several aligned images in each example, found by their paths: an input and its target, low and high resolution.

The first image of an example is found by a pattern for paths; the others by a path with the groups of that pattern,
such as `HR/(.*)\.png` and `LR/\1x2.png`. Or each file holds them all, side by side. They are stored as the extra
images of a table are.
"""

from __future__ import annotations

import dataclasses
import functools
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

from imagebeam import errors, features
from imagebeam.storage import remote
from imagebeam.transforms import elements
from imagebeam.transforms.formats import base_format, masks
from imagebeam.transforms.images import (
    checked_image,
    image_formats,
    pillow_decoder,
    pixel_type,
    side_by_side,
    structure,
)
from imagebeam.transforms.sources import files, folder_probe, image_source, input_places, listing_rules, name_signs
from imagebeam.transforms.sources.folder_probe import HASH_SPLIT, NEARLY_ALL, Finding, Folder, FolderProbe, splits_in

FIRST = "image"  # name of the first image of an example in `side_by_side`


@dataclasses.dataclass(frozen=True)
class Pairs(masks.PartnerRule, base_format.Format):
    """Two or more aligned images in each example, found by their paths."""

    OPTION: ClassVar[str] = "source.pairs"
    PARTNER: ClassVar[str] = "image_of_a_pair"
    WITHOUT: ClassVar[str] = "image_without_partner"
    ABOUT: ClassVar[str] = "two or more aligned images in each example, such as an input and its target"
    PRESETS: ClassVar[tuple[str, ...]] = ("pairs",)

    image: str | None = None
    """Regular expression for the path of the first image below `source.uri`, such as `input/(.*)\\.jpg`; other files
    are skipped. A group `(?P<split>...)` is the split for `split.by: source`."""
    others: dict[base_format.Text, base_format.Text] = dataclasses.field(default_factory=dict, hash=False)
    """Paths of the other images by their names, with the groups of `image`, such as `target: target/\\1.png`. The name
    is a part of the keys: `image/target/encoded`, `image/target/format` and so on."""
    missing: Literal["reject", "skip"] = "reject"
    """What to do if one of the other images is missing: reject the example, or skip it (for a folder of which only
    some images have partners)."""
    side_by_side: tuple[base_format.Text, ...] = ()
    """For files that hold the images of an example side by side, all of one width: their names from left to right,
    such as `[image, target]`. `image` is the first image of the example. Each is cut out and encoded again: PNGs keep
    their pixels, JPEGs are compressed once more. Without `image`, the pattern, all files are taken."""

    def __post_init__(self) -> None:
        if self.side_by_side:
            if self.others or self.missing != "reject":
                raise ValueError("source.pairs.side_by_side has no other files: drop source.pairs.others and missing")
            names = [*self.side_by_side]
            if len(names) < 2 or names.count(FIRST) != 1 or len({*names}) < len(names):
                raise ValueError(
                    f"source.pairs.side_by_side is {names}: name two or more images, each once, and one of them {FIRST}"
                )
            for name in self.extra_names:
                features.check_extra_image_name(name)
            if self.image is not None:
                listing_rules.compile_pattern("source.pairs.image", self.image)
        elif (self.image is None) != (not self.others):
            raise ValueError("source.pairs.image and source.pairs.others go together")
        for name, path in self.others.items():
            features.check_extra_image_name(name)
            masks.check_pattern("source.pairs.image", self.image or "", f"source.pairs.others.{name}", path)

    @property
    def extra_names(self) -> tuple[str, ...]:
        """Names of the other images."""
        return tuple(self.others) or tuple(name for name in self.side_by_side if name != FIRST)

    def gives(self) -> base_format.Gives:
        refuses = [("image.frames: each", "pairs one image with one other: set image.frames: first or reject")]
        if self.side_by_side:
            refuses.append(("image.orientation: keep", "would cut turned files in the wrong direction: leave it out"))
        return base_format.Gives(
            splits=(self.image is None and not self.side_by_side) or self.names_split,
            extra_images=self.extra_names,
            takes=frozenset({"include"}),
            refuses=tuple(refuses),
        )

    def open(self, request: base_format.Request) -> image_source.ImageSource:
        if self.image is None and not self.side_by_side:
            raise errors.ConfigError(
                "pairs-no-pattern",
                "source.pairs.image and source.pairs.others are not set: give the path of the first image as a regular "
                r"expression, such as input/(.*)\.jpg, and the path of each other one, such as {target: target/\1.jpg}",
            )
        with remote.budget(remote.CHECK_BUDGET_SEC):
            root, include, _ = input_places.find_input(request.uri, request.include, request.output)
            rule = None if self.image is None else self
            names = self.side_by_side
            part = side_by_side.Part(names.index(FIRST), len(names)) if names else side_by_side.WHOLE
            return _PairsSource(root, include, input_places.leave_out(request.output, root), rule, part)

    def reads(self, probe: FolderProbe, at: str) -> base_format.Reads:
        if self.image is None:
            return base_format.Reads()
        return base_format.Reads(self.is_image, self.files_of, is_partner=self.is_mask, num_splits=1 + self.names_split)

    @classmethod
    def detect(cls, probe: FolderProbe, at: str) -> Iterator[Finding]:
        """Finds folders named like the parts of pairs, with equal images, in or above those of splits too."""
        root = probe.look(at)
        splits = splits_in(root.folders)
        if splits and all(_roles_in(probe, probe.look(root.below(name))) for name in splits):
            first = next(iter(splits))
            yield _finding_of(probe, _roles_in(probe, probe.look(root.below(first))), at, first, splits)
        elif roles := _roles_in(probe, root):
            yield _finding_of(probe, roles, at, "", {})
        else:
            splits = splits_in(probe.look(root.below(root.folders[0])).folders) if root.folders else {}
            if splits and all(_roles_in(probe, root, name) for name in splits):
                first = next(iter(splits))
                yield _finding_of(probe, _roles_in(probe, root, first), at, first, splits)
            elif root.images:
                yield from _find_endings(probe, root, at)

    def is_mask(self, path: str) -> bool:
        """Returns whether `path` has the form of the path of another image."""
        return any(each.fullmatch(path) for each in self._others)

    def _templates(self) -> Iterable[tuple[str, str]]:
        return ((f"image {name!r}", path) for name, path in self.others.items())

    def _with_partners(self, ref: elements.ImageRef, partners: Sequence[tuple[str, int, int]]) -> elements.ImageRef:
        columns = (f"source.pairs.others.{name}" for name in self.others)
        return ref._replace(
            extra_images=tuple(elements.ExtraImage(*each, column) for each, column in zip(partners, columns))
        )

    @functools.cached_property
    def _others(self) -> tuple[re.Pattern[str], ...]:
        return tuple(map(masks.pattern_of, self.others.values()))


@dataclasses.dataclass(frozen=True)
class _PairsSource(files.FilesSource):
    part: side_by_side.Part = side_by_side.WHOLE

    def facts(self) -> image_source.SourceFacts:
        return image_source.SourceFacts(part=self.part)

    def listed_folder(self) -> str:
        return ""  # a saved listing holds no extra images


# --- recognition ------------------------------------------------------------------------------------------------------


def _rank_of(name: str) -> int | None:
    return next((rank for rank, role in enumerate(name_signs.ALIGNED) if re.fullmatch(role, name, re.IGNORECASE)), None)


def _roles_in(probe: FolderProbe, holder: Folder, below: str = "") -> list[Folder]:
    """Returns the folders of aligned images in a folder, each with the names of the first; none if there are not two.

    Args:
        probe: of the data set.
        holder: the folder.
        below: folder of a split in each of them; "" if they hold the images themselves.
    """
    ranks = {name: rank for name in holder.folders if (rank := _rank_of(name)) is not None}
    if len(ranks) < 2:
        return []
    named = sorted(ranks, key=lambda name: ranks[name])
    others = [name for name in holder.folders if name not in ranks and probe.with_images(holder.below(name))]
    held = [probe.look(posixpath.join(holder.below(name), below).rstrip("/")) for name in named]
    same = [each for each in held if each.images and len(each.stems & held[0].stems) >= NEARLY_ALL * len(each.stems)]
    same = [each for each in same if len({posixpath.splitext(name)[1] for name in each.images}) == 1]  # a path has one
    are_different = len({name.lower() for name in named}) == len(named)
    return same if len(same) == len(named) > 1 and are_different and not others else []


_ENDING = re.compile(r"(?P<name>.+)(?P<end>[_\-.](?P<role>[A-Za-z]\w*)\.\w+)")
_MAX_ROLES = 4


def _types_of(probe: FolderProbe, first: str, others: Mapping[str, str]) -> dict[str, Any]:
    """Returns the setting for other images whose numbers are beyond 8 bits, as those of depth beside colors.

    Args:
        probe: of the data set.
        first: path of one first image.
        others: by its name, the path of each other image of the example.
    """
    types = {name: dtype for name, path in others.items() if (dtype := _dtype_of(probe.head(path))) is not None}
    if not types or _dtype_of(probe.head(first)) is not None:
        return {}
    return {"image.extra_images": {name: {"dtype": dtype} for name, dtype in types.items()}}


def _dtype_of(head: bytes) -> str | None:
    """Returns the type of the numbers of a gray image with more than 8 bits, by the beginning of its file."""
    image_format = image_formats.sniff_format(head)
    if image_format not in (image_formats.PNG, "tiff"):
        return None
    try:
        mode = pillow_decoder.open_lazily(head, image_format).mode
    except checked_image.BadImageError:
        return None
    return pixel_type.UINT16 if mode.startswith("I;16") else pixel_type.FLOAT32 if mode == "F" else None


def _find_endings(probe: FolderProbe, folder: Folder, at: str) -> Iterator[Finding]:
    """Finds images of one folder whose names end in the few roles of an example: `1_LR.png`, `1_HR.png`."""
    matches = [_ENDING.fullmatch(name) for name in folder.images]
    names: dict[str, set[str]] = {}  # by the ending of the files
    roles: dict[str, str] = {}
    for match in filter(None, matches):
        names.setdefault(match["end"], set()).add(match["name"])
        roles[match["end"]] = match["role"]
    are_pairs = 1 < len(roles) <= _MAX_ROLES and all(1 < len(each) == len(names[min(names)]) for each in names.values())
    if not all(matches) or not are_pairs or set.union(*names.values()) != names[min(names)]:
        return
    ranks = {end: rank for end, role in roles.items() if (rank := _rank_of(role)) is not None}
    if len(ranks) < len(roles) or any(map(name_signs.MASKS.search, roles.values())):
        return
    first, *others = sorted(ranks, key=lambda end: ranks[end])
    of_one = {end: folder.below(min(names[end]) + end) for end in roles}
    prefix, shown = folder_probe.prefix_of(folder, at), folder_probe.and_list([*roles.values()])
    may_be_classes = all(map(name_signs.OFTEN_CLASSES.fullmatch, roles.values()))
    yield Finding(
        "pairs",
        f"each name of an image has one of {shown} at its end",
        {
            "split": HASH_SPLIT,
            "source.pairs.image": f"{re.escape(prefix)}(?P<name>.*){re.escape(first)}",
            "source.pairs.others": {roles[end].lower(): rf"{prefix}\g<name>{end}" for end in others},
            **_types_of(probe, of_one[first], {roles[end].lower(): of_one[end] for end in others}),
        },
        (f"the first image is that of {roles[first]}",),
        doubts=(f"{shown} may be classes: for those take the preset cats_dogs",) if may_be_classes else (),
        reads_images_alone=True,
    )


_NUM_MEASURED, _MIN_MEASURED = 6, 3  # images


def find_side_by_side(probe: FolderProbe, at: str) -> Iterator[Finding]:
    """Finds images that are all twice as wide as high, as pix2pix stores its pairs: nothing else shows that they are.

    They are directly in the folder, or in those of splits.
    """
    root = probe.look(at)
    splits = splits_in(root.folders)
    folders = [root] if root.images else [probe.look(root.below(name)) for name in splits]
    each = [folder_probe.spread(folder.images, -(-_NUM_MEASURED // len(folders))) for folder in folders]
    paths = [folder.below(name) for folder, names in zip(folders, each) for name in names]
    sizes = [_size_of(probe.head(path)) for path in paths]
    if len(sizes) < _MIN_MEASURED or not all(each) or not all(size and size[0] == 2 * size[1] for size in sizes):
        return
    settings: dict[str, Any] = {"source.pairs": {"side_by_side": [FIRST, "target"]}, "split": HASH_SPLIT}
    if folders != [root]:
        renamed = {name: meant for name, meant in splits.items() if name != meant}
        settings["split"] = {"by": "directory", "rename": renamed}
    yield Finding(
        "pairs",
        f"all of {len(sizes)} images that were looked at are twice as wide as high, such as {paths[0]}",
        settings,
        doubts=(
            "nothing but their size speaks for two images side by side; if so, name them from left to right: "
            f"[target, {FIRST}] if the left one is the target",
        ),
        reads_images_alone=True,
    )


def _size_of(head: bytes) -> tuple[int, int] | None:
    """Returns width and height by the beginning of a file; None if it does not show them."""
    image_format = image_formats.sniff_format(head)
    if image_format not in structure.CHECKED_FORMATS:
        return None
    try:
        return pillow_decoder.open_lazily(head, image_format).size
    except checked_image.BadImageError:
        return None


def _finding_of(probe: FolderProbe, roles: Sequence[Folder], at: str, split: str, splits: Mapping[str, str]) -> Finding:
    """Returns the finding for aligned folders, those of one split if `split` is in their paths."""
    paths = [folder_probe.prefix_of(each, at) for each in roles]
    image, *others = (f"{path}{{name}}{posixpath.splitext(each.images[0])[1]}" for path, each in zip(paths, roles))
    names = [next(name for name in path.split("/") if _rank_of(name) is not None) for path in paths]
    choice = f"(?P<split>{'|'.join(map(re.escape, splits))})"
    pattern = "/".join(choice if part == split else re.escape(part) for part in image.split("/"))
    pattern = pattern.replace(re.escape("{name}"), "(?P<name>.*)")
    settings: dict[str, Any] = {"split": HASH_SPLIT}
    if split:
        others = ["/".join(r"\g<split>" if part == split else part for part in each.split("/")) for each in others]
        settings["split"] = {"by": "source", "rename": {name: meant for name, meant in splits.items() if name != meant}}
    settings["source.pairs.image"] = pattern
    settings["source.pairs.others"] = {
        name.lower(): path.replace("{name}", r"\g<name>") for name, path in zip(names[1:], others)
    }
    first, *of_others = (each.below(each.images[0]) for each in roles)
    settings |= _types_of(probe, first, {name.lower(): path for name, path in zip(names[1:], of_others)})
    shown = folder_probe.and_list([path.rstrip("/") for path in paths])
    evidence = f"{shown} hold images of the same names: each example has one of each"
    doubts = (f"{folder_probe.and_list(names)} may be classes: for those take the preset image_folder",)
    are_clear = not all(map(name_signs.OFTEN_CLASSES.fullmatch, names))
    return Finding(
        "pairs",
        evidence,
        settings,
        (f"the first image is that of {names[0]}",),
        doubts=doubts[are_clear:],
        reads_images_alone=True,
    )
