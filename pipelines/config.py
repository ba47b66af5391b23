"""The config of a job: YAML or a preset's name, overrides on top, checked before any work."""

from __future__ import annotations

import difflib
import importlib.resources
import os
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import pydantic
import yaml

from imagebeam import errors, shards, storage
from imagebeam import features as features_lib
from transforms import fetch

_STRICT = pydantic.ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True)

Fraction = Annotated[float, pydantic.Field(gt=0, lt=1)]
Count = Annotated[int, pydantic.Field(ge=1)]
Key = Annotated[str, pydantic.Field(min_length=1)]
# Told apart by what was given, so that an error speaks of that alone.
CountBySplit = Annotated[
    Annotated[Count, pydantic.Tag("(one)")] | Annotated[dict[str, Count], pydantic.Tag("(by split)")],
    pydantic.Discriminator(lambda value: "(by split)" if isinstance(value, Mapping) else "(one)"),
]


class ManifestConfig(pydantic.BaseModel):
    """A table with one row for each image."""

    model_config = _STRICT

    path: str | None = None
    """Address of the table, relative to `source.uri`; left out, `source.uri` is the table itself."""
    format: Literal["csv", "jsonl", "parquet"] | None = None
    """Left out, the file's extension tells."""
    image: str = "image"
    """Column with the image's path, relative to the manifest's folder."""
    key: str | None = None
    """Column with the stable id; left out, the path is the key."""
    allow_outside: bool = False
    """Whether paths may lead out of the manifest's folder (`..`, absolute, another scheme); else they are rejects."""


