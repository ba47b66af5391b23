"""The sections of a config: every key with its default and its meaning, checked as far as a section alone can be."""

from __future__ import annotations

import codecs
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import pydantic
import pydantic_core

from imagebeam import features as features_lib
from imagebeam import shard_names
from imagebeam.transforms.shard import read_ahead
from imagebeam.transforms.sources import mask_files, table_formats, table_rows

STRICT = pydantic.ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True)

MAX_RESIZED_PIXELS = 178_956_970  # as many as Pillow decodes


def _refuse_bool(value: Any) -> Any:
    if isinstance(value, bool):  # which Python takes for the number 1 or 0
        raise pydantic_core.PydanticCustomError(
            "number_type", "input should be a number (or, where that is meant, text in quotes)"
        )
    return value


_NotBool = pydantic.BeforeValidator(_refuse_bool)
Bytes = Annotated[pydantic.ByteSize, _NotBool]
Fraction = Annotated[float, pydantic.Field(gt=0, lt=1), _NotBool]
Count = Annotated[int, pydantic.Field(ge=1), _NotBool]
# Told apart by what was given, so that an error speaks of that alone.
CountBySplit = Annotated[
    Annotated[Count, pydantic.Tag("(one)")] | Annotated[dict[str, Count], pydantic.Tag("(by split)")],
    pydantic.Discriminator(lambda value: "(by split)" if isinstance(value, Mapping) else "(one)"),
]


class ManifestConfig(pydantic.BaseModel):
    """A table with one row for each image."""

    model_config = STRICT

    path: str | None = None
    """Address of the table below `source.uri`, or a glob of several (`**/metadata.*`): then the paths in each are
    relative to its own folder, and the keys to `source.uri`. Left out, `source.uri` is the table itself."""
    format: Literal["csv", "jsonl", "parquet"] | None = None
    """Left out, the file's extension tells."""
    header: tuple[str, ...] = ()
    """Names of the columns of a CSV without a header: its first line is a row then."""
    delimiter: str | None = pydantic.Field(None, min_length=1, max_length=1)
    """Between the cells of a CSV; left out, a tab in a .tsv, else a comma."""
    encoding: str = table_formats.UTF8
    """Of a CSV or JSON lines: `utf-8`, `utf-16`, `latin-1`, `cp1252` or another that Python knows."""
    image: str | None = "image"
    """Column with the image's path, relative to the manifest's folder; null where the table has none: `files`."""
    files: str | None = None
    """For `image: null`: glob of the images, relative to the manifest's folder. The first row is of the first file in
    the order of their paths as text (10.png comes before 2.png), and so on; there must be as many rows as files."""
    key: str | None = None
    """Column with the stable id; left out, the path is the key."""
    allow_outside: bool = False
    """Whether paths may lead out of the manifest's folder (`..`, absolute, another scheme); else they are rejects."""
    merge_rows: bool = False
    """Whether rows of one image that follow each other are one example, its `list` columns put together."""

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
        if self.files is not None and self.merge_rows:
            raise ValueError("source.manifest.files pairs each row with a file; source.manifest.merge_rows needs names")
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
    """Files of annotations below `source.uri`, by split."""
    images: dict[str, str] = {"train": "train2017", "validation": "val2017"}
    """Folders of the images below `source.uri`, by split."""
    masks: bool = False
    """Whether each object's mask is stored, as a PNG of the image's size."""
    outside: Literal["clip", "reject"] = "clip"
    """What a box that leaves the picture is: cut off at its edge (and dropped if nothing is left), or a reject."""
    crowd: bool = True
    """Whether objects marked `iscrowd` are stored."""
    without_objects: bool = True
    """Whether images without an object are stored."""

    @pydantic.model_validator(mode="after")
    def _complete(self) -> CocoConfig:
        if not self.annotations or set(self.annotations) != set(self.images):
            raise ValueError(
                f"source.coco.annotations names the splits {', '.join(self.annotations) or 'none'}, "
                f"source.coco.images {', '.join(self.images) or 'none'}; name the same in both"
            )
        return self


