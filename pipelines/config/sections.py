"""The sections of a config on labels, splits, columns and features: every key with its default and its meaning.

Each section is checked as far as it can be alone. The types of values that all sections use come first.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

import pydantic

from imagebeam import features, records
from imagebeam.transforms import user_code
from imagebeam.transforms.formats import base_format
from imagebeam.transforms.sources import listing_rules, table_rows

# Without use_attribute_docstrings, which parses the source of every model on import (0.1 s): `schema` reads them.
STRICT = pydantic.ConfigDict(extra="forbid", frozen=True, validate_default=True)

KINDS: Mapping[str, str] = {"string": features.BYTES, "int": features.INT64, "float": features.FLOAT}


class Field(NamedTuple):
    """A field of a section: of a pydantic model, or of the dataclass of a format."""

    kind: Any
    default: Any


def fields_of(section: Any) -> dict[str, Field]:
    """Returns the fields of a section by name; none of what is no section."""
    if isinstance(section, type) and issubclass(section, pydantic.BaseModel):
        return {name: Field(field.annotation, field.default) for name, field in section.model_fields.items()}
    if not (isinstance(section, type) and dataclasses.is_dataclass(section)):
        return {}
    kinds, defaults = typing.get_type_hints(section), section()
    return {each.name: Field(kinds[each.name], getattr(defaults, each.name)) for each in dataclasses.fields(section)}


NotBool = base_format.NOT_BOOL
Bytes = Annotated[pydantic.ByteSize, NotBool, pydantic.AfterValidator(int)]  # which a process without pydantic takes
Fraction = Annotated[float, pydantic.Field(gt=0, lt=1), NotBool]
Count = base_format.Count


class FunctionConfig(pydantic.BaseModel):
    """A function of the user."""

    model_config = STRICT

    function: Annotated[str, pydantic.Field(min_length=1)]
    """Its import path, such as `my_package.faces:crop`. It may be a class: then an instance is called, which is made
    once in each process, and whose method `setup`, if it has one, is called before. See docs/own_code.md."""
    options: dict[str, Any] = {}
    """Keyword arguments of each call; of a class, for making the instance."""
    version: Annotated[str, pydantic.Field(min_length=1, coerce_numbers_to_str=True)] | None = None
    """Version of the function: with another one, the dataset is another one. Without it, a digest of the source of the
    function's module counts, but not of other modules that it imports."""


class FeatureFunctionConfig(FunctionConfig):
    """A function of the user that computes a feature."""

    type: Literal["string", "int", "float"] = "float"
    """Type of the values. `float` has 32 bits."""
    shape: tuple[Count, ...] = ()
    """Shape of the values of each image, such as [512]; without it one value."""
    batch: Count = 32
    """Number of images in a call; fewer at the end of a shard, and where their pixels are more than 256 MB."""
    run_inference: bool = False
    """If true, the function is called by Beam's RunInference in a step of its own, which runners can give workers with
    accelerators, and not by the writers of shards. Then the runner decides which images are in a call, an image that
    kills the process or hangs is not isolated, and each image is decoded twice."""


class FeaturesConfig(pydantic.BaseModel):
    """The features of every example."""

    model_config = pydantic.ConfigDict(**{**STRICT, "extra": "allow"})
    __pydantic_extra__: dict[str, Annotated[str, pydantic.Field(min_length=1)] | None]

    functions: dict[str, FeatureFunctionConfig] = {}
    """Features that functions of yours compute, by their keys, such as image/embedding. A function gets a list of
    images, uint8 [height, width, channels] as they are stored, and a list of as many `imagebeam.Reference`; it returns
    one array for each image."""

    @property
    def renamed(self) -> dict[str, str | None]:
        """The keys to write, by standard key; None for a feature that is dropped."""
        return self.__pydantic_extra__

    def computed(self) -> tuple[features.Feature, ...]:
        """Returns the features that functions compute."""
        return tuple(
            features.Feature(key, f"{features.COMPUTED}{key}", KINDS[each.type], bool(each.shape), each.shape or None)
            for key, each in self.functions.items()
        )


Function = Annotated[
    Annotated[str, pydantic.Tag("(one)")] | Annotated[FunctionConfig, pydantic.Tag("(all)")],
    pydantic.Discriminator(lambda value: "(one)" if isinstance(value, str) else "(all)"),
]


