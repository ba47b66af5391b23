"""Converts the colors of decoded pixels, turns them upright, sums them, and encodes the image that is stored."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import struct
from operator import mul
from typing import TYPE_CHECKING, Any

from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import checked_image, image_formats, orientations, pixel_type, structure
from imagebeam.transforms.images.pillow_decoder import pillow

if TYPE_CHECKING:
    import numpy as np
    import PIL.Image

_VALUES = range(256)
_SQUARES = [value * value for value in _VALUES]

# By EXIF orientation: Pillow's method that turns the image upright. PIL.ImageOps.exif_transpose does the same, but it
# also rewrites the EXIF data and fails where they are broken.
_TURNS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
_BROKEN_EXIF = (ArithmeticError, AttributeError, LookupError, OSError, SyntaxError, TypeError, ValueError, struct.error)


def from_bytes(data: bytes, shape: tuple[int, int, int]) -> PIL.Image.Image:
    """Returns the image whose rows are `data`; `shape` is height, width, channels."""
    height, width, channels = shape
    return pillow().frombytes(MODES[channels], (width, height), data)


def orientation(picture: PIL.Image.Image) -> int:
    """Returns the orientation in a decoded file's EXIF data: 1 (no turn) to 8; 1 if the data are missing or broken.

    Also 1 for a JPEG XL, which states the turn in its own header: decoders apply it, and EXIF data may repeat it. One
    that was made of a JPEG without loss has the turn of that JPEG (ISO/IEC 18181-2, annex A).
    """
    if picture.format == "JXL" and not getattr(picture, "jpeg", False):
        return checked_image.UPRIGHT
    with contextlib.suppress(*_BROKEN_EXIF):
        found = picture.getexif().get(orientations.ORIENTATION_TAG)
        return found if found in _TURNS else checked_image.UPRIGHT
    return checked_image.UPRIGHT


def stored_size(opened: PIL.Image.Image, orientation: int) -> tuple[int, int]:
    """Returns height and width of an opened file's pixels as they are stored, before any turn.

    Args:
        opened: the image as Pillow opened it: a TIFF has the size of the upright picture.
        orientation: in its EXIF data.
    """
    size = opened.height, opened.width
    return orientations.turn_size(*size, orientation) if opened.format == "TIFF" else size


def turn_upright(picture: PIL.Image.Image, orientation: int) -> PIL.Image.Image:
    """Returns `picture` turned as its EXIF `orientation` asks for."""
    turn = _TURNS.get(orientation)
    return picture if turn is None else picture.transpose(pillow().Transpose[turn])


def turn_decoded(picture: PIL.Image.Image, done: int, wanted: int) -> PIL.Image.Image:
    """Returns a decoded picture turned.

    Args:
        picture: in any mode.
        done: the EXIF orientation that its decoder has applied; UPRIGHT if it does not do so.
        wanted: the EXIF orientation that is to be applied.
    """
    if done == wanted:
        return picture
    return turn_upright(picture, wanted if done == checked_image.UPRIGHT else orientations.inverse(done))


def sum_up(picture: PIL.Image.Image) -> checked_image.PixelSums:
    """Returns the sums of the pixels as a reader decodes them: as RGB (gray repeated), without alpha."""
    picture = without_alpha(to_eight_bits(picture))
    counts = picture.histogram()
    channels = [counts[start : start + 256] for start in range(0, len(counts), 256)]
    totals = [sum(map(mul, channel, _VALUES)) for channel in channels]
    squares = [sum(map(mul, channel, _SQUARES)) for channel in channels]
    repeats = 3 // len(channels)
    return checked_image.PixelSums(picture.width * picture.height, (*totals * repeats,), (*squares * repeats,))


MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
CHANNELS = {mode: channels for channels, mode in MODES.items()}
# By the mode in which Pillow decodes: the mode of ours that it is converted to.
_EIGHT_BITS = {mode: mode for mode in CHANNELS} | {
    "1": "L",
    "PA": "RGBA",
    "La": "LA",
    "RGBa": "RGBA",
    "RGBX": "RGB",
    "CMYK": "RGB",
    "YCbCr": "RGB",
    "HSV": "RGB",
}
_SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N")
WHITE = 65_535  # the number of 16 bits that becomes 255, unless image.white_level says another one
_WITHOUT_ALPHA = {"LA": "L", "RGBA": "RGB"}
_VISIBLE = 3  # a difference in levels of 255: more than rounding, and than two versions of the same profile
_ROWS_AT_ONCE = 256  # converted to bytes: the whole image at once would take several times its memory


def to_eight_bits(picture: PIL.Image.Image, white: int = WHITE) -> PIL.Image.Image:
    """Converts `picture` to one of the four modes.

    Gray numbers of 16 bits from 0 to `white` become 0 to 255, and larger ones 255:

    - A palette becomes RGB, or RGBA if it has transparency. CMYK, YCbCr, HSV and CIE L*a*b* become RGB.
    - With 65,535 the upper 8 bits are kept, as libpng and TensorFlow do. Of 16-bit colors they always are. 32-bit
      integers (`I`) are taken for 16-bit ones, if all of them are from 0 to 65,535.

    Raises:
        BadImageError: if there is no rule for its mode, or none that is the same for all files of its kind.
    """
    mode = picture.mode
    if mode in _SIXTEEN_BITS or mode == "I":
        return _from_numbers(picture, 256 / (white + 1))
    if mode == "F":
        raise checked_image.other_numbers("floating-point numbers, which 8 bits cannot hold", pixel_type.SET_RANGE)
    if mode == "LAB":
        return _lab_to_rgb(picture)
    if mode == "P":
        wanted: str | None = "RGBA" if "transparency" in picture.info else "RGB"
    else:
        wanted = _EIGHT_BITS.get(mode)
    if wanted is None:
        detail = f"{(picture.format or '').lower()} of Pillow's mode {mode}: convert it to 8 bits a channel first"
        raise checked_image.BadImageError(Reason.UNSUPPORTED_FORMAT, detail)
    return picture if mode == wanted else picture.convert(wanted)


def _from_numbers(picture: PIL.Image.Image, scale: float) -> PIL.Image.Image:
    """Multiplies numbers by `scale` and rounds down; Pillow's own conversion turns all values above 255 white."""
    import numpy as np

    values: np.ndarray = np.asarray(picture)
    lowest, highest = int(values.min()), int(values.max())
    if lowest < 0 or highest > WHITE:
        raise checked_image.other_numbers(
            f"numbers from {lowest:,} to {highest:,}, not from 0 to {WHITE:,}", pixel_type.SET_RANGE
        )
    found = np.empty(values.shape, np.uint8)
    for start in range(0, len(values), _ROWS_AT_ONCE):
        rows = values[start : start + _ROWS_AT_ONCE].astype(np.float64) * scale
        found[start : start + _ROWS_AT_ONCE] = rows.clip(0, 255)
    return pillow().fromarray(found)


