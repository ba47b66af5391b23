"""An HTTP server on this machine that answers each request as a test says, and keeps what it was asked."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple


class Request(NamedTuple):
    """What a client has sent."""

    method: str
    path: str  # with its query
    authorization: str
    body: bytes


@contextlib.contextmanager
def serve(answer: Callable[[Request], bytes]) -> Iterator[tuple[str, list[Request]]]:
    """Runs a server; yields its address, and its requests so far. An answer is JSON; b"" is status 404."""
    requests: list[Request] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            request = Request(self.command, self.path, self.headers.get("Authorization") or "", body)
            requests.append(request)
            data = answer(request)
            self.send_response(200 if data else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_DELETE = do_any

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", requests
        finally:
            server.shutdown()
            thread.join()
