"""Features with any number of values: objects in images, and images of several classes."""

from __future__ import annotations

import io
import pathlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

import imagebeam
from imagebeam import errors, features, records
from tests import case_tables, error_texts, written_files
from tests.unit.imagebeam.reader import written
from tests.unit.imagebeam.reader.feeding import one_device

tf = pytest.importorskip("tensorflow")

pytestmark = pytest.mark.usefixtures("unchanged_graphs")

COUNT = 23
LABELS = ("cat", "dog", "owl")
XMIN, TEXT, IDS = "image/object/bbox/xmin", "image/object/class/text", "image/object/class/label"
WHOLE: dict[str, Any] = {"image_size": 16, "crop": "squash", "flip": False, "num_epochs": 1}


def values_of(index: int) -> dict[str, Any]:
    """Returns an example with 0 to 3 objects and 0 to 2 classes."""
    classes = tuple(1 + index % 3 for index in range(index, index + index % 3))  # of base 1
    return {**written.jpeg_values(index), **written.object_values(index % 4, index), features.LABEL: classes}


EXAMPLES = [values_of(index) for index in range(COUNT)]


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> imagebeam.ImageDataset:
    wanted = (*written.IMAGE, *written.OBJECTS, written.MANY_LABELS)
    folder = tmp_path_factory.mktemp("lists") / "out"
    return written.write(folder, wanted, EXAMPLES, labels=LABELS, label_base=1, num_shards=3)


def test_boxes_without_a_label_are_no_pairs_for_keras(tmp_path: pathlib.Path) -> None:
    boxes = written.write(tmp_path / "out", (*written.IMAGE, *written.OBJECTS), EXAMPLES)
    with error_texts.raises("dataset-no-labels"):
        boxes.as_tf("train", 2, supervised=True)


def multi_hot(index: int) -> list[float]:
    return [float(number + 1 in EXAMPLES[index][features.LABEL]) for number in range(len(LABELS))]


def check_rows(batch: dict[str, Any], rows: int | None = None) -> list[int]:
    """Compares the lists and labels of a batch with what was written; returns which examples it holds."""
    found = []
    for row in range(len(batch["image"]) if rows is None else rows):
        index = int(np.asarray(batch["image/key"])[row])
        for key in (XMIN, TEXT, IDS):
            assert np.asarray(batch[key][row]).tolist() == list(EXAMPLES[index][key])
        assert np.asarray(batch["label"][row]).tolist() == multi_hot(index)
        found.append(index)
    return found


ASKED = ("image/key", XMIN, TEXT, IDS)


# --- records ---------------------------------------------------------------------------------------------------------


def test_feature_spec_parses_lists_to_rows_of_their_own_length(objects: imagebeam.ImageDataset) -> None:
    stored = written.stored_in(pathlib.Path(objects.directory))
    for index, record in enumerate(stored):
        parsed = tf.io.parse_single_example(record, objects.feature_spec)
        assert parsed[XMIN].numpy().tolist() == list(EXAMPLES[index][XMIN])
        assert parsed["image/key"].numpy() == f"{index}".encode()
    together = tf.io.parse_example(stored, objects.feature_spec)
    assert isinstance(together[TEXT], tf.RaggedTensor)
    assert together[TEXT].to_list() == [list(each[TEXT]) for each in EXAMPLES]
    assert together["image/class/label"].to_list() == [list(each[features.LABEL]) for each in EXAMPLES]


# --- batches ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("decoder", "shuffle"),
    [("native", "stream"), ("native", "global"), ("native", None), ("pillow", "stream")],
    indirect=["decoder"],
)
def test_lists_come_as_ragged_tensors_with_their_images(
    objects: imagebeam.ImageDataset, decoder: str, shuffle: str | None
) -> None:
    batches = objects.as_tf("train", 4, features=ASKED, shuffle=shuffle, decoder=decoder, drop_remainder=False, **WHOLE)
    spec = batches.element_spec
    assert (spec[XMIN].shape.as_list(), spec[XMIN].dtype) == ([None, None], tf.float32)
    assert (spec[TEXT].dtype, spec[IDS].dtype, spec[XMIN].row_splits_dtype) == (tf.string, tf.int64, tf.int64)
    assert (spec["label"].shape.as_list(), spec["label"].dtype) == ([None, 3], tf.float32)
    found = []
    for batch in batches:
        assert isinstance(batch[XMIN], tf.RaggedTensor)
        found += check_rows(batch)
        for row, index in enumerate(found[-len(batch["image"]) :]):
            stored = Image.open(io.BytesIO(EXAMPLES[index][features.ENCODED])).resize((16, 16), Image.Resampling.BOX)
            difference = batch["image"][row].numpy().astype(int) - np.asarray(stored)
            assert np.abs(difference).mean() < 25
    assert sorted(found) == list(range(COUNT))


