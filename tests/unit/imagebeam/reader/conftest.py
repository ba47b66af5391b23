"""What the tests of the cache share."""

from __future__ import annotations

import collections
from collections.abc import Iterator

import pytest

from tests.unit.imagebeam.reader import far_dataset


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[far_dataset.FarFileSystem]]:
    """The file system of far://, as it was before and after; waits for downloads that a test began."""
    monkeypatch.setattr(far_dataset.FarFileSystem, "faults", collections.defaultdict(list))
    for name in ("wait_sec", "pieces", "can_list"):
        monkeypatch.setattr(far_dataset.FarFileSystem, name, getattr(far_dataset.FarFileSystem, name))
    yield far_dataset.FarFileSystem
    far_dataset.wait_for_downloads()
