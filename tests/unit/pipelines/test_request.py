"""Arguments that Python calls accept, and those that they refuse."""

from __future__ import annotations

import pathlib
from typing import Any

import hypothesis.strategies
from apache_beam.options import pipeline_options

from imagebeam.pipelines import convert, job, request
from imagebeam.pipelines.config import model as config_lib
from imagebeam.transforms.snapshots import snapshot_drift
from tests import case_tables, command_line, error_texts

DATAFLOW = ["--runner=DataflowRunner", "--project=p", "--region=europe-west1"]


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
    "arguments, code",
    [
        ({"config": 42}, "argument-type"),
        ({"config": b"x.yaml"}, "argument-type"),
        ({"config": ["--input"]}, "argument-type"),
        ({"config": {"source": "in"}}, "config-invalid"),
        ({"config": {"source": {"uri": 3}}}, "config-invalid"),
        ({"beam_options": 3}, "argument-type"),
        ({"beam_options": {"runner": "x"}}, "argument-type"),
        ({"beam_options": b"--x"}, "argument-type"),
        ({"beam_options": ["--x", 3]}, "argument-type"),
        ({"beam_options": "--x='y"}, "beam-options-quotes"),
        ({"beam_options": "--ruxxer=Direct"}, "option-unknown"),
        ({"overwrite": "no"}, "argument-type"),
        ({"show_progress": 1}, "argument-type"),
        ({"workers": "4"}, "argument-type"),
        ({"workers": 2.5}, "argument-type"),
        ({"workers": True}, "argument-type"),
        ({"workers": 0}, "workers-below-1"),
    ],
)
def test_wrong_types_are_refused_before_any_work(
    images: pathlib.Path, tmp_path: pathlib.Path, arguments: dict[str, Any], code: str
) -> None:
    fields = {"source": {"uri": images}, "output": {"uri": tmp_path / "out"}}
    with error_texts.raises(code):
        convert.convert(**{"config": fields, **arguments})
    assert list(tmp_path.iterdir()) == []


@hypothesis.given(hypothesis.strategies.text(hypothesis.strategies.characters(codec=None), max_size=8))
def test_addresses_of_a_command_line_arrive_as_they_are(text: str) -> None:
    config = request.load_config("cats_dogs", ["split.seed=3"], f"/{text}", f"out/\U0001f600{text}")
    assert (config.source.uri, config.output.uri, config.split.seed) == (f"/{text}", f"out/\U0001f600{text}", 3)


@case_tables.each_case(
    "preset, setting",
    {
        "key": ("cats_dogs", "label.by=directory"),
        "quoted": ("imagefolder", "split.by=none"),
        "section": ("segmentation", "source.by=tar"),
        "by": ("cats_dogs", "label.column=x"),
        "none": ("imagenet", "split.by=hash"),
    },
)
def test_error_names_the_keys_that_a_preset_has_set(preset: str, setting: str) -> None:
    with error_texts.raises("config-invalid"):
        request.load_config(preset, [setting], None, None)


def test_locale_without_utf8_is_refused(images: pathlib.Path) -> None:
    code = f"from imagebeam.pipelines import convert\nconvert.plan({{'source': {{'uri': {str(images)!r}}}}})"
    done = command_line.run_python(code, {"LC_ALL": "C", "PYTHONUTF8": "0"})
    assert done.returncode == 1
    message = "imagebeam.errors.ConfigError: Python takes file names here for ascii, by the locale, and keys and labels"
    assert done.stderr.splitlines()[-1].startswith(message)
    check = "from imagebeam.pipelines import request\nrequest.require_utf8_file_names()"
    for utf8, exit_code in (("0", 1), ("1", 0)):
        command_line.run_python(check, {"LC_ALL": "C", "PYTHONUTF8": utf8}, exit_code)


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


HASH = {"by": "hash", "fractions": {"train": 0.5, "test": 0.5}}


@case_tables.each_case(
    "sections, code",
    [
        ({"output": {"uri": None}}, "update-without-output"),
        ({"split": HASH | {"stratify": True}}, "update-cannot-keep"),
        ({"split": {"name": "a"}, "output": {"writer": "beam", "num_shards": 1}}, "update-cannot-keep"),
        ({"image": {"frames": "each"}}, "update-cannot-keep"),
        ({"duplicates": {"exact": "report"}}, "update-cannot-keep"),
        ({"output": {"uri": "{plain}"}}, "update-of-plain-dataset"),
    ],
)
def test_dataset_that_cannot_be_updated_is_refused(tmp_path: pathlib.Path, sections: dict[str, Any], code: str) -> None:
    (tmp_path / "catalog.json").write_text("{}")
    fields: dict[str, Any] = {"output": {}, **sections}
    uri = fields["output"].get("uri", str(tmp_path / "out"))
    fields["output"] = {**fields["output"], "uri": uri and uri.replace("{plain}", str(tmp_path))}
    with error_texts.raises(code):
        request.find_base(config_lib.parse_config(fields, "a test"), overwrite=False)


def test_rejects_are_retried_only_of_a_snapshot(tmp_path: pathlib.Path) -> None:
    for overwrite in (False, True):
        with error_texts.raises("retry-rejects-of-nothing"):
            request.find_base(make_config(tmp_path), overwrite, retry_rejects=True)
    for flag in ("retry_rejects", "fail_on_drift"):
        with error_texts.raises("option-needs-update"):
            request.check(request.Request(make_config(tmp_path), **{flag: True}))
