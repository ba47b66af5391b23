"""Finds what contradicts that folders of images are classes: images that are aligned, and files of boxes."""

from __future__ import annotations

import collections
import itertools
import posixpath
import re
from collections.abc import Collection, Sequence

from imagebeam import errors
from imagebeam.transforms.formats import coco_detect
from imagebeam.transforms.formats.base_format import format_of
from imagebeam.transforms.sources import folder_probe, name_signs
from imagebeam.transforms.sources.folder_probe import Finding, Folder, FolderProbe, name_some

SAME_NAMES = "hold images of the same names"
_PAGE = "for pairs see docs/recipes/pairs.md"
_WORD = re.compile(r"[^\W\d_]+")
_NUMBERS = re.compile(r"(\d+)")
_TOKENS = re.compile(r"[^\W\d_]+|\d+|[\W_]+")
_NUMBER_ALONE = re.compile(r"[\W_]*\d+[\W_]*")
_NUMBER_AFTER = re.compile(r"[_\-. ]+\d+\Z")
_ENDING = re.compile(r"[_\-. ][^_\-. \d]+\Z")
_NUM_FOLDERS = 6  # folders of images that are compared


def aligned(probe: FolderProbe, holder: Folder, inner: str = "") -> str:
    """Returns in words that folders hold images of the same names, as pairs do and classes do not; "" if not.

    Numbers without gaps are no such names, as classes have them, too: there the sizes of a few images must differ
    from each other, and be the same or in the same proportion in all folders.

    Args:
        probe: of the data set.
        holder: of the folders.
        inner: folder in each of them that has its images.
    """
    folders = [posixpath.join(name, inner) if inner else name for name in holder.folders]
    looked = [probe.with_images(each.path) for each in probe.some(holder, folders, _NUM_FOLDERS)]
    if parts := next(filter(None, (_beside_of_other_kind(each) for each in looked if each is not None)), None):
        return f"{parts[0]} has the name of {parts[1]} beside it, and more: they may be parts of one example"
    held = [each for each in probe.some(holder, folders, _NUM_FOLDERS) if each.images and each.is_whole]
    if not held or len(held[0].stems) < 2:
        return ""
    if len(held) > 1 and (files := _files_of_an_example(held)):
        return (
            f"each folder holds images that end in {name_some(files)} after a beginning of its own: if it is one "
            "example, write a table with a row for each (docs/recipes/tables.md, Several images in one example)"
        )
    if longer := _longer_names(held):
        return (
            f"each image in {longer[1].path} has the name of one in {longer[0].path}, and more: they may be pairs, no "
            f"classes ({_PAGE})"
        )
    if endings := paired_endings(held[0].stems):
        return (
            f"each image in {held[0].path} has one of the endings {name_some(endings)}: they may be pairs, no classes "
            f"({_PAGE})"
        )
    held, common = _of_equal_names(held)
    if not common:
        return ""
    own = [posixpath.basename(each.path.removesuffix(f"/{inner}")) for each in held]
    are_roles = name_signs.have_roles([_NUMBER_AFTER.sub("", each) for each in own])  # raw-890
    is_plain = _is_counter(common) and not are_roles
    if is_plain and not _have_sizes_in_proportion(probe, held, sorted(common)):
        return ""
    names = name_some(own)
    return (
        f"{names} {SAME_NAMES} ({name_some(sorted(common), 2)}): pairs of images are no classes "
        f"({_PAGE}); if each folder is one example, write a table with a row for each (docs/recipes/tables.md, Several "
        "images in one example)"
    )


def numbered_alike(probe: FolderProbe, holder: Folder) -> str:
    """Returns a note if images in a few folders have the same names, numbers or all but for some words; "" if not."""
    few = holder.folders if len(holder.folders) <= _NUM_FOLDERS else ()
    every = [each for each in map(probe.look, map(holder.below, few)) if each.images and each.is_whole]
    held, common = _of_equal_names(every)
    are_equal = len(held) == len(few) and len(common) > 1 and _is_counter(common)
    if not are_equal and not _differ_in_constants(every):
        return ""
    folders = name_some([posixpath.basename(each.path) for each in every])
    but, names = ("", common) if are_equal else (" but for what is the same in each folder", every[0].stems)
    return f"{folders} {SAME_NAMES}{but} ({name_some(sorted(names), 2)}), and are taken for classes: {_PAGE}"


