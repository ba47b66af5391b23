"""What a reading is for decides its defaults: `shuffle=None` is an evaluation, in which every example counts once."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

import imagebeam
from tests import datasets, docs_pages, error_texts, image_sets
from tests.unit.imagebeam.reader import sized_sets

tf = pytest.importorskip("tensorflow")

pytestmark = pytest.mark.usefixtures("unchanged_graphs")

SIZE = 32


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> imagebeam.ImageDataset:
    folder = tmp_path_factory.mktemp("evaluation")
    image_sets.write_folder(folder / "in", ("cat", "dog"), 20)
    split = {"by": "hash", "fractions": {"train": 0.6, "test": 0.4}}
    datasets.make(folder / "in", folder / "out", output={"num_shards": 2}, split=split)
    return imagebeam.open_dataset(folder / "out")


def test_evaluation_counts_examples_once_and_crops_the_middle_in_every_feed(dataset: imagebeam.ImageDataset) -> None:
    options = {"image_size": SIZE, "features": ("image/key",)}
    explicit = {"crop": "center", "flip": False, "num_epochs": 1, "pad": True}
    expected = list(dataset.as_numpy("test", 4, **options, **explicit, shuffle=None))
    assert len(expected) == -(-dataset.num_examples("test") // 4)
    of_split = sized_sets.OfSplit(dataset, "test")
    sized_sets.check_feeds(of_split, 4, has_singles=False, **options, shuffle=None)
    for read in (of_split, imagebeam.Mixture([(dataset, "test")], [1])):
        for batch, other in zip(read.as_numpy(4, **options, shuffle=None), expected, strict=True):
            sized_sets.check_equal(batch, other)
    assert sum(batch["mask"].sum() for batch in expected) == dataset.num_examples("test")


def test_split_for_evaluation_is_not_read_for_training_unless_one_says_so(dataset: imagebeam.ImageDataset) -> None:
    code = "shuffle-missing"
    for read in (
        lambda: dataset.as_tf("test", 4),
        lambda: dataset.as_tf("test[:50%]"),
        lambda: dataset.as_numpy("test", 4),
        lambda: dataset.as_distributed(tf.distribute.get_strategy(), "test", 4),
        lambda: imagebeam.Mixture([(dataset, "test")], [1]).as_numpy(4),
    ):
        with error_texts.raises(code):
            read()
    assert dataset.as_tf("test", 4, shuffle="stream").cardinality().numpy() == tf.data.INFINITE_CARDINALITY
    assert dataset.as_tf("train[:50%]", 4).cardinality().numpy() == tf.data.INFINITE_CARDINALITY


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param({}, {"num_epochs": 1, "crop": "center", "pad": True}, id="defaults"),
        pytest.param({"num_epochs": None}, {"num_epochs": None, "pad": False}, id="endless"),
        pytest.param({"drop_remainder": True}, {"pad": False, "drop_remainder": True}, id="drop"),
        pytest.param({"pad": False}, {"pad": False, "drop_remainder": False}, id="no-padding"),
        pytest.param({"batch_size": None}, {"pad": False, "num_epochs": 1}, id="examples"),
        pytest.param({"batch_size": None, "image_size": None}, {"crop": None}, id="whole"),
        pytest.param({"crop": "squash", "flip": True}, {"crop": "squash", "flip": True}, id="given"),
    ],
)
def test_what_is_given_precedes_defaults_of_an_evaluation(options: dict[str, Any], expected: dict[str, Any]) -> None:
    given = {"batch_size": 4, "shuffle": None, **options}
    found = imagebeam.ReadOptions.of(given.pop("batch_size"), given)
    assert {name: getattr(found, name) for name in expected} == expected


def test_state_at_a_step_is_that_of_an_iterator_for_any_number_of_processes(dataset: imagebeam.ImageDataset) -> None:
    for shuffle in ("stream", "global", None):
        for process_count in (1, 3):
            options: dict[str, Any] = {"shuffle": shuffle, "process_count": process_count, "num_epochs": None}
            batches = dataset.as_numpy("train", 4, image_size=8, **options, process_index=process_count - 1)
            for step in range(5):
                assert dataset.state_at("train", step, 4, **options) == batches.state()
                next(batches)
    saved = dataset.state_at("train", 4, 3, shuffle="global", process_count=2)
    elastic = dataset.as_numpy("train", 8, image_size=8, shuffle="global", state=saved, features=("image/key",))
    whole = dataset.as_numpy("train", 24, image_size=8, shuffle="global", features=("image/key",))
    first, second = next(whole), next(whole)
    keys = np.concatenate([first["image/key"], second["image/key"]])[24:32]
    assert next(elastic)["image/key"].tolist() == keys.tolist()


def test_state_at_reads_nothing(dataset: imagebeam.ImageDataset, tmp_path: pathlib.Path) -> None:
    mixture = imagebeam.Mixture([(dataset, "train"), (dataset, "test")], [2, 1])
    assert mixture.state_at(3, 4) == _after(mixture.as_numpy(4, image_size=8), 3)
    assert dataset.state_at("test", 2, 8, shuffle=None).position == 16
    for arguments, code in (
        ((-1, 4), "option-bad-value"),
        ((99, 4), "step-out-of-range"),
        ((1, None), "options-conflict"),
    ):
        with error_texts.raises(code):
            dataset.state_at("train", *arguments, num_epochs=1)  # type: ignore[arg-type]


def _after(batches: imagebeam.BatchIterator, count: int) -> imagebeam.ReaderState:
    for _ in range(count):
        next(batches)
    return batches.state()


def test_snippets_of_the_documentation_do_what_they_say(dataset: imagebeam.ImageDataset) -> None:
    keras = pytest.importorskip("keras")
    blocks = docs_pages.blocks("reading.md", "python")

    def run(first_line: str, **names: Any) -> dict[str, Any]:
        [block] = [each for each in blocks if first_line in each]
        small = block.replace("224", "8").replace(" 256", " 4, image_size=8").replace("40", "1").replace("90", "2")
        names = {"ds": dataset, "__name__": "__snippet__", **names}
        exec(compile(small.replace("steps_per_epoch=1000", "steps_per_epoch=3"), "snippet", "exec"), names)
        return names

    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), keras.layers.Dense(2)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    run("model.evaluate(", model=model, loss=loss)
    accuracy = model.get_metrics_result()["accuracy"]
    predicted = run('predict_on_batch(batch["image"])\n    is_real', model=model)["predicted"]
    assert len(predicted) == dataset.num_examples("test")
    assert run("accuracy = correct / total", model=model)["accuracy"] == pytest.approx(float(accuracy))
    right = [
        np.argmax(outputs) == dataset.labels.index(key.decode().split("/")[0]) for key, outputs in predicted.items()
    ]
    assert np.mean(right) == pytest.approx(float(accuracy))
    run("first_epoch=", model=model)
    run("model.optimizer.iterations", model=model)
    run("weights=ds.class_weights()")
