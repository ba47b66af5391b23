"""Signs of masks: files with the names of the images, in another folder or beside them."""

from __future__ import annotations

import collections
import dataclasses
import posixpath
import re
from collections.abc import Iterator, Sequence
from typing import Any

from imagebeam.pipelines.recognize import example_folders, mask_pairs, seen_masks
from imagebeam.pipelines.recognize.mask_pairs import MASK_FORMATS, MASKS, extensions_of
from imagebeam.transforms.formats.masks import Masks
from imagebeam.transforms.images import mask_pixels
from imagebeam.transforms.sources.folder_probe import (
    HASH_SPLIT,
    Change,
    Finding,
    Folder,
    FolderProbe,
    extension_of,
    prefix_of,
    split_places,
    splits_in,
)

_SPLIT_OF_IMAGE = r"\g<split>/"
_NUM_FOLDERS = 10  # that are looked into for the colors of classes


# Files with the classes and their colors, as CamVid and tools for labelling name them.
_COLOR_FILE = re.compile(
    r"(?i)class_dict\w*\.csv|label_?colou?rs?\.(txt|csv)|label_?map\.txt|colou?rs?_?map\.(txt|csv)"
)
_VOID = re.compile(rb"(?i)\bvoid\b")
_CAR = re.compile(r"[^/_]+_\d+\.jpg")
_CARVANA = (r"train/(?P<name>.*)\.jpg", r"train_masks/\g<name>_mask.gif")
_DIGIT = re.compile(r"\d")
_NUM_READ = 3  # masks


def find_masks(survey: FolderProbe, at: str) -> Iterator[Finding]:
    """Finds masks with the names of the images, in other folders or beside them."""
    finding = next(mask_pairs.find_pairs(survey, at), None) or next(_pairs(survey, at), None)
    if finding is None:
        return
    file = next(_color_files(survey, at), None)
    if file is not None:
        void = _VOID.search(survey.head(file))
        settings = {
            **finding.settings,
            "source.masks.colors": file.removeprefix(f"{at}/") if at else file,
            "source.masks.ignore": [void[0].decode()] if void else [],
        }
        evidence = f"{finding.evidence}; {posixpath.basename(file)} has the colors of the classes"
        yield dataclasses.replace(finding, preset="camvid", settings=settings, evidence=evidence)
        return
    image, mask = (finding.settings.get(f"source.masks.{key}") for key in ("image", "mask"))
    if (image, mask) == _CARVANA and all(map(_CAR.fullmatch, survey.look(posixpath.join(at, "train")).images)):
        yield Finding("carvana", finding.evidence)
        return
    masks = seen_masks.find_some(survey, Masks(image, mask), at) if image and mask else []
    heads = seen_masks.read_some(survey, masks)
    first = next(iter(heads), "")
    if heads and is_colored(heads[first]):
        note = (
            f"{first} is drawn in colors: if each color is a class, name them in source.masks.colors, such as "
            "{road: [128, 64, 128]}, or the file that lists them"
        )
        yield dataclasses.replace(finding, notes=(*finding.notes, note))
    elif heads and mask_pixels.are_black_and_white([*map(mask_pixels.count_numbers, heads.values())]):
        note = (
            f"{seen_masks.describe(heads)} have only the numbers 0 and 255, which become the classes 0 and 1 by "
            "source.masks.colors; without it they are the classes 0 and 255"
        )
        settings = {**finding.settings, "source.masks.colors": mask_pixels.BLACK_AND_WHITE}
        yield dataclasses.replace(finding, notes=(*finding.notes, note), settings=settings)
    else:
        yield finding


def is_colored(head: bytes) -> bool:
    """Returns whether a file begins as a PNG whose pixels are colors, not numbers or indexes of a palette."""
    return head.startswith(b"\x89PNG\r\n\x1a\n") and head[25:26] in (b"\2", b"\6")


