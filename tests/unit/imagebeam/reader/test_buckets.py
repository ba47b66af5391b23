"""Batches in aspect-ratio buckets: their pixels are those of fixed sizes, whatever the feed, process or restart."""

from __future__ import annotations

import collections
import itertools
import json
import logging
import pathlib
import socket
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import imagebeam
from imagebeam.reader import aspect_buckets
from tests import case_tables, error_texts
from tests.unit.imagebeam.reader import sized_sets
from tests.unit.imagebeam.reader.feeding import finish, start
from tests.unit.imagebeam.reader.sized_sets import COUNT, FEEDS, Batch, OfSplit, by_record, check_equal

pytest.importorskip("imagebeam._native")

BUCKETS = ((32, 16), (24, 24), (16, 32), (12, 12))
BASE: dict[str, Any] = {"buckets": BUCKETS, "seed": 5, "metadata": True, "features": ("image/key",)}
EPOCHS = 3
_IN_C = {"color_jitter": {"brightness": 0.3, "hue": 0.1}, "erasing": 0.5}
KINDS: dict[str, dict[str, Any]] = {
    "cover": {"flip": True},
    "center": {"crop": "center", "dtype": "float32", "normalize": (128, 2)},
    "random": {"crop": "random", "antialias": True},
    "squash": {"crop": "squash", "interpolation": "bicubic", "flip": True},
    "resize_shorter": {"crop": "resize_shorter", "center_fraction": 0.8},
    "letterbox": {"crop": "letterbox", "fill": 9, "flip": True},
    "changed": {**_IN_C, "flip": True},
    "padded": {"pad": True, "num_epochs": EPOCHS},
    "small padded": {"max_enlarge": 0.7, "too_small": "pad", "fill": (1, 2, 3), "flip": True},
    "small in letterboxes": {"crop": "letterbox", "max_enlarge": 0.5, "too_small": "pad", "flip": True},
    "small resized": {"crop": "resize_shorter", "max_enlarge": 0.5, "too_small": "pad", "flip": True},
    "places": {"objects": imagebeam.Objects(max=4), "segmentation": imagebeam.Segmentation(), "flip": True},
    "map": {"map": lambda example, rng: {**example, "draw": rng.integers(1 << 62), "mean": example["image"].mean()}},
    "lists": {"features": ("image/key", "image/object/class/text"), "images": ("segmentation",)},
}
IN_C = ("letterbox", "changed", "small padded", "small in letterboxes", "small resized")


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> dict[str, imagebeam.ImageDataset]:
    folder = tmp_path_factory.mktemp("buckets")
    return {name: sized_sets.write(folder / name, name) for name in sized_sets.FORMATS}


@pytest.fixture(scope="module")
def dataset(every: dict[str, imagebeam.ImageDataset]) -> imagebeam.ImageDataset:
    return every["jpeg"]


def size_of(batch: Batch) -> tuple[int, ...]:
    return tuple(batch["image"].shape[1:3])


def read_epochs(dataset: imagebeam.ImageDataset, size: int | None, **options: Any) -> list[Batch]:
    """Returns all batches of three epochs; without padding those that are full."""
    return list(dataset.as_numpy("train", size, **{**BASE, "num_epochs": EPOCHS, **options}))


