"""Images with masks, from folders to records, read back as a training script does: plain TensorFlow."""

from __future__ import annotations

import io
import json
import os
import pathlib
import shutil
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import imagebeam
from imagebeam import catalog as catalog_lib
from imagebeam import errors, storage
from imagebeam.pipelines import convert
from imagebeam.pipelines.config import model as config_lib
from imagebeam.pipelines.config import source_section
from tests import datasets, image_sets, mask_forms

SPEC = {
    "image/encoded": tf.io.FixedLenFeature([], tf.string),
    "image/key": tf.io.FixedLenFeature([], tf.string),
    "image/height": tf.io.FixedLenFeature([], tf.int64),
    "image/width": tf.io.FixedLenFeature([], tf.int64),
    "image/segmentation/class/encoded": tf.io.FixedLenFeature([], tf.string),
    "image/segmentation/class/format": tf.io.FixedLenFeature([], tf.string),
}
PALETTE = [value for index in range(256) for value in (index * 7 % 256, 255 - index, index * 3 % 256)]


def classes(seed: int, size: tuple[int, int], num_classes: int = 151) -> np.ndarray:
    """Returns the classes of a mask's pixels; `size` is (width, height)."""
    return np.random.default_rng(seed).integers(0, num_classes, (size[1], size[0]), np.uint8)


def mask_png(pixels: np.ndarray, palette: bool = False, **options: Any) -> bytes:
    picture = Image.fromarray(pixels)
    if palette:
        picture = Image.frombytes("P", picture.size, pixels.tobytes())
        picture.putpalette(PALETTE)
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", **options)
    return buffer.getvalue()


def write_pairs(root: pathlib.Path, num_train: int = 6, num_validation: int = 3) -> dict[str, np.ndarray]:
    """Writes folders like ADE20K's, each pair of another size; returns the classes by the image's key."""
    masks = {}
    for split, count in (("training", num_train), ("validation", num_validation)):
        for folder in ("images", "annotations"):
            (root / folder / split).mkdir(parents=True)
        for index in range(count):
            size = (20 + index, 12 + 2 * index)
            key = f"images/{split}/ADE_{index:08d}.jpg"
            masks[key] = classes(index, size)
            (root / key).write_bytes(image_sets.make_image(index, size=size))
            (root / mask_of(key)).write_bytes(mask_png(masks[key]))
    return masks


def mask_of(key: str) -> str:
    return key.replace("images/", "annotations/").replace(".jpg", ".png")


def convert_preset(root: pathlib.Path | str, output: pathlib.Path, *overrides: str) -> convert.ConvertResult:
    config = config_lib.load_config(
        "segmentation", [f"source.uri={root}", f"output.uri={output}", "rejects.max_fraction=0.5", *overrides]
    )
    return convert.convert(config, workers=1)


def read(output: pathlib.Path, split: str) -> dict[str, dict[str, Any]]:
    """Returns the records of a split by their keys, as TensorFlow parses them."""
    files = sorted(map(str, output.glob(f"{split}-*-of-*")))
    assert files
    parsed = [tf.io.parse_single_example(record, SPEC) for record in tf.data.TFRecordDataset(files)]
    by_key = {each["image/key"].numpy().decode(): each for each in parsed}
    assert len(by_key) == len(parsed)
    return by_key


def details(output: pathlib.Path) -> dict[str, tuple[str, str]]:
    lines = map(json.loads, (output / "rejects.jsonl").read_text().splitlines())
    return {line["key"]: (line["reason"], line["detail"]) for line in lines}


def test_preset_stores_each_image_with_the_mask_of_its_own(tmp_path: pathlib.Path) -> None:
    masks = write_pairs(tmp_path / "in")
    (tmp_path / "in" / "objectInfo150.txt").write_text("Idx Ratio Train Val Name")
    (tmp_path / "in" / "annotations" / "training" / "orphan.png").write_bytes(mask_png(classes(9, (5, 5))))
    result = convert_preset(tmp_path / "in", tmp_path / "out")
    assert result.catalog.counts == catalog_lib.Counts(9, 9, {}, {"mask": 10, "not_included": 1})
    found = {split: read(tmp_path / "out", split) for split in ("train", "validation")}
    assert {split: len(by_key) for split, by_key in found.items()} == {"train": 6, "validation": 3}
    for split, by_key in found.items():
        for key, parsed in by_key.items():
            assert key.split("/")[1] == {"train": "training"}.get(split, split)
            assert parsed["image/encoded"].numpy() == (tmp_path / "in" / key).read_bytes()
            stored = parsed["image/segmentation/class/encoded"].numpy()
            assert stored == (tmp_path / "in" / mask_of(key)).read_bytes()
            assert parsed["image/segmentation/class/format"].numpy() == b"png"
            decoded = tf.io.decode_png(stored, channels=1).numpy()
            np.testing.assert_array_equal(decoded[:, :, 0], masks[key])
            assert decoded.shape == (parsed["image/height"], parsed["image/width"], 1)
    assert not any("class/label" in feature.key for feature in result.catalog.features)
    assert imagebeam.open_dataset(str(tmp_path / "out")).num_examples("train") == 6


