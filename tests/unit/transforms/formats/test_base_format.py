"""Requirements of every format, which apply to a new one as soon as the table names it."""

from __future__ import annotations

import dataclasses
import pathlib
import pickle
import re

import pytest

from imagebeam.pipelines.config import model as config_lib
from imagebeam.pipelines.config import schema
from imagebeam.transforms.formats.base_format import FORMATS, format_of
from tests import command_line

DOCS = pathlib.Path(command_line.ROOT) / "docs"


@pytest.mark.parametrize("by", FORMATS)
def test_options_are_a_frozen_dataclass_whose_every_field_has_a_default_and_a_text(by: str) -> None:
    options = format_of(by)()
    assert pickle.loads(pickle.dumps(options)) == options
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.ABOUT = ""  # type: ignore[misc]
    described = {key for key, _, meaning in schema.key_rows() if meaning}
    names = {f"source.{by}.{field.name}" for field in dataclasses.fields(options)}  # type: ignore[arg-type]
    assert {
        name for name in names if not any(each == name or each.startswith(f"{name}.") for each in described)
    } == set()


@pytest.mark.parametrize("by", FORMATS)
def test_module_imports_neither_pydantic_nor_beam_nor_numpy(by: str) -> None:
    module = f"imagebeam.transforms.formats.{FORMATS[by].partition(':')[0]}"
    heavy = {"pydantic", "apache_beam", "numpy", "yaml", "ijson"}
    done = command_line.run_python(f"import sys, {module}; print(*{heavy} & {{*sys.modules}})")
    assert (done.returncode, done.stdout.strip()) == (0, "")


@pytest.mark.parametrize("by", FORMATS)
def test_presets_that_it_detects_exist_and_are_in_the_recipes(by: str) -> None:
    pages = " ".join(page.read_text("utf-8") for page in (DOCS / "recipes").glob("*.md"))
    presets = format_of(by).PRESETS
    assert set(presets) <= set(config_lib.preset_names())
    assert [name for name in presets if not re.search(rf"\b{name}\b", pages)] == []
    assert not presets or any(config_lib.load_config(name).source.by == by for name in presets)


def test_refused_settings_are_those_of_a_config() -> None:
    config = config_lib.load_config()
    for by in FORMATS:
        for setting, _ in format_of(by)().gives().refuses:
            section, _, key = setting.partition(": ")[0].partition(".")
            assert hasattr(getattr(config, section), key), setting
