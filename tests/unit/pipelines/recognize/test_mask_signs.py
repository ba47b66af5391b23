"""What a few masks say of all: black and white, or classes."""

from __future__ import annotations

import pathlib

import numpy as np
import PIL.Image
import pytest

from imagebeam.pipelines import init_config, job, request
from imagebeam.pipelines.config import model as config_lib
from imagebeam.pipelines.recognize import mask_signs, recognize_folder
from tests import folder_shapes, image_sets
from tests.folder_shapes import images

_SMOOTHED = np.array([0] * 700 + [255] * 700 + [*range(20, 156)], np.uint8).reshape(48, 32)
_SETTINGS = [r"source.masks.image=images/(.*)\.jpg", r"source.masks.mask=masks/\1.png", "split={by: none}"]
_COLORS = {"background": [0, 0, 0], "foreground": [255, 255, 255]}
_NOTE = (
    "masks/0.png and 3 other masks (no more were looked at) have only the numbers 0 and 255, and these are the classes "
    "that are stored; for the classes 0 and 1 add "
    '--set "source.masks.colors={background: [0, 0, 0], foreground: [255, 255, 255]}"'
)


def png(numbers: np.ndarray) -> bytes:
    return image_sets.save(PIL.Image.fromarray(numbers.astype(np.uint8), "L"))


def write(root: pathlib.Path, highest: int) -> pathlib.Path:
    """Writes four images with masks of the numbers 0 and `highest`."""
    mask = png(np.repeat([[0, highest]], 32, 1).repeat(48, 0))
    return folder_shapes.write(root, images("images/#.jpg") | {f"masks/{n}.png": mask for n in range(4)})


def make_config(root: pathlib.Path, *more: str) -> config_lib.Config:
    return config_lib.load_config("segmentation", [f"source.uri={root}", f"output.uri={root}-out", *_SETTINGS, *more])


@pytest.mark.parametrize(
    ("highest", "more", "notes"),
    [
        pytest.param(255, (), (_NOTE,), id="black-and-white"),
        pytest.param(1, (), (), id="classes"),
        pytest.param(255, ("source.masks.colors={b: [0, 0, 0], w: [255, 255, 255]}",), (), id="with-colors"),
        pytest.param(255, (r"source.masks.mask=none/\1.png",), (), id="without-masks"),
    ],
)
def test_masks_in_black_and_white_are_noted_with_the_remedy(
    tmp_path: pathlib.Path, highest: int, more: tuple[str, ...], notes: tuple[str, ...]
) -> None:
    config = make_config(write(tmp_path / "in", highest), *more)
    assert job.make_job(request.Checked(config, 1), request.RunFiles("run")).settings.hints == notes


def test_smoothed_masks_are_noted(tmp_path: pathlib.Path) -> None:
    root = write(tmp_path / "in", 255)
    PIL.Image.fromarray(_SMOOTHED, "L").save(root / "masks" / "0.png")
    (note,) = job.make_job(request.Checked(make_config(root), 1)).settings.hints
    assert note == (
        "most pixels of masks/0.png and 3 other masks (no more were looked at) are nearly black or white, the others "
        "have many numbers, and each number is a class that is stored: if JPEG or a resize has smoothed them, store "
        "exact numbers first"
    )


@pytest.mark.parametrize(
    ("folders", "smoothed"),
    [
        pytest.param([f"kind{n}/imgs" for n in range(6)], "kind4/imgs", id="two-levels"),
        pytest.param([f"patient{n:02}" for n in range(40)], "patient30", id="many-folders"),
        pytest.param(["train/set", "validation/set"], "validation/set", id="splits"),
        pytest.param([f"set/{n:03}" for n in range(200)], "set/150", id="many-folders-below-one"),
    ],
)
def test_masks_of_several_folders_are_looked_at(tmp_path: pathlib.Path, folders: list[str], smoothed: str) -> None:
    exact = png(np.arange(48 * 32).reshape(48, 32) % 2)
    tree = {
        f"{folder}/{n}.png": png(_SMOOTHED) if folder == smoothed else exact for folder in folders for n in range(4)
    }
    root = folder_shapes.write(tmp_path / "in", {name.replace(".png", ".jpg"): "x" for name in tree} | tree)
    overrides = [f"source.uri={root}", r"source.masks.image=(.*)\.jpg", r"source.masks.mask=\1.png", "split={by: none}"]
    (note,) = mask_signs.notes_on_numbers(config_lib.load_config("segmentation", overrides))
    assert note.startswith(f"most pixels of {folders[0]}/0.png and 7 other masks (no more were looked at) are nearly")


