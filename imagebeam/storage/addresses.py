"""Parses addresses: a local path, or SCHEME://REST on a network."""

from __future__ import annotations

import os
import re

from imagebeam import errors

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_FILE_SCHEME = re.compile(r"^file://(localhost)?(?=/)", re.IGNORECASE)


def scheme_of(uri: str) -> str:
    """Returns `gs` for `gs://bucket/x`, and `file` for a path."""
    if uri.startswith("/"):  # asked for each image
        return "file"
    match = _SCHEME.match(uri)
    return match[1].lower() if match else "file"


def root_of(uri: str) -> str:
    """Returns the start of a network address: the scheme and the bucket, or the scheme, the host and its port."""
    scheme, _, rest = uri.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"


def normalize(uri: str | os.PathLike[str]) -> str:
    """Makes a local path absolute and keeps its links; returns any other address without a slash at its end.

    Raises:
        ConfigError: if a `file://` address names a host.
    """
    uri = os.fspath(uri)
    if scheme_of(uri) != "file":
        return uri.rstrip("/")
    path = _FILE_SCHEME.sub("", uri)
    if _SCHEME.match(path):
        raise errors.ConfigError(f"address {uri!r} names a host after file://; write file:///path, or the path alone")
    return os.path.abspath(os.path.expanduser(path))


def join(directory: str, *names: str) -> str:
    """Returns the address of `names` below `directory`; no name may start with a slash."""
    return "/".join((directory.rstrip("/"), *names))  # called for each image: four times as fast as posixpath.join


def join_relative(directory: str, name: str) -> str:
    """Returns the address of a file that is named relative to `directory`; each leading "../" leaves a directory."""
    directory = directory.rstrip("/")
    while name.startswith("../"):
        directory, name = directory.rpartition("/")[0], name[3:]
    return f"{directory}/{name}"
