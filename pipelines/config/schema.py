"""Generates the JSON schema (for editors) and docs/config.md (for people) from the models."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import json
import pathlib
import textwrap
import typing
from collections.abc import Iterator
from typing import Any

import pydantic

from imagebeam.pipelines.config import model as config_lib
from imagebeam.pipelines.config import other_sections

SCHEMA_PATH = "docs/config.schema.json"
REFERENCE_PATH = "docs/config.md"
_INTRODUCTION = """\
# Every key of a config

Generated from the models by `make docs`; [config.schema.json](config.schema.json) is the same for editors. A key is set
in a YAML file, or on the command line by `--set section.key=value`. An unknown key is an error that names the nearest
known key.
"""


def json_schema() -> str:
    """Returns the JSON schema of a config file."""
    schema = config_lib.Config.model_json_schema()
    described = {model.__name__: model for model in _models_in(config_lib.Config)}
    for name, fields in [("Config", schema), *schema["$defs"].items()]:
        for key, text in _docstrings(described[name]).items():
            properties = fields["properties"]
            properties[key] = dict(sorted({**properties[key], "description": text}.items()))
    return json.dumps(schema, indent=1) + "\n"


def _models_in(model: type[pydantic.BaseModel]) -> Iterator[type[pydantic.BaseModel]]:
    """Yields a model and those in its fields."""
    yield model
    for field in model.model_fields.values():
        for kind in (field.annotation, *typing.get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, pydantic.BaseModel):
                yield from _models_in(kind)


@functools.cache
def _docstrings(model: type[pydantic.BaseModel]) -> dict[str, str]:
    """Returns the text below each field in the source of a model."""
    (defined,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(defined, ast.ClassDef)
    return {
        field.target.id: inspect.cleandoc(text.value.value)
        for field, text in itertools.pairwise(defined.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }


def markdown_reference() -> str:
    """Returns a page with a table for each section: every key, its default and its meaning."""
    lines = [_INTRODUCTION]
    for section, rows in itertools.groupby(key_rows(), lambda row: row[0].partition(".")[0]):
        lines += [f"## {section}", "", "| key | default | meaning |", "| --- | --- | --- |"]
        lines += [f"| `{key}` | {default} | {meaning} |" for key, default, meaning in rows]
        lines += [""]
    return "\n".join(lines)


def key_rows() -> Iterator[tuple[str, str, str]]:
    """Yields every key of a config, its default and its meaning."""
    return _rows(config_lib.Config, "")


def _rows(model: type[pydantic.BaseModel], prefix: str) -> Iterator[tuple[str, str, str]]:
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, pydantic.BaseModel):
            yield from _rows(kind, f"{prefix}{name}.")
        elif name == "columns" and not prefix:  # label.columns is a key like any other
            for column, default, meaning in _rows(other_sections.ColumnConfig, ""):
                yield f"columns.NAME.{column}", default, meaning
        else:
            meaning = " ".join(_docstrings(model).get(name, "").split()).replace("|", "\\|")
            yield f"{prefix}{name}", _default(field.default), meaning


def _default(value: Any) -> str:
    if value is None:
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
