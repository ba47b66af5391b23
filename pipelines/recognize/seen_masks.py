"""Looks at a few masks of an input, to say what their numbers mean before all are read."""

from __future__ import annotations

import itertools
import posixpath
from collections.abc import Mapping, Sequence

from imagebeam import plural, storage
from imagebeam.pipelines.config import model as config_lib
from imagebeam.transforms.formats.masks import Masks
from imagebeam.transforms.images import mask_pixels
from imagebeam.transforms.sources import files
from imagebeam.transforms.sources.folder_probe import Bounds, FolderProbe, spread

_NUM_READ, _MIN_READ = 8, 3  # masks: of small files, and of large ones
_NUM_FOLDERS = 4  # of images, whose masks are read
_MAX_MASK_BYTES = 1 << 21  # black and white takes few, and a TIFF without compression of 1,024 x 1,024 some more
_BOUNDS = Bounds(folders=16, entries=300, all_entries=1_200, heads=_NUM_READ)


def notes_on_numbers(config: config_lib.Config) -> tuple[str, ...]:
    """Returns a note if masks, judged by a few, are drawn in black and white, exactly or smoothed.

    At most 16 folders are listed, and the beginnings of 8 masks are read.
    """
    masks = config.source.masks
    if masks.rule is None or masks.colors is not None or config.source.by != "files" or config.source.uri is None:
        return ()
    root = files.split_glob(storage.normalize(config.source.uri))[0]
    survey = FolderProbe(root, _BOUNDS, exclude=storage.normalize(config.output.uri or ""))
    heads = read_some(survey, _first_masks(survey, masks.rule))
    numbers = [mask_pixels.count_numbers(head) for head in heads.values()]
    if mask_pixels.are_smoothed(numbers):
        return (
            f"most pixels of {describe(heads)} are nearly black or white, the others have many numbers, and each "
            "number is a class that is stored: if JPEG or a resize has smoothed them, store exact numbers first",
        )
    if not heads or not mask_pixels.are_black_and_white(numbers):
        return ()
    return (
        f"{describe(heads)} have only the numbers 0 and 255, and these are the classes that are stored; for "
        f'the classes 0 and 1 add --set "source.masks.colors={mask_pixels.BLACK_AND_WHITE_TEXT}"',
    )


def read_some(survey: FolderProbe, paths: Sequence[str]) -> dict[str, bytes]:
    """Returns the first 2 MiB of masks by their paths, without those that cannot be read.

    After three of them, no more are read once they are 2 MiB together.
    """
    heads: dict[str, bytes] = {}
    for path in paths:
        if len(heads) >= _MIN_READ and sum(map(len, heads.values())) >= _MAX_MASK_BYTES:
            break
        if head := survey.head(path, _MAX_MASK_BYTES):
            heads[path] = head
    return heads


def describe(heads: Mapping[str, bytes]) -> str:
    """Returns which masks were looked at: `masks/1.png and 7 other masks (no more were looked at)`."""
    first, number = next(iter(heads)), len(heads) - 1
    others = f" and {plural.count(number, 'other mask')}" if number else ""
    return f"{first}{others} (no more were looked at)"


def _first_masks(survey: FolderProbe, rule: Masks) -> list[str]:
    """Returns the paths of masks for images in a few folders, of the highest level that has some; they may not exist.

    A level is looked at with two thirds of the folders that may still be, so that deeper ones are reached, too.
    """
    level = [""]
    found: list[list[str]] = []  # paths of images
    folders_of_masks = set[str]()
    num_left = _BOUNDS.folders
    while level and not found:
        below: list[str] = []
        for path in spread(level, _NUM_FOLDERS)[: -(-2 * num_left // 3)]:
            if path in folders_of_masks:
                continue
            folder = survey.look(path)
            num_left -= 1
            below += map(folder.below, folder.folders)
            if images := [each for each in map(folder.below, folder.images) if rule.is_image(each)]:
                found.append(images)
                folders_of_masks.add(posixpath.dirname(rule.mask_of(images[0]) or ""))
            if len(found) == _NUM_FOLDERS:
                break
        level = below
    return [mask for image in _choose(found) if (mask := rule.mask_of(image)) is not None]


def find_some(survey: FolderProbe, rule: Masks, at: str) -> list[str]:
    """Returns the paths of a few masks that exist, for the images below the folder `at` that were seen."""
    above = f"{at}/" if at else ""
    found = []
    for folder in survey.seen():
        paths = [folder.below(name) for name in folder.images if folder.below(name).startswith(above)]
        masks = [f"{above}{mask}" for path in paths if (mask := rule.mask_of(path.removeprefix(above))) is not None]
        if masks := [mask for mask in masks if survey.holds(mask)]:
            found.append(masks)
    return _choose(found)


def _choose(folders: Sequence[Sequence[str]]) -> list[str]:
    """Returns up to 8 paths in several folders: first one of each, spread over the folders and over the names."""
    chosen = spread(folders, _NUM_READ)[:_NUM_READ]
    each = [spread(paths, _NUM_READ // len(chosen)) for paths in chosen]
    in_turn = itertools.chain.from_iterable(itertools.zip_longest(*each))
    return [path for path in in_turn if path is not None][:_NUM_READ]
