"""The DAGs of deploy/airflow in a real Airflow, with the tests' `imagebeam`: `make schedulers-test`, a few minutes.

Not one of the tests that pytest finds by itself: each run of a DAG starts Airflow, which takes ten seconds.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests import captured_jobs, datasets, deployed, image_sets, patience, snapshot_sets
from tests.servers import dataflow, gcs, locked

pytestmark = pytest.mark.integration

PROGRAM = str(pathlib.Path(sys.executable).parent / "imagebeam")
CONVERTS = f"Running command: ['{PROGRAM}', 'convert'"
DATES = ("2026-11-20", "2026-11-21", "2026-11-22")


class Airflow:
    """An installation of Airflow in a folder of its own."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self._program = locked.bin_of("airflow") / "airflow"
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")},
            "AIRFLOW_HOME": str(folder),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        }
        for name in ("dags", "plugins"):
            (folder / name).mkdir()
        shutil.copy(deployed.DEPLOY / "airflow" / "imagebeam_airflow.py", folder / "plugins")
        assert self.start("db", "migrate").wait(patience.HANG_SEC) == 0

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        """Starts a command of Airflow; its output goes to the file log."""
        with open(self.folder / "log", "ab") as log:
            return subprocess.Popen(
                [self._program, *arguments],
                env={**self._environment, **environment},
                cwd=self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def put(self, name: str, **constants: object) -> None:
        """Puts a DAG into the folder of DAGs, with these constants at its top."""
        shutil.rmtree(self.folder / "dags")
        (self.folder / "dags").mkdir()
        text = deployed.set_constants(deployed.DEPLOY / "airflow" / f"{name}.py", {"PROGRAM": PROGRAM, **constants})
        (self.folder / "dags" / f"{name}.py").write_text(text)

    def start_dag(self, name: str, date: str, **environment: str) -> subprocess.Popen[bytes]:
        (self.folder / "log").unlink(missing_ok=True)
        return self.start("dags", "test", name, date, **environment)

    def finish(self, process: subprocess.Popen[bytes], exit_code: int = 0) -> str:
        """Waits for the end of a DAG; returns its log."""
        code = process.wait(patience.HANG_SEC)
        assert code == exit_code, self.log()[-5000:]
        return self.log()

    def log(self) -> str:
        """Returns what the last DAG has logged so far."""
        return (self.folder / "log").read_text()

    def query(self, sql: str, *values: str) -> list[Any]:
        """Asks Airflow's database."""
        connection = sqlite3.connect(self.folder / "airflow.db")
        try:
            return connection.execute(sql, values).fetchall()
        finally:
            connection.close()

    def xcom(self, dag: str, task: str, key: str = "return_value", date: str = DATES[0]) -> Any:
        """Returns the XCom of the last run of a task for a date; None if there is none."""
        found = "SELECT xcom.value FROM xcom JOIN dag_run ON xcom.dag_run_id = dag_run.id"
        which = "xcom.dag_id = ? AND xcom.task_id = ? AND xcom.key = ? AND dag_run.logical_date LIKE ?"
        rows = self.query(f"{found} WHERE {which} ORDER BY xcom.timestamp DESC", dag, task, key, f"{date}%")
        return json.loads(rows[0][0]) if rows else None


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    yield Airflow(tmp_path_factory.mktemp("airflow"))


def test_dag_writes_a_snapshot_for_each_date(airflow: Airflow, tmp_path: pathlib.Path) -> None:
    images, output = tmp_path / "in", tmp_path / "out"
    airflow.put(
        "imagebeam_nightly", INPUT=str(images), OUTPUT=str(output), OPTIONS=["--config", "image_folder", "--update"]
    )  # fmt: skip
    for number, date in enumerate(DATES):
        image_sets.write_folder(images, per_label=5 + number)
        log = airflow.finish(airflow.start_dag("imagebeam_nightly", date))
        assert log.count("Command exited with return code 0") == 2  # `verify`, too
        assert (output / "LATEST").read_text() == f"{number + 1:06}\n"
        summary = airflow.xcom("imagebeam_nightly", "convert", date=date)
        assert (summary["state"], summary["snapshot"]) == ("committed", f"{number + 1:06}")
        assert len(snapshot_sets.living(output)) == 10 + 2 * number


def test_killed_task_is_retried_and_ends_with_the_same_bytes(airflow: Airflow, tmp_path: pathlib.Path) -> None:
    for label in ("cat", "dog"):
        (tmp_path / "in" / label).mkdir(parents=True)
        for number in range(60):
            data = image_sets.make_image(number, "PNG", size=(800, 600))
            (tmp_path / "in" / label / f"{number}.png").write_bytes(data)
    datasets.make(tmp_path / "in", tmp_path / "expected", image={"encode": "jpeg"}, output={"num_shards": 12})
    settings = ["--config", "image_folder", "--set", "image.encode=jpeg", "--set", "output.num_shards=12"]
    output = tmp_path / "out"
    airflow.put(
        "imagebeam_nightly", INPUT=str(tmp_path / "in"), OUTPUT=str(output),
        OPTIONS=[*settings, "--workers", "1"], RETRY_SEC=1,
    )  # fmt: skip
    for _ in patience.again():  # the run may have been too fast
        shutil.rmtree(output, ignore_errors=True)
        process = airflow.start_dag("imagebeam_nightly", DATES[0])
        is_killed = kill_while_writing(process, output)
        log = airflow.finish(process)
        if is_killed:
            break
    assert "imagebeam ended with exit code -9: killed" in log
    assert datasets.shard_digests(output) == datasets.shard_digests(tmp_path / "expected")
    assert log.count(CONVERTS) == 2
    assert re.search(r" of 12 shards (was|were) finished by an earlier run", log)


def kill_while_writing(process: subprocess.Popen[bytes], output: pathlib.Path) -> bool:
    """Kills the `imagebeam` that a DAG has started once some of its shards are finished, and not all.

    The launcher is stopped while this looks. Returns False if it has ended before.
    """
    lock = output / ".imagebeam" / "lock"
    while process.poll() is None:
        try:
            number = json.loads(lock.read_text())["process"]
            os.kill(number, signal.SIGSTOP)
        except (OSError, ValueError):  # it has not begun, is just writing its lock, or has ended
            time.sleep(0.005)
            continue
        is_writing = 0 < len(list(output.glob(".imagebeam/staging-*/*.done.json"))) < 12
        if is_writing:
            os.killpg(number, signal.SIGKILL)
            return True
        os.kill(number, signal.SIGCONT)
        time.sleep(0.005)
    return False


STAND_IN = """#!/usr/bin/env python3
import json, pathlib, sys

calls = pathlib.Path(__file__).with_name("calls")
with calls.open("a") as file:
    file.write(sys.argv[1] + "\\n")
if sys.argv[1] == "convert":
    code = {codes}[len(calls.read_text().splitlines()) - 1]
    summary = {{"exit_code": code, "message": "the message for %d" % code}}
    pathlib.Path(sys.argv[sys.argv.index("--summary-json") + 1]).write_text(json.dumps(summary))
    sys.exit(code)
"""


@pytest.mark.parametrize(
    ("codes", "calls", "shown"),
    [
        pytest.param(
            [5, 1, 0], ["convert", "convert", "convert", "verify"], "exit code 5: the message for 5", id="retried"
        ),
        pytest.param([3, 0], ["convert"], "AirflowFailException: imagebeam ended with exit code 3: ", id="not-retried"),
    ],
)
def test_exit_code_decides_on_a_retry_and_the_summary_is_kept(
    airflow: Airflow, tmp_path: pathlib.Path, codes: list[int], calls: list[str], shown: str
) -> None:
    program = tmp_path / "imagebeam"
    program.write_text(STAND_IN.format(codes=codes))
    program.chmod(0o755)
    airflow.put("imagebeam_nightly", PROGRAM=str(program), INPUT="in", OUTPUT="out", RETRY_SEC=1)
    log = airflow.finish(airflow.start_dag("imagebeam_nightly", DATES[0]), exit_code=int("verify" not in calls))
    assert shown in log
    assert (tmp_path / "calls").read_text().splitlines() == calls
    code = codes[calls.count("convert") - 1]
    summary = {"exit_code": code, "message": f"the message for {code}"}
    assert airflow.xcom("imagebeam_nightly", "convert", "summary") == summary
    assert airflow.xcom("imagebeam_nightly", "convert") == (None if code else summary)


def test_dag_waits_for_a_job_attaches_to_it_and_retries_a_failed_one(airflow: Airflow, tmp_path: pathlib.Path) -> None:
    datasets.write_images(tmp_path / "in")
    datasets.make(tmp_path / "in", tmp_path / "expected", output={"num_shards": 2})
    with gcs.run(tmp_path) as emulator, dataflow.run() as service:
        bucket = emulator.bucket("pets")
        gcs.upload(tmp_path / "in", bucket, "images")
        image = "europe-docker.pkg.dev/p/r/worker:latest"
        airflow.put(
            "imagebeam_dataflow", INPUT="gs://pets/images", OUTPUT="gs://pets/{{ ds }}", POLL_SEC=1, RETRY_SEC=1,
            DATAFLOW=service.arguments(temp_location="gs://pets/tmp", sdk_container_image=image),
            OPTIONS=["--set", "output.num_shards=2"],
        )  # fmt: skip
        process = airflow.start_dag("imagebeam_dataflow", DATES[0], **emulator.environment)
        patience.wait_until(lambda: service.jobs or process.poll() is not None)
        assert service.jobs, airflow.finish(process)
        patience.wait_until(lambda: service.requests.count("get") > 2)  # Airflow asks and goes on waiting
        process.kill()
        process.wait()
        process = airflow.start_dag("imagebeam_dataflow", DATES[0], **emulator.environment)
        already = f"{service.jobs[0].id} (was running already)"
        patience.wait_until(lambda: already in airflow.log() or process.poll() is not None)
        assert len(service.jobs) == 1
        service.jobs[0].set(dataflow.failed("worker pool lost"))
        patience.wait_until(lambda: len(service.jobs) == 2 or process.poll() is not None)
        assert len(service.jobs) == 2, airflow.finish(process)
        done = captured_jobs.run(service.jobs[1].options["pipelineUrl"], emulator.environment)
        assert done.returncode == 0, done.stderr
        service.jobs[1].set(dataflow.DONE)
        log = airflow.finish(process)
        found = gcs.download(bucket, DATES[0], tmp_path / "found")
    assert "imagebeam ended with exit code 1: worker pool lost" in log
    assert datasets.shard_digests(found) == datasets.shard_digests(tmp_path / "expected")
    status = airflow.xcom("imagebeam_dataflow", "convert")
    assert (status["state"], status["output"]) == ("committed", f"gs://pets/{DATES[0]}")
