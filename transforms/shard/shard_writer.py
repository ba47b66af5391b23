"""Writes one shard: reads, checks, encodes and writes its images, syncs, renames and re-reads the file.

Imports no Beam, so that a writer process stays small.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import io
import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from imagebeam import catalog, errors, records, storage, verify_shards
from imagebeam.transforms import elements
from imagebeam.transforms.images import prepare
from imagebeam.transforms.packed import packed_file
from imagebeam.transforms.shard import (
    encode,
    feature_functions,
    image_hashes,
    kept_images,
    read_images,
    shard_file,
    statistics,
    writer_processes,
)
from imagebeam.transforms.shard import read_ahead as read_ahead_lib
from imagebeam.transforms.snapshots import image_states

DONE_SUFFIX = ".done.json"  # description beside a staged shard; written last, so a shard that has one is complete
MARK_SUFFIX = ".begun.json"  # beside a staged shard while a worker writes it, and after a worker that died
REJECTS_SUFFIX = ".rejects.jsonl"
_MAX_REFS = 256  # references that are looked at together


class ShardTask(NamedTuple):
    """One shard to write, with its references."""

    split: str
    shard_index: int
    num_shards: int
    runs: tuple[tuple[int, bytes], ...]  # first rank and packed references of each run
    # Images that are rejected unread, because they ended a process that tried them: number in this shard, reason.
    skipped: tuple[tuple[int, elements.Reason], ...] = ()

    def tables(self) -> Iterator[elements.RefTable]:
        """Yields the references in the order of their ranks, up to 256 at a time."""
        for _, packed in sorted(self.runs):
            table = elements.unpack_table(packed) if packed else ()
            for start in range(0, len(table.key) if table else 0, _MAX_REFS):
                yield elements.slice_columns(table, start, start + _MAX_REFS)

    def refs(self) -> Iterator[elements.ImageRef]:
        """Yields the references in the order of their ranks."""
        return itertools.chain.from_iterable(map(elements.rows_of, self.tables()))


@dataclasses.dataclass(frozen=True)
class ShardWriter:
    """Writes shards into a staging folder; the same shard may be written twice, even at the same time."""

    staging: str
    output: str  # folder to which an earlier run may have moved finished shards before it was killed
    recipe: encode.ExampleRecipe
    policy: prepare.ImagePolicy = prepare.AS_IT_IS
    read_ahead: read_ahead_lib.ReadAhead = read_ahead_lib.READ_AHEAD
    compression: str = "none"
    suffix: str = ".tfrecord"
    keeps_state: bool = False  # whether the state of each image is stored beside the shard, for the next update
    hasher: image_hashes.Hasher | None = None  # computes hashes that are stored beside the shard, to find duplicates
    functions: feature_functions.FeatureFunctions = feature_functions.NONE  # code of the user that computes features

    def write(self, task: ShardTask) -> elements.WrittenShard:
        """Returns the shard of `task`; writes it unless an earlier run finished it."""
        return self.find_finished(task) or self.write_unfinished(task)

    def name_of(self, task: ShardTask) -> str:
        """Returns the name of the shard's file."""
        return str(records.ShardName(task.split, task.shard_index, task.num_shards, self.suffix))

    def find_finished(self, task: ShardTask) -> elements.WrittenShard | None:
        """Returns the shard of `task` if an earlier run or attempt finished it and its files are whole."""
        name = self.name_of(task)
        done = storage.join(self.staging, name + DONE_SUFFIX)
        try:
            written = decode_written(storage.storage_of(done).read(done))
        except (FileNotFoundError, ValueError, TypeError, KeyError):  # it may be empty after a power loss
            return None
        shard = written.shard
        is_whole = (
            any(_holds(storage.join(folder, name), shard) for folder in (self.staging, self.output))
            and _has_lines(storage.join(self.staging, name + REJECTS_SUFFIX), sum(written.rejected.values()))
            and all(map(self._holds_side_file, shard.side_files(self.compression)))
            and (self.hasher is None or self._has_hashes(written))
        )
        return written._replace(is_kept=True) if is_whole else None

    def _holds_side_file(self, file: catalog.SideFile) -> bool:
        """Returns whether a file is staged or moved, and whole: a power loss may empty it, as it is not synced."""
        for uri in (storage.join(self.staging, file.staged_name), storage.join(self.output, file.name)):
            with contextlib.suppress(FileNotFoundError):
                return catalog.entry_of(storage.storage_of(uri).read(uri)) == file.entry
        return False

    def _has_hashes(self, written: elements.WrittenShard) -> bool:
        """Returns whether the hashes of the shard's images are there; they stay in the staging folder."""
        try:
            num_images = len(read_hashes(self.staging, written))
        except (FileNotFoundError, ValueError):
            return False
        return num_images == written.shard.records

    def write_unfinished(self, task: ShardTask) -> elements.WrittenShard:
        """Writes the shard of `task` and returns it."""
        name = self.name_of(task)
        uri = storage.join(self.staging, name)
        store = storage.storage_of(uri)
        store.make_directories(self.staging)
        counts = statistics.StatisticsBuilder()
        rejects: list[elements.Reject] = []
        further = 0  # images in addition to the references
        sides: list[tuple[int, int]] = []  # height and width of each image that was written
        states = image_states.StateBuilder() if self.keeps_state else None
        hashes: list[image_hashes.HashedImage] | None = None if self.hasher is None else []
        with (
            store.write_file(uri) as pending,
            # What is uploaded is read again at once.
            shard_file.ShardFile(pending.file.fileno(), is_direct=store.is_local) as file,
        ):
            writer = records.RecordWriter(file, self.compression)
            for ref, found in self._write_records(writer, task, counts, hashes):
                further += ref.frame > 0
                if isinstance(found, elements.Reject):
                    rejects.append(found)
                    if states is not None:
                        states.add_reject(ref, found)
                else:
                    counts.add(ref.classes, found)
                    sides.append((found.height, found.width))
                    if states is not None:
                        states.add(ref, found)
            writer.finish()
            pending.checksum = writer.num_bytes, writer.crc32c
            if file.finish() != pending.checksum:
                raise OSError(f"shard {uri}: the bytes read back differ from those written: faulty memory or disk")
        shard = catalog.Shard(name, writer.num_records, writer.num_bytes, writer.crc32c)
        if self.compression == "none":
            shard = store_index(self.staging, shard, writer.offsets, sides if self.recipe.has_sizes else None)
        rejected = store_rejects(self.staging, name, rejects)
        lost: dict[str, int] = {}
        if states is not None:
            lost = dict(sorted(collections.Counter(states.lost).items()))
            num_bytes, crc32c = _store_side_file(self.staging, shard.state_name, states.encode())
            shard = dataclasses.replace(shard, state_bytes=num_bytes, state_crc32c=crc32c)
        hashed = b"" if hashes is None else image_hashes.encode_hashes(hashes)
        if hashed:
            store.write_whole(uri + image_hashes.HASHES_SUFFIX, hashed, durable=False)
        written = elements.WrittenShard(
            task.split, shard, rejected, counts.build(), lost=lost, hashes_bytes=len(hashed), further=further
        )
        store.write_whole(uri + DONE_SUFFIX, encode_written(written), durable=False)
        return written

    def _write_records(
        self,
        writer: records.RecordWriter,
        task: ShardTask,
        counts: statistics.StatisticsBuilder,
        hashes: list[image_hashes.HashedImage] | None,
    ) -> Iterator[tuple[elements.ImageRef, elements.Measures | elements.Reject]]:
        """Writes a record of each image, and yields what was measured of it, or why it has none.

        Args:
            writer: of the shard's file.
            task: the images.
            counts: takes what was dropped of images, and which are dark.
            hashes: takes the hashes of images; None if there is no hasher.
        """
        # A process that died may have died of an image: the next one tells of each before it looks at it.
        is_usual = self.hasher is None and not task.skipped and not writer_processes.notes_each()
        jpegs = kept_images.find_jpegs(writer, self.recipe, self.policy) if is_usual else None
        pixels = kept_images.find_pixels(writer, self.recipe, self.policy) if is_usual else None
        tables, num_before = task.tables(), 0
        for table in tables:
            if pixels is None or not pixels.put_run(table):
                tables = itertools.chain([table], tables)
                break
            num_before += len(table.key)
            writer_processes.note_progress(num_before)
            yield from zip(elements.rows_of(table), itertools.repeat(pixels.measures))
        refs = itertools.chain.from_iterable(map(elements.rows_of, tables))
        inferred: dict[str, Sequence[feature_functions.Inferred]] = {}
        images = read_images.read_or_take(
            self.functions.take_inferred(refs, inferred) if self.functions.inferred else refs,
            self.policy,
            self.read_ahead,
            dict(task.skipped),
            self.hasher,
            None if jpegs is None else jpegs.take,
            None if pixels is None else pixels.put,
            num_before,
        )
        for ref, image in self.functions.add_to(images, inferred) if self.functions.is_on else images:
            if isinstance(image, (elements.Measures, elements.Reject)):
                yield ref, image
                continue
            writer.write(*self.recipe.encode(ref, image))
            counts.add_dropped(image.dropped_objects)
            counts.dark.add(ref.key, image, self.policy.narrowing_level)
            if hashes is not None:
                hashes.append(image_hashes.hashed(ref, image))
            yield ref, statistics.measure(ref.uri, image, self.recipe.count_objects(ref, image))


