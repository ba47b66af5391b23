"""Datasets with the same options share a graph, and each reads its own records."""

from __future__ import annotations

import gc
import pathlib
import traceback
import weakref
from typing import Any

import pytest

import imagebeam
from imagebeam.reader import shared_graphs
from tests.unit.imagebeam.reader import written

tf = pytest.importorskip("tensorflow")

OPTIONS: dict[str, Any] = {"image_size": 8, "features": ("image/key",), "num_epochs": 1}


def make(folder: pathlib.Path, name: str, count: int) -> imagebeam.ImageDataset:
    examples = [{**written.jpeg_values(index), "image/key": f"{name}{index}".encode()} for index in range(count)]
    return written.write(folder / name, written.IMAGE, examples, num_shards=2)


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> list[imagebeam.ImageDataset]:
    folder = tmp_path_factory.mktemp("shared")
    return [make(folder, "a", 12), make(folder, "b", 8)]


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The pipelines that were traced since the test began."""
    from imagebeam.reader import tf_pipeline

    shared_graphs.clear()
    found: list[Any] = []
    trace = tf_pipeline._Pipeline.__call__

    def note(self: Any, *numbers: Any) -> Any:
        found.append(self)
        return trace(self, *numbers)

    monkeypatch.setattr(tf_pipeline._Pipeline, "__call__", note)
    return found


def keys_of(batches: Any) -> list[bytes]:
    return [key for batch in batches for key in batch["image/key"].numpy().tolist()]


def test_datasets_with_equal_options_share_a_graph_and_read_their_own_records_in_turn(
    datasets: list[imagebeam.ImageDataset], traced: list[Any]
) -> None:
    two = [each.as_tf("train", 4, seed=seed, **OPTIONS) for seed, each in enumerate(datasets)]
    first, second = map(iter, two)
    found: tuple[list[bytes], list[bytes]] = ([], [])
    for _ in range(2):
        found[0].extend(keys_of([next(first)]))
        found[1].extend(keys_of([next(second)]))
    found[0].extend(keys_of(first))
    assert sorted(found[0]) == sorted(f"a{index}".encode() for index in range(12))
    assert sorted(found[1]) == sorted(f"b{index}".encode() for index in range(8))
    assert [each.cardinality().numpy() for each in two] == [3, 2]
    assert len(traced) == 1


def test_state_goes_on_in_the_graph_of_the_first_dataset(
    datasets: list[imagebeam.ImageDataset], traced: list[Any]
) -> None:
    batches = datasets[0].as_numpy("train", 4, **OPTIONS)
    next(batches)
    rest = datasets[0].as_numpy("train", 4, **OPTIONS, state=batches.state())
    expected = [batch["image/key"].tolist() for batch in batches]
    assert [batch["image/key"].tolist() for batch in rest] == expected
    assert len(expected) == 2
    assert len(traced) == 1


@pytest.mark.parametrize(
    "other",
    [{"dtype": "float32"}, {"crop": "center"}, {"drop_remainder": False}, {"num_epochs": None}, {"threads": 3}],
    ids=lambda other: next(iter(other)),
)
def test_another_option_makes_another_graph(
    datasets: list[imagebeam.ImageDataset], traced: list[Any], other: dict[str, Any]
) -> None:
    datasets[0].as_tf("train", 4, **OPTIONS)
    datasets[0].as_tf("train", 4, **{**OPTIONS, **other})
    assert len(traced) == 2


def test_reader_lives_as_long_as_its_dataset_or_an_iterator_of_it(datasets: list[imagebeam.ImageDataset]) -> None:
    gc.freeze()  # collecting then looks only at what this test makes
    batches = datasets[0].as_tf("train", 4, **OPTIONS)
    held = weakref.ref(shared_graphs._READERS[max(shared_graphs._READERS)])
    iterator = iter(batches.map(lambda batch: batch))
    del batches
    gc.collect()
    assert len(keys_of(iterator)) == 12
    del iterator
    gc.collect()
    assert held() is None


def test_dataset_made_in_a_function_of_the_user_reads_in_each_call(
    datasets: list[imagebeam.ImageDataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    from imagebeam.reader import tf_pipeline

    gc.freeze()
    translated: set[str] = set()
    build = tf_pipeline.build

    def note_callers(*arguments: Any) -> Any:
        stack = traceback.extract_stack()
        translated.update(frame.name for frame in stack if "__autograph_generated_file" in frame.filename)
        return build(*arguments)

    monkeypatch.setattr(tf_pipeline, "build", note_callers)

    @tf.function  # type: ignore[untyped-decorator]
    def count() -> tf.Tensor:
        batches = datasets[0].as_tf("train", 4, **OPTIONS)
        return batches.reduce(tf.constant(0), lambda total, batch: total + tf.shape(batch["image"])[0])

    first = count().numpy()
    gc.collect()
    assert (first, count().numpy()) == (12, 12)
    assert translated == {"tf__count", "tf__as_tf"}  # AutoGraph leaves what `as_tf` calls
