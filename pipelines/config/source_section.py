"""The section `source` of a config: what is read, with a section for each format."""

from __future__ import annotations

import codecs
from typing import Annotated, Any, Literal, TypeAlias

import pydantic

from imagebeam import features
from imagebeam.pipelines.config import arrays_section, object_sections
from imagebeam.pipelines.config.field_types import STRICT, Bytes, Count, NotBool
from imagebeam.transforms.shard import read_ahead
from imagebeam.transforms.sources import mask_files, path_pattern, path_template, table_formats


class JoinConfig(pydantic.BaseModel):
    """Further tables with columns of the same images."""

    model_config = STRICT

    key: str | None = None
    """The column with the id that the tables share."""
    tables: dict[str, tuple[str, ...]] = {}
    """For CSV: further tables with the same delimiter, whose rows have the same ids in the same order. From
    the path of each table, relative to the folder of the first, to the names of its columns, as in `header`; [] for a
    table with a header line."""

    @pydantic.model_validator(mode="after")
    def _complete(self) -> JoinConfig:
        if (self.key is None) != (not self.tables):
            raise ValueError("source.manifest.join.key and source.manifest.join.tables go together")
        return self


class ManifestConfig(pydantic.BaseModel):
    """A table with one row per image."""

    model_config = STRICT

    path: str | tuple[str, ...] | None = None
    """Address of the table below `source.uri`, or a glob for several tables (`**/metadata.*`). Paths in a table are
    relative to its own folder, and keys to `source.uri`. Of a list, the first that exists is read. By default
    `source.uri` is the table itself."""
    format: Literal["csv", "jsonl", "json", "parquet"] | None = None
    """By default decided by the file's extension."""
    items: str | None = pydantic.Field(None, min_length=1)
    """For JSON: the list of rows in the file, as a path of names such as `annotations.items`; by default the whole file
    is the list."""
    header: tuple[str, ...] = ()
    """Column names for a CSV without a header line: then its first line is a row."""
    join: JoinConfig = JoinConfig()
    """Further tables with columns of the same images."""
    delimiter: str | None = pydantic.Field(None, min_length=1, max_length=1)
    """Separator between the cells of a CSV; by default a tab in a .tsv file, otherwise a comma."""
    encoding: str = table_formats.UTF8
    """Encoding of a CSV or JSON file: `utf-8`, `utf-16`, `latin-1`, `cp1252` or another that Python knows."""
    root: str | None = None
    """Folder that the paths in the table are relative to: an address, or relative to the table's folder, such as
    `images` or `../images`. By default the table's folder. Keys are relative to it, too, if it is not below
    the folder `source.uri`."""
    image: str | None = "image"
    """Column with the image's path, relative to `root`; or a template with columns in braces, like `images/{id}.jpg`. A
    template that ends in `.*` finds the extension by one listing of the folder, and one like `**/{id}.jpg` the folder
    below `root`. Null if the table does not name its images, see `files`."""
    further: dict[str, str] = {}
    """Further images of each example, such as the same place at another time: from a name to the column with the path,
    or a template, as for `image`. `after: after_file` stores `image/after/encoded`, `format`, `height` and `width`. All
    are checked and changed like the first image; if one is bad, the whole example is a reject."""
    files: str | tuple[str, ...] | None = None
    """For `image: null`: glob of the images, relative to the manifest's folder; of a list, the first that matches. Row
    n belongs to file n when the paths are sorted as text (10.png comes before 2.png); there must be as many rows as
    files. The table may be a single column of numbers without a header."""
    key: str | None = None
    """Column with the stable id; by default the path is the key."""
    allow_outside: bool = False
    """If true, paths may lead out of `root` (`..`, absolute, another scheme); otherwise such images are rejects."""
    merge_rows: bool = False
    """If true, consecutive rows of one image become one example, with the values of its `list` columns joined."""
    trust: bool = False
    """If true, no file is looked up before it is read. A missing file is then a reject of its shard, one that was
    replaced is not noticed unless its size differs, and images that no row names are not counted. Needs `size`, or a
    number of shards."""
    size: str | None = None
    """For `trust: true`: column with the size of each file in bytes, which decides the number of shards. A file of
    another size is a reject; an empty cell is an unknown size."""

    @pydantic.field_validator("image")
    @classmethod
    def _template(cls, value: str | None) -> str | None:
        try:
            path_template.parse(value)
        except ValueError as e:
            raise ValueError(f"source.manifest.image {e}") from e
        return value

    @pydantic.field_validator("further")
    @classmethod
    def _named(cls, value: dict[str, str]) -> dict[str, str]:
        for name, image in value.items():
            try:
                features.check_further_name(name)
                path_template.parse(image)
            except ValueError as e:
                raise ValueError(f"source.manifest.further {e}") from e
        return value

    @pydantic.field_validator("encoding")
    @classmethod
    def _known(cls, value: str) -> str:
        try:
            "".encode(value)  # a codec of bytes, such as base64, refuses
        except LookupError as e:
            raise ValueError(f"source.manifest.encoding {value!r} is not known; write for example latin-1") from e
        return codecs.lookup(value).name

    @pydantic.model_validator(mode="after")
    def _complete(self) -> ManifestConfig:
        if (self.image is None) != (self.files is not None):
            raise ValueError(
                "source.manifest.files goes with source.manifest.image: null; a column names the images, or a glob "
                "gives them in the order of the rows"
            )
        if self.files is not None and self.root is not None:
            raise ValueError(
                "source.manifest.files is relative to the table's folder; source.manifest.root needs names in a column"
            )
        if self.files is not None and self.merge_rows:
            raise ValueError("source.manifest.files pairs each row with a file; source.manifest.merge_rows needs names")
        if self.files is not None and self.trust:
            raise ValueError(
                "source.manifest.files lists the files; source.manifest.trust needs their names in a column"
            )
        for name, used in (("files", self.image is None), ("merge_rows", self.merge_rows), ("trust", self.trust)):
            if self.further and used:
                raise ValueError(
                    f"source.manifest.further needs a row for each example, whose files are looked up: leave "
                    f"source.manifest.{name} out"
                )
        if self.size is not None and not self.trust:
            raise ValueError(
                "source.manifest.size is for source.manifest.trust: true; without it each file's size is looked up"
            )
        return self


