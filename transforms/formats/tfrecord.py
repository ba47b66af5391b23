"""TFRecord files of tf.train.Example: references are byte ranges; the other features are cells."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, ClassVar, Literal, NamedTuple

from imagebeam import errors, example, features, plural, records, storage
from imagebeam.transforms import elements, kept_features
from imagebeam.transforms.formats import base_format
from imagebeam.transforms.images import image_formats, structure
from imagebeam.transforms.packed import packed_file, unpacked_content
from imagebeam.transforms.sources import containers, folder_probe, image_source, shard_names, table_rows
from imagebeam.transforms.sources.folder_probe import Finding, FolderProbe, name_some

_RECORD = re.compile(r"\.records?$", re.IGNORECASE)
SPLIT = "split"  # cell of every record: the split in the file's name, unless a feature has this name


@dataclasses.dataclass(frozen=True)
class Tfrecord(base_format.Format):
    """TFRecord files of tf.train.Example to be rewritten."""

    ABOUT: ClassVar[str] = "TFRecord files of tf.train.Example"
    PRESETS: ClassVar[tuple[str, ...]] = ("tfrecord",)

    image: str = features.ENCODED
    """Key of the feature with the image's bytes."""
    key: str | None = None
    """Key of the feature with the stable id; by default the file's name and the record's number."""
    raw_shape: tuple[base_format.Count, base_format.Count, base_format.Channels] | tuple[str, str, str] | None = None
    """Height, width and channels of images stored as 8-bit pixels without a format, such as [28, 28, 1]; or the keys of
    the features that hold them, such as [image_height, image_width, image_channels]."""
    base64: bool = False
    """Whether the image's bytes are base64, as TFRecorder writes them."""
    keep: Literal["all"] | tuple[str, ...] | None = None
    """Keys of further features to store unchanged, with the kind that they have in the records, or `all`. By default
    all are kept, unless `columns` names some: then only those. The plan lists what is left out."""

    def gives(self) -> base_format.Gives:
        return base_format.Gives(columns=True, takes=frozenset({"include"}), keeps=self.keep)

    @classmethod
    def hint_on_file(cls, uri: str) -> str:
        named = TfrecordSource.FILE_NAME.fullmatch(uri.rpartition("/")[2])
        return f"for {TfrecordSource.EXPECTED} set source.by: tfrecord" if named else ""

    def open(self, request: base_format.Request) -> TfrecordSource:
        stored = {self.image} | ({self.key} if self.key is not None and self.key == request.key_feature else set())
        keep = dataclasses.replace(request.keep, elsewhere=request.keep.elsewhere | stored)
        fields = dataclasses.replace(request.fields, key=self.key)
        return TfrecordSource(*TfrecordSource.find(request.uri, request.include, request.output), fields, self, keep)

    @classmethod
    def is_container(cls, name: str) -> bool:
        return not has_other_extension(name)

    @classmethod
    def detect(cls, probe: FolderProbe, at: str) -> Iterator[Finding]:
        """Finds TFRecord files, and the keys of their features."""
        held = [each for each in folder_probe.with_inner(probe, at) if _records_in(each)]
        held.sort(key=lambda each: folder_probe.split_meant(each.path) == "test")  # tests may have no labels
        for folder in held[:1]:
            names = sorted(_records_in(folder), key=_is_of_test)
            if "catalog.json" in folder.files:
                return  # a data set of imagebeam
            keys = _first_record(probe.uri(folder.below(names[0])), folder.files[names[0]])
            evidence = folder.count(len(names), "TFRecord file") + f" ({name_some(names, 2)})"
            settings: dict[str, Any] = {}
            where = probe.uri(folder.path)
            command = plural.shell_command(["imagebeam", "index", where])
            notes = [f"to read these files where they are, without writing others: {command}"]
            image = next((key for key in _IMAGE_KEYS if key in keys), None)
            label = next((key for key in _LABEL_KEYS if key in keys), None)
            if keys:
                evidence += f" with the features {', '.join(sorted(keys))}"
                if image not in (None, "image/encoded"):
                    settings["source.tfrecord.image"] = image
                if label is None:
                    settings["label"] = {"by": "none"}
                elif (label, kind := _kind_of_values(keys[label])) != ("image/class/label", "int"):  # the preset's
                    settings["label"] = {"by": "column", "column": label, "type": kind}
            if not all(map(split_of, names)):
                settings["split"] = {"by": "none"}
            named = sorted({split_of(name) or "" for each in held for name in _records_in(each)})
            if rename := {
                name: meant for name in named if name[-1:].isdigit() and (meant := folder_probe.split_meant(name))
            }:
                settings["split.rename"] = rename  # train00-2071.tfrec: a number of the file, and no split of its own
            of_splits, doubts = folder_probe.splits_of_folders(held, at, "TFRecord files")
            if image is None:
                doubts = ("no feature of the first record is known to hold images", *doubts)
            elif doubt := _doubt_on_image(image, keys[image]):
                doubts = (doubt, *doubts)
            notes += shard_names.missing(names)
            doubts += (*shard_names.repeated(names),)
            yield Finding("tfrecord", evidence, settings | of_splits, tuple(notes), doubts=doubts)


