"""Datasets in Keras' loops: their length, and the epochs that each iteration reads."""

from __future__ import annotations

import collections
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import imagebeam
from imagebeam import features
from tests.unit.imagebeam.reader import written

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

pytestmark = pytest.mark.usefixtures("unchanged_graphs")

NUM_EXAMPLES = 22
BATCH_SIZE = 4
OPTIONS: Mapping[str, Any] = {"image_size": 8, "features": ("image/key",)}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> imagebeam.ImageDataset:
    examples = [written.jpeg_values(index) | {features.LABEL: index % 2} for index in range(NUM_EXAMPLES)]
    folder = tmp_path_factory.mktemp("keras") / "out"
    return written.write(folder, (*written.IMAGE, written.LABEL), examples, labels=("cat", "dog"), num_shards=3)


@pytest.fixture
def model() -> Any:
    keras.utils.set_random_seed(0)
    made = keras.Sequential([keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), keras.layers.Dense(2)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    made.compile(
        "adam", loss, weighted_metrics=["accuracy", keras.metrics.SparseCategoricalCrossentropy("ce", from_logits=True)]
    )
    return made


class Log(keras.callbacks.Callback):  # type: ignore[misc]
    """Counts the batches of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.num_batches: list[int] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.num_batches.append(0)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.num_batches[-1] += 1


def keys_of(batches: Any) -> list[bytes]:
    return [key for batch in batches.as_numpy_iterator() for key in batch["image/key"].tolist()]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param({}, "infinite", id="endless"),
        pytest.param({"batch_size": None}, "infinite", id="endless-examples"),
        pytest.param({"num_epochs": 1}, 5, id="drop"),
        pytest.param({"num_epochs": 3}, 16, id="three-epochs"),
        pytest.param({"num_epochs": 1, "drop_remainder": False}, 6, id="keep"),
        pytest.param({"num_epochs": 1, "pad": True}, 6, id="pad"),
        pytest.param({"num_epochs": 1, "batch_size": None}, 22, id="examples"),
        pytest.param({"num_epochs": 1, "pad": True, "process_count": 3}, 2, id="processes-pad"),
        pytest.param({"num_epochs": 1, "process_count": 3}, 1, id="processes-drop"),
        pytest.param({"num_epochs": 2, "next_epoch_each_iteration": True}, 11, id="next-epochs"),
        pytest.param({"num_epochs": 1, "on_error": "skip"}, 5, id="skip-drop"),
        pytest.param({"num_epochs": 1, "on_error": "skip", "pad": True}, 6, id="skip-pad"),
        pytest.param({"num_epochs": 1, "on_error": "skip", "drop_remainder": False}, "unknown", id="skip-keep"),
        pytest.param({"num_epochs": 1, "on_error": "skip", "batch_size": None}, "unknown", id="skip-examples"),
    ],
)
def test_number_of_batches_is_known_before_they_are_read(
    dataset: imagebeam.ImageDataset, options: dict[str, Any], expected: int | str
) -> None:
    batches = dataset.as_tf("train", **{"batch_size": BATCH_SIZE, **OPTIONS, **options})
    known = {"infinite": tf.data.INFINITE_CARDINALITY, "unknown": tf.data.UNKNOWN_CARDINALITY}
    assert batches.cardinality().numpy() == known.get(str(expected), expected)
    if isinstance(expected, int):
        assert sum(1 for _ in batches) == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param({"batch_size": None}, 22, id="examples"),
        pytest.param({"next_epoch_each_iteration": True, "num_epochs": 2}, 11, id="next-epochs"),
        pytest.param({"on_error": "skip"}, 5, id="skip-drop"),
        pytest.param({"on_error": "skip", "pad": True}, 6, id="skip-pad"),
    ],
)
def test_decoder_of_tensorflow_makes_the_number_that_is_known(
    dataset: imagebeam.ImageDataset, options: dict[str, Any], expected: int
) -> None:
    """`test_every_example_comes_once_over_all_processes` in test_dataset has the other ways to end."""
    given = {"batch_size": BATCH_SIZE, "num_epochs": 1, **OPTIONS, **options}
    batches = dataset.as_tf("train", **given, decoder="tensorflow")
    assert batches.cardinality().numpy() == sum(1 for _ in batches) == expected


@pytest.mark.parametrize("options", [{}, {"next_epoch_each_iteration": True}], ids=["same", "next"])
def test_fit_without_steps_ends_after_each_epoch(
    dataset: imagebeam.ImageDataset, model: Any, options: dict[str, Any]
) -> None:
    log = Log()
    train = dataset.as_tf("train", BATCH_SIZE, image_size=8, supervised=True, num_epochs=1, **options)
    model.fit(train, epochs=3, verbose=0, callbacks=[log])
    assert log.num_batches == [5, 5, 5]
    assert model.optimizer.iterations.numpy() == 15


def test_fit_of_an_endless_dataset_takes_the_steps_it_is_given(dataset: imagebeam.ImageDataset, model: Any) -> None:
    log = Log()
    train = dataset.as_tf("train", BATCH_SIZE, image_size=8, supervised=True)
    model.fit(train, epochs=3, steps_per_epoch=4, verbose=0, callbacks=[log])
    assert log.num_batches == [4, 4, 4]


def test_fit_reads_another_epoch_in_each_of_its_epochs(dataset: imagebeam.ImageDataset, model: Any) -> None:
    seen: list[bytes] = []

    def note(batch: Any) -> Any:
        noted = tf.numpy_function(
            lambda keys: seen.extend(keys.tolist()) or np.int64(0), [batch["image/key"]], tf.int64
        )
        with tf.control_dependencies([noted]):
            return tf.identity(batch["image"]), batch["label"]

    options = {**OPTIONS, "drop_remainder": False, "num_epochs": 1, "shuffle": "global"}
    train = dataset.as_tf("train", BATCH_SIZE, **options, next_epoch_each_iteration=True)
    model.fit(train.map(note), epochs=3, verbose=0)
    epochs = [seen[first : first + NUM_EXAMPLES] for first in range(0, len(seen), NUM_EXAMPLES)]
    assert len(epochs) == 3
    assert all(len(set(epoch)) == NUM_EXAMPLES for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


@pytest.mark.parametrize(
    ("decoder", "shuffle"), [("auto", "stream"), ("auto", "global"), ("auto", None), ("tensorflow", "stream")]
)
def test_each_iteration_has_the_order_and_the_crops_of_its_epoch(
    dataset: imagebeam.ImageDataset, shuffle: str | None, decoder: str
) -> None:
    options = {**OPTIONS, "shuffle": shuffle, "decoder": decoder, "drop_remainder": False}
    train = dataset.as_tf("train", BATCH_SIZE, **options, num_epochs=1, next_epoch_each_iteration=True)
    three = dataset.as_tf("train", 3 * NUM_EXAMPLES, **options, num_epochs=3)
    [expected] = three.as_numpy_iterator()
    for epoch in range(3):
        batches = list(train.as_numpy_iterator())
        for name in ("image", "image/key", "label"):
            found = np.concatenate([batch[name] for batch in batches])
            assert (found == expected[name][epoch * NUM_EXAMPLES : (epoch + 1) * NUM_EXAMPLES]).all()


def test_iterator_of_a_later_epoch_is_saved_and_restored_by_a_checkpoint(
    dataset: imagebeam.ImageDataset, tmp_path: pathlib.Path
) -> None:
    train = dataset.as_tf("train", BATCH_SIZE, **OPTIONS, num_epochs=1, next_epoch_each_iteration=True)
    first = keys_of(train)
    iterator = iter(train)
    next(iterator)
    path = tf.train.Checkpoint(iterator=iterator).save(str(tmp_path / "checkpoint"))
    expected = [batch["image/key"].numpy().tolist() for batch in iterator]
    resumed = iter(train)
    tf.train.Checkpoint(iterator=resumed).restore(path)
    assert [batch["image/key"].numpy().tolist() for batch in resumed] == expected
    assert len(expected) == 4
    assert expected[0] != first[BATCH_SIZE : 2 * BATCH_SIZE]


def test_dataset_of_one_epoch_gives_the_same_crops_each_time_without_the_option(
    dataset: imagebeam.ImageDataset,
) -> None:
    train = dataset.as_tf("train", BATCH_SIZE, **OPTIONS, num_epochs=1)
    first, second = (list(train.as_numpy_iterator()) for _ in range(2))
    assert all((one["image"] == two["image"]).all() for one, two in zip(first, second, strict=True))


@pytest.mark.parametrize("shuffle", ["stream", "global", None])
def test_iterations_of_several_processes_read_each_example_once(
    dataset: imagebeam.ImageDataset, shuffle: str | None
) -> None:
    options = {**OPTIONS, "shuffle": shuffle, "drop_remainder": False, "num_epochs": 1, "process_count": 3}
    every = [
        dataset.as_tf("train", BATCH_SIZE, **options, process_index=index, next_epoch_each_iteration=True)
        for index in range(3)
    ]
    for _ in range(2):
        counts = collections.Counter(key for each in every for key in keys_of(each))
        assert counts == {str(index).encode(): 1 for index in range(NUM_EXAMPLES)}


@pytest.mark.parametrize("process_count", [1, 3])
def test_padded_pairs_have_weights_with_which_keras_counts_each_example_once(
    dataset: imagebeam.ImageDataset, model: Any, process_count: int
) -> None:
    options = {"image_size": 8, "crop": "center", "dtype": "float32", "shuffle": None, "num_epochs": 1}
    parts = [
        dataset.as_tf(
            "train",
            BATCH_SIZE,
            **options,
            supervised=True,
            pad=True,
            process_index=index,
            process_count=process_count,
        )
        for index in range(process_count)
    ]
    image, label, weight = parts[0].element_spec
    assert (image.shape, label.shape, weight.shape) == ((BATCH_SIZE, 8, 8, 3), (BATCH_SIZE,), (BATCH_SIZE,))
    assert weight.dtype == tf.float32
    evaluated = parts[0]
    for part in parts[1:]:
        evaluated = evaluated.concatenate(part)
    result = model.evaluate(evaluated, verbose=0, return_dict=True)
    [(images, labels, _)] = dataset.as_tf("train", NUM_EXAMPLES, **options, supervised=True).as_numpy_iterator()
    logits = model.predict(images, verbose=0).astype(np.float64)
    assert result["accuracy"] == pytest.approx((logits.argmax(1) == labels).mean(), abs=1e-6)
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(NUM_EXAMPLES), labels]
    assert result["ce"] == pytest.approx(losses.mean(), rel=1e-4)


class Losses(keras.callbacks.Callback):  # type: ignore[misc]
    """Keeps the running loss after each batch, which depends on all batches before it in the epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.losses.append(logs["loss"])


def fit(model: Any, batches: Any, **options: Any) -> list[float]:
    losses = Losses()
    model.fit(batches, verbose=0, callbacks=[losses], **options)
    return losses.losses


@pytest.mark.parametrize("shuffle", ["stream", "global"])
@pytest.mark.parametrize("decoder", ["auto", "tensorflow"])
def test_losses_after_a_restart_in_an_epoch_are_those_of_a_run_without_one(
    dataset: imagebeam.ImageDataset, model: Any, tmp_path: pathlib.Path, shuffle: str, decoder: str
) -> None:
    def train(first_epoch: int) -> Any:
        options = {"image_size": 8, "supervised": True, "shuffle": shuffle, "decoder": decoder, "seed": 4}
        once = {"num_epochs": 1, "next_epoch_each_iteration": True, "first_epoch": first_epoch}
        return dataset.as_tf("train", BATCH_SIZE, **options, **once)

    path = str(tmp_path / "model.keras")
    save = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: epoch == 1 and model.save(path))
    losses = Losses()
    model.fit(train(0), epochs=4, verbose=0, callbacks=[losses, save])
    restarted = keras.models.load_model(path)
    assert fit(restarted, train(2), initial_epoch=2, epochs=4) == pytest.approx(losses.losses[10:], rel=1e-5)
    assert len(losses.losses) == 20


