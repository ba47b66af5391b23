"""Files of a dataset that are damaged, or of another tool: an error that names them, or the same examples."""

from __future__ import annotations

import json
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

import imagebeam
from imagebeam import catalog as catalog_lib
from imagebeam import errors, features
from tests import error_texts, written_files
from tests.unit.imagebeam.reader import written

COUNT = 8
NAMES = ("catalog.json", "statistics.json", "index/train-00001-of-00002.index")
OTHERS: list[Any] = [None, True, -1, 1.5, "x", [], {}, [None], {"x": 1}]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("damage") / "out"
    examples = [{**written.jpeg_values(index), features.LABEL: index % 2} for index in range(COUNT)]
    counted = {"pixels": {"images": COUNT, "mean": [1.0, 2.0, 3.0], "std": [1.0, 2.0, 3.0]}}
    written.write(folder, (*written.IMAGE, written.LABEL), examples, labels=("cat", "dog"), statistics=counted)
    return folder


@pytest.fixture(scope="module")
def copy(whole: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return pathlib.Path(shutil.copytree(whole, tmp_path_factory.mktemp("damaged") / "out"))


def check(folder: pathlib.Path, name: str) -> str:
    """Reads everything; returns the text of the error, which must name the file or the folder."""
    try:
        dataset = imagebeam.open_dataset(str(folder))
        options = imagebeam.ReadOptions(batch_size=2, dtype="float32", normalize="dataset")
        for split in dataset.splits:
            dataset.records(split, options)
            source = dataset.as_grain(split, decode=False)
            assert all(len(source[index]["image"]) > 100 for index in range(len(source)))
    except errors.ImagebeamError as e:
        stem = pathlib.Path(name).stem
        assert str(folder) in str(e) or stem in str(e)
        assert "KeyError" not in str(e).partition("(")[0]
        return str(e)
    return ""


@pytest.fixture
def damaged(
    whole: pathlib.Path, copy: pathlib.Path, request: pytest.FixtureRequest
) -> Iterator[tuple[pathlib.Path, str]]:
    yield copy, request.param
    shutil.copy(whole / request.param, copy / request.param)


each_file = pytest.mark.parametrize("damaged", NAMES, indirect=True)
fuzzed = hypothesis.settings(
    deadline=None, max_examples=60, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
)


@each_file
@hypothesis.given(st.floats(0, 1, exclude_max=True))
@fuzzed
def test_file_that_was_cut_short_is_named(damaged: tuple[pathlib.Path, str], whole: pathlib.Path, part: float) -> None:
    folder, name = damaged
    content = (whole / name).read_bytes().rstrip()
    (folder / name).write_bytes(content[: int(part * len(content))])
    assert str(folder / name) in check(folder, name)


@each_file
@hypothesis.given(st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 7)), min_size=1, max_size=3))
@fuzzed
def test_file_with_flipped_bits_is_named_or_reads_on(
    damaged: tuple[pathlib.Path, str], whole: pathlib.Path, flips: list[tuple[float, int]]
) -> None:
    folder, name = damaged
    content = bytearray((whole / name).read_bytes())
    for part, bit in flips:
        content[int(part * len(content))] ^= 1 << bit
    (folder / name).write_bytes(content)
    found = check(folder, name)
    if name.startswith("index") and bytes(content) != (whole / name).read_bytes():
        assert "index/train-00001-of-00002.index" in found


@pytest.mark.parametrize("damaged", ["statistics.json"], indirect=True)
@hypothesis.given(st.data())
@hypothesis.settings(fuzzed, max_examples=150)
def test_json_of_another_shape_is_named_or_reads_on(
    damaged: tuple[pathlib.Path, str], whole: pathlib.Path, data: st.DataObject
) -> None:
    folder, name = damaged
    root = json.loads((whole / name).read_bytes())
    node: Any = {"root": root}
    key: Any = "root"
    while isinstance(node[key], (dict, list)) and node[key] and data.draw(st.integers(0, 3)):
        node = node[key]
        key = data.draw(st.sampled_from(sorted(node) if isinstance(node, dict) else range(len(node))))
    if data.draw(st.booleans()) and node is not root and isinstance(node, dict) and key != "root":
        del node[key]
    else:
        value = data.draw(st.sampled_from(OTHERS))
        if key == "root":
            root = value
        node[key] = value
    (folder / name).write_text(json.dumps(root))
    check(folder, name)


@pytest.mark.parametrize("damaged", ["index/train-00001-of-00002.index"], indirect=True)
def test_index_of_another_shard_is_named(damaged: tuple[pathlib.Path, str], whole: pathlib.Path) -> None:
    folder, name = damaged
    content = (whole / name).read_bytes()
    swapped = content[:8] + content[16:24] + content[8:16] + content[24:]
    (folder / name).write_bytes(swapped)
    with error_texts.raises("index-damaged"):
        imagebeam.open_dataset(str(folder)).as_grain("train")[5]
    shifted = bytearray(content)
    shifted[8:16] = (int.from_bytes(content[8:16], "little") - 1).to_bytes(8, "little")
    (folder / name).write_bytes(shifted)
    with error_texts.raises("example-broken"):
        imagebeam.open_dataset(str(folder)).as_grain("train")[4]


@pytest.mark.parametrize(
    "name", ["cats.tfrecord", "train-00000-of-00010", "a.tfrec", "mnist-test.tfrecord-00000-of-00001"]
)
def test_files_of_another_tool_are_an_error_with_a_remedy(tmp_path: pathlib.Path, name: str, far: Any) -> None:
    written_files.write(tmp_path / "set", {name: b""})
    for address in (str(tmp_path / "set"), f"far://{tmp_path}/set"):
        with error_texts.raises("catalog-missing-for-tfrecords"):
            imagebeam.open_dataset(address, cache_dir=str(tmp_path / "cache"))
    with error_texts.raises("catalog-missing-for-tfrecords"):
        catalog_lib.load_catalog(tmp_path / "set")
    if "tfrec" in name:
        with error_texts.raises("catalog-missing-for-tfrecords"):
            imagebeam.open_dataset(str(tmp_path / "set" / name))


def test_shards_without_a_catalog_are_not_taken_for_another_tools(whole: pathlib.Path, tmp_path: pathlib.Path) -> None:
    folder = pathlib.Path(shutil.copytree(whole, tmp_path / "out"))
    (folder / "catalog.json").unlink()
    with error_texts.raises("catalog-missing"):
        imagebeam.open_dataset(str(folder))
