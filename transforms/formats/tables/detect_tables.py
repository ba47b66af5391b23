"""Detects which table of a folder is meant, and which of its columns is the label."""

from __future__ import annotations

import dataclasses
import posixpath
import re
from collections.abc import Iterator, Sequence
from typing import Any

from imagebeam import plural
from imagebeam.transforms.formats.arrays import arrays
from imagebeam.transforms.formats.tables import detect_metadata, label_columns, table_heads
from imagebeam.transforms.sources import name_signs, value_signs
from imagebeam.transforms.sources.folder_probe import (
    HASH_SPLIT,
    HEAD_BYTES,
    NEARLY_ALL,
    Change,
    Finding,
    FolderProbe,
    name_some,
    split_meant,
    split_of_short,
    splits_in,
)

_LAST = 2  # the order of tables of tests and submissions
PRESETS = (
    *("cub200", "imagefolder_metadata", "box_csv", "fer2013", "mnist_csv"),
    *("captions", "image_lists", "multilabel", "kaggle", "regression", "tfrecorder", "urls"),
)

_BOX_COLUMNS = frozenset({"filename", "width", "height", "class", "xmin", "ymin", "xmax", "ymax"})


def find_tables(probe: FolderProbe, at: str) -> Iterator[Finding]:
    """Finds tables with a row for each image, for each box or for each caption."""
    root = probe.look(at)
    if {"images.txt", "image_class_labels.txt", "train_test_split.txt"} <= {*root.files}:
        evidence = "images.txt, image_class_labels.txt and train_test_split.txt have a line for each image"
        yield Finding("cub200", evidence)
        return
    if metadata := [*detect_metadata.find(probe, at)]:
        yield from metadata
        return
    folders = [root, *(probe.look(root.below(name)) for name in root.folders if name_signs.ANNOTATIONS.search(name))]
    names = [folder.below(name) for folder in folders for name in folder.ending(*table_heads.SUFFIXES)]
    tables = [table_heads.read_table(probe, path) for path in sorted(names, key=_order)[: table_heads.MAX_TABLES]]
    found = [(table, [*_find_in_table(probe, at, table)]) for table in tables if table is not None]
    if found := [each for each in found if each[1]]:
        yield from _best_of(probe, at, found)


def _best_of(
    probe: FolderProbe, at: str, found: Sequence[tuple[table_heads.Table, list[Finding]]]
) -> Iterator[Finding]:
    """Yields the findings in the best of several tables, with a note that names the others that could be meant.

    Tables of tests and of placeholders come last, then those without a header, then text files; of the rest, the one
    with the most rows whose images exist is the best.
    """

    def rank(each: tuple[table_heads.Table, list[Finding]]) -> tuple[bool, bool, bool, bool, float]:
        table, its = each
        kind = _order(table.path)[0]
        is_last, num_rows = kind == _LAST or _has_placeholders(its[0]), _num_matched(probe, at, table)
        return is_last, bool(its[0].doubts), not table.has_header, kind > 0, -num_rows

    found = sorted(found, key=rank) if len(found) > 1 else found
    (_, findings), *others = found
    is_read = _path_in(findings[0])  # may be a pattern: */labels.csv
    apart: list[str] = []
    same: list[str] = []
    for other, its in others:
        if is_read and (_path_in(its[0]) or is_read) != is_read:
            adds = _order(other.path)[0] != _LAST and _adds_to(probe, at, found[0][0], other)
            (same if adds else apart).append(f"{other.path} ({_describe_rows(probe, other)})")
    if apart:
        verb = "names images, too, and is not read" if len(apart) == 1 else "name images, too, and are not read"
        note = f"{name_some(apart)} {verb}: plan --input with the address of such a table takes that one"
        findings[0] = dataclasses.replace(findings[0], notes=(*findings[0].notes, note))
    meant, columns = split_meant(posixpath.basename(found[0][0].path)), found[0][0].columns
    label = findings[0].settings.get("label.column", "label")
    alike = [each for each, _ in others if each.columns == columns or {label} & {*columns} & {*each.columns}]
    parts = [each.path for each in alike if _is_other_split(each, meant)]
    labelled = [each for each, its in others if not _has_placeholders(its[0])]
    if is_read and not parts and (own := _of_other_images(probe, at, found[0][0], labelled)):
        doubt = (
            f"{name_some(own)} have the same columns, of other images: a glob in source.manifest.path reads them, too"
        )
        findings[:] = [dataclasses.replace(each, doubts=(*each.doubts, doubt)) for each in findings]
    if is_read and parts:
        doubt = (
            f"{name_some(parts)} may be the other splits: to read all set source.manifest.path to a glob of these "
            "tables, and split={by: table} (docs/recipes/paths_and_lists.md)"
        )
        findings[:] = [dataclasses.replace(each, doubts=(*each.doubts, doubt)) for each in findings]
    if same:
        verb = "has more on the same images and is" if len(same) == 1 else "have more on the same images and are"
        doubt = (
            f"{name_some(same)} {verb} not read: plan --input with its address takes it instead, and "
            "source.manifest.join adds its columns"
        )
        findings[:] = [dataclasses.replace(each, doubts=(*each.doubts, doubt)) for each in findings]
    yield from findings


