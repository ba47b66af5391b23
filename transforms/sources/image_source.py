"""Listings: batches of references, rejects and counts. Every source yields them."""

from __future__ import annotations

import gc
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol, runtime_checkable

from imagebeam.transforms import elements, kept_features, sort_intervals
from imagebeam.transforms.classes import labels_by_index

MAX_REFS = 10_000  # in one listing; packed they take some 0.4 MB, so a worker never holds much more than it works on


class Listing(NamedTuple):
    """Part of the images of a source, and what else was found there."""

    packed_refs: bytes | elements.UnpackedRefs  # b"" if they are ranked
    num_refs: int
    rejects: tuple[elements.Reject, ...]
    passed_over: Mapping[str, int]  # number of files by kind that do not count as listed
    problems: tuple[str, ...]  # error texts; any of them fails the whole run
    features: kept_features.FeatureSurvey = kept_features.NO_FEATURES  # of the records that hold the images
    lists: labels_by_index.ListSurvey = labels_by_index.NO_LISTS  # how the images fit label.lists, if they are labelled
    ranked: sort_intervals.SortedIntervals | None = None  # the references of all listings, if they are ranked already

    def packed(self) -> Listing:
        """Returns this listing with its references as bytes."""
        if isinstance(self.packed_refs, bytes):
            return self
        return self._replace(packed_refs=elements.pack_refs(self.packed_refs.refs))


class ImageSource(Protocol):
    """A source that can list its images; hashable and picklable."""

    def list_all(self) -> Iterator[Listing]:
        """Yields all images of the source."""


class RowBatch(NamedTuple):
    """Rows of a table whose images are still to be looked up."""

    packed: bytes
    table: int = 0  # index of the table, if there are several
    first_position: int = 0  # of the first row of that table


@runtime_checkable
class RowSource(ImageSource, Protocol):
    """A source that can read its rows in one place and look up their images in many."""

    def list_rows(self) -> Iterator[RowBatch | Listing]:
        """Yields all rows, and listings of what belongs to no row."""

    def look_up(self, batch: RowBatch) -> Listing:
        """Returns the images of the rows."""


_GC_THRESHOLD = 300_000  # new objects before garbage is collected: references are in no cycle, and stay


def list_whole(source: ImageSource) -> list[Listing]:
    """Lists a source completely in the calling process, which should do nothing else meanwhile."""
    thresholds = gc.get_threshold()
    gc.set_threshold(_GC_THRESHOLD, *thresholds[1:])
    try:
        return list(source.list_all())
    finally:
        gc.set_threshold(*thresholds)


@runtime_checkable
class Advising(ImageSource, Protocol):
    """A source that can look for what is wrong if all of its images are rejected."""

    def advise(self, reason: elements.Reason) -> str:
        """Returns what to do if every image is rejected for this reason; "" if there is no advice."""


def list_parts(
    parts: Iterable[tuple[Iterator[elements.ImageRef | elements.Reject], str]],
) -> Iterator[Listing]:
    """Yields what the parts of a source hold, in their order. A part that cannot be read becomes a problem.

    Args:
        parts: for each one its images and rejects, and the name of what is read for them.
    """
    found = ListingBuilder()
    for images, what in parts:
        try:
            while found.fill(images):
                yield found.take()
        except OSError as e:
            found.problems.append(f"{what} cannot be read ({e.strerror or e}); run the command again")
    yield found.take()


class ListingBuilder:
    """Collects what a source finds; `take` returns it as a listing, to be called when `is_full`."""

    def __init__(self) -> None:
        self.refs: list[elements.ImageRef] = []
        self.rejects: list[elements.Reject] = []
        self.passed_over: Counter[str] = Counter()
        self.problems: list[str] = []
        self.features = kept_features.NO_FEATURES

    def add(self, found: elements.ImageRef | elements.Reject) -> None:
        """Adds an image, or its reject."""
        if isinstance(found, elements.Reject):
            self.rejects.append(found)
        else:
            self.refs.append(found)

    def fill(self, images: Iterator[elements.ImageRef | elements.Reject]) -> bool:
        """Adds images and rejects until this is full, or they end; those before an error too. Returns `is_full`."""
        some: list[elements.ImageRef | elements.Reject] = []
        try:
            some.extend(itertools.islice(images, MAX_REFS - len(self.refs) - len(self.rejects)))
        finally:
            refs = [each for each in some if not isinstance(each, elements.Reject)]
            self.refs += refs
            if len(refs) < len(some):
                self.rejects += (each for each in some if isinstance(each, elements.Reject))
        return self.is_full

    @property
    def is_full(self) -> bool:
        """True if enough was collected for one listing."""
        return len(self.refs) + len(self.rejects) >= MAX_REFS

    def take(self) -> Listing:
        """Returns what was collected so far and empties the builder."""
        listing = Listing(
            elements.UnpackedRefs(self.refs) if self.refs else elements.pack_refs([]),
            len(self.refs),
            tuple(self.rejects),
            dict(self.passed_over),
            tuple(self.problems),
            self.features,
        )
        self.__init__()  # type: ignore[misc]
        return listing
