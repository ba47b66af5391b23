"""Several splits read as one: "train+validation", and parts of them."""

from __future__ import annotations

import itertools
import json
import pathlib
import shutil
from collections.abc import Iterable, Sequence
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import imagebeam
from imagebeam import features
from imagebeam.reader import record_selection
from tests import case_tables, error_texts
from tests.unit.imagebeam.reader import restarts, sized_sets, written

NUM_TRAIN, NUM_VALIDATION = 31, 12
TRAIN, VALIDATION = range(NUM_TRAIN), range(NUM_TRAIN, NUM_TRAIN + NUM_VALIDATION)  # keys of the examples
LABELS = ("cat", "dog", "owl")
OPTIONS: dict[str, Any] = {"image_size": 8, "crop": "squash", "flip": False, "features": ("image/key",), "threads": 1}
JOINED: dict[str, Sequence[int]] = {
    "train+validation": [*TRAIN, *VALIDATION],
    "validation + train": [*VALIDATION, *TRAIN],
    "train[:10]+validation[-5:]": [*TRAIN[:10], *VALIDATION[-5:]],
    "train[20:]+validation+train[:10]": [*TRAIN[:10], *TRAIN[20:], *VALIDATION],
    "train[50%:]+train[:50%]": TRAIN,
    "train[:20%]+train[80%:]": [*TRAIN[:6], *TRAIN[25:]],
}


def write(folder: pathlib.Path, **options: Any) -> imagebeam.ImageDataset:
    # The validation split has no owl.
    examples = [
        {**written.jpeg_values(index, 8, 8), features.LABEL: index % (3 if index in TRAIN else 2)}
        for index in (*TRAIN, *VALIDATION)
    ]
    given = {"labels": LABELS, "num_shards": 3, "num_validation": NUM_VALIDATION, **options}
    return written.write(folder, (*written.IMAGE, written.LABEL), examples, **given)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> imagebeam.ImageDataset:
    return write(tmp_path_factory.mktemp("joined") / "plain")


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> imagebeam.ImageDataset:
    return write(tmp_path_factory.mktemp("joined") / "packed", compression="gzip")


def keys_of(batches: Iterable[Any]) -> list[list[int]]:
    """Returns the keys of each batch, without padding."""
    return [[int(key) for key in np.asarray(batch["image/key"]).tolist() if key] for batch in batches]


def flat(batches: Iterable[Any]) -> list[int]:
    return [*itertools.chain(*keys_of(batches))]


def is_labelled(key: int, labels: Iterable[str]) -> bool:
    return LABELS[key % (3 if key in TRAIN else 2)] in labels


@hypothesis.settings(deadline=None, max_examples=60)
@hypothesis.given(
    st.sampled_from(sorted(JOINED)),
    st.sampled_from(["stream", "global", None]),
    st.booleans(),
    st.integers(1, 8),
    st.integers(1, 7),
    st.sampled_from(["pad", "keep"]),
    st.sampled_from([None, ["cat"], ["owl"], ["dog", "owl"]]),
    st.integers(0, 5),
    st.integers(1, 8),
)
def test_job_reads_each_example_of_all_parts_once_and_goes_on_from_any_step(
    plain: imagebeam.ImageDataset,
    packed: imagebeam.ImageDataset,
    text: str,
    shuffle: str | None,
    is_packed: bool,
    process_count: int,
    batch_size: int,
    way: str,
    labels: list[str] | None,
    step: int,
    next_count: int,
) -> None:
    dataset = packed if is_packed and shuffle != "global" else plain
    dataset = dataset if labels is None else dataset.filter(labels)
    expected = [key for key in JOINED[text] if labels is None or is_labelled(key, labels)]
    assert dataset.num_examples(text) == len(expected)
    if len(expected) < process_count:
        return
    asked = {**OPTIONS, **restarts.WAYS[way], "shuffle": shuffle, "num_epochs": 1, "shuffle_records": 5}

    def begin(count: int, state: imagebeam.ReaderState | None = None) -> list[Any]:
        every = ({"process_index": index, "process_count": count, "state": state} for index in range(count))
        return [dataset.as_numpy(text, batch_size, **asked, **each) for each in every]

    read = [keys_of(each) for each in begin(process_count)]
    assert sorted(itertools.chain(*itertools.chain(*read))) == sorted(expected)
    if shuffle is None and process_count == 1:
        assert [*itertools.chain(*read[0])] == expected
    if shuffle == "global":  # the common order is the same whatever the number of processes
        rows = restarts.in_turn([[*itertools.chain(*each)] for each in read], batch_size)
        assert rows == flat(dataset.as_numpy(text, 1, **{**asked, **restarts.WAYS["keep"]}))
    iterators = begin(process_count)
    step = min(step, *map(len, read))
    before = [flat(itertools.islice(each, step)) for each in iterators]
    [state] = {each.state() for each in iterators}
    rest = [flat(each) for each in begin(next_count if shuffle == "global" else process_count, restarts.save(state))]
    assert sorted(itertools.chain(*before, *rest)) == sorted(expected)