def test_losses_after_a_restart_at_a_step_are_those_of_a_run_without_one(
    dataset: imagebeam.ImageDataset, model: Any, tmp_path: pathlib.Path
) -> None:
    options = {"image_size": 8, "supervised": True}
    path = str(tmp_path / "model.keras")
    save = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: epoch == 1 and model.save(path))
    losses = Losses()
    train = dataset.as_tf("train", BATCH_SIZE, **options)
    model.fit(train, epochs=4, steps_per_epoch=3, verbose=0, callbacks=[losses, save])
    restarted = keras.models.load_model(path)
    state = dataset.state_at("train", int(restarted.optimizer.iterations), BATCH_SIZE)
    batches = dataset.as_tf("train", BATCH_SIZE, **options, state=state)
    assert fit(restarted, batches, epochs=2, steps_per_epoch=3) == pytest.approx(losses.losses[6:], rel=1e-5)


WEIGHTS = {0: 0.5, 1: 3.0}


@pytest.mark.parametrize("weights", [WEIGHTS, "my_weight"], ids=["class", "feature"])
@pytest.mark.parametrize("decoder", ["auto", "tensorflow"])
def test_weights_are_those_of_classes_or_of_a_feature_and_zero_for_padding(
    tmp_path: pathlib.Path, weights: Any, decoder: str
) -> None:
    column = features.Feature("my_weight", "columns/my_weight", features.FLOAT)
    examples = [
        {**written.jpeg_values(index), features.LABEL: 1 + index % 2, "columns/my_weight": index / 4}
        for index in range(7)
    ]
    wanted = (*written.IMAGE, written.LABEL, column)
    made = written.write(tmp_path / "out", wanted, examples, labels=("cat", "dog"), label_base=1)
    expected = [WEIGHTS[index % 2] if weights is WEIGHTS else index / 4 for index in range(7)]
    options = {"image_size": 8, "weights": weights, "decoder": decoder}
    for label_base in (0, 1):
        given = {each + label_base: weight for each, weight in weights.items()} if weights is WEIGHTS else weights
        asked = {**options, "weights": given, "label_base": label_base, "shuffle": None}
        named = list(made.as_numpy("train", 4, **asked))
        assert named[0].keys() == {"image", "label", "mask", "weight"}
        assert np.concatenate([batch["weight"] for batch in named]).tolist() == [*expected, 0.0]
        pairs = list(made.as_numpy("train", 4, **asked, supervised=True))
        assert np.concatenate([weight for _, _, weight in pairs]).tolist() == [*expected, 0.0]
    one = next(iter(made.as_tf("train", **options, supervised=True, shuffle="global")))
    assert (len(one), one[2].shape, one[2].dtype) == (3, (), tf.float32)


