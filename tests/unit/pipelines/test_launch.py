"""A run that fails: its error, and the log of Beam."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

from tests import command_line, image_sets, patience


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("images")
    image_sets.write_folder(folder, per_label=3)
    return folder


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=command_line.ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=patience.HANG_SEC,
        check=False,
    )


FAIL = """
from imagebeam import convert
from imagebeam import errors
try:
    convert({fields}, workers=1, beam_options={options!r})
except errors.ImagebeamError as e:
    print(type(e).__name__, e)
"""


@pytest.mark.parametrize(
    ("broken", "sections", "message"),
    [
        pytest.param(True, {}, "TooManyRejectsError 1 of 6 images were rejected", id="rejects"),
        pytest.param(False, {"source": {"include": "*.gif"}}, "ConfigError the input holds no image", id="no-image"),
    ],
)
def test_error_comes_without_a_traceback_of_beam(
    images: pathlib.Path, tmp_path: pathlib.Path, broken: bool, sections: dict[str, Any], message: str
) -> None:
    folder = tmp_path / "in"
    image_sets.write_folder(folder, per_label=3)
    if broken:
        (folder / "cat" / "0.jpg").write_bytes(b"no image")
    fields = {"source": {"uri": str(folder), **sections.get("source", {})}, "output": {"uri": str(tmp_path / "out")}}
    done = run_python(FAIL.format(fields=fields, options=""))
    assert done.stdout.startswith(message)
    assert done.stderr == ""


def test_traceback_of_beam_is_logged_where_it_is_asked_for(images: pathlib.Path, tmp_path: pathlib.Path) -> None:
    fields = {"source": {"uri": str(images), "include": "*.gif"}, "output": {"uri": str(tmp_path / "out")}}
    code = "import logging; logging.basicConfig(level=logging.INFO)\n" + FAIL.format(fields=fields, options="")
    assert "Traceback" in run_python(code).stderr