def find_highest(picture: PIL.Image.Image) -> int | None:
    """Returns the largest number in a gray picture of 16 or 32 bits; None for other pictures."""
    if picture.mode not in _SIXTEEN_BITS and picture.mode != "I":
        return None
    import numpy as np

    return int(np.asarray(picture).max())


def _lab_to_rgb(picture: PIL.Image.Image) -> PIL.Image.Image:
    from PIL import ImageCms

    lab, srgb = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
    converted = ImageCms.profileToProfile(picture, lab, srgb, outputMode="RGB")
    assert converted is not None  # it is None for a conversion in place
    return converted


def has_other_profile(picture: PIL.Image.Image) -> bool:
    """Returns whether a file has an ICC profile by which colors differ visibly from sRGB; not of a broken profile."""
    profile: bytes = picture.info.get("icc_profile") or b""
    mode = picture.mode if picture.mode in ("CMYK", "L", "LA") else "RGB"
    return bool(profile) and _changes_colors(profile, mode.removesuffix("A"))


@functools.lru_cache(maxsize=64)  # cameras and programs write the same few profiles
def _changes_colors(profile: bytes, mode: str) -> bool:
    """Converts a few colors by a profile: names tell little, as of "sRGB" with linear curves."""
    channels = len(mode)
    steps = bytes(range(0, 256, 17))
    mixed = bytes((step * (1 + 2 * channel)) % 256 for step in steps for channel in range(channels))
    test = pillow().frombytes(mode, (2 * len(steps), 1), bytes(step for step in steps for _ in range(channels)) + mixed)
    converted = _to_srgb(test, profile)
    if converted is None or mode == "CMYK":
        return converted is not None
    pairs = zip(in_mode(test, "RGB").tobytes(), converted.tobytes())
    return any(abs(one - other) > _VISIBLE for one, other in pairs)


def with_alpha(picture: PIL.Image.Image) -> PIL.Image.Image:
    """Returns a decoded picture with alpha if one color or level of it is transparent, as tRNS of PNG says."""
    if picture.mode not in ("1", "L", "RGB") or "transparency" not in picture.info:
        return picture
    return picture.convert("RGBA" if picture.mode == "RGB" else "LA")


def to_srgb(picture: PIL.Image.Image, white: int = WHITE) -> PIL.Image.Image:
    """Converts the colors of a decoded file from its ICC profile to sRGB.

    The intent is perceptual, as the profile defines it. Alpha stays. A picture without a profile, or with a broken one
    or one of another color space than its pixels, is returned as it is. `white` is as in `to_eight_bits`.
    """
    profile = picture.info.get("icc_profile")
    if not profile:
        return picture
    opaque, alpha = picture, None
    if picture.mode != "CMYK":
        picture = to_eight_bits(picture, white)  # a palette's transparency becomes alpha
        alpha = picture.getchannel("A") if picture.mode in _WITHOUT_ALPHA else None
        opaque = without_alpha(picture)
    converted = _to_srgb(opaque, profile)
    if converted is None:
        return picture
    converted = in_mode(converted, "L" if opaque.mode == "L" else "RGB")
    if alpha is not None:
        converted.putalpha(alpha)
    return converted


