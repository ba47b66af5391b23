from __future__ import annotations

import os
import pathlib
import signal
import socket
import threading
from collections.abc import Iterator

import pytest
from apache_beam.internal import cloudpickle_pickler
from apache_beam.options import pipeline_options

from imagebeam.pipelines.beam import runners
from tests import case_tables, command_line, error_texts

FN_API_RUNNER = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"
MULTI_PROCESSING = "--direct_running_mode=multi_processing"


_PRISM = "apache_beam.runners.portability.prism_runner.PrismRunner"
_DATAFLOW = "apache_beam.runners.dataflow.dataflow_runner.DataflowRunner"


@case_tables.each_case(
    "arguments, name, kinds, of_beam",
    [
        ([], "FnApiRunner", ["is_local"], FN_API_RUNNER),
        (["--runner=DirectRunner"], "FnApiRunner", ["is_local"], FN_API_RUNNER),
        (["--runner", "FnApiRunner"], "FnApiRunner", ["is_local"], FN_API_RUNNER),
        (["--runner=direct"], "FnApiRunner", ["is_local"], FN_API_RUNNER),
        (["--runner=directrunner"], "FnApiRunner", ["is_local"], FN_API_RUNNER),
        ([MULTI_PROCESSING], "FnApiRunner (multi_processing)", [], FN_API_RUNNER),
        (["--runner=PrismRunner", "--job_endpoint=localhost:1"], "PrismRunner", ["is_prism"], "PrismRunner"),
        (["--runner", "prism", "--job_endpoint=localhost:1"], "prism", ["is_prism"], "prism"),
        ([f"--runner={_PRISM}", "--job_endpoint=localhost:1"], _PRISM, ["is_prism"], _PRISM),
        (["--runner=FlinkRunner"], "FlinkRunner", [], "FlinkRunner"),
        (["--runner=SparkRunner"], "SparkRunner", [], "SparkRunner"),
        (["--runner=DataflowRunner", "--project=p"], "DataflowRunner", ["is_dataflow"], "DataflowRunner"),
        (["--runner", "dataflow"], "dataflow", ["is_dataflow"], "dataflow"),
        ([f"--runner={_DATAFLOW}"], _DATAFLOW, ["is_dataflow"], _DATAFLOW),
        (["--runner=TestDataflowRunner"], "TestDataflowRunner", [], "TestDataflowRunner"),
    ],
)
def test_runner_is_known_by_every_name_that_beam_takes(
    arguments: list[str], name: str, kinds: list[str], of_beam: str
) -> None:
    assert runners.runner_name(arguments) == name
    assert [each for each in ("is_local", "is_prism", "is_dataflow") if getattr(runners, each)(arguments)] == kinds
    options = runners.make_options(arguments, workers=3)
    assert options.view_as(pipeline_options.StandardOptions).runner == of_beam


@case_tables.each_case(
    "arguments, workers",
    {
        "as-many-as-workers": ([MULTI_PROCESSING], 3),
        "as-given": ([MULTI_PROCESSING, "--direct_num_workers=2"], 2),
        "in-memory": ([], 1),
    },
)
def test_options_set_the_workers_of_beam(arguments: list[str], workers: int) -> None:
    options = runners.make_options(arguments, workers=3).view_as(pipeline_options.DirectOptions)
    assert options.direct_num_workers == workers


@case_tables.each_case(
    "argument, code",
    [
        ("--overwite", "option-unknown"),
        ("--inptu=/data", "option-unknown"),
        ("--temp_loction=x", "option-unknown"),
        ("--zzzzzz", "option-unknown"),
        ("--project_=p", "option-unknown"),
        ("--output=x", "option-of-convert"),
        ("/data", "argument-unexpected"),
    ],
)
def test_options_with_unknown_flag_raise_config_error(argument: str, code: str) -> None:
    with error_texts.raises(code):
        runners.make_options([argument], workers=1)


