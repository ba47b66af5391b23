"""Reads the columns of a Parquet file beside its images, and finds out which column holds these."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from imagebeam import errors, plural
from imagebeam.transforms import elements
from imagebeam.transforms.classes import class_names
from imagebeam.transforms.packed import parquet_content
from imagebeam.transforms.sources import containers, table_rows

NOUN = "Parquet file"
SPLIT = "split"  # cell of every row: the split in the file's path, unless a column has this name
BYTES = "bytes"  # field of a column of images that holds their bytes
READABLE = {"UNCOMPRESSED": False, "SNAPPY": True}  # compressions of pages that are located, and if it is Snappy
_ROWS_AT_ONCE = 1024
_MAX_NAMED = 20


class Layout(NamedTuple):
    """The columns of one file, and where its images are."""

    uri: str
    image: str  # path of the column with the bytes of the images; of lists, the path in the file
    columns: tuple[str, ...]  # names of all columns; of a struct the paths of its fields, too
    names: tuple[str, ...]  # names of classes in the order of the ids in the label's column; () without such ids
    notes: tuple[str, ...]  # for the user


def lay_out(uri: str, parquet: Any, image: str | None, label: str | None, has_lists: bool = False) -> Layout:
    """Returns what a file holds.

    Args:
        uri: its address, for errors.
        parquet: a pyarrow.parquet.ParquetFile.
        image: the column with the images; None finds it.
        label: the column whose names of classes are wanted; None for none.
        has_lists: whether the cells of `image` are lists of images.

    Raises:
        ConfigError: if its column of images cannot be told.
    """
    columns, types = _types_in(parquet.schema_arrow)
    said = read_columns(parquet.metadata.metadata)
    image = image or _find_image(uri, parquet.schema_arrow.names, types, said)
    if image not in columns:
        raise errors.ConfigError(
            "parquet-no-image",
            f"{NOUN} {uri!r} has no column {image!r}; its columns are {few(columns)}; set source.parquet.image",
        )
    _check_once(uri, columns, image)
    path = f"{image}.{BYTES}" if f"{image}.{BYTES}" in columns else image
    if has_lists:
        path = _path_of_entries(uri, parquet, image)
    elif not is_binary(types[path]):
        several = f"set source.parquet.images: {image}" if holds_lists(types[path]) else "set source.parquet.image"
        raise errors.ConfigError(
            "parquet-no-image",
            f"{NOUN} {uri!r}: column {image!r} holds {types[path]}, and images are "
            f"binary, or a struct with a field {BYTES!r}; {several}",
        )
    notes = []
    if said.problem:
        notes.append(
            f"{uri}: the key {KEY.decode()!r} of its metadata {said.problem}, so the names of classes are not known"
        )
    if (compression := _compression_of(parquet, path)) not in READABLE:
        notes.append(
            f"the images in {uri} are compressed ({compression.lower()}): each writer process unpacks each file once "
            "into the folder TMPDIR; without compression or with snappy they are read where they are"
        )
    names = said.names.get(label, ()) if label is not None else ()
    return Layout(uri, path, columns, tuple(map(class_names.spell, names)), tuple(notes))


def _path_of_entries(uri: str, parquet: Any, image: str) -> str:
    """Returns the path in the file of the bytes in a column of lists.

    Raises:
        ConfigError: if it holds none.
    """
    type_ = parquet.schema_arrow.field(image).type
    if not holds_lists(type_):
        raise errors.ConfigError(
            "parquet-no-image",
            f"{NOUN} {uri!r}: column {image!r} holds {type_}, and lists of images are lists of binary, or of structs "
            f"with a field {BYTES!r}; set source.parquet.images, or source.parquet.image for one image a row",
        )
    paths = (parquet.schema.column(index).path for index in range(len(parquet.schema)))
    held = [path for path in paths if path.startswith(f"{image}.")]
    return next((path for path in held if path.endswith(f".{BYTES}")), held[0])


def _check_once(uri: str, columns: Sequence[str], name: str) -> None:
    if columns.count(name) > 1:
        raise errors.ConfigError(
            "parquet-column-twice", f"{NOUN} {uri!r} has the column {name!r} twice; rename one of them"
        )


def index_of(parquet: Any, column: str) -> int | None:
    """Returns the number of a column by its path; None if it is spelt otherwise in the file."""
    paths = (parquet.schema.column(index).path for index in range(len(parquet.schema)))
    return next((index for index, path in enumerate(paths) if path == column), None)


def _compression_of(parquet: Any, column: str) -> str:
    index = index_of(parquet, column)
    if index is None or not parquet.metadata.num_row_groups:
        return "UNCOMPRESSED"
    return str(parquet.metadata.row_group(0).column(index).compression)


def holds_bytes(uri: str, column: str) -> bool:
    """Returns whether a column holds images, and not their paths. False if the file cannot be read."""
    try:
        with parquet_content.open_parquet(uri) as parquet:
            schema = parquet.schema_arrow
            is_there = column in schema.names
            return is_there and (
                is_binary(_types_in(schema)[1].get(f"{column}.{BYTES}")) or holds_lists(schema.field(column).type)
            )
    except OSError:
        return False  # whatever reads it says why


class CellReader:
    """Reads the needed columns of a file.

    Raises:
        ConfigError: if the file has one of them twice.
    """

    def __init__(self, fields: table_rows.RowFields, layout: Layout, split: str | None):
        self._fields, self._names, self._split = fields, layout.names, split
        known = set(layout.columns)
        for name in fields.needed:
            _check_once(layout.uri, layout.columns, name)
        self._needed = [name for name in fields.needed if name in known]
        self._absent = [name for name in fields.required if name not in known and name != SPLIT]

    def rows(self, parquet: Any, group: int) -> Iterator[Mapping[str, Any] | table_rows.BadRowError]:
        """Yields the cells of each row of a row group by name, or why they cannot be used."""
        if self._absent:
            yield from itertools.repeat(
                containers.bad_row(f"the file has no column {', '.join(map(repr, self._absent))}")
            )
        if not self._needed:
            yield from itertools.repeat({SPLIT: self._split})
        for batch in parquet.iter_batches(_ROWS_AT_ONCE, [group], self._needed, use_threads=False):
            try:
                rows = batch.to_pylist()
            except (ValueError, OverflowError, TypeError) as e:
                detail = f"the rows around it cannot be read ({parquet_content.explain(e)})"
                error = table_rows.BadRowError(elements.Reason.BAD_VALUE, detail)
                yield from itertools.repeat(error, batch.num_rows)
            else:
                yield from map(self._cells, rows)

    def _cells(self, row: Mapping[str, Any]) -> Mapping[str, Any] | table_rows.BadRowError:
        cells = {SPLIT: self._split} | {name: containers.look_up(row, name) for name in self._needed}
        label = self._fields.label
        if self._names and label is not None:
            try:
                value = cells[label]
                several = isinstance(value, list)
                cells[label] = [self._name_of(each) for each in value] if several else self._name_of(value)
            except table_rows.BadRowError as e:
                return e
        return cells

    def _name_of(self, value: Any) -> Any:
        """Returns the name of the class with an id."""
        if value is None or (isinstance(value, str) and value in self._names):
            return value
        if value == NO_LABEL:
            raise table_rows.BadRowError(
                elements.Reason.NO_LABEL,
                f"column {self._fields.label!r} is -1, which `datasets` stores where the class is not published: leave "
                "such files out with source.include, or convert them apart with label={by: none}",
            )
        if not isinstance(value, int) or not 0 <= value < len(self._names):
            raise table_rows.BadRowError(
                elements.Reason.UNKNOWN_LABEL,
                f"column {self._fields.label!r} is {value!r}, and its classes have the ids 0 to {len(self._names) - 1}",
            )
        return self._names[value]


def _find_image(uri: str, names: Sequence[str], types: Mapping[str, Any], said: Columns) -> str:
    """Returns the column of images: what the metadata say, else the only one of a fitting type.

    Raises:
        ConfigError: if there is none, or are several.
    """
    found = (
        [name for name in said.images if name in names]
        or [name for name in names if is_binary(types.get(f"{name}.{BYTES}"))]
        or [name for name in names if is_binary(types[name])]
    )
    if len(found) == 1:
        return found[0]
    if found:
        detail = f"several columns of images, {few(found)}: name one in source.parquet.image"
    else:
        lists = [name for name in names if holds_lists(types[name])]
        remedy = f"where one holds lists of images, {few(lists)}, set source.parquet.images" if lists else ""
        remedy = remedy or "where one holds paths, set source.by: manifest"
        detail = f"no column of images; its columns are {few(names)}: {remedy}"
    raise errors.ConfigError("parquet-no-image", f"{NOUN} {uri!r} has {detail}")


def _types_in(schema: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Returns the names of all columns and the paths of the fields of structs, and the type of each."""
    import pyarrow.types

    found = [(field.name, field.type) for field in schema]
    for path, type_ in found:
        if pyarrow.types.is_struct(type_):
            found += [(f"{path}.{field.name}", field.type) for field in type_]
    return tuple(path for path, _ in found), dict(reversed(found))  # a column counts before a field of its path


