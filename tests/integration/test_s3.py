"""Converts from and to s3://, on moto's server."""

from __future__ import annotations

import concurrent.futures
import pathlib
from collections.abc import Iterator
from unittest import mock

import pytest

from imagebeam import storage
from tests import command_line, datasets, image_sets, lost_answers, races
from tests.servers import faults, s3

pytestmark = pytest.mark.integration

BUCKET = "pets"


@pytest.fixture(scope="module")
def server() -> Iterator[s3.Server]:
    with s3.run() as server:
        yield server


def test_shards_are_those_of_a_local_run(server: s3.Server, tmp_path: pathlib.Path) -> None:
    image_sets.write_folder(tmp_path / "in", per_label=10)
    (tmp_path / "in" / "cat" / "0.jpg").rename(tmp_path / "in" / "cat" / "a b#%20?.jpg")
    datasets.make(tmp_path / "in", tmp_path / "expected", output={"num_shards": 3})
    client = server.bucket(BUCKET)
    for path in (tmp_path / "in").rglob("*.*"):
        client.upload_file(str(path), BUCKET, f"images/{path.relative_to(tmp_path / 'in').as_posix()}")
    settings = ["--output", f"s3://{BUCKET}/out", "--set", "output.num_shards=3", "--workers", "2"]
    arguments = ["convert", "--input", f"s3://{BUCKET}/images", *settings]
    command_line.run(*arguments, environment=server.environment, exit_code=0)
    found = tmp_path / "found"
    for each in client.list_objects_v2(Bucket=BUCKET, Prefix="out/")["Contents"]:
        path = found / each["Key"].removeprefix("out/")
        path.parent.mkdir(parents=True, exist_ok=True)
        client.download_file(BUCKET, each["Key"], str(path))
    assert datasets.shard_digests(found) == datasets.shard_digests(tmp_path / "expected")
    assert {path.name for path in found.iterdir()} == {path.name for path in (tmp_path / "expected").iterdir()}
    command_line.run("verify", f"s3://{BUCKET}/out", environment=server.environment, exit_code=0)


def test_operation_is_done_once_whatever_answer_is_lost(server: s3.Server) -> None:
    server.bucket("lost")
    with faults.FaultyProxy(server.url, seed=0, fraction=0) as proxy:
        options = {**server.options(), "endpoint_url": proxy.url}
        lost_answers.check_server(storage.storage_of("s3://lost", options), "s3://lost", proxy)


def test_missing_bucket_is_refused(server: s3.Server, tmp_path: pathlib.Path) -> None:
    arguments = ["convert", "--input", "s3://nothing/images", "--output", tmp_path / "out"]
    completed = command_line.run(*arguments, environment=server.environment, exit_code=2)
    assert "--input 's3://nothing/images'" in completed.stderr


def test_objects_with_two_slashes_are_refused_by_name(server: s3.Server, tmp_path: pathlib.Path) -> None:
    client = server.bucket("slashes")
    for key in ("in/cat/", "in/cat/1.jpg", "in/dog//2.jpg"):  # the first one only marks the folder
        client.put_object(Bucket="slashes", Key=key, Body=b"" if key.endswith("/") else image_sets.make_image(1))
    arguments = ["plan", "--config", "image_folder", "--input", "s3://slashes/in", "--output", tmp_path / "out"]
    completed = command_line.run(*arguments, environment=server.environment, exit_code=2)
    said = completed.stdout + completed.stderr
    assert "folder s3://slashes/in/dog//: two slashes follow each other in the names of its objects" in said
    assert "in/cat" not in said


def test_two_runs_commit_one_whole_dataset(server: s3.Server) -> None:
    server.bucket("races")
    with storage.using({"s3://races": server.options()}):
        for number, case in enumerate(races.CASES_OF_STORAGES):
            races.play(f"s3://races/{number}", *case)


def test_conditions_of_writes_are_those_of_the_server() -> None:
    for has_conditions in (True, False):
        with s3.run(has_conditions) as server:
            client, options = server.bucket("locks"), server.options()
            store, uri = storage.storage_of("s3://locks", options), "s3://locks/a/lock"
            assert [store.create_new(uri, data) for data in (b"1", b"2", b"1")] == [True, False, True]
            assert (store.swaps_atomically, store.replaces_in_place) == (has_conditions, has_conditions)
            assert [store.replace(uri, old, b"3") for old in (b"2", b"1", b"1")] == [False, True, False]
            assert not store.replace(f"{uri}-of-nobody", b"1", b"3")
            store.publish(uri, f"{uri}-moved")
            store.write_whole(uri, b"4")
            with pytest.raises(FileExistsError):
                store.publish(uri, f"{uri}-moved")
            keys = {each["Key"] for each in client.list_objects_v2(Bucket="locks")["Contents"]}
            assert keys == {"a/lock", "a/lock-moved"}  # nothing is left of the first question
            assert store.read(f"{uri}-moved") == b"3"


