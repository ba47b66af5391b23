"""Arguments that Python calls accept, and those that they refuse."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import hypothesis.strategies
import pytest
from apache_beam.options import pipeline_options

from imagebeam import errors
from imagebeam.pipelines import call_arguments, convert
from tests import command_line, image_sets

DATAFLOW = ["--runner=DataflowRunner", "--project=p", "--region=europe-west1"]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("images")
    image_sets.write_folder(folder, per_label=3)
    return folder


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(DATAFLOW, id="list"),
        pytest.param(tuple(DATAFLOW), id="tuple"),
        pytest.param(" ".join(DATAFLOW), id="one-string"),
        pytest.param("--runner=DataflowRunner --project 'p' \n --region=europe-west1", id="one-string-with-quotes"),
        pytest.param(pipeline_options.PipelineOptions(DATAFLOW), id="pipeline-options"),
    ],
)
def test_options_of_beam_are_taken_in_any_form(given: Any) -> None:
    options = pipeline_options.PipelineOptions(call_arguments.as_beam_arguments(given)).get_all_options(
        drop_default=True
    )
    assert options == pipeline_options.PipelineOptions(DATAFLOW).get_all_options(drop_default=True)


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["--use_public_ips"], id="true"),
        pytest.param(["--no_use_public_ips", "--no_pipeline_type_check"], id="false"),
        pytest.param(["--labels=a=b", "--labels=c=d"], id="repeated"),
        pytest.param(['--sdk_harness_log_level_overrides={"imagebeam": "DEBUG"}'], id="mapping"),
    ],
)
def test_pipeline_options_become_the_same_options_again(arguments: list[str]) -> None:
    given = pipeline_options.PipelineOptions(arguments)
    again = pipeline_options.PipelineOptions(call_arguments.as_beam_arguments(given))
    assert again.get_all_options(drop_default=True) == given.get_all_options(drop_default=True) != {}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param({"config": 42}, "config is 42, of type int; give a mapping of sections, the name", id="config"),
        pytest.param({"config": b"x.yaml"}, "config is b'x.yaml', of type bytes; give", id="config-bytes"),
        pytest.param({"config": ["--input"]}, "config is ['--input'], of type list; give", id="config-list"),
        pytest.param({"config": {"source": "in"}}, "source: input should be a mapping, got 'in'", id="section"),
        pytest.param({"config": {"source": {"uri": 3}}}, "source.uri: input should be a valid string, got 3", id="uri"),
        pytest.param({"beam_options": 3}, "beam_options is 3, of type int; give PipelineOptions, a", id="options"),
        pytest.param({"beam_options": {"runner": "x"}}, "beam_options is {'runner': 'x'}, of type dict;", id="dict"),
        pytest.param({"beam_options": b"--x"}, "beam_options is b'--x', of type bytes;", id="bytes"),
        pytest.param({"beam_options": ["--x", 3]}, "beam_options holds 3, of type int; each option is text", id="item"),
        pytest.param({"beam_options": "--x='y"}, "cannot be split into options: No closing quotation", id="quote"),
        pytest.param({"beam_options": "--ruxxer=Direct"}, "unknown option --ruxxer", id="unknown"),
        pytest.param({"overwrite": "no"}, "overwrite is 'no', of type str; give True or False", id="overwrite"),
        pytest.param({"show_progress": 1}, "show_progress is 1, of type int; give True or False", id="progress"),
        pytest.param({"workers": "4"}, "workers is '4', of type str; give a number of processes", id="workers-text"),
        pytest.param({"workers": 2.5}, "workers is 2.5, of type float; give a number", id="workers-fraction"),
        pytest.param({"workers": True}, "workers is True, of type bool; give a number", id="workers-bool"),
        pytest.param({"workers": 0}, "workers is 0; it must be at least 1", id="workers-none"),
    ],
)
def test_wrong_types_are_refused_before_any_work(
    images: pathlib.Path, tmp_path: pathlib.Path, arguments: dict[str, Any], message: str
) -> None:
    fields = {"source": {"uri": images}, "output": {"uri": tmp_path / "out"}}
    with pytest.raises(errors.ConfigError, match=re.escape(message)):
        convert.convert(**{"config": fields, **arguments})
    assert list(tmp_path.iterdir()) == []


@hypothesis.given(hypothesis.strategies.text(hypothesis.strategies.characters(codec=None), max_size=8))
def test_addresses_of_a_command_line_arrive_as_they_are(text: str) -> None:
    config = call_arguments.CommandConfig("cats_dogs", ("split.seed=3",), f"/{text}", f"out/\U0001f600{text}").load()
    assert (config.source.uri, config.output.uri, config.split.seed) == (f"/{text}", f"out/\U0001f600{text}", 3)


def test_locale_without_utf8_is_refused(images: pathlib.Path) -> None:
    code = f"from imagebeam.pipelines import convert\nconvert.plan({{'source': {{'uri': {str(images)!r}}}}})"
    done = command_line.run_python(code, {"LC_ALL": "C", "PYTHONUTF8": "0"})
    assert done.returncode == 1
    message = "imagebeam.errors.ConfigError: Python takes file names here for ascii, by the locale, and keys and labels"
    assert done.stderr.splitlines()[-1].startswith(message)
    check = "from imagebeam.pipelines import call_arguments\ncall_arguments.require_utf8_file_names()"
    assert command_line.run_python(check, {"LC_ALL": "C", "PYTHONUTF8": "0"}).returncode == 1
    assert command_line.run_python(check, {"LC_ALL": "C", "PYTHONUTF8": "1"}).returncode == 0
