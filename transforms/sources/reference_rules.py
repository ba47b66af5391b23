"""Label, split and rank of the images that a source lists, as far as no other image decides them. Imports no Beam.

A worker applies the rules to each listing. The launcher of a local job has a writer process list the whole source
instead, which applies the same rules; if the references are few enough to be sorted at once, it ranks them, too.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import itertools
import numbers
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from imagebeam import concurrency, records
from imagebeam.transforms import elements, sort_intervals, user_code
from imagebeam.transforms.classes import class_names, label_names
from imagebeam.transforms.sources import image_source, listing_rules, table_rows
from imagebeam.transforms.sources.table_rows import BadRowError

_MAX_PLAIN_REFS = 100_000  # that are not compressed: 15 MB, a tenth of a second
_MAX_WHOLE_BYTES = 24 << 20  # packed references that are ranked here: fewer with many boxes or long captions
_SAMPLE_REFS = 100  # the bytes of a listing are estimated from so many
_GC_THRESHOLD = 300_000  # new objects before garbage is collected: references are in no cycle, and stay


@dataclasses.dataclass(frozen=True)
class ReferenceRules:
    """The rules of a config for every image that its source lists; without any, listings stay as they are."""

    listing: listing_rules.ListingRules = listing_rules.NO_RULES
    label: LabelRule | None = None
    split: SplitRule | None = None  # None if splits depend on all images

    def apply(self, listing: image_source.Listing) -> image_source.Listing:
        """Returns the listing with the labels and splits of its images. What a rule rejects is among its rejects."""
        listing = self.listing.apply(listing)
        refs = elements.unpack_refs(listing.packed_refs)
        rejects = list(listing.rejects)
        lists = () if self.label is None else self.label.names.lists
        surveyor = label_names.ListSurveyor(lists) if lists else None
        if self.label is not None or self.split is not None:
            given, refs = refs, []
            for ref in given:
                found = self._apply_to(ref, surveyor)
                if isinstance(found, elements.Reject):
                    rejects.append(found)
                else:
                    refs.append(found)
        survey = label_names.NO_LISTS if surveyor is None else surveyor.survey
        return listing._replace(
            packed_refs=elements.UnpackedRefs(refs), num_refs=len(refs), rejects=tuple(rejects), lists=survey
        )

    def _apply_to(
        self, ref: elements.ImageRef, surveyor: label_names.ListSurveyor | None
    ) -> elements.ImageRef | elements.Reject:
        """Returns a reference with its label and split, or its reject; counts how it fits label.lists."""
        try:
            if self.label is not None:
                ref = self.label.apply(ref)
        except BadRowError as e:
            return elements.Reject(ref.key, ref.uri, "label", e.reason, e.detail)
        finally:
            if surveyor is not None:
                surveyor.add(ref.key, ref.label)
        try:
            return ref if self.split is None else self.split.apply(ref)
        except ValueError as e:
            return elements.Reject(ref.key, ref.uri, "split", elements.Reason.BAD_SPLIT, str(e))


NO_RULES = ReferenceRules()


class ListingTask(NamedTuple):
    """Listing of a whole source by one process."""

    source: image_source.ImageSource
    rules: ReferenceRules
    order: sort_intervals.HashOrder | None = None  # in which images are ranked in their splits; None: not here


def list_whole(task: ListingTask) -> list[image_source.Listing]:
    """Lists a source completely in the calling process, which should do nothing else meanwhile."""
    thresholds = gc.get_threshold()
    gc.set_threshold(_GC_THRESHOLD, *thresholds[1:])
    try:
        listings: Iterator[image_source.Listing] = map(task.rules.apply, task.source.list_all())
        if task.order is not None:
            first, are_all = _take_first(listings)
            if are_all:
                return _rank(first, task.order)
            listings = itertools.chain(first, listings)
        return list(_pack(listings))
    finally:
        gc.set_threshold(*thresholds)


def _take_first(listings: Iterator[image_source.Listing]) -> tuple[list[image_source.Listing], bool]:
    """Takes listings until their references are too many to be sorted at once; returns whether these are all."""
    taken, num_refs, num_bytes = [], 0, 0.0
    for listing in listings:
        taken.append(listing)
        num_refs += listing.num_refs
        sample = elements.unpack_refs(listing.packed_refs)[:: -(-listing.num_refs // _SAMPLE_REFS) or 1]
        num_bytes += len(elements.pack_refs(sample, sys.maxsize)) * listing.num_refs / (len(sample) or 1)
        if num_refs > sort_intervals.MAX_WHOLE or num_bytes > _MAX_WHOLE_BYTES:
            return taken, False
    return taken, True


def _rank(listings: Sequence[image_source.Listing], order: sort_intervals.HashOrder) -> list[image_source.Listing]:
    """Returns the listings without their references, and one with the ranks of them all."""
    refs = itertools.chain.from_iterable(elements.unpack_refs(listing.packed_refs) for listing in listings)
    ranked = sort_intervals.sort_whole(refs, order)
    without = [listing._replace(packed_refs=b"") for listing in listings]
    return [*without, image_source.Listing(b"", 0, (), {}, (), ranked=ranked)]


def _pack(listings: Iterable[image_source.Listing]) -> Iterator[image_source.Listing]:
    num_refs = 0
    for listing in listings:
        num_refs += listing.num_refs
        max_plain_bytes = sys.maxsize if num_refs <= _MAX_PLAIN_REFS else elements.MAX_PLAIN_BYTES
        refs = elements.unpack_refs(listing.packed_refs)
        yield listing._replace(packed_refs=elements.pack_refs(refs, max_plain_bytes))


_parse_number = functools.lru_cache(maxsize=4096)(table_rows.parse_number)  # classes repeat: a sixth of the time


@dataclasses.dataclass(frozen=True)
class LabelRule(elements.PickledFields):
    """Rule that finds the label of a reference."""

    by: str  # directory, filename, column, function or none
    level: int = 0  # for directory: which folder below the root, from 0
    pattern: str | None = None  # for filename
    group: str | None = None  # for filename: the pattern's group that is the split's group
    kind: str | None = "class"  # class, int64, float or None
    names: label_names.LabelNames | label_names.StagedNames = label_names.NO_NAMES
    hint: str = ""  # for directory: hint for an image that is in no folder
    function: user_code.UserCode | None = None  # for function
    many: bool = False  # for function: whether an image may have several classes
    columns: tuple[str, ...] = ()  # sources of the values in ImageRef.columns, for `function`
    max_seconds: float = user_code.MAX_SECONDS  # for a call of `function`

    def apply(self, ref: elements.ImageRef) -> elements.ImageRef:
        """Returns `ref` with its label.

        Raises:
            BadRowError: if there is none, or it is not allowed.
        """
        if self.by == "none":
            return ref
        group = ref.group
        if self.by == "function":
            ref = ref.with_label(self._from_function(ref), group)
        if self.by == "directory":
            label = self._from_directory(ref)
        elif self.by == "filename":
            label, group = self._from_filename(ref)
        elif isinstance(ref.label, tuple):
            return self._with_several(ref, ref.label)
        else:
            label = "" if ref.label is None else str(ref.label)
            if not label or label.isspace():
                where = f"{self.function.setting} returned no label" if self.function else "the label's column is empty"
                raise BadRowError(elements.Reason.NO_LABEL, where)
        if self.kind != "class":
            try:
                return ref.with_label(_parse_number(str(self.kind), label), group)
            except ValueError as e:
                hint = "" if table_rows.is_number(label) else "; for class names set label.type: class"
                raise BadRowError(elements.Reason.BAD_VALUE, f"label: {e}{hint}") from e
        if self.by == "column":
            label = class_names.spell(label)
        self._check_class(ref, label)
        return ref.with_label(label, group)

    @functools.cached_property
    def _call(self) -> Callable[..., Any]:
        """The user's function, made by the thread that will call it: a connection to a database may belong to one."""
        assert self.function is not None
        return concurrency.call_in_time(self.function.start, None)

    def _from_function(self, ref: elements.ImageRef) -> elements.Label:
        """Returns what the user's function returns for an image."""
        assert self.function is not None
        call = functools.partial(self._call, user_code.reference_of(ref, self.columns))
        where = f"{self.function.setting} {self.function.path!r}"
        try:
            label = concurrency.call_in_time(call, self.max_seconds)
        except concurrency.TooSlowError as e:
            raise BadRowError(elements.Reason.TOO_SLOW, user_code.too_slow(self.function, e)) from e
        except (Exception, SystemExit) as e:  # code of the user raises any type
            raise BadRowError(elements.Reason.FUNCTION, f"{where} raised {user_code.describe(e)}") from e
        if label is None:
            return None
        if self.many:
            if isinstance(label, (list, tuple)) and all(isinstance(one, str) and one for one in label):
                return tuple(label)
            expected = "a tuple of texts, or None"
        else:
            if isinstance(label, (str, numbers.Real)) and not isinstance(label, bool):
                return str(label)
            expected = "a text, or None; for several classes set label.type: classes"
            expected = expected if self.kind == "class" else "a number, or None"
        detail = f"{where} returned {user_code.describe_value(label)}, expected {expected}"
        raise BadRowError(elements.Reason.FUNCTION, detail)

    def _with_several(self, ref: elements.ImageRef, labels: tuple[str, ...]) -> elements.ImageRef:
        if self.by == "column":
            labels = tuple(dict.fromkeys(map(class_names.spell, labels)))
        for label in labels:
            self._check_class(ref, label)
        return ref.with_label(labels, ref.group)

    def _check_class(self, ref: elements.ImageRef, label: str) -> None:
        if self._vocabulary is not None and label not in self._vocabulary:
            raise BadRowError(elements.Reason.UNKNOWN_LABEL, f"label {label!r} is not in label.vocabulary")
        if not label:
            raise BadRowError(elements.Reason.NO_LABEL, f"{ref.key!r} is in a folder without a name")
        if label.splitlines() != [label]:
            raise BadRowError(elements.Reason.BAD_VALUE, f"label {label!r} has a line break, labels.txt cannot hold it")

    @functools.cached_property
    def _regex(self) -> re.Pattern[str]:
        return re.compile(self.pattern or "")

    def _from_directory(self, ref: elements.ImageRef) -> str:
        listed = self._lists.get(label_names.folder_of(ref.key)) if self._lists else None
        if listed is not None:
            return self._from_list(ref, listed)
        folders = ref.key.split("/")[:-1]
        if len(folders) <= self.level:
            expected = "split/label/image" if self.level else "label/image"
            hint = self.hint and f"; {self.hint}"
            raise BadRowError(elements.Reason.NO_LABEL, f"{ref.key!r} is not of the form {expected}{hint}")
        return folders[self.level]

    @functools.cached_property
    def _vocabulary(self) -> frozenset[str] | None:
        return None if self.names.vocabulary is None else frozenset(self.names.vocabulary)

    @functools.cached_property
    def _lists(self) -> dict[str, tuple[str, ...]]:
        return dict(self.names.lists)

    @staticmethod
    def _from_list(ref: elements.ImageRef, labels: tuple[str, ...]) -> str:
        number = label_names.number_of(ref.key)
        if not 1 <= number <= len(labels):
            raise BadRowError(
                elements.Reason.NO_LABEL,
                f"the name of {ref.key!r} ends in no number from 1 to {len(labels):,}, the lines of label.lists",
            )
        return labels[number - 1]

    def _from_filename(self, ref: elements.ImageRef) -> tuple[str, str]:
        name = ref.uri.rpartition("/")[2]
        match = self._regex.fullmatch(name)
        if match is None or not match["label"]:
            raise BadRowError(elements.Reason.NO_LABEL, f"{name!r} does not match label.pattern {self.pattern!r}")
        return match["label"], (match[self.group] or "") if self.group else ref.group


