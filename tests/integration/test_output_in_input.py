"""An output that lies inside the input, or is the input: nothing in it is left out silently."""

from __future__ import annotations

import os
import pathlib

import pytest

from imagebeam import errors
from tests import datasets, image_sets, written_files


@pytest.fixture
def images(tmp_path: pathlib.Path) -> pathlib.Path:
    image_sets.write_folder(tmp_path / "in")
    return tmp_path / "in"


@pytest.mark.parametrize("name", ["cat/0.jpg", "notes.txt", "index/mine.index"])
@pytest.mark.parametrize("committed", [False, True], ids=["new", "committed"])
def test_output_in_the_input_with_a_file_of_others_is_refused(images: pathlib.Path, name: str, committed: bool) -> None:
    output = images / "out"
    if committed:
        datasets.make(images, output)
    written_files.write(output, {name: image_sets.make_image(1)})
    before = {path: path.read_bytes() for path in images.rglob("*") if path.is_file()}
    for overwrite in (False, True):
        with pytest.raises(errors.ConfigError, match=rf"is inside the input .* holds {name}, which imagebeam did"):
            datasets.make(images, output, overwrite=overwrite, source={"include": ["**/*.jpg"]} if overwrite else {})
    assert {path: path.read_bytes() for path in images.rglob("*") if path.is_file()} == before


def test_output_inside_the_input_is_ours_through_all_that_a_run_may_leave(images: pathlib.Path) -> None:
    output = images / "out"
    (images / "cat" / "0.jpg").write_bytes(b"\xff\xd8\xff\xe0broken")
    with pytest.raises(errors.TooManyRejectsError):  # leaves rejects and staged shards
        datasets.make(images, output)
    result = datasets.make(images, output, rejects={"max_fraction": 0.5})
    assert (result.catalog.counts.listed, result.catalog.counts.skipped) == (20, {"output_folder": 1})
    assert datasets.make(images, output, rejects={"max_fraction": 0.5}).state == "kept"
    (output / ".DS_Store").write_bytes(b"")  # hidden files are no input anywhere
    again = datasets.make(images, output, overwrite=True, rejects={"max_fraction": 0.5}, output={"num_shards": 3})
    assert again.catalog.counts.listed == 20


@pytest.mark.parametrize("linked", ["input", "output", "both"])
def test_output_that_is_the_input_by_a_link_is_refused(images: pathlib.Path, linked: str) -> None:
    for name in ("one", "two"):
        os.symlink(images, images.parent / name)
    given = images.parent / "one" if linked != "output" else images
    output = images.parent / "two" if linked != "input" else images
    before = sorted(images.rglob("*"))
    with pytest.raises(errors.ConfigError, match=f"--output '{output}' is the input itself; choose another folder"):
        datasets.make(given, output)
    assert sorted(images.rglob("*")) == before


def test_output_that_lies_inside_the_input_by_a_link_is_found_and_left_out(images: pathlib.Path) -> None:
    os.symlink(images / "cat", images.parent / "link")
    with pytest.raises(errors.ConfigError, match="link' is inside the input"):
        datasets.make(images, images.parent / "link")
    (images / "out").mkdir()
    os.symlink(images / "out", images.parent / "other")
    for number in range(2):  # the second finds the first one's files
        result = datasets.make(images, images.parent / "other", overwrite=True, split={"seed": number})
        assert result.catalog.counts.skipped == {"output_folder": 1}


def test_output_with_a_link_in_a_circle_is_looked_through(images: pathlib.Path) -> None:
    (images / "out").mkdir()
    os.symlink(images / "out", images / "out" / "round")
    assert datasets.make(images, images / "out").catalog.counts.listed == 20


def test_tables_and_paired_files_are_guarded_too(images: pathlib.Path) -> None:
    (images / "cat" / "metadata.csv").write_text("image\n0.jpg\n")
    (images / "dog" / "metadata.csv").write_text("image\n0.jpg\n")
    (images / "table.csv").write_text("image\n" * 11)
    tables = {"source": {"by": "manifest", "manifest": {"path": "**/metadata.csv"}}, "label": {"by": "none"}}
    with pytest.raises(errors.ConfigError, match="cat' is inside the input"):
        datasets.make(images, images / "cat", **tables)
    paired = {"by": "manifest", "manifest": {"image": None, "files": "cat/*"}}
    with pytest.raises(errors.ConfigError, match="cat' is the input itself"):
        datasets.make(images / "table.csv", images / "cat", source=paired, label={"by": "none"})
