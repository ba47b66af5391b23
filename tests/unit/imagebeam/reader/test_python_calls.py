"""A program ends cleanly with iterators that are still reading."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

import imagebeam
from tests.unit.imagebeam.reader.feeding import finish, start


def _keep_reading(kind: str, directory: str) -> None:
    """Leaves an endless iterator that reads ahead."""
    dataset = imagebeam.open_dataset(directory)
    options: dict[str, Any] = {"image_size": 16}
    if kind == "as_tf":
        batches = iter(dataset.as_tf("train", 50, **options))
    elif kind == "as_numpy":
        batches = dataset.as_numpy("train", 50, **options)
    else:
        import jax

        sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        batches = dataset.as_jax("train", sharding, 50, **options)
    for _ in range(3):
        next(batches)
    globals()["kept"] = batches  # lives as long as the interpreter
    print("true", flush=True)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["as_tf", "as_numpy", "as_jax"])
def test_program_ends_while_an_iterator_reads_ahead(kind: str, directory: pathlib.Path) -> None:
    assert finish(start(_keep_reading, kind, str(directory)))