def read_hashes(staging: str, written: elements.WrittenShard) -> list[image_hashes.HashedImage]:
    """Returns the hashes of the images of a staged shard.

    Raises:
        FileNotFoundError: if they are not there.
        ValueError: if their file is damaged.
    """
    uri = storage.join(staging, written.shard.name + image_hashes.HASHES_SUFFIX)
    data = storage.storage_of(uri).read(uri)
    if len(data) != written.hashes_bytes:
        raise ValueError(
            f"{uri} has {len(data)} bytes, {written.hashes_bytes} were written: run the same convert command again"
        )
    return image_hashes.decode_hashes(data, written.split)


def _holds(uri: str, shard: catalog.Shard) -> bool:
    """Returns whether a file is the described shard. It is read, unless the storage keeps a checksum of it."""
    try:
        found = storage.storage_of(uri).stored_checksum(uri) or verify_shards.checksum_file(uri)
    except FileNotFoundError:
        return False
    return found == (shard.bytes, shard.crc32c)


def _has_lines(uri: str, count: int) -> bool:
    """Returns whether the file of rejects has `count` lines; it is not synced either. It is missing if `count` is 0."""
    try:
        return not count or storage.storage_of(uri).read(uri).count(b"\n") == count
    except FileNotFoundError:
        return False


