"""Blocks of code of README.md and of docs/, as they are printed, on the dataset of `make demo`."""

from __future__ import annotations

import pathlib
import re

import pytest

from tests import command_line, docs_pages


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A working folder with what `make demo` leaves there."""
    folder = tmp_path_factory.mktemp("demo")
    code = "import demo, pathlib\ndemo.make_images(pathlib.Path('build/demo/images'))"
    searched = {"PYTHONPATH": f"{command_line.ROOT / 'examples'}:{command_line.ROOT}"}
    command_line.finish(command_line.start_program(code, cwd=folder, environment=searched), 0)
    paths = ("--input", folder / "build/demo/images", "--output", folder / "build/demo/shapes")
    split = ("--set", "split.by=hash", "--set", "split.fractions={train: 0.8, test: 0.2}")
    command_line.succeed("convert", "--config", "image_folder", *paths, *split, "--workers", "1")
    return folder


@pytest.mark.slow
def test_tutorial_prints_what_its_comments_say(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    program = "\n".join(docs_pages.blocks("reader.md", "python"))
    docs_pages.run_snippet(program)
    printed = capsys.readouterr().out.splitlines()
    assert printed == re.findall(r"^ *print\(.*\)  # (.*)$", program, re.MULTILINE)
