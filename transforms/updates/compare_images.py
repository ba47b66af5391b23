"""Compares listed images with those that a snapshot holds. Pure functions, no Beam.

An image is the same if its fingerprint is: with `update.compare: content` also if all but the version is the same, and
its bytes are. Only bytes that decide are read, by a function that the caller gives.
"""

from __future__ import annotations

import collections
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from imagebeam import catalog as catalog_lib
from imagebeam import storage
from imagebeam.transforms import elements, summaries
from imagebeam.transforms.snapshots import image_states

NO_RECORD = -1
REJECTS_FILE = -1  # instead of the index of a shard


class KnownImage(NamedTuple):
    """An image of the snapshot before: one of its records, or an image that was rejected instead."""

    key: str
    fingerprint: bytes
    snapshot: int  # number of the snapshot that wrote it
    shard: int  # index in the catalog of the snapshot before
    record: int  # index in the shard; -1 for a reject
    split: str
    labels: tuple[str, ...]
    reject: elements.Reject | None
    content: bytes = b""  # as in ImageState


# Reads references whose content has no digest of the bytes yet, in any order; without it where they cannot be read.
ReadContents: TypeAlias = Callable[[Iterable[elements.ImageRef]], Iterable[elements.ImageRef]]

_KEY, FINGERPRINT_OF_REF = 0, elements.ImageRef._fields.index("fingerprint")
_VERSION, _MASK, _EXTRA = map(elements.ImageRef._fields.index, ("version", "mask", "extra_images"))
_FINGERPRINT, _RECORD, _SPLIT = map(KnownImage._fields.index, ("fingerprint", "record", "split"))


def known_images(states: image_states.ShardStates, index: int) -> Iterator[KnownImage]:
    """Yields the images of a shard that belong to the snapshot, and those rejected while it was written.

    Args:
        states: of the shard.
        index: of the shard in the catalog.
    """
    removed, number = frozenset(states.removed), states.snapshot
    for record, image in enumerate(states.images):
        if record not in removed:
            where = number, index, record, states.split
            yield KnownImage(image.key, image.fingerprint, *where, image.labels, None, image.content)
    for each in states.rejects:
        where = number, index, NO_RECORD, each.split
        yield KnownImage(each.reject.key, each.fingerprint, *where, (), each.reject, each.content)


def known_rejects(folder: str) -> Iterator[KnownImage]:
    """Yields all rejects of the snapshot in a folder, also of images that never came as far as a shard."""
    uri = storage.join(folder, catalog_lib.REJECTS_FILE)
    with storage.storage_of(uri).open_read(uri) as file:
        for line in file:
            fields = json.loads(line)
            reject = elements.Reject(**fields | {"reason": elements.Reason(fields["reason"])})
            yield KnownImage(reject.key, b"", 0, REJECTS_FILE, NO_RECORD, "", (), reject)


class Compared(NamedTuple):
    """Comparison result for one key partition."""

    images: list[elements.ImageRef]  # to be read and written
    rejects: list[elements.Reject]  # unchanged
    removed: dict[int, list[int]]  # records by the index of their shard
    comparison: summaries.Comparison


Rows: TypeAlias = Sequence[tuple[Any, ...]]


class Others(NamedTuple):
    """Images whose fingerprint differs from that of the record with their key, or that have none."""

    listed: list[elements.ImageRef]
    known: list[KnownImage]
    unchanged: collections.Counter[str]  # number of all other listed images, by split

    def add(self, others: Others) -> None:
        """Takes over the images of other keys."""
        self.listed.extend(others.listed)
        self.known.extend(others.known)
        self.unchanged.update(others.unchanged)


def find_others(listed: Rows, known: Rows, by_content: bool = False) -> Others:
    """Sets the images apart that are not the same by their fingerprints. All images of some keys are given.

    Args:
        listed: fields of ImageRefs.
        known: fields of KnownImages.
        by_content: whether the same fingerprint without a version prove nothing.
    """
    same = _find_same_keys(listed, known, by_content)
    return Others(
        [elements.ImageRef(*row) for row in listed if row[_KEY] not in same],
        [KnownImage(*row) for row in known if row[_KEY] not in same],
        collections.Counter(row[_SPLIT] for row in known if row[_RECORD] != NO_RECORD and row[_KEY] in same),
    )


def _find_same_keys(listed: Rows, known: Rows, by_content: bool) -> set[str]:
    """Returns the keys whose record is that of the listed image: nearly all, so that only their keys are looked at."""
    fingerprints = {row[_KEY]: row[FINGERPRINT_OF_REF] for row in listed if not by_content or _has_version(row)}
    if len(fingerprints) < len(listed):  # some are listed twice
        counts = collections.Counter(row[_KEY] for row in listed)
        fingerprints = {key: each for key, each in fingerprints.items() if counts[key] == 1}
    return {
        row[_KEY] for row in known if row[_RECORD] != NO_RECORD and fingerprints.get(row[_KEY]) == row[_FINGERPRINT]
    }


