"""Says what the bytes of an image are, and whether they are whole, without decoding them; on request decodes them.

Every image passes through `check_image`, so it reads headers and lets C code look for markers: 15 us for a JPEG of
105 KB, or 43 where a regex has to look. What it turns away, TensorFlow 2.21 or Pillow 12 refuses, or decodes with a
part of the picture lost. It does not see wrong pixel data that hold no illegal marker; `check="decode"` sees some.

Source: ITU-T T.81 (JPEG), annex B, https://www.w3.org/Graphics/JPEG/itu-t81.pdf; PNG, https://www.w3.org/TR/png-3/;
what decoders tolerate: jdmarker.c of libjpeg-turbo, pngrutil.c of libpng, and trials with TensorFlow and Pillow.
"""

from __future__ import annotations

import contextlib
import functools
import io
import re
import struct
import types
import warnings
import zlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from imagebeam import errors
from transforms.references import Reason

if TYPE_CHECKING:
    import PIL.Image

SNIFF_BYTES = 32
MAX_IMAGE_BYTES = 2**31 - 2**20  # a tf.train.Example holds less than 2 GiB; the rest is for the other features

# TensorFlow decodes nothing beyond these (tried with 2.21); Pillow refuses more than 178,956,970 pixels.
MAX_SIDE_PX = {"jpeg": 65_500, "png": 1_000_000}  # JPEG_MAX_DIMENSION of libjpeg, PNG_USER_WIDTH_MAX of libpng
_MAX_VALUES = 2**29 - 1  # height * width, for a JPEG times components


class Image(NamedTuple):
    """What is known of one checked image."""

    data: bytes  # as they are to be stored; where they become numbers, each byte is one
    format: str  # "jpeg", "png" or "raw"
    height: int  # pixels
    width: int
    channels: int  # 1 to 4, as a decoder yields by default; a palette gives 3, with transparency 4
    colorspace: str  # GRAY, GRAY_ALPHA, RGB, RGBA or CMYK
    sums: PixelSums | None = None  # where they are asked for
    mask: bytes = b""  # PNG of the class of each pixel, where there is one


class PixelSums(NamedTuple):
    """What mean and deviation of pixels are made of, exactly, by channel: red, green, blue."""

    num_pixels: int
    totals: tuple[int, ...]
    squares: tuple[int, ...]


class BadImageError(ValueError):
    """The bytes are not an image that can be stored; `detail` says what was found, and where."""

    def __init__(self, reason: Reason, detail: str):
        super().__init__(reason, detail)  # both, so that it can be pickled
        self.reason = reason
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.reason.value}: {self.detail}"


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
        return _unsupported(found, "set image.encode, or convert it first" if format in DECODED_FORMATS else _REMEDY)
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


_REMEDY = "convert it first"


def _unsupported(found: str, remedy: str = _REMEDY) -> BadImageError:
    return BadImageError(Reason.UNSUPPORTED_FORMAT, f"{found}: {remedy}")


def _corrupt(found: str) -> BadImageError:
    return BadImageError(Reason.CORRUPT, found)


def _truncated(found: str, size: int) -> BadImageError:
    return BadImageError(Reason.TRUNCATED, f"{found}, the file has {size} bytes: it was cut short, fetch it again")


def too_many_pixels(height: int, width: int) -> BadImageError:
    """The error for a picture that no decoder takes."""
    return BadImageError(Reason.TOO_LARGE, f"{height} x {width} pixels are more than decoders take: scale it down")


# JPEG, T.81 annex B: markers of two bytes; most begin a segment, whose first two bytes are its length.
_EOI, _SOS, _DHT, _DQT = 0xD9, 0xDA, 0xC4, 0xDB
# Baseline, extended sequential, progressive; the last two arithmetic: TensorFlow 2.21 and Pillow 12 decode all five.
_FRAMES = frozenset({0xC0, 0xC1, 0xC2, 0xC9, 0xCA})
_OTHER_FRAMES = frozenset({0xC3, 0xC5, 0xC6, 0xC7, 0xCB, 0xCD, 0xCE, 0xCF, 0xDE, 0xF7})  # lossless and hierarchical
_METADATA = frozenset({*range(0xE0, 0xF0), 0xFE})  # APPn, COM
_TABLES = frozenset({_DHT, _DQT})
_SEGMENTS = _FRAMES | _METADATA | _TABLES | {_SOS, 0xCC, 0xDC, 0xDD}  # the last three: DAC, DNL, DRI
RAW_COLORSPACES = {1: "GRAY", 2: "GRAY_ALPHA", 3: "RGB", 4: "RGBA"}
_JPEG_COLORSPACES = {1: "GRAY", 3: "RGB", 4: "CMYK"}  # as decoded: YCbCr becomes RGB, YCCK becomes CMYK

