"""Augmentation with torchvision, and views as tensors: `make torch-test`."""

from __future__ import annotations

import pathlib
import sys
from typing import Any

import numpy as np
import pytest

import imagebeam
from tests import datasets, docs_pages, image_sets
from tests.servers import torch_cpu
from tests.unit.imagebeam.reader.feeding import LABELS

sys.path += map(str, (torch_cpu.install(), torch_cpu.install_vision()))
import torch

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> imagebeam.ImageDataset:
    folder = tmp_path_factory.mktemp("augmentation")
    image_sets.write_folder(folder / "in", LABELS, 8)
    datasets.make(folder / "in", folder / "out", output={"num_shards": 2})
    return imagebeam.open_dataset(folder / "out")


def test_trivial_augment_of_torchvision_is_the_same_in_any_number_of_processes(
    dataset: imagebeam.ImageDataset, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [snippet] = [each for each in docs_pages.blocks("augmentation.md", "python") if "TrivialAugmentWide" in each]
    (tmp_path / "augment.py").write_text(snippet)
    monkeypatch.syspath_prepend(tmp_path)
    import augment  # type: ignore[import-not-found]

    options: dict[str, Any] = {"image_size": 16, "shuffle": "global", "num_epochs": 3, "metadata": True}

    def read(**more: Any) -> dict[tuple[int, int], np.ndarray]:
        batches = dataset.as_numpy("train", 4, **options, **more)
        return {
            (int(epoch), int(record)): image
            for batch in batches
            for epoch, record, image in zip(batch["epoch"], batch["record"], batch["image"], strict=True)
        }

    plain, one, several = (
        read(**more) for more in ({}, *({"map": augment.trivial_augment, "map_workers": workers} for workers in (1, 3)))
    )
    assert one.keys() == several.keys() == plain.keys()
    for key, image in one.items():
        np.testing.assert_array_equal(image, several[key])
    assert sum((one[key] != plain[key]).any() for key in one) > len(one) / 2


def test_views_are_tensors_in_the_layout(dataset: imagebeam.ImageDataset) -> None:
    options: dict[str, Any] = {"views": {"large": (2, 16), "small": (3, (8, 10))}, "seed": 1}
    expected = next(dataset.as_numpy("train", 4, **options))
    for layout in ("NCHW", "NHWC"):
        batch = next(iter(dataset.as_torch("train", 4, layout=layout, **options)))
        assert batch["label"].dtype == torch.int64
        for name in ("large", "small"):
            found = batch[name].movedim(-3, -1) if layout == "NCHW" else batch[name]
            np.testing.assert_array_equal(found.numpy(), expected[name])
    assert len(dataset.as_torch("train", 4, repeats=2, **options)) == 2 * 16 // 4
