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
from tests import case_tables, command_line, image_sets

DATAFLOW = ["--runner=DataflowRunner", "--project=p", "--region=europe-west1"]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("images")
    image_sets.write_folder(folder, per_label=3)
    return folder


@case_tables.each_case(
    "given",
    {
        "list": DATAFLOW,
        "tuple": tuple(DATAFLOW),
        "one-string": " ".join(DATAFLOW),
        "one-string-with-quotes": "--runner=DataflowRunner --project 'p' \n --region=europe-west1",
        "pipeline-options": pipeline_options.PipelineOptions(DATAFLOW),
    },
)
def test_options_of_beam_are_taken_in_any_form(given: Any) -> None:
    options = pipeline_options.PipelineOptions(call_arguments.as_beam_arguments(given)).get_all_options(
        drop_default=True
    )
    assert options == pipeline_options.PipelineOptions(DATAFLOW).get_all_options(drop_default=True)


@case_tables.each_case(
    "arguments",
    {
        "true": ["--use_public_ips"],
        "false": ["--no_use_public_ips", "--no_pipeline_type_check"],
        "repeated": ["--labels=a=b", "--labels=c=d"],
        "mapping": ['--sdk_harness_log_level_overrides={"imagebeam": "DEBUG"}'],
    },
)
def test_pipeline_options_become_the_same_options_again(arguments: list[str]) -> None:
    given = pipeline_options.PipelineOptions(arguments)
    again = pipeline_options.PipelineOptions(call_arguments.as_beam_arguments(given))
    assert again.get_all_options(drop_default=True) == given.get_all_options(drop_default=True) != {}


@case_tables.each_case(
    "arguments, message",
    [
        ({"config": 42}, "config is 42, of type int; give a mapping of sections, the name"),
        ({"config": b"x.yaml"}, "config is b'x.yaml', of type bytes; give"),
        ({"config": ["--input"]}, "config is ['--input'], of type list; give"),
        ({"config": {"source": "in"}}, "source: input should be a mapping, got 'in'"),
        ({"config": {"source": {"uri": 3}}}, "source.uri: input should be a valid string, got 3"),
        ({"beam_options": 3}, "beam_options is 3, of type int; give PipelineOptions, a"),
        ({"beam_options": {"runner": "x"}}, "beam_options is {'runner': 'x'}, of type dict;"),
        ({"beam_options": b"--x"}, "beam_options is b'--x', of type bytes;"),
        ({"beam_options": ["--x", 3]}, "beam_options holds 3, of type int; each option is text"),
        ({"beam_options": "--x='y"}, "cannot be split into options: No closing quotation"),
        ({"beam_options": "--ruxxer=Direct"}, "unknown option --ruxxer"),
        ({"overwrite": "no"}, "overwrite is 'no', of type str; give True or False"),
        ({"show_progress": 1}, "show_progress is 1, of type int; give True or False"),
        ({"workers": "4"}, "workers is '4', of type str; give a number of processes"),
        ({"workers": 2.5}, "workers is 2.5, of type float; give a number"),
        ({"workers": True}, "workers is True, of type bool; give a number"),
        ({"workers": 0}, "workers is 0; it must be at least 1"),
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
