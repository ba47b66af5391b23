"""Code that the steps of the pipeline share: bases of transforms, batches of references, packed rows, and counters."""

import collections
import itertools
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import apache_beam as beam
from apache_beam import coders
from apache_beam.metrics import Metrics
from apache_beam.transforms import window
from apache_beam.typehints import native_type_compatibility
from apache_beam.utils import windowed_value

from imagebeam import storage
from imagebeam.transforms import elements, sort_intervals


class Step(beam.PTransform):
    """A PTransform whose subclasses are dataclasses: their __init__ calls no other, and Beam's is needed too."""

    def __post_init__(self) -> None:
        super().__init__()


class Sum(Protocol):
    """A sum of elements. It must not depend on their order."""

    def add(self, element: Any, /) -> None: ...


class AddUpBundleFn(beam.DoFn):
    """Elements -> one Sum of all in a bundle, to be merged later."""

    def __init__(self, make: Callable[[], Sum]):
        self._make = make

    def start_bundle(self) -> None:
        self._total = self._make()

    def process(self, element: Any) -> None:
        self._total.add(element)

    def finish_bundle(self) -> Iterator[Any]:
        yield window.GlobalWindows.windowed_value(self._total)


_MAX_REFS = 10_000  # 6 MB
_REF_BYTES = 40  # packed, about


class RefBatch(list[elements.ImageRef]):
    """References that were listed, or are in order, together."""


class RefBatchCoder(coders.Coder):
    """Packs batches of references. Says how large a batch is without packing it: Beam asks for every one."""

    def encode(self, value: RefBatch) -> bytes:
        return elements.pack_refs(value)

    def decode(self, encoded: bytes) -> RefBatch:
        return RefBatch(elements.unpack_refs(encoded))

    def estimate_size(self, value: RefBatch) -> int:
        return _REF_BYTES * len(value)

    def is_deterministic(self) -> bool:
        return False

    def to_type_hint(self) -> type[RefBatch]:
        return RefBatch


coders.registry.register_coder(RefBatch, RefBatchCoder)


def typed(batches: beam.PCollection[Any], element_type: Any = RefBatch) -> beam.PCollection[Any]:
    """Sets the type of batches. Without the type checks of the graph Beam infers none, and would pickle every batch."""
    batches.element_type = native_type_compatibility.convert_to_beam_type(element_type)
    return batches


def batch(refs: Iterable[elements.ImageRef]) -> Iterator[RefBatch]:
    """Yields the references in batches; none for no reference."""
    rest = iter(refs)
    while some := RefBatch(itertools.islice(rest, _MAX_REFS)):
        yield some


MAX_PENDING = 50_000  # rows that a bundle holds before it packs them: 30 MB
PackedRows = tuple[int, bytes]  # interval, packed rows


def interval_of_key(key: str) -> int:
    """Returns the interval of the rows of an image, by a checksum of its key."""
    return zlib.crc32(elements.encode_key(key)) % sort_intervals.NUM_INTERVALS


class SpreadRowsFn(beam.DoFn):
    """Base of what yields PackedRows. Rows wait for others of their interval until the bundle ends."""

    def start_bundle(self) -> None:
        self.pending: dict[int, list[tuple[Any, ...]]] = collections.defaultdict(list)
        self.num_pending = 0

    def finish_bundle(self) -> Iterator[windowed_value.WindowedValue]:
        yield from map(window.GlobalWindows.windowed_value, self.take())

    def add(self, interval: int, row: tuple[Any, ...]) -> None:
        """Adds a row."""
        self.pending[interval].append(row)
        self.num_pending += 1

    @property
    def is_full(self) -> bool:
        """Whether so much waits that it should be taken."""
        return self.num_pending >= MAX_PENDING

    def take(self) -> Iterator[tuple[int, Any]]:
        """Yields each interval of which rows wait, with its block."""
        pending, self.pending, self.num_pending = self.pending, collections.defaultdict(list), 0
        for interval, rows in pending.items():
            yield interval, self.pack(rows)

    def pack(self, rows: list[tuple[Any, ...]]) -> Any:
        """Returns the block of an interval's rows. A subclass may have another one."""
        return elements.pack_rows(rows)


NAMESPACE = "imagebeam"

# Of a whole run, added up over the steps:
LISTED = "images-listed"  # found by the source, also those that become rejects
PLANNED = "images-planned"  # to be read and written
COMPARED = "images-compared"  # read to find out whether they are the same: update.compare is content
OUT = "images-out"  # written by this run
READ = "images-read"  # from a dataset
KEPT = "images-kept"  # in shards that an earlier run finished
BYTES_OUT = "bytes-out"  # size of the shards that this run wrote
REJECTS = "rejects-"  # followed by the reason


def count(name: str, number: int) -> None:
    """Adds to a counter. A call takes 2 us: count a shard, a listing or a bundle, not each image."""
    if number:
        Metrics.counter(NAMESPACE, name).inc(number)


def count_rejects(by_reason: Mapping[str, int]) -> None:
    """Adds to the counters of rejects."""
    for reason, number in by_reason.items():
        count(f"{REJECTS}{reason}", number)


def count_written(written: elements.WrittenShard) -> None:
    """Counts the images and bytes of a finished shard, and its rejects."""
    count(KEPT if written.is_kept else OUT, written.shard.records)
    count(BYTES_OUT, 0 if written.is_kept else written.shard.bytes)
    count_rejects(written.rejected)
    for name in (LISTED, PLANNED):  # they counted files
        count(name, written.further)


# --- elements in files by the hash of their keys ----------------------------------------------------------------------

# The files are the same on every runner, and none holds more than one worker can sort.

_MIN_FILES, MAX_FILES = 16, 4096


def count_files(num_elements: int, num_in_each: int) -> int:
    """Returns the number of files for this many elements."""
    return min(MAX_FILES, max(_MIN_FILES, -(-num_elements // num_in_each)))


def key_by_file(
    element: Any, count: Callable[[elements.DatasetPlan], int], plan: elements.DatasetPlan
) -> Iterator[tuple[int, Any]]:
    """Element with a key -> (index of its file, element); nothing if `count` wants no file."""
    if num_files := count(plan):
        yield zlib.crc32(elements.encode_key(element.key)) % num_files, element


def stage_file(folder: str, prefix: str, index: int, num_files: int, suffix: str, content: bytes) -> str:
    """Writes one of the files into the staging folder; returns its name. The order of names is that of the indexes."""
    name = f"{prefix}{index:0{len(str(num_files - 1))}d}{suffix}"
    store = storage.storage_of(folder)
    store.make_directories(folder)
    store.write_whole(storage.join(folder, name), content, durable=False)
    return name
