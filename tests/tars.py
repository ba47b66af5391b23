"""Writes tars with Python's tarfile, and lists containers."""

from __future__ import annotations

import io
import pathlib
import tarfile
from collections.abc import Iterable
from typing import Any, NamedTuple

import pytest

from imagebeam.storage import fsspec_files
from imagebeam.transforms import elements
from imagebeam.transforms.sources import containers


class Listed(NamedTuple):
    """Everything that a source lists."""

    refs: list[elements.ImageRef]
    rejects: list[elements.Reject]
    skipped: dict[str, int]
    problems: list[str]


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
    refs: list[elements.ImageRef] = []
    rejects: list[elements.Reject] = []
    skipped: dict[str, int] = {}
    problems: list[str] = []
    for part in source.list_all():
        found: list[Any] = elements.unpack_refs(part.packed_refs)
        assert len(found) == part.num_refs
        refs += found
        rejects += part.rejects
        problems += part.problems
        for kind, count in part.skipped.items():
            skipped[kind] = skipped.get(kind, 0) + count
    return Listed(refs, rejects, skipped, problems)


def read_ref(ref: elements.ImageRef) -> bytes:
    """Reads the bytes of a reference into an uncompressed file."""
    return pathlib.Path(ref.uri).read_bytes()[ref.offset : ref.offset + ref.length]