def code_of(setting: str, given: str | FunctionConfig | None) -> user_code.UserCode | None:
    """Returns the function that a key of a config names; None if it names none.

    Raises:
        ConfigError: if there is no such function.
    """
    if given is None:
        return None
    one = FunctionConfig(function=given) if isinstance(given, str) else given
    return user_code.find(setting, one.function, one.options, one.version)


class LabelConfig(pydantic.BaseModel):
    """The class or target of an image."""

    model_config = STRICT

    by: Literal["directory", "filename", "column", "columns", "function", "none"] = "directory"
    """Where the label comes from. `directory`: the folder, label/image (or split/label/image); `filename`: `pattern`;
    `column` and `columns`: the manifest; `function`: code of yours; `none`: no labels."""
    function: Function | None = None
    """For `by: function`: import path of a function that gets an `imagebeam.Reference` (key, address, columns) and
    returns the label: a text or a number, with `type: classes` a tuple of texts, or None for an image without one,
    which is a reject."""
    pattern: str | None = None
    """For `by: filename`: a regular expression for the whole file name, with a group `(?P<label>...)`."""
    column: str | None = None
    """For `by: column`: the column of the manifest, the group of `source.pattern`, the part of a tar's example, the
    feature of a TFRecord. Cells are stripped, and a whole number is one class in any notation: `1`, `1.0` in a CSV, 1.0
    in Parquet are `1`."""
    separator: str | None = pydantic.Field(None, min_length=1)
    """For `by: column`: separator between the labels, where an image may have several labels or none."""
    columns: tuple[str, ...] = ()
    """For `by: columns`: columns of 0 (or -1) and 1, one for each class; an image may have several classes or none. The
    columns are the vocabulary unless another one is given."""
    type: Literal["class", "classes", "int", "float"] = "class"
    """`class` stores ids from the vocabulary; `int` and `float` store the column's number unchanged. `classes` is for
    `by: function`: an image may have several classes or none."""
    base: Annotated[Literal[0, 1], NotBool] = 0
    """Id of the first class in the records; 1 for other readers that follow the 1-based ImageNet convention.
    imagebeam's own reader subtracts the base: its labels count from 0."""
    vocabulary: str | None = None
    """Address of a `labels.txt` with one class per line in the order of the ids. Default: `columns`, or the sorted
    labels found. Labels are sorted as text; in a `column` that holds only integers, by value: 2 before 10."""
    unknown: Literal["reject", "error"] = "reject"
    """What to do with a label that is not in `vocabulary`."""
    texts: str | None = None
    """Address of a file with one class and its text per line (`n01440764 tench, Tinca tinca`, or with a tab between
    them), stored as image/class/text. A class of the input that is missing in it is an error."""
    lists: dict[str, str] = {}
    """For `by: directory`: from a folder below `source.uri` (a split's, under its name there: `val`) to a file with one
    label per line, for images directly in that folder: the number at the end of an image's name is its line, from 1."""

    @pydantic.model_validator(mode="after")
    def _complete(self) -> LabelConfig:
        if self.by == "filename":
            if self.pattern is None:
                raise ValueError("label.by: filename needs label.pattern, such as '(?P<label>cat|dog)\\.\\d+\\.jpg'")
            if "label" not in listing_rules.compile_pattern("label.pattern", self.pattern).groupindex:
                raise ValueError(f"label.pattern {self.pattern!r} has no group named label; write (?P<label>...)")
        for by, named in (("column", self.column), ("columns", self.columns), ("function", self.function)):
            if (self.by == by) != (named not in (None, ())):
                raise ValueError(f"label.by: {by} and label.{by} go together")
        repeated = next((name for name in self.columns if self.columns.count(name) > 1), None)
        if repeated is not None:
            raise ValueError(f"label.columns names {repeated!r} twice; the ids would be ambiguous")
        if self.separator is not None and (self.by != "column" or self.type != "class"):
            raise ValueError("label.separator needs label.by: column and label.type: class")
        if self.lists and self.by != "directory":
            raise ValueError(f"label.lists needs label.by: directory, not {self.by}")
        if self.type == "classes" and self.by != "function":
            raise ValueError("label.type: classes needs label.by: function; with columns see label.separator")
        if self.type != "class" and self.by not in ("column", "function"):
            raise ValueError(f"label.type: {self.type} needs label.by: column or function")
        if self.by != "filename" and self.pattern is not None:
            raise ValueError(f"label.pattern needs label.by: filename, not {self.by}")
        if self.kind != "class" and (self.base or self.vocabulary is not None or self.texts is not None):
            raise ValueError("label.base, label.vocabulary and label.texts need classes: labels, and label.type: class")
        return self

    @property
    def kind(self) -> str | None:
        """Kind of the label's feature: "class", "int64", "float", or None without labels."""
        if self.by == "none":
            return None
        return KINDS.get(self.type, "class")

    @property
    def many(self) -> bool:
        """True if an image may have several classes."""
        return self.separator is not None or bool(self.columns) or self.type == "classes"


