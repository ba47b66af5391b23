"""Decodes whole images with the decoders of the reader, and finds the entry points with which it decodes crops."""

from __future__ import annotations

import functools
import importlib.util
import re
import struct
from typing import TYPE_CHECKING, Any

from imagebeam import errors, features
from imagebeam.transforms import elements
from imagebeam.transforms.images import checked_image, image_formats, pillow_decoder, structure

if TYPE_CHECKING:
    import numpy as np

try:
    from imagebeam import _native
except ImportError:  # installed without a compiler, or without libjpeg-turbo
    _native = None  # type: ignore[assignment]

_JPEG = "jpeg"
_WRAPPED = re.compile(r"(?:\{\{.*?\}\} )?(.*?)(?: \[Op:\w+\].*)?", re.DOTALL)  # TensorFlow's text around errors


def has_decoder_in_c() -> bool:
    """Returns whether JPEGs are decoded without TensorFlow."""
    return _native is not None


def require() -> None:
    """Refuses to begin with `image.check: tensorflow` without TensorFlow. Does not import it, which takes seconds.

    Raises:
        ConfigError: if it is not installed.
    """
    if importlib.util.find_spec("tensorflow") is None:
        raise _missing(ModuleNotFoundError(name="tensorflow"))


def _missing(error: ImportError) -> errors.ConfigError:
    return errors.missing_package(error, "image.check: tensorflow", "tf", "set image.check: decode")


@functools.cache
def shared() -> ImageDecoder:
    """Returns the decoder of this process for `image.check: tensorflow`. TensorFlow is imported once."""
    return ImageDecoder(pillow_may_decode=False)


class ImageDecoder:
    """Decodes images with the decoders of `as_tf`: the one in C for JPEGs, else TensorFlow.

    The decoder in C and TensorFlow make the same image of a JPEG, and refuse the same JPEGs.

    Args:
        pillow_may_decode: whether Pillow takes the place of TensorFlow where that is not installed.
    """

    def __init__(self, pillow_may_decode: bool = True) -> None:
        self._pillow_may_decode = pillow_may_decode
        self._tensorflow: Any = None

    def check(self, encoded: bytes, size: tuple[int, int] | None = None) -> None:
        """Decodes all pixels of an image.

        Args:
            encoded: the bytes of the image.
            size: height and width in the image's record, in pixels; None if the record does not have them.

        Raises:
            BadImageError: if the image is broken, has another size, or cannot be decoded.
            ConfigError: if TensorFlow is not installed, and Pillow may not take its place.
        """
        is_webp = image_formats.sniff_format(encoded) == image_formats.WEBP
        image = check_webp(encoded) if is_webp else structure.check_image(encoded)
        if size is not None and size != (image.height, image.width):
            raise _undecodable(
                f"the image has {image.height} x {image.width} pixels, its record says {size[0]} x {size[1]}"
            )
        if image.format == _JPEG and _native is not None:
            _decode_in_c(image)
        elif not self._decode_by_tensorflow(image):
            pillow_decoder.decode(image)

    def _decode_by_tensorflow(self, image: checked_image.Image) -> bool:
        """Decodes an image; returns False without TensorFlow, which is imported by the first call: it takes seconds."""
        if self._tensorflow is None:
            try:
                import tensorflow
            except ImportError as e:
                if self._pillow_may_decode:
                    return False
                raise _missing(e) from e
            self._tensorflow = tensorflow
        tf = self._tensorflow
        try:
            tf.io.decode_image(image.data, channels=3, expand_animations=False)
        except tf.errors.InvalidArgumentError as e:
            message = _WRAPPED.fullmatch(e.message)
            raise _undecodable(f"TensorFlow: {message[1] if message else e.message}") from e
        return True


def decode_whole(encoded: bytes, size: tuple[int, int]) -> np.ndarray | None:
    """Returns the pixels of a JPEG in color, uint8 [height, width, 3], as Pillow decodes them, in less time.

    None of a JPEG that is not sound, and without the C extension.
    """
    found = None if _native is None else _native.decode_whole(encoded, checked_image.MAX_DECODED_PIXELS, *size)
    if found is None:
        return None
    import numpy as np

    return np.frombuffer(found[0], np.uint8).reshape(*size, 3)


def _decode_in_c(image: checked_image.Image) -> None:
    """Decodes a whole JPEG into one pixel: libjpeg then scales it down, which takes half the time."""
    import numpy as np

    part = np.array([[0, 0, image.height, image.width]], np.int32)
    failures = _native.decode([image.data], part, np.zeros(1, np.bool_), np.zeros((1, 1, 1, 3), np.uint8), 1)
    if failures:
        raise _undecodable(f"libjpeg: {failures[0][1]}")


