"""The reference and the JSON schema that are generated from the config's models."""

from __future__ import annotations

import re

from imagebeam.pipelines import config, config_schema, config_sections
from tests import command_line


def test_reference_has_each_section_of_the_config_once_in_its_order() -> None:
    sections = re.findall(r"^## (.*)$", config_schema.markdown_reference(), re.MULTILINE)
    assert sections == list(config.Config.model_fields)


def test_reference_has_each_key_once_below_its_section() -> None:
    section, keys = "", []
    for line in config_schema.markdown_reference().splitlines():
        section = line.removeprefix("## ") if line.startswith("## ") else section
        if match := re.match(r"\| `([^`]+)` \|", line):
            assert match[1].split(".")[0] == section
            keys.append(match[1])
    assert len(keys) == len(set(keys))
    assert {f"label.{name}" for name in config_sections.LabelConfig.model_fields} <= set(keys)
    assert {f"columns.NAME.{name}" for name in config_sections.ColumnConfig.model_fields} <= set(keys)


def test_generated_files_are_up_to_date() -> None:
    for path, text in (
        (config_schema.REFERENCE_PATH, config_schema.markdown_reference()),
        (config_schema.SCHEMA_PATH, config_schema.json_schema()),
    ):
        assert (command_line.ROOT / path).read_text("utf-8") == text, f"{path} is not up to date: make docs"
