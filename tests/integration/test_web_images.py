"""A table with addresses of web servers, some of which refuse, fail or have no name."""

from __future__ import annotations

import pathlib

from tests import datasets, image_sets
from tests.servers import web


def test_table_of_web_addresses_converts_and_each_failure_has_its_reason(tmp_path: pathlib.Path) -> None:
    images = {f"/{n}.jpg": image_sets.make_image(n) for n in range(2)}
    with web.serve(images) as server:
        addresses = [*(f"{server}{path}" for path in images), f"{server}/403", f"{server}/gone", f"{server}/500"]
        rows = "".join(f"{address},{n % 2}\n" for n, address in enumerate([*addresses, "http://no.invalid/a.png"]))
        (tmp_path / "table.csv").write_text(f"image,label\n{rows}")
        result = datasets.make(
            tmp_path / "table.csv",
            tmp_path / "out",
            source={"by": "manifest", "manifest": {"image": "image", "allow_outside": True}},
            label={"by": "column", "column": "label"},
            split={"by": "none"},
            rejects={"max_fraction": 1},
        )
    assert result.catalog.counts.written == 2
    assert datasets.rejects(tmp_path / "out") == {
        f"{server}/403": "http_403",
        f"{server}/gone": "not_found",
        f"{server}/500": "http_5xx",
        "http://no.invalid/a.png": "dns",
    }
