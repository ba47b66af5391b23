"""Splits images inside of each label: the share of each split holds for every label.

No single place knows the counts of all classes in all intervals. Images are ranked inside their class as in
rank_references: by the interval of their order value, and by their place in it. The counts of each interval go to 16
workers by the hash of the class; each adds up those of its classes. The totals of all classes, one number each, decide
at which ranks the splits of a class begin. The worker that has the counts turns these ranks into places: interval, and
offset in it. So the table that all workers need holds a few numbers for each class.
"""

import array
import bisect
import collections
import dataclasses
import fractions as fractions_lib
import functools
import itertools
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.typehints import decorators

from imagebeam.transforms import elements, rank_references, sort_intervals, step
from imagebeam.transforms.sources import reference_rules

_NUM_TABLES = 16  # workers that add up counts; with 21,841 classes each has 1.4 million of 8 bytes


class Division(NamedTuple):
    """Division of the images of a class: which split each run of ranks goes to."""

    starts: tuple[int, ...]  # rank at which each split but the first begins, ascending
    splits: tuple[str, ...]


class Cuts(NamedTuple):
    """The same, with places instead of ranks."""

    starts: tuple[tuple[int, int], ...]  # interval, and offset among the class's images in it
    splits: tuple[str, ...]

    def split_in(self, interval: int, num_before: int = 0) -> Callable[[int], str]:
        """Returns the function that finds the split of an image by its offset in an interval, less `num_before`."""
        first = bisect.bisect_left(self.starts, (interval, 0))
        last = bisect.bisect_left(self.starts, (interval + 1, 0))
        offsets, splits = [offset - num_before for _, offset in self.starts[first:last]], self.splits[first:]
        return lambda offset: splits[bisect.bisect_right(offsets, offset)]


Divide = Callable[[Mapping[str, int]], Mapping[str, Division]]  # number of images by class -> how each is divided
Counts = tuple[int, bytes]  # interval, packed rows of class and number of images


def _count(element: tuple[int, Iterable[sort_intervals.PackedRows]]) -> Iterator[tuple[int, Counts]]:
    """An interval -> its counts, for each table."""
    interval, packed = element
    counts: dict[str, int] = {}
    for _, rows in packed:
        for name, *_ in elements.unpack_rows(rows):
            counts[name] = counts.get(name, 0) + 1
    tables: dict[int, list[tuple[str, int]]] = {}
    for name, count in counts.items():
        tables.setdefault(zlib.crc32(name.encode()) % _NUM_TABLES, []).append((name, count))
    for table, rows_of_table in tables.items():
        yield table, (interval, elements.pack_rows(rows_of_table))


def _add_up(counts: Iterable[Counts]) -> "dict[str, array.array[int]]":
    """Returns the counts of each class: interval and number of images in turn, by interval."""
    by_class: dict[str, array.array[int]] = {}
    for interval, packed in sorted(counts):
        for name, count in elements.unpack_rows(packed):
            by_class.setdefault(name, array.array("Q")).extend((interval, count))
    return by_class


def _total(element: tuple[int, Iterable[Counts]]) -> bytes:
    """Returns the packed totals of the classes of a table."""
    return elements.pack_rows([(name, sum(counts[1::2])) for name, counts in _add_up(element[1]).items()])


def find_cuts(counts: Sequence[int], division: Division) -> Cuts:
    """Returns where the splits of a class begin, from its counts: interval and number of images in turn."""
    ends = list(itertools.accumulate(counts[1::2]))
    starts = []
    for rank in division.starts:
        index = bisect.bisect_right(ends, rank)
        if index == len(ends):  # after all images
            starts.append((counts[-2] + 1, 0))
        else:
            starts.append((counts[2 * index], rank - (ends[index - 1] if index else 0)))
    return Cuts(tuple(starts), division.splits)


def _cut(element: tuple[int, Iterable[Counts]], divisions: Mapping[str, Division]) -> Iterator[bytes]:
    """A table of counts -> packed rows of class and cuts."""
    yield elements.pack_rows(
        [(name, *find_cuts(counts, divisions[name])) for name, counts in _add_up(element[1]).items()]
    )