def store_index(
    staging: str, shard: catalog.Shard, offsets: Sequence[int], sides: Sequence[tuple[int, int]] | None = None
) -> catalog.Shard:
    """Stores the index of a shard beside it until the commit, and the sizes of its images where they are known.

    Returns the shard with the checksums of these files.
    """
    index = _store_side_file(staging, shard.index_name, records.encode_index(offsets, shard.bytes))
    sizes = None if sides is None else _store_side_file(staging, shard.sizes_name, records.encode_sizes(sides))
    return dataclasses.replace(shard, index_crc32c=index.crc32c, sizes_crc32c=sizes and sizes.crc32c)


def _store_side_file(staging: str, name: str, data: bytes) -> catalog.File:
    file = catalog.SideFile(name, catalog.entry_of(data))
    uri = storage.join(staging, file.staged_name)
    storage.storage_of(uri).write_whole(uri, data, durable=False)
    return file.entry


def store_rejects(staging: str, shard_name: str, rejects: Sequence[elements.Reject]) -> dict[str, int]:
    """Stores the rejects of a shard beside it until the commit; returns their number by reason."""
    if rejects:
        store = storage.storage_of(staging)
        store.make_directories(staging)
        store.write_whole(storage.join(staging, shard_name + REJECTS_SUFFIX), encode_rejects(rejects), durable=False)
    return dict(sorted(collections.Counter(reject.reason.value for reject in rejects).items()))


def encode_rejects(rejects: Sequence[elements.Reject]) -> bytes:
    """Returns the lines of `rejects.jsonl`, in ASCII so that any file name survives."""
    rejects = [each._replace(uri=packed_file.shown(each.uri)) for each in rejects]
    return b"".join(json.dumps(reject._asdict()).encode() + b"\n" for reject in rejects)


def encode_written(written: elements.WrittenShard) -> bytes:
    """Returns the JSON of the description beside a finished shard."""
    return json.dumps(written._asdict() | {"shard": dataclasses.asdict(written.shard)}).encode()


def decode_written(data: bytes) -> elements.WrittenShard:
    """Parses the result of `encode_written`."""
    fields: dict[str, Any] = json.loads(data)
    return elements.WrittenShard(**fields | {"shard": catalog.Shard(**fields["shard"])})


@dataclasses.dataclass(frozen=True)
class RecordCopier(ShardWriter):
    """Writes shards of records that other shards hold: no image is decoded, and each record keeps its bytes."""

    def _write_records(
        self,
        writer: records.RecordWriter,
        task: ShardTask,
        counts: statistics.StatisticsBuilder,
        hashes: list[image_hashes.HashedImage] | None,  # None: no image is decoded
    ) -> Iterator[tuple[elements.ImageRef, elements.Measures | elements.Reject]]:
        copied = (ref for ref in task.refs() if image_states.reject_of(ref) is None)
        fetched = read_ahead_lib.fetch(copied, self.read_ahead)
        for number, ref in enumerate(task.refs()):
            writer_processes.note_progress(number)
            if (reject := image_states.reject_of(ref)) is not None:
                yield ref, reject
                continue
            _, data = next(fetched)
            if isinstance(data, read_ahead_lib.ReadError):
                raise errors.ShardError(
                    "record-unreadable", f"shard {ref.uri}: the record of {ref.key!r} cannot be read ({data.detail})"
                )
            try:
                (record,) = records.read_records(io.BytesIO(data))
            except (errors.RecordError, ValueError) as e:
                raise errors.ShardError(
                    "record-broken",
                    f"shard {ref.uri}: the record of {ref.key!r} at byte offset {ref.offset} is broken ({e}); run "
                    "imagebeam verify",
                ) from e
            writer.write(record.data)
            yield ref, image_states.measures_of(ref)
