"""What `imagebeam status` finds: a table of locks, jobs, reports and datasets."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import os
import pathlib
import re
import shutil
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from imagebeam import errors, features, storage
from imagebeam.pipelines import command_parser, compact, dataset_commands, keep_snapshots, status
from imagebeam.pipelines.messages import run_journal
from imagebeam.pipelines.runs import remote_job
from imagebeam.storage import remote
from imagebeam.transforms import elements
from imagebeam.transforms.output import run_report
from imagebeam.transforms.publish import run_records
from tests import case_tables, datasets, error_texts, image_sets, linked_snapshots
from tests.command_line import end
from tests.servers import dataflow
from tests.unit.imagebeam.reader import written

PLAN = elements.DatasetPlan("write", "", "f00d", {}, (), 0, {}, {})
COUNTERS = {"images-listed": 10, "images-planned": 10, "images-out": 4}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("dataset")
    image_sets.write_folder(folder / "in", per_label=2)
    datasets.make(folder / "in", folder / "out")
    return folder / "out"


@pytest.fixture
def output(tmp_path: pathlib.Path) -> pathlib.Path:
    folder = tmp_path / "out"
    (folder / ".imagebeam").mkdir(parents=True)
    return folder


@dataclasses.dataclass
class Launched:
    """An output, a job that was launched to write it, the job's service, and a dataset that it may commit."""

    output: pathlib.Path
    job: remote_job.RemoteJob
    service: dataflow.Service
    dataset: pathlib.Path

    def leave_job(self, *steps: dataflow.Step) -> dataflow.Job:
        """Leaves the lock of a job with these steps."""
        submitted = self.service.add(self.job.name, *steps)
        leave_lock(self.output, dataclasses.replace(self.job, id=submitted.id))
        return submitted

    def leave_dataset(self) -> None:
        shutil.copytree(self.dataset, self.output, dirs_exist_ok=True)

    def status(self) -> status.Status:
        return status.status(str(self.output))


@pytest.fixture
def launched(
    output: pathlib.Path, job: remote_job.RemoteJob, service: dataflow.Service, dataset: pathlib.Path
) -> Launched:
    return Launched(output, job, service, dataset)


def leave_lock(output: pathlib.Path, job: remote_job.RemoteJob | None = None, **fields: Any) -> None:
    record = {"process": os.getpid(), "host": socket.gethostname(), "time": time.time(), "run": "1", **fields}
    record["job"] = None if job is None else job.to_fields()
    (output / ".imagebeam" / "lock").write_text(json.dumps(record))


def leave_shard(output: pathlib.Path) -> None:
    (output / ".imagebeam" / "staging-f00d").mkdir(exist_ok=True)
    (output / ".imagebeam" / "staging-f00d" / "train-00000-of-00001.tfrecord.done.json").write_text("{}")


def leave_refusal(output: pathlib.Path) -> None:
    refused = run_report.RunReport("refused", PLAN, error=errors.TooManyRejectsError("a-code", "too many rejects"))
    refused.write(str(output / ".imagebeam" / "run-1.json"))


def test_committed_dataset_without_a_run_is_told(dataset: pathlib.Path) -> None:
    found = status.status(str(dataset))
    assert (found.state, found.exit_code) == ("committed", 0)
    assert dict(status.status_rows(found))["dataset"].startswith("out, 4 images, written 20")
    described = found.to_json()["dataset"]
    assert (described["name"], described["written"], described["rejected"]) == ("out", 4, 0)


