"""Refuses JSON that is nested deeper than any file of annotations or rows: a parser keeps the path of each level.

100,000 lists in each other, 200 KB, take ijson all memory: the path of each level is a text, and each is longer than
the one before.
"""

from __future__ import annotations

import re
from typing import Any

from imagebeam.transforms.objects import object_tables

MAX_DEPTH = 1_000  # COCO's format has 6 levels
TOO_DEEP = f"lists or objects nested more than {MAX_DEPTH:,} deep"

_CHUNK_BYTES = 1 << 20
_OPENING, _CLOSING, _QUOTE = b"[{", b"]}", b'"'
_OTHERS = bytes(each for each in range(256) if each not in _OPENING + _CLOSING + _QUOTE)
_ESCAPE = re.compile(rb"\\.", re.DOTALL)


class DepthMeter:
    """Measures the nesting of JSON that is read in pieces."""

    def __init__(self) -> None:
        self._depth, self._in_text, self._cut = 0, 0, b""

    def is_too_deep(self, chunk: bytes) -> bool:
        """Returns whether lists and objects are nested deeper than `MAX_DEPTH` in the next piece of the JSON."""
        import numpy as np

        chunk, self._cut = self._cut + chunk, b""
        if b"\\" in chunk:
            chunk = _ESCAPE.sub(b"", chunk)
            self._cut = b"\\" if chunk.endswith(b"\\") else b""
        marks = np.frombuffer(chunk.translate(None, _OTHERS), np.uint8)
        if not len(marks):
            return False
        steps = np.zeros(256, np.int8)
        steps[list(_OPENING)], steps[list(_CLOSING)] = 1, -1
        texts = (np.cumsum(marks == _QUOTE[0]) + self._in_text) & 1  # 1 from the opening quote on
        levels = self._depth + np.cumsum(np.where(texts, 0, steps[marks]), dtype=np.int64)
        self._depth, self._in_text = int(levels[-1]), int(texts[-1])
        return bool(levels.max() > MAX_DEPTH)


def check_depth(file: Any, uri: str) -> None:
    """Checks the nesting of a JSON file, and leaves its position anywhere.

    Args:
        file: opened in binary mode.
        uri: of the file, for the error.

    Raises:
        AnnotationFileError: if it is nested deeper than `MAX_DEPTH`.
    """
    file.seek(0)
    meter = DepthMeter()
    while chunk := file.read(_CHUNK_BYTES):
        if meter.is_too_deep(chunk):
            raise object_tables.AnnotationFileError(f"{uri!r} holds {TOO_DEEP}, so it is no annotation file")
