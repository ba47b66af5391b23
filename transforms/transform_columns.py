"""Transforms the columns of a table by tf.Transform: analysed over the references, never over an image.

References alone pass through here, after they are placed in shards: what a dataset is, its fingerprint, is decided by
the raw values, and a run that has nothing to write analyses nothing.

The same input gives the same numbers on every runner, though sums of floats depend on their order: all values that are
analysed pass, packed, through one place, which sorts them into the order of the dataset and hands them on in batches
of one size.
"""

import dataclasses
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import apache_beam as beam

from imagebeam import catalog as catalog_lib
from imagebeam import records, storage
from imagebeam.transforms import elements, output_folder, place_in_shards
from imagebeam.transforms import layout as layout_lib

if TYPE_CHECKING:
    from imagebeam.transforms import column_preprocessing

_BATCH_ROWS = 1024  # few enough for TensorFlow to sum them in one thread, so in one order

PackedValues = tuple[str, int, bytes]  # split, shard index, packed rows of raw values in the order of the shard


@dataclasses.dataclass(frozen=True)
class ColumnTransform:
    """What becomes of one column."""

    column: str  # its name in the table, and that of the saved transform's input
    key: str  # of the feature in the examples, and that of the saved transform's output
    position: int  # in ImageRef.columns
    kind: str  # of the raw values: bytes, int64 or float; those of what becomes of them: config.resolve_features
    name: str  # z_score, scale_0_1, log, bucketize or vocabulary
    buckets: int = 10
    top_k: int | None = None
    num_oov_buckets: int = 0


class _TakeValuesFn(beam.DoFn):
    """A placed shard of an analysed split -> the raw values in it."""

    def __init__(self, transforms: Sequence[ColumnTransform], split: str | None):
        self._positions = [transform.position for transform in transforms]
        self._split = split

    def process(
        self, element: tuple[place_in_shards.ShardKey, Iterable[place_in_shards.PackedRun]]
    ) -> Iterator[tuple[bytes, PackedValues]]:
        (split, shard_index), runs = element
        if self._split not in (None, split):
            return
        rows = [tuple(ref.columns[position] for position in self._positions) for ref in _refs_of(runs)]
        if rows:
            yield b"", (split, shard_index, elements.pack_rows(rows))


class _OrderValuesFn(beam.DoFn):
    """The raw values of all shards -> batches of them in the order of the dataset."""

    def __init__(self, transforms: Sequence[ColumnTransform]):
        self._transforms = transforms

    def process(self, element: tuple[bytes, Iterable[PackedValues]]) -> Iterator[Any]:
        from imagebeam.transforms import column_preprocessing

        shards = sorted(element[1])  # packed, a few bytes a value
        rows = itertools.chain.from_iterable(elements.unpack_rows(packed) for _, _, packed in shards)
        for batch in _batches(rows):
            yield column_preprocessing.to_record_batch(self._transforms, list(zip(*batch)))


class _StageFn(beam.DoFn):
    """Puts what tf.Transform wrote beside the staged shards; yields the folder it wrote to."""

    def __init__(self, layout: layout_lib.DatasetLayout, scratch: str):
        self._layout = layout
        self._scratch = scratch

    def process(self, _: bytes, plan: elements.DatasetPlan, analysed: Any) -> Iterator[str]:
        if plan.action == "write":
            stage(self._scratch, self._layout.staging(plan.fingerprint))
        yield self._scratch


def stage(folder: str, staging: str) -> None:
    """Copies tf.Transform's output to a dataset's staged files, and beside it a list of it, which the commit reads."""
    files = {}
    source, target = storage.storage_of(folder), storage.storage_of(staging)
    for name in sorted(_files_below(folder)):
        data = source.read(storage.join(folder, name))
        uri = storage.join(staging, name)
        target.make_directories(uri.rpartition("/")[0])
        target.write_whole(uri, data)
        files[name] = catalog_lib.File(len(data), records.extend_crc(0, data))
    target.write_whole(storage.join(staging, layout_lib.STAGED_FILES), json.dumps(files).encode())


def _files_below(folder: str) -> Iterator[str]:
    store = storage.storage_of(folder)
    waiting = list(output_folder.TRANSFORM_FOLDERS)
    while waiting:
        inner = waiting.pop()
        for entry in store.list_directory(storage.join(folder, inner)):
            name = f"{inner}/{entry.name}"
            if entry.kind == storage.DIRECTORY:
                waiting.append(name)
            else:
                yield name