@pytest.mark.parametrize(
    ("decoder", "process_count"), [("native", 1), ("native", 3), ("pillow", 3)], indirect=["decoder"]
)
def test_padding_has_empty_lists_no_labels(objects: imagebeam.ImageDataset, decoder: str, process_count: int) -> None:
    found, counts = [], set()
    for index in range(process_count):
        options = {**WHOLE, "features": ASKED, "process_index": index, "process_count": process_count}
        batches = list(objects.as_tf("train", 4, pad=True, decoder=decoder, **options))
        counts.add(len(batches))
        for batch in batches:
            real = int(batch["mask"].numpy().sum())
            found += check_rows(batch, real)
            assert batch[XMIN].row_lengths().numpy()[real:].tolist() == [0] * (4 - real)
            assert not batch["label"].numpy()[real:].any()
            assert batch["label"].shape == (4, 3)
    assert sorted(found) == list(range(COUNT))
    assert len(counts) == 1


def test_single_examples_have_their_lists_as_tensors(objects: imagebeam.ImageDataset) -> None:
    examples = objects.as_tf("train", features=ASKED, shuffle=None, **WHOLE)
    assert examples.element_spec[XMIN] == tf.TensorSpec([None], tf.float32)
    assert examples.element_spec["label"] == tf.TensorSpec([3], tf.float32)
    for index, each in enumerate(examples.as_numpy_iterator()):
        assert each[XMIN].tolist() == list(EXAMPLES[index][XMIN])
        assert each[TEXT].tolist() == list(EXAMPLES[index][TEXT])
        assert each["label"].tolist() == multi_hot(index)


def test_list_size_makes_lists_of_one_length_and_counts_them(objects: imagebeam.ImageDataset, decoder: str) -> None:
    batches = objects.as_tf("train", 4, features=ASKED, list_size=2, pad=True, decoder=decoder, **WHOLE)
    spec = batches.element_spec
    assert spec[XMIN] == tf.TensorSpec([4, 2], tf.float32)
    assert spec[TEXT] == tf.TensorSpec([4, 2], tf.string)
    assert spec[f"{XMIN}/count"] == tf.TensorSpec([4], tf.int64)
    for batch in batches.as_numpy_iterator():
        for row in range(int(batch["mask"].sum())):
            stored = EXAMPLES[int(batch["image/key"][row])]
            assert batch[f"{XMIN}/count"][row] == batch[f"{TEXT}/count"][row] == len(stored[XMIN])
            assert batch[XMIN][row].tolist() == [*stored[XMIN], 0, 0][:2]
            assert batch[TEXT][row].tolist() == [*stored[TEXT], b"", b""][:2]
        assert not batch[f"{XMIN}/count"][~batch["mask"]].any()
    one = next(iter(objects.as_tf("train", features=(XMIN,), list_size=5, shuffle=None, **WHOLE)))
    assert (one[XMIN].shape, one[f"{XMIN}/count"].shape) == ((5,), ())


def test_skipped_examples_take_their_lists_with_them(tmp_path: pathlib.Path, decoder: str) -> None:
    wanted = (*written.IMAGE, *written.OBJECTS, written.MANY_LABELS)
    broken = {**EXAMPLES[5], features.ENCODED: EXAMPLES[5][features.ENCODED][:60]}
    written.write(tmp_path / "out", wanted, [*EXAMPLES[:5], broken, *EXAMPLES[6:]], labels=LABELS, label_base=1)
    shard = tmp_path / "out" / "train-00000-of-00002.tfrecord"
    second = [record.offset for record in records.read_records(io.BytesIO(shard.read_bytes()))][1]
    written_files.flip(shard, second + 40)  # its checksum does not match any more
    dataset = imagebeam.open_dataset(str(tmp_path / "out"))
    options = {**WHOLE, "features": ASKED, "on_error": "skip", "shuffle": None, "decoder": decoder}
    found = [
        index for batch in dataset.as_tf("train", 4, drop_remainder=False, **options) for index in check_rows(batch)
    ]
    assert found == [index for index in range(COUNT) if index not in (1, 5)]
    with pytest.raises(errors.ExampleError, match=r"record 1 of shard .*train-00000"):
        list(dataset.as_numpy("train", 4, features=ASKED, shuffle=None, **WHOLE))


# --- other feeds -----------------------------------------------------------------------------------------------------


