"""The values that pass between the steps of the pipeline. Imports no Beam, so that writer processes stay small."""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import pickle
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from imagebeam import catalog as catalog_lib
from imagebeam import errors, features, storage

HASH_BITS = 64


def encode_key(key: str) -> bytes:
    """Encodes `key` as UTF-8. The undecodable bytes of a POSIX file name are restored."""
    try:
        return key.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half a surrogate pair, which JSON can spell and no file name can hold
        return key.encode("utf-8", "surrogatepass")


def encode_keys(keys: Sequence[str]) -> list[bytes]:
    """Encodes keys as `encode_key` does, in less time."""
    try:
        return [key.encode("utf-8", "surrogateescape") for key in keys]
    except UnicodeEncodeError:
        return list(map(encode_key, keys))


def hash64(key: str, seed: int, purpose: bytes) -> int:
    """Returns a uniform hash in [0, 2**64): BLAKE2b of the key, salted with the dataset's seed.

    `purpose` (at most 16 bytes) makes hashes for different uses independent, such as the split and the order inside it.
    Source: RFC 7693, with the salt and personalisation parameters.
    """
    return hash64_all((key,), seed, purpose)[0]


def hash64_all(keys: Sequence[str], seed: int, purpose: bytes) -> list[int]:
    """Returns the hash of each key, as `hash64` does."""
    copy, from_bytes = _salted(seed, purpose).copy, int.from_bytes
    hashes = []
    for encoded in encode_keys(keys):
        hasher = copy()
        hasher.update(encoded)
        hashes.append(from_bytes(hasher.digest(), "big"))
    return hashes


@functools.lru_cache(maxsize=16)
def _salted(seed: int, purpose: bytes) -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=8, salt=seed.to_bytes(8, "little", signed=True), person=purpose)


class PickledFields:
    """Base of a frozen dataclass with cached properties: a pickled copy has the fields alone, and computes the rest."""

    def __getstate__(self) -> dict[str, Any]:
        """Returns the values of the fields by their names."""
        fields: Any = self
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(fields)}


@dataclasses.dataclass(frozen=True)
class ColumnTransform:
    """A column that tf.Transform computes."""

    column: str  # name in the table, and of the saved transform's input
    key: str  # key of the feature in the examples, and of the saved transform's output
    position: int  # in ImageRef.columns
    kind: str  # kind of the raw values: bytes, int64 or float; Config.resolve_features decides the transformed kind
    name: str  # z_score, scale_0_1, log, bucketize or vocabulary
    buckets: int = 10
    top_k: int | None = None
    num_oov_buckets: int = 0


RemovedRecords: TypeAlias = tuple[int, bytes]  # index of a shard in its catalog; uint32 indexes of records, unordered
NamedFile: TypeAlias = tuple[str, bytes]  # path below the output, content
Label: TypeAlias = "str | int | float | tuple[str, ...] | None"  # a class, a target's value, or several classes
Stage: TypeAlias = Literal["list", "label", "split", "duplicates", "read", "check"]
STAGES_OF_SHARDS = frozenset({"read", "check"})  # at which images are rejected while their shard is written
Action: TypeAlias = Literal["write", "keep", "refuse"]


class Mask(NamedTuple):
    """The file beside an image that its record is made of too: the class of each pixel, or the objects in it."""

    uri: str
    size: int = -1  # bytes; -1 when not known
    version: int = 0  # as in ImageRef


class SnappyBlocks(NamedTuple):
    """The place of an image in compressed blocks that hold others too."""

    num_bytes: int  # size of the blocks when they are unpacked
    start: int  # byte offset of the image in them; its length is ImageRef.size


