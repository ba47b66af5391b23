"""Writes tars with Python's tarfile, and lists containers."""

from __future__ import annotations

import io
import pathlib
import tarfile
from collections.abc import Iterable
from typing import Any

import pytest

from imagebeam.storage import fsspec_files
from imagebeam.transforms import elements
from imagebeam.transforms.sources import containers
from tests import spread_rows
from tests.spread_rows import Listed


def pack(members: Iterable[tuple[str, bytes]], mode: str = "w", format: int = tarfile.PAX_FORMAT) -> bytes:
    """Returns a tar of these files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode, format=format) as file:  # type: ignore[call-overload]
        for name, data in members:
            header = tarfile.TarInfo(name)
            header.size = len(data)
            file.addfile(header, io.BytesIO(data))
    return buffer.getvalue()


def write_tar(
    path: pathlib.Path, members: Iterable[tuple[str, bytes]], mode: str = "w", format: int = tarfile.PAX_FORMAT
) -> None:
    """Writes a tar of these files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pack(members, mode, format))


def count_requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns a list to which each read over fsspec adds the address of the file."""
    requests: list[str] = []
    read = fsspec_files.FsspecStorage._read

    def counted(self: Any, uri: str, offset: int, length: int, version: int) -> bytes:
        requests.append(uri)
        return read(self, uri, offset, length, version)

    monkeypatch.setattr(fsspec_files.FsspecStorage, "_read", counted)
    return requests


def list_all(source: containers.ContainerSource) -> Listed:
    """Returns all that the source lists as one list."""
    return spread_rows.gather(source.list_all())


def read_ref(ref: elements.ImageRef) -> bytes:
    """Reads the bytes of a reference into an uncompressed file."""
    return pathlib.Path(ref.uri).read_bytes()[ref.offset : ref.offset + ref.length]