def _differ_in_constants(folders: Sequence[Folder]) -> bool:
    """Returns whether images in several folders have the same names but for what is the same in each folder.

    Names that are numbers alone without that have it at their end: 1_nir, 1_rgb. Before them it may be a class.
    """
    found = [_without_constants(each) for each in folders]
    names = {each for each, _ in found}
    if len(found) < 2 or len(names) > 1 or len(found[0][0]) < 2:
        return False
    return _say_more_than_a_number(found[0][0]) or any(is_at_end for _, is_at_end in found)


def _without_constants(folder: Folder) -> tuple[frozenset[str], bool]:
    """Returns names without the words and numbers that are the same in all, and whether one of these is at the end.

    As a_x_1 and b_x_2 become a__1 and b__2. A word before what differs that is the name of the folder stays.
    """
    parts = [*map(_TOKENS.findall, folder.stems)]
    if len({*map(len, parts)}) != 1:
        return folder.stems, False
    own = {*_TOKENS.findall(posixpath.basename(folder.path).lower())}
    columns = [*zip(*parts)]
    last = max((n for n, column in enumerate(columns) if len({*column}) > 1), default=0)
    constant = [n for n, (first, *others) in enumerate(columns) if first.isalnum() and {*others} <= {first}]
    cut = [n for n in constant if n > last or columns[n][0].lower() not in own]
    end = last + 1 if any(n > last for n in cut) else len(columns)
    names = ("".join(part for n, part in enumerate(each[:end]) if n not in cut) for each in parts)
    return frozenset(names), end < len(columns)


def _of_equal_names(folders: Sequence[Folder]) -> tuple[list[Folder], frozenset[str]]:
    """Returns those folders whose images have the same names, and these names; no names if there are no two of them."""
    alike = ([each for each in folders if _share_names(first, each)] for first in folders)
    held = max(alike, key=len, default=[])
    common = frozenset(held[0].stems).intersection(*(each.stems for each in held[1:])) if len(held) > 1 else frozenset()
    are_held = all(_share_names(one, other) for one, other in itertools.combinations(held, 2))
    return held, common if are_held else frozenset()


def _share_names(one: Folder, other: Folder) -> bool:
    """Returns whether nearly all images in two folders have the same names.

    They may be a part of one folder if their names say more than a number: obj1__0 and obj1__5 of obj1__0 to obj1__71.
    """
    larger, smaller = sorted((one.stems, other.stems), key=len, reverse=True)
    most = smaller if len(smaller) > 2 and _say_more_than_a_number(larger) else larger
    return len(larger & smaller) >= folder_probe.NEARLY_ALL * len(most)


def _files_of_an_example(folders: Sequence[Folder]) -> list[str]:
    """Returns what the names of images end in, if that is the same in all folders and begins differently in each."""
    own = [re.sub(r"[^_\-. ]*\Z", "", posixpath.commonprefix([*each.stems])) for each in folders]
    endings = [{stem.removeprefix(prefix) for stem in each.stems} for prefix, each in zip(own, folders)]
    first = sorted(endings[0])
    are_same = len(first) > 1 and len({*own}) == len(own) and all(each == endings[0] for each in endings)
    are_numbers = all(map(_NUMBER_ALONE.fullmatch, first))  # cat_1 and cat (1) may be in a class cat
    return first if are_same and not are_numbers else []


def _longer_names(folders: Sequence[Folder]) -> tuple[Folder, Folder] | None:
    """Returns two folders if every name in the second one is a name in the first one and a mark with more after it."""
    for first, second in itertools.permutations(folders[:_NUM_FOLDERS], 2):
        starts = {
            stem: next(each for each in folder_probe.beginnings(stem) if each in first.stems or not each)
            for stem in second.stems
        }
        if {*starts.values()} == first.stems:
            return first, second
    return None