def _is_of_test(name: str) -> bool:
    return folder_probe.split_meant(split_of(name) or "") == "test"


def _records_in(folder: folder_probe.Folder) -> list[str]:
    """Returns the files of a folder that hold records by their names."""
    return [
        name
        for name, size in folder.files.items()
        if size
        and not name.endswith((".py", ".arrow"))
        and (TfrecordSource.FILE_NAME.fullmatch(name) or _RECORD_FILE.fullmatch(name))
    ]


_RECORD_FILE = re.compile(r".*\.(record|records|tfrec|tfrecords?)(-\d{5}-of-\d{5})?(\.gz)?", re.IGNORECASE)
_IMAGE_KEYS = ("image/encoded", "image", "image_raw", "encoded", "img", "jpeg", "image_bytes")
_LABEL_KEYS = ("image/class/label", "label", "class", "target", "labels", "image/label", "fine_label")


def _first_record(uri: str, size: int) -> dict[str, Any]:
    """Returns the features of the first record, also of a gzip file; none if it cannot be read."""
    try:
        with storage.storage_of(uri).open_read(uri) as file:
            record = next(records.scan_records(file, kind_of(uri, size) or "none"), None)
        return example.parse_example(record.data) if isinstance(record, records.Record) else {}
    except (OSError, ValueError, errors.ConfigError):
        return {}


def _kind_of_values(values: Sequence[Any]) -> str:
    """Returns `label.type` for the values of a feature."""
    if any(isinstance(each, bytes) for each in values):
        return "class"
    return "float" if any(isinstance(each, float) for each in values) else "int"


def _doubt_on_image(key: str, values: Sequence[Any]) -> str:
    """Returns a doubt if the values of a feature are no image in a file's format; "" if they are."""
    value = values[0] if values else b""
    if not isinstance(value, bytes):
        return f"the feature {key} holds {plural.count(len(values), 'number')}, and an image is bytes"
    if image_formats.sniff_format(value) or image_formats.name_unread(value):
        return ""
    return (
        f"the feature {key} of the first record holds {plural.count(len(value), 'byte')} in no image format that is "
        "known: for the 8-bit pixels of rows set source.tfrecord.raw_shape=[HEIGHT, WIDTH, CHANNELS], for base64 "
        "source.tfrecord.base64=true"
    )


