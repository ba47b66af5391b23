"""Tables apart from their images, converted as a user has them."""

from __future__ import annotations

import pathlib

import pytest

from imagebeam import errors
from tests import datasets, table_sets


def test_ids_beside_a_folder_of_images_convert_and_the_rest_is_counted(tmp_path: pathlib.Path) -> None:
    data = tmp_path / "data"
    table_sets.put(data, *(f"images/{n:02}.{'JPG' if n % 3 else 'jpeg'}" for n in range(20)), "images/unlabelled.jpg")
    (data / "labels.csv").write_text("id,label\n" + "".join(f"{n:02},{'cat' if n % 2 else 'dog'}\n" for n in range(20)))
    result = table_sets.convert_preset("kaggle", data, tmp_path / "out")
    assert result.catalog.counts.listed == result.catalog.counts.written == 20
    assert result.plan.passed_over == {"not_in_table": 1}
    keys = [key for split in ("train", "validation") for key in datasets.keys(tmp_path / "out", split)]
    assert sorted(keys) == [f"images/{n:02}.{'JPG' if n % 3 else 'jpeg'}" for n in range(20)]


def test_table_of_tfrecorder_converts_as_it_lies(tmp_path: pathlib.Path) -> None:
    table_sets.put(tmp_path, *(f"elsewhere/{n}.jpg" for n in range(6)))
    splits = ["TRAIN", "TRAIN", "TRAIN", "VALIDATION", "TEST", "TEST"]
    rows = [f"{split},{tmp_path}/elsewhere/{n}.jpg,{'cat' if n % 2 else 'dog'}\n" for n, split in enumerate(splits)]
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables/data.csv").write_text("split,image_uri,label\n" + "".join(rows))
    result = table_sets.convert_preset("tfrecorder", tmp_path / "tables/data.csv", tmp_path / "out")
    assert {name: split.num_examples for name, split in result.catalog.splits.items()} == {
        "train": 3,
        "validation": 1,
        "test": 2,
    }
    assert result.catalog.labels == ("cat", "dog")


def test_table_without_its_root_fails_with_the_root_that_fits(tmp_path: pathlib.Path) -> None:
    table_sets.put(tmp_path / "data", "images/1.jpg", "images/2.jpg")
    (tmp_path / "data/labels.csv").write_text("id,label\n1,cat\n2,dog\n")
    with pytest.raises(errors.TooManyRejectsError) as caught:
        table_sets.convert_preset("kaggle", tmp_path / "data", tmp_path / "out", "source.manifest.root=null")
    assert (
        f"; paths are relative to the table's folder, '{tmp_path}/data'; '{tmp_path}/data/images/1.jpg' exists: set "
        "source.manifest.root: images; the rejects"
    ) in str(caught.value)
    assert "all 2 images were rejected (not_found 2)" in str(caught.value)
