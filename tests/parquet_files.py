"""Writes Parquet files with images as `datasets` of Hugging Face does."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def describe(**features: Any) -> dict[bytes, bytes]:
    """Returns the metadata of a file whose columns have these features."""
    return {b"huggingface": json.dumps({"info": {"features": features}}).encode()}


def class_label(*names: str) -> dict[str, Any]:
    return {"names": list(names), "_type": "ClassLabel"}


def write(
    path: pathlib.Path,
    images: Sequence[bytes | None],
    columns: Mapping[str, Sequence[Any]] = {},
    names: Sequence[str] = (),
    bare: bool = False,
    **options: Any,
) -> pathlib.Path:
    """Writes a column `image` and other columns; `names` are those of the classes in the column `label`.

    Args:
        path: of the file.
        images: their bytes.
        columns: values by name.
        names: of classes.
        bare: whether the column holds the bytes themselves, and nothing describes it.
        options: of pyarrow.parquet.write_table.
    """
    rows: list[Any]
    rows = list(images) if bare else [data and {"bytes": data, "path": f"{i}.jpg"} for i, data in enumerate(images)]
    table = pa.table({"image": pa.array(rows, pa.binary() if bare else IMAGE), **columns})
    if not bare:
        features = {"image": {"_type": "Image"}} | ({"label": class_label(*names)} if names else {})
        table = table.replace_schema_metadata(describe(**features))
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(table, path, **options)
    return path


def write_lists(
    path: pathlib.Path,
    lists: Sequence[Sequence[bytes | None] | None],
    columns: Mapping[str, Sequence[Any]] = {},
    bare: bool = False,
    nullable: bool = True,
    **options: Any,
) -> pathlib.Path:
    """Writes a column `images` of lists, as `write` a column of images; `nullable` says whether a list may be null."""
    of_images = pa.list_(pa.binary() if bare else IMAGE)
    rows = [each and [data if bare else data and {"bytes": data, "path": None} for data in each] for each in lists]
    fields = [pa.field("images", of_images, nullable)]
    table = pa.Table.from_arrays([pa.array(rows, of_images)], schema=pa.schema(fields))
    for name, values in columns.items():
        table = table.append_column(name, pa.array(values))
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(table, path, **options)
    return path
