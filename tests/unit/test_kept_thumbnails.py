"""A thumbnail that is kept is the one that would be drawn."""

from __future__ import annotations

import dataclasses
import pathlib

import pytest

from imagebeam import features, records
from imagebeam.transforms.html_report import thumbnails
from tests import kept_thumbnails
from tests.unit.imagebeam.reader import written


def test_kept_thumbnail_is_of_this_record_of_these_features_and_classes(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = written.write(tmp_path, written.IMAGE, [written.jpeg_values(n) for n in range(2)], num_shards=1).catalog
    with open(tmp_path / "train-00000-of-00001.tfrecord", "rb") as file:
        stored = [record.data for record in records.read_records(file)]
    others = (
        catalog,
        dataclasses.replace(catalog, label_kind="class", labels=("cat", "dog")),
        dataclasses.replace(catalog, label_kind="class", labels=("cat", "dog"), label_base=1),
        dataclasses.replace(catalog, features=tuple(f for f in catalog.features if f.source != features.ENCODED)),
    )
    cases = [(thumbnails.ThumbnailMaker(each, False), record) for each in others for record in stored]
    expected = [maker.make(record) for maker, record in cases]
    drawn: list[bytes] = []
    make = thumbnails.ThumbnailMaker.make
    monkeypatch.setattr(
        thumbnails.ThumbnailMaker, "make", lambda self, record: drawn.append(record) or make(self, record)
    )
    with kept_thumbnails.patched():
        for _ in range(2):
            assert [maker.make(record) for maker, record in cases] == expected
    assert len(drawn) == len(cases)
    assert any(each.data for each in expected) and len(set(expected)) > len(stored)
