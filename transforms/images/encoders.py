"""Encodes pixels as the image that is stored."""

from __future__ import annotations

import dataclasses
import io
from typing import TYPE_CHECKING, Any

from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import checked_image, image_formats, pixels, structure

if TYPE_CHECKING:
    import PIL.Image

_BYTES_PER_VALUE = {image_formats.RAW: 1, "int64_list": 2, "float_list": 4}  # at most
BARE = frozenset(_BYTES_PER_VALUE)  # what stores the values of pixels
_FULL_CHROMA = "4:4:4"
_CHROMA = {0: _FULL_CHROMA, 1: "4:2:2", 2: "4:2:0"}  # by Pillow's number


@dataclasses.dataclass(frozen=True)
class Encoding:
    """Settings by which pixels are compressed."""

    quality: int = 95  # of a JPEG, 1 to 100
    chroma: str = "source"  # of a JPEG: 4:4:4, 4:2:2 or 4:2:0; "source": as the JPEG it was, 4:4:4 for other images
    progressive: bool = False  # JPEG
    png_level: int = 6  # of zlib, 0 to 9
    webp: str = "lossy"  # or "lossless"; "source": as the pixels were compressed before

    def encode(
        self, picture: PIL.Image.Image, format: str, chroma: str | None = None, is_lossy: bool = False
    ) -> checked_image.Image:
        """Encodes `picture` as the image that is stored, without any metadata.

        Args:
            picture: of any of the four modes in `colors`.
            format: "jpeg" (which drops alpha), "webp" (which becomes RGB), "png", "raw", "int64_list" or "float_list".
            chroma: of the JPEG that the pixels come from; None if they come from another image.
            is_lossy: whether the pixels come from a file that compressed them with loss.

        Raises:
            BadImageError: if the image is larger than the format or an example allows.
        """
        if format == image_formats.JPEG:
            picture = pixels.without_alpha(picture)
        elif format == image_formats.WEBP:  # TensorFlow refuses one with alpha where three channels are wanted
            picture = pixels.in_mode(picture, "RGB")
        width, height = picture.size
        channels = pixels.CHANNELS[picture.mode]
        if max(height, width) > checked_image.MAX_SIDE_PX.get(format, max(height, width)):
            raise checked_image.too_many_pixels(height, width)
        num_bytes = height * width * channels * _BYTES_PER_VALUE.get(format, 0)
        if num_bytes > structure.MAX_IMAGE_BYTES:
            detail = f"up to {num_bytes:,} bytes as {format}, a tf.train.Example takes {structure.MAX_IMAGE_BYTES:,}"
            raise checked_image.BadImageError(Reason.TOO_LARGE, f"{height} x {width} x {channels} pixels are {detail}")
        if format == image_formats.JPEG:
            options: dict[str, Any] = {"quality": self.quality, "progressive": self.progressive}
            if channels > 1:
                options["subsampling"] = (chroma or _FULL_CHROMA) if self.chroma == "source" else self.chroma
            data, stored = _save(picture, format, options), format
        elif format == image_formats.PNG:
            data, stored = _save(picture, format, {"compress_level": self.png_level}), format
        elif format == image_formats.WEBP:
            is_lossless = self.webp == "lossless" or (self.webp == "source" and not is_lossy)
            # Of a lossless WebP, `quality` would be the effort: 75 is Pillow's, and 100 takes three times as long.
            options = {"lossless": True, "quality": 75} if is_lossless else {"quality": self.quality}
            data, stored = _save(picture, format, options), format
        else:
            data, stored = picture.tobytes(), image_formats.RAW
        return checked_image.Image(data, stored, height, width, channels, structure.RAW_COLORSPACES[channels])


USUAL = Encoding()


def chroma_of(picture: PIL.Image.Image) -> str | None:
    """Returns the chroma subsampling of an opened JPEG: "4:4:4", "4:2:2" or "4:2:0"; None of another file.

    Rare kinds, such as 4:1:1, are taken for 4:2:0.
    """
    if picture.format not in ("JPEG", "MPO"):
        return None
    from PIL import JpegImagePlugin

    return _CHROMA.get(JpegImagePlugin.get_sampling(picture), "4:2:0" if len(picture.getbands()) == 3 else None)


def _save(picture: PIL.Image.Image, format: str, options: dict[str, Any]) -> bytes:
    picture.info = {}  # else Pillow stores the color profile, comment and transparency of the source file
    buffer = io.BytesIO()
    picture.save(buffer, format, **options)
    return buffer.getvalue()
