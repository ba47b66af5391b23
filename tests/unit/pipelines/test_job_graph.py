"""The job of a config, and the size of its graph, which a runner's service limits and every worker downloads."""

from __future__ import annotations

import pathlib

import pytest

from imagebeam.transforms.classes import label_names
from tests import command_line, image_sets, job_graphs

MAX_GRAPH_BYTES = 200_000


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("images")
    image_sets.write_folder(folder, per_label=1)
    return {"uri": str(folder)}


def write_lines(path: pathlib.Path, count: int, line: str) -> str:
    path.write_text("".join(line.format(index=index) + "\n" for index in range(count)))
    return str(path)


def test_graph_of_a_folder_is_small(source: dict[str, str], tmp_path: pathlib.Path) -> None:
    assert len(job_graphs.graph_of(tmp_path, source=source)) < MAX_GRAPH_BYTES * 0.6


@pytest.mark.parametrize("count", [21_841, 200_000])
def test_graph_does_not_grow_with_the_label_files(source: dict[str, str], tmp_path: pathlib.Path, count: int) -> None:
    classes = write_lines(tmp_path / "classes.txt", count, "n{index:08d}")
    texts = write_lines(tmp_path / "texts.txt", count, "n{index:08d} a thing, one of {index}")
    label = {"vocabulary": classes, "texts": texts, "lists": {"val": classes}}
    assert len(job_graphs.graph_of(tmp_path, source=source, label=label)) < MAX_GRAPH_BYTES * 0.6


def test_graph_with_the_longest_names_that_it_holds_is_below_the_bound(
    source: dict[str, str], tmp_path: pathlib.Path
) -> None:
    count = label_names.MAX_IN_GRAPH // 32
    classes = tmp_path / "classes.txt"
    classes.write_text(
        "".join(f"{index * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128:032x}\n" for index in range(count))
    )
    graph = job_graphs.graph_of(tmp_path, source=source, label={"vocabulary": str(classes)})
    assert MAX_GRAPH_BYTES // 2 < len(graph) < MAX_GRAPH_BYTES


def test_graph_holds_no_path_of_this_checkout(source: dict[str, str], tmp_path: pathlib.Path) -> None:
    pickles = list(job_graphs.pickles_in(job_graphs.graph_of(tmp_path, source=source)))
    assert sum(str(tmp_path).encode() in each for each in pickles) > 3  # so a path would be seen
    assert not [each for each in pickles if str(command_line.ROOT).encode() in each]
