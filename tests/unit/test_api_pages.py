"""docs/api: each public name has its place in the reference of the site."""

from __future__ import annotations

import re

import pytest

import imagebeam
from imagebeam import beam, sources
from tests import command_line

PAGES = command_line.ROOT / "docs" / "api"


@pytest.mark.parametrize("module", [imagebeam, sources, beam], ids=lambda each: each.__name__)
def test_reference_names_each_public_name(module: object) -> None:
    named = {name for page in PAGES.glob("*.md") for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)}
    elsewhere = {"imagebeam.__version__", "imagebeam.beam.ImageRef"}  # ImageRef is with sources
    assert {f"{module.__name__}.{name}" for name in module.__all__} - elsewhere <= named  # type: ignore[attr-defined]
    assert "imagebeam.sources.ImageRef" in named


def test_reference_lists_the_feeds_of_datasets_and_mixtures() -> None:
    text = (PAGES / "datasets.md").read_text()
    for of in (imagebeam.ImageDataset, imagebeam.Mixture):
        for name in dir(of):
            if name.startswith("as_"):
                assert len(re.findall(rf"\b{name}\b", text)) == 2, name
