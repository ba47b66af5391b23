"""Generates the JSON schema (for editors) and docs/config.md (for people) from the models."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import itertools
import json
import pathlib
import textwrap
import typing
from collections.abc import Iterator
from typing import Any

import pydantic_core

from imagebeam.pipelines.config import model as config_lib
from imagebeam.pipelines.config import sections, source_and_image

SCHEMA_PATH = "docs/config.schema.json"
REFERENCE_PATH = "docs/config.md"
_INTRODUCTION = """\
# Every key of a config

Generated from the models by `make docs`; [config.schema.json](config.schema.json) is the same for editors. A key is set
in a YAML file, or on the command line by `--set section.key=value`. An unknown key is an error that names the nearest
known key. Behind a key is its default.
"""


def json_schema() -> str:
    """Returns the JSON schema of a config file."""
    schema = config_lib.Config.model_json_schema()
    described = {model.__name__: model for model in _models_in(config_lib.Config)}
    for name, fields in [("Config", schema), *schema["$defs"].items()]:
        for key, text in _docstrings(described[name]).items():
            more = {"description": text}
            # pydantic leaves out the default of a mapping
            if "default" not in fields["properties"][key] and dataclasses.is_dataclass(described[name]):
                more["default"] = sections.fields_of(described[name])[key].default
            fields["properties"][key] = dict(sorted({**fields["properties"][key], **more}.items()))
    return json.dumps(schema, indent=1) + "\n"


def _models_in(model: type) -> Iterator[type]:
    """Yields a section and those in its fields."""
    yield model
    for field in sections.fields_of(model).values():
        for kind in _alternatives(field.kind):
            if sections.fields_of(kind):
                yield from _models_in(kind)


def _alternatives(kind: Any) -> Iterator[Any]:
    """Yields a type and, at any depth, those that it is made of."""
    yield kind
    for each in typing.get_args(kind):
        yield from _alternatives(each)


@functools.cache
def _docstrings(model: type) -> dict[str, str]:
    """Returns the text below each field in the source of a section, and of the sections that it adds fields to."""
    if model is source_and_image.SourceConfig:
        named = {name: f"For `by: {name}`." for name in source_and_image.SECTIONS}
        return {**named, **_docstrings(model.__mro__[1])}
    (defined,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(defined, ast.ClassDef)
    base = model.__mro__[1]
    inherited = _docstrings(base) if base.__module__.startswith("imagebeam.") else {}
    return inherited | {
        field.target.id: inspect.cleandoc(text.value.value)
        for field, text in itertools.pairwise(defined.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }


def markdown_reference() -> str:
    """Returns a page with a list for each section: every key, its default and its meaning."""
    lines = [_INTRODUCTION]
    for section, rows in itertools.groupby(key_rows(), lambda row: row[0].partition(".")[0]):
        lines += [f"## {section}", ""]
        for key, default, meaning in rows:
            item = f"- `{key}`{default and f' ({default})'}: {meaning}"
            lines += textwrap.wrap(item, 118, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        lines += [""]
    return "\n".join(lines)


def key_rows() -> Iterator[tuple[str, str, str]]:
    """Yields every key of a config, its default and its meaning."""
    return _rows(config_lib.Config, "")


_BY_NAME = {  # sections of each name that the user gives
    "columns": ("columns.NAME", sections.ColumnConfig),
    "features.functions": ("features.functions.KEY", sections.FeatureFunctionConfig),
}


def _rows(model: type, prefix: str) -> Iterator[tuple[str, str, str]]:
    for name, field in sections.fields_of(model).items():
        if sections.fields_of(field.kind):
            if field.kind is sections.FeaturesConfig:  # whose other keys are those of the features
                yield f"{prefix}{name}.KEY", "", " ".join(_docstrings(model)[name].split())
            yield from _rows(field.kind, f"{prefix}{name}.")
        elif prefix + name in _BY_NAME:
            shown, section = _BY_NAME[prefix + name]
            if meaning := " ".join(_docstrings(model).get(name, "").split()) if prefix else "":
                yield shown, "", meaning
            for key, default, of_key in _rows(section, "."):
                yield f"{shown}{key}", default, of_key
        else:
            meaning = " ".join(_docstrings(model).get(name, "").split())
            yield f"{prefix}{name}", _default(field.default), meaning


def _default(value: Any) -> str:
    if value is None or value is pydantic_core.PydanticUndefined:  # a key that must be given
        return ""
    shown = list(value) if isinstance(value, tuple) else value
    return f"`{json.dumps(shown)}`"


def main() -> None:
    """Writes the schema and the reference in docs/."""
    root = pathlib.Path(__file__).resolve().parents[2]  # imagebeam/pipelines is a link
    (root / REFERENCE_PATH).write_text(markdown_reference(), "utf-8")
    (root / SCHEMA_PATH).write_text(json_schema(), "utf-8")


if __name__ == "__main__":
    main()
