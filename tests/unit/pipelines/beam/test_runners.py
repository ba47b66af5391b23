from __future__ import annotations

import contextlib
import pathlib
import socket

import pytest
from apache_beam.internal import cloudpickle_pickler
from apache_beam.options import pipeline_options

from imagebeam import errors
from imagebeam.pipelines.beam import runners
from tests import command_line

FN_API_RUNNER = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"
MULTI_PROCESSING = "--direct_running_mode=multi_processing"


@pytest.mark.parametrize(
    ("arguments", "is_local", "name"),
    [
        pytest.param([], True, "FnApiRunner", id="default"),
        pytest.param(["--runner=DirectRunner"], True, "FnApiRunner", id="direct"),
        pytest.param(["--runner", "FnApiRunner"], True, "FnApiRunner", id="two-words"),
        pytest.param(["--runner=direct"], True, "FnApiRunner", id="short-as-beam-takes-it"),
        pytest.param(["--runner=directrunner"], True, "FnApiRunner", id="lower-case"),
        pytest.param([MULTI_PROCESSING], False, "FnApiRunner (multi_processing)", id="multi-processing"),
        pytest.param(["--runner=PrismRunner"], False, "PrismRunner", id="prism"),
        pytest.param(["--runner=DataflowRunner", "--project=p"], False, "DataflowRunner", id="dataflow"),
    ],
)
def test_runner_is_named_and_known_to_be_local(arguments: list[str], is_local: bool, name: str) -> None:
    assert runners.is_local(arguments) == is_local
    assert runners.runner_name(arguments) == name


@pytest.mark.parametrize(
    ("arguments", "runner"),
    [
        pytest.param([], FN_API_RUNNER, id="default-is-not-prism"),
        pytest.param(["--runner=DirectRunner"], FN_API_RUNNER, id="direct-is-not-prism"),
        pytest.param(["--runner=PrismRunner", "--job_endpoint=localhost:1"], "PrismRunner", id="prism-where-asked-for"),
        pytest.param(["--runner=FlinkRunner"], "FlinkRunner", id="flink"),
        pytest.param(["--runner=SparkRunner"], "SparkRunner", id="spark"),
        pytest.param(["--runner=DataflowRunner", "--project=p"], "DataflowRunner", id="dataflow"),
    ],
)
def test_options_name_the_runner(arguments: list[str], runner: str) -> None:
    options = runners.make_options(arguments, workers=3)
    assert options.view_as(pipeline_options.StandardOptions).runner == runner


@pytest.mark.parametrize(
    ("arguments", "workers"),
    [
        pytest.param([MULTI_PROCESSING], 3, id="as-many-as-workers"),
        pytest.param([MULTI_PROCESSING, "--direct_num_workers=2"], 2, id="as-given"),
        pytest.param([], 1, id="in-memory"),
    ],
)
def test_options_set_the_workers_of_beam(arguments: list[str], workers: int) -> None:
    options = runners.make_options(arguments, workers=3).view_as(pipeline_options.DirectOptions)
    assert options.direct_num_workers == workers


def test_options_of_beam_arrive() -> None:
    options = runners.make_options(["--project=p", "--temp_location=gs://b/tmp", "--save_main_session"], workers=1)
    fields = options.get_all_options()
    assert (fields["project"], fields["temp_location"], fields["save_main_session"]) == ("p", "gs://b/tmp", True)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        pytest.param("--overwite", r"unknown option --overwite; did you mean --overwrite\?", id="ours"),
        pytest.param("--inptu=/data", r"unknown option --inptu; did you mean --input\?", id="ours-with-value"),
        pytest.param("--temp_loction=x", r"unknown option --temp_loction; did you mean --temp_location\?", id="beams"),
        pytest.param("--zzzzzz", r"unknown option --zzzzzz; see imagebeam convert --help", id="nothing-near"),
        pytest.param("--project_=p", r"unknown option --project_; did you mean --project\?", id="one-letter-more"),
        pytest.param(
            "--output=x", r"unknown option --output: it is one of imagebeam convert, and neither", id="convert's"
        ),
        pytest.param("/data", r"unexpected argument ./data.; a folder .* is given by --input", id="no-flag"),
    ],
)
def test_options_with_unknown_flag_raise_config_error(argument: str, message: str) -> None:
    with pytest.raises(errors.ConfigError, match=message):
        runners.make_options([argument], workers=1)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        pytest.param(
            "--direct_num_workers=many", r"argument --direct_num_workers: invalid int value: 'many'", id="type"
        ),
        pytest.param("--direct_running_mode=x", r"argument --direct_running_mode: invalid choice: 'x'", id="choice"),
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


