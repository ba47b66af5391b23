"""A web server on this machine whose paths answer, refuse, fail, break off, are silent or drip, for tests."""

from __future__ import annotations

import contextlib
import http.server
import socket
import struct
import threading
import urllib.parse
from collections.abc import Iterator, Mapping

SILENT, DRIP, BROKEN, ENDLESS, LOOP = "/silent", "/drip", "/broken", "/endless", "/loop"


@contextlib.contextmanager
def serve(files: Mapping[str, bytes]) -> Iterator[str]:
    """Yields the address of a server.

    It answers /403, /500 and the like with this status, SILENT and anything below it never, DRIP with a byte now and
    then, BROKEN by breaking the connection, ENDLESS with bytes without end, LOOP by sending the client there again, and
    any other path with its file.
    `?robots=RULES` is sent back as X-Robots-Tag, and `?to=PATH` sends the client to another path.
    """
    ended = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            wanted = {"to": LOOP} if path == LOOP else dict(urllib.parse.parse_qsl(query))
            if path == BROKEN:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.close_connection = True
                self.connection.close()
                return
            if path.startswith(SILENT):
                ended.wait()
                self.close_connection = True
                return
            data, status = files.get(path, b""), 200 if path in (*files, DRIP, ENDLESS) else 404
            if path[1:].isdigit():
                status = int(path[1:])
            self.send_response(302 if "to" in wanted else status)
            if "to" in wanted:
                self.send_header("Location", wanted["to"])
            if "robots" in wanted:
                self.send_header("X-Robots-Tag", wanted["robots"])
            if path != ENDLESS:
                self.send_header("Content-Length", str(1000 if path == DRIP else len(data)))
            self.end_headers()
            if self.command == "HEAD":
                return
            if path == DRIP:
                with contextlib.suppress(OSError):
                    while not ended.wait(0.02):
                        self.wfile.write(b"x")
                        self.wfile.flush()
            with contextlib.suppress(OSError):
                while path == ENDLESS:
                    self.wfile.write(bytes(1 << 20))
            self.wfile.write(data)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        ended.set()
        server.shutdown()
        thread.join()
        server.server_close()