class _SplitFn(beam.DoFn):
    """An interval -> its images with their split."""

    def __init__(self, order: sort_intervals.HashOrder, is_grouped: bool):
        self._order = order
        self._is_grouped = is_grouped
        self._packed: Sequence[bytes] = ()
        self._cuts: dict[str, Cuts] = {}

    def process(
        self, element: tuple[int, Iterable[sort_intervals.PackedRows]], cuts: Sequence[bytes]
    ) -> Iterator[step.RefBatch]:
        if cuts is not self._packed:  # the same for all elements of a bundle
            rows = itertools.chain.from_iterable(map(elements.unpack_rows, cuts))
            self._packed, self._cuts = cuts, {name: Cuts(starts, splits) for name, starts, splits in rows}
        interval, packed = element
        num_before: collections.Counter[str] = collections.Counter()
        for sets in sort_intervals.open_interval(packed, self._order):
            for name, columns in sets.items():
                refs = list(elements.rows_of(columns))
                split_at = self._cuts[name].split_in(interval, num_before[name])
                divide = _split_groups if self._is_grouped else _split_images
                yield from step.batch(divide(refs, split_at))
                num_before[name] += len(refs)


def _split_images(refs: Sequence[elements.ImageRef], split_at: Callable[[int], str]) -> Iterator[elements.ImageRef]:
    for offset, ref in enumerate(refs):
        yield ref.with_split(split_at(offset))


def _split_groups(refs: Sequence[elements.ImageRef], split_at: Callable[[int], str]) -> Iterator[elements.ImageRef]:
    """Yields the images; a whole group, which is in one interval, goes where its first image goes."""
    previous, split = None, ""
    for offset, ref in enumerate(refs):
        unit = ref.group or ref.key
        if unit != previous:
            previous, split = unit, split_at(offset)
        yield ref.with_split(split)


def _divide_totals(_: bytes, totals: Iterable[bytes], divide: Divide) -> Mapping[str, Division]:
    return divide(dict(itertools.chain.from_iterable(map(elements.unpack_rows, totals))))  # type: ignore[arg-type]


def _gather(_: bytes, packed: Iterable[bytes]) -> list[bytes]:
    return list(packed)


@decorators.with_input_types(rank_references.KeyedRefs)
@dataclasses.dataclass
class CutClasses(step.Step):
    """(class, references) -> the references, each with the split that its rank in the class gives it."""

    order: sort_intervals.HashOrder
    divide: Divide
    is_grouped: bool = False  # whether images that follow each other in one group stay together

    def expand(self, refs: beam.PCollection[rank_references.KeyedRefs]) -> beam.PCollection[step.RefBatch]:
        intervals = refs | "GroupInIntervals" >> rank_references.GroupInIntervals(self.order)  # (interval, [rows])
        counts = (
            intervals
            | "Count" >> beam.FlatMap(_count).with_output_types(tuple[int, Counts])
            | "GroupByTable" >> beam.GroupByKey()  # (table, [Counts])
        )
        totals = counts | "Total" >> beam.Map(_total).with_output_types(bytes)
        divide = beam.Map(_divide_totals, totals=beam.pvalue.AsIter(totals), divide=self.divide)
        divisions = refs.pipeline | "StartDividing" >> beam.Impulse() | "Divide" >> divide.with_output_types(Any)
        cut = beam.FlatMap(_cut, divisions=beam.pvalue.AsSingleton(divisions))
        cuts = counts | "Cut" >> cut.with_output_types(bytes)
        gather = beam.Map(_gather, packed=beam.pvalue.AsIter(cuts))
        gathered = refs.pipeline | "StartGathering" >> beam.Impulse() | "Gather" >> gather.with_output_types(Any)
        split = beam.ParDo(_SplitFn(self.order, self.is_grouped), cuts=beam.pvalue.AsSingleton(gathered))
        return step.typed(intervals | "Split" >> split.with_output_types(step.RefBatch))


_Row = list[int]  # one number for each split


