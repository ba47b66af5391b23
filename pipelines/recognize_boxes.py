"""Recognizes data sets of boxes by their folders, so that nobody makes classes of `images` and `labels` by mistake."""

from __future__ import annotations

import itertools

from imagebeam import errors, storage
from imagebeam.pipelines import split_folders
from imagebeam.transforms.sources import annotated_files

_MAX_ENTRIES = 1_000  # of the root: one request; classes are more only where nothing is to be recognized
_KINDS = (storage.DIRECTORY, storage.FILE)
_ANNOTATION_FOLDERS, _IMAGE_FOLDERS = ("Annotations", "annotations"), ("JPEGImages", "images", "Images")


def refuse_boxes(root: str) -> None:
    """Refuses a folder of images with boxes as a folder of classes.

    Raises:
        ConfigError: if it is one; names the preset that reads it.
    """
    found = _find(root)
    if found is None:
        return
    preset, evidence = found
    raise errors.ConfigError(
        f"--input {root!r} is a data set of boxes: {evidence}. label.by: directory would make classes of its folders: "
        f"use --config {preset}. For its images without boxes set label.by: none; if its folders are classes "
        "nevertheless, set source.include='**'"
    )


def _find(root: str) -> tuple[str, str] | None:
    """Returns the preset for a data set of boxes, and what shows that it is one; None for any other folder."""
    try:
        folders, _ = _look_into(root)
        if found := _find_in_folders(root, "", folders):
            return found
        for split in split_folders.SPLITS:
            if split in folders:
                below, files = _look_into(storage.join(root, split))
                found = _find_in_folders(root, f"{split}/", below) or _find_beside(root, f"{split}/", files)
                if found:
                    return found
    except (OSError, errors.ConfigError):  # it cannot be listed: the listing says so
        pass
    return None


def _look_into(folder: str) -> tuple[list[str], list[str]]:
    """Returns the names of the folders and the files among the first entries of a folder."""
    entries = list(itertools.islice(storage.storage_of(folder).list_directory(folder), _MAX_ENTRIES))
    return tuple(sorted(entry.name for entry in entries if entry.kind == kind) for kind in _KINDS)  # type: ignore[return-value]


def _find_in_folders(root: str, prefix: str, folders: list[str]) -> tuple[str, str] | None:
    if (
        "images" in folders
        and "labels" in folders
        and annotated_files.holds(storage.join(root, f"{prefix}labels"), ".txt", False)
    ):
        return "yolo", f"{prefix}images is beside {prefix}labels, which holds .txt files"
    images = next((name for name in _IMAGE_FOLDERS if name in folders), None)
    for name in _ANNOTATION_FOLDERS if images is not None else ():
        if name in folders and annotated_files.holds(storage.join(root, prefix + name), ".xml", False):
            return "voc", f"{prefix}{images} is beside {prefix}{name}, which holds .xml files"
    return None


def _find_beside(root: str, prefix: str, files: list[str]) -> tuple[str, str] | None:
    """Recognizes annotations beside the images of a split, as Roboflow exports them."""
    if not files:
        return None
    for name, preset in (("_annotations.csv", "box_csv"), ("_annotations.coco.json", "coco")):
        if split_folders.kind_of(storage.join(root, prefix + name)) == storage.FILE:
            return preset, f"{prefix}{name} is beside images"
    first = next((name for name in files if name.endswith(".xml")), None)
    return None if first is None else ("voc", f"{prefix}{first} is beside images")