def _to_srgb(opaque: PIL.Image.Image, profile: bytes) -> PIL.Image.Image | None:
    """Returns an RGB picture; None if the profile is broken or of another color space than the picture."""
    from PIL import ImageCms

    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        # LittleCMS makes gray of gray only with a gray profile of the target: by way of RGB.
        target = ImageCms.createProfile("sRGB")
        return ImageCms.profileToProfile(opaque, source, target, outputMode="RGB")
    except (ImageCms.PyCMSError, OSError, TypeError, ValueError):
        return None


def recolor(picture: PIL.Image.Image, color: str, background: tuple[int, int, int] | None = None) -> PIL.Image.Image:
    """Converts `picture` to the channels that image.color names.

    Args:
        picture: of any of the four modes.
        color: "keep", "rgb", "gray" or "mean"; all but "keep" leave out alpha.
        background: red, green and blue of what shows through transparent pixels; None leaves alpha out without
            blending.
    """
    if background is not None:
        picture = _blend(picture, background)
    if color == "keep":
        return picture
    if color == "rgb":
        return in_mode(picture, "RGB")
    picture = without_alpha(picture)
    if picture.mode == "L":
        return picture
    return picture.convert("L") if color == "gray" else _mean_of_channels(picture)


def _blend(picture: PIL.Image.Image, background: tuple[int, int, int]) -> PIL.Image.Image:
    if picture.mode not in _WITHOUT_ALPHA:
        return picture
    is_gray = picture.mode == "LA" and len(set(background)) == 1
    below = pillow().new("RGBA", picture.size, (*background, 255))
    blended = pillow().alpha_composite(below, in_mode(picture, "RGBA")).convert("RGB")
    return blended.getchannel("R") if is_gray else blended


def _mean_of_channels(picture: PIL.Image.Image) -> PIL.Image.Image:
    import numpy as np

    channels = np.asarray(picture)
    total = channels[..., 0].astype(np.uint16)
    total += channels[..., 1]
    total += channels[..., 2]
    return pillow().fromarray((total // 3).astype(np.uint8))


def without_alpha(picture: PIL.Image.Image) -> PIL.Image.Image:
    """Returns `picture`, of any of the four modes, without its alpha channel."""
    return in_mode(picture, _WITHOUT_ALPHA.get(picture.mode, picture.mode))


def in_mode(picture: PIL.Image.Image, mode: str) -> PIL.Image.Image:
    """Returns `picture` in a mode of Pillow."""
    return picture if picture.mode == mode else picture.convert(mode)


# --- encoding --------------------------------------------------------------------------------------------------------

_BYTES_PER_VALUE = {image_formats.RAW: 1, "int64_list": 2, "float_list": 4}  # at most
BARE = frozenset(_BYTES_PER_VALUE)  # what stores the values of pixels
_FULL_CHROMA = "4:4:4"
_CHROMA = {0: _FULL_CHROMA, 1: "4:2:2", 2: "4:2:0"}  # by Pillow's number


@dataclasses.dataclass(frozen=True)
class Encoding:
    """Settings by which pixels are compressed."""

    quality: int = 95  # JPEG: 1 to 100
    chroma: str = "source"  # JPEG: 4:4:4, 4:2:2 or 4:2:0; "source": as the JPEG it was, 4:4:4 for other images
    progressive: bool = False  # JPEG
    png_level: int = 6  # level of zlib, 0 to 9
    webp: str = "lossy"  # or "lossless"; "source": as the pixels were compressed before

    def encode(
        self, picture: PIL.Image.Image, format: str, chroma: str | None = None, is_lossy: bool = False
    ) -> checked_image.Image:
        """Encodes `picture` as the image that is stored, without any metadata.

        Args:
            picture: in one of `MODES`.
            format: "jpeg" (which drops alpha), "webp" (which becomes RGB), "png", "raw", "int64_list" or "float_list".
            chroma: of the JPEG that the pixels come from; None if they come from another image.
            is_lossy: whether the pixels come from a file that compressed them with loss.

        Raises:
            BadImageError: if the image is larger than the format or an example allows.
        """
        if format == image_formats.JPEG:
            picture = without_alpha(picture)
        elif format == image_formats.WEBP:  # TensorFlow refuses one with alpha where three channels are wanted
            picture = in_mode(picture, "RGB")
        width, height = picture.size
        channels = CHANNELS[picture.mode]
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
            data, stored = save(picture, format, options), format
        elif format == image_formats.PNG:
            data, stored = save(picture, format, {"compress_level": self.png_level}), format
        elif format == image_formats.WEBP:
            is_lossless = self.webp == "lossless" or (self.webp == "source" and not is_lossy)
            # Of a lossless WebP, `quality` would be the effort: 75 is Pillow's, and 100 takes three times as long.
            options = {"lossless": True, "quality": 75} if is_lossless else {"quality": self.quality}
            data, stored = save(picture, format, options), format
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


def save(picture: PIL.Image.Image, format: str, options: dict[str, Any]) -> bytes:
    """Returns the bytes of a file with the pixels alone; `options` are Pillow's for the format."""
    picture.info = {}  # else Pillow stores the color profile, comment and transparency of the source file
    buffer = io.BytesIO()
    picture.save(buffer, format, **options)
    return buffer.getvalue()