@dataclasses.dataclass(frozen=True)
class TfrecordSource(containers.ContainerSource):
    """The TFRecord files of a folder, plain or gzip, recognized by their names or their content."""

    NOUN = "TFRecord file"
    FILE_NAME = re.compile(  # leaves out indexes and descriptions
        r"(?!.*\.(index|sizes|idx|json|txt|csv|md|html|parquet|pq)$)(.*\.tfrec.*|.*\.records?(\.gz)?|.+-\d{5,}-of-\d{5,}(\..+)?)",
        re.IGNORECASE,
    )
    EXPECTED = "a file with .tfrecord in its name, or named as train-00000-of-00010"
    CELL = "feature"
    KEY_OPTION = "source.tfrecord.key"

    options: Tfrecord = Tfrecord()
    keep: kept_features.KeepRule = kept_features.NOTHING  # unless it is of nothing, references are to whole records

    @classmethod
    def is_one_by_name(cls, name: str) -> bool | None:
        return super().is_one_by_name(name) or (False if has_other_extension(name) else None)

    @classmethod
    def is_container(cls, uri: str, size: int) -> bool:
        return bool(kind_of(uri, size))

    def facts(self) -> image_source.SourceFacts:
        shape = self.options.raw_shape
        return image_source.SourceFacts(
            shape=None if self._shape_keys else shape,  # type: ignore[arg-type]
            is_raw=bool(self._shape_keys),
            is_base64=self.options.base64,
            keep=self.keep,
            on_repeated_key="remove one, or choose a feature of unique ids in source.tfrecord.key; by default file and "
            "number are the key",
        )

    @property
    def _shape_keys(self) -> tuple[str, ...]:
        """Keys of the features with height, width and channels, if images are stored as pixels of several shapes."""
        return tuple(each for each in self.options.raw_shape or () if isinstance(each, str))

    def scan(self, container: containers.Container) -> Iterator[containers.Found]:
        """Yields the images of one file; reads all of it and checks every checksum."""
        names: set[str] = set()
        surveyor = kept_features.FeatureSurveyor()
        split = split_of(container.path)
        number = 0
        with _open(container) as file:
            try:
                for record in records.scan_records(file):
                    if isinstance(record, errors.RecordError):
                        bad = table_rows.BadRowError(elements.Reason.CORRUPT, record.detail)
                        yield _reject(container, number, record.offset, bad)
                    else:
                        yield self._make(container, number, record, split, names, surveyor)
                    number += 1
            except errors.RecordError as e:
                is_packed = unpacked_content.is_packed(container.address)
                lost = "" if is_packed else f", {container.size - e.offset:,} bytes"
                raise containers.ContainerError(
                    f"TFRecord file {container.uri!r}: {e}, after {plural.count(number, 'record')}; those from there "
                    f"on would be lost{lost}: fetch the file again, or leave it out with source.include",
                    e.offset,
                ) from e
        yield containers.Cells(frozenset(names), surveyor.survey)

    def _make(
        self,
        container: containers.Container,
        number: int,
        record: records.Record,
        split: str | None,
        names: set[str],
        surveyor: kept_features.FeatureSurveyor,
    ) -> elements.ImageRef | elements.Reject:
        """Returns the reference or reject of a record; adds its cells to `names` and its features to `surveyor`."""
        shape, keeps_features = self._shape_keys, self.keep.names != ()
        try:
            try:
                located = example.locate_values(record.data, self.options.image, (*self.fields.needed, *shape))
                seen = example.look_at_features(record.data)
            except ValueError as e:
                raise table_rows.BadRowError(elements.Reason.CORRUPT, str(e)) from e
            cells = {SPLIT: split} | {key: _as_cell(values) for key, values in located.values.items()}
            names.update(located.keys, (key for key, value in cells.items() if value is not None))
            offset, size = self._find_image(located)
            expected = self._find_shape(located, shape, record.data[offset : offset + size]) if shape else None
            inside = (offset, size) if keeps_features else None
            first, length = (0, len(record.data)) if keeps_features else (offset, size)
            ref = elements.ImageRef(
                self.key_of(container, number, cells),
                container.address,
                length,
                container.version,
                offset=record.offset + records.HEADER_BYTES + first,
                length=length,
                inside=inside,
                expected=expected,
            )
            filled = containers.fill(self.fields, ref, cells)
            surveyor.add(map(kept_features.Seen._make, seen), f"record {number} of {container.path}")
            return filled
        except table_rows.BadRowError as e:
            return _reject(container, number, record.offset, e)

    def _find_image(self, located: example.Located) -> tuple[int, int]:
        if located.spans is not None and len(located.spans) == 1:
            return located.spans[0]
        if located.spans is not None:
            detail = f"feature {self.options.image!r} has {len(located.spans)} values, expected one"
        else:
            known = ", ".join(map(repr, sorted(located.keys))) or "none"
            detail = f"there is no feature {self.options.image!r} (source.tfrecord.image); its features are {known}"
        raise containers.bad_row(detail)

    def _find_shape(self, located: example.Located, keys: Sequence[str], data: bytes) -> tuple[int, int]:
        """Returns height and width of an image stored as pixels. Their number tells the channels to whoever reads it.

        Raises:
            BadRowError: if the features do not fit the bytes.
        """
        found = [located.values.get(key, []) for key in keys]
        named = ", ".join(keys)
        if any(len(each) != 1 or not isinstance(each[0], int) for each in found):
            detail = f"{named} (source.tfrecord.raw_shape) are not one whole number each"
            raise containers.bad_row(detail)
        height, width, channels = (each[0] for each in found)
        num_bytes = structure.base64_size(data) if self.options.base64 else len(data)
        fits = min(height, width) > 0 and 1 <= channels <= 4 and num_bytes == height * width * channels
        if not fits:
            detail = f"the image has {num_bytes:,} bytes, and {named} are {height:,}, {width:,} and {channels:,}"
            raise table_rows.BadRowError(elements.Reason.BAD_VALUE, detail)
        return height, width


