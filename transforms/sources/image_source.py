"""The base of sources, and listings: the batches of references, rejects and counts that every source yields."""

from __future__ import annotations

import abc
import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

from imagebeam.transforms import elements, kept_features, sort_intervals
from imagebeam.transforms.classes import label_names
from imagebeam.transforms.images import image_objects, side_by_side

MAX_REFS = 10_000  # in one listing; packed they take some 0.4 MB, so a worker never holds much more than it works on


class Listing(NamedTuple):
    """Part of the images of a source, and what else was found there."""

    packed_refs: bytes | elements.UnpackedRefs  # b"" if they are ranked
    num_refs: int
    rejects: tuple[elements.Reject, ...]
    skipped: Mapping[str, int]  # number of files by kind that do not count as listed
    problems: tuple[str, ...]  # error texts; any of them fails the whole run
    features: kept_features.FeatureSurvey = kept_features.NO_FEATURES  # features of the records that hold the images
    lists: label_names.ListSurvey = label_names.NO_LISTS  # how the images fit label.lists, if they are labelled
    ranked: sort_intervals.SortedIntervals | None = None  # the references of all listings, if they are ranked already

    def packed(self) -> Listing:
        """Returns this listing with its references as bytes."""
        if isinstance(self.packed_refs, bytes):
            return self
        return self._replace(packed_refs=elements.pack_refs(self.packed_refs.refs))


@dataclasses.dataclass(frozen=True)
class RowBatch:
    """Rows of a table whose images are still to be looked up. They are packed when they leave the process."""

    rows: Sequence[tuple[Any, ...]]  # rows of equal length
    table: int = 0  # index of the table, if there are several
    first_position: int = 0  # position of the first row of that table

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpack_batch, (elements.pack_rows(self.rows), self.table, self.first_position)


def _unpack_batch(packed: bytes, table: int, first_position: int) -> RowBatch:
    return RowBatch([*elements.unpack_rows(packed)], table, first_position)


class SourceFacts(NamedTuple):
    """Facts that an open source knows of all its images."""

    columns: tuple[str, ...] = ()  # names of the values that it gives in ImageRef.columns
    class_names: tuple[str, ...] | None = None  # in the order of their ids; None if it names none
    annotations: image_objects.AnnotationReader | None = None  # parses the file ImageRef.mask, in the writers
    shape: tuple[int, int, int] | None = None  # height, width and channels of pixels without a header
    is_raw: bool = False  # whether images are pixels without a header, of the shape in ImageRef.expected
    is_base64: bool = False  # whether the bytes of images are base64
    part: side_by_side.Part = side_by_side.WHOLE  # the first image of an example, where its images lie in one file
    keep: kept_features.KeepRule | None = None  # for more features of the records that hold the images
    keypoints: tuple[str, ...] = ()  # names of the keypoints of each object
    notes: tuple[str, ...] = ()  # for the user, before anything is written
    own_columns: tuple[str, ...] = ()  # that the options of a table use: they name no label
    size_column: str = ""  # column of a table with the sizes of images that were not looked up
    on_repeated_key: str = ""  # what to do about two images with one key; "" for a table
    scheme: str = ""  # of the addresses of images whose bytes `ImageSource.read_image` returns; "" if it reads none
    code: str = ""  # digest of the user's code that lists the images; "" without such code, and if it has a version


class ImageSource(abc.ABC):
    """A source that can list its images; hashable and picklable. Only `list_all` must be implemented."""

    # How Beam lists it in parallel: "rows" as RowSource, "folders" as FilesSource.
    spreads: ClassVar[Literal["", "rows", "folders"]] = ""

    @abc.abstractmethod
    def list_all(self) -> Iterator[Listing]:
        """Yields all images of the source."""

    def facts(self) -> SourceFacts:
        """Returns what is known of all images. May read small files."""
        return SourceFacts()

    def column_names(self) -> Sequence[str] | None:
        """Returns the names of the columns of a table; None for a source that is no table."""
        return None

    def describe_rows(self, positions: Sequence[int]) -> list[str]:
        """Describes the places of the rows of a table for a user, such as `line 5 of /data/a.csv`."""
        raise NotImplementedError

    def listed_folder(self) -> str:
        """Returns the folder whose files are the images: such a listing can be saved. "" for other sources."""
        return ""

    def hint(self, reason: elements.Reason) -> str:
        """Returns what to do if every image is rejected for this reason; "" if there is none."""
        return ""

    def read_image(self, uri: str) -> bytes:
        """Returns the bytes of an image whose address has the scheme of `facts`. Writers call it, on many threads.

        Raises:
            OSError: if this image cannot be read; it becomes a reject.
        """
        raise NotImplementedError


class RowSource(ImageSource):
    """A source whose rows are read in one place, and whose images many workers can look up."""

    spreads = "rows"

    def list_all(self) -> Iterator[Listing]:
        """Yields all images, looked up in this process."""
        for found in self.list_rows():
            yield self.look_up(found) if isinstance(found, RowBatch) else found

    @abc.abstractmethod
    def list_rows(self) -> Iterator[RowBatch | Listing]:
        """Yields all rows in their order, and listings of what belongs to no row."""

    @abc.abstractmethod
    def look_up(self, batch: RowBatch) -> Listing:
        """Returns the images of the rows."""


def list_parts(parts: Iterable[tuple[Iterator[elements.ImageRef | elements.Reject], str]]) -> Iterator[Listing]:
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
        self.skipped: Counter[str] = Counter()
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
            dict(self.skipped),
            tuple(self.problems),
            self.features,
        )
        self.__init__()  # type: ignore[misc]
        return listing