@pytest.mark.parametrize(
    ("num_classes", "options"),
    [
        pytest.param(256, {}, id="8 bits, as Pascal VOC"),
        pytest.param(256, {"transparency": 255}, id="8 bits with transparency"),
        pytest.param(16, {"bits": 4}, id="4 bits"),
        pytest.param(4, {"bits": 2}, id="2 bits"),
        pytest.param(2, {"bits": 1}, id="1 bit"),
    ],
)
def test_mask_with_a_palette_is_stored_as_its_indices(
    tmp_path: pathlib.Path, num_classes: int, options: dict[str, Any]
) -> None:
    size = (31, 17)  # no whole bytes in a row of less than 8 bits
    pixels = classes(3, size, num_classes)
    pixels[0, :2] = 0, num_classes - 1
    for folder in ("JPEGImages", "SegmentationClass"):
        (tmp_path / "in" / folder).mkdir(parents=True)
    png = mask_png(pixels, palette=True, **options)
    assert png[24] == options.get("bits", 8) and png[25] == 3  # the bits and the type in the header
    colors = tf.io.decode_png(png, channels=1).numpy()[:, :, 0]
    assert not np.array_equal(colors, pixels)  # what a training would have got, in silence
    for name in ("2007_000032", "2007_000039"):
        (tmp_path / "in" / "JPEGImages" / f"{name}.jpg").write_bytes(image_sets.make_image(1, size=size))
    (tmp_path / "in" / "SegmentationClass" / "2007_000032.png").write_bytes(png)
    result = convert_preset(
        tmp_path / "in",
        tmp_path / "out",
        r"source.masks.image=JPEGImages/(.*)\.jpg",
        r"source.masks.mask=SegmentationClass/\1.png",
        "source.masks.missing=pass_over",
        "split={by: none}",
    )
    assert result.catalog.counts == catalog_lib.Counts(1, 1, {}, {"image_without_mask": 1, "mask": 1})
    (parsed,) = read(tmp_path / "out", "train").values()
    stored = parsed["image/segmentation/class/encoded"].numpy()
    np.testing.assert_array_equal(tf.io.decode_png(stored, channels=1).numpy()[:, :, 0], pixels)
    np.testing.assert_array_equal(np.array(Image.open(io.BytesIO(stored))), pixels)


def test_carvana_is_read_from_its_gifs(tmp_path: pathlib.Path) -> None:
    expected = {}
    for folder in ("train", "train_masks", "test"):
        (tmp_path / "in" / folder).mkdir(parents=True)
    for car in range(12):
        for view in ("01", "16"):
            pixels = classes(car, (31, 17), 2)
            name = f"{car:012x}_{view}"
            (tmp_path / "in/train" / f"{name}.jpg").write_bytes(image_sets.make_image(car, size=(31, 17)))
            mask = mask_forms.save(mask_forms.indexed(pixels, [0, 0, 0, 255, 255, 255]), "GIF", optimize=False)
            (tmp_path / "in/train_masks" / f"{name}_mask.gif").write_bytes(mask)
            expected[f"train/{name}.jpg"] = np.array(Image.open(io.BytesIO(mask)))
            np.testing.assert_array_equal(expected[f"train/{name}.jpg"], pixels)
    (tmp_path / "in/test/0_01.jpg").write_bytes(image_sets.make_image(1))
    config = config_lib.load_config("carvana", [f"source.uri={tmp_path / 'in'}", f"output.uri={tmp_path / 'out'}"])
    result = convert.convert(config, workers=1)
    assert result.catalog.counts == catalog_lib.Counts(24, 24, {}, {"mask": 24, "not_included": 1})
    parts = [read(tmp_path / "out", split) for split in ("train", "validation")]
    assert not {key[:18] for key in parts[0]} & {key[:18] for key in parts[1]}
    for key, parsed in (parts[0] | parts[1]).items():
        stored = tf.io.decode_png(parsed["image/segmentation/class/encoded"], channels=1).numpy()[..., 0]
        np.testing.assert_array_equal(stored, expected[key])


