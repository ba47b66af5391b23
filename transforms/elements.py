"""The values that pass between the steps of the pipeline. No Beam here, so that writer processes stay small."""

from __future__ import annotations

import dataclasses
import enum
import functools
import pickle
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from imagebeam import catalog as catalog_lib
from imagebeam import features

Label: TypeAlias = "str | int | float | tuple[str, ...] | None"  # class, target's value, several classes


class Mask(NamedTuple):
    """Where the picture of an image's classes is, a class for each pixel."""

    uri: str
    size: int = -1  # bytes; -1 when not known
    version: int = 0  # as of ImageRef


class ImageRef(NamedTuple):
    """Where one image is and what is known of it before its bytes are read."""

    key: str  # stable id: the path relative to the source's root, or the manifest's id
    uri: str  # address of the file that holds the bytes
    size: int = -1  # bytes of the image; -1 when not known
    version: int = 0  # of the file: GCS generation; elsewhere its change time in ns since the epoch; 0 when not known
    offset: int = 0  # first byte of the image in the file; in what it holds, where it ends in .gz and `length` is given
    length: int = -1  # bytes to read from `offset`; -1 reads to the end
    position: int = 0  # row of the table, from 0; 0 for files
    label: Label = None
    split: str = ""
    group: str = ""  # all images of a group go to one split; "" is no group
    columns: tuple[Any, ...] = ()  # values of what the source gives beside, in the order of DatasetLayout.columns
    mask: Mask | None = None
    expected: tuple[int, int] | None = None  # height and width in pixels for which the source gives places in the image
    inside: tuple[int, int] | None = None  # offset and length of the image in the record that is read, a whole Example

    def with_label(self, label: Label, group: str) -> ImageRef:
        """This reference with its label and group; twice as fast as `_replace`, once for each image."""
        return _new_ref((*self[:7], label, self.split, group, *self[10:]))

    @property
    def num_bytes(self) -> int:
        """Of all that is read for it, as far as known."""
        size = max(self.size, 0)
        return size if self.mask is None else size + max(self.mask.size, 0)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of its classes."""
        if isinstance(self.label, str):
            return (self.label,)
        return self.label if isinstance(self.label, tuple) else ()

    def with_split(self, split: str) -> ImageRef:
        """This reference with its split."""
        return _new_ref((*self[:8], split, *self[9:]))


_new_ref: Callable[[Iterable[Any]], ImageRef] = functools.partial(tuple.__new__, ImageRef)  # 0.1 us; ImageRef(): 0.4


class Reason(str, enum.Enum):
    """Why an image was turned away: a closed set, usable as a metric's name."""

    NOT_FOUND = "not_found"  # the manifest or a link names a file that is not there
    UNREADABLE = "unreadable"  # the file exists but cannot be read
    OUTSIDE_ROOT = "outside_root"  # the manifest's path leaves the manifest's folder
    BAD_ROW = "bad_row"  # a row of the manifest that cannot be parsed, or lacks the image or the key
    NO_LABEL = "no_label"  # no label can be had from the directory, file name or column
    UNKNOWN_LABEL = "unknown_label"  # the label is not in the user's vocabulary
    BAD_VALUE = "bad_value"  # a column's value is not of the configured type
    BAD_SPLIT = "bad_split"  # no split can be had, or it is not among the declared ones
    CHANGED = "changed"  # between the listing and the reading
    EMPTY_FILE = "empty_file"
    NOT_AN_IMAGE = "not_an_image"
    UNSUPPORTED_FORMAT = "unsupported_format"
    TRUNCATED = "truncated"  # the file ends before the image does
    CORRUPT = "corrupt"  # the structure of the image is broken
    UNDECODABLE = "undecodable"  # the structure is whole but the decoder fails
    TOO_LARGE = "too_large"  # more than one tf.train.Example can hold, or than a decoder takes

    def __str__(self) -> str:
        return self.value


class Reject(NamedTuple):
    """An image turned away, as it stands in `rejects.jsonl`."""

    key: str
    uri: str
    stage: str  # list, label, split, read or check
    reason: Reason
    detail: str


class ReferenceRun(NamedTuple):
    """References of one partition that follow each other in its order, the first of them at `first_rank`."""

    first_rank: int
    num_refs: int
    packed: bytes

    @property
    def refs(self) -> list[ImageRef]:
        """The references, unpacked; a run that is only passed on stays packed."""
        return unpack_refs(self.packed)


class WrittenShard(NamedTuple):
    """One finished shard: what the catalog says of it, and what the writer counted while writing it."""

    split: str
    shard: catalog_lib.Shard
    rejected: Mapping[str, int]  # images turned away while this shard was written, by reason
    statistics: Mapping[str, Any]  # see shard.statistics
    is_kept: bool = False  # whether a run before this one finished it


@dataclasses.dataclass(frozen=True)
class SplitPlan:
    """How one split is laid out: shard `i` of `num_shards` holds ranks [n*i/num_shards, n*(i+1)/num_shards)."""

    num_records: int
    num_bytes: int  # of the images, as far as their sizes are known
    num_shards: int

    def shard_start(self, shard_index: int) -> int:
        return self.num_records * shard_index // self.num_shards

    def shard_of(self, rank: int) -> int:
        """The shard that holds `rank`: the inverse of `shard_start`."""
        return ((rank + 1) * self.num_shards - 1) // self.num_records


@dataclasses.dataclass(frozen=True)
class DatasetPlan:
    """What one run will write, decided before any image is read: the same for the same input and config."""

    action: str  # "write"; "keep" (this very dataset is committed already); "refuse"
    message: str  # why, when the action is not "write"
    exit_code: int  # of the command when the action is "refuse"
    fingerprint: str  # hex of config + reference set
    splits: Mapping[str, SplitPlan]
    labels: tuple[str, ...]  # class names in the order of their ids; empty without classes
    listed: int
    rejected: Mapping[str, int]  # before any image was read, by reason
    passed_over: Mapping[str, int]  # hidden files, non-images and the like, by kind
    notes: tuple[str, ...] = ()  # what the user should know before it is written
    num_unseen_labels: int = 0  # classes of the vocabulary without an image
    inputs: Mapping[str, Any] = dataclasses.field(default_factory=dict, compare=False)  # see recorded_inputs
    kept: tuple[features.Feature, ...] = ()  # of the records that are written anew, beside those of the layout


_LEVEL = 1  # zlib: neighbouring keys share most of their bytes, level 1 takes 4/5 of them away for 1 us a reference


def pack_refs(refs: Sequence[ImageRef]) -> bytes:
    """References as compact bytes, column by column: 30 to 60 bytes each instead of some 600 as Python objects."""
    return pack_rows(refs)


def unpack_refs(packed: bytes) -> list[ImageRef]:
    """The inverse of `pack_refs`."""
    return list(map(_new_ref, unpack_rows(packed)))


def pack_rows(rows: Sequence[tuple[Any, ...]]) -> bytes:
    """Rows of equal length as compact bytes."""
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, wbits=12, memLevel=5)  # small tables are set up sooner
    return compressor.compress(pickle.dumps(list(zip(*rows)), protocol=5)) + compressor.flush()


def unpack_rows(packed: bytes) -> Iterator[tuple[Any, ...]]:
    """The inverse of `pack_rows`."""
    return zip(*pickle.loads(zlib.decompress(packed)))