def test_numpy_batches_have_lists_as_arrays_in_an_object_array(objects: imagebeam.ImageDataset) -> None:
    iterator = objects.as_numpy("train", 4, features=ASKED, pad=True, **WHOLE)
    found = []
    for batch in iterator:
        assert (batch[XMIN].dtype, batch[XMIN].shape) == (object, (4,))
        assert {each.dtype for each in batch[XMIN]} == {np.dtype("float32")}
        assert batch["label"].dtype == np.float32
        found += check_rows(batch, int(batch["mask"].sum()))
    assert sorted(found) == list(range(COUNT))


def test_jax_takes_only_lists_of_one_length(objects: imagebeam.ImageDataset) -> None:
    jax = pytest.importorskip("jax")
    sharding = one_device()
    with error_texts.raises("list-size-missing"):
        objects.as_jax("train", sharding, 4, features=("image/key", XMIN), **WHOLE)
    batch = next(objects.as_jax("train", sharding, 4, features=("image/key", XMIN), list_size=3, **WHOLE))
    assert isinstance(batch[XMIN], jax.Array)
    assert (batch[XMIN].shape, batch["label"].shape) == ((4, 3), (4, 3))
    for row, key in enumerate(batch["image/key"]):
        stored = EXAMPLES[int(key)]
        assert int(batch[f"{XMIN}/count"][row]) == len(stored[XMIN])
        assert batch[XMIN][row].tolist() == [*stored[XMIN], 0, 0, 0][:3]
        assert batch["label"][row].tolist() == multi_hot(int(key))


def test_grain_source_has_lists_as_arrays(objects: imagebeam.ImageDataset) -> None:
    source = objects.as_grain("train")
    for index in range(COUNT):
        each = source[index]
        assert each["image"].shape == (30, 40, 3)
        assert (each[XMIN].dtype, each[IDS].dtype, each[TEXT].dtype) == (np.float32, np.int64, object)
        for key in (XMIN, TEXT, IDS):
            assert each[key].tolist() == list(EXAMPLES[index][key])
        assert (each["label"].dtype, each["label"].tolist()) == (np.float32, multi_hot(index))


def test_batches_of_several_datasets_keep_their_lists(objects: imagebeam.ImageDataset) -> None:
    pair = [(objects, "train"), (objects, "train[:10]")]
    options = {key: value for key, value in WHOLE.items() if key != "num_epochs"}
    mixed = imagebeam.mix(pair, [1, 1], 6, features=ASKED, **options)
    for batch in mixed.take(5):
        assert isinstance(batch[XMIN], tf.RaggedTensor)
        assert len(check_rows(batch)) == 6
    dense = next(iter(imagebeam.mix(pair, [1, 1], 6, features=(XMIN,), list_size=2, **options)))
    assert dense[XMIN].shape == (6, 2)


# --- several classes -------------------------------------------------------------------------------------------------


def test_vector_of_labels_is_as_long_as_the_model_wants(objects: imagebeam.ImageDataset) -> None:
    batch = next(iter(objects.as_tf("train", 23, num_classes=6, label_base=1, features=("image/key",), **WHOLE)))
    for row, key in enumerate(batch["image/key"].numpy()):
        assert batch["label"][row].numpy().tolist() == [0, *multi_hot(int(key)), 0, 0]
    with error_texts.raises("labels-beyond-model"):
        objects.as_tf("train", 4, num_classes=2)


# --- wrong requests --------------------------------------------------------------------------------------------------


def test_list_size_without_a_list_is_refused(objects: imagebeam.ImageDataset) -> None:
    with error_texts.raises("options-conflict"):
        objects.as_tf("train", 4, list_size=9, features=("image/key",))


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        (XMIN, features.FLOAT),
        ("image/object/keypoint/x", features.FLOAT),
        ("image/object/mask", features.BYTES),
        ("image/segmentation/class/encoded", features.BYTES),
    ],
)
def test_boxes_keypoints_and_masks_of_moved_pixels_are_refused(tmp_path: pathlib.Path, key: str, kind: str) -> None:
    many = key != "image/segmentation/class/encoded"
    value: Any = {features.FLOAT: 0.5, features.BYTES: b"png"}[kind]
    examples = [{**written.jpeg_values(0), key: (value,) if many else value}]
    dataset = written.write(tmp_path / "out", (*written.IMAGE, features.Feature(key, key, kind, many)), examples)
    moves: list[dict[str, Any]] = [{"crop": "center"}, {"crop": "resize_shorter"}, {"crop": "squash", "flip": True}]
    for options in [{}, *moves] if key == XMIN else [{}]:
        with case_tables.named(options), error_texts.raises("features-misplaced"):
            dataset.as_tf("train", 1, features=(key,), **options)
    for options in ({"crop": "squash", "batch_size": 1}, {"crop": None, "image_size": None}):
        assert dataset.as_tf("train", features=(key,), **options) is not None
