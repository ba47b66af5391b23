"""Runs whose input and output need different options of one storage, which the config has: on two servers of S3."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests import command_line, datasets, image_sets
from tests.servers import s3

pytestmark = pytest.mark.integration

SECRET = "not-to-be-seen-anywhere"
NUM_SHARDS = 3
BEAM = [
    "--runner=apache_beam.runners.portability.fn_api_runner.FnApiRunner",
    "--direct_running_mode=multi_processing",
    "--direct_num_workers=2",
]


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[s3.Server, s3.Server]]:
    """One with images in the bucket `images`, one with an empty bucket `written`."""
    with s3.run() as source, s3.run() as output:
        source.bucket("images")
        output.bucket("written")
        yield source, output


@pytest.fixture(scope="module")
def folder(servers: tuple[s3.Server, s3.Server], tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder with the images that are also in the bucket `images`."""
    folder = tmp_path_factory.mktemp("images")
    image_sets.write_folder(folder, per_label=10)
    for path in folder.rglob("*.*"):
        servers[0].client().upload_file(str(path), "images", f"in/{path.relative_to(folder).as_posix()}")
    return folder


def options_of(server: s3.Server) -> dict[str, Any]:
    """Options that lead to a server, with a key in a variable: the environment of boto names no server and no key."""
    keys = {"key": {"env": "IMAGES_KEY"}, "secret": {"env": "IMAGES_SECRET"}}
    return {"endpoint_url": server.url, "client_kwargs": {"region_name": "us-east-1"}, **keys}


ENVIRONMENT = {
    "IMAGES_KEY": "id",
    "IMAGES_SECRET": SECRET,
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_EC2_METADATA_DISABLED": "true",
}


def settings_of(sections: Mapping[str, Any]) -> list[str]:
    settings = {f"{name}.storage_options": json.dumps(options) for name, options in sections.items()}
    return [text for key, value in settings.items() for text in ("--set", f"{key}={value}")]


def objects(server: s3.Server, prefix: str) -> dict[str, bytes]:
    """Returns the objects of the bucket `written` by the rest of their names."""
    client = server.client()
    found = client.list_objects_v2(Bucket="written", Prefix=prefix)["Contents"]
    return {
        each["Key"].removeprefix(prefix): client.get_object(Bucket="written", Key=each["Key"])["Body"].read()
        for each in found
    }


@pytest.mark.parametrize("runner", [[], BEAM], ids=["writers", "beam-workers"])
def test_input_and_output_have_options_of_their_own(
    servers: tuple[s3.Server, s3.Server], folder: pathlib.Path, tmp_path: pathlib.Path, runner: list[str]
) -> None:
    source, output = servers
    datasets.make(folder, tmp_path / "expected", output={"num_shards": NUM_SHARDS})
    address = f"s3://written/{'beam' if runner else 'here'}"
    settings = settings_of({"source": options_of(source), "output": options_of(output)})
    arguments = ["--input", "s3://images/in", "--output", address, *settings, "--workers", "2"]
    shards = ["--set", f"output.num_shards={NUM_SHARDS}"]
    done = command_line.run("convert", *arguments, *shards, *runner, environment=ENVIRONMENT, exit_code=0)
    assert SECRET not in done.stdout + done.stderr
    found = objects(output, f"{address.removeprefix('s3://written/')}/")
    for path in (tmp_path / "expected").glob("*.tfrecord"):
        assert found[path.name] == path.read_bytes()
    kept = json.loads(found["catalog.json"])
    assert "storage_options" not in kept["config"]["source"]
    for data in found.values():
        assert SECRET.encode() not in data
    options = [f"--storage-options={name}={json.dumps(value)}" for name, value in options_of(output).items()]
    command_line.run("verify", address, *options, environment=ENVIRONMENT, exit_code=0)
