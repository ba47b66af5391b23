"""What `make wheel` makes, in a Debian without compiler and image libraries: `make wheel-test`, as root, minutes.

Not one of the tests that pytest finds by itself. One environment converts, and another one trains.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Iterator

import pytest

from tests import command_line, datasets
from tests.golden import test_golden
from tests.servers import cache as cache_lib
from tests.servers import debian

pytestmark = pytest.mark.integration

DIST = command_line.ROOT / "dist"
SUITES = {(3, 11): "bookworm", (3, 13): "trixie"}  # Debian's releases, by the Python that they have
SOURCES = ("beam", "configs", "pipelines", "transforms", "imagebeam")

TRAIN = """
import importlib.util, json, sys
import numpy as np
import imagebeam
from imagebeam import _native, _writer

ds = imagebeam.open_dataset(sys.argv[1])
options = {"image_size": 16, "crop": "random", "decoder": "native", "seed": 0}
weights, losses = np.zeros((16 * 16 * 3, 3)), []
for step, batch in zip(range(60), ds.as_numpy("train", 8, **options)):
    pixels, wanted = batch["image"].reshape(8, -1) / 255.0, np.eye(3)[batch["label"]]
    scores = np.exp(pixels @ weights)
    found = scores / scores.sum(1, keepdims=True)
    losses.append(float(-np.log((found * wanted).sum(1)).mean()))
    weights -= 0.02 * pixels.T @ (found - wanted) / 8
there = [name for name in ("apache_beam", "tensorflow", "pydantic") if importlib.util.find_spec(name)]
print(json.dumps([_native.DECODES_PNG, _native.LIBRARY, _writer.RESIZER, _writer.TURNER, there, losses]))
"""


class Bare:
    """A root folder of Debian, with packages in /wheels and what `make wheel` made in /dist."""

    def __init__(self, folder: pathlib.Path, wheels: pathlib.Path):
        self.folder = folder
        self._wheels = wheels

    def run(self, *command: object) -> str:
        """Runs a command in it, without the variables of this process, and returns what it prints."""
        mounts = ((f"--rbind {name}", name) for name in ("/dev", "/proc"))
        mounts = (*mounts, (f"--bind {self._wheels}", "/wheels"), (f"--bind {DIST}", "/dist"))
        script = "".join(f'mount {what} "$0{where}" && ' for what, where in mounts)
        words = ("chroot", '"$0"', "/usr/bin/env", "-i", "PATH=/usr/bin:/bin:/sbin", "HOME=/tmp", '"$@"')
        given = ("unshare", "--mount", "--", "sh", "-c", f"{script} exec {' '.join(words)}", self.folder, *command)
        done = command_line.run_other(*given)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    def install(self, environment: str, *given: str) -> None:
        """Makes an environment and installs packages into it with its pip, without a network."""
        self.run("python3", "-m", "venv", environment)
        offline = ("--quiet", "--no-index", "--find-links", "/wheels", "--find-links", "/dist")
        self.run(f"{environment}/bin/python", "-m", "pip", "install", *offline, *given)


def download_packages(wheel: pathlib.Path) -> pathlib.Path:
    """Returns a folder with the packages that the wheel's environments need. Skips the test if they cannot be had."""
    lock = command_line.ROOT / "requirements.lock"
    wanted = hashlib.sha256(lock.read_bytes() + (command_line.ROOT / "setup.py").read_bytes()).hexdigest()[:16]
    with cache_lib.hold("wheels-lock") as cache:
        folder = cache / f"wheels-{sys.implementation.cache_tag}-{wanted}"
        if not folder.exists():
            new = pathlib.Path(f"{folder}.new")
            options = ("--quiet", "--only-binary", ":all:", "--constraint", lock, "--dest", new)
            command = (sys.executable, "-m", "pip", "download", *options, f"{wheel}[convert,numpy]", "setuptools")
            done = command_line.run_other(*command)
            if done.returncode:
                pytest.skip(f"what the wheel needs cannot be downloaded: {done.stderr[-1000:]}")
            (new / wheel.name).unlink()
            os.replace(new, folder)
    return folder


