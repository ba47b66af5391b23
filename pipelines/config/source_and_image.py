"""The sections `source` and `image` of a config: what is read, and how images are checked and stored."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pydantic
import pydantic_core

from imagebeam.pipelines.config.sections import STRICT, Bytes, Count, Function, NotBool
from imagebeam.storage import http
from imagebeam.transforms.formats import base_format as format_lib
from imagebeam.transforms.formats import masks as mask_options
from imagebeam.transforms.images import checked_image, pixel_type, pixels, prepare, resample, structure
from imagebeam.transforms.shard import read_ahead
from imagebeam.transforms.sources import listing_rules

MAX_RESIZED_PIXELS = 178_956_970  # as many as Pillow decodes

_ChannelLevel = Annotated[int, pydantic.Field(ge=0, le=255), NotBool]
_Bands = Annotated[
    Annotated[tuple[Count, ...] | None, pydantic.Tag("(one)")] | Annotated[Literal["all"], pydantic.Tag("(all)")],
    pydantic.Discriminator(lambda value: "(all)" if isinstance(value, str) else "(one)"),
]
_Number = Annotated[float, pydantic.Field(allow_inf_nan=False), NotBool]
_JPEGS = ("jpeg", "keep")  # values of `encode` with which JPEGs are encoded
_PNGS = ("png", "keep")
_WEBPS = ("webp",)
_PICTURES = ("keep", "jpeg", "png", "webp")
SIZES = ("resize", "shortest_side", "longest_side", "max_pixels")

BY = tuple(format_lib.FORMATS)  # values of `source.by`, beside the import paths of users' classes
_BuiltIn: Any = Literal[BY]
_By = Annotated[
    Annotated[_BuiltIn, pydantic.Tag("(one)")]
    | Annotated[str, pydantic.WithJsonSchema({"type": "string", "pattern": ":"}), pydantic.Tag("(own)")],
    pydantic.Discriminator(lambda value: "(own)" if isinstance(value, str) and ":" in value else "(one)"),
]


def _read_chroma(value: Any) -> Any:
    """Returns a ratio that YAML 1.1 took for a number to the base of 60: 4:2:0 without quotes is 14520."""
    return ":".join(map(str, (value // 3600, value // 60 % 60, value % 60))) if type(value) is int else value


class WebConfig(pydantic.BaseModel):
    """Requests for images at http:// and https://."""

    model_config = STRICT

    timeout_sec: Annotated[float, pydantic.Field(gt=0), NotBool] = http.REQUEST_SEC
    """Longest time for a whole request in seconds, from its connection to the last byte. One that fails in a way that
    may pass is repeated for 5 seconds."""
    per_host: Count | None = 16
    """Largest number of images read at once from one server, in each writer process; null is no limit."""
    robots: Literal["respect", "ignore"] = "respect"
    """Whether an image is a reject, `robots`, whose server says by the header X-Robots-Tag that it is not to be indexed
    or not to train models with: noindex, noimageindex, noai, noimageai."""
    user_agent: Annotated[str, pydantic.Field(min_length=1)] | None = None
    """Sent with each request; by default `imagebeam/` and its version. Rules of X-Robots-Tag for one robot count if
    they name what precedes the slash."""

    def options(self, max_bytes: int) -> tuple[tuple[str, Any], ...]:
        """Returns options of the storage of web servers, for images of at most `max_bytes` bytes."""
        return (
            ("requests_timeout", self.timeout_sec),
            ("per_host", self.per_host),
            ("respect_robots", self.robots == "respect"),
            ("max_bytes", max_bytes),
            *(() if self.user_agent is None else (("headers", {"User-Agent": self.user_agent}),)),
        )