@case_tables.each_case("kind, options", [*KINDS.items()])
@pytest.mark.parametrize("image_format", sized_sets.FORMATS)
@pytest.mark.parametrize("decoder", ["auto", "pillow"])
def test_examples_are_those_of_a_reader_of_the_fixed_size(
    every: dict[str, imagebeam.ImageDataset], image_format: str, decoder: str, kind: str, options: dict[str, Any]
) -> None:
    dataset, given = every[image_format], {**options, "decoder": decoder}
    if decoder == "pillow" and kind in IN_C:
        with error_texts.raises("decoder-cannot-change"):
            read_epochs(dataset, 3, **given)
        return
    batches = read_epochs(dataset, 3, **given)
    limit = options.get("max_enlarge")
    chosen = aspect_buckets.choose(np.array([*map(sized_sets.sides_of, range(COUNT))]), BUCKETS, limit, True)
    assert len({size_of(batch) for batch in batches}) == 4
    found = by_record(batches)
    whole = {"shuffle": "global", "center_fraction": 1.0, "crop": "center" if options.get("pad") else "cover"}
    for bucket, size in enumerate(BUCKETS):
        fixed = {**BASE, **whole, "buckets": None, "num_epochs": EPOCHS, "image_size": size, **given}
        fixed |= {} if options.get("pad") else {"drop_remainder": False}
        expected = by_record(dataset.as_numpy("train", 5, **fixed))
        mine = {place: each for place, each in found.items() if chosen[place[0]] == bucket}
        assert mine and {size_of({"image": each["image"][None]}) for each in mine.values()} == {size}
        for place, each in mine.items():
            check_equal(each, expected[place])
    if options.get("pad"):
        assert set(found) == set(itertools.product(range(COUNT), range(EPOCHS)))


@settings(max_examples=25)
@given(st.data(), st.sampled_from(["carry", "pad", "max_pixels"]))
def test_any_processes_and_restarts_make_the_same_batches(
    dataset: imagebeam.ImageDataset, data: st.DataObject, way: str
) -> None:
    options: dict[str, Any] = {"batch_map": draw_for_batch}
    if way == "max_pixels":
        options |= {"max_pixels": 6 * 24 * 24 + 700, "batch_multiple": 6}
    options |= {"pad": True} if way == "pad" else {}
    together = None if way == "max_pixels" else 6

    def readers(count: int, **more: Any) -> list[Any]:
        size = None if together is None else together // count
        asked = {**BASE, "num_epochs": 2, **options, **more, "process_count": count}
        return [dataset.as_numpy("train", size, **asked, process_index=index) for index in range(count)]

    def join(step: tuple[Batch, ...]) -> Batch:
        [draw] = {int(batch["draw"][0]) for batch in step}  # of batch_map: the same in all processes
        [_] = {size_of(batch) for batch in step}
        return {name: np.concatenate([batch[name] for batch in step]) for name in step[0]} | {"draw": np.array([draw])}

    expected = [join((batch,)) for batch in readers(1)[0]]
    count, other = (data.draw(st.sampled_from([1, 2, 3, 6]), name) for name in ("processes", "processes after"))
    begun = readers(count)
    assert {each.num_batches for each in begun} == {len(expected)}
    stop = data.draw(st.integers(0, len(expected)), "steps before the restart")
    found = [join(step) for step in itertools.islice(zip(*begun, strict=True), stop)]
    [state] = {json.dumps(each.state_dict()) for each in begun}
    asked = {**BASE, "num_epochs": 2, **options, "process_count": count}
    size = None if together is None else together // count
    assert dataset.state_at("train", stop, size, **asked).to_dict() == json.loads(state)
    assert dataset.num_batches("train", size, **asked) == len(expected)
    found += map(join, zip(*readers(other, state=imagebeam.ReaderState.from_dict(json.loads(state))), strict=True))
    for one, expectation in zip(found, expected, strict=True):
        check_equal(one, expectation)
    assert len({int(each["draw"][0]) for each in expected}) == len(expected)


def draw_for_batch(batch: Batch, rng: np.random.Generator) -> Batch:
    return {**batch, "draw": np.full(len(batch["label"]), rng.integers(1 << 62))}


@pytest.mark.parametrize("split", ["train[3:17]", "train+validation", "of dogs"])
def test_selections_are_in_the_buckets_of_their_images(tmp_path: pathlib.Path, split: str) -> None:
    dataset = sized_sets.write(tmp_path / "set", num_validation=4)
    chosen = dataset.filter(["dog"]) if split == "of dogs" else dataset
    split = "train" if split == "of dogs" else split
    options = {**BASE, "num_epochs": 1, "pad": True}
    found = by_record(chosen.as_numpy(split, 2, **options))
    plain = chosen.as_numpy(split, 2, image_size=8, shuffle=None, features=("image/key",))
    assert sorted(each["image/key"].item() for each in found.values()) == sorted(
        key for batch in plain for key in batch["image/key"][batch["mask"]]
    )
    best = aspect_buckets.choose(np.array([*map(sized_sets.sides_of, range(COUNT))]), BUCKETS, None)
    for each in found.values():
        assert each["image"].shape[:2] == BUCKETS[best[int(each["image/key"].item())]]