def _color_files(survey: FolderProbe, at: str) -> Iterator[str]:
    root = survey.look(at)
    for folder in [root, *(survey.look(root.below(name)) for name in root.folders[:_NUM_FOLDERS])]:
        yield from (folder.below(name) for name in folder.files if _COLOR_FILE.fullmatch(name))


def _pairs(survey: FolderProbe, at: str) -> Iterator[Finding]:
    root = survey.look(at)
    for folder in split_places(survey, at):
        masks = [name for name in folder.folders if MASKS.fullmatch(name)]
        images = [name for name in folder.folders if name not in masks]
        for mask in masks:
            for image in sorted(images, key=lambda name: _likeness(name, mask)):
                found = _match(survey, folder, image, mask, at)
                if found is not None:
                    yield found
    yield from example_folders.find_pairs(survey, at)
    below = [survey.with_images(each.path) or each for each in survey.some(root, root.folders)]
    for folder in [root, *below]:
        if (beside := _match_beside(folder, at)) is not None:
            yield beside
    for folder in [root, *below]:
        if (beside := _match_other_format(survey, folder, at)) is not None:
            yield beside


def _likeness(image: str, mask: str) -> tuple[bool, bool, str]:
    return not mask.lower().startswith(image.lower()), image.lower() not in ("images", "image", "jpegimages"), image


def _match(survey: FolderProbe, folder: Folder, image: str, mask: str, at: str) -> Finding | None:
    """Returns the finding for a folder of images and one of masks; None if their names do not fit."""
    images, masks = survey.look(folder.below(image)), survey.look(folder.below(mask))
    prefix = prefix_of(folder, at)
    names = [prefix.rstrip("/")] if prefix else []
    inner = ""
    if not images.images:
        shared = [name for name in images.folders if name in masks.folders]
        held = next((name for name in shared if survey.look(images.below(name)).images), None)
        if held is None or len(shared) < len(images.folders) / 2:
            return None
        names, inner = shared, "(?P<split>[^/]+)/"
        images, masks = survey.look(images.below(held)), survey.look(masks.below(held))
    found = _form_of(images, masks)
    if found is None:
        return None
    before, after, number = found
    extension = collections.Counter(map(extension_of, masks.images or masks.files)).most_common(1)[0][0]
    if extension not in MASK_FORMATS and extension not in (".jpg", ".jpeg"):
        return None
    spelt = next(name[-len(extension) :] for name in masks.files if name.lower().endswith(extension))
    outer, referred = ("(?P<split>[^/]+)/", r"\g<split>/") if prefix else ("", "")
    pattern = rf"{outer}{re.escape(image)}/{inner}(?P<name>.*)\.{extensions_of(images.images)}"
    path = rf"{referred}{mask}/{inner and _SPLIT_OF_IMAGE}{before}\g<name>{after}{spelt}"
    evidence = (
        f"{number:,} of {images.count(len(images.images), 'image')} in "
        f"{prefix_of(images, at)[:-1]} have a {extension} file of the same name in {prefix_of(masks, at)[:-1]}"
    )
    return _of_masks(pattern, path, names, evidence, extension, mask)


def _of_masks(pattern: str, path: str, folders: Sequence[str], evidence: str, extension: str, mask: str) -> Finding:
    """Returns the finding for pairs of paths; `folders` are those of the splits, if there are some."""
    settings: dict[str, Any] = {"source.masks.image": pattern, "source.masks.mask": path}
    splits = splits_in(folders)
    if splits:
        settings["split.rename"] = {name: split for name, split in splits.items() if name != split}
    else:  # folders that are no splits
        settings["source.masks.image"] = pattern.replace("(?P<split>", "(?P<part>")
        settings["source.masks.mask"] = path.replace(_SPLIT_OF_IMAGE, r"\g<part>/")
        settings["split"] = HASH_SPLIT
    is_lossy = extension in (".jpg", ".jpeg")
    doubts = []
    if is_lossy:
        doubts.append("masks in JPEG have lost their exact classes: convert them to PNG from their source")
    if not MASKS.fullmatch(mask):
        doubts.append(f"{mask} may hold masks, or other pictures of the same images")
    often = (Change("source.masks.missing", "skip", "if only some of the images have masks"),)
    return Finding("segmentation", evidence, settings, (), often, doubts=tuple(doubts))


