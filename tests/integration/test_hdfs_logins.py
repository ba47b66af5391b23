"""Conversions from and to HDFS with Kerberos, TLS, tokens and two NameNodes write what a local run writes."""

from __future__ import annotations

import dataclasses
import pathlib
import signal
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import imagebeam
from imagebeam import storage
from imagebeam.storage import hadoop_files, remote
from tests import command_line, datasets, error_texts, image_sets, job_graphs, lost_answers, patience
from tests.servers import faults, secure_hdfs

pytestmark = pytest.mark.integration

ONE_ATTEMPT_SEC = 0.1  # a budget below the first wait
SETTINGS = ("--set", "output.num_shards=2", "--workers", "1")


@dataclasses.dataclass(frozen=True)
class Stored:
    """The same images in HDFS and in a folder, and the dataset of a local run."""

    cluster: secure_hdfs.Cluster
    expected: pathlib.Path
    uri: str  # both NameNodes, by TLS; the images are in /images
    options: dict[str, Any]  # of a storage that logs in by the keytab

    def download(self, path: str, folder: pathlib.Path) -> pathlib.Path:
        store = storage.storage_of(self.uri, self.options)
        folder.mkdir()
        for entry in store.list_directory(f"{self.uri}/{path}"):
            if entry.kind == storage.FILE:
                store.download(f"{self.uri}/{path}/{entry.name}", str(folder / entry.name))
            elif not entry.name.startswith("."):
                self.download(f"{path}/{entry.name}", folder / entry.name)
        return folder

    def start_conversion(self, output: str, **environment: str) -> Any:
        """Starts a conversion in HDFS; returns when it holds the lock of its output."""
        environment |= {"REQUESTS_CA_BUNDLE": str(self.cluster.authority)}
        arguments = ["--input", f"{self.uri}/images", "--output", f"{self.uri}/{output}", *SETTINGS]
        process = command_line.start("convert", *arguments, environment=environment)
        store = storage.storage_of(self.uri, self.options)
        lock = f"{self.uri}/{output}/.imagebeam/lock"
        patience.wait_until(lambda: store.exists(lock) or process.poll() is not None)
        return process


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stored]:
    folder = tmp_path_factory.mktemp("secure")
    with secure_hdfs.run(tmp_path_factory.mktemp("cluster")) as cluster, pytest.MonkeyPatch.context() as environment:
        for name, value in cluster.environment.items():
            environment.setenv(name, value)
        environment.setenv("KRB5CCNAME", f"FILE:{folder / 'tickets'}")
        for name in ("KRB5_CLIENT_KTNAME", "HADOOP_TOKEN_FILE_LOCATION", "HADOOP_USER_NAME"):
            environment.delenv(name, raising=False)
        image_sets.write_folder(folder / "in", per_label=10)
        datasets.make(folder / "in", folder / "out", output={"num_shards": 2})
        options = {"keytab": cluster.keytab, "session_verify": str(cluster.authority)}
        uri = f"swebhdfs://{','.join(cluster.https_nodes)}"
        store = storage.storage_of(uri, options)
        for path in (folder / "in").glob("*/*"):
            store.write_whole(f"{uri}/images/{path.relative_to(folder / 'in').as_posix()}", path.read_bytes())
        yield Stored(cluster, folder / "out", uri, options)


