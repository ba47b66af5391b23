"""Global arrays on a JAX mesh. Tests that need several devices run in a fresh process."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest

import imagebeam
from imagebeam import errors
from imagebeam.reader import jax_iterator, record_order
from tests import datasets, error_texts, patience, recipe_sets
from tests.unit.imagebeam.reader.feeding import SIZE, finish, flat, one_device, start


@dataclasses.dataclass
class StubBatches(Iterator[dict[str, np.ndarray]]):
    """Batches as `ImageDataset.as_numpy` returns them, which counts the batches that were read."""

    batches: list[dict[str, np.ndarray]]
    num_read: int = 0
    has_state: bool = True
    was_read: threading.Semaphore = dataclasses.field(default_factory=lambda: threading.Semaphore(0))

    def __next__(self) -> dict[str, np.ndarray]:
        if self.num_read == len(self.batches):
            raise StopIteration
        self.num_read += 1
        self.was_read.release()
        return self.batches[self.num_read - 1]

    def check_process(self) -> None:
        """Every process may read."""

    def state(self) -> record_order.ReaderState:
        return record_order.ReaderState(0, 0, self.num_read)


def iterate_stub(*batches: dict[str, np.ndarray]) -> tuple[jax_iterator.JaxIterator, StubBatches]:
    stub = StubBatches(list(batches))
    return jax_iterator.JaxIterator(stub, one_device(), 1), stub  # type: ignore[arg-type]


def _feed_eight_devices(directory: str) -> None:
    import jax
    from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

    dataset = imagebeam.open_dataset(directory)
    sharding = NamedSharding(jax.make_mesh((8,), ("data",)), PartitionSpec("data"))
    keys: list[list[str]] = []
    described = {}
    for batch in dataset.as_jax(
        "train",
        sharding,
        16,
        image_size=20,
        dtype="bfloat16",
        features=("image/key", "image/height"),
        num_epochs=1,
        pad=True,
    ):
        is_real = np.asarray(batch["mask"])
        keys.append([key.decode() for key in batch["image/key"][is_real]])
        for name, value in batch.items():
            shapes = [part.data.shape for part in getattr(value, "addressable_shards", ())]
            described[name] = [type(value).__module__.partition(".")[0], str(value.dtype), value.shape, shapes]
    parts = {}
    square = jax.make_mesh((2, 4), ("data", "model"))
    specs = [("data",), (None, "model"), (("data", "model"),), ("model", "data"), ()]
    shardings = {str(spec): NamedSharding(square, PartitionSpec(*spec)) for spec in specs}
    for name, each in (shardings | {"one": SingleDeviceSharding(jax.devices()[3])}).items():
        batch = next(dataset.as_jax("train", each, 16, image_size=20))
        parts[name] = [batch[key].addressable_shards[0].data.shape for key in ("image", "label")]
    refused = []
    for batch_size in (12, 20):
        try:
            dataset.as_jax("train", sharding, batch_size)
        except errors.ConfigError as e:
            refused.append(str(e))
    print(json.dumps({"keys": keys, "described": described, "parts": parts, "refused": refused}))


@pytest.mark.slow
def test_as_jax_on_eight_devices_gives_global_arrays(directory: pathlib.Path) -> None:
    result = finish(start(_feed_eight_devices, str(directory), num_devices=8))
    assert sorted(flat(result["keys"])) == sorted(datasets.keys(directory))
    assert [len(batch) for batch in result["keys"]] == [16, 16, 16, SIZE - 48]
    assert result["described"] == {
        "image": ["jaxlib", "bfloat16", [16, 20, 20, 3], [[2, 20, 20, 3]] * 8],
        "label": ["jaxlib", "int32", [16], [[2]] * 8],
        "mask": ["jaxlib", "bool", [16], [[2]] * 8],
        "image/key": ["numpy", "object", [16], []],
        "image/height": ["jaxlib", "int32", [16], [[2]] * 8],
    }
    assert result["parts"] == {
        "('data',)": [[8, 20, 20, 3], [8]],
        "(None, 'model')": [[16, 5, 20, 3], [16]],
        "(('data', 'model'),)": [[2, 20, 20, 3], [2]],
        "('model', 'data')": [[4, 10, 20, 3], [4]],
        "()": [[16, 20, 20, 3], [16]],
        "one": [[16, 20, 20, 3], [16]],
    }
    assert result["refused"] == [
        f"batch_size is {batch_size}, of all processes together, and the sharding cuts it into 8 equal parts, "
        "8 for each of 1 processes: give a multiple of 8"
        for batch_size in (12, 20)
    ]


def _compile_whole_batches(directory: str) -> None:
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    @jax.jit
    def sums(batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
        assert type(batch) is dict
        return {name: values.astype(jnp.float32).sum() for name, values in batch.items()}

    rows = NamedSharding(jax.make_mesh((8,), ("data",)), PartitionSpec("data"))
    asked = {"image_size": 16, "objects": imagebeam.Objects(max=7), "segmentation": imagebeam.Segmentation()}
    asked |= {"num_epochs": 1, "pad": True}
    found = []
    for features in ((), ("image/key", "image/height")):
        [batch] = imagebeam.open_dataset(directory).as_jax("train", rows, 8, **asked, features=features)
        for name, total in sums(batch).items():
            np.testing.assert_allclose(total, np.asarray(batch[name], np.float32).sum(), rtol=1e-4)
        paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(batch)]
        assert paths == [f"[{name!r}]" for name in sorted(sums(batch))]
        devices = {len(each.addressable_shards) for each in jax.tree.leaves(batch)}
        found.append([type(batch) is dict, sorted(batch), sorted(sums(batch)), list(devices)])
    print(json.dumps(found))


@pytest.mark.slow
def test_jit_takes_whole_batches_and_does_not_see_their_strings(tmp_path: pathlib.Path) -> None:
    """With boxes and masks of classes."""
    recipe_sets.panoptic(tmp_path)
    options = {"annotations": "annotations/panoptic_train2017.json", "panoptic": "annotations/panoptic_train2017"}
    coco = {name: {"train": each} for name, each in {**options, "images": "train2017"}.items()}
    datasets.make(tmp_path / "coco", tmp_path / "out", source={"by": "coco", "coco": {**coco, "outside": "clip"}})
    plain, with_strings = finish(start(_compile_whole_batches, str(tmp_path / "out"), num_devices=8))
    names = ["boxes", "image", "label", "labels", "mask", "num_objects", "segmentation", "transform", "valid"]
    assert plain == [True, names, names, [8]]
    arrays = sorted([*names, "image/height"])
    assert with_strings == [False, sorted([*arrays, "image/key"]), arrays, [8]]


def _feed_as_one_of_two(directory: str, process_index: int, port: int) -> None:
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=process_index)
    dataset = imagebeam.open_dataset(directory)
    devices = np.array(jax.devices())  # 0 and 1 here, 2 and 3 in the other process
    shardings = {
        "whole processes": NamedSharding(Mesh(devices, ("data",)), PartitionSpec("data")),
        "other order": NamedSharding(Mesh(devices[[2, 0, 3, 1]], ("data",)), PartitionSpec("data")),
        "model over processes": NamedSharding(Mesh(devices.reshape(2, 2), ("model", "data")), PartitionSpec("data")),
        "replicated": NamedSharding(Mesh(devices, ("data",)), PartitionSpec()),
    }
    whole_sum = jax.jit(lambda image: jnp.sum(image.astype(jnp.float32)))
    results = {}
    for name, sharding in shardings.items():
        keys, shapes, sums = [], set(), []
        for batch in dataset.as_jax(
            "train", sharding, 8, image_size=16, features=("image/key",), shuffle="global", num_epochs=1, pad=True
        ):
            keys.append([key.decode() for key in batch["image/key"]])
            shapes.add(batch["image"].shape)
            sums.append(float(whole_sum(batch["image"])))  # over both processes: they must make equally many batches
        results[name] = {"keys": keys, "shapes": list(shapes), "sum": sum(sums)}
    local = NamedSharding(Mesh(np.array(jax.local_devices()), ("data",)), PartitionSpec("data"))
    refused = []
    for sharding, options in ((local, {}), (shardings["replicated"], {"deterministic": False})):
        try:
            dataset.as_jax("train", sharding, 8, **options)  # type: ignore[arg-type]
        except errors.ConfigError as e:
            refused.append(str(e))
    print(json.dumps({"results": results, "refused": refused}))
    jax.distributed.shutdown()


@pytest.mark.slow
def test_as_jax_in_two_processes_reads_each_example_once(directory: pathlib.Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    both = [start(_feed_as_one_of_two, str(directory), index, port, num_devices=2) for index in range(2)]
    first, second = (finish(process) for process in both)
    every = sorted(datasets.keys(directory))
    for name, mine in first["results"].items():
        other = second["results"][name]
        assert (mine["shapes"], mine["sum"]) == (other["shapes"], other["sum"]) == ([[8, 16, 16, 3]], mine["sum"]), name
        if name in ("model over processes", "replicated"):  # both hold the same rows
            assert mine["keys"] == other["keys"]
            assert sorted(flat(mine["keys"])) == every
        else:
            assert sorted(flat(mine["keys"]) + flat(other["keys"])) == every
    assert len({each["sum"] for each in first["results"].values()}) == 1  # the same pixels, however they are laid out
    whole, turned = first["results"]["whole processes"], second["results"]["other order"]
    assert turned["keys"] == whole["keys"]  # the first rows of a batch are read where the first device is
    assert first["refused"] == second["refused"]
    local, disordered = first["refused"]
    assert "devices of 1 of 2 processes" in local
    assert "deterministic=False" in disordered


def test_as_jax_with_rows_that_overlap_in_part_is_refused(dataset: imagebeam.ImageDataset) -> None:
    import jax

    class Device(NamedTuple):
        process_index: int
        first_row: int

    class Overlapping(jax.sharding.Sharding):
        device_set = frozenset({Device(0, 0), Device(0, 1), Device(1, 1), Device(1, 2)})

        def devices_indices_map(self, global_shape: tuple[int, ...]) -> dict[Any, tuple[slice]]:
            return {device: (slice(device.first_row, device.first_row + 1),) for device in self.device_set}

    with error_texts.raises("sharding-unequal"):
        dataset.as_jax("train", Overlapping(), 6)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"process_index": 0}, "options-conflict"),
        ({"process_count": 2}, "options-conflict"),
        ({"supervised": True}, "options-conflict"),
        ({"drop_remainder": False, "num_epochs": 1}, "options-conflict"),
        ({"crop": "round"}, "option-bad-value"),
    ],
    ids=["process_index", "process_count", "supervised", "partial batch", "reader option"],
)
def test_as_jax_with_options_that_do_not_fit_is_refused(
    dataset: imagebeam.ImageDataset, options: Mapping[str, Any], code: str
) -> None:
    with error_texts.raises(code):
        dataset.as_jax("train", one_device(), 8, **options)


def test_as_jax_with_a_mesh_for_a_sharding_is_refused(dataset: imagebeam.ImageDataset) -> None:
    with error_texts.raises("option-bad-value"):
        dataset.as_jax("train", "data", 8)


def test_as_jax_without_jax_names_the_extra(dataset: imagebeam.ImageDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    with error_texts.raises("package-missing"):
        dataset.as_jax("train", None, 8)


@pytest.mark.parametrize("shuffle", ["stream", "global"])
def test_jax_iterator_goes_on_where_its_state_was_taken(dataset: imagebeam.ImageDataset, shuffle: str | None) -> None:
    def begin(**more: Any) -> Any:
        options = {"image_size": 8, "features": ("image/key",), "shuffle": shuffle, "seed": 5, **more}
        return dataset.as_jax("train", one_device(), 10, **options)

    def keys(batches: Iterator[dict[str, Any]], count: int) -> list[list[bytes]]:
        return [next(batches)["image/key"].tolist() for _ in range(count)]

    batches = begin()
    start_state = batches.state()
    first = keys(batches, 4)
    state = record_order.ReaderState.from_dict(json.loads(json.dumps(batches.state().to_dict())))
    assert (state.epoch, state.position) == (0, 40)  # what was read ahead does not count
    following = keys(batches, 4)  # into the second epoch
    batches.restore(state)
    assert batches.state() == state
    assert keys(batches, 4) == following
    assert keys(begin(state=state), 4) == following
    batches.restore(start_state)
    assert keys(batches, 4) == first


def test_jax_iterator_reads_one_batch_ahead() -> None:
    batches, stub = iterate_stub(*({"label": np.array([index, index], np.int32)} for index in range(4)))
    assert stub.num_read == 0  # nothing before it is asked for
    assert np.asarray(next(batches)["label"])[0] == 0
    for _ in range(2):
        assert stub.was_read.acquire(timeout=patience.HANG_SEC)
    assert not stub.was_read.acquire(timeout=patience.MOMENT_SEC)
    assert batches.state().position == 1
    assert [np.asarray(batch["label"])[0] for batch in batches] == [1, 2, 3]
    with pytest.raises(StopIteration):
        next(batches)


def test_jax_iterator_at_a_broken_record_raises_each_time(broken: pathlib.Path) -> None:
    batches = imagebeam.open_dataset(str(broken)).as_jax("train", one_device(), 2, shuffle=None, num_epochs=1)
    next(batches)
    next(batches)
    for _ in range(2):  # never taken for the end of the data
        with error_texts.raises("example-broken"):
            next(batches)


def test_strings_of_a_function_of_the_user_are_not_seen_by_jax() -> None:
    import jax

    strings = [np.array(["a", "b"]), np.array([b"a", b"b"]), np.array(["a", None], object)]
    batches, _ = iterate_stub(*({"text": each, "label": np.zeros(2, np.int32)} for each in strings))
    for batch, text in zip(batches, strings, strict=True):
        assert batch["text"] is text
        assert list(jax.tree.map(np.asarray, batch)) == ["label"]


def test_jax_iterator_with_integers_beyond_int32_raises_and_never_cuts_them_off() -> None:
    batches, _ = iterate_stub({"image/id": np.array([1, -(2**31)])}, {"image/id": np.array([1, 2**31])})
    assert (np.asarray(next(batches)["image/id"]) == [1, -(2**31)]).all()
    with error_texts.raises("feature-beyond-int32"):
        next(batches)