class Holdout(pydantic.BaseModel):
    """Rows at the beginning of a split that become another split."""

    model_config = STRICT

    split: str
    """The split to take rows from."""
    first: Count
    """How many rows to take."""


class SplitConfig(pydantic.BaseModel):
    """The split of an image."""

    model_config = STRICT

    by: Literal["directory", "column", "hash", "index", "lists", "table", "source", "none"] = "none"
    """Where the split comes from. `directory`: the first folder; `column`: the manifest, or `source.pattern`; `hash`:
    `fractions`; `index`: `counts`; `lists`: `lists`; `table`: the manifest's name without extension, for several
    (train.csv, valid.csv); `source`: `source.idx`, `source.arrays`, `source.coco`, `source.yolo`, `source.voc`,
    `source.labelme`, `source.box_csv` or `source.masks`; `none`: all images go to one split."""
    name: str = "train"
    """For `by: none`: name of the only split."""
    column: str | None = None
    """For `by: column`: the manifest's column, or a group of `source.pattern`."""
    fractions: dict[str, Fraction] | None = None
    """For `by: hash`: the share of each split; the shares sum to 1, such as {train: 0.8, test: 0.2}."""
    counts: dict[str, Count | None] | None = None
    """For `by: index`: how many rows of the manifest each split takes, in this order; null takes the rest."""
    lists: dict[str, str | tuple[str, ...]] = {}
    """For `by: lists`: from a split to a text file below `source.uri` that names its images, or several; one image a
    line, by the end of its path, with or without the extension. What follows a blank in a line may be anything; lines
    that begin with # are left out. An image in the lists of two splits is a reject."""
    unlisted: Literal["leave_out", "reject"] = "leave_out"
    """For `by: lists`: what to do with an image in no list: leave it out and count it as `not_in_lists`, or reject."""
    holdout: dict[str, Holdout] = {}
    """New splits made of the first rows of others, such as {validation: {split: train, first: 1000}}."""
    stratify: bool = False
    """For `by: hash`: makes the shares exact to within one image, in each label and in total; then images can change
    their split when the dataset grows. Groups stay whole, so with `group` each label is exact to within one group, and
    the total to within one group per label."""
    group: str | None = None
    """For `by: hash`: a column of the manifest, or a group of `label.pattern` or `source.pattern`. Images with the
    same value, such as slices of one patient or frames of one video, go to the same split."""
    seed: Annotated[int, pydantic.Field(ge=-(2**63), lt=2**63), NotBool] = 0
    """Salt of every hash: for the split and for the order of records."""
    rename: dict[str, str] = {}
    """From the name in the folder or column to the split's name, such as {val: validation}."""
    names: Annotated[tuple[str, ...], pydantic.Field(min_length=1)] | None = None
    """For `by: directory`, `column` and `table`: the splits that must exist. An image of another split is a reject; an
    empty split is an error."""

    @pydantic.model_validator(mode="after")
    def _complete(self) -> SplitConfig:
        for by, name, example in (
            ("column", "column", ""),
            ("hash", "fractions", "{train: 0.9, test: 0.1}"),
            ("lists", "lists", ""),
            ("index", "counts", "{train: 900, test: null}"),
        ):
            if (self.by == by) != (getattr(self, name) not in (None, {})):
                such_as = f", such as split.{name}: {example}" if example else ""
                raise ValueError(f"split.by: {by} and split.{name} go together{such_as}")
        if self.fractions is not None and abs(sum(self.fractions.values()) - 1) > 1e-6:
            raise ValueError(f"split.fractions sum to {sum(self.fractions.values()):g}; they must sum to 1")
        if self.by != "lists" and self.unlisted != "leave_out":
            raise ValueError(f"split.unlisted needs split.by: lists, not {self.by}")
        if self.counts is not None and None in list(self.counts.values())[:-1]:
            raise ValueError("split.counts: null takes the rest, so it can only be the last")
        for name, holdout in self.holdout.items():
            if name == holdout.split:
                raise ValueError(f"split.holdout: {name} cannot be taken from itself")
            if self._given is not None and holdout.split not in self._given:
                raise ValueError(
                    f"split.holdout takes {name} from {holdout.split!r}; the splits are {', '.join(self._given)}"
                )
        if self.by != "hash" and (self.stratify or self.group):
            raise ValueError(f"split.stratify and split.group need split.by: hash, not {self.by}")
        if self.by not in ("directory", "column", "table", "source") and (self.rename or self.names):
            raise ValueError(
                f"split.rename and split.names need split.by: directory, column, table or source, not {self.by}"
            )
        if self.by != "none" and self.name != SplitConfig.model_fields["name"].default:
            raise ValueError(f"split.name needs split.by: none, not {self.by}")
        for name in (self.name, *self.holdout, *(self.declared or ()), *self.rename.values()):
            if not records.SPLIT_NAME.fullmatch(name):
                raise ValueError(f"split name {name!r} must consist of letters, digits, '_', '.' and '-'")
        return self

    @property
    def declared(self) -> tuple[str, ...] | None:
        """Names of the splits, if known before the input is listed; None if the input decides."""
        return None if self._given is None else (*self._given, *self.holdout)

    @property
    def _given(self) -> tuple[str, ...] | None:
        """The same, without the splits that `holdout` makes."""
        if self.by == "none":
            return (self.name,)
        if self.lists:
            return tuple(self.lists)
        return next((tuple(given) for given in (self.fractions, self.counts, self.names) if given is not None), None)


