"""Signs of files that hold many images: tars, TFRecords, Parquet, arrays, archives."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from typing import Any

from imagebeam import errors, example, records, storage
from imagebeam.pipelines.recognize_survey import Finding, Folder, Strength, Survey, name_some
from imagebeam.transforms.images import image_formats
from imagebeam.transforms.sources import tar, tfrecord

_TAR_BLOCK = 512
_MAX_RECORD_BYTES = 4 << 20
_IDX = re.compile(r".*idx[13][-.]ubyte(\.gz)?")
_RECORD = re.compile(r".*\.(record|records|tfrec|tfrecords?)(-\d{5}-of-\d{5})?(\.gz)?", re.IGNORECASE)


def _places(survey: Survey, at: str) -> Iterator[Folder]:
    """Yields a folder and those in it: containers are often in `data`, or in a folder for each split."""
    root = survey.look(at)
    yield root
    yield from (survey.look(root.below(name)) for name in root.folders[:10])


def find_idx(survey: Survey, at: str) -> Iterator[Finding]:
    """Finds the files of MNIST and its relatives."""
    root = survey.look(at)
    names = [name for name in root.files if _IDX.fullmatch(name)]
    if any("idx3" in name for name in names):
        evidence = f"{root.count(len(names), 'IDX file')} ({name_some(names, 2)})"
        yield Finding("mnist", Strength.CERTAIN, evidence)


def find_tars(survey: Survey, at: str) -> Iterator[Finding]:
    """Finds tars of WebDataset: with files of one stem for each image."""
    for folder in _places(survey, at):
        names = [name for name in folder.files if tar.TarSource.FILE_NAME.fullmatch(name)]
        if not names:
            continue
        plain = next((name for name in names if name.endswith(".tar")), "")
        members = _members_of(survey.head(folder.below(plain))) if plain else []
        images = [name for name in members if extension_of_image(name)]
        cells = sorted({posixpath.basename(name).partition(".")[2].lower() for name in members} - {""})
        others = [each for each in cells if not extension_of_image(f"x.{each}")]
        evidence = folder.count(len(names), "tar") + (f" with members such as {name_some(members)}" if members else "")
        settings: dict[str, Any] = {}
        notes: tuple[str, ...] = ()
        if "cls" not in others:
            settings["label"] = {"by": "none"}
            notes = (f"no member names the label; for one in JSON set label.column, such as json.label ({cells})",)
            if "json" not in others and len(names) <= 3:
                notes = ("if the folders in the tar are classes, unpack it and use image_folder",)
        is_certain = bool(images) and bool(others)
        strength = Strength.CERTAIN if is_certain else Strength.LIKELY if images else Strength.POSSIBLE
        yield Finding("webdataset", strength, evidence, settings, notes)
        return


def extension_of_image(name: str) -> bool:
    """Returns whether a name has the extension of an image."""
    return name.rpartition(".")[2].lower() in image_formats.BY_EXTENSION


def _members_of(head: bytes) -> list[str]:
    """Returns the names of the first files in a tar."""
    names, offset = [], 0
    while offset + _TAR_BLOCK <= len(head) and head[offset + 257 : offset + 262] == b"ustar":
        block = head[offset : offset + _TAR_BLOCK]
        try:
            size = int(block[124:136].strip(b"\0 ") or b"0", 8)
        except ValueError:
            break
        if block[156:157] in (b"0", b"\0"):
            names.append(block[:100].rstrip(b"\0").decode("utf-8", "replace"))
        offset += _TAR_BLOCK * (1 + -(-size // _TAR_BLOCK))
    return names


def find_tfrecords(survey: Survey, at: str) -> Iterator[Finding]:
    """Finds TFRecord files, and the keys of their features."""
    for folder in _places(survey, at):
        names = [
            name
            for name, size in folder.files.items()
            if size and (tfrecord.TfrecordSource.FILE_NAME.fullmatch(name) or _RECORD.fullmatch(name))
        ]
        names = [name for name in names if not name.endswith((".json", ".txt", ".py", ".md", ".index", ".parquet"))]
        if not names:
            continue
        if "catalog.json" in folder.files:
            return  # a data set of imagebeam
        keys = _keys_of(survey.uri(folder.below(names[0])))
        evidence = folder.count(len(names), "TFRecord file") + f" ({name_some(names, 2)})"
        settings: dict[str, Any] = {}
        notes: tuple[str, ...] = ()
        image = next((key for key in _IMAGE_KEYS if key in keys), None)
        label = next((key for key in _LABEL_KEYS if key in keys), None)
        if keys:
            evidence += f" with the features {', '.join(sorted(keys))}"
            if image not in (None, "image/encoded"):
                settings["source.tfrecord.image"] = image
            if label is None:
                settings["label"] = {"by": "none"}
            elif label != "image/class/label":
                settings["label"] = {"by": "column", "column": label, "type": "int"}
        if not all(map(tfrecord.split_of, names)):
            settings["split"] = {"by": "none"}
        strength = Strength.CERTAIN if image is not None else Strength.POSSIBLE
        yield Finding("tfrecord", strength, evidence, settings, notes)
        return


_IMAGE_KEYS = ("image/encoded", "image", "image_raw", "encoded", "img", "jpeg", "image_bytes")
_LABEL_KEYS = ("image/class/label", "label", "class", "target", "labels", "image/label", "fine_label")


def _keys_of(uri: str) -> set[str]:
    """Returns the keys of the features of the first record; none if it cannot be read."""
    try:
        store = storage.storage_of(uri)
        length = int.from_bytes(store.read(uri, 0, 8), "little")
        if not 0 < length <= _MAX_RECORD_BYTES:
            return set()
        return {key for key, _, _ in example.look_at_features(store.read(uri, records.HEADER_BYTES, length))}
    except (OSError, ValueError, errors.ConfigError):
        return set()


def find_parquet(survey: Survey, at: str) -> Iterator[Finding]:
    """Finds Parquet files that hold the bytes of images, as those of Hugging Face."""
    for folder in _places(survey, at):
        names = folder.ending(".parquet")
        kinds, others = _columns_of(survey.uri(folder.below(names[0]))) if names else ((), ())
        if kinds:
            where = f" in {folder.path}" if folder.path else ""
            evidence = f"{folder.count(len(names), 'Parquet file')}{where} with images in the column {name_some(kinds)}"
            settings: dict[str, Any] = {"source.parquet.image": kinds[0]} if len(kinds) > 1 else {}
            label = next((name for name in _LABEL_KEYS if name in others), None)
            if label is None:
                settings["label"] = {"by": "none"}
            elif label != "label":
                settings["label.column"] = label
            shown = ", ".join(others) or "none"
            yield Finding("parquet", Strength.CERTAIN, evidence, settings, (f"its other columns are {shown}",))
            return


def _columns_of(uri: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the columns that may hold the bytes of images, and the others; none of both if that is not known."""
    try:
        import pyarrow
        import pyarrow.parquet

        with storage.storage_of(uri).open_read(uri) as file:
            schema = pyarrow.parquet.ParquetFile(file).schema_arrow
    except (OSError, ValueError, ImportError, errors.ConfigError):
        return (), ()
    is_bytes = pyarrow.types.is_binary, pyarrow.types.is_large_binary
    found = tuple(
        field.name
        for field in schema
        if any(test(field.type) for test in is_bytes)
        or (pyarrow.types.is_struct(field.type) and {"bytes", "path"} & {inner.name for inner in field.type})
    )
    return found, tuple(name for name in schema.names if name not in found)


