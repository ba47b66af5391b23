"""Lines for people and for log collectors."""

from __future__ import annotations

import io
import json
import logging
import pathlib
import sys
import threading
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest

from imagebeam.pipelines.messages import printed_tables, progress, terminal
from tests import case_tables

# --- lines of texts that people read, and copy from ------------------------------------------------------------------


_PIECES = (
    "a|longer|image's|masks'|--input|--set|--set=x|'a b'|\"c d\"|'open|{e: f, g: {h: i}}|source.masks.mask|"
    "source.masks.mask:|imagebeam|convert|/data/x-y.png:|[1, 2]|{|]|--;|é"
)


@case_tables.each_case(
    "text, lines",
    {
        "words": ("one two three", ["one two", "three"]),
        "path": ("see /data/my-images/a.png now", ["see", "/data/my-images/a.png", "now"]),
        "quoted-path": ("see '/data/my images/a.png' now", ["see", "'/data/my images/a.png'", "now"]),
        "apostrophes": ("the image's sides and masks' too", ["the", "image's", "sides and", "masks' too"]),
        "options": ("add --input x --set 'a={b: c}' to it", ["add", "--input x --set 'a={b: c}'", "to it"]),
        "bare-options": ("give --input; or --force, too", ["give", "--input;", "or", "--force,", "too"]),
        "command": ("run imagebeam index d e f", ["run", "imagebeam index d", "e f"]),
        "key-of-a-config": ("set split.by: hash, too", ["set", "split.by: hash,", "too"]),
        "value-of-a-config": ("as {road: [1, 2, 3]} is", ["as", "{road: [1, 2, 3]}", "is"]),
    },
)
def test_lines_end_at_blanks_but_not_in_what_is_copied(text: str, lines: list[str]) -> None:
    assert terminal.break_lines(text, 10) == lines


@hypothesis.given(st.lists(st.sampled_from(_PIECES.split("|")), max_size=20).map(" ".join), st.integers(1, 40))
def test_lines_have_the_whole_text_and_fit_if_they_can(text: str, columns: int) -> None:
    lines = terminal.break_lines(text, columns)
    assert " ".join(lines) == text
    for line in lines:
        assert len(line) <= columns or terminal.break_lines(line, 1) == [line]


@hypothesis.given(st.text(alphabet="a-'\"{}[]:.= \t\n", max_size=40))
def test_no_text_loses_characters(text: str) -> None:
    assert "".join(" ".join(terminal.break_lines(text, 8)).split()) == "".join(text.split())


# --- standard error as lines of JSON ---------------------------------------------------------------------------------


def parse(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_printed_lines_become_objects_whole_even_if_written_in_parts() -> None:
    stream = io.StringIO()
    lines = terminal.JsonLines(stream)
    print("one", "two", file=lines)
    lines.write("three\r\n\n  \nfo")
    assert [each["message"] for each in parse(stream.getvalue())] == ["one two", "three"]
    lines.write("ur")
    lines.finish()
    lines.finish()
    last = parse(stream.getvalue())[-1]
    assert (last["message"], last["level"], last["logger"]) == ("four", "INFO", "stderr")


def test_line_has_time_level_logger_message_context_and_fields_that_are_known() -> None:
    stream = io.StringIO()
    lines = terminal.JsonLines(stream)
    lines.context = lambda: {"output": "out", "run_id": None}
    lines.log("hé\n\udcff", "WARNING", "a.b", counts={"listed": 3}, stage=None, path=pathlib.Path("x"))
    (line,) = parse(stream.getvalue())
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "WARNING",
        "logger": "a.b",
        "message": "hé\n\udcff",
        "output": "out",
        "counts": {"listed": 3},
        "path": "x",
    }


