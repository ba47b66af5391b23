"""Makes an image of each picture of a file that has several, one at a time. Imports no Beam."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TypeAlias

from imagebeam.transforms import elements
from imagebeam.transforms.images import checked_image, prepare
from imagebeam.transforms.shard import image_hashes

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
    frames = policy.prepare_frames(source, ref.expected)
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
    frames: prepare.Frames,
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
            image = elements.Reject(one.key, one.uri, "check", e.reason, e.detail)
        yield one, image
