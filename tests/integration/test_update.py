"""Nights of `convert --update` over an input that grows, changes and shrinks."""

from __future__ import annotations

import json
import os
import pathlib
import random
import shutil
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from imagebeam import errors, snapshots
from imagebeam.pipelines import compact, convert, inspect_dataset, keep_snapshots, status, verify_dataset
from imagebeam.pipelines.config import model as config_lib
from imagebeam.pipelines.runs import output_lock
from imagebeam.transforms import elements
from imagebeam.transforms.publish import publish_dataset
from tests import (
    command_line,
    datasets,
    error_texts,
    image_sets,
    parquet_files,
    recipe_sets,
    snapshot_sets,
    tars,
    written_files,
)

CONFIG: dict[str, Any] = {
    "split": {"by": "hash", "fractions": {"train": 0.7, "test": 0.3}},
    "rejects": {"max_fraction": 0.5},
}


class Source:
    """A folder of images that changes from night to night."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self._random = random.Random(0)
        self._num_made = 0
        self._seconds = 1_700_000_000

    def add(self, count: int, label: str) -> None:
        for _ in range(count):
            self._num_made += 1
            self.write(f"{label}/{self._num_made}.jpg", image_sets.make_image(self._num_made))

    def write(self, key: str, data: bytes) -> None:
        path = self.folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        self._seconds += 1
        os.utime(path, (self._seconds, self._seconds))

    def choose(self, count: int) -> list[str]:
        keys = sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*.jpg"))
        return self._random.sample(keys, count)

    def change(self, count: int) -> None:
        for key in self.choose(count):
            self._num_made += 1
            self.write(key, image_sets.make_image(self._num_made))

    def remove(self, count: int) -> None:
        for key in self.choose(count):
            (self.folder / key).unlink()

    def relabel(self, count: int, label: str) -> None:
        (self.folder / label).mkdir(exist_ok=True)
        for key in self.choose(count):
            name = key.replace("/", "-")
            (self.folder / key).rename(self.folder / label / name)

    def break_some(self, count: int) -> None:
        for key in self.choose(count):
            self.write(key, b"\xff\xd8\xff\xe0 broken")


def change_nothing(_: Source) -> None:
    pass


def sections_of(source: Source, output: pathlib.Path, **more: Any) -> dict[str, Any]:
    return {**CONFIG, "source": {"uri": str(source.folder)}, "output": {"uri": str(output)}, **more}


def update(source: Source, output: pathlib.Path, **more: Any) -> convert.ConvertResult:
    return snapshot_sets.update(source.folder, output, **CONFIG | more)


NIGHTS: list[Callable[[Source], None]] = [
    lambda source: (source.add(20, "cat"), source.add(20, "dog"))[0],
    lambda source: source.add(5, "cat"),
    lambda source: source.change(4),
    lambda source: source.remove(3),
    lambda source: source.relabel(3, "ant"),  # a new class, which comes first in the alphabet
    change_nothing,
    lambda source: source.break_some(3),
    lambda source: source.change(12),  # repairs some of them, maybe
    lambda source: (source.remove(2), source.add(3, "bee"), source.relabel(2, "dog"), source.change(2))[0],
    lambda source: source.add(1, "cat"),
]


def test_ten_nights_end_with_what_a_fresh_conversion_holds(tmp_path: pathlib.Path) -> None:
    source, output = Source(tmp_path / "in"), tmp_path / "out"
    ids: dict[str, int] = {}
    splits: dict[str, str] = {}
    num_read = 0
    for change in NIGHTS:
        change(source)
        num_before = len(list(output.glob("snapshots/*")))
        result = update(source, output)
        assert (len(list(output.glob("snapshots/*"))) == num_before) == (change is change_nothing)
        found = snapshot_sets.living(output)
        stored = {key: (each.label, each.data) for key, each in found.items()}
        rejects = datasets.rejects(snapshot_sets.latest(output))
        files = {str(path.relative_to(source.folder)): path for path in source.folder.rglob("*.jpg")}
        assert stored.keys() | rejects.keys() == files.keys()
        assert stored == {key: (files[key].parent.name, files[key].read_bytes()) for key in stored}
        assert all(ids.setdefault(each.label, each.label_id) == each.label_id for each in found.values())
        assert all(splits.setdefault(key, each.split) == each.split for key, each in found.items())
        counts = result.plan.snapshot
        num_read += 0 if change is change_nothing else counts["added"] + counts["changed"]
    assert num_read < 40 + 5 + 4 + 3 + 3 + 12 + 7 + 1 + 1  # nothing is read twice
    fresh = datasets.make(source.folder, tmp_path / "fresh", **CONFIG)
    assert fresh.catalog.counts == result.catalog.counts
    keys = {split: sorted(datasets.keys(tmp_path / "fresh", split)) for split in ("train", "test")}
    assert keys == {split: sorted(key for key, each in found.items() if each.split == split) for split in keys}
    statistics = json.loads((snapshot_sets.latest(output) / "statistics.json").read_text())
    for split in keys:
        labels = [each.label for each in found.values() if each.split == split]
        assert statistics[split]["labels"] == {label: labels.count(label) for label in sorted(set(labels))}
    for name in ("000001", "000004", snapshot_sets.latest(output).name):  # of the commit and of the command
        inspect_dataset.write_report(output, tmp_path / "report.html", name)
        page = (tmp_path / "report.html").read_bytes()
        assert page == (output / "snapshots" / name / "report.html").read_bytes()
        assert f"Snapshot {name}".encode() in page and page.count(b"<img ") > 20 and b"failed" not in page


def make_source(folder: pathlib.Path) -> Source:
    source = Source(folder)
    source.add(10, "cat")
    source.add(10, "dog")
    return source


@pytest.fixture
def source(tmp_path: pathlib.Path) -> Source:
    return make_source(tmp_path / "in")


@pytest.fixture(scope="module")
def first_night(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """An output with one snapshot of a source, which no test changes."""
    folder = tmp_path_factory.mktemp("first-night")
    snapshot_sets.update(make_source(folder / "in").folder, folder / "out", **CONFIG)
    return folder / "out"


@pytest.fixture
def output(first_night: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """An output with one snapshot of the source: images with the same names, bytes and times elsewhere."""
    return shutil.copytree(first_night, tmp_path / "out")


def test_source_that_is_half_gone_is_refused_unless_allowed(source: Source, output: pathlib.Path) -> None:
    source.remove(10)
    with error_texts.raises("snapshot-removes-too-many"):
        update(source, output)
    assert len(snapshot_sets.living(output)) == 20
    update(source, output, update={"max_removed_fraction": 0.5})
    assert len(snapshot_sets.living(output)) == 10
    with error_texts.raises("output-holds-snapshots"):
        datasets.make(source.folder, output, overwrite=True)


def test_source_out_of_reach_changes_nothing(source: Source, output: pathlib.Path) -> None:
    before = snapshot_sets.digests(output)
    shutil.move(source.folder, source.folder.with_name("away"))
    with pytest.raises(errors.ConfigError):
        convert.convert(sections_of(source, output), update=True)
    assert snapshot_sets.digests(output) == before
    assert (output / "LATEST").read_text() == "000001\n"


def test_other_config_is_refused_with_the_keys_that_differ(source: Source, output: pathlib.Path) -> None:
    with error_texts.raises("snapshot-other-config"):
        update(source, output, label={"base": 1})
    result = snapshot_sets.update(source.folder, output, overwrite=True, **CONFIG, label={"base": 1})
    assert result.catalog.is_self_contained
    assert (result.plan.snapshot["name"], result.plan.snapshot["base"]) == ("000002", None)
    assert {each.label_id for each in snapshot_sets.living(output).values()} == {1, 2}


def test_new_classes_are_refused_where_the_config_says_so(source: Source, output: pathlib.Path) -> None:
    source.add(2, "bee")
    with error_texts.raises("snapshot-new-classes"):
        update(source, output, update={"new_labels": "refuse"})


def test_second_run_at_a_time_is_busy(source: Source, output: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_lock, "_PATIENCE_SEC", 0.0)
    source.add(1, "cat")
    with output_lock.hold(str(output / "snapshots" / "000002" / ".imagebeam")):
        with pytest.raises(errors.BusyError, match="another run writes to this output"):
            update(source, output)
        assert status.status(str(output)).state == "running"
    assert status.status(str(output)).state == "committed"
    update(source, output)


@pytest.mark.parametrize("killed_in", ["move_shards", "remove_left", "_publish_catalog"])
def test_run_that_ended_in_its_commit_is_continued(killed_in: str, source: Source, output: pathlib.Path) -> None:
    source.change(3)
    source.add(3, "cat")
    with (
        mock.patch.object(publish_dataset.Publication, killed_in, side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        convert.convert(sections_of(source, output), workers=1, update=True)
    assert (output / "LATEST").read_text() == "000001\n"
    assert len(snapshot_sets.living(output)) == 20
    result = update(source, output)
    assert "shards were finished by an earlier run" in result.message
    assert len(snapshot_sets.living(output)) == 23


def test_committed_snapshot_of_a_killed_run_becomes_the_latest(source: Source, output: pathlib.Path) -> None:
    source.add(3, "cat")
    with mock.patch.object(snapshots, "move_latest", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        convert.convert(sections_of(source, output), workers=1, update=True)
    assert (output / "LATEST").read_text() == "000001\n"
    result = update(source, output)
    assert result.message == "nothing has changed since snapshot 000002"
    assert len(snapshot_sets.living(output)) == 23


def test_changed_state_stops_update_and_compaction_until_overwritten(source: Source, output: pathlib.Path) -> None:
    source.change(2)
    update(source, output)
    state = next((output / "snapshots/000001/state").glob("train*"))
    written_files.flip(state, 4)  # the time in the header of gzip: it can be read as before
    (problem,) = verify_dataset.verify(output).problems
    assert (problem.shard, problem.detail[:9]) == (f"../000001/state/{state.name}", "the file ")
    source.add(1, "cat")
    message = rf"{state.name} is damaged \(it has the crc32c .* imagebeam convert --update --overwrite, which writes"
    with pytest.raises(errors.CatalogError, match=message):
        update(source, output)
    with pytest.raises(errors.CatalogError, match=message):
        compact.compact(output, workers=1)
    update(source, output, overwrite=True)
    assert verify_dataset.verify(output).problems == ()
    source.add(1, "cat")
    assert update(source, output).plan.snapshot["added"] == 1


def test_split_whose_images_are_all_rejected_is_looked_at_once(source: Source, output: pathlib.Path) -> None:
    source.folder.rename(source.folder.parent / "train")
    root = source.folder.parent / "root"
    root.mkdir()
    (source.folder.parent / "train").rename(root / "train")
    sections = {"split": {"by": "directory"}, "rejects": {"max_fraction": 0.5}}
    dataset = output.with_name("by-folder")
    snapshot_sets.update(root, dataset, **sections)
    (root / "val" / "cat").mkdir(parents=True)
    (root / "val" / "cat" / "1.jpg").write_bytes(b"\xff\xd8\xff\xe0 broken")
    config = {**sections, "source": {"uri": str(root)}, "output": {"uri": str(dataset)}}
    assert convert.convert(config, workers=1, update=True).catalog.counts.rejected == {"truncated": 1}
    assert verify_dataset.verify(dataset).problems == ()
    for number in (90, 91):
        (root / "train" / "cat" / "1.jpg").write_bytes(image_sets.make_image(number))
        result = convert.convert(config, workers=1, update=True)
        assert (result.plan.snapshot["added"], result.plan.snapshot["changed"]) == (0, 1)
        assert compact.compact(dataset, workers=1).catalog.counts.rejected == {"truncated": 1}
    assert convert.convert(config, workers=1, update=True).message == "nothing has changed since snapshot 000006"


def test_output_inside_of_the_input_is_left_out_every_night(source: Source) -> None:
    output = source.folder / "dataset"
    for night in range(3):
        source.add(1, "cat")
        snapshot_sets.update(source.folder, output)
        assert len(snapshot_sets.living(output)) == 21 + night
    (output / "snapshots" / "000009").mkdir()
    (output / "snapshots" / "000009" / "lost.jpg").write_bytes(image_sets.make_image(9))
    with pytest.raises(errors.ConfigError, match=r"holds snapshots/000009/lost\.jpg, which imagebeam did not write"):
        snapshot_sets.update(source.folder, output)


def test_old_snapshots_are_removed_with_the_files_that_no_other_needs(source: Source, output: pathlib.Path) -> None:
    for _ in range(3):
        source.change(4)
        update(source, output)
    keep_snapshots.set_pin(output, "000002", is_pinned=True)
    names = ("000002", "000004")
    before = {name: snapshot_sets.living(output, name) for name in names}
    removal = keep_snapshots.keep_snapshots(output, 1)
    assert (removal.removed, removal.pinned) == (["000001", "000003"], ["000002"])
    assert [each.name for each in keep_snapshots.list_snapshots(output)] == ["000002", "000004"]
    assert {name: snapshot_sets.living(output, name) for name in names} == before
    source.add(2, "cat")
    update(source, output)  # the states in the folders of removed snapshots are there
    compact.compact(output, workers=1)
    keep_snapshots.set_pin(output, "000002", is_pinned=False)
    removal = keep_snapshots.keep_snapshots(output, 1)
    assert removal.removed == ["000002", "000004", "000005"]
    assert [path.name for path in sorted((output / "snapshots").iterdir())] == ["000006"]
    assert len(snapshot_sets.living(output)) == 22


def test_rejects_are_read_again_only_where_that_is_asked_for(source: Source, output: pathlib.Path) -> None:
    (broken,) = source.choose(1)
    good = (source.folder / broken).read_bytes()
    times = os.stat(source.folder / broken)
    source.write(broken, b"\xff\xd8\xff\xe0".ljust(len(good), b"?"))
    changed = os.stat(source.folder / broken)
    update(source, output)
    assert datasets.rejects(snapshot_sets.latest(output)).keys() == {broken}
    (source.folder / broken).write_bytes(good)  # a disk that failed and is whole again
    os.utime(source.folder / broken, ns=(changed.st_atime_ns, changed.st_mtime_ns))
    assert times.st_size == changed.st_size
    source.add(3, "cat")
    planned = convert.plan(sections_of(source, output), update=True, retry_rejects=True)
    assert (planned.snapshot["added"], sum(each.num_records for each in planned.splits.values())) == (1, 1)
    result = update(source, output, retry_rejects=True)
    assert result.plan.snapshot["added"] == 1  # the new images wait for the next night
    assert broken in snapshot_sets.living(output)
    assert not datasets.rejects(snapshot_sets.latest(output))
    result = update(source, output, retry_rejects=True)
    assert result.message == "nothing has changed since snapshot 000003"
    assert update(source, output).plan.snapshot["added"] == 3


def test_drift_is_refused_where_that_is_asked_for_and_committed_afterwards(tmp_path: pathlib.Path) -> None:
    source, output = Source(tmp_path / "in"), tmp_path / "out"
    source.add(30, "cat")
    source.add(30, "dog")
    snapshot_sets.update(source.folder, output, fail_on_drift=True)  # a first snapshot has no drift
    source.add(120, "cat")
    control = output / "snapshots" / "000002" / ".imagebeam"
    command = ["convert", "--update", "--fail-on-drift", "--workers", "1", "-q", "--input", source.folder]
    assert command_line.end(3, *command, "--output", output).stderr.startswith(
        "imagebeam: snapshot 000002 drifts too far from 000001: labels of train moved by 0.333 (cat 50.0% -> 83.3%, "
        "dog 50.0% -> 16.7%); update.drift.labels allows 0.1, and chance explains 0.102; nothing was committed; the "
        f"report is in {control}/report.json; look whether"
    )
    report = json.loads((control / "report.json").read_text())
    with error_texts.raises("snapshot-drift"):
        snapshot_sets.update(source.folder, output, fail_on_drift=True)
    assert (output / "LATEST").read_text() == "000001\n"
    assert len(snapshot_sets.living(output)) == 60
    result = snapshot_sets.update(source.folder, output)
    assert result.message == "1 of 1 shard was finished by an earlier run"
    assert result.report == report
    assert [note for note in result.plan.notes if note.startswith("drift since snapshot 000001: labels of train moved")]
    shown = command_line.succeed("snapshots", output, "--report").stdout
    assert "drift of labels   train 0.333 (0.102 by chance, MORE THAN 0.1)" in shown
    assert keep_snapshots.load_report(output) == report
    assert keep_snapshots.load_report(output, "000001")["drift"] is None
    assert not verify_dataset.verify(snapshot_sets.latest(output)).problems
    (output / "snapshots" / "000001" / "report.json").unlink()
    with pytest.raises(
        errors.ConfigError, match=r"000001 has no report\.json: an earlier imagebeam wrote the snapshot"
    ):
        keep_snapshots.load_report(output, "000001")


def test_compaction_needs_no_source_and_takes_any_config(tmp_path: pathlib.Path) -> None:
    source, output = Source(tmp_path / "in"), tmp_path / "out"
    source.add(6, "cat")
    table = source.folder / "t.csv"
    sections = {
        "source": {"by": "manifest", "uri": str(table)},
        "label": {"by": "column", "column": "kind"},
        "columns": {"score": {"type": "float"}},
    }
    for num_rows in (4, 6):
        table.write_text("image,kind,score\n" + "".join(f"cat/{n + 1}.jpg,cat,{n}\n" for n in range(num_rows)))
        snapshot_sets.update(table, output, **sections)
    before = snapshot_sets.living(output)
    shutil.move(source.folder, tmp_path / "away")
    assert compact.compact(output, workers=1).state == "committed"
    assert snapshot_sets.living(output) == before


def test_run_whose_snapshot_another_one_wrote_has_nothing_to_do(source: Source, output: pathlib.Path) -> None:
    source.change(2)
    update(source, output)
    with mock.patch.object(snapshots, "find_latest", return_value="000001"):  # as a run that began before
        result = convert.convert(sections_of(source, output), workers=1, update=True)
    assert (result.state, result.plan.exit_code) == ("kept", 0)
    assert (output / "LATEST").read_text() == "000002\n"


def test_newest_snapshot_is_the_latest_where_nothing_tells(source: Source, output: pathlib.Path) -> None:
    source.change(2)
    update(source, output)
    keep_snapshots.keep_snapshots(output, 1)
    (output / "LATEST").unlink()
    source.add(1, "cat")
    assert update(source, output).plan.snapshot["base"] == "000002"
    (output / "LATEST").write_text("000009\n")
    with pytest.raises(errors.ConfigError, match=r"names 000009, and .* holds no catalog\.json: .* \(000003, 000002\)"):
        convert.convert(sections_of(source, output), workers=1, update=True)


def test_snapshot_whose_shards_are_gone_is_not_continued(source: Source, output: pathlib.Path) -> None:
    shard = next((output / "snapshots" / "000001").glob("train-*"))
    shard.rename(output / "away")
    source.add(1, "cat")
    with error_texts.raises("snapshot-damaged"):
        update(source, output)


def test_rejects_that_are_still_bad_leave_no_snapshot(source: Source, output: pathlib.Path) -> None:
    source.break_some(2)
    update(source, output)
    result = update(source, output, retry_rejects=True)
    assert (result.state, result.message) == ("kept", "no image that snapshot 000002 rejected is good now")
    assert len(list((output / "snapshots").iterdir())) == 2


BY_CONTENT = {**CONFIG, "update": {"compare": "content"}}


def touch(source: Source) -> None:
    for path in source.folder.rglob("*.jpg"):
        os.utime(path, ns=(0, os.stat(path).st_mtime_ns + 10**9))


def plan_by_content(images: str, output: pathlib.Path) -> elements.DatasetPlan:
    return convert.plan({**BY_CONTENT, "source": {"uri": images}, "output": {"uri": str(output)}}, update=True)


def test_touched_images_are_written_again_only_where_their_bytes_differ(source: Source, tmp_path: pathlib.Path) -> None:
    (broken,) = source.choose(1)
    source.write(broken, b"\xff\xd8\xff\xe0 broken")
    output = tmp_path / "out"
    first = snapshot_sets.update(source.folder, output, **BY_CONTENT)
    assert (first.plan.snapshot["added"], first.plan.snapshot["rejected"]) == (19, 1)
    touch(source)
    assert plan_by_content(str(source.folder), output).message == "nothing has changed since snapshot 000001"
    same_size, moved = [key for key in source.choose(3) if key != broken][:2]
    data = written_files.flip(source.folder / same_size, -20)
    (source.folder / moved).rename(source.folder / "dog" / "moved.jpg")
    result = snapshot_sets.update(source.folder, output, **BY_CONTENT)
    counts = result.plan.snapshot
    assert [counts[name] for name in ("added", "changed", "removed", "unchanged", "rejected")] == [1, 1, 1, 17, 0]
    assert snapshot_sets.living(output)[same_size].data == data
    touch(source)
    compact.compact(output, workers=1)  # keeps what is known of the contents
    assert plan_by_content(str(source.folder), output).action == "keep"


def test_state_without_contents_gets_them_when_an_image_is_written(source: Source, output: pathlib.Path) -> None:
    touched = source.choose(2)
    for key in touched:
        os.utime(source.folder / key, (1, 1))
    assert plan_by_content(str(source.folder), output).snapshot["changed"] == 2
    assert snapshot_sets.update(source.folder, output, **BY_CONTENT).plan.snapshot["changed"] == 2
    for key in touched:
        os.utime(source.folder / key, (2, 2))
    assert plan_by_content(str(source.folder), output).action == "keep"


def test_members_of_a_tar_that_is_packed_again_are_the_same(tmp_path: pathlib.Path) -> None:
    tar, output = tmp_path / "in" / "a.tar", tmp_path / "out"
    members = [
        (name, data) for n in range(4) for name, data in ((f"{n}.jpg", image_sets.make_image(n)), (f"{n}.cls", b"1"))
    ]
    config = {**config_lib.load_config("webdataset").model_dump(exclude_unset=True), "update": {"compare": "content"}}
    tars.write_tar(tar, members)
    config["source"] = {**config["source"], "uri": str(tmp_path / "in")}
    config["output"] = {**config.get("output", {}), "uri": str(output)}
    convert.convert(config, workers=1, update=True)
    os.utime(tar, (1, 1))
    assert convert.plan(config, update=True).action == "keep"
    data = bytearray(members[2][1])
    data[-20] ^= 1
    tars.write_tar(tar, [*members[:2], ("1.jpg", bytes(data)), *members[3:]])
    counts = convert.plan(config, update=True).snapshot
    assert (counts["changed"], counts["unchanged"]) == (1, 3)


PARQUET_CLASSES = ("zebra", "ant", "monkey")


def test_parquet_file_that_was_added_is_taken_in(tmp_path: pathlib.Path) -> None:
    source = tmp_path / "in" / "data"
    first, second = (list(map(image_sets.make_image, range(start, start + 6))) for start in (0, 6))
    parquet_files.write(source / "train-00000-of-00002.parquet", first, {"label": [0, 1, 2] * 2}, PARQUET_CLASSES)
    sections: dict[str, Any] = {
        "source": {"by": "parquet"},
        "label": {"by": "column", "column": "label"},
        "split": {"by": "column", "column": "split"},
        "output": {"num_shards": 1},
        "update": {"compare": "content"},
    }
    output = tmp_path / "out"
    snapshot_sets.update(source.parent, output, **sections)
    parquet_files.write(source / "train-00001-of-00002.parquet", second, {"label": [0, 1, 2] * 2}, PARQUET_CLASSES)
    # one image of the first file is replaced, and written in other pages with the others
    changed = [*first[:2], image_sets.make_image(99), *first[3:]]
    parquet_files.write(
        source / "train-00000-of-00002.parquet", changed, {"label": [0, 1, 2] * 2}, PARQUET_CLASSES, row_group_size=2
    )
    os.utime(source / "train-00000-of-00002.parquet", ns=(1, 1))
    result = snapshot_sets.update(source.parent, output, **sections)
    assert (result.catalog.counts.written, result.catalog.snapshot["added"]) == (12, 6)
    assert result.catalog.snapshot["changed"] == 1
    data = {key: stored.data for key, stored in snapshot_sets.living(output).items()}
    assert data == {
        f"data/train-{i // 6:05d}-of-00002.parquet/{i % 6}": each for i, each in enumerate(changed + second)
    }


def test_update_moves_an_image_whose_list_has_changed_and_says_so(tmp_path: pathlib.Path) -> None:
    recipe_sets.images(tmp_path / "in", "1.jpg", "2.jpg", "3.jpg", "4.jpg")
    sections = {
        "source": {"uri": str(tmp_path / "in")},
        "label": {"by": "none"},
        "split": {"by": "lists", "lists": {"train": "a.txt", "test": "b.txt"}},
        "output": {"uri": str(tmp_path / "out")},
    }
    (tmp_path / "in/a.txt").write_text("1\n2\n")
    (tmp_path / "in/b.txt").write_text("3\n4\n")
    convert.convert(sections, workers=1, update=True)
    (tmp_path / "in/a.txt").write_text("1\n")
    (tmp_path / "in/b.txt").write_text("2\n3\n4\n")
    result = convert.convert(sections, workers=1, update=True)
    assert {name: split.num_examples for name, split in result.catalog.splits.items()} == {"train": 1, "test": 3}
    assert [
        note for note in result.plan.notes if note.startswith("images that the last snapshot has in another split: 1")
    ]
