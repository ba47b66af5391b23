"""Flink and Spark on this machine, each with Beam's job server: a master, two workers, one Java process each."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence

import pytest

from tests import captured_jobs, command_line, patience
from tests.servers import cache as cache_lib
from tests.servers import go_programs, java_programs

_BIN = pathlib.Path(sys.executable).parent
_HERE = pathlib.Path(__file__).parent
_OPENED = ["lang", "lang.invoke", "net", "nio", "util", "util.concurrent", "util.concurrent.atomic", "io"]
_OPEN = [f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in _OPENED]
_OPEN += [f"--add-opens=java.base/sun.{package}=ALL-UNNAMED" for package in ("nio.ch", "nio.cs", "security.action")]
_OPEN += ["--add-opens=java.base/sun.util.calendar=ALL-UNNAMED"]

# Flink's own script computes the sizes of memory; without it each is given.
_FLINK = {
    "jobmanager.bind-host": "127.0.0.1",
    "jobmanager.rpc.address": "127.0.0.1",
    "rest.address": "127.0.0.1",
    "rest.bind-address": "127.0.0.1",
    "taskmanager.host": "127.0.0.1",
    "taskmanager.bind-host": "127.0.0.1",
    "taskmanager.numberOfTaskSlots": 2,
    "taskmanager.cpu.cores": 1.0,
    "taskmanager.memory.framework.heap.size": "64m",
    "taskmanager.memory.framework.off-heap.size": "128m",  # half of it for shuffles
    "taskmanager.memory.task.heap.size": "192m",
    "taskmanager.memory.task.off-heap.size": "0m",
    "taskmanager.memory.managed.size": "64m",
    "taskmanager.memory.network.min": "384m",
    "taskmanager.memory.network.max": "384m",  # tf.Transform has many steps
    "taskmanager.memory.jvm-metaspace.size": "160m",
    "taskmanager.memory.jvm-overhead.min": "64m",
    "taskmanager.memory.jvm-overhead.max": "64m",
    "heartbeat.interval": 1000,  # a killed TaskManager is noticed after two of them
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": 3,
    "restart-strategy.fixed-delay.delay": "100 ms",
    "classloader.resolve-order": "parent-first",  # docs/runners.md
}


_SPARK_PLACES = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")


class Program:
    """A running program with a log, which listens on the loopback interface alone."""

    def __init__(self, folder: pathlib.Path, name: str, command: Sequence[object]):
        self.log = folder / f"{name}.log"
        variables = {**os.environ, "LD_PRELOAD": str(_preloaded()), "PATH": f"{_BIN}:{os.environ['PATH']}"}
        variables["PYTHONPATH"] = (
            f"{folder / 'code'}{os.pathsep}{command_line.ROOT}"  # of workers: also a test's own code
        )
        variables |= {"SPARK_HOME": str(folder), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_SCALA_VERSION": "2.12"}
        with open(self.log, "w") as log:
            # a group of its own, with the workers of Beam that it starts
            self.process = subprocess.Popen(
                list(map(str, command)),
                cwd=folder,
                env=variables,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def find(self, pattern: str) -> str:
        """Waits for a line of the log; returns the first group of the pattern in it."""
        found: list[str] = []

        def look() -> bool:
            found.extend(re.findall(pattern, self.log.read_text()))
            return bool(found) or self.process.poll() is not None

        patience.wait_until(look)
        assert found, f"{self.log.stem} ended: {self.log.read_text()[-4000:]}"
        return found[0]

    def kill(self) -> None:
        """Ends the program at once, not what it has started."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Ends the program and what it has started."""
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(patience.HANG_SEC / 100)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class _Java(Program):
    def __init__(self, jars: pathlib.Path, folder: pathlib.Path, name: str, megabytes: int, main: Sequence[object]):
        temporary = folder / f"{name}.tmp"
        temporary.mkdir(exist_ok=True)
        settings = [
            f"-Xmx{megabytes}m",
            "-XX:MaxDirectMemorySize=768m",
            "-Dslf4j.provider=org.slf4j.simple.SimpleServiceProvider",
            *java_programs.SMALL,
            *_OPEN,
            f"-Djava.io.tmpdir={temporary}",
        ]
        command = ["java", *settings, "-cp", f"{jars}{os.pathsep}{jars}/*", *main]
        super().__init__(folder, name, command)


