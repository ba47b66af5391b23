"""Thumbnails that a report of this process has drawn already: most tests convert the same small images."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from imagebeam.transforms.html_report import thumbnails

_MAX_KEPT = 2000  # some 5 kB each


@contextlib.contextmanager
def patched() -> Iterator[None]:
    """Makes the report of a dataset take thumbnails from earlier reports: a tenth of a commit's processor time.

    A thumbnail depends on the record, the features and the classes. Bare pixels are drawn each time.
    """
    make = thumbnails.ThumbnailMaker.make
    kept: dict[Any, thumbnails.Thumbnail] = {}

    def make_once(self: thumbnails.ThumbnailMaker, record: bytes) -> thumbnails.Thumbnail:
        of = self.catalog
        key = record, of.features, of.labels, of.label_kind, of.label_base, thumbnails._MAX_DECODED_PX
        found = None if self.is_raw else kept.get(key)
        if found is None:
            found = make(self, record)
            if not self.is_raw and len(kept) < _MAX_KEPT:
                kept[key] = found
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(thumbnails.ThumbnailMaker, "make", make_once)
        yield
