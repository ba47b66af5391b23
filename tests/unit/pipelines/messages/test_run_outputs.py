"""The summary, the metrics, the log and the lineage events of commands, as `imagebeam` writes them."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
import os
import pathlib
import shutil
import sys
import time
import typing
from typing import Any

import apache_beam  # noqa: F401  # before main() can import it without its clients, which other tests need
import jsonschema
import pytest
from prometheus_client import parser

import imagebeam
from imagebeam import errors, storage
from imagebeam.pipelines import cli, convert, launch
from imagebeam.pipelines.messages import run_journal, run_outputs
from imagebeam.pipelines.runs import remote_job
from imagebeam.transforms import summaries
from imagebeam.transforms.output import run_report
from tests import case_tables, command_line, docs_pages, error_texts, image_sets

SCHEMA = json.loads((command_line.ROOT / "docs" / "summary.schema.json").read_text())


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("images")
    image_sets.write_folder(folder, per_label=5)
    (folder / "cat" / "notes.txt").write_text("no image")
    return folder


class Finished(typing.NamedTuple):
    """A command that has ended, with all that it told."""

    completed: command_line.Completed
    summary: dict[str, Any]
    metrics: dict[tuple[str, str], float]
    log: list[dict[str, Any]]
    events: list[dict[str, Any]]


Told = tuple[pathlib.Path, Finished]


def run(folder: pathlib.Path, *arguments: object) -> Finished:
    """Runs a command that tells all it can into files of `folder`."""
    (folder / "lineage.yml").write_text(
        f"transport: {{type: file, log_file_path: {json.dumps(str(folder / 'events'))}, append: true}}\n"
        "facets: {source_code_location: {disabled: true}}\n"
    )
    (folder / "events").unlink(missing_ok=True)
    options = ["--summary-json", folder / "told" / "summary.json", "--metrics-textfile", folder / "told" / "run.prom"]
    options += ["--log-format", "json"]
    options += ["--openlineage", folder / "lineage.yml"] * (arguments[0] == "convert")
    completed = command_line.call(*arguments, *options)
    text = (folder / "told" / "run.prom").read_text()
    metrics = {
        (sample.name, sample.labels.get("reason") or sample.labels.get("stage") or ""): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }
    log = [json.loads(line) for line in completed.stderr.splitlines()]
    lines = (folder / "events").read_text().splitlines() if (folder / "events").exists() else []
    summary = checked((folder / "told" / "summary.json").read_text(), completed.returncode)
    assert not list((folder / "told").glob("*.tmp-*"))
    return Finished(completed, summary, metrics, log, [json.loads(line) for line in lines])


def checked(text: str, exit_code: int) -> dict[str, Any]:
    """Parses a summary, and checks what is true of every one."""
    summary: dict[str, Any] = json.loads(text)
    jsonschema.Draft202012Validator(SCHEMA, format_checker=jsonschema.FormatChecker()).validate(summary)
    assert set(summary) == set(SCHEMA["properties"])
    assert summary["exit_code"] == exit_code
    assert summary["version"] == imagebeam.__version__
    started, ended = (datetime.datetime.fromisoformat(summary[name]) for name in ("started", "ended"))
    assert (ended - started).total_seconds() == pytest.approx(summary["durations"]["total"], abs=0.002)
    stages = [summary["durations"][stage] or 0.0 for stage in run_journal.STAGES]
    assert sum(stages) <= summary["durations"]["total"] + 0.01
    return summary


def reached(summary: dict[str, Any]) -> list[str]:
    return [stage for stage in run_journal.STAGES if summary["durations"][stage] is not None]


# --- how a command can end -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def committed(images: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> Told:
    """A dataset of two shards, and what was told while it was written; read only."""
    folder = tmp_path_factory.mktemp("committed")
    command = ("convert", "--input", images, "--output", folder / "pets", "--workers", 1)
    return folder / "pets", run(folder, *command, "--set", "output.num_shards=2")


def test_committed_dataset_is_summed_up(images: pathlib.Path, committed: Told) -> None:
    output, told = committed
    summary, catalog = told.summary, imagebeam.load_catalog(output)
    assert {name: summary[name] for name in ("command", "state", "input", "output", "name", "fingerprint")} == {
        "command": "convert",
        "state": "committed",
        "input": str(images),
        "output": str(output),
        "name": "pets",
        "fingerprint": catalog.fingerprint,
    }
    assert summary["counts"] == {"listed": 10, "written": 10, "rejected": {}, "skipped": {"non_image": 1}}
    size = sum(path.stat().st_size for path in output.glob("train-*"))
    assert summary["splits"] == {"train": {"examples": 10, "shards": 2, "bytes": size}}
    assert summary["bytes"] == size
    assert summary["reject_limit"] == 0.01
    assert reached(summary) == list(run_journal.STAGES)
    shards = catalog.splits["train"].shards
    text = "".join(f"{each.name} {each.records} {each.bytes} {each.crc32c}\n" for each in shards)
    text += f"labels.txt {catalog.files['labels.txt'].bytes} {catalog.files['labels.txt'].crc32c}\n"
    assert summary["digest"] == "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def test_log_of_a_run_has_its_id_its_stages_and_its_end(committed: Told) -> None:
    output, told = committed
    assert {line["command"] for line in told.log} == {"convert"}
    assert told.log[0]["message"].startswith(f"imagebeam {imagebeam.__version__} on ")
    last = told.log[-1]
    assert (last["message"], last["level"], last["state"]) == ("convert committed", "INFO", "committed")
    assert (last["run_id"], last["output"]) == (told.summary["run_id"], str(output))
    known = {name: value for name, value in told.summary.items() if value is not None and name != "message"}
    assert known.items() <= last.items()
    assert any(line["message"].startswith("plan ") for line in told.log)


def test_events_of_a_run_name_what_was_read_and_written(images: pathlib.Path, committed: Told) -> None:
    output, told = committed
    start, complete = told.events
    assert [start["eventType"], complete["eventType"]] == ["START", "COMPLETE"]
    assert start["run"]["runId"] == complete["run"]["runId"]
    assert complete["job"]["name"] == "imagebeam.convert.pets"
    (source,), (written,) = complete["inputs"], complete["outputs"]
    assert (source["namespace"], source["name"]) == ("file", str(images))
    assert source["facets"]["dataSource"]["uri"] == images.as_uri()
    assert source["inputFacets"]["inputStatistics"]["rowCount"] == 10
    assert (written["namespace"], written["name"]) == ("file", str(output))
    statistics = written["outputFacets"]["outputStatistics"]
    assert (statistics["rowCount"], statistics["size"], statistics["fileCount"]) == (10, told.summary["bytes"], 2)
    fields = {each["name"]: each["type"] for each in written["facets"]["schema"]["fields"]}
    assert fields["image/encoded"] == "bytes" and fields["image/class/label"] == "int64"
    assert written["facets"]["version"]["datasetVersion"] == told.summary["fingerprint"]
    assert start["outputs"][0]["name"] == str(output)


def test_summary_on_stdout_is_alone_there(images: pathlib.Path, committed: Told) -> None:
    output, told = committed
    command = ("convert", "--input", images, "--output", output, "--workers", 1, "--set", "output.num_shards=2")
    completed = command_line.succeed(*command, "--summary-json", "-")
    summary = checked(completed.stdout, 0)
    assert (summary["state"], summary["digest"]) == ("kept", told.summary["digest"])
    assert summary["message"].endswith("holds this dataset already: same config, same images")
    assert completed.stderr.splitlines()[-1].endswith("same images; nothing to do")
    assert reached(summary) == ["starting", "listing", "planning"]


def test_too_many_rejects_are_counted_by_reason(images: pathlib.Path, tmp_path: pathlib.Path) -> None:
    shutil.copytree(images, tmp_path / "in")
    (tmp_path / "in" / "cat" / "0.jpg").write_bytes(b"no image")
    (tmp_path / "in" / "dog" / "0.jpg").write_bytes(b"")
    told = run(tmp_path, "convert", "--input", tmp_path / "in", "--output", tmp_path / "out", "--workers", 1)
    rejected = {"empty_file": 1, "not_an_image": 1}
    assert (told.summary["state"], told.summary["exit_code"]) == ("refused", 3)
    assert told.summary["counts"] == {"listed": 10, "written": 0, "rejected": rejected, "skipped": {"non_image": 1}}
    assert told.summary["error_code"] == "rejects-above-limit"
    assert told.summary["message"].startswith("2 of 10 images were rejected (20.00%; ")
    assert (told.summary["splits"], told.summary["bytes"], told.summary["digest"]) == (None, None, None)
    assert reached(told.summary) == list(run_journal.STAGES)
    for reason, number in rejected.items():
        assert told.metrics["imagebeam_last_run_images_rejected", reason] == number
    (error,) = (line for line in told.log if told.summary["message"] in line["message"])  # told once
    assert (error, error["level"]) == (told.log[-1], "ERROR")
    assert error["message"] == f"convert refused: {told.summary['message']}"
    assert "TooManyRejectsError" in error["exception"].splitlines()[-1]
    assert [event["eventType"] for event in told.events] == ["START", "FAIL"]
    assert told.events[1]["run"]["facets"]["errorMessage"]["message"] == told.summary["message"]


def test_run_that_is_interrupted_before_its_config_is_read_names_its_output(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_convert", interrupt)
    told = run(tmp_path, "convert", "--input", "in", "--output", "out")
    assert (told.summary["state"], told.summary["input"], told.summary["output"]) == ("interrupted", "in", "out")
    assert told.log[-1]["output"] == "out"
    assert [event["eventType"] for event in told.events] == ["ABORT"]


def test_interrupted_run_tells_how_far_it_came(
    images: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = convert.plan({"source": {"uri": str(images)}})

    def interrupt(settings: Any, _: Any) -> dict[str, Any]:
        times = {"planning": time.time(), "planned": time.time()}
        run_report.RunReport("planned", dataclasses.replace(plan, times=times)).write(settings.report)
        raise KeyboardInterrupt

    monkeypatch.setattr(launch, "run_pipeline", interrupt)
    told = run(tmp_path, "convert", "--input", images, "--output", tmp_path / "out", "--workers", 1)
    assert (told.summary["state"], told.summary["exit_code"]) == ("interrupted", 130)
    assert told.summary["message"] == "interrupted; run the same command again"
    assert told.summary["counts"]["listed"] == 10
    assert reached(told.summary) == ["starting", "listing", "planning", "writing"]
    assert [event["eventType"] for event in told.events] == ["START", "ABORT"]
    assert told.metrics["imagebeam_last_run_exit_code", ""] == 130


@case_tables.each_case(
    "arguments, exit_code, message",
    {
        "usage": (["--workers", "x"], 2, "argument --workers: 'x' is not a positive number"),
        "choice": (["--log-format", "xml"], 2, "argument --log-format: invalid choice: 'xml'"),
        "scheme": (["--output", "xyz://b/out"], 2, "address 'xyz://b/out': scheme 'xyz' is not known"),
        "config": (["--set", "label.by=x"], 2, "label.by"),
        "input": (["--input", "/nowhere/at/all"], 2, "--input '/nowhere/at/all' cannot be read"),
        "option-of-beam": (["--bogus=1"], 2, "--bogus"),
    },
)
def test_error_before_any_work_is_summed_up_over_an_earlier_summary(
    images: pathlib.Path, tmp_path: pathlib.Path, arguments: list[str], exit_code: int, message: str
) -> None:
    path = tmp_path / "summary.json"
    path.write_text("of an earlier run")
    command = ["convert", "--input", images, "--output", tmp_path / "out", "--summary-json", path, "--workers", 1]
    assert command_line.call(*command, *arguments).returncode == exit_code
    summary = checked(path.read_text(), exit_code)
    assert summary["state"] == "refused"
    assert message in summary["message"]
    assert (summary["counts"], summary["fingerprint"], summary["run_id"]) == (None, None, None)
    assert reached(summary) == ["starting"]
    assert not (tmp_path / "out").exists()


def test_variables_tell_where_the_summary_goes(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMAGEBEAM_SUMMARY_JSON", str(tmp_path / "summary.json"))
    monkeypatch.setenv("IMAGEBEAM_INPT", "x")
    completed = command_line.end(2, "convert", "--output", tmp_path / "out")
    assert "--input (source.uri) is missing" in checked((tmp_path / "summary.json").read_text(), 2)["message"]
    warning = "imagebeam: there is no option for the environment variable IMAGEBEAM_INPT; did you mean IMAGEBEAM_INPUT?"
    assert completed.stderr.splitlines()[0] == warning


def test_summary_goes_to_any_address(tmp_path: pathlib.Path) -> None:
    command_line.call("plan", "--input", tmp_path / "none", "--summary-json", "memory://told/summary.json")
    uri = "memory://told/summary.json"
    assert checked(storage.storage_of(uri).read(uri).decode(), 2)["command"] == "plan"


@case_tables.each_case("option", ["summary_json", "metrics_textfile"])
@case_tables.each_case("path", ["{tmp}", "{tmp}/pipe", "file://{tmp}/pipe", "{tmp}/file/x", "{tmp}/closed/x"])
def test_unwritable_address_is_refused_before_any_work(option: str, path: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "closed").symlink_to("/proc/self")  # where nobody may write, not even root
    options = run_outputs.Options("verify", **{option: path.format(tmp=tmp_path)})
    with error_texts.raises("outputs-unwritable"):
        run_outputs.RunOutputs(options, run_journal.Journal(), print).open()


def test_summary_that_cannot_be_written_at_the_end_is_a_warning(
    committed: Told, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(storage.storage_of("/")), "write_whole", fail)
    completed = command_line.end(
        0, "verify", committed[0], "--summary-json", tmp_path / "s", "--metrics-textfile", tmp_path / "m"
    )
    assert completed.stderr.splitlines() == [
        f"imagebeam: the summary cannot be written to '{tmp_path / 's'}' (No space left on device)",
        f"imagebeam: the metrics cannot be written to '{tmp_path / 'm'}' (No space left on device)",
    ]


def test_bug_is_summed_up_and_logged_with_its_traceback(
    images: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(cli, "_convert", fail)
    told = run(tmp_path, "convert")
    assert (told.summary["state"], told.summary["exit_code"]) == ("failed", 1)
    assert told.summary["message"] == "ZeroDivisionError: a bug"
    assert "in fail" in told.log[0]["exception"]
    with pytest.raises(ZeroDivisionError):
        cli.main(["convert", "--summary-json", str(tmp_path / "summary.json")])
    assert checked((tmp_path / "summary.json").read_text(), 1)["state"] == "failed"


def test_submitted_job_is_named(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = remote_job.RemoteJob("DataflowRunner", "p", "europe-west1", "imagebeam-cats", "2025-id")
    monkeypatch.setattr(convert, "submit_request", lambda *_, **__: convert.Submission("gs://b/out", job))
    told = run(tmp_path, "convert", "--no-wait", "--input", "gs://b/in", "--output", "gs://b/out")
    assert told.summary["state"] == "submitted"
    assert told.summary["job"] == {**job.to_fields(), "console": job.console}
    assert [event["eventType"] for event in told.events] == ["START"]
    (written,) = told.events[0]["outputs"]
    assert (written["namespace"], written["name"]) == ("gs://b", "out")


def test_plan_is_summed_up_as_planned_kept_or_refused(
    images: pathlib.Path, committed: Told, tmp_path: pathlib.Path
) -> None:
    command = ("plan", "--input", images, "--summary-json", "-")
    planned = checked(command_line.call(*command).stdout, 0)
    assert planned["state"] == "planned"
    assert planned["splits"]["train"]["examples"] == 10 and planned["digest"] is None
    refused = command_line.end(2, *command, "--output", committed[0])
    summary = checked(refused.stdout, 2)
    assert summary["state"] == "refused"
    assert "holds another dataset" in summary["message"]


def test_verify_is_summed_up_with_problems(committed: Told, tmp_path: pathlib.Path) -> None:
    output, told = committed
    good = checked(command_line.call("verify", output, "--summary-json", "-").stdout, 0)
    assert (good["state"], good["digest"], good["name"]) == ("verified", told.summary["digest"], "pets")
    shutil.copytree(output, tmp_path / "pets")
    shard = next((tmp_path / "pets").glob("train-*"))
    shard.write_bytes(shard.read_bytes()[:-1])
    bad = run(tmp_path, "verify", tmp_path / "pets")
    assert (bad.summary["state"], bad.summary["exit_code"]) == ("failed", 4)
    assert bad.summary["message"].startswith("1 of 2 shards differ")
    error_texts.check(errors.VerificationError(bad.summary["error_code"], bad.summary["message"]), "dataset-differs")
    assert shard.name in bad.summary["notes"][0]
    missing = checked(command_line.call("verify", tmp_path, "--summary-json", "-").stdout, 4)
    assert missing["state"] == "refused"


def test_help_writes_no_summary(tmp_path: pathlib.Path) -> None:
    assert command_line.call("convert", "--summary-json", tmp_path / "s.json", "--help").returncode == 0
    assert not list(tmp_path.iterdir())


# --- the document ----------------------------------------------------------------------------------------------------


def test_schema_is_a_schema_and_knows_every_state() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert set(SCHEMA["properties"]["state"]["enum"]) == set(typing.get_args(run_journal.State))
    assert SCHEMA["properties"]["schema_version"]["const"] == run_journal.SCHEMA_VERSION
    assert set(SCHEMA["required"]) == set(SCHEMA["properties"])


def test_page_of_the_docs_shows_what_is_written(committed: Told) -> None:
    document, lines = docs_pages.blocks("platforms.md", "json")
    assert list(checked(document, 0)) == list(committed[1].summary)
    shown, known = json.loads(lines.splitlines()[-1]), committed[1].log[-1]
    assert set(shown) <= set(known) and shown["message"] == known["message"]
    text = (command_line.ROOT / "docs" / "platforms.md").read_text()
    for state in typing.get_args(run_journal.State):
        assert f"`{state}`" in text


def test_snapshots_are_summed_up_with_what_changed(images: pathlib.Path, tmp_path: pathlib.Path) -> None:
    shutil.copytree(images, tmp_path / "in")
    update = ("--input", tmp_path / "in", "--output", tmp_path / "pets", "--update")

    def told(command: str, *arguments: object) -> tuple[str, str, list[int], int]:
        completed = command_line.succeed(command, *arguments, "--summary-json", "-")
        summary = checked(completed.stdout, 0)
        changes = [summary["counts"][name] for name in summaries.CHANGES]
        assert summary["counts"].get("read_and_rejected") == (None if command == "plan" else 0)
        return summary["state"], summary["snapshot"], changes, summary["splits"]["train"]["examples"]

    assert told("convert", *update, "--workers", 1) == ("committed", "000001", [10, 0, 0, 0], 10)
    assert told("convert", *update, "--workers", 1) == ("nothing_new", "000001", [0, 0, 0, 10], 10)
    (tmp_path / "in" / "dog" / "new.jpg").write_bytes(image_sets.make_image(77))
    (tmp_path / "in" / "cat" / "0.jpg").unlink()
    state, name, changes, _ = told("plan", *update)
    assert (state, name, changes) == ("planned", "000002", [1, 0, 1, 9])
    assert told("convert", *update, "--workers", 1) == ("committed", "000002", [1, 0, 1, 9], 10)
    assert told("compact", tmp_path / "pets", "--workers", 1) == ("committed", "000003", [0, 0, 0, 10], 10)
    assert told("compact", tmp_path / "pets", "--workers", 1)[:2] == ("kept", "000003")


def test_last_stage_of_a_run_that_failed_ends_with_it() -> None:
    journal = run_journal.Journal("convert", times={"started": 100.0, "launched": 102.0, "planning": 105.0})
    journal.end("failed", 1, "x")
    journal.times["ended"] = 105.5
    expected = {"starting": 2.0, "listing": 3.0, "planning": 0.5, "writing": None, "committing": None, "total": 5.5}
    assert journal.seconds() == expected


def test_clocks_of_workers_that_lag_give_no_negative_seconds() -> None:
    journal = run_journal.Journal("convert", times={"started": 100.0, "launched": 102.0, "planning": 101.0})
    journal.end("failed", 1, "x")
    assert all(seconds is None or seconds >= 0 for seconds in journal.seconds().values())


# --- lineage events --------------------------------------------------------------------------------------------------


def fail_early(tmp_path: pathlib.Path, *options: object) -> command_line.Completed:
    return command_line.call("convert", "--input", tmp_path / "none", "--output", tmp_path / "out", *options)


@case_tables.each_case(
    "content, code",
    [
        (None, "lineage-unreadable"),
        ("facets: {}", "lineage-config"),
        ("{", "lineage-config"),
        ("transport: {type: pigeon}", "lineage-refused"),
    ],
)
def test_config_of_lineage_that_is_unclear_is_refused(content: str | None, code: str, tmp_path: pathlib.Path) -> None:
    if content is not None:
        (tmp_path / "lineage.yml").write_text(content)
    with error_texts.raises(code):
        run_outputs.open_events(str(tmp_path / "lineage.yml"), print)


def test_missing_client_is_refused_with_the_extra(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openlineage.client", None)
    completed = fail_early(tmp_path, "--openlineage", "http://127.0.0.1:9")
    assert (completed.returncode, completed.stderr) == (
        2,
        "imagebeam: openlineage is not installed, --openlineage needs it: pip install 'imagebeam[openlineage]'\n",
    )
    monkeypatch.setenv("OPENLINEAGE_URL", "http://127.0.0.1:9")  # perhaps meant for other programs of this machine
    lines = fail_early(tmp_path).stderr.splitlines()
    assert lines[0].startswith("imagebeam: no lineage events are sent: openlineage is not installed")
    assert "cannot be read" in lines[-1]


def test_variables_of_the_client_send_events(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transport = {"type": "file", "log_file_path": str(tmp_path / "events"), "append": True}
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT", json.dumps(transport))
    monkeypatch.setenv("OPENLINEAGE_NAMESPACE", "nightly")
    monkeypatch.setenv("OPENLINEAGE_PARENT_ID", "airflow/dag.task/01994a4c-0b3a-7cc5-8a94-8dd8ad1b4b5c")
    assert fail_early(tmp_path).returncode == 2
    events = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    assert [event["eventType"] for event in events] == ["START", "FAIL"]
    assert events[0]["job"]["namespace"] == "nightly"
    parent = events[0]["run"]["facets"]["parent"]
    assert (parent["job"]["namespace"], parent["job"]["name"]) == ("airflow", "dag.task")


def test_service_of_lineage_that_does_not_answer_is_a_warning(tmp_path: pathlib.Path) -> None:
    completed = fail_early(tmp_path, "--openlineage", "http://127.0.0.1:9")
    assert completed.returncode == errors.ConfigError.exit_code
    start, *_, failure = [line for line in completed.stderr.splitlines() if "event" in line]
    assert start.startswith("imagebeam: the lineage event START was not sent (ConnectionError: ")
    assert failure.startswith("imagebeam: the lineage event FAIL was not sent (ConnectionError: ")


# --- metrics of the last run, read by Prometheus' own parser ---------------------------------------------------------


SUMMARY: dict[str, Any] = {
    "command": "convert",
    "output": 'gs://b/a "quoted" \\ name\n',
    "name": "pets",
    "state": "committed",
    "exit_code": 0,
    "counts": {"listed": 12, "written": 9, "rejected": {"truncated": 2, "empty_file": 1}, "skipped": {}},
    "bytes": 1234567890123,
    "durations": {
        "starting": 0.5,
        "listing": 1.25,
        "planning": None,
        "writing": None,
        "committing": None,
        "total": 2.0,
    },
    "ended": "2025-01-02T03:04:05.678+00:00",
}
ENDED = 1735787045.678


def samples(text: bytes) -> dict[tuple[str, str], float]:
    """The value of each sample by its name and its own label."""
    found = {}
    for family in parser.text_string_to_metric_families(text.decode()):
        assert family.type == "gauge" and family.documentation
        for sample in family.samples:
            assert sample.labels["output"] == SUMMARY["output"] and sample.labels["name"] in ("pets", "")
            own = sample.labels.get("reason") or sample.labels.get("stage") or ""
            found[sample.name.removeprefix("imagebeam_"), own] = sample.value
    return found


def test_committed_run_has_all_gauges() -> None:
    assert samples(run_outputs.format_metrics(SUMMARY)) == {
        ("last_run_timestamp_seconds", ""): ENDED,
        ("last_run_success", ""): 1,
        ("last_run_exit_code", ""): 0,
        ("last_run_images_listed", ""): 12,
        ("last_run_images_written", ""): 9,
        ("last_run_images_rejected", "truncated"): 2,
        ("last_run_images_rejected", "empty_file"): 1,
        ("last_run_bytes", ""): 1234567890123,
        ("last_run_seconds", "starting"): 0.5,
        ("last_run_seconds", "listing"): 1.25,
        ("last_run_seconds", "total"): 2.0,
        ("last_success_timestamp_seconds", ""): ENDED,
    }


def test_run_that_failed_keeps_the_time_of_the_last_success() -> None:
    failure = {**SUMMARY, "name": None, "state": "refused", "exit_code": 2, "counts": None, "bytes": None}
    failure["ended"] = "2025-01-03T00:00:00.000+00:00"
    first = run_outputs.format_metrics(failure)
    assert ("last_success_timestamp_seconds", "") not in samples(first)
    second = run_outputs.format_metrics(failure, run_outputs.format_metrics(SUMMARY).decode())
    third = samples(run_outputs.format_metrics(failure, second.decode()))
    assert third["last_success_timestamp_seconds", ""] == ENDED
    assert third["last_run_success", ""] == 0 and third["last_run_exit_code", ""] == 2
    assert ("last_run_images_listed", "") not in third


def test_earlier_file_that_holds_no_metrics_is_replaced() -> None:
    failure = {**SUMMARY, "output": "\udcff", "exit_code": 1}
    assert b"last_success" not in run_outputs.format_metrics(failure, "no {metrics")
