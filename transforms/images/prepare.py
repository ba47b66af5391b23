"""Makes of a file's bytes the image that is stored: checked, and changed where the config asks for it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from imagebeam.transforms import elements
from imagebeam.transforms.images import checked_image, pixels, structure

if TYPE_CHECKING:
    import PIL.Image

KEEP = "keep"


@dataclasses.dataclass(frozen=True)
class ImagePolicy:
    """What is checked and stored of every image."""

    check: str = "structure"  # or "decode"
    raw_shape: tuple[int, int, int] | None = None  # height, width, channels of images that come as bare pixels
    encode: str = KEEP  # or jpeg, png, raw, int64_list, float_list
    quality: int = 95  # for jpeg
    color: str = KEEP  # or rgb, gray, mean
    resize: tuple[int, int] | None = None  # height, width
    shortest_side: int | None = None  # pixels
    turn_upright: bool = True  # as EXIF says, where the image is encoded anew
    sum_pixels: bool = False  # whether the sums of the pixels are wanted

    def prepare(self, data: bytes, expected: tuple[int, int] | None = None) -> structure.Image:
        """The image to store.

        Args:
            data: the bytes of one image.
            expected: the height and width that it must have before it is scaled, in pixels; None takes any.

        Raises:
            BadImageError: if it is to be rejected.
        """
        return self._keep(data, expected) if self.encode == KEEP else self._encode(data, expected)

    def _keep(self, data: bytes, expected: tuple[int, int] | None) -> structure.Image:
        """The bytes as they are."""
        if self.raw_shape is not None:
            image = structure.raw_image(data, self.raw_shape)
            return _with_sums(image, pixels.from_bytes(data, self.raw_shape)) if self.sum_pixels else image
        image = structure.check_image(data)
        _check_size(image.height, image.width, expected)
        if self.sum_pixels:
            return _with_sums(image, structure.decode(image))
        if self.check == "decode":
            structure.decode(image)
        return image

    def _encode(self, data: bytes, expected: tuple[int, int] | None) -> structure.Image:
        """The pixels, encoded anew."""
        decoded, orientation = self._decode(data)
        _check_size(decoded.height, decoded.width, expected)
        picture = pixels.recolor(decoded, self.color)
        picture = pixels.resize(picture, self.resize, self.shortest_side)
        image = pixels.encode(picture, self.encode, self.quality)._replace(orientation=orientation)
        if not self.sum_pixels:
            return image
        return _with_sums(image, structure.decode(image) if image.format == pixels.JPEG else picture)

    def _decode(self, data: bytes) -> tuple[PIL.Image.Image, int]:
        """The pixels in 8 bits, and the turn that they still need; a JPEG or PNG is checked as if it were kept."""
        if self.raw_shape is not None:
            structure.raw_image(data, self.raw_shape)
            return pixels.from_bytes(data, self.raw_shape), checked_image.UPRIGHT
        structure.check_size(data)
        format = structure.sniff_format(data)
        if format in (pixels.JPEG, pixels.PNG):
            picture = structure.decode(structure.check_image(data))
        elif format in structure.DECODED_FORMATS:
            picture = structure.decode_any(data, str(format))
        else:
            raise structure.refusal(data, format, structure.DECODED_FORMATS)
        orientation = pixels.orientation(picture)
        picture = pixels.to_eight_bits(picture)
        if self.turn_upright:
            return pixels.turn_upright(picture, orientation), checked_image.UPRIGHT
        return picture, orientation


def _check_size(height: int, width: int, expected: tuple[int, int] | None) -> None:
    if expected is not None and (height, width) != expected:
        raise structure.BadImageError(
            elements.Reason.BAD_VALUE,
            f"has {width} x {height} px, its annotations are for {expected[1]} x {expected[0]}",
        )


def _with_sums(image: structure.Image, picture: PIL.Image.Image) -> structure.Image:
    return image._replace(sums=pixels.sum_up(picture))


AS_IT_IS = ImagePolicy()