_search_marker = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]").search
_unpack_length = struct.Struct(">H").unpack_from
_unpack_frame = struct.Struct(">BHHB").unpack_from


def _find_marker(data: bytes, position: int) -> int:
    """Where the next marker begins that is neither a restart marker nor, in entropy-coded data, a stuffed 0xFF; or -1.

    Repeated 0xFF is fill. 31 us for 105 KB, of which 400 times FF 00: as fast as counting the bytes 0xFF.
    """
    match = _search_marker(data, position)
    return -1 if match is None else match.start()


with contextlib.suppress(ImportError):  # was not built: the same in Python
    from imagebeam._native import find_marker as _find_marker


def _check_jpeg(data: bytes) -> Image:
    """Walks segments and scans up to the end-of-image marker; the marker in an EXIF thumbnail is inside a segment.

    Bytes between two segments are tolerated where decoders lose nothing by them: before the first scan, after an APPn
    or COM segment, which some writers state too short. Elsewhere something was overwritten: a legal marker that random
    bytes form in a scan is found out by what follows its "segment". Decoders leave the picture grey from there on.
    """
    size = len(data)
    frame: Image | None = None
    has_quantization, in_scans, may_skip = False, False, False
    segment, position = 0, 2  # where the last marker is, and where the next is expected
    while True:
        marker = _find_marker(data, position)
        if marker < 0:
            raise _truncated(f"no end-of-image marker from byte {position} on", size)
        code = data[marker + 1]
        start = marker + 2
        if marker != position and not may_skip and data.count(0xFF, position, marker) != marker - position:
            raise _corrupt(f"{marker - position} stray bytes at byte {position}, after the segment at byte {segment}")
        if code == _EOI:
            if frame is None or not in_scans:
                raise _corrupt(f"the end-of-image marker at byte {marker} comes before any scan")
            return frame
        if code not in _SEGMENTS:
            if code in _OTHER_FRAMES and not in_scans:
                raise _unsupported(f"lossless or hierarchical jpeg (marker FF {code:02X} at byte {marker})")
            raise _corrupt(f"illegal marker FF {code:02X} at byte {marker}")
        length = _unpack_length(data, start)[0] if start + 2 <= size else 2
        end = start + length
        if end > size:
            if in_scans and data.find(b"\xff\xd9", start) >= 0:
                raise _corrupt(f"the segment FF {code:02X} at byte {marker}, of {length} bytes, spans the end of image")
            raise _truncated(f"the segment FF {code:02X} at byte {marker} ends at byte {end}", size)
        if code in _METADATA:
            may_skip = not in_scans
        elif code == _SOS:
            if frame is None or not has_quantization:
                raise _corrupt(f"the scan at byte {marker} has no {'quantization table' if frame else 'frame header'}")
            if not 8 <= length <= 14 or length != 6 + 2 * data[start + 2]:
                raise _corrupt(f"the scan header at byte {marker} has a wrong length, {length} bytes")
            in_scans = may_skip = True
        else:
            may_skip = False
            if code in _FRAMES:
                if frame is not None:
                    raise _corrupt(f"a second frame header at byte {marker}")
                frame = _read_frame(data, start, length)
            elif code in _TABLES and not _is_filled_by_tables(data, code, start + 2, end):
                raise _corrupt(f"the tables FF {code:02X} at byte {marker} do not fill their {length} bytes")
            elif code == _DQT:
                has_quantization = True
        segment, position = marker, end