@pytest.mark.parametrize(("has_id", "has_dataset"), [(True, False), (False, True)], ids=["new", "replaces-without-id"])
@pytest.mark.parametrize(
    ("step", "state", "exit_code", "doing", "causes"),
    [
        pytest.param(dataflow.QUEUED, "running", 0, "queued", [], id="queued"),
        pytest.param(dataflow.Step(counters=COUNTERS), "running", 0, "writing images 4/10", [], id="running"),
        pytest.param(dataflow.failed("boom"), "failed", 1, "", ["boom"], id="failed"),
        pytest.param(dataflow.CANCELLED, "cancelled", 1, "", [], id="cancelled"),
    ],
)
def test_job_in_the_lock_decides(
    launched: Launched,
    step: dataflow.Step,
    state: str,
    exit_code: int,
    doing: str,
    causes: list[str],
    has_id: bool,
    has_dataset: bool,
) -> None:
    submitted = launched.leave_job(step)
    if not has_id:
        leave_lock(launched.output, launched.job, time=0.0)
    if has_dataset:
        launched.leave_dataset()
    found = launched.status()
    if exit_code and not has_id:  # among the active jobs there is none of its name
        state, causes = "failed", ["it was never submitted, or has ended"]
    assert (found.state, found.exit_code, found.doing, list(found.causes)) == (state, exit_code, doing, causes)
    assert found.job is not None and found.job.id == (submitted.id if has_id or not exit_code else "")
    assert (found.catalog is not None) == has_dataset
    assert launched.service.most_at_once == 1


def test_job_that_is_done_has_a_dataset_or_failed(launched: Launched) -> None:
    launched.leave_job(dataflow.DONE)
    assert (launched.status().state, launched.status().exit_code) == ("failed", 1)
    launched.leave_dataset()
    assert (launched.status().state, launched.status().exit_code) == ("committed", 0)


def test_job_that_commits_meanwhile_has_its_new_dataset(launched: Launched, monkeypatch: pytest.MonkeyPatch) -> None:
    launched.leave_job(dataflow.DONE)
    look_up = remote_job.look_up

    def commit_and_look_up(*arguments: Any) -> Any:
        launched.leave_dataset()
        return look_up(*arguments)

    monkeypatch.setattr(remote_job, "look_up", commit_and_look_up)
    found = launched.status()
    assert (found.state, found.causes) == ("committed", ())
    assert found.catalog is not None


@pytest.mark.parametrize("code", [403, 404])
def test_service_that_does_not_tell_is_named(launched: Launched, code: int) -> None:
    launched.service.fail_always("get", code)
    leave_lock(launched.output, dataclasses.replace(launched.job, id="j1"))
    found = launched.status()
    assert (found.state, found.exit_code) == ("unknown", 1)
    assert found.causes[0].startswith("Dataflow ")
    rows = dict(status.status_rows(found))
    assert rows["to cancel"].startswith("gcloud dataflow jobs cancel j1 ")
    release = f"if the job has ended, remove {launched.output}/.imagebeam/lock and run the same command again"
    assert rows.get("to release") == (release if code == 404 else None)  # 404: forgotten; else it may answer later


def test_job_without_readable_counters_has_its_state(launched: Launched) -> None:
    launched.service.fail_always("metrics", 403)
    launched.leave_job()
    found = launched.status()
    assert (found.state, found.doing, found.counters) == ("running", "starting workers", {})


def test_job_of_another_runner_is_not_known_and_its_lock_can_be_released(output: pathlib.Path) -> None:
    leave_lock(output, remote_job.RemoteJob("FlinkRunner", "p", "r", "cats", "j1"))
    found = status.status(str(output))
    assert (found.state, found.exit_code) == ("unknown", 1)
    assert found.to_json()["release"] == found.release != ""
    rows = dict(status.status_rows(found))
    assert rows["cause"] == "imagebeam cannot ask FlinkRunner for the state of cats"
    assert "console" not in rows and "to cancel" not in rows
    assert f"remove {output}/.imagebeam/lock" in rows["to release"]


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        pytest.param({}, "running", id="alive"),
        pytest.param({"time": 0.0}, "running", id="alive-for-long"),
        pytest.param({"host": "elsewhere"}, "running", id="elsewhere"),
        pytest.param({"process": 2**22 + 1}, "stopped", id="gone"),
    ],
)
def test_process_in_a_local_lock_runs_or_was_stopped(output: pathlib.Path, fields: dict[str, Any], state: str) -> None:
    leave_lock(output, **fields)
    assert status.status(str(output)).state == state


