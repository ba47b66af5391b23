"""The dataset does not depend on the locale: keys and labels are file names, and those are UTF-8 everywhere."""

from __future__ import annotations

import os
import pathlib
import subprocess

import pytest

from imagebeam import catalog as catalog_lib
from tests import command_line, datasets, image_sets

LABELS = ["кот", "Hündin", "猫"]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("expected é")
    image_sets.write_folder(folder / "in", LABELS, per_label=2)
    os.rename(folder / "in/кот/0.jpg", os.fsencode(folder / "in/кот") + b"/\xff.jpg")  # no UTF-8
    datasets.make(folder / "in", folder / "out")
    return folder


ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0"}
LOCALES = {  # variables, the name of the output as it is printed
    "ascii": (ASCII, rb"aus \xe9"),
    "latin-1-output": (ASCII | {"PYTHONIOENCODING": "latin-1"}, b"aus \xe9"),
    "posix": ({"LC_ALL": "POSIX"}, "aus é".encode()),
    "utf-8": ({"LC_ALL": "C.UTF-8"}, "aus é".encode()),
}


@pytest.mark.parametrize(("environment", "shown"), LOCALES.values(), ids=LOCALES)
def test_dataset_is_the_same_in_any_locale(
    expected: pathlib.Path, tmp_path: pathlib.Path, environment: dict[str, str], shown: bytes
) -> None:
    output = tmp_path / "aus é"
    command = [*command_line.IMAGEBEAM, "convert", "--workers", "1", "--input", str(expected / "in")]
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONUTF8", "PYTHONIOENCODING")}
    words, variables = [*command, "--output", str(output)], {**inherited, **environment}
    done = subprocess.run(words, cwd=command_line.ROOT, env=variables, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert datasets.shard_digests(output) == datasets.shard_digests(expected / "out")
    assert (output / "labels.txt").read_bytes() == (expected / "out" / "labels.txt").read_bytes()
    found, wanted = (catalog_lib.load_catalog(str(folder)) for folder in (output, expected / "out"))
    assert (found.fingerprint, found.labels) == (wanted.fingerprint, tuple(sorted(LABELS)))
    assert shown in done.stdout
