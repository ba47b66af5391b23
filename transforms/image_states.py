"""The state of each image that a shard was written of: what the next update compares the input with.

One file for each shard, gzip-compressed JSON, with columns of equal length in the order of the shard's records, and the
images that were rejected while the shard was written.
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
from imagebeam import errors
from imagebeam.transforms import elements

FACTS_BYTES = 16
STATISTICS_FILE = f"{catalog_lib.STATE_DIRECTORY}/statistics.json"  # merged statistics that can be merged further
_LEVEL = 1


class ImageState(NamedTuple):
    """One image as a shard was written of it."""

    key: str
    facts: bytes  # digest of all that its record was made of
    num_bytes: int  # of the image, as far as known
    position: int  # row of the table, from 0
    labels: tuple[str, ...]  # its classes
    measures: elements.Measures | None  # None where they are not asked for


class RejectState(NamedTuple):
    """One image that was rejected while a shard was written."""

    facts: bytes
    reject: elements.Reject
    split: str  # split, size and row decide its place in the order, which it takes although it has no record
    num_bytes: int
    position: int


class ShardState(NamedTuple):
    """The images of one shard, in the order of its records, and the images that were rejected while it was written."""

    images: Sequence[ImageState]
    rejects: Sequence[RejectState]


def facts_of(ref: elements.ImageRef, keep_position: bool) -> bytes:
    """Returns a digest of all that the record of an image is made of.

    Folders are left out, so that a moved input is the same input.

    Args:
        ref: the image, with its label and split.
        keep_position: whether the row in the source counts, as it does where the row decides the order.
    """
    # runs once per image: 2 us
    name = ref.uri.rpartition("/")[2]
    text = f"{name!r} {ref.size} {ref.version} {ref.offset} {ref.length} {ref.label!r} {ref.split}"
    if ref.mask is not None or ref.columns or ref.expected is not None or keep_position:
        mask = ref.mask and (ref.mask.uri.rpartition("/")[2], ref.mask.size, ref.mask.version)
        text += repr((mask, ref.columns, ref.expected, ref.position if keep_position else 0))
    return hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=FACTS_BYTES).digest()


class StateBuilder:
    """Collects the state of a shard while it is written."""

    def __init__(self) -> None:
        self._images: list[ImageState] = []
        self._rejects: list[RejectState] = []

    def add(self, ref: elements.ImageRef, measures: elements.Measures) -> None:
        """Adds an image that was written."""
        self._images.append(ImageState(ref.key, ref.facts, ref.num_bytes, ref.position, ref.classes, measures))

    def add_reject(self, ref: elements.ImageRef, reject: elements.Reject) -> None:
        self._rejects.append(RejectState(ref.facts, reject, ref.split, ref.num_bytes, ref.position))

    def encode(self) -> bytes:
        """Returns the content of the file."""
        return encode_state(ShardState(self._images, self._rejects))


def encode_state(state: ShardState) -> bytes:
    """Returns the content of the state of a shard: the same bytes for the same state."""
    columns: tuple[Sequence[Any], ...] = tuple(zip(*state.images)) or ((),) * len(ImageState._fields)
    keys, facts, num_bytes, positions, labels, measures = columns
    fields = {
        "keys": keys,
        "facts": base64.b64encode(b"".join(facts)).decode(),
        "num_bytes": num_bytes,
        "positions": positions if any(positions) else [],
        "labels": labels if any(labels) else [],
        "measures": _dump(list(zip(*measures))),  # a text, so that an update without a change does not parse it
        "rejects": [[*reject, base64.b64encode(facts).decode(), *place] for facts, reject, *place in state.rejects],
    }
    return gzip.compress(_dump(fields).encode(), _LEVEL, mtime=0)


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


def decode_state(data: bytes, num_images: int, where: str, with_measures: bool = True) -> ShardState:
    """Parses the state of a shard.

    Args:
        data: content of the file.
        num_images: number of records in the shard.
        where: address of the file, for errors.
        with_measures: whether the measures of the images are needed: without them it takes half the time.

    Raises:
        CatalogError: if the file is damaged.
    """
    try:
        fields = json.loads(gzip.decompress(data))
        keys, joined = fields["keys"], base64.b64decode(fields["facts"])
        facts = [joined[start : start + FACTS_BYTES] for start in range(0, len(joined), FACTS_BYTES)]
        positions = fields["positions"] or itertools.repeat(0, len(keys))
        labels = map(tuple, fields["labels"] or itertools.repeat((), len(keys)))
        measures = _decode_measures(fields["measures"]) if with_measures else itertools.repeat(None, len(keys))
        images = [ImageState(*row) for row in zip(keys, facts, fields["num_bytes"], positions, labels, measures)]
        rejects = [
            RejectState(
                base64.b64decode(facts), elements.Reject(key, uri, stage, elements.Reason(reason), detail), *place
            )
            for key, uri, stage, reason, detail, facts, *place in fields["rejects"]
        ]
    except (OSError, EOFError, ValueError, KeyError, TypeError, zlib.error) as e:
        raise damaged(where, f"{type(e).__name__}: {e}") from e
    if not len(images) == len(keys) == len(facts) == num_images:
        raise damaged(where, f"it has {len(images):,} images, its shard {num_images:,} records")
    return ShardState(images, rejects)


def _decode_measures(text: str) -> Iterator[elements.Measures]:
    *columns, sums = json.loads(text) or ((),) * len(elements.Measures._fields)
    return map(elements.Measures, *columns, map(_decode_sums, sums))


def _decode_sums(sums: Any) -> tuple[int, tuple[int, ...], tuple[int, ...]] | None:
    return None if sums is None else (sums[0], tuple(sums[1]), tuple(sums[2]))


def damaged(where: str, why: str) -> errors.CatalogError:
    """Returns the error for a state at an address that cannot be used."""
    return errors.CatalogError(
        f"{where} is damaged ({why}), so it is not known which images are new: restore it, or run imagebeam convert "
        "--update --overwrite, which writes a whole new snapshot"
    )