def is_binary(type_: Any) -> bool:
    """Returns whether a type, None for none, is of bytes."""
    return type_ is not None and str(type_) in ("binary", "large_binary", "binary_view")


def holds_images(type_: Any) -> bool:
    """Returns whether a column of a type may hold the bytes of an image in each cell."""
    import pyarrow.types

    is_struct = type_ is not None and pyarrow.types.is_struct(type_)
    return is_binary(type_) or (is_struct and any(field.name == BYTES and is_binary(field.type) for field in type_))


def holds_lists(type_: Any) -> bool:
    """Returns whether a column of a type may hold a list of images in each cell."""
    return parquet_content.is_list(type_) and holds_images(type_.value_type)


def list_levels(lists: Any) -> tuple[int, int]:
    """Returns the definition levels of a column of lists, given its field: of an entry, and of one that is not null."""
    level = 1 + lists.nullable
    return level, level + lists.type.value_field.nullable


def few(names: Sequence[str]) -> str:
    """Names the first of several."""
    return plural.name_some([*map(repr, names)], _MAX_NAMED)


# --- what Hugging Face says of columns --------------------------------------------------------------------------------
#
# Source: https://github.com/huggingface/datasets (src/datasets/features: Features.to_dict, ClassLabel, Image); the key
# `huggingface` of the file's metadata holds {"info": {"features": {"label": {"names": [...], "_type": "ClassLabel"}}}}.

