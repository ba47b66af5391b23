"""Looks at a few masks of an input, to say what their numbers mean before all are read."""

from __future__ import annotations

import collections

from imagebeam import storage
from imagebeam.pipelines.config import model as config_lib
from imagebeam.pipelines.recognize.survey import Bounds, Survey
from imagebeam.transforms.images import black_and_white
from imagebeam.transforms.sources import files, mask_files

_NUM_READ = 3  # masks
_MAX_MASK_BYTES = 1 << 20  # of which black and white takes few
_BOUNDS = Bounds(folders=12, entries=1_000, all_entries=4_000, heads=_NUM_READ)


def notes_on_numbers(config: config_lib.Config) -> tuple[str, ...]:
    """Returns a note if masks, judged by a few, are drawn in black and white, exactly or smoothed.

    At most 12 folders are listed, and the beginnings of 3 masks are read.
    """
    masks = config.source.masks
    if masks.rule is None or masks.colors is not None or config.source.by != "files" or config.source.uri is None:
        return ()
    root = files.split_glob(storage.normalize(config.source.uri))[0]
    survey = Survey(root, _BOUNDS, exclude=storage.normalize(config.output.uri or ""))
    found = [path for path in _first_masks(survey, masks.rule) if survey.head(path, _MAX_MASK_BYTES)]
    heads = [survey.head(path) for path in found]
    if black_and_white.are_smoothed(heads):
        return (
            f"most pixels of {found[0]} and other masks are nearly black or white, the others have many numbers, and "
            "each number is a class that is stored: if JPEG or a resize has smoothed them, store exact numbers first",
        )
    if not found or not black_and_white.are_black_and_white(heads):
        return ()
    return (
        f"{found[0]} and other masks have only the numbers 0 and 255, and these are the classes that are stored; for "
        f'the classes 0 and 1 add --set "source.masks.colors={black_and_white.COLORS_TEXT}"',
    )


def _first_masks(survey: Survey, rule: mask_files.MaskRule) -> list[str]:
    """Returns the paths of the masks of the first images that are found; they may not exist."""
    waiting = collections.deque([""])
    while waiting:
        folder = survey.look(waiting.popleft())
        if found := _masks_of(rule, [folder.below(name) for name in folder.images]):
            return _some(found)
        waiting.extend(map(folder.below, folder.folders))
    return []


def find_some(survey: Survey, rule: mask_files.MaskRule, at: str) -> list[str]:
    """Returns the paths of a few masks that exist, for the images below the folder `at` that were seen."""
    above = f"{at}/" if at else ""
    found: list[str] = []
    for folder in survey.seen():
        paths = [folder.below(name) for name in folder.images if folder.below(name).startswith(above)]
        masks = _masks_of(rule, [path.removeprefix(above) for path in paths])
        found += [f"{above}{mask}" for mask in masks if survey.holds(f"{above}{mask}")]
    return _some(found)


def _masks_of(rule: mask_files.MaskRule, paths: list[str]) -> list[str]:
    return [mask for path in paths if (mask := rule.mask_of(path)) is not None]


def _some(paths: list[str]) -> list[str]:
    return paths[:: -(-len(paths) // _NUM_READ)] if paths else []