def test_camvid_is_read_by_its_colors(tmp_path: pathlib.Path) -> None:
    colors = {"Animal": (64, 128, 64), "Void": (0, 0, 0), "Sky": (128, 128, 128), "Road": (128, 64, 128)}
    numbers = {"Animal": 0, "Void": 255, "Sky": 1, "Road": 2}
    lines = [f"{name}, {', '.join(map(str, color))}" for name, color in colors.items()]
    (tmp_path / "in").mkdir()
    (tmp_path / "in/class_dict.csv").write_text("name,r,g,b\n" + "\n".join(lines))
    expected = {}
    for split in ("train", "val", "test"):
        (tmp_path / "in" / split).mkdir()
        (tmp_path / "in" / f"{split}_labels").mkdir()
        for index in range(3):
            name = f"0001TP_{index}"
            choice = classes(index, (23, 19), 4)
            drawn = np.array(list(colors.values()), np.uint8)[choice]
            image = image_sets.make_image(index, "PNG", size=(23, 19))
            (tmp_path / "in" / split / f"{name}.png").write_bytes(image)
            Image.fromarray(drawn).save(tmp_path / "in" / f"{split}_labels" / f"{name}_L.png")
            expected[f"{split}/{name}.png"] = np.array(list(numbers.values()))[choice]
    overrides = [f"source.uri={tmp_path / 'in'}", f"output.uri={tmp_path / 'out'}"]
    result = convert.convert(config_lib.load_config("camvid", overrides), workers=1)
    assert result.catalog.counts == catalog_lib.Counts(9, 9, {}, {"mask": 9, "not_included": 1})
    found = {
        **read(tmp_path / "out", "train"),
        **read(tmp_path / "out", "validation"),
        **read(tmp_path / "out", "test"),
    }
    assert found.keys() == expected.keys()
    for key, parsed in found.items():
        stored = tf.io.decode_png(parsed["image/segmentation/class/encoded"], channels=1).numpy()[..., 0]
        np.testing.assert_array_equal(stored, expected[key])
    assert convert.convert(config_lib.load_config("camvid", overrides), workers=1).state == "kept"
    (tmp_path / "in/class_dict.csv").write_text("name,r,g,b\n" + "\n".join(reversed(lines)))
    with pytest.raises(errors.ConfigError, match="holds another dataset"):
        convert.convert(config_lib.load_config("camvid", overrides), workers=1)


def test_pair_that_is_not_whole_is_a_reject_that_names_the_mask(tmp_path: pathlib.Path) -> None:
    masks = write_pairs(tmp_path / "in", num_train=7)
    keys = sorted(key for key in masks if "training" in key)
    missing, small, cut, jpeg, folder, image, _ = keys
    whole = (tmp_path / "in" / mask_of(cut)).read_bytes()
    (tmp_path / "in" / mask_of(missing)).unlink()
    (tmp_path / "in" / mask_of(small)).write_bytes(mask_png(classes(1, (20, 12))))
    (tmp_path / "in" / mask_of(cut)).write_bytes(whole[:-20])
    (tmp_path / "in" / mask_of(jpeg)).write_bytes(image_sets.make_image(3, size=(23, 18)))
    (tmp_path / "in" / mask_of(folder)).unlink()
    (tmp_path / "in" / mask_of(folder)).mkdir()
    (tmp_path / "in" / image).write_bytes((tmp_path / "in" / image).read_bytes()[:-20])
    result = convert_preset(tmp_path / "in", tmp_path / "out", "rejects.max_fraction=0.9")
    assert result.catalog.counts.written == 4
    found = details(tmp_path / "out")
    assert {key: reason for key, (reason, _) in found.items()} == {
        missing: "not_found",
        small: "bad_value",
        cut: "truncated",
        jpeg: "unsupported_format",
        folder: "unreadable",
        image: "truncated",
    }
    for key in (missing, small, cut, jpeg, folder):
        assert mask_of(key) in found[key][1]
    assert mask_of(image) not in found[image][1]
    assert "12 x 20 pixels, and the image has 14 x 21 (height x width)" in found[small][1]
    assert set(read(tmp_path / "out", "train")) == {keys[-1]}


