"""`report.html` in a browser: `make report-test`, some seconds.

Not one of the tests that pytest finds by itself: they need Chromium, which apt-get installs.
"""

from __future__ import annotations

import http.server
import json
import pathlib
import shutil
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from imagebeam.transforms.html_report import page
from tests import command_line
from tests.unit.transforms.html_report import test_page

pytestmark = pytest.mark.integration

_BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_WIDTHS = (375, 1200)  # pixels of a phone and of a desk
# Runs outside of the page, whose policy forbids scripts, and reads the page in a frame of the same origin.
_PROBE = """<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><iframe src="/report.html" width="%d"
height="900" frameborder="0"></iframe><pre id="found"></pre><script>
const frame = document.querySelector("iframe");
frame.onload = () => {
  const inside = frame.contentDocument, root = inside.documentElement;
  const style = frame.contentWindow.getComputedStyle(inside.body);
  document.getElementById("found").textContent = JSON.stringify({
    width: root.scrollWidth, seen: root.clientWidth, sections: inside.querySelectorAll("main > section").length,
    pictures: [...inside.images].filter(each => each.complete && each.naturalWidth > 0).length,
    images: inside.images.length, scripts: inside.scripts.length, paper: style.backgroundColor, ink: style.color,
    loaded: frame.contentWindow.performance.getEntriesByType("resource").map(each => each.name)
      .filter(name => !name.startsWith("data:"))});
};
</script>"""


class Seen(NamedTuple):
    """What a browser made of a page."""

    found: dict[str, Any]
    messages: list[str]  # of its console
    requests: list[str]  # that reached the server


class _Handler(http.server.BaseHTTPRequestHandler):
    pages: dict[str, bytes]
    requests: list[str]

    def do_GET(self) -> None:
        self.requests.append(self.path)
        content = self.pages.get(self.path)
        self.send_response(404 if content is None else 200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(content or b"")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def content() -> bytes:
    return page.render(test_page.make(picture=test_page.JPEG))


@pytest.fixture
def server(content: bytes) -> Iterator[http.server.ThreadingHTTPServer]:
    pages = {f"/{width}": (_PROBE % width).encode() for width in _WIDTHS} | {"/report.html": content}
    handler = type("Handler", (_Handler,), {"pages": pages, "requests": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def browse(folder: pathlib.Path, address: str, *options: str) -> command_line.Completed:
    """Opens an address, and returns the document as the browser has it, and its log."""
    if _BROWSER is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    # A browser that is root runs without its sandbox only.
    fixed = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--dump-dom")
    fixed += (f"--user-data-dir={folder / 'profile'}", "--enable-logging=stderr", "--virtual-time-budget=5000")
    done = command_line.run_other(_BROWSER, *fixed, *options, address)
    assert done.returncode == 0, done.stderr
    return done


def messages_in(log: str) -> list[str]:
    return [line for line in log.splitlines() if ":CONSOLE" in line]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", _WIDTHS)
def test_page_fits_its_screen_loads_nothing_and_logs_no_error(
    server: http.server.ThreadingHTTPServer, tmp_path: pathlib.Path, width: int, dark: bool
) -> None:
    options = [f"--blink-settings=preferredColorScheme={0 if dark else 1}"]
    done = browse(tmp_path, f"http://127.0.0.1:{server.server_port}/{width}", *options)
    found = json.loads(done.stdout.split('<pre id="found">')[1].split("</pre>")[0])
    assert messages_in(done.stderr) == []
    assert server.RequestHandlerClass.requests == [f"/{width}", "/report.html"]  # type: ignore[attr-defined]
    assert found["loaded"] == [] and found["scripts"] == 0
    assert found["width"] <= found["seen"] <= width
    assert found["sections"] == 9 and found["pictures"] == found["images"] == 24
    assert (found["paper"], found["ink"]) == (
        ("rgb(20, 23, 27)", "rgb(230, 233, 237)") if dark else ("rgb(255, 255, 255)", "rgb(27, 31, 36)")
    )


def test_page_opens_from_a_disk(tmp_path: pathlib.Path, content: bytes) -> None:
    path = tmp_path / "report.html"
    path.write_bytes(content)
    done = browse(tmp_path, path.as_uri())
    assert messages_in(done.stderr) == [] and "<h1>" in done.stdout


def test_browser_reports_what_the_policy_forbids(tmp_path: pathlib.Path, content: bytes) -> None:
    """Else the tests above would prove nothing."""
    path = tmp_path / "report.html"
    path.write_bytes(content.replace(b"</main>", b'<script>1</script><img src="http://127.0.0.1:9/x"></main>'))
    told = "\n".join(messages_in(browse(tmp_path, path.as_uri()).stderr))
    assert "script-src" in told and "127.0.0.1:9/x" in told
