"""Programs in Java for the tests: the jars that a pom.xml names, which Maven downloads once into the user's cache."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import select
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests import patience
from tests.servers import cache as cache_lib

SMALL = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")  # starts fast, leaves nothing in /tmp
_DOWNLOAD_SEC = 1200  # 160 MB


class Program:
    """A program that answers each line of its stdin by a line of JSON.

    Attributes:
        started: what it printed first, when it was ready.
    """

    def __init__(self, process: subprocess.Popen[str], log: pathlib.Path):
        self._process, self._log = process, log
        self.started = self._read_answer()

    def ask(self, command: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, and its answer says so
            self._process.stdin.write(f"{command}\n")
            self._process.stdin.flush()
        return self._read_answer()

    def _read_answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], patience.HANG_SEC)
        line = self._process.stdout.readline() if ready else ""
        text = self._log.read_text()[-4000:]
        assert line, f"{self._log.stem} ended, or was silent for {patience.HANG_SEC} s: {text}"
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextlib.contextmanager
def run(source: pathlib.Path, main: str, folder: pathlib.Path, *arguments: object) -> Iterator[Program]:
    """Runs the class `main` of `source` with its files in `folder`, which is its first argument and in its class path.

    Skips the test where there is no Java or Maven, or no jars.
    """
    prepared, temporary, log = prepare(source), folder / "java", folder / f"{main}.log"
    temporary.mkdir()
    paths = os.pathsep.join((str(prepared), f"{prepared}/*", str(folder)))
    command = ["java", "-Xmx512m", *SMALL, f"-Djava.io.tmpdir={temporary}", "-cp", paths, main, folder, *arguments]
    with (
        open(log, "w") as errors,
        subprocess.Popen(
            [str(each) for each in command],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        try:
            yield Program(process, log)
        finally:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            try:
                process.wait(patience.HANG_SEC)
            except subprocess.TimeoutExpired:
                process.kill()


def prepare(source: pathlib.Path) -> pathlib.Path:
    """Returns a folder with the jars of pom.xml in `source`, and the classes of the .java files beside it.

    Skips the test where there is no Java or Maven, or where the jars cannot be downloaded.
    """
    for program, package in (("java", "default-jdk-headless"), ("mvn", "maven")):
        if shutil.which(program) is None:
            pytest.skip(f"{source.name} needs {program}, and there is none here: apt-get install {package}")
    java = pathlib.Path(shutil.which("java") or "").resolve()
    digest = hashlib.sha256(f"{java} {java.stat().st_mtime_ns} plain".encode())
    programs = sorted(source.glob("*.java"))
    for path in (source / "pom.xml", *programs):
        digest.update(path.read_bytes())
    name = source.name.replace("_", "-")
    with cache_lib.hold(f"{name}-lock") as cache:
        prepared = cache / f"{name}-{digest.hexdigest()[:16]}"
        if not prepared.exists():
            new = cache / f"{prepared.name}.new"
            shutil.rmtree(new, ignore_errors=True)
            _download(source, new)
            if programs:
                command = ["javac", "-cp", f"{new}/*", "-d", new, *programs]
                subprocess.run(command, check=True, timeout=patience.HANG_SEC)
            os.replace(new, prepared)
    return prepared


def _download(source: pathlib.Path, folder: pathlib.Path) -> None:
    command = ["mvn", "-B", "-q", "dependency:copy-dependencies", "-DincludeScope=runtime"]
    command.append(f"-DoutputDirectory={folder}")
    try:
        subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=_DOWNLOAD_SEC, check=True)
    except subprocess.SubprocessError as e:  # Maven names its errors on stdout
        pytest.skip(f"the jars of {source.name} cannot be downloaded: {e}: {e.stdout}")
