"""Finds hashes of 64 bits that differ in few bits, without comparing all pairs.

The bits are cut into blocks. Two hashes that differ in at most `distance` bits differ in at most as many blocks, so
they agree in all others: in a table for each choice of these others, both have the same key. Only hashes with the same
key are compared. With the numbers of blocks below a key has 16 to 32 bits, so few other hashes have it by chance.

Source: Manku, Jain, Das Sarma, "Detecting Near-Duplicates for Web Crawling", WWW 2007,
https://research.google.com/pubs/archive/33026.pdf
"""

from __future__ import annotations

import itertools

import numpy as np

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
    """Returns the bits of the key in each table."""
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
    places = np.arange(len(keys)) - np.repeat(starts, sizes)  # of each hash among those with its key
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
