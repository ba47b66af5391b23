"""HttpStorage, against a server on this machine that refuses, fails, is silent and drips."""

from __future__ import annotations

import http.server
import pathlib
import threading
import urllib.parse
from collections.abc import Iterator
from concurrent import futures

import pytest

from imagebeam import storage
from imagebeam.storage import remote
from imagebeam.transforms import elements
from tests import patience
from tests.servers import web

OPTIONS = {"requests_timeout": patience.HANG_SEC}
IMPATIENT = {"requests_timeout": 0.3}  # for answers that do not come
ONE_ATTEMPT_SEC = 0.1  # a budget below the first wait


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with web.serve({"/a.bin": b"0123456789"}) as address:
        yield address


def test_files_are_looked_up_read_and_downloaded(server: str, tmp_path: pathlib.Path) -> None:
    store = storage.storage_of(server, OPTIONS)
    assert store.stat(f"{server}/a.bin")[:3] == ("a.bin", storage.FILE, 10)
    assert store.read(f"{server}/a.bin") == b"0123456789"
    store.download(f"{server}/a.bin", str(tmp_path / "a"))
    assert (tmp_path / "a").read_bytes() == b"0123456789"


@pytest.mark.parametrize("does_read", [False, True], ids=["stat", "read"])
@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("{server}/gone.jpg", "not_found"),
        ("{server}/410", "not_found"),
        ("{server}/401", "http_403"),
        ("{server}/403", "http_403"),
        ("{server}/451", "http_4xx"),
        ("{server}/429", "http_4xx"),
        ("{server}/503", "http_5xx"),
        ("{server}/silent", "timeout"),
        ("http://no-such-host.invalid/a.jpg", "dns"),
        ("{server}/broken", "unreadable"),
        ("http://127.0.0.1:1/a.jpg", "unreadable"),
    ],
)
def test_failure_is_an_error_that_tells_its_cause(server: str, address: str, reason: str, does_read: bool) -> None:
    uri = address.format(server=server)
    store = storage.storage_of(uri, IMPATIENT if reason == "timeout" else OPTIONS)
    with remote.budget(ONE_ATTEMPT_SEC), pytest.raises(OSError) as caught:
        store.read(uri) if does_read else store.stat(uri)
    assert elements.Reason.of_error(caught.value).value == reason
    assert not storage.is_fault(caught.value)
    assert uri in str(caught.value)


@pytest.mark.parametrize(
    ("rules", "refused_by"),
    [
        ("noai", "noai"),
        ("noarchive, NoImageIndex", "noimageindex"),
        ("none", "none"),
        ("max-snippet:10, noindex", "noindex"),
        ("unavailable_after: 25 Jun 2030 15:00:00 PST", ""),
        ("index, nosnippet", ""),
        ("imagebeam: noindex", "noindex"),
        ("otherbot: noindex", ""),
    ],
)
def test_file_is_refused_for_the_rules_of_its_server_if_they_are_respected(
    server: str, rules: str, refused_by: str
) -> None:
    uri = f"{server}/a.bin?{urllib.parse.urlencode({'robots': rules})}"
    assert storage.storage_of(uri, OPTIONS).read(uri) == b"0123456789"
    store = storage.storage_of(uri, {**OPTIONS, "respect_robots": True})
    if not refused_by:
        assert store.read(uri) == b"0123456789"
        return
    with pytest.raises(storage.RequestError, match=f"X-Robots-Tag: {refused_by}`") as caught:
        store.read(uri)
    assert caught.value.cause == "robots"


def test_file_larger_than_the_limit_is_not_read_to_its_end(server: str) -> None:
    store = storage.storage_of(server, {"max_bytes": 9})
    for name in ("a.bin", "endless"):
        with pytest.raises(storage.RequestError, match="more than 9 bytes") as caught:
            store.read(f"{server}/{name}")
        assert caught.value.cause == "too_large"
    assert storage.storage_of(server, {"max_bytes": 10}).read(f"{server}/a.bin") == b"0123456789"


def test_no_more_files_than_allowed_are_read_from_a_server_at_once() -> None:
    lock, active, most = threading.Lock(), 0, 0

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            nonlocal active, most
            with lock:
                active += 1
                most = max(most, active)
            full.wait(0.05)  # until another request comes, which none must
            with lock:
                active -= 1
            self.send_response(200)
            self.send_header("Content-Length", "1")
            self.end_headers()
            self.wfile.write(b"x")

        def log_message(self, format: str, *args: object) -> None:
            pass

    full = threading.Event()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as counting:
        thread = threading.Thread(target=counting.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        address = f"http://127.0.0.1:{counting.server_address[1]}"
        store = storage.storage_of(address, {"per_host": 2})
        with futures.ThreadPoolExecutor(8) as pool:
            assert list(pool.map(store.read, [f"{address}/{n}" for n in range(12)])) == [b"x"] * 12
        counting.shutdown()
        thread.join()
    assert most <= 2


def test_server_that_drips_is_given_up_when_the_time_of_the_request_is_over(server: str) -> None:
    message = r"/drip: no whole .* within 0\.3 s"
    with remote.budget(ONE_ATTEMPT_SEC), pytest.raises(storage.RequestError, match=message) as caught:
        storage.storage_of(server, IMPATIENT).read(f"{server}/drip")
    assert caught.value.cause == "timeout"


def test_server_that_is_silent_is_left_alone_and_one_that_answers_is_not(server: str) -> None:
    with web.serve({}) as silent:
        store = storage.storage_of(silent, {"requests_timeout": 0.31})  # known to no other test
        details = []
        for number in range(5):
            with remote.budget(ONE_ATTEMPT_SEC), pytest.raises(storage.RequestError) as caught:
                store.read(f"{silent}/silent/{number}")
            assert caught.value.cause == "timeout"
            details.append(str(caught.value))
        assert [("was not asked again" in each) for each in details] == [False] * 3 + [True] * 2
        assert store.read(f"{server}/a.bin") == b"0123456789"
