"""Describes the content of a dataset: as a table, as image files, and as the page `report.html`."""

from __future__ import annotations

import contextlib
import io
import itertools
import math
import os
import re
from collections.abc import Iterator
from typing import Any

from imagebeam import catalog as catalog_lib
from imagebeam import errors, example, features, plural, records, snapshots, storage
from imagebeam.pipelines import verify_dataset
from imagebeam.pipelines.messages import printed_tables, terminal
from imagebeam.reader import bare_pixels
from imagebeam.transforms.commit import snapshot_report
from imagebeam.transforms.html_report import page, sample_records
from imagebeam.transforms.images import pillow_decoder

_MAX_SHOWN = 8  # values of a list, or classes
_MAX_STEM_BYTES, _MAX_FORMAT_BYTES = 200, 20  # most file systems limit a file's name to 255 bytes


def catalog_rows(catalog: catalog_lib.Catalog, directory: str) -> list[tuple[str, str]]:
    """Returns the dataset as rows of a table, without its features."""
    rows = [("dataset", catalog.name), ("folder", directory), ("written", catalog.created)]
    rows.append(("fingerprint", catalog.fingerprint))
    rows += [each for each in printed_tables.summary_rows(catalog, directory, None, directory) if each[0] != "output"]
    rows += _removed_rows(catalog)
    rows.append(("compression", catalog.compression))
    classes = dict(enumerate(catalog.labels, start=catalog.label_base))
    for title, names in (("classes", classes), ("object classes", catalog.object_classes)):
        if names:
            shown = [f"{label} {name}" for label, name in itertools.islice(names.items(), _MAX_SHOWN)]
            rows.append((title, ", ".join(shown) + (", ..." if len(names) > _MAX_SHOWN else "")))
    return rows


def feature_rows(catalog: catalog_lib.Catalog) -> list[tuple[str, str]]:
    """Returns the features of each example as rows of a table: key and type."""
    return [(f"  {each.key}", each.describe()) for each in catalog.features]


def to_json(catalog: catalog_lib.Catalog, directory: str) -> dict[str, Any]:
    """Returns the dataset as the tables have it, for scripts."""
    splits = {
        name: {
            "examples": split.num_examples,
            "shards": len(split.shards),
            "bytes": split.num_bytes,
            "removed": sum(shard.removed for shard in split.shards),
        }
        for name, split in catalog.splits.items()
    }
    return {
        "dataset": catalog.name,
        "folder": directory,
        "snapshot": snapshots.name_of(catalog),
        "written": catalog.created,
        "fingerprint": catalog.fingerprint,
        "compression": catalog.compression,
        "listed": catalog.counts.listed,
        "rejected": dict(catalog.counts.rejected),
        "splits": splits,
        "classes": dict(enumerate(catalog.labels, start=catalog.label_base)),
        "object_classes": dict(catalog.object_classes),
        "features": [{"key": each.key, "type": each.describe()} for each in catalog.features],
    }


