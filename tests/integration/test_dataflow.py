"""Jobs on Dataflow, from the command to their end: Beam's real client, a stub of the service, the GCS emulator.

The stub runs nothing: where a job is to do its work, the test runs the pipeline that the client staged.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import pathlib
import re
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests import captured_jobs, command_line, datasets, image_sets, patience, snapshot_sets
from tests.datasets import assert_same, write_images
from tests.servers import dataflow, gcs

pytestmark = pytest.mark.integration

IMAGE = "europe-docker.pkg.dev/p/r/worker:latest"


@dataclasses.dataclass(frozen=True)
class Cloud:
    """A bucket with images, the service, and a local run of the same images."""

    emulator: gcs.Emulator
    bucket: Any
    expected: pathlib.Path
    service: dataflow.Service
    output: str  # the address of a folder that is new for each test
    call: Callable[..., Any]  # in a process that uses the emulator

    def start(self, command: str = "convert", *more: str, **options: str) -> command_line.Process:
        options = {"temp_location": "gs://pets/tmp", "sdk_container_image": IMAGE, **options}
        arguments = ["--input", "gs://pets/images", "--output", self.output, *self.service.arguments(**options)]
        settings = ["--set", "output.num_shards=2", *more]
        return command_line.start(command, *arguments, *settings, environment=self.emulator.environment)

    def run(self, command: str = "convert", *more: str, **options: str) -> command_line.Completed:
        return command_line.finish(self.start(command, *more, **options))

    def status(self) -> tuple[int, dict[str, Any]]:
        done: command_line.Completed = self.call(command_line.call, "status", self.output, "--json")
        return done.returncode, json.loads(done.stdout)

    def wait_for_job(self, number: int = 0, looks: int = 1) -> dataflow.Job:
        """Waits until a job was submitted and looked at."""
        patience.wait_until(lambda: len(self.service.jobs) > number and self.service.requests.count("get") >= looks)
        return self.service.jobs[number]

    def do_work(self, job: dataflow.Job) -> command_line.Completed:
        """Runs what the job would run on its workers."""
        return captured_jobs.run(job.options["pipelineUrl"], self.emulator.environment)

    def left(self, prefix: str = "") -> set[str]:
        """Returns the names of objects below the output, or below another prefix."""
        begin = prefix or self.output.removeprefix("gs://pets/") + "/"
        return {blob.name.removeprefix(begin) for blob in self.bucket.list_blobs(prefix=begin)}

    def lock(self) -> dict[str, Any] | None:
        blob = self.bucket.get_blob(self.output.removeprefix("gs://pets/") + "/.imagebeam/lock")
        return None if blob is None else json.loads(blob.download_as_bytes())

    def assert_committed(self, folder: pathlib.Path) -> None:
        """Compares the output with that of a local run; nothing else may be left there."""
        assert_same(gcs.download(self.bucket, self.output.removeprefix("gs://pets/"), folder), self.expected)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, ...]]:
    folder = tmp_path_factory.mktemp("dataflow")
    write_images(folder / "in")
    datasets.make(folder / "in", folder / "out", output={"num_shards": 2})
    with gcs.run(folder) as emulator, emulator.process() as call:
        bucket = emulator.bucket("pets")
        gcs.upload(folder / "in", bucket, "images")
        yield emulator, bucket, folder / "out", call


@pytest.fixture
def cloud(stored: tuple[Any, ...], request: pytest.FixtureRequest) -> Iterator[Cloud]:
    name = re.sub(r"\W+", "-", request.node.name)
    *places, call = stored
    with dataflow.run() as service:
        yield Cloud(*places, service, f"gs://pets/{name}/out", call)


# --- whole lives -----------------------------------------------------------------------------------------------------


def test_job_is_submitted_waited_for_and_committed(cloud: Cloud, tmp_path: pathlib.Path) -> None:
    process = cloud.start("convert", "--summary-json", "gs://pets/told/summary.json")
    job = cloud.wait_for_job()
    assert job.name.startswith("imagebeam-out-") and job.fields["labels"]["imagebeam-dataset"] == "out"
    assert (job.pool["machineType"], job.pool["numThreadsPerWorker"]) == ("e2-standard-2", 4)
    assert cloud.do_work(job).returncode == 0
    job.set(dataflow.DONE)
    done = command_line.finish(process)
    assert done.returncode == 0, done.stderr
    assert f"submitted Dataflow job {job.id}: https://console.cloud.google.com/dataflow/jobs/" in done.stderr
    assert re.search(r"^output +gs://pets/", done.stdout, re.MULTILINE)
    assert re.search(r"^time +[\d.]+ s, [\d,]+ images/s$", done.stdout, re.MULTILINE)
    summary = json.loads(cloud.bucket.blob("told/summary.json").download_as_bytes())
    assert (summary["state"], summary["exit_code"], summary["output"]) == ("committed", 0, cloud.output)
    assert (summary["job"]["id"], summary["job"]["runner"]) == (job.id, "DataflowRunner")
    assert summary["counts"]["written"] == summary["splits"]["train"]["examples"] > 0
    cloud.assert_committed(tmp_path)
    assert cloud.service.most_at_once == 1
    staged = {name.rpartition("/")[2] for name in cloud.left(f"tmp/{job.name}")}
    assert staged == {"pipeline.pb"}  # nothing else of this machine
    assert not [name for name in cloud.left("tmp/") if name.endswith(".trial")]


def test_job_that_nobody_waits_for_goes_on_and_cleans_up(cloud: Cloud, tmp_path: pathlib.Path) -> None:
    submitted = cloud.run("convert", "--no-wait")
    (job,) = cloud.service.jobs
    assert submitted.returncode == 0, submitted.stderr
    assert submitted.stdout.splitlines()[0] == f"job      {job.id}"
    assert submitted.stdout.splitlines()[-1] == f"next: imagebeam status {cloud.output}"
    assert cloud.service.requests == ["create"]
    assert (cloud.lock() or {})["job"]["id"] == job.id
    job.set(dataflow.Step(counters={"images-listed": 9, "images-planned": 9, "images-out": 3}))
    code, status = cloud.status()
    assert (code, status["state"], status["doing"], status["job"]["id"]) == (0, "running", "writing images 3/9", job.id)

    job.created -= datetime.timedelta(hours=1)  # a commit in the second of its submission is of no service
    other = cloud.run("convert", "--set", "output.num_shards=1")
    assert other.returncode == 5, other.stderr
    assert f"Dataflow job {job.id}" in other.stderr and f"gcloud dataflow jobs cancel {job.id} " in other.stderr
    same = cloud.run("convert", "--no_wait_until_finish")
    assert (same.returncode, same.stdout.splitlines()[0]) == (0, f"job      {job.id} (was running already)")
    assert len(cloud.service.jobs) == 1

    waiting = cloud.start()
    cloud.wait_for_job(looks=cloud.service.requests.count("get") + 2)
    assert cloud.do_work(job).returncode == 0
    job.set(dataflow.DONE)
    done = command_line.finish(waiting)
    assert done.returncode == 0, done.stderr
    assert f"Dataflow job {job.id} does the same already" in done.stderr
    assert re.search(r"^output +gs://", done.stdout, re.MULTILINE) and "images/s" not in done.stdout
    cloud.assert_committed(tmp_path)
    code, status = cloud.status()
    assert (code, status["state"], status["job"]) == (0, "committed", None)

    job.set(dataflow.RUNNING)  # as a job is for some seconds after its commit
    ending = cloud.run("convert", "--no-wait")
    assert ending.returncode == 0, ending.stderr
    assert f"waiting for the end of Dataflow job {job.id}" in ending.stderr
    assert (cloud.lock() or {})["job"]["id"] == job.id and len(cloud.service.jobs) == 1


def test_update_whose_launcher_has_left_commits_the_next_snapshot(cloud: Cloud, tmp_path: pathlib.Path) -> None:
    for number in range(6):
        cloud.bucket.blob(f"nights/cat/{number}.jpg").upload_from_string(image_sets.make_image(number))
    arguments = ("--update", "--input", "gs://pets/nights", "--set", "update.compare=content")
    local = ["convert", *arguments, "--output", cloud.output, "--set", "output.num_shards=2", "--workers", "1"]
    assert cloud.call(command_line.call, *local).returncode == 0
    cloud.bucket.blob("nights/cat/0.jpg").delete()
    images = {"1": 1, "2": 102, "new": 103}  # the first one has a new generation only
    for name, number in images.items():
        cloud.bucket.blob(f"nights/cat/{name}.jpg").upload_from_string(image_sets.make_image(number))
    submitted = cloud.run("convert", *arguments, "--no-wait")
    assert submitted.returncode == 0, submitted.stderr
    (job,) = cloud.service.jobs
    code, status = cloud.status()
    assert (code, status["state"], status["job"]["id"]) == (0, "running", job.id)
    assert status["dataset"]["snapshot"] == "000001"
    done = cloud.do_work(job)
    assert done.returncode == 0, done.stderr
    job.set(dataflow.DONE)
    code, status = cloud.status()
    assert (code, status["state"], status["dataset"]["snapshot"]) == (0, "committed", "000002")
    assert not [name for name in cloud.left() if ".imagebeam/" in name]
    found = gcs.download(cloud.bucket, cloud.output.removeprefix("gs://pets/"), tmp_path / "found")
    report = json.loads((found / "snapshots" / "000002" / "report.json").read_text())
    changes = {"added": 1, "changed": 1, "removed": 1, "unchanged": 4, "rejected": 0, "examples": 6}
    assert report["splits"] == {"train": changes}
    living = snapshot_sets.living(found)
    expected = {"1": 1, "2": 102, "3": 3, "4": 4, "5": 5, "new": 103}
    assert {key: each.data for key, each in living.items()} == {
        f"cat/{name}.jpg": image_sets.make_image(number) for name, number in expected.items()
    }


def test_launcher_that_was_killed_is_replaced_by_the_next(cloud: Cloud, tmp_path: pathlib.Path) -> None:
    first = cloud.start()
    job = cloud.wait_for_job()
    first.kill()
    first.wait(patience.HANG_SEC)
    second = cloud.start()
    cloud.wait_for_job(looks=cloud.service.requests.count("get") + 2)
    job.set(dataflow.failed("worker pool lost"))
    attached = command_line.finish(second)
    assert attached.returncode == 1
    assert f"imagebeam: Dataflow job {job.id} failed: worker pool lost (https://" in attached.stderr
    assert "finished shards" not in attached.stderr
    code, status = cloud.status()
    assert (code, status["state"], status["causes"]) == (1, "failed", ["worker pool lost"])
    assert status["job"]["id"] == job.id

    third = cloud.start()
    again = cloud.wait_for_job(1)
    assert cloud.do_work(again).returncode == 0
    again.set(dataflow.DONE)
    assert command_line.finish(third).returncode == 0
    cloud.assert_committed(tmp_path)


def test_refused_job_ends_with_its_own_exit_code(cloud: Cloud) -> None:
    broken = cloud.bucket.blob("images/dog/broken.jpg")
    broken.upload_from_string("<html>404 Not Found</html>")
    try:
        process = cloud.start("convert", "--set", "rejects.max_fraction=0", "--summary-json", "-")
        job = cloud.wait_for_job()
        assert cloud.do_work(job).returncode == 1
    finally:
        broken.delete()
    job.set(dataflow.failed("Traceback (most recent call last):\nimagebeam.errors.TooManyRejectsError: 1 of 41"))
    done = command_line.finish(process)
    assert done.returncode == 3
    assert re.search(r"imagebeam: 1 of \d+ images were rejected", done.stderr)
    summary = json.loads(done.stdout)
    assert (summary["state"], summary["exit_code"], summary["job"]["id"]) == ("refused", 3, job.id)
    assert summary["counts"]["rejected"] == {"not_an_image": 1}
    assert cloud.lock() is None
    code, status = cloud.status()
    assert (code, status["state"], status["job"]["id"]) == (1, "failed", job.id)
    nowhere = cloud.call(command_line.call, "status", "gs://nowhere/out")
    assert (nowhere.returncode, nowhere.stdout) == (2, "")
    assert nowhere.stderr == "imagebeam: gs://nowhere/out: there is no bucket 'nowhere'; check the address\n"
    assert re.match(r"1 of \d+ images were rejected", status["causes"][0])


# --- interruption ----------------------------------------------------------------------------------------------------


def test_terminated_launcher_leaves_the_job_and_its_lock(cloud: Cloud) -> None:
    process = cloud.start("convert", "--summary-json", "-")
    job = cloud.wait_for_job()
    process.send_signal(signal.SIGTERM)
    done = command_line.finish(process)
    assert done.returncode == 128 + signal.SIGTERM
    command = f"gcloud dataflow jobs cancel {job.id} --project=test --region=europe-west1"
    assert done.stderr.splitlines()[-1] == (
        f"imagebeam: terminated; Dataflow job {job.id} goes on: https://console.cloud.google.com/dataflow/jobs/europe-west1/"
        f"{job.id}?project=test; to ask for it: imagebeam status {cloud.output}; to cancel it: {command}"
    )
    summary = json.loads(done.stdout)
    assert (summary["state"], summary["exit_code"], summary["job"]["id"]) == ("interrupted", 143, job.id)
    assert job.state == "JOB_STATE_RUNNING"
    assert (cloud.lock() or {})["job"]["id"] == job.id


def test_interrupted_launcher_cancels_where_asked_to(cloud: Cloud) -> None:
    process = cloud.start("convert", "--cancel-on-interrupt")
    job = cloud.wait_for_job()
    process.send_signal(signal.SIGINT)
    done = command_line.finish(process)
    assert done.returncode == 130
    assert done.stderr.splitlines()[-1] == f"imagebeam: interrupted; Dataflow job {job.id} was cancelled"
    assert (job.state, cloud.lock()) == ("JOB_STATE_CANCELLED", None)


# --- without a dataset -----------------------------------------------------------------------------------------------


def test_plan_comes_from_a_job_and_leaves_nothing(cloud: Cloud) -> None:
    process = cloud.start("plan")
    job = cloud.wait_for_job()
    assert job.name.startswith("imagebeam-plan-out-")
    worked = cloud.do_work(job)
    assert worked.returncode == 0, worked.stderr
    job.set(dataflow.DONE)
    done = command_line.finish(process)
    assert done.returncode == 0, done.stderr
    assert re.search(rf"^output +{cloud.output}: would be written$", done.stdout, re.MULTILINE)
    assert cloud.left() == set()
    assert not [name for name in cloud.left("tmp/") if "report" in name]


def test_template_is_written_and_nothing_is_submitted(cloud: Cloud) -> None:
    done = cloud.run("convert", template_location=f"{cloud.output}-template/convert.json")
    assert (done.returncode, done.stdout) == (0, f"template written to {cloud.output}-template/convert.json\n")
    (blob,) = cloud.bucket.list_blobs(prefix=f"{cloud.output.removeprefix('gs://pets/')}-template/")
    assert json.loads(blob.download_as_bytes())["name"].startswith("imagebeam-out-")
    assert (cloud.service.requests, cloud.left()) == ([], set())


# --- errors before there is a job ------------------------------------------------------------------------------------


def test_bucket_that_is_not_there_is_refused_before_anything_is_written(cloud: Cloud) -> None:
    done = cloud.run("convert", temp_location="gs://nowhere/tmp")
    assert done.returncode == 2
    message = "imagebeam: --temp_location is 'gs://nowhere/tmp': there is no bucket 'nowhere'; create it"
    assert done.stderr.splitlines()[-1].startswith(message)
    assert (cloud.service.requests, cloud.left()) == ([], set())


def test_refused_submission_leaves_no_lock(cloud: Cloud) -> None:
    cloud.service.fail("create", 409)
    done = cloud.run("convert", "--quiet")
    assert done.returncode == 5, done.stderr
    (line,) = done.stderr.splitlines()  # Beam logs nothing
    assert re.search("^imagebeam: Dataflow runs a job named imagebeam-out-[0-9a-f]{8} already", line)
    assert (cloud.service.requests, cloud.left()) == (["create"], set())


@pytest.mark.slow
def test_submission_survives_a_fault(cloud: Cloud) -> None:
    cloud.service.fail("create", dataflow.CLOSED)
    assert cloud.run("convert", "--no-wait").returncode == 0
    assert cloud.service.requests == ["create", "create"]