def _form_of(images: Folder, masks: Folder) -> tuple[str, str, int] | None:
    """Returns what precedes and follows the name of an image in that of its mask, and how many images have one."""
    known = mask_pairs.stems_of(masks)
    affixes = mask_pairs.find_affixes(sorted(images.stems), known, _DIGIT)
    if affixes is None:
        return None
    before, after = affixes
    return before, after, sum(f"{before}{stem}{after}" in known for stem in images.stems)


_MASK_SUFFIX = re.compile(r"(?P<name>.+)(?P<suffix>[_\-.](mask|seg|segmentation|label|labels|gt|L))", re.IGNORECASE)


def _match_beside(folder: Folder, at: str) -> Finding | None:
    """Returns the finding for x_mask.png beside x.png; None if there are none."""
    suffixes: collections.Counter[tuple[str, str]] = collections.Counter()
    for name in folder.images:
        stem, extension = posixpath.splitext(name)
        match = _MASK_SUFFIX.fullmatch(stem)
        if match and match["name"] in folder.stems:
            suffixes[match["suffix"], extension] += 1
    if not suffixes:
        return None
    (suffix, extension), number = suffixes.most_common(1)[0]
    if number < 0.4 * len(folder.images):
        return None
    images = [name for name in folder.images if not posixpath.splitext(name)[0].endswith(suffix)]
    pattern = rf"(?P<name>.*)(?<!{re.escape(suffix)})\.{extensions_of(images)}"
    evidence = (
        f"{number:,} of {folder.count(len(images), 'image')}{_place_of(folder, at)} have a file with "
        f"{suffix}{extension} at the end of its name beside them"
    )
    return _of_masks(pattern, rf"\g<name>{suffix}{extension}", (), evidence, extension.lower(), "mask")


def _place_of(folder: Folder, at: str) -> str:
    """Returns a folder in words: ` in MT_Blowhole/Imgs (the first such folder)`; "" for `at` itself."""
    place = prefix_of(folder, at)[:-1]
    return f" in {place} (the first such folder)" if place else ""


def _match_other_format(survey: FolderProbe, folder: Folder, at: str) -> Finding | None:
    """Returns the finding for x.png beside x.jpg, if the PNG files hold a few numbers; None if they are pictures."""
    images = [name for name in folder.ending(".jpg", ".jpeg")]
    paired = [name for name in images if f"{posixpath.splitext(name)[0]}.png" in folder.files]
    if len(paired) < 2 or len(paired) < mask_pairs.SHARE * len(images):
        return None
    masks = [f"{posixpath.splitext(name)[0]}.png" for name in paired[:: -(-len(paired) // _NUM_READ)]]
    if not all(map(_holds_classes, map(survey.head, map(folder.below, masks)))):
        return None
    place = prefix_of(folder, at)
    name = "(?P<name>.+/[^/]+)" if place else "(?P<name>.*)"  # images beside the folders belong to a README
    evidence = (
        f"{len(paired):,} of {folder.count(len(images), 'image')}{_place_of(folder, at)} have a .png file of the same "
        "name beside them, which holds the numbers of classes"
    )
    return _of_masks(rf"{name}\.{extensions_of(paired)}", r"\g<name>.png", (), evidence, ".png", "mask")


def _holds_classes(head: bytes) -> bool:
    """Returns whether a PNG has a palette, or gray pixels of a few different numbers or of fewer than 8 bits."""
    depth, color_type = head[24:25], head[25:26]
    if head.startswith(b"\x89PNG\r\n\x1a\n") and (color_type == b"\3" or (color_type == b"\0" and depth < b"\x08")):
        return True
    return 0 < len(mask_pixels.count_numbers(head)) <= mask_pixels.MAX_CLASSES
