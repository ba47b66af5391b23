"""Writes tars with Python's tarfile, and lists containers."""

from __future__ import annotations

import io
import pathlib
import tarfile
from collections.abc import Iterable
from typing import Any, NamedTuple

from imagebeam.transforms import elements
from imagebeam.transforms.sources import containers


class Listed(NamedTuple):
    """Everything that a source lists."""

    refs: list[elements.ImageRef]
    rejects: list[elements.Reject]
    passed_over: dict[str, int]
    problems: list[str]


def write_tar(
    path: pathlib.Path, members: Iterable[tuple[str, bytes]], mode: str = "w", format: int = tarfile.PAX_FORMAT
) -> None:
    """Writes a tar of these files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode, format=format) as file:  # type: ignore[call-overload]
        for name, data in members:
            header = tarfile.TarInfo(name)
            header.size = len(data)
            file.addfile(header, io.BytesIO(data))


def list_all(source: containers.ContainerSource) -> Listed:
    """Returns all that the source lists as one list."""
    refs: list[elements.ImageRef] = []
    rejects: list[elements.Reject] = []
    passed_over: dict[str, int] = {}
    problems: list[str] = []
    for part in source.list_all():
        found: list[Any] = elements.unpack_refs(part.packed_refs)
        assert len(found) == part.num_refs
        refs += found
        rejects += part.rejects
        problems += part.problems
        for kind, count in part.passed_over.items():
            passed_over[kind] = passed_over.get(kind, 0) + count
    return Listed(refs, rejects, passed_over, problems)


def read_ref(ref: elements.ImageRef) -> bytes:
    """Reads the bytes of a reference into an uncompressed file."""
    return pathlib.Path(ref.uri).read_bytes()[ref.offset : ref.offset + ref.length]
