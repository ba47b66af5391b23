"""Detects the metadata files of Hugging Face's ImageFolder, which lie beside the images of each split.

Source: https://huggingface.co/docs/datasets/image_dataset
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from typing import Any

from imagebeam.transforms.formats.tables import label_columns, table_heads
from imagebeam.transforms.sources import value_signs
from imagebeam.transforms.sources.folder_probe import (
    HASH_SPLIT,
    Finding,
    Folder,
    FolderProbe,
    name_some,
    split_meant,
    splits_in,
)

_NAMES = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
_IMAGE = "file_name"


def find(probe: FolderProbe, at: str) -> Iterator[Finding]:
    """Finds metadata files in a folder or in those of its splits."""
    root = probe.look(at)
    of_splits = [root, *(probe.look(root.below(name)) for name in root.folders if split_meant(name))]
    folders = [each for each in of_splits if each.ending(*_NAMES)]
    without = [
        each.path for each in of_splits if each not in folders and each.path != at and probe.with_images(each.path)
    ]
    folders.sort(key=lambda folder: split_meant(folder.path) not in (None, "train"))  # tests have no labels
    path = folders[0].below(folders[0].ending(*_NAMES)[0]) if folders else ""
    table = table_heads.read_table(probe, path) if folders else None
    if table is None or _IMAGE not in table.columns:
        return
    counts = ", ".join(folder.path.removeprefix(f"{at}/") or "." for folder in folders)
    is_above = all(folder.path == at for folder in folders)
    paths = [each.split("/") for each in table.values(_IMAGE) if "/" in each]
    settings: dict[str, Any] = {"split": HASH_SPLIT} if is_above and not paths else {}
    others = [name for name in table.columns if name != _IMAGE]
    label, _ = label_columns.find_label(table, others)
    doubts = [*_doubts_on_columns(table, others), *_doubts_on_paths(paths, is_above, label)]
    if without and not is_above:
        doubts.append(f"the images in {name_some(without)} have no metadata, and are not read")
    notes: tuple[str, ...] = ()
    text = label_columns.find_text(table, others) if label is None else None
    if text is not None or (label is None and len(others) == 1 and label_columns.is_prose(table, others[0])):
        settings["label"], settings["columns"] = {"by": "none"}, {text or others[0]: {"type": "string"}}
        notes = (f"the texts in {text or others[0]!r} are stored as a column",)
    if label is not None and value_signs.are_texts(table.values(label)):
        stored = f"--set 'columns={{{label}: {{type: string}}}}' stores it"
        notes = (f"most rows have a text of their own in the column {label!r}, so it is no label: {stored}",)
    elif label is not None:
        settings["label"] = {"by": "column", "column": label}
        distinct = sorted({*table.values(label)})
        doubts += _doubts_on_label(probe, table, folders, label, distinct)
        notes = (f"the label is the column {label!r} ({name_some(distinct)}); for none set label={{by: none}}",)
    notes += value_signs.not_stored(others, [label] if label is not None else [*settings.get("columns", {})])
    if label is not None and b"class_label" in probe.head(posixpath.join(at, "README.md")):
        notes += (
            "README.md names the classes of these numbers: a file of lines such as `0 cat` in label.texts stores them",
        )
    evidence = f"{posixpath.basename(path)} with a column {_IMAGE} is in {counts}"
    yield Finding("imagefolder_metadata", evidence, settings, notes, doubts=tuple(doubts))


def _doubts_on_columns(table: table_heads.Table, others: Sequence[str]) -> Iterator[str]:
    """Yields a line for each column that holds objects, and for one that may be the split."""
    for name in others:
        if any(each.startswith("{") for each in table.values(name)):
            yield (
                f"the column {name!r} holds objects, which the preset does not read: convert its boxes to another "
                "format (docs/recipes has a page for each)"
            )
    if split := label_columns.split_that_is_there(table, others):
        yield f"the column {split!r} may be the split: set split={{by: column, column: {split}}}"


def _doubts_on_paths(paths: Sequence[Sequence[str]], is_above: bool, label: str | None) -> Iterator[str]:
    """Yields what the folders in the paths of images may be: splits, or classes."""
    first = {each[0] for each in paths}
    if first and is_above and not splits_in(first).keys() >= first:
        yield f"the folders in {_IMAGE} ({name_some(sorted(first))}) would be splits: are they classes?"
    classes = {each[-2] for each in paths}
    if label is None and len(classes) > 1:
        yield (
            f"the folders in {_IMAGE} ({name_some(sorted(classes))}) are not stored: if they are classes, take the "
            "preset imagefolder"
        )


def _doubts_on_label(
    probe: FolderProbe, table: table_heads.Table, folders: Sequence[Folder], label: str, distinct: Sequence[str]
) -> Iterator[str]:
    """Yields what contradicts that cells are classes, one each, and a line for each split that has none of them."""
    if separator := label_columns.separator_of(distinct) or label_columns.may_be_several(distinct):
        yield (
            f"cells of {label!r} may have several classes with {separator!r} between them: for those set "
            f"label={{by: column, column: {label}, separator: {separator!r}}}"
        )
    for path in (each.below(posixpath.basename(table.path)) for each in folders):
        other = table_heads.read_table(probe, path)
        values = {*other.values(label)} if other is not None else set()
        if values and values.isdisjoint(distinct):
            yield f"{path} has other labels ({name_some(sorted(values))}) than {table.path}: make them the same"
