"""Several datasets read as one, and jobs that are restarted at any point."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import logging
import pathlib
import pickle
import shutil
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import imagebeam
from imagebeam import errors, features, records
from imagebeam.reader import batch_schedule, mixture_order, mixture_pattern
from tests import case_tables, error_texts, written_files
from tests.unit.imagebeam.reader import restarts, sized_sets, written
from tests.unit.imagebeam.reader.feeding import keys_in
from tests.unit.imagebeam.reader.restarts import WAYS, in_turn

Parts = list[tuple[imagebeam.ImageDataset, str]]

SIZES = {"a": 40, "b": 25, "c": 7}
WEIGHTS = [3.0, 2.0, 1.0]
LABELS = ("cat", "dog")
Keys = list[str]


def make(folder: pathlib.Path, name: str, count: int, **options: Any) -> imagebeam.ImageDataset:
    examples = [
        {**written.jpeg_values(index), "image/key": f"{name}{index}".encode(), features.LABEL: 1 + index % 2}
        for index in range(count)
    ]
    options = {"labels": LABELS, "label_base": 1, "num_shards": 3, **options}
    return written.write(folder / name, (*written.IMAGE, written.LABEL), examples, **options)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    pytest.importorskip("tensorflow")
    folder = tmp_path_factory.mktemp("mixture")
    return [(make(folder, name, count), "train") for name, count in SIZES.items()]


@pytest.fixture(scope="module")
def mixed(parts: Parts) -> imagebeam.Mixture:
    return imagebeam.Mixture(parts, WEIGHTS)


OPTIONS: dict[str, Any] = {"image_size": 16, "features": ("image/key",)}


def alone(part: tuple[imagebeam.ImageDataset, str], **options: Any) -> Keys:
    dataset, split = part
    given = {**OPTIONS, "num_epochs": 3, "drop_remainder": False, **options}
    return keys_in(dataset.as_numpy(split, 8, **given))


# --- the pattern -----------------------------------------------------------------------------------------------------


@hypothesis.given(
    st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=5),
    st.integers(0, 1 << 40),
    st.integers(0, 5 * mixture_pattern.BLOCK),
    st.integers(1, 2000),
)
@hypothesis.settings(deadline=None, max_examples=40)
def test_pattern_gives_each_example_of_all_once(weights: list[float], seed: int, first: int, count: int) -> None:
    pattern = mixture_pattern.Pattern(weights, seed)
    datasets, numbers = pattern.locate(np.arange(first, first + count))
    before = pattern.count_before(first)
    for dataset in range(len(weights)):
        mine = numbers[datasets == dataset]
        assert mine.tolist() == list(range(before[dataset], before[dataset] + len(mine)))
    for position in (0, count // 2, count - 1):
        assert pattern.position_of(int(datasets[position]), int(numbers[position])) == first + position
    whole = pattern.count_before(mixture_pattern.BLOCK)
    assert sum(whole) == mixture_pattern.BLOCK
    assert min(whole) >= 1
    shares = np.array(weights) / sum(weights)
    assert np.abs(np.array(whole) / mixture_pattern.BLOCK - shares).max() <= len(weights) / mixture_pattern.BLOCK


def test_pattern_mixes_in_every_stretch() -> None:
    datasets, _ = mixture_pattern.Pattern([3, 1], 0).locate(np.arange(20_000))
    shares = datasets.reshape(20, 1000).mean(1)
    assert 0.2 < shares.min() < shares.max() < 0.3
    other, _ = mixture_pattern.Pattern([3, 1], 1).locate(np.arange(20_000))
    assert (datasets != other).any()


# --- what is read ----------------------------------------------------------------------------------------------------


# The schedule decides about the order before either decoder sees an example, and TensorFlow takes 0.2 s to build each
# graph.
@pytest.mark.parametrize(
    ("decoder", "shuffle"),
    [("native", "stream"), ("native", "global"), ("native", None), ("pillow", "stream")],
    indirect=["decoder"],
)
def test_every_dataset_is_read_in_its_own_order(
    parts: Parts, mixed: imagebeam.Mixture, decoder: str, shuffle: str | None
) -> None:
    batches = mixed.as_numpy(8, **OPTIONS, shuffle=shuffle, decoder=decoder, num_epochs=2, drop_remainder=False)
    keys = keys_in(batches)
    for part, name in zip(parts, SIZES):
        mine = [key for key in keys if key.startswith(name)]
        assert mine == alone(part, shuffle=shuffle)[: len(mine)]
    counts = collections.Counter(key[0] for key in keys)
    assert [counts[name] >= 2 * size for name, size in SIZES.items()].count(True) == 1
    assert keys == keys_in(mixed.as_numpy(5, **OPTIONS, shuffle=shuffle, num_epochs=2, drop_remainder=False))
    assert keys != keys_in(mixed.as_numpy(5, **OPTIONS, shuffle=shuffle, num_epochs=2, drop_remainder=False, seed=1))


def test_every_feed_gives_the_same_examples(mixed: imagebeam.Mixture) -> None:
    sized_sets.check_feeds(mixed, 4, **OPTIONS, num_epochs=1)
    image, label = mixed.as_tf(4, image_size=16, supervised=True).element_spec
    assert (image.shape, label.shape) == ((4, 16, 16, 3), (4,))


def test_mixture_ends_where_the_first_dataset_was_read_and_logs_it(
    mixed: imagebeam.Mixture, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "imagebeam.dataset"):
        keys = keys_in(mixed.as_numpy(1, **OPTIONS, num_epochs=1))
    counts = collections.Counter(key[0] for key in keys)
    assert f"the mixture ends after {len(keys)} examples of this order, where num_epochs=1 of a dataset" in caplog.text
    for name, size in SIZES.items():
        assert f"{counts[name] / size:.2f} epochs of train in " in caplog.text
    endless = mixed.as_numpy(50, **OPTIONS)
    assert len(keys_in(next(endless) for _ in range(10))) == 500


@pytest.mark.parametrize("num_epochs", [1, 3])
def test_examples_by_index_are_those_of_the_batches_in_the_order_of_the_shards(
    mixed: imagebeam.Mixture, num_epochs: int
) -> None:
    expected = list(mixed.as_numpy(1, shuffle=None, num_epochs=num_epochs, **OPTIONS))
    source = pickle.loads(pickle.dumps(mixed.as_grain(num_epochs=num_epochs)))
    assert len(source) == len(expected)
    keys = [batch["image/key"][0] for batch in expected]
    assert [source[index]["image/key"] for index in range(len(source))] == keys
    found = source.__getitems__([5, -1, 0, 5])
    assert [example["image/key"] for example in found] == [keys[index] for index in (5, -1, 0, 5)]
    assert found[0]["label"] == expected[5]["label"][0] and found[0]["image"].shape == (30, 40, 3)
    with pytest.raises(IndexError):
        source[len(source)]
    assert repr(source) == repr(mixed.as_grain(num_epochs=num_epochs)) != repr(mixed.as_grain(decode=False))


def test_grain_shuffles_and_batches_the_examples_of_a_mixture(mixed: imagebeam.Mixture) -> None:
    grain = pytest.importorskip("grain")
    source = mixed.as_grain(features=("image/key",), num_epochs=2)
    read = grain.MapDataset.source(source).shuffle(seed=1).batch(7, drop_remainder=False).to_iter_dataset()
    found = [key for batch in read for key in batch["image/key"]]
    assert collections.Counter(found) == collections.Counter(each["image/key"] for each in source)
    assert read is not None and {*source[0]} == {"image", "label", "image/key"}


def test_examples_of_datasets_that_differ_have_the_features_of_all(parts: Parts, tmp_path: pathlib.Path) -> None:
    values = [{**written.jpeg_values(0), features.LABEL: 1, "columns/price": 2}] * 3
    price = features.Feature("price", "columns/price", features.INT64)
    renamed = [each._replace(key="name") if each.source == "image/key" else each for each in written.IMAGE]
    other = written.write(tmp_path / "x", (*renamed, price, written.LABEL), values, labels=LABELS, label_base=1)
    mixture = imagebeam.Mixture([parts[0], (other, "train")], [1, 1])
    source = mixture.as_grain()
    names = {frozenset(source[index]) for index in range(len(source))}
    assert names == {frozenset({"image", "label", "image/height", "image/width", "image/channels", "image/format"})}
    for asked, code in [(("image/key",), "mixture-features-differ"), (("price",), "feature-unknown")]:
        with case_tables.named(asked), error_texts.raises(code):
            mixture.as_grain(features=asked)
    with error_texts.raises("option-bad-value"):
        mixture.as_grain(num_epochs=0)


# --- states and processes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", ["stream", "global", None])
@pytest.mark.parametrize("pad", [False, True], ids=["drop", "pad"])
def test_job_restarted_from_the_state_of_one_process_makes_the_batches_of_an_uninterrupted_one(
    mixed: imagebeam.Mixture, shuffle: str | None, pad: bool
) -> None:
    options = {
        **OPTIONS,
        "shuffle": shuffle,
        "num_epochs": 2,
        "pad": pad,
        "drop_remainder": not pad,
        "process_count": 2,
    }

    def begin(**more: Any) -> list[Any]:
        return [mixed.as_numpy(3, **options, process_index=index, **more) for index in range(2)]

    iterators = begin()
    expected = [[next(each), next(each)] for each in iterators]
    [state] = {each.state() for each in iterators}
    for made, iterator, resumed in zip(expected, iterators, begin(state=state)):
        made += iterator
        assert len(made) == len(expected[0]) > 2
        for one, other in zip(made[2:], resumed, strict=True):
            assert one.keys() == other.keys()
            assert all((one[name] == other[name]).all() for name in one)
    first_epoch = [key for made in expected for key in keys_in(made[:2])]
    assert len(first_epoch) == len(set(first_epoch)) == 12


# --- what does not go together ---------------------------------------------------------------------------------------


OTHER_CLASSES = [{"labels": each} for each in (("cat", "cow"), ("dog", "cat"), (*LABELS, "owl"), ())]


@pytest.mark.parametrize("changed", [*OTHER_CLASSES, {"label_base": 0}], ids=str)
def test_datasets_of_other_classes_are_not_mixed(parts: Parts, tmp_path: pathlib.Path, changed: dict[str, Any]) -> None:
    other = make(tmp_path, "other", 4, **changed)
    with error_texts.raises("mixture-classes-differ"):
        imagebeam.mix([parts[0], (other, "train")], [1, 1], 2)


def test_datasets_whose_features_differ_are_not_mixed(parts: Parts, tmp_path: pathlib.Path) -> None:
    values = [{**written.jpeg_values(0), features.LABEL: 1}] * 3
    renamed = [each._replace(key="name") if each.source == "image/key" else each for each in written.IMAGE]
    other = written.write(tmp_path / "x", (*renamed, written.LABEL), values, labels=LABELS, label_base=1)
    pair = [parts[0], (other, "train")]
    assert imagebeam.mix(pair, [1, 1], 2, image_size=16) is not None  # nothing that differs is asked for
    with error_texts.raises("feature-unknown"):
        imagebeam.mix(pair, [1, 1], 2, **OPTIONS)
    renamed = [each._replace(key="image") if each.source == features.ENCODED else each for each in written.IMAGE]
    other = written.write(tmp_path / "y", (*renamed, written.LABEL), values, labels=LABELS, label_base=1)
    with error_texts.raises("mixture-features-differ"):
        imagebeam.mix([parts[0], (other, "train")], [1, 1], 2)
    values = [{**written.raw_values(np.zeros((4, 4, 3), np.uint8), 0), features.LABEL: 1}] * 3
    raw = written.write(tmp_path / "raw", (*written.IMAGE, written.LABEL), values, labels=LABELS, label_base=1)
    with error_texts.raises("mixture-features-differ"):
        imagebeam.mix([parts[0], (raw, "train")], [1, 1], 2)


def test_what_no_mixture_can_do_is_refused(parts: Parts, mixed: imagebeam.Mixture) -> None:
    for weights in [[], [1], [1, 0], [1, -1], [1, float("nan")], [1, float("inf")]]:
        with case_tables.named(weights), error_texts.raises("weights-mismatch"):
            imagebeam.Mixture(parts[:2], weights)
    with error_texts.raises("batch-never-full"):
        mixed.as_tf(500, num_epochs=1)
    with error_texts.raises("mixture-whole-epochs"):
        mixed.as_tf(4, num_epochs=1, next_epoch_each_iteration=True)


def test_state_of_other_datasets_weights_or_parts_is_refused(parts: Parts, mixed: imagebeam.Mixture) -> None:
    state = mixed.as_numpy(4, **OPTIONS).state()
    filtered = [(parts[0][0].filter(["dog"]), "train"), *parts[1:]]
    for pairs, weights in ((parts, [1, 1, 1]), (parts[::-1], WEIGHTS), (parts[:2], WEIGHTS[:2]), (filtered, WEIGHTS)):
        other = imagebeam.Mixture(pairs, weights)
        with error_texts.raises("state-mismatch"):
            other.as_numpy(4, **OPTIONS).restore(state)
    with error_texts.raises("state-mismatch"):
        parts[0][0].as_numpy("train", 4, **OPTIONS, state=state)


# --- the rest --------------------------------------------------------------------------------------------------------


def test_mixture_is_normalised_with_mean_and_deviation_of_all(tmp_path: pathlib.Path) -> None:
    means = {"dark": 50, "bright": 200}
    pairs = []
    for name, mean in means.items():
        values = [written.raw_values(np.full((4, 4, 3), mean, np.uint8), index) for index in range(4)]
        counted = {"pixels": {"images": 4, "mean": [mean] * 3, "std": [10] * 3}}
        pairs.append((written.write(tmp_path / name, written.IMAGE, values, statistics=counted), "train"))
    options: dict[str, Any] = {"image_size": 4, "crop": "squash", "dtype": "float32", "normalize": "dataset"}
    [batch] = imagebeam.mix(pairs, [3, 1], 64, **options).take(1).as_numpy_iterator()
    mean = 0.75 * 50 + 0.25 * 200
    std = np.sqrt(0.75 * (100 + 50**2) + 0.25 * (100 + 200**2) - mean**2)
    found = np.unique(batch["image"].round(3)).tolist()
    assert found == pytest.approx([(50 - mean) / std, (200 - mean) / std], abs=2e-3)


def test_broken_record_of_any_dataset_is_named_or_skipped(parts: Parts, tmp_path: pathlib.Path, decoder: str) -> None:
    dataset, split = parts[2]
    folder = pathlib.Path(shutil.copytree(dataset.directory, tmp_path / "broken"))
    shard = dataset.splits[split].shards[1]
    offsets = records.decode_index((folder / shard.index_name).read_bytes())
    written_files.flip(folder / shard.name, offsets[1] - records.FOOTER_BYTES - 1)
    pair = [parts[0], (imagebeam.open_dataset(str(folder)), split)]
    options = {**OPTIONS, "num_epochs": 1, "decoder": decoder, "drop_remainder": False}
    with pytest.raises(
        errors.ExampleError, match=r"record 0 of shard .*broken/train-00001-of-00003.tfrecord, key 'c3'"
    ):
        list(imagebeam.Mixture(pair, [1, 1]).as_numpy(2, **options))
    keys = keys_in(imagebeam.Mixture(pair, [1, 1]).as_numpy(2, **options, on_error="skip"))
    assert {key for key in keys if key.startswith("c")} == {f"c{index}" for index in range(7)} - {"c3"}


def test_datasets_may_be_filtered_and_parts_of_splits(parts: Parts) -> None:
    pair = [(parts[0][0].filter(["dog"]), "train[10:30]"), parts[1]]
    keys = keys_in(imagebeam.Mixture(pair, [1, 1]).as_numpy(1, **OPTIONS, num_epochs=1))
    assert {key for key in keys if key.startswith("a")} == {f"a{index}" for index in range(11, 30, 2)}


Drawn = list[tuple[list[int], float]]  # sizes of the shards, and weight, of each dataset

mixtures = st.lists(
    st.tuples(st.lists(st.integers(0, 12), min_size=1, max_size=4).filter(any), st.floats(0.05, 4)),
    min_size=1,
    max_size=3,
)


@dataclasses.dataclass(frozen=True)
class Job:
    """A job of several processes, which make their batches of a mixture in step."""

    every_epochs: list[batch_schedule.SelectionEpochs]
    pattern: mixture_pattern.Pattern
    options: dict[str, Any]
    process_count: int

    def schedules(
        self, state: imagebeam.ReaderState | None = None, replicas: int = 1
    ) -> list[batch_schedule.BatchSchedule]:
        every = range(self.process_count)
        return [
            batch_schedule.make_schedule(
                mixture_order.MixtureEpochs(self.pattern, self.parts(index)), self.asked(index, state), replicas
            )
            for index in every
        ]

    def asked(self, process_index: int, state: imagebeam.ReaderState | None = None) -> imagebeam.ReadOptions:
        process = {"process_index": process_index, "process_count": self.process_count}
        return imagebeam.ReadOptions(**self.options, **process, state=state)

    def parts(self, process_index: int) -> list[mixture_order.MixturePart]:
        alone = mixture_order.options_of_part(self.asked(process_index))
        return [
            mixture_order.MixturePart(each, batch_schedule.make_schedule(each, alone).order)
            for each in self.every_epochs
        ]

    def has_process_without_records(self) -> bool:
        is_shared = self.options["shuffle"] != "global"
        return is_shared and any(each.num_records < self.process_count for each in self.every_epochs)

    def part_of(self, part: int, records: list[int]) -> list[int]:
        """Returns the records of one dataset, by their numbers in it."""
        sizes = [each.selection.split_size for each in self.every_epochs]
        first = sum(sizes[:part])
        return [record - first for record in records if first <= record < first + sizes[part]]


def shards_of(sizes: list[int], index: int) -> restarts.Shards:
    """Returns shards of these sizes; from those of every second dataset another record is removed, at their start."""
    return [[*[False] * (index % 2), *[True] * size] for size in sizes]


def job_of(drawn: Drawn, process_count: int = 1, **options: Any) -> Job:
    every_epochs = [
        batch_schedule.SelectionEpochs(
            restarts.select_remaining(shards_of(sizes, index), 1 << (19 + index), fingerprint=f"f{index}")
        )
        for index, (sizes, _) in enumerate(drawn)
    ]
    given = {"batch_size": 4, "num_epochs": 1, "shuffle": "stream", "shuffle_records": 9, "seed": 3, **options}
    return Job(
        every_epochs, mixture_pattern.Pattern([weight for _, weight in drawn], given["seed"]), given, process_count
    )


@pytest.mark.slow
@hypothesis.settings(deadline=None, max_examples=50)
@hypothesis.given(st.data(), mixtures, restarts.drawn_jobs)
def test_job_that_is_restarted_at_any_points_reads_what_an_uninterrupted_one_reads(
    data: st.DataObject, parts: Drawn, drawn: restarts.Drawn
) -> None:
    job = job_of(parts, drawn.process_count, **drawn.options)
    if job.has_process_without_records():
        restarts.check_refused(job.schedules)
        return
    _, read = drawn.read_with_restarts(data, job.schedules)
    orders = [in_turn(read, drawn.batch_size)] if drawn.shuffle == "global" else read
    counts = [[len(job.part_of(part, each)) for part in range(len(parts))] for each in orders]
    for index, numbers in enumerate(orders):
        alone = mixture_order.options_of_part(job.asked(index))
        for part, epochs in enumerate(job.every_epochs):
            order = batch_schedule.make_schedule(epochs, alone).order
            expected = order.locate(np.arange(counts[index][part]) // drawn.repeats)[0]
            assert job.part_of(part, numbers) == expected.tolist()
    if drawn.num_epochs is None:
        return
    most = drawn.num_epochs * drawn.repeats
    assert max(collections.Counter(itertools.chain(*read)).values(), default=0) <= most
    if drawn.way != "drop":  # each ends where one part has no further record
        for index, found in enumerate(counts):
            sizes = [epochs.epoch_sizes(job.asked(0)) for epochs in job.every_epochs]
            assert any(count == most * size[index] for count, size in zip(found, sizes, strict=True))


@hypothesis.settings(deadline=None, max_examples=20)
@hypothesis.given(
    mixtures,
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 7), st.integers(0, 8)), min_size=1, max_size=4),
    st.sampled_from(sorted(WAYS)),
)
def test_global_job_that_goes_on_with_other_processes_and_batch_sizes_reads_the_rest_once(
    drawn: Drawn, geometries: list[tuple[int, int, int]], way: str
) -> None:
    [common] = job_of(drawn, shuffle="global", num_epochs=3, drop_remainder=False).schedules()

    def schedules(
        process_count: int, batch_size: int, state: imagebeam.ReaderState | None
    ) -> list[batch_schedule.BatchSchedule]:
        options = {"batch_size": batch_size, "shuffle": "global", "num_epochs": 3, **WAYS[way]}
        return job_of(drawn, process_count, **options).schedules(state)

    read = restarts.read_with_other_processes(schedules, geometries)
    assert len(read) <= common.stride
    assert read == common.order.locate(np.arange(len(read)))[0].tolist()


TWO: Drawn = [([20, 21], 1.0), ([30], 1.0)]


def test_state_of_another_mixture_is_refused_with_what_differs() -> None:
    for drawn, options in [
        ([TWO[0], ([30], 1.5)], {}),
        (TWO[::-1], {}),
        ([TWO[0], ([29], 1.0)], {}),
        ([*TWO, ([30], 1.0)], {}),
        (TWO, {"seed": 4}),
        (TWO, {"shuffle": None}),
        (TWO, {"shuffle_records": 40}),
    ]:
        with case_tables.named(drawn, options):
            [planned] = job_of(TWO).schedules()
            state = planned.state_after(2)
            job_of(TWO).schedules(state)
            job_of([(sizes, 7.0) for sizes, _ in TWO]).schedules(state)  # the same proportion in other numbers
            with error_texts.raises("state-mismatch"):
                job_of(drawn, **options).schedules(state)
