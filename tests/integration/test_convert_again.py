"""Runs that follow each other on one output: what is kept, refused, replaced, and what is left behind."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
from unittest import mock

import pytest

from imagebeam import catalog as catalog_lib
from imagebeam import errors
from imagebeam.pipelines import convert, verify_dataset
from imagebeam.pipelines.config import model as config_lib
from imagebeam.transforms import elements
from imagebeam.transforms.commit import commit_dataset
from imagebeam.transforms.shard import read_ahead, writer_processes
from tests import command_line, datasets, image_sets


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder `in` with ten cats and ten dogs, as label/image, and the dataset `out` of them; read only."""
    folder = tmp_path_factory.mktemp("converted")
    image_sets.write_folder(folder / "in")
    datasets.make(folder / "in", folder / "out")
    return folder


@pytest.fixture
def images(converted: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """A copy of the images, with their times."""
    return pathlib.Path(shutil.copytree(converted / "in", tmp_path / "in"))


@pytest.fixture
def output(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "out"


@pytest.fixture
def committed(converted: pathlib.Path, images: pathlib.Path, output: pathlib.Path) -> pathlib.Path:
    """The output, which holds the dataset of the images."""
    shutil.copytree(converted / "out", output)
    return output


def test_too_many_rejects_leave_their_file_and_finished_shards(images: pathlib.Path, output: pathlib.Path) -> None:
    for index in range(4):
        (images / "cat" / f"{index}.jpg").write_bytes(b"\xff\xd8\xff\xe0broken")
    command = ("convert", "--input", images, "--output", output, "--set", "output.num_shards=4")
    refused = command_line.run(*command)
    assert (refused.returncode, "finished by" in refused.stdout) == (3, False)
    message = r"4 of 20 images were rejected \(20\.00%; truncated 4\), rejects\.max_fraction allows 1\.00%"
    assert re.search(message, refused.stderr)
    assert f"the rejects are in {output}/rejects.jsonl" in refused.stderr
    assert not (output / "catalog.json").exists()
    assert set(datasets.rejects(output)) == {f"cat/{index}.jpg" for index in range(4)}

    staged = {path.name: path.stat() for path in output.glob(".imagebeam/staging-*/*.tfrecord")}
    assert len(staged) == 4
    again = command_line.succeed(*command, "--set", "rejects.max_fraction=0.2")
    assert "4 of 4 shards were finished by an earlier run\n" in again.stdout
    for name, before in staged.items():
        after = (output / name).stat()
        assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns), "the shard was written again"
    catalog = catalog_lib.load_catalog(str(output))
    assert (catalog.counts.listed, catalog.counts.written, sum(catalog.counts.rejected.values())) == (20, 16, 4)
    assert len(datasets.rejects(output)) == 4
    assert not (output / ".imagebeam").exists()


def test_overwrite_that_is_refused_leaves_the_old_dataset(images: pathlib.Path, committed: pathlib.Path) -> None:
    before = datasets.shard_digests(committed)
    (images / "cat" / "0.jpg").write_bytes(b"\xff\xd8\xff\xe0broken")
    with pytest.raises(errors.TooManyRejectsError, match=rf"the rejects are in {committed}/\.imagebeam/rejects\.jsonl"):
        datasets.make(images, committed, overwrite=True)
    assert datasets.shard_digests(committed) == before
    assert verify_dataset.verify(str(committed)).problems == ()
    assert datasets.rejects(committed) == {}
    assert datasets.rejects(committed / ".imagebeam") == {"cat/0.jpg": "truncated"}


@pytest.mark.parametrize("name", ["labels.txt", "dataset_info.json"])
def test_folder_with_a_users_file_of_our_name_is_refused(images: pathlib.Path, output: pathlib.Path, name: str) -> None:
    output.mkdir()
    (output / name).write_text("the user's own")
    with pytest.raises(errors.ConfigError, match=rf"holds {name}, which no catalog.json names"):
        datasets.make(images, output)
    assert (output / name).read_text() == "the user's own"


def test_renamed_file_behind_an_equal_key_is_another_dataset(tmp_path: pathlib.Path, output: pathlib.Path) -> None:
    (tmp_path / "a.jpg").write_bytes(image_sets.make_image(0))
    table = tmp_path / "images.csv"
    table.write_text("id,image\n1,a.jpg\n")
    sections = {"source": {"by": "manifest", "manifest": {"key": "id"}}, "label": {"by": "none"}}
    datasets.make(table, output, **sections)
    os.rename(tmp_path / "a.jpg", tmp_path / "b.jpg")
    table.write_text("id,image\n1,b.jpg\n")
    assert datasets.make(table, output, overwrite=True, **sections).state == "committed"
    assert datasets.read(output)[0]["image/filename"] == b"b.jpg"


def test_vocabulary_in_the_output_itself_survives_a_new_dataset(images: pathlib.Path, committed: pathlib.Path) -> None:
    (images / "ant").mkdir()
    (images / "ant" / "0.jpg").write_bytes(image_sets.make_image(77))
    fixed = {"label": {"vocabulary": str(committed / "labels.txt")}, "rejects": {"max_fraction": 0.1}}
    result = datasets.make(images, committed, overwrite=True, **fixed)
    assert result.catalog.labels == ("cat", "dog")
    assert result.catalog.counts.rejected == {"unknown_label": 1}


def test_beams_own_writer_that_is_refused_leaves_nothing(tmp_path: pathlib.Path, output: pathlib.Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(errors.ConfigError, match="the input holds no image"):
        datasets.make(tmp_path / "empty", output, output={"writer": "beam", "num_shards": 2})
    assert not output.exists()


@pytest.mark.parametrize("listed", ["folder", "saved-listing"])
def test_file_that_changes_during_a_run_is_taken_in_by_what_is_advised(
    images: pathlib.Path, output: pathlib.Path, monkeypatch: pytest.MonkeyPatch, listed: str, tmp_path: pathlib.Path
) -> None:
    target = images / "cat" / "0.jpg"
    sections = {"source": {"uri": str(images)}, "output": {"uri": str(output)}, "rejects": {"max_fraction": 0.05}}

    def prepare() -> dict[str, object]:
        if listed == "folder":
            return sections
        loaded = config_lib.parse_config({**sections}, where="test")
        return convert.save_listing(loaded, str(tmp_path / "listing")).model_dump()

    finish = read_ahead._finish

    def write_and_finish(ref: elements.ImageRef, *arguments: object) -> read_ahead.Fetched:
        if ref.key == "cat/0.jpg":
            target.write_bytes(image_sets.make_image(4711))
        return finish(ref, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(read_ahead, "_read_now", lambda *_: None)  # so that each file is read by _finish
        patch.setattr(read_ahead, "_finish", write_and_finish)
        patch.setattr(writer_processes, "current", lambda: None)  # the shards are written in this process
        first = convert.convert(prepare(), workers=1)
    assert first.catalog.counts.rejected == {"changed": 1}
    again = "run the same command again with --overwrite"
    if listed == "saved-listing":
        again = f"save the listing again (imagebeam plan --save-listing), and then {again}"
    assert f"1 image changed after the listing and was rejected; to take it in, {again}" in first.plan.notes
    detail = json.loads((output / "rejects.jsonl").read_text())["detail"]
    assert detail.endswith("since it was listed; to take it in, run the same convert command again with --overwrite")
    second = convert.convert(prepare(), workers=1, overwrite=True)
    assert (second.state, second.catalog.counts.rejected) == ("committed", {})


def test_split_whose_images_are_all_rejected_is_an_error(images: pathlib.Path, output: pathlib.Path) -> None:
    (images / "train").mkdir()
    os.rename(images / "cat", images / "train" / "cat")
    (images / "val" / "cat").mkdir(parents=True)
    os.rename(images / "dog", images.parent / "dog")
    (images / "val" / "cat" / "0.jpg").write_bytes(b"\xff\xd8\xff\xe0broken")
    with pytest.raises(
        errors.TooManyRejectsError, match="every image of split val was rejected, 1 in all: nothing was"
    ):
        datasets.make(images, output, split={"by": "directory"}, rejects={"max_fraction": 0.5})
    assert not (output / "catalog.json").exists()


# --- why what is there cannot be used --------------------------------------------------------------------------------


def change_images(images: pathlib.Path) -> str:
    """Adds three images, removes one, changes two; returns the message expected for that."""
    for number in range(3):
        (images / "cat" / f"new{number}.jpg").write_bytes(image_sets.make_image(7777 + number))
    (images / "dog" / "9.png").unlink()
    for number in range(2):
        (images / "dog" / f"{number}.jpg").write_bytes(image_sets.make_image(8888 + number))
    return "22 images listed, 20 then"


OTHER_CONFIG = {"split": {"seed": 1}, "output": {"num_shards": 3}}
OTHER_TEXT = "output.num_shards was 2, is 3; split.seed was not set, is 1"


@pytest.mark.parametrize("other_config", [False, True], ids=["same-config", "other-config"])
@pytest.mark.parametrize("other_images", [False, True], ids=["same-images", "other-images"])
def test_refusal_and_resume_say_what_differs(
    images: pathlib.Path, output: pathlib.Path, tmp_path: pathlib.Path, other_config: bool, other_images: bool
) -> None:
    sections = {"output": {"num_shards": 2}}
    datasets.make(images, output, **sections)
    cut = tmp_path / "cut"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(errors.ImagebeamError, match="before the commit"):
        patch.setattr(
            commit_dataset.Committer,
            "commit",
            mock.Mock(side_effect=errors.ImagebeamError("a-code", "before the commit")),
        )
        datasets.make(images, cut, **sections)
    texts = [OTHER_TEXT] if other_config else []
    texts += [change_images(images)] if other_images else []
    now = OTHER_CONFIG if other_config else sections
    expected = "; ".join(texts)
    resumed = datasets.make(images, cut, **now)
    notes = [note for note in resumed.plan.notes if "earlier run" in note]
    assert notes == ([f"2 finished shards of an earlier run cannot be used: {expected}"] if texts else [])
    assert (resumed.message == "2 of 2 shards were finished by an earlier run") == (not texts)
    if not texts:
        assert datasets.make(images, output, **now).state == "kept"
        return
    before = {path: path.stat().st_mtime_ns for path in output.rglob("*")}
    message = rf"{output} holds another dataset \(out, 20 images, .*; {expected}\); choose another --output, or --over"
    with pytest.raises(errors.ConfigError, match=message):
        datasets.make(images, output, **now)
    assert {path: path.stat().st_mtime_ns for path in output.rglob("*")} == before


def test_plan_says_why_staged_shards_are_useless_and_writes_nothing(images: pathlib.Path, output: pathlib.Path) -> None:
    (images / "cat" / "0.jpg").write_bytes(b"\xff\xd8\xff\xe0broken")
    with pytest.raises(errors.TooManyRejectsError):
        datasets.make(images, output)
    before = {path: path.stat().st_mtime_ns for path in output.rglob("*")}
    planned = command_line.succeed("plan", "--input", images, "--output", output, "--set", "split.seed=4").stdout
    assert "1 finished shard of an earlier run cannot be used: split.seed was not set, is 4\n" in planned
    assert {path: path.stat().st_mtime_ns for path in output.rglob("*")} == before
    fresh = output.parent / "fresh"
    command_line.succeed("plan", "--input", images, "--output", fresh)
    assert not fresh.exists()


@pytest.mark.parametrize("word", ["{", None], ids=repr)
def test_staged_shards_without_a_record_are_named(images: pathlib.Path, output: pathlib.Path, word: str | None) -> None:
    (images / "cat" / "0.jpg").write_bytes(b"\xff\xd8\xff\xe0broken")
    with pytest.raises(errors.TooManyRejectsError):
        datasets.make(images, output)
    (path,) = output.glob(".imagebeam/staging-*/inputs.json")
    path.unlink() if word is None else path.write_text(word)
    plan = convert.plan({"source": {"uri": str(images)}, "output": {"uri": str(output), "num_shards": 2}})
    assert "1 finished shard of an earlier run cannot be used: config or images differ" in plan.notes
