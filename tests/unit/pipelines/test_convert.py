"""`convert` and its neighbours, called from Python."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

from imagebeam import catalog as catalog_lib
from imagebeam.pipelines import call_arguments, convert, inspect_dataset, verify_dataset
from tests import image_sets


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("images")
    image_sets.write_folder(folder, per_label=3)
    return folder


def test_paths_of_pathlib_are_taken_everywhere(images: pathlib.Path, tmp_path: pathlib.Path) -> None:
    vocabulary, yaml, output = tmp_path / "labels.txt", tmp_path / "config.yaml", tmp_path / "out"
    vocabulary.write_text("cat\ndog\n")
    yaml.write_text(f"source: {{uri: {images}}}\n")
    fields = {
        "source": {"uri": images},
        "label": {"vocabulary": vocabulary},
        "output": {"uri": output, "num_shards": np.int64(2)},
    }
    result = convert.convert(fields, workers=np.int32(1))
    assert (result.output, result.catalog.counts.written) == (str(output), 6)
    assert convert.plan(yaml).listed == 6
    assert verify_dataset.verify(output).problems == ()
    assert len(inspect_dataset.save_images(str(output), result.catalog, "train", 2, tmp_path / "saved")) == 2
    assert catalog_lib.load_catalog(output) == result.catalog  # type: ignore[arg-type]
    convert.save_listing(call_arguments.as_config(yaml), tmp_path / "listing")
    assert (tmp_path / "listing").exists()
