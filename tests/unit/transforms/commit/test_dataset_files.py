from __future__ import annotations

import dataclasses
import io
import json
import pathlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from imagebeam import catalog as catalog_lib
from imagebeam import features
from imagebeam.transforms import dataset_settings
from imagebeam.transforms.commit import commit_dataset, dataset_files
from imagebeam.transforms.elements import ImageRef
from imagebeam.transforms.images import prepare
from tests import image_sets
from tests.unit.imagebeam.reader import written
from tests.unit.transforms import small_dataset

LABEL, ENCODED = features.LABEL, features.ENCODED


def commit(
    dataset: dataset_settings.DatasetSettings, splits: dict[str, list[ImageRef]], labels: tuple[str, ...]
) -> catalog_lib.Catalog:
    plan = small_dataset.make_plan(splits, labels=labels)
    written = small_dataset.write_shards(dataset, plan, splits)
    catalog = commit_dataset.Committer(dataset, "pets", {}).commit(plan, written, [])
    assert catalog is not None
    return catalog


@pytest.fixture
def splits(tmp_path: pathlib.Path) -> dict[str, list[ImageRef]]:
    refs = small_dataset.make_refs(tmp_path / "pets")
    return {"train": refs[:7], "test": refs[7:]}


@pytest.fixture
def catalog(tmp_path: pathlib.Path, splits: dict[str, list[ImageRef]]) -> catalog_lib.Catalog:
    return commit(small_dataset.make_settings(tmp_path / "out"), splits, ("cat", "dog"))