def test_every_feed_reads_the_joined_splits(plain: imagebeam.ImageDataset) -> None:
    text = "train[:10]+validation"
    sized_sets.check_feeds(sized_sets.OfSplit(plain, text), 11, **OPTIONS, num_epochs=1)
    source = plain.as_grain(text)
    assert [int(source[index]["image/key"]) for index in range(len(source))] == [*TRAIN[:10], *VALIDATION]


def test_example_of_the_first_split_has_the_crops_and_seeds_that_it_has_alone(plain: imagebeam.ImageDataset) -> None:
    options = {**OPTIONS, "crop": "random", "shuffle": "global", "num_epochs": 1, "metadata": True}
    joined, alone = (
        {int(batch["image/key"][0]): batch for batch in plain.as_numpy(text, 1, **options)}
        for text in ("train+validation", "train")
    )
    for key, batch in alone.items():
        for name in ("image", "record", "seed", "epoch"):
            assert (batch[name] == joined[key][name]).all()
    assert sorted(int(batch["record"][0]) for batch in joined.values()) == [*TRAIN, *VALIDATION]


def test_removed_records_of_any_split_are_left_out(plain: imagebeam.ImageDataset, tmp_path: pathlib.Path) -> None:
    folder = pathlib.Path(shutil.copytree(plain.directory, tmp_path / "set"))
    fields = json.loads((folder / "catalog.json").read_text())
    dataset = imagebeam.open_dataset(folder)
    removed = {"train-00001-of-00003.tfrecord": [0, 3], "validation-00002-of-00003.tfrecord": [3]}
    assert fields["splits"].keys() == {"train", "validation"}
    splits = {
        name: type(split)(
            tuple(type(shard)(**{**vars(shard), "removed": len(removed.get(shard.name, ()))}) for shard in split.shards)
        )
        for name, split in dataset.splits.items()
    }
    catalog = type(dataset.catalog)(**{**vars(dataset.catalog), "splits": splits})
    changed = imagebeam.ImageDataset(dataset._source, catalog, removed)
    kept = [key for key in (*TRAIN, *VALIDATION) if key not in (11, 14, NUM_TRAIN + 11)]
    for text, expected in [
        ("train+validation", kept),
        ("train[5:15]+validation[-3:]", [*kept[5:15], *kept[-3:]]),
        ("train[:12]+train[20:]+validation[2:]", [*kept[:12], *kept[20:29], *kept[31:]]),
    ]:
        with case_tables.named(text):
            for labels in (None, ["cat"], ["dog", "owl"]):
                chosen = changed if labels is None else changed.filter(labels)
                source = chosen.as_grain(text, decode=False)
                wanted = [key for key in expected if labels is None or is_labelled(key, labels)]
                assert [int(source[index]["image/key"]) for index in range(len(source))] == wanted


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_joined_splits_are_read_from_an_address_and_through_a_cache(
    plain: imagebeam.ImageDataset, packed: imagebeam.ImageDataset, tmp_path: pathlib.Path, far: Any, compression: str
) -> None:
    folder = shutil.copytree((plain if compression == "none" else packed).directory, tmp_path / "set")
    text = "validation[:5]+train[4:30]"
    for options in ({}, {"cache_dir": tmp_path / "cache"}):
        dataset = imagebeam.open_dataset(f"far://{folder}", **options)
        batches = dataset.as_numpy(text, 4, **OPTIONS, num_epochs=2, drop_remainder=False)
        assert sorted(flat(batches)) == sorted([*VALIDATION[:5], *TRAIN[4:30]] * 2)


