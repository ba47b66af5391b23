"""Says what the bytes of an image are, and whether they are whole, without decoding them; on request decodes them.

Every image passes through `check_image`, so it reads headers and lets C code look for markers: 15 us for a JPEG of
105 KB, or 43 where a regex has to look. What it turns away, TensorFlow 2.21 or Pillow 12 refuses, or decodes with a
part of the picture lost. It does not see wrong pixel data that hold no illegal marker; `check="decode"` sees some.

Source: PNG, https://www.w3.org/TR/png-3/; what decoders tolerate: pngrutil.c of libpng, and trials with TensorFlow and
Pillow. Of JPEG: transforms/images/jpeg_structure.py.
"""

from __future__ import annotations

import functools
import io
import re
import struct
import types
import warnings
import zlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from imagebeam import errors
from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import checked_image, exif, jpeg_structure
from imagebeam.transforms.images.checked_image import BadImageError as BadImageError
from imagebeam.transforms.images.checked_image import Image as Image
from imagebeam.transforms.images.checked_image import PixelSums as PixelSums
from imagebeam.transforms.images.checked_image import corrupt, truncated, unsupported

if TYPE_CHECKING:
    import PIL.Image

SNIFF_BYTES = 32
MAX_IMAGE_BYTES = 2**31 - 2**20  # a tf.train.Example holds less than 2 GiB; the rest is for the other features

RAW_COLORSPACES = {1: "GRAY", 2: "GRAY_ALPHA", 3: "RGB", 4: "RGBA"}

_SIGNATURES = {  # in the order in which they are tried
    "jpeg": rb"\xff\xd8\xff",
    "png": rb"\x89PNG\r\n\x1a\n",
    "gif": rb"GIF8[79]a",
    "webp": rb"RIFF.{4}WEBP",
    "tiff": rb"II[*+]\0|MM\0[*+]",
    "bmp": rb"BM.{12}[\x0c\x10\x28\x34\x38\x40\x6c\x7c]\0{3}",  # "BM" alone begins many a text
    "avif": rb".{4}ftyp(?:avi[fs]|.{8}(?:.{4}){0,3}avi[fs])",
    "heic": rb".{4}ftyp(?:he[iv][cmsx]|mif1|msf1)",
    "jp2": rb"\0\0\0\x0cjP  \r\n\x87\n|\xff\x4f\xff\x51",
    "jxl": rb"\0\0\0\x0cJXL \r\n\x87\n|\xff\x0a",
    "ppm": rb"P[1-6]\s+[\d#]|P7\n",
    "ico": rb"\0\0[\1\2]\0[^\0]\0",
    "psd": rb"8BPS\0",
    "exr": rb"v/1\x01",
    "hdr": rb"#\?RADIANCE",
    "svg": rb"<svg\s",
}
_match_signature = re.compile(
    b"|".join(b"(?P<%b>%b)" % (name.encode(), pattern) for name, pattern in _SIGNATURES.items()), re.DOTALL
).match


def pillow_version() -> str:
    """The version of the decoder; PIL's own word, since pillow-simd may stand in Pillow's place."""
    import PIL

    return PIL.__version__


def sniff_format(data: bytes) -> str | None:
    """The image format that the first `SNIFF_BYTES` bytes announce, such as "jpeg"; None if they announce none."""
    match = _match_signature(data, 0, SNIFF_BYTES)
    return match.lastgroup if match else None


def check_image(data: bytes, check: str = "structure") -> Image:
    """What the image in `data` is, once it is known to be whole.

    Args:
        data: the bytes of one image file; what follows the end of the image is kept and not looked at.
        check: "structure" walks every segment or chunk (and the CRCs of PNG); "decode" then decodes all pixels, too.

    Raises:
        BadImageError: if the image is to be rejected.
        ConfigError: if `check` is "decode" and Pillow is not installed.
        ValueError: if `check` is neither.
    """
    if check not in ("structure", "decode"):
        raise ValueError(f"image.check is {check!r}, expected 'structure' or 'decode'")
    check_size(data)
    format = sniff_format(data)
    check_structure = _STRUCTURE_CHECKS.get(format)
    if check_structure is None:
        raise refusal(data, format, _STRUCTURE_CHECKS)
    image = check_structure(data)
    if check == "decode":
        decode(image)
    return image


