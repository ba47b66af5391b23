"""The proxy of the other tests injects what they rely on. What it passes on, the tests on real servers compare."""

from __future__ import annotations

import contextlib
import http.client
import time
from collections.abc import Iterator

import pytest

from tests import case_tables, patience
from tests.servers import faults, web

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with web.serve({"/file": b"x" * 1000}) as url:
        yield url


def outcome(url: str) -> str:
    """Returns what a plain client meets: a status, "whole", "cut" or "reset"."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=patience.HANG_SEC)
    with contextlib.closing(connection):
        try:
            connection.request("GET", "/file")
            response = connection.getresponse()
            body = response.read()
        except http.client.IncompleteRead as e:
            assert len(e.partial) > 400
            return "cut"
        except ConnectionResetError:
            return "reset"
    return "whole" if body == b"x" * 1000 else str(response.status)


@case_tables.each_case("kind", faults.KINDS)
def test_proxy_injects_a_kind_of_fault(kind: str, server: str) -> None:
    with faults.FaultyProxy(server, seed=0, fraction=1, kinds=(kind,)) as proxy:
        begin = time.monotonic()
        assert outcome(proxy.url) == {"lost": "reset", "slow": "whole"}.get(kind, kind)
        assert kind != "slow" or time.monotonic() - begin >= faults.SLOW_SEC
        assert proxy.counts == {"requests": 1, kind: 1}


def test_faults_follow_from_the_seed(server: str) -> None:
    def outcomes(seed: int) -> list[str]:
        with faults.FaultyProxy(server, seed, fraction=0.5, kinds=("429", "500", "reset", "cut")) as proxy:
            return [outcome(proxy.url) for _ in range(50)]

    assert outcomes(1) == outcomes(1) != outcomes(2)