def test_refusal_that_says_nothing_about_conditions_leaves_them_on() -> None:
    cases = [
        ("400 InvalidToken", True),
        ("400 AuthorizationHeaderMalformed", True),
        ("400 KMS.KMSInvalidStateException", True),
        ("400 InvalidArgument", False),
        ("405 MethodNotAllowed", False),
        ("501 NotImplemented", False),
    ]
    refusals = [each for refusal, is_asked_again in cases for each in (refusal, *[""] * is_asked_again)]
    with s3.run(refusals=["400 ExpiredToken", *refusals]) as server:
        server.bucket("locks")
        store = storage.storage_of("s3://locks", server.options())
        with pytest.raises(PermissionError):
            store.create_new("s3://locks/expired", b"1")
        for refusal, has_conditions in cases:
            store.rebuild()  # asks again
            assert store.create_new(f"s3://locks/{refusal}", b"1"), refusal
            assert (store.swaps_atomically, store.replaces_in_place) == (has_conditions, has_conditions), refusal


def test_only_one_of_several_writes_at_once_is_done(server: s3.Server) -> None:
    server.bucket("swaps")
    store, uri = storage.storage_of("s3://swaps", server.options()), "s3://swaps/lock"
    assert store.create_new(uri, b"0")
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda number: store.replace(uri, b"0", b"%d" % (number + 1)), range(8)))
        made = list(pool.map(lambda number: store.create_new(f"{uri}2", b"%d" % number), range(8)))
    assert (done.count(True), made.count(True)) == (1, 1)
    assert store.read(uri) == b"%d" % (done.index(True) + 1)


def test_folder_is_listed_in_pages_and_in_ranges(server: s3.Server) -> None:
    client = server.bucket("pages")
    names = [
        *(f"{number:04d}" for number in range(1010)),
        "0700/x",
        "07!",
        "a b#%20?\u20ac",
        "sub/1",
        "sub/2",
        "\U0001f600",
    ]
    for name in names:
        client.put_object(Bucket="pages", Key=f"in/{name}", Body=b"x")
    store = storage.storage_of("s3://pages", server.options())
    assert isinstance(store, storage.RangeLister)
    before = len(server.requests())
    found = {entry.name: entry.kind for entry in store.list_directory("s3://pages/in")}
    assert len(server.requests()) - before == 2
    expected = {name.partition("/")[0]: "directory" if "/" in name else "file" for name in names}
    assert found == {**expected, "0700": found["0700"]}  # a file and a folder have this name
    for start, end in (("", "0002"), ("0699", "0702"), ("07", "0700"), ("0700", "0701"), ("1008", ""), ("s", "t")):
        listed = [entry.name for page in store.list_range("s3://pages/in", start, end) for entry in page]
        wanted = sorted({name.partition("/")[0] + "/" * ("/" in name) for name in names})
        wanted = [name for name in wanted if name >= start and (not end or name < end)]
        assert sorted(listed) == sorted(name.rstrip("/") for name in wanted), (start, end)
        assert store.first_name("s3://pages/in", start, end) == (wanted[0] if wanted else None)
    assert store.first_name("s3://pages/in", "t", "u") is None
    assert list(store.list_directory("s3://pages")) == [storage.Entry("in", "directory", 0, 0, mock.ANY)]
    with pytest.raises(FileNotFoundError):
        list(store.list_directory("s3://pages/nothing"))


def test_image_takes_one_request_and_must_be_the_one_listed(server: s3.Server) -> None:
    server.bucket("reads")
    store, uri = storage.storage_of("s3://reads", server.options()), "s3://reads/a"
    store.write_whole(uri, b"data")
    version = store.stat(uri).version
    before = len(server.requests())
    assert store.read(uri, version=version) == b"data"
    assert len(server.requests()) - before == 1
    assert [store.read(uri, 1, 2), store.read(uri, 2), store.read(uri, 9, 2)] == [b"at", b"ta", b""]
    with pytest.raises(storage.ChangedError):
        store.read(uri, version=version - 1)