@case_tables.each_case(
    "fields, state, doing",
    {
        "alive": ({}, "running", f"process 7 on {socket.gethostname()}, last renewed 0 s ago"),
        "fresh": ({"host": "elsewhere", "age": 90.0}, "running", "process 7 on elsewhere, last renewed 90 s ago"),
        "expired": ({"host": "elsewhere", "age": 1e4}, "stopped", ""),
        "gone": ({"process": 2**22 + 1}, "stopped", ""),
    },
)
def test_process_in_a_lease_runs_until_it_expires(
    fields: dict[str, Any], state: str, doing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "kill", lambda number, _: None if number == 7 else _raise(ProcessLookupError()))
    monkeypatch.setattr(time, "time", lambda: 2e9)
    age = fields.get("age", 0.0)
    fields = {name: value for name, value in fields.items() if name != "age"}
    record = run_records.RunRecord("1", **{"process": 7, "host": socket.gethostname(), **fields}, time=2e9 - age)
    found = status._of_process(status.Status("gs://b/out", "nothing"), record)
    assert (found.state, found.doing) == (state, doing)
    assert [cause.endswith("is gone") for cause in found.causes] == [True] * (state == "stopped")


def _raise(error: Exception) -> None:
    raise error


def test_lock_that_is_not_understood_counts_for_nothing(output: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_records, "_READ_WAIT_SEC", 0.0)
    (output / ".imagebeam" / "lock").write_text("process 1 on h")  # of an imagebeam before locks had records
    assert status.status(str(output)).state == "nothing"


@pytest.mark.parametrize("has_dataset", [False, True], ids=["new", "replaces"])
def test_refused_run_tells_its_reason(launched: Launched, has_dataset: bool) -> None:
    leave_refusal(launched.output)
    if has_dataset:
        launched.leave_dataset()
    found = launched.status()
    assert (found.state, found.exit_code, list(found.causes)) == ("failed", 1, ["too many rejects"])
    assert found.run_exit_code == found.to_json()["run_exit_code"] == 3


def test_refusal_counts_more_than_the_messages_of_its_job(launched: Launched) -> None:
    leave_refusal(launched.output)
    ended = launched.leave_job(dataflow.failed("Traceback"))
    found = launched.status()
    assert (found.state, list(found.causes)) == ("failed", ["too many rejects"])
    assert found.job is not None and found.job.id == ended.id


def test_run_that_was_killed_keeps_its_shards(output: pathlib.Path) -> None:
    (output / ".imagebeam" / "staging-f00d").mkdir()
    found = status.status(str(output))
    assert (found.state, found.exit_code, found.keeps_shards) == ("stopped", 1, False)
    assert found.causes == ["an unfinished run left 0 finished shards"]
    leave_shard(output)
    found = status.status(str(output))
    assert (found.state, found.keeps_shards) == ("stopped", True)
    assert dict(status.status_rows(found))["kept"] == "finished shards; run the same command again to go on"
    assert found.causes == ["an unfinished run left 1 finished shard"]


@pytest.mark.parametrize(("keeps", "has_dataset"), [(True, False), (False, True)], ids=["shards-kept", "replaces"])
@pytest.mark.parametrize(("ended", "state"), [("failed", "failed"), ("cancelled", "cancelled"), ("refused", "failed")])
def test_job_whose_launcher_released_the_lock_is_told_by_its_record(
    launched: Launched, ended: remote_job.BadEnd, state: str, keeps: bool, has_dataset: bool
) -> None:
    remote_job.record_last_run(str(launched.output), ended, launched.job, ["boom"], 3)
    if keeps:
        leave_shard(launched.output)
    if has_dataset:
        launched.leave_dataset()
    found = launched.status()
    assert (found.state, found.exit_code, list(found.causes), found.job) == (state, 1, ["boom"], launched.job)
    assert found.run_exit_code == 3
    assert (found.keeps_shards, found.catalog is not None) == (keeps, has_dataset)
    assert dict(status.status_rows(found))["ended"] == found.ended == found.to_json()["ended"] != ""


def test_lock_counts_more_than_the_record_of_an_earlier_run(job: remote_job.RemoteJob, output: pathlib.Path) -> None:
    remote_job.record_last_run(str(output), "failed", job, ["boom"], 1)
    leave_lock(output)
    found = status.status(str(output))
    assert (found.state, found.causes, found.ended) == ("running", (), "")


