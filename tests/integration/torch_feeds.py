"""Feeds for PyTorch, with PyTorch: `make torch-test`, some minutes.

Not one of the tests that pytest finds by itself: they install PyTorch beside the environment, 500 MB to download.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import pathlib
import re
import sys
from typing import Any, cast

import numpy as np
import pytest

import imagebeam
from tests import datasets, docs_pages, error_texts, image_sets
from tests.servers import torch_cpu
from tests.unit.imagebeam.reader import sized_sets
from tests.unit.imagebeam.reader.feeding import LABELS, PER_LABEL, SIZE

sys.path.append(str(torch_cpu.install()))
import torch
import torch.utils.data
import torchdata.stateful_dataloader

from imagebeam.reader import torch_feeds

pytestmark = pytest.mark.integration

PICTURES: dict[str, Any] = {"image_size": 16, "features": ("image/key",)}
MODES: dict[str, dict[str, Any]] = {
    "stream": {"shuffle": "stream", "shuffle_records": 20},
    "global": {"shuffle": "global"},
    "global, keep": {"shuffle": "global", "drop_remainder": False},
    "global, pad": {"shuffle": "global", "pad": True},
    "two epochs": {"shuffle": "global", "num_epochs": 2},
    "evaluation": {"shuffle": None},
}
IS_WHOLE = {"global, keep", "global, pad", "evaluation"}  # no record is dropped at the end of an epoch


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """52 images of two classes in three shards."""
    folder = tmp_path_factory.mktemp("feeds")
    image_sets.write_folder(folder / "in", LABELS, PER_LABEL)
    datasets.make(folder / "in", folder / "out", output={"num_shards": 3}, label={"by": "directory", "base": 1})
    return folder / "out"


@pytest.fixture(scope="module")
def dataset(directory: pathlib.Path) -> imagebeam.ImageDataset:
    return imagebeam.open_dataset(directory)


@pytest.fixture(scope="module")
def every(directory: pathlib.Path) -> list[str]:
    return sorted(datasets.keys(directory))


def keys_of(batch: Any) -> list[str]:
    """Returns the keys of a batch; padding has none."""
    return [key.decode() for key in batch["image/key"] if key]


def read(batches: Any) -> list[list[str]]:
    return [keys_of(batch) for batch in batches]


def flat(batches: list[list[str]]) -> list[str]:
    return list(itertools.chain(*batches))


def saved(loader: Any) -> Any:
    return json.loads(json.dumps(loader.state_dict()))


# --- iterations and their state ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_iteration_is_an_epoch_of_its_own_that_goes_on_from_any_step(
    dataset: imagebeam.ImageDataset, every: list[str], mode: str
) -> None:
    options = {**PICTURES, **MODES[mode]}

    def make() -> torch_feeds.TorchBatches:
        return dataset.as_torch("train", 7, **options)

    loader, iterations, states = make(), [], [saved(make())]
    for _ in range(3):
        iterations.append([])
        for batch in loader:
            iterations[-1].append(keys_of(batch))
            states.append(saved(loader))
        assert len(iterations[-1]) == len(loader)
    num_epochs = options.get("num_epochs", 1)
    for each in iterations:
        if mode in IS_WHOLE:
            assert sorted(flat(each)) == every
        else:
            assert len(flat(each)) == SIZE * num_epochs // 7 * 7
            assert max(map(flat(each).count, every)) <= num_epochs
    assert (iterations[0] == iterations[1]) == (mode == "evaluation")
    chosen = make()
    chosen.set_epoch(num_epochs)
    assert read(chosen) == iterations[1]

    # A state after the last batch of an iteration is the beginning of the next one.
    for step, state in enumerate(states[: 2 * len(loader)]):
        again = make()
        again.load_state_dict(state)
        assert saved(again) == state
        done, left = divmod(step, len(loader))
        assert read(again) == iterations[done][left:]
        assert read(again) == iterations[done + 1]
        assert len(again) == len(loader)


def test_set_epoch_keeps_a_state_that_was_restored_in_this_epoch(dataset: imagebeam.ImageDataset) -> None:
    loader = dataset.as_torch("train", 7, **PICTURES, shuffle="global")
    first, second = read(loader), read(loader)
    states = []
    loader.set_epoch(0)
    for _ in loader:
        states.append(saved(loader))
    for step in (3, len(loader)):
        again = dataset.as_torch("train", 7, **PICTURES, shuffle="global")
        again.load_state_dict(states[step - 1])
        again.set_epoch(0)
        assert read(again) == first[step:]  # of a whole epoch nothing: the loop that counts epochs has done it
        again.set_epoch(1)
        assert read(again) == second
        again.set_epoch(1)
        assert read(again) == second


def test_iteration_from_which_no_batch_was_taken_does_not_count(dataset: imagebeam.ImageDataset) -> None:
    expected = [read(epoch) for loader in [dataset.as_torch("train", 5, **PICTURES)] for epoch in (loader, loader)]
    loader = dataset.as_torch("train", 5, **PICTURES)
    iter(loader)
    before = [keys_of(batch) for batch in itertools.islice(loader, 3)]
    state = saved(loader)
    assert before == expected[0][:3]
    for chosen in ((), (0,)):
        again = dataset.as_torch("train", 5, **PICTURES)
        again.load_state_dict(state)
        iter(again)
        for epoch in chosen:
            again.set_epoch(epoch)
        assert [read(again), read(again)] == [expected[0][3:], expected[1]]


def test_examples_of_a_mixture_are_tensors_and_its_weights_follow_the_step(dataset: imagebeam.ImageDataset) -> None:
    pair = [(dataset.filter(["cat"]), "train"), (dataset.filter(["dog"]), "train")]
    loader = imagebeam.Mixture(pair, [(0, [1, 0]), (4, [0, 1])]).as_torch(4, **PICTURES)
    dogs = [sum(key.startswith("dog") for key in keys_of(batch)) for batch in itertools.islice(loader, 8)]
    assert dogs == [0, 1, 2, 3, 4, 4, 4, 4]
    examples = imagebeam.Mixture(pair, [1, 1]).as_torch_map(features=("image/key",))
    source = imagebeam.Mixture(pair, [1, 1]).as_grain(features=("image/key",))
    assert len(examples) == len(source) and examples[3]["image"].shape[0] == 3
    assert [each["image/key"] for each in examples.__getitems__([5, 0])] == [
        source[5]["image/key"],
        source[0]["image/key"],
    ]


def test_endless_iteration_goes_on_after_a_loop_that_was_left(dataset: imagebeam.ImageDataset) -> None:
    mixture = imagebeam.Mixture([(dataset, "train"), (dataset, "train[:10]")], [3, 1])
    for loader in (dataset.as_torch("train", 8, **PICTURES, num_epochs=None), mixture.as_torch(8, **PICTURES)):
        expected = [keys_of(batch) for batch, _ in zip(loader, range(5))]
        start = loader.state_dict()
        expected += [keys_of(batch) for batch, _ in zip(loader, range(5))]
        loader.load_state_dict(start)
        assert [keys_of(batch) for batch, _ in zip(loader, range(5))] == expected[5:]
        with pytest.raises(TypeError, match="no last batch"):
            len(loader)


def test_state_of_iterations_of_another_length_is_refused(dataset: imagebeam.ImageDataset) -> None:
    with error_texts.raises("state-mismatch"):
        dataset.as_torch("train", 7).restore(dataset.state_at("train", 3, 7))
    with error_texts.raises("option-bad-value"):
        dataset.as_torch("train", 7).restore(cast(Any, {"seed": 0}))


@pytest.mark.parametrize("counts", [(1, 3, 2), (4, 1, 2), (2, 5, 1)])
def test_rest_of_an_epoch_is_read_once_by_any_number_of_processes(
    dataset: imagebeam.ImageDataset, every: list[str], counts: tuple[int, ...]
) -> None:
    state, found = None, []
    for place, count in enumerate(counts):
        batch_size = 12 // count
        loaders = [
            dataset.as_torch(
                "train", batch_size, rank=rank, world_size=count, **PICTURES, shuffle="global", drop_remainder=False
            )
            for rank in range(count)
        ]
        states = []
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
            steps = None if place + 1 == len(counts) else 1
            for batch in itertools.islice(loader, steps):
                found += keys_of(batch)
            states.append(saved(loader))
        state = states[0]
        assert place + 1 == len(counts) or states == [state] * count
    assert sorted(found) == every


def test_snippets_of_the_documentation_do_what_they_say(
    directory: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shards").symlink_to(directory)
    small = [(" 256", " 8, image_size=8"), ("batch_size=256", "batch_size=8"), ("range(90)", "range(2)")]
    names: dict[str, Any] = {"torch": torch, "model": torch.nn.Linear(2, 2), "__name__": "__snippet__"}
    for block in docs_pages.blocks("torch.md", "python"):
        if "import lightning" in block or "import accelerate" in block:
            continue  # in torch_trainers.py
        for text, smaller in small:
            block = block.replace(text, smaller)
        exec(compile(block, "snippet", "exec"), names)
    assert names["images"].dtype == torch.bfloat16 and names["labels"].dtype == torch.int64
    assert names["train"].state().first_epoch == 1  # of the second iteration
    [of_readme] = re.findall(r"^loader = .*$", docs_pages.blocks("../README.md", "python")[0], re.MULTILINE)
    exec(of_readme, names)
    assert next(iter(names["loader"]))["image"].shape == (32, 3, 224, 224)
    docs_pages.run_examples(imagebeam.ImageDataset.as_torch, imagebeam=imagebeam)


# --- tensors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", torch_feeds.LAYOUTS)
@pytest.mark.parametrize("dtype", ["uint8", "float16", "bfloat16", torch.float32, torch.bfloat16])
def test_batches_are_the_arrays_of_as_numpy_as_tensors(
    dataset: imagebeam.ImageDataset, dtype: Any, layout: str
) -> None:
    options = {"image_size": (16, 20), "shuffle": None, "features": ("image/key", "image/width")}
    loader = dataset.as_torch("train", 8, layout=layout, dtype=dtype, device="cpu", **options)
    expected = list(dataset.as_numpy("train", 8, dtype=str(dtype).removeprefix("torch."), **options))
    for batch, arrays in zip(list(loader), expected, strict=True):  # all at once: no batch takes another's memory
        assert list(batch) == list(arrays)
        image = batch["image"]
        assert str(image.dtype).removeprefix("torch.") == arrays["image"].dtype.name
        in_order = image.permute(0, 2, 3, 1) if layout == "NCHW" else image
        assert in_order.shape == (8, 16, 20, 3) and in_order.is_contiguous()
        np.testing.assert_array_equal(in_order.float().numpy(), arrays["image"].astype(np.float32))
        image.zero_()  # it can be written to
        assert batch["label"].dtype == torch.int64  # as cross_entropy wants it
        assert batch["label"].tolist() == arrays["label"].tolist()
        assert batch["image/key"] == arrays["image/key"].tolist()
        assert batch["mask"].dtype == torch.bool and batch["image/width"].dtype == torch.int64
    assert image.is_contiguous(memory_format=torch.channels_last) == (layout == "NCHW")


def test_arrays_that_can_be_written_to_are_not_copied() -> None:
    array = np.arange(6, dtype=np.float32)
    assert np.shares_memory(torch_feeds._to_tensor(array).numpy(), array)
    array.setflags(write=False)
    assert not np.shares_memory(torch_feeds._to_tensor(array).numpy(), array)


def test_supervised_batches_are_tuples(dataset: imagebeam.ImageDataset) -> None:
    images, labels, weights = next(iter(dataset.as_torch("train", 8, image_size=16, supervised=True, shuffle=None)))
    assert images.shape == (8, 3, 16, 16) and labels.dtype == torch.int64 and weights.tolist() == [1] * 8


@pytest.mark.parametrize("options", [{"layout": "CHWN"}, {"process_index": 1}, {"rank": 1}])
def test_options_that_do_not_fit_are_refused(dataset: imagebeam.ImageDataset, options: dict[str, Any]) -> None:
    with error_texts.raises("option-bad-value" if "layout" in options else "options-conflict"):
        dataset.as_torch("train", 8, **options)
    if "layout" in options:
        with error_texts.raises("option-bad-value"):
            dataset.as_torch_map("train", **options)


def test_one_of_several_processes_that_do_not_know_each_other_is_refused(
    dataset: imagebeam.ImageDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with error_texts.raises("options-conflict"):
        dataset.as_torch("train", 8)


# --- DataLoader ------------------------------------------------------------------------------------------------------


def test_data_loader_without_workers_passes_batches_on(dataset: imagebeam.ImageDataset) -> None:
    loader = dataset.as_torch("train", 8, **PICTURES)
    passed = torch.utils.data.DataLoader(loader, batch_size=None)
    assert len(passed) == len(loader) and loader.metrics() == {}
    assert read(passed) == read(dataset.as_torch("train", 8, **PICTURES))
    assert loader.metrics()["examples"] == SIZE // 8 * 8


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_data_loader_with_workers_is_refused_and_names_the_remedy(directory: pathlib.Path, method: str) -> None:
    loader = imagebeam.open_dataset(directory).as_torch("train", 8, **PICTURES)
    context = multiprocessing.get_context(method)
    passed = torch.utils.data.DataLoader(loader, batch_size=None, num_workers=2, multiprocessing_context=context)
    with pytest.raises(Exception, match=r"give num_workers=0; for transformations .* as_torch_map"):
        next(iter(passed))


def to_first_pixel(example: dict[str, Any]) -> dict[str, Any]:
    image = example["image"]
    assert image.dtype == torch.uint8 and image.shape[0] == 3
    return {"pixel": image[:, 0, 0], "label": example["label"], "key": example["image/key"].decode()}


@pytest.mark.parametrize(("num_workers", "method"), [(0, None), (2, "fork"), (2, "spawn")])
def test_map_style_dataset_is_read_once_by_workers(
    dataset: imagebeam.ImageDataset, every: list[str], num_workers: int, method: str | None
) -> None:
    examples = dataset.as_torch_map("train", transform=to_first_pixel)
    assert len(examples) == SIZE
    loader = torch.utils.data.DataLoader(
        examples, batch_size=8, shuffle=True, num_workers=num_workers, multiprocessing_context=method
    )
    batches = list(loader)
    assert sorted(key for batch in batches for key in batch["key"]) == every
    assert batches[0]["pixel"].shape == (8, 3) and batches[0]["label"].dtype == torch.int64
    together, alone = examples.__getitems__([5, 1, -1]), [examples[index] for index in (5, 1, SIZE - 1)]
    assert [each["key"] for each in together] == [each["key"] for each in alone]


@pytest.mark.parametrize("layout", torch_feeds.LAYOUTS)
def test_map_style_dataset_has_the_examples_of_as_grain(dataset: imagebeam.ImageDataset, layout: str) -> None:
    [example] = dataset.as_torch_map("train", layout=layout).__getitems__([3])
    expected = dataset.as_grain("train")[3]
    axes = (2, 0, 1) if layout == "NCHW" else (0, 1, 2)
    np.testing.assert_array_equal(example.pop("image").numpy(), expected.pop("image").transpose(axes))
    assert example == expected


def test_stateful_data_loader_goes_on_where_it_was_saved(dataset: imagebeam.ImageDataset) -> None:
    def make() -> Any:
        loader = dataset.as_torch("train", 7, **PICTURES, shuffle="global")
        return torchdata.stateful_dataloader.StatefulDataLoader(loader, batch_size=None)

    whole = make()
    iterations, states = [], []
    for _ in range(2):
        iterations.append([])
        for batch in whole:
            iterations[-1].append(keys_of(batch))
            states.append(whole.state_dict())
    for step in (1, 4):
        again = make()
        again.load_state_dict(states[step - 1])
        assert read(again) == iterations[0][step:]
        assert read(again) == iterations[1]


def test_iterations_over_buckets_are_the_epochs_one_after_the_other(tmp_path: pathlib.Path) -> None:
    """Also in the middle of one, from a state; what is left of a bucket begins its batches of the next epoch."""
    made = sized_sets.write(tmp_path / "set")
    options: dict[str, Any] = {"buckets": [(32, 16), (24, 24), (16, 32)], "seed": 5, "metadata": True}
    expected = list(made.as_numpy("train", 4, **options, num_epochs=3))
    lengths = [made.num_batches("train", 4, **options, first_epoch=epoch) for epoch in range(3)]
    assert sum(lengths) == len(expected) and len(set(lengths)) > 1
    loader = made.as_torch("train", 4, layout="NHWC", **options)
    found = []
    for length in lengths[:2]:
        assert len(loader) == length
        begun = iter(loader)
        assert len(loader) == length
        found += begun
    assert len(loader) == lengths[2]
    found += itertools.islice(loader, 2)
    again = made.as_torch("train", 4, layout="NHWC", **options)
    again.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    found += again
    for one, other in zip(found, expected, strict=True):
        sized_sets.check_equal(one, other)


def test_patches_keep_their_layout(tmp_path: pathlib.Path) -> None:
    made = sized_sets.write(tmp_path / "set")
    options: dict[str, Any] = {"patches": 8, "max_patches": 20, "seed": 5}
    found, expected = made.as_torch("train", 4, **options), made.as_numpy("train", 4, **options, num_epochs=1)
    for one, other in zip(found, expected, strict=True):
        sized_sets.check_equal(one, other)