def split_of(path: str) -> str | None:
    """Returns the split that a path says.

    As `train-00000-of-00010`, TFDS's `mnist-test.tfrecord-00000-of-00001`, or by a word such as `train` in the name, or
    else in a folder: `coco_train.record-00000-of-00010`, `val/00.tfrec`.
    """
    try:
        split = records.ShardName.parse(path.rpartition("/")[2]).split
    except ValueError:
        return find_word(path)
    dataset, dot, _ = split.partition(".tfrecord")
    if dot:
        return dataset.rpartition("-")[2]
    return find_word(path) if _RECORD.search(split) else split


def _open(container: containers.Container) -> contextlib.AbstractContextManager[BinaryIO]:
    if unpacked_content.is_packed(container.address):
        return packed_file.open_gzip(container.uri, container.version)
    return storage.storage_of(container.uri).open_read(container.uri)


def _as_cell(values: list[Any]) -> Any:
    """Returns one value as itself, several as a list, none as None."""
    return values[0] if len(values) == 1 else values or None


def _reject(
    container: containers.Container, number: int, offset: int, error: table_rows.BadRowError
) -> elements.Reject:
    detail = f"record {number} of {container.uri} at byte offset {offset}: {error.detail}"
    return elements.Reject(f"{container.path}/{number}", container.uri, "list", error.reason, detail)


# --- content of files -------------------------------------------------------------------------------------------------

LIKE_TFRECORD = re.compile(r"\.tfrec|tfrecord|\.records?\b|-\d{5,}-of-\d{5,}", re.IGNORECASE)  # in a name

# Extensions of other files, which are not opened: on a network, each needs a request.
_OTHERS = re.compile(
    "jsonl?|txt|csv|tsv|md|html?|pbtxt|py|ipynb|ya?ml|toml|xml|log|pdf|zip|tar|tgz|npz|npy|h5|hdf5|mat|parquet|ckpt|"
    "index|sha256|md5|idx|pickle|pkl"
)


def has_other_extension(name: str) -> bool:
    """Returns whether the extension of a file says that it is no TFRecord file."""
    extension = name.rpartition(".")[2].lower() if "." in name else ""
    return extension in image_formats.BY_EXTENSION or _OTHERS.fullmatch(extension) is not None


def kind_of(uri: str, size: int) -> str | None:
    """Returns "none" for a plain file and "gzip", "" for an empty file, and None for one that is no TFRecord file.

    Args:
        uri: address of the file.
        size: its bytes, as listed.

    Raises:
        OSError: if it cannot be read.
    """
    if not size:
        return ""
    head = storage.storage_of(uri).read(uri, 0, records.HEADER_BYTES)
    if records.begins_with_record(head):
        return "none"
    if not head.startswith(packed_file.GZIP_MAGIC):
        return None
    try:
        with storage.storage_of(uri).open_read(uri) as file:
            first = next(iter(records.scan_records(file, "gzip")), None)
    except errors.RecordError:
        return None
    return None if first is None and not LIKE_TFRECORD.search(uri.rpartition("/")[2]) else "gzip"