class SourceConfig(pydantic.BaseModel):
    """The images to read."""

    model_config = STRICT

    uri: str | None = None
    """Folder, glob, manifest or listing; `--input` on the command line."""
    by: _By = "files"
    """`files` lists a folder and all folders below it; `pairs` does so for several images in each example; `manifest`
    reads a table; `listing` reads the output of `plan --save-listing`; `arrays` reads images that are rows of arrays
    (CIFAR, .npz, .h5, .mat, pixels in CSV); `sidecars` reads columns from files beside the images; `idx`, `coco`,
    `yolo`, `voc`, `labelme`, `box_csv` (a row for each box), `annotations` (boxes and masks in one of many syntaxes),
    `tar` (WebDataset), `zip` (all archives of a folder), `tfrecord` and `parquet` (with the bytes of images; with paths
    it is a manifest) read these formats. `MODULE:CLASS` is a source of your own (docs/own_code.md)."""
    options: Annotated[Any, pydantic.WithJsonSchema({"type": "object"})] = {}
    """For `by: MODULE:CLASS`: the fields of that class."""
    version: Annotated[str, pydantic.Field(min_length=1)] | None = None
    """For `by: MODULE:CLASS`: version of the class, for the fingerprint of the dataset. Without it the source code of
    the module counts, so that any change there makes another dataset."""
    include: tuple[str, ...] = ("**/*",)
    """Globs relative to the folder; an image that matches none is skipped."""
    pattern: str | None = None
    """For `by: files` (and listings saved from it): a regular expression for the whole path of an image below
    `source.uri`. Its named groups are columns: for `label.column`, `split.column`, `split.group` and `columns`."""
    masks: mask_options.Masks = mask_options.Masks()
    """For `by: files` (and listings saved from it): a mask with classes for each image."""
    reads_ahead: Count = read_ahead.READ_AHEAD.requests
    """Over a network: concurrent requests for images, in each writer process."""
    bytes_ahead: Bytes = pydantic.ByteSize(read_ahead.READ_AHEAD.num_bytes)
    """Bytes of images requested and not yet written, in each writer process."""
    web: WebConfig = WebConfig()
    storage_options: dict[str, Any] = {}
    """Options of the storage at `source.uri`, such as `{endpoint_url: "https://minio:9000"}`, by the names that
    `open_dataset` takes (docs/storage.md). They hold for all addresses of its scheme that are not those of the output.
    A secret is `{env: NAME}` or `{file: PATH}`. The catalog does not keep them."""

    @pydantic.field_validator("pattern")
    @classmethod
    def _safe(cls, value: str | None) -> str | None:
        if value is not None:
            listing_rules.check_pattern(value)
        return value

    @pydantic.field_validator("include", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @pydantic.field_validator("options")
    @classmethod
    def _of_own(cls, value: Any, fields: pydantic.ValidationInfo) -> Any:
        """Returns the user's class made of its options; an error in them names the option."""
        by = fields.data.get("by")
        if by is None or not format_lib.is_own(by):  # None: it has an error of its own
            if value and by is not None:
                raise ValueError(f"source.options needs source.by: MODULE:CLASS; not {by}")
            return {}
        kind = format_lib.format_of(by)
        if not isinstance(value, (dict, kind)):
            raise pydantic_core.PydanticCustomError("dict_type", "")
        known = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
        for name in value if isinstance(value, dict) else ():
            if name not in known:
                near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
                hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known) or 'none'}"
                raise ValueError(f"unknown key 'source.options.{name}'; {hint}")
        return pydantic.TypeAdapter(kind).validate_python(value)

    @pydantic.field_validator("version")
    @classmethod
    def _of_own_alone(cls, value: str | None, fields: pydantic.ValidationInfo) -> str | None:
        by = fields.data.get("by")
        if value is not None and by is not None and not format_lib.is_own(by):
            raise ValueError(f"source.version needs source.by: MODULE:CLASS; not {by}")
        return value

    @pydantic.field_serializer("options")
    def _as_fields(self, value: Any) -> Any:
        """Returns the options that are no defaults."""
        if isinstance(value, dict):
            return value
        return pydantic.TypeAdapter(type(value)).dump_python(value, mode="json", exclude_defaults=True)

    @property
    def is_own(self) -> bool:
        """Whether a class of the user lists the images."""
        return format_lib.is_own(self.by)

    @property
    def format(self) -> format_lib.Format:
        """The options of the format that is read."""
        if self.is_own:
            return self.options
        found: format_lib.Format = getattr(self, self.by) if self.by in SECTIONS else format_lib.format_of(self.by)()
        return found

    def gives(self) -> format_lib.Gives:
        """Returns what the source promises of every image."""
        return self.format.gives()

    if TYPE_CHECKING:  # the section of a format, such as `coco`

        def __getattr__(self, name: str) -> Any: ...


# The class with a section for each format that has options.
_SECTIONS: dict[str, Any] = {
    by: (format, format())
    for by, format in zip(format_lib.FORMATS, map(format_lib.format_of, format_lib.FORMATS))
    if dataclasses.fields(format)  # type: ignore[arg-type]
}

