"""A proxy between a client and an HTTP server on this machine that breaks some of the responses, for tests."""

from __future__ import annotations

import collections
import contextlib
import http.client
import http.server
import json
import random
import re
import socket
import socketserver
import struct
import threading
import time
import urllib.parse
from collections.abc import Sequence
from typing import Any

STATUSES = ("429", "500", "503")
KINDS = (*STATUSES, "reset", "lost", "slow", "cut")
EXPIRED = "expired"

SLOW_SEC = 0.05  # a client that gives up on an answer waits for many seconds first
_UPSTREAM_SEC = 120
_OF_CONNECTION = {"connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}
_LOCAL_URL = re.compile(r"http://(?:127\.0\.0\.1|localhost):(\d+)(?=[/?\"]|$)")
_OTHER_PORT = re.compile(r"/@(\d+)(/.*)")


class FaultyProxy:
    """A proxy that runs in threads while its context lasts, and passes on all but a fraction of what it is asked.

    The kinds of faults:
        429, 500, 503: this status; the server is not asked.
        reset: the connection is reset; the server is not asked.
        lost: the connection is reset when the server has done what it was asked.
        slow: the response comes SLOW_SEC later.
        cut: the connection is closed after half of the response's body. A response without one passes whole.

    The seed decides on the kinds in the order in which the requests come, so for a client that sends one at a time.
    Where the server cannot be reached, or breaks off by itself, the client's connection is reset, and not counted.

    With `token_requests`, a bearer token is void once it was used so often: all further requests with it get 401,
    counted as "expired". /token on the proxy itself gives a new one to whoever asks, as an authorization server does
    (RFC 6749, 5.1).

    Addresses of the server in a Location or a JSON body lead through the proxy too.

    Args:
        upstream_url: of the server: http://127.0.0.1:port.
        seed: of the faults.
        fraction: of the requests that get one; may be changed while the proxy runs.
        kinds: of faults, equally likely.
        latency_sec: added to each request.
        token_requests: how many requests a token is good for; 0 for any number. Give more than a client sends at once:
            otherwise those of other threads use up a new token before the thread that asked for it, which gives up.
        rewrite_hosts: whether addresses of other ports of this machine, such as those of WebHDFS's DataNodes, lead
            through the proxy too: as url/@port/path.

    Attributes:
        url: of the proxy.
    """

    def __init__(
        self,
        upstream_url: str,
        seed: int,
        fraction: float = 0.05,
        kinds: Sequence[str] = KINDS,
        latency_sec: float = 0.0,
        token_requests: int = 0,
        rewrite_hosts: bool = False,
    ):
        assert set(kinds) <= set(KINDS), kinds
        port = urllib.parse.urlsplit(upstream_url).port
        assert port is not None, upstream_url
        self.upstream_port, self.latency_sec = port, latency_sec
        self.fraction, self._kinds, self._rewrite_hosts = fraction, kinds, rewrite_hosts
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._counts: collections.Counter[str] = collections.Counter()
        self._other_ports: set[int] = set()
        self._token_requests = token_requests
        self._until_lost = -1  # number of requests before the one of `lose`
        self._uses: collections.Counter[str] = collections.Counter()  # of each token
        self._server = _Server(self)
        self.port: int = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def lose(self, number: int) -> None:
        """Makes the answer of the request with this index be lost, counted from now; -1 for none."""
        with self._lock:
            self._until_lost, self._counts["lost"] = number, 0

    @property
    def counts(self) -> collections.Counter[str]:
        """The number of "requests" so far, of faults of each kind, and of the server's own errors ("upstream-403")."""
        with self._lock:
            return self._counts.copy()

    def __enter__(self) -> FaultyProxy:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._server.close_connections()

    def count(self, name: str) -> None:
        with self._lock:
            self._counts[name] += 1

    def draw(self, authorization: str) -> str | None:
        """Returns the fault of the next request, which has this header, or None."""
        with self._lock:
            self._counts["requests"] += 1
            self._uses[authorization] += 1
            self._until_lost -= 1
            if self._until_lost == -1:
                return "lost"
            if 0 < self._token_requests < self._uses[authorization]:
                return EXPIRED
            return self._random.choice(self._kinds) if self._random.random() < self.fraction else None

    def route(self, path: str) -> tuple[int, str]:
        """Returns the port and the path of the server for a path of the proxy."""
        match = _OTHER_PORT.fullmatch(path)
        if match and int(match[1]) in self._other_ports:
            return int(match[1]), match[2]
        return self.upstream_port, path

    def rewrite(self, text: str) -> str:
        """Returns the text with addresses that lead through the proxy."""

        def replace(match: re.Match[str]) -> str:
            port = int(match[1])
            if port == self.upstream_port:
                return self.url
            if not self._rewrite_hosts or port == self.port:
                return match[0]
            self._other_ports.add(port)
            return f"{self.url}/@{port}"

        return _LOCAL_URL.sub(replace, text)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def __init__(self, proxy: FaultyProxy):
        self.proxy = proxy
        self._connections: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Closes a connection; without the shutdown of the base class, which would end it in order before its reset."""
        self._connections.discard(request)
        self.close_request(request)

    def close_connections(self) -> None:
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Handler(http.server.BaseHTTPRequestHandler):
    """One connection of a client."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):
            super().handle()

    def log_message(self, *_: object) -> None:
        pass

    def _serve(self) -> None:
        proxy = self.server.proxy
        if self.path == "/token":
            self._give_token()
            return
        fault = proxy.draw(self.headers.get("Authorization", ""))
        if fault is not None and fault != "cut":
            proxy.count(fault)
        time.sleep(proxy.latency_sec + (SLOW_SEC if fault == "slow" else 0))
        try:
            if fault == "reset":
                self._reset()
            elif fault in STATUSES or fault == EXPIRED:
                self._read_body()
                self._refuse(401 if fault == EXPIRED else int(fault))
            else:
                self._forward(fault)
        except (OSError, EOFError, http.client.HTTPException):
            self._reset()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_PATCH = do_OPTIONS = _serve

    def _forward(self, fault: str | None) -> None:
        """Passes the request on, then its response: each read whole, so that its length is known."""
        port, path = self.server.proxy.route(self.path)
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=_UPSTREAM_SEC)) as upstream:
            upstream.connect()
            upstream.putrequest(self.command, path, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in _OF_CONNECTION | {"host", "expect"}:
                    upstream.putheader(name, value)
            body = self._read_body()
            if "Transfer-Encoding" in self.headers:
                upstream.putheader("Content-Length", str(len(body)))
            with contextlib.suppress(ConnectionError):  # a server that refuses a body may answer before its end
                upstream.endheaders(body)
            response = upstream.getresponse()
            if response.status >= 400:
                self.server.proxy.count(f"upstream-{response.status}")
            if fault == "lost":
                self._reset()
            else:
                self._pass(response, cut=fault == "cut")

    def _read_body(self) -> bytes:
        if "Transfer-Encoding" not in self.headers:
            return self._read_bytes(int(self.headers.get("Content-Length", 0)))
        pieces = []
        while size := int(self.rfile.readline().partition(b";")[0] or b"0", 16):
            pieces.append(self._read_bytes(size))
            self.rfile.readline()
        while self.rfile.readline().strip():  # its trailers
            pass
        return b"".join(pieces)

    def _read_bytes(self, size: int) -> bytes:
        data = self.rfile.read(size)
        if len(data) < size:
            raise EOFError("the client closed its connection")
        return data

    def _pass(self, response: http.client.HTTPResponse, cut: bool) -> None:
        """Passes a response on."""
        rewrite = self.server.proxy.rewrite
        has_body = response.length != 0
        body = response.read()
        is_json = response.getheader("Content-Type", "").startswith("application/json")
        if is_json and "Content-Encoding" not in response.headers:
            body = rewrite(body.decode("latin-1")).encode("latin-1")
        self.send_response_only(response.status, response.reason)
        for name, value in response.getheaders():
            if name.lower() not in _OF_CONNECTION and not (has_body and name.lower() == "content-length"):
                self.send_header(name, rewrite(value) if name.lower() == "location" else value)
        if has_body:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if cut and has_body:
            self.server.proxy.count("cut")
            self.close_connection = True
            body = body[: len(body) // 2]
        self.wfile.write(body)

    def _give_token(self) -> None:
        self._read_body()
        self.server.proxy.count("tokens")
        token = {"access_token": f"token-{time.monotonic_ns()}", "token_type": "Bearer", "expires_in": 3600}
        self._answer(200, "application/json", json.dumps(token).encode())

    def _refuse(self, status: int) -> None:
        self._answer(status, "text/plain", f"injected {status}\n".encode())

    def _answer(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response_only(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _reset(self) -> None:
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
