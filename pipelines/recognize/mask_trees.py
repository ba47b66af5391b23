"""Finds masks in folders that differ from those of the images at any level: leftImg8bit/train/ulm and gtFine/train/ulm.

The paths of a folder of images and of its folder of masks differ in one place: by one name, one in place of two, or two
of which the outer one, as of an archive, begins with the inner one: gtFine_trainvaltest/gtFine. The names of files are
compared without the ending that all images of a folder share.
"""

from __future__ import annotations

import collections
import itertools
import posixpath
import re
from collections.abc import Iterator, Sequence, Set
from typing import NamedTuple

from imagebeam import plural
from imagebeam.pipelines.recognize import mask_folders
from imagebeam.transforms.sources import folder_probe, name_signs
from imagebeam.transforms.sources.folder_probe import Finding, Folder, FolderProbe, and_list, name_some

_DEPTH = 5  # levels of folders that are searched
_NUM_INNER = 5  # folders of one folder, beside those of splits
_MAX_FOLDERS = 60
_DIGIT = re.compile(r"\d")
_MARKS = "_-. "


class _Place(NamedTuple):
    """Where the paths of folders of images and masks differ: the name of the one at `level`, and the one for it."""

    level: int
    num_levels: int
    image: str  # of several levels if archives were unpacked into folders of their names
    mask: str


class _Pair(NamedTuple):
    images: Folder
    masks: Folder
    extension: str  # of masks, as spelt
    start: str  # cut from the beginning of an image's name
    cut: str  # from its end
    affixes: tuple[tuple[str, str], ...]  # before and after the rest of it in the names of its masks


def find(probe: FolderProbe, at: str) -> Iterator[Finding]:
    """Finds the masks of images in one folder, or in several folders of one form."""
    folders = _folders_of_files(probe, at)
    groups: collections.defaultdict[_Place, list[_Pair]] = collections.defaultdict(list)
    for images, masks in itertools.permutations(folders, 2):
        place = _place_of(_names_of(images, at), _names_of(masks, at))
        if place is not None and (pair := _pair_of(images, masks)) is not None:
            groups[place].append(pair)
    plain = [place for place in groups if not mask_folders.is_for_people(place.mask)]

    def rank(place: _Place) -> tuple[int, bool, int]:
        return len(groups[place]), name_signs.IMAGES.search(place.image) is not None, -place.mask.count("/")

    best = max(plain, key=rank, default=None)
    if best is None:
        return
    pairs = [each for each in groups[best] if each[2:] == groups[best][0][2:]]
    affixes = pairs[0].affixes
    chosen = next((each for each in affixes if not mask_folders.is_for_people("".join(each))), None)
    if chosen is None:
        return
    doubts = []
    if rivals := [each.mask for each in plain if each[:3] == best[:3] and each != best]:
        doubts.append(f"{and_list(rivals)} may hold the masks of {best.image}, too: set source.masks.mask for them")
    others = [f"{before}*{after}" for before, after in affixes if (before, after) != chosen]
    if len(pairs) < len(groups[best]):
        doubts.append(
            f"the files in {best.mask} are not named in one way: set source.masks.image and source.masks.mask"
        )
    unsure = [each for each in others if not mask_folders.is_for_people(each)]
    if unsure:
        doubts.append(f"each image has {and_list(unsure)}, too: set source.masks.mask for another one")
    yield _finding_of(best, pairs, chosen, at, doubts)


def _folders_of_files(probe: FolderProbe, at: str) -> list[Folder]:
    """Returns folders with files, if one of all that are looked at has a name for masks."""
    level, seen = [probe.look(at)], list[Folder]()
    for depth in range(_DEPTH):
        names = [name for each in (*seen, *level) for name in each.folders]
        if depth == 2 and not any(map(name_signs.MASKS.search, names)):
            return []
        seen += level
        level = [
            probe.look(each.below(name)) for each in level for name in folder_probe.likely_first(each, _NUM_INNER)
        ][: _MAX_FOLDERS - len(seen)]
    return [each for each in (*seen, *level) if each.files and each.path != at and "\\" not in each.path]


def _names_of(folder: Folder, at: str) -> list[str]:
    return folder.path.removeprefix(f"{at}/").split("/")


def _place_of(images: Sequence[str], masks: Sequence[str]) -> _Place | None:
    """Returns where the path of a folder of masks differs from that of one of images; None if it is no such folder."""
    level = _num_equal(images, masks)
    after = _num_equal(images[level:][::-1], masks[level:][::-1])
    image, mask = images[level : len(images) - after], masks[level : len(masks) - after]
    path = "/".join(mask)
    are_wrapped = len(image) == len(mask) == 2 and all(outer.startswith(inner) for outer, inner in (image, mask))
    if (len(image) != 1 and not are_wrapped) or not 1 <= len(mask) <= 2 or folder_probe.split_meant(image[0]):
        return None
    if name_signs.MASKS.search("/".join(images)) or not (
        mask_folders.holds_masks(path) or mask_folders.is_for_people(path)
    ):
        return None
    return _Place(level, len(images), "/".join(image), path)


