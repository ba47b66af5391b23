"""A web server on this machine whose paths answer, refuse, fail, are silent or drip, for tests."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Iterator, Mapping

SILENT, DRIP = "/silent", "/drip"


@contextlib.contextmanager
def serve(files: Mapping[str, bytes]) -> Iterator[str]:
    """Yields the address of a server.

    It answers /403, /500 and the like with this status, SILENT and anything below it never, and DRIP with a byte now
    and then; any other path with its file.
    """
    ended = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path
            if path.startswith(SILENT):
                ended.wait()
                self.close_connection = True
                return
            data, status = files.get(path, b""), 200 if path in files or path == DRIP else 404
            if path[1:].isdigit():
                status = int(path[1:])
            self.send_response(status)
            self.send_header("Content-Length", str(1000 if path == DRIP else len(data)))
            self.end_headers()
            if self.command == "HEAD":
                return
            if path == DRIP:
                with contextlib.suppress(OSError):
                    while not ended.wait(0.02):
                        self.wfile.write(b"x")
                        self.wfile.flush()
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
