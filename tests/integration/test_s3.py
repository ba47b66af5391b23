"""Converts from and to s3://, on moto's server."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from imagebeam import storage
from tests import command_line, datasets, image_sets, lost_answers
from tests.servers import faults

pytestmark = pytest.mark.integration

BUCKET = "pets"


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    """The variables that lead boto and s3fs to a server on this machine."""
    server = pytest.importorskip("moto.server")
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    running.start()
    host, port = running.get_host_and_port()
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
    yield {**keys, "AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_CONFIG_FILE": "/dev/null"}
    running.stop()


def make_bucket(environment: dict[str, str], name: str) -> Any:
    """Makes a bucket; returns a client."""
    import boto3

    s3 = boto3.client(
        "s3", endpoint_url=environment["AWS_ENDPOINT_URL"], aws_access_key_id="test", aws_secret_access_key="test"
    )
    s3.create_bucket(Bucket=name)
    return s3


def test_shards_are_those_of_a_local_run(environment: dict[str, str], tmp_path: pathlib.Path) -> None:
    image_sets.write_folder(tmp_path / "in", per_label=10)
    (tmp_path / "in" / "cat" / "0.jpg").rename(tmp_path / "in" / "cat" / "a b#%20?.jpg")
    datasets.make(tmp_path / "in", tmp_path / "expected", output={"num_shards": 3})
    s3 = make_bucket(environment, BUCKET)
    for path in (tmp_path / "in").rglob("*.*"):
        s3.upload_file(str(path), BUCKET, f"images/{path.relative_to(tmp_path / 'in').as_posix()}")
    settings = ["--output", f"s3://{BUCKET}/out", "--set", "output.num_shards=3", "--workers", "2"]
    arguments = ["convert", "--input", f"s3://{BUCKET}/images", *settings]
    command_line.run(*arguments, environment=environment, exit_code=0)
    found = tmp_path / "found"
    for each in s3.list_objects_v2(Bucket=BUCKET, Prefix="out/")["Contents"]:
        path = found / each["Key"].removeprefix("out/")
        path.parent.mkdir(parents=True, exist_ok=True)
        s3.download_file(BUCKET, each["Key"], str(path))
    assert datasets.shard_digests(found) == datasets.shard_digests(tmp_path / "expected")
    assert {path.name for path in found.iterdir()} == {path.name for path in (tmp_path / "expected").iterdir()}
    command_line.run("verify", f"s3://{BUCKET}/out", environment=environment, exit_code=0)


def test_operation_is_done_once_whatever_answer_is_lost(environment: dict[str, str]) -> None:
    make_bucket(environment, "lost")
    with faults.FaultyProxy(environment["AWS_ENDPOINT_URL"], seed=0, fraction=0) as proxy:
        client = {"region_name": "us-east-1"}
        options = {"endpoint_url": proxy.url, "key": "test", "secret": "test", "client_kwargs": client}
        lost_answers.check_server(storage.storage_of("s3://lost", options), "s3://lost", proxy)


def test_missing_bucket_is_refused(environment: dict[str, str], tmp_path: pathlib.Path) -> None:
    arguments = ["convert", "--input", "s3://nothing/images", "--output", tmp_path / "out"]
    completed = command_line.run(*arguments, environment=environment, exit_code=2)
    assert "--input 's3://nothing/images'" in completed.stderr


def test_objects_with_two_slashes_are_refused_by_name(environment: dict[str, str], tmp_path: pathlib.Path) -> None:
    s3 = make_bucket(environment, "slashes")
    for key in ("in/cat/", "in/cat/1.jpg", "in/dog//2.jpg"):  # the first one only marks the folder
        s3.put_object(Bucket="slashes", Key=key, Body=b"" if key.endswith("/") else image_sets.make_image(1))
    arguments = ["plan", "--config", "image_folder", "--input", "s3://slashes/in", "--output", tmp_path / "out"]
    completed = command_line.run(*arguments, environment=environment, exit_code=2)
    said = completed.stdout + completed.stderr
    assert "folder s3://slashes/in/dog//: two slashes follow each other in the names of its objects" in said
    assert "in/cat" not in said
