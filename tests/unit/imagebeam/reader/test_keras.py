"""Datasets in Keras' loops: their length, and the epochs that each iteration reads."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from imagebeam import ImageDataset, features
from tests import case_tables, error_texts
from tests.unit.imagebeam.reader import written

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

pytestmark = pytest.mark.usefixtures("unchanged_graphs")

NUM_EXAMPLES = 22
BATCH_SIZE = 4
OPTIONS: Mapping[str, Any] = {"image_size": 8, "features": ("image/key",)}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> ImageDataset:
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
    dataset: ImageDataset, options: dict[str, Any], expected: int | str
) -> None:
    batches = dataset.as_tf("train", **{"batch_size": BATCH_SIZE, **OPTIONS, **options})
    known = {"infinite": tf.data.INFINITE_CARDINALITY, "unknown": tf.data.UNKNOWN_CARDINALITY}
    assert batches.cardinality().numpy() == known.get(str(expected), expected)
    if isinstance(expected, int):
        assert sum(1 for _ in batches) == expected


@pytest.mark.parametrize("options", [{}, {"next_epoch_each_iteration": True}], ids=["same", "next"])
def test_fit_without_steps_ends_after_each_epoch(dataset: ImageDataset, model: Any, options: dict[str, Any]) -> None:
    log = Log()
    train = dataset.as_tf("train", BATCH_SIZE, image_size=8, supervised=True, num_epochs=1, **options)
    model.fit(train, epochs=3, verbose=0, callbacks=[log])
    assert log.num_batches == [5, 5, 5]
    assert model.optimizer.iterations.numpy() == 15


@pytest.mark.parametrize(
    ("decoder", "shuffle"), [("auto", "stream"), ("auto", "global"), ("auto", None), ("pillow", "stream")]
)
def test_each_iteration_has_the_order_and_the_crops_of_its_epoch(
    dataset: ImageDataset, shuffle: str | None, decoder: str
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


@pytest.mark.parametrize("process_count", [1, 3])
def test_padded_pairs_have_weights_with_which_keras_counts_each_example_once(
    dataset: ImageDataset, model: Any, process_count: int
) -> None:
    options = {"image_size": 8, "crop": "center", "dtype": "float32", "shuffle": None, "num_epochs": 1}
    parts = [
        dataset.as_tf(
            "train", BATCH_SIZE, **options, supervised=True, pad=True, process_index=index, process_count=process_count
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


def test_losses_after_a_restart_at_a_step_are_those_of_a_run_without_one(
    dataset: ImageDataset, model: Any, tmp_path: pathlib.Path
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
@pytest.mark.parametrize("decoder", ["auto", "pillow"])
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


def test_weights_that_do_not_fit_are_refused(dataset: ImageDataset) -> None:
    for weights, code in [
        ({0: 1.0}, "weights-mismatch"),
        ({0: 1.0, 1: 2.0, 7: 1.0}, "weights-mismatch"),
        ("image/key", "weights-mismatch"),
        ({0: 1.0, 1: -2.0}, "option-bad-value"),
        ({"cat": 1.0}, "option-bad-value"),
        ([1.0, 2.0], "option-bad-value"),
        ("image/weight", "feature-unknown"),
    ]:
        with case_tables.named(weights, code), error_texts.raises(code):
            dataset.as_tf("train", BATCH_SIZE, image_size=8, weights=weights)
