"""Writes bare pixels that are kept: reads, encodes and frames those of up to 256 images in one call of C.

Of an image of a few hundred bytes, what Python does for each image would take ten times as long as C's part. So Python
works on the columns of references here. What is not as usual in an image, or in the config, is left to `shard_writer`,
which makes the same records.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator

from imagebeam import records, storage
from imagebeam.transforms import elements, unpacked_content
from imagebeam.transforms.images import prepare, structure
from imagebeam.transforms.packed import zip_members
from imagebeam.transforms.shard import encode, read_ahead, statistics, writer_processes
from imagebeam.transforms.snapshots import image_states

_MAX_BYTES = 1 << 20  # of an image: C saves nothing worth having of larger ones
_MAX_PARTS = 256  # of one call
_LEFT_WHEN_SLOW = 256  # images, at least, that are left to Python after a slow read: it announces reads to the kernel
_MAX_CACHED = 4096  # prefixes


def find_shape(
    writer: records.RecordWriter, recipe: encode.ExampleRecipe, policy: prepare.ImagePolicy
) -> tuple[int, int, int] | None:
    """Returns height, width and channels of pixels that are kept; None if the config wants them otherwise."""
    shape = policy.kept_shape
    is_usual = shape is not None and recipe.layout is not None and math.prod(shape) <= _MAX_BYTES
    return shape if is_usual and writer.takes_parts else None


class KeptPixels:
    """Writes bare pixels into one shard. Not thread-safe."""

    def __init__(
        self,
        writer: records.RecordWriter,
        recipe: encode.ExampleRecipe,
        shape: tuple[int, int, int],
        counts: statistics.StatisticsBuilder,
        states: image_states.StateBuilder | None,
    ):
        self._writer = writer
        self._recipe = recipe
        self._length = math.prod(shape)
        self._slow_sec = read_ahead.slow_sec(self._length)
        self._black = structure.raw_image(bytes(self._length), shape)  # stands for all images: they differ in pixels
        self._measures = statistics.measure("", self._black)
        self._counts = counts
        self._states = states
        self._prefixes: dict[elements.Label, bytes] = {}  # of examples, where they depend on the label alone

    def write(self, runs: Iterable[elements.RefColumns]) -> Iterator[tuple[int, Iterable[elements.ImageRef]]]:
        """Writes images in their order.

        Args:
            runs: their references.

        Yields:
            How many references were before, and the next ones, which are left to the caller: it writes all of them
            before it goes on.
        """
        rest = (part for run in runs for part in _cut(run))
        done = 0
        with read_ahead.SharedFiles() as files:
            for run in rest:
                while size := _size(run):
                    parts = self._find_parts(run, files)
                    if parts is None:
                        files.close()
                        yield done, itertools.chain.from_iterable(map(elements.rows_of, itertools.chain([run], rest)))
                        return
                    count, is_slow = self._writer.write_parts(parts, self._length, self._slow_sec)
                    if count:
                        self._count(elements.slice_columns(run, 0, count))
                    done += count
                    writer_processes.note_progress(done)
                    if count == size and not is_slow:
                        break
                    run = elements.slice_columns(run, count, size)
                    left = _at_least(_LEFT_WHEN_SLOW, run, rest) if is_slow else [elements.slice_columns(run, 0, 1)]
                    files.close()  # the caller may open the same ones, and the system allows a process so many
                    yield done, itertools.chain.from_iterable(map(elements.rows_of, left))
                    done += sum(map(_size, left))
                    if is_slow:
                        break
                    run = elements.slice_columns(run, 1, size - count)

    def _find_parts(self, run: elements.RefColumns, files: read_ahead.SharedFiles) -> list[records.FilePart] | None:
        """Returns where to read the images, and what precedes them in their records; None if one is not as usual."""
        more = run.mask, run.further, run.inside, run.expected, run.blocks, run.content, run.frame
        if any(map(any, more)) or run.length.count(self._length) < _size(run):
            return None
        uris = set(run.uri)
        if not all(map(_is_plain, uris)):
            return None
        try:
            descriptors = files.open_all(uris)
        except OSError:  # the caller words it
            return None
        if descriptors is None:
            return None
        return list(zip(map(descriptors.__getitem__, run.uri), run.version, run.offset, self._encode(run)))

    def _encode(self, run: elements.RefColumns) -> Iterable[bytes]:
        """Returns all bytes of each example before its image."""
        if not self._recipe.is_of_label:
            return [self._recipe.encode(ref, self._black)[0] for ref in elements.rows_of(run)]
        prefixes = self._prefixes
        if not prefixes.keys() >= set(run.label):
            if len(prefixes) >= _MAX_CACHED:
                prefixes.clear()
            for ref in elements.rows_of(run):
                if ref.label not in prefixes:
                    prefixes[ref.label] = self._recipe.encode(ref, self._black)[0]
        return map(prefixes.__getitem__, run.label)

    def _count(self, run: elements.RefColumns) -> None:
        self._counts.add_alike(run.label, self._measures)
        if self._states is not None:
            for ref in elements.rows_of(run):
                self._states.add(ref, self._measures)


def _is_plain(uri: str) -> bool:
    """Returns whether byte ranges of a file can be read from it as they are."""
    is_file = storage.storage_of(uri).is_local and not unpacked_content.is_packed(uri)
    return is_file and zip_members.archive_of(uri) is None


def _size(run: elements.RefColumns) -> int:
    return len(run.key)


def _cut(run: elements.RefColumns) -> Iterator[elements.RefColumns]:
    return (elements.slice_columns(run, start, start + _MAX_PARTS) for start in range(0, _size(run), _MAX_PARTS))


def _at_least(count: int, run: elements.RefColumns, rest: Iterator[elements.RefColumns]) -> list[elements.RefColumns]:
    """Returns a run, and as many of the rest as it takes for so many references."""
    runs = [run]
    while sum(map(_size, runs)) < count and (following := next(rest, None)) is not None:
        runs.append(following)
    return runs
