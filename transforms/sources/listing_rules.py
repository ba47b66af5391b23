"""Rules that are applied to every image that a source lists: what its path says, and which list names it."""

from __future__ import annotations

import array
import dataclasses
import functools
import io
import itertools
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from imagebeam import errors, storage
from imagebeam.transforms import elements
from imagebeam.transforms.sources import image_source, table_rows

_NUM_SHOWN = 3  # paths in an error


@dataclasses.dataclass(frozen=True)
class ListingRules:
    """The rules of a config; without any, listings stay as they are."""

    pattern: PathPattern | None = None
    lists: SplitLists | None = None

    def apply(self, listing: image_source.Listing) -> image_source.Listing:
        """Returns the listing with what the rules say of its images; a rule that cannot be applied is a problem."""
        if self == NO_RULES or not listing.num_refs:
            return listing
        found = image_source.ListingBuilder()
        found.rejects.extend(listing.rejects)
        found.skipped.update(listing.skipped)
        found.problems.extend(listing.problems)
        refs = elements.unpack_refs(listing.packed_refs)
        try:
            if self.lists is not None:
                for listed in self.lists.apply_all(refs):
                    if listed is None:
                        found.skipped[UNLISTED] += 1
                    else:
                        found.add(listed)
                refs, found.refs = found.refs, []
            for ref in refs:
                found.add(ref if self.pattern is None else self.pattern.apply(ref))
        except table_rows.MissingValueError as e:
            found.problems.append(str(e))
        except (OSError, ValueError) as e:
            found.problems.append(f"split.lists cannot be read: {e}")
        return found.take()._replace(features=listing.features)


NO_RULES = ListingRules()


@dataclasses.dataclass(frozen=True)
class HintFinder:
    """Looks for what is wrong with a source of which no image can be used."""

    source: image_source.ImageSource
    rules: ListingRules = NO_RULES

    def hint(self, reason: str) -> str:
        """Returns what to do if every image is rejected or skipped for this reason; "" if there is none."""
        if self.rules.lists is not None and reason == UNLISTED:
            return self.rules.lists.hint(list(self._first_keys()))
        if reason == elements.Reason.NO_MATCH.value:
            return f"the first paths are {', '.join(map(repr, self._first_keys()))}"
        return self.source.hint(elements.Reason(reason))

    def notes(self, found: Mapping[str, int]) -> list[str]:
        """Returns notes on a source some of whose images can be used.

        Args:
            found: number of images by split.
        """
        if self.rules.lists is None:
            return []
        named = self.rules.lists.count_names()
        return [
            f"split.lists names {named[split]:,} images of {split}, and {found.get(split, 0):,} were found"
            for split in named
            if found.get(split, 0) < named[split]
        ]

    def _first_keys(self) -> Iterator[str]:
        refs = (ref for each in self.source.list_all() for ref in elements.unpack_refs(each.packed_refs))
        return (ref.key for ref in itertools.islice(refs, _NUM_SHOWN))


MAX_PATH = 1024  # characters of a path that is matched: bounds the time of patterns that try many ways

# A group that ends in + or * and is itself repeated: (\w+)* tries 2**n ways to match n characters.
_REPEATED_TWICE = re.compile(r"(?<!\\)[+*]\??\)(?:[+*]|\{\d+,\d*\})")


def compile_pattern(key: str, pattern: str) -> re.Pattern[str]:
    """Returns a compiled pattern.

    Raises:
        ValueError: if it is none. It names the key of the config.
    """
    try:
        return re.compile(pattern)
    except re.error as e:
        raise ValueError(f"{key} {pattern!r} is not a regular expression: {e}") from e


def check_pattern(pattern: str, option: str = "source.pattern", needs_names: bool = True) -> frozenset[str]:
    """Returns the names of the groups of a pattern.

    Raises:
        ValueError: if it is no regular expression, has no group (no named one with `needs_names`), or repeats a
            repeated group.
    """
    compiled = compile_pattern(option, pattern)
    if needs_names and not compiled.groupindex:
        raise ValueError(f"{option} {pattern!r} has no named group; write for example (?P<label>[^/]+)/.*")
    if not compiled.groups:
        raise ValueError(f"{option} {pattern!r} has no group; write for example (.*)#.*")
    if repeated := _REPEATED_TWICE.search(pattern):
        raise ValueError(
            f"{option} {pattern!r} repeats a group that ends in a repetition ({repeated[0]!r}), so a path that "
            "does not match could take hours; write it without one of the two repetitions"
        )
    return frozenset(compiled.groupindex)


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


if TYPE_CHECKING:
    import numpy as np

UNLISTED = "not_in_lists"  # kind of images that no list names

_COMMENT = "#"


