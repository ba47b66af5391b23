from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import io
import os
import pathlib
import pty
import re
import struct
import sys
import termios
import time
from collections.abc import Callable, Iterator

import pytest

from imagebeam import catalog, storage
from imagebeam.pipelines.beam import job_servers
from imagebeam.pipelines.messages import printed_tables, progress
from imagebeam.pipelines.messages import terminal as terminal_lib
from imagebeam.pipelines.runs import remote_job
from imagebeam.transforms import elements
from imagebeam.transforms.dataset_settings import DatasetSettings
from imagebeam.transforms.output import output_folder, run_report
from imagebeam.transforms.shard import shard_writer
from tests import case_tables, patience

PLAN = elements.DatasetPlan(
    action="write",
    message="",
    fingerprint="f00d",
    splits={"train": elements.SplitPlan(1500, 10_000, 3), "test": elements.SplitPlan(500, 5_000, 1)},
    labels=("cat",),
    listed=2000,
    rejected={},
    skipped={},
)


@pytest.fixture
def dataset(tmp_path: pathlib.Path) -> DatasetSettings:
    dataset = DatasetSettings(str(tmp_path), "{}", (), report=str(tmp_path / "report.json"))
    os.makedirs(dataset.paths.staging(PLAN.fingerprint))
    return dataset


def leave_plan(dataset: DatasetSettings) -> None:
    pathlib.Path(dataset.report).write_bytes(run_report.RunReport("planned", PLAN).encode())


def leave_shard(
    dataset: DatasetSettings, index: int, records: int, rejected: int = 0, further: int = 0
) -> pathlib.Path:
    shard = catalog.Shard(f"train-{index:05d}-of-00003.tfrecord", records, 1, 1)
    written = elements.WrittenShard("train", shard, {"corrupt": rejected}, {}, further=further)
    done = pathlib.Path(dataset.paths.staging(PLAN.fingerprint), shard.name + shard_writer.DONE_SUFFIX)
    done.write_bytes(shard_writer.encode_written(written))
    return done


# --- the line --------------------------------------------------------------------------------------------------------


def test_line_has_its_stage_and_numbers_as_fields_for_a_log(dataset: DatasetSettings) -> None:
    shown = progress.Progress(dataset, io.StringIO())
    shown.line()
    assert shown._fields == {"stage": "listing"}
    leave_plan(dataset)
    leave_shard(dataset, 0, 895, rejected=5, further=400)  # frames of files, which the plan counts
    shown.line()
    rate = shown._fields.pop("images_per_sec")
    numbers = {"shards_done": 1, "shards_planned": 4, "images_done": 500, "images_planned": 2000}
    assert rate >= 0 and shown._fields == {"stage": "writing", **numbers}
    for index in range(1, 4):
        leave_shard(dataset, index, 500)
    shown.line()
    assert (shown._fields["stage"], shown._fields["shards_done"]) == ("committing", 4)


class Job(job_servers.ServedJob):
    """A job that the server knows once it is submitted."""

    states: tuple[str, ...] = ()

    def state(self) -> str:
        if not self.states:
            raise FileNotFoundError
        return self.states[-1]