def test_lines_of_several_threads_stay_whole() -> None:
    stream = io.StringIO()
    lines = terminal.JsonLines(stream)
    threads = [threading.Thread(target=lambda: [lines.log("x" * 50) for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(parse(stream.getvalue())) == 200


def test_records_of_loggers_are_lines_with_their_exception(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stderr, logging.getLogger().level, logging.getLogger("imagebeam").level
    with terminal.standard_error_as_json(verbose=False):
        assert terminal.current_log() is not None
        logging.getLogger("imagebeam.x").info("plan %d", 3)
        logging.getLogger("library").error("noise")
        try:
            raise OSError("disk")
        except OSError:
            logging.getLogger("imagebeam.x").exception("failed")
    assert terminal.current_log() is None
    assert (sys.stderr, logging.getLogger().level, logging.getLogger("imagebeam").level) == before
    first, second = parse(capsys.readouterr().err)
    assert (first["message"], first["level"], first["logger"]) == ("plan 3", "INFO", "imagebeam.x")
    assert second["level"] == "ERROR" and second["exception"].splitlines()[-1] == "OSError: disk"


def test_verbose_shows_libraries(capsys: pytest.CaptureFixture[str]) -> None:
    with terminal.standard_error_as_json(verbose=True):
        logging.getLogger("library").info("noise")
    assert [each["logger"] for each in parse(capsys.readouterr().err)] == ["library"]


class _Line(progress.ShownLine):
    """Shows stages one after another."""

    def __init__(self, stream: io.TextIOBase, stages: list[str]):
        super().__init__(stream, every_sec=0.001)  # type: ignore[arg-type]
        self._stages = stages
        self.has_shown_all = threading.Event()

    def line(self) -> str:
        if not self._stages:
            self.has_shown_all.set()
        stage = self._stages.pop(0) if self._stages else str(self._fields["stage"])
        self._fields = {"stage": stage}
        return f"now {stage}"


def test_progress_is_a_line_for_each_stage_and_then_for_each_half_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    with _Line(terminal.JsonLines(stream), ["listing", "writing", "writing", "committing"]) as shown:
        shown.has_shown_all.wait()
    shown.say("said")
    assert [each.get("stage", each["message"]) for each in parse(stream.getvalue())] == [
        "listing",
        "writing",
        "committing",
        "said",
    ]
    monkeypatch.setattr(progress, "_JSON_SEC", 0.0)
    stream = io.StringIO()
    with _Line(terminal.JsonLines(stream), ["writing"] * 3) as shown:
        shown.has_shown_all.wait()
    assert [each["message"] for each in parse(stream.getvalue())[:3]] == ["now writing"] * 3


# --- tables ----------------------------------------------------------------------------------------------------------


# --- what a snapshot changed -----------------------------------------------------------------------------------------


REPORT: dict[str, Any] = {
    "snapshot": "000003",
    "base": "000002",
    "compacted": None,
    "splits": {"train": {"added": 1200, "changed": 2, "removed": 1, "unchanged": 30, "examples": 1232}},
    "labels": {
        "train": {
            "cat": {"written": 1202, "removed": 2, "unchanged": 20},
            "dog": {"written": 0, "removed": 1, "unchanged": 10},
            "ant": {"written": 0, "removed": 0, "unchanged": 1},
        }
    },
    "written": {"train": {"shards": 2, "records": 1202, "bytes": 1_500_000}},
    "rejects": {"corrupt": {"new": 2, "kept": 5, "gone": 0}, "no_label": {"new": 1, "kept": 0, "gone": 3}},
    "drift": {
        "labels": {"train": {"difference": 0.3, "by_chance": 0.1, "threshold": 0.1, "exceeds": True, "moved": []}},
        "sizes": {"bytes": {"difference": -0.25, "by_chance": None, "threshold": 0.5, "exceeds": False}},
        "rejects": {
            "all": {"difference": 0.01, "by_chance": 0.02, "threshold": None, "exceeds": False},
            "corrupt": {"difference": 0.01, "by_chance": 0.02, "threshold": None, "exceeds": False},
        },
    },
}


def test_rows_show_changes_by_split_and_label_and_mark_what_is_too_far() -> None:
    assert printed_tables.report_rows(REPORT) == [
        ("changes", "snapshot 000003 since 000002"),
        ("  train", "1,200 added, 2 changed, 1 removed, 30 unchanged"),
        ("  train labels", "cat +1,202 -2, dog -1"),
        ("  written", "2 shards, 1.5 MB"),
        ("  rejects", "3 new (corrupt 2, no_label 1), 5 kept (corrupt 5), 3 gone since (no_label 3)"),
        ("  drift of labels", "train 0.300 (0.100 by chance, MORE THAN 0.1)"),
        ("  drift of sizes", "bytes -25.0% (too few images to compare)"),
        ("  drift of rejects", "all +0.010 (0.020 by chance)"),
    ]


def test_drift_of_several_figures_has_the_unit_of_the_difference_and_no_note_twice() -> None:
    def sizes(*by_chance: float | None) -> str:
        figure = {"difference": -0.064, "threshold": 0.5, "exceeds": False}
        found = {name: figure | {"by_chance": each} for name, each in zip(("bytes", "height"), by_chance)}
        return dict(printed_tables.report_rows(REPORT | {"drift": {"sizes": found}}))["  drift of sizes"]

    assert sizes(0.583, 0.555) == "bytes -6.4% (58.3% by chance); height -6.4% (55.5% by chance)"
    assert sizes(None, None) == "bytes -6.4%, height -6.4% (too few images to compare)"


def test_rows_of_a_first_or_compacted_snapshot_have_no_drift() -> None:
    first = REPORT | {"base": None, "drift": None, "rejects": {}}
    assert [name for name, _ in printed_tables.report_rows(first)] == ["changes", "  train", "  written"]
    compacted = printed_tables.report_rows(first | {"compacted": "000002"})
    assert compacted[0] == ("changes", "snapshot 000003, compacted from 000002")
    assert printed_tables.report_rows({}) == []


def test_rows_name_five_labels_and_say_where_the_rejects_are_not_known() -> None:
    labels = {f"{n}": {"written": n, "removed": 0, "unchanged": 0} for n in range(8)}
    rows = dict(printed_tables.report_rows(REPORT | {"labels": {"train": labels}, "rejects": None}))
    assert rows["  train labels"] == "7 +7, 6 +6, 5 +5, 4 +4, 3 +3 and 2 more"
    assert rows["  rejects"].startswith("those of the snapshot before are lost")