@pytest.fixture
def tfds() -> Any:
    return pytest.importorskip("tensorflow_datasets")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("renamed", "base", "suffix"),
    [
        pytest.param({}, 0, ".tfrecord", id="default"),
        pytest.param({}, 1, "", id="base-1-no-suffix"),
        pytest.param({ENCODED: "image", LABEL: "label", "image/key": "id"}, 0, ".tfrecord", id="renamed"),
    ],
)
def test_tfds_loads_a_dataset_of_classes(
    tmp_path: pathlib.Path,
    splits: dict[str, list[ImageRef]],
    tfds: Any,
    renamed: dict[str, str | None],
    base: int,
    suffix: str,
) -> None:
    image_key, label_key, id_key = (renamed.get(key, key) for key in (ENCODED, LABEL, "image/key"))
    dataset = small_dataset.make_settings(
        tmp_path / "out", features=features.resolve_features(renamed, "class", {}), label_base=base, suffix=suffix
    )
    commit(dataset, splits, ("cat", "dog"))
    builder = tfds.builder_from_directory(dataset.output)
    assert builder.info.features[label_key].names == ["background"] * base + ["cat", "dog"]
    assert (builder.name, builder.info.supervised_keys) == ("pets", (image_key, label_key))
    for name, refs in splits.items():
        assert builder.info.splits[name].num_examples == len(refs)
        assert builder.info.splits[name].shard_lengths == [len(refs) // 2, len(refs) - len(refs) // 2]
        loaded = list(builder.as_dataset(split=name).as_numpy_iterator())
        assert [each[id_key].decode() for each in loaded] == [ref.key for ref in refs]
        labels = ["background"] * base + ["cat", "dog"]
        assert [labels[each[label_key]] for each in loaded] == [ref.label for ref in refs]
        assert [each[image_key].shape for each in loaded] == [(16, 24, 3)] * len(refs)


@pytest.mark.slow
def test_tfds_gives_a_webp_as_bytes_for_tensorflow_to_decode(
    tmp_path: pathlib.Path, splits: dict[str, list[ImageRef]], tfds: Any
) -> None:
    import tensorflow as tf

    policy = prepare.ImagePolicy(encode="webp")
    dataset = small_dataset.make_settings(tmp_path / "out", policy=policy)
    commit(dataset, {"train": splits["train"]}, ("cat", "dog"))
    builder = tfds.builder_from_directory(dataset.output)
    loaded = list(builder.as_dataset(split="train", as_supervised=True).as_numpy_iterator())
    decoded = [tf.io.decode_image(image, channels=3, expand_animations=False) for image, _ in loaded]
    assert [each.shape for each in decoded] == [(16, 24, 3)] * len(splits["train"])


@pytest.mark.slow
def test_tfds_decodes_images_of_every_color_space_to_three_channels(tmp_path: pathlib.Path, tfds: Any) -> None:
    kinds = [("JPEG", "L"), ("JPEG", "CMYK"), ("PNG", "RGBA"), ("PNG", "P"), ("PNG", "LA")]
    refs = []
    for image_format, mode in kinds:
        path = tmp_path / f"{mode}.{image_format.lower()}"
        path.write_bytes(image_sets.make_image(5, image_format, mode))
        refs.append(ImageRef(path.name, str(path), label="cat"))
    dataset = small_dataset.make_settings(tmp_path / "out")
    commit(dataset, {"train": refs}, ("cat",))
    loaded = list(tfds.builder_from_directory(dataset.output).as_dataset(split="train").as_numpy_iterator())
    assert [each[ENCODED].shape for each in loaded] == [(16, 24, 3)] * len(kinds)
    gray = Image.open(io.BytesIO(pathlib.Path(refs[0].uri).read_bytes()))
    assert abs(int(loaded[0][ENCODED][8, 12, 1]) - gray.getpixel((12, 8))) <= 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", [features.BYTES, features.INT64, features.FLOAT])
def test_tfds_loads_pixels_as_they_are_stored(tmp_path: pathlib.Path, tfds: Any, kind: str) -> None:
    digits = [np.random.default_rng(index).integers(0, 256, (28, 28, 1), np.uint8) for index in range(3)]
    image = written.IMAGE[-1]._replace(kind=kind, many=kind != features.BYTES)
    examples = [written.raw_values(each, index, kind) for index, each in enumerate(digits)]
    dataset = written.write(tmp_path / "out", (*written.IMAGE[:-1], image), examples)
    write_tfds_files(tmp_path / "out", dataset.catalog, {"raw"})
    builder = tfds.builder_from_directory(str(tmp_path / "out"))
    for digit, each in zip(digits, builder.as_dataset(split="train").as_numpy_iterator(), strict=True):
        found = each[ENCODED]
        pixels = np.frombuffer(found, np.uint8) if kind == features.BYTES else found
        assert pixels.reshape(28, 28, 1).tolist() == digit.tolist()
        assert (each["image/height"], each["image/channels"]) == (28, 1)


@pytest.mark.slow
def test_tfds_loads_arrays_in_their_shape(tmp_path: pathlib.Path, tfds: Any) -> None:
    arrays = {
        features.Feature("latent", "columns/latent", features.FLOAT, True, (2, 3, 4)): np.arange(24, dtype=np.float32),
        features.Feature("tokens", "columns/tokens", features.INT64, True, (5,)): np.arange(5),
        features.Feature("names", "columns/names", features.BYTES, True, (2, 1)): np.array([b"a", b"b"], object),
    }
    values = {each.source: tuple(array.tolist()) for each, array in arrays.items()}
    dataset = written.write(tmp_path / "out", (*written.IMAGE, *arrays), [{**written.jpeg_values(0), **values}] * 2)
    write_tfds_files(tmp_path / "out", dataset.catalog, {"jpeg"})
    builder = tfds.builder_from_directory(str(tmp_path / "out"))
    loaded = list(builder.as_dataset(split="train").as_numpy_iterator())
    for feature, array in arrays.items():
        assert builder.info.features[feature.key].shape == feature.shape
        for each in loaded:
            assert each[feature.key].dtype == array.dtype
            assert each[feature.key].tolist() == array.reshape(feature.shape).tolist()
    assert len(loaded) == 2


def write_tfds_files(folder: pathlib.Path, catalog: catalog_lib.Catalog, formats: set[str]) -> None:
    for name, content in dataset_files.tfds_files(catalog, ".tfrecord", formats).items():
        (folder / name).write_bytes(content)


def test_tfds_files_without_image_or_label_name_no_supervised_keys(catalog: catalog_lib.Catalog) -> None:
    for dropped in [ENCODED, LABEL]:
        kept = tuple(feature for feature in catalog.features if feature.source != dropped)
        files = dataset_files.tfds_files(dataclasses.replace(catalog, features=kept), ".tfrecord", {"jpeg"})
        assert "supervisedKeys" not in json.loads(files["dataset_info.json"])
        assert ("image.class.label.labels.txt" in files) == (dropped != LABEL)
