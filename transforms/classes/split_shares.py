"""Divides classes among splits in whole images, so that no class and no split loses by rounding."""

from __future__ import annotations

import fractions as fractions_lib
import itertools
import math
from collections.abc import Mapping, Sequence

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