def _beside_of_other_kind(folder: Folder) -> tuple[str, str] | None:
    """Returns a mask or image of another format and the image that its name begins with, if a third are so: x_mask."""
    image_of = {posixpath.splitext(name)[0]: name for name in folder.images}
    found = {
        name: image_of[start]
        for stem, name in image_of.items()
        for start in folder_probe.beginnings(stem)
        if start in image_of
        and (
            folder_probe.extension_of(image_of[start]) != folder_probe.extension_of(name)
            or name_signs.MASK_ENDING.fullmatch(stem)
        )
    }
    return next(iter(found.items())) if len(found) * 3 >= len(image_of) and found else None


def paired_endings(stems: Collection[str]) -> list[str]:
    """Returns what the names of images end in, if each name is there with each ending: 1_temp and 1_test."""
    found: collections.defaultdict[str, set[str]] = collections.defaultdict(set)
    for stem in stems:
        ending = _ENDING.search(stem)
        found[stem[: ending.start()] if ending else stem].add(ending[0] if ending else "")
    endings = {frozenset(each) for each in found.values()}
    return sorted(next(iter(endings))) if len(endings) == 1 and len(found) > 1 and len(next(iter(endings))) > 1 else []


def _is_counter(stems: Collection[str]) -> bool:
    """Returns whether names differ in one number alone, which has no gaps, and say nothing else: 0_100, 1_100."""
    if not all(len(word) == 1 or name_signs.COUNTED.search(word) for stem in stems for word in _WORD.findall(stem)):
        return False
    if _say_more_than_a_number(stems):
        return False
    numbers = {int(text) for each in _varying(stems) for text in each}
    return max(numbers) - min(numbers) < len(stems)


def _say_more_than_a_number(stems: Collection[str]) -> bool:
    """Returns whether names differ in more than one number."""
    varying = _varying(stems)
    is_one_form = len({len(_NUMBERS.split(stem)) for stem in stems}) == 1
    return not is_one_form or len(varying) != 1 or not _are_decimal(varying[0])


def _varying(stems: Collection[str]) -> list[set[str]]:
    """Returns the parts of names, numbers and what is between them, that are not the same in all."""
    return [{*each} for each in zip(*map(_NUMBERS.split, stems)) if len({*each}) > 1]


def _are_decimal(texts: Collection[str]) -> bool:
    return all(map(str.isdecimal, texts))


def _have_sizes_in_proportion(probe: FolderProbe, folders: Sequence[Folder], stems: Sequence[str]) -> bool:
    """Returns whether images of different sizes have the same sizes, or multiples of them, in all folders."""
    asked = folder_probe.spread(stems, 4)[:4]
    sizes = []
    for folder in folders:
        name_of = {posixpath.splitext(name)[0]: name for name in folder.images}
        sizes.append([probe.image_size(folder.below(name_of[stem])) for stem in asked])
    if any(size is None for each in sizes for size in each) or len(set(sizes[0])) < 2:
        return False
    scales = [{(a[0] / b[0], a[1] / b[1]) for a, b in zip(each, sizes[0]) if a and b} for each in sizes[1:]]
    return all(len(each) == 1 for each in scales)


# --- boxes as classes -------------------------------------------------------------------------------------------------

# One request for each folder; classes are more only where nothing is to be recognized.
_BOUNDS = folder_probe.Bounds(entries=1_000)


def refuse_boxes(root: str) -> None:
    """Refuses a folder of images with boxes as a folder of classes.

    Raises:
        ConfigError: if it is one; names the preset that reads it.
    """
    found = _find(root)
    if found is None:
        return
    settings = "".join(f" --set {key}={value}" for key, value in found.settings.items() if isinstance(value, str))
    raise errors.ConfigError(
        "boxes-as-classes",
        f"--input {root!r} is a data set of boxes: {found.evidence}. label.by: directory would make classes of its "
        f"folders: use --config {found.preset}{settings}. For its images without boxes set label.by: none; if its "
        "folders are classes nevertheless, set source.include='**'",
    )


def _find(root: str) -> Finding | None:
    probe = FolderProbe(root, _BOUNDS)
    signs = (*(format_of(by).detect for by in ("yolo", "voc", "box_csv", "annotations")), coco_detect.exports)
    found = (each for sign in signs for each in sign(probe, ""))
    return next((each for each in found if not each.doubts), None)