@pytest.mark.parametrize("side", [100, 1024])
def test_recognized_tiff_masks_without_compression_become_0_and_1(tmp_path: pathlib.Path, side: int) -> None:
    mask = image_sets.save(PIL.Image.fromarray((np.eye(side) * 255).astype(np.uint8), "L"), "TIFF")
    tree = images("images/#.jpg") | {f"masks/{n}.tif": mask for n in range(4)}
    found = recognize_folder.recognize(str(folder_shapes.write(tmp_path, tree)))
    assert found.sure is not None
    assert found.sure.settings["source.masks.colors"] == _COLORS


def test_config_that_init_writes_notes_smoothed_masks(tmp_path: pathlib.Path) -> None:
    root = write(tmp_path / "in", 255)
    PIL.Image.fromarray(_SMOOTHED, "L").save(root / "masks" / "0.png")
    written = init_config.make(str(root))
    assert "# Note: most pixels of masks/0.png and 3 other masks (no more were looked at) are nearly" in written.text
    assert recognize_folder.describe(written.found, written.chosen)[-1][1].startswith("most pixels of masks/0.png")


def test_remedy_of_the_note_stores_0_and_1(tmp_path: pathlib.Path) -> None:
    option = _NOTE.partition('"')[2].rstrip('"')
    policy = job.mask_policy(make_config(tmp_path, option))
    assert policy.colors is not None
    grays = np.repeat(np.arange(256)[:, None], 3, 1)
    assert policy.colors.classes_of_indices(np.array([[0, 255]]), grays).tolist() == [[0, 1]]


@pytest.mark.parametrize(("highest", "colors"), [(255, _COLORS), (1, None)])
def test_recognized_masks_of_0_and_255_become_0_and_1(tmp_path: pathlib.Path, highest: int, colors: object) -> None:
    found = recognize_folder.recognize(str(write(tmp_path, highest)))
    assert found.sure is not None
    assert found.sure.settings.get("source.masks.colors") == colors
    assert bool(found.sure.notes) == (colors is not None)


def test_splits_in_a_folder_of_both_are_those_of_masks(tmp_path: pathlib.Path) -> None:
    mask = png(np.arange(48 * 32).reshape(48, 32) % 2)
    tree = images("trainval/{train,val}/image/#.png")
    tree |= {f"trainval/{split}/label/{n}.png": mask for split in ("train", "val") for n in range(4)}
    found = recognize_folder.recognize(str(folder_shapes.write(tmp_path, tree)))
    assert found.sure is not None
    assert found.sure.settings["source.masks.image"] == r"trainval/(?P<split>train|val)/image/(?P<name>[^/]*)\.png"


@pytest.mark.parametrize("folder", ["", "a/imgs/"])
@pytest.mark.parametrize(("highest", "is_mask"), [(1, True), (255, True), (100, False)])
def test_png_beside_a_jpeg_of_its_name_is_its_mask_if_it_has_few_numbers(
    tmp_path: pathlib.Path, folder: str, highest: int, is_mask: bool
) -> None:
    numbers = np.arange(48 * 32) % (highest + 1) if not is_mask else np.arange(48 * 32) % 2 * highest
    mask = png(numbers.reshape(48, 32))
    tree = images(f"{folder}#.jpg") | {f"{folder}{n}.png": mask for n in range(4)}
    found = recognize_folder.recognize(str(folder_shapes.write(tmp_path, {**tree, "b/imgs/readme.txt": "x"})))
    assert (found.sure is not None and found.sure.preset == "segmentation") == is_mask
    if found.sure is not None and is_mask:
        name = r"(?P<name>.+/[^/]+)\.jpg" if folder else r"(?P<name>.*)\.jpg"
        assert found.sure.settings["source.masks.image"] == name
        assert found.sure.settings["source.masks.mask"] == r"\g<name>.png"
        where = " in a/imgs (the first such folder)" if folder else ""
        assert found.sure.evidence == (
            f"4 of 4 images{where} have a .png file of the same name beside them, which holds the numbers of classes"
        )


def test_png_of_one_bit_beside_a_jpeg_of_its_name_is_its_mask(tmp_path: pathlib.Path) -> None:
    mask = image_sets.save(PIL.Image.new("1", (32, 48)))
    tree = images("#.jpg") | {f"{n}.png": mask for n in range(4)}
    found = recognize_folder.recognize(str(folder_shapes.write(tmp_path, tree)))
    assert found.sure is not None and found.sure.preset == "segmentation"
    assert "source.masks.colors" not in found.sure.settings


def test_evidence_of_masks_beside_images_says_of_how_many_and_where(tmp_path: pathlib.Path) -> None:
    tree = images("p1/#.png", "p2/#.png", "p1/#_mask.png", "p2/#_mask.png", numbers=range(5)) | images(
        "p1/x#.png", numbers=[1, 2]
    )
    found = recognize_folder.recognize(str(folder_shapes.write(tmp_path, tree)))
    assert found.candidates[0].evidence == (
        "5 of 7 images in p1 (the first such folder) have a file with _mask.png at the end of its name beside them"
    )
