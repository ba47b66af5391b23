"""The images of the Dockerfile, built without an engine: `make images-test`, as root on Debian, some minutes.

Not one of the tests that pytest finds by itself. buildah builds on a base of Debian's packages; Beam's and Google's
images, which need a registry, are replaced by ones with the program that Beam builds from the same source, and with a
stand-in for Google's launcher.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import pathlib
import queue
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests import command_line, datasets, patience
from tests.golden import test_golden
from tests.servers import debian, go_programs

pytestmark = pytest.mark.integration

_PACKAGES = ("python3", "python3-venv", "ca-certificates", "gcc", "libc6-dev")
_LIBRARIES = ("libjpeg-dev", "libpng-dev", "libturbojpeg0-dev")
_TEMPLATE = "gs://b/t/job_object"  # Google's launcher submits what the program writes there
_LAUNCHER = f'#!/bin/sh\nexec python "$FLEX_TEMPLATE_PYTHON_PY_FILE" "$@" --template_location={_TEMPLATE}\n'


class Images:
    """Images in a store of their own."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self._buildah = ["buildah", "--storage-driver", "vfs", "--root", str(folder / "store")]
        self._buildah += ["--runroot", str(folder / "run")]
        self._containers: dict[str, str] = {}

    def call(self, *arguments: object) -> str:
        """Runs buildah; returns what it prints."""
        done = command_line.run_other(*self._buildah, *arguments)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout.strip()

    def build(self, name: str, context: pathlib.Path, *arguments: str) -> None:
        shown = ["build", "--quiet", "--isolation", "chroot", "--network", "host", "--pull-never"]
        self.call(*shown, *arguments, "-t", f"localhost/{name}", context)

    def config(self, name: str) -> dict[str, Any]:
        """What the image says about the containers made from it."""
        shown = json.loads(self.call("inspect", "--type", "image", f"localhost/{name}"))
        return shown["OCIv1"]["config"]  # type: ignore[no-any-return]

    def run(self, name: str, *command: object, volume: pathlib.Path | None = None) -> list[str]:
        """Returns the command line that runs a command in a container of the image: one for all, it is a copy."""
        if name not in self._containers:
            self._containers[name] = self.call("from", "--pull-never", f"localhost/{name}")
        container = self._containers[name]
        mounted = ["--volume", f"{volume}:{volume}"] if volume else []
        return [*self._buildah, "run", "--isolation", "chroot", *mounted, container, "--", *map(str, command)]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Images]:
    missing = [name for name in ("buildah", "mmdebstrap") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{' and '.join(missing)} not found: apt-get install buildah mmdebstrap")
    if os.geteuid() != 0:
        pytest.skip("images are built as root")
    boot = go_programs.boot()
    folder = tmp_path_factory.mktemp("images")
    found = Images(folder)
    (folder / "base").mkdir()
    (folder / "beam").mkdir()
    shutil.copy(debian.make_root("bookworm", *_PACKAGES, *_LIBRARIES), folder / "base" / "rootfs.tar")
    (folder / "base" / "Dockerfile").write_text("FROM scratch\nADD rootfs.tar /\n")
    found.build("base", folder / "base")
    shutil.copy(boot, folder / "beam" / "boot")
    (folder / "beam" / "launcher").write_text(_LAUNCHER)
    (folder / "beam" / "launcher").chmod(0o755)
    (folder / "beam" / "Dockerfile").write_text(
        "FROM scratch\nCOPY boot /opt/apache/beam/boot\nCOPY launcher /opt/google/dataflow/python_template_launcher\n"
    )
    found.build("beam", folder / "beam")
    bases = ("BASE=localhost/base", "BEAM_IMAGE=localhost/beam", "TEMPLATE_IMAGE=localhost/beam")
    given = [f"--build-arg={each}" for each in bases]
    certificates = "/etc/ssl/certs"  # of this machine, for an index that only it trusts
    mounted = f"--volume={certificates}:{certificates}:ro"
    # The launcher is made from the worker. One build without cached layers: the driver vfs copies all files for each.
    found.build("launcher", command_line.ROOT, *given, "--target=launcher", mounted)
    try:
        yield found
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # gigabytes


def test_command_in_the_worker_image_writes_the_golden_bytes(images: Images, tmp_path: pathlib.Path) -> None:
    shutil.copytree(test_golden.IMAGES, tmp_path / "in")
    arguments = ("--input", tmp_path / "in", "--output", tmp_path / "out", "--set", "output.num_shards=3", "--quiet")
    command = images.run("launcher", "imagebeam", "convert", *arguments, volume=tmp_path)
    done = command_line.run_other(*command)
    assert done.returncode == 0, done.stderr
    test_golden.assert_golden(datasets.shard_digests(tmp_path / "out"))


def test_worker_image_starts_a_worker_that_asks_for_work(images: Images) -> None:
    import grpc
    from apache_beam.portability.api import (
        beam_fn_api_pb2_grpc,
        beam_provision_api_pb2,
        beam_provision_api_pb2_grpc,
        endpoints_pb2,
    )

    config = images.config("launcher")
    assert "RUN_PYTHON_SDK_IN_DEFAULT_ENVIRONMENT=1" in config["Env"]
    asked: queue.Queue[str] = queue.Queue()

    class Provision(beam_provision_api_pb2_grpc.ProvisionServiceServicer):  # type: ignore[misc]
        def GetProvisionInfo(self, request: Any, context: Any) -> Any:
            endpoint = endpoints_pb2.ApiServiceDescriptor(url=address)
            info = beam_provision_api_pb2.ProvisionInfo(
                logging_endpoint=endpoint, artifact_endpoint=endpoint, control_endpoint=endpoint
            )
            return beam_provision_api_pb2.GetProvisionInfoResponse(info=info)

    class Logging(beam_fn_api_pb2_grpc.BeamFnLoggingServicer):  # type: ignore[misc]
        def Logging(self, requests: Any, context: Any) -> Iterator[Any]:
            for _ in requests:
                pass
            return
            yield

    class Control(beam_fn_api_pb2_grpc.BeamFnControlServicer):  # type: ignore[misc]
        def Control(self, responses: Any, context: Any) -> Iterator[Any]:
            asked.put(dict(context.invocation_metadata())["worker_id"])
            return  # no work: the worker ends
            yield

    server = grpc.server(concurrent.futures.ThreadPoolExecutor(8))
    beam_provision_api_pb2_grpc.add_ProvisionServiceServicer_to_server(Provision(), server)
    beam_fn_api_pb2_grpc.add_BeamFnLoggingServicer_to_server(Logging(), server)
    beam_fn_api_pb2_grpc.add_BeamFnControlServicer_to_server(Control(), server)
    address = f"localhost:{server.add_insecure_port('localhost:0')}"
    server.start()
    try:
        command = images.run("launcher", "/opt/apache/beam/boot", "--id=worker-1", f"--provision_endpoint={address}")
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert asked.get(timeout=patience.HANG_SEC) == "worker-1"
            finally:
                process.terminate()
                process.wait(timeout=patience.HANG_SEC)
    finally:
        server.stop(None)


def test_launcher_image_runs_convert_with_the_parameters(images: Images) -> None:
    config = images.config("launcher")
    assert config["Entrypoint"] == ["/opt/google/dataflow/python_template_launcher"]
    assert "FLEX_TEMPLATE_PYTHON_PY_FILE=/opt/flex_template/main.py" in config["Env"]
    given = ("--input=gs://b/i", "--output=gs://b/o", "--runner=DataflowRunner", "--project=p")
    command = images.run("launcher", *config["Entrypoint"], *given)
    done = command_line.run_other(*command)
    assert "imagebeam: --region is missing" in done.stderr
    assert done.returncode == 2


def test_image_has_the_beam_of_the_lock(images: Images) -> None:
    code = "import apache_beam, imagebeam; print(apache_beam.__version__, imagebeam.__version__)"
    command = images.run("launcher", "python", "-c", code)
    here = command_line.run_other(sys.executable, "-c", code).stdout
    assert here and command_line.run_other(*command).stdout == here
