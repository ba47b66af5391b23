from __future__ import annotations

import subprocess
import sys

import pytest
from apache_beam.options import pipeline_options

from imagebeam import errors
from imagebeam.pipelines import runners
from tests import command_line, patience

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
        pytest.param(["--runner=PrismRunner"], "PrismRunner", id="prism-where-asked-for"),
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
        pytest.param("/data", r"unknown option /data", id="no-flag"),
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
from imagebeam.pipelines import runners
runners.import_beam_lightly({arguments}, {addresses})
print("apache_beam" in sys.modules, "pyarrow" in sys.modules, "google.cloud.storage" in sys.modules)
import pyarrow, google.auth  # what was hidden can be imported again
"""


@pytest.mark.parametrize(
    ("arguments", "addresses", "printed"),
    [
        pytest.param([], ["/in", None], "True False False", id="local"),
        pytest.param([], ["gs://b/in", "/out"], "False False False", id="remote-input"),
        pytest.param(["--temp_location=gs://b"], ["/in", "/out"], "False False False", id="remote-option"),
        pytest.param(["--runner=DataflowRunner"], ["/in", "/out"], "False False False", id="another-runner"),
    ],
)
def test_light_import_is_made_for_local_jobs_alone(arguments: list[str], addresses: list[str], printed: str) -> None:
    code = LIGHT_IMPORT.format(arguments=arguments, addresses=addresses)
    completed = subprocess.run(
        [sys.executable, "-c", code],
        cwd=command_line.ROOT,
        capture_output=True,
        text=True,
        timeout=patience.HANG_SEC,
        check=False,
    )
    assert completed.stdout.strip() == printed, completed.stderr
    assert completed.returncode == 0, completed.stderr


def test_sampling_of_this_beam_can_be_shortened() -> None:
    code = (
        "from apache_beam.runners.worker import statesampler as lib; from imagebeam.pipelines import runners; "
        "print(runners.shorten_sampling(lib.StateSampler), lib.StateSampler.__init__.__defaults__)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], cwd=command_line.ROOT, text=True) == "True (2,)\n"


class _AnotherName:
    def __init__(self, prefix: str, period_ms: int = 200):
        pass


class _OneMoreDefault:
    def __init__(self, prefix: str, counter_factory: object = None, sampling_period_ms: int = 200):
        pass


class _ByKeyword:
    def __init__(self, prefix: str, *, sampling_period_ms: int = 200):
        pass


class _Compiled:
    __init__ = str.join  # a method in C: no defaults to replace


@pytest.mark.parametrize("sampler", [_AnotherName, _OneMoreDefault, _ByKeyword, _Compiled, None])
def test_sampling_of_another_beam_stays_as_it_is(sampler: type | None) -> None:
    before = getattr(getattr(sampler, "__init__", None), "__defaults__", None)
    assert not runners.shorten_sampling(sampler)
    assert getattr(getattr(sampler, "__init__", None), "__defaults__", None) == before


def test_sampling_of_a_constructor_that_fits_is_shortened() -> None:
    class Sampler:
        def __init__(self, prefix: str, counter_factory: object, sampling_period_ms: int = 200):
            self.period_ms = sampling_period_ms

    assert runners.shorten_sampling(Sampler)
    assert Sampler("", None).period_ms == 2