# --- addresses on a network -------------------------------------------------------------------------------------------


class Bucket:
    """A storage on a network that holds nothing, and fails as it is told."""

    is_local = False

    def __init__(self, **failing: OSError):
        absent = FileNotFoundError(2, "there is no such object")
        self._failing: dict[str, OSError] = {"read": absent, "list_directory": absent, **failing}
        self.budgets: list[float] = []

    def __getattr__(self, name: str) -> Callable[[str], None]:
        def answer(uri: str) -> None:
            self.budgets.append(remote._budget_sec.get())
            if name in self._failing:
                raise self._failing[name]
            assert (name, uri) == ("stat", "gs://b")

        return answer


SILENT = storage.UnavailableError(5, "gs://b/out: ConnectionError (tried for 3 s)")
DENIED = PermissionError(13, "gs://b/out: access denied")
ABSENT = FileNotFoundError(2, "there is no bucket 'b'")


@case_tables.each_case(
    "bucket, code",
    {
        "empty": (Bucket(), ""),
        "part-of-a-bucket": (Bucket(stat=DENIED), ""),
        "no-bucket": (Bucket(stat=ABSENT), "address-not-found"),
        "silent": (Bucket(read=SILENT), "output-unreachable"),
        "denied": (Bucket(read=DENIED), "output-unreadable"),
    },
)
def test_silent_address_is_told_after_seconds(bucket: Bucket, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "storage_of", lambda uri: bucket)
    with error_texts.raises(code) if code else contextlib.nullcontext():
        assert status.status("gs://b/out").state == "nothing"
    assert set(bucket.budgets) == {remote.CHECK_BUDGET_SEC}


def test_catalog_that_does_not_answer_may_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    def storage_of(uri: str) -> Bucket:
        return Bucket(read=SILENT) if uri.endswith("catalog.json") else Bucket()

    monkeypatch.setattr(storage, "storage_of", storage_of)
    with error_texts.raises("output-unreachable"):
        status.status("gs://b/out")


# --- the command -----------------------------------------------------------------------------------------------------


def test_command_prints_a_table_or_json(launched: Launched) -> None:
    running, output = launched.leave_job(dataflow.Step(counters=COUNTERS)), launched.output
    rows = [line.split(maxsplit=1) for line in end(0, "status", output).stdout.splitlines()]
    assert rows[:2] == [["state", "running: writing images 4/10"], ["job", running.id]]
    assert ["counter", "images-out 4"] in rows and rows[-1] == ["output", str(output)]
    fields = json.loads(end(0, "status", output, "--json").stdout)
    assert fields["job"]["id"] == running.id and fields["job"]["console"].startswith("https://console.cloud")
    assert (fields["state"], fields["counters"], fields["dataset"]) == ("running", COUNTERS, None)


def test_command_on_nothing_exits_2(tmp_path: pathlib.Path) -> None:
    assert end(2, "status", tmp_path / "nowhere").stdout == f"state   nothing\noutput  {tmp_path / 'nowhere'}\n"


@case_tables.each_case("text", ["", "nonsense"])
def test_file_that_names_no_snapshot_is_told(text: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "snapshots" / "000001").mkdir(parents=True)
    (tmp_path / "LATEST").write_text(text)
    found = status.status(str(tmp_path))
    assert (found.state, found.exit_code) == ("unknown", 1)
    (cause,) = found.causes
    assert cause.startswith(f"{tmp_path}/LATEST holds {text!r}, and should name a folder in {tmp_path}/snapshots")


# --- snapshots -------------------------------------------------------------------------------------------------------


SHARD = "train-00000-of-00001.tfrecord"