if not TYPE_CHECKING:
    SourceConfig = pydantic.create_model(
        "SourceConfig", __base__=SourceConfig, __module__=__name__, __doc__=SourceConfig.__doc__, **_SECTIONS
    )

SECTIONS = tuple(name for name in BY if name in SourceConfig.model_fields)


def names_where(holds: Callable[[format_lib.Gives], bool]) -> list[str]:
    """Returns the values of `by` whose format, with its defaults, gives something."""
    return [by for by in BY if holds(SourceConfig().model_copy(update={"by": by}).gives())]


class LimitsConfig(pydantic.BaseModel):
    """Limits on the images of the source, checked by their headers: what exceeds one is rejected."""

    model_config = STRICT

    max_bytes: Bytes | None = None
    """Largest size of a file."""
    max_pixels: Count | None = None
    """Height times width. Without it, images that have to be decoded may have 100 million pixels (JPEG 2000, WebP and
    TIFF fewer: docs/images.md), so that a worker stays under 1 GB; those whose bytes are kept, as many as decoders
    take."""
    min_side: Count | None = None
    """Smallest length of the shorter side, in pixels."""
    max_side: Count | None = None
    """Largest length of the longer side, in pixels."""
    max_aspect_ratio: Annotated[float, pydantic.Field(ge=1), NotBool] | None = None
    """Longer side divided by shorter side."""
    max_frames: Count | None = None
    """Largest number of images in one file (GIF, TIFF, WebP, APNG)."""
    max_seconds: Annotated[float, pydantic.Field(gt=0), NotBool] | None = None
    """Longest time to check, decode and encode one image, functions of yours included. Which images exceed it depends
    on the machine's speed. Without it there is no limit, but 60 seconds with a function."""

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> LimitsConfig:
        if self.min_side is not None and self.max_side is not None and self.min_side > self.max_side:
            raise ValueError(f"image.limits.min_side {self.min_side} is above max_side {self.max_side}: no image fits")
        return self

    @property
    def image_bytes(self) -> int:
        """Largest size of a file that is read."""
        return min(structure.MAX_IMAGE_BYTES, structure.MAX_IMAGE_BYTES if self.max_bytes is None else self.max_bytes)


class ExtraImageConfig(pydantic.BaseModel):
    """The numbers of an extra image that is no picture, such as depth beside colors."""

    model_config = STRICT

    dtype: Literal["uint8", "uint16", "float32"] = "uint8"
    """As `image.dtype`. `uint8` needs `range`; `uint16` is stored as PNG, `float32` without a header, little-endian."""
    range: tuple[_Number, _Number] | None = None
    """As `image.range`."""
    channels: Literal[1, 3] = 1
    """Channels of all such images; one of others is a reject."""

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> ExtraImageConfig:
        if self.dtype == pixel_type.UINT8 and self.range is None:
            raise ValueError(
                "image.extra_images is for numbers beyond 8 bits: set dtype: uint16 or float32, or range, or leave the "
                "image out (if the first image has more bits, exchange the two)"
            )
        _check_range("image.extra_images: ", self.dtype, self.range)
        return self

    def type_of(self, name: str) -> pixel_type.ExtraType:
        """Returns the numbers that are stored of the extra images with this name."""
        section = f"image.extra_images.{name}"
        return pixel_type.ExtraType(pixel_type.PixelType(self.dtype, self.range, section=section), self.channels)


def _check_range(prefix: str, dtype: str, given: tuple[float, float] | None) -> None:
    if given is not None and dtype == pixel_type.FLOAT32:
        raise ValueError(f"{prefix}range is for {prefix}dtype: uint8 and uint16; float32 stores numbers as they are")
    if given is not None and given[0] >= given[1]:
        raise ValueError(f"{prefix}range is {list(given)}: write [LOWEST, HIGHEST]")


