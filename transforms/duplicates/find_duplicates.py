"""Finds images that repeat others.

Duplicates have the same bytes, or perceptual hashes that differ in few bits.

Images meet in intervals of their hashes, so no worker holds more than an interval, and an image that occurs a million
times makes a million rows, not pairs. An image repeats the first one like it in the order of `DuplicateSettings`,
whatever the order of the input.

Near images are found in three joins: hashes alone meet in tables, so that not all pairs are compared; the first of each
hash, and then all images with a hash, are looked up in the intervals of hashes.
"""

import collections
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.transforms import window
from apache_beam.typehints import decorators
from apache_beam.utils import windowed_value

from imagebeam.transforms import elements, sort_intervals, step
from imagebeam.transforms.shard import image_hashes

HASH_BITS = 64
# By distance, up to MAX_DISTANCE: 0, 2, 6, 10, 15, 21 and 28 tables, whose keys have 32, 32, 25, 21, 18 and 16 bits.
_NUM_BLOCKS = (1, 2, 4, 5, 6, 7, 8)
_GOLDEN = np.uint64(11_400_714_819_323_198_485)  # 2**64 / golden ratio: spreads keys evenly
_MAX_SHORT_RUN = 64  # hashes with one key that are compared side by side with those of other keys

# One hash, and the rank that decides which of two near images comes first.
RANKED = np.dtype([("hash", "<u8"), ("rank", "<u8")])
# A hash, and the first of all hashes near it that rank before it.
MATCH = np.dtype([("hash", "<u8"), ("first_rank", "<u8"), ("first", "<u8")])


