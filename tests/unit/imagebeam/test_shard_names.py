from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagebeam.records import ShardName

splits = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]*", fullmatch=True)
suffixes = st.sampled_from(["", ".tfrecord", ".tfrecord.gz", ".x-y"])
counts = st.integers(1, 200) | st.integers(99_990, 100_010) | st.integers(1, 2**40)


@st.composite
def shard_names(draw: st.DrawFn) -> ShardName:
    num_shards = draw(counts)
    return ShardName(draw(splits), draw(st.integers(0, num_shards - 1)), num_shards, draw(suffixes))


def test_name_formats_and_parses() -> None:
    for name, text in (
        (ShardName("train", 0, 16), "train-00000-of-00016.tfrecord"),
        (ShardName("validation", 127, 128, ""), "validation-00127-of-00128"),
        (ShardName("a-b", 99_999, 100_000), "a-b-099999-of-100000.tfrecord"),
    ):
        assert (str(name), ShardName.parse(text)) == (text, name)


@given(shard_names())
def test_parse_is_the_inverse_of_format(name: ShardName) -> None:
    assert ShardName.parse(str(name)) == name


@given(splits, counts)
def test_names_of_a_split_sort_as_their_indexes(split: str, num_shards: int) -> None:
    indexes = sorted({0, num_shards // 2, num_shards - 1})
    names = [str(ShardName(split, index, num_shards)) for index in indexes]
    assert names == sorted(names)


@settings(deadline=None)
@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]*", fullmatch=True), counts, st.data())
def test_names_are_those_that_tensorflow_datasets_looks_for(split: str, num_shards: int, data: st.DataObject) -> None:
    naming = pytest.importorskip("tensorflow_datasets.core.naming")
    index = data.draw(st.integers(0, num_shards - 1))
    template = naming.ShardedFileTemplate("", "{SPLIT}-{SHARD_X_OF_Y}.{FILEFORMAT}", "name", split, "tfrecord")
    name = str(ShardName(split, index, num_shards))
    assert template.relative_filepath(shard_index=index, num_shards=num_shards) == name
    info = template.parse_filename_info(name)
    assert (info.split, info.shard_index, info.num_shards) == (split, index, num_shards)


def test_other_names_are_refused() -> None:
    for text in (
        "train.tfrecord",
        "-00000-of-00001.tfrecord",
        "train-0000-of-0001.tfrecord",
        "train-000000-of-000001.tfrecord",
        "train-00000-of-100000.tfrecord",
        "train-00000-of-00001tfrecord",
        "train-00000-of-00001.tf record",
        "train-00000-of-00001.tfrecord\n",
        "train-\u0660\u0660\u0660\u0660\u0660-of-\u0660\u0660\u0660\u0660\u0661",  # digits, but not ASCII
    ):
        with pytest.raises(ValueError, match=re.escape(f"{text!r} is not the name of a shard; expected for example")):
            ShardName.parse(text)


@pytest.mark.parametrize(("index", "num_shards"), [(-1, 2), (2, 2), (0, 0)])
def test_index_outside_the_shards_is_refused(index: int, num_shards: int) -> None:
    with pytest.raises(ValueError, match=rf"shard index {index} is outside 0..{num_shards - 1}"):
        ShardName("train", index, num_shards)
    if index >= 0:
        with pytest.raises(ValueError, match="is outside"):
            ShardName.parse(f"train-{index:05d}-of-{num_shards:05d}.tfrecord")
