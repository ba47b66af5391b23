"""Tables with addresses of web servers, some of which refuse, fail, are slow or have no name."""

from __future__ import annotations

import hashlib
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from imagebeam.pipelines import convert, verify_dataset
from imagebeam.pipelines.config import model as config_lib
from tests import datasets, error_texts, image_sets
from tests.servers import web

IMAGES = {f"/{n}.jpg": image_sets.make_image(n) for n in range(5)}
HASHES = [hashlib.sha256(data).hexdigest() for data in IMAGES.values()]


@pytest.fixture
def files() -> dict[str, bytes]:
    return dict(IMAGES)


@pytest.fixture
def server(files: dict[str, bytes]) -> Iterator[str]:
    with web.serve(files) as address:
        yield address


def convert_table(folder: pathlib.Path, rows: list[dict[str, Any]], *overrides: str, **flags: bool) -> pathlib.Path:
    """Converts a table with the preset `urls`; returns the output."""
    table, output = folder / "urls.jsonl", folder / "out"
    table.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    places = f"source.uri={table}", f"output.uri={output}"
    quick = "source.web.timeout_sec=1", "image.limits.max_bytes=1000000"
    config = config_lib.load_config("urls", [*places, "rejects.max_fraction=1", *quick, *overrides])
    convert.convert(config, workers=1, **flags)
    assert verify_dataset.verify(str(output), decode=True).problems == ()
    return output


def test_each_failure_has_its_reason_and_the_rest_is_written(tmp_path: pathlib.Path, server: str) -> None:
    expected = {
        f"{server}/403": "http_403",
        f"{server}/gone": "not_found",
        f"{server}/451": "http_4xx",
        f"{server}/500": "http_5xx",
        f"{server}{web.SILENT}": "timeout",
        f"{server}{web.DRIP}": "timeout",
        f"{server}{web.BROKEN}": "unreadable",
        f"{server}{web.ENDLESS}": "too_large",
        f"{server}/0.jpg?robots=noai": "robots",
        f"{server}/1.jpg?to=/gone": "not_found",
        "http://no.invalid/a.png": "dns",
    }
    good = [f"{server}/0.jpg", f"{server}/1.jpg?to=/2.jpg", f"{server}/3.jpg?robots=otherbot:noindex"]
    output = convert_table(tmp_path, [{"url": each} for each in (*good, *expected)])
    assert datasets.rejects(output) == expected
    found = {each["image/key"].decode(): each["image/encoded"] for each in datasets.read(output)}
    assert found == {good[0]: IMAGES["/0.jpg"], good[1]: IMAGES["/2.jpg"], good[2]: IMAGES["/3.jpg"]}


def test_addresses_that_are_none_are_rejects_with_a_reason(tmp_path: pathlib.Path, server: str) -> None:
    odd = {
        "http://[::1/x.jpg": "is no address",
        "http://[]/x.jpg": "is no address",
        "ftp://no.invalid/x.jpg": "fsspec cannot open ftp://",
        "unknown://x/y.jpg": "scheme 'unknown' is not known",
        f"{server}{web.LOOP}": "it is redirected again and again",
        f"{server}/b.jpg?to=file:///etc/passwd": "it is redirected to file:///etc/passwd",
        "http://127.0.0.1:1/x.jpg": "its server cannot be reached (Connection refused)",
    }
    output = convert_table(tmp_path, [{"url": each} for each in (f"{server}/0.jpg", *odd)])
    rejects = {line["key"]: line for line in map(json.loads, (output / "rejects.jsonl").read_text().splitlines())}
    assert {key: each["reason"] for key, each in rejects.items()} == dict.fromkeys(odd, "unreadable")
    for key, text in odd.items():
        assert text in rejects[key]["detail"]


def test_rules_for_robots_can_be_ignored_and_a_robot_has_the_name_that_the_config_gives(
    tmp_path: pathlib.Path, server: str
) -> None:
    rows = [{"url": f"{server}/{n}.jpg?robots={rule}"} for n, rule in enumerate(["noai", "mybot:noindex", "none"])]
    (tmp_path / "respects").mkdir()
    (tmp_path / "ignores").mkdir()
    output = convert_table(tmp_path / "respects", rows, "source.web.user_agent=otherbot/2")
    assert datasets.rejects(output) == {rows[0]["url"]: "robots", rows[2]["url"]: "robots"}
    with error_texts.raises("rejects-all"):
        convert_table(tmp_path, rows, "source.web.user_agent=mybot/2")
    assert len(datasets.read(convert_table(tmp_path / "ignores", rows, "source.web.robots=ignore"))) == 3


def test_file_with_another_checksum_than_the_table_says_is_a_reject(tmp_path: pathlib.Path, server: str) -> None:
    hashes = [HASHES[0], HASHES[1].upper(), HASHES[0], "", "12"]  # right, in capitals, another one, none, not one
    rows = [{"url": f"{server}/{n}.jpg", "hash": each} for n, each in enumerate(hashes)]
    output = convert_table(tmp_path, rows, "source.manifest.sha256=hash")
    assert datasets.rejects(output) == {f"{server}/2.jpg": "bad_checksum", f"{server}/4.jpg": "bad_value"}


def test_checksums_are_of_local_files_too(tmp_path: pathlib.Path) -> None:
    for name, data in IMAGES.items():
        (tmp_path / name[1:]).write_bytes(data)
    rows = [{"url": f"{n}.jpg", "hash": each} for n, each in enumerate([*HASHES[:3], HASHES[0]])]
    output = convert_table(tmp_path, rows, "source.manifest.sha256=hash")
    assert datasets.rejects(output) == {"3.jpg": "bad_checksum"}
    assert [each["image/key"] for each in sorted(datasets.read(output), key=str)] == [b"0.jpg", b"1.jpg", b"2.jpg"]


def test_what_failed_is_asked_for_again_and_nothing_else(
    tmp_path: pathlib.Path, server: str, files: dict[str, bytes]
) -> None:
    rows = [{"url": f"{server}/{n}.jpg"} for n in range(6)]
    output = convert_table(tmp_path, rows, update=True)
    assert datasets.rejects(output / "snapshots/000001") == {f"{server}/5.jpg": "not_found"}
    files["/5.jpg"] = IMAGES["/0.jpg"]
    del files["/0.jpg"]  # would be a reject if it were asked for again
    convert_table(tmp_path, rows, update=True, retry_rejects=True)
    assert datasets.rejects(output / "snapshots/000002") == {}
