"""Reads label, split, group and columns from the path of an image, by a regular expression."""

from __future__ import annotations

import dataclasses
import functools
import re

from imagebeam.transforms import elements
from imagebeam.transforms.sources import table_rows

MAX_PATH = 1024  # characters of a path that is matched: bounds the time of patterns that try many ways

# A group that ends in + or * and is itself repeated: (\w+)* tries 2**n ways to match n characters.
_REPEATED_TWICE = re.compile(r"(?<!\\)[+*]\??\)(?:[+*]|\{\d+,\d*\})")


def check(pattern: str) -> frozenset[str]:
    """Returns the names of the groups of a pattern.

    Raises:
        ValueError: if it is no regular expression, has no named group, or repeats a repeated group.
    """
    try:
        groups = re.compile(pattern).groupindex
    except re.error as e:
        raise ValueError(f"source.pattern {pattern!r} is not a regular expression: {e}") from e
    if not groups:
        raise ValueError(f"source.pattern {pattern!r} has no named group; write for example (?P<label>[^/]+)/.*")
    if repeated := _REPEATED_TWICE.search(pattern):
        raise ValueError(
            f"source.pattern {pattern!r} repeats a group that ends in a repetition ({repeated[0]!r}), so a path that "
            "does not match could take hours; write it without one of the two repetitions"
        )
    return frozenset(groups)


@dataclasses.dataclass(frozen=True)
class PathPattern(elements.PickledFields):
    """A pattern for whole keys, whose named groups are the cells of a row."""

    pattern: str
    fields: table_rows.RowFields

    def apply(self, ref: elements.ImageRef) -> elements.ImageRef | elements.Reject:
        """Returns the reference with what its path says, or a reject.

        Raises:
            MissingValueError: if a value is missing or cannot be parsed and the config says that this fails the run.
        """
        if len(ref.key) > MAX_PATH:
            return _reject(ref, elements.Reason.NO_MATCH, f"the path has more than {MAX_PATH:,} characters")
        match = self._regex.fullmatch(ref.key)
        if match is None:
            return _reject(ref, elements.Reason.NO_MATCH, f"{ref.key!r} does not match source.pattern {self.pattern!r}")
        try:
            return self.fields.fill(ref, match.groupdict())
        except table_rows.BadRowError as e:
            return _reject(ref, e.reason, f"{ref.key!r}: {e.detail}")
        except table_rows.MissingValueError as e:
            raise table_rows.MissingValueError(f"{ref.uri}: {e}") from e

    @functools.cached_property
    def _regex(self) -> re.Pattern[str]:
        return re.compile(self.pattern)


def _reject(ref: elements.ImageRef, reason: elements.Reason, detail: str) -> elements.Reject:
    return elements.Reject(ref.key, ref.uri, "list", reason, detail)
