"""Sorts the references of an interval, and summarizes them: see rank_references. Imports no Beam."""

from __future__ import annotations

import collections
import hashlib
import itertools
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from imagebeam.transforms import elements, summaries
from imagebeam.transforms.interval_summaries import DIGEST_BITS, MAX_DUPLICATES, IntervalSummary, PartialRanking
from imagebeam.transforms.output import recorded_inputs
from imagebeam.transforms.reference_order import HashOrder, ListedOrder, Order

PackedRows: TypeAlias = tuple[int, bytes]  # number of rows, packed rows of set, order value and reference
PackedInterval: TypeAlias = tuple[int, Sequence[PackedRows]]
# Set, interval, place in it, number of references, packed references.
SortedRun: TypeAlias = tuple[str, int, int, int, bytes]

# A row is the name of the set, the order value, and the fields of the reference, of which key and uri are the first.
_REF = 2
_value_key_and_uri = operator.itemgetter(1, _REF, _REF + 1)


def open_interval(packed: Iterable[PackedRows], order: Order) -> Iterator[dict[str, elements.RefColumns]]:
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


def _open_part(packed: Iterable[bytes]) -> dict[str, elements.RefColumns]:
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


def _count_bytes(refs: elements.RefColumns) -> int:
    """Returns the number of bytes read for the references of a set."""
    return elements.sum_bytes(refs.size, itertools.chain(refs.mask, itertools.chain.from_iterable(refs.further)))


def _digest(sets: Mapping[str, elements.RefColumns], order: Order) -> int:
    """Returns a digest of everything that the output depends on.

    Folders are left out, so that a moved input is the same input; `inside` is, because offset and length imply it.

    Args:
        sets: the references, in order.
        order: in which they are.
    """
    digest = hashlib.blake2b(digest_size=DIGEST_BITS // 8)
    keep_position = isinstance(order, ListedOrder)
    for name, every in sets.items():
        file_names = [uri.rpartition("/")[2] for uri in every.uri]
        masks = list(every.mask)
        if any(masks):
            masks = [mask and (mask.uri.rpartition("/")[2], mask.size, mask.version) for mask in masks]
        facts: tuple[Any, ...] = (
            name,
            every.key,
            file_names,
            every.size,
            every.version,
            every.offset,
            every.length,
            every.position if keep_position else (),
            [every.label, every.split, every.group, every.columns],
            masks,
            every.expected,
        )
        if any(every.blocks):
            facts += (every.blocks,)
        if any(every.further):
            facts += ([[image.facts for image in further] for further in every.further],)
        digest.update(repr(facts).encode("utf-8", "backslashreplace"))
    return int.from_bytes(digest.digest(), "big")


def find_duplicates(sets: Mapping[str, elements.RefColumns]) -> list[summaries.RepeatedKey]:
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
    sorted_ = SortedIntervals([], PartialRanking())
    for interval, packed in task.intervals:
        num_before: collections.Counter[str] = collections.Counter()
        for sets in open_interval(packed, task.order):
            for name, refs in sets.items():
                num_refs = len(refs.key)
                packed_refs = elements.pack_columns(refs)  # compressed: it stays in memory until it is written
                sorted_.runs.append((name, interval, num_before[name], num_refs, packed_refs))
                num_before[name] += num_refs
            sorted_.ranking.add(_summarize(interval, sets, task.order))
    return sorted_


def _summarize(interval: int, sets: Mapping[str, elements.RefColumns], order: Order) -> IntervalSummary:
    duplicates = find_duplicates(sets) if isinstance(order, HashOrder) else []
    return IntervalSummary(
        interval,
        {name: len(refs.key) for name, refs in sets.items()},
        {name: _count_bytes(refs) for name, refs in sets.items()},
        {name: frozenset(elements.all_classes(refs.label)) for name, refs in sets.items()},
        _digest(sets, order),
        tuple(duplicates[:MAX_DUPLICATES]),
        len(duplicates),
        recorded_inputs.checksum_images(list(sets.values()), isinstance(order, ListedOrder)),
    )