def example_to_json(values: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Returns the features of one example as lists; of bytes that are no text the number of them."""
    return {key: list(map(_value_to_json, found)) for key, found in values.items()}


def _value_to_json(value: bytes | int | float) -> Any:
    if isinstance(value, bytes):
        return value.decode() if _is_text(value) else {"bytes": len(value)}
    if isinstance(value, float):  # with all digits of 32 bits; JSON has no other numbers than finite ones
        return float(f"{value:.9g}") if math.isfinite(value) else str(value)
    return value


def _removed_rows(catalog: catalog_lib.Catalog) -> list[tuple[str, str]]:
    """Returns a row that says how many records in the shards are removed; none if there are none."""
    every = [shard for split in catalog.splits.values() for shard in split.shards]
    removed = sum(shard.removed for shard in every)
    if not removed:
        return []
    of_shards = plural.count(sum(bool(shard.removed) for shard in every), "shard")
    total = plural.count(sum(shard.records for shard in every), "record")
    return [("removed", f"{removed:,} of {total} in the files, in {of_shards}; they are not read")]


def read_examples(directory: str, catalog: catalog_lib.Catalog, split: str) -> Iterator[dict[str, list[Any]]]:
    """Yields the examples of a split in the order of its shards.

    Raises:
        CatalogError: if the list of removed records is missing or damaged.
        VerificationError: at a broken record.
    """
    removed = snapshots.load_removed(directory, catalog)
    for shard in catalog.splits[split].shards:
        if not shard.num_examples:
            continue
        gone = frozenset(removed.get(shard.name, ()))
        uri = storage.join_relative(directory, shard.name)
        try:
            with storage.storage_of(uri).open_read(uri) as file:
                for index, record in enumerate(records.read_records(file, catalog.compression)):
                    if index not in gone:
                        yield example.parse_example(record.data)
        except (errors.RecordError, OSError) as e:
            raise errors.VerificationError(
                "record-broken", f"{uri}: {e}; imagebeam verify {directory} lists everything that is broken"
            ) from e


def describe_example(values: dict[str, list[Any]]) -> str:
    """Returns the features of one example in a line."""
    parts = []
    for key, found in values.items():
        shown = [_describe(value) for value in found[:_MAX_SHOWN]]
        if len(found) > _MAX_SHOWN:
            shown.append(f"... {len(found):,} values")
        parts.append(f"{key}={shown[0] if len(found) == 1 else '[' + ', '.join(shown) + ']'}")
    return terminal.printable("  ".join(parts))


def _describe(value: bytes | int | float) -> str:
    if isinstance(value, bytes):
        return f"<{len(value):,} bytes>" if len(value) > 200 or not _is_text(value) else value.decode()
    return f"{value:.7g}" if isinstance(value, float) else str(value)  # all digits of 32 bits


def _is_text(value: bytes) -> bool:
    try:
        return value.decode().isprintable()
    except UnicodeDecodeError:
        return False


def save_images(
    directory: str, catalog: catalog_lib.Catalog, split: str, count: int, folder: str | os.PathLike[str]
) -> list[str]:
    """Writes the first images of a split as files, named by position, label and key; returns their addresses.

    Images stored as pixels become PNGs, with `image.dtype` or `image.bands` .npy files. Further images of an example
    have their name before the extension, those of a list their number.

    Raises:
        ConfigError: if there are no images, or pixels without a shape, or `folder` cannot be written.
        VerificationError: at a broken record, or image.
    """
    keys = {feature.source: feature.key for feature in catalog.features}
    if features.ENCODED not in keys:
        raise errors.ConfigError("dataset-without-images", "--save-to: the examples hold no image")
    is_raw = bare_pixels.is_raw(catalog, bare_pixels.formats_in(catalog_lib.load_statistics(directory), [split]))
    pixels, form = bare_pixels.PixelReader(catalog) if is_raw else None, bare_pixels.form_of(catalog)
    forms = bare_pixels.forms_of_extra_images(catalog)
    folder = os.fspath(folder)
    target = _make_folder(folder)
    uris = []
    for index, values in enumerate(itertools.islice(read_examples(directory, catalog, split), count)):
        labels, names = (_texts(values, keys.get(source)) for source in (features.TEXT, "image/key"))
        name = "-".join([f"{split}-{index:05d}", *filter(None, ["+".join(labels), *names])])
        try:
            image = values[keys[features.ENCODED]][0] if pixels is None else _to_file(pixels.read(values), form)
        except ValueError as e:
            raise errors.VerificationError("example-broken", f"{directory}, example {index} of {split}: {e}") from e
        of_pixels = "png" if form.is_usual else "npy"
        image_format = of_pixels if pixels else next(filter(None, _texts(values, keys.get("image/format"))), "image")
        found = [("", image, image_format)]
        for extra, parts in features.extra_images(catalog.features).items():
            of_extra = next(filter(None, _texts(values, parts.get("format"))), "image")
            for each in values.get(parts["encoded"], ()):
                if of_extra == bare_pixels.FORMAT and {"height", "width"} <= parts.keys() and extra in forms:
                    height, width = (values[parts[side]][0] for side in ("height", "width"))
                    numbers = bare_pixels.Pixels(each, height, width, forms[extra].channels)
                    found.append((f".{extra}", _to_file(numbers, forms[extra]), "npy"))
                else:
                    found.append((f".{extra}", each, of_extra))
        if pixels is None and len(images := values[keys[features.ENCODED]]) > 1:
            formats = _texts(values, keys.get("image/format")) or ["image"] * len(images)
            found = [(f".{n}", *each) for n, each in enumerate(zip(images, formats))]
        for suffix, data, extension in found:
            stem = _file_name(name, _MAX_STEM_BYTES) + suffix
            uri = storage.join(target, f"{stem}.{_file_name(extension, _MAX_FORMAT_BYTES)}")
            with _writing_to(folder):
                storage.storage_of(uri).write_whole(uri, data, durable=False)
            uris.append(uri)
    return uris


def _file_name(text: str, max_bytes: int) -> str:
    """Turns `text` into a part of a file name: no separators, and no more bytes than file systems allow."""
    return re.sub(r"[^\w.=+-]+", "_", text).encode()[:max_bytes].decode(errors="ignore")


def _make_folder(folder: str) -> str:
    """Makes a folder if it does not exist, and returns its address.

    Raises:
        ConfigError: if it cannot be made.
    """
    if not folder:
        raise errors.ConfigError("option-empty", "--save-to is empty: give a folder")
    uri = storage.normalize(folder)
    with _writing_to(folder):
        storage.storage_of(uri).make_directories(uri)
    return uri


def _writing_to(folder: str) -> contextlib.AbstractContextManager[None]:
    problem, remedy = (
        f"--save-to {folder!r} cannot be written",
        "; give another folder; it is created if it does not exist",
    )
    return errors.explained("save-to-unwritable", problem, remedy)


def _to_file(pixels: bare_pixels.Pixels, form: bare_pixels.PixelForm) -> bytes:
    """Returns a PNG; the file of an array, [height, width, channels], of pixels of another form than the usual."""
    if not form.is_usual:
        import numpy as np

        file = io.BytesIO()
        np.save(file, pixels.to_array(form))
        return file.getvalue()
    import PIL.Image

    mode = ("L", "LA", "RGB", "RGBA")[pixels.channels - 1]
    buffer = io.BytesIO()
    PIL.Image.frombytes(mode, (pixels.width, pixels.height), pixels.data).save(buffer, "PNG")
    return buffer.getvalue()


def _texts(values: dict[str, list[Any]], key: str | None) -> list[str]:
    found = values.get(key, []) if key else []
    return [value.decode(errors="replace") for value in found if isinstance(value, bytes)]


def write_report(
    directory: str | os.PathLike[str], output: str | os.PathLike[str], snapshot: str | int | None = None
) -> int:
    """Writes the page of a dataset; returns its size in bytes.

    Reads some dozens of small parts of the shards, whatever the size of the dataset.

    Args:
        directory: of the dataset, a path or an address.
        output: path or address of the page, which is replaced.
        snapshot: name or number of a snapshot; None for the latest.

    Raises:
        CatalogError: if there is no dataset, or a file of it is damaged.
        ConfigError: if Pillow is not installed, there is no such snapshot, or `output` is in the dataset's folder or
            cannot be written.
    """
    pillow_decoder.require_pillow("report")
    output = os.fspath(output)
    if not output:
        raise errors.ConfigError("report-no-file", "--output is empty: give a file")
    given = verify_dataset.find_folder(os.fspath(directory))
    folder, catalog = snapshots.find(given, snapshot)
    target = storage.normalize(output)
    if any(_is_below(target, each) for each in (folder, given, *_dataset_around(folder))):
        raise errors.ConfigError(
            "report-in-dataset",
            f"--output {output!r} is in the folder of the dataset, where imagebeam verify compares the files with the "
            "catalog; give a file outside of it",
        )
    written = page.make_report(
        catalog,
        catalog_lib.load_statistics(folder),
        sample_records.ShardFiles(lambda name: [storage.join_relative(folder, name)]),
        storage.join(folder, catalog_lib.REJECTS_FILE),
        removed=snapshots.load_removed(folder, catalog),
        changes=snapshot_report.load_report(folder),
        duplicates=storage.join(folder, catalog_lib.DUPLICATES_FILE) if catalog.duplicates else None,
    )
    problem, remedy = f"--output {output!r} cannot be written", "; give a file in a folder that exists"
    with errors.explained("report-unwritable", problem, remedy):
        storage.storage_of(target).write_whole(target, written, durable=False)
    return len(written)


def _dataset_around(folder: str) -> list[str]:
    """Returns the folder of the dataset that a folder is a snapshot of."""
    dataset, _, last = folder.rpartition(f"/{snapshots.DIRECTORY}/")
    return [dataset] if dataset and snapshots.is_name(last) else []


def _is_below(target: str, folder: str) -> bool:
    """Returns whether a file is in a folder or below it; links of a local path are followed."""
    if storage.storage_of(target).is_local and storage.storage_of(folder).is_local:
        target, folder = os.path.realpath(target), os.path.realpath(folder)
    return target.startswith(storage.join(folder, ""))