def masks_of(distance: int) -> list[int]:
    """Returns the bits of the key in each table.

    The bits are cut into blocks. Two hashes that differ in at most `distance` bits differ in at most as many blocks, so
    they agree in all others: in a table for each choice of these others, both have the same key. Only hashes with the
    same key are compared. A key has 16 to 32 bits, so few other hashes have it by chance.

    Source: Manku, Jain, Das Sarma, "Detecting Near-Duplicates for Web Crawling", WWW 2007,
    https://research.google.com/pubs/archive/33026.pdf
    """
    num_blocks = _NUM_BLOCKS[distance]
    ends = [HASH_BITS * (block + 1) // num_blocks for block in range(num_blocks)]
    blocks = [(1 << end) - (1 << start) for start, end in itertools.pairwise([0, *ends])]
    return [sum(chosen) for chosen in itertools.combinations(blocks, num_blocks - distance)] if distance else []


def parts_of(hashes: np.ndarray, mask: int, num_parts: int) -> np.ndarray:
    """Returns the part of a table that each hash belongs to; hashes with the same key are in the same part.

    Args:
        hashes: uint64 [n].
        mask: bits of the key.
        num_parts: a power of two.
    """
    mixed = (hashes & np.uint64(mask)) * _GOLDEN  # modulo 2**64
    return (mixed >> np.uint64(HASH_BITS - 32)) >> np.uint64(32 - (num_parts.bit_length() - 1))


def find_firsts(ranked: np.ndarray, mask: int, distance: int) -> np.ndarray:
    """Returns, for each hash with a near one before it, the first of these.

    Args:
        ranked: RANKED [n], each hash once, in any order.
        mask: only hashes that agree in these bits are compared.
        distance: number of bits in which near hashes differ at most.

    Returns:
        MATCH [m].
    """
    keys = ranked["hash"] & np.uint64(mask)
    order = np.lexsort((ranked["hash"], ranked["rank"], keys))
    ranked, keys = ranked[order], keys[order]
    is_start = np.ones(len(keys), dtype=bool)
    is_start[1:] = keys[1:] != keys[:-1]
    starts = np.flatnonzero(is_start)
    sizes = np.diff(np.append(starts, len(keys)))
    firsts = np.full(len(keys), -1, dtype=np.int64)
    places = np.arange(len(keys)) - np.repeat(starts, sizes)  # place of each hash among those with its key
    rows = np.flatnonzero((places > 0) & (np.repeat(sizes, sizes) <= _MAX_SHORT_RUN))
    offset = 1
    while rows.size:  # the largest offset that matches is that of the first hash
        near = rows[_differ(ranked["hash"][rows], ranked["hash"][rows - offset]) <= distance]
        firsts[near] = near - offset
        offset += 1
        rows = rows[places[rows] >= offset]
    is_long = sizes > _MAX_SHORT_RUN
    for start, size in zip(starts[is_long], sizes[is_long]):
        in_run = _firsts_in_run(ranked["hash"][start : start + size], distance)
        firsts[start : start + size] = np.where(in_run < 0, -1, start + in_run)
    found = np.flatnonzero(firsts >= 0)
    matches = np.empty(len(found), dtype=MATCH)
    matches["hash"] = ranked["hash"][found]
    matches["first_rank"] = ranked["rank"][firsts[found]]
    matches["first"] = ranked["hash"][firsts[found]]
    return matches


def _firsts_in_run(hashes: np.ndarray, distance: int) -> np.ndarray:
    """Returns the index of the first near hash before each hash; -1 if there is none.

    A hash leaves as soon as its first is found. So a crowd of hashes near each other takes time in proportion to its
    size, and only hashes with none near them are compared with all others.
    """
    firsts = np.full(len(hashes), -1, dtype=np.int64)
    rows = np.arange(1, len(hashes))
    for candidate in range(len(hashes) - 1):
        rows = rows[np.searchsorted(rows, candidate, side="right") :]
        if not rows.size:
            break
        is_near = _differ(hashes[rows], hashes[candidate]) <= distance
        firsts[rows[is_near]] = candidate
        rows = rows[~is_near]
    return firsts


def first_of_each(matches: np.ndarray) -> np.ndarray:
    """Returns the matches of all tables with one for each hash, the first; MATCH [n], by hash."""
    matches = matches[np.lexsort((matches["first"], matches["first_rank"], matches["hash"]))]
    _, index = np.unique(matches["hash"], return_index=True)
    return matches[index]


def _differ(hashes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Returns the number of bits in which hashes differ; for the versions of numpy without `bitwise_count`."""
    bits = hashes ^ others
    if hasattr(np, "bitwise_count"):
        return np.bitwise_count(bits)
    return np.unpackbits(np.atleast_1d(bits).view(np.uint8).reshape(-1, 8), axis=1).sum(axis=1)


HashedBlock = bytes  # packed rows of HashedImage
Matches = tuple[int, bytes]  # interval of hashes, array of MATCH
First = tuple[bytes, bytes, str, str, str]  # a hash; hash, split, key and uri of the first image near it

_NUM_PARTS = 64  # parts of each table: one has 16 bytes of every 64th hash
_INTERVAL_BITS = sort_intervals.NUM_INTERVALS.bit_length() - 1


class _SpreadFn(step.SpreadRowsFn):
    """HashedBlock -> (interval of one of its hashes, packed rows)."""

    def __init__(self, field: str):
        self._field = image_hashes.HashedImage._fields.index(field)

    def process(self, block: HashedBlock) -> Iterator[step.PackedRows]:
        for row in elements.unpack_rows(block):
            if row[self._field]:  # empty: the image is not compared
                self.add(_interval_of(row[self._field]), row)
        if self.is_full:
            yield from self.take()


def _interval_of(hash_bytes: bytes) -> int:
    return int.from_bytes(hash_bytes[:2], "big") >> (16 - _INTERVAL_BITS)


def _open(blocks: Iterable[bytes]) -> Iterator[image_hashes.HashedImage]:
    for block in blocks:
        for row in elements.unpack_rows(block):
            yield image_hashes.HashedImage(*row)


def _pair(kind: Any, distance: int, image: image_hashes.HashedImage, first: tuple[str, str, str]) -> elements.Duplicate:
    return elements.Duplicate(kind, distance, image.split, image.key, image.uri, *first)


def _place(image: image_hashes.HashedImage) -> tuple[str, str, str]:
    return image.split, image.key, image.uri


def _find_equal(
    element: tuple[int, Iterable[bytes]], settings: image_hashes.DuplicateSettings
) -> Iterator[elements.Duplicate]:
    """(interval of contents, [packed rows]) -> Duplicate. Goes over the rows twice and holds the first of each hash."""
    _, blocks = element
    firsts, repeated = _find_firsts(_open(blocks), "content", settings)
    for image in _open(blocks) if repeated else ():
        first = firsts[image.content]
        if image.content in repeated and image != first:
            yield _pair("exact", 0, image, _place(first))


def _find_firsts(
    images: Iterable[image_hashes.HashedImage], field: str, settings: image_hashes.DuplicateSettings
) -> tuple[dict[bytes, image_hashes.HashedImage], set[bytes]]:
    """Returns the first image of each hash, and the hashes that occur more than once."""
    firsts: dict[bytes, image_hashes.HashedImage] = {}
    repeated = set()
    for image in images:
        value = getattr(image, field)
        known = firsts.setdefault(value, image)
        if known is not image:
            repeated.add(value)
            if settings.order_of(image) < settings.order_of(known):
                firsts[value] = image
    return firsts, repeated


def _rank(block: HashedBlock, settings: image_hashes.DuplicateSettings) -> Iterator[tuple[int, bytes]]:
    """HashedBlock -> (interval, array of RANKED): hashes alone, for the tables."""
    images = [image for image in _open((block,)) if image.picture]
    ranked = np.empty(len(images), dtype=RANKED)
    ranked["hash"] = _as_integers(image.picture for image in images)
    ranked["rank"] = np.fromiter(map(settings.rank_of, images), dtype=np.uint64, count=len(images))
    yield from _by_interval(ranked, ranked["hash"])


def _as_integers(hashes: Iterable[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(hashes), dtype=">u8").astype(np.uint64)


def _as_bytes(value: Any) -> bytes:
    return int(value).to_bytes(HASH_BITS // 8, "big")


def _by_interval(rows: np.ndarray, hashes: np.ndarray) -> Iterator[tuple[int, bytes]]:
    """Yields the rows of each interval of their hashes."""
    return _cut(rows, (hashes >> np.uint64(HASH_BITS - _INTERVAL_BITS)).astype(np.int64))


def _cut(rows: np.ndarray, parts: np.ndarray) -> Iterator[tuple[int, bytes]]:
    """Yields the rows of each part, which is a small integer."""
    order = np.argsort(parts, kind="stable")
    rows, parts = rows[order], parts[order]
    found, starts = np.unique(parts, return_index=True)
    for part, each in zip(found.tolist(), np.split(rows, starts[1:])):
        yield part, each.tobytes()


class _FillTablesFn(beam.DoFn):
    """(interval, [array of RANKED]) -> (part of a table, array of RANKED), each hash once with its smallest rank."""

    def __init__(self, distance: int):
        self._masks = masks_of(distance)

    def start_bundle(self) -> None:
        self._pending: list[np.ndarray] = []

    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[tuple[int, bytes]]:
        _, blocks = element
        ranked = np.frombuffer(b"".join(blocks), dtype=RANKED)
        ranked = ranked[np.lexsort((ranked["rank"], ranked["hash"]))]
        _, index = np.unique(ranked["hash"], return_index=True)
        self._pending.append(ranked[index])
        if sum(map(len, self._pending)) >= step.MAX_PENDING:
            yield from self._take()

    def finish_bundle(self) -> Iterator[windowed_value.WindowedValue]:
        yield from map(window.GlobalWindows.windowed_value, self._take())

    def _take(self) -> Iterator[tuple[int, bytes]]:
        if not self._pending:
            return
        ranked, self._pending = np.concatenate(self._pending), []
        for table, mask in enumerate(self._masks):
            parts = parts_of(ranked["hash"], mask, _NUM_PARTS).astype(np.int64)
            yield from _cut(ranked, table * _NUM_PARTS + parts)


def _match(element: tuple[int, Iterable[bytes]], distance: int) -> Iterator[Matches]:
    """(part of a table, [array of RANKED]) -> (interval of hashes, array of MATCH)."""
    part, blocks = element
    ranked = np.frombuffer(b"".join(blocks), dtype=RANKED)
    matches = find_firsts(ranked, masks_of(distance)[part // _NUM_PARTS], distance)
    yield from _by_interval(matches, matches["hash"])


def _choose_first(element: tuple[int, Iterable[bytes]]) -> Iterator[Matches]:
    """(interval of hashes, [array of MATCH] of all tables) -> (interval of firsts, array of MATCH): one a hash."""
    _, blocks = element
    matches = first_of_each(np.frombuffer(b"".join(blocks), dtype=MATCH))
    yield from _by_interval(matches, matches["first"])


def _look_up_firsts(
    element: tuple[int, Mapping[str, Iterable[bytes]]], settings: image_hashes.DuplicateSettings
) -> Iterator[step.PackedRows]:
    """(interval of firsts, rows and matches in it) -> (interval of hashes, packed rows of First)."""
    _, found = element
    matches = np.frombuffer(b"".join(found["matches"]), dtype=MATCH)
    if not matches.size:
        return
    wanted = {_as_bytes(value) for value in np.unique(matches["first"])}
    images = (image for image in _open(found["rows"]) if image.picture in wanted)
    firsts, _ = _find_firsts(images, "picture", settings)
    by_interval: dict[int, list[First]] = collections.defaultdict(list)
    for value, first_value in zip(matches["hash"], matches["first"]):
        picture, first = _as_bytes(value), firsts[_as_bytes(first_value)]
        by_interval[_interval_of(picture)].append((picture, first.picture, *_place(first)))
    for interval, rows in by_interval.items():
        yield interval, elements.pack_rows(rows)


def _find_near(
    element: tuple[int, Mapping[str, Iterable[bytes]]], settings: image_hashes.DuplicateSettings
) -> Iterator[elements.Duplicate]:
    """(interval of hashes, rows and firsts in it) -> Duplicate.

    Images that `_find_equal` finds are left out: of images with the same bytes, only the first is looked at.
    """
    _, found = element
    near = {row[0]: row[1:] for block in found["firsts"] for row in elements.unpack_rows(block)}
    firsts, repeated = _find_firsts(_open(found["rows"]), "picture", settings)
    if not near and not repeated:
        return
    first_of_content: dict[bytes, image_hashes.HashedImage] = {}
    if settings.exact != "off":
        images = (image for image in _open(found["rows"]) if image.picture in repeated)
        first_of_content, _ = _find_firsts(images, "content", settings)
    for image in _open(found["rows"]):
        if first_of_content.get(image.content, image) != image:
            continue
        if (other := near.get(image.picture)) is not None:
            other_picture, *place = other
            yield _pair("near", _distance(image.picture, other_picture), image, tuple(place))
        elif image.picture in repeated and image != (first := firsts[image.picture]):
            yield _pair("near", 0, image, _place(first))


def _distance(one: bytes, other: bytes) -> int:
    return (int.from_bytes(one, "big") ^ int.from_bytes(other, "big")).bit_count()


@decorators.with_input_types(HashedBlock)
@dataclasses.dataclass
class FindDuplicates(step.Step):
    """Yields every image that repeats another one, with the first of those like it.

    With both kinds on, an image whose bytes repeat others is not a near duplicate too.
    """

    settings: image_hashes.DuplicateSettings

    def expand(self, blocks: beam.PCollection[HashedBlock]) -> beam.PCollection[elements.Duplicate]:
        found = []
        if self.settings.exact != "off":
            found.append(
                blocks
                | "SpreadByContent" >> beam.ParDo(_SpreadFn("content")).with_output_types(step.PackedRows)
                | "GroupByContent" >> beam.GroupByKey()  # (interval, [packed rows])
                | "FindEqual" >> beam.FlatMap(_find_equal, settings=self.settings).with_output_types(elements.Duplicate)
            )
        if self.settings.near != "off":
            found.append(self._find_near(blocks))
        return found | "AllDuplicates" >> beam.Flatten(pipeline=blocks.pipeline)

    def _find_near(self, blocks: beam.PCollection[HashedBlock]) -> beam.PCollection[elements.Duplicate]:
        distance = self.settings.near_distance
        rows = blocks | "SpreadByPicture" >> beam.ParDo(_SpreadFn("picture")).with_output_types(step.PackedRows)
        matches = (
            blocks
            | "RankHashes" >> beam.FlatMap(_rank, settings=self.settings).with_output_types(tuple[int, bytes])
            | "GroupByHash" >> beam.GroupByKey()  # (interval, [array of RANKED])
            | "FillTables" >> beam.ParDo(_FillTablesFn(distance)).with_output_types(tuple[int, bytes])
            | "GroupInTables" >> beam.GroupByKey()  # (part of a table, [array of RANKED])
            | "Match" >> beam.FlatMap(_match, distance).with_output_types(Matches)
            | "GroupMatches" >> beam.GroupByKey()  # (interval, [array of MATCH])
            | "ChooseFirst" >> beam.FlatMap(_choose_first).with_output_types(Matches)
        )
        firsts = (
            {"rows": rows, "matches": matches}
            | "MeetFirsts" >> beam.CoGroupByKey()  # (interval, {rows: [packed rows], matches: [array of MATCH]})
            | "LookUpFirsts" >> beam.FlatMap(_look_up_firsts, settings=self.settings).with_output_types(step.PackedRows)
        )
        return (
            {"rows": rows, "firsts": firsts}
            | "MeetImages" >> beam.CoGroupByKey()  # (interval, {rows: [packed rows], firsts: [packed rows of First]})
            | "FindNear" >> beam.FlatMap(_find_near, settings=self.settings).with_output_types(elements.Duplicate)
        )
