"""A Hadoop file system on this machine for tests: hdfs_cluster/, prepared once and kept in the user's cache.

To start takes a third of the processor time that it takes from the jars as they come, 2.8 s instead of 8.5 s: Hadoop's
web servers read through whole jars, so these are stored without compression, and Java maps its classes from an archive.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import select
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator
from typing import Any

import pytest

from tests import patience
from tests.servers import cache as cache_lib

_SOURCE = pathlib.Path(__file__).parent / "hdfs_cluster"
_MAIN = "MiniHdfs"
_ARCHIVE = "classes.jsa"
_DOWNLOAD_SEC = 600  # 108 MB
_ANSWER_SEC = patience.HANG_SEC  # to start takes 3 s alone, to start or stop a DataNode 1 s
_STOP_SEC = patience.HANG_SEC


class Cluster:
    """A running NameNode with two DataNodes.

    Attributes:
        host: of all of them.
        port: of the NameNode's WebHDFS.
        rpc_port: of the NameNode's own protocol.
        address: hdfs://user@host:port, with the port of WebHDFS.
        data_node_ports: of their WebHDFS; None where one is killed. A DataNode that starts again has another one.
    """

    host = "127.0.0.1"

    def __init__(self, process: subprocess.Popen[str], log: pathlib.Path):
        self._process, self._log = process, log
        self._read_answer()
        self.address = f"hdfs://beam@{self.host}:{self.port}"

    def kill(self, number: int) -> None:
        """Stops a DataNode. The NameNode goes on leading clients to it until it notices, 3 s later."""
        self._run(f"kill {number}")

    def start(self, number: int) -> None:
        """Starts a killed DataNode; the NameNode knows its blocks when this returns."""
        self._run(f"start {number}")

    def safe_mode(self, on: bool) -> None:
        """Makes the NameNode refuse all changes, or accept them again."""
        self._run(f"safemode {'on' if on else 'off'}")

    def filesystem(self, port: int | None = None) -> Any:
        """Returns a new fsspec client of the NameNode, or of a proxy in front of it at another port."""
        import fsspec

        return fsspec.filesystem(
            "webhdfs", host=self.host, port=port or self.port, user="beam", skip_instance_cache=True
        )

    def _run(self, command: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, and its answer says so
            self._process.stdin.write(f"{command}\n")
            self._process.stdin.flush()
        self._read_answer()

    def _read_answer(self) -> None:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], _ANSWER_SEC)
        line = self._process.stdout.readline() if ready else ""
        assert line, f"the HDFS cluster ended, or was silent for {_ANSWER_SEC} s: {self._log.read_text()[-4000:]}"
        answer = json.loads(line)
        self.port: int = answer["port"]
        self.rpc_port: int = answer["rpc_port"]
        self.data_node_ports: list[int | None] = answer["data_node_ports"]


@contextlib.contextmanager
def run(folder: pathlib.Path) -> Iterator[Cluster]:
    """Runs a cluster that keeps its files in `folder`. Skips the test where there is no Java or Maven, or no jars."""
    with _java(folder, _prepare()) as (process, log):
        yield Cluster(process, log)


@contextlib.contextmanager
def _java(
    folder: pathlib.Path, prepared: pathlib.Path, *more: str
) -> Iterator[tuple[subprocess.Popen[str], pathlib.Path]]:
    """Runs the program in an empty folder, with more options of Java; yields the process and the path of its log."""
    temporary, log = folder / "java", folder / "hdfs.log"
    temporary.mkdir()
    # These settings start fast and leave nothing in /tmp.
    settings = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"]
    archive = prepared / _ARCHIVE
    settings += [f"-XX:SharedArchiveFile={archive}"] if archive.exists() else []  # Java ignores one of another Java
    settings += [f"-Djava.io.tmpdir={temporary}", "-cp", _class_path(prepared)]
    command = ["java", *settings, *more, _MAIN, folder]
    with (
        open(log, "w") as errors,
        subprocess.Popen(
            command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        try:
            yield process, log
        finally:
            _stop(process)


def _stop(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    try:
        process.wait(_STOP_SEC)
    except subprocess.TimeoutExpired:
        process.kill()


def _prepare() -> pathlib.Path:
    """Makes the jars and the archive of classes, or takes them from the cache; returns their folder."""
    for program, package in (("java", "default-jdk-headless"), ("mvn", "maven")):
        if shutil.which(program) is None:
            pytest.skip(f"the HDFS cluster needs {program}, and there is none here: apt-get install {package}")
    java = pathlib.Path(shutil.which("java") or "").resolve()
    digest = hashlib.sha256(f"{java} {java.stat().st_mtime_ns}".encode())
    for path in (_SOURCE / "pom.xml", _SOURCE / f"{_MAIN}.java"):
        digest.update(path.read_bytes())
    with cache_lib.hold("hdfs-lock") as cache:
        prepared = cache / f"hdfs-cluster-{digest.hexdigest()[:16]}"
        if not prepared.exists():
            new = cache / f"{prepared.name}.new"
            shutil.rmtree(new, ignore_errors=True)
            _download(new / "downloaded")
            for jar in sorted((new / "downloaded").iterdir()):
                _store(jar, new / jar.name)
            shutil.rmtree(new / "downloaded")
            _compile(new)
            os.replace(new, prepared)
        if not (prepared / _ARCHIVE).exists():  # it holds the paths of the jars, so they have their last names
            _archive_classes(prepared)
    return prepared


def _download(folder: pathlib.Path) -> None:
    command = ["mvn", "-B", "-q", "dependency:copy-dependencies", "-DincludeScope=runtime"]
    command.append(f"-DoutputDirectory={folder}")
    try:
        subprocess.run(command, cwd=_SOURCE, capture_output=True, text=True, timeout=_DOWNLOAD_SEC, check=True)
    except subprocess.SubprocessError as e:  # Maven names its errors on stdout
        pytest.skip(f"the jars of the HDFS cluster cannot be downloaded: {e}: {e.stdout}")


def _store(jar: pathlib.Path, copy: pathlib.Path) -> None:
    """Copies a jar without compression."""
    with zipfile.ZipFile(jar) as compressed, zipfile.ZipFile(copy, "w", zipfile.ZIP_STORED) as stored:
        for name in compressed.namelist():
            stored.writestr(zipfile.ZipInfo(name), compressed.read(name))


def _compile(folder: pathlib.Path) -> None:
    """Compiles the program with the jars in a folder into a jar beside them: an archive of classes is of jars alone."""
    classes = folder / "classes"
    command = ["javac", "-cp", _class_path(folder), "-d", classes, _SOURCE / f"{_MAIN}.java"]
    subprocess.run(command, check=True, timeout=patience.HANG_SEC)
    with zipfile.ZipFile(folder / f"{_MAIN}.jar", "w", zipfile.ZIP_STORED) as jar:
        for path in sorted(classes.iterdir()):
            jar.write(path, path.name)
    shutil.rmtree(classes)


def _archive_classes(prepared: pathlib.Path) -> None:
    """Runs a cluster once, and keeps the classes that it has loaded as Java maps them into memory."""
    new = prepared / f"{_ARCHIVE}.new"
    with (
        tempfile.TemporaryDirectory() as folder,
        _java(pathlib.Path(folder), prepared, f"-XX:ArchiveClassesAtExit={new}") as (process, log),
    ):
        cluster = Cluster(process, log)
        cluster.filesystem().pipe_file("/file", b"1")
        cluster.filesystem().ls("/")
        assert cluster.filesystem().cat_file("/file") == b"1"
    os.replace(new, prepared / _ARCHIVE)


def _class_path(folder: pathlib.Path) -> str:
    return os.pathsep.join(str(path) for path in sorted(folder.rglob("*.jar")))
