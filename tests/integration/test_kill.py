"""Runs that are killed: the dataset appears whole or not at all, and the next run ends with the same bytes.

tests/unit/transforms/commit/test_commit_dataset.py ends a commit before each of its changes to the disk.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import random
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable

import pytest

from imagebeam import catalog as catalog_lib
from imagebeam.pipelines import verify_dataset
from tests import command_line, datasets, image_sets, patience
from tests.unit.transforms.shard.test_crash_isolation import HEIC, write_plugin

NUM_SHARDS = 12


@dataclasses.dataclass(frozen=True)
class Uninterrupted:
    """A run that was not disturbed."""

    images: pathlib.Path
    output: pathlib.Path
    seconds: float


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Uninterrupted:
    """360 images of 50 kB, so that the writing takes a while."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    filler = random.Random(0).randbytes(50_000)  # what follows the end of an image is kept
    for key in image_sets.write_folder(folder / "in", labels=["cat", "dog", "owl"], per_label=120):
        with open(folder / "in" / key, "ab") as file:
            file.write(filler)
    command_line.succeed("--version")  # starts the server of forked commands, which is not to be measured
    begin = time.monotonic()
    finish(start(folder / "in", folder / "out"))
    return Uninterrupted(folder / "in", folder / "out", time.monotonic() - begin)


def start(images: pathlib.Path, output: pathlib.Path) -> command_line.Process:
    """Starts a run in a process group of its own, as a shell does."""
    where = ["--input", images, "--output", output, "--set", f"output.num_shards={NUM_SHARDS}"]
    return command_line.start("convert", "--workers", "2", *where)


def finish(process: command_line.Process, exit_code: int = 0) -> str:
    """Waits for the end; returns what was written to standard error."""
    return command_line.finish(process, exit_code).stderr


def assert_whole_or_not_there(output: pathlib.Path) -> None:
    if (output / catalog_lib.CATALOG_FILE).exists():
        assert verify_dataset.verify(str(output)).problems == ()


def assert_same_dataset(output: pathlib.Path, expected: pathlib.Path) -> None:
    assert datasets.shard_digests(output) == datasets.shard_digests(expected)
    assert verify_dataset.verify(str(output)).problems == ()
    paths, expected_paths = ({path.relative_to(root) for path in root.rglob("*")} for root in (output, expected))
    assert paths == expected_paths  # nothing is left behind


def wait_a_while(process: command_line.Process, output: pathlib.Path, longest: float, rng: random.Random) -> None:
    del process, output
    time.sleep(rng.uniform(0.3, longest))


def wait_for_files(process: command_line.Process, output: pathlib.Path, longest: float, rng: random.Random) -> None:
    """Waits until some number of files has appeared: most of them do so in the last quarter of a run."""
    seen: set[str] = set()
    number = rng.randint(1, 5 * NUM_SHARDS)
    while len(seen) < number and process.poll() is None:
        seen.update(os.path.join(parent, name) for parent, _, names in os.walk(output) for name in names)
        time.sleep(rng.uniform(0, 0.002))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wait", "seed"),
    [
        *(pytest.param(wait_a_while, seed, id=f"after-a-while-{seed}") for seed in range(2)),
        *(pytest.param(wait_for_files, seed, id=f"after-some-files-{seed}") for seed in range(3)),
    ],
)
def test_runs_killed_twice_end_with_the_shards_of_an_uninterrupted_one(
    uninterrupted: Uninterrupted, tmp_path: pathlib.Path, wait: Callable[..., None], seed: int
) -> None:
    rng = random.Random(seed)
    output = tmp_path / "out"
    for _ in range(2):
        process = start(uninterrupted.images, output)
        wait(process, output, uninterrupted.seconds, rng)
        process.kill()  # the main process alone
        process.communicate()
        assert_whole_or_not_there(output)
    finish(start(uninterrupted.images, output))
    assert_same_dataset(output, uninterrupted.output)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_writer_processes_of_killed_run_end_with_it(uninterrupted: Uninterrupted, tmp_path: pathlib.Path) -> None:
    process = start(uninterrupted.images, tmp_path / "out")
    children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")
    patience.wait_until(lambda: len(children.read_text().split()) == 2)
    writers = children.read_text().split()
    time.sleep(patience.MOMENT_SEC)  # until they run
    process.kill()
    process.communicate()
    patience.wait_until(lambda: not any(map(patience.is_running, writers)))


def interrupt_while_writing(images: pathlib.Path, output: pathlib.Path, number: signal.Signals) -> command_line.Process:
    """Starts a run and sends a signal to its whole group, as Ctrl-C does, when some of its shards are finished.

    The run is stopped while this looks, and where it was too fast for that another one is started.
    """
    for _ in patience.again():
        process = start(images, output)
        if is_interrupted(process, output, number):
            break
        finish(process)
        shutil.rmtree(output)
    return process


def is_interrupted(process: command_line.Process, output: pathlib.Path, number: signal.Signals) -> bool:
    """Sends the signal while the run writes; returns False if it ended without being seen at it.

    Only the launcher is stopped, not its group: a child that leaves the group between the two signals (setsid) would
    never be continued.
    """
    done = ".imagebeam/staging-*/*.done.json"
    for _ in patience.again():
        if process.poll() is not None:
            break
        if not any(output.glob(done)):  # stopped and continued at short intervals, a run on a busy machine gets nowhere
            time.sleep(0.005)
            continue
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(process.pid, signal.SIGSTOP)
            is_writing = 0 < len(list(output.glob(done))) < NUM_SHARDS
            if is_writing:
                os.killpg(process.pid, number)
            os.kill(process.pid, signal.SIGCONT)
            return is_writing
    return False


