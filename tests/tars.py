"""Tars written with Python's tarfile, and what sources find in them."""

from __future__ import annotations

import io
import pathlib
import tarfile
from collections.abc import Iterable
from typing import Any, NamedTuple

from imagebeam.transforms import elements
from imagebeam.transforms.sources import containers


class Listed(NamedTuple):
    """All that a source lists."""

    refs: list[elements.ImageRef]
    rejects: list[elements.Reject]
    passed_over: dict[str, int]
    problems: list[str]


def write_tar(
    path: pathlib.Path, members: Iterable[tuple[str, bytes]], mode: str = "w", format: int = tarfile.PAX_FORMAT
) -> None:
    """A tar with these files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode, format=format) as file:  # type: ignore[call-overload]
        for name, data in members:
            header = tarfile.TarInfo(name)
            header.size = len(data)
            file.addfile(header, io.BytesIO(data))


def list_all(source: containers.ContainerSource) -> Listed:
    """What the source lists, in one."""
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
    """The bytes of a reference into a file that is not compressed."""
    return pathlib.Path(ref.uri).read_bytes()[ref.offset : ref.offset + ref.length]