class _ApplyFn(beam.DoFn):
    """A placed shard -> the same, its references with transformed columns."""

    def __init__(self, transforms: Sequence[ColumnTransform]):
        self._transforms = transforms
        self._saved: column_preprocessing.SavedTransform | None = None

    def process(
        self, element: tuple[place_in_shards.ShardKey, Iterable[place_in_shards.PackedRun]], folder: str
    ) -> Iterator[tuple[place_in_shards.ShardKey, Iterable[place_in_shards.PackedRun]]]:
        from imagebeam.transforms import column_preprocessing

        if self._saved is None:
            self._saved = column_preprocessing.SavedTransform(folder, self._transforms)
        key, runs = element
        runs = sorted(runs)
        rank, transformed = runs[0][0], []
        for refs in _batches(_refs_of(runs)):
            changed = apply(self._transforms, self._saved, refs)
            transformed.append((rank, elements.pack_refs(changed)))
            rank += len(refs)
        yield key, transformed or runs


def apply(
    transforms: Sequence[ColumnTransform],
    saved: "column_preprocessing.SavedTransform",
    refs: Sequence[elements.ImageRef],
) -> list[elements.ImageRef]:
    """The references with transformed columns, each column's values of all of them at once."""
    columns = list(zip(*(ref.columns for ref in refs)))
    values = saved.apply([columns[transform.position] for transform in transforms])
    for transform, changed in zip(transforms, values):
        columns[transform.position] = tuple(changed)
    return [ref._replace(columns=row) for ref, row in zip(refs, zip(*columns))]


def _refs_of(runs: Iterable[place_in_shards.PackedRun]) -> Iterator[elements.ImageRef]:
    for _, packed in sorted(runs):
        yield from elements.unpack_refs(packed) if packed else ()


def _batches(rows: Iterable[Any]) -> Iterator[list[Any]]:
    """Lists of `_BATCH_ROWS` rows, the last one shorter."""
    rest = iter(rows)
    while batch := list(itertools.islice(rest, _BATCH_ROWS)):
        yield batch


@dataclasses.dataclass
class TransformColumns(beam.PTransform):
    """Placed shards with transformed columns, which wait until tf.Transform's output is staged."""

    transforms: tuple[ColumnTransform, ...]  # none leaves everything as it is, and imports no TensorFlow
    plan: Any  # PCollection of one DatasetPlan
    layout: layout_lib.DatasetLayout
    scratch: str  # folder that every worker reaches by TensorFlow's own means

    def __post_init__(self) -> None:
        super().__init__()

    def expand(
        self, shards: beam.PCollection[tuple[place_in_shards.ShardKey, Iterable[place_in_shards.PackedRun]]]
    ) -> beam.PCollection[tuple[place_in_shards.ShardKey, Iterable[place_in_shards.PackedRun]]]:
        if not self.transforms:
            return shards
        from imagebeam.transforms import column_preprocessing

        split = None if self.layout.analyze == "all" else self.layout.analyze
        batches = (
            shards
            | "TakeValues"
            >> beam.ParDo(_TakeValuesFn(self.transforms, split)).with_output_types(tuple[bytes, PackedValues])
            | "GroupValues" >> beam.GroupByKey()  # (b"", [PackedValues])
            | "OrderValues"
            >> beam.ParDo(_OrderValuesFn(self.transforms)).with_output_types(column_preprocessing.RecordBatch)
        )
        analysed = batches | "Analyze" >> column_preprocessing.AnalyzeColumns(self.transforms, self.scratch)
        folder = (
            shards.pipeline
            | "StartStaging" >> beam.Impulse()
            | "Stage"
            >> beam.ParDo(
                _StageFn(self.layout, self.scratch),
                plan=beam.pvalue.AsSingleton(self.plan),
                analysed=beam.pvalue.AsIter(analysed),
            ).with_output_types(str)
        )
        return shards | "Apply" >> beam.ParDo(
            _ApplyFn(self.transforms), folder=beam.pvalue.AsSingleton(folder)
        ).with_output_types(tuple[place_in_shards.ShardKey, Iterable[place_in_shards.PackedRun]])