def test_line_of_a_job_shows_its_state_until_a_worker_begins_and_notes_once_what_may_be_wrong(
    dataset: DatasetSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, stream = patience.Clock(), io.StringIO()
    monkeypatch.setattr(progress, "time", clock)
    job = Job("jobs:8099", "imagebeam-1")
    shown = progress.Progress(dataset, stream, job=job)
    assert (shown.line(), shown._fields["stage"]) == ("starting the job... 0 s", "starting")
    monkeypatch.setattr(Job, "states", ("STARTING",))
    clock.sleep(44)
    assert shown.line() == "job STARTING, waiting for its first worker... 44 s"
    assert stream.getvalue() == ""
    monkeypatch.setattr(Job, "states", ("STARTING", "RUNNING"))
    for _ in range(3):
        clock.sleep(5)
        shown.line()
    assert shown._fields == {"stage": "starting", "job_state": "RUNNING"}
    assert stream.getvalue().count("no worker has begun after 49 s, and the job server jobs:8099 says RUNNING") == 1
    pathlib.Path(run_report.begun_of(dataset.report)).touch()
    assert shown.line() == "listing images... 59 s"


def test_line_with_plan_counts_finished_shards_and_their_rejects(dataset: DatasetSettings) -> None:
    line = progress.Progress(dataset, io.StringIO())
    leave_plan(dataset)
    assert line.line() == "shards 0/4  images 0/2,000  0 images/s  ..."
    leave_shard(dataset, 0, records=490, rejected=10)
    time.sleep(0.01)
    assert re.fullmatch(r"shards 1/4  images 500/2,000  [\d,]+ images/s  \d+ s left", line.line())


def test_line_of_continued_run_does_not_credit_earlier_shards(dataset: DatasetSettings) -> None:
    leave_plan(dataset)
    leave_shard(dataset, 0, records=500)
    assert progress.Progress(dataset, io.StringIO()).line() == "shards 1/4  images 500/2,000  0 images/s  ..."


def test_line_where_staging_folder_vanishes_keeps_what_was_counted(dataset: DatasetSettings) -> None:
    line = progress.Progress(dataset, io.StringIO())
    leave_plan(dataset)
    leave_shard(dataset, 0, records=500)
    line.line()
    storage.storage_of(dataset.output).remove_tree(dataset.paths.metadata)
    os.unlink(dataset.report)
    assert line.line().startswith("shards 1/4  images 500/2,000")


def test_line_without_a_listed_file_does_not_raise(dataset: DatasetSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    ghost = storage.Entry(f"train-00000-of-00003.tfrecord{shard_writer.DONE_SUFFIX}", storage.FILE, 1, 0, (0, 0))
    monkeypatch.setattr(storage.LocalStorage, "list_directory", lambda self, uri: iter([ghost]))
    leave_plan(dataset)
    assert progress.Progress(dataset, io.StringIO()).line().startswith("shards 0/4")


def test_line_moves_before_the_first_shard_ends_and_never_back(dataset: DatasetSettings) -> None:
    begun = [0]
    line = progress.Progress(dataset, io.StringIO(), count_begun=lambda: begun[0])
    leave_plan(dataset)
    shown = [line.line()]
    for images in (120, 480, 470):
        begun[0] = images
        shown.append(line.line())
    leave_shard(dataset, 0, records=490, rejected=10)
    shown.append(line.line())  # still counted as begun, too
    begun[0] = 0
    shown.append(line.line())
    begun[0] = 5000
    shown.append(line.line())
    counts = [tuple(text.split("  ")[:2]) for text in shown]
    assert counts == [
        ("shards 0/4", "images 0/2,000"),
        ("shards 0/4", "images 120/2,000"),
        ("shards 0/4", "images 480/2,000"),
        ("shards 0/4", "images 480/2,000"),
        ("shards 1/4", "images 970/2,000"),
        ("shards 1/4", "images 970/2,000"),
        ("shards 1/4", "images 2,000/2,000"),
    ]


def test_line_names_tf_transform_while_it_analyses(dataset: DatasetSettings) -> None:
    line = progress.Progress(dataclasses.replace(dataset, analyze="train"), io.StringIO())
    assert re.fullmatch(r"listing images\.\.\. \d+ s", line.line())
    leave_plan(dataset)
    assert re.fullmatch(r"tf\.Transform analyses the columns\.\.\. \d+ s", line.line())
    pathlib.Path(dataset.paths.staging(PLAN.fingerprint), output_folder.STAGED_FILES).write_text("{}")
    assert line.line().startswith("shards 0/4")


# --- where it is shown -----------------------------------------------------------------------------------------------


def watch_three_looks(dataset: DatasetSettings, stream: io.TextIOBase) -> None:
    """Watches until the line was made three times, so that the first two are surely shown."""
    looks = []
    watched = progress.Progress(dataset, stream)  # type: ignore[arg-type]
    make_line = watched.line
    watched.line = lambda: looks.append(1) or make_line()  # type: ignore[method-assign, func-returns-value]
    with watched:
        patience.wait_until(lambda: len(looks) >= 3)


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_TERMINAL_SEC", 0.01)
    monkeypatch.setattr(progress, "_PLAIN_SEC", 0.0)


@pytest.mark.usefixtures("eager")
def test_plain_stream_gets_whole_lines_without_control_characters(dataset: DatasetSettings) -> None:
    stream = io.StringIO()
    leave_plan(dataset)
    watch_three_looks(dataset, stream)
    assert stream.getvalue() == "shards 0/4  images 0/2,000  0 images/s  ...\n"  # once, as it does not change


@pytest.mark.usefixtures("eager")
def test_short_run_prints_no_plain_line(dataset: DatasetSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_PLAIN_SEC", patience.HANG_SEC)  # however long the run takes here
    stream = io.StringIO()
    watch_three_looks(dataset, stream)
    assert stream.getvalue() == ""


@pytest.fixture
def terminal() -> Iterator[tuple[int, io.TextIOWrapper]]:
    """The screen of a terminal with 30 columns, and the stream to write to."""
    screen, keyboard = pty.openpty()
    fcntl.ioctl(keyboard, termios.TIOCSWINSZ, struct.pack("HHHH", 10, 30, 0, 0))
    with os.fdopen(keyboard, "w") as stream:
        yield screen, stream
    os.close(screen)


def read_what_there_is(descriptor: int) -> str:
    os.set_blocking(descriptor, False)
    found = b""
    with contextlib.suppress(BlockingIOError):
        while True:
            found += os.read(descriptor, 10_000)
    return found.decode()


@pytest.mark.usefixtures("eager")
def test_terminal_has_one_line_cut_to_its_width_and_gone_at_the_end(
    dataset: DatasetSettings, terminal: tuple[int, io.TextIOWrapper]
) -> None:
    screen, stream = terminal
    leave_plan(dataset)
    watch_three_looks(dataset, stream)
    shown = read_what_there_is(screen).split("\r\x1b[K")
    assert set(shown) == {"", "shards 0/4  images 0/2,000  0"}
    assert shown[-1] == ""


@pytest.mark.usefixtures("eager")
def test_terminal_of_unknown_width_is_taken_for_80_columns(dataset: DatasetSettings) -> None:
    stream = io.StringIO()
    stream.isatty = lambda: True  # type: ignore[method-assign]
    leave_plan(dataset)
    watch_three_looks(dataset, stream)
    assert "\r\x1b[Kshards 0/4  images 0/2,000  0 images/s  ..." in stream.getvalue()


# --- texts -----------------------------------------------------------------------------------------------------------


def test_describe_skipped_names_every_kind() -> None:
    assert printed_tables.describe_skipped({"non_image": 1200, "hidden": 1}) == "1,200 non image, 1 hidden"
    assert printed_tables.describe_skipped({}) == "nothing"


def test_print_table_aligns_and_escapes() -> None:
    stream = io.StringIO()
    printed_tables.print_table([("a", "x\x1b[2J\ny"), ("long", "é")], stream)
    assert stream.getvalue() == "a     x\\x1b[2J\\ny\nlong  é\n"


def test_table_on_a_terminal_breaks_long_values_between_words(terminal: tuple[int, io.TextIOWrapper]) -> None:
    screen, stream = terminal
    fcntl.ioctl(stream.fileno(), termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
    command = "--set source.masks.image=images/(?P<name>.*) --set split.by=hash"
    words = "4 of 4 images in images have a .png file of the same name in masks-of-the-images"
    printed_tables.print_table([("note", words), ("  options", command), ("short", "x")], stream)
    assert read_what_there_is(screen).replace("\r\n", "\n") == (
        "note       4 of 4 images in images have\n"
        "           a .png file of the same name\n"
        "           in masks-of-the-images\n"
        f"  options  {command}\n"
        "short      x\n"
    )
    fcntl.ioctl(stream.fileno(), termios.TIOCSWINSZ, struct.pack("HHHH", 24, 20, 0, 0))
    printed_tables.print_table([("note", words)], stream)  # too narrow to be read in lines
    assert read_what_there_is(screen) == f"note  {words}\r\n"


@pytest.mark.parametrize("say", [terminal_lib.complain, terminal_lib.tell_failure, terminal_lib.warn])
def test_errors_on_a_terminal_are_broken_between_words(
    terminal: tuple[int, io.TextIOWrapper], monkeypatch: pytest.MonkeyPatch, say: Callable[[str], None]
) -> None:
    screen, stream = terminal
    monkeypatch.setattr(sys, "stderr", stream)
    say("'/data/one file.png' is no image: add --set image.check=none, or remove it")
    assert read_what_there_is(screen).replace("\r\n", "\n") == (
        "imagebeam:\n  '/data/one file.png' is no\n  image: add\n  --set image.check=none, or\n  remove it\n"
    )


@case_tables.each_case(
    "turned, text",
    [
        ({"6": 1}, "1 image: 1 turned by 90 degrees clockwise (EXIF 6)"),
        (
            {"3": 2, "6": 7, "9": 1},
            "10 images: 7 turned by 90 degrees clockwise (EXIF 6), 2 turned by 180 degrees (EXIF 3), 1 turned (EXIF 9)",
        ),
    ],
)
def test_turned_images_are_counted_by_how_they_lay(turned: dict[str, int], text: str) -> None:
    assert printed_tables._unusual_rows({"train": {"turned": turned}}) == [("turned", text)]


def test_objects_of_all_splits_are_one_row() -> None:
    splits = {"train": {"objects": {"cat": 4, "dog": 1200}}, "test": {"objects": {"cat": 5}}, "validation": {}}
    assert printed_tables._object_rows(splits) == [("objects", "1,209 of 2 classes: dog 1,200, cat 9")]
    assert printed_tables._object_rows({"train": {"objects": {}}}) == []
    dropped = {split: {"dropped_objects": {"object_of_other_shape": 2}} for split in ("train", "test")}
    assert printed_tables._object_rows(dropped) == [("left out", "4 objects: of other shape 4")]


def test_dark_images_of_all_splits_are_one_row() -> None:
    splits = {
        "train": {"dark": {"tiff up to 12 bits": 7}, "dark_files": {"b.tif": 4021, "a.tif": 4000}},
        "test": {"dark": {"png up to 10 bits": 1}, "dark_files": {"c.png": 1023}},
    }
    assert printed_tables._unusual_rows(splits) == [
        (
            "dark",
            "at least 8 gray images of 16 bits with small numbers (tiff up to 12 bits: 7, png up to 10 bits: 1), such "
            "as a.tif (4,000), b.tif (4,021), c.png (1,023): readers show them nearly black; image.white_level says "
            "the number that becomes white: their largest, 255 at least",
        )
    ]


# --- a job -----------------------------------------------------------------------------------------------------------


PLANNED = {"images-listed": 100, "images-planned": 90, "rejects-no_label": 10}


@case_tables.each_case(
    "state, counters, text",
    {
        "queued": ("queued", {}, "queued"),
        "starting": ("running", {}, "starting workers"),
        "listing": ("running", {"images-listed": 12000}, "listing images, 12,000 so far"),
        "rejecting": ("running", {"images-listed": 5, "rejects-empty": 2}, "listing images, 5 so far"),
        "planned": ("running", PLANNED, "writing images 0/90"),
        "writing": ("running", {**PLANNED, "images-out": 40, "images-kept": 9}, "writing images 49/90"),
        "bad": ("running", {**PLANNED, "images-out": 40, "rejects-corrupt": 5}, "writing images 45/90"),
        "committing": ("running", {**PLANNED, "images-out": 90}, "committing 90 images"),
        "counted-twice": ("running", {**PLANNED, "images-out": 95}, "committing 90 images"),
        "cancelling": ("cancelling", PLANNED, "cancelling"),
        "done": ("done", PLANNED, "done"),
        "failed": ("failed", PLANNED, "failed"),
        "cancelled": ("cancelled", {}, "cancelled"),
    },
)
def test_line_says_what_the_job_does(state: remote_job.State, counters: dict[str, int], text: str) -> None:
    assert progress.describe(state, counters) == text


def test_line_follows_what_was_seen_last() -> None:
    shown = progress.JobProgress(io.StringIO())
    assert re.fullmatch(r"submitting the job\.\.\. \d+ s", shown.line())
    shown.update("running", {**PLANNED, "images-out": 1})
    assert re.fullmatch(r"writing images 1/90\.\.\. \d+ s", shown.line())
    assert shown._fields == {"stage": "running", "counters": {**PLANNED, "images-out": 1}}


def test_what_is_said_stays_on_the_terminal() -> None:
    stream = io.StringIO()
    stream.isatty = lambda: True  # type: ignore[method-assign]
    with progress.JobProgress(stream) as shown:
        shown.say("submitted\x1b[2J")
    assert "\r\x1b[Ksubmitted\\x1b[2J\n" in stream.getvalue()
