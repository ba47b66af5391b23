"""A Hadoop file system on this machine for tests: hdfs_cluster/, compiled once and kept in the user's cache.

httpfs/ is HttpFS, the gateway in front of it.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator
from typing import Any

from tests.servers import clusters, java_programs

_SOURCE = pathlib.Path(__file__).parent / "hdfs_cluster"


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

    def __init__(self, program: java_programs.Program):
        self._program = program
        self._take(program.started)
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
        self._take(self._program.ask(command))

    def _take(self, answer: dict[str, Any]) -> None:
        self.port: int = answer["port"]
        self.rpc_port: int = answer["rpc_port"]
        self.data_node_ports: list[int | None] = answer["data_node_ports"]


@contextlib.contextmanager
def run(folder: pathlib.Path) -> Iterator[Cluster]:
    """Runs a cluster that keeps its files in `folder`. Skips the test where there is no Java or Maven, or no jars."""
    with java_programs.run(_SOURCE, "MiniHdfs", folder) as program:
        yield Cluster(program)


@contextlib.contextmanager
def run_gateway(cluster: Cluster, folder: pathlib.Path) -> Iterator[int]:
    """Runs HttpFS in front of a cluster, with its files in `folder`; yields its port. Skips the test as `run` does."""
    jars = java_programs.prepare(_SOURCE.with_name("httpfs"))
    settings = {
        "fs.defaultFS": f"hdfs://{cluster.host}:{cluster.rpc_port}",
        "hadoop.tmp.dir": folder,
        "httpfs.http.hostname": cluster.host,
        "httpfs.http.port": 0,
    }
    properties = [f"<property><name>{name}</name><value>{value}</value></property>" for name, value in settings.items()]
    for name in ("core-site.xml", "httpfs-site.xml"):  # of the client and of the server
        (folder / name).write_text(f"<configuration>{''.join(properties)}</configuration>")
    command = ["java", "-Xmx256m", *java_programs.SMALL, "--add-opens=java.base/java.lang=ALL-UNNAMED"]
    command += [f"-Dhttpfs.{each}.dir={folder}" for each in ("home", "config", "log", "temp")]
    command += ["-cp", f"{folder}:{jars}/*", "org.apache.hadoop.fs.http.server.HttpFSServerWebServer"]
    gateway = clusters.Program(folder, "httpfs", command)
    try:
        yield int(gateway.find(r"Started ServerConnector.*:(\d+)}"))
    finally:
        gateway.stop()
