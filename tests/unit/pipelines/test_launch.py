"""A run that fails: its error, and the log of Beam."""

from __future__ import annotations

import os
import pathlib
import signal
from typing import Any, NoReturn

import pytest
from apache_beam.options import pipeline_options
from apache_beam.runners.portability import job_server

from imagebeam.pipelines import launch
from imagebeam.transforms import dataset_settings, elements
from imagebeam.transforms.output import run_report
from tests import case_tables, command_line, error_texts, image_sets, patience

PLAN = elements.DatasetPlan("write", "", "f00d", {}, (), 0, {}, {})


FAIL = """
import logging
from imagebeam import convert
from imagebeam import errors
logging.basicConfig(level=logging.{level})
try:
    convert({fields}, workers=1)
except errors.ImagebeamError as e:
    print(type(e).__name__, e)
"""


@case_tables.each_case(
    "include, level, message",
    [
        ("**/*", "WARNING", "TooManyRejectsError 1 of 6 images were rejected"),
        ("*.gif", "WARNING", "ConfigError the input holds no image"),
        ("*.gif", "INFO", "ConfigError the input holds no image"),
    ],
)
def test_error_comes_without_a_traceback_of_beam_unless_it_is_asked_for(
    tmp_path: pathlib.Path, include: str, level: str, message: str
) -> None:
    image_sets.write_folder(tmp_path / "in", per_label=3)
    (tmp_path / "in" / "cat" / "0.jpg").write_bytes(b"no image")
    fields = {"source": {"uri": str(tmp_path / "in"), "include": include}, "output": {"uri": str(tmp_path / "out")}}
    quiet = {"PYTHONWARNINGS": "ignore::FutureWarning"}  # Google's packages warn of the end of Python 3.10
    process = command_line.start_program(FAIL.format(fields=fields, level=level), environment=quiet)
    stdout, stderr = process.communicate(timeout=patience.HANG_SEC)
    assert stdout.startswith(message)
    assert "Traceback" in stderr if level == "INFO" else stderr == ""


class LostRunner(Exception):
    """As an error of gRPC when its server is killed: the text is a table, whose last line is ">"."""

    def __str__(self) -> str:
        return "<_MultiThreadedRendezvous of RPC that terminated with:\n\tstatus = UNAVAILABLE\n>"

    def details(self) -> str:
        return "Socket closed"


class Pipeline:
    """Stands for a pipeline whose runner is killed when this report was written."""

    runner = None
    options = pipeline_options.PipelineOptions([])

    def __init__(self, uri: str, state: run_report.State | None):
        self._uri, self._state = uri, state

    def run(self) -> NoReturn:
        if self._state is not None:
            run_report.RunReport(self._state, PLAN).write(self._uri)
        raise LostRunner


@case_tables.each_case("state", [None, "planned", "committed", "kept"])
def test_runner_that_is_killed_fails_the_run_unless_the_dataset_was_committed(
    tmp_path: pathlib.Path, state: run_report.State | None
) -> None:
    report = str(tmp_path / "report.json")
    settings = dataset_settings.DatasetSettings(str(tmp_path), "{}", (), report=report)
    pipeline: Any = Pipeline(report, state)
    if state in ("committed", "kept"):
        assert launch.run_pipeline(settings, pipeline).state == state
        return
    with error_texts.raises("pipeline-failed"):
        launch.run_pipeline(settings, pipeline)


class PipelineWithoutServer:
    """Stands for a pipeline on Flink where Beam cannot download the job server."""

    runner = None

    def run(self) -> NoReturn:
        jar = "org/apache/beam/beam-runners-flink-2.2-job-server/2.77.0/beam-runners-flink-2.2-job-server-2.77.0.jar"
        raise RuntimeError(f"Unable to fetch remote job server jar at https://host/maven2/{jar}: HTTP Error 404")


def test_job_server_that_cannot_be_downloaded_is_one_clear_error(tmp_path: pathlib.Path) -> None:
    settings = dataset_settings.DatasetSettings(str(tmp_path), "{}", (), report=str(tmp_path / "report.json"))
    pipeline: Any = PipelineWithoutServer()
    with error_texts.raises("job-server-missing"):
        launch.run_pipeline(settings, pipeline)


class PipelineOfAnotherProcess:
    """Stands for a pipeline on Prism, its runner and its result: the signal comes before Beam returns the job."""

    def __init__(self, number: signal.Signals):
        self.runner, self.state, self._number = self, "RUNNING", number

    def default_job_server(self, _: object) -> job_server.JobServer:
        return job_server.StopOnExitJobServer(ServerOf(self))  # takes over SIGINT

    def run(self) -> PipelineOfAnotherProcess:
        self.default_job_server(None).start()
        os.kill(os.getpid(), self._number)
        return self

    def wait_until_finish(self) -> None:
        raise AssertionError("the signal was lost")

    def cancel(self) -> None:
        self.state = "CANCELLED"


class ServerOf(job_server.JobServer):  # type: ignore[misc]
    """The job server of a pipeline."""

    def __init__(self, pipeline: PipelineOfAnotherProcess):
        self._pipeline = pipeline

    def start(self) -> str:
        return "localhost:0"

    def stop(self) -> None:
        self._pipeline.state += ", then stopped"


@case_tables.each_case("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_during_submission_cancels_the_job_while_it_can(tmp_path: pathlib.Path, number: signal.Signals) -> None:
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # raises KeyboardInterrupt, as the command's own
    try:
        handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
        pipeline: Any = PipelineOfAnotherProcess(number)
        with pytest.raises(KeyboardInterrupt):
            launch.run_pipeline(dataset_settings.DatasetSettings(str(tmp_path), "{}", ()), pipeline)
        assert pipeline.state == "CANCELLED, then stopped"
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers
    finally:
        signal.signal(signal.SIGTERM, before)


@case_tables.each_case("keeps", {"nothing-kept": False, "shards-kept": True})
def test_interruption_tells_of_finished_shards_where_there_are_some(tmp_path: pathlib.Path, keeps: bool) -> None:
    if keeps:
        staging = tmp_path / ".imagebeam" / "staging-f00d"
        staging.mkdir(parents=True)
        (staging / "train-00000-of-00001.tfrecord.done.json").write_text("{}")
    settings = dataset_settings.DatasetSettings(str(tmp_path), "{}", ())
    with pytest.raises(KeyboardInterrupt) as raised, launch._noting_kept_shards(settings):
        raise KeyboardInterrupt
    assert str(raised.value) == ("finished shards are kept, run the same command again to go on" if keeps else "")


def test_temporary_folder_of_a_local_plan_is_removed() -> None:
    with launch.temporary_folder(None) as folder:
        pathlib.Path(folder, "report.json").write_text("{}")
    assert not pathlib.Path(folder).exists()


class PipelineWithoutReport:
    """Stands for a pipeline whose report was removed while it ran, and for its result."""

    runner = None

    def run(self) -> PipelineWithoutReport:
        return self

    def wait_until_finish(self) -> None:
        pass


def test_pipeline_that_cannot_start_or_leaves_no_report_is_one_clear_error(tmp_path: pathlib.Path) -> None:
    with error_texts.raises("runner-cannot-start"):
        launch.build(pipeline_options.PipelineOptions(["--runner=Foo"]), lambda _: None)
    settings = dataset_settings.DatasetSettings(str(tmp_path), "{}", (), report=str(tmp_path / "report.json"))
    pipeline: Any = PipelineWithoutReport()
    with error_texts.raises("run-without-report"):
        launch.run_pipeline(settings, pipeline)