class ImageConfig(pydantic.BaseModel):
    """Checks that images pass, and the form in which they are stored."""

    model_config = STRICT

    encode: Literal["keep", "jpeg", "png", "webp", "raw", "int64_list", "float_list"] = "keep"
    """`keep` stores the bytes of each JPEG and PNG that is as the other keys want it, and encodes the rest again: as
    JPEG what was compressed with loss, as PNG what was not. `jpeg`, `png` and `webp` (always RGB, no alpha) encode
    every image; `raw` stores pixels as uint8 bytes, `int64_list` and `float_list` as numbers from 0 to 255, in the
    order [height, width, channels]."""
    other_formats: Literal["encode", "reject"] = "encode"
    """For `encode: keep`: whether GIF, BMP, WebP, TIFF, PPM, AVIF, JPEG 2000, PSD and ICO, also HEIC and JPEG XL where
    the packages pillow-heif and pillow-jxl-plugin are installed, are encoded as JPEG or PNG, or rejected."""
    dtype: Literal["uint8", "uint16", "float32"] = "uint8"
    """Type of the numbers that are stored. `uint16` is for images of 16 bits: a PNG, or `encode: raw`; `float32` for
    depth, heights and other measurements: with `encode: raw`. Numbers are stored as they are, or as `range` says; a
    file whose numbers do not fit is rejected, never scaled by its own values."""
    range: tuple[_Number, _Number] | None = None
    """The numbers of all files that become 0 and the largest one of `dtype` (255, 65535). What is between is scaled and
    rounded to the nearest, what is outside becomes the nearest of both, not-a-number 0."""
    bands: _Bands = None
    """Bands that are stored, counted from 1, in this order: [4, 3, 2] are red, green and blue of Sentinel-2; `all`
    needs `encode: raw`. Without it, pictures of 8 bits have their usual channels; with `dtype` or `range`, an image has
    1 band or 3, and one of others is rejected."""
    extra_images: dict[str, ExtraImageConfig] = {}
    """By the name of an extra image (`source.pairs.others`, `source.manifest.further`) whose numbers are no pictures',
    such as `depth: {dtype: uint16}`: their type. Without it an extra image is stored like the first one."""
    frames: Literal["first", "reject", "each"] = "first"
    """What to do with a file of several images, such as an animated GIF: store the first one, reject it, or store each
    frame of an animation (GIF, WebP, APNG, AVIF), each page of a TIFF and each slice of DICOM and NIfTI as an example
    of its own. A volume of DICOM or NIfTI needs `each`."""
    plane: Literal["axial", "coronal", "sagittal", "stored"] = "axial"
    """How a volume of NIfTI is cut. The orientation in its header decides which axis that is. As DICOM shows slices,
    the patient's left is at the right of axial and coronal ones, the back at the right of sagittal ones and at the
    bottom of axial ones, the feet at the bottom of the others. `stored` cuts along the third axis of the file: columns
    along the first one, rows along the second."""
    orientation: Literal["apply", "keep", "reject"] = "apply"
    """What to do with an image whose EXIF data ask for a turn, which readers ignore: turn its pixels upright (a JPEG
    without loss where its sides allow it), store it as it lies, or reject it. Boxes and masks follow."""
    annotations: Literal["stored", "upright"] = "stored"
    """Whether boxes and masks were drawn on the pixels as the file stores them, or on the picture turned upright."""
    color: Literal["keep", "rgb", "gray", "mean"] = "keep"
    """`rgb` is three channels, `gray` is luma (ITU-R 601), `mean` is the mean of the three channels, rounded down;
    `keep` keeps gray, RGB and alpha (no alpha for `encode: jpeg`), and converts the rest to RGB."""
    background: tuple[_ChannelLevel, _ChannelLevel, _ChannelLevel] | None = None
    """Red, green and blue, 0 to 255, of what shows through transparent pixels; without it alpha is kept, or left out
    where `color` or JPEG has none. Also the color of padding, which is black by default."""
    white_level: Annotated[int, pydantic.Field(ge=255, le=pixels.WHITE), NotBool] = pixels.WHITE
    """The number of a gray image of 16 bits that becomes white, 255; larger ones do, too. Set 1023, 4095 or 16383 for
    numbers of 10, 12 or 14 bits, whose images are nearly black by default: gray PNGs of 16 bits are then encoded with
    8. Of colors of 16 bits the upper 8 are always taken."""
    profile: Literal["keep", "srgb"] = "keep"
    """`srgb` converts the colors of an image with another ICC profile (Display P3, Adobe RGB, CMYK) to sRGB; `keep`
    takes the numbers as they are, as most readers do."""
    metadata: Literal["keep", "strip"] = "keep"
    """`strip` removes EXIF (camera, time, place), XMP and IPTC data, comments and texts from images whose bytes are
    kept, without touching their pixels; color profiles stay. Images that are encoded here have none of these."""
    quality: Annotated[int, pydantic.Field(ge=1, le=100), NotBool] = 95
    """Quality of each JPEG that is encoded here, and of each WebP that is compressed with loss."""
    chroma: Annotated[Literal["source", "4:4:4", "4:2:2", "4:2:0"], pydantic.BeforeValidator(_read_chroma)] = "source"
    """Chroma subsampling of each JPEG that is encoded here. `source` is that of the JPEG it was, and 4:4:4 for other
    images: with 4:2:0, thin colored lines of a graphic change by up to 50 levels even at quality 100."""
    progressive: bool = False
    """Whether JPEGs encoded here are progressive: some 5 % smaller, and slower to decode."""
    png_level: Annotated[int, pydantic.Field(ge=0, le=9), NotBool] = 6
    """Compression of each PNG that is encoded here: 1 is fast, 9 is small."""
    webp: Literal["lossy", "lossless", "source"] = "lossy"
    """How `encode: webp` compresses: with loss, by `quality`; without; or as the file was compressed: with loss what
    comes from a JPEG or another format with loss, without loss what comes from a PNG, GIF, BMP and the like."""
    resize: tuple[Count, Count] | None = None
    """Height and width in pixels."""
    fit: Literal["stretch", "crop", "pad"] = "stretch"
    """How `resize` is reached: whatever the aspect ratio; by cutting off what is too long on both sides; or with
    borders in the color of `background`."""
    shortest_side: Count | None = None
    """Largest length of the shorter side in pixels; keeps the aspect ratio, like the next two."""
    longest_side: Count | None = None
    """Largest length of the longer side in pixels."""
    max_pixels: Count | None = None
    """Largest height times width."""
    enlarge: bool = False
    """Whether images smaller than `shortest_side` or `longest_side` are enlarged to it."""
    filter: Literal["bicubic", "lanczos", "area", "bilinear"] = "bicubic"
    """How pixels are scaled, always antialiased. A JPEG of more than twice the size is decoded at a part of it."""
    resampler: Literal["native", "pillow"] = "native"
    """The code that scales pixels. `native` is imagebeam's own code in C: the same bytes on every processor, in half of
    Pillow's time for JPEGs. The picture is that of Pillow up to rounding and the noise of JPEG. `pillow` is Pillow's
    `resize`; it needs no C compiler."""
    check: Literal["header", "structure", "decode", "tensorflow"] = "structure"
    """The checks of an image whose bytes are kept. `header`: what precedes the pixels; `structure`: every segment
    and chunk, without decoding; `decode` also decodes every pixel by Pillow, `tensorflow` by the decoders of the
    reader, which is slow to start."""
    limits: LimitsConfig = LimitsConfig()
    function: Function | None = None
    """Import path of a function of yours that gets the decoded pixels of each image, uint8 [height, width, channels],
    turned upright, with the channels of `color`, and an `imagebeam.Reference` (key, address, label, split, columns). It
    returns the pixels to store, which are scaled and encoded as the other keys say, or None: then the image is left out
    as `filtered`, which does not count against `rejects.max_fraction`. An error in it makes the image a reject,
    `function`. A mapping gives `options` and `version`, too, as in `features.functions`."""
    keep_if: Function | None = None
    """Import path of a function of yours that gets the same as `function`, before it, and returns whether the image
    stays: True, or False, which leaves it out as `filtered`. The bytes of an image that stays are kept as without
    it."""

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> ImageConfig:
        if self.resize is not None and any(getattr(self, name) is not None for name in SIZES[1:]):
            others = " and ".join(f"image.{name}" for name in SIZES[1:] if getattr(self, name) is not None)
            raise ValueError(f"image.resize and {others} contradict each other; give one")
        if self.resize is not None and math.prod(self.resize) > MAX_RESIZED_PIXELS:
            raise ValueError(
                f"image.resize: {' x '.join(map(str, self.resize))} are more than {MAX_RESIZED_PIXELS:,} pixels"
            )
        if self.fit != "stretch" and self.resize is None:
            raise ValueError(f"image.fit: {self.fit} needs image.resize")
        if self.resampler == resample.PILLOW and not self.is_sized:
            raise ValueError(f"image.resampler needs a size: one of {', '.join(f'image.{name}' for name in SIZES)}")
        if self.enlarge and self.shortest_side is None and self.longest_side is None:
            raise ValueError("image.enlarge needs image.shortest_side or image.longest_side")
        for name, formats in (
            ("quality", (*_JPEGS, *_WEBPS)),
            ("chroma", _JPEGS),
            ("progressive", _JPEGS),
            ("png_level", _PNGS),
            ("webp", _WEBPS),
        ):
            if getattr(self, name) != ImageConfig.model_fields[name].default and self.encode not in formats:
                raise ValueError(f"image.{name} needs image.encode: {formats[0]}, not {self.encode}")
        if self.encode in _WEBPS and self.color in ("gray", "mean"):
            raise ValueError(
                f"image.encode: webp stores three channels, and image.color is {self.color}: set "
                "image.encode: png or jpeg"
            )
        if self.encode in _WEBPS and self.webp == "lossless" and self.quality != 95:
            raise ValueError("image.quality has no effect with image.webp: lossless: leave out one of the two")
        if self.metadata == "strip" and self.check == "header":
            raise ValueError("image.metadata: strip needs image.check: structure, or more, to find all of them")
        if not self.numbers.is_usual:
            self._check_numbers()
        if self.other_formats != "encode" and self.encode != "keep":
            raise ValueError(f"image.other_formats is for image.encode: keep, not {self.encode}")
        return self

    def _check_numbers(self) -> None:
        _check_range("image.", self.dtype, self.range)
        holding = {pixel_type.FLOAT32: ("raw",), pixel_type.UINT16: ("raw", *_PNGS)}.get(
            self.dtype, ("raw", *_PICTURES)
        )
        if self.encode not in holding:
            what = "image.range and image.bands" if self.dtype == pixel_type.UINT8 else f"image.dtype: {self.dtype}"
            raise ValueError(f"image.encode: {self.encode} cannot hold {what}; set image.encode: raw")
        if self.bands == ():
            raise ValueError("image.bands is []: name one band at least, counted from 1")
        is_picture = self.bands is None or len(self.bands) in pixel_type.PICTURE_BANDS
        if self.encode != "raw" and (self.bands == pixel_type.ALL or not is_picture):
            raise ValueError(
                f"image.encode: {self.encode} holds 1 band or 3, and image.bands is "
                f"{self.bands if self.bands == pixel_type.ALL else list(self.bands or ())}: set image.encode: raw"
            )
        for name in ("color", "background", "white_level", "profile", "function", "keep_if"):
            if getattr(self, name) != ImageConfig.model_fields[name].default:
                raise ValueError(
                    f"image.{name} is for pictures of 8 bits: leave it out, or image.dtype, image.range and image.bands"
                )

    @property
    def numbers(self) -> pixel_type.PixelType:
        """The numbers that are stored of every image."""
        return pixel_type.PixelType(self.dtype, self.range, self.bands)

    def types_of(self, extra_images: Sequence[str]) -> tuple[pixel_type.ExtraType | None, ...]:
        """Returns the types of extra images; () if all are stored like the first one."""
        if not self.extra_images:
            return ()
        given = ((name, self.extra_images.get(name)) for name in extra_images)
        return tuple(None if each is None else each.type_of(name) for name, each in given)

    @property
    def is_sized(self) -> bool:
        """Whether images may have to be scaled."""
        return any(getattr(self, name) is not None for name in SIZES)

    def policy(self, raw_shape: tuple[int, int, int] | None, sum_pixels: bool) -> prepare.ImagePolicy:
        """Returns how every image is checked and stored.

        Args:
            raw_shape: height, width and channels if images come as bare pixels.
            sum_pixels: whether to sum the pixels, for their mean and deviation.
        """
        return prepare.ImagePolicy(
            **_shared_fields(prepare.ImagePolicy, self),
            raw_shape=raw_shape,
            numbers=self.numbers,
            scaling=resample.Scaling(size=self.resize, **_shared_fields(resample.Scaling, self)),
            encoding=pixels.Encoding(**_shared_fields(pixels.Encoding, self)),
            limits=checked_image.Limits(**self.limits.model_dump()),
            sum_pixels=sum_pixels,
        )


def _shared_fields(settings: Any, section: pydantic.BaseModel) -> dict[str, Any]:
    """Returns the values of a section for the fields of a dataclass that have the same name, but for other sections."""
    names = {field.name for field in dataclasses.fields(settings)} & set(type(section).model_fields)
    return {name: getattr(section, name) for name in names - {"limits"}}