class SourceConfig(pydantic.BaseModel):
    """What is read."""

    model_config = _STRICT

    uri: str | None = None
    """Folder, glob, manifest or listing; `--input` on the command line."""
    by: Literal["files", "manifest", "listing"] = "files"
    """`files` lists a folder and all below it; `manifest` reads a table; `listing` what `plan --save-listing` wrote."""
    include: tuple[str, ...] = ("**/*",)
    """Globs below the folder; an image that matches none is passed over."""
    manifest: ManifestConfig = ManifestConfig()
    """For `by: manifest`."""
    reads_ahead: Count = fetch.READ_AHEAD.requests
    """Over a network: requests for images under way at once, in each writer process."""
    bytes_ahead: pydantic.ByteSize = pydantic.ByteSize(fetch.READ_AHEAD.num_bytes)
    """Bytes of images asked for and not yet written, in each writer process."""

    @pydantic.field_validator("include", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value


class LabelConfig(pydantic.BaseModel):
    """Which class or target an image has."""

    model_config = _STRICT

    by: Literal["directory", "filename", "column", "none"] = "directory"
    """`directory`: label/image (or split/label/image); `filename`: `pattern`; `column`: of the manifest; `none`."""
    pattern: str | None = None
    """For `by: filename`: a regular expression for the whole file name, with a group `(?P<label>...)`."""
    column: str | None = None
    """For `by: column`: the manifest's column."""
    type: Literal["class", "int", "float"] = "class"
    """`class` gives ids by the vocabulary; `int` and `float` store the column's number as it is."""
    base: Literal[0, 1] = 0
    """Id of the first class; 1 for readers of the 1-based ImageNet convention."""
    vocabulary: str | None = None
    """Address of a `labels.txt`, one class a line in the order of the ids; left out, the sorted labels found."""
    unknown: Literal["reject", "error"] = "reject"
    """What a label that is not in `vocabulary` is."""

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
        if self.type != "class" and self.by != "column":
            raise ValueError(f"label.type: {self.type} needs label.by: column")
        if self.by != "filename" and self.pattern is not None:
            raise ValueError(f"label.pattern needs label.by: filename, not {self.by}")
        if self.kind != "class" and (self.base or self.vocabulary is not None):
            raise ValueError("label.base and label.vocabulary need classes: labels, and label.type: class")
        return self

    @property
    def kind(self) -> str | None:
        """Of the label's feature: "class", "int64", "float", or None without labels."""
        if self.by == "none":
            return None
        return {"class": "class", "int": features_lib.INT64, "float": features_lib.FLOAT}[self.type]


class SplitConfig(pydantic.BaseModel):
    """Which split an image goes to."""

    model_config = _STRICT

    by: Literal["directory", "column", "hash", "none"] = "none"
    """`directory`: the first folder; `column`: of the manifest; `hash`: `fractions`; `none`: all to one split."""
    name: str = "train"
    """For `by: none`: the one split."""
    column: str | None = None
    """For `by: column`: the manifest's column."""
    fractions: dict[str, Fraction] | None = None
    """For `by: hash`: the share of each split, in sum 1, such as {train: 0.8, test: 0.2}."""
    stratify: bool = False
    """For `by: hash`: exact shares inside each label, by rank; growth of the dataset can then move images."""
    group: str | None = None
    """For `by: hash`: a column of the manifest, or a group of `label.pattern`; its images go to one split together."""
    seed: int = pydantic.Field(0, ge=-(2**63), lt=2**63)
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
        if self.by != "hash" and (self.stratify or self.group):
            raise ValueError(f"split.stratify and split.group need split.by: hash, not {self.by}")
        if self.by not in ("directory", "column") and (self.rename or self.names):
            raise ValueError(f"split.rename and split.names need split.by: directory or column, not {self.by}")
        if self.by != "none" and self.name != SplitConfig.model_fields["name"].default:
            raise ValueError(f"split.name needs split.by: none, not {self.by}")
        for name in (self.name, *(self.fractions or {}), *(self.names or ()), *self.rename.values()):
            if not shards.SPLIT_NAME.fullmatch(name):
                raise ValueError(f"split name {name!r} is not made of letters, digits, '_', '.' and '-'")
        return self

    @property
    def declared(self) -> tuple[str, ...] | None:
        """The splits known before the input is listed; None if the input tells."""
        if self.fractions is not None:
            return tuple(self.fractions)
        return (self.name,) if self.by == "none" else self.names


class ImageConfig(pydantic.BaseModel):
    """What is checked and stored of an image."""

    model_config = _STRICT

    encode: Literal["keep"] = "keep"
    """`keep` stores the file's own bytes."""
    check: Literal["structure", "decode"] = "structure"
    """`structure` walks JPEG and PNG to their end without decoding; `decode` also decodes every pixel."""


class ColumnConfig(pydantic.BaseModel):
    """A column of the manifest that becomes a feature."""

    model_config = _STRICT

    type: Literal["string", "int", "float"] = "string"
    """Of the stored feature; a value that cannot be read as this type makes its image a reject."""


class OutputConfig(pydantic.BaseModel):
    """How the dataset is laid out."""

    model_config = _STRICT

    uri: str | None = None
    """Folder of the dataset; `--output` on the command line."""
    name: str | None = pydantic.Field(None, pattern=r"^[a-zA-Z]\w*$")
    """Name of the dataset in the catalog and for TFDS; left out, made from the folder's name."""
    num_shards: CountBySplit | None = None
    """Shards of every split, or by split."""
    target_shard_bytes: pydantic.ByteSize | None = None
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


class RejectsConfig(pydantic.BaseModel):
    """How many images may be turned away."""

    model_config = _STRICT

    max_fraction: float = pydantic.Field(0.01, ge=0, le=1)
    """Of the listed images; above it nothing is committed and the exit code is 3."""


class Config(pydantic.BaseModel):
    """A whole job."""

    model_config = _STRICT

    source: SourceConfig = SourceConfig()
    label: LabelConfig = LabelConfig()
    split: SplitConfig = SplitConfig()
    image: ImageConfig = ImageConfig()
    columns: dict[str, ColumnConfig] = {}
    """Columns of the manifest that become features, by name."""
    features: dict[str, Key | None] = {}
    """From a standard key to the key to write; null drops it."""
    output: OutputConfig = OutputConfig()
    rejects: RejectsConfig = RejectsConfig()

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Config:
        if self.source.by != "manifest":
            for name, used in (
                ("label.by: column", self.label.by == "column"),
                ("split.by: column", self.split.by == "column"),
                ("columns", bool(self.columns)),
                ("source.manifest", self.source.manifest != ManifestConfig()),
            ):
                if used:
                    raise ValueError(f"{name} needs source.by: manifest, not {self.source.by}")
        if self.source.by != "files" and self.source.include != SourceConfig().include:
            raise ValueError(f"source.include needs source.by: files, not {self.source.by}")
        group = self.split.group
        if self.source.by != "manifest" and group and f"(?P<{group}>" not in (self.label.pattern or ""):
            raise ValueError(f"split.group {group!r} is neither a manifest's column nor a group of label.pattern")
        if self.split.stratify and self.label.kind != "class":
            raise ValueError("split.stratify needs classes: label.by directory, filename or column, label.type class")
        shards = self.output.num_shards
        splits = self.split.declared
        unknown = sorted(set(shards) - set(splits)) if isinstance(shards, dict) and splits is not None else []
        if unknown:
            raise ValueError(f"output.num_shards names {', '.join(unknown)}, the splits are {', '.join(splits or ())}")
        if self.output.writer == "beam":
            declared = set(self.split.declared or ())
            if not declared or shards is None or (isinstance(shards, dict) and declared - set(shards)):
                raise ValueError(
                    "output.writer: beam needs output.num_shards of every split, and known splits (split.names)"
                )
            if self.output.shuffle == "none":
                raise ValueError("output.writer: beam cannot keep an order; output.shuffle: none needs writer: stream")
        self.resolve_features()
        return self

    def resolve_features(self) -> tuple[features_lib.Feature, ...]:
        """The features of every example."""
        kinds = {"string": features_lib.BYTES, "int": features_lib.INT64, "float": features_lib.FLOAT}
        columns = {name: kinds[column.type] for name, column in self.columns.items()}
        return features_lib.resolve_features(self.features, self.label.kind, columns)

    def identity(self) -> dict[str, Any]:
        """The part of the config that decides what the shards hold: equal for a moved input or output.

        What the manifest and the vocabulary hold counts elsewhere, in the fingerprint. Defaults are left out, so that a
        new option changes no fingerprint.
        """
        exclude: Any = {"label": {"vocabulary"}, "output": {"uri", "name"}, "rejects": True}
        exclude["source"] = {"uri": True, "manifest": {"path"}, "reads_ahead": True, "bytes_ahead": True}
        if self.source.by == "listing":  # the same images as those of the folder
            exclude["source"] = True
        return _without_empty(self.model_dump(mode="json", exclude=exclude, exclude_defaults=True))


def _without_empty(fields: dict[str, Any]) -> dict[str, Any]:
    """`fields` without the mappings that hold nothing, at any depth."""
    kept = {name: _without_empty(value) if isinstance(value, dict) else value for name, value in fields.items()}
    return {name: value for name, value in kept.items() if value != {}}


def load_config(name: str | None = None, overrides: Sequence[str] = ()) -> Config:
    """The config in a YAML file or preset, with `overrides` on top.

    Args:
        name: path of a YAML file, or the name of a preset; None is all defaults.
        overrides: texts `section.key=value`, the value in YAML.

    Raises:
        ConfigError: if anything in it is not as expected.
    """
    fields = _read_yaml(name) if name is not None else {}
    for override in overrides:
        _apply(fields, override)
    return parse_config(fields, where=name or "the command line")


def parse_config(fields: Mapping[str, Any], where: str) -> Config:
    """The config that `fields` describe.

    Raises:
        ConfigError: naming every wrong key and value.
    """
    try:
        return Config.model_validate(fields)
    except pydantic.ValidationError as e:
        lines = [_explain(error) for error in e.errors(include_url=False)]
        raise errors.ConfigError(f"config from {where}: " + "; ".join(lines)) from e


def preset_names() -> list[str]:
    """The names of the presets that imagebeam brings."""
    files = importlib.resources.files("configs").iterdir()
    return sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml"))


def _read_yaml(name: str) -> dict[str, Any]:
    if name in preset_names():
        text = importlib.resources.files("configs").joinpath(f"{name}.yaml").read_text("utf-8")
    else:
        uri = storage.normalize(name)
        try:
            text = storage.storage_of(uri).read(uri).decode("utf-8")
        except (FileNotFoundError, IsADirectoryError) as e:
            near = difflib.get_close_matches(name, preset_names(), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise errors.ConfigError(
                f"--config {name!r} is neither a YAML file nor a preset ({', '.join(preset_names())}){hint}"
            ) from e
        except UnicodeDecodeError as e:
            raise errors.ConfigError(f"{name} is not UTF-8 text: {e}") from e
    try:
        fields = yaml.safe_load(text)
    except yaml.YAMLError as e:
        raise errors.ConfigError(f"{name} is not YAML: {e}") from e
    if fields is None:
        return {}
    if not isinstance(fields, dict):
        raise errors.ConfigError(f"{name} holds a {type(fields).__name__}; a config is a mapping of sections")
    return fields


def _apply(fields: dict[str, Any], override: str) -> None:
    path, equals, value = override.partition("=")
    if not equals or not path:
        raise errors.ConfigError(f"--set {override!r} is not of the form section.key=value")
    *sections, last = path.split(".")
    for section in sections:
        inner = fields[section] = {} if fields.get(section) is None else fields[section]
        if not isinstance(inner, dict):
            raise errors.ConfigError(f"{path} cannot be set to {value}: {section} is {inner!r}, not a mapping")
        fields = inner
    try:
        fields[last] = yaml.safe_load(value)
    except yaml.YAMLError:
        fields[last] = value  # a regular expression or a path need not be quoted


def _explain(error: Any) -> str:
    location = ".".join(str(part) for part in error["loc"] if part not in ("(one)", "(by split)"))
    if error["type"] == "extra_forbidden":
        siblings = _known_keys(error["loc"][:-1])
        near = difflib.get_close_matches(str(error["loc"][-1]), siblings, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(siblings)}"
        return f"unknown key {location!r}; {hint}"
    if error["type"] == "value_error":  # one of the checks above: it names its keys itself
        return error["msg"].removeprefix("Value error, ")
    text = _EXPECTED.get(error["type"], error["msg"][:1].lower() + error["msg"][1:])
    return f"{location}: {text}, got {error['input']!r}"


_EXPECTED = {  # in the words of YAML, not of Python
    "dict_type": "input should be a mapping",
    "model_type": "input should be a mapping",
    "tuple_type": "input should be a list",
}


def _known_keys(location: Sequence[str | int]) -> list[str]:
    model: Any = Config
    for part in location:
        field = getattr(model, "model_fields", {}).get(part)
        model = field.annotation if field is not None else ColumnConfig
    return sorted(getattr(model, "model_fields", {}))


def default_name(output: str) -> str:
    """A dataset's name made from its folder's."""
    name = re.sub(r"\W+", "_", os.path.basename(output.rstrip("/")), flags=re.ASCII).strip("_")
    return name if name[:1].isalpha() else f"dataset_{name}".rstrip("_")
