"""The reference and the JSON schema that are generated from the config's models."""

from __future__ import annotations

import json
import re

from imagebeam.pipelines.config import model as config_lib
from imagebeam.pipelines.config import schema, sections
from tests import command_line


def test_reference_has_each_section_of_the_config_once_in_its_order() -> None:
    sections = re.findall(r"^## (.*)$", schema.markdown_reference(), re.MULTILINE)
    assert sections == list(config_lib.Config.model_fields)


def test_reference_has_each_key_once_below_its_section() -> None:
    section, keys = "", []
    for line in schema.markdown_reference().splitlines():
        section = line.removeprefix("## ") if line.startswith("## ") else section
        if match := re.match("- `([^`]+)`", line):
            assert match[1].split(".")[0] == section
            keys.append(match[1])
    assert len(keys) == len(set(keys))
    assert {f"label.{name}" for name in sections.LabelConfig.model_fields} <= set(keys)
    assert {f"columns.NAME.{name}" for name in sections.ColumnConfig.model_fields} <= set(keys)


def test_generated_files_are_up_to_date() -> None:
    for path, text in (
        (schema.REFERENCE_PATH, schema.markdown_reference()),
        (schema.SCHEMA_PATH, schema.json_schema()),
    ):
        assert (command_line.ROOT / path).read_text("utf-8") == text, f"{path} is not up to date: make docs"


def test_every_key_of_the_json_schema_is_described_and_every_reference_leads_to_a_section() -> None:
    text = schema.json_schema()
    found = json.loads(text)
    assert set(re.findall(r'"#/\$defs/(\w+)"', text)) == set(found["$defs"])
    for model in found["$defs"].values():
        assert all("description" in field or "$ref" in field for field in model["properties"].values()), model["title"]