def _read_frame(data: bytes, start: int, length: int) -> Image:
    """The image that a JPEG frame header describes, T.81 B.2.2; `start` is the byte after its marker."""
    precision, height, width, components = _unpack_frame(data, start + 2) if length >= 8 else (0, 0, 0, 0)
    if length != 8 + 3 * components:
        raise _corrupt(f"the frame header at byte {start - 2} has a wrong length, {length} bytes")
    if height == 0 or width == 0:
        raise _corrupt(f"the frame header at byte {start - 2} says {height} x {width} pixels")
    if precision != 8 or components not in _JPEG_COLORSPACES:
        raise _unsupported(f"jpeg of {components} components of {precision} bits, expected 1, 3 or 4 of 8 bits")
    if max(height, width) > MAX_SIDE_PX["jpeg"] or height * width * components > _MAX_VALUES:
        raise too_many_pixels(height, width)
    return Image(data, "jpeg", height, width, components, _JPEG_COLORSPACES[components])


def _is_filled_by_tables(data: bytes, code: int, position: int, end: int) -> bool:
    """Whether the tables of a DHT or DQT segment end where it ends, T.81 B.2.4."""
    while position < end:
        head = data[position]  # class or precision in the upper half, one of four destinations in the lower
        if head & 0x0F > 3:
            return False
        if code == _DQT:
            position += 129 if head >> 4 else 65
        else:
            position += 17 + sum(data[position + 1 : position + 17])
    return position == end


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
            raise _truncated(f"no IEND chunk from byte {position} on", size)
        length, kind = _unpack_chunk(data, position)
        end = start + length
        if not kind.isalpha() or length >= 2**31:
            raise _corrupt(f"no chunk at byte {position}: type {kind!r}, {length} bytes")
        if end + 4 > size:
            raise _truncated(f"the chunk {kind.decode()} at byte {position} ends at byte {end + 4}", size)
        if zlib.crc32(view[position + 4 : end]) != _unpack_crc(data, end)[0]:
            raise _corrupt(f"the chunk {kind.decode()} at byte {position}, of {length} bytes, has a wrong CRC")
        if image is None:
            if kind != b"IHDR" or length != 13:
                raise _corrupt(f"the first chunk is {kind.decode()} of {length} bytes, expected IHDR of 13")
            image = _read_ihdr(data, start)
            has_palette = data[start + 9] == 3
        elif kind == b"IDAT":
            if has_palette and not palette_bytes:
                raise _corrupt(f"the chunk IDAT at byte {position} has no palette (PLTE) before it")
            if data_bytes and previous != b"IDAT":
                raise _corrupt(f"the chunk IDAT at byte {position} does not follow the other IDAT chunks")
            data_bytes += length
        elif kind == b"PLTE":
            if has_palette and (palette_bytes or length % 3 or not 3 <= length <= 768):
                raise _corrupt(f"the palette at byte {position} is a second one or of a wrong length, {length} bytes")
            palette_bytes = length
        elif kind == b"tRNS" and has_palette:  # for other color types decoders yield no alpha by default
            if not data_bytes and 0 < length <= palette_bytes // 3:  # libpng ignores any other
                image = image._replace(channels=4, colorspace="RGBA")
        elif kind == b"IEND":
            if not data_bytes:
                raise _corrupt("no pixels: there is no IDAT chunk")
            return image
        elif not kind[0] & 0x20:
            raise _corrupt(f"the chunk {kind.decode()} at byte {position} is critical and unknown, or a second one")
        previous = kind
        position = end + 4


def _read_ihdr(data: bytes, start: int) -> Image:
    """The image that the header chunk of a PNG describes, PNG specification 11.2.1."""
    width, height, depth, color_type, compression, filtering, interlace = _unpack_ihdr(data, start)
    if color_type not in _PNG_COLORS or depth not in _PNG_DEPTHS.get(color_type, (8, 16)):
        raise _corrupt(f"the chunk IHDR says color type {color_type} with {depth} bits")
    if not 0 < width < 2**31 or not 0 < height < 2**31:
        raise _corrupt(f"the chunk IHDR says {height} x {width} pixels")
    if compression or filtering or interlace > 1:
        raise _corrupt(f"the chunk IHDR says compression {compression}, filter {filtering}, interlace {interlace}")
    if max(height, width) > MAX_SIDE_PX["png"] or height * width > _MAX_VALUES:
        raise too_many_pixels(height, width)
    return Image(data, "png", height, width, *_PNG_COLORS[color_type])


# To support a format, add the check of its structure here; its signature stands above.
_STRUCTURE_CHECKS: dict[str | None, Callable[[bytes], Image]] = {"jpeg": _check_jpeg, "png": _check_png}


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