def test_mask_that_changes_is_another_dataset_and_a_moved_folder_the_same(tmp_path: pathlib.Path) -> None:
    masks = write_pairs(tmp_path / "in")
    first = convert_preset(tmp_path / "in", tmp_path / "out")
    shutil.move(tmp_path / "in", tmp_path / "moved")
    assert convert_preset(tmp_path / "moved", tmp_path / "out").state == "kept"
    mask = tmp_path / "moved" / mask_of(next(iter(masks)))
    status = mask.stat()
    os.utime(mask, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    with pytest.raises(errors.ConfigError, match="holds another dataset"):
        convert_preset(tmp_path / "moved", tmp_path / "out")
    second = convert_preset(tmp_path / "moved", tmp_path / "two")
    assert second.catalog.fingerprint != first.catalog.fingerprint
    assert datasets.shard_digests(tmp_path / "two") == datasets.shard_digests(tmp_path / "out")


def test_mask_written_between_listing_and_reading_is_a_reject(tmp_path: pathlib.Path) -> None:
    masks = write_pairs(tmp_path / "in")
    overrides = [f"source.uri={tmp_path / 'in'}", f"output.uri={tmp_path / 'out'}", "rejects.max_fraction=0.5"]
    listed = convert.save_listing(config_lib.load_config("segmentation", overrides), str(tmp_path / "listing.jsonl"))
    changed = next(iter(masks))
    (tmp_path / "in" / mask_of(changed)).write_bytes(mask_png(classes(99, (20, 12))))
    convert.convert(listed, workers=1)
    assert details(tmp_path / "out").keys() == {changed}
    reason, detail = details(tmp_path / "out")[changed]
    assert reason == "changed" and mask_of(changed) in detail


def test_saved_listing_gives_the_dataset_of_the_folder(tmp_path: pathlib.Path) -> None:
    masks = write_pairs(tmp_path / "in")
    (tmp_path / "in" / mask_of(next(iter(masks)))).unlink()
    folder = convert_preset(tmp_path / "in", tmp_path / "one")
    overrides = [f"source.uri={tmp_path / 'in'}", f"output.uri={tmp_path / 'two'}", "rejects.max_fraction=0.5"]
    listed = convert.save_listing(config_lib.load_config("segmentation", overrides), str(tmp_path / "listing.jsonl"))
    saved = convert.convert(listed, workers=1)
    assert saved.catalog.counts == folder.catalog.counts
    assert saved.catalog.fingerprint == folder.catalog.fingerprint
    assert datasets.shard_digests(tmp_path / "two") == datasets.shard_digests(tmp_path / "one")
    without = listed.source.model_copy(update={"masks": source_section.MasksConfig()})
    with pytest.raises(errors.ConfigError, match=r"saved with source\.masks \['images/.*save it again"):
        convert.convert(listed.model_copy(update={"source": without}), workers=1)


def test_beam_writer_and_workers_store_the_same_pairs(tmp_path: pathlib.Path) -> None:
    masks = write_pairs(tmp_path / "in")
    convert_preset(
        tmp_path / "in",
        tmp_path / "out",
        "output.writer=beam",
        "output.num_shards={train: 2, validation: 1}",
        "split.names=[train, validation]",
    )
    found = {**read(tmp_path / "out", "train"), **read(tmp_path / "out", "validation")}
    assert found.keys() == masks.keys()
    for key, parsed in found.items():
        stored = parsed["image/segmentation/class/encoded"].numpy()
        np.testing.assert_array_equal(np.array(Image.open(io.BytesIO(stored))), masks[key])


def test_pairs_on_a_network_give_the_dataset_of_the_folder(tmp_path: pathlib.Path) -> None:
    """fsspec's own access to the disk counts as a network: it uses the same threads as a bucket."""
    masks = write_pairs(tmp_path / "in", num_train=40)
    missing = min(masks)
    (tmp_path / "in" / mask_of(missing)).unlink()
    remote_root = f"local://{tmp_path / 'in'}"
    assert not storage.storage_of(remote_root).is_local
    local = convert_preset(tmp_path / "in", tmp_path / "local")
    remote = convert_preset(remote_root, tmp_path / "remote", "source.bytes_ahead=3000")
    assert remote.catalog.counts == local.catalog.counts
    assert remote.catalog.counts.rejected == {"not_found": 1}
    assert datasets.shard_digests(tmp_path / "remote") == datasets.shard_digests(tmp_path / "local")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["source.masks.mask=null"], "go together"),
        (["source.masks.image=(a"], "is not a regular expression"),
        ([r"source.masks.mask=annotations/\g<name>\.png"], "is a path, not a regular expression"),
        ([r"source.masks.mask=annotations/\3.png"], "does not fit source.masks.image"),
        ([r"source.masks.mask=annotations/\g<nme>.png"], "does not fit source.masks.image"),
        (["source.masks.mask=annotations/mask.png"], "names one mask for all images"),
        ([r"source.masks.mask=../annotations/\g<name>.png"], "leaves the folder"),
        ([r"source.masks.mask=/annotations/\g<name>.png"], "leaves the folder"),
        (["source.by=manifest", "split={by: none}"], "source.masks needs source.by: files, listing; not manifest"),
        (["image={encode: png, resize: [8, 8]}"], "image.resize would leave the masks in another size"),
        ([r"source.masks.image=images/(?P<name>.*)\.jpg", r"source.masks.mask=a/\1.png"], "split.by: source needs"),
    ],
)
def test_masks_without_a_usable_rule_are_refused_at_once(overrides: list[str], message: str) -> None:
    with pytest.raises(errors.ConfigError, match=message):
        config_lib.load_config("segmentation", overrides)