def share_out(sizes: Mapping[str, int], fractions: Sequence[float]) -> dict[str, tuple[int, ...]]:
    """Returns how many images of each class go to each split.

    Classes are processed in the order of their names. If rounding gives a split too many or too few images of one
    class, the difference is carried over to the next class. So 100 classes of 4 images at 0.85 and 0.15 make 340 and
    60, not 300 and 100.

    Args:
        sizes: number of images by class.
        fractions: of each split, above 0; they count relative to their sum.

    Returns:
        For each class, a number for each split; they add up to the size of the class. Each number is less than 1 away
        from the exact share of the class, and the sum over all classes is less than 1 away from the exact share of all
        images. The result does not depend on the order of `sizes`.
    """
    weights, whole = _as_integers(fractions)
    names = sorted(sizes)
    counts, shares = [], []  # a row per class; shares are exact, in units of 1/whole image
    owed = [0] * len(weights)  # exact share of each split so far minus what it got, in the same unit
    for name in names:
        exact = [sizes[name] * weight for weight in weights]
        row, rest = [share // whole for share in exact], [share % whole for share in exact]
        owed = [sum(pair) for pair in zip(owed, rest)]
        candidates = sorted((split for split, part in enumerate(rest) if part), key=lambda split: (-owed[split], split))
        for split in candidates[: sizes[name] - sum(row)]:
            row[split] += 1
            owed[split] -= whole
        counts.append(row)
        shares.append(exact)
    _settle(counts, shares, owed, whole)
    return {name: tuple(row) for name, row in zip(names, counts)}


def _as_integers(fractions: Sequence[float]) -> tuple[_Row, int]:
    """Returns integers in the same proportions, and their sum. 0.1 is exactly a tenth, not the nearest float."""
    exact = [fractions_lib.Fraction(str(fraction)) for fraction in fractions]
    denominator = math.lcm(*(fraction.denominator for fraction in exact))
    weights = [int(fraction * denominator) for fraction in exact]
    return weights, sum(weights)


def _settle(counts: Sequence[_Row], shares: Sequence[_Row], owed: _Row, whole: int) -> None:
    """Moves single images between splits until no split lacks a whole image. With two splits nothing is moved.

    This always ends, because a matrix can be rounded together with the sums of its rows and columns (Bacharach,
    Management Science 12, 1966). A move goes from a split that was rounded up in a class to one that was rounded down
    there; if no class has such a pair, it goes through other splits.
    """
    while max(map(abs, owed)) >= whole:
        sources = [split for split, due in enumerate(owed) if due < 0]
        targets = [split for split, due in enumerate(owed) if due > 0]
        if max(owed) >= whole:
            targets = [owed.index(max(owed))]
        else:
            sources = [owed.index(min(owed))]
        moves: dict[tuple[int, int], int] = {}  # (from, to) -> a class where this move is possible
        for index, (row, exact) in enumerate(zip(counts, shares)):
            up = [split for split, share in enumerate(exact) if row[split] * whole > share]
            down = [split for split, share in enumerate(exact) if row[split] * whole < share]
            moves.update(((source, target), index) for source in up for target in down)
        path = _find_path(moves, sources, targets)
        for source, target in itertools.pairwise(path):
            counts[moves[source, target]][source] -= 1
            counts[moves[source, target]][target] += 1
        owed[path[0]] += whole
        owed[path[-1]] -= whole


def _find_path(moves: Mapping[tuple[int, int], int], sources: Sequence[int], targets: Sequence[int]) -> list[int]:
    """Returns the shortest path along `moves` from a source to a target."""
    paths = [[source] for source in sources]
    seen = set(sources)
    for path in paths:  # the list grows meanwhile
        if path[-1] in targets:
            return path
        for source, target in sorted(moves):
            if source == path[-1] and target not in seen:
                seen.add(target)
                paths.append([*path, target])
    raise AssertionError("a matrix can be rounded with all its sums")


_GOLDEN_TURN = 11_400_714_819_323_198_485  # 2**64 / golden ratio: its multiples, modulo 2**64, are spread evenly


def majority_label(refs: Iterable[elements.ImageRef]) -> str:
    """Returns the most frequent label of a group; of equally frequent ones, the first in the alphabet."""
    counts = collections.Counter(str(ref.label) for ref in refs)
    return min(counts, key=lambda label: (-counts[label], label))


# Beam sends keys as UTF-8, which cannot hold the undecodable bytes of a file name: hence ascii().
def _label_of(ref: elements.ImageRef) -> str:
    return ascii(ref.label)


def _group_of(ref: elements.ImageRef) -> str:
    return ascii(ref.group or ref.key)


def _with_majority_label(element: tuple[str, Iterable[step.RefBatch]]) -> rank_references.KeyedRefs:
    refs = step.RefBatch(itertools.chain.from_iterable(element[1]))
    return ascii(majority_label(refs)), refs


class ClassDivision(NamedTuple):
    """Division of the images of one class by rank."""

    num_images: int
    ends: tuple[int, ...]  # for each split, the rank after its last image
    phase: int  # for whole groups: where rank 0 is in the range of hashes


def divide_classes(rule: reference_rules.SplitRule, sizes: Mapping[str, int]) -> dict[str, ClassDivision]:
    """Returns how each class is divided, given the number of images in each class.

    Groups stay whole, so the excess of one class cannot be balanced with single images of the next. Instead, the splits
    form a circle and each class starts at another point of it. So, of many classes with one group each, every split
    gets its share; with a common start, all of these groups would go to the first split.
    """
    counts = share_out(sizes, [fraction for _, fraction in rule.fractions])
    return {
        name: ClassDivision(sizes[name], tuple(itertools.accumulate(counts[name])), index * _GOLDEN_TURN)
        for index, name in enumerate(sorted(sizes))
    }


def divide_class(rule: reference_rules.SplitRule, division: ClassDivision) -> Division:
    """Returns which ranks of a class go to each split; a group goes where its first image goes."""
    names = tuple(name for name, _ in rule.fractions)
    if not rule.grouped:
        return Division(division.ends[:-1], names)
    whole, phase = 1 << elements.HASH_BITS, division.phase % (1 << elements.HASH_BITS)
    bounds = [round(reached * whole) for reached in itertools.accumulate(share for _, share in rule.fractions[:-1])]
    turns = [*bounds, whole, *(whole + bound for bound in bounds)]  # hashes at which the next split begins
    following = (*names[1:], names[0], *names[1:])
    reached = [(turn, name) for turn, name in zip(turns, following) if phase < turn < phase + whole]
    starts = tuple(-((phase - turn) * division.num_images // whole) for turn, _ in reached)
    return Division(starts, (rule.of_hash(phase), *(name for _, name in reached)))


def _divide(sizes: Mapping[str, int], rule: reference_rules.SplitRule) -> dict[str, Division]:
    return {name: divide_class(rule, division) for name, division in divide_classes(rule, sizes).items()}


@decorators.with_input_types(step.RefBatch)
@dataclasses.dataclass
class StratifySplits(step.Step):
    """Gives references their splits by their rank among those of their label, if the rule is stratified.

    References of other rules have their splits already, and stay as they are.
    """

    rule: reference_rules.SplitRule

    def expand(self, refs: beam.PCollection[step.RefBatch]) -> beam.PCollection[step.RefBatch]:
        if not self.rule.stratify:
            return refs
        if self.rule.grouped:
            groups = rank_references.key_by(refs, "KeyByGroup", _group_of) | "Group" >> beam.GroupByKey()
            with_label = beam.Map(_with_majority_label).with_output_types(rank_references.KeyedRefs)
            labelled = groups | "MajorityLabel" >> with_label  # (label, RefBatch) from (group, [RefBatch])
            keyed = step.typed(labelled, rank_references.KeyedRefs)
        else:
            keyed = rank_references.key_by(refs, "KeyByLabel", _label_of)
        field = "group" if self.rule.grouped else "key"
        order = sort_intervals.HashOrder(self.rule.seed, reference_rules.PURPOSE, field)
        divide = functools.partial(_divide, rule=self.rule)
        return keyed | "CutClasses" >> CutClasses(order, divide, self.rule.grouped)