# --- names of files ---------------------------------------------------------------------------------------------------
#
# train-00000-of-01024                              train        TPU models, tf-vision
# mnist-test.tfrecord-00000-of-00001                test         TensorFlow Datasets
# flowers_train_00000-of-00005.tfrecord             train        TF-slim
# coco_val.record-00000-of-00010                    val          Object Detection API
# validation/00-512x512-798.tfrec                   validation   Kaggle
# Train-00000-of-00001.tfrecord.gz                  train        TFRecorder

DEFAULT_SPLIT = "train"  # where neither name nor folder says one

_WORD = re.compile(
    r"(train|training|trainval|validation|valid|val|minival|test|testing|testdev|eval|evaluation|dev|unlabeled|holdout)"
    r"\d*",
    re.IGNORECASE,
)
_SEPARATORS = re.compile(r"[-_.\s]+")
_NUMBERED = re.compile(r"(?P<stem>.+?)[-_.](?P<number>\d+)[-_]of[-_](?P<total>\d+)(?P<rest>\..*)?")
_TFRECORD_SUFFIX = re.compile(r"\.(tfrecords?|tfrec|records?)$", re.IGNORECASE)
_SUFFIXES = re.compile(r"(\.(tfrecords?|tfrec|records?|gz|gzip))+$", re.IGNORECASE)
_LAST_NUMBER = re.compile(r"(?P<stem>.*?)[-_.]?(?P<number>\d+)")


class NamedFile(NamedTuple):
    """Split and number in the path of a file."""

    split: str
    series: str  # the path without the number: equal for the files that one program wrote
    number: int = -1  # -1 if it has none
    total: int = 0  # files of the series; 0 if not known


def parse_path(path: str) -> NamedFile:
    """Returns what a path says, relative to the folder of the dataset."""
    folder, _, name = path.rpartition("/")
    match = _NUMBERED.fullmatch(name)
    if match is not None:
        stem, is_tfds = _TFRECORD_SUFFIX.subn("", match["stem"])
        series = f"{folder}/{match['stem']}*{match['rest'] or ''}"
        split = _word_in(stem) or (stem.rpartition("-")[2] if is_tfds and "-" in stem else "")
        split = split or _word_in_folders(folder) or stem
        return NamedFile(_as_split(split), series, int(match["number"]), int(match["total"]))
    stem = _SUFFIXES.sub("", name)
    last = _LAST_NUMBER.fullmatch(stem)
    split = _word_in(stem) or _word_in_folders(folder) or DEFAULT_SPLIT
    if last is None or _WORD.fullmatch(stem):
        return NamedFile(_as_split(split), f"{folder}/{name}")
    return NamedFile(_as_split(split), f"{folder}/{last['stem']}*{name[len(stem) :]}", int(last["number"]))


def find_word(path: str) -> str | None:
    """Returns the word in a path that names a split, such as `train`; None if there is none."""
    folder, _, name = path.rpartition("/")
    match = _NUMBERED.fullmatch(name)
    stem = _SUFFIXES.sub("", name if match is None else match["stem"])
    return _word_in(stem) or _word_in_folders(folder) or None


def split_by(pattern: re.Pattern[str], path: str) -> str | None:
    """Returns the split that the user's pattern finds in a path, by its group `split` or else its first group."""
    match = pattern.search(path)
    if match is None:
        return None
    found = match["split"] if "split" in pattern.groupindex else match[1] if pattern.groups else match[0]
    return _as_split(found or DEFAULT_SPLIT)


def _word_in(text: str) -> str:
    """Returns the last word in a text that names a split; "" if there is none."""
    words = [word for word in _SEPARATORS.split(text) if _WORD.fullmatch(word)]
    return words[-1].lower() if words else ""


def _word_in_folders(folder: str) -> str:
    return next(filter(None, map(_word_in, reversed(folder.split("/")))), "")


def _as_split(text: str) -> str:
    """Returns a text as the name of a split, which has only letters, digits and three signs."""
    if records.SPLIT_NAME.fullmatch(text):
        return text
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", text).strip("_.-") or DEFAULT_SPLIT