def check_size(data: bytes) -> None:
    """Looks at the number of bytes alone.

    Raises:
        BadImageError: if there are none, or more than an example takes.
    """
    if not data:
        raise BadImageError(Reason.EMPTY_FILE, "0 bytes")
    if len(data) > MAX_IMAGE_BYTES:
        raise BadImageError(Reason.TOO_LARGE, f"{len(data)} bytes, a tf.train.Example takes up to {MAX_IMAGE_BYTES}")


def raw_image(data: bytes, shape: tuple[int, int, int]) -> Image:
    """An image that comes as bare pixels of 8 bits: rows from the top, pixels from the left, their channels.

    Raises:
        BadImageError: if there are not as many bytes as height, width and channels say.
    """
    height, width, channels = shape
    if len(data) != height * width * channels:
        expected = f"{height} x {width} x {channels} pixels are {height * width * channels:,}"
        raise BadImageError(Reason.TRUNCATED, f"{len(data):,} bytes, {expected}")
    return Image(data, "raw", height, width, channels, RAW_COLORSPACES[channels])


def refusal(data: bytes, format: str | None, supported: Iterable[str | None]) -> BadImageError:
    """The error for bytes of no supported format."""
    head = data[:16]
    if format is not None:
        found = f"{format} (first bytes {head!r}), expected {' or '.join(map(str, supported))}"
        is_decoded = format in DECODED_FORMATS
        return unsupported(
            found, "set image.encode, or convert it first" if is_decoded else checked_image.CONVERT_FIRST
        )
    text = data[:SNIFF_BYTES].removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if text.startswith((b"<!doctype html", b"<html")):
        found = "HTML, perhaps a download's error page"
    elif text.startswith(b"<"):
        found = "XML"
    elif text.startswith((b"{", b"[")):
        found = "JSON"
    elif text and all(byte in b"\t\n\r" or 0x20 <= byte < 0x7F for byte in text):
        found = "text"
    else:
        found = "no known image format"
    return BadImageError(Reason.NOT_AN_IMAGE, f"{found}: the first of {len(data)} bytes are {head!r}")


# PNG: a signature, then chunks of a length (of the data), type, data and CRC (of type and data).
# By color type (3 holds indices of a palette): channels and color space; bits, where they are not 8 or 16.
_PNG_COLORS = {0: (1, "GRAY"), 2: (3, "RGB"), 3: (3, "RGB"), 4: (2, "GRAY_ALPHA"), 6: (4, "RGBA")}
_PNG_DEPTHS = {0: (1, 2, 4, 8, 16), 3: (1, 2, 4, 8)}
_unpack_chunk = struct.Struct(">I4s").unpack_from
_unpack_crc = struct.Struct(">I").unpack_from
_unpack_ihdr = struct.Struct(">IIBBBBB").unpack_from


def _check_png(data: bytes) -> Image:
    """Walks the chunks up to IEND: lengths, CRCs, and the order that libpng insists on."""
    size = len(data)
    view = memoryview(data)
    image: Image | None = None
    has_palette, palette_bytes, data_bytes = False, 0, 0
    previous = b""
    position = 8  # after the signature
    while True:
        start = position + 8  # of the chunk's data
        if start + 4 > size:
            raise truncated(f"no IEND chunk from byte {position} on", size)
        length, kind = _unpack_chunk(data, position)
        end = start + length
        if not kind.isalpha() or length >= 2**31:
            raise corrupt(f"no chunk at byte {position}: type {kind!r}, {length} bytes")
        if end + 4 > size:
            raise truncated(f"the chunk {kind.decode()} at byte {position} ends at byte {end + 4}", size)
        if zlib.crc32(view[position + 4 : end]) != _unpack_crc(data, end)[0]:
            raise corrupt(f"the chunk {kind.decode()} at byte {position}, of {length} bytes, has a wrong CRC")
        if image is None:
            if kind != b"IHDR" or length != 13:
                raise corrupt(f"the first chunk is {kind.decode()} of {length} bytes, expected IHDR of 13")
            image = _read_ihdr(data, start)
            has_palette = data[start + 9] == 3
        elif kind == b"IDAT":
            if has_palette and not palette_bytes:
                raise corrupt(f"the chunk IDAT at byte {position} has no palette (PLTE) before it")
            if data_bytes and previous != b"IDAT":
                raise corrupt(f"the chunk IDAT at byte {position} does not follow the other IDAT chunks")
            data_bytes += length
        elif kind == b"PLTE":
            if has_palette and (palette_bytes or length % 3 or not 3 <= length <= 768):
                raise corrupt(f"the palette at byte {position} is a second one or of a wrong length, {length} bytes")
            palette_bytes = length
        elif kind == b"tRNS" and has_palette:  # for other color types decoders yield no alpha by default
            if not data_bytes and 0 < length <= palette_bytes // 3:  # libpng ignores any other
                image = image._replace(channels=4, colorspace="RGBA")
        elif kind == b"eXIf":
            image = image._replace(orientation=exif.read_orientation(data, start, end))
        elif kind == b"IEND":
            if not data_bytes:
                raise corrupt("no pixels: there is no IDAT chunk")
            return image
        elif not kind[0] & 0x20:
            raise corrupt(f"the chunk {kind.decode()} at byte {position} is critical and unknown, or a second one")
        previous = kind
        position = end + 4