class TfrecordConfig(pydantic.BaseModel):
    """TFRecord files of tf.train.Example that are written anew."""

    model_config = STRICT

    image: str = "image/encoded"
    """Key of the feature with the image's bytes."""
    key: str | None = None
    """Key of the feature with the stable id; left out, the file's name and the record's number."""
    raw_shape: tuple[Count, Count, Annotated[int, pydantic.Field(ge=1, le=4), _NotBool]] | None = None
    """Height, width and channels of images that are bare pixels of 8 bits, such as [28, 28, 1]."""
    keep: Literal["all"] | tuple[str, ...] | None = None
    """Keys of further features that are stored as they are, with the kind that they have in the records, or `all`. Left
    out, all are kept, unless `columns` names some: then those alone. The plan names what is left out."""


class MasksConfig(pydantic.BaseModel):
    """Pictures that say the class of each pixel, one for each image."""

    model_config = STRICT

    image: str | None = None
    """Regular expression for an image's path below `source.uri`, such as `images/(.*)\\.jpg`; all else is passed over.
    A group `(?P<split>...)` is the split for `split.by: source`."""
    mask: str | None = None
    """Its mask's path, with the groups of `image`, such as `annotations/\\1.png`."""
    missing: Literal["reject", "pass_over"] = "reject"
    """What an image whose mask is not there is: a reject, or passed over, where only some images have masks."""

    @pydantic.model_validator(mode="after")
    def _complete(self) -> MasksConfig:
        if (self.image is None) != (self.mask is None):
            raise ValueError("source.masks.image and source.masks.mask go together")
        if self.image is not None and self.mask is not None:
            mask_files.check_pattern(self.image, self.mask)
        return self

    @property
    def rule(self) -> mask_files.MaskRule | None:
        """Which images have masks, and where; None without masks."""
        return (
            None
            if self.image is None or self.mask is None
            else mask_files.MaskRule(self.image, self.mask, self.missing)
        )


