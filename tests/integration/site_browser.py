"""The site of the documentation in a browser: `make site-test`, after `make site`.

Not one of the tests that pytest finds by itself: they need Chromium, which apt-get installs.
"""

from __future__ import annotations

import functools
import http.server
import json
import pathlib
import re
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests import command_line
from tests.integration import report_browser

pytestmark = pytest.mark.integration

_SITE = command_line.ROOT / "build" / "site"
_WIDTHS = (375, 1280)  # pixels of a phone and of a desk
# A long table, signatures, a picture, pages that are files elsewhere, and the widest lines of code.
_PAGES = ("index", "reading", "config", "api/datasets", "api/options", "benchmarks", "recipes/README")
# Opens each page in a frame of the same origin, one after the other.
_PROBE = """<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><pre id="found"></pre><script>
const found = {}, pages = %s;
const look = async name => {
  const frame = document.createElement("iframe");
  frame.width = %d; frame.height = 900; frame.src = "/" + name;
  const loaded = new Promise(resolve => { frame.onload = resolve; });
  document.body.append(frame);
  await loaded;
  const inside = frame.contentDocument, root = inside.documentElement;
  const style = frame.contentWindow.getComputedStyle(inside.body);
  found[name] = {width: root.scrollWidth, seen: root.clientWidth, title: inside.querySelector("h1").textContent,
    broken: [...inside.images].filter(each => !each.complete || !each.naturalWidth).map(each => each.src),
    loaded: frame.contentWindow.performance.getEntriesByType("resource").map(each => each.name),
    scheme: inside.body.dataset.mdColorScheme, paper: style.backgroundColor};
  frame.remove();
};
(async () => { for (const name of pages) await look(name);
  document.getElementById("found").textContent = JSON.stringify(found); })();
</script>"""


class _Handler(http.server.SimpleHTTPRequestHandler):
    probes: Mapping[str, bytes] = {}

    def do_GET(self) -> None:
        if (content := self.probes.get(self.path)) is None:
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    if not (_SITE / "index.html").exists():
        pytest.skip("there is no site: make site")
    pages = json.dumps([f"{name}.html" for name in (*_PAGES[:-1], "recipes/index")])
    handler = type("Handler", (_Handler,), {"probes": {f"/{w}": (_PROBE % (pages, w)).encode() for w in _WIDTHS}})
    serving = functools.partial(handler, directory=str(_SITE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serving) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", _WIDTHS)
def test_pages_fit_their_screen_and_load_only_from_the_site(
    tmp_path: pathlib.Path, address: str, width: int, dark: bool
) -> None:
    options = [f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--timeout=120000"]
    done = report_browser.browse(tmp_path, f"{address}/{width}", *options)
    found: dict[str, Any] = json.loads(done.stdout.split('<pre id="found">')[1].split("</pre>")[0])
    assert report_browser.messages_in(done.stderr) == []
    assert len(found) == len(_PAGES)
    for name, page in found.items():
        assert page["width"] <= page["seen"] <= width, name
        assert page["broken"] == [] and page["title"], name
        assert all(each.startswith((address, "data:")) for each in page["loaded"]), name
        assert page["scheme"] == ("slate" if dark else "default"), name


def test_no_page_names_a_script_a_style_or_a_picture_elsewhere() -> None:
    for path in _SITE.rglob("*.html"):
        sources = re.findall(r"<(?:script|img|source|iframe)\b[^>]*\bsrc=\"?([^\s\">]+)", path.read_text("utf-8"))
        sources += re.findall(r"<link\b[^>]*\brel=\"?(?:stylesheet|preconnect|icon)\"?[^>]*", path.read_text("utf-8"))
        assert [each for each in sources if "//" in each and "127.0.0.1" not in each] == [], path


def test_search_finds_a_page_and_a_name_of_the_python_interface() -> None:
    documents = json.loads((_SITE / "search" / "search_index.json").read_text("utf-8"))["docs"]
    by_location = {each["location"]: each["title"] for each in documents}
    assert "api/datasets.html#imagebeam.ImageDataset.as_jax" in by_location
    assert by_location["reader.html"] == "The reader: a tutorial"
