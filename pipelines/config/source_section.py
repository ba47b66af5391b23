"""The section `source` of a config: what is read, with a section for each format."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, get_args

import pydantic

from imagebeam.pipelines.config import arrays_section
from imagebeam.pipelines.config.field_types import STRICT, Bytes, Count, NotBool
from imagebeam.transforms.formats import base_format as format_lib
from imagebeam.transforms.shard import read_ahead
from imagebeam.transforms.sources import mask_files, path_pattern


class IdxConfig(pydantic.BaseModel):
    """IDX files, the format of MNIST."""

    model_config = STRICT

    images: dict[str, str] = {"train": "train-images*idx3-ubyte*", "test": "t10k-images*idx3-ubyte*"}
    """Globs of the files with images, below `source.uri`, by split."""
    labels: dict[str, str] = {"train": "train-labels*idx1-ubyte*", "test": "t10k-labels*idx1-ubyte*"}
    """Globs of the files with labels, by split."""


_Shape: TypeAlias = tuple[Count, Count, Annotated[int, pydantic.Field(ge=1, le=4), NotBool]]


class TfrecordConfig(pydantic.BaseModel):
    """TFRecord files of tf.train.Example to be rewritten."""

    model_config = STRICT

    image: str = "image/encoded"
    """Key of the feature with the image's bytes."""
    key: str | None = None
    """Key of the feature with the stable id; by default the file's name and the record's number."""
    raw_shape: _Shape | tuple[str, str, str] | None = None
    """Height, width and channels of images stored as 8-bit pixels without a format, such as [28, 28, 1]; or the keys of
    the features that hold them, such as [image_height, image_width, image_channels]."""
    base64: bool = False
    """Whether the image's bytes are base64, as TFRecorder writes them."""
    keep: Literal["all"] | tuple[str, ...] | None = None
    """Keys of further features to store unchanged, with the kind that they have in the records, or `all`. By default
    all are kept, unless `columns` names some: then only those. The plan lists what is left out."""

    @property
    def fixed_shape(self) -> tuple[int, int, int] | None:
        """Height, width and channels of all images, if they are stored as pixels of one shape."""
        if self.raw_shape is None or isinstance(self.raw_shape[0], str):
            return None
        height, width, channels = self.raw_shape
        return int(height), int(width), int(channels)

    @property
    def shape_keys(self) -> tuple[str, ...]:
        """Keys of the features with height, width and channels, if images are stored as pixels of several shapes."""
        return tuple(each for each in self.raw_shape or () if isinstance(each, str))


class ParquetConfig(pydantic.BaseModel):
    """Parquet files that hold the bytes of images, as on the Hugging Face Hub."""

    model_config = STRICT

    image: str | None = None
    """Column with the images: their bytes, or a struct with the field `bytes`. By default the only column of images."""
    key: str | None = None
    """Column with the stable id, such as `image.path`; by default the file's path and the row's number."""


_Level = Annotated[int, pydantic.Field(ge=0, le=255), NotBool]  # of one channel


class MasksConfig(pydantic.BaseModel):
    """Masks: images with the class of each pixel, one for each image."""

    model_config = STRICT

    image: str | None = None
    """Regular expression for an image's path below `source.uri`, such as `images/(.*)\\.jpg`; other files are passed
    over. A group `(?P<split>...)` is the split for `split.by: source`."""
    mask: str | None = None
    """Path of the image's mask, with the groups of `image`, such as `annotations/\\1.png`."""
    missing: Literal["reject", "pass_over"] = "reject"
    """What to do with an image without a mask: reject it, or pass it over (if only some images have masks)."""
    colors: dict[str, tuple[_Level, _Level, _Level]] | str | None = None
    """For masks whose classes are drawn in colors: red, green and blue of each class, such as `road: [128, 64, 128]`,
    numbered from 0 in this order; or a file below `source.uri` with a line `name,r,g,b` or `r g b name` for each. A
    gray mask of 0 and 255 has the colors `{background: [0, 0, 0], foreground: [255, 255, 255]}`. By default the number
    of a pixel in the file, for a palette its index, is the class."""
    ignore: tuple[str, ...] = ()
    """Names in `colors` that are no classes: their pixels become 255."""
    bits: Annotated[Literal[8, 16], NotBool] = 8
    """Bits of each class that is stored. With 8, a class above 255 is a reject, and a gray PNG of 16 bits stays as it
    is; with 16, all masks are stored with 16."""

    @pydantic.model_validator(mode="after")
    def _complete(self) -> MasksConfig:
        if (self.image is None) != (self.mask is None):
            raise ValueError("source.masks.image and source.masks.mask go together")
        if self.ignore and self.colors is None:
            raise ValueError("source.masks.ignore names colors of source.masks.colors, which is not set")
        if self.image is None and self.colors is not None:
            raise ValueError("source.masks.colors is for masks: set source.masks.image and source.masks.mask")
        if self.image is not None and self.mask is not None:
            mask_files.check_pattern(self.image, self.mask)
        return self

    @property
    def rule(self) -> mask_files.MaskRule | None:
        """Rule that finds the mask of an image; None without masks."""
        return (
            None
            if self.image is None or self.mask is None
            else mask_files.MaskRule(self.image, self.mask, self.missing)
        )


