"""HEIC and JPEG XL, by the packages that add them to Pillow."""

from __future__ import annotations

import io
import json
import pathlib

import numpy as np
import pytest
from PIL import Image

from tests import command_line, datasets
from tests.servers import pillow_plugins

pytestmark = pytest.mark.integration

HEIGHT, WIDTH = 40, 64
TURNED = 6  # EXIF orientation: to be turned by 90 degrees clockwise

# Writes a picture whose upper left corner is bright. What EXIF data say of the turn holds for the JPEG alone.
WRITE = f"""
import pathlib, sys
import pillow_heif, pillow_jxl
from PIL import Image
pillow_heif.register_heif_opener()
folder = pathlib.Path(sys.argv[1])
picture = Image.new("RGB", ({WIDTH}, {HEIGHT}), (20, 40, 60))
picture.paste((240, 200, 160), (0, 0, {WIDTH // 2}, {HEIGHT // 2}))
exif = Image.Exif()
exif[0x0112] = {TURNED}
picture.save(folder / "plain.heic", quality=95)
picture.save(folder / "turned.heic", quality=95, exif=exif.tobytes())
picture.convert("RGBA").save(folder / "alpha.heic", quality=95)
picture.save(folder / "plain.jxl", lossless=True)
picture.save(folder / "noted.jxl", lossless=True, exif=exif.tobytes())
picture.convert("RGBA").save(folder / "alpha.jxl", lossless=True)
picture.convert("L").save(folder / "gray.jxl", quality=95)
picture.save(folder / "source.jpg", quality=95, exif=exif.tobytes())
with Image.open(folder / "source.jpg") as jpeg:
    jpeg.save(folder / "was_jpeg.jxl", lossless_jpeg=True)
(folder / "source.jpg").unlink()
(folder / "truncated.heic").write_bytes((folder / "plain.heic").read_bytes()[:-200])
(folder / "truncated.jxl").write_bytes((folder / "alpha.jxl").read_bytes()[:-20])
"""


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    return {"PYTHONPATH": str(pillow_plugins.install())}


@pytest.fixture(scope="module")
def images(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("plugins") / "photos" / "corner"
    folder.mkdir(parents=True)
    command_line.run_python(WRITE.replace("sys.argv[1]", repr(str(folder))), environment, exit_code=0)
    return folder.parent


def convert(images: pathlib.Path, output: pathlib.Path, environment: dict[str, str]) -> command_line.Completed:
    where = ["--config", "image_folder", "--input", images, "--output", output]
    settings = ["--set", "rejects.max_fraction=1", "--set", "image.color=keep", "--workers", "1"]
    return command_line.run("convert", *where, *settings, environment=environment)


def test_pictures_are_stored_upright(images: pathlib.Path, environment: dict[str, str], tmp_path: pathlib.Path) -> None:
    done = convert(images, tmp_path / "out", environment)
    assert done.returncode == 0, done.stderr
    stored = {}
    for example in datasets.read(tmp_path / "out"):
        name = pathlib.PurePath(example["image/key"].decode()).name
        with Image.open(io.BytesIO(example["image/encoded"])) as picture:
            stored[name] = (picture.format, picture.mode, np.asarray(picture.convert("L")).astype(int))
    formats = {name: kind for name, (*kind, _) in stored.items()}
    assert formats == {
        "plain.heic": ["JPEG", "RGB"],
        "turned.heic": ["JPEG", "RGB"],
        "alpha.heic": ["PNG", "RGBA"],
        "plain.jxl": ["JPEG", "RGB"],
        "noted.jxl": ["JPEG", "RGB"],
        "alpha.jxl": ["PNG", "RGBA"],
        "gray.jxl": ["JPEG", "L"],
        "was_jpeg.jxl": ["JPEG", "RGB"],
    }
    for name, (_, _, pixels) in stored.items():
        is_turned = name in ("turned.heic", "was_jpeg.jxl")
        assert pixels.shape == ((WIDTH, HEIGHT) if is_turned else (HEIGHT, WIDTH)), name
        bright = np.zeros((HEIGHT, WIDTH), bool)
        bright[: HEIGHT // 2, : WIDTH // 2] = True
        assert (((pixels > 120) == (np.rot90(bright, -1) if is_turned else bright)).mean()) > 0.97, name
    rejects = datasets.rejects(tmp_path / "out")
    assert {pathlib.PurePath(key).name for key in rejects} == {"truncated.heic", "truncated.jxl"}
    assert set(rejects.values()) == {"undecodable"}
    libraries = json.loads((tmp_path / "out" / "catalog.json").read_text())["inputs"]["others"]["libraries"]
    assert (libraries["pillow_heif"], libraries["pillow_jxl"]) == pillow_plugins.VERSIONS


def test_without_the_packages_each_reject_names_the_one_to_install(
    images: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    assert convert(images, tmp_path / "out", {}).returncode == 3
    lines = [json.loads(line) for line in (tmp_path / "out" / "rejects.jsonl").read_text().splitlines()]
    packages = {"heic": "pillow-heif", "jxl": "pillow-jxl-plugin"}
    for line in lines:
        extension = line["key"].rpartition(".")[2]
        assert f"pip install {packages[extension]}" in line["detail"]
    assert len(lines) == len(list(images.rglob("*.*")))
