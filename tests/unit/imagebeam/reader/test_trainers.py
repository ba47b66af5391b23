"""The lines of docs/trainers.md, run with the names that the trainers define where they stand."""

from __future__ import annotations

import itertools
import json
import pathlib
import types
from typing import Any

import numpy as np
import pytest

import imagebeam
from tests import docs_pages
from tests.unit.imagebeam.reader.feeding import LABELS, SIZE

BATCH_SIZE = 8


def blocks_of(directory: pathlib.Path) -> list[str]:
    """Returns the lines, with a small dataset and images."""
    changes = {"gs://bucket/shards": str(directory), '{"shuffle": "global"': '{"image_size": 8, "shuffle": "global"'}
    blocks = docs_pages.blocks("trainers.md", "python")
    for text, other in changes.items():
        blocks = [each.replace(text, other) for each in blocks]
    return blocks


def run(block: str, names: dict[str, Any]) -> None:
    exec(compile(block, "snippet", "exec"), names)


def test_big_vision_trains_on_the_batches_after_its_step(directory: pathlib.Path) -> None:
    jax = pytest.importorskip("jax")
    pytest.importorskip("tensorflow")
    preparing, describing, iterating, _ = blocks_of(directory)

    def train(first_step: int, total_steps: int) -> list[tuple[Any, Any]]:
        """Takes its batches as the loop of train.py does."""
        names: dict[str, Any] = {"batch_size": BATCH_SIZE, "first_step": first_step, "jax": jax, "np": np}
        names |= {"imagebeam": imagebeam, "mesh": jax.make_mesh((1, 1), ("data", "model"), devices=jax.devices()[:1])}
        for block in (preparing, describing, iterating):
            run(block, names)
        spec = names["train_ds"].element_spec
        assert names["ntrain_img"] == SIZE and set(spec) == {"image", "labels"}
        seen = []
        for _, batch in zip(range(first_step + 1, total_steps + 1), names["train_iter"]):
            assert {name: (each.shape, each.dtype.name) for name, each in batch.items()} == {
                name: (tuple(each.shape), each.dtype.name) for name, each in spec.items()
            }
            seen.append((np.asarray(batch["image"]), np.asarray(batch["labels"])))
        return seen

    whole, rest = train(0, 9), train(5, 9)
    assert len(whole) == 9 and len(rest) == 4
    for one, other in zip(whole[5:], rest, strict=True):
        assert all((mine == theirs).all() for mine, theirs in zip(one, other))
    assert all(-1 <= images.min() < 0 < images.max() <= 1 for images, _ in whole)
    assert all(labels.shape == (BATCH_SIZE, len(LABELS)) and (labels.sum(1) == 1).all() for _, labels in whole)


def test_maxtext_takes_and_saves_the_batches_of_each_process(directory: pathlib.Path) -> None:
    grain = pytest.importorskip("grain")
    [*_, block] = blocks_of(directory)
    config = types.SimpleNamespace(global_batch_size_to_load=BATCH_SIZE)

    def start(shard_index: int) -> Any:
        names = {
            "ds": imagebeam.open_dataset(directory),
            "config": config,
            "shard_index": shard_index,
            "shard_count": 2,
        }
        run(block, names)
        return iter(names["train_dataloader"])  # as MultiHostDataLoadIterator.local_iterator

    iterators = [start(0), start(1)]
    assert all(isinstance(each, grain.DatasetIterator) for each in iterators)
    for batches in itertools.islice(zip(*iterators), 3):
        assert [len(batch["image"]) for batch in batches] == [BATCH_SIZE // 2] * 2
        assert all(np.split(value, 2)[0].dtype != object for batch in batches for value in batch.values())
    saved = [json.dumps(each.get_state(), indent=4) for each in iterators]  # as GrainCheckpointHandler.save
    expected = [[next(each) for _ in range(3)] for each in iterators]
    again = [start(0), start(1)]
    for each, state in zip(again, saved):
        each.set_state(json.loads(state))
    for made, each in zip(expected, again):
        for batch in made:
            found = next(each)
            assert all((batch[name] == found[name]).all() for name in batch)
