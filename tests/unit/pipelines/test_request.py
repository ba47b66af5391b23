"""Arguments that Python calls accept, and those that they refuse."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import hypothesis.strategies
import pytest
from apache_beam.options import pipeline_options

from imagebeam import errors
from imagebeam.pipelines import convert, job, request
from imagebeam.pipelines.config import model as config_lib
from imagebeam.transforms.snapshots import snapshot_drift
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
    options = pipeline_options.PipelineOptions(request.as_beam_arguments(given)).get_all_options(drop_default=True)
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
    again = pipeline_options.PipelineOptions(request.as_beam_arguments(given))
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
    config = request.CommandConfig("cats_dogs", ("split.seed=3",), f"/{text}", f"out/\U0001f600{text}").load()
    assert (config.source.uri, config.output.uri, config.split.seed) == (f"/{text}", f"out/\U0001f600{text}", 3)


def test_locale_without_utf8_is_refused(images: pathlib.Path) -> None:
    code = f"from imagebeam.pipelines import convert\nconvert.plan({{'source': {{'uri': {str(images)!r}}}}})"
    done = command_line.run_python(code, {"LC_ALL": "C", "PYTHONUTF8": "0"})
    assert done.returncode == 1
    message = "imagebeam.errors.ConfigError: Python takes file names here for ascii, by the locale, and keys and labels"
    assert done.stderr.splitlines()[-1].startswith(message)
    check = "from imagebeam.pipelines import request\nrequest.require_utf8_file_names()"
    assert command_line.run_python(check, {"LC_ALL": "C", "PYTHONUTF8": "0"}).returncode == 1
    assert command_line.run_python(check, {"LC_ALL": "C", "PYTHONUTF8": "1"}).returncode == 0


# --- the check of drift ----------------------------------------------------------------------------------------------


def make_config(tmp_path: pathlib.Path, **drift: Any) -> config_lib.Config:
    (tmp_path / "in").mkdir(exist_ok=True)
    fields = {"source": {"uri": str(tmp_path / "in")}, "output": {"uri": str(tmp_path / "out")}}
    return config_lib.parse_config(fields | {"update": {"drift": drift}}, "a test")


@case_tables.each_case(
    "drift, thresholds",
    {
        "defaults": ({}, snapshot_drift.DEFAULT),
        "off-and-other": ({"labels": None, "sizes": 2}, snapshot_drift.Thresholds(None, 2.0, 0.05)),
        "zero": ({"rejects": 0}, snapshot_drift.Thresholds(0.1, 0.5, 0.0)),
    },
)
def test_thresholds_are_those_of_the_config(
    tmp_path: pathlib.Path, drift: dict[str, Any], thresholds: snapshot_drift.Thresholds
) -> None:
    settings = request.find_base(make_config(tmp_path, **drift), False, fail_on_drift=True)
    assert (settings.drift, settings.fail_on_drift) == (thresholds, True)


@case_tables.each_case(
    "drift, message",
    [
        ({"labels": 1.5}, r"update\.drift\.labels: .*less than or equal to 1"),
        ({"sizes": -1}, r"update\.drift\.sizes: .*greater than or equal to 0"),
        ({"rejects": True}, r"update\.drift\.rejects"),
        ({"label": 0.1}, r"unknown key 'update\.drift\.label'; did you mean 'labels'"),
    ],
)
def test_threshold_out_of_range_is_refused_with_its_key(
    tmp_path: pathlib.Path, drift: dict[str, Any], message: str
) -> None:
    with pytest.raises(errors.ConfigError, match=message):
        make_config(tmp_path, **drift)


def test_command_that_fails_on_drift_is_another_command_for_the_same_dataset(tmp_path: pathlib.Path) -> None:
    commands, identities = set(), set()
    for fails, drift in ((False, {}), (True, {}), (True, {"labels": 0.2})):
        given = make_config(tmp_path, **drift)
        settings = job.make_job(
            request.Checked(given, 1, snapshot=request.find_base(given, False, False, fails))
        ).settings
        commands.add(settings.command)
        identities.add(settings.identity)
    assert (len(commands), len(identities)) == (3, 1)
