"""Orders of references, and the intervals of their order values. Imports no Beam: writer processes sort too."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from imagebeam.transforms import elements, hashing

NUM_INTERVALS = (
    1024  # 100 million references are 100,000 per interval, sorted in 0.2 s and 60 MB; more are cut in parts
)
PURPOSE = b"imagebeam.order"  # of the hashes that order a split
_MAX_PART_REFS = 200_000  # of an interval that are objects at the same time: 120 MB


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
        return hashing.hash64_all(fields, self.seed, self.purpose)

    def intervals(self, values: Sequence[Any], boundaries: Sequence[Any]) -> list[int]:
        """Returns the intervals of hashes: equal parts of the hashes' range. `boundaries` is not used."""
        return [value * NUM_INTERVALS >> hashing.HASH_BITS for value in values]

    def num_parts(self, num_refs: int) -> int:
        """Returns in how many parts an interval with so many references is sorted."""
        return -(-num_refs // _MAX_PART_REFS) or 1

    def part(self, value: Any, num_parts: int) -> int:
        """Returns the part of its interval that holds a hash. Parts are equal parts of the interval's range."""
        return (value * NUM_INTERVALS % (1 << hashing.HASH_BITS)) * num_parts >> hashing.HASH_BITS


@dataclasses.dataclass(frozen=True)
class ListedOrder:
    """Orders by the row of the manifest, then by key. Intervals end at approximate quantiles."""

    def values(self, refs: Sequence[elements.ImageRef]) -> Sequence[Any]:
        """Returns rows and keys, the keys as bytes: Beam encodes strings as UTF-8, which a file name may not be."""
        return [(ref.position, hashing.encode_key(ref.key)) for ref in refs]

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
        hashes = hashing.hash64_all([ref.key for ref in refs], 0, b"imagebeam.sample")
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
