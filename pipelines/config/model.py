"""The config of a job: YAML or a preset's name, overrides on top, checked before any work."""

from __future__ import annotations

import difflib
import importlib.resources
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import pydantic
import yaml

from imagebeam import errors, storage
from imagebeam import features as features_lib
from imagebeam.pipelines.config import explain_error, output_sections, sections, source_and_image
from imagebeam.storage import given_options
from imagebeam.transforms.formats import base_format
from imagebeam.transforms.sources import listing_rules, strict_yaml

_TRANSFORMED = {  # kinds of transformed columns
    "z_score": features_lib.FLOAT,
    "scale_0_1": features_lib.FLOAT,
    "log": features_lib.FLOAT,
    "bucketize": features_lib.INT64,
    "vocabulary": features_lib.INT64,
}
_PIXELS = {"int64_list": features_lib.INT64, "float_list": features_lib.FLOAT}  # kinds of an image stored as numbers

Key = Annotated[str, pydantic.Field(min_length=1)]


class Config(pydantic.BaseModel):
    """The config of a whole job."""

    model_config = sections.STRICT

    source: source_and_image.SourceConfig = source_and_image.SourceConfig()
    label: sections.LabelConfig = sections.LabelConfig()
    split: sections.SplitConfig = sections.SplitConfig()
    image: source_and_image.ImageConfig = source_and_image.ImageConfig()
    columns: dict[str, sections.ColumnConfig] = {}
    """Columns of the manifest that become features, by name."""
    features: sections.FeaturesConfig = sections.FeaturesConfig()
    """Key of a feature to write, by its standard key; null drops it."""
    output: output_sections.OutputConfig = output_sections.OutputConfig()
    about: output_sections.AboutConfig = output_sections.AboutConfig()
    statistics: output_sections.StatisticsConfig = output_sections.StatisticsConfig()
    rejects: output_sections.RejectsConfig = output_sections.RejectsConfig()
    duplicates: output_sections.DuplicatesConfig = output_sections.DuplicatesConfig()
    update: output_sections.UpdateConfig = output_sections.UpdateConfig()

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Config:
        source, gives = self.source, self.source.gives()
        rule = source.masks.rule
        for name, options in self.storage_options.items():
            if (secret := given_options.find_secret(options, f"{name}.storage_options")) is not None:
                raise ValueError(f"{secret} {given_options.REFUSED}")
        if self.output.storage_options and self.output.uri and storage.scheme_of(self.output.uri) == "file":
            raise ValueError(f"output.uri {self.output.uri!r} is local: leave output.storage_options out")
        if self.output.storage_options and self.output.writer == "beam":
            raise ValueError("output.writer: beam takes no output.storage_options: leave one of the two out")
        if source.pattern is not None:
            self._check_groups(listing_rules.check_pattern(source.pattern))

        def has_columns(each: base_format.Gives) -> bool:
            return each.columns or (source.pattern is not None and "pattern" in each.takes)

        def has_splits(each: base_format.Gives) -> bool:
            return each.splits or (rule is not None and rule.names_split and "masks" in each.takes)

        needs: tuple[tuple[str, bool, Callable[[base_format.Gives], bool]], ...] = (
            ("label.by: column", self.label.by == "column", has_columns),
            ("label.by: columns", self.label.by == "columns", has_columns),
            ("split.by: column", self.split.by == "column", has_columns),
            ("split.by: index", self.split.by == "index", lambda each: each.columns),
            ("split.holdout", bool(self.split.holdout), lambda each: each.columns),
            ("split.by: source", self.split.by == "source", has_splits),
            ("columns", bool(self.columns), has_columns),
            ("columns.NAME.first", any(each.first for each in self.columns.values()), lambda each: each.tables),
            ("source.pattern", source.pattern is not None, lambda each: "pattern" in each.takes),
            ("split.by: table", self.split.by == "table", lambda each: each.tables),
            ("source.masks", rule is not None, lambda each: "masks" in each.takes),
            ("source.include", source.include != ("**/*",), lambda each: "include" in each.takes),
        )
        for name, is_used, holds in needs:
            if is_used and not holds(gives):
                named = ", ".join(source_and_image.names_where(holds))
                raise ValueError(f"{name} needs source.by: {named}; not {source.by}")
        for name in source_and_image.SECTIONS:
            if name != source.by and getattr(source, name) != source_and_image.SourceConfig.model_fields[name].default:
                raise ValueError(f"source.{name} needs source.by: {name}; not {source.by}")
        group = self.split.group
        if not has_columns(gives) and group and f"(?P<{group}>" not in (self.label.pattern or ""):
            raise ValueError(f"split.group {group!r} is neither a manifest's column nor a group of label.pattern")
        if self.split.stratify and self.label.kind != "class":
            raise ValueError("split.stratify needs classes: label.by directory, filename or column, label.type class")
        if self.label.texts is not None and self.features.renamed.get(features_lib.TEXT, "") is None:
            raise ValueError(f"label.texts is for {features_lib.TEXT}, which features drops; leave out one of the two")
        if self.split.stratify and self.label.many:
            raise ValueError(
                "split.stratify needs one class for each image; label.separator, label.columns and label.type: classes "
                "give several: leave split.stratify out, and the shares hold by hash"
            )
        if gives.needs_shards and self.output.num_shards is None and self.output.examples_per_shard is None:
            raise ValueError(gives.needs_shards)
        has_lists = any(column.list for column in self.columns.values()) or self.label.separator is not None
        if gives.needs_lists and not has_lists:
            raise ValueError(gives.needs_lists)
        splits = self.split.declared or ()
        by_split = self.output.num_shards if isinstance(self.output.num_shards, dict) else None
        for key, names in (("duplicates.keep_in", self.duplicates.keep_in), ("output.num_shards", by_split or ())):
            if splits and (unknown := sorted({*names} - {*splits})):
                raise ValueError(f"{key} names {', '.join(unknown)}, the splits are {', '.join(splits)}")
        if self.output.writer == "beam":
            sized = splits if by_split is None else by_split
            if not splits or self.output.num_shards is None or {*splits} - {*sized}:
                raise ValueError(
                    "output.writer: beam needs output.num_shards of every split, and known splits (split.names)"
                )
            if self.duplicates.settings().only("report", "fail").is_on:
                raise ValueError(
                    "output.writer: beam keeps no hashes of what it has written: set duplicates.exact and "
                    "duplicates.near to drop or off, or leave output.writer out"
                )
            if self.features.functions:
                raise ValueError("output.writer: beam computes no features: leave out features.functions, or it")
            if self.output.shuffle == "none":
                raise ValueError("output.writer: beam cannot keep an order; output.shuffle: none needs writer: stream")
        for setting, reason in gives.refuses:
            path, _, value = setting.partition(": ")
            if str(operator.attrgetter(path)(self)) == value:
                raise ValueError(f"{setting} {reason}")
        of_one = {
            "image.function": self.image.function,
            "image.keep_if": self.image.keep_if,
            "features.functions": self.features.functions,
        }
        if gives.list_column and (used := [name for name, value in of_one.items() if value]):
            raise ValueError(
                f"{used[0]} sees one image, and an example has all images of the list {gives.list_column!r}: leave it "
                "out, or give each image a row"
            )
        if unknown := sorted(set(self.image.extra_images) - set(gives.extra_images)):
            known = ", ".join(gives.extra_images) or "none"
            raise ValueError(f"image.extra_images names {unknown[0]}, and the extra images of an example are {known}")
        dropping = [name for name, action in self.duplicates.settings().actions.items() if action == "drop"]
        if self.image.frames == "each" and dropping:
            raise ValueError(
                f"duplicates.{dropping[0]}: drop leaves out whole files, and image.frames: each stores the frames of a "
                f"file: set duplicates.{dropping[0]}: report or fail, or image.frames: first or reject"
            )
        has_masks = rule is not None or "segmentation" in gives.features
        if source.masks.bits != 8 and not has_masks:
            raise ValueError("source.masks.bits is for masks: set source.masks.image and source.masks.mask")
        if self.image.numbers.is_typed(self.image.encode):
            for name, is_used in (
                ("statistics.pixels", self.statistics.pixels),
                ("duplicates.near", self.duplicates.near != "off"),
                ("features.functions", bool(self.features.functions)),
            ):
                if is_used:
                    raise ValueError(
                        f"{name} is for pictures of 8 bits: leave it out with image.dtype: {self.image.dtype} and "
                        "image.bands"
                    )
        sizes = [name for name in source_and_image.SIZES if getattr(self.image, name) is not None]
        if has_masks and sizes:  # masks of objects are scaled with the image
            raise ValueError(f"image.{sizes[0]} would leave the masks in another size than the images; drop one")
        if self.image.fit != "stretch" and "objects" in gives.features:
            raise ValueError(f"image.fit: {self.image.fit} would leave boxes in another place than the objects")
        if self.transformed and self.statistics.analyze == "train" and "train" not in (splits or ("train",)):
            raise ValueError(
                f"statistics.analyze is train, and the splits are {', '.join(splits)}; "
                "set statistics.analyze: all, or name one of them train"
            )
        self.resolve_features()
        return self

    def _check_groups(self, groups: frozenset[str]) -> None:
        """Checks that `source.pattern` has a group for each column, and none for a label or split that is not taken.

        Raises:
            ValueError: if not.
        """
        single = {"label.column": self.label.column, "split.column": self.split.column}
        if self.split.group is not None and f"(?P<{self.split.group}>" not in (self.label.pattern or ""):
            single["split.group"] = self.split.group
        used = {key: name for key, name in single.items() if name is not None}
        used |= {f"columns.{name}": name for name in self.columns}
        used |= {f"label.columns {name}": name for name in self.label.columns}
        for key, name in used.items():
            if name not in groups:
                raise ValueError(
                    f"{key} is {name!r}, and source.pattern has no such group; its groups are "
                    f"{', '.join(sorted(groups))}: write (?P<{name}>...)"
                )
        for section in ("label", "split"):
            if section in groups and section not in used.values():
                raise ValueError(
                    f"source.pattern has a group {section!r} that nothing takes: set {section}.by: column and "
                    f"{section}.column: {section}, or leave the name out"
                )

    @property
    def transformed(self) -> tuple[str, ...]:
        """Names of the columns that tf.Transform computes: those with a transform that are also written."""
        written = {feature.source for feature in self.resolve_features()}
        return tuple(name for name, column in self.columns.items() if column.transform and f"columns/{name}" in written)

    @property
    def kept_in_records(self) -> tuple[str, ...] | None:
        """Features of rewritten records that are kept in addition to `columns`; None for all."""
        keep = self.source.gives().keeps
        if keep == "all" or (keep is None and not self.columns):
            return None
        return keep or ()

    @property
    def renamed_in_records(self) -> dict[str, Key | None]:
        """The part of `features` about rewritten records; only the records show whether such a feature exists."""
        if self.kept_in_records == ():
            return {}
        names = (name for name in self.features.renamed if name.startswith("columns/"))
        return {
            name: self.features.renamed[name] for name in names if name.removeprefix("columns/") not in self.columns
        }

    def resolve_features(self) -> tuple[features_lib.Feature, ...]:
        """Returns the features of every example."""
        columns = {
            name: (_TRANSFORMED.get(column.transform or "") or column.kind, column.list)
            for name, column in self.columns.items()
        }
        gives = self.source.gives()
        return features_lib.resolve_features(
            {name: key for name, key in self.features.renamed.items() if name not in self.renamed_in_records},
            self.label.kind,
            columns,
            has_many_labels=self.label.many,
            pixels=_PIXELS.get(self.image.encode),
            extra_images=gives.extra_images,
            given={
                *gives.features,
                *(["segmentation"] if self.source.masks.rule is not None else []),
                *(["lists of images"] if gives.list_column else []),
                *(["typed pixels"] if self.image.numbers.is_typed(self.image.encode) else []),
            },
            computed=self.features.computed(),
        )

    @property
    def storage_options(self) -> dict[str, given_options.Options]:
        """Options of the storages of the input and the output, by the name of their section."""
        return {"source": self.source.storage_options, "output": self.output.storage_options}

    def recorded(self) -> dict[str, Any]:
        """Returns the config as the catalog keeps it: without the way to its storages, which is that of one run."""
        exclude = {section: {"storage_options"} for section in self.storage_options}
        return self.model_dump(mode="json", exclude=exclude)

    def identity(self) -> dict[str, Any]:
        """Returns the part of the config that decides the content of shards: the same for a moved input or output.

        The fingerprint covers the content of the manifest and the label files elsewhere. Defaults are left out, so that
        a new option changes no fingerprint.
        """
        exclude: Any = {
            "label": {"vocabulary", "texts", "lists"},
            "split": {"lists"},
            "output": {"uri", "name", "report", "storage_options"},
            "about": True,
            "rejects": True,
            "duplicates": True,
            "update": True,
        }
        exclude["source"] = dict.fromkeys(("uri", "reads_ahead", "bytes_ahead", "storage_options"), True)
        exclude["source"]["web"] = {"timeout_sec", "per_host", "user_agent"}
        exclude["source"] |= {by: base_format.format_of(by).PLACES for by in base_format.FORMATS}
        if self.source.gives().is_saved:
            exclude["source"]["by"] = True
        exclude["source"]["masks"] = {"colors", "ignore"}  # the order of colors counts: see make_job
        fields = self.model_dump(mode="json", exclude=exclude, exclude_defaults=True)
        if self.source.is_own:
            options = fields["source"].get("options", {})
            fields["source"]["options"] = {
                name: value for name, value in options.items() if name not in self.source.format.PLACES
            }
        return _without_empty(fields | {"duplicates": self.duplicates.identity()})


