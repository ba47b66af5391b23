"""Refuses data sets of boxes as classes, so that nobody makes classes of `images` and `labels` by mistake."""

from __future__ import annotations

from imagebeam import errors
from imagebeam.transforms.formats import detect_coco
from imagebeam.transforms.formats.base_format import format_of
from imagebeam.transforms.sources.folder_probe import Bounds, Finding, FolderProbe

_BOUNDS = Bounds(entries=1_000)  # one request for each folder; classes are more only where nothing is to be recognized


def refuse_boxes(root: str) -> None:
    """Refuses a folder of images with boxes as a folder of classes.

    Raises:
        ConfigError: if it is one; names the preset that reads it.
    """
    found = _find(root)
    if found is None:
        return
    raise errors.ConfigError(
        f"--input {root!r} is a data set of boxes: {found.evidence}. label.by: directory would make classes of its "
        f"folders: use --config {found.preset}. For its images without boxes set label.by: none; if its folders are "
        "classes nevertheless, set source.include='**'"
    )


def _find(root: str) -> Finding | None:
    survey = FolderProbe(root, _BOUNDS)
    signs = (*(format_of(by).detect for by in ("yolo", "voc", "box_csv")), detect_coco.exports)
    found = (each for sign in signs for each in sign(survey, ""))
    return next((each for each in found if not each.doubts), None)
