"""The section `source` of a config: what is read, with a section for each format."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, get_args

import pydantic

from imagebeam.pipelines.config.field_types import STRICT, Bytes, Count
from imagebeam.transforms.formats import base_format as format_lib
from imagebeam.transforms.formats import masks as mask_options
from imagebeam.transforms.shard import read_ahead
from imagebeam.transforms.sources import listing_rules


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

    @property
    def format(self) -> format_lib.Format:
        """The options of the format that is read."""
        found: format_lib.Format = getattr(self, self.by) if self.by in SECTIONS else format_lib.format_of(self.by)()
        return found

    def gives(self) -> format_lib.Gives:
        """Returns what the source promises of every image."""
        return self.format.gives()


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