def _num_equal(one: Sequence[str], other: Sequence[str]) -> int:
    """Returns the number of equal names or letters at the beginning."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other)))


def _pair_of(images: Folder, masks: Folder) -> _Pair | None:
    extensions = collections.Counter(posixpath.splitext(name)[1] for name in masks.files)
    usual = [each for each, _ in extensions.most_common() if each.lower() in mask_folders.MASK_FORMATS]
    if not usual or not images.images:
        return None
    known = {posixpath.splitext(name)[0] for name in masks.files if name.endswith(usual[0])}
    stems = sorted(images.stems)
    endings = [each[::-1] for each in _shared_beginnings([stem[::-1] for stem in stems])]
    for start, cut in (*(("", each) for each in endings), *((each, "") for each in _shared_beginnings(stems)[1:])):
        if affixes := _affixes([stem.removeprefix(start).removesuffix(cut) for stem in stems], known):
            return _Pair(images, masks, usual[0], start, cut, tuple(affixes))
    return None


def _shared_beginnings(stems: Sequence[str]) -> list[str]:
    """Returns what all names begin with up to a mark, first nothing and then the shortest: `img_`."""
    first, *_, last = sorted((*stems, stems[0]))
    shared = first[: _num_equal(first, last)] if len(stems) > 1 else ""
    return ["", *(shared[: place + 1] for place in range(len(shared)) if shared[place] in _MARKS)]


def _affixes(names: Sequence[str], known: Set[str]) -> list[tuple[str, str]]:
    """Returns what may precede and follow the names of images in the names of their masks."""
    found = {(before, after) for name in known if names[0] in name for before, _, after in [name.partition(names[0])]}
    return sorted(
        (before, after)
        for before, after in found
        if not _DIGIT.search(before + after)  # x_0.png and x_1.png are masks of objects
        and sum(f"{before}{name}{after}" in known for name in names) >= mask_folders.SHARE * len(names)
    )


def _finding_of(
    place: _Place, pairs: Sequence[_Pair], affix: tuple[str, str], at: str, doubts: Sequence[str]
) -> Finding:
    image, mask = list[str](), list[str]()
    levels = [sorted({*found}) for found in zip(*(_names_of(each.images, at) for each in pairs))]
    own_levels = range(place.level, place.level + place.image.count("/") + 1)
    shared = [names for level, names in enumerate(levels) if level not in own_levels]
    of_splits = [names for names in shared if folder_probe.splits_in(names).keys() == {*names}]
    of_splits.sort(key=lambda names: (len({*map(folder_probe.split_meant, names)}), len(names) > 1), reverse=True)
    splits = of_splits[0] if of_splits else []  # trainval/train, trainval/val
    if several := [names for names in of_splits[1:] if len({*map(folder_probe.split_meant, names)}) > 1]:
        ways = " or ".join(map(name_some, (several[0], splits)))
        doubts = (*doubts, f"the splits may be {ways}: the latter would be taken")
    for level, names in enumerate(levels):
        if level == place.level:
            image.append(re.escape(place.image))
            mask.append(place.mask)
        elif level in own_levels:
            continue
        elif names is splits:
            image.append(f"(?P<split>{'|'.join(map(re.escape, names))})")
            mask.append(r"\g<split>")
        elif len(names) == 1:
            image.append(re.escape(names[0]))
            mask.append(names[0])
        else:
            image.append(f"(?P<folder{level}>[^/]+)")
            mask.append(rf"\g<folder{level}>")
    kinds = mask_folders.extensions_of([name for each in pairs for name in each.images.images])
    first = pairs[0]
    more = f" and {plural.count(len(pairs) - 1, 'other folder')}" if len(pairs) > 1 else ""
    own, others = (f"{folder.path}/".removeprefix(f"{at}/")[:-1] for folder in (first.images, first.masks))
    return mask_folders.finding_of_masks(
        rf"{'/'.join(image)}/{re.escape(first.start)}(?P<name>[^/]*){re.escape(first.cut)}\.{kinds}",
        rf"{'/'.join(mask)}/{affix[0]}\g<name>{affix[1]}{first.extension}",
        splits,
        f"a {first.extension.lower()} file for each image: {others} for {own}{more}",
        doubts,
    )
