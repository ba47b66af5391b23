"""Reads, parses and decodes a batch in one call, on the thread that calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from imagebeam import concurrency, errors
from imagebeam.reader import (
    batch_layout,
    counters,
    crops,
    example_columns,
    example_map,
    image_changes,
    image_decoder,
    image_lists,
    map_call,
    moved_objects,
    patches,
    read_plan,
    record_order,
    record_parser,
    skipped_examples,
)
from imagebeam.reader import options as options_lib

_NUM_SPARES = 8  # examples read at once to find one that replaces another


class _Read(NamedTuple):
    """Examples that were read: an array of each, with a row for each example."""

    positions: np.ndarray  # int64 [n], ascending
    records: np.ndarray  # int64 [n]
    rounds: np.ndarray  # int64 [n], as of `record_order.seeds`
    columns: dict[str, np.ndarray]

    def take(self, rows: np.ndarray) -> _Read:
        """Returns the examples in these rows."""
        columns = {name: each[rows] for name, each in self.columns.items()}
        return _Read(self.positions[rows], self.records[rows], self.rounds[rows], columns)

    def without(self, rows: Sequence[int]) -> _Read:
        """Returns all other examples."""
        return self.take(np.delete(np.arange(len(self.positions)), rows)) if len(rows) else self

    def followed_by(self, more: _Read) -> _Read:
        """Returns the examples of both."""
        columns = {name: np.concatenate([each, more.columns[name]]) for name, each in self.columns.items()}
        positions, records, rounds = (np.concatenate(each) for each in zip(self[:3], more[:3], strict=True))
        return _Read(positions, records, rounds, columns)


class BatchPositions(NamedTuple):
    """Which examples a batch has, and where it is in the job."""

    first: int  # position of its first example in the schedule of the reader
    end: int  # position after its last one
    shift: int  # what leads from these positions to those in the schedule of the job
    place: int  # number of places in batches that the job has filled before


class BatchReader:
    """Reads, parses and decodes a batch in one call. Thread-safe.

    Attributes:
        schedule: the positions that this process reads.
        layout: of a batch.
        decoder: decodes the images of a batch.
        counters: what the calls took.
    """

    def __init__(
        self,
        plan: read_plan.ReadPlan,
        options: options_lib.ReadOptions,
        shared: counters.Counters | None = None,
        skipped: skipped_examples.SkippedExamples | None = None,
    ):
        """Opens nothing yet. `shared` and `skipped` count what several readers of a job do together.

        Raises:
            ConfigError: if the options ask for the decoder in C and it cannot decode these images, or what `map`
                returns cannot be in a batch.
        """
        self.schedule = plan.schedule
        self.decoder = image_decoder.ImageDecoder(plan, options, num_threads(options))
        self._patches = None if options.patches is None else patches.PatchDecoder(self.decoder, options)
        self._objects: moved_objects.MovedObjects | None = None
        if options.objects is not None:
            self._objects = moved_objects.MovedObjects(
                options.objects, plan.objects, plan.keypoints, self.decoder, options.flips
            )
        moved = {} if self._objects is None else self._objects.specs
        self._columns = example_columns.ExampleColumns(plan, options, self.decoder, moved)
        self._map: example_map.ExampleMap | None = None
        if options.map is not None:
            self._map = example_map.ExampleMap(
                options.map,
                self._columns,
                options.seed,
                num_threads(options),
                options.map_workers,
                options.names_of_pictures,
            )
        specs, blank = self._columns.specs, self._columns.blank()
        if self._map is not None:
            specs, blank = self._map.specs, self._map.blank
        self.layout = batch_layout.BatchLayout(options, specs, blank)
        self.counters = shared or counters.Counters()
        self._parser = record_parser.RecordParser(plan, options)
        self._fetcher = plan.fetcher
        self._options, self._extra = options, plan.images
        pictures = options.pictures()
        self._random_keys = [
            record_order.make_key("pixels", options.seed, *(() if each.number is None else (each.name, index)))
            for each in pictures
            for index in range(each.number or 1)
        ]
        changes = image_changes.NUM_UNIFORMS if any(each.options.changes_images for each in pictures) else 0
        self._num_uniforms = crops.NUM_UNIFORMS + changes
        begin = plan.schedule.begin
        self._skipped = skipped_examples.SkippedExamples(options, begin) if skipped is None else skipped

    def metrics(self) -> Mapping[str, float]:
        """Returns what was read and skipped, and what it took: see `feeds.BatchIterator.metrics`."""
        return {"skipped": len(self._skipped), **self._fetcher.cache_totals(), **self.counters.totals()}

    def specs(self) -> dict[str, example_columns.ColumnSpec]:
        """Returns what a batch consists of, by name, as `batch_layout.BatchLayout.specs`."""
        return self.layout.specs()

    def read_batch(self, first: int, end: int) -> Any:
        """Returns the examples at positions `first` to `end` as the user gets them: by name, or as a tuple.

        An example that cannot be read or decoded is an error. If it may be skipped, it is left out; if all batches must
        be full, the next example that can be read takes its place.

        Raises:
            ShardError: if a whole shard cannot be read.
            ExampleError: if an example cannot be read or decoded, and may not be skipped.
        """
        return self.read_at(BatchPositions(first, end, 0, self.schedule.place_of(first)))

    def read_at(self, batch: BatchPositions) -> Any:
        """Returns a batch, as `read_batch`, of a reader that may be one of several of a job."""
        read = self._read(batch)
        is_full = self._options.batch_size is not None and self._options.drops_remainder
        if is_full and len(read.positions) < batch.end - batch.first:
            read = self._fill(read, batch)
        filled = self.layout.fill(read.columns)
        with self.counters.timed("map_seconds"):
            filled = self.layout.change(filled, batch.place)
        return self.layout.finish(filled)

    def read_chunk(self, first: int, end: int) -> record_parser.Chunk:
        """Returns the records at positions `first` to `end`.

        Raises:
            ShardError: if a whole shard cannot be read.
        """
        positions = np.arange(first, end, dtype=np.int64)
        records, rounds = self.schedule.order.locate(positions)
        epochs = rounds // self._options.repeats
        is_first = (np.diff(records, prepend=-1) != 0) | (np.diff(epochs, prepend=-1) != 0)  # else a copy
        found = list(self._fetcher.fetch(records[is_first], epochs[is_first]))
        self.counters.add("bytes", sum(len(each) for each in found if isinstance(each, bytes)))
        contents = [found[index] for index in np.cumsum(is_first) - 1]
        uniforms = [record_order.uniforms(records, rounds, key, self._num_uniforms) for key in self._random_keys]
        return record_parser.Chunk(contents, positions, records, rounds, np.stack(uniforms, axis=1))

    def parse(self, chunk: record_parser.Chunk) -> record_parser.Parsed:
        """Returns the features of the examples in a chunk, and which part of each image the batch takes."""
        return self._parser.parse(chunk)

    def _read(self, batch: BatchPositions) -> _Read:
        """Returns the examples that can be read, decoded and mapped."""
        with self.counters.timed("read_seconds"):
            chunk = self.read_chunk(batch.first, batch.end)
        with self.counters.timed("parse_seconds"):
            parsed = self._parser.parse(chunk)
        with self.counters.timed("decode_seconds"):
            images, failures = self._decode(parsed)
        self.counters.add("examples", len(chunk.contents))
        faults = {index: each for index, each in enumerate(chunk.contents) if not isinstance(each, bytes)}
        found = {**{parsed.kept[row]: failure for row, failure in reversed(failures)}, **parsed.faults}
        faults |= {index: self._fetcher.fault(int(chunk.records[index]), each) for index, each in found.items()}
        for index in sorted(faults):
            example = int(chunk.records[index]), int(chunk.rounds[index])
            self._skipped.add(int(chunk.positions[index]) + batch.shift, example, faults[index])
        places = np.array(parsed.kept, np.int64)
        positions, records, rounds = chunk.positions[places], chunk.records[places], chunk.rounds[places]
        pictures = {name: images.pop(name) for name in self._options.names_of_pictures}
        columns = self._columns.of({**pictures, **parsed.columns, **images}, records, rounds)
        lost = [row for row, _ in failures]
        read = _Read(positions, records, rounds, columns).without(lost)
        return read if self._map is None else self._change(self._map, read, batch.shift)

    def _change(self, each_map: example_map.ExampleMap, read: _Read, shift: int) -> _Read:
        """Returns what the user's function makes of the examples."""
        with self.counters.timed("map_seconds"):
            columns, failures = each_map.apply(read.columns, read.records, read.rounds)
        for row, error in failures:
            fault = self._fetcher.fault(int(read.records[row]), map_call.describe(error))
            example = int(read.records[row]), int(read.rounds[row])
            self._skipped.add(int(read.positions[row]) + shift, example, fault, error)
        return read._replace(columns=columns).without([row for row, _ in failures])

    def _decode(self, parsed: record_parser.Parsed) -> tuple[dict[str, np.ndarray], image_decoder.Failures]:
        """Returns the images by name, and the row and fault of each example of which one cannot be decoded."""
        decode = self.decoder.decode_pictures if self._patches is None else self._patches.decode
        decoded, found = decode(parsed.images)
        failures = [(row, f"the image cannot be decoded, {failure}") for row, failure in found]
        owners = parsed.owners
        if owners is not None:
            places = image_lists.places_of(owners)
            failures = [
                (int(owners[row]), f"image {places[row]} of its list cannot be decoded, {failure}")
                for row, failure in found
            ]
            images = decoded["image"]
            stacked = self.decoder.make_batch(len(parsed.kept), self._options.max_images or 0, *images.shape[1:])
            decoded["image"] = image_lists.stack(images, owners, stacked, self.decoder.blank)
        for extra, wanted in zip(self._extra, parsed.extra, strict=True):
            name = f"features/{extra.name}"
            if extra.form is None:
                decoded[name], found = self.decoder.decode(wanted)
            else:
                decoded[name], found = self.decoder.decode_numbers(wanted, extra)
            failures += [(row, f"image {extra.name!r} cannot be decoded: {failure}") for row, failure in found]
        if self._objects is not None:
            moved, found = self._objects.move(parsed.objects, self.decoder.geometry_of(parsed.images))
            decoded |= moved
            failures += found
        return decoded, failures

    def _fill(self, read: _Read, batch: BatchPositions) -> _Read:
        """Returns the examples at all positions of a batch: the next readable example replaces a missing one."""
        following = batch.end
        while not len(read.positions) or read.positions[-1] < batch.end - 1:
            if following >= batch.end + self.schedule.spare:  # an epoch
                raise errors.ExampleError(
                    "examples-all-broken",
                    f"none of {self.schedule.spare:,} examples from position {batch.first:,} on could be read or "
                    f"decoded, and a batch of {self._options.batch_size} needs one: run imagebeam verify --decode",
                )
            more = self._read(batch._replace(first=following, end=following + _NUM_SPARES))
            read = read.followed_by(more)
            following += _NUM_SPARES
            if len(more.positions):
                break
        wanted = np.arange(batch.first, batch.end, dtype=np.int64)
        return read.take(np.searchsorted(read.positions, wanted))


def num_threads(options: options_lib.ReadOptions) -> int:
    """Returns the number of threads that read and decode: as in `options`, else one for each available core."""
    return options.threads or concurrency.available_cores()