# --- images that are too small or broken -----------------------------------------------------------------------------


def test_small_images_are_padded_in_the_middle(dataset: imagebeam.ImageDataset) -> None:
    """At max_enlarge, with the border `fill`; larger ones are cut in the middle along the side that is."""
    options = {**BASE, "buckets": [(100, 80)], "max_enlarge": 1, "too_small": "pad", "fill": 255, "num_epochs": 1}
    [batch] = dataset.as_numpy("train", COUNT, **options, dct="accurate")
    sources = dataset.as_grain("train")
    for row, record in enumerate(batch["record"].tolist()):
        height, width = sized_sets.sides_of(record)
        top, left = (100 - height) // 2, (80 - width) // 2
        shown = batch["image"][row, top : top + height, left : left + width]
        difference = np.abs(shown.astype(int) - sources[record]["image"])
        assert difference.mean() < 2  # the same JPEG by another decoder
        border = np.ones((100, 80), bool)
        border[top : top + height, left : left + width] = False
        assert (batch["image"][row][border] == 255).all()


def test_images_too_small_for_all_buckets_are_left_out_and_counted(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = sized_sets.write(tmp_path / "set")
    options = {**BASE, "buckets": [(40, 40), (60, 60)], "max_enlarge": 1, "num_epochs": 1, "pad": True}
    with caplog.at_level(logging.WARNING, "imagebeam.dataset"):
        found = by_record(dataset.as_numpy("train", 2, **options))
    large = {index: sized_sets.sides_of(index) for index in range(COUNT) if min(sized_sets.sides_of(index)) >= 40}
    assert {record for record, _ in found} == large.keys()
    assert {record: each["image"].shape[0] for (record, _), each in found.items()} == {
        record: 60 if min(sides) >= 60 else 40 for record, sides in large.items()
    }
    assert (
        f"{COUNT - len(large)} of {COUNT} images of train[0:{COUNT}] in {dataset.directory} are left out" in caplog.text
    )
    with error_texts.raises("buckets-too-large"):
        dataset.as_numpy("train", 2, **{**options, "buckets": [(400, 400)]})


@case_tables.each_case(
    "size, options",
    {
        "batch_size": (40, {}),
        "processes": (10, {"process_count": 4}),
        "max_pixels": (None, {"max_pixels": 40 * 24 * 24}),
        "several epochs": (90, {"num_epochs": 2}),
    },
)
def test_epochs_that_fill_no_batch_are_refused_with_remedies_that_work(
    dataset: imagebeam.ImageDataset, size: int | None, options: dict[str, Any]
) -> None:
    given = {**BASE, "buckets": [(24, 24)], "num_epochs": 1, **options}
    with error_texts.raises("batch-never-full"):
        dataset.as_numpy("train", size, **given)
    smaller = {"max_pixels": 5 * 24 * 24} if size is None else {}
    for remedy in ({"num_epochs": 5}, {"pad": True}, smaller):
        fits = size if remedy or size is None else 5
        assert len(next(dataset.as_numpy("train", fits, **{**given, **remedy}))["image"])


def test_buckets_with_less_than_a_batch_are_counted(
    dataset: imagebeam.ImageDataset, caplog: pytest.LogCaptureFixture
) -> None:
    best = aspect_buckets.choose(np.array([*map(sized_sets.sides_of, range(COUNT))]), BUCKETS, None)
    counts = np.bincount(best)
    assert min(counts) < 4 <= max(counts)
    with caplog.at_level(logging.WARNING, "imagebeam.dataset"):
        dataset.as_numpy("train", 4, **BASE)
    assert f"{sum(counts < 4)} bucket" in caplog.text and "more than once" in caplog.text


def test_broken_images_are_replaced_by_others_of_their_bucket(tmp_path: pathlib.Path) -> None:
    broken = (0, 3, 6, 8)
    dataset = sized_sets.write(tmp_path / "set", broken=broken)
    with error_texts.raises("example-broken"):
        read_epochs(dataset, 4)
    options = {**BASE, "num_epochs": 2, "on_error": "skip", "max_error_fraction": 1.0}
    batches = dataset.as_numpy("train", 4, **options)
    best = aspect_buckets.choose(np.array([*map(sized_sets.sides_of, range(COUNT))]), BUCKETS, None)
    for batch in batches:
        assert len(batch["record"]) == 4
        assert {BUCKETS[best[record]] for record in batch["record"].tolist()} == {size_of(batch)}
        assert not set(batch["record"].tolist()) & set(broken)
    padded = dataset.as_numpy("train", 4, **options, pad=True)
    assert set(by_record(padded)) == set(itertools.product(set(range(COUNT)) - set(broken), range(2)))
    assert padded.metrics()["skipped"] == 2 * len(broken)


@pytest.mark.parametrize("pad", [False, True])
def test_skipped_example_counts_once_however_often_it_is_read(tmp_path: pathlib.Path, pad: bool) -> None:
    """Also of one that was read to replace another, before its own batch."""
    dataset = sized_sets.write(tmp_path / "set")
    refused: set[tuple[int, int]] = set()

    def refuse(example: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        if example["record"] % 3 != 1:  # as of the black example
            return example
        refused.add((int(example["record"]), int(example["epoch"])))
        raise ValueError("not this one")

    options = {**BASE, "num_epochs": 4, "on_error": "skip", "max_error_fraction": 1.0, "pad": pad}
    batches = dataset.as_numpy("train", 4, **options, map=refuse, map_id="refuse")
    assert all(len(batch["record"]) == 4 for batch in batches)
    assert batches.metrics()["skipped"] == len(refused)


def test_bucket_with_less_than_a_batch_replaces_broken_images(tmp_path: pathlib.Path) -> None:
    dataset = sized_sets.write(tmp_path / "set", count=3, broken=(1,))
    options = {**BASE, "buckets": [(16, 16)], "on_error": "skip", "max_error_fraction": 1.0}
    batch = next(dataset.as_numpy("train", 8, **options))
    assert len(batch["record"]) == 8 and set(batch["record"].tolist()) == {0, 2}


# --- feeds -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory, dataset: imagebeam.ImageDataset) -> imagebeam.Mixture:
    other = sized_sets.write(tmp_path_factory.mktemp("other") / "set", "png", 7, first=3)
    return imagebeam.Mixture([(dataset, "train"), (other, "train")], [3, 1])


@pytest.mark.parametrize("feed", FEEDS)
@pytest.mark.parametrize("of", ["split", "mixture"])
@pytest.mark.parametrize("size", [4, None], ids=["batch_size", "max_pixels"])
def test_every_feed_gives_the_same_batches(
    dataset: imagebeam.ImageDataset, mixture: imagebeam.Mixture, feed: str, of: str, size: int | None
) -> None:
    read: Any = OfSplit(dataset) if of == "split" else mixture
    options = {**BASE, "num_epochs": 2 if of == "split" else None}
    options |= {} if size else {"max_pixels": 4000}
    expected = list(itertools.islice(read.as_numpy(size, **options), 25))
    found = list(itertools.islice(FEEDS[feed](read, size, **options), 25))
    assert len(found) == len(expected) > 3
    for one, other in zip(found, expected, strict=True):
        check_equal(one, other)


def test_specs_of_tensorflow_have_none_where_buckets_differ(dataset: imagebeam.ImageDataset) -> None:
    pytest.importorskip("tensorflow")

    def shapes(**options: Any) -> dict[str, list[int | None]]:
        size = None if "max_pixels" in options else 4
        spec = dataset.as_tf("train", size, **{**BASE, **options}).element_spec
        return {name: spec[name].shape.as_list() for name in ("image", "label")}

    assert shapes() == {"image": [4, None, None, 3], "label": [4]}
    assert shapes(buckets=[(16, 32), (16, 24)]) == {"image": [4, 16, None, 3], "label": [4]}
    assert shapes(max_pixels=3000) == {"image": [None, None, None, 3], "label": [None]}
    assert shapes(max_pixels=3000, buckets=[(16, 32)]) == {"image": [5, 16, 32, 3], "label": [5]}


@pytest.mark.parametrize("pad", [False, True])
@case_tables.each_case(
    "size, multiple, max_rows",
    {"batch_size": (12, None, None), "max_pixels": (None, None, 7), "multiple": (None, 8, 15), "equal": (None, 4, 15)},
)
def test_replicas_of_tensorflow_have_one_bucket_in_each_step(
    dataset: imagebeam.ImageDataset, size: int | None, multiple: int | None, max_rows: int | None, pad: bool
) -> None:
    """The batches of all replicas together are those of one process. `max_rows` is the largest batch of 24 x 24."""
    tf = pytest.importorskip("tensorflow")
    options = {**BASE, "num_epochs": 2, "pad": pad}
    if max_rows is not None:
        options |= {"max_pixels": max_rows * 24 * 24 + 100, "batch_multiple": multiple}
    whole = list(dataset.as_numpy("train", size, **(options | ({} if size else {"batch_multiple": multiple or 4}))))
    contexts = [tf.distribute.InputContext(2, index, 4) for index in range(2)]
    each_size = None if size is None else size // 4
    parts = [
        list(dataset.as_tf("train", each_size, input_context=context, **options).as_numpy_iterator())
        for context in contexts
    ]
    assert len(parts[0]) == len(parts[1]) == 2 * len(whole) > 0
    for step, expected in enumerate(whole):
        taken = [part[2 * step + replica] for replica in range(2) for part in parts]
        check_equal({name: np.concatenate([each[name] for each in taken]) for name in expected}, expected)
    strategy = tf.distribute.OneDeviceStrategy("cpu:0")
    alone = dataset.as_distributed(strategy, "train", size, **options)
    assert len(list(alone)) == dataset.num_batches("train", size, **options)


@case_tables.each_case(
    "options",
    {
        "multiple of three": {"max_pixels": 9999, "batch_multiple": 6},
        "of processes alone": {"max_pixels": 9999, "batch_multiple": 2},
        "fewer images than replicas": {"max_pixels": 3 * 24 * 24},
    },
)
def test_batches_that_replicas_cannot_share_are_refused(
    dataset: imagebeam.ImageDataset, options: dict[str, Any]
) -> None:
    tf = pytest.importorskip("tensorflow")
    with error_texts.raises("options-conflict"):
        dataset.as_tf("train", None, input_context=tf.distribute.InputContext(2, 1, 4), **BASE, **options)


def test_mixture_keeps_proportions_and_reads_each_image_once(mixture: imagebeam.Mixture) -> None:
    options = {**BASE, "features": ()}
    parts = [mixture.as_numpy(3, **options, process_count=2, process_index=index) for index in range(2)]
    seen: collections.Counter[int] = collections.Counter()
    num_steps = 250
    for step in itertools.islice(zip(*parts, strict=True), num_steps):
        assert len({size_of(batch) for batch in step}) == 1
        seen.update(record for batch in step for record in batch["record"].tolist())
    of_first = sum(count for record, count in seen.items() if record < COUNT)
    assert abs(of_first / (6 * num_steps) - 3 / 4) < 0.03
    assert len(seen) == COUNT + 7
    best = aspect_buckets.choose(
        np.array([sized_sets.sides_of(each if each < COUNT else each - COUNT + 3) for each in range(COUNT + 7)]),
        BUCKETS,
        None,
    )
    for bucket, of_part in itertools.product(range(len(BUCKETS)), (range(COUNT), range(COUNT, COUNT + 7))):
        counts = [seen[record] for record in of_part if best[record] == bucket]
        assert not counts or max(counts) - min(counts) <= 1
    state = imagebeam.ReaderState.from_dict(json.loads(json.dumps(parts[0].state_dict())))
    whole = mixture.as_numpy(6, **options, state=state)
    for _ in range(3):
        step = [next(part) for part in parts]
        check_equal({name: np.concatenate([each[name] for each in step]) for name in step[0]}, next(whole))


def test_end_of_a_mixture_in_buckets_is_refused(mixture: imagebeam.Mixture) -> None:
    for read in (mixture.as_numpy, mixture.num_batches):
        with error_texts.raises("options-conflict"):
            read(4, **{**BASE, "num_epochs": 1})


# --- JAX: one compilation for each bucket ----------------------------------------------------------------------------


def _train(directory: str, process: tuple[int, int] | None) -> None:
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    if process is not None:
        index, port = process
        jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=index)
    traced = []

    @jax.jit
    def total(batch: dict[str, jax.Array]) -> jax.Array:
        traced.append(batch["image"].shape)
        return jnp.sum(batch["image"].astype(jnp.float32)) + jnp.sum(batch["record"])

    dataset = imagebeam.open_dataset(directory)
    sharding = NamedSharding(jax.make_mesh((8,), ("data",)), PartitionSpec("data"))
    options = {**BASE, "max_pixels": 8 * 24 * 24 + 100}
    found = []
    for batch in itertools.islice(dataset.as_jax("train", sharding, None, **options), 45):
        found.append([list(batch["image"].shape), float(total(batch)), len(batch["image/key"])])
    print(json.dumps({"found": found, "traced": traced}))
    if process is not None:
        jax.distributed.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("num_processes", [1, 2])
def test_jit_compiles_once_for_each_bucket(dataset: imagebeam.ImageDataset, num_processes: int) -> None:
    """On eight devices, whose number the batch sizes are multiples of."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = [(index, port) for index in range(2)] if num_processes == 2 else [None]
    begun = [start(_train, dataset.directory, each, num_devices=8 // num_processes) for each in processes]
    results = [finish(each) for each in begun]
    options = {**BASE, "max_pixels": 8 * 24 * 24 + 100, "batch_multiple": 8}
    expected = list(itertools.islice(dataset.as_numpy("train", None, **options), 45))
    for result in results:
        assert sorted(map(tuple, result["traced"])) == sorted({batch["image"].shape for batch in expected})
        assert len(result["traced"]) == len(BUCKETS)
        for (shape, total, num_keys), batch in zip(result["found"], expected, strict=True):
            assert tuple(shape) == batch["image"].shape and shape[0] % 8 == 0 and num_keys == shape[0] // num_processes
            assert total == pytest.approx(float(batch["image"].sum(dtype=np.float64)) + batch["record"].sum(), rel=1e-5)


def test_sharding_and_batch_multiple_that_do_not_fit_are_refused(dataset: imagebeam.ImageDataset) -> None:
    jax = pytest.importorskip("jax")

    class Device(NamedTuple):
        process_index: int
        number: int

    class Parts(jax.sharding.Sharding):
        device_set = frozenset(Device(0, number) for number in range(4))

        def devices_indices_map(self, global_shape: tuple[int, ...]) -> Mapping[Any, Any]:
            return {each: (slice(each.number, each.number + 1),) for each in self.device_set}

    with error_texts.raises("sharding-unequal"):
        dataset.as_jax("train", Parts(), None, **BASE, max_pixels=4000, batch_multiple=6)
    with error_texts.raises("sharding-unequal"):
        dataset.as_jax("train", Parts(), 6, **BASE)
    found = dataset.as_jax("train", Parts(), None, **BASE, max_pixels=4000, batch_multiple=None)
    state = found.state()
    assert state.buckets == "32x16:4 24x24:4 16x32:4 12x12:24"
