"""Converts from and to az://, on Azurite."""

from __future__ import annotations

import concurrent.futures
import pathlib
from collections.abc import Iterator

import pytest

from imagebeam import records, storage
from tests import command_line, datasets, image_sets
from tests.servers import azurite

pytestmark = pytest.mark.integration

FOLDER = "az://images/in"
NAME = "a b#%20?.bin"


@pytest.fixture(scope="module")
def connection() -> Iterator[str]:
    """The connection string of a server with the container `images`."""
    with azurite.run() as connection:
        storage.storage_of(FOLDER, {"connection_string": connection}).filesystem(FOLDER).mkdir("images")  # type: ignore[attr-defined]
        yield connection


def test_files_are_written_read_listed_moved_and_removed(connection: str, tmp_path: pathlib.Path) -> None:
    store, folder = storage.storage_of(FOLDER, {"connection_string": connection}), "az://images/d"
    with store.write_file(f"{folder}/{NAME}") as pending:
        pending.file.write(b"data")
        pending.checksum = 4, records.extend_crc(0, b"data")
    entry = store.stat(f"{folder}/{NAME}")
    assert [store.read(f"{folder}/{NAME}", *part) for part in ((), (1, 2), (2,), (9, 2))] == [
        b"data",
        b"at",
        b"ta",
        b"",
    ]
    assert store.read(f"{folder}/{NAME}", version=entry.version) == b"data"
    store.write_whole(f"{folder}/sub/e", b"")
    listed = {each.name: (each.kind, each.size) for each in store.list_directory(folder)}
    assert listed == {NAME: ("file", 4), "sub": ("directory", 0)}
    store.download(f"{folder}/{NAME}", str(tmp_path / "copy"))
    assert (tmp_path / "copy").read_bytes() == b"data"
    store.rename(f"{folder}/{NAME}", f"{folder}/moved")
    store.publish(f"{folder}/moved", f"{folder}/published")
    with pytest.raises(FileExistsError):
        store.publish(f"{folder}/sub/e", f"{folder}/published")
    store.remove(f"{folder}/nothing")
    store.remove_tree(folder)
    assert not store.exists(f"{folder}/published")
    for missing in ("az://images/nothing", "az://no-container/x"):
        with pytest.raises(FileNotFoundError):
            store.read(missing)


def test_only_one_of_several_files_at_once_is_new(connection: str) -> None:
    store, uri = storage.storage_of(FOLDER, {"connection_string": connection}), "az://images/lock"
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda number: store.create_new(uri, b"%d" % number), range(4)))
    assert made.count(True) == 1
    assert store.read(uri) == b"%d" % made.index(True)
    assert [store.replace(uri, old, b"5") for old in (b"4", b"%d" % made.index(True))] == [False, True]


def test_shards_are_those_of_a_local_run(connection: str, tmp_path: pathlib.Path) -> None:
    image_sets.write_folder(tmp_path / "in", per_label=5)
    datasets.make(tmp_path / "in", tmp_path / "expected", output={"num_shards": 2})
    store = storage.storage_of(FOLDER, {"connection_string": connection})
    for path in (tmp_path / "in").rglob("*.*"):
        store.write_whole(f"{FOLDER}/{path.relative_to(tmp_path / 'in').as_posix()}", path.read_bytes())
    option = "storage_options.connection_string={env: CONNECTION}"
    settings = ["--set", f"source.{option}", "--set", f"output.{option}", "--set", "output.num_shards=2"]
    arguments = ["convert", "--input", FOLDER, "--output", "az://images/out", *settings, "--workers", "2"]
    command_line.run(*arguments, environment={"CONNECTION": connection}, exit_code=0)
    for path in (tmp_path / "expected").glob("*.tfrecord"):
        assert store.read(f"az://images/out/{path.name}") == path.read_bytes()
