"""Generates the JSON schema (for editors) and docs/config.md (for people) from the models."""

from __future__ import annotations

import itertools
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import pydantic

from imagebeam.pipelines import config, config_sections

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
    return json.dumps(config.Config.model_json_schema(), indent=1) + "\n"


def markdown_reference() -> str:
    """Returns a page with a table for each section: every key, its default and its meaning."""
    lines = [_INTRODUCTION]
    for section, rows in itertools.groupby(_rows(config.Config, ""), lambda row: row[0].partition(".")[0]):
        lines += [f"## {section}", "", "| key | default | meaning |", "| --- | --- | --- |"]
        lines += [f"| `{key}` | {default} | {meaning} |" for key, default, meaning in rows]
        lines += [""]
    return "\n".join(lines)


def _rows(model: type[pydantic.BaseModel], prefix: str) -> Iterator[tuple[str, str, str]]:
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, pydantic.BaseModel):
            yield from _rows(kind, f"{prefix}{name}.")
        elif name == "columns" and not prefix:  # label.columns is a key like any other
            for column, default, meaning in _rows(config_sections.ColumnConfig, ""):
                yield f"columns.NAME.{column}", default, meaning
        else:
            meaning = " ".join((field.description or "").split()).replace("|", "\\|")
            yield f"{prefix}{name}", _default(field.default), meaning


def _default(value: Any) -> str:
    if value is None:
        return ""
    shown = list(value) if isinstance(value, tuple) else value
    return f"`{json.dumps(shown)}`"


def main() -> None:
    """Writes the schema and the reference in docs/."""
    root = pathlib.Path(__file__).resolve().parent.parent  # imagebeam/pipelines is a link
    (root / REFERENCE_PATH).write_text(markdown_reference(), "utf-8")
    (root / SCHEMA_PATH).write_text(json_schema(), "utf-8")


if __name__ == "__main__":
    main()
