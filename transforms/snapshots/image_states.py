"""The state of each image that a shard was written of: what the next update compares the input with.

One file for each shard, gzip-compressed JSON, with columns of equal length in the order of the shard's records, and the
images that were rejected while the shard was written.

Format version 1 identifies an image by its `fingerprint` alone, which covers the version of its file. Version 2, of
runs with `update.compare: content`, has `contents` as well. Such a run still reads version 1, and images without a
content.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import itertools
import json
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from imagebeam import catalog as catalog_lib
from imagebeam import errors, records, snapshots, storage
from imagebeam import version as version_lib
from imagebeam.transforms import elements

FINGERPRINT_BYTES = 16
STABLE_BYTES = 8  # enough to tell apart what one key was and is: no other images are compared
CONTENT_BYTES = STABLE_BYTES + 16
_FORMAT_VERSION = 2
STATISTICS_FILE = f"{catalog_lib.STATE_DIRECTORY}/statistics.json"  # merged statistics that can be merged further
_LEVEL = 1
_OBJECTS = elements.Measures._fields.index("objects")  # the last field: older states do not have it


class ImageState(NamedTuple):
    """State of one image in a written shard."""

    key: str
    fingerprint: bytes  # digest of all that its record was made of
    num_bytes: int  # size of the image, as far as known
    position: int  # row of the table, from 0
    labels: tuple[str, ...]  # its classes
    measures: elements.Measures | None  # None where they are not asked for
    content: bytes = b""  # see `add_content`; b"" if it was not recorded


class RejectState(NamedTuple):
    """One image that was rejected while a shard was written."""

    fingerprint: bytes
    reject: elements.Reject
    split: str  # split, size and row decide its place in the order, which it takes although it has no record
    num_bytes: int
    position: int
    content: bytes = b""  # as in ImageState; b"" also if the image could not be read


class ShardState(NamedTuple):
    """The images of one shard, in the order of its records, and the images that were rejected while it was written."""

    images: Sequence[ImageState]
    rejects: Sequence[RejectState]


def fingerprint_of(ref: elements.ImageRef, keep_position: bool) -> bytes:
    """Returns a digest of all that the record of an image is made of.

    Folders are left out, so that a moved input is the same input.

    Args:
        ref: the image, with its label and split.
        keep_position: whether the row in the source counts, as it does where the row decides the order.
    """
    # runs once per image: 2 us
    place = f"{ref.offset} {ref.length}"
    if ref.blocks is not None:
        place += f" {ref.blocks}"
    return _digest(ref, ref.version, ref.mask and ref.mask.version, place, keep_position, FINGERPRINT_BYTES)


def stable_fingerprint_of(ref: elements.ImageRef, keep_position: bool) -> bytes:
    """Returns a digest of what `fingerprint_of` covers, without what changes with the file around an image.

    That is the version of the file and the place in it: a tar that is packed again moves its members.
    """
    length = ref.length if ref.blocks is None else ref.size  # the blocks around it change with its neighbours
    unversioned = (
        ref._replace(extra_images=tuple(image.without_version() for image in ref.extra_images))
        if ref.extra_images
        else ref
    )
    return _digest(unversioned, 0, 0, f"0 {length}", keep_position, STABLE_BYTES)


def _digest(
    ref: elements.ImageRef, version: int, mask_version: int | None, place: str, keep_position: bool, digest_size: int
) -> bytes:
    name = ref.uri.rpartition("/")[2]
    text = f"{name!r} {ref.size} {version} {place} {ref.label!r} {ref.split}"
    if ref.mask is not None or ref.columns or ref.expected is not None or keep_position:
        mask = ref.mask and (ref.mask.uri.rpartition("/")[2], ref.mask.size, mask_version)
        text += repr((mask, ref.columns, ref.expected, ref.position if keep_position else 0))
    if ref.extra_images:
        text += repr([image.identity for image in ref.extra_images])
    if ref.sha256:
        text += f" {ref.sha256}"
    return hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=digest_size).digest()


def add_content(ref: elements.ImageRef, *files: bytes) -> elements.ImageRef:
    """Returns the reference with a digest of the bytes that were read for it.

    SHA-256, cut to 128 bits: 70 us for 110 KB where the processor has instructions for it, half the time of BLAKE2b.

    Args:
        ref: with the result of `stable_fingerprint_of` as its content.
        files: the bytes of the image as they were read, and those of its mask and its extra images.
    """
    digest = hashlib.sha256(files[0])
    for file in files[1:]:
        digest.update(hashlib.sha256(file).digest())
    return ref._replace(content=ref.content[:STABLE_BYTES] + digest.digest()[: CONTENT_BYTES - STABLE_BYTES])


class StateBuilder:
    """Collects the state of a shard while it is written."""

    def __init__(self) -> None:
        self._images: list[ImageState] = []
        self._rejects: list[RejectState] = []
        self.lost: list[str] = []  # splits of the records that rejected images replace

    def add(self, ref: elements.ImageRef, measures: elements.Measures) -> None:
        """Adds an image that was written."""
        row = ref.key, ref.fingerprint, ref.num_bytes, ref.position, ref.classes, measures, _whole(ref.content)
        self._images.append(ImageState(*row))

    def add_reject(self, ref: elements.ImageRef, reject: elements.Reject) -> None:
        place = ref.split, ref.num_bytes, ref.position
        self._rejects.append(RejectState(ref.fingerprint, reject, *place, _whole(ref.content)))
        if ref.replaces:
            self.lost.append(ref.replaces)

    def encode(self) -> bytes:
        """Returns the content of the file."""
        return encode_state(ShardState(self._images, self._rejects))


def _whole(content: bytes) -> bytes:
    """Returns a content if the bytes were read; otherwise none."""
    return content if len(content) == CONTENT_BYTES else b""


def encode_state(state: ShardState) -> bytes:
    """Returns the content of the state of a shard: the same bytes for the same state."""
    columns: tuple[Sequence[Any], ...] = tuple(zip(*state.images)) or ((),) * len(ImageState._fields)
    keys, fingerprints, num_bytes, positions, labels, measures, contents = columns
    of_rejects = [each.content for each in state.rejects]
    added: dict[str, Any] = {}
    if any(contents) or any(of_rejects):
        added = {
            "format_version": _FORMAT_VERSION,
            "contents": _join_contents(contents),
            "reject_contents": _join_contents(of_rejects),
        }
    objects = [each.objects for each in measures]
    if any(each is not None for each in objects):
        added["objects"] = objects
    fields = {
        "keys": keys,
        "facts": base64.b64encode(b"".join(fingerprints)).decode(),
        "num_bytes": num_bytes,
        "positions": positions if any(positions) else [],
        "labels": labels if any(labels) else [],
        # a text, so that an update without a change does not parse it
        "measures": _dump(list(zip(*(each[:_OBJECTS] for each in measures)))),
        "rejects": [
            [*reject, base64.b64encode(fingerprint).decode(), *place]
            for fingerprint, reject, *place, _ in state.rejects
        ],
        **added,
    }
    return gzip.compress(_dump(fields).encode(), _LEVEL, mtime=0)


def _join_contents(contents: Sequence[bytes]) -> str:
    """Returns contents as one text; bytes of 0 where there is none."""
    return base64.b64encode(b"".join(each or bytes(CONTENT_BYTES) for each in contents)).decode()


def _split_contents(text: str | None, count: int) -> Iterator[bytes]:
    """Yields the contents in a text; b"" for each if there is no text.

    Raises:
        ValueError: if they are not `count`.
    """
    if text is None:
        return itertools.repeat(b"", count)
    joined = base64.b64decode(text)
    if len(joined) != CONTENT_BYTES * count:
        raise ValueError(f"{len(joined):,} bytes of contents for {count:,} images")
    each = (joined[start : start + CONTENT_BYTES] for start in range(0, len(joined), CONTENT_BYTES))
    return (content if any(content) else b"" for content in each)


def _dump(fields: Any) -> str:
    return json.dumps(fields, separators=(",", ":"))


def rejects_name(snapshot: int) -> str:
    """Returns the path, relative to the dataset, of the states of rejected images that no shard has.

    Args:
        snapshot: number of the snapshot that rejected them.
    """
    return f"{catalog_lib.STATE_DIRECTORY}/rejects-{snapshot:06d}{catalog_lib.STATE_SUFFIX}"


def is_rejects_name(name: str) -> bool:
    """Returns whether a path is a result of `rejects_name`."""
    return name.startswith(f"{catalog_lib.STATE_DIRECTORY}/rejects-")


def snapshot_of_rejects(name: str) -> int:
    """Returns the number of the snapshot in the result of `rejects_name`."""
    return int(name.split("-")[1].removesuffix(catalog_lib.STATE_SUFFIX))


def decode_state(
    data: bytes, num_images: int, where: str, with_measures: bool = True, writer: object = None
) -> ShardState:
    """Parses the state of a shard.

    Args:
        data: content of the file.
        num_images: number of records in the shard.
        where: address of the file, for errors.
        with_measures: whether the measures of the images are needed: without them it takes half the time.
        writer: version of imagebeam in the catalog beside it, for errors.

    Raises:
        CatalogError: if the file is damaged, or a later version of imagebeam wrote it.
    """
    try:
        fields = json.loads(gzip.decompress(data))
        if (version := fields.get("format_version", 1)) > _FORMAT_VERSION:
            raise errors.CatalogError(
                "snapshot-states-version",
                f"{where} has format version {version}, and {_FORMAT_VERSION} is the last one that is known here; "
                + version_lib.advise_update(writer),
            )
        keys, joined = fields["keys"], base64.b64decode(fields["facts"])
        fingerprints = [joined[start : start + FINGERPRINT_BYTES] for start in range(0, len(joined), FINGERPRINT_BYTES)]
        positions = fields["positions"] or itertools.repeat(0, len(keys))
        labels = map(tuple, fields["labels"] or itertools.repeat((), len(keys)))
        measures: Iterator[elements.Measures | None] = itertools.repeat(None, len(keys))
        if with_measures:
            measures = _decode_measures(fields["measures"], fields.get("objects"))
        contents = _split_contents(fields.get("contents"), len(keys))
        rows = zip(keys, fingerprints, fields["num_bytes"], positions, labels, measures, contents)
        images = [ImageState(*row) for row in rows]
        of_rejects = _split_contents(fields.get("reject_contents"), len(fields["rejects"]))
        rejects = [
            RejectState(
                base64.b64decode(fingerprint),
                elements.Reject(key, uri, stage, elements.Reason(reason), detail),
                split,
                num_bytes,
                position,
                content,
            )
            for (key, uri, stage, reason, detail, fingerprint, split, num_bytes, position), content in zip(
                fields["rejects"], of_rejects
            )
        ]
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, zlib.error) as e:
        raise damaged(where, f"{type(e).__name__}: {e}") from e
    if not len(images) == len(keys) == len(fingerprints) == num_images:
        raise damaged(where, f"it has {len(images):,} images, its shard {num_images:,} records")
    return ShardState(images, rejects)


def _decode_measures(text: str, objects: Sequence[Any] | None) -> Iterator[elements.Measures]:
    *columns, sums = json.loads(text) or ((),) * _OBJECTS
    counted = itertools.repeat(None) if objects is None else objects
    return map(elements.Measures, *columns, map(_decode_sums, sums), counted)


def _decode_sums(sums: Any) -> tuple[int, tuple[int, ...], tuple[int, ...]] | None:
    return None if sums is None else (sums[0], tuple(sums[1]), tuple(sums[2]))


def damaged(where: str, why: str) -> errors.CatalogError:
    """Returns the error for a state at an address that cannot be used."""
    return errors.CatalogError(
        "snapshot-states-damaged",
        f"{where} is damaged ({why}), so it is not known which images are new: restore it, or run imagebeam convert "
        "--update --overwrite, which writes a whole new snapshot",
    )


def read_rejects(folder: str) -> Iterator[elements.Reject]:
    """Yields all rejects of the snapshot in a folder, also of images that never came as far as a shard."""
    uri = storage.join(folder, catalog_lib.REJECTS_FILE)
    with storage.storage_of(uri).open_read(uri) as file:
        for line in file:
            fields = json.loads(line)
            yield elements.Reject(**fields | {"reason": elements.Reason(fields["reason"])})


class ShardStates(NamedTuple):
    """The state of one shard; or of images that were rejected before the snapshot was compacted."""

    split: str  # "" without a shard
    shard: catalog_lib.Shard | None
    snapshot: int  # number of the snapshot that wrote it
    images: Sequence[ImageState]  # in the order of the records
    rejects: Sequence[RejectState]
    removed: Sequence[int]  # ascending indexes of records


class SnapshotStates:
    """The states of a snapshot, file by file."""

    def __init__(self, folder: str, with_measures: bool = True):
        self.catalog = catalog_lib.load_catalog(folder)
        self._folder = folder
        self._with_measures = with_measures
        self._shards = [(split, shard) for split, each in self.catalog.splits.items() for shard in each.shards]
        self._rejects = sorted(name for name in self.catalog.files if is_rejects_name(name))
        self._removed = snapshots.load_removed(folder, self.catalog)

    def __len__(self) -> int:
        """Returns the number of files: one for each shard, in the order of the catalog, then those of rejects."""
        return len(self._shards) + len(self._rejects)

    def read(self, index: int) -> ShardStates:
        """Reads one file.

        Raises:
            CatalogError: if it is missing, or is not that of the catalog.
        """
        if index >= len(self._shards):
            name = self._rejects[index - len(self._shards)]
            state = self._load(name, 0, self.catalog.files[name])
            return ShardStates("", None, snapshot_of_rejects(name), (), state.rejects, ())
        split, shard = self._shards[index]
        state = self._load(shard.state_name, shard.records, shard.state_file)
        number = int(shard.name.split("/")[1] if shard.is_elsewhere else self.catalog.snapshot["name"])
        return ShardStates(split, shard, number, state.images, state.rejects, self._removed.get(shard.name, ()))

    def _load(self, name: str, num_images: int, expected: catalog_lib.File | None) -> ShardState:
        uri = storage.join_relative(self._folder, name)
        try:
            data = storage.storage_of(uri).read(uri)
        except FileNotFoundError as e:
            raise damaged(uri, "it is gone") from e
        if expected is not None and len(data) != expected.bytes:
            raise damaged(uri, f"it has {len(data):,} bytes, the catalog says {expected.bytes:,}")
        if expected is not None and (found := records.extend_crc(0, data)) != expected.crc32c:
            crc32c = "none" if expected.crc32c is None else f"{expected.crc32c:08x}"
            raise damaged(uri, f"it has the crc32c {found:08x}, the catalog says {crc32c}")
        return decode_state(data, num_images, uri, self._with_measures, self.catalog.versions.get("imagebeam"))


def of_record(image: ImageState, split: str, uri: str, start: int, end: int) -> elements.ImageRef:
    """Returns the reference to a record of a shard.

    Args:
        image: its state.
        split: of the shard.
        uri: address of the shard.
        start: byte offset of the record with its frame, in the unpacked shard.
        end: byte offset of its end.
    """
    return elements.ImageRef(
        image.key,
        uri,
        size=image.num_bytes,
        offset=start,
        length=end - start,
        position=image.position,
        label=image.labels,
        split=split,
        columns=(image.measures,),
        fingerprint=image.fingerprint,
        content=image.content,
    )


def of_reject(state: RejectState) -> elements.ImageRef:
    """Returns the reference to an image that was rejected while its shard was written."""
    return elements.ImageRef(
        state.reject.key,
        state.reject.uri,
        size=state.num_bytes,
        position=state.position,
        split=state.split,
        columns=(state.reject,),
        fingerprint=state.fingerprint,
        content=state.content,
    )


def reject_of(ref: elements.ImageRef) -> elements.Reject | None:
    """Returns why the image was rejected; None for a record."""
    (held,) = ref.columns
    return held if isinstance(held, elements.Reject) else None


def measures_of(ref: elements.ImageRef) -> elements.Measures:
    """Returns what the statistics count of the image in a record."""
    (held,) = ref.columns
    assert isinstance(held, elements.Measures), "a rejected image has no record"
    return held