def _has_version(row: tuple[Any, ...]) -> bool:
    """Returns whether the versions of all files of an image are known; given the fields of an ImageRef."""
    mask = row[_MASK]
    return bool(row[_VERSION]) and (mask is None or bool(mask.version)) and all(each.version for each in row[_EXTRA])


def compare(others: Others, read_contents: ReadContents | None = None) -> Compared:
    """Compares images that `find_others` has set apart, all of some keys.

    An image has at most one record, and rejects of earlier snapshots may be left over: the record counts, otherwise the
    reject of the newest snapshot.

    Args:
        others: the images.
        read_contents: reads the bytes that decide; None if an image with another version is another one.
    """
    listed, known, _ = others
    rows: dict[str, KnownImage] = {}
    for image in known:
        other = rows.get(image.key)
        if other is None or _rank(image) > _rank(other):
            rows[image.key] = image
    to_read = [] if read_contents is None else [ref for ref in listed if _may_be_same(ref, rows.get(ref.key))]
    found = () if read_contents is None else read_contents(to_read)
    contents = {ref.key: ref.content for ref in found if ref.content == rows[ref.key].content}
    unchanged = collections.Counter(others.unchanged)
    images, rejects = [], []
    counts: dict[str, collections.Counter[str]] = {
        name: collections.Counter() for name in ("added", "changed", "removed")
    }
    removed: dict[int, list[int]] = collections.defaultdict(list)
    removed_labels: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    digest = moved = 0

    def remove(row: KnownImage) -> None:
        nonlocal digest
        removed[row.shard].append(row.record)
        removed_labels[row.split].update(row.labels)
        digest = (digest + summaries.digest((row.shard, row.record))) % summaries.DIGEST_RANGE

    seen: dict[str, tuple[int, str]] = {}
    duplicates: list[summaries.RepeatedKey] = []
    for ref in listed:
        if ref.key in seen:
            (first, uri), (second, second_uri) = sorted([seen[ref.key], (ref.position, ref.uri)])
            duplicates.append(summaries.RepeatedKey(ref.key, (uri, second_uri), (first, second)))
            continue
        seen[ref.key] = ref.position, ref.uri
        row = rows.get(ref.key)
        has_same_content = ref.key in contents
        has_same_fingerprint = (
            row is not None and row.fingerprint == ref.fingerprint and (read_contents is None or _has_version(ref))
        )
        if row is not None and row.reject is not None and (has_same_content or has_same_fingerprint):
            rejects.append(row.reject)
        elif row is not None and has_same_content:
            unchanged[row.split] += 1
        elif row is None or row.record == NO_RECORD:
            images.append(ref)
            counts["added"][ref.split] += 1
        else:
            images.append(ref._replace(replaces=row.split))
            counts["changed"][ref.split] += 1
            moved += row.split != ref.split
            remove(row)
    for key, row in rows.items():
        if key not in seen and row.record != NO_RECORD:
            counts["removed"][row.split] += 1
            remove(row)
    comparison = summaries.Comparison(
        unchanged,
        **counts,
        removed_labels=dict(removed_labels),
        kept_rejects=len(rejects),
        kept_rejects_digest=_digest_rejects(rejects),
        digest=digest,
        duplicates=tuple(sorted(duplicates)[: summaries.MAX_DUPLICATES]),
        num_duplicates=len(duplicates),
        compared_contents=len(to_read),
        same_contents=len(contents),
        moved=moved,
    )
    return Compared(images, rejects, removed, comparison)


def _may_be_same(ref: elements.ImageRef, row: KnownImage | None) -> bool:
    """Returns whether all but the version is that of a known image, so that its bytes decide."""
    if row is None or not row.content or (_has_version(ref) and row.fingerprint == ref.fingerprint):
        return False
    return row.content[: image_states.STABLE_BYTES] == ref.content


def compare_with_rejects(listed: Rows, known: Rows) -> Compared:
    """Compares like `compare`, but lets only images go on that were rejected before; no other image is touched."""
    unchanged = collections.Counter(row[_SPLIT] for row in known if row[_RECORD] != NO_RECORD)
    rows = {row[_KEY]: KnownImage(*row) for row in known if row[_RECORD] == NO_RECORD}
    images = {row[_KEY]: elements.ImageRef(*row) for row in listed if row[_KEY] in rows}
    rejects = [row.reject for key, row in rows.items() if row.reject is not None and key not in images]
    added = collections.Counter(ref.split for ref in images.values())
    comparison = summaries.Comparison(
        unchanged, added, kept_rejects=len(rejects), kept_rejects_digest=_digest_rejects(rejects)
    )
    return Compared(list(images.values()), rejects, {}, comparison)


def _digest_rejects(rejects: Iterable[elements.Reject]) -> int:
    return sum(map(summaries.digest_reject, rejects)) % summaries.DIGEST_RANGE


def _rank(image: KnownImage) -> tuple[bool, int]:
    return image.record != NO_RECORD, image.snapshot