_PLACEHOLDERS = "have the same value in all rows: placeholders, and no labels?"


def _has_placeholders(finding: Finding) -> bool:
    return any(_PLACEHOLDERS in each for each in finding.doubts)


def _is_constant(values: Sequence[str]) -> bool:
    return len(values) > 1 and len({*values}) == 1


def _of_other_images(
    probe: FolderProbe, at: str, table: table_heads.Table, others: Sequence[table_heads.Table]
) -> list[str]:
    """Returns the paths of other tables of the same columns that have other images, and are not of tests."""
    place = table_heads.find_place(probe, at, table)
    named = {*table.values(place.column)} if place is not None else set()
    return [
        each.path
        for each in others
        if each.columns == table.columns and _order(each.path)[0] != _LAST
        if place is not None and named.isdisjoint(each.values(place.column))
    ]


def _is_other_split(table: table_heads.Table, split: str | None) -> bool:
    return split is not None and split_meant(posixpath.basename(table.path)) not in (None, split)


def _path_in(finding: Finding) -> str | None:
    """Returns the path of the table that a finding reads."""
    boxes = finding.settings.get("source.box_csv.annotations")
    return next(iter(boxes.values())) if boxes else finding.settings.get("source.manifest.path")


def _adds_to(probe: FolderProbe, at: str, table: table_heads.Table, other: table_heads.Table) -> bool:
    """Returns whether another table has columns or values for images of this one that it lacks."""
    place, other_place = (table_heads.find_place(probe, at, each) for each in (table, other))
    if place is None or other_place is None or place.folder != other_place.folder:
        return False
    row_of = {row.get(place.column): row for row in (*table.rows, *table.last_rows)}
    same = [(row_of[name], row) for row in other.rows if (name := row.get(other_place.column)) in row_of]
    if len(same) * 2 <= min(len(row_of), len(other.rows)):
        return False
    is_new = bool({*other.columns} - {*table.columns, other_place.column})
    return is_new or any(row.get(name, value) != value for row, more in same for name, value in more.items())


def _describe_rows(probe: FolderProbe, table: table_heads.Table) -> str:
    number, num_read = _num_rows(probe, table), len(table.rows)
    rows = plural.count(number, "row") if number == num_read else f"about {int(float(f'{number:.2g}')):,} rows"
    return rows if table.has_header else f"{rows}, no header"


def _num_rows(probe: FolderProbe, table: table_heads.Table) -> int:
    """Returns the number of rows of a table: a guess from the size of the file where only its beginning was read."""
    folder, name = posixpath.split(table.path)
    size = probe.look(folder).files.get(name, 0)
    return round(len(table.rows) * max(1.0, size / HEAD_BYTES))