_OPTIONS_OF_TRANSFORMS = {"buckets": "bucketize", "top_k": "vocabulary", "num_oov_buckets": "vocabulary"}


class ColumnConfig(pydantic.BaseModel):
    """A column of the manifest that becomes a feature."""

    model_config = STRICT

    type: Literal["string", "int", "float"] = "string"
    """Type of the column's values, and of the stored feature unless a transform changes it. `float` has 32 bits, about
    seven digits: use `int` for longer integers."""
    list: bool = False
    """If true, an image has a list of values: a list in JSON and Parquet, values with `separator` between them in
    text."""
    separator: str | None = pydantic.Field(None, min_length=1)
    """Separator between the values of a list in text."""
    first: str | None = None
    """For `list: true`, of a table: the name of the first of the columns whose values are the list, in the order of the
    table, as `x1` of `x1,y1,x2,y2`."""
    last: str | None = None
    """The name of the last of these columns."""
    missing: Literal["reject", "error", "default"] = "reject"
    """What to do with an empty value or one of another type: reject the image, end the run with an error, or store
    `default`."""
    default: Annotated[int | float | str | None, NotBool] = None
    """The value for `missing: default`."""
    transform: Literal["z_score", "scale_0_1", "log", "bucketize", "vocabulary"] | None = None
    """Computed by tf.Transform from all values of the splits in `statistics.analyze`. `z_score`: mean 0 and deviation
    1; `scale_0_1`: 0 to 1; `log`: natural logarithm (values not above 0 are `missing`); `bucketize`: the number of the
    quantile, of `buckets`; `vocabulary`: the id among the `top_k` most frequent strings."""
    buckets: Annotated[int, pydantic.Field(ge=2), NotBool] = 10
    """For `transform: bucketize`: number of quantiles."""
    top_k: Count | None = None
    """For `transform: vocabulary`: how many strings get an id; by default all."""
    num_oov_buckets: Annotated[int, pydantic.Field(ge=0), NotBool] = 0
    """For `transform: vocabulary`: number of ids for all other strings, chosen by hash; with 0 they get -1."""

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> ColumnConfig:
        if (self.missing == "default") != (self.default is not None):
            raise ValueError("columns: missing: default and default go together")
        if self.default is not None and self.type != "string":
            try:
                table_rows.parse_number(self.kind, str(self.default))
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
        if (self.first is None) != (self.last is None) or (self.first is not None and not self.list):
            raise ValueError("columns: first and last go together, and need list: true")
        if self.first is not None and self.separator is not None:
            raise ValueError("columns: separator is for a list in one text, and first and last name several columns")
        if self.list and self.default is not None:
            raise ValueError("columns: missing: default is for single values; a list may hold none")
        return self

    @property
    def kind(self) -> str:
        """Kind of the raw values: bytes, int64 or float."""
        return KINDS[self.type]
