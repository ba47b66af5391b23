"""Reads one TFRecord file of another tool: checks every checksum, and collects features, labels and sizes."""

from __future__ import annotations

import collections
import json
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

from imagebeam import catalog as catalog_lib
from imagebeam import errors, example, records, storage
from imagebeam.transforms import kept_features
from imagebeam.transforms.images import checked_image, image_formats, structure
from imagebeam.transforms.shard import statistics, writer_processes

MAX_CLASSES = 100_000  # more different labels are no classes
_MAX_NAMED = 20  # broken records of a file that are described
_VERSION = 2  # raised when a stored scan of an earlier release must not be used again


class Keys(NamedTuple):
    """Keys of the features whose values are read."""

    image: str
    label: str | None = None
    texts: tuple[str, ...] = ()  # candidates for the name of the class
    sizes: tuple[tuple[str, str], ...] = ()  # (image/height, key) and so on: candidates for the size of the image
    is_raw: bool = False  # whether the image is pixels without a header, of these sizes

    def as_json(self) -> list[Any]:
        """Returns the keys as they are after a way through JSON."""
        found: list[Any] = json.loads(json.dumps(self))
        return found


class ScanTask(NamedTuple):
    """A file to scan."""

    uri: str
    name: str  # below the folder of the dataset
    compression: str
    keys: Keys
    staging: str  # folder where the files beside it are stored, and after them the result

    def staged_uri(self, name: str) -> str:
        """Returns the address of a file beside it until the commit."""
        return storage.join(self.staging, staged_name(name))

    @property
    def done_uri(self) -> str:
        """Address of the result."""
        return self.staged_uri(f"{self.name}.done")


def staged_name(name: str) -> str:
    """Returns the name in the staging folder, which has no folders, of a file beside a shard."""
    return urllib.parse.quote(name, safe="")


