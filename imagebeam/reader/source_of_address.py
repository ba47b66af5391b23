"""Chooses how the dataset at an address is read: in place, by TensorFlow, or through a cache of shards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from imagebeam import errors, storage
from imagebeam.reader import dataset_source
from imagebeam.reader.shard_cache import cached_source


def open_source(
    directory: str, cache_dir: str | None, cache_bytes: int, storage_options: Mapping[str, Any] | None = None
) -> dataset_source.Source:
    """Returns the source of a dataset's address.

    Args:
        directory: a path or an address.
        cache_dir: a local folder for the shards of a remote dataset; a local one is read in place.
        cache_bytes: limit for all shards in it together.
        storage_options: credentials and other options of the storage that the cache downloads from.

    Raises:
        ConfigError: if the address needs a cache and none is given, or its storage is not known or not installed.
    """
    uri = storage.normalize(directory)
    scheme = storage.scheme_of(uri)
    if scheme == "file":
        return dataset_source.LocalSource(uri)
    if cache_dir is not None:
        return cached_source.CachedSource(uri, cache_dir, cache_bytes, storage_options=storage_options)
    if scheme == "gs":
        return dataset_source.TensorFlowSource(uri)
    raise errors.ConfigError(
        f"{directory!r}: TensorFlow reads no {scheme}:// by itself; give cache_dir, a local folder for its shards"
    )
