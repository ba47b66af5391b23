"""Records in the order of an epoch, and what becomes of those that are broken: the Python side of the pipelines."""

from __future__ import annotations

import atexit
import dataclasses
import functools
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from imagebeam import errors, example, features
from imagebeam.reader import crops, record_bytes
from imagebeam.reader import options as options_lib
from imagebeam.reader import order as order_lib
from imagebeam.reader import schedule as schedule_lib

_LOGGER = logging.getLogger(__name__)
_CHUNK_BYTES = 4 << 20  # of records that one call reads
_MAX_CHUNK_RECORDS = 64
_CHECK_SEC, _QUIET_CHECKS, _PATIENCE_SEC = 0.005, 6, 5.0
_MIN_SKIPPED = 10  # examples that may be skipped before a fraction of them means anything


@dataclasses.dataclass(frozen=True, eq=False)
class Records:
    """What a pipeline reads: records in an order, and what it must know of them.

    Attributes:
        fetcher: of the split.
        schedule: which record stands at which position, and which positions this process reads.
        chosen: the records of the split that the order counts; None for all.
        by_source: the features of every example, by what they are.
        extra: further features that are wanted in the batches.
        formats: of the images in the split, empty where it is not known.
        is_raw: whether the images are stored as pixels.
        longest_side: of its pictures, in pixels; 0 where it is not known.
        mean_record_bytes: on average.
        label_base: id of the first class in the records.
        num_classes: and ids below the first, where an image has any number of classes.
    """

    fetcher: record_bytes.Fetcher
    schedule: schedule_lib.Schedule
    chosen: np.ndarray | None
    by_source: Mapping[str, features.Feature]
    extra: Sequence[features.Feature]
    formats: frozenset[str]
    is_raw: bool
    longest_side: int
    mean_record_bytes: int
    label_base: int
    num_classes: int

    @functools.cached_property
    def label(self) -> features.Feature | None:
        """The label where it is one for each example."""
        found = self.by_source.get(features.LABEL)
        return None if found is None or found.many else found

    @functools.cached_property
    def columns(self) -> tuple[features.Feature, ...]:
        """What is wanted of each example in one value: the label first, where there is one."""
        label = () if self.label is None else (self.label,)
        return (*label, *(feature for feature in self.extra if not feature.many))

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of `columns` on their way through a pipeline: "label", and "features/KEY" of those asked for."""
        label = () if self.label is None else ("label",)
        return (*label, *(f"features/{feature.key}" for feature in self.extra if not feature.many))

    @functools.cached_property
    def lists(self) -> tuple[features.Feature, ...]:
        """What is wanted of each example in any number of values, the label first."""
        label = self.by_source.get(features.LABEL)
        labels = () if label is None or not label.many else (label,)
        return (*labels, *(feature for feature in self.extra if feature.many))

    @property
    def chunk(self) -> int:
        """Records that one call reads."""
        return max(1, min(_MAX_CHUNK_RECORDS, _CHUNK_BYTES // self.mean_record_bytes))

    def locate(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Records of the split, and epochs, of ascending positions."""
        records, epochs = self.schedule.order.locate(positions)
        return (records if self.chosen is None else self.chosen[records]), epochs


class Chunk(NamedTuple):
    """Records that stand side by side in an epoch."""

    contents: list[bytes | record_bytes.Trouble]
    positions: np.ndarray  # int64 [n], in the order of the pipeline
    records: np.ndarray  # int64 [n], in the split
    uniforms: np.ndarray  # float32 [n, windows.NUM_UNIFORMS] in [0, 1)


class RecordReader:
    """Reads records by their positions, and counts those that are skipped. Thread-safe."""

    def __init__(self, records: Records, options: options_lib.ReadOptions):
        self._records = records
        self._options = options
        self._list_keys = frozenset(feature.key for feature in records.lists)
        self._key = order_lib.make_key("pixels", options.seed)
        self._lock = threading.Lock()
        self._skipped: set[int] = set()  # positions
        self._farthest = records.schedule.begin  # position of a skipped example
        self._told: set[str] = set()  # shards

    def read(self, first: int, end: int) -> Chunk:
        """Records at positions `first` to `end`.

        Raises:
            ShardError: if a whole shard cannot be read.
        """
        positions = np.arange(first, end, dtype=np.int64)
        records, epochs = self._records.locate(positions)
        contents = list(self._records.fetcher.fetch(records))
        return Chunk(contents, positions, records, order_lib.uniforms(records, epochs, self._key, crops.NUM_UNIFORMS))

    def pack_lists(self, content: bytes) -> bytes:
        """The lists that are wanted of a record: see `lists`.

        Raises:
            ValueError: if it is no tf.train.Example.
        """
        return example.select_features(content, self._list_keys)

    @property
    def replaces(self) -> bool:
        """Whether the next example that can be read takes the place of one that is skipped, for batches are full."""
        options = self._options
        return options.on_error == "skip" and options.batch_size is not None and options.drops_remainder

    @property
    def spare(self) -> int:
        """Positions after the last one in which replacements may be looked for: those of an epoch."""
        return self._records.schedule.spare if self.replaces else 0

    def no_replacement(self, position: int) -> errors.ExampleError:
        """The error that none of the examples of an epoch from `position` on can be read."""
        return errors.ExampleError(
            f"none of {self.spare:,} examples from position {position:,} on could be read or decoded, and a batch of "
            f"{self._options.batch_size} needs one: run imagebeam verify --decode"
        )

    def trouble(self, record: int, detail: str) -> record_bytes.Trouble:
        """`detail` with the name of a record of the split."""
        return self._records.fetcher.trouble(record, detail)

    def lose(self, position: int, trouble: record_bytes.Trouble) -> None:
        """Goes on without an example, where the options say so.

        Raises:
            ExampleError: if they do not, or too many were lost.
        """
        if self._options.on_error == "raise":
            raise errors.ExampleError(str(trouble))
        with self._lock:
            self._skipped.add(position)
            self._farthest = max(self._farthest, position)
            num_skipped = len(self._skipped)
            num_read = self._farthest + 1 - self._records.schedule.begin
            is_first = trouble.shard not in self._told
            self._told.add(trouble.shard)
        if is_first:
            _LOGGER.warning("skipped %s (told once for each shard)", trouble)
        if num_skipped > _MIN_SKIPPED and num_skipped > self._options.max_error_fraction * num_read:
            raise errors.ExampleError(
                f"{num_skipped:,} of {num_read:,} examples could not be read or decoded, more than "
                f"max_error_fraction={self._options.max_error_fraction}; the last: {trouble}"
            )


class Calls:
    """Calls from TensorFlow's threads into Python. None may be under way, or begin, while the interpreter ends.

    Their threads would die there, and the interpreter would wait forever for an iterator that waits for them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun = self._ended = 0
        self.are_over = False  # pipelines end at their next call
        atexit.register(self._end)

    def __enter__(self) -> None:
        with self._lock:
            self._begun += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._ended += 1

    def _end(self) -> None:
        self.are_over = True
        seen, quiet, patience = -1, 0, time.monotonic() + _PATIENCE_SEC
        while quiet < _QUIET_CHECKS and time.monotonic() < patience:
            time.sleep(_CHECK_SEC)
            quiet = quiet + 1 if seen == self._begun == self._ended else 0
            seen = self._begun


calls = Calls()
