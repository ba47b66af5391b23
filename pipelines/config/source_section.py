"""The section `source` of a config: what is read, with a section for each format."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

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
        if self.by not in format_lib.FORMATS:
            return None
        return getattr(self, self.by) if self.by in SECTIONS else format_lib.format_of(self.by)()

    def gives(self) -> format_lib.Gives:
        """Returns what the source promises of every image."""
        if self.format is not None:
            return self.format.gives()
        return _UNPORTED[self.by]


_UNPORTED = {
    "files": format_lib.Gives(takes=frozenset({"include", "pattern", "masks"})),
    "listing": format_lib.Gives(takes=frozenset({"pattern", "masks"})),
    "idx": format_lib.Gives(columns=True, splits=True),
    "arrays": format_lib.Gives(columns=True, splits=True),
}
_SECTIONS: dict[str, Any] = {
    by: (format, format())
    for by, format in zip(format_lib.FORMATS, map(format_lib.format_of, format_lib.FORMATS))
    if dataclasses.fields(format)  # type: ignore[arg-type]
}

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
