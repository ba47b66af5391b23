from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from imagebeam.transforms import dataset_settings
from imagebeam.transforms.commit import dataset_files, snapshot_report
from imagebeam.transforms.elements import Reason, Reject
from imagebeam.transforms.shard import shard_writer, writer_processes
from tests import error_texts


def encode(*keys_and_reasons: tuple[str, Reason]) -> bytes:
    return shard_writer.encode_rejects(
        [Reject(key, f"/in/{key}", "read", reason, "x" * 200) for key, reason in keys_and_reasons]
    )


def test_rejects_are_new_kept_or_gone_by_key_and_reason() -> None:
    before = encode(("a", Reason.CORRUPT), ("b", Reason.CORRUPT), ("c", Reason.NO_LABEL), ("d", Reason.BAD_ROW))
    now = encode(("b", Reason.CORRUPT), ("a", Reason.TRUNCATED), ("e\udcff", Reason.CORRUPT), ("c", Reason.NO_LABEL))
    found = snapshot_report.compare_reject_hashes(
        snapshot_report.hash_rejects(before.splitlines()), snapshot_report.hash_rejects(now.splitlines())
    )
    assert found == {"corrupt": (1, 1, 1), "no_label": (0, 1, 0), "bad_row": (0, 0, 1), "truncated": (1, 0, 0)}


def test_rejects_with_the_same_key_and_reason_are_counted_each() -> None:
    before, now = (snapshot_report.hash_rejects(encode(("a", Reason.BAD_ROW)).splitlines() * n) for n in (3, 2))
    assert snapshot_report.compare_reject_hashes(before, now) == {"bad_row": (0, 2, 1)}
    assert snapshot_report.compare_reject_hashes(now, before) == {"bad_row": (1, 2, 0)}
    assert snapshot_report.compare_reject_hashes({}, {}) == {}


def test_staged_rejects_are_read_line_by_line_over_the_ends_of_chunks(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset_files, "_COPY_BYTES", 100)
    lines = [encode((f"{n}", Reason.CORRUPT)) for n in range(5)]
    (tmp_path / "early-0").write_bytes(b"".join(lines[:3]))
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "shard").write_bytes(b"".join(lines[3:]))
    staged = dataset_files.RejectFiles(["early-0", "empty"], ["shard"])
    assert list(dataset_files.read_lines(str(tmp_path), staged)) == [line.rstrip(b"\n") for line in lines]


def test_rejects_that_are_lost_are_not_known(tmp_path: pathlib.Path) -> None:
    assert snapshot_report.load_reject_hashes(str(tmp_path)) is None
    (tmp_path / "rejects.jsonl").write_bytes(encode(("a", Reason.CORRUPT)))
    found = snapshot_report.load_reject_hashes(str(tmp_path))
    assert found is not None
    assert {reason: len(hashes) for reason, hashes in found.items()} == {"corrupt": 1}


def test_report_that_is_damaged_is_an_error_that_names_it(tmp_path: pathlib.Path) -> None:
    assert snapshot_report.load_report(str(tmp_path)) == {}
    (tmp_path / "report.json").write_text('{"snapshot": ')
    with error_texts.raises("snapshot-report-damaged"):
        snapshot_report.load_report(str(tmp_path))


def test_notes_name_each_difference_above_its_threshold(tmp_path: pathlib.Path) -> None:
    settings = dataset_settings.SnapshotSettings(str(tmp_path), "000002", "000001")
    assert snapshot_report.notes_of(None) == snapshot_report.notes_of(settings) == []
    folder = tmp_path / "snapshots" / "000002"
    folder.mkdir(parents=True)
    figure = {"difference": 0.3, "by_chance": 0.1, "threshold": 0.1, "exceeds": True, "moved": [["cat", 0.5, 0.8]]}
    for drift, notes in (
        (None, []),
        ({"labels": {"train": figure | {"exceeds": False}}}, []),
        (
            {"labels": {"train": figure}},
            [
                "drift since snapshot 000001: labels of train moved by 0.300 (cat 50.0% -> 80.0%); update.drift.labels "
                "allows 0.1, and chance explains 0.100"
            ],
        ),
    ):
        (folder / "report.json").write_text(json.dumps({"base": "000001", "drift": drift}))
        assert snapshot_report.notes_of(settings) == notes


# ---- stage report


def test_error_in_a_share_of_the_thumbnails_is_why_there_is_no_page() -> None:
    broken: Any = dataset_files._Task("/out", "/out/staging", catalog=None, statistics={}, removed=None, changes=b"{}")
    with writer_processes.start(2) as pool:
        page = dataset_files._make_somewhere(broken, pool.token)
    assert (page.html, page.problem.partition(":")[0]) == (b"", "AttributeError")
