"""Sorts the references of an interval, and summarizes them: see rank_references. Imports no Beam."""

from __future__ import annotations

import bisect
import collections
import dataclasses
import hashlib
import itertools
import operator
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from imagebeam.transforms import elements, summaries
from imagebeam.transforms.packed import packed_file
from imagebeam.transforms.summaries import DIGEST_BITS, MAX_DUPLICATES, PartialRanking

# 100 million references are 100,000 per interval, sorted in 0.2 s and 60 MB; more are cut in parts.
NUM_INTERVALS = 1024
PURPOSE = b"imagebeam.order"  # salts the hashes that order a split
_MAX_PART_REFS = 200_000  # references of an interval that are objects at the same time: 120 MB


@dataclasses.dataclass(frozen=True)
class HashOrder:
    """Orders by the hash of a field of the reference, then by key."""

    seed: int
    purpose: bytes
    field: str = "key"

    def values(self, refs: Sequence[elements.ImageRef]) -> Sequence[Any]:
        """Returns hashes, 0 to 2**64."""
        fields = (
            [ref.key for ref in refs] if self.field == "key" else [getattr(ref, self.field) or ref.key for ref in refs]
        )
        return elements.hash64_all(fields, self.seed, self.purpose)

    def intervals(self, values: Sequence[Any], boundaries: Sequence[Any]) -> list[int]:
        """Returns the intervals of hashes: equal parts of the hashes' range. `boundaries` is not used."""
        return [value * NUM_INTERVALS >> elements.HASH_BITS for value in values]

    def num_parts(self, num_refs: int) -> int:
        """Returns in how many parts an interval with so many references is sorted."""
        return -(-num_refs // _MAX_PART_REFS) or 1

    def part(self, value: Any, num_parts: int) -> int:
        """Returns the part of its interval that holds a hash. Parts are equal parts of the interval's range."""
        return (value * NUM_INTERVALS % (1 << elements.HASH_BITS)) * num_parts >> elements.HASH_BITS


@dataclasses.dataclass(frozen=True)
class ListedOrder:
    """Orders by the row of the manifest, then by key. Intervals end at approximate quantiles."""

    def values(self, refs: Sequence[elements.ImageRef]) -> Sequence[Any]:
        """Returns rows and keys, the keys as bytes: Beam encodes strings as UTF-8, which a file name may not be."""
        return [(ref.position, elements.encode_key(ref.key)) for ref in refs]

    def intervals(self, values: Sequence[Any], boundaries: Sequence[Any]) -> list[int]:
        """Returns the intervals of values: interval i ends before boundary i, the last one holds the rest."""
        return [bisect.bisect_right(boundaries, value) for value in values]

    def num_parts(self, num_refs: int) -> int:
        """Returns 1: nothing divides an interval whose values are not spread evenly."""
        return 1

    def part(self, value: Any, num_parts: int) -> int:
        return 0

    def by_hash(self, element: tuple[str, Sequence[elements.ImageRef]]) -> Iterator[tuple[int, Any]]:
        """Yields a hash of each key and the order value. The smallest hashes are a choice that the set alone decides.

        The salt keeps its first name, so that the intervals stay the same from release to release.
        """
        refs = element[1]
        hashes = elements.hash64_all([ref.key for ref in refs], 0, b"imagebeam.sample")
        for hash_, value in zip(hashes, self.values(refs)):
            yield hash_ >> 1, value  # Beam's integers are signed

    @staticmethod
    def boundaries(chosen: Sequence[tuple[int, Any]]) -> list[Any]:
        """Returns the ends of all intervals but the last, at most NUM_INTERVALS - 1, from the values chosen by hash."""
        values = sorted(value for _, value in chosen)
        step = max(1, -(-len(values) // NUM_INTERVALS))
        return values[step::step]


Order: TypeAlias = "HashOrder | ListedOrder"


def order_of(shuffle: str, seed: int) -> Order:
    """Returns the order of a split's references, as `output.shuffle` and `split.seed` ask for it."""
    return HashOrder(seed, PURPOSE) if shuffle == "hash" else ListedOrder()


PackedRows: TypeAlias = tuple[int, bytes]  # number of rows, packed rows of set, order value and reference
PackedInterval: TypeAlias = tuple[int, Sequence[PackedRows]]
# Set, interval and place in it of the first reference, number of references, packed references.
SortedRun: TypeAlias = tuple[str, int, int, int, bytes]

MAX_WHOLE = 100_000  # references that one process sorts at once: 60 MB as objects, 15 MB packed
_RUN_REFS = 256  # references in a run: one that crosses the end of a shard is unpacked by the launcher

# A row is the name of the set, the order value, and the fields of the reference, of which key and uri are the first.
_REF = 2
_value_key_and_uri = operator.itemgetter(1, _REF, _REF + 1)


def open_interval(packed: Iterable[PackedRows], order: Order) -> Iterator[dict[str, elements.RefTable]]:
    """Yields the references of an interval by set, each set sorted.

    They come in parts that follow each other, if there are so many that they would take too much memory as objects. The
    number of parts depends on the number of references alone.
    """
    blocks = list(packed)
    num_parts = order.num_parts(sum(num_rows for num_rows, _ in blocks))
    if num_parts == 1:
        yield _open_part(rows for _, rows in blocks)
        return
    parts: list[list[bytes]] = [[] for _ in range(num_parts)]
    for _, rows in blocks:
        divided: dict[int, list[tuple[Any, ...]]] = {}
        for row in elements.unpack_rows(rows):
            divided.setdefault(order.part(row[1], num_parts), []).append(row)
        for part, rows_of_part in divided.items():
            parts[part].append(elements.pack_rows(rows_of_part))
    yield from map(_open_part, filter(None, parts))


def _open_part(packed: Iterable[bytes]) -> dict[str, elements.RefTable]:
    """Returns the references of a part of an interval by set, each set sorted."""
    sets: dict[str, list[tuple[Any, ...]]] = collections.defaultdict(list)
    for rows in packed:
        for row in elements.unpack_rows(rows):
            sets[row[0]].append(row)
    opened = {}
    for name, rows_of_set in sorted(sets.items()):
        rows_of_set.sort(key=_value_key_and_uri)
        opened[name] = elements.new_ref([*zip(*rows_of_set)][_REF:])
    return opened


def _count_bytes(refs: elements.RefTable) -> int:
    """Returns the number of bytes read for the references of a set."""
    return elements.sum_bytes(refs.size, itertools.chain(refs.mask, itertools.chain.from_iterable(refs.extra_images)))


def _digest(sets: Mapping[str, elements.RefTable], order: Order) -> int:
    """Returns a digest of everything that the output depends on.

    Folders are left out, so that a moved input is the same input; `inside` is, because offset and length imply it.

    Args:
        sets: the references, in order.
        order: in which they are.
    """
    digest = hashlib.blake2b(digest_size=DIGEST_BITS // 8)
    keep_position = isinstance(order, ListedOrder)
    for name, given in sets.items():
        every = _without_places(given)
        masks = list(every.mask)
        if any(masks):
            masks = [mask and (mask.uri.rpartition("/")[2], mask.size, mask.version) for mask in masks]
        values = [
            repr(name),
            _repr(every.key),
            _repr(_file_names(every.uri)),
            _repr(every.size),
            _repr(every.version),
            _repr(every.offset),
            _repr(every.length),
            _repr(every.position if keep_position else ()),
            f"[{', '.join(map(_repr, (every.label, every.split, every.group, every.columns)))}]",
            _repr(masks),
            _repr(every.expected),
        ]
        if any(every.blocks):
            values.append(repr(every.blocks))
        if any(every.sha256):
            values.append(repr(every.sha256))
        if any(every.extra_images):
            values.append(repr([[image.identity for image in extra] for extra in every.extra_images]))
        digest.update(f"({', '.join(values)})".encode("utf-8", "backslashreplace"))
    return int.from_bytes(digest.digest(), "big")


def _without_places(refs: elements.RefTable) -> elements.RefTable:
    """Returns references without the places of images that a pipeline brought as bytes: they differ in each run."""
    if not any(refs.sha256):
        return refs
    are_there = [packed_file.spilled_key(uri) is None for uri in refs.uri]
    offset, length = (tuple(map(operator.mul, column, are_there)) for column in (refs.offset, refs.length))
    return refs._replace(offset=offset, length=length)


def _file_names(uris: Sequence[str]) -> list[str]:
    if _is_constant(uris):
        return [uris[0].rpartition("/")[2]] * len(uris)
    return [uri.rpartition("/")[2] for uri in uris]


def _repr(column: Sequence[Any]) -> str:
    """Returns `repr(column)` of a tuple or a list, sooner if all values are the same."""
    num = len(column)
    if num < 2 or not _is_constant(column):
        return repr(column)
    values = f"{column[0]!r}, " * (num - 1) + repr(column[0])
    return f"[{values}]" if isinstance(column, list) else f"({values})"


def find_duplicates(sets: Mapping[str, elements.RefTable]) -> list[summaries.RepeatedKey]:
    """Returns the keys that occur more than once, each with its first two references."""
    keys = [key for refs in sets.values() for key in refs.key]
    if len(set(keys)) == len(keys):  # nearly always
        return []
    places: dict[str, list[tuple[int, str]]] = {}
    for refs in sets.values():
        for key, position, uri in zip(refs.key, refs.position, refs.uri):
            places.setdefault(key, []).append((position, uri))
    repeated = []
    for key, found in places.items():
        if len(found) > 1:
            (one, uri), (other, other_uri) = sorted(found)[:2]
            repeated.append(summaries.RepeatedKey(key, (uri, other_uri), (one, other)))
    return sorted(repeated)


class SortTask(NamedTuple):
    """Intervals to sort."""

    intervals: Sequence[PackedInterval]
    order: Order


class SortedIntervals(NamedTuple):
    """The sorted runs of each set in some intervals, and the summaries of these intervals."""

    runs: list[SortedRun]
    ranking: PartialRanking


def sort_intervals(task: SortTask) -> SortedIntervals:
    """Returns the sorted runs of each set in the intervals of a task, and the summaries of these intervals."""
    runs, ranking = [], PartialRanking()
    for interval, packed in task.intervals:
        num_before: collections.Counter[str] = collections.Counter()
        for sets in open_interval(packed, task.order):
            for name, refs in sets.items():
                num_refs = len(refs.key)
                packed_refs = elements.pack_columns(refs)  # compressed: it stays in memory until it is written
                runs.append((name, interval, num_before[name], num_refs, packed_refs))
                num_before[name] += num_refs
            ranking.merge(_summarize(interval, sets, task.order))
    return SortedIntervals(runs, ranking)


def sort_whole(refs: Iterable[elements.ImageRef], order: HashOrder) -> SortedIntervals:
    """Sorts all references of a dataset in their splits, at once. Their ranks are those that `sort_intervals` finds.

    Takes a third of the time: nothing is packed to be spread over intervals. A run may go on into the next intervals.

    Args:
        refs: at most MAX_WHOLE.
        order: in which they are to be.
    """
    splits: dict[str, list[elements.ImageRef]] = collections.defaultdict(list)
    for ref in refs:
        splits[ref.split].append(ref)
    runs: list[SortedRun] = []
    sets: dict[int, dict[str, elements.RefTable]] = collections.defaultdict(dict)  # by interval, splits in order
    for split, refs_of_split in sorted(splits.items()):
        sorted_, intervals = _sort_columns(refs_of_split, order)
        for start in range(0, len(intervals), _RUN_REFS):
            run = elements.slice_columns(sorted_, start, start + _RUN_REFS)
            place = start - bisect.bisect_left(intervals, intervals[start])
            runs.append((split, intervals[start], place, len(run.key), elements.pack_columns(run, sys.maxsize)))
        end = 0
        for interval, num_refs in collections.Counter(intervals).items():
            end += num_refs
            sets[interval][split] = elements.slice_columns(sorted_, end - num_refs, end)
    ranking = PartialRanking()
    for interval, sets_of_interval in sets.items():
        ranking.merge(_summarize(interval, sets_of_interval, order))
    return SortedIntervals(runs, ranking)


def _sort_columns(refs: Sequence[elements.ImageRef], order: HashOrder) -> tuple[elements.RefTable, list[int]]:
    """Returns the references in order, by columns, and the interval of each."""
    columns, values = elements.columns_of(refs), order.values(refs)
    places = sorted(range(len(values)), key=values.__getitem__)
    if len(set(values)) < len(values):  # equal keys
        places.sort(key=[*zip(values, columns.key, columns.uri)].__getitem__)
    ordered = elements.new_ref(
        column if _is_constant(column) else tuple([column[place] for place in places]) for column in columns
    )
    return ordered, order.intervals([values[place] for place in places], ())


def _is_constant(column: Sequence[Any]) -> bool:
    """Returns whether all values of a column are known to be the same, as those of most columns are."""
    first = column[0]
    is_plain = first is None or first == () or type(first) in (str, int)
    # 1, 1.0 and True are equal, and not the same
    return is_plain and first == column[-1] and column.count(first) == len(column) and len({*map(type, column)}) == 1


def _summarize(interval: int, sets: Mapping[str, elements.RefTable], order: Order) -> PartialRanking:
    """Returns the summary of an interval, or of a part of it; sets are in the order of their names."""
    duplicates = find_duplicates(sets) if isinstance(order, HashOrder) else []
    return PartialRanking(
        {name: collections.Counter({interval: len(refs.key)}) for name, refs in sets.items()},
        collections.Counter({name: _count_bytes(refs) for name, refs in sets.items()}),
        {name: set(elements.all_classes(refs.label)) for name, refs in sets.items()},
        _digest(sets, order),
        tuple(duplicates[:MAX_DUPLICATES]),
        len(duplicates),
    )
