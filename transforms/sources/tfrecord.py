"""Images in TFRecord files of tf.train.Example: references are byte ranges; the other features are cells."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from imagebeam import errors, example, features, plural, records, shard_names, storage
from imagebeam.transforms import elements, kept_features
from imagebeam.transforms.arrays import unpacked_content
from imagebeam.transforms.images import structure
from imagebeam.transforms.sources import containers, image_source, recognize_tfrecord, table_rows, tfrecord_names

_RECORD = re.compile(r"\.records?$", re.IGNORECASE)
SPLIT = "split"  # cell of every record: the split in the file's name, unless a feature has this name


@dataclasses.dataclass(frozen=True)
class TfrecordSource(containers.ContainerSource):
    """The TFRecord files of a folder, plain or gzip, recognized by their names or their content."""

    NOUN = "TFRecord file"
    FILE_NAME = re.compile(  # leaves out indexes and descriptions
        r"(?!.*\.(index|idx|json|txt|csv|md|html|parquet|pq)$)(.*\.tfrec.*|.*\.records?(\.gz)?|.+-\d{5,}-of-\d{5,}(\..+)?)",
        re.IGNORECASE,
    )
    EXPECTED = "a file with .tfrecord in its name, or named as train-00000-of-00010"
    CELL = "feature"

    image: str = features.ENCODED  # key of the feature with the image's bytes
    keeps_features: bool = False  # keep other features: references are then to whole records
    shape: tuple[str, ...] = ()  # keys of height, width and channels of images stored as pixels, if records hold them
    is_base64: bool = False  # whether the image's bytes are base64

    @classmethod
    def may_be_container(cls, name: str) -> bool:
        return super().may_be_container(name) or not recognize_tfrecord.has_other_extension(name)

    @classmethod
    def is_container(cls, uri: str, size: int) -> bool:
        return bool(recognize_tfrecord.kind_of(uri, size))

    def facts(self) -> image_source.SourceFacts:
        return image_source.SourceFacts(
            on_repeated_key="remove one, or choose a feature of unique ids in source.tfrecord.key; by default file and "
            "number are the key"
        )

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
                packed = containers.as_gzip(container) if e.offset == 0 else None
                if packed is not None:
                    yield from self.scan(packed)
                else:
                    yield _lost(container, number, e)
                return
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
        try:
            try:
                located = example.locate_values(record.data, self.image, (*self.fields.needed, *self.shape))
                seen = example.look_at_features(record.data)
            except ValueError as e:
                raise table_rows.BadRowError(elements.Reason.CORRUPT, str(e)) from e
            cells = {SPLIT: split} | {key: _as_cell(values) for key, values in located.values.items()}
            names.update(located.keys, (key for key, value in cells.items() if value is not None))
            offset, size = self._find_image(located)
            expected = self._find_shape(located, record.data[offset : offset + size]) if self.shape else None
            inside = (offset, size) if self.keeps_features else None
            first, length = (0, len(record.data)) if self.keeps_features else (offset, size)
            ref = elements.ImageRef(
                self._key(container, number, cells),
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
            detail = f"feature {self.image!r} has {len(located.spans)} values, expected one"
        else:
            known = ", ".join(map(repr, sorted(located.keys))) or "none"
            detail = f"there is no feature {self.image!r} (source.tfrecord.image); its features are {known}"
        raise table_rows.BadRowError(elements.Reason.BAD_ROW, detail)

    def _find_shape(self, located: example.Located, data: bytes) -> tuple[int, int]:
        """Returns height and width of an image stored as pixels. Their number tells the channels to whoever reads it.

        Raises:
            BadRowError: if the features do not fit the bytes.
        """
        found = [located.values.get(key, []) for key in self.shape]
        named = ", ".join(self.shape)
        if any(len(each) != 1 or not isinstance(each[0], int) for each in found):
            detail = f"{named} (source.tfrecord.raw_shape) are not one whole number each"
            raise table_rows.BadRowError(elements.Reason.BAD_ROW, detail)
        height, width, channels = (each[0] for each in found)
        num_bytes = structure.base64_size(data) if self.is_base64 else len(data)
        fits = min(height, width) > 0 and 1 <= channels <= 4 and num_bytes == height * width * channels
        if not fits:
            detail = f"the image has {num_bytes:,} bytes, and {named} are {height:,}, {width:,} and {channels:,}"
            raise table_rows.BadRowError(elements.Reason.BAD_VALUE, detail)
        return height, width

    def _key(self, container: containers.Container, number: int, cells: dict[str, Any]) -> str:
        if self.fields.key is None:
            return f"{container.path}/{number}"
        value = cells.get(self.fields.key)
        key = None if isinstance(value, list) else table_rows.text_of(value)
        if not key:
            raise table_rows.BadRowError(
                elements.Reason.BAD_ROW,
                f"feature {self.fields.key!r} (source.tfrecord.key) has {'several values' if value else 'no value'}",
            )
        return key


def split_of(path: str) -> str | None:
    """Returns the split that a path says.

    As `train-00000-of-00010`, TFDS's `mnist-test.tfrecord-00000-of-00001`, or by a word such as `train` in the name, or
    else in a folder: `coco_train.record-00000-of-00010`, `val/00.tfrec`.
    """
    try:
        split = shard_names.ShardName.parse(path.rpartition("/")[2]).split
    except ValueError:
        return tfrecord_names.find_word(path)
    dataset, dot, _ = split.partition(".tfrecord")
    if dot:
        return dataset.rpartition("-")[2]
    return tfrecord_names.find_word(path) if _RECORD.search(split) else split


def _open(container: containers.Container) -> BinaryIO:
    if unpacked_content.is_packed(container.address):
        return unpacked_content.open_unpacked(container.address, container.version)
    return storage.storage_of(container.uri).open_read(container.uri)


def _as_cell(values: list[Any]) -> Any:
    """Returns one value as itself, several as a list, none as None."""
    return values[0] if len(values) == 1 else values or None


def _reject(
    container: containers.Container, number: int, offset: int, error: table_rows.BadRowError
) -> elements.Reject:
    detail = f"record {number} of {container.uri} at byte offset {offset}: {error.detail}"
    return elements.Reject(f"{container.path}/{number}", container.uri, "list", error.reason, detail)


def _lost(container: containers.Container, num_read: int, error: errors.RecordError) -> containers.ListingProblem:
    lost = "" if unpacked_content.is_packed(container.address) else f", {container.size - error.offset:,} bytes"
    return containers.ListingProblem(
        f"TFRecord file {container.uri!r}: {error}, after {plural.count(num_read, 'record')}; those from there on "
        f"would be lost{lost}: fetch the file again, or leave it out with source.include"
    )
