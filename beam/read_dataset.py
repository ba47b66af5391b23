"""Reads the examples of a dataset in a pipeline, shard by shard, and checks them against the catalog."""

import array
import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

import apache_beam as beam

from imagebeam import catalog as catalog_lib
from imagebeam import errors, example, features, records, snapshots, storage
from imagebeam.reader import read_plan
from imagebeam.transforms import step

Example = dict[str, Any]
"""An example by the keys of its features. The type of a value follows from the feature alone, never from the value:
bytes, int or float; of a feature that is a list an int64 or float32 array [n], or a list of bytes; of one that has a
shape an array of it."""


class _ShardToRead(NamedTuple):
    """One shard of a dataset, and which of its records are no part of it."""

    shard: catalog_lib.Shard
    removed: bytes  # ascending indexes, uint32


@dataclasses.dataclass(frozen=True)
class _Dataset:
    """A dataset as it was found when the pipeline was built."""

    folder: str  # of the catalog
    fingerprint: str
    splits: tuple[str, ...]  # that are read

    def list_shards(self, _: bytes) -> Iterator[_ShardToRead]:
        """Yields the shards to read.

        Raises:
            CatalogError: if the catalog cannot be read, or is that of another dataset now.
        """
        catalog = catalog_lib.load_catalog(self.folder)
        if catalog.fingerprint != self.fingerprint:
            raise errors.CatalogError(
                "dataset-replaced",
                f"{self.folder} held the dataset {self.fingerprint} when the pipeline was built, and holds "
                f"{catalog.fingerprint} now: run the pipeline again",
            )
        removed = snapshots.load_removed(self.folder, catalog)
        for split in self.splits:
            for shard in catalog.splits[split].shards:
                yield _ShardToRead(shard, array.array("I", removed.get(shard.name, ())).tobytes())


class _CheckedFile:
    """An open file that notes the size and the checksum of what was read."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self.num_bytes = self.crc32c = 0

    def read(self, num_bytes: int) -> bytes:
        data = self._file.read(num_bytes)
        self.num_bytes += len(data)
        self.crc32c = records.extend_crc(self.crc32c, data)
        return data


class _ReadShardFn(beam.DoFn):
    """_ShardToRead -> its examples."""

    def __init__(self, folder: str, compression: str, wanted: Sequence[features.Feature]):
        self._folder = folder
        self._compression = compression
        self._wanted = wanted
        self._arrays = {each.key for each in wanted if each.many}

    def process(self, element: _ShardToRead) -> Iterator[Example]:
        shard, removed = element.shard, frozenset(array.array("I", element.removed))
        uri, num_records = storage.join_relative(self._folder, shard.name), 0
        try:
            with storage.storage_of(uri).open_read(uri) as opened:
                file: Any = _CheckedFile(opened)
                for record in records.read_records(file, self._compression):
                    if num_records not in removed:
                        yield self._parse(record.data)
                    num_records += 1
        except FileNotFoundError as e:
            raise errors.ShardError("shard-missing", f"shard {uri} is missing: {_REMEDY}") from e
        except (errors.RecordError, ValueError) as e:
            where = "" if isinstance(e, errors.RecordError) else f"record {num_records}: "
            raise errors.ShardError("record-broken", f"shard {uri}: {where}{e}: {_REMEDY}") from e
        found = num_records, file.num_bytes, file.crc32c
        if found != (shard.records, shard.bytes, shard.crc32c):
            raise errors.ShardError(
                "shard-differs",
                f"shard {uri} holds {found[0]:,} records in {found[1]:,} bytes with crc32c {found[2]:08x}, the catalog "
                f"says {shard.records:,} in {shard.bytes:,} with {shard.crc32c:08x}: {_REMEDY}",
            )
        step.count(step.READ, num_records - len(removed))

    def _parse(self, record: bytes) -> Example:
        """Returns the features that are wanted.

        Raises:
            ValueError: if one is missing, or has not one value.
        """
        parsed = example.parse_example(record, self._arrays)
        return {each.key: _value_of(each, parsed.get(each.key, ())) for each in self._wanted}


_REMEDY = "run imagebeam verify, and make the dataset again"


def _value_of(feature: features.Feature, values: Any) -> Any:
    if feature.shape is not None or (feature.many and feature.kind != features.BYTES):
        return example.to_array(feature, values)
    if feature.many:
        return list(values)
    if len(values) != 1:
        raise ValueError(f"feature {feature.key!r} has {len(values)} values, expected 1")
    return values[0]


class ReadDataset(beam.PTransform):
    """The examples of a split, or of all splits, each exactly once and in no order.

    Input: the pipeline. Output: `dict[str, Any]`, the features of an example by their keys, as they are stored:

    | feature | value |
    |---|---|
    | bytes, such as `image/encoded` and `image/key` | `bytes` |
    | int64, such as `image/class/label` | `int`, with the base of labels in the records (`catalog.label_base`) |
    | float | `float` |
    | a list of int64 or float | a NumPy array [n] of int64 or float32 |
    | a list of bytes | a list of `bytes` |
    | a list with a shape in the catalog | a NumPy array of that shape; of bytes, of objects |

    Shards are read in parallel, each by one worker as a stream. Its records, its size and its checksum are compared
    with the catalog. Of snapshots, removed records are left out. The snapshot is chosen when the pipeline is built.

    Raises, when the pipeline is built:
        CatalogError: if there is no dataset.
        ConfigError: if there is no such split, feature or snapshot.

    Raises, when it runs:
        ShardError: if a shard is missing, or differs from the catalog.
        CatalogError: if another dataset took the place of this one since the pipeline was built.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        split: str | None = None,
        *,
        features: Sequence[str] | None = None,
        snapshot: str | int | None = None,
    ):
        """Reads the catalog.

        Args:
            directory: a path or an address that every worker reaches.
            split: name of a split; None for all.
            features: keys of the features to return; None for all.
            snapshot: name or number of a snapshot; None for the latest.
        """
        super().__init__()
        folder, catalog = snapshots.find(directory, snapshot)
        if split is not None and split not in catalog.splits:
            raise errors.ConfigError(
                "split-unknown", f"there is no split {split!r}; the dataset has {', '.join(catalog.splits)}"
            )
        self._dataset = _Dataset(folder, catalog.fingerprint, tuple(catalog.splits) if split is None else (split,))
        wanted = catalog.features if features is None else read_plan.choose_features(catalog, features, {})
        self._read = _ReadShardFn(folder, catalog.compression, wanted)

    def expand(self, pbegin: beam.pvalue.PBegin) -> beam.PCollection[Example]:
        return (
            pbegin
            | "Start" >> beam.Impulse()
            | "ListShards" >> beam.FlatMap(self._dataset.list_shards).with_output_types(_ShardToRead)
            | "Spread" >> beam.Reshuffle()
            | "ReadShards" >> beam.ParDo(self._read).with_output_types(Example)
        )
