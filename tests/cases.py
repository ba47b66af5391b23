"""Names the case of a table in which a test fails."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def named(*case: Any) -> Iterator[None]:
    """Adds the case to the report of any failure in the block."""
    try:
        yield
    except BaseException as e:  # a failure of pytest is no Exception
        e.__notes__ = [*getattr(e, "__notes__", []), f"case: {case!r}"]  # type: ignore[attr-defined]
        raise