def test_class_weights_are_by_id_and_count_the_classes_that_are_kept(tmp_path: pathlib.Path) -> None:
    examples = [written.jpeg_values(index) | {features.LABEL: label} for index, label in enumerate((1, 1, 1, 2))]
    counted = {"labels": {"cat": 3, "dog": 1}}
    made = written.write(
        tmp_path / "out",
        (*written.IMAGE, written.LABEL),
        examples,
        labels=("cat", "dog", "owl"),
        label_base=1,
        statistics=counted,
    )
    assert made.class_weights() == {0: 4 / 6, 1: 2.0, 2: 0.0}
    assert made.class_weights("train[:50%]", label_base=1) == {1: 4 / 6, 2: 2.0, 3: 0.0}
    assert made.filter(["dog"]).class_weights() == {0: 0.0, 1: 1.0, 2: 0.0}
    weighted = next(made.as_numpy("train", 4, image_size=8, shuffle=None, weights=made.class_weights()))
    assert np.allclose(weighted["weight"], [4 / 6, 4 / 6, 4 / 6, 2.0])


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({0: 1.0}, r"weights lacks 1 \('dog'\): give one for each id from 0 to 1"),
        ({0: 1.0, 1: 2.0, 7: 1.0}, r"weights has \[7\], which are no classes"),
        ({0: 1.0, 1: -2.0}, "a weight must be 0 or more"),
        ({"cat": 1.0}, "a class of weights is 'cat'; it must be a whole number"),
        ([1.0, 2.0], r"weights is \[1.0, 2.0\]; it must be \{id of a class: weight\}"),
        ("image/key", "weights='image/key' is a bytes; name a feature with one number"),
        ("image/weight", "there is no feature 'image/weight'"),
    ],
)
def test_weights_that_do_not_fit_are_refused(dataset: imagebeam.ImageDataset, weights: Any, message: str) -> None:
    with pytest.raises(imagebeam.ConfigError, match=message):
        dataset.as_tf("train", BATCH_SIZE, image_size=8, weights=weights)
