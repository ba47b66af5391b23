"""Reads the images of a shard, with their masks and further images, and checks and changes them as the config says."""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

from imagebeam.transforms import elements
from imagebeam.transforms.images import checked_image, class_masks, image_objects, prepare, structure
from imagebeam.transforms.shard import (
    image_hashes,
    read_frames,
    time_limit,
    writer_processes,
)
from imagebeam.transforms.shard import (
    read_ahead as read_ahead_lib,
)
from imagebeam.transforms.snapshots import image_states

_Files: TypeAlias = list[bytes | read_ahead_lib.ReadError]  # of one example
_BESIDE = (-2, -2)  # `ImageRef.inside` of a further file of an example, which is no example itself


def read_images(
    refs: Iterable[elements.ImageRef],
    policy: prepare.ImagePolicy,
    read_ahead: read_ahead_lib.ReadAhead,
    skipped: Mapping[int, elements.Reason] = types.MappingProxyType({}),
    hasher: image_hashes.Hasher | None = None,
) -> Iterable[tuple[elements.ImageRef, checked_image.Image | elements.Reject]]:
    """Yields each reference with its checked image, or with its reject; or each picture of a file, one by one.

    Args:
        refs: the images to read.
        policy: checks and changes them.
        read_ahead: how much is read ahead.
        skipped: images that are rejected without a look at their bytes, by their number in `refs`.
        hasher: of the images' hashes; None without them.
    """
    images = read_or_take(refs, policy, read_ahead, skipped, hasher, None)
    return cast(Iterator[tuple[elements.ImageRef, checked_image.Image | elements.Reject]], images)


def read_or_take(
    refs: Iterable[elements.ImageRef],
    policy: prepare.ImagePolicy,
    read_ahead: read_ahead_lib.ReadAhead,
    skipped: Mapping[int, elements.Reason],
    hasher: image_hashes.Hasher | None,
    take: read_ahead_lib.Take | None,
) -> Iterator[tuple[elements.ImageRef, checked_image.Image | elements.Reject | elements.Measures]]:
    """Yields images like `read_images`, or what is counted of those that `take` wrote."""
    limit = policy.limits.max_seconds
    watch = None if limit is None else time_limit.Watch(limit)
    image: checked_image.Image | elements.Reject
    try:
        for number, (ref, files) in enumerate(_read_or_take_files(refs, read_ahead, take)):
            writer_processes.note_progress(number)
            if isinstance(files, elements.Measures):
                yield ref, files
                continue
            data = files[0]
            if policy.frames == prepare.EACH:
                if number not in skipped and not isinstance(data, read_ahead_lib.ReadError):
                    frames = _read_frames(ref, data, policy, hasher, number, watch)
                    if frames is not None:
                        yield from frames
                        continue
                ref = ref._replace(key=read_frames.still_key(ref.key))
            if number in skipped:
                image = _skip(ref, skipped[number], limit)
            elif isinstance(data, read_ahead_lib.ReadError):
                detail = data.explain(ref, read_ahead.size_column)
                image = elements.Reject(ref.key, ref.uri, "read", data.reason, detail)
            elif watch is None:
                image = _prepare(ref, files, policy, hasher)
            else:
                image = _prepare_in_time(ref, files, policy, hasher, number, watch)
            if ref.mask is not None and policy.objects is None:
                image = (
                    image if isinstance(image, elements.Reject) else _add_mask(ref, image, ref.mask, files[1], policy)
                )
            yield add_content(ref, files) if ref.content else ref, image
    finally:
        if watch is not None:
            watch.close()


def read_files(
    refs: Iterable[elements.ImageRef], read_ahead: read_ahead_lib.ReadAhead
) -> Iterator[tuple[elements.ImageRef, _Files]]:
    """Yields each reference with the content of its image, of its mask if it has one, and of its further images."""
    return cast(Iterator[tuple[elements.ImageRef, _Files]], _read_or_take_files(refs, read_ahead, None))


def _read_or_take_files(
    refs: Iterable[elements.ImageRef], read_ahead: read_ahead_lib.ReadAhead, take: read_ahead_lib.Take | None
) -> Iterator[tuple[elements.ImageRef, _Files | elements.Measures]]:
    fetched: Iterator[Any] = read_ahead_lib.fetch_or_take(_each_file(refs), read_ahead, take)
    for ref, data in fetched:
        if isinstance(data, elements.Measures):
            yield ref, data
        elif ref.mask is None and not ref.further:
            yield ref, [data]
        else:
            num_others = len(ref.further) + (ref.mask is not None)
            yield ref, [data, *(other for _, other in itertools.islice(fetched, num_others))]


def add_content(ref: elements.ImageRef, files: Sequence[bytes | read_ahead_lib.ReadError]) -> elements.ImageRef:
    """Returns the reference with a digest of the bytes that were read for it; unchanged if a file cannot be read."""
    found = [data for data in files if not isinstance(data, read_ahead_lib.ReadError)]
    return image_states.add_content(ref, *found) if len(found) == len(files) else ref


def _prepare(
    ref: elements.ImageRef,
    files: Sequence[bytes | read_ahead_lib.ReadError],
    policy: prepare.ImagePolicy,
    hasher: image_hashes.Hasher | None,
) -> checked_image.Image | elements.Reject:
    data = files[0]
    assert not isinstance(data, read_ahead_lib.ReadError)
    start, length = ref.inside or (0, len(data))
    source = data if ref.inside is None else data[start : start + length]
    found = _read_objects(ref, None if ref.mask is None else files[1], policy.objects)
    if isinstance(found, elements.Reject):
        return found
    try:
        image = policy.prepare(source, ref.expected if found is None else found.expected)
    except checked_image.BadImageError as e:
        return _reject(ref, e)
    except MemoryError as e:
        detail = "the image does not fit into memory: set image.limits.max_pixels, or take fewer --workers"
        raise MemoryError(f"{ref.uri!r} ({ref.key!r}): {detail}") from e
    if found is not None:
        image = image._replace(objects=found.values, annotated=found.expected, dropped_objects=found.dropped)
    if ref.inside is not None:
        image = image._replace(record=data)
    if hasher is not None:
        image = image._replace(hashes=hasher.hash(source, image))
    return _add_further(ref, image, files[-len(ref.further) :], policy) if ref.further else image