def test_mixture_of_joined_splits_reads_each_example_of_them_once_an_epoch(plain: imagebeam.ImageDataset) -> None:
    parts = [(plain, "train[:10]+validation"), (plain, "train[10:20]+train[25:]")]
    mixture = imagebeam.Mixture(parts, [1, 1])
    expected = [{*TRAIN[:10], *VALIDATION}, {*TRAIN[10:20], *TRAIN[25:]}]
    for shuffle in ("stream", "global", None):
        batches = mixture.as_numpy(1, **OPTIONS, shuffle=shuffle, num_epochs=1)
        found = flat(batches)
        assert len(found) == len({*found}) == batches.num_batches
        assert any(each <= {*found} for each in expected) and {*found} <= expected[0] | expected[1]


def test_joined_splits_have_one_state_and_name(plain: imagebeam.ImageDataset) -> None:
    names = {text: plain.select(text).name for text in JOINED}
    assert names["train+validation"] == "train[0:31]+validation[0:12]"
    assert names["train[50%:]+train[:50%]"] == "train[0:31]" == plain.select("train").name
    assert names["train[20:]+validation+train[:10]"] == "train[0:10]+train[20:31]+validation[0:12]"
    state = plain.state_at("train+validation", 1, 4)
    with error_texts.raises("state-mismatch"):
        plain.as_numpy("train", 4, state=state)
    plain.as_numpy("train[16:]+train[:16]+validation", 4, state=state)


def test_joined_splits_are_for_training_if_train_is_among_them(plain: imagebeam.ImageDataset) -> None:
    plain.as_numpy("validation[:1]+train", 4)
    with error_texts.raises("shuffle-missing"):
        plain.as_numpy("validation[:1]+validation[4:]", 4)


def test_split_that_is_unknown_empty_or_named_twice_is_refused(plain: imagebeam.ImageDataset) -> None:
    for text, code in [
        ("train+train", "split-named-twice"),
        ("validation+train[:60%]+train[40%:]", "split-named-twice"),
        ("train+test", "split-unknown"),
        ("train+validation[5:5]", "split-empty"),
        ("train+", "split-unreadable"),
        ("train++validation", "split-unreadable"),
    ]:
        with case_tables.named(text, code), error_texts.raises(code):
            record_selection.parse_parts(text, plain.splits)


def test_class_weights_count_all_of_the_splits(plain: imagebeam.ImageDataset, tmp_path: pathlib.Path) -> None:
    with error_texts.raises("dataset-no-classes"):  # `written` counts none
        plain.class_weights("train+validation")
    folder = pathlib.Path(shutil.copytree(plain.directory, tmp_path / "set"))
    counted = json.loads((folder / "statistics.json").read_text())
    for split, labels in {"train": {"cat": 1, "dog": 2}, "validation": {"cat": 3}}.items():
        counted[split]["labels"] = labels
    (folder / "statistics.json").write_text(json.dumps(counted))
    assert imagebeam.open_dataset(folder).class_weights("train[:50%]+validation") == {0: 0.75, 1: 1.5, 2: 0.0}
