"""Reads the images of a shard, with their masks and extra images, and checks and changes them as the config says.

Imports no Beam.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import re
import threading
import time
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

from imagebeam import concurrency
from imagebeam.transforms import elements
from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import checked_image, class_masks, frame_reader, image_objects, prepare, structure
from imagebeam.transforms.shard import image_hashes, writer_processes
from imagebeam.transforms.shard import read_ahead as read_ahead_lib
from imagebeam.transforms.snapshots import image_states

_Files: TypeAlias = list[bytes | read_ahead_lib.ReadError]  # files of one example
# (image, its bytes) -> its Measures if it was written; None if it is still to be prepared.
Put: TypeAlias = Callable[[elements.ImageRef, bytes], "elements.Measures | None"]
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
    images = read_or_take(refs, policy, read_ahead, skipped, hasher)
    return cast(Iterator[tuple[elements.ImageRef, checked_image.Image | elements.Reject]], images)


def read_or_take(
    refs: Iterable[elements.ImageRef],
    policy: prepare.ImagePolicy,
    read_ahead: read_ahead_lib.ReadAhead,
    skipped: Mapping[int, elements.Reason],
    hasher: image_hashes.Hasher | None,
    take: read_ahead_lib.Take | None = None,
    put: Put | None = None,
    num_before: int = 0,
) -> Iterator[tuple[elements.ImageRef, checked_image.Image | elements.Reject | elements.Measures]]:
    """Yields images like `read_images`, or what is counted of those that `take` or `put` wrote.

    `num_before` is the number of the first one.
    """
    limit = policy.limits.max_seconds
    policy.functions.start()
    watch = None if limit is None else Watch(limit)
    in_time = _at_once if watch is None else watch.run
    image: Any
    try:
        for number, (ref, files) in enumerate(_read_or_take_files(refs, read_ahead, take), num_before):
            writer_processes.note_progress(number)
            if isinstance(files, elements.Measures):
                yield ref, files
                continue
            only = ref._replace(key=still_key(ref.key)) if policy.frames == prepare.EACH else ref
            frames = None
            try:
                if number in skipped:
                    raise _skipped(skipped[number], limit)
                data = _content(files[0])
                if policy.frames == prepare.EACH:
                    frames = read_frames(ref, data, policy, hasher, functools.partial(in_time, number))
                if frames is None and (put is None or (image := put(only, data)) is None):
                    image = in_time(number, functools.partial(_prepare, only, files, policy, hasher))
            except (checked_image.BadImageError, read_ahead_lib.ReadError) as e:
                image = _reject(only, e, read_ahead.size_column)
            if frames is not None:
                yield from frames
            else:
                yield add_content(only, files) if ref.content else only, image
    finally:
        if watch is not None:
            watch.close()


def read_files(
    refs: Iterable[elements.ImageRef], read_ahead: read_ahead_lib.ReadAhead
) -> Iterator[tuple[elements.ImageRef, _Files]]:
    """Yields each reference with the content of its image, of its mask if it has one, and of its extra images."""
    return cast(Iterator[tuple[elements.ImageRef, _Files]], _read_or_take_files(refs, read_ahead, None))


def _read_or_take_files(
    refs: Iterable[elements.ImageRef], read_ahead: read_ahead_lib.ReadAhead, take: read_ahead_lib.Take | None
) -> Iterator[tuple[elements.ImageRef, _Files | elements.Measures]]:
    fetched: Iterator[Any] = read_ahead_lib.fetch_or_take(_each_file(refs), read_ahead, take)
    for ref, data in fetched:
        if isinstance(data, elements.Measures):
            yield ref, data
        elif ref.mask is None and not ref.extra_images:
            yield ref, [data]
        else:
            num_others = len(ref.extra_images) + (ref.mask is not None)
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
) -> checked_image.Image:
    """Returns an image with all that is stored with it.

    Raises:
        BadImageError: if it is to be rejected.
        ReadError: if one of its other files cannot be read.
    """
    data = _content(files[0])
    start, length = ref.inside or (0, len(data))
    source = data if ref.inside is None else data[start : start + length]
    found = None if policy.objects is None else _read_objects(ref, files, source, policy)
    try:
        expected = ref.expected if found is None else found.expected
        with _naming(_name_in_list(ref, policy, 0)):
            image = policy.for_image(ref).prepare(source, expected)
    except MemoryError as e:
        detail = "the image does not fit into memory: set image.limits.max_pixels, or take fewer --workers"
        raise MemoryError(f"{ref.uri!r} ({ref.key!r}): {detail}") from e
    if found is not None:
        image = image._replace(objects=found.values, annotated=found.expected, dropped_objects=found.dropped)
    if ref.inside is not None:
        image = image._replace(record=data)
    if ref.extra_images:
        image = _add_extra_images(ref, image, files[-len(ref.extra_images) :], policy)
    elif not policy.part.is_whole:
        image = _with_extra_images(image, policy.prepare_other_parts(source))
    if hasher is not None:
        if policy.list_column:  # examples are the same if all of their images are
            source = b"".join(hashlib.sha256(_content(each)).digest() for each in files)
        elif policy.functions.function is not None:  # it may make two images of equal files
            source = image.data
        image = image._replace(hashes=hasher.hash(source, image))
    if ref.mask is not None and policy.objects is None:
        place = policy.masks.segments
        segments = ref.columns[place] if place >= 0 else None
        with _naming(f"its mask {ref.mask.uri!r}"):
            image = class_masks.with_mask(image, _content(files[1]), policy.check, policy.masks, segments)
    return image


def _read_objects(
    ref: elements.ImageRef,
    files: Sequence[bytes | read_ahead_lib.ReadError],
    source: bytes,
    policy: prepare.ImagePolicy,
) -> image_objects.Annotations:
    assert policy.objects is not None
    reader = policy.objects.for_image(functools.partial(policy.find_size, source))
    if ref.mask is None:
        with _naming("its annotations"):
            return reader.read(ref.columns[0] if ref.columns else None)  # those in a file of many images are listed
    with _naming(f"its annotations {ref.mask.uri!r}"):
        return reader.read(_content(files[1]))


def _add_extra_images(
    ref: elements.ImageRef,
    image: checked_image.Image,
    files: Sequence[bytes | read_ahead_lib.ReadError],
    policy: prepare.ImagePolicy,
) -> checked_image.Image:
    prepared = []
    for place, (extra, data) in enumerate(zip(ref.extra_images, files, strict=True)):
        with _naming(f"{_name_in_list(ref, policy, place + 1) or f'column {extra.column!r}'}, {extra.uri!r}"):
            prepared.append(policy.prepare_extra_image(_content(data), place))
    return _with_extra_images(image, prepared)


def _with_extra_images(image: checked_image.Image, prepared: Sequence[checked_image.Image]) -> checked_image.Image:
    num_bytes = sum(len(each.data) for each in (image, *prepared))
    if num_bytes > structure.MAX_IMAGE_BYTES:
        found = f"its {len(prepared) + 1} images have {num_bytes:,} bytes"
        detail = f"{found}, a tf.train.Example takes up to {structure.MAX_IMAGE_BYTES:,}"
        raise checked_image.BadImageError(Reason.TOO_LARGE, detail)
    return image._replace(extra_images=tuple(prepared))


def _name_in_list(ref: elements.ImageRef, policy: prepare.ImagePolicy, number: int) -> str:
    """Returns which image of a list one is, by its place in the row; "" where examples have no lists."""
    return f"{policy.list_column}[{ref.columns[0][number]}]" if policy.list_column else ""


def _content(data: bytes | read_ahead_lib.ReadError) -> bytes:
    if isinstance(data, read_ahead_lib.ReadError):
        raise data
    return data


@contextlib.contextmanager
def _naming(where: str) -> Iterator[None]:
    """Adds the name of a file to the error for it; nothing if the name is ""."""
    try:
        yield
    except read_ahead_lib.ReadError as e:
        raise read_ahead_lib.ReadError(e.reason, f"{where}: {e.detail}") from e
    except checked_image.BadImageError as e:
        raise checked_image.BadImageError(e.reason, f"{where}: {e.detail}" if where else e.detail) from e


def _reject(
    ref: elements.ImageRef, error: checked_image.BadImageError | read_ahead_lib.ReadError, size_column: str = ""
) -> elements.Reject:
    if isinstance(error, read_ahead_lib.ReadError):
        return elements.Reject(ref.key, ref.uri, "read", error.reason, error.explain(ref, size_column))
    return elements.Reject(ref.key, ref.uri, "check", error.reason, error.detail)


def _skipped(reason: elements.Reason, max_seconds: float | None) -> checked_image.BadImageError:
    """Returns the error for an image that ended a process which tried it."""
    if reason is Reason.TOO_SLOW:
        return too_slow(max_seconds)
    detail = "two processes died on it: out of memory, or a fault of a decoder; look at it apart, or leave it out"
    return checked_image.BadImageError(reason, detail)


def _each_file(refs: Iterable[elements.ImageRef]) -> Iterator[elements.ImageRef]:
    """Yields each image, its mask and its extra images, in one stream of files, so that all are read ahead."""
    for ref in refs:
        yield ref
        if ref.mask is not None:
            yield elements.ImageRef(ref.key, *ref.mask, inside=_BESIDE)
        for extra in ref.extra_images:
            yield extra.as_ref(ref.key)._replace(inside=_BESIDE)


_T = TypeVar("_T")
_LOOKS = 8  # at the clock, within the limit


def _at_once(number: int, prepare: Callable[[], _T]) -> _T:
    """Returns `prepare()`: the time of an image is not limited."""
    return prepare()


class Watch:
    """Limits the seconds that one image of a shard may take. To be closed, so that its thread ends.

    A decoder in C cannot be interrupted. In a writer process, an image that takes too long ends the process, and the
    next one goes on without it (`writer_processes.end_as_slow`). Elsewhere it is rejected, and its thread left behind.
    """

    def __init__(self, max_seconds: float):
        self._max_seconds = max_seconds
        self._begun: tuple[int, float] | None = None  # number of the image that is being prepared, end of its time
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None
        if writer_processes.is_writer():
            self._thread = threading.Thread(target=self._look, name="imagebeam-time-limit", daemon=True)
            self._thread.start()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, number: int, prepare: Callable[[], _T], num_images: int = 1) -> _T:
        """Returns `prepare()`, the work on image `number` of the shard, or with -1 on several images.

        Raises:
            BadImageError: if it took too long.
        """
        seconds = self._max_seconds * num_images
        if self._thread is None:
            try:
                return concurrency.call_in_time(prepare, seconds)
            except concurrency.TooSlowError as e:
                raise too_slow(self._max_seconds) from e
        begin = time.monotonic()
        self._begun = number, begin + seconds
        try:
            done = prepare()
        finally:
            self._begun = None
        if time.monotonic() - begin > seconds:
            raise too_slow(self._max_seconds)
        return done

    def close(self) -> None:
        """Ends the thread."""
        self._ends.set()
        if self._thread is not None:
            self._thread.join()

    def _look(self) -> None:
        while not self._ends.wait(self._max_seconds / _LOOKS):
            begun = self._begun
            if begun is not None and time.monotonic() > begun[1]:
                writer_processes.end_as_slow(begun[0])


def too_slow(max_seconds: float | None) -> checked_image.BadImageError:
    """Returns the error for an image that takes too long."""
    limit = "" if max_seconds is None else f" of {max_seconds:g} s"
    return checked_image.BadImageError(
        Reason.TOO_SLOW, f"takes longer than image.limits.max_seconds{limit} to decode and encode"
    )


_DIGITS = 4  # at least, so that the keys of a file sort in the order of its frames
_ENDS_AS_FRAME = re.compile(rf"#\d{{{_DIGITS},}}", re.ASCII)
# Calls a function that prepares an image, within its time.
InTime: TypeAlias = Callable[[Callable[[], checked_image.Image]], checked_image.Image]
ReadImage: TypeAlias = tuple[elements.ImageRef, "checked_image.Image | elements.Reject"]


def frame_key(key: str, number: int, count: int) -> str:
    """Returns the key of one picture: "clip.gif#0003" is the fourth frame of clip.gif.

    Args:
        key: of the file.
        number: of the picture, from 0.
        count: of the pictures in the file.
    """
    digits = max(_DIGITS, len(str(count - 1)))
    return f"{key}#{number:0{digits}d}"


def still_key(key: str) -> str:
    """Returns the key of the only picture of a file: that of the file, unless it looks like the key of a frame."""
    suffix = key[key.rfind("#") :] if "#" in key else ""
    return frame_key(key, 0, 1) if _ENDS_AS_FRAME.fullmatch(suffix) else key


def read_frames(
    ref: elements.ImageRef,
    data: bytes,
    policy: prepare.ImagePolicy,
    hasher: image_hashes.Hasher | None,
    in_time: InTime,
) -> Iterator[ReadImage] | None:
    """Returns each picture of a file with its reference, one after the other; None if the file has one picture.

    Args:
        ref: the file.
        data: the bytes that were read for it: the image, or a record that holds it.
        policy: checks and changes the pictures.
        hasher: of the pictures' hashes; None without them.
        in_time: calls what prepares a picture.

    Raises:
        BadImageError: if the whole file is to be rejected.
    """
    source = data if ref.inside is None else data[ref.inside[0] : sum(ref.inside)]
    frames = policy.for_image(ref).prepare_frames(source, ref.expected)
    if frames is None:
        return None
    if ref.mask is not None:
        raise checked_image.BadImageError(
            elements.Reason.SEVERAL_FRAMES,
            f"it holds {frames.count:,} images and has one mask: split it, and give each image a mask",
        )
    return _each_frame(ref, data, frames, hasher, in_time)


def _each_frame(
    ref: elements.ImageRef,
    data: bytes,
    frames: frame_reader.Frames,
    hasher: image_hashes.Hasher | None,
    in_time: InTime,
) -> Iterator[ReadImage]:
    def prepare_next() -> checked_image.Image:
        image = next(frames.images)
        if isinstance(image, checked_image.BadImageError):
            raise image
        if ref.inside is not None:
            image = image._replace(record=data)
        return image if hasher is None else image._replace(hashes=hasher.hash(image.data, image))

    for number in range(frames.count):
        one = ref._replace(key=frame_key(ref.key, number, frames.count), frame=number)
        image: checked_image.Image | elements.Reject
        try:
            image = in_time(prepare_next)
        except checked_image.BadImageError as e:
            image = _reject(one, e)
        yield one, image


class HashTask(NamedTuple):
    """Some images to hash."""

    packed_refs: bytes
    skipped: tuple[tuple[int, elements.Reason], ...] = ()  # as in ShardTask, by the order in which they are read


@dataclasses.dataclass(frozen=True)
class ImageReader:
    """Reads images before their shard is planned."""

    policy: prepare.ImagePolicy
    read_ahead: read_ahead_lib.ReadAhead
    hasher: image_hashes.Hasher

    def hash_images(self, task: HashTask) -> bytes:
        """Returns packed rows of HashedImage.

        Images that will be rejected are left out: nothing is dropped in favor of an image that is not written.
        """
        refs = sorted(elements.unpack_refs(task.packed_refs), key=lambda ref: (ref.uri, ref.offset))
        hashed = [
            image_hashes.hashed(ref, image)
            for ref, image in read_images(refs, self.policy, self.read_ahead, dict(task.skipped), self.hasher)
            if not isinstance(image, elements.Reject)
        ]
        return elements.pack_rows(hashed)