def _num_matched(probe: FolderProbe, at: str, table: table_heads.Table) -> float:
    """Returns the number of rows of a table whose images exist, from the share among its first rows."""
    place = table_heads.find_place(probe, at, table)
    return _num_rows(probe, table) * (place.found / place.looked_for if place else 1)


def find_in_file(probe: FolderProbe, path: str) -> Iterator[Finding]:
    """Finds what one table is."""
    table = table_heads.read_table(probe, path)
    if table is not None:
        yield from _find_in_table(probe, "", table)


def find_above(probe: FolderProbe, path: str) -> Iterator[Finding]:
    """Finds what one table is by images outside of its folder, the root of the probe being a folder above.

    Images in one folder beside that of the table are beyond doubt. If several folders have images of these names, or
    one further away, which may be of another data set, a note says so.
    """
    table = table_heads.read_table(probe, path)
    places = [*table_heads.find_places(probe, "", table)] if table is not None else []
    if table is None or not places:
        return
    home, first = posixpath.dirname(path), places[0]
    doubts: tuple[str, ...] = ()
    if "/" in home or "/" in first.folder:
        doubts = (f"{first.folder or probe.root} is not beside {path}, and may be of another data set",)
    for each in _find_in_table(probe, "", table):
        yield dataclasses.replace(each, doubts=(*each.doubts, *doubts))


def _order(path: str) -> tuple[int, int, str]:
    """Returns the place of a table among several: those of tests and submissions come last."""
    name = posixpath.basename(path).lower()
    is_last = "submission" in name or "readme" in name or split_meant(name) in ("test", "validation")
    return _LAST if is_last else name.endswith(".txt"), path.count("/"), path


def _find_in_table(probe: FolderProbe, at: str, table: table_heads.Table) -> Iterator[Finding]:
    for finding in _findings_of(probe, at, table):
        yield dataclasses.replace(finding, doubts=(*finding.doubts, *table.doubts)) if table.doubts else finding