class IdxConfig(pydantic.BaseModel):
    """IDX files, the format of MNIST."""

    model_config = STRICT

    images: dict[str, str] = {"train": "train-images*idx3-ubyte*", "test": "t10k-images*idx3-ubyte*"}
    """Globs of the files with images, below `source.uri`, by split."""
    labels: dict[str, str] = {"train": "train-labels*idx1-ubyte*", "test": "t10k-labels*idx1-ubyte*"}
    """Globs of the files with labels, by split."""


class CocoConfig(pydantic.BaseModel):
    """Annotations of objects in COCO's JSON format."""

    model_config = STRICT

    annotations: dict[str, str] = {
        "train": "annotations/instances_train2017.json",
        "validation": "annotations/instances_val2017.json",
    }
    """Annotation files below `source.uri`, by split."""
    images: dict[str, str] = {"train": "train2017", "validation": "val2017"}
    """Folders of the images below `source.uri`, by split."""
    masks: bool = False
    """If true, each object's mask is stored, as a PNG of the image's size."""
    keypoints: bool = False
    """If true, the keypoints of each object are stored (`annotations/person_keypoints_train2017.json`): as many as the
    categories name, 0 where an object has none."""
    captions: dict[str, str] | None = None
    """Annotation files with captions below `source.uri`, by split (`annotations/captions_train2017.json`): stored as a
    list for each image."""
    panoptic: dict[str, str] | None = None
    """Folders of the PNGs of panoptic annotations below `source.uri`, by split (`annotations/panoptic_train2017`, with
    `panoptic_train2017.json` as `annotations`): the category of each pixel is stored as a mask, 255 where there is
    none, and the segments as objects."""
    objects: bool = True
    """If false, `annotations` are read for the images that they list, and not for objects: they may be files of
    captions."""
    outside: Literal["clip", "reject"] = "clip"
    """What to do with a box that leaves the image: clip it at the edge (and drop it if nothing is left), or reject
    the image."""
    categories: tuple[str, ...] | None = None
    """Names of the categories whose objects are stored, with the ids of the file; by default all. Objects of others are
    counted."""
    crowd: bool = True
    """If true, objects marked `iscrowd` are stored."""
    without_objects: bool = True
    """If true, images without an object are stored."""

    @pydantic.model_validator(mode="after")
    def _complete(self) -> CocoConfig:
        if not self.annotations or set(self.annotations) != set(self.images):
            raise ValueError(
                f"source.coco.annotations names the splits {', '.join(self.annotations) or 'none'}, "
                f"source.coco.images {', '.join(self.images) or 'none'}; name the same in both"
            )
        if self.captions is not None and set(self.captions) != set(self.annotations):
            raise ValueError(
                f"source.coco.captions names the splits {', '.join(self.captions) or 'none'}, "
                f"source.coco.annotations {', '.join(self.annotations)}; name the same in both"
            )
        if self.panoptic is not None and set(self.panoptic) != set(self.annotations):
            raise ValueError(
                f"source.coco.panoptic names the splits {', '.join(self.panoptic) or 'none'}, "
                f"source.coco.annotations {', '.join(self.annotations)}; name the same in both"
            )
        if self.panoptic is not None and (self.masks or self.keypoints or self.captions or self.categories):
            raise ValueError(
                "source.coco.panoptic stores one mask for all segments: leave out masks, keypoints, captions and "
                "categories"
            )
        if not self.objects and (
            self.panoptic or self.masks or self.keypoints or self.categories or not self.without_objects
        ):
            raise ValueError(
                "source.coco.objects: false reads no objects: leave out masks, panoptic, keypoints, categories "
                "and without_objects"
            )
        return self


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


class SourceConfig(pydantic.BaseModel):
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
    manifest: ManifestConfig = ManifestConfig()
    """For `by: manifest`."""
    idx: IdxConfig = IdxConfig()
    """For `by: idx`."""
    arrays: arrays_section.ArraysConfig = arrays_section.ArraysConfig()
    """For `by: arrays`."""
    coco: CocoConfig = CocoConfig()
    """For `by: coco`."""
    yolo: object_sections.YoloConfig = object_sections.YoloConfig()
    """For `by: yolo`."""
    voc: object_sections.VocConfig = object_sections.VocConfig()
    """For `by: voc`."""
    labelme: object_sections.LabelmeConfig = object_sections.LabelmeConfig()
    """For `by: labelme`."""
    box_csv: object_sections.BoxCsvConfig = object_sections.BoxCsvConfig()
    """For `by: box_csv`."""
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