class ExtraImage(NamedTuple):
    """Another picture of the same example: a file, or a part of one as the fields of ImageRef say it."""

    uri: str
    size: int = -1  # bytes; -1 when not known
    version: int = 0  # as in ImageRef
    column: str = ""  # column of the table that names it, or the template
    offset: int = 0
    length: int = -1
    blocks: SnappyBlocks | None = None

    @property
    def identity(self) -> tuple[Any, ...]:
        """All that the record depends on: the file's name without its folder, its size, its version, and the part."""
        part = () if self.length < 0 else (self.offset, self.length, self.blocks)
        return self.uri.rpartition("/")[2], self.size, self.version, *part

    def as_ref(self, key: str) -> ImageRef:
        """Returns a reference to this image, as to one that is read alone."""
        return ImageRef(key, self.uri, self.size, self.version, self.offset, self.length, blocks=self.blocks)

    def without_version(self) -> ExtraImage:
        """Returns this image without what changes with the file around it."""
        return self._replace(version=0, offset=0, length=-1, blocks=None)


class ImageRef(NamedTuple):
    """The place of one image, and what is known of it before its bytes are read."""

    key: str
    """Stable id: the path relative to the source's root, or the manifest's id."""
    uri: str
    """Address of the file that holds the bytes."""
    size: int = -1
    """Bytes of the image; -1 when not known."""
    version: int = 0
    """The file's: its generation in GCS, elsewhere its change time in ns since the epoch; 0: unknown."""
    offset: int = 0
    """Byte offset in the file; with `length` set, in the unpacked content of a packed one (.gz)."""
    length: int = -1
    """Bytes to read from `offset`; -1 reads to the end."""
    position: int = 0
    """Row of the table, from 0; 0 for files."""
    label: Label = None
    split: str = ""
    group: str = ""
    """All images of a group go to one split; "" is no group."""
    columns: tuple[Any, ...] = ()
    """Further values from the source, in the order of DatasetSettings.columns."""
    mask: Mask | None = None
    """With the annotations of the image where ImagePolicy.objects reads them."""
    expected: tuple[int, int] | None = None
    """Height and width in pixels that the source's boxes or masks refer to."""
    inside: tuple[int, int] | None = None
    """Offset and length of the image in the record that is read, a whole Example."""
    blocks: SnappyBlocks | None = None
    """Set if the bytes from `offset` are compressed."""
    extra_images: tuple[ExtraImage, ...] = ()
    """In the order of DatasetSettings.extra_images."""
    fingerprint: bytes = b""
    """Digest of what the record is made of, for the next update; see image_states."""
    content: bytes = b""
    """Digest of the same without versions, then one of the bytes once they are read; b"": not kept."""
    sha256: str = ""
    """Of the bytes, in hexadecimal digits; "" if it is not to be checked."""
    replaces: str = ""
    """Split of the record in the snapshot before that this image replaces; "" if there is none."""
    frame: int = 0
    """Number of the picture in its file, from 0, where each picture of a file becomes an example."""

    def with_label(self, label: Label, group: str) -> ImageRef:
        """Returns this reference with a label and a group. Runs once per image: four times as fast as `_replace`."""
        return new_ref((*self[:_LABEL], label, self.split, group, *self[_AFTER_GROUP:]))

    @property
    def num_bytes(self) -> int:
        """Number of bytes read for this image, its mask and its extra images, as far as known."""
        return sum_bytes((self.size,), (self.mask, *self.extra_images))

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the image's classes."""
        return classes_of(self.label)

    def with_split(self, split: str) -> ImageRef:
        """Returns this reference with a split."""
        return new_ref((*self[:_SPLIT], split, *self[_AFTER_SPLIT:]))


new_ref: Callable[[Iterable[Any]], ImageRef] = functools.partial(tuple.__new__, ImageRef)  # 0.1 us; ImageRef(): 0.4
# with_label relies on label, split and group being neighbours in this order; a test holds it.
_LABEL, _SPLIT = ImageRef._fields.index("label"), ImageRef._fields.index("split")
_AFTER_SPLIT, _AFTER_GROUP = _SPLIT + 1, ImageRef._fields.index("group") + 1


# References by columns: an ImageRef whose every field is a tuple with the values of all references.
RefTable: TypeAlias = Any


def columns_of(refs: Iterable[tuple[Any, ...]]) -> RefTable:
    """Returns the columns of references, at least one."""
    return new_ref(zip(*refs))