KEY = b"huggingface"
NO_LABEL = -1  # id of the class in splits whose classes are not published


class Columns(NamedTuple):
    """The columns of a file as its metadata describe them."""

    images: tuple[str, ...] = ()  # columns of images
    names: Mapping[str, tuple[str, ...]] = {}  # names of classes, by the column of their ids
    problem: str = ""  # why it cannot be used; "" if it can, or nothing is said


def read_columns(metadata: Mapping[bytes, bytes] | None) -> Columns:
    """Returns what the metadata of a file say of its columns; nothing if they have no such key."""
    data = (metadata or {}).get(KEY)
    if data is None:
        return Columns()
    try:
        found = json.loads(data)
        features = found["info"]["features"]
        described = list(features.items())
    except (ValueError, RecursionError) as e:
        return Columns(problem=f"is not JSON ({str(e)[:100]})")
    except (KeyError, TypeError, AttributeError):
        return Columns(problem="has no info.features")
    images = tuple(name for name, feature in described if _type_of(feature) == "Image")
    names = {}
    for name, feature in described:
        inner = _element_of(feature)
        if _type_of(inner) == "ClassLabel" and isinstance(inner, dict):
            listed = inner.get("names")
            if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
                return Columns(images, problem=f"has no list of names for the column {name!r}")
            names[name] = tuple(listed)
    return Columns(images, names)


def _type_of(feature: Any) -> Any:
    return feature.get("_type") if isinstance(feature, dict) else None


def _element_of(feature: Any) -> Any:
    """Returns the feature of the elements of a list, or the feature itself."""
    if isinstance(feature, Sequence) and not isinstance(feature, str) and len(feature) == 1:
        return feature[0]
    if _type_of(feature) in ("Sequence", "List", "LargeList"):
        return feature.get("feature")
    return feature
