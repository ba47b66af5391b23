"""Turns the bytes of a file into the image that is stored: checks it, and changes it where the config says so."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from imagebeam.transforms import elements
from imagebeam.transforms.images import checked_image, image_formats, pillow_decoder, pixels, structure

if TYPE_CHECKING:
    import PIL.Image

KEEP = "keep"


@dataclasses.dataclass(frozen=True)
class ImagePolicy:
    """Checks, changes and stores every image as the config's section `image` says."""

    check: str = "structure"  # or "decode"
    raw_shape: tuple[int, int, int] | None = None  # height, width, channels if images come as bare pixels
    encode: str = KEEP  # or jpeg, png, raw, int64_list, float_list
    quality: int = 95  # of a JPEG that is encoded here
    color: str = KEEP  # or rgb, gray, mean
    resize: tuple[int, int] | None = None  # height, width in pixels
    shortest_side: int | None = None  # pixels
    turn_upright: bool = True  # apply the EXIF orientation; only where the image is re-encoded
    sum_pixels: bool = False  # compute the sums for mean and deviation

    def prepare(self, data: bytes, expected: tuple[int, int] | None = None) -> checked_image.Image:
        """Returns the image to store.

        Args:
            data: the bytes of one image.
            expected: height and width in pixels that the image must have before it is scaled; None allows any.

        Raises:
            BadImageError: if the image is to be rejected.
        """
        return self._keep(data, expected) if self.encode == KEEP else self._encode(data, expected)

    def _keep(self, data: bytes, expected: tuple[int, int] | None) -> checked_image.Image:
        """Keeps the original bytes."""
        if self.raw_shape is not None:
            image = structure.raw_image(data, self.raw_shape)
            return _with_sums(image, pixels.from_bytes(data, self.raw_shape)) if self.sum_pixels else image
        image = structure.check_image(data)
        _check_size(image.height, image.width, expected)
        if self.sum_pixels:
            return _with_sums(image, pillow_decoder.decode(image))
        if self.check == "decode":
            pillow_decoder.decode(image)
        return image

    def _encode(self, data: bytes, expected: tuple[int, int] | None) -> checked_image.Image:
        """Decodes, changes and re-encodes the pixels."""
        decoded, orientation = self._decode(data)
        _check_size(decoded.height, decoded.width, expected)
        picture = pixels.recolor(decoded, self.color)
        picture = pixels.resize(picture, self.resize, self.shortest_side)
        image = pixels.encode(picture, self.encode, self.quality)._replace(orientation=orientation)
        if not self.sum_pixels:
            return image
        return _with_sums(image, pillow_decoder.decode(image) if image.format == image_formats.JPEG else picture)

    def _decode(self, data: bytes) -> tuple[PIL.Image.Image, int]:
        """Returns the pixels in 8 bits, and the EXIF orientation that is left to apply.

        The structure of a JPEG or PNG is checked as if its bytes were kept.
        """
        if self.raw_shape is not None:
            structure.raw_image(data, self.raw_shape)
            return pixels.from_bytes(data, self.raw_shape), checked_image.UPRIGHT
        structure.check_size(data)
        format = image_formats.sniff_format(data)
        if format in (image_formats.JPEG, image_formats.PNG):
            picture = pillow_decoder.decode(structure.check_image(data))
        elif format in pillow_decoder.DECODED_FORMATS:
            picture = pillow_decoder.decode_any(data, str(format))
        else:
            raise structure.refusal(data, format, pillow_decoder.DECODED_FORMATS)
        orientation = pixels.orientation(picture)
        picture = pixels.to_eight_bits(picture)
        if self.turn_upright:
            return pixels.turn_upright(picture, orientation), checked_image.UPRIGHT
        return picture, orientation


def _check_size(height: int, width: int, expected: tuple[int, int] | None) -> None:
    if expected is not None and (height, width) != expected:
        raise checked_image.BadImageError(
            elements.Reason.BAD_VALUE,
            f"has {width} x {height} px, its annotations are for {expected[1]} x {expected[0]}",
        )


def _with_sums(image: checked_image.Image, picture: PIL.Image.Image) -> checked_image.Image:
    return image._replace(sums=pixels.sum_up(picture))


AS_IT_IS = ImagePolicy()