def _findings_of(probe: FolderProbe, at: str, table: table_heads.Table) -> Iterator[Finding]:
    columns = {*table.columns}
    path = table.path.removeprefix(f"{at}/")
    shown = f"{path} has the columns {name_some(table.columns, 6)}"
    if {"image_uri", "label"} <= columns:
        yield Finding("tfrecorder", shown, {} if "split" in columns else {"split": HASH_SPLIT}, input=table.path)
        return
    if pixels := arrays.find_pixels(probe, table.path, len(table.columns)):
        yield pixels
        return
    if columns >= _BOX_COLUMNS:
        yield from _find_boxes(probe, at, table, shown)
        return
    places = [*table_heads.find_places(probe, at, table)]
    if not places:
        are_near = probe.with_images("", _DEEP) is not None
        near = ("images are there, too, which the table does not name: are they the same?",) if are_near else ()
        for each in _find_addresses(table, shown) if not table.holds_images else ():
            yield dataclasses.replace(each, doubts=(*each.doubts, *near))
        return
    place = places[0]
    where = place.folder.removeprefix(f"{at}/")
    holders = name_some(place.inside) if place.inside else where or "its folder"
    evidence = f"{shown}; {place.found} of {place.looked_for} images that it names are in {holders}"
    settings = _settings_of(at, table, place)
    boxes = [name for name in table.columns if name_signs.BOX_EDGES.fullmatch(name)]
    others = [name for name in table.columns if name != place.column]
    if len(boxes) >= 4 or any(name.lower().startswith("bbox") for name in boxes):
        note = "it has columns of boxes under other names than box_csv reads: " + ",".join(sorted(_BOX_COLUMNS))
        yield Finding("box_csv", evidence, {"source.box_csv.annotations": {"train": path}}, doubts=(note,))
        return
    if f"{place.folder}/".startswith(f"{posixpath.dirname(table.path)}/"):
        settings |= _of_split_folders(probe, at, table)
    if place.column in table.lists:
        yield _of_lists(table, place, evidence, settings)
        return
    split = label_columns.find_split(table)
    if split is not None:
        others.remove(split)
    of_splits, doubts = _splits_of(table, split, others)
    if not of_splits and not doubts and "split" not in settings:
        of_splits, doubts = _splits_of_paths(at, table, place)
    settings |= of_splits
    doubts += (*_doubts_on_places(probe, at, table, places), *_doubts_on_masks(table, others))
    doubts += _doubts_on_points(others)
    captions = (name for name in others if name_signs.CAPTIONS.fullmatch(name) and label_columns.is_prose(table, name))
    caption = next((name for name in captions if not label_columns.are_no_labels(table.values(name))), None)
    if caption is not None:
        notes = value_signs.not_stored(others, [caption])
        yield Finding("captions", evidence, settings | _store_texts(caption), notes, doubts=tuple(doubts))
        return
    flags = [name for name in others if label_columns.is_flag(table, name)]
    if (len(flags) >= 3 and len(flags) >= len(others) / 2) or 1 < len(flags) == len(others):
        settings["label"] = {"by": "columns", "columns": flags}
        text = f"{evidence}; {plural.count(len(flags), 'column')} are 0 or 1 ({name_some(flags)})"
        if unsure := [name for name in flags if label_columns.has_two_negatives(table, name)]:
            doubts.append(
                f"{name_some(unsure)} hold 1, 0 and -1, and only 1 is taken for the class: is 0 or -1 unknown? Then "
                "leave such rows out, or take each column by columns={NAME: {type: int}}"
            )
        if _is_constant([value for name in flags for value in table.values(name)]):
            doubts.append(f"{name_some(flags)} {_PLACEHOLDERS}")
        notes = ("each column of 0 and 1 is a class", *value_signs.not_stored(others, flags))
        yield Finding("multilabel", text, settings, notes, doubts=tuple(doubts))
        return
    for finding in _find_label(probe, table, place, others, evidence, settings):
        yield dataclasses.replace(finding, doubts=(*finding.doubts, *doubts))