def find_arrays(survey: Survey, at: str) -> Iterator[Finding]:
    """Finds data sets that are arrays: CIFAR, .npz, .mat, HDF5."""
    root = survey.look(at)
    for folder in _places(survey, at):
        names = {*folder.files}
        beside = folder.path.removeprefix(f"{at}/") if at else folder.path
        where = f" in {beside}" if folder.path != root.path else ""
        if {"data_batch_1", "test_batch"} <= names or {"data_batch_1.bin", "test_batch.bin"} <= names:
            yield Finding("cifar10", Strength.CERTAIN, f"data_batch_1 and test_batch{where}", input=folder.path)
        elif {"train", "test", "meta"} <= names or {"train.bin", "test.bin", "fine_label_names.txt"} <= names:
            yield Finding("cifar100", Strength.CERTAIN, f"train, test and meta{where}", input=folder.path)
        elif mats := folder.ending("_32x32.mat"):
            yield Finding("svhn", Strength.CERTAIN, f"{name_some(mats)}{where}", input=folder.path)
        elif arrays := folder.ending(".npz"):
            yield Finding("npz", Strength.LIKELY, f"{folder.count(len(arrays), '.npz file')}{where}", input=folder.path)
        elif arrays := folder.ending(".h5", ".hdf5"):
            evidence = f"{folder.count(len(arrays), 'HDF5 file')}{where} ({name_some(arrays)})"
            yield Finding("hdf5", Strength.LIKELY, evidence, input=folder.path)
        else:
            continue
        return


def find_archives(survey: Survey, at: str) -> Iterator[Finding]:
    """Finds zip archives with images."""
    root = survey.look(at)
    names = root.ending(".zip")
    if names:
        yield Finding("zip", Strength.LIKELY, f"{root.count(len(names), 'zip archive')} ({name_some(names)})")
