"""Writes files with the folders above them, and damages files."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping


def write(root: pathlib.Path, files: Mapping[str, str | bytes]) -> pathlib.Path:
    """Writes files by their paths below `root`, and returns `root`."""
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def flip(path: pathlib.Path, position: int, bits: int = 1) -> bytes:
    """Flips these bits of one byte of a file, and returns its new content."""
    content = bytearray(path.read_bytes())
    content[position] ^= bits
    path.write_bytes(content)
    return bytes(content)
