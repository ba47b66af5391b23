from __future__ import annotations

import pathlib
import re

import pytest

from imagebeam import errors
from imagebeam.reader import dataset_source, source_of_address
from imagebeam.reader.shard_cache import cached_source


@pytest.mark.parametrize(
    ("uri", "with_cache", "expected"),
    [
        ("/data/pets", False, dataset_source.LocalSource),
        ("/data/pets", True, dataset_source.LocalSource),
        ("gs://b/pets", False, dataset_source.TensorFlowSource),
        ("gs://b/pets", True, cached_source.CachedSource),
        ("hdfs://host:9870/pets", True, cached_source.CachedSource),
        ("memory://pets", True, cached_source.CachedSource),
    ],
)
def test_address_and_cache_decide_the_source(
    uri: str, with_cache: bool, expected: type[dataset_source.DatasetSource], tmp_path: pathlib.Path
) -> None:
    source = source_of_address.open_source(uri, str(tmp_path) if with_cache else None, 1)
    assert type(source) is expected
    assert source.directory == uri


@pytest.mark.parametrize("uri", ["s3://b/pets", "hdfs://host:9870/pets", "memory://pets"])
def test_address_that_needs_a_cache_is_refused_without_one(uri: str) -> None:
    complaint = f"{uri!r}: TensorFlow reads no {uri.partition(':')[0]}:// by itself; give cache_dir, a local folder"
    with pytest.raises(errors.ConfigError, match=re.escape(complaint)):
        source_of_address.open_source(uri, None, 1)


def test_unknown_storage_option_is_refused_before_any_request(tmp_path: pathlib.Path) -> None:
    with pytest.raises(errors.ConfigError, match=r"address 'gs://b/pets': storage_options has 'anon'"):
        source_of_address.open_source("gs://b/pets", str(tmp_path), 1, {"anon": True})