def rows_of(columns: RefTable) -> Iterator[ImageRef]:
    """Yields the references of columns."""
    return map(new_ref, zip(*columns))


def slice_columns(columns: RefTable, start: int, end: int) -> RefTable:
    """Returns the references of columns from `start` to before `end`, or to the last one."""
    is_whole = start == 0 and end >= len(columns.key)
    return columns if is_whole else new_ref(column[start:end] for column in columns)


def sum_bytes(sizes: Iterable[int], others: Iterable[Mask | ExtraImage | None]) -> int:
    """Returns the number of bytes read for images of these sizes and the other files, as far as known."""
    return sum(size for size in sizes if size > 0) + sum(other.size for other in others if other and other.size > 0)


def classes_of(label: Label) -> tuple[str, ...]:
    """Returns the names of the classes of an image with this label."""
    if isinstance(label, str):
        return (label,)
    return label if isinstance(label, tuple) else ()


def all_classes(labels: Iterable[Label]) -> Iterator[str]:
    """Yields the names of the classes among the labels of images, each at least once."""
    for label in set(labels):
        yield from classes_of(label)


class Reason(str, enum.Enum):
    """Why an image was rejected: a closed set, usable as a metric's name."""

    NOT_FOUND = "not_found"  # the manifest or a link names a file that does not exist
    UNREADABLE = "unreadable"  # the file exists but cannot be read, or the connection to its web server breaks
    HTTP_403 = "http_403"  # a web server denies access: status 401 or 403
    HTTP_4XX = "http_4xx"  # a web server refuses the request: another status from 400 to 499; 404 and 410 are not_found
    HTTP_5XX = "http_5xx"  # a web server fails: a status from 500 on
    TIMEOUT = "timeout"  # a web server gave no whole answer within the time limit of a request
    DNS = "dns"  # the name of a web server has no address
    ROBOTS = "robots"  # a web server says by X-Robots-Tag that the image is not to be indexed, or not to train models
    BAD_CHECKSUM = "bad_checksum"  # the bytes have another SHA-256 than the table says
    OUTSIDE_ROOT = "outside_root"  # the manifest's path leaves the manifest's folder
    BAD_ROW = "bad_row"  # a row of the manifest that cannot be parsed, or lacks the image or the key
    NO_LABEL = "no_label"  # the directory, file name or column gives no label
    NO_MATCH = "no_match"  # the path does not match source.pattern
    UNKNOWN_LABEL = "unknown_label"  # the label is not in the user's vocabulary
    BAD_VALUE = "bad_value"  # a column's value is not of the configured type
    BAD_SPLIT = "bad_split"  # there is no split for the image, or it is not among the declared ones
    CHANGED = "changed"  # the file changed between the listing and the reading
    EMPTY_FILE = "empty_file"
    NOT_AN_IMAGE = "not_an_image"
    UNSUPPORTED_FORMAT = "unsupported_format"
    TRUNCATED = "truncated"  # the file ends before the image does
    CORRUPT = "corrupt"  # the structure of the image is broken
    UNDECODABLE = "undecodable"  # the structure is valid but the decoder fails
    TOO_LARGE = "too_large"  # larger than image.limits, an example or a decoder allows
    CRASHED = "crashed"  # writer processes died on it
    TOO_SLOW = "too_slow"  # it took longer than image.limits allows
    TOO_SMALL = "too_small"  # smaller than image.limits allows
    ASPECT_RATIO = "aspect_ratio"  # longer than image.limits allows
    SEVERAL_FRAMES = "several_frames"  # the file holds several images, and image.frames rejects it
    PIXEL_TYPE = "pixel_type"  # numbers or bands that image.dtype, image.range and image.bands do not store
    NOT_UPRIGHT = "not_upright"  # EXIF data ask for a turn, and image.orientation rejects it
    FILTERED = "filtered"  # image.keep_if or image.function leaves it out
    FUNCTION = "function"  # a function of the user raised, or returned something else than it should
    DUPLICATE = "duplicate"  # another image is the same or nearly so, and `duplicates` drops this one

    def __str__(self) -> str:
        return self.value

    @classmethod
    def of_error(cls, error: OSError) -> Reason:
        """Returns the reason for an error of looking for a file, or of reading it."""
        if isinstance(error, FileNotFoundError):
            return cls.NOT_FOUND
        return cls(error.cause) if isinstance(error, storage.RequestError) and error.cause else cls.UNREADABLE