def _prepare_in_time(
    ref: elements.ImageRef,
    files: Sequence[bytes | read_ahead_lib.ReadError],
    policy: prepare.ImagePolicy,
    hasher: image_hashes.Hasher | None,
    number: int,
    watch: time_limit.Watch,
) -> checked_image.Image | elements.Reject:
    try:
        return watch.run(number, lambda: _prepare(ref, files, policy, hasher))
    except checked_image.BadImageError as e:
        return _reject(ref, e)


def _read_frames(
    ref: elements.ImageRef,
    data: bytes,
    policy: prepare.ImagePolicy,
    hasher: image_hashes.Hasher | None,
    number: int,
    watch: time_limit.Watch | None,
) -> Iterator[read_frames.ReadImage] | None:
    """Returns the pictures of a file that has several, or its reject; None if it has one picture."""

    def in_time(prepare_one: Callable[[], checked_image.Image]) -> checked_image.Image:
        return prepare_one() if watch is None else watch.run(number, prepare_one)

    try:
        return read_frames.read_frames(ref, data, policy, hasher, in_time)
    except checked_image.BadImageError as e:
        still = ref._replace(key=read_frames.still_key(ref.key))
        return iter([(still, _reject(still, e))])


def _read_objects(
    ref: elements.ImageRef,
    data: bytes | read_ahead_lib.ReadError | None,
    reader: image_objects.AnnotationReader | None,
) -> image_objects.Annotations | elements.Reject | None:
    """Returns the objects in the annotation file of an image, or the reject of the image; None without a reader."""
    if reader is None:
        return None
    where = "its annotations" if ref.mask is None else f"its annotations {ref.mask.uri!r}"
    if isinstance(data, read_ahead_lib.ReadError):
        return elements.Reject(ref.key, ref.uri, "read", data.reason, f"{where}: {data.detail}")
    try:
        return reader.read(data)
    except checked_image.BadImageError as e:
        return elements.Reject(ref.key, ref.uri, "check", e.reason, f"{where}: {e.detail}")


def _skip(ref: elements.ImageRef, reason: elements.Reason, max_seconds: float | None) -> elements.Reject:
    """Returns the reject of an image that ended a process which tried it."""
    if reason is elements.Reason.TOO_SLOW:
        return _reject(ref, time_limit.too_slow(max_seconds))
    detail = "two processes died on it: out of memory, or a fault of a decoder; look at it apart, or leave it out"
    return elements.Reject(ref.key, ref.uri, "check", reason, detail)


def _reject(ref: elements.ImageRef, error: checked_image.BadImageError) -> elements.Reject:
    return elements.Reject(ref.key, ref.uri, "check", error.reason, error.detail)


def _add_mask(
    ref: elements.ImageRef,
    image: checked_image.Image,
    mask: elements.Mask,
    data: bytes | read_ahead_lib.ReadError,
    policy: prepare.ImagePolicy,
) -> checked_image.Image | elements.Reject:
    where = f"its mask {mask.uri!r}"
    if isinstance(data, read_ahead_lib.ReadError):
        return elements.Reject(ref.key, ref.uri, "read", data.reason, f"{where}: {data.detail}")
    try:
        place = policy.masks.segments
        segments = ref.columns[place] if place >= 0 else None
        return class_masks.with_mask(image, data, policy.check, policy.masks, segments)
    except checked_image.BadImageError as e:
        return elements.Reject(ref.key, ref.uri, "check", e.reason, f"{where}: {e.detail}")


def _add_further(
    ref: elements.ImageRef,
    image: checked_image.Image,
    files: Sequence[bytes | read_ahead_lib.ReadError],
    policy: prepare.ImagePolicy,
) -> checked_image.Image | elements.Reject:
    """Returns the image with the further images of its example; the reject of the example if one of them is bad."""
    prepared = []
    for further, data in zip(ref.further, files, strict=True):
        where = f"column {further.column!r}, {further.uri!r}"
        if isinstance(data, read_ahead_lib.ReadError):
            return elements.Reject(ref.key, ref.uri, "read", data.reason, f"{where}: {data.detail}")
        try:
            prepared.append(policy.prepare_further(data))
        except checked_image.BadImageError as e:
            return elements.Reject(ref.key, ref.uri, "check", e.reason, f"{where}: {e.detail}")
    num_bytes = sum(len(each.data) for each in (image, *prepared))
    if num_bytes > structure.MAX_IMAGE_BYTES:
        found = f"its {len(prepared) + 1} images have {num_bytes:,} bytes"
        detail = f"{found}, a tf.train.Example takes up to {structure.MAX_IMAGE_BYTES:,}"
        return elements.Reject(ref.key, ref.uri, "check", elements.Reason.TOO_LARGE, detail)
    return image._replace(further=tuple(prepared))


def _each_file(refs: Iterable[elements.ImageRef]) -> Iterator[elements.ImageRef]:
    """Yields each image, its mask and its further images, in one stream of files, so that all are read ahead."""
    for ref in refs:
        yield ref
        if ref.mask is not None:
            yield elements.ImageRef(ref.key, *ref.mask, inside=_BESIDE)
        for further in ref.further:
            yield elements.ImageRef(ref.key, further.uri, further.size, further.version, inside=_BESIDE)
