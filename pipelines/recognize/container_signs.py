"""Signs of files that hold many images and what belongs to them: tars, TFRecords, Parquet."""

from __future__ import annotations

import dataclasses
import posixpath
import re
import zlib
from collections.abc import Iterator
from typing import Any

from imagebeam import errors, example, missing_packages, records, shell_words, storage
from imagebeam.transforms.formats import tar, tfrecord
from imagebeam.transforms.images import image_formats
from imagebeam.transforms.packed import gzip_content
from imagebeam.transforms.sources.folder_probe import FileProbe, Finding, Folder, FolderProbe, Strength, name_some

_CIFAR = "cifar"
_TAR_BLOCK = 512
_MAX_HEAD_BYTES = 1 << 20  # of a tar that is unpacked
_MAX_RECORD_BYTES = 4 << 20
_RECORD = re.compile(r".*\.(record|records|tfrec|tfrecords?)(-\d{5}-of-\d{5})?(\.gz)?", re.IGNORECASE)


def _places(survey: FolderProbe, at: str) -> Iterator[Folder]:
    """Yields a folder and those in it: containers are often in `data`, or in a folder for each split."""
    root = survey.look(at)
    yield root
    yield from (survey.look(root.below(name)) for name in root.folders[:10])


def find_in_file(survey: FolderProbe, name: str) -> Iterator[Finding]:
    """Finds what one tar, TFRecord or Parquet file is."""
    one = FileProbe(survey, name)
    for sign in (find_tars, find_tfrecords, find_parquet):
        yield from (dataclasses.replace(each, input=name) for each in sign(one, ""))


def find_tars(survey: FolderProbe, at: str) -> Iterator[Finding]:
    """Finds tars of WebDataset: with files of one stem for each image."""
    for folder in _places(survey, at):
        names = [name for name in folder.files if tar.TarSource.FILE_NAME.fullmatch(name)]
        if not names:
            continue
        members = _members_of(_unpacked(survey.head(folder.below(names[0]))))
        if _CIFAR in names[0].lower() and members and not any(map(extension_of_image, members)):
            yield _packed_cifar(folder, names[0], members[0], at)
            return
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


def _packed_cifar(folder: Folder, name: str, member: str, at: str) -> Finding:
    """Returns the finding for CIFAR as it is downloaded: the arrays in a tar."""
    preset = "cifar100" if "100" in name else "cifar10"
    note = f"unpack it first, by tar xf {folder.below(name)}, and give the folder that is in it as --input"
    evidence = f"{name} is a tar with {member}"
    return Finding(preset, Strength.POSSIBLE, evidence, {}, (note,), input=folder.path if folder.path != at else "")


def _unpacked(head: bytes) -> bytes:
    """Returns the beginning of the content of a file that may be gzip."""
    if not head.startswith(gzip_content.MAGIC):
        return head
    try:
        return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(head, _MAX_HEAD_BYTES)
    except zlib.error:
        return b""


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


def find_tfrecords(survey: FolderProbe, at: str) -> Iterator[Finding]:
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
        where = survey.uri(folder.path)
        command = shell_words.join(["imagebeam", "index", where])
        notes = (f"to read these files where they are, without writing others: {command}",)
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


def find_parquet(survey: FolderProbe, at: str) -> Iterator[Finding]:
    """Finds Parquet files that hold the bytes of images, as those of Hugging Face."""
    for folder in _places(survey, at):
        names = folder.ending(".parquet")
        try:
            kinds, others = _columns_of(survey.uri(folder.below(names[0]))) if names else ((), ())
        except ModuleNotFoundError as e:
            note = str(missing_packages.missing_package(e, "reading Parquet"))
            yield Finding("parquet", Strength.POSSIBLE, folder.count(len(names), "Parquet file"), {}, (note,))
            return
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
            note = f"its other columns are not stored unless columns names them: {shown}"
            yield Finding("parquet", Strength.CERTAIN, evidence, settings, (note,))
            return


def _columns_of(uri: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the columns that may hold the bytes of images, and the others; none of both if that is not known.

    Raises:
        ModuleNotFoundError: if pyarrow is not installed.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        with storage.storage_of(uri).open_read(uri) as file:
            schema = pyarrow.parquet.ParquetFile(file).schema_arrow
    except (OSError, ValueError, errors.ConfigError):
        return (), ()
    is_bytes = pyarrow.types.is_binary, pyarrow.types.is_large_binary
    found = tuple(
        field.name
        for field in schema
        if any(test(field.type) for test in is_bytes)
        or (pyarrow.types.is_struct(field.type) and {"bytes", "path"} & {inner.name for inner in field.type})
    )
    return found, tuple(name for name in schema.names if name not in found)
