"""Two runs on one output at the same time: one commits, and the other one says why not. See also test_hdfs.py."""

from __future__ import annotations

import contextlib
import functools
import itertools
import pathlib
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import fsspec
import pytest

from imagebeam import catalog as catalog_lib
from imagebeam import errors, storage
from imagebeam.pipelines import verify_dataset
from imagebeam.pipelines.runs import output_lock
from imagebeam.transforms.output import output_folder
from imagebeam.transforms.publish import commit_rights, run_records
from tests import command_line, image_sets, races
from tests.servers import azurite, gcs, hdfs

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[gcs.Emulator]:
    with gcs.run(tmp_path_factory.mktemp("gcs")) as emulator:
        emulator.bucket("pets")
        yield emulator


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("images")
    image_sets.write_folder(folder, per_label=100)
    return folder


def test_two_runs_on_gs_commit_one_whole_dataset(emulator: gcs.Emulator) -> None:
    with emulator.process() as call:
        for number, case in enumerate(races.CASES_OF_STORAGES):
            call(races.play, f"gs://pets/races/{number}", *case)


@contextlib.contextmanager
def taken_over_just_before(uri: str, operation: str) -> Iterator[None]:
    """Lets another run take over the record at `uri` just before the storage does `operation`, as one that was stopped.

    Between the look of this run at its own record, and its request.
    """
    store = storage.storage_of(uri)
    original = getattr(store, operation)

    def stopped(*arguments: Any) -> Any:
        if arguments[0] == uri:
            store.write_whole(uri, run_records.RunRecord("other", 1, "elsewhere", time.time()).encode())
        return original(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, operation, stopped)
        yield


def run_at(uri: str) -> str:
    found = run_records.read_record(uri)
    assert found is not None
    return found.run


def leave_a_takeover(output: str) -> None:
    """Neither the lock nor the commit lock of another run is overwritten or removed, whenever this run was stopped."""
    paths = output_folder.OutputPaths(output)
    for operation in ("_put_over", "remove"):
        with taken_over_just_before(paths.lock, operation), output_lock.hold(paths.metadata, "mine") as lock:
            if operation == "_put_over":
                with pytest.raises(errors.BusyError, match=f"^another run took over the lock {paths.lock}, which was "):
                    lock.renew()
        assert run_at(paths.lock) == "other"
        storage.storage_of(output).remove(paths.lock)
        commit_lock = commit_rights.CommitLock(paths, "mine", "f1")
        with taken_over_just_before(paths.commit_lock, operation), commit_lock.held():
            if operation == "_put_over":
                with pytest.raises(errors.BusyError, match=f"^another run took over the commit to {output} "):
                    commit_lock.renew()
        assert run_at(paths.commit_lock) == "other"
        storage.storage_of(output).remove(paths.commit_lock)


def test_run_that_was_stopped_between_look_and_write_leaves_a_takeover_on_gs(emulator: gcs.Emulator) -> None:
    with emulator.process() as call:
        call(leave_a_takeover, "gs://pets/stopped")


def _is_written(path: pathlib.Path) -> bool:
    try:
        return path.is_file() and path.stat().st_size > 0  # the lock is empty for a moment
    except FileNotFoundError:
        return False


Place: TypeAlias = tuple[str, dict[str, str], Callable[[], set[str]]]


@pytest.fixture(params=["local", "gs", "az", "hdfs"])
def place(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[Place]:
    """Where to write: the address, the environment for it, and the names of all files there."""

    def found_by(filesystem: Any, root: str) -> set[str]:
        filesystem.invalidate_cache()
        return {path.rpartition("/out/")[2] for path in filesystem.find(root)}

    if request.param == "local":
        root = tmp_path / "out"
        yield str(root), {}, lambda: {str(path.relative_to(root)) for path in root.rglob("*") if _is_written(path)}
    elif request.param == "gs":
        emulator: gcs.Emulator = request.getfixturevalue("emulator")
        bucket: Any = emulator.bucket(f"b{time.monotonic_ns()}")
        environment = {**emulator.environment, "HADOOP_USER_NAME": "nobody"}
        blobs = functools.partial(bucket.list_blobs, prefix="out/")
        yield f"gs://{bucket.name}/out", environment, lambda: {blob.name.removeprefix("out/") for blob in blobs()}
    elif request.param == "az":
        with azurite.run() as connection:
            filesystem = fsspec.filesystem("az", connection_string=connection)
            filesystem.mkdir("pets")
            names = functools.partial(found_by, filesystem, "pets/out")
            yield "az://pets/out", {"AZURE_STORAGE_CONNECTION_STRING": connection}, names
    else:
        with hdfs.run(tmp_path) as cluster:
            yield f"{cluster.address}/out", {}, functools.partial(found_by, cluster.filesystem(), "/out")


def start(images: pathlib.Path, output: str, environment: dict[str, str], *more: str) -> command_line.Process:
    where = ["--input", images, "--output", output, "--workers", "1", "--set", "output.num_shards=4"]
    return command_line.start("convert", *where, *more, environment=environment)


def stop_once(process: command_line.Process, is_there: Callable[[], bool]) -> bool:
    """Stops the launcher of a run as soon as a file is there; returns whether that was before the run ended."""
    while process.poll() is None:
        if is_there():
            process.send_signal(signal.SIGSTOP)
            return process.poll() is None
        time.sleep(0.001)
    return False


def test_second_of_two_runs_at_once_ends_with_exit_code_5(images: pathlib.Path, place: Place) -> None:
    output, environment, names = place
    first = start(images, output, environment)
    assert stop_once(first, lambda: ".imagebeam/lock" in names())  # however slow the second one starts
    complaint = command_line.finish(start(images, output, environment, "--set", "split.seed=1"), 5).stderr
    first.send_signal(signal.SIGCONT)
    assert "another run writes to this output" in complaint and f"(process {first.pid} on " in complaint
    command_line.finish(first, 0)
    assert not {name for name in names() if name.startswith(".imagebeam")}
    command_line.run("verify", output, environment=environment, exit_code=0)


def test_run_that_lost_its_lock_leaves_the_others_dataset(images: pathlib.Path, emulator: gcs.Emulator) -> None:
    for number in itertools.count():
        bucket: Any = emulator.bucket(f"lost{number}")
        output = f"gs://lost{number}/out"

        def reports(bucket: Any = bucket) -> list[Any]:
            return [blob for blob in bucket.list_blobs(prefix="out/.imagebeam/") if "/run-" in blob.name]

        loser = start(images, output, emulator.environment)
        if stop_once(loser, lambda: bool(reports())) and not bucket.blob("out/catalog.json").exists():
            break
        loser.kill()
    bucket.blob("out/.imagebeam/lock").delete()  # as if its launcher had died, and the lock had been taken over
    command_line.finish(start(images, output, emulator.environment, "--set", "split.seed=1"), 0)
    loser.send_signal(signal.SIGCONT)
    complaint = command_line.finish(loser, 5).stderr
    message = f"{output} has changed since this run was planned: another run committed to it: out, 200 images, written "
    assert message in complaint
    with emulator.process() as call:
        assert call(seed_of, output) == 1


def seed_of(output: str) -> int:
    """Returns the seed of the dataset, which is whole."""
    assert verify_dataset.verify(output).problems == ()
    return catalog_lib.load_catalog(output).config["split"]["seed"]