@pytest.mark.parametrize(
    ("number", "cause"),
    [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated"), (signal.SIGHUP, "stopped by SIGHUP")],
)
def test_interrupted_run_says_how_to_go_on(
    uninterrupted: Uninterrupted,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
    cause: str,
) -> None:
    monkeypatch.setenv("IMAGEBEAM_SUMMARY_JSON", str(tmp_path / "summary.json"))
    process = interrupt_while_writing(uninterrupted.images, tmp_path / "out", number)
    complaint = finish(process, exit_code=128 + number)
    message = f"imagebeam: {cause}; finished shards are kept, run the same command again to go on"
    assert complaint.splitlines()[1:] == [message]
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["state"], summary["exit_code"]) == ("interrupted", 128 + number)
    assert summary["message"] == message.removeprefix("imagebeam: ")
    assert summary["counts"]["written"] == 0 and summary["durations"]["committing"] is None
    assert not list(tmp_path.glob("out/.imagebeam/run-*")) and not (tmp_path / "out/.imagebeam/lock").exists()
    finish(start(uninterrupted.images, tmp_path / "out"))
    assert_same_dataset(tmp_path / "out", uninterrupted.output)


# Python prints an exception of a weak reference's callback, as one of `__del__`, and goes on.
INTERRUPT_IN_CALLBACK = """
import os, pathlib, signal, sys, threading, time, weakref
from imagebeam.pipelines import cli
def interrupt(_):
    os.kill(os.getpid(), signal.SIGHUP)
    time.sleep(0)
def call_back(*_):
    gone = type("Gone", (), {})()
    reference = weakref.ref(gone, interrupt)
    del gone
def wait_for_shard():
    while not any(pathlib.Path(sys.argv[1]).glob(".imagebeam/staging-*/*.done.json")):
        time.sleep(0.002)
    os.kill(os.getpid(), signal.SIGUSR1)
signal.signal(signal.SIGUSR1, call_back)
threading.Thread(target=wait_for_shard, daemon=True).start()
sys.exit(cli.main(sys.argv[2:]))
"""


def test_interrupt_swallowed_in_a_callback_stops_the_run_before_it_commits(
    uninterrupted: Uninterrupted, tmp_path: pathlib.Path
) -> None:
    output = tmp_path / "out"
    arguments = ["convert", "--workers", "2", "--input", uninterrupted.images, "--output", output]
    arguments += ["--set", f"output.num_shards={NUM_SHARDS}"]
    shown = finish(command_line.start_program(INTERRUPT_IN_CALLBACK, output, *arguments), 128 + signal.SIGHUP)
    assert "Exception ignored in" in shown and "\nimagebeam: stopped by SIGHUP; finished shards are kept" in shown
    assert not (output / catalog_lib.CATALOG_FILE).exists()
    finish(start(uninterrupted.images, output))
    assert_same_dataset(output, uninterrupted.output)


# Takes from a process of root what lets it write where the permissions do not: CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH.
OBEY_PERMISSIONS = """
import ctypes, sys
from imagebeam.pipelines import cli
if sys.platform.startswith("linux"):
    libc, header, sets = ctypes.CDLL(None), (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, sets) == 0
    for index in range(3):  # effective, permitted, inheritable
        sets[index] &= ~0b110
    assert libc.capset(header, sets) == 0
sys.exit(cli.main())
"""


@pytest.mark.parametrize(
    ("locked", "exit_code", "complaint"),
    [
        ("", 2, "--output cannot be written: Permission denied, '{}/.imagebeam'"),  # before the run
        ("index", 1, "Permission denied: .* finished shards are kept, run the same command"),  # at the commit
    ],
)
def test_command_goes_on_once_a_read_only_folder_can_be_written(
    tmp_path: pathlib.Path, locked: str, exit_code: int, complaint: str
) -> None:
    image_sets.write_folder(tmp_path / "in", per_label=2)
    output = tmp_path / "out"
    (output / locked).mkdir(parents=True)
    (output / locked).chmod(0o555)
    arguments = ["convert", "--workers", "1", "--input", str(tmp_path / "in"), "--output", str(output)]
    shown = finish(command_line.start_program(OBEY_PERMISSIONS, *arguments), exit_code)
    assert re.search(complaint.format(output), shown)
    assert not (output / catalog_lib.CATALOG_FILE).exists()
    (output / locked).chmod(0o755)
    command_line.run(*arguments, exit_code=0)
    assert verify_dataset.verify(str(output)).problems == ()
    assert not (output / ".imagebeam").exists()


# --- decoders that crash ---------------------------------------------------------------------------------------------


pytestmark = pytest.mark.integration


def test_image_that_killed_a_worker_of_beam_is_named_by_the_same_command(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_plugin(tmp_path, monkeypatch)
    image_sets.write_folder(tmp_path / "images", per_label=6)
    (tmp_path / "images/cat/a.heic").write_bytes(HEIC + b"kill")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "plugin"))
    settings = [each for text in ("output.num_shards=2", "rejects.max_fraction=0.5") for each in ("--set", text)]
    command = ["convert", "--quiet", "--input", tmp_path / "images", "--output", tmp_path / "out", *settings]
    command += ["--direct_running_mode=multi_processing", "--direct_num_workers=1"]
    first = command_line.end(1, *command)
    assert first.stderr.endswith("an image may have killed a worker: the same command finds and rejects it\n")
    second = command_line.call(*command)
    assert (second.returncode, second.stderr) == (0, "")
    (reject,) = map(json.loads, (tmp_path / "out" / "rejects.jsonl").read_text().splitlines())
    assert (reject["key"], reject["reason"]) == ("cat/a.heic", "crashed")
    assert len(list(datasets.read(tmp_path / "out", "train"))) == 12
    assert not (tmp_path / "out" / ".imagebeam").exists()