def _undecodable(detail: str) -> checked_image.BadImageError:
    return checked_image.BadImageError(elements.Reason.UNDECODABLE, detail)


def find_entry_points(image: checked_image.Image) -> bytes:
    """Returns the entry points of a checked image; empty if it has none.

    Only JPEGs have them: those with one scan of Huffman codes (not the progressive ones), no restart markers, and no
    damage that a decoder would notice.

    Raises:
        ConfigError: if the C extension is missing.
    """
    return find_entry_points_in(image.data) if image.format == image_formats.JPEG else b""


def find_entry_points_in(encoded: bytes) -> bytes:
    """Returns the entry points of an encoded image of any format; empty if it has none.

    Raises:
        ConfigError: if the C extension is missing.
    """
    require_entry_points()
    return _native.find_entry_points(encoded)


def require_entry_points() -> None:
    """Refuses to begin without the C extension.

    Raises:
        ConfigError: if it is missing.
    """
    if _native is None:
        raise errors.ConfigError(
            "extension-missing",
            f"features names {features.ENTRY_POINTS!r}, and this installation of imagebeam has no C extension _native: "
            "install a C compiler and libjpeg-turbo (apt-get install gcc python3-dev libjpeg-dev) and then imagebeam "
            "again, or leave that feature out",
        )


# --- WebP ------------------------------------------------------------------------------------------------------------

_EXTENDED = b"VP8X"  # kind of a chunk
_ANIMATION, _ALPHA = 0x02, 0x10  # flags of an extended file
_START_CODE = b"\x9d\x01\x2a"
_SIDE_BITS = 14
_SIDE_MASK = (1 << _SIDE_BITS) - 1
_IS_TRANSPARENT = 1 << 2 * _SIDE_BITS  # flag of a lossless picture


def check_webp(data: bytes) -> checked_image.Image:
    """Checks that a still WebP is complete without decoding it: its chunks up to the end of the file.

    Source: RFC 9649, sections 2 and 3.4; RFC 6386, section 9.1, for the header of a lossy picture.

    Raises:
        BadImageError: if the WebP is truncated, broken or animated.
    """
    end = 8 + int.from_bytes(data[4:8], "little")
    if end > len(data):
        raise checked_image.truncated(f"the RIFF header says {end:,} bytes", len(data))
    found: checked_image.Image | None = None
    has_alpha, position = False, image_formats.RIFF_HEADER_BYTES
    while position + 8 <= end:
        kind, length = image_formats.unpack_chunk(data, position)
        start = position + 8
        if start + length > end:
            raise checked_image.truncated(f"the chunk {kind!r} at byte {position} ends at byte {start + length}", end)
        if kind == _EXTENDED:
            if data[start] & _ANIMATION:
                raise checked_image.unsupported("an animated WebP, on which TensorFlow 2.21 fails")
            has_alpha = bool(data[start] & _ALPHA)
        elif kind in (image_formats.WEBP_LOSSY, image_formats.WEBP_LOSSLESS) and found is None:
            height, width, is_transparent = _read_picture(kind, data[start : start + 10], position)
            has_alpha |= is_transparent
            channels, colorspace = (4, "RGBA") if has_alpha else (3, "RGB")
            found = checked_image.Image(data, image_formats.WEBP, height, width, channels, colorspace)
        position = start + length + length % 2
    if found is None:
        raise checked_image.corrupt("no picture: there is no VP8 or VP8L chunk")
    return found


def _read_picture(kind: bytes, head: bytes, position: int) -> tuple[int, int, bool]:
    """Returns height and width in pixels, and whether a lossless picture has alpha."""
    if kind == image_formats.WEBP_LOSSLESS and head[:1] == b"\x2f" and len(head) >= 5:
        bits = int.from_bytes(head[1:5], "little")
        return (bits >> _SIDE_BITS & _SIDE_MASK) + 1, (bits & _SIDE_MASK) + 1, bool(bits & _IS_TRANSPARENT)
    if kind == image_formats.WEBP_LOSSY and head[3:6] == _START_CODE and len(head) == 10:
        width, height = struct.unpack_from("<HH", head, 6)
        return height & _SIDE_MASK, width & _SIDE_MASK, False
    raise checked_image.corrupt(f"the chunk {kind!r} at byte {position} begins with {head!r}, which is no picture")