class _SharedKeys(pydantic.BaseModel):
    """The images to read."""

    model_config = STRICT

    uri: str | None = None
    """Folder, glob, manifest or listing; `--input` on the command line."""
    by: Literal[
        "files",
        "manifest",
        "listing",
        "idx",
        "arrays",
        "coco",
        "yolo",
        "voc",
        "labelme",
        "box_csv",
        "tar",
        "zip",
        "tfrecord",
        "parquet",
    ] = "files"
    """`files` lists a folder and all folders below it; `manifest` reads a table; `listing` reads the output of
    `plan --save-listing`; `arrays` reads images that are rows of arrays (CIFAR, .npz, .h5, .mat, pixels in CSV);
    `idx`, `coco`, `yolo`, `voc`, `labelme`, `box_csv` (a row for each box), `tar` (WebDataset), `zip` (all archives of
    a folder), `tfrecord` and `parquet` (with the bytes of images; with paths it is a manifest) read these formats."""
    include: tuple[str, ...] = ("**/*",)
    """Globs relative to the folder; an image that matches none is passed over."""
    pattern: str | None = None
    """For `by: files` (and listings saved from it): a regular expression for the whole path of an image below
    `source.uri`. Its named groups are columns: for `label.column`, `split.column`, `split.group` and `columns`."""
    idx: IdxConfig = IdxConfig()
    """For `by: idx`."""
    arrays: arrays_section.ArraysConfig = arrays_section.ArraysConfig()
    """For `by: arrays`."""
    tfrecord: TfrecordConfig = TfrecordConfig()
    """For `by: tfrecord`."""
    parquet: ParquetConfig = ParquetConfig()
    """For `by: parquet`."""
    masks: MasksConfig = MasksConfig()
    """For `by: files` (and listings saved from it): a mask with classes for each image."""
    reads_ahead: Count = read_ahead.READ_AHEAD.requests
    """Over a network: concurrent requests for images, in each writer process."""
    bytes_ahead: Bytes = pydantic.ByteSize(read_ahead.READ_AHEAD.num_bytes)
    """Bytes of images requested and not yet written, in each writer process."""

    @pydantic.field_validator("pattern")
    @classmethod
    def _safe(cls, value: str | None) -> str | None:
        if value is not None:
            path_pattern.check(value)
        return value

    @pydantic.field_validator("include", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @property
    def format(self) -> format_lib.Format | None:
        """The options of the format that is read; None of one that is no `Format` yet."""
        return getattr(self, self.by) if self.by in format_lib.FORMATS else None

    def gives(self) -> format_lib.Gives:
        """Returns what the source promises of every image."""
        if self.format is not None:
            return self.format.gives()
        return _UNPORTED[self.by]


_LISTED = frozenset({"include"})
_UNPORTED = {
    "files": format_lib.Gives(takes=frozenset({"include", "pattern", "masks"})),
    "listing": format_lib.Gives(takes=frozenset({"pattern", "masks"})),
    "idx": format_lib.Gives(columns=True, splits=True),
    "arrays": format_lib.Gives(columns=True, splits=True),
    "tar": format_lib.Gives(columns=True, takes=_LISTED),
    "zip": format_lib.Gives(takes=_LISTED),
    "tfrecord": format_lib.Gives(columns=True, takes=_LISTED),
    "parquet": format_lib.Gives(columns=True, takes=_LISTED),
}
_SECTIONS: dict[str, Any] = {by: (format_lib.format_of(by), format_lib.format_of(by)()) for by in format_lib.FORMATS}

if TYPE_CHECKING:

    class SourceConfig(_SharedKeys):
        """The images to read."""

        def __getattr__(self, name: str) -> Any: ...

else:  # with a section for each format
    SourceConfig = pydantic.create_model(
        "SourceConfig", __base__=_SharedKeys, __module__=__name__, __doc__=_SharedKeys.__doc__, **_SECTIONS
    )

BY: tuple[str, ...] = get_args(_SharedKeys.model_fields["by"].annotation)
SECTIONS = tuple(name for name in BY if name in SourceConfig.model_fields)


def names_where(holds: Callable[[format_lib.Gives], bool]) -> list[str]:
    """Returns the values of `by` whose format, with its defaults, gives something."""
    return [by for by in BY if holds(SourceConfig().model_copy(update={"by": by}).gives())]
