"""Several images in one example, from a table to records, read back as training scripts do."""

from __future__ import annotations

import io
import json
import logging
import os
import pathlib
import re
import shlex
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import imagebeam
from imagebeam import errors, example, records
from imagebeam.pipelines import convert, inspect_dataset, verify_dataset
from tests import command_line, datasets, docs_pages, image_sets, snapshot_sets

TURNED, BROKEN = 3, 5  # pairs whose second image asks for a turn, and is cut short
SIZE = (40, 24)  # width and height of the stored images
SECTIONS: dict[str, Any] = {
    "source": {
        "by": "manifest",
        "manifest": {
            "path": "pairs.csv",
            "image": "before",
            "key": "id",
            "further": {"after": "after", "map": "maps/{id}.*"},
        },
    },
    "label": {"by": "column", "column": "kind"},
    "split": {"by": "none"},
    "image": {"resize": [SIZE[1], SIZE[0]]},
    "rejects": {"max_fraction": 0.5},
}


def write_pair(root: pathlib.Path, index: int, seed: int) -> None:
    options = {"exif": image_sets.turned()} if index == TURNED else {}
    after = image_sets.make_image(seed, size=(30 + index, 20), **options)
    (root / f"after/{index}.jpg").write_bytes(after[:300] if index == BROKEN else after)


def write_pairs(root: pathlib.Path, count: int = 6) -> None:
    """Writes triples of images, each of another size, and their table with one row whose second image is missing."""
    for folder in ("before", "after", "maps"):
        (root / folder).mkdir(parents=True)
    rows = ["id,before,after,kind", "gone,before/0.jpg,after/gone.jpg,town"]
    for index in range(count):
        (root / f"before/{index}.jpg").write_bytes(image_sets.make_image(index))
        (root / f"maps/{index}.png").write_bytes(image_sets.make_image(index, "PNG", "L", (20, 20 + index)))
        write_pair(root, index, 100 + index)
        rows.append(f"{index},before/{index}.jpg,after/{index}.jpg,{('town', 'wood')[index % 2]}")
    (root / "pairs.csv").write_text("\n".join(rows) + "\n")


def rejected(folder: pathlib.Path) -> dict[str, tuple[str, str]]:
    lines = map(json.loads, (folder / "rejects.jsonl").read_text().splitlines())
    return {each["key"]: (each["reason"], each["detail"]) for each in lines}


