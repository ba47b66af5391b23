"""The commands and snippets of the pages on masks and tables, run as they stand."""

from __future__ import annotations

import io
import pathlib
import re
import shlex
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests import command_line, image_sets

pytestmark = pytest.mark.integration

PAGES = command_line.ROOT / "docs" / "recipes"


def blocks(page: str, language: str) -> list[str]:
    """Returns the code blocks of a page in one language."""
    return re.findall(rf"```{language}\n(.*?)```", (PAGES / f"{page}.md").read_text("utf-8"), re.DOTALL)


def run_command(page: str, number: int, folder: pathlib.Path, *more: str) -> None:
    """Runs a command of a page with addresses in `folder` and all images in one split."""
    program, *arguments = shlex.split(blocks(page, "sh")[number].replace("\\\n", ""))
    assert program == "imagebeam"
    for index, name in enumerate(arguments[:-1]):
        if name in ("--input", "--output") or arguments[index + 1].endswith(".yaml"):
            arguments[index + 1] = str(folder / arguments[index + 1])
    command_line.succeed(*arguments, "--workers", "1", *more, here=True)


def run_snippets(page: str, folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Runs the Python of a page beside its `shards`; returns its variables."""
    monkeypatch.chdir(folder)
    left: dict[str, Any] = {}
    for code in blocks(page, "python"):
        exec(code, left)
    return left


ONE_SPLIT = ("--set", "split={by: none}")


def write_images(folder: pathlib.Path, names: list[str]) -> None:
    for index, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(image_sets.make_image(index, size=(24, 16)))


def write_mask(path: pathlib.Path, classes: np.ndarray, mode: str = "L") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = Image.frombytes(mode, (classes.shape[1], classes.shape[0]), classes.tobytes())
    if mode == "P":
        picture.putpalette(list(range(255, -1, -1)) * 3)
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    path.write_bytes(buffer.getvalue())


def test_segmentation_page(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    classes = np.arange(24 * 16, dtype=np.int64).reshape(16, 24).astype(np.uint8) % 151
    root = tmp_path / "ADEChallengeData2016"
    for split, name in (("training", "ADE_train_00000001"), ("validation", "ADE_val_00000001")):
        write_images(root, [f"images/{split}/{name}.jpg"])
        write_mask(root / f"annotations/{split}/{name}.png", classes)
    run_command("segmentation", 0, tmp_path)
    left = run_snippets("segmentation", tmp_path, monkeypatch)
    ((image, found),) = left["train"]
    np.testing.assert_array_equal(found.numpy()[:, :, 0], classes)
    np.testing.assert_array_equal(left["classes"], classes)
    assert image.shape == left["image"].shape == (16, 24, 3)


def test_segmentation_page_for_pascal_voc(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    classes = np.arange(24 * 16, dtype=np.int64).reshape(16, 24).astype(np.uint8) % 21
    root = tmp_path / "VOCdevkit" / "VOC2012"
    write_images(root, ["JPEGImages/2007_000027.jpg", "JPEGImages/2007_000032.jpg"])
    write_mask(root / "SegmentationClass/2007_000032.png", classes, "P")
    (tmp_path / "voc.yaml").write_text(blocks("segmentation", "yaml")[0])
    run_command("segmentation", 1, tmp_path, *ONE_SPLIT)
    left = run_snippets("segmentation", tmp_path, monkeypatch)
    ((_, found),) = left["train"]
    np.testing.assert_array_equal(found.numpy()[:, :, 0], classes)


@pytest.mark.parametrize("form", [0, 1], ids=["list", "row for each"])
def test_captions_page(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, form: int) -> None:
    write_images(tmp_path / "photos", ["a.jpg", "b.jpg"])
    table = re.findall(r"```\n(.*?)```", (PAGES / "captions.md").read_text("utf-8"), re.DOTALL)[form]
    (tmp_path / "photos" / ("captions.jsonl", "captions.csv")[form]).write_text(table)
    run_command("captions", form, tmp_path, *ONE_SPLIT)
    left = run_snippets("captions", tmp_path, monkeypatch)
    said = [[b"A child in a dress.", b"A girl."], [b"A dog runs."]]
    assert sorted(captions.numpy().tolist() for _, captions in left["train"]) == said
    assert [each.encode() for each in left["captions"]] in said


@pytest.mark.parametrize("form", [0, 1], ids=["separator", "columns"])
def test_multilabel_page(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, form: int) -> None:
    folder = tmp_path / ("photos", "celeba")[form]
    write_images(folder, (["a.jpg", "b.jpg", "c.jpg"], ["000001.jpg", "000002.jpg"])[form])
    table = re.findall(r"```\n(.*?)```", (PAGES / "multilabel.md").read_text("utf-8"), re.DOTALL)[form]
    (folder / ("labels.csv", "list_attr_celeba.csv")[form]).write_text(table)
    run_command("multilabel", form, tmp_path, *ONE_SPLIT)
    left = run_snippets("multilabel", tmp_path, monkeypatch)
    found = sorted(vector.numpy().tolist() for _, vector in left["train"])
    assert found == ([[0, 0, 0], [0, 0, 1], [1, 1, 0]], [[0, 0, 1], [0, 1, 1]])[form]
    assert left["names"] in ([["cat", "dog"], [], ["owl"]], [["Smiling", "Young"], ["Young"]])[form]


def test_regression_page(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = ["image,target,x,y", *(f"{index}.jpg,{index}.5,0.25,{'' if index == 7 else 0.75}" for index in range(8))]
    write_images(tmp_path / "photos", [f"{index}.jpg" for index in range(8)])
    (tmp_path / "photos" / "targets.csv").write_text("\n".join(rows))
    run_command("regression", 1, tmp_path, *ONE_SPLIT)
    left = run_snippets("regression", tmp_path, monkeypatch)
    found = sorted(targets.numpy().tolist() for _, targets in left["train"])
    assert found == [[index + 0.5, 0.25, -1.0 if index == 7 else 0.75] for index in range(8)]
    assert sorted(left["batch"]["label"].numpy().tolist()) == [index + 0.5 for index in range(8)]
