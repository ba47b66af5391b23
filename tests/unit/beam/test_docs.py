"""The code of docs/beam.md runs as it is printed there."""

from __future__ import annotations

import pathlib

import pytest

import imagebeam
from tests import docs_pages, image_sets


def test_page_runs_as_printed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    image_sets.write_folder(tmp_path / "images")
    table = [
        {
            "id": f"{number}.jpg",
            "jpeg": image_sets.make_image(number),
            "species": ("cat", "dog")[number % 2],
            "age": number,
        }
        for number in range(30)
    ]
    example, steps = docs_pages.blocks("beam.md", "python")
    names: dict[str, object] = {"__name__": "__snippet__", "table": table}
    exec(compile(example, "docs/beam.md", "exec"), names)
    dataset = imagebeam.load_catalog("shards")
    assert dataset.counts.written == 30
    lines = [line for path in tmp_path.glob("scores-*") for line in path.read_text().splitlines()]
    assert len(lines) == dataset.splits["test"].num_examples > 0
    exec(compile(steps, "docs/beam.md", "exec"), names)
    assert imagebeam.load_catalog("copy").counts.written == 20
