"""The proxy of the other tests does what these rely on; the cluster is in test_hdfs.py, where it runs."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import random
import threading
import time
from collections.abc import Iterator

import pytest
import requests

from tests import case_tables, patience
from tests.servers import faults

pytestmark = pytest.mark.integration

DATA = random.Random(0).randbytes(300_000)


class EchoHandler(http.server.BaseHTTPRequestHandler):
    """Echoes requests: in one piece, or in chunks where the path is /chunks."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def answer(self) -> None:
        pieces = []
        if self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                pieces.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
        else:
            pieces.append(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        body = f"{self.command} {self.path} {self.headers.get('X-Test')}\n".encode() + b"".join(pieces)
        url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.send_response(200)
        self.send_header("Content-Type", "text/x-test")
        self.send_header("Location", f"{url}/next?from={url}")
        self.send_header("X-Twice", "1")
        self.send_header("X-Twice", "2")
        if self.path == "/chunks":
            self.send_header("Transfer-Encoding", "chunked")
            body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (body[:10], body[10:])) + b"0\r\n\r\n"
        else:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer

    def log_message(self, *_: object) -> None:
        pass


class EchoServer(http.server.ThreadingHTTPServer):
    request_queue_size = 256

    def handle_error(self, *_: object) -> None:
        """Prints nothing about connections that the proxy breaks."""


@pytest.fixture(scope="module")
def echo() -> Iterator[str]:
    """The url of a server that echoes requests."""
    with EchoServer(("127.0.0.1", 0), EchoHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def outcome(url: str) -> str:
    """Returns what a plain client meets: a status, "whole", "cut" or "reset"."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=patience.HANG_SEC)
    with contextlib.closing(connection):
        try:
            connection.request("PUT", "/file", b"x" * 1000)
            response = connection.getresponse()
            body = response.read()
        except http.client.IncompleteRead as e:
            assert len(e.partial) > 400
            return "cut"
        except ConnectionResetError:
            return "reset"
    if response.status != 200:
        return str(response.status)
    assert body.endswith(b"x" * 1000)
    return "whole"


@case_tables.each_case("chunked", [False, True])
@case_tables.each_case("path", ["/a%20b?c=d%2Fe", "/chunks"])
@case_tables.each_case("method", ["GET", "HEAD", "PUT", "POST", "DELETE"])
def test_proxy_without_faults_passes_requests_and_responses_on(
    method: str, path: str, chunked: bool, echo: str
) -> None:
    body = iter([DATA[:5], DATA[5:]]) if chunked else DATA
    with faults.FaultyProxy(echo, seed=0, fraction=0) as proxy, requests.Session() as session:
        for count in (1, 2):  # on one connection
            data = body if method in ("PUT", "POST") and count == 1 else None
            response = session.request(method, proxy.url + path, data=data, headers={"X-Test": "y"})
            assert response.status_code == 200
            if method != "HEAD":
                assert response.content == f"{method} {path} y\n".encode() + (DATA if data is not None else b"")
            assert response.headers["Content-Type"] == "text/x-test"
            assert response.headers["X-Twice"] == "1, 2"
            assert response.headers["Location"] == f"{proxy.url}/next?from={proxy.url}"
            assert proxy.counts == {"requests": count}


@case_tables.each_case("kind", faults.KINDS)
def test_proxy_injects_a_kind_of_fault(kind: str, echo: str) -> None:
    with faults.FaultyProxy(echo, seed=0, fraction=1, kinds=(kind,)) as proxy:
        begin = time.monotonic()
        assert outcome(proxy.url) == {"lost": "reset", "slow": "whole"}.get(kind, kind)
        assert kind != "slow" or time.monotonic() - begin >= faults.SLOW_SEC
        assert proxy.counts == {"requests": 1, kind: 1}


def test_faults_follow_from_the_seed(echo: str) -> None:
    def outcomes(seed: int) -> list[str]:
        with faults.FaultyProxy(echo, seed, fraction=0.5, kinds=("429", "500", "reset", "cut")) as proxy:
            return [outcome(proxy.url) for _ in range(50)]

    assert outcomes(1) == outcomes(1) != outcomes(2)
