from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import socket
import threading
from collections.abc import Iterator

import pytest
from apache_beam.internal import cloudpickle_pickler
from apache_beam.options import pipeline_options

from imagebeam import errors
from imagebeam.pipelines.beam import runners
from tests import case_tables, command_line

FN_API_RUNNER = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"
MULTI_PROCESSING = "--direct_running_mode=multi_processing"


@case_tables.each_case(
    "arguments, is_local, name",
    {
        "default": ([], True, "FnApiRunner"),
        "direct": (["--runner=DirectRunner"], True, "FnApiRunner"),
        "two-words": (["--runner", "FnApiRunner"], True, "FnApiRunner"),
        "short-as-beam-takes-it": (["--runner=direct"], True, "FnApiRunner"),
        "lower-case": (["--runner=directrunner"], True, "FnApiRunner"),
        "multi-processing": ([MULTI_PROCESSING], False, "FnApiRunner (multi_processing)"),
        "prism": (["--runner=PrismRunner"], False, "PrismRunner"),
        "dataflow": (["--runner=DataflowRunner", "--project=p"], False, "DataflowRunner"),
    },
)
def test_runner_is_named_and_known_to_be_local(arguments: list[str], is_local: bool, name: str) -> None:
    assert runners.is_local(arguments) == is_local
    assert runners.runner_name(arguments) == name


@case_tables.each_case(
    "arguments, runner",
    {
        "default-is-not-prism": ([], FN_API_RUNNER),
        "direct-is-not-prism": (["--runner=DirectRunner"], FN_API_RUNNER),
        "prism-where-asked-for": (["--runner=PrismRunner", "--job_endpoint=localhost:1"], "PrismRunner"),
        "flink": (["--runner=FlinkRunner"], "FlinkRunner"),
        "spark": (["--runner=SparkRunner"], "SparkRunner"),
        "dataflow": (["--runner=DataflowRunner", "--project=p"], "DataflowRunner"),
    },
)
def test_options_name_the_runner(arguments: list[str], runner: str) -> None:
    options = runners.make_options(arguments, workers=3)
    assert options.view_as(pipeline_options.StandardOptions).runner == runner


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


def test_options_of_beam_arrive() -> None:
    options = runners.make_options(["--project=p", "--temp_location=gs://b/tmp", "--save_main_session"], workers=1)
    fields = options.get_all_options()
    assert (fields["project"], fields["temp_location"], fields["save_main_session"]) == ("p", "gs://b/tmp", True)


@case_tables.each_case(
    "argument, message",
    [
        ("--overwite", r"unknown option --overwite; did you mean --overwrite\?"),
        ("--inptu=/data", r"unknown option --inptu; did you mean --input\?"),
        ("--temp_loction=x", r"unknown option --temp_loction; did you mean --temp_location\?"),
        ("--zzzzzz", r"unknown option --zzzzzz; see imagebeam convert --help"),
        ("--project_=p", r"unknown option --project_; did you mean --project\?"),
        ("--output=x", r"unknown option --output: it is one of imagebeam convert, and neither"),
        ("/data", r"unexpected argument ./data.; a folder .* is given by --input"),
    ],
)
def test_options_with_unknown_flag_raise_config_error(argument: str, message: str) -> None:
    with pytest.raises(errors.ConfigError, match=message):
        runners.make_options([argument], workers=1)


@case_tables.each_case(
    "argument, message",
    [
        ("--direct_num_workers=many", r"argument --direct_num_workers: invalid int value: 'many'"),
        ("--direct_running_mode=x", r"argument --direct_running_mode: invalid choice: 'x'"),
    ],
)
def test_options_with_unusable_value_raise_config_error(
    argument: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(errors.ConfigError, match=f"Beam cannot use its options: {message}"):
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


def test_experiments_of_the_user_stay() -> None:
    values = runners.make_options(["--runner=FlinkRunner", "--experiments=a,b"], workers=1).get_all_options()
    assert {"a", "b", "disable_logging_submission_environment"} <= set(values["experiments"])


@case_tables.each_case(
    "runner", ["DaskRunner", "dask", "apache_beam.runners.dask.dask_runner.DaskRunner", "daskrunner"]
)
def test_dask_is_refused_with_the_reason(runner: str) -> None:
    with pytest.raises(
        errors.ConfigError, match=rf"^--runner is {runner}: on Dask, Beam mixes .* choose another runner"
    ):
        runners.require_supported([f"--runner={runner}"], "stream")


@case_tables.each_case(
    "arguments, message",
    [
        (["--runner=PortableRunner"], "needs the job server of a runner: give --job_endpoint=HOST:PORT"),
        (
            ["--runner=flink", "--flink_job_server_jar=no.jar"],
            "^--flink_job_server_jar is 'no.jar', which is no file: give the path of Beam's job server$",
        ),
        (["--runner=SparkRunner", "--spark_job_server_jar=/no.jar"], "--spark_job_server_jar is '/no"),
        (
            ["--runner=FlinkRunner", "--job_endpoint=127.0.0.1:1"],
            r"^--job_endpoint is '127.0.0.1:1', where no job server answers \(Connection refused\): start it",
        ),
        (["--runner=PortableRunner", "--job_endpoint=[::1]:70000"], "where no job server answers"),
    ],
)
def test_job_server_that_is_missing_is_an_error_before_the_listing(arguments: list[str], message: str) -> None:
    with pytest.raises(errors.ConfigError, match=message):
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


@case_tables.each_case(
    "runner, is_prism",
    [
        ("PrismRunner", True),
        ("prism", True),
        ("apache_beam.runners.portability.prism_runner.PrismRunner", True),
        ("DirectRunner", False),
        ("FlinkRunner", False),
    ],
)
def test_beams_writer_is_refused_on_prism_alone(runner: str, is_prism: bool) -> None:
    assert runners.is_prism(["--runner", runner]) == is_prism
    runners.require_supported(["--runner", runner], "stream")
    refused = pytest.raises(
        errors.ConfigError, match=r"output.writer is 'beam' and --runner is .* leave output\.writer out"
    )
    with refused if is_prism else contextlib.nullcontext():
        runners.require_supported(["--runner", runner], "beam")


def test_paths_of_lambdas_are_relative_for_a_while() -> None:
    config = cloudpickle_pickler.DEFAULT_CONFIG
    before = config.filepath_interceptor
    with runners.relative_paths():
        assert not config.filepath_interceptor(runners.__file__).startswith("/")
    assert config.filepath_interceptor is before


@case_tables.each_case(
    "arguments, is_dataflow",
    [
        ([], False),
        (["--runner=DataflowRunner"], True),
        (["--runner", "dataflow"], True),
        (["--runner=apache_beam.runners.dataflow.dataflow_runner.DataflowRunner"], True),
        (["--runner=TestDataflowRunner"], False),
        (["--runner=FlinkRunner"], False),
    ],
)
def test_dataflow_is_known_by_every_name_that_beam_takes(arguments: list[str], is_dataflow: bool) -> None:
    assert runners.is_dataflow(arguments) == is_dataflow


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
