"""A Hadoop file system on this machine for tests: hdfs_cluster/, compiled once and kept in the user's cache."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import select
import subprocess
from collections.abc import Iterator
from typing import Any

from tests import patience
from tests.servers import java_programs

_SOURCE = pathlib.Path(__file__).parent / "hdfs_cluster"
_MAIN = "MiniHdfs"
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
    prepared, temporary, log = java_programs.prepare(_SOURCE), folder / "java", folder / "hdfs.log"
    temporary.mkdir()
    settings = [
        "-Xmx512m",
        *java_programs.SMALL,
        f"-Djava.io.tmpdir={temporary}",
        "-cp",
        f"{prepared}{os.pathsep}{prepared}/*",
    ]
    command = ["java", *settings, _MAIN, folder]
    with (
        open(log, "w") as errors,
        subprocess.Popen(
            command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        try:
            yield Cluster(process, log)
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