class ShardScan(NamedTuple):
    """Result of scanning a file."""

    name: str
    records: int = 0
    bytes: int = 0
    crc32c: int = 0
    index_crc32c: int | None = None
    survey: kept_features.FeatureSurvey = kept_features.NO_FEATURES
    statistics: Mapping[str, Any] = {}  # see shard.statistics, without labels
    labels: Mapping[int, int] = {}  # records by label
    names: Mapping[str, Mapping[int, str]] = {}  # by key of a text: the text of each label; left out if one has several
    wrong_sizes: Sequence[str] = ()  # keys of `Keys.sizes` whose values are not those of the images
    num_broken: int = 0
    broken: Sequence[str] = ()  # descriptions of the first of them
    keys: Sequence[Any] = ()  # `Keys.as_json` of the keys by which it was scanned
    problem: str = ""  # why the file cannot be read to its end
    sizes_crc32c: int | None = None

    @property
    def shard(self) -> catalog_lib.Shard:
        """The entry of the file in the catalog."""
        stored = self.name, self.records, self.bytes, self.crc32c, self.index_crc32c
        return catalog_lib.Shard(*stored, sizes_crc32c=self.sizes_crc32c)

    def to_json(self) -> dict[str, Any]:
        """Returns the scan as JSON: `from_json` reads it."""
        uses = {key: [dict(use.kinds), use.num_records, use.num_single] for key, use in self.survey.uses.items()}
        return self._asdict() | {
            "survey": [self.survey.num_records, uses],
            "labels": sorted(self.labels.items()),
            "names": {key: sorted(names.items()) for key, names in self.names.items()},
            "version": _VERSION,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> ShardScan:
        """Reads what `to_json` returned.

        Raises:
            ValueError: if it is of another release.
        """
        fields = dict(fields)
        if fields.pop("version", None) != _VERSION:
            raise ValueError("of another release")
        num_records, uses = fields["survey"]
        fields["survey"] = kept_features.FeatureSurvey(
            num_records, {key: kept_features.FeatureUse(*use) for key, use in uses.items()}
        )
        fields["labels"] = dict(fields["labels"])
        fields["names"] = {key: dict(names) for key, names in fields["names"].items()}
        return cls(**fields)


def scan_shard(task: ScanTask) -> ShardScan:
    """Scans one file, and stores the files beside it and the result; any error becomes `ShardScan.problem`."""
    store = storage.storage_of(task.staging)
    try:
        scan, files = _scan(task)
    except (OSError, errors.ImagebeamError) as e:
        return ShardScan(task.name, problem=f"{e}")
    if scan.problem:
        return scan
    for name, data in files.items():
        store.write_whole(task.staged_uri(name), data)
    store.write_whole(task.done_uri, json.dumps(scan.to_json()).encode())
    return scan


def _scan(task: ScanTask) -> tuple[ShardScan, dict[str, bytes]]:
    """Returns the scan, and by their names the files beside a file that is not compressed."""
    builder = _ScanBuilder(task.name, task.keys)
    offsets, end = [], 0
    with storage.storage_of(task.uri).open_read(task.uri) as file:
        counted = _CountingFile(file)
        try:
            for record in records.scan_records(counted, task.compression):  # type: ignore[arg-type]
                if isinstance(record, errors.RecordError):
                    builder.add_broken(record.offset, record.detail)
                    offsets.append(record.offset)
                    continue
                offsets.append(record.offset)
                end = record.offset + records.HEADER_BYTES + len(record.data) + records.FOOTER_BYTES
                builder.add(record)
                writer_processes.note_progress(len(offsets))
        except errors.RecordError as e:
            return ShardScan(task.name, len(offsets), problem=f"{e}, after {len(offsets):,} records"), {}
    scan = builder.build(len(offsets), counted.num_bytes, counted.crc32c)
    if task.compression != "none":
        return scan, {}
    assert not offsets or end <= counted.num_bytes
    index, sizes = records.encode_index(offsets, counted.num_bytes), records.encode_sizes(builder.sides)
    scan = scan._replace(index_crc32c=records.extend_crc(0, index), sizes_crc32c=records.extend_crc(0, sizes))
    return scan, {scan.shard.index_name: index, scan.shard.sizes_name: sizes}


def scan_records(name: str, serialized: Iterable[bytes], keys: Keys, num_bytes: int) -> ShardScan:
    """Returns what some records of a file hold, as a scan of it without checksums."""
    builder, count = _ScanBuilder(name, keys), 0
    for data in serialized:
        builder.add(records.Record(0, data))
        count += 1
    return builder.build(count, num_bytes, 0)


class _CountingFile:
    """Counts the bytes that are read of a file, and their checksum."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self.num_bytes = self.crc32c = 0

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.num_bytes += len(data)
        self.crc32c = records.extend_crc(self.crc32c, data)
        return data


class _ScanBuilder:
    """Collects what the records of one file hold."""

    def __init__(self, name: str, keys: Keys):
        self._name = name
        self._keys = keys
        self._wanted = frozenset(filter(None, (keys.label, *keys.texts, *(key for _, key in keys.sizes))))
        self._surveyor = kept_features.FeatureSurveyor()
        self._statistics = statistics.StatisticsBuilder()
        self._labels: collections.Counter[int] = collections.Counter()
        self._names: dict[str, dict[int, str]] = {key: {} for key in keys.texts}
        self._wrong_sizes: set[str] = set()
        self._others: collections.Counter[str] = collections.Counter()  # formats of images of unknown size
        self.sides: list[tuple[int, int]] = []  # height and width of the image of each record; 0 if unknown
        self._num_seen = self._num_broken = 0
        self._broken: list[str] = []

    def add_broken(self, offset: int, detail: str) -> None:
        """Counts a record that cannot be used as it is."""
        self.sides.append((0, 0))
        self._num_seen += 1
        self._num_broken += 1
        if len(self._broken) < _MAX_NAMED:
            self._broken.append(f"{self._name}, record {self._num_seen - 1} at byte offset {offset}: {detail}")

    def add(self, record: records.Record) -> None:
        """Takes one record."""
        try:
            located = example.locate_values(record.data, self._keys.image, self._wanted)
            seen = example.look_at_features(record.data)
            if located.spans is None or len(located.spans) != 1:
                count = len(located.spans or ())
                raise ValueError(f"feature {self._keys.image!r} has {count} values, expected one image")
            [(start, length)] = located.spans
            image = self._check(record.data[start : start + length], located.values)
        except ValueError as e:  # no example, or a BadImageError
            self.add_broken(record.offset, str(e))
            return
        if image is None:
            self._wrong_sizes.update(key for _, key in self._keys.sizes)
            self.sides.append((0, 0))
        else:
            self.sides.append((image.height, image.width))
            self._statistics.add((), statistics.measure("", image))
            self._compare_sizes(image, located.values)
        self._surveyor.add(map(kept_features.Seen._make, seen), f"record {self._num_seen} of {self._name}")
        self._num_seen += 1
        self._add_labels(located.values)

    def _check(self, data: bytes, values: Mapping[str, Sequence[Any]]) -> checked_image.Image | None:
        """Returns the image; None for one of a format whose header is not read here.

        Raises:
            ValueError: if it is none.
        """
        if self._keys.is_raw:
            shape = [values.get(key, ()) for _, key in self._keys.sizes]
            if any(len(each) != 1 for each in shape):
                raise ValueError(f"pixels without {', '.join(key for _, key in self._keys.sizes)}")
            height, width, channels = (each[0] for each in shape)
            if min(height, width) < 1 or not 1 <= channels <= 4:
                raise ValueError(f"pixels of the shape {height} x {width} x {channels}")
            return structure.raw_image(data, (height, width, channels))
        format = image_formats.sniff_format(data)
        if format in structure.CHECKED_FORMATS or format is None:
            return structure.check_format(data, format, "structure")
        self._others[format] += 1
        return None

    def _compare_sizes(self, image: checked_image.Image, values: Mapping[str, Sequence[Any]]) -> None:
        actual = {"image/height": image.height, "image/width": image.width, "image/channels": image.channels}
        for source, key in self._keys.sizes:
            if values.get(key) != [actual[source]]:
                self._wrong_sizes.add(key)

    def _add_labels(self, values: Mapping[str, Sequence[Any]]) -> None:
        labels = values.get(self._keys.label or "", ())
        if any(not isinstance(label, int) for label in labels):
            return
        if len(self._labels) <= MAX_CLASSES:
            self._labels.update(labels)
        for key, names in list(self._names.items()):
            texts = values.get(key, ())
            if len(texts) != len(labels):
                del self._names[key]
                continue
            for label, text in zip(labels, texts):
                try:
                    name = text.decode()
                except (UnicodeDecodeError, AttributeError):
                    name = ""
                if not name or names.setdefault(label, name) != name or len(names) > MAX_CLASSES:
                    del self._names[key]
                    break

    def build(self, num_records: int, num_bytes: int, crc32c: int) -> ShardScan:
        """Returns the scan of the whole file."""
        counted = self._statistics.build()
        if self._others:
            formats = collections.Counter(counted["formats"])
            formats.update(self._others)
            counted["formats"] = dict(sorted(formats.items()))
        return ShardScan(
            self._name,
            num_records,
            num_bytes,
            crc32c,
            None,
            self._surveyor.survey,
            counted,
            dict(self._labels),
            self._names,
            sorted(self._wrong_sizes),
            self._num_broken,
            self._broken,
            self._keys.as_json(),
        )


def read_first(uri: str, compression: str, count: int) -> Iterator[bytes]:
    """Yields the first records of a file; none after a broken one."""
    try:
        with storage.storage_of(uri).open_read(uri) as file:
            for index, record in enumerate(records.scan_records(file, compression)):
                if index >= count or isinstance(record, errors.RecordError):
                    return
                yield record.data
    except errors.RecordError:
        return