class Reject(NamedTuple):
    """A rejected image, as stored in `rejects.jsonl`."""

    key: str
    uri: str
    stage: Stage
    reason: Reason
    detail: str


class Measures(NamedTuple):
    """Values that the statistics count for one image that was written."""

    format: str  # as in checked_image.Image, like those below; of several images each format once, with "+" between
    colorspace: str
    orientation: int
    height: int
    width: int
    num_bytes: int  # size of the image as it is stored
    turned: str = ""  # EXIF orientation that was applied to the pixels; "" if none was
    reencoded: str = ""  # as in checked_image.Image
    misnamed: str = ""  # the format, and the extension that states another one; "" if the name is right
    sums: tuple[int, tuple[int, ...], tuple[int, ...]] | None = None  # see checked_image.PixelSums
    objects: dict[str, int] | None = None  # see object_classes.count; None where no objects are known


class Duplicate(NamedTuple):
    """An image that repeats another one, as stored in `duplicates.jsonl`."""

    kind: Literal["exact", "near"]
    distance: int  # bits in which the perceptual hashes differ; 0 for equal bytes
    split: str
    key: str
    uri: str
    first_split: str  # split of the image that it repeats
    first_key: str
    first_uri: str


class WrittenShard(NamedTuple):
    """One finished shard: its entry in the catalog, and what the writer counted while writing it."""

    split: str
    shard: catalog_lib.Shard
    rejected: Mapping[str, int]  # images rejected while this shard was written, by reason
    statistics: Mapping[str, Any]  # see shard.statistics; {} on the way to the commit, see commit_step
    is_kept: bool = False  # whether an earlier run finished it
    lost: Mapping[str, int] = {}  # the part of `rejected` that replaces a record, by the split of that record
    hashes_bytes: int = 0  # size of the file with the hashes of its images; 0 without one
    further: int = 0  # images in addition to the references: pictures of a file after its first


@dataclasses.dataclass(frozen=True)
class SplitPlan:
    """Division of one split into shards: shard `i` of `num_shards` holds ranks [n*i/num_shards, n*(i+1)/num_shards)."""

    num_records: int
    num_bytes: int  # size of the images, as far as it is known
    num_shards: int

    def shard_start(self, shard_index: int) -> int:
        return self.num_records * shard_index // self.num_shards

    def shard_of(self, rank: int) -> int:
        """Returns the index of the shard that holds `rank`: the inverse of `shard_start`."""
        return ((rank + 1) * self.num_shards - 1) // self.num_records


@dataclasses.dataclass(frozen=True)
class Committed:
    """The catalog that an output held when a run was planned. The commit replaces this one and no other."""

    fingerprint: str  # "" if the catalog cannot be read
    version: int  # the file's, as in storage.Entry; 0 if the storage tells none
    bytes: int = -1  # number of the file's bytes, and their checksum; -1 if they cannot be read
    crc32c: int = -1