class Cluster:
    """A cluster with two workers of two slots.

    Attributes:
        runner: Beam's name for it.
        workers: its TaskManagers or executors.
        server: Beam's job server.
        code: a folder of Python modules that workers can import.
    """

    runner: str
    parallelism: Sequence[str] = ()
    address: str  # of the master, as HOST:PORT
    server_command: Sequence[str]

    def __init__(self, jars: pathlib.Path, folder: pathlib.Path, boot: pathlib.Path):
        self.jars, self.folder = jars, folder
        self.code = folder / "code"
        self.code.mkdir()
        self.worker_command = folder / "worker"
        captured_jobs.write_worker(self.worker_command, boot, pathlib.Path(sys.executable))
        self.programs: list[Program] = []
        self.workers: list[Program] = []

    def start(self, name: str, megabytes: int, *main: object) -> Program:
        program = _Java(self.jars, self.folder, f"{name}-{len(self.programs)}", megabytes, main)
        self.programs.append(program)
        return program

    def start_pool(self) -> str:
        """Starts a pool of workers, as it runs beside each worker of a cluster; returns its address."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [sys.executable, "-m", "apache_beam.runners.worker.worker_pool_main", f"--service_port={port}"]
        pool = Program(self.folder, f"pool-{port}", [*command, f"--container_executable={self.worker_command}"])
        self.programs.append(pool)

        def answers() -> bool:
            assert pool.process.poll() is None, pool.log.read_text()
            with socket.socket() as client:
                return client.connect_ex(("127.0.0.1", port)) == 0

        patience.wait_until(answers)
        return f"127.0.0.1:{port}"

    def replace_dead_workers(self) -> None:
        dead = [worker for worker in self.workers if worker.process.poll() is not None]
        for worker in dead:
            self.workers.remove(worker)
            self.start_worker()

    def start_server(self) -> None:
        self.server, self.endpoint = self.serve(self.server_command)

    def serve(self, command: Sequence[str]) -> tuple[Program, str]:
        """Starts a job server; returns it and its address."""
        places = ["--job-host=127.0.0.1", "--job-port=0", "--artifact-port=0", "--expansion-port=-1"]
        server = self.start("server", 512, *command, *places, f"--artifacts-dir={self.folder / 'artifacts'}")
        return server, "127.0.0.1:" + server.find(r"JobService started on \S+:(\d+)")

    def options(self, **environment: str) -> list[str]:
        """Returns Beam's options for a job: on workers that the cluster starts, or on those of the environment."""
        command = json.dumps({"command": str(self.worker_command)})
        given = environment or {"environment_type": "PROCESS", "environment_config": command}
        named = {"runner": self.runner, "job_endpoint": self.endpoint, **given}
        return [*(f"--{name}={value}" for name, value in named.items()), *self.parallelism]

    def run(self, num_workers: int, **settings: object) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        for program in reversed(self.programs):
            program.stop()


class Flink(Cluster):
    runner = "FlinkRunner"
    parallelism = ("--parallelism=2",)

    def run(self, num_workers: int, **settings: object) -> None:
        """Starts the cluster; `settings` are Flink's, with "_" for "." in their names."""
        self._settings = {**_FLINK, **{name.replace("_", "."): value for name, value in settings.items()}}
        self.conf = self.folder / "conf"
        self.conf.mkdir()
        self._write({"rest.port": 0, "jobmanager.rpc.port": 0})
        main = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint", "-c", self.conf
        master = self.start("master", 256, *main)
        self.address = "127.0.0.1:" + master.find(r"Rest endpoint listening at 127.0.0.1:(\d+)")
        rpc_port = master.find(r"pekko.tcp://flink@127.0.0.1:(\d+)")
        self._write({"rest.port": int(self.address.partition(":")[2]), "jobmanager.rpc.port": int(rpc_port)})
        for _ in range(num_workers):
            self.start_worker()
        self.server_command = "JobServer", f"--flink-master={self.address}", f"--flink-conf-dir={self.conf}"
        self.start_server()

    def start_worker(self) -> Program:
        main = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner", "-c", self.conf
        self.workers.append(self.start("worker", 256, *main))
        self.workers[-1].find("Successful registration at resource manager")
        return self.workers[-1]

    def _write(self, ports: dict[str, int]) -> None:
        (self.conf / "config.yaml").write_text(json.dumps({**self._settings, **ports}))


class Spark(Cluster):
    runner = "SparkRunner"

    def run(self, num_workers: int, **settings: object) -> None:
        """Starts the cluster; `settings` are Spark's, with "_" for "." in their names."""
        (self.folder / "jars").symlink_to(self.jars)  # of the home, where a worker looks for them
        master = self.start("master", 256, "org.apache.spark.deploy.master.Master", *_SPARK_PLACES)
        self.address = "127.0.0.1:" + master.find(r"Starting Spark master at spark://127.0.0.1:(\d+)")
        for _ in range(num_workers):
            self.start_worker()
        small = " ".join(java_programs.SMALL)  # half of the processor time: each job starts executors
        given = {"spark.executor.memory": "512m", "spark.executor.extraJavaOptions": small}
        given |= {"spark.ui.enabled": "false", **settings}
        named = [f"-D{name.replace('_', '.')}={value}" for name, value in given.items()]
        self.server_command = *named, "JobServer", f"--spark-master-url=spark://{self.address}"
        self.start_server()

    def start_worker(self) -> Program:
        places = [*_SPARK_PLACES, "--cores", "2", "--memory", "512m", "--work-dir", self.folder / "work"]
        main = "org.apache.spark.deploy.worker.Worker", *places, f"spark://{self.address}"
        self.workers.append(self.start("worker", 192, *main))
        self.workers[-1].find("Successfully registered with master")
        return self.workers[-1]


@contextlib.contextmanager
def run(kind: type[Cluster], folder: pathlib.Path, num_workers: int = 2, **settings: object) -> Iterator[Cluster]:
    """Runs a cluster that keeps its files in `folder`. Skips the test where its programs cannot be made."""
    jars = java_programs.prepare(_HERE / f"{kind.__name__.lower()}_cluster")
    cluster = kind(jars, folder, go_programs.boot())
    try:
        cluster.run(num_workers, **settings)
        yield cluster
    finally:
        cluster.stop()


def _preloaded() -> pathlib.Path:
    """Returns the library of preloaded.c. Skips the test where there is no compiler."""
    source = _HERE / "preloaded.c"
    with cache_lib.hold("preloaded-lock") as cache:
        library = cache / f"preloaded-{hashlib.sha256(source.read_bytes()).hexdigest()[:16]}.so"
        if not library.exists():
            if shutil.which("gcc") is None:
                pytest.skip("the clusters need a C compiler, and there is none here: apt-get install gcc libc6-dev")
            new = library.with_suffix(".new")
            done = command_line.run_other("gcc", "-O1", "-shared", "-fPIC", "-o", new, source, "-ldl")
            assert done.returncode == 0, done.stderr
            os.replace(new, library)
    return library