@dataclasses.dataclass(frozen=True)
class SplitLists(elements.PickledFields):
    """Text files that name the images of a split, one a line. Each process reads them once: 9 bytes a name."""

    lists: tuple[tuple[str, str], ...]  # split, address of its list; a split may have several
    root: str  # folder that keys are relative to
    unlisted: Literal["leave_out", "reject"] = "leave_out"

    def check(self) -> None:
        """Reads the first line of each list.

        Raises:
            ConfigError: if one cannot be read, or names no image.
        """
        for split, uri in self.lists:
            try:
                first = next(_read_lines(uri), None)
            except (OSError, ValueError) as e:
                reason = getattr(e, "strerror", None) or e
                raise errors.ConfigError(
                    "split-lists-unreadable", f"split.lists {split}: {uri!r} cannot be read ({reason})"
                ) from e
            if first is None:
                raise errors.ConfigError(
                    "split-lists-empty", f"split.lists {split}: {uri!r} names no image; give one a line"
                )

    def apply_all(self, refs: Sequence[elements.ImageRef]) -> list[elements.ImageRef | elements.Reject | None]:
        """Returns each reference with its split, or a reject, or None for an image that is left out.

        Raises:
            OSError: if a list cannot be read.
            ValueError: if a list is not UTF-8 text.
        """
        import numpy as np

        names, owners = array.array("Q"), array.array("Q")
        for number, ref in enumerate(refs):
            for name in names_of(ref.key):
                names.append(_hash(name))
                owners.append(number)
        hashes = np.frombuffer(names, np.uint64) if names else np.zeros(0, np.uint64)
        known, splits = self._index
        first = np.searchsorted(known, hashes, "left")
        last = np.searchsorted(known, hashes, "right")
        found: dict[int, set[int]] = {}
        for hit in np.flatnonzero(last > first).tolist():
            found.setdefault(owners[hit], set()).update(splits[first[hit] : last[hit]].tolist())
        return [self._assign(ref, sorted(found.get(number, ()))) for number, ref in enumerate(refs)]

    def _assign(self, ref: elements.ImageRef, numbers: Sequence[int]) -> elements.ImageRef | elements.Reject | None:
        named = {self.lists[number][0] for number in numbers}
        if len(named) == 1:
            return ref.with_split(named.pop())
        if named:
            places = " and ".join(f"that of {split}, {uri!r}" for split, uri in map(self.lists.__getitem__, numbers))
            detail = f"{ref.key!r} is in several lists: {places}; remove it from all but one"
            return elements.Reject(ref.key, ref.uri, "list", elements.Reason.BAD_SPLIT, detail)
        if self.unlisted == "leave_out":
            return None
        detail = f"{ref.key!r} is in none of split.lists; split.unlisted: leave_out would leave it out"
        return elements.Reject(ref.key, ref.uri, "list", elements.Reason.BAD_SPLIT, detail)

    def count_names(self) -> Mapping[str, int]:
        """Returns the number of different names in the lists of each split.

        Raises:
            OSError: if a list cannot be read.
            ValueError: if a list is not UTF-8 text.
        """
        import numpy as np

        hashes: dict[str, array.array[int]] = {}
        for split, uri in self.lists:
            hashes.setdefault(split, array.array("Q")).extend(_hash(line) for line in _read_lines(uri))
        return {split: len(np.unique(np.frombuffer(names, np.uint64))) for split, names in hashes.items() if names}

    def hint(self, keys: Sequence[str]) -> str:
        """Returns what to do if no list names an image; `keys` are those of the first images."""
        split, uri = self.lists[0]
        first = next(_read_lines(uri), "")
        return (
            f"the first images are {', '.join(map(repr, keys))}, and the first line of the list of {split}, {uri!r}, "
            f"is {first!r}: its lines must be such paths, or their ends, with or without the extension; check --input"
        )

    @functools.cached_property
    def _index(self) -> tuple[np.ndarray, np.ndarray]:
        """The sorted hashes of all names, and for each the index of its list."""
        import numpy as np

        hashes, numbers = array.array("Q"), array.array("B")
        for number, (_, uri) in enumerate(self.lists):
            folder = posixpath.dirname(uri)
            for line in _read_lines(uri):
                for name in self._names_in(line, folder):
                    hashes.append(_hash(name))
                    numbers.append(number)
        found = np.frombuffer(hashes, np.uint64)
        order = np.argsort(found, kind="stable")
        return found[order], np.frombuffer(numbers, np.uint8)[order]

    def _names_in(self, line: str, folder: str) -> Iterator[str]:
        """Yields the names that a line may mean: the whole line, and its first field."""
        for name in dict.fromkeys((line, line.split(maxsplit=1)[0])):
            if not name.startswith("."):
                yield name
                continue
            uri = storage.join_relative(folder, posixpath.normpath(name))  # ./a.jpg, ../images/a.jpg
            yield uri.removeprefix(storage.join(self.root, ""))
            if name.startswith("./"):
                yield posixpath.normpath(name)


def names_of(key: str) -> Iterator[str]:
    """Yields the names by which a list may mean the image: its key and the ends of it, with and without extension."""
    stem = posixpath.splitext(key)[0]
    start = 0
    while True:
        yield key[start:]
        if stem != key:
            yield stem[start:]
        start = key.find("/", start) + 1
        if not start:
            return


def _read_lines(uri: str) -> Iterator[str]:
    """Yields the lines of a list, stripped, without blank ones and comments."""
    raw: Any = storage.storage_of(uri).open_read(uri)
    with io.TextIOWrapper(io.BufferedReader(raw, 1 << 20), encoding="utf-8-sig") as text:
        for line in text:
            stripped = line.strip()
            if stripped and not stripped.startswith(_COMMENT):
                yield stripped


def _hash(name: str) -> int:
    return elements.hash64(name, 0, b"imagebeam.lists")
