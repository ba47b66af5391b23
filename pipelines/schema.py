"""The config's keys for editors (JSON schema) and for people (the table in README.md), both from the models."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import pydantic

from pipelines import config, sections

SCHEMA_PATH = "docs/config.schema.json"
_BEGIN, _END = "<!-- config reference: made by make docs -->", "<!-- end of config reference -->"


def json_schema() -> str:
    """The JSON schema of a config file."""
    return json.dumps(config.Config.model_json_schema(), indent=1) + "\n"


def markdown_reference() -> str:
    """A table of every key, its default and its meaning."""
    lines = ["| key | default | meaning |", "| --- | --- | --- |"]
    lines += [f"| `{key}` | {default} | {meaning} |" for key, default, meaning in _rows(config.Config, "")]
    return "\n".join(lines) + "\n"


def _rows(model: type[pydantic.BaseModel], prefix: str) -> Iterator[tuple[str, str, str]]:
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, pydantic.BaseModel):
            yield from _rows(kind, f"{prefix}{name}.")
        elif name == "columns":
            for column, default, meaning in _rows(sections.ColumnConfig, ""):
                yield f"columns.NAME.{column}", default, meaning
        else:
            yield f"{prefix}{name}", _default(field.default), (field.description or "").replace("|", "\\|")


def _default(value: Any) -> str:
    if value is None:
        return ""
    shown = list(value) if isinstance(value, tuple) else value
    return f"`{json.dumps(shown)}`"


def insert_reference(readme: str) -> str:
    """`readme` with the table brought up to date between its two marks."""
    before, _, rest = readme.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n{markdown_reference()}{_END}{after}"


def main() -> None:
    """Brings README.md and the schema in docs/ up to date."""
    root = pathlib.Path(__file__).parent.parent
    readme = root / "README.md"
    readme.write_text(insert_reference(readme.read_text("utf-8")), "utf-8")
    (root / SCHEMA_PATH).write_text(json_schema(), "utf-8")


if __name__ == "__main__":
    main()
