"""Images that kill the process which decodes them, or take too long: a plugin of Pillow that does so stands in."""

from __future__ import annotations

import functools
import json
import pathlib
import sys

import pytest

from imagebeam.pipelines import convert
from imagebeam.transforms.images import pillow_decoder
from tests import datasets, image_sets

HEIC = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic"
PLUGIN = """
import os, signal, time
from PIL import Image

_now = time.monotonic

def _open(file, filename=None):
    data = file.read()
    if b"kill" in data:
        os.kill(os.getpid(), signal.SIGKILL)
    if b"slow" in data:
        time.monotonic = lambda: _now() + 600  # as after ten minutes
        time.sleep(600)
    raise SyntaxError("not for tests")

def register_heif_opener():
    Image.register_open("HEIF", _open, lambda head: head[4:8] == b"ftyp")
"""


def write_plugin(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the plugin one of this process and of those that it starts."""
    (folder / "plugin").mkdir()
    (folder / "plugin" / "pillow_heif.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(folder / "plugin")  # writer processes get this path
    # what this process learns from the plugin is forgotten at the end of the test
    pillow = pillow_decoder.pillow()
    monkeypatch.setattr(pillow, "OPEN", dict(pillow.OPEN))
    monkeypatch.setattr(pillow, "ID", list(pillow.ID))
    known = functools.cache(pillow_decoder.decoded_formats.__wrapped__)
    monkeypatch.setattr(pillow_decoder, "decoded_formats", known)
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    del sys.modules["pillow_heif"]


@pytest.fixture
def images(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    write_plugin(tmp_path, monkeypatch)
    image_sets.write_folder(tmp_path / "images", per_label=6)
    return tmp_path / "images"


def rejects(output: pathlib.Path) -> dict[str, tuple[str, str]]:
    lines = map(json.loads, (output / "rejects.jsonl").read_text().splitlines())
    return {line["key"]: (line["reason"], line["detail"]) for line in lines}


@pytest.mark.parametrize(
    ("workers", "more"),
    [
        pytest.param(1, {}, id="one-worker"),
        pytest.param(2, {"duplicates": {"exact": "drop"}}, id="two-workers-that-read-twice"),
    ],
)
def test_images_that_kill_are_named_and_the_rest_is_written(
    images: pathlib.Path, tmp_path: pathlib.Path, workers: int, more: dict[str, object]
) -> None:
    for name in ("cat/a.heic", "dog/b.heic"):
        (images / name).write_bytes(HEIC + b"kill")
    sections = {"source": {"uri": str(images)}, "output": {"uri": str(tmp_path / "out"), "num_shards": 2}}
    result = convert.convert({**sections, **more, "rejects": {"max_fraction": 0.5}}, workers=workers)
    assert result.catalog is not None
    assert (result.catalog.counts.written, dict(result.catalog.counts.rejected)) == (12, {"crashed": 2})
    found = rejects(tmp_path / "out")
    assert {key: reason for key, (reason, _) in found.items()} == {"cat/a.heic": "crashed", "dog/b.heic": "crashed"}
    assert "two processes died on it" in found["cat/a.heic"][1]
    assert len(list(datasets.read(tmp_path / "out", "train"))) == 12


def test_image_that_takes_too_long_is_rejected(images: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (images / "cat/a.heic").write_bytes(HEIC + b"slow")
    sections = {"source": {"uri": str(images)}, "output": {"uri": str(tmp_path / "out"), "num_shards": 2}}
    limits = {"rejects": {"max_fraction": 0.5}, "image": {"limits": {"max_seconds": 5}}}
    result = convert.convert({**sections, **limits}, workers=1)
    assert result.catalog is not None
    assert (result.catalog.counts.written, dict(result.catalog.counts.rejected)) == (12, {"too_slow": 1})
    assert "longer than image.limits.max_seconds of 5 s" in rejects(tmp_path / "out")["cat/a.heic"][1]