def _without_empty(fields: dict[str, Any]) -> dict[str, Any]:
    """Returns `fields` without empty mappings, at any depth."""
    kept = {name: _without_empty(value) if isinstance(value, dict) else value for name, value in fields.items()}
    return {name: value for name, value in kept.items() if value != {}}


def load_config(name: str | None = None, overrides: Sequence[str] = ()) -> Config:
    """Returns the config in a YAML file or preset, changed by `overrides`.

    Args:
        name: path of a YAML file, or the name of a preset; None is all defaults.
        overrides: texts `section.key=value`, the value in YAML.

    Raises:
        ConfigError: if anything in it is not as expected.
    """
    return parse_config(read_fields(name, overrides), where=name or "the command line")


def value_at(fields: Any, path: str) -> Any:
    """Returns the value of the key at `path`, such as `source.uri`; None if it is not there."""
    for part in path.split("."):
        fields = fields.get(part) if isinstance(fields, dict) else None
    return fields


def read_fields(name: str | None, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Returns the keys and values of a YAML file or preset, changed by `overrides`, before they are checked.

    Raises:
        ConfigError: if the file cannot be read, or an override does not have the form `section.key=value`.
    """
    fields = _read_yaml(name) if name is not None else {}
    for override in overrides:
        apply_override(fields, override)
    return fields


def parse_config(fields: Mapping[str, Any], where: str) -> Config:
    """Returns the config that `fields` describe.

    Raises:
        ConfigError: naming every wrong key and value.
    """
    try:
        return Config.model_validate(_paths_as_text(fields))
    except pydantic.ValidationError as e:
        lines = [explain_error.explain(error, Config) for error in e.errors(include_url=False)]
        raise errors.ConfigError("config-invalid", f"config from {where}: " + "; ".join(lines)) from e


def _paths_as_text(value: Any) -> Any:
    """Returns `value` with each path in it as text, at any depth."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {key: _paths_as_text(inner) for key, inner in value.items()}
    return [_paths_as_text(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def preset_names() -> list[str]:
    """Returns the names of the presets that come with imagebeam."""
    files = importlib.resources.files("imagebeam.configs").iterdir()
    return sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml"))


def _read_yaml(name: str) -> dict[str, Any]:
    if name in preset_names():
        text = importlib.resources.files("imagebeam.configs").joinpath(f"{name}.yaml").read_text("utf-8")
    else:
        uri = storage.normalize(name)
        try:
            text = storage.storage_of(uri).read(uri).decode("utf-8")
        except (FileNotFoundError, IsADirectoryError) as e:
            near = difflib.get_close_matches(name, preset_names(), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f" ({', '.join(preset_names())})"
            raise errors.ConfigError(
                "config-unknown", f"--config {name!r} is neither a YAML file nor a preset{hint}"
            ) from e
        except UnicodeDecodeError as e:
            raise errors.ConfigError("config-not-utf8", f"{name} is not UTF-8 text: {e}") from e
    try:
        fields = strict_yaml.parse(text, name)
    except yaml.YAMLError as e:
        raise errors.ConfigError("config-not-yaml", f"{name} is not YAML: {strict_yaml.explain(e, text)}") from e
    if fields is None:
        return {}
    if not isinstance(fields, dict):
        hint = strict_yaml.missing_space(fields) if isinstance(fields, str) else ""
        raise errors.ConfigError(
            "config-no-mapping",
            f"{name} holds a {type(fields).__name__}; a config is a mapping of sections" + (hint and f": {hint}"),
        )
    return fields


def apply_override(fields: dict[str, Any], override: str, option: str = "--set") -> None:
    """Sets one key as a text `section.key=value` says; `option` is the one of the command that gave it.

    Raises:
        ConfigError: if it does not have this form, or a section in it is not a mapping.
    """
    path, equals, value = override.partition("=")
    if not equals or not path:
        meant = override.replace(":", "=", 1) if ":" in override and "=" not in override else ""
        hint = f"; write {meant!r}" if meant else ""
        form = "section.key=value" if option == "--set" else "NAME=VALUE"
        raise errors.ConfigError("set-form", f"{option} {override!r} does not have the form {form}{hint}")
    try:
        parsed = strict_yaml.parse(value, f"{option} {path}")
    except yaml.YAMLError as e:
        strict_yaml.refuse_mapping(e, path, value)
        parsed = value  # so that a regular expression or a path needs no quotes
    set_field(fields, path, parsed)


def set_field(fields: dict[str, Any], path: str, value: Any) -> None:
    """Sets the key at `path`, such as `source.uri`.

    Raises:
        ConfigError: if a section in the path is not a mapping.
    """
    *sections, last = path.split(".")
    for section in sections:
        inner = fields[section] = {} if fields.get(section) is None else fields[section]
        if not isinstance(inner, dict):
            raise errors.ConfigError(
                "set-below-value", f"{path} cannot be set to {value!r}: {section} is {inner!r}, not a mapping"
            )
        fields = inner
    fields[last] = value
