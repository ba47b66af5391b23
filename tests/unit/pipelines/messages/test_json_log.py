"""Standard error as lines of JSON."""

from __future__ import annotations

import io
import json
import logging
import pathlib
import sys
import threading
from typing import Any

import pytest

from imagebeam.pipelines.messages import json_log, progress


def parse(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_printed_lines_become_objects_whole_even_if_written_in_parts() -> None:
    stream = io.StringIO()
    lines = json_log.JsonLines(stream)
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
    lines = json_log.JsonLines(stream)
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
    lines = json_log.JsonLines(stream)
    threads = [threading.Thread(target=lambda: [lines.log("x" * 50) for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(parse(stream.getvalue())) == 200


def test_records_of_loggers_are_lines_with_their_exception(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stderr, logging.getLogger().level, logging.getLogger("imagebeam").level
    with json_log.standard_error_as_json(verbose=False):
        assert json_log.current() is not None
        logging.getLogger("imagebeam.x").info("plan %d", 3)
        logging.getLogger("library").error("noise")
        try:
            raise OSError("disk")
        except OSError:
            logging.getLogger("imagebeam.x").exception("failed")
    assert json_log.current() is None
    assert (sys.stderr, logging.getLogger().level, logging.getLogger("imagebeam").level) == before
    first, second = parse(capsys.readouterr().err)
    assert (first["message"], first["level"], first["logger"]) == ("plan 3", "INFO", "imagebeam.x")
    assert second["level"] == "ERROR" and second["exception"].splitlines()[-1] == "OSError: disk"


def test_verbose_shows_libraries(capsys: pytest.CaptureFixture[str]) -> None:
    with json_log.standard_error_as_json(verbose=True):
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
    with _Line(json_log.JsonLines(stream), ["listing", "writing", "writing", "committing"]) as shown:
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
    with _Line(json_log.JsonLines(stream), ["writing"] * 3) as shown:
        shown.has_shown_all.wait()
    assert [each["message"] for each in parse(stream.getvalue())[:3]] == ["now writing"] * 3
