"""Commands whose output nobody reads, or whose standard streams are closed: they do and return what they always do."""

from __future__ import annotations

import os
import pathlib
import subprocess
from collections.abc import Iterator, Mapping

import pytest

from imagebeam import catalog as catalog_lib
from imagebeam.pipelines import verify_dataset
from tests import command_line, datasets, image_sets, written_files

GONE, CLOSED = "gone", "closed"  # a pipe without a reader; no descriptor at all
Redirection = Mapping[int, str]  # by the number of a standard stream; those left out are files of the test
REDIRECTIONS: dict[str, Redirection] = {
    "stdout-unread": {1: GONE},
    "stderr-unread": {2: GONE},
    "both-unread": {1: GONE, 2: GONE},
    "stdout-closed": {1: CLOSED},
    "stderr-closed": {2: CLOSED},
    "both-closed": {1: CLOSED, 2: CLOSED},
    "all-closed": {0: CLOSED, 1: CLOSED, 2: CLOSED},
}
COMMANDS = {  # arguments, exit code
    "convert": ("convert --workers 1 --input {in} --output {out}", 0),
    "convert-nothing": ("convert --input {none} --output {out}", 2),
    "verify-broken": ("verify {broken}", 4),
    "version": ("--version", 0),
    "no-command": ("", 2),
}
# The streams of all commands are prepared and left in one place (terminal.py). So the quickest command is tried with
# each way to lose them; one that writes files where they may take the number of a stream; all with the two worst.
LOST_BY_ALL = ("both-unread", "all-closed")
LOST_BY = {"version": (*REDIRECTIONS,), "convert": (*LOST_BY_ALL, "stdout-closed", "stderr-closed")}
CASES = [
    pytest.param(*command, REDIRECTIONS[lost], id=f"{name}-{lost}")
    for name, command in COMMANDS.items()
    for lost in LOST_BY.get(name, LOST_BY_ALL)
]
BENCH = "bench {dataset} --batch-size 4 --image-size 16 --seconds 0.01 --threads 1"


@pytest.fixture
def gone() -> Iterator[int]:
    """The write end of a pipe whose read end is closed."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("shared")
    image_sets.write_folder(folder / "in", per_label=5)
    image_sets.write_folder(folder / "bad", per_label=1)
    (folder / "bad" / "cat" / "0.jpg").write_bytes(b"no image")
    for name in ("dataset", "broken"):
        datasets.make(folder / "in", folder / name)
    shard = next((folder / "broken").glob("train-*"))
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    return folder


def split(arguments: str, shared: pathlib.Path, out: pathlib.Path) -> list[str]:
    """Returns the arguments of a command with the paths of this test."""
    places = {name: str(shared / name) for name in ("in", "bad", "none", "dataset", "broken")}
    return [each.format(**places, out=out) for each in arguments.split()]


def run(
    arguments: str, redirection: Redirection, gone: int, shared: pathlib.Path, out: pathlib.Path
) -> tuple[int, str]:
    """Returns the exit code of a command, and what it wrote to the streams that are left.

    A shell starts it, so that its Python begins with these streams. A path in `redirection` is written to.
    """
    signs = {GONE: f"&{gone}", CLOSED: "&-"}
    shell = " ".join(['exec "$@"', *(f"{number}>{signs.get(to, to)}" for number, to in redirection.items())])
    command = ["bash", "-c", shell, "bash", *command_line.IMAGEBEAM, *split(arguments, shared, out)]
    done = subprocess.run(command, cwd=command_line.ROOT, pass_fds=(gone,), capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(("arguments", "exit_code", "redirection"), CASES)
def test_command_without_a_reader_does_its_work_and_keeps_its_exit_code(
    shared: pathlib.Path, tmp_path: pathlib.Path, gone: int, arguments: str, exit_code: int, redirection: Redirection
) -> None:
    code, shown = run(arguments, redirection, gone, shared, tmp_path / "out")
    assert code == exit_code, shown
    for complaint in ("Traceback", "Broken pipe", "Bad file descriptor", "Exception ignored"):
        assert complaint not in shown
    if arguments.startswith("convert") and exit_code == 0:
        assert verify_dataset.verify(str(tmp_path / "out")).problems == ()
        # a lock or a shard that took the number of a closed stream would get what is printed
        assert datasets.shard_digests(tmp_path / "out") == datasets.shard_digests(shared / "dataset")
        assert sorted(os.listdir(tmp_path / "out")) == sorted(os.listdir(shared / "dataset"))
    else:
        assert not (tmp_path / "out" / catalog_lib.CATALOG_FILE).exists()


@pytest.mark.slow
def test_bench_without_a_reader_keeps_its_exit_code(shared: pathlib.Path, tmp_path: pathlib.Path, gone: int) -> None:
    pytest.importorskip("tensorflow")
    # so that files of TensorFlow take the numbers of streams
    assert run(BENCH, REDIRECTIONS["all-closed"], gone, shared, tmp_path) == (0, "")


def test_pipe_to_head_with_pipefail_fails_where_the_dataset_is_broken(shared: pathlib.Path) -> None:
    imagebeam = " ".join(command_line.IMAGEBEAM)
    shell = f"set -o pipefail; {imagebeam} verify {shared / 'broken'} 2>&1 | head -n 1"
    done = command_line.run_other("bash", "-c", shell)
    assert done.returncode == 4
    assert done.stdout.startswith("imagebeam: train-")
    assert done.stderr == ""


def test_list_of_examples_that_nobody_reads_ends_early_with_141(
    tmp_path: pathlib.Path, gone: int, shared: pathlib.Path
) -> None:
    image_sets.write_folder(tmp_path / "in", per_label=60)
    dataset = tmp_path / "dataset"
    datasets.make(tmp_path / "in", dataset, output={"num_shards": 1})
    index = next(dataset.glob("index/*")).read_bytes()
    last = int.from_bytes(index[-16:-8], "little")
    shard = next(dataset.glob("train-*"))
    written_files.flip(shard, last + 20)
    command = f"inspect {dataset} -n 120"
    assert run(command, {1: GONE}, gone, shared, tmp_path)[0] == 141  # the broken record at the end was not reached
    assert run(command, {1: os.devnull}, gone, shared, tmp_path)[0] == 4
    saving = f"{command} --save-to {tmp_path}/saved"
    assert run(saving, {1: GONE}, gone, shared, tmp_path)[0] == 4  # it has more to do than to print


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="has no device that is always full")
@pytest.mark.parametrize(("name", "exit_code"), [("convert", 1), ("verify-broken", 4), ("version", 1)])
def test_output_to_a_full_disk_is_an_error(
    shared: pathlib.Path, tmp_path: pathlib.Path, gone: int, name: str, exit_code: int
) -> None:
    code, shown = run(COMMANDS[name][0], {1: "/dev/full"}, gone, shared, tmp_path / "out")
    assert code == exit_code, shown
    complaint = "imagebeam: cannot write to standard output (No space left on device); part of it is missing"
    complaint += "; the dataset is committed" if name == "convert" else ""
    assert (complaint in shown.splitlines()) == (name != "verify-broken")
    assert (tmp_path / "out" / catalog_lib.CATALOG_FILE).exists() == (name == "convert")