@pytest.fixture(scope="module")
def snapshots(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A dataset of two snapshots: of 5 images, and of 4 of these and 3 more."""
    folder = tmp_path_factory.mktemp("snapshots")
    for index, (keys, removed) in enumerate(((range(5), {}), (range(5, 8), {f"../000001/{SHARD}": [1]}))):
        examples = [written.jpeg_values(key) | {features.LABEL: key % 2} for key in keys]
        written.write(
            folder / f"{index}", (*written.IMAGE, written.LABEL), examples, labels=("cat", "dog"), num_shards=1
        )
        linked_snapshots.add(folder / "out", folder / f"{index}", removed)
    return folder / "out"


@pytest.mark.parametrize(
    ("arguments", "name", "records"),
    [
        pytest.param([], "000002", "7 records in 2 shards", id="latest"),
        pytest.param(["--snapshot", "1"], "000001", "5 records in 1 shard", id="earlier"),
    ],
)
def test_verify_checks_the_latest_snapshot_or_another(
    arguments: list[str], name: str, records: str, snapshots: pathlib.Path
) -> None:
    told = end(0, "verify", snapshots, *arguments, "--decode").stdout
    assert told.startswith(f"{snapshots}, snapshot {name}: {records} match the catalog, every image")


def test_verify_of_a_damaged_snapshot_advises_to_write_a_whole_new_one(
    snapshots: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    shutil.copytree(snapshots, tmp_path / "out")
    (tmp_path / "out/snapshots/000001" / SHARD).unlink()
    told = end(errors.VerificationError.exit_code, "verify", tmp_path / "out").stderr
    assert f"../000001/{SHARD}: the shard is missing" in told
    assert "1 of 2 shards differ from the catalog; convert again with --update --overwrite, which writes a" in told


def test_inspect_shows_the_latest_snapshot_without_removed_records(
    snapshots: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    told = re.sub(" +", " ", end(0, "inspect", snapshots, "-n", 9, "--save-to", tmp_path / "saved").stdout)
    assert "\nsnapshot 000002: 3 added, 0 changed, 1 removed, 4 unchanged\n" in told
    assert "\nremoved 1 of 8 records in the files, in 1 shard; they are not read\n" in told
    assert re.findall(r"image/key=(\d)", told) == list("0234567")
    assert len(os.listdir(tmp_path / "saved")) == 7
    told = re.sub(" +", " ", end(0, "inspect", snapshots, "--snapshot", "000001", "-n", 9).stdout)
    assert "\nsnapshot 000001: 5 added, 0 changed, 0 removed, 0 unchanged\n" in told and "they are not read" not in told
    assert re.findall(r"image/key=(\d)", told) == list("01234")


@pytest.mark.parametrize("command", ["verify", "inspect", "bench"])
def test_unknown_snapshot_is_refused(command: str, snapshots: pathlib.Path) -> None:
    told = end(2, command, snapshots, "--snapshot", "000009").stderr
    assert "there is no snapshot 000009 in" in told
    assert "it has 000001, 000002 (the latest)" in told


def test_status_names_the_latest_snapshot(snapshots: pathlib.Path) -> None:
    assert "dataset  written, snapshot 000002, 7 images, written 2026" in end(0, "status", snapshots).stdout
    assert json.loads(end(0, "status", snapshots, "--json").stdout)["dataset"]["snapshot"] == "000002"


def test_snapshots_that_are_not_there_are_refused(snapshots: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with error_texts.raises("keep-snapshots-below-1"):
        keep_snapshots.keep_snapshots(snapshots, 0)
    with error_texts.raises("snapshot-unknown"):
        keep_snapshots.set_pin(snapshots, "000009", True)
    with error_texts.raises("snapshot-without-report"):
        keep_snapshots.load_report(snapshots)
    for ask in (keep_snapshots.list_snapshots, lambda folder: compact.run(folder, [], 1, False, run_journal.Journal())):
        with error_texts.raises("snapshots-none"):
            ask(tmp_path)
    with error_texts.raises("compact-on-dataflow"):
        compact.run(tmp_path, ["--runner=DataflowRunner"], 1, False, run_journal.Journal())
    with error_texts.raises("split-unknown"):
        parser = command_parser.make_parser(collections.defaultdict(lambda: dataset_commands.inspect))
        dataset_commands.inspect(parser.parse_args(["inspect", str(snapshots), "--split", "tset"]), [])
