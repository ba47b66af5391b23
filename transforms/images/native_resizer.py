"""Resizes JPEGs in C: decodes, scales and encodes in one call, in half the time that Pillow takes.

The picture is the one that Pillow makes, up to rounding and the noise of JPEG: the filters and sizes are the same, but
the planes of a JPEG are scaled as they are stored, brightness and color apart, without a conversion to RGB and back.
"""

from __future__ import annotations

from imagebeam import errors
from imagebeam.transforms.images import checked_image, encoders, image_formats, resample, scaling, structure

try:
    from imagebeam import _resize
except ImportError:  # installed without a compiler, or without libjpeg-turbo
    _resize = None  # type: ignore[assignment]

_SAMPLINGS = {"source": (0, 0), "4:4:4": (1, 1), "4:2:2": (2, 1), "4:2:0": (2, 2)}  # of Y, across and down
_CHANNELS = {"GRAY": 1, "RGB": 3}


def resize_jpeg(
    image: checked_image.Image, how: scaling.Scaling, encoding: encoders.Encoding, is_gray: bool = False
) -> checked_image.Image | None:
    """Returns a JPEG resized, and cropped if `how.fit` is "crop".

    Args:
        image: a checked JPEG. Its EXIF orientation is ignored.
        how: the size; `fit` is not "pad".
        encoding: of the result.
        is_gray: whether to store brightness (ITU-R 601) alone.

    Returns:
        None for a JPEG that only Pillow takes: neither gray nor YCbCr, damaged in a way that libjpeg notices, or
            longer than a JPEG once it is scaled.

    Raises:
        ConfigError: if the C extension is missing.
    """
    require()
    if image.colorspace not in _CHANNELS:
        return None
    size = image.width, image.height
    part, scaled = how.part(*size), how.scaled(*size)
    if max(scaled) > checked_image.MAX_SIDE_PX[image_formats.JPEG]:  # cropped afterwards, or refused
        return None
    data = _resize.resize_jpeg(
        image.data,
        scaled,
        part,
        how.reduction(*size),
        resample.FILTER_NUMBERS[how.filter],
        encoding.quality,
        _SAMPLINGS[encoding.chroma],
        encoding.progressive,
        is_gray,
    )
    if data is None:
        return None
    channels = 1 if is_gray else _CHANNELS[image.colorspace]
    return checked_image.Image(
        data, image_formats.JPEG, part[3], part[2], channels, structure.RAW_COLORSPACES[channels]
    )


def require() -> None:
    """Refuses to begin without the C extension.

    Raises:
        ConfigError: if it is missing.
    """
    if _resize is None:
        raise errors.ConfigError(
            "image.resampler is 'native', and this installation of imagebeam has no C extension _resize: install a C "
            "compiler and libjpeg-turbo (apt-get install gcc python3-dev libjpeg-dev) and then imagebeam again, or set "
            "image.resampler: pillow"
        )


def library() -> str | None:
    """Returns name and version of what resizes; None where the C extension is missing. The bytes depend on it."""
    return None if _resize is None else _resize.LIBRARY
