"""Shows what is in a dataset, and writes some of its images as files."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
from typing import Any

from imagebeam import catalog as catalog_lib
from imagebeam import errors, example, features, records, storage
from pipelines import progress, terminal


def catalog_rows(catalog: catalog_lib.Catalog, directory: str) -> list[tuple[str, str]]:
    """The dataset as rows of a table."""
    rows = [("dataset", f"{catalog.name}, written {catalog.created}, fingerprint {catalog.fingerprint}")]
    rows += progress.summary_rows(catalog, directory, seconds=None)
    rows.append(("compression", catalog.compression))
    if catalog.labels:
        shown = [f"{index} {name}" for index, name in enumerate(catalog.labels[:8], start=catalog.label_base)]
        rows.append(("classes", ", ".join(shown) + (", ..." if len(catalog.labels) > 8 else "")))
    rows += [(f"  {feature.key}", feature.kind) for feature in catalog.features]
    return rows


def read_examples(directory: str, catalog: catalog_lib.Catalog, split: str) -> Iterator[dict[str, list[Any]]]:
    """The examples of a split in the order of its shards.

    Raises:
        VerificationError: at a broken record.
    """
    for shard in catalog.splits[split].shards:
        uri = storage.join(directory, shard.name)
        try:
            with storage.storage_of(uri).open_read(uri) as file:
                for record in records.read_records(file, catalog.compression):
                    yield example.parse_example(record.data)
        except (errors.RecordError, OSError) as e:
            raise errors.VerificationError(f"{uri}: {e}; imagebeam verify {directory} names all that is broken") from e


def describe_example(values: dict[str, list[Any]]) -> str:
    """The features of one example in a line."""
    parts = []
    for key, value in values.items():
        one = value[0] if len(value) == 1 else value
        if isinstance(one, bytes):
            one = f"<{len(one):,} bytes>" if len(one) > 200 or not _is_text(one) else one.decode()
        parts.append(f"{key}={one}")
    return terminal.printable("  ".join(parts))


def _is_text(value: bytes) -> bool:
    try:
        return value.decode().isprintable()
    except UnicodeDecodeError:
        return False


def save_images(directory: str, catalog: catalog_lib.Catalog, split: str, count: int, folder: str) -> list[str]:
    """Writes the first images of a split as files, named by position, label and key; returns their paths."""
    keys = {feature.source: feature.key for feature in catalog.features}
    if features.ENCODED not in keys:
        raise errors.ConfigError("--save-to: the examples hold no image")
    os.makedirs(folder, exist_ok=True)
    paths = []
    for index, values in enumerate(itertools.islice(read_examples(directory, catalog, split), count)):
        image = values[keys[features.ENCODED]][0]
        image_format = _text(values, keys.get("image/format")) or "image"
        name = "-".join(
            [
                f"{split}-{index:05d}",
                *filter(None, [_text(values, keys.get(features.TEXT)), _text(values, keys.get("image/key"))]),
            ]
        )
        stem = re.sub(r"[^\w.=-]+", "_", name)[:150]
        path = os.path.join(folder, f"{stem}.{image_format}")
        with open(path, "wb") as file:
            file.write(image)
        paths.append(path)
    return paths


def _text(values: dict[str, list[Any]], key: str | None) -> str | None:
    value = values.get(key, [None])[0] if key else None
    return value.decode(errors="replace") if isinstance(value, bytes) else None