def _splits_of(table: table_heads.Table, split: str | None, others: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Returns the settings for the splits that a column tells, and what makes them doubtful.

    Args:
        table: the beginning of a table.
        split: the column that has the splits; None for none.
        others: the columns but this one and that of the images.
    """
    if split is not None:
        meant = {value: label_columns.split_of_value(value) for value in sorted({*table.values(split)})}
        known = [each for each in meant.values() if each]
        rename = {value: each for value, each in meant.items() if each and (each != value or known.count(each) > 1)}
        doubts = []
        if len({*known}) < len(known):
            doubts = [f"several values of {split!r} would become one split: give them names in split.rename"]
        return {"split": {"by": "column", "column": split, "rename": rename}}, doubts
    if unread := label_columns.may_be_splits(table, others):
        name = unread[0]
        return {}, [
            f"the column {name!r} may be the split ({name_some(sorted({*table.values(name)}))}): set "
            f"split={{by: column, column: {name}, rename: {{...}}}}, or split.by=hash if it is none"
        ]
    return {}, []


def _doubts_on_points(others: Sequence[str]) -> Iterator[str]:
    """Yields a line if columns have the x and y of points by their names."""
    points = [name for name in others if {f"{name[:-1]}y", f"{name[:-1]}Y"} & {*others} and name.lower().endswith("_x")]
    if len(points) > 1:
        yield (
            f"{name_some(points)} and their _y may be points, which are not stored: "
            "columns={points: {first: FIRST, last: LAST, list: true, type: float}} stores these and those between"
        )


def _doubts_on_places(
    probe: FolderProbe, at: str, table: table_heads.Table, places: Sequence[table_heads.Place]
) -> Iterator[str]:
    """Yields what contradicts that a table names the images of the first one of several places."""
    place = places[0]
    if place.found < NEARLY_ALL * place.looked_for:
        yield "the other images are in none of the folders that were looked into: see source.manifest.root"
    if place.inside and place.column == table.path_column:
        yield f"the paths in {place.column!r} are those of another machine: write them relative to the table"
    if table.has_header and table_heads.has_image(probe, place.folder, place.column):
        yield (
            f"the first line of {table.path} names an image, {place.column}: if it is a row, name the columns in "
            "source.manifest.header"
        )
    also = [
        name
        for name in table.columns
        if name != place.column and name not in table.lists
        if (values := table.values(name)[:_NUM_SEEN])
        if all(map(table_heads.is_image, values))
        or (not place.has_extension and len({*values}) > 1 and name_signs.IMAGE_NUMBERS.search(name))
        if all(table_heads.has_image(probe, place.folder, value) for value in values[:_NUM_LOOKED_UP])
        if [*map(_stem, values)] != [*map(_stem, table.values(place.column)[:_NUM_SEEN])]
    ]
    if also:
        yield (
            f"the column {also[0]!r} names images, too: to take it instead set source.manifest.image, and to store "
            "both in one example source.manifest.further (docs/recipes/tables.md, Several images in one example)"
        )
    meant, home = split_meant(posixpath.basename(table.path)), posixpath.dirname(table.path)
    held = split_meant(posixpath.basename(place.folder))
    if None not in (meant, held) and meant != held:
        yield f"{table.path} is of {meant} by its name, and {place.folder} of {held}: are they the same images?"
    if "submission" in posixpath.basename(table.path).lower():
        yield f"{table.path} is a submission by its name: its values are placeholders or predictions, and no labels"
    masks = name_signs.masks_among([each.folder for each in places])
    rivals = [
        posixpath.relpath(f"/{each.folder}", f"/{home}")
        for each in places[1:]
        if each.found == place.found and each.folder not in masks
        if meant is None or split_meant(each.folder) in (meant, None)
    ]
    if rivals and not place.inside and place.folder != home:  # those beside a table are meant
        yield f"other folders have images of these names: for those set source.manifest.root={' or '.join(rivals[:3])}"


def _stem(path: str) -> str:
    return posixpath.splitext(posixpath.basename(path))[0]


def _of_lists(table: table_heads.Table, place: table_heads.Place, evidence: str, settings: dict[str, Any]) -> Finding:
    """Returns the finding for a table with a list of images in each row."""
    others = [name for name in table.columns if name != place.column]
    texts = [name for name in others if name in table.lists and name_signs.CAPTIONS.fullmatch(name)]
    settings["columns"] = {name: {"list": True} for name in texts[:1]}
    notes = (
        f"each row is an example with all images of the list {place.column!r}",
        *value_signs.not_stored(others, texts[:1]),
    )
    doubts = [
        f"the column {name!r} names images, too: for one image a row set source.manifest.image={name} and images=null"
        for name in others
        if any(map(table_heads.is_image, table.names_in(name)))
    ]
    if place.found < NEARLY_ALL * place.looked_for:
        doubts.append("the other images are in none of the folders that were looked into: see source.manifest.root")
    return Finding("image_lists", evidence, settings, notes, doubts=tuple(doubts))


_ADDRESS = re.compile(r"(?i)https?://\S+")


def _find_addresses(table: table_heads.Table, shown: str) -> Iterator[Finding]:
    """Finds a table with the address of an image on a web server in each row."""
    held = {name: table.names_in(name) for name in table.columns}
    urls = [
        n
        for n, each in held.items()
        if each and sum(map(bool, map(_ADDRESS.fullmatch, each))) >= NEARLY_ALL * len(each)
    ]
    if not urls:
        return
    named = [name for name in urls if name_signs.ADDRESSES.fullmatch(name)] or urls
    others = [name for name in table.columns if name not in urls]
    texts = [name for name in others if name_signs.CAPTIONS.fullmatch(name)]
    settings = dict(table.settings)
    if named[0] in table.lists:
        settings["source.manifest.images"] = named[0]
    elif named[0] != "url":
        settings["source.manifest.image"] = named[0]
    if texts:
        is_list = texts[0] in table.lists
        settings["columns"] = {texts[0]: {"list": True} if is_list else {"missing": "default", "default": ""}}
    doubts = () if len(named) == 1 else (f"which column has the address of the image: {', '.join(urls)}?",)
    yield Finding(
        "urls",
        f"{shown}; the column {named[0]!r} has addresses of web servers",
        settings,
        value_signs.not_stored(others, texts[:1]),
        input=table.path,
        doubts=doubts,
    )


_DEEP = 4  # levels of folders
_RUN_LENGTHS = re.compile(r"\d+( \d+){3,}")


def _doubts_on_masks(table: table_heads.Table, others: Sequence[str]) -> Iterator[str]:
    """Yields a line for each column that holds masks, or names them."""
    for name in others:
        values = table.values(name)[:_NUM_SEEN]
        if name_signs.MASK_COLUMNS.fullmatch(name) or (values and all(map(_RUN_LENGTHS.fullmatch, values))):
            yield (
                f"the column {name!r} holds masks, which are not read: see the presets annotations (run lengths in a "
                "column EncodedPixels) and segmentation (files)"
            )


_NUM_SEEN, _NUM_LOOKED_UP = 100, 5
_UNKNOWN = ("nan", "n/a", "null", "?")  # cells without a value


def _find_label(
    probe: FolderProbe,
    table: table_heads.Table,
    place: table_heads.Place,
    others: Sequence[str],
    evidence: str,
    settings: dict[str, Any],
) -> Iterator[Finding]:
    label, is_known = label_columns.find_label(table, others)
    has_split = "split" in settings
    further = [name for name in others if name != label]
    often = tuple(
        Change(f"columns.{name}", {"type": "string"}, "stores this column, too; type: float or int for numbers")
        for name in further[:1]
        if "." not in name
    )
    text_column = label_columns.find_text(table, others) if label is None else label
    if text_column is not None and value_signs.are_texts(table.values(text_column)):
        yield _texts_of(table, text_column, others, evidence, settings)
        return
    if label is None:
        text = f"{evidence}; it has no column that could be a label"
        settings = {**settings, "label": {"by": "none"}, **_no_strata(has_split)}
        yield Finding("kaggle", text, settings, doubts=("no column could be the label: name it in label.column",))
        return
    values = table.values(label)
    distinct = sorted(set(values))
    number = plural.count(len(distinct), "different value")
    seen = f"{number} in {plural.count(len(values), 'row')}: {name_some(distinct)}"
    shown = ", ".join(label_columns.with_values(table, name) for name in further)
    guess = f"the label is the column {label!r} ({seen}); its others are {shown or 'none'}"
    doubts: tuple[str, ...] = () if is_known else (f"no column is called label or class: is it {label!r}?",)
    kind = value_signs.kind_of(values)
    if kind == "class" and len(distinct) == len(values) > 2 and label.lower() not in name_signs.SURE_LABELS:
        doubts += (f"each row has a value of its own in {label!r}: if it is a text, take the preset captions",)
    if not table.has_header and len(distinct) * 2 > len(values) and all(map(str.isdecimal, values)):
        doubts = (f"{table.path} has no header, and most rows have a number of their own: ids are no labels",)
    elif not table.has_header and len(distinct) == 1:
        doubts = (f"{table.path} has no header, and {distinct[0]!r} in every row: is it a label?",)
    elif _is_constant(values) and table_heads.is_whole(probe, table):
        doubts += (f"cells of {label!r} {_PLACEHOLDERS}",)
    is_open = label.lower() in name_signs.LABELS_OR_NOT or all(map(value_signs.is_number, distinct))
    if is_open and (folders := _folders_of(probe, table, place)):
        doubts += (f"the images are in the folders {name_some(folders)}: is the label {label!r}, or the folder?",)
    if name_signs.GROUPS.fullmatch(label):
        doubts += (f"the column {label!r} may say where images are from, by its name: is it the label?",)
    if unknown := [value for value in distinct if value.casefold() in _UNKNOWN]:
        doubts += (
            f"{values.count(unknown[0]):,} cells of {label!r} are {unknown[0]!r}, which would be a class: empty cells "
            "have no label",
        )
    folded = {name.casefold() for name in distinct}
    if len(folded) < len(distinct):
        guess += (
            f"; {len(distinct) - len(folded)} of them differ from others in case only, and are classes of their own"
        )
    if label_columns.may_be_codes(values):
        doubts += (f"cells of {label!r} hold numbers or codes such as {distinct[0]!r}: are these classes?",)
    if separator := label_columns.separator_of(values):
        settings["label"] = {"by": "column", "column": label, "separator": separator}
        note = f"a cell of {label!r} has several classes, with {separator!r} between them"
        yield Finding("multilabel", evidence, settings, (guess, note), often, doubts=doubts)
        return
    if separator := label_columns.may_be_several(values):
        doubts += (
            f"cells of {label!r} may have several classes with {separator!r} between them: for those take the preset "
            f"multilabel with label={{by: column, column: {label}, separator: {separator!r}}}",
        )
    if kind == "class":
        settings["label.column"] = label
        if len(distinct) * 2 > len(values):
            settings |= _no_strata(has_split)
        yield Finding("kaggle", evidence, settings, (guess,), often, doubts=doubts)
    else:
        settings["label"] = {"by": "column", "column": label, "type": kind}
        note = f"its values are numbers to predict, stored as {kind}; for classes set label.type=class"
        yield Finding("regression", evidence, settings, (guess, note), often, doubts=doubts)


def _store_texts(column: str) -> dict[str, Any]:
    """Returns the settings of captions for a column of any name."""
    if column == "captions":
        return {}
    return {"columns": {column: {"list": True}}, "features": {f"columns/{column}": "image/caption"}}


def _texts_of(
    table: table_heads.Table, column: str, others: Sequence[str], evidence: str, settings: dict[str, Any]
) -> Finding:
    """Returns the finding for a table with a text for each image, such as the word in it."""
    values = table.values(column)
    number = f"{len({*values}):,} different texts in {plural.count(len(values), 'row')}"
    note = f"the column {column!r} has {number} ({name_some(sorted({*values}))}): it is stored as text, and is no class"
    doubts: tuple[str, ...] = ()
    if table.has_header and column.lower() in name_signs.LABELS:
        doubts = (f"the column {column!r} has {number}: if these are classes all the same, take the preset kaggle",)
    elif len(others) > 1:
        further = ", ".join(name for name in others if name != column)
        doubts = (f"is {column!r} the text that belongs to an image? The other columns are {further}",)
    return Finding("captions", evidence, settings | _store_texts(column), (note,), doubts=doubts)


def _folders_of(probe: FolderProbe, table: table_heads.Table, place: table_heads.Place) -> list[str]:
    """Returns the names of the folders of the images of a table, if they could be classes."""
    named = {posixpath.dirname(each) for each in table.values(place.column)} - {""}
    above = {posixpath.join(place.folder, posixpath.dirname(each)) for each in named}
    folders = {*place.inside, *map(posixpath.basename, named)}
    if len(above) == 1:  # the table may name the images of some of these folders alone
        holder = probe.look(above.pop())
        folders |= {name for name in holder.folders[:_NUM_SEEN] if probe.look(holder.below(name)).images}
    return sorted(folders) if len(folders) > 1 and not all(map(_is_no_class, folders)) else []


def _is_no_class(folder: str) -> bool:
    counted = name_signs.COUNTED.search(folder) is not None
    return counted or name_signs.is_part(folder) or split_meant(folder) is not None


def _no_strata(has_split: bool) -> dict[str, Any]:
    return {} if has_split else {"split": HASH_SPLIT}


def _find_boxes(probe: FolderProbe, at: str, table: table_heads.Table, shown: str) -> Iterator[Finding]:
    path = table.path.removeprefix(f"{at}/")
    place = table_heads.find_place(probe, at, table)
    if posixpath.basename(path) == "_annotations.csv" or place is None:  # those are found beside the images
        return
    folder = place.folder.removeprefix(f"{at}/")
    split = split_meant(posixpath.basename(path)) or "train"
    is_usual = re.fullmatch(r"(train|val|valid|validation|test)(_labels)?\.csv", path) is not None
    settings: dict[str, Any] = {}
    if not is_usual:
        settings = {"source.box_csv.annotations": {split: path}}
    if not is_usual and folder not in (posixpath.dirname(path), f"images/{split}", split, "images"):
        settings["source.box_csv.images"] = {split: folder or "."}
    evidence = f"{shown}: a row for each box, of images in {folder or 'its folder'}"
    others = [name for name in table.columns if name not in _BOX_COLUMNS]
    notes = (f"its other columns are not stored: {', '.join(others)}",) if others else ()
    doubts = tuple(label_columns.doubts_on_boxes(table, ("xmin", "ymin", "xmax", "ymax")))
    yield Finding("box_csv", evidence, settings, notes, doubts=doubts)


def _settings_of(at: str, table: table_heads.Table, place: table_heads.Place) -> dict[str, Any]:
    folder = posixpath.dirname(table.path)
    path = table.path.removeprefix(f"{at}/")
    root = posixpath.relpath(f"/{place.folder}", f"/{folder}")
    cell = f"{{{place.column}:0{place.width}}}" if place.width else f"{{{place.column}}}"
    image = place.column if place.has_extension else f"{cell}.*"
    if place.inside:
        image = f"**/{cell}" + ("" if place.has_extension else ".*")
    settings = {"source.manifest.path": path, **table.settings, "source.manifest.image": image}
    if place.column in table.lists:
        del settings["source.manifest.image"]
        settings["source.manifest.images"] = place.column
    settings["source.manifest.root"] = root if root != "." else None
    if place.inside or place.column != table.path_column:
        settings.pop("source.manifest.image_pattern", None)
    return settings


def _splits_of_paths(at: str, table: table_heads.Table, place: table_heads.Place) -> tuple[dict[str, Any], list[str]]:
    """Returns the setting for a table whose paths begin with the folders of splits, or a doubt if they are deeper."""
    above = [posixpath.dirname(name).removeprefix("./").split("/") for name in table.values(place.column)]
    splits = splits_in({folders[0] for folders in above})
    if place.folder == at and len({*splits.values()}) > 1 and all(folders[0] in splits for folders in above):
        rename = {name: split for name, split in splits.items() if name != split}
        return {"split": {"by": "directory", **({"rename": rename} if rename else {})}}, []
    names = {name for folders in above for name in folders} | {n for p in place.inside for n in p.split("/")}
    inner = {name: split for name in names if (split := split_meant(name) or split_of_short(name))}
    if len({*inner.values()}) < 2:
        return {}, []
    return {}, [
        f"the images are in the folders {name_some(sorted(inner))}, and no column names their splits: add a column "
        "split, or set split.by=hash if they are none"
    ]


def _of_split_folders(probe: FolderProbe, at: str, table: table_heads.Table) -> dict[str, Any]:
    """Returns the settings for tables of one name, each in the folder of a split."""
    folder, name = posixpath.split(table.path)
    splits = splits_in(probe.look(at).folders)
    held = {each: meant for each, meant in splits.items() if name in probe.look(posixpath.join(at, each)).files}
    tables = [table_heads.read_table(probe, posixpath.join(at, each, name)) for each in held]
    if posixpath.basename(folder) not in held or any(each is None or each.columns != table.columns for each in tables):
        return {}
    rename = {each: meant for each, meant in held.items() if each != meant}
    return {"source.manifest.path": f"*/{name}", "split": {"by": "directory", "rename": rename}}