@case_tables.each_case(
    "argument, message",
    [
        ("--direct_num_workers=many", r"argument --direct_num_workers: invalid int value: 'many'"),
        ("--direct_running_mode=x", r"argument --direct_running_mode: invalid choice: 'x'"),
    ],
)
def test_options_of_unusable_value_are_errors(argument: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with error_texts.raises("beam-option-value"):
        runners.make_options([argument], workers=1)
    assert capsys.readouterr().err == ""


LIGHT_IMPORT = """
import sys
from imagebeam.pipelines.beam import runners
runners.import_beam_lightly({arguments}, {addresses})
print(*(name for name in ("apache_beam", "pyarrow", "google.cloud.storage") if name in sys.modules))
import apache_beam, pyarrow.parquet, google.auth  # what was left out can be imported again
print(repr(apache_beam.coders.VarIntCoder().to_type_hint()), file=sys.stderr)
"""


@case_tables.each_case(
    "arguments, addresses, printed",
    {
        "local": ([], ["/in", None], "apache_beam"),
        "remote-input": ([], ["gs://b/in", "/out"], ""),
        "remote-option": (["--temp_location=gs://b"], ["/in", "/out"], ""),
        "another-runner": (["--runner=DataflowRunner"], ["/in", "/out"], ""),
    },
)
def test_light_import_is_made_for_local_jobs_alone(arguments: list[str], addresses: list[str], printed: str) -> None:
    code = LIGHT_IMPORT.format(arguments=arguments, addresses=addresses)
    completed = command_line.run_python(code)
    assert completed.stdout.splitlines()[0].strip() == printed, completed.stderr
    assert completed.returncode == 0, completed.stderr


@case_tables.each_case(
    "given",
    {
        "flink": {"runner": "FlinkRunner", "flink_master": "host:8081", "flink_job_server_jar": "/j"},
        "spark": {"runner": "SparkRunner", "spark_master_url": "spark://h:7077", "spark_job_server_jar": "/j"},
        "portable": {"runner": "PortableRunner", "job_endpoint": "host:8099", "environment_type": "EXTERNAL"},
        "prism": {"runner": "PrismRunner", "prism_location": __file__, "environment_type": "PROCESS"},
    },
)
def test_options_of_other_runners_reach_beam(given: dict[str, str]) -> None:
    arguments = [f"--{name}={value}" for name, value in given.items()]
    values = runners.make_options(arguments, workers=3).get_all_options()
    assert {name: values[name] for name in given} == given
    assert "disable_logging_submission_environment" in values["experiments"]  # no list of this machine's packages


@case_tables.each_case(
    "arguments, millis", [([], 60_000), (["--environment_cache_millis=0"], 0), (["--environment_cache_millis", "9"], 9)]
)
def test_workers_are_kept_between_stages_unless_the_user_says_how_long(arguments: list[str], millis: int) -> None:
    values = runners.make_options(["--runner=FlinkRunner", *arguments], workers=1).get_all_options()
    assert int(values["environment_cache_millis"]) == millis


def test_experiments_of_the_user_stay() -> None:
    values = runners.make_options(["--runner=FlinkRunner", "--experiments=a,b"], workers=1).get_all_options()
    assert {"a", "b", "disable_logging_submission_environment"} <= set(values["experiments"])


@case_tables.each_case(
    "runner", ["DaskRunner", "dask", "apache_beam.runners.dask.dask_runner.DaskRunner", "daskrunner"]
)
def test_dask_is_refused_with_the_reason(runner: str) -> None:
    with error_texts.raises("runner-dask"):
        runners.require_supported([f"--runner={runner}"], "stream")


@case_tables.each_case(
    "arguments, code",
    [
        (["--runner=PortableRunner"], "job-server-missing"),
        (["--runner=flink", "--flink_job_server_jar=no.jar"], "job-server-no-jar"),
        (["--runner=SparkRunner", "--spark_job_server_jar=/no.jar"], "job-server-no-jar"),
        (["--runner=FlinkRunner", "--job_endpoint=127.0.0.1:1"], "job-server-silent"),
        (["--runner=PortableRunner", "--job_endpoint=[::1]:70000"], "job-server-silent"),
    ],
)
def test_job_server_that_is_missing_is_an_error_before_the_listing(arguments: list[str], code: str) -> None:
    with error_texts.raises(code):
        runners.require_supported(arguments, "stream")


def test_job_server_that_answers_or_that_beam_finds_itself_is_taken(tmp_path: pathlib.Path) -> None:
    (tmp_path / "server.jar").touch()
    with socket.create_server(("127.0.0.1", 0)) as server:
        for more in (
            [f"--job_endpoint=127.0.0.1:{server.getsockname()[1]}"],
            ["--job_endpoint=embed"],
            ["--flink_job_server_jar=https://example.com/server.jar"],
            [f"--flink_job_server_jar={tmp_path}/server.jar"],
            [],
        ):
            runners.require_supported(["--runner=FlinkRunner", *more], "stream")


def test_beams_writer_is_refused_on_prism_alone() -> None:
    for runner in ("DirectRunner", "FlinkRunner"):
        runners.require_supported(["--runner", runner], "beam")
    runners.require_supported(["--runner=PrismRunner"], "stream")
    with error_texts.raises("beam-writer-on-prism"):
        runners.require_supported(["--runner=PrismRunner"], "beam")


def test_paths_of_lambdas_are_relative_for_a_while() -> None:
    config = cloudpickle_pickler.DEFAULT_CONFIG
    before = config.filepath_interceptor
    with runners.relative_paths():
        assert not config.filepath_interceptor(runners.__file__).startswith("/")
    assert config.filepath_interceptor is before


@case_tables.each_case(
    "arguments, leaves",
    [
        (["--runner=DataflowRunner"], False),
        (["--no_wait_until_finish"], True),
        (["--template_location=gs://b/t"], True),
        (["--template_location", "gs://b/t"], True),
    ],
)
def test_options_that_leave_a_job_are_known(arguments: list[str], leaves: bool) -> None:
    assert runners.leaves_job(arguments) == leaves


# --- signals that are held back --------------------------------------------------------------------------------------


ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture
def called() -> Iterator[list[int]]:
    """The signals whose handlers were called, in order."""
    numbers: list[int] = []
    before = {each: signal.signal(each, lambda number, _: numbers.append(number)) for each in ENDING}
    yield numbers
    for each, handler in before.items():
        signal.signal(each, handler)


@pytest.mark.parametrize("number", ENDING, ids=lambda number: number.name)
def test_handler_is_called_at_the_end(called: list[int], number: signal.Signals) -> None:
    handlers = [signal.getsignal(each) for each in ENDING]
    with runners.held_back():
        os.kill(os.getpid(), number)
        assert called == []
        assert signal.getsignal(number) is signal.SIG_DFL  # a second one ends the process
    assert called == [number]
    assert [signal.getsignal(each) for each in ENDING] == handlers


def test_handler_is_called_where_the_context_raises(called: list[int]) -> None:
    with pytest.raises(ValueError, match=r"^no server$"), runners.held_back():
        os.kill(os.getpid(), signal.SIGTERM)
        raise ValueError("no server")
    assert called == [signal.SIGTERM]


def test_signals_without_a_handler_keep_their_effect(called: list[int]) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    with runners.held_back():
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        os.kill(os.getpid(), signal.SIGHUP)
    assert called == []


def test_another_thread_than_the_main_one_holds_nothing(called: list[int]) -> None:
    def work() -> None:
        with runners.held_back():
            seen.append(signal.getsignal(signal.SIGTERM))

    before, seen = signal.getsignal(signal.SIGTERM), list[object]()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
    assert called == []
