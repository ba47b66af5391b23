"""Reads the random access source with Grain's loaders, and checks the protocol of PyTorch's loader."""

from __future__ import annotations

import pathlib
import pickle
import shutil
from typing import Any

import numpy as np
import pytest

import imagebeam
from imagebeam.reader.example_source import ExampleSource
from tests.unit.imagebeam.reader.feeding import SIZE, keys_of


@pytest.fixture
def parsed_flags() -> None:
    """Grain's worker processes want absl's flags, which `absl.app.run` parses in a program."""
    from absl import flags  # type: ignore[import-untyped]

    flags.FLAGS.mark_as_parsed()


def test_repr_of_a_source_names_its_examples_and_not_the_folder(
    directory: pathlib.Path, dataset: imagebeam.ImageDataset, tmp_path: pathlib.Path
) -> None:
    shutil.copytree(directory, tmp_path / "elsewhere")
    elsewhere = imagebeam.open_dataset(str(tmp_path / "elsewhere"))
    assert repr(dataset.as_grain("train")) == repr(elsewhere.as_grain("train"))
    assert repr(dataset.as_grain("train")) == (
        f"ExampleSource('out', fingerprint='{dataset.catalog.fingerprint}', split='train', examples=all, len={SIZE}, "
        "decode=True)"
    )
    different = [
        dataset.as_grain("train"),
        dataset.as_grain("train", decode=False),
        dataset.as_grain("train[:26]"),
        dataset.as_grain("train[26:]"),
        dataset.filter(labels=["cat"]).as_grain("train"),
        dataset.filter(labels=["dog"]).as_grain("train"),
    ]
    assert len({repr(each) for each in different}) == len(different)


@pytest.mark.parametrize("worker_count", [0, 2])
def test_grain_data_loader_reads_each_example_once_an_epoch(
    source: ExampleSource, worker_count: int, parsed_flags: None
) -> None:
    import grain.python as grain

    def load(index: int) -> list[str]:
        shard = grain.ShardOptions(shard_index=index, shard_count=2)
        sampler = grain.IndexSampler(SIZE, shard_options=shard, shuffle=True, num_epochs=1, seed=3)
        return keys_of(iter(grain.DataLoader(data_source=source, sampler=sampler, worker_count=worker_count)))

    shares = [load(index) for index in range(2 if worker_count == 0 else 1)]  # worker processes take seconds to start
    assert {len(share) for share in shares} == {SIZE // 2}
    assert len({key for share in shares for key in share}) == SIZE // 2 * len(shares)


def test_grain_data_loader_goes_on_from_a_checkpoint(
    directory: pathlib.Path, source: ExampleSource, dataset: imagebeam.ImageDataset
) -> None:
    import grain.python as grain

    def load(each: ExampleSource) -> Any:
        sampler = grain.IndexSampler(SIZE, shard_options=grain.NoSharding(), shuffle=True, seed=3)
        return iter(grain.DataLoader(data_source=each, sampler=sampler, worker_count=0))

    examples = load(source)
    for _ in range(10):
        next(examples)
    state = examples.get_state()
    expected = keys_of(next(examples) for _ in range(SIZE))
    again = load(imagebeam.open_dataset(str(directory)).as_grain("train"))
    again.set_state(state)
    assert keys_of(next(again) for _ in range(SIZE)) == expected
    with pytest.raises(ValueError, match="decode=False"):  # Grain sees by the repr that it is another source
        load(dataset.as_grain("train", decode=False)).set_state(state)


def test_grain_map_dataset_shuffles_batches_and_goes_on_from_a_checkpoint(source: ExampleSource) -> None:
    import grain

    def load() -> Any:
        examples = grain.MapDataset.source(source).seed(7).shuffle().repeat()
        pairs = examples.map(lambda each: (each["image"], each["label"])).batch(8)
        return iter(pairs.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=1)))

    batches = load()
    image, label = next(batches)
    assert (image.shape, image.dtype, label.shape) == ((8, 16, 24, 3), np.uint8, (8,))
    state = batches.get_state()
    expected = [next(batches)[1].tolist() for _ in range(8)]
    again = load()
    again.set_state(state)
    assert [next(again)[1].tolist() for _ in range(8)] == expected


def test_source_is_what_the_data_loader_of_pytorch_asks_for(source: ExampleSource) -> None:
    worker = pickle.loads(pickle.dumps(source))  # as a worker that is spawned gets it
    permutation = np.random.default_rng(0).permutation(len(source)).tolist()  # RandomSampler asks for the length alone
    batches = [[worker[index] for index in permutation[first : first + 8]] for first in range(0, len(source), 8)]
    assert sorted(keys_of(each for batch in batches for each in batch)) == sorted(
        keys_of(map(source.__getitem__, range(SIZE)))
    )
    collated = [{type(each[name]) for batch in batches for each in batch} for name in ("image", "label", "image/key")]
    assert collated == [{np.ndarray}, {int}, {bytes}]  # default_collate stacks the first two, and lists the last
