"""Divides the names of a large folder into ranges, which are listed in parallel.

Only as many names are looked at as are needed to find out where names differ. Wrong guesses make ranges unequal, which
a later cut of the longer ones corrects; they never change what is listed, because the ranges of a folder cover all
possible names without overlap.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

from imagebeam import concurrency

FirstName = Callable[[str, str], "str | None"]  # first name from a start to before an end, as of storage.RangeLister

_REQUESTS_AT_ONCE = 16
_PROBES_PER_RANGE = 10  # at most; hexadecimal names are cut by 16, and so into up to 8 times as many parts
_LARGEST = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)


class _Range(NamedTuple):
    start: str
    end: str  # "" is no bound
    first: str  # the first name in it
    num_shared: int  # characters at the beginning of `first` that all names in the range are known to share


def cut(first_name: FirstName, start: str, end: str, num_wanted: int) -> list[str]:
    """Returns names that cut a range into parts: ascending, between the bounds, without a slash.

    Names are divided by their first character that differs, then each part by its next one, until there are enough.

    Args:
        first_name: asks the storage for the first name of a range; is called from several threads.
        start: name with which the range begins; "" is no bound.
        end: name before which it ends; "" is no bound.
        num_wanted: number of parts. There may be more if many characters occur, and fewer if the names do not allow it.
    """
    first = first_name(start, end)
    if first is None:
        return []
    prober = _Prober(first_name, _PROBES_PER_RANGE * num_wanted)
    parts = [_Range(start, end, first, 0)]
    while len(parts) < num_wanted and prober.has_probes_left:
        divided = list(concurrency.map_ahead(prober.divide, parts, _REQUESTS_AT_ONCE))
        parts = [part for below in divided for part in below]
        if len(parts) == len(divided):  # none could be divided
            break
    return [part.start for part in parts[1:]]


class _Prober:
    """Divides ranges, until it has asked for too many names."""

    def __init__(self, first_name: FirstName, max_probes: int):
        self._probe = functools.cache(first_name)  # the same name is of use twice, see `divide`
        self._max_probes = max_probes

    @property
    def has_probes_left(self) -> bool:
        return self._probe.cache_info().misses < self._max_probes

    def divide(self, whole: _Range) -> list[_Range]:
        """Divides a range by the first character in which its names differ."""
        length = self._count_shared(whole)
        parts: list[_Range] = []
        start, first = whole.start, whole.first
        for bound, following in self._characters(whole, length):
            parts.append(_Range(start, bound, first, min(length + 1, len(first))))
            start, first = bound, following
        return [*parts, _Range(start, whole.end, first, min(length + 1, len(first)))]

    def _characters(self, whole: _Range, length: int) -> Iterator[tuple[str, str]]:
        """Yields where the names with another character at `length` begin: the bound, and the first of these names."""
        first: str | None = whole.first
        while first is not None and self.has_probes_left:
            is_whole = len(first) == length and not first.endswith("/")
            bound = f"{first} " if is_whole else after_all(first[: length + 1])
            first = self._find(bound, whole.end)
            if first is not None:
                yield bound, first

    def _count_shared(self, whole: _Range) -> int:
        """Returns how many characters at the beginning all names in the range share."""

        def is_shared(length: int) -> bool:
            return self._find(after_all(whole.first[:length]), whole.end) is None

        low, high = whole.num_shared, len(whole.first)
        if low == high or not is_shared(low + 1):  # nearly always; `_characters` uses the same probe
            return low
        low += 1
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if is_shared(middle) else (low, middle - 1)
        return low

    def _find(self, start: str, end: str) -> str | None:
        """Returns the first name in a range; None if there is none, or if `start` is "", after all names."""
        return self._probe(start, end) if start and (not end or start < end) else None


def after_all(beginning: str) -> str:
    """Returns the first text without a slash that is after all names with this beginning; "" if there is none."""
    while beginning:
        following = ord(beginning[-1]) + 1
        beginning = beginning[:-1]
        if following in _SURROGATES:  # no characters
            following = _SURROGATES.stop
        if following <= _LARGEST:
            return f"{beginning}{'0' if following == ord('/') else chr(following)}"
    return ""