class SourceConfig(pydantic.BaseModel):
    """What is read."""

    model_config = STRICT

    uri: str | None = None
    """Folder, glob, manifest or listing; `--input` on the command line."""
    by: Literal["files", "manifest", "listing", "idx", "coco", "tar", "tfrecord"] = "files"
    """`files` lists a folder and all below it; `manifest` reads a table; `listing` what `plan --save-listing` wrote;
    `idx`, `coco`, `tar` (WebDataset) and `tfrecord` read those formats."""
    include: tuple[str, ...] = ("**/*",)
    """Globs below the folder; an image that matches none is passed over."""
    manifest: ManifestConfig = ManifestConfig()
    """For `by: manifest`."""
    idx: IdxConfig = IdxConfig()
    """For `by: idx`."""
    coco: CocoConfig = CocoConfig()
    """For `by: coco`."""
    tfrecord: TfrecordConfig = TfrecordConfig()
    """For `by: tfrecord`."""
    masks: MasksConfig = MasksConfig()
    """For `by: files` (and a listing saved of it): a picture of classes for each image."""
    reads_ahead: Count = read_ahead.READ_AHEAD.requests
    """Over a network: requests for images under way at once, in each writer process."""
    bytes_ahead: Bytes = pydantic.ByteSize(read_ahead.READ_AHEAD.num_bytes)
    """Bytes of images asked for and not yet written, in each writer process."""

    @pydantic.field_validator("include", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value


class LabelConfig(pydantic.BaseModel):
    """Which class or target an image has."""

    model_config = STRICT

    by: Literal["directory", "filename", "column", "columns", "none"] = "directory"
    """`directory`: label/image (or split/label/image); `filename`: `pattern`; `column` and `columns`: of the manifest;
    `none`."""
    pattern: str | None = None
    """For `by: filename`: a regular expression for the whole file name, with a group `(?P<label>...)`."""
    column: str | None = None
    """For `by: column`: the column of the manifest, the part of a tar's example, the feature of a TFRecord. Cells are
    stripped, and a whole number is one class however it is written: `1`, `1.0` in a CSV, 1.0 in Parquet are `1`."""
    separator: str | None = pydantic.Field(None, min_length=1)
    """For `by: column`: what stands between the labels of an image that may have several, or none."""
    columns: tuple[str, ...] = ()
    """For `by: columns`: columns of 0 (or -1) and 1, one for each class; an image may have several, or none. They are
    the vocabulary, if no other is given."""
    type: Literal["class", "int", "float"] = "class"
    """`class` gives ids by the vocabulary; `int` and `float` store the column's number as it is."""
    base: Annotated[Literal[0, 1], _NotBool] = 0
    """Id of the first class in the records; 1 for other readers, of the 1-based ImageNet convention. imagebeam's own
    reader takes the base away: its labels count from 0."""
    vocabulary: str | None = None
    """Address of a `labels.txt`, one class a line in the order of the ids; left out, `columns`, or the sorted labels
    found. They sort as text, but in a `column` of nothing but integers by value: 2 before 10."""
    unknown: Literal["reject", "error"] = "reject"
    """What a label that is not in `vocabulary` is."""
    texts: str | None = None
    """Address of a file with each class and its text on a line (`n01440764 tench, Tinca tinca`, or with a tab between
    them): image/class/text. A class of the input that is not in it is an error."""
    lists: dict[str, str] = {}
    """For `by: directory`: from a folder below `source.uri` (a split's, as it stands there: `val`) to a file with a
    label on each line, for images directly in it: the number at the end of an image's name is its line, from 1."""

    @pydantic.model_validator(mode="after")
    def _complete(self) -> LabelConfig:
        if self.by == "filename":
            if self.pattern is None:
                raise ValueError("label.by: filename needs label.pattern, such as '(?P<label>cat|dog)\\.\\d+\\.jpg'")
            try:
                groups = re.compile(self.pattern).groupindex
            except re.error as e:
                raise ValueError(f"label.pattern {self.pattern!r} is not a regular expression: {e}") from e
            if "label" not in groups:
                raise ValueError(f"label.pattern {self.pattern!r} has no group named label; write (?P<label>...)")
        if (self.by == "column") != (self.column is not None):
            raise ValueError("label.by: column and label.column go together")
        if (self.by == "columns") != bool(self.columns):
            raise ValueError("label.by: columns and label.columns go together")
        repeated = next((name for name in self.columns if self.columns.count(name) > 1), None)
        if repeated is not None:
            raise ValueError(f"label.columns names {repeated!r} twice; the ids would be ambiguous")
        if self.separator is not None and (self.by != "column" or self.type != "class"):
            raise ValueError("label.separator needs label.by: column and label.type: class")
        if self.lists and self.by != "directory":
            raise ValueError(f"label.lists needs label.by: directory, not {self.by}")
        if self.type != "class" and self.by != "column":
            raise ValueError(f"label.type: {self.type} needs label.by: column")
        if self.by != "filename" and self.pattern is not None:
            raise ValueError(f"label.pattern needs label.by: filename, not {self.by}")
        if self.kind != "class" and (self.base or self.vocabulary is not None or self.texts is not None):
            raise ValueError("label.base, label.vocabulary and label.texts need classes: labels, and label.type: class")
        return self

    @property
    def kind(self) -> str | None:
        """Of the label's feature: "class", "int64", "float", or None without labels."""
        if self.by == "none":
            return None
        return {"class": "class", "int": features_lib.INT64, "float": features_lib.FLOAT}[self.type]

    @property
    def many(self) -> bool:
        """Whether an image may have several classes."""
        return self.separator is not None or bool(self.columns)


class Carve(pydantic.BaseModel):
    """The beginning of a split, that becomes another one."""

    model_config = STRICT

    split: str
    """Where they are taken from."""
    first: Count
    """How many."""


class SplitConfig(pydantic.BaseModel):
    """Which split an image goes to."""

    model_config = STRICT

    by: Literal["directory", "column", "hash", "index", "source", "none"] = "none"
    """`directory`: the first folder; `column`: of the manifest; `hash`: `fractions`; `index`: `counts`; `source`: as
    `source.idx`, `source.coco` and `source.masks` say; `none`: all to one split."""
    name: str = "train"
    """For `by: none`: the one split."""
    column: str | None = None
    """For `by: column`: the manifest's column."""
    fractions: dict[str, Fraction] | None = None
    """For `by: hash`: the share of each split, in sum 1, such as {train: 0.8, test: 0.2}."""
    counts: dict[str, Count | None] | None = None
    """For `by: index`: how many rows of the manifest each split takes, one after the other; null takes the rest."""
    carve: dict[str, Carve] = {}
    """From a split to be made to where its first rows come from, such as {validation: {split: train, first: 1000}}."""
    stratify: bool = False
    """For `by: hash`: shares that are exact to within one image, in each label and over all; growth of the dataset can
    then move images. Groups are not cut, so with `group` each label is exact to within a
    group, and the whole to within a group for each label."""
    group: str | None = None
    """For `by: hash`: a column of the manifest, or a group of `label.pattern`; its images go to one split together."""
    seed: Annotated[int, pydantic.Field(ge=-(2**63), lt=2**63), _NotBool] = 0
    """The salt of every hash: of the split and of the order of records."""
    rename: dict[str, str] = {}
    """From the folder's or column's name to the split's, such as {val: validation}."""
    names: Annotated[tuple[str, ...], pydantic.Field(min_length=1)] | None = None
    """For `by: directory` and `column`, the splits that must be: another is a reject, an empty one an error."""

    @pydantic.model_validator(mode="after")
    def _complete(self) -> SplitConfig:
        if (self.by == "column") != (self.column is not None):
            raise ValueError("split.by: column and split.column go together")
        if (self.by == "hash") != (self.fractions is not None):
            raise ValueError("split.by: hash and split.fractions go together")
        if self.fractions is not None and abs(sum(self.fractions.values()) - 1) > 1e-6:
            raise ValueError(f"split.fractions sum to {sum(self.fractions.values()):g}; they must sum to 1")
        if (self.by == "index") != (self.counts is not None):
            raise ValueError("split.by: index and split.counts go together")
        if self.counts is not None and None in list(self.counts.values())[:-1]:
            raise ValueError("split.counts: null takes the rest, so it can only be the last")
        for name, carve in self.carve.items():
            if name == carve.split:
                raise ValueError(f"split.carve: {name} cannot be taken from itself")
            if self._given is not None and carve.split not in self._given:
                raise ValueError(
                    f"split.carve takes {name} from {carve.split!r}; the splits are {', '.join(self._given)}"
                )
        if self.by != "hash" and (self.stratify or self.group):
            raise ValueError(f"split.stratify and split.group need split.by: hash, not {self.by}")
        if self.by not in ("directory", "column", "source") and (self.rename or self.names):
            raise ValueError(f"split.rename and split.names need split.by: directory, column or source, not {self.by}")
        if self.by != "none" and self.name != SplitConfig.model_fields["name"].default:
            raise ValueError(f"split.name needs split.by: none, not {self.by}")
        for name in (self.name, *self.carve, *(self.declared or ()), *self.rename.values()):
            if not shard_names.SPLIT_NAME.fullmatch(name):
                raise ValueError(f"split name {name!r} is not made of letters, digits, '_', '.' and '-'")
        return self

    @property
    def declared(self) -> tuple[str, ...] | None:
        """The splits known before the input is listed; None if the input tells."""
        return None if self._given is None else (*self._given, *self.carve)

    @property
    def _given(self) -> tuple[str, ...] | None:
        """The same, without those that `carve` makes."""
        if self.by == "none":
            return (self.name,)
        return next((tuple(given) for given in (self.fractions, self.counts, self.names) if given is not None), None)


class ImageConfig(pydantic.BaseModel):
    """What is checked and stored of an image."""

    model_config = STRICT

    encode: Literal["keep", "jpeg", "png", "raw", "int64_list", "float_list"] = "keep"
    """`keep` stores the file's own bytes; `jpeg` and `png` encode anew; `raw` stores pixels as uint8 bytes,
    `int64_list` and `float_list` as numbers from 0 to 255: rows from the top, pixels from the left, their channels.
    All but `keep` also take GIF, BMP, WebP, TIFF, PPM, AVIF and JPEG 2000 (the first picture), and turn images upright
    as their EXIF data say, unless there are boxes or masks (`source.coco`, `source.masks`)."""
    quality: Annotated[int, pydantic.Field(ge=1, le=100), _NotBool] = 95
    """For `encode: jpeg`."""
    color: Literal["keep", "rgb", "gray", "mean"] = "keep"
    """`rgb` is three channels, `gray` luma (ITU-R 601), `mean` the mean of the three channels, rounded down; `keep`
    leaves gray, RGB and alpha (but for `encode: jpeg`), and makes RGB of the rest."""
    resize: tuple[Count, Count] | None = None
    """Height and width in pixels, whatever the aspect ratio was; bicubic."""
    shortest_side: Count | None = None
    """Pixels of the shorter side; the aspect ratio stays, and smaller images do too."""
    check: Literal["structure", "decode"] = "structure"
    """`structure` walks JPEG and PNG to their end without decoding; `decode` also decodes every pixel."""

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> ImageConfig:
        changes = {
            "color": self.color != "keep",
            "resize": self.resize is not None,
            "shortest_side": self.shortest_side is not None,
        }
        changed = [f"image.{name}" for name, is_set in changes.items() if is_set]
        if self.encode == "keep" and changed:
            raise ValueError(
                f"{' and '.join(changed)} cannot go with image.encode: keep, which stores the file's own bytes; "
                "set image.encode: jpeg, png, raw, int64_list or float_list"
            )
        if self.resize is not None and self.shortest_side is not None:
            raise ValueError("image.resize and image.shortest_side contradict each other; give one")
        if self.resize is not None and math.prod(self.resize) > MAX_RESIZED_PIXELS:
            raise ValueError(
                f"image.resize: {' x '.join(map(str, self.resize))} are more than {MAX_RESIZED_PIXELS:,} pixels"
            )
        if self.quality != ImageConfig.model_fields["quality"].default and self.encode != "jpeg":
            raise ValueError(f"image.quality needs image.encode: jpeg, not {self.encode}")
        return self


_OPTIONS_OF_TRANSFORMS = {"buckets": "bucketize", "top_k": "vocabulary", "num_oov_buckets": "vocabulary"}


class ColumnConfig(pydantic.BaseModel):
    """A column of the manifest that becomes a feature."""

    model_config = STRICT

    type: Literal["string", "int", "float"] = "string"
    """Of the column's values, and of the stored feature where no transform gives another. `float` is 32 bits, about
    seven digits: give longer integers `int`."""
    list: bool = False
    """Whether an image has any number of values: a list in JSON and Parquet, `separator` between them in text."""
    separator: str | None = pydantic.Field(None, min_length=1)
    """Between the values of a list in text."""
    missing: Literal["reject", "error", "default"] = "reject"
    """What an empty value, or one not of the type, becomes: its image a reject, the run an error, or `default`."""
    default: Annotated[int | float | str | None, _NotBool] = None
    """For `missing: default`."""
    transform: Literal["z_score", "scale_0_1", "log", "bucketize", "vocabulary"] | None = None
    """By tf.Transform, from all values of the splits in `statistics.analyze`: mean 0 and deviation 1; 0 to 1; the
    natural logarithm (of values above 0, others are `missing`); the number of one of `buckets` quantiles; the id among
    the `top_k` most frequent strings."""
    buckets: Annotated[int, pydantic.Field(ge=2), _NotBool] = 10
    """For `transform: bucketize`."""
    top_k: Count | None = None
    """For `transform: vocabulary`: how many strings get an id; left out, all."""
    num_oov_buckets: Annotated[int, pydantic.Field(ge=0), _NotBool] = 0
    """For `transform: vocabulary`: ids for strings beyond those, by hash; with 0 they get -1."""

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> ColumnConfig:
        if (self.missing == "default") != (self.default is not None):
            raise ValueError("columns: missing: default and default go together")
        if self.default is not None and self.type != "string":
            try:
                table_rows.parse_number(
                    features_lib.INT64 if self.type == "int" else features_lib.FLOAT, str(self.default)
                )
            except ValueError as e:
                raise ValueError(f"columns: default of type: {self.type}: {e}") from e
        if self.transform == "vocabulary" and self.type != "string":
            raise ValueError(f"columns: transform: vocabulary is for type: string, not {self.type}")
        if self.transform not in (None, "vocabulary") and self.type == "string":
            raise ValueError(f"columns: transform: {self.transform} is for numbers; give type: float or int")
        for option, wanted in _OPTIONS_OF_TRANSFORMS.items():
            if option in self.model_fields_set and self.transform != wanted:
                raise ValueError(f"columns: {option} is for transform: {wanted}, not {self.transform or 'none'}")
        if self.transform == "log" and isinstance(self.default, (int, float)) and self.default <= 0:
            raise ValueError(f"columns: default {self.default!r} has no logarithm; give one above 0")
        if self.list and self.transform is not None:
            raise ValueError("columns: transform is for single values, not for a list")
        if self.separator is not None and not self.list:
            raise ValueError("columns: separator needs list: true")
        if self.list and self.default is not None:
            raise ValueError("columns: missing: default is for single values; a list may hold none")
        return self


_COMPRESSED = frozenset({".gz", ".gzip", ".bz2", ".xz", ".z", ".zlib", ".zst", ".zip"})


class OutputConfig(pydantic.BaseModel):
    """How the dataset is laid out."""

    model_config = STRICT

    uri: str | None = None
    """Folder of the dataset; `--output` on the command line."""
    name: str | None = pydantic.Field(None, pattern=r"^[a-zA-Z]\w*$")
    """Name of the dataset in the catalog and for TFDS; left out, made from the folder's name."""
    num_shards: CountBySplit | None = None
    """Shards of every split, or by split."""
    target_shard_bytes: Bytes | None = None
    """Bytes of images in a shard, such as 128MiB: gives the number of shards."""
    examples_per_shard: Count | None = None
    """Most records in a shard: gives the number of shards."""
    compression: Literal["none", "gzip"] = "none"
    """`gzip` costs time, wins little on JPEG, and TFDS cannot read it."""
    shuffle: Literal["hash", "none"] = "hash"
    """`hash` orders records by the hash of their keys; `none` by key, or by row of the manifest."""
    writer: Literal["stream", "beam"] = "stream"
    """`beam` is plain `beam.io.WriteToTFRecord`: order and shard content then differ from run to run."""
    suffix: str = pydantic.Field(".tfrecord", pattern=r"^(\.[\w.-]+)?$")
    """After train-00000-of-00016; empty for the naming of the TPU models."""

    @pydantic.field_validator("suffix", mode="before")
    @classmethod
    def _nothing_is_empty(cls, value: Any) -> Any:
        """YAML has nothing for `suffix:`, and `--set output.suffix=` gives that, too."""
        return "" if value is None else value

    @pydantic.model_validator(mode="after")
    def _suffix_tells_compression(self) -> OutputConfig:
        stem, dot, last = self.suffix.rpartition(".")
        if dot + last.lower() in _COMPRESSED:
            remedy = (
                f"output.compression: gzip adds .gz itself, so set output.suffix: {stem or chr(34) * 2}"
                if self.compression == "gzip"
                else "readers would take the shards for compressed; leave it out, or set output.compression: gzip, "
                "which adds .gz itself"
            )
            raise ValueError(f"output.suffix {self.suffix!r} is of compressed files: {remedy}")
        return self

    @pydantic.model_validator(mode="after")
    def _one_size(self) -> OutputConfig:
        given = [
            name
            for name in ("num_shards", "target_shard_bytes", "examples_per_shard")
            if getattr(self, name) is not None
        ]
        if len(given) > 1:
            raise ValueError(f"output.{' and output.'.join(given)} contradict each other; give one")
        if self.target_shard_bytes is not None and self.target_shard_bytes < 1:
            raise ValueError("output.target_shard_bytes must be at least 1")
        return self


class StatisticsConfig(pydantic.BaseModel):
    """What `statistics.json` says beyond counts."""

    model_config = STRICT

    pixels: bool = False
    """Whether every image is decoded for the mean and standard deviation of each channel, for `normalize="dataset"`: of
    all pixels as they are stored, 0 to 255, without alpha. An image that cannot be decoded is a reject."""
    analyze: Literal["train", "all"] = "train"
    """Which splits tf.Transform looks at for the transforms of `columns`: that named train, or all of them."""


class RejectsConfig(pydantic.BaseModel):
    """How many images may be turned away."""

    model_config = STRICT

    max_fraction: Annotated[float, pydantic.Field(ge=0, le=1), _NotBool] = 0.01
    """Of the listed images; above it nothing is committed and the exit code is 3."""
