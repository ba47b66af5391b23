"""Finds the CSV files of a data set of boxes, and the folders of its images."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from imagebeam import errors, storage
from imagebeam.pipelines.config import object_sections
from imagebeam.pipelines.inputs import split_folders
from imagebeam.transforms.sources import annotation_tables

_TABLES = ("data", "annotations")  # folders that often hold the CSV files beside a folder of images


def find(uri: str, wanted: object_sections.BoxCsvConfig) -> tuple[str, tuple[annotation_tables.AnnotatedSplit, ...]]:
    """Returns the root and the splits of the data set at an address: a folder, or one CSV file.

    Raises:
        ConfigError: if there is no CSV file.
    """
    kind = split_folders.kind_of(uri)
    if kind == storage.FILE and wanted.annotations is None:
        root, name = posixpath.dirname(uri) or ".", posixpath.basename(uri)
        files = {"train": name}
    elif kind != storage.DIRECTORY:
        raise errors.ConfigError(f"--input {uri!r} is not a folder; give the folder of the images and CSV files")
    else:
        root = uri
        files = wanted.annotations or dict(_find_files(root))
    if not files:
        raise errors.ConfigError(
            f"{root!r} holds no train_labels.csv, train/_annotations.csv or train.csv; name the files in "
            "source.box_csv.annotations, and the folders of their images in source.box_csv.images"
        )
    given = wanted.images
    splits = []
    for split, path in files.items():
        folder = _folder_of(root, split, path) if given is None else split_folders.path_below(given[split])
        splits.append(annotation_tables.AnnotatedSplit(split, storage.join(root, path), folder))
    return root, tuple(splits)


def _find_files(root: str) -> Iterator[tuple[str, str]]:
    for split in split_folders.SPLITS:
        names = (f"{split}_labels.csv", f"{split}.csv")
        elsewhere = (f"{folder}/{name}" for folder in _TABLES for name in names)
        for path in (names[0], f"{split}/_annotations.csv", names[1], *elsewhere):
            if split_folders.kind_of(storage.join(root, path)) == storage.FILE:
                yield split, path
                break


def _folder_of(root: str, split: str, path: str) -> str:
    """Returns the folder of the images of a split, below the root."""
    beside = posixpath.dirname(path)
    if not beside or beside in _TABLES:
        for folder in (f"images/{split}", split, "images"):
            if split_folders.kind_of(storage.join(root, folder)) == storage.DIRECTORY:
                return folder
    return beside
