"""Finds entry points of JPEGs, with which the reader decodes a crop without reading the code around it."""

from __future__ import annotations

from imagebeam import errors, features
from imagebeam.transforms.images import checked_image, image_formats

try:
    from imagebeam import _native
except ImportError:  # installed without a compiler, or without libjpeg-turbo
    _native = None  # type: ignore[assignment]


def find(image: checked_image.Image) -> bytes:
    """Returns the entry points of a checked image; empty if it has none.

    Only JPEGs have them: those with one scan of Huffman codes (not the progressive ones), no restart markers, and no
    damage that a decoder would notice.

    Raises:
        ConfigError: if the C extension is missing.
    """
    return find_in(image.data) if image.format == image_formats.JPEG else b""


def find_in(encoded: bytes) -> bytes:
    """Returns the entry points of an encoded image of any format; empty if it has none.

    Raises:
        ConfigError: if the C extension is missing.
    """
    require()
    return _native.find_entry_points(encoded)


def require() -> None:
    """Refuses to begin without the C extension.

    Raises:
        ConfigError: if it is missing.
    """
    if _native is None:
        raise errors.ConfigError(
            f"features names {features.ENTRY_POINTS!r}, and this installation of imagebeam has no C extension _native: "
            "install a C compiler and libjpeg-turbo (apt-get install gcc python3-dev libjpeg-dev) and then imagebeam "
            "again, or leave that feature out"
        )
