"""The commands on a dataset of snapshots."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import shutil

import pytest

from imagebeam import errors, features
from imagebeam.pipelines import cli, compact, dataset_commands, keep_snapshots
from imagebeam.pipelines.messages import run_journal
from tests import error_texts, linked_snapshots
from tests.unit.imagebeam.reader import written

SHARD = "train-00000-of-00001.tfrecord"


def main(*arguments: object) -> int:
    return cli.main([str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def snapshots(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A dataset of two snapshots: of 5 images, and of 4 of these and 3 more."""
    folder = tmp_path_factory.mktemp("snapshots")
    for index, (keys, removed) in enumerate(((range(5), {}), (range(5, 8), {f"../000001/{SHARD}": [1]}))):
        examples = [written.jpeg_values(key) | {features.LABEL: key % 2} for key in keys]
        written.write(
            folder / f"{index}", (*written.IMAGE, written.LABEL), examples, labels=("cat", "dog"), num_shards=1
        )
        linked_snapshots.add(folder / "out", folder / f"{index}", removed)
    return folder / "out"


@pytest.mark.parametrize(
    ("arguments", "name", "records"),
    [
        pytest.param([], "000002", "7 records in 2 shards", id="latest"),
        pytest.param(["--snapshot", "1"], "000001", "5 records in 1 shard", id="earlier"),
    ],
)
def test_verify_checks_the_latest_snapshot_or_another(
    arguments: list[str], name: str, records: str, snapshots: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main("verify", snapshots, *arguments, "--decode") == 0
    assert capsys.readouterr().out.startswith(f"{snapshots}, snapshot {name}: {records} match the catalog, every image")


def test_verify_of_a_damaged_snapshot_advises_to_write_a_whole_new_one(
    snapshots: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(snapshots, tmp_path / "out")
    (tmp_path / "out/snapshots/000001" / SHARD).unlink()
    assert main("verify", tmp_path / "out") == errors.VerificationError.exit_code
    assert f"../000001/{SHARD}: the shard is missing" in (told := capsys.readouterr().err)
    assert "1 of 2 shards differ from the catalog; convert again with --update --overwrite, which writes a" in told


def test_inspect_shows_the_latest_snapshot_without_removed_records(
    snapshots: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main("inspect", snapshots, "-n", 9, "--save-to", tmp_path / "saved") == 0
    told = re.sub(" +", " ", capsys.readouterr().out)
    assert "\nsnapshot 000002: 3 added, 0 changed, 1 removed, 4 unchanged\n" in told
    assert "\nremoved 1 of 8 records in the files, in 1 shard; they are not read\n" in told
    assert re.findall(r"image/key=(\d)", told) == list("0234567")
    assert len(os.listdir(tmp_path / "saved")) == 7
    assert main("inspect", snapshots, "--snapshot", "000001", "-n", 9) == 0
    told = re.sub(" +", " ", capsys.readouterr().out)
    assert "\nsnapshot 000001: 5 added, 0 changed, 0 removed, 0 unchanged\n" in told and "they are not read" not in told
    assert re.findall(r"image/key=(\d)", told) == list("01234")


@pytest.mark.parametrize("command", ["verify", "inspect", "bench"])
def test_unknown_snapshot_is_refused(command: str, snapshots: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command, snapshots, "--snapshot", "000009") == 2
    assert "there is no snapshot 000009 in" in (told := capsys.readouterr().err)
    assert "it has 000001, 000002 (the latest)" in told


def test_status_names_the_latest_snapshot(snapshots: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main("status", snapshots) == 0
    assert "dataset  written, snapshot 000002, 7 images, written 2026" in capsys.readouterr().out
    assert main("status", snapshots, "--json") == 0
    assert json.loads(capsys.readouterr().out)["dataset"]["snapshot"] == "000002"


def test_snapshots_that_are_not_there_are_refused(snapshots: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with error_texts.raises("keep-snapshots-below-1"):
        keep_snapshots.keep_snapshots(snapshots, 0)
    with error_texts.raises("snapshot-unknown"):
        keep_snapshots.set_pin(snapshots, "000009", True)
    with error_texts.raises("snapshot-without-report"):
        keep_snapshots.load_report(snapshots)
    for ask in (keep_snapshots.list_snapshots, lambda folder: compact.run(folder, [], 1, False, run_journal.Journal())):
        with error_texts.raises("snapshots-none"):
            ask(tmp_path)
    with error_texts.raises("compact-on-dataflow"):
        compact.run(tmp_path, ["--runner=DataflowRunner"], 1, False, run_journal.Journal())
    with error_texts.raises("split-unknown"):
        dataset_commands.inspect(argparse.Namespace(directory=snapshots, snapshot=None, split="tset"), [])