@pytest.fixture(scope="module")
def wheel() -> pathlib.Path:
    (found,) = DIST.glob("imagebeam-*.whl")
    return found


@pytest.fixture(scope="module")
def bare(wheel: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bare]:
    if shutil.which("mmdebstrap") is None or os.geteuid() != 0:
        pytest.skip("the wheel is tried as root, with mmdebstrap: apt-get install mmdebstrap")
    if sys.version_info[:2] not in SUITES:
        pytest.skip("no Debian has this Python: make PYTHON=python3.11 wheel-test")
    folder = tmp_path_factory.mktemp("bare")
    archive = debian.make_root(SUITES[sys.version_info[:2]], "python3", "python3-venv")
    unpacked = command_line.run_other("tar", "--extract", "--exclude=./dev/*", "--file", archive, "--directory", folder)
    assert unpacked.returncode == 0, unpacked.stderr
    for name in ("wheels", "dist"):
        (folder / name).mkdir()
    shutil.copytree(test_golden.IMAGES, folder / "images")
    try:
        yield Bare(folder, download_packages(wheel))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def dataset(bare: Bare) -> str:
    """A dataset that the wheel wrote."""
    bare.install("/convert", "imagebeam[convert]")
    given = ("--input", "/images", "--output", "/out", "--set", "output.num_shards=3", "--quiet")
    bare.run("/convert/bin/imagebeam", "convert", *given)
    return "/out"


def test_wheel_holds_all_of_the_packages_and_nothing_else(wheel: pathlib.Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    held = {name for name in names if name.startswith("imagebeam/") and not name.endswith(".so")}
    wanted = {
        ("" if source == "imagebeam" else "imagebeam/") + str(path.relative_to(command_line.ROOT))
        for source in SOURCES
        for path in (command_line.ROOT / source).rglob("*")
        if path.suffix in (".py", ".pyi", ".yaml", ".css", ".html") or path.name == "py.typed"
    }
    assert held == wanted
    others = {name.partition("/")[0] for name in names - held if not name.startswith("imagebeam/")}
    assert others == {"imagebeam.libs", "imagebeam-0.1.0.dist-info"}


def test_debian_has_no_compiler_and_no_image_library(bare: Bare) -> None:
    assert not [name for name in ("gcc", "cc", "clang") if (bare.folder / "usr/bin" / name).exists()]
    libraries = bare.run("ldconfig", "--print-cache")
    assert "libc.so" in libraries
    assert not [name for name in ("jpeg", "libpng") if name in libraries]


def test_wheel_writes_the_golden_bytes(bare: Bare, dataset: str) -> None:
    test_golden.assert_golden(datasets.shard_digests(bare.folder / dataset.lstrip("/")))


def test_trainer_without_beam_and_tensorflow_learns_with_the_decoder_in_c(bare: Bare, dataset: str) -> None:
    bare.install("/train", "imagebeam[numpy]")
    decodes_png, library, resizer, turner, there, losses = json.loads(
        bare.run("/train/bin/python", "-c", TRAIN, dataset)
    )
    assert (decodes_png, there) == (1, [])
    assert library.startswith("libjpeg-turbo ") and library in resizer and turner.startswith("TurboJPEG ")
    assert sum(losses[-10:]) < sum(losses[:10])


def test_source_distribution_without_a_compiler_installs_what_needs_none(bare: Bare) -> None:
    bare.install("/plain", "setuptools>=77")  # of Debian's venv it is older
    (path,) = DIST.glob("imagebeam-*.tar.gz")
    bare.install("/plain", "--no-build-isolation", f"/dist/{path.name}[numpy]")
    code = "from imagebeam.reader import image_decoder as d; print(d.library())"
    assert bare.run("/plain/bin/python", "-c", code) == "None\n"


def test_source_distribution_holds_the_code_in_c() -> None:
    (path,) = DIST.glob("imagebeam-*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {f"imagebeam/{each.name}" for each in (command_line.ROOT / "imagebeam").glob("*.[ch]")}
    assert wanted and wanted <= names
    assert not [name for name in names if name.startswith("tests")]
