"""Real servers behind a proxy that loses each answer in turn: a file is always there, old or new, and never a part."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
import requests

from imagebeam import storage
from tests import lost_answers
from tests.servers import faults, gcs, hdfs

pytestmark = pytest.mark.integration


class Place(NamedTuple):
    """A folder on a server, and the proxy in front of it."""

    store: storage.Storage
    folder: str
    proxy: faults.FaultyProxy


@contextlib.contextmanager
def _gcs(factory: pytest.TempPathFactory) -> Iterator[Place]:
    with gcs.run(factory.mktemp("gcs")) as emulator, faults.FaultyProxy(emulator.url, seed=0, fraction=0) as proxy:
        emulator.bucket("lost")
        options = {"endpoint_url": proxy.url, "token": "anon", "project": "test"}
        yield Place(storage.storage_of("gs://lost", options), "gs://lost", proxy)


@contextlib.contextmanager
def _s3(_: pytest.TempPathFactory) -> Iterator[Place]:
    server = pytest.importorskip("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        with faults.FaultyProxy(f"http://{host}:{port}", seed=0, fraction=0) as proxy:
            requests.put(f"http://{host}:{port}/lost").raise_for_status()
            client = {"region_name": "us-east-1"}
            options = {"endpoint_url": proxy.url, "key": "test", "secret": "test", "client_kwargs": client}
            yield Place(storage.storage_of("s3://lost", options), "s3://lost", proxy)
    finally:
        server.stop()


@contextlib.contextmanager
def _hdfs(factory: pytest.TempPathFactory) -> Iterator[Place]:
    with (
        hdfs.run(factory.mktemp("cluster")) as cluster,
        faults.FaultyProxy(f"http://127.0.0.1:{cluster.port}", seed=0, fraction=0, rewrite_hosts=True) as proxy,
    ):
        folder = f"hdfs://beam@127.0.0.1:{proxy.port}/lost"
        yield Place(storage.storage_of(folder), folder, proxy)


SERVERS: dict[str, Callable[[pytest.TempPathFactory], contextlib.AbstractContextManager[Place]]] = {
    "gcs": _gcs,
    "s3": _s3,
    "hdfs": _hdfs,
}


@pytest.fixture(scope="module", params=SERVERS)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with SERVERS[request.param](tmp_path_factory) as found:
        yield found


@pytest.mark.parametrize("name", lost_answers.OPERATIONS)
def test_operation_is_done_once_whatever_answer_is_lost(place: Place, name: str) -> None:
    operation, proxy = lost_answers.OPERATIONS[name], place.proxy
    folder = f"{place.folder}/{name}"
    assert lost_answers.check(place.store, folder, operation, proxy.lose, lambda: proxy.counts["lost"] > 0) > 0


def test_file_is_never_read_empty_or_in_part(place: Place) -> None:
    lost_answers.check_reads(place.store, f"{place.folder}/{uuid.uuid4().hex}", num_writes=30)
