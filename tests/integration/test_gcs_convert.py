"""Conversions from and to gs:// write what a local run writes, whatever happens on the way. Runs on an emulator."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from imagebeam import catalog as catalog_lib
from imagebeam import storage
from tests import command_line, datasets, image_sets, lost_answers, patience, snapshot_sets
from tests.datasets import NUM_IMAGES, ODD_NAMES, assert_same, write_images
from tests.servers import faults, gcs

pytestmark = pytest.mark.integration

NUM_SHARDS = 6
NO_BUCKET = "there is no bucket 'nothing'; check the address"
SETTINGS = ("--set", f"output.num_shards={NUM_SHARDS}", "--set", "rejects.max_fraction=0.02")  # one of the images


@dataclasses.dataclass(frozen=True)
class Bucket:
    """The same images on the local disk and in a bucket, and the dataset of a local run."""

    emulator: gcs.Emulator
    call: Callable[..., Any]  # in a process that uses the emulator: a process of its own takes seconds to start
    bucket: Any
    images: pathlib.Path
    expected: pathlib.Path

    def run(self, *arguments: str, exit_code: int = 0, **environment: str) -> command_line.Completed:
        """Runs a command on the emulator, or in a process of its own on the proxy that `environment` names."""
        if not environment:
            completed: command_line.Completed = self.call(command_line.call, *arguments)
            assert completed.returncode == exit_code, completed.stderr
            return completed
        environment = self.emulator.environment | environment
        return command_line.run(*arguments, environment=environment, exit_code=exit_code)

    def convert(self, source: str, output: str, *more: str, **options: Any) -> command_line.Completed:
        """Runs `imagebeam convert`; `options` are those of `run`."""
        settings = [*SETTINGS, "--workers", "2", *more]
        return self.run("convert", "--input", source, "--output", output, *settings, **options)

    def names(self, prefix: str) -> set[str]:
        return {blob.name for blob in self.bucket.list_blobs(prefix=f"{prefix}/")}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    """NUM_IMAGES images of two classes, some of them with odd names, one of them broken."""
    folder = tmp_path_factory.mktemp("gcs")
    write_images(folder / "in")
    (folder / "in" / "dog" / "1.jpg").write_bytes(b"<html>404 Not Found</html>")
    datasets.make(folder / "in", folder / "out", output={"num_shards": NUM_SHARDS}, rejects={"max_fraction": 0.02})
    with gcs.run(folder) as emulator, emulator.process() as call:
        bucket = emulator.bucket("pets")
        gcs.upload(folder / "in", bucket, "images")
        yield Bucket(emulator, call, bucket, folder / "in", folder / "out")


@pytest.mark.parametrize(("source", "output"), [("gs", "local"), ("local", "gs"), ("gs", "gs")])
def test_dataset_is_that_of_a_local_run_and_each_object_is_read_once(
    stored: Bucket, source: str, output: str, tmp_path: pathlib.Path
) -> None:
    images = str(stored.images) if source == "local" else "gs://pets/images"
    prefix = f"from-{source}"
    target = str(tmp_path / "out") if output == "local" else f"gs://pets/{prefix}"
    before = len(stored.emulator.requests())
    completed = stored.convert(images, target)
    assert f"listed    {NUM_IMAGES} images" in completed.stdout
    requests = [line.split() for line in stored.emulator.requests()[before:]]
    downloads = [address for _, _, address, *_ in requests if "alt=media" in address and "/images%2F" in address]
    assert len(downloads) == (NUM_IMAGES if source == "gs" else 0)
    assert all("generation=" in address for address in downloads)
    assert output == "gs" or len(requests) - len(downloads) <= 20
    moves = [address for method, _, address, *_ in requests if method == "POST" and "/moveTo/o/" in address]
    of_shards = [each for each in moves if any(suffix in each for suffix in (".tfrecord", ".index", ".sizes"))]
    assert len(of_shards) == 3 * NUM_SHARDS * (output == "gs")
    assert not any("/rewriteTo/" in address for _, _, address, *_ in requests)
    found = tmp_path / "out" if output == "local" else gcs.download(stored.bucket, prefix, tmp_path / "found")
    assert_same(found, stored.expected)
    catalog, expected = (catalog_lib.load_catalog(str(folder)) for folder in (found, stored.expected))
    assert (catalog.splits, catalog.labels, catalog.counts) == (expected.splits, expected.labels, expected.counts)
    assert not any("/.imagebeam/" in name for name in stored.names(prefix))
    assert "holds this dataset already" in stored.convert(images, target).stdout


def test_glob_and_manifest_are_read_from_gs(stored: Bucket, tmp_path: pathlib.Path) -> None:
    completed = stored.convert("gs://pets/images/*/[0-9]*.png", str(tmp_path / "glob"))
    assert f"listed    {NUM_IMAGES // 5} images" in completed.stdout
    lines = [json.dumps({"image": f"cat/{name}", "label": "cat"}) for name in ODD_NAMES]
    stored.bucket.blob("images/list.jsonl").upload_from_string("\n".join(lines))
    try:
        manifest = ["--set", "source.by=manifest", "--set", "label.by=column", "--set", "label.column=label"]
        stored.convert("gs://pets/images/list.jsonl", str(tmp_path / "manifest"), *manifest)
    finally:
        stored.bucket.blob("images/list.jsonl").delete()
    assert sorted(datasets.keys(tmp_path / "manifest")) == sorted(f"cat/{name}" for name in ODD_NAMES)


@pytest.mark.slow
def test_faults_change_nothing(stored: Bucket, tmp_path: pathlib.Path) -> None:
    with faults.FaultyProxy(stored.emulator.url, seed=1, fraction=0.15) as proxy:
        stored.convert("gs://pets/images", "gs://pets/faulty", STORAGE_EMULATOR_HOST=proxy.url)
        counts = proxy.counts
    assert sum(counts[kind] for kind in faults.KINDS) >= 10, counts
    assert_same(gcs.download(stored.bucket, "faulty", tmp_path / "found"), stored.expected)


def test_expired_token_is_renewed(stored: Bucket, tmp_path: pathlib.Path) -> None:
    with faults.FaultyProxy(stored.emulator.url, seed=1, fraction=0, token_requests=20) as proxy:
        account = {
            "type": "service_account",
            "client_email": "trainer@test",
            "private_key": new_private_key(),
            "token_uri": f"{proxy.url}/token",
        }
        (tmp_path / "account.json").write_text(json.dumps(account))
        stored.convert(
            "gs://pets/images",
            "gs://pets/expired",
            STORAGE_EMULATOR_HOST="",  # if set, the client would be anonymous
            API_ENDPOINT_OVERRIDE=proxy.url,
            GOOGLE_APPLICATION_CREDENTIALS=str(tmp_path / "account.json"),
        )
        counts = proxy.counts
    assert counts[faults.EXPIRED] > 3, counts
    assert counts["tokens"] > 3, counts
    assert_same(gcs.download(stored.bucket, "expired", tmp_path / "found"), stored.expected)


def new_private_key() -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(encoding, form, serialization.NoEncryption()).decode()


def test_operation_is_done_once_whatever_answer_is_lost(stored: Bucket) -> None:
    with faults.FaultyProxy(stored.emulator.url, seed=0, fraction=0) as proxy:
        options = {"endpoint_url": proxy.url, "token": "anon", "project": "test"}
        lost_answers.check_server(storage.storage_of("gs://pets", options), "gs://pets/lost", proxy)


@pytest.mark.slow
def test_storage_that_is_restarted_is_waited_for(stored: Bucket, tmp_path: pathlib.Path) -> None:
    before = len(stored.emulator.requests())

    def restart() -> None:
        patience.wait_until(lambda: len(stored.emulator.requests()) >= before + NUM_IMAGES // 3)
        with stored.emulator.down():
            time.sleep(patience.MOMENT_SEC)  # several attempts

    restarting = threading.Thread(target=restart, daemon=True)
    restarting.start()
    stored.convert("gs://pets/images", "gs://pets/restarted")
    restarting.join()
    assert_same(gcs.download(stored.bucket, "restarted", tmp_path / "found"), stored.expected)


def test_writer_of_beam_writes_to_gs(stored: Bucket, tmp_path: pathlib.Path) -> None:
    split = ["--set", "split.by=hash", "--set", "split.fractions={train: 0.8, test: 0.2}"]
    stored.convert("gs://pets/images", "gs://pets/beam", "--set", "output.writer=beam", *split)
    found = gcs.download(stored.bucket, "beam", tmp_path / "found")
    keys = [key for name in ("train", "test") for key in datasets.keys(found, name)]
    assert sorted(keys) == sorted(datasets.keys(stored.expected))


def publish_twice(folder: str) -> None:
    """Publishes two contents at one address, as two runs do that commit at once."""
    store = storage.storage_of(folder)
    for content in (b"one", b"two"):
        store.write_whole(f"{folder}/staged", content)
        store.publish(f"{folder}/staged", f"{folder}/catalog.json")


def test_one_of_two_commits_at_once_fails(stored: Bucket) -> None:
    with pytest.raises(FileExistsError, match=r"gs://pets/raced/catalog.json was written by another run"):
        stored.call(publish_twice, "gs://pets/raced")
    assert stored.bucket.blob("raced/catalog.json").download_as_bytes() == b"one"


def test_object_that_is_replaced_after_the_listing_is_a_reject(stored: Bucket, tmp_path: pathlib.Path) -> None:
    gcs.upload(stored.images / "cat", stored.bucket, "changing/cat")
    environment, addresses = stored.emulator.environment, ("gs://pets/changing", tmp_path / "out")
    command_line.finish(command_line.start_program(REPLACE, *addresses, environment=environment), 0)
    assert datasets.rejects(tmp_path / "out") == {"cat/21.jpg": "changed", "cat/22.jpg": "not_found"}


REPLACE = """
import sys
from google.cloud import storage
from imagebeam.pipelines import convert
from imagebeam.transforms.shard import read_ahead, writer_processes