PURPOSE = b"imagebeam.split"


@dataclasses.dataclass(frozen=True)
class SplitRule:
    """Rule that finds the split of a reference."""

    by: str  # directory, column, hash, index, source or none
    name: str = "train"  # for none
    fractions: tuple[tuple[str, float], ...] = ()  # for hash: in the order of the config
    counts: tuple[tuple[str, int | None], ...] = ()  # for index: rows of each split; None is all that follow
    holdout: tuple[tuple[str, str, int], ...] = ()  # new split, split to take rows from, how many of its first rows
    stratify: bool = False
    grouped: bool = False
    seed: int = 0
    rename: tuple[tuple[str, str], ...] = ()
    declared: tuple[str, ...] | None = None

    def of_hash(self, value: int) -> str:
        """Returns the split of a hash. An image never changes its split when others are added or removed."""
        return self.at(value, 1 << elements.HASH_BITS)

    def at(self, position: int, total: int) -> str:
        """Returns the split that holds `position` of `total` when the splits follow each other."""
        reached = 0.0
        for name, fraction in self.fractions:
            reached += fraction
            if position < round(reached * total):
                return name
        return self.fractions[-1][0]

    def of_row(self, position: int) -> str:
        """Returns the split of a row of the table.

        Raises:
            ValueError: if the row comes after all splits.
        """
        end = 0
        for name, count in self.counts:
            end += count if count is not None else position - end + 1
            if position < end:
                return name
        raise ValueError(f"row {position} comes after the {end:,} that split.counts names; give the last split null")

    def apply(self, ref: elements.ImageRef) -> elements.ImageRef:
        """Returns `ref` with its split, for rules that need no other reference.

        Raises:
            ValueError: if there is no split for it.
        """
        split = self._find(ref)
        for name, taken_from, first in self.holdout:
            if split == taken_from and ref.position < first:
                split = name
                break
        return ref if split == ref.split else ref.with_split(split)

    def _find(self, ref: elements.ImageRef) -> str:
        if self.by == "index":
            return self.of_row(ref.position)
        if self.by == "none":
            return self.name
        if self.by == "hash":
            value = elements.hash64((self.grouped and ref.group) or ref.key, self.seed, PURPOSE)
            return self.of_hash(value)
        given = ref.key.split("/")[0] if self.by == "directory" else ref.split
        if self.by == "directory" and given == ref.key:
            raise ValueError(f"{ref.key!r} is in no folder; expected split/image or split/label/image")
        found = self._found.get(given)
        if found is None:
            found = self._found[given] = self._name_of(given)
        return found

    @functools.cached_property
    def _found(self) -> dict[str, str]:
        """The splits of the names met before: there are few, and each is checked once."""
        return {}

    def _name_of(self, given: str) -> str:
        """Returns the split that the source names `given`.

        Raises:
            ValueError: if it is not allowed.
        """
        name = dict(self.rename).get(given, given)
        if not records.SPLIT_NAME.fullmatch(name):
            raise ValueError(f"split {name!r} must consist of letters, digits, '_', '.' and '-'; set split.rename")
        if self.declared is not None and name not in self.declared:
            raise ValueError(f"split {name!r} is not among the declared ones, {', '.join(self.declared)}")
        return name
