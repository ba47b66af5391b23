"""A command whose config a writer process reads does and says the same as one that reads it itself."""

from __future__ import annotations

import os
import pathlib
import sys

import pytest

from imagebeam import catalog as catalog_lib
from imagebeam.pipelines import call_arguments, prepare_aside
from imagebeam.transforms.classes import label_names
from imagebeam.transforms.shard import forked_child
from tests import command_line, forked_commands, image_sets

CommandConfig = call_arguments.CommandConfig


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("images")
    image_sets.write_folder(folder, per_label=2)
    return folder


@pytest.fixture
def _may_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes this process one that has not imported Beam, and has no other threads."""
    monkeypatch.delitem(sys.modules, "apache_beam", raising=False)
    monkeypatch.setattr(forked_child, "can_fork", lambda: True)


@pytest.mark.usefixtures("_may_fork")
@pytest.mark.parametrize(
    ("config", "arguments", "fits"),
    [
        pytest.param(CommandConfig(None, (), "/in", "/out"), [], True, id="defaults"),
        pytest.param(CommandConfig("imagenet_files", ("label.by=none",), "/in", "/out"), [], True, id="preset"),
        pytest.param(CommandConfig("nowhere", (), "/in", "/out"), [], False, id="no-such-config"),
        pytest.param(CommandConfig("../configs/mnist", (), "/in", "/out"), [], False, id="no-preset"),
        pytest.param(CommandConfig(None, (), "/transformed!", "/out"), [], True, id="address-with-any-text"),
        pytest.param(CommandConfig(None, (), "gs://b/in", "/out"), [], False, id="remote-input"),
        pytest.param(CommandConfig(None, (), None, "memory://out"), [], False, id="remote-output"),
        pytest.param(CommandConfig(None, ("source.uri=hdfs://h/in",)), [], False, id="remote-setting"),
        pytest.param(CommandConfig(None, ("columns={a: {transform: log}}",)), [], False, id="transform"),
        pytest.param(CommandConfig(None, (r'columns={a: {"\x74ransform": log}}',)), [], False, id="escaped"),
        pytest.param(CommandConfig(None, (r"label.pattern='(\w+)'",)), [], True, id="regular-expression"),
        pytest.param(CommandConfig(None, ("source.uri=!!binary Z3M6Ly9i",)), [], False, id="tag"),
        pytest.param(CommandConfig(), ["--runner=PrismRunner"], False, id="another-runner"),
        pytest.param(CommandConfig(), ["--temp_location=gs://b"], False, id="remote-option"),
    ],
)
def test_job_is_prepared_aside_if_its_config_shows_that_it_is_local(
    config: call_arguments.CommandConfig, arguments: list[str], fits: bool
) -> None:
    assert prepare_aside._fits(config, arguments) is fits


@pytest.mark.usefixtures("_may_fork")
@pytest.mark.parametrize(
    ("content", "fits"),
    [
        pytest.param(b"source: {include: '*.jpg'}\n", True, id="local"),
        pytest.param(b"source: {uri: 'gs://b/in'}\n", False, id="remote"),
        pytest.param(b'source: {uri: "gs:\\\n  //b/in"}\n', False, id="escaped"),
        pytest.param(b"a: \xff\n", False, id="no-text"),
        pytest.param(b"#" * (2 << 20), False, id="too-long"),
    ],
)
def test_text_of_a_yaml_file_decides(tmp_path: pathlib.Path, content: bytes, fits: bool) -> None:
    (tmp_path / "job.yaml").write_bytes(content)
    assert prepare_aside._fits(CommandConfig(str(tmp_path / "job.yaml")), []) is fits
    os.mkfifo(tmp_path / "pipe")
    assert not prepare_aside._fits(CommandConfig(str(tmp_path / "pipe")), [])


def test_process_that_has_imported_beam_or_cannot_be_copied_prepares_its_job_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "apache_beam", raising=False)
    monkeypatch.setattr(forked_child, "can_fork", lambda: False)
    assert not prepare_aside._fits(CommandConfig(), [])
    monkeypatch.setattr(forked_child, "can_fork", lambda: True)
    assert prepare_aside._fits(CommandConfig(), [])
    monkeypatch.setitem(sys.modules, "apache_beam", sys)
    assert not prepare_aside._fits(CommandConfig(), [])


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["--set", "label.bi=none", "--frobnicate=1"], id="config-before-options-of-beam"),
        pytest.param(["--set", "source.by=tar", "--frobnicate=1"], id="options-of-beam-before-the-source"),
        pytest.param(["--set", "label.vocabulary=nowhere.txt"], id="source"),
        pytest.param(["--retry-rejects"], id="arguments"),
    ],
)
def test_errors_are_those_of_a_command_that_reads_its_config_itself(
    images: pathlib.Path, tmp_path: pathlib.Path, options: list[str]
) -> None:
    given = ["convert", "--input", images, "--output", tmp_path / "out", *options]
    aside, here = command_line.run_fresh(*given), command_line.call(*given)
    assert (aside.returncode, aside.stdout, aside.stderr) == (2, here.stdout, here.stderr)
    assert here.returncode == 2
    assert not (tmp_path / "out").exists()


def test_long_names_of_labels_reach_the_workers(images: pathlib.Path, tmp_path: pathlib.Path) -> None:
    classes = tmp_path / "classes.txt"
    names = [f"n{number:08d}" for number in range(label_names.MAX_IN_GRAPH // 8)]
    classes.write_text("\n".join(["cat", "dog", *names]) + "\n")
    vocabulary = ["--set", f"label.vocabulary={classes}"]
    done = command_line.run_fresh("convert", "-q", "--input", images, "--output", tmp_path / "out", *vocabulary)
    assert done.returncode == 0, done.stderr
    assert catalog_lib.load_catalog(tmp_path / "out").labels == ("cat", "dog", *names)


REPLACED = """
import os, signal, sys, time
from imagebeam.pipelines import cli, prepare_aside

def fail(request):
    raise OSError("broken")

def die(request):
    os._exit(3)

def interrupt(request):
    print(os.getpid(), file=sys.stderr, flush=True)
    os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(600)

prepare_aside._prepare = {function}
code = cli.main({arguments})
print(code, "pydantic" in sys.modules)
"""


def run_replaced(function: str, *arguments: object) -> command_line.Completed:
    """Runs a conversion in a new Python, with another function in place of what the writer process does."""
    given = [str(each) for each in arguments]
    return command_line.run_python(REPLACED.format(function=function, arguments=given))


@pytest.mark.parametrize(("function", "is_read_here"), [("_prepare", False), ("fail", True), ("die", True)])
def test_launcher_prepares_the_job_if_the_writer_process_fails(
    images: pathlib.Path, tmp_path: pathlib.Path, function: str, is_read_here: bool
) -> None:
    name = f"prepare_aside.{function}" if function == "_prepare" else function
    done = run_replaced(name, "convert", "-q", "--input", images, "--output", tmp_path / "out")
    assert done.stdout == f"0 {is_read_here}\n", done.stderr
    assert (tmp_path / "out" / "catalog.json").exists()


def test_signal_ends_the_command_and_the_process_that_prepares_its_job(
    images: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    done = run_replaced("interrupt", "convert", "--input", images, "--output", tmp_path / "out")
    pid, message = done.stderr.splitlines()
    assert (done.stdout.split()[0], message) == ("143", "imagebeam: terminated; run the same command again")
    assert not forked_commands.is_running(pid)
    assert not (tmp_path / "out").exists()
