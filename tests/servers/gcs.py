"""A Google Cloud Storage on this machine for tests, built from gcs_emulator/ once and kept in the user's cache."""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import hashlib
import json
import os
import pathlib
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing import connection
from typing import Any, TypeVar

import pytest

from tests import command_line, patience
from tests.servers import cache as cache_lib
from tests.servers import go_programs

_T = TypeVar("_T")

_SOURCE = pathlib.Path(__file__).parent / "gcs_emulator"
_GRACE_SEC = 60.0  # for a process that gives up to print its stacks
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
        credentials, authority = write_credentials(folder), folder / "authority.pem"
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
    def process(self, patience_sec: float = patience.HANG_SEC) -> Iterator[Callable[..., Any]]:
        """Starts a process that uses the server: `call(function, *arguments)` runs there, and returns or raises.

        A call, or the end of the process, that takes longer than `patience_sec` ends the process. The error of the
        test then has the stacks of its threads.
        """
        with connection.Listener() as listener, tempfile.TemporaryFile("w+") as log:
            code = "import sys; from tests.servers import gcs; gcs.answer_calls(sys.argv[1], float(sys.argv[2]))"
            # A file, not a pipe that nobody reads: a full pipe would stop the process.
            streams = (subprocess.DEVNULL, log.fileno(), log.fileno())
            process = command_line.start_program(
                code, listener.address, patience_sec, environment=self.environment, streams=streams
            )

            def written() -> str:
                log.seek(0)
                return log.read()

            try:
                with listener.accept() as caller:

                    def call(function: Callable[..., _T], *arguments: Any) -> _T:
                        caller.send((function, arguments))
                        try:
                            has_returned, answer = caller.recv()
                        except EOFError:
                            pytest.fail(f"the process ended in {function.__name__}: {written()}")
                        if not has_returned:
                            raise answer
                        return answer  # type: ignore[no-any-return]

                    yield call
                assert process.wait(patience_sec + _GRACE_SEC) == 0, written()
            finally:
                process.kill()
                process.wait()

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


def write_credentials(folder: pathlib.Path) -> pathlib.Path:
    """Writes credentials that make no request; returns the path for GOOGLE_APPLICATION_CREDENTIALS."""
    path = folder / "credentials.json"
    path.write_text(json.dumps(_CREDENTIALS))
    return path


@contextlib.contextmanager
def run(folder: pathlib.Path, objects: int = 0) -> Iterator[Emulator]:
    """Runs a server that keeps its files in `folder`. Skips the test where there is no Go, or none of its modules.

    With `objects` it begins with a bucket "large" of so many, of 1 KB each, below images/ in 100 folders, and again in
    the folder flat/.
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


def answer_calls(address: str, patience_sec: float) -> None:
    """Runs the functions that `Emulator.process` sends, until it closes the connection.

    Prints the stacks of all threads and ends the process if a function, or the end of the process, takes longer.
    """
    watch = functools.partial(faulthandler.dump_traceback_later, patience_sec, exit=True)
    with connection.Client(address) as caller, contextlib.suppress(EOFError):
        while True:
            function, arguments = caller.recv()
            watch()
            try:
                answer = True, function(*arguments)
            except Exception as e:
                answer = False, e
            caller.send(answer)
            faulthandler.cancel_dump_traceback_later()
    watch()  # Nothing cancels this: the interpreter may hang while it shuts down.


def upload(folder: pathlib.Path, bucket: Any, prefix: str) -> None:
    """Puts all files below a folder into a bucket."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            bucket.blob(f"{prefix}/{path.relative_to(folder).as_posix()}").upload_from_filename(str(path))


def download(bucket: Any, prefix: str, folder: pathlib.Path) -> pathlib.Path:
    """Downloads the objects below a prefix into a local folder; returns it."""
    for blob in bucket.list_blobs(prefix=f"{prefix}/"):
        path = folder / blob.name.removeprefix(f"{prefix}/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(blob.download_as_bytes())
    return folder


def _build() -> pathlib.Path:
    """Builds the program, or takes it from the cache; returns its path."""
    digest = hashlib.sha256()
    for name in ("main.go", "go.mod", "go.sum"):
        digest.update((_SOURCE / name).read_bytes())
    with cache_lib.hold("lock") as cache:
        program = cache / f"gcs-emulator-{digest.hexdigest()[:16]}"
        if not program.exists():
            downloaded = go_programs.run_go("mod", "download", cwd=_SOURCE)
            if downloaded.returncode:
                pytest.skip(f"the modules of the GCS emulator cannot be downloaded: {downloaded.stderr}")
            command = ("build", "-trimpath", "-o", f"{program}.new", ".")
            built = go_programs.run_go(*command, cwd=_SOURCE)
            assert built.returncode == 0, built.stderr
            os.replace(f"{program}.new", program)
    return program