def _read_ihdr(data: bytes, start: int) -> Image:
    """The image that the header chunk of a PNG describes, PNG specification 11.2.1."""
    width, height, depth, color_type, compression, filtering, interlace = _unpack_ihdr(data, start)
    if color_type not in _PNG_COLORS or depth not in _PNG_DEPTHS.get(color_type, (8, 16)):
        raise corrupt(f"the chunk IHDR says color type {color_type} with {depth} bits")
    if not 0 < width < 2**31 or not 0 < height < 2**31:
        raise corrupt(f"the chunk IHDR says {height} x {width} pixels")
    if compression or filtering or interlace > 1:
        raise corrupt(f"the chunk IHDR says compression {compression}, filter {filtering}, interlace {interlace}")
    if max(height, width) > checked_image.MAX_SIDE_PX["png"] or height * width > checked_image.MAX_VALUES:
        raise checked_image.too_many_pixels(height, width)
    return Image(data, "png", height, width, *_PNG_COLORS[color_type])


# To support a format, add the check of its structure here; its signature stands above.
_STRUCTURE_CHECKS: dict[str | None, Callable[[bytes], Image]] = {"jpeg": jpeg_structure.check_jpeg, "png": _check_png}


@functools.cache
def pillow() -> types.ModuleType:
    """Pillow's Image module, its warnings silenced for good: warnings.catch_warnings is not safe among threads."""
    try:
        import PIL.Image
    except ImportError as e:
        raise errors.ConfigError(
            "image.check: decode, image.encode, statistics.pixels and masks with a palette need Pillow: "
            "pip install 'imagebeam[convert]', or leave them out"
        ) from e
    warnings.filterwarnings("ignore", module=r"PIL\.")
    return PIL.Image


# By the format's name here: how Pillow calls it.
DECODED_FORMATS = {
    "jpeg": "JPEG",
    "png": "PNG",
    "gif": "GIF",
    "bmp": "BMP",
    "webp": "WEBP",
    "tiff": "TIFF",
    "ppm": "PPM",
    "avif": "AVIF",
    "jp2": "JPEG2000",
}


def decode(image: Image) -> PIL.Image.Image:
    """All pixels of a JPEG or PNG by Pillow, of the first picture if it holds several.

    Raises:
        BadImageError: if they cannot be decoded, or are others than the header says.
    """
    picture = decode_any(image.data, image.format)
    width, height = picture.size
    if (height, width) != (image.height, image.width):
        expected = f"the header says {image.height} x {image.width}"
        raise BadImageError(Reason.UNDECODABLE, f"Pillow: {height} x {width} pixels, {expected}")
    return picture


def decode_any(data: bytes, format: str) -> PIL.Image.Image:
    """All pixels of an image of one of `DECODED_FORMATS` by Pillow, of the first picture if it holds several.

    Raises:
        BadImageError: if they cannot be decoded.
    """
    module = pillow()
    try:
        picture = module.open(io.BytesIO(data), formats=(DECODED_FORMATS[format],))
        picture.load()
    except (*_FAILURES, module.DecompressionBombError) as e:
        # The text of UnidentifiedImageError holds an address, which differs from run to run.
        found = "cannot identify the image" if isinstance(e, module.UnidentifiedImageError) else e
        raise BadImageError(Reason.UNDECODABLE, f"Pillow: {found}") from e
    return picture


# What Pillow's parsers, which are written in Python, run into where bytes are broken. Not MemoryError: it is the
# machine's, and a job that goes on without some images, on some days, would be worse than one that ends.
_FAILURES = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    struct.error,
    zlib.error,
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
)
