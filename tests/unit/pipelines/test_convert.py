"""`convert` and its neighbours, called from Python."""

from __future__ import annotations

import pathlib
import sys

import numpy as np
import pytest

from imagebeam import catalog as catalog_lib
from imagebeam import errors
from imagebeam.pipelines import convert, inspect_dataset, request, verify_dataset
from imagebeam.transforms.classes import label_names
from imagebeam.transforms.images import resample
from tests import case_tables, error_texts


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
    assert (result.output, result.catalog.counts.written) == (str(output), 10)
    assert convert.plan(yaml).listed == 10
    assert verify_dataset.verify(output).problems == ()
    assert len(inspect_dataset.save_images(str(output), result.catalog, "train", 2, tmp_path / "saved")) == 2
    assert catalog_lib.load_catalog(output) == result.catalog  # type: ignore[arg-type]
    convert.save_listing(request.as_config(yaml), tmp_path / "listing")
    assert (tmp_path / "listing").exists()


def test_resampler_is_noted_in_catalog_and_fingerprint(
    images: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def convert_with(resampler: str) -> catalog_lib.Catalog:
        output = str(tmp_path / resampler)
        image = {"encode": "jpeg", "shortest_side": 8, "resampler": resampler}
        fields = {"source": {"uri": str(images)}, "image": image, "output": {"uri": output, "num_shards": 1}}
        return convert.convert(fields, workers=1).catalog

    by_pillow, in_c = convert_with("pillow"), convert_with("native")
    assert in_c.counts == by_pillow.counts
    assert in_c.fingerprint != by_pillow.fingerprint
    assert in_c.splits["train"].shards[0].crc32c != by_pillow.splits["train"].shards[0].crc32c
    assert in_c.versions == {**by_pillow.versions, "resizer": resample.library()}
    monkeypatch.setattr(resample, "_writer", None)
    with pytest.raises(errors.ConfigError, match="no resizer in C"):
        convert_with("native")


def test_check_by_tensorflow_without_it_is_refused_before_any_work(
    images: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    fields = {"source": {"uri": images}, "image": {"check": "tensorflow"}, "output": {"uri": tmp_path / "out"}}
    for job in (convert.convert, convert.plan):
        with error_texts.raises("package-missing"):
            job(fields)
    assert not (tmp_path / "out").exists()


def test_names_of_label_files_are_staged_for_the_run_and_change_nothing(
    images: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "labels.txt").write_text("dog\ncow\ncat\n")
    (tmp_path / "texts.txt").write_text("dog Canis\ncat Felis\ncow Bos\n")
    label = {"vocabulary": tmp_path / "labels.txt", "texts": tmp_path / "texts.txt"}
    addresses = []
    write = label_names.StagedNames.write

    def record(self: label_names.StagedNames) -> None:
        write(self)
        assert pathlib.Path(self.address).exists()
        addresses.append(self.address)

    monkeypatch.setattr(label_names.StagedNames, "write", record)
    written = []
    in_process = "--direct_running_mode=multi_processing --direct_num_workers=1"
    for name, limit, options in (("graph", label_names.MAX_IN_GRAPH, ""), ("staged", 0, ""), ("worker", 0, in_process)):
        monkeypatch.setattr(label_names, "MAX_IN_GRAPH", limit)
        output = tmp_path / name
        sections = {"source": {"uri": images}, "label": label, "output": {"uri": output}}
        assert len(convert.plan(sections).labels) == 3
        result = convert.convert(sections, options, workers=1)
        assert not (output / catalog_lib.METADATA_DIRECTORY).exists()
        written.append((result.catalog.fingerprint, result.catalog.labels, dict(result.catalog.splits)))
        planned, converted = addresses or ("", "")
        addresses.clear()
        assert not limit or not converted
        if not limit:
            assert converted.startswith(f"{output}/{catalog_lib.METADATA_DIRECTORY}/names-")
            assert not pathlib.Path(planned).parent.exists()
    assert written[0] == written[1] == written[2]


@case_tables.each_case("options", ["", "--runner=PrismRunner", "--no_wait_until_finish"])
def test_job_that_ends_with_its_launcher_cannot_be_left(
    images: pathlib.Path, tmp_path: pathlib.Path, options: str
) -> None:
    fields = {"source": {"uri": images}, "output": {"uri": tmp_path / "out"}}
    with error_texts.raises("runner-cannot-be-left"):
        convert.submit(fields, options)
    assert list(tmp_path.iterdir()) == []


@case_tables.each_case("option", ["--no_wait_until_finish", "--template_location=gs://b/t"])
def test_convert_does_not_leave_a_job(images: pathlib.Path, tmp_path: pathlib.Path, option: str) -> None:
    fields = {"source": {"uri": images}, "output": {"uri": tmp_path / "out"}}
    with error_texts.raises("convert-cannot-leave-job"):
        convert.convert(fields, ["--runner=DataflowRunner", option])
    assert list(tmp_path.iterdir()) == []