@pytest.mark.slow
def test_ticket_that_ends_in_a_conversion_is_got_again_from_the_keytab(
    stored: Stored, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {"KRB5_CLIENT_KTNAME": stored.cluster.keytab, "KRB5CCNAME": f"FILE:{tmp_path / 'tickets'}"}
    process = stored.start_conversion("out", **environment)
    assert process.poll() is None
    process.send_signal(signal.SIGSTOP)
    tickets = (tmp_path / "tickets").read_bytes()
    time.sleep(secure_hdfs.TICKET_SEC + 1)  # the ticket and the cookie are no longer valid
    process.send_signal(signal.SIGCONT)
    command_line.finish(process, 0)
    assert (tmp_path / "tickets").read_bytes() != tickets
    datasets.assert_same(stored.download("out", tmp_path / "found"), stored.expected)

    monkeypatch.setenv("KRB5CCNAME", environment["KRB5CCNAME"])  # with the ticket that is there, while it is valid
    uri = f"hdfs://{','.join(stored.cluster.http_nodes)}/out"
    login = {"kerberos": True, "keytab": stored.cluster.keytab}
    with storage.using({uri: login}):
        assert not imagebeam.verify(uri).problems
    options: dict[str, Any] = {"image_size": 16, "num_epochs": 1, "shuffle": "global", "drop_remainder": False}
    near = imagebeam.open_dataset(str(stored.expected)).as_numpy("train", 100, **options)
    far = imagebeam.open_dataset(uri, storage_options=login).as_numpy("train", 100, **options)
    for one, other in zip(far, near, strict=True):
        np.testing.assert_array_equal(one["image"], other["image"])


@pytest.mark.slow
def test_conversion_by_a_token_goes_on_at_the_other_name_node_and_shows_the_token_nowhere(
    stored: Stored, tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "token"
    stored.cluster.write_token(path)
    process = stored.start_conversion("by-token", HADOOP_TOKEN_FILE_LOCATION=str(path))
    assert process.poll() is None
    stored.cluster.kill()
    try:
        completed = command_line.finish(process, 0)
    finally:
        stored.cluster.start()
    found = stored.download("by-token", tmp_path / "found")
    for unfinished in found.rglob("*.tmp-*"):  # an upload while no NameNode was there to remove it
        unfinished.unlink()
    datasets.assert_same(found, stored.expected)

    options = {"token_file": str(path), "session_verify": str(stored.cluster.authority)}
    with storage.using({stored.uri: options}):
        graph = job_graphs.graph_of(tmp_path, source={"uri": f"{stored.uri}/images"})
    texts = [completed.stdout.encode(), completed.stderr.encode(), graph, *job_graphs.pickles_in(graph)]
    texts += [each.read_bytes() for each in found.rglob("*") if each.is_file()]
    tokens = path.read_bytes()[-60:-30], (hadoop_files.read_token(str(path), ["localhost"]) or "").encode()
    assert not [text for text in texts for token in tokens if token in text]


def test_token_that_is_cancelled_is_replaced_in_its_file(stored: Stored, tmp_path: pathlib.Path) -> None:
    path, uri = tmp_path / "token", f"{stored.uri}/images"
    stored.cluster.write_token(path)
    store = storage.storage_of(uri, {"token_file": str(path), "session_verify": str(stored.cluster.authority)})
    assert store.stat(uri).kind == storage.DIRECTORY
    stored.cluster.cancel_token(path)
    with remote.budget(ONE_ATTEMPT_SEC), pytest.raises(storage.UnavailableError, match="InvalidToken"):
        store.stat(uri)
    stored.cluster.write_token(path)
    assert store.stat(uri).kind == storage.DIRECTORY


def test_operation_with_kerberos_is_done_once_whatever_answer_is_lost(stored: Stored) -> None:
    store = storage.storage_of(stored.uri, stored.options)
    store.make_directories(f"{stored.uri}/lost")
    active = next(node for node in stored.cluster.http_nodes if _is_active(node, stored))
    options = {"keytab": stored.cluster.keytab, "kerb_kwargs": {"hostname_override": "localhost"}}
    with faults.FaultyProxy(f"http://{active}", seed=0, fraction=0, rewrite_hosts=True) as proxy:
        folder = f"hdfs://127.0.0.1:{proxy.port}/lost"
        lost_answers.check_server(storage.storage_of(folder, options), folder, proxy)


def _is_active(node: str, stored: Stored) -> bool:
    try:
        with remote.budget(ONE_ATTEMPT_SEC):
            return storage.storage_of(f"hdfs://{node}", {"keytab": stored.cluster.keytab}).exists(
                f"hdfs://{node}/images"
            )
    except storage.UnavailableError:
        return False


def test_missing_ticket_and_unknown_authority_are_refused_before_any_work(
    stored: Stored, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = f"hdfs://{','.join(stored.cluster.http_nodes)}/images"
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path / 'none'}")
    for uri, message in [
        (plain, "run kinit, or give a keytab"),
        (f"{stored.uri}/images", "certificate verify failed"),
        (f"hdfs://{stored.cluster.https_nodes[0]}/images", "a port of TLS needs swebhdfs://"),
    ]:
        completed = command_line.call("plan", "--input", uri, "--output", tmp_path / "out")
        assert (completed.returncode, message in completed.stderr) == (2, True), completed.stderr
    with error_texts.raises("hdfs-certificate"):
        storage.storage_of(stored.uri).stat(f"{stored.uri}/images")