def pixels(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"), int)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("pairs") / "in"
    write_pairs(folder)
    return folder


@pytest.fixture(scope="module")
def output(root: pathlib.Path) -> pathlib.Path:
    folder = root.parent / "out"
    result = convert.convert({**SECTIONS, **_addresses(root, folder)}, workers=1)
    assert result.catalog.counts.written == 5
    assert any("statistics and duplicates are of the first image alone" in note for note in result.plan.notes)
    return folder


def _addresses(root: pathlib.Path, output: pathlib.Path) -> dict[str, Any]:
    return {"source": {**SECTIONS["source"], "uri": str(root)}, "output": {"uri": str(output)}}


def test_all_images_of_an_example_are_turned_and_resized_alike(root: pathlib.Path, output: pathlib.Path) -> None:
    found = {values["image/key"].decode(): values for values in datasets.read(output)}
    assert sorted(found) == ["0", "1", "2", "3", "4"]
    for key, values in found.items():
        for name, path in (("", "before/{}.jpg"), ("after/", "after/{}.jpg"), ("map/", "maps/{}.png")):
            picture = Image.open(root / path.format(key))
            if name == "after/" and key == str(TURNED):
                picture = picture.transpose(Image.Transpose.ROTATE_270)
            expected = np.asarray(picture.convert("RGB").resize(SIZE, Image.Resampling.LANCZOS), int)
            assert np.abs(pixels(values[f"image/{name}encoded"]) - expected).mean() < 6
            assert (values[f"image/{name}height"], values[f"image/{name}width"]) == (SIZE[1], SIZE[0])
            assert values[f"image/{name}format"] == (b"png" if name == "map/" else b"jpeg")


def test_example_with_a_bad_image_is_rejected_by_file_and_column(root: pathlib.Path, output: pathlib.Path) -> None:
    found = rejected(output)
    assert {key: reason for key, (reason, _) in found.items()} == {"gone": "not_found", str(BROKEN): "truncated"}
    assert found["gone"][1].endswith(f"column 'after': there is no file '{root}/after/gone.jpg'")
    assert found[str(BROKEN)][1].startswith(f"column 'after', '{root}/after/{BROKEN}.jpg': ")


def test_verify_decodes_further_images(output: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert verify_dataset.verify(output, decode=True).problems == ()
    check = verify_dataset._DecodeRecord(imagebeam.open_dataset(output).catalog, is_raw=False)
    with next(output.glob("train-*.tfrecord")).open("rb") as file:
        record = next(iter(records.read_records(file))).data
    values = example.parse_example(record)
    first = values["image/after/encoded"][0]
    broken = record.replace(first, first[:-40] + bytes(40))
    assert re.match(r"image '\d': image/after: (corrupt|truncated|undecodable): ", str(check(broken)))
    assert check(record) is None


def test_inspect_saves_all_images_of_an_example(output: pathlib.Path, tmp_path: pathlib.Path) -> None:
    catalog = imagebeam.open_dataset(output).catalog
    uris = inspect_dataset.save_images(str(output), catalog, "train", 1, tmp_path)
    names = [uri.rpartition("/")[2] for uri in uris]
    [stem] = re.findall(r"^(train-00000-\w+-\d)\.jpeg$", names[0])
    assert names[1:] == [f"{stem}.after.jpeg", f"{stem}.map.png"]
    assert [Image.open(uri).size for uri in uris] == [SIZE] * 3


def test_readers_give_further_images_as_bytes(output: pathlib.Path) -> None:
    dataset = imagebeam.open_dataset(output)
    wanted = {values["image/key"]: values["image/after/encoded"] for values in datasets.read(output)}
    keys = ("image/key", "image/after/encoded")
    batches = dataset.as_numpy("train", 5, image_size=8, crop="squash", features=keys, num_epochs=1)
    [batch] = list(batches)
    assert dict(zip(batch["image/key"], batch["image/after/encoded"])) == wanted
    source = dataset.as_grain("train", features=keys)
    assert {each["image/key"]: each["image/after/encoded"] for each in (source[i] for i in range(5))} == wanted


@pytest.mark.parametrize(
    ("crop", "flip", "is_logged"), [("random", False, True), ("squash", True, True), ("squash", False, False)]
)
def test_crop_that_changes_the_first_image_alone_is_logged(
    output: pathlib.Path, caplog: pytest.LogCaptureFixture, crop: str, flip: bool, is_logged: bool
) -> None:
    dataset = imagebeam.open_dataset(output)
    with caplog.at_level(logging.WARNING, "imagebeam.dataset"):
        dataset.as_tf("train", 2, image_size=8, crop=crop, flip=flip, features=("image/after/encoded",))
    moved = f"image/after/encoded: crop={crop!r}, flip={flip} move the pixels of the image only"
    assert (moved in caplog.text) == is_logged


def test_tensorflow_datasets_decodes_all_images(output: pathlib.Path) -> None:
    tfds = pytest.importorskip("tensorflow_datasets")
    builder = tfds.builder_from_directory(str(output))
    found = list(builder.as_dataset("train"))
    assert len(found) == 5
    for each in found:
        assert {each[f"image/{name}encoded"].shape for name in ("", "after/", "map/")} == {(SIZE[1], SIZE[0], 3)}


def test_snippet_of_the_page_gives_pairs_with_one_crop(output: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(output.parent)
    (output.parent / "records").symlink_to(output)
    [snippet] = docs_pages.blocks("recipes/tables.md", "python")
    train = docs_pages.run_snippet(snippet.replace("SIDE = 224", "SIDE = 16").replace('"train", 16', '"train", 4'))[
        "train"
    ]
    before, after = next(iter(train))
    assert before.shape == after.shape == (4, 16, 16, 3) and before.dtype == tf.uint8


def test_snippet_of_the_page_on_pairs_reads_the_pairs_of_folders(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for side in ("input", "target"):
        (tmp_path / side).mkdir()
        for index in range(20):
            (tmp_path / side / f"{index}.png").write_bytes(image_sets.make_image(index, "PNG"))
    pairs = {"image": r"input/(.*)\.png", "others": {"target": r"target/\1.png"}}
    sections = {"source": {"by": "pairs", "uri": str(tmp_path), "pairs": pairs}, "label": {"by": "none"}}
    output = {"uri": str(tmp_path / "records")}
    convert.convert({**sections, "split": {"by": "none"}, "output": output}, workers=1)
    monkeypatch.chdir(tmp_path)
    [snippet, _] = docs_pages.blocks("recipes/pairs.md", "python")
    first, target = next(iter(docs_pages.run_snippet(snippet)["train"]))
    assert np.array_equal(first, target)


def test_update_reads_the_examples_whose_further_image_changed(tmp_path: pathlib.Path) -> None:
    write_pairs(tmp_path / "in")
    sections = {**SECTIONS, "image": {}, "update": {"compare": "content"}}
    output = tmp_path / "out"
    snapshot_sets.update(tmp_path / "in", output, **sections)
    write_pair(tmp_path / "in", 1, seed=999)
    os.utime(tmp_path / "in/after/2.jpg", (1, 1))  # the same bytes with another time
    result = snapshot_sets.update(tmp_path / "in", output, **sections)
    counts = {name: result.plan.snapshot[name] for name in ("added", "changed", "removed", "unchanged")}
    assert counts == {"added": 0, "changed": 1, "removed": 0, "unchanged": 4}
    shards = snapshot_sets.latest(output).glob("train-*.tfrecord")
    found = [
        example.parse_example(each.data)
        for path in shards
        for each in records.read_records(io.BytesIO(path.read_bytes()))
    ]
    changed = {values["image/key"][0]: values["image/after/encoded"][0] for values in found}
    assert changed == {b"1": (tmp_path / "in/after/1.jpg").read_bytes()}
    assert rejected(snapshot_sets.latest(output)).keys() == {"gone", str(BROKEN)}


def test_same_input_is_the_same_dataset_and_a_changed_further_image_another(
    root: pathlib.Path, output: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    sections = {**SECTIONS, **_addresses(root, output)}
    further = dict(reversed(SECTIONS["source"]["manifest"]["further"].items()))
    sections["source"] = {**sections["source"], "manifest": {**SECTIONS["source"]["manifest"], "further": further}}
    assert convert.convert(sections, workers=1).state != "committed"
    os.utime(root / "after/0.jpg", (1, 1))
    with pytest.raises(errors.ImagebeamError, match="--overwrite"):
        convert.convert(sections, workers=1)


def test_commands_of_the_page_for_depth_and_for_halves_run(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("scenes/rgb", "scenes/depth", "facades/train", "facades/val"):
        (tmp_path / folder).mkdir(parents=True)
    for number in range(40):  # enough for both splits
        Image.new("RGB", (24, 16), "red").save(tmp_path / f"scenes/rgb/{number}.jpg")
        Image.fromarray(np.full((16, 24), 4000 + number, np.uint16)).save(tmp_path / f"scenes/depth/{number}.png")
        for split in ("train", "val"):
            Image.new("RGB", (48, 24), "blue").save(tmp_path / f"facades/{split}/{number}.png")
    monkeypatch.chdir(tmp_path)
    blocks = "\n".join(docs_pages.blocks("recipes/pairs.md", "sh")).replace("\\\n", " ").splitlines()
    depth, halves = [line for line in blocks if "--input scenes" in line or "--input facades" in line]
    for command, output in ((depth, "depth"), (halves, "halves")):
        arguments = shlex.split(command)[1:]
        arguments[arguments.index("--output") + 1] = output
        command_line.succeed(*arguments)
        found = [datasets.read_lists(tmp_path / output, split) for split in ("train", "validation")]
        assert sum(map(len, found)) == (40 if output == "depth" else 80)