@dataclasses.dataclass(frozen=True)
class DatasetPlan:
    """The plan of one run, made before any image is read: the same for the same input and config."""

    action: Action  # "keep": this very dataset is committed already
    message: str  # the reason, when the action is not "write"
    fingerprint: str  # hex digest of config + reference set
    splits: Mapping[str, SplitPlan]
    labels: tuple[str, ...]  # class names in the order of their ids; empty without classes
    listed: int
    rejected: Mapping[str, int]  # before any image was read, by reason
    skipped: Mapping[str, int]  # hidden files, non-images and the like, by kind
    error: errors.ImagebeamError | None = dataclasses.field(default=None, compare=False)  # when the action is "refuse"
    notes: tuple[str, ...] = ()  # what the user should know before the dataset is written
    num_unseen_labels: int = 0  # classes of the vocabulary without an image
    inputs: Mapping[str, Any] = dataclasses.field(default_factory=dict, compare=False)  # see run_report
    kept: tuple[features.Feature, ...] = ()  # features of rewritten records, in addition to DatasetSettings.features
    committed: Committed | None = None  # what the output holds; None if it holds no catalog
    run_id: str = ""  # names the run that planned; "" for a caller that keeps other runs away itself
    held_output: str = ""  # output whose lock the steps of a pipeline hold; "" if a launcher holds it
    # When its stages began and ended, in seconds since the epoch: planning, planned, committing, committed.
    times: Mapping[str, float] = dataclasses.field(default_factory=dict, compare=False)
    snapshot: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # as in the catalog; {} without snapshots

    @property
    def exit_code(self) -> int:
        """Exit code of the command, as far as the plan decides it."""
        return 0 if self.error is None else self.error.exit_code


# Few rows are not compressed, which takes 20 us at least: 10,000 references make 1,024 blocks of ten. Of a million
# references no block is that small. No zlib stream begins like a pickle.
MAX_PLAIN_BYTES = 2048
# Compression takes twice as long as the pickle, and spares memory and network. Blocks that stay in the launcher's
# process are compressed if they are large: 1,024 smaller ones take 16 MB.
MAX_PLAIN_BYTES_IN_PROCESS = 16_384
_LEVEL = 1  # zlib: neighbouring keys share most of their bytes, level 1 removes 4/5 of them in 1 us a reference


class UnpackedRefs:
    """References that are packed when they leave the process: in another one they are the bytes of `pack_refs`."""

    def __init__(self, refs: Sequence[ImageRef]):
        self.refs = refs

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (bytes, UnpackedRefs)) and unpack_refs(self) == unpack_refs(other)

    def __reduce__(self) -> tuple[type[bytes], tuple[bytes]]:
        return bytes, (pack_refs(self.refs),)


def pack_refs(refs: Sequence[ImageRef], max_plain_bytes: int = MAX_PLAIN_BYTES) -> bytes:
    """Packs references column by column: 30 to 60 bytes each instead of some 600 as Python objects."""
    return pack_rows(refs, max_plain_bytes)


def unpack_refs(packed: bytes | UnpackedRefs) -> list[ImageRef]:
    """Returns the references that `pack_refs` packed; none for b"", an empty run."""
    if isinstance(packed, UnpackedRefs):
        return list(packed.refs)
    return list(map(new_ref, unpack_rows(packed))) if packed else []


def pack_rows(rows: Sequence[tuple[Any, ...]], max_plain_bytes: int = MAX_PLAIN_BYTES) -> bytes:
    """Packs rows of equal length."""
    return pack_columns(zip(*rows), max_plain_bytes)


def pack_columns(columns: Iterable[tuple[Any, ...]], max_plain_bytes: int = MAX_PLAIN_BYTES) -> bytes:
    """Packs the columns of rows.

    Args:
        columns: of equal length.
        max_plain_bytes: up to this size, columns are not compressed.
    """
    pickled = pickle.dumps(list(columns), protocol=5)
    if len(pickled) <= max_plain_bytes:
        return pickled
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, wbits=12, memLevel=5)  # small tables are set up sooner
    return compressor.compress(pickled) + compressor.flush()


def unpack_table(packed: bytes) -> RefTable:
    """Returns the columns of references that `pack_refs` or `pack_columns` packed."""
    return new_ref(_load_columns(packed))


def unpack_rows(packed: bytes) -> Iterator[tuple[Any, ...]]:
    """Returns the rows that `pack_rows` or `pack_columns` packed."""
    return zip(*_load_columns(packed))


def _load_columns(packed: bytes) -> list[tuple[Any, ...]]:
    columns: list[tuple[Any, ...]] = pickle.loads(
        packed if packed.startswith(pickle.PROTO) else zlib.decompress(packed)
    )
    return columns