read = read_ahead._read_remote
def replace_and_read(store, ref):
    bucket = storage.Client().bucket("pets")
    if ref.key == "cat/21.jpg":
        bucket.blob("changing/cat/21.jpg").upload_from_string(bucket.blob("changing/cat/23.jpg").download_as_bytes())
    if ref.key == "cat/22.jpg":
        bucket.blob("changing/cat/22.jpg").delete()
    return read(store, ref)
read_ahead._read_remote = replace_and_read
writer_processes.current = lambda: None  # the shards are written in this process
sections = {"source": {"uri": sys.argv[1]}, "output": {"uri": sys.argv[2]}, "rejects": {"max_fraction": 0.1}}
convert.convert(sections, workers=1)
"""


@pytest.mark.slow
def test_second_run_on_the_same_output_is_refused(stored: Bucket) -> None:
    lease = {"process": 1, "host": "elsewhere", "token": "x", "time": time.time()}
    lock = stored.bucket.blob("locked/.imagebeam/lock")
    lock.upload_from_string(json.dumps(lease))
    completed = stored.convert("gs://pets/images", "gs://pets/locked", exit_code=5)
    assert "another run writes to this output (process 1 on elsewhere" in completed.stderr
    lock.upload_from_string(json.dumps(lease | {"time": 1.0}))  # a run that was killed long ago
    stored.convert("gs://pets/images", "gs://pets/locked")


def wait_for(part: str, stored: Bucket, folder: str, process: command_line.Process) -> None:
    """Waits until an object in a folder has this part in its name, or the process has ended."""
    patience.wait_until(lambda: process.poll() is not None or any(part in name for name in stored.names(folder)))


@pytest.mark.slow
def test_killed_run_is_continued_by_the_next(stored: Bucket, tmp_path: pathlib.Path) -> None:
    command = ["convert", "--input", "gs://pets/images", "--output", "gs://pets/killed", *SETTINGS, "--workers", "1"]
    with faults.FaultyProxy(stored.emulator.url, seed=1, fraction=0, latency_sec=0.05) as proxy:  # slow enough for this
        environment = stored.emulator.environment | {"STORAGE_EMULATOR_HOST": proxy.url}
        process = command_line.start(*command, environment=environment)
        try:
            wait_for(".done.json", stored, "killed", process)
            assert process.poll() is None
        finally:
            process.kill()
            process.wait()
    assert not any(name.endswith("catalog.json") for name in stored.names("killed"))
    done = {name for name in stored.names("killed") if name.endswith(".tfrecord")}
    before = len(stored.emulator.requests())
    stored.convert("gs://pets/images", "gs://pets/killed")
    downloads = [line for line in stored.emulator.requests()[before:] if "alt=media" in line and "/images%2F" in line]
    assert len(done) >= 1
    assert len(downloads) < NUM_IMAGES  # those of finished shards were kept
    of_shards = [line for line in stored.emulator.requests()[before:] if "alt=media" in line and ".tfrecord?" in line]
    assert len(of_shards) == 6  # for the pictures of report.html, four images in each
    assert all(re.search(r" bytes=\d+-\d+$", line) for line in of_shards)
    assert_same(gcs.download(stored.bucket, "killed", tmp_path / "found"), stored.expected)


def test_other_dataset_in_the_output_is_refused_or_overwritten(stored: Bucket, tmp_path: pathlib.Path) -> None:
    datasets.make(stored.images / "cat", tmp_path / "other", label={"by": "none"})
    gcs.upload(tmp_path / "other", stored.bucket, "replaced")
    refused = stored.convert("gs://pets/images", "gs://pets/replaced", exit_code=2)
    assert "holds another dataset" in refused.stderr
    stored.convert("gs://pets/images", "gs://pets/replaced", "--overwrite")
    assert_same(gcs.download(stored.bucket, "replaced", tmp_path / "found"), stored.expected)


def test_verify_and_inspect_take_the_address(stored: Bucket) -> None:
    gcs.upload(stored.expected, stored.bucket, "verified")
    verified = stored.run("verify", "gs://pets/verified").stdout
    assert f"{NUM_IMAGES - 1} records in 6 shards match the catalog" in verified
    assert f"{NUM_IMAGES - 1} images" in stored.run("inspect", "gs://pets/verified").stdout
    shard = next(blob for blob in stored.bucket.list_blobs(prefix="verified/") if blob.name.endswith(".tfrecord"))
    data = bytearray(shard.download_as_bytes())
    data[100] ^= 1
    shard.upload_from_string(bytes(data))
    completed = stored.run("verify", "gs://pets/verified", exit_code=4)
    assert f"{shard.name.removeprefix('verified/')}, byte offset" in completed.stderr


@pytest.mark.parametrize(
    ("source", "output", "message"),
    [
        ("gs://nothing/images", "gs://pets/x", f"--input 'gs://nothing/images': {NO_BUCKET}\n"),
        ("gs://pets/images", "gs://nothing/x", f"--output 'gs://nothing/x': {NO_BUCKET}, or create it\n"),
        ("gs://pets/nothing", "gs://pets/x", "--input 'gs://pets/nothing' cannot be read (there is no gs://pets/not"),
    ],
)
def test_address_that_does_not_exist_is_refused_at_once(stored: Bucket, source: str, output: str, message: str) -> None:
    assert message in stored.convert(source, output, exit_code=2).stderr
    assert not stored.names("x")


def test_run_that_is_terminated_while_it_locks_writes_or_commits_is_continued_by_the_same_command(
    stored: Bucket, tmp_path: pathlib.Path
) -> None:
    output = "gs://pets/terminated"
    arguments = ["--input", str(stored.images), "--output", output, *SETTINGS]
    codes = []
    for step in ("/lock", ".done.json", "/publishing"):
        process = command_line.start("convert", "--workers", "2", *arguments, environment=stored.emulator.environment)
        wait_for(step, stored, "terminated", process)
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.killpg(process.pid, signal.SIGTERM)
        done = command_line.finish(process)
        codes.append(done.returncode)
        assert done.returncode in (0, 128 + signal.SIGTERM) and "Traceback" not in done.stderr, done.stderr
        assert "terminated/.imagebeam/lock" not in stored.names("terminated")
    assert codes[0] == 128 + signal.SIGTERM  # the others may have been too fast for it
    stored.convert(str(stored.images), output)
    assert_same(gcs.download(stored.bucket, "terminated", tmp_path / "out"), stored.expected)
    assert not [name for name in stored.names("terminated") if ".imagebeam" in name]


def test_updates_at_gs_read_what_is_new_and_end_as_the_bucket_is(stored: Bucket, tmp_path: pathlib.Path) -> None:
    image_sets.write_folder(tmp_path / "in", per_label=6)
    gcs.upload(tmp_path / "in", stored.bucket, "nightly")

    def update(*command: str) -> list[str]:
        """Runs a command; returns the addresses of the images that it has read."""
        before = len(stored.emulator.requests())
        stored.run(*command)
        requests = [line.split() for line in stored.emulator.requests()[before:]]
        return [address for _, _, address, *_ in requests if "alt=media" in address and "/nightly%2F" in address]

    convert = ("convert", "--update", "--input", "gs://pets/nightly", "--output", "gs://pets/kept", "--workers", "1")
    assert len(update(*convert)) == 12
    (tmp_path / "in" / "cat" / "new.jpg").write_bytes(image_sets.make_image(50))
    (tmp_path / "in" / "cat" / "1.jpg").write_bytes(image_sets.make_image(51))
    (tmp_path / "in" / "dog" / "2.jpg").unlink()
    for name in ("cat/new.jpg", "cat/1.jpg"):
        stored.bucket.blob(f"nightly/{name}").upload_from_string((tmp_path / "in" / name).read_bytes())
    stored.bucket.blob("nightly/dog/2.jpg").delete()
    assert len(update(*convert)) == 2
    assert update(*convert) == []
    expected = {str(path.relative_to(tmp_path / "in")): path for path in (tmp_path / "in").rglob("*.*")}
    assert update("compact", "gs://pets/kept") == []
    found = gcs.download(stored.bucket, "kept", tmp_path / "found")
    assert [path.name for path in sorted((found / "snapshots").iterdir())] == ["000001", "000002", "000003"]
    for name in ("000002", "000003"):
        living = snapshot_sets.living(found, name)
        assert {key: (each.label, each.data) for key, each in living.items()} == {
            key: (path.parent.name, path.read_bytes()) for key, path in expected.items()
        }
    assert not any("/.imagebeam/" in name for name in stored.names("kept"))