@pytest.mark.parametrize(
    ("arguments", "addresses", "printed"),
    [
        pytest.param([], ["/in", None], "apache_beam", id="local"),
        pytest.param([], ["gs://b/in", "/out"], "", id="remote-input"),
        pytest.param(["--temp_location=gs://b"], ["/in", "/out"], "", id="remote-option"),
        pytest.param(["--runner=DataflowRunner"], ["/in", "/out"], "", id="another-runner"),
    ],
)
def test_light_import_is_made_for_local_jobs_alone(arguments: list[str], addresses: list[str], printed: str) -> None:
    code = LIGHT_IMPORT.format(arguments=arguments, addresses=addresses)
    completed = command_line.run_python(code)
    assert completed.stdout.splitlines()[0].strip() == printed, completed.stderr
    assert completed.returncode == 0, completed.stderr


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"runner": "FlinkRunner", "flink_master": "host:8081", "flink_job_server_jar": "/j"}, id="flink"),
        pytest.param(
            {"runner": "SparkRunner", "spark_master_url": "spark://h:7077", "spark_job_server_jar": "/j"}, id="spark"
        ),
        pytest.param(
            {"runner": "PortableRunner", "job_endpoint": "host:8099", "environment_type": "EXTERNAL"}, id="portable"
        ),
        pytest.param({"runner": "PrismRunner", "prism_location": __file__, "environment_type": "PROCESS"}, id="prism"),
    ],
)
def test_options_of_other_runners_reach_beam(given: dict[str, str]) -> None:
    arguments = [f"--{name}={value}" for name, value in given.items()]
    values = runners.make_options(arguments, workers=3).get_all_options()
    assert {name: values[name] for name in given} == given
    assert "disable_logging_submission_environment" in values["experiments"]  # no list of this machine's packages


def test_experiments_of_the_user_stay() -> None:
    values = runners.make_options(["--runner=FlinkRunner", "--experiments=a,b"], workers=1).get_all_options()
    assert {"a", "b", "disable_logging_submission_environment"} <= set(values["experiments"])


@pytest.mark.parametrize(
    "runner", ["DaskRunner", "dask", "apache_beam.runners.dask.dask_runner.DaskRunner", "daskrunner"]
)
def test_dask_is_refused_with_the_reason(runner: str) -> None:
    with pytest.raises(
        errors.ConfigError, match=rf"^--runner is {runner}: on Dask, Beam mixes .* choose another runner"
    ):
        runners.require_supported([f"--runner={runner}"], "stream")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(
            ["--runner=PortableRunner"], "needs the job server of a runner: give --job_endpoint=HOST:PORT", id="none"
        ),
        pytest.param(
            ["--runner=flink", "--flink_job_server_jar=no.jar"],
            "^--flink_job_server_jar is 'no.jar', which is no file: give the path of Beam's job server$",
            id="no-jar",
        ),
        pytest.param(
            ["--runner=SparkRunner", "--spark_job_server_jar=/no.jar"], "--spark_job_server_jar is '/no", id="spark"
        ),
        pytest.param(
            ["--runner=FlinkRunner", "--job_endpoint=127.0.0.1:1"],
            r"^--job_endpoint is '127.0.0.1:1', where no job server answers \(Connection refused\): start it",
            id="nobody-answers",
        ),
        pytest.param(
            ["--runner=PortableRunner", "--job_endpoint=[::1]:70000"], "where no job server answers", id="no-port"
        ),
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


@pytest.mark.parametrize(
    ("runner", "is_prism"),
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


@pytest.mark.parametrize(
    ("arguments", "is_dataflow"),
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


@pytest.mark.parametrize(
    ("arguments", "leaves"),
    [
        (["--runner=DataflowRunner"], False),
        (["--no_wait_until_finish"], True),
        (["--template_location=gs://b/t"], True),
        (["--template_location", "gs://b/t"], True),
    ],
)
def test_options_that_leave_a_job_are_known(arguments: list[str], leaves: bool) -> None:
    assert runners.leaves_job(arguments) == leaves
