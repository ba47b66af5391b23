"""Converts folders in the layout of COCO 2017 to records that tf-vision's decoder, TensorFlow and TFDS read."""

from __future__ import annotations

import io
import json
import pathlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from imagebeam import catalog as catalog_lib
from imagebeam import errors, example, records
from imagebeam.pipelines.config import model as config_lib
from tests import coco_sets, datasets, image_sets

Fields = dict[str, Any]


@pytest.fixture
def root(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "in"


@pytest.fixture
def output(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "out"


def preset(**coco: Any) -> Fields:
    """Returns the preset's sections with `coco` added, and rejects allowed as sets of twelve need it."""
    sections = config_lib.load_config("coco").model_dump(mode="json", exclude_defaults=True)
    sections["source"].setdefault("coco", {}).update(coco)
    return {**sections, "rejects": {"max_fraction": 0.5}}


def spec_of_tf_vision(tf: Any) -> Fields:
    """The features that TfExampleDecoder(include_mask=True) parses."""
    spec: Fields = {
        "image/encoded": tf.io.FixedLenFeature((), tf.string),
        "image/height": tf.io.FixedLenFeature((), tf.int64, -1),
        "image/width": tf.io.FixedLenFeature((), tf.int64, -1),
        "image/source_id": tf.io.FixedLenFeature((), tf.string),
        "image/object/mask": tf.io.VarLenFeature(tf.string),
    }
    for name, dtype in (
        ("bbox/xmin", tf.float32),
        ("bbox/xmax", tf.float32),
        ("bbox/ymin", tf.float32),
        ("bbox/ymax", tf.float32),
        ("class/label", tf.int64),
        ("class/text", tf.string),
        ("area", tf.float32),
        ("is_crowd", tf.int64),
    ):
        spec[f"image/object/{name}"] = tf.io.VarLenFeature(dtype)
    return spec


def read(output: pathlib.Path, split: str, spec: Fields | None = None) -> dict[str, Fields]:
    """Returns the examples of a split by source id, parsed by TensorFlow, lists as arrays."""
    import tensorflow as tf

    examples = {}
    for record in tf.data.TFRecordDataset(sorted(map(str, output.glob(f"{split}-*.tfrecord")))):
        parsed = tf.io.parse_single_example(record, spec or spec_of_tf_vision(tf))
        values = {
            key: (tf.sparse.to_dense(value) if isinstance(value, tf.SparseTensor) else value).numpy()
            for key, value in parsed.items()
        }
        assert values["image/source_id"].decode() not in examples
        examples[values["image/source_id"].decode()] = values
    return examples


def box_pixels(bbox: list[float]) -> np.ndarray:
    """Returns the share of each pixel that is inside a box."""
    x, y, w, h = bbox
    width, height = coco_sets.SIZE
    columns = np.clip(np.minimum(np.arange(width) + 1, x + w) - np.maximum(np.arange(width), x), 0, 1)
    rows = np.clip(np.minimum(np.arange(height) + 1, y + h) - np.maximum(np.arange(height), y), 0, 1)
    return np.outer(rows, columns)


def test_preset_writes_what_tf_vision_reads(root: pathlib.Path, output: pathlib.Path) -> None:
    source = coco_sets.write(root)
    (root / "val2017" / "stray.jpg").write_bytes(image_sets.make_image(1))
    result = datasets.make(root, output, **preset(masks=True))
    assert result.catalog.counts == catalog_lib.Counts(17, 17, {}, {"not_in_annotations": 1})
    assert {name: split.num_examples for name, split in result.catalog.splits.items()} == {"train": 12, "validation": 5}
    for split, folder in (("train", "train2017"), ("validation", "val2017")):
        examples = read(output, split)
        assert set(examples) == {str(image["id"]) for image in source[split]["images"]}
        for image in source[split]["images"]:
            found, objects = examples[str(image["id"])], coco_sets.objects_of(source[split], image["id"])
            assert found["image/encoded"] == (root / folder / image["file_name"]).read_bytes()
            assert (found["image/height"], found["image/width"]) == (30, 40)
            boxes = np.stack([found[f"image/object/bbox/{edge}"] for edge in ("xmin", "ymin", "xmax", "ymax")], -1)
            x, y, w, h = np.array([each["bbox"] for each in objects]).reshape(-1, 4).T
            np.testing.assert_allclose(boxes * [40, 30, 40, 30], np.stack([x, y, x + w, y + h], -1), atol=1e-4)
            assert found["image/object/class/label"].tolist() == [each["category_id"] for each in objects]
            names = [coco_sets.CATEGORIES[each["category_id"]].encode() for each in objects]
            assert found["image/object/class/text"].tolist() == names
            np.testing.assert_allclose(found["image/object/area"], [each["area"] for each in objects], rtol=1e-6)
            assert found["image/object/is_crowd"].tolist() == [each["iscrowd"] for each in objects]
            assert len(found["image/object/mask"]) == len(objects)
            for png, each in zip(found["image/object/mask"], objects):
                check_mask(png, each)


def check_mask(png: bytes, annotation: Fields) -> None:
    """Run lengths to the pixel; of a polygon all that lies inside, and at its edge what COCO's tools decide."""
    import tensorflow as tf

    mask = tf.io.decode_png(png, channels=1, dtype=tf.uint8).numpy()[..., 0]
    np.testing.assert_array_equal(mask, np.asarray(Image.open(io.BytesIO(png))))
    assert mask.shape == (30, 40)
    if annotation["iscrowd"]:
        runs = annotation["segmentation"]["counts"]
        flat = np.concatenate([np.full(run, index % 2) for index, run in enumerate(runs)])
        np.testing.assert_array_equal(mask, flat.reshape(40, 30).T)
    else:
        share = box_pixels(annotation["bbox"])
        assert (mask[share > 0.99] == 1).all()
        assert (mask[share == 0] == 0).all()


def test_ragged_features_read_boxes_in_batches(root: pathlib.Path, output: pathlib.Path) -> None:
    import tensorflow as tf

    source = coco_sets.write(root)["train"]
    datasets.make(root, output, **preset())
    key = "image/object/bbox/xmin"
    spec = {
        "image/source_id": tf.io.FixedLenFeature((), tf.string),
        "xmin": tf.io.RaggedFeature(tf.float32, value_key=key),
    }
    records = tf.data.TFRecordDataset(sorted(map(str, output.glob("train-*.tfrecord")))).batch(12)
    batch = tf.io.parse_example(next(iter(records)), spec)
    for source_id, xmin in zip(batch["image/source_id"].numpy(), batch["xmin"].to_list()):
        objects = coco_sets.objects_of(source, int(source_id))
        assert xmin == pytest.approx([each["bbox"][0] / 40 for each in objects])


def test_snippet_of_the_documentation_reads_boxes(
    root: pathlib.Path, output: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = coco_sets.write(root)["train"]
    datasets.make(root, output.with_name("shards"), **preset())
    page = (pathlib.Path(__file__).parents[2] / "docs" / "recipes" / "coco.md").read_text()
    snippet = page.split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(output.parent)
    names: Fields = {}
    exec(compile(snippet, "coco.md", "exec"), names)
    found = list(names["examples"].as_numpy_iterator())
    assert len(found) == 12
    assert all(image.shape == (30, 40, 3) and len(boxes) == len(labels) for image, boxes, labels in found)
    labels = sorted(label for _, _, each in found for label in each.tolist())
    assert labels == sorted(each["category_id"] for each in source["annotations"])


@pytest.mark.slow
def test_tfds_loads_the_objects_as_sequences(root: pathlib.Path, output: pathlib.Path) -> None:
    tfds = pytest.importorskip("tensorflow_datasets")
    source = coco_sets.write(root)["train"]
    datasets.make(root, output, **preset(masks=True))
    builder = tfds.builder_from_directory(str(output))
    assert isinstance(builder.info.features["image/object/bbox/xmin"], tfds.features.Sequence)
    found = {each["image/source_id"].decode(): each for each in builder.as_dataset(split="train").as_numpy_iterator()}
    assert len(found) == 12
    for image in source["images"]:
        each, objects = found[str(image["id"])], coco_sets.objects_of(source, image["id"])
        assert each["image/encoded"].shape == (30, 40, 3)
        assert each["image/object/class/label"].tolist() == [one["category_id"] for one in objects]
        assert each["image/object/bbox/ymin"].tolist() == pytest.approx([one["bbox"][1] / 30 for one in objects])
        assert [png[:4] for png in each["image/object/mask"]] == [b"\x89PNG"] * len(objects)


def test_picture_of_another_size_than_annotated_is_a_reject(root: pathlib.Path, output: pathlib.Path) -> None:
    coco_sets.write(root)
    (root / "train2017" / "000000000023.jpg").write_bytes(image_sets.make_image(1, size=(30, 40)))
    result = datasets.make(root, output, **preset())
    assert result.catalog.counts.rejected == {"bad_value": 1}
    (reject,) = map(json.loads, (output / "rejects.jsonl").read_text().splitlines())
    assert (reject["key"], reject["stage"]) == ("train2017/000000000023.jpg", "check")
    assert reject["detail"] == "has 30 x 40 px, its annotations are for 40 x 30"
    assert "23" not in read(output, "train", source_id_alone())


def source_id_alone() -> Fields:
    import tensorflow as tf

    return {"image/source_id": tf.io.FixedLenFeature((), tf.string)}


def test_bad_annotations_and_missing_files_are_rejects(root: pathlib.Path, output: pathlib.Path) -> None:
    train = coco_sets.write(root)["train"]
    coco_sets.objects_of(train, 23)[0]["bbox"] = [1, 2, -3, 4]
    coco_sets.objects_of(train, 30)[0]["bbox"] = [50, 2, 3, 4]
    coco_sets.save(root, "train", train)
    (root / "train2017" / "000000000016.jpg").unlink()
    result = datasets.make(root, output, **preset())
    assert datasets.rejects(output) == {
        "train2017/000000000016.jpg": "not_found",
        "train2017/000000000023.jpg": "bad_value",
    }
    assert result.catalog.counts.passed_over == {"object_outside_image": 1}


def test_broken_annotations_end_the_run_with_their_name(root: pathlib.Path, output: pathlib.Path) -> None:
    coco_sets.write(root)
    path = root / "annotations" / "instances_val2017.json"
    path.write_text(path.read_text()[:-100])
    with pytest.raises(errors.ConfigError, match=r"instances_val2017\.json' is not JSON, in the last .* parse error"):
        datasets.make(root, output, **preset())
    assert not list(output.glob("*.tfrecord"))


def test_same_image_in_two_splits_is_refused(root: pathlib.Path, output: pathlib.Path) -> None:
    train = coco_sets.write(root)["train"]
    coco_sets.save(root, "validation", train)
    with pytest.raises(errors.ConfigError, match=r"two images have the key 'train2017/0"):
        datasets.make(root, output, **preset(images={"train": "train2017", "validation": "train2017"}))


def test_mask_is_scaled_with_the_picture(root: pathlib.Path) -> None:
    from imagebeam.transforms import elements
    from imagebeam.transforms.images import checked_image, object_masks
    from imagebeam.transforms.shard import encode
    from imagebeam.transforms.sources import coco

    config = config_lib.load_config("coco", ["source.coco.masks=true"])
    columns = (*coco.COLUMNS, coco.MASKS)
    packed = object_masks.pack([[10, 5, 30, 5, 30, 25, 10, 25]], 30, 40)
    ref = elements.ImageRef("k", "/k", columns=(b"1", *(((0.5,),) * 8), (packed,)), expected=(30, 40))
    features = tuple(each for each in config.resolve_features() if each.source in (coco.MASKS, "image/encoded"))
    recipe = encode.ExampleRecipe(features, {}, columns)
    head, _ = recipe.encode(ref, checked_image.Image(b"x", "jpeg", 15, 20, 3, "RGB"))
    png = head[head.index(b"\x89PNG") :]
    mask = np.asarray(Image.open(io.BytesIO(png)))
    assert mask.shape == (15, 20)
    assert (mask.sum(), mask[3:12, 6:14].all()) == (100, True)


def test_masks_have_the_size_of_pictures_that_are_scaled(root: pathlib.Path, output: pathlib.Path) -> None:
    source = coco_sets.write(root)["train"]
    datasets.make(root, output, **preset(masks=True), image={"encode": "png", "resize": [15, 20]})
    examples = read(output, "train")
    for image in source["images"]:
        found, objects = examples[str(image["id"])], coco_sets.objects_of(source, image["id"])
        assert (found["image/height"], found["image/width"]) == (15, 20)
        sizes = [Image.open(io.BytesIO(png)).size for png in found["image/object/mask"]]
        assert sizes == [(20, 15)] * len(objects)
        np.testing.assert_allclose(found["image/object/bbox/xmin"] * 40, [each["bbox"][0] for each in objects], 1e-4)


def test_moved_folder_is_the_same_dataset_and_another_box_another(root: pathlib.Path, output: pathlib.Path) -> None:
    train = coco_sets.write(root)["train"]
    first = datasets.make(root, output, **preset())
    moved = root.rename(root.with_name("moved"))
    assert datasets.make(moved, output, **preset()).state == "kept"
    coco_sets.objects_of(train, 16)[0]["bbox"][0] += 1
    coco_sets.save(moved, "train", train)
    second = datasets.make(moved, output.with_name("two"), **preset())
    assert second.catalog.fingerprint != first.catalog.fingerprint


def test_fields_of_the_images_are_stored_as_columns(root: pathlib.Path, output: pathlib.Path) -> None:
    import tensorflow as tf

    source = coco_sets.write(root)["train"]
    sections = preset(masks=True)
    datasets.make(root, output, **sections, columns={"license": {"type": "int"}, "date_captured": {}})
    spec = {**source_id_alone(), "license": tf.io.FixedLenFeature((), tf.int64)}
    found = read(output, "train", {**spec, "date_captured": tf.io.FixedLenFeature((), tf.string)})
    for image in source["images"]:
        assert found[str(image["id"])]["license"] == image["license"]
        assert found[str(image["id"])]["date_captured"].decode() == image["date_captured"]


@pytest.mark.parametrize(
    ("coco", "message"),
    [
        pytest.param(
            {"annotations": {"train": "a.json"}, "images": {"test": "b"}},
            "source.coco.annotations names the splits train, source.coco.images test; name the same in both",
            id="other-splits",
        ),
        pytest.param({"annotations": {}, "images": {}}, "names the splits none", id="no-splits"),
        pytest.param({"outside": "keep"}, "source.coco.outside", id="outside"),
    ],
)
def test_config_that_cannot_be_is_refused(coco: Fields, message: str) -> None:
    with pytest.raises(errors.ConfigError, match=message):
        config_lib.parse_config({"source": {"by": "coco", "coco": coco}, "label": {"by": "none"}}, "the test")


def read_lists(output: pathlib.Path, split: str) -> list[Fields]:
    """Returns the examples of a split with each feature as a list."""
    shards = sorted(output.glob(f"{split}-*.tfrecord"))
    return [dict(example.parse_example(each.data)) for path in shards for each in records.read_records(path.open("rb"))]


def test_keypoints_and_captions_are_lists_of_their_image(root: pathlib.Path, output: pathlib.Path) -> None:
    source = {split: coco_sets.with_keypoints(fields) for split, fields in coco_sets.write(root).items()}
    spoken = {split: coco_sets.captions(fields) for split, fields in source.items()}
    for split, year in (("train", "train2017"), ("validation", "val2017")):
        (root / f"annotations/person_keypoints_{year}.json").write_text(json.dumps(source[split]))
        (root / f"annotations/captions_{year}.json").write_text(json.dumps(spoken[split]))
    sections = config_lib.load_config("coco_keypoints").model_dump(mode="json", exclude_defaults=True)
    captions = config_lib.load_config("coco_captions").source.coco.captions
    sections["source"]["coco"] |= {"captions": captions, "without_objects": True}
    result = datasets.make(root, output, **sections)
    assert result.catalog.keypoints == tuple(coco_sets.NAMES)
    assert result.catalog.object_classes == {label: name for label, name in coco_sets.CATEGORIES.items()}
    width, height = coco_sets.SIZE
    for split in ("train", "validation"):
        examples = {int(each["image/source_id"][0]): each for each in read_lists(output, split)}
        assert set(examples) == {image["id"] for image in source[split]["images"]}
        for image_id, found in examples.items():
            objects = [each for each in source[split]["annotations"] if each["image_id"] == image_id]
            points = np.array([each.get("keypoints", [0] * 9) for each in objects], float).reshape(-1, 3)
            labeled = points[:, 2] > 0
            shares = np.clip(points[:, :2] / [width, height], 0, 1) * labeled[:, None]
            assert found["image/object/keypoint/x"] == pytest.approx(shares[:, 0].tolist())
            assert found["image/object/keypoint/y"] == pytest.approx(shares[:, 1].tolist())
            assert found["image/object/keypoint/visibility"] == points[:, 2].tolist()
            assert found["image/object/keypoint/num"] == [each.get("num_keypoints", 0) for each in objects]
            texts = [each["caption"].strip() for each in spoken[split]["annotations"] if each["image_id"] == image_id]
            assert [text.decode() for text in found["image/caption"]] == texts


def test_captions_alone_are_read_from_their_files(root: pathlib.Path, output: pathlib.Path) -> None:
    for split, fields in coco_sets.write(root, 3, 2).items():
        year = "train2017" if split == "train" else "val2017"
        (root / f"annotations/captions_{year}.json").write_text(json.dumps(coco_sets.captions(fields)))
    sections = config_lib.load_config("coco_captions").model_dump(mode="json", exclude_defaults=True)
    result = datasets.make(root, output, **sections)
    assert not any("object" in feature.key for feature in result.catalog.features)
    assert sorted(len(each["image/caption"]) for each in read_lists(output, "train")) == [0, 1, 2]


def test_panoptic_pngs_become_the_categories_of_pixels(root: pathlib.Path, output: pathlib.Path) -> None:
    width, height = coco_sets.SIZE
    expected = {}
    rng = np.random.default_rng(0)
    for split, fields in coco_sets.write(root, 4, 3).items():
        year = "train2017" if split == "train" else "val2017"
        folder = root / f"annotations/panoptic_{year}"
        folder.mkdir()
        found = []
        for image in fields["images"]:
            drawn = rng.choice(list(coco_sets.CATEGORIES), 5).tolist()
            categories = dict(zip(rng.integers(1, 1 << 24, 5).tolist(), drawn, strict=True))
            ids = rng.choice([0, *categories], (height, width))
            colors = np.stack([ids % 256, ids // 256 % 256, ids // 65536], -1).astype(np.uint8)
            name = f"{image['id']:012d}.png"
            Image.fromarray(colors).save(folder / name)
            infos = [
                {"id": each, "category_id": category, "iscrowd": 0, "bbox": [1, 2, 10, 8], "area": 50}
                for each, category in categories.items()
            ]
            found.append({"image_id": image["id"], "file_name": name, "segments_info": infos})
            expected[image["id"]] = np.vectorize({0: 255, **categories}.get)(ids), drawn
        if split == "validation":
            found[0]["segments_info"].pop(0)
            bad = found[0]["image_id"]
            (folder / found[1]["file_name"]).unlink()
        (root / f"annotations/panoptic_{year}.json").write_text(json.dumps({**fields, "annotations": found}))
    sections = config_lib.load_config("coco_panoptic").model_dump(mode="json", exclude_defaults=True)
    result = datasets.make(root, output, **{**sections, "rejects": {"max_fraction": 0.5}})
    assert result.catalog.counts.rejected == {"bad_value": 1, "not_found": 1}
    rejects = [json.loads(line) for line in (output / "rejects.jsonl").read_text().splitlines()]
    (detail,) = (each["detail"] for each in rejects if each["reason"] == "bad_value")
    assert f"val2017/{bad:012d}.jpg" in {each["key"] for each in rejects} and "which is no segment of" in detail
    examples = read_lists(output, "train") + read_lists(output, "validation")
    assert len(examples) == 5
    for each in examples:
        classes, labels = expected[int(each["image/source_id"][0])]
        stored = np.array(Image.open(io.BytesIO(each["image/segmentation/class/encoded"][0])))
        np.testing.assert_array_equal(stored, classes)
        assert each["image/object/class/label"] == labels
        assert each["image/object/bbox/xmin"] == pytest.approx([1 / width] * 5)
