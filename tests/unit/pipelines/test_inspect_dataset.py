"""inspect and verify on datasets whose examples hold lists."""

from __future__ import annotations

import json
import pathlib
import shutil
import sys
from typing import Any

import numpy as np
import pytest

import imagebeam
from imagebeam import catalog as catalog_lib
from imagebeam import features, storage
from imagebeam.features import TEXT
from imagebeam.pipelines import convert, inspect_dataset, verify_dataset
from tests import case_tables, command_line, error_texts, image_sets
from tests.unit.imagebeam.reader import written

WANTED = (*written.IMAGE, *written.OBJECTS, written.MANY_LABELS, features.Feature(TEXT, TEXT, features.BYTES, True))


@pytest.fixture
def dataset(tmp_path: pathlib.Path) -> imagebeam.ImageDataset:
    examples = [
        {
            **written.jpeg_values(index),
            **written.object_values(index * 5, index),
            features.LABEL: tuple(range(index)),
            TEXT: tuple(b"abc"[number : number + 1] for number in range(index)),
        }
        for index in range(3)
    ]
    return written.write(tmp_path / "out", WANTED, examples, labels=["a", "b", "c"], num_shards=1)


def test_table_says_which_features_are_lists(dataset: imagebeam.ImageDataset) -> None:
    rows = dict(inspect_dataset.feature_rows(dataset.catalog))
    assert rows["  image/object/bbox/xmin"] == "float list"
    assert rows["  image/class/label"] == "int64 list"
    assert rows["  image/encoded"] == "bytes"


def test_examples_are_shown_with_the_beginning_of_their_lists(dataset: imagebeam.ImageDataset) -> None:
    found = inspect_dataset.read_examples(dataset.directory, dataset.catalog, "train")
    none, one, two = map(inspect_dataset.describe_example, found)
    assert "image/class/label=[]  image/class/text=[]" in none
    assert "image/class/label=0  image/class/text=a" in one
    assert "image/object/class/label=[1, 2, 3, 4, 5]  " in one
    assert "image/class/text=[a, b]" in two
    assert "image/object/class/label=[2, 3, 4, 5, 6, 7, 8, 9, ... 10 values]" in two
    assert "image/object/class/text=[thing 0, thing 1, " in two


def test_json_has_what_the_tables_have(
    dataset: imagebeam.ImageDataset, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def inspect(*options: str) -> dict[str, Any]:
        return json.loads(command_line.succeed("inspect", dataset.directory, *options).stdout)

    found = inspect("--json")
    [shard] = dataset.catalog.splits["train"].shards
    assert found["splits"] == {"train": {"examples": 3, "shards": 1, "bytes": shard.bytes, "removed": 0}}
    assert found["classes"] == {"0": "a", "1": "b", "2": "c"} and found["object_classes"] == {}
    assert {each["key"]: each["type"] for each in found["features"]} == {
        name.strip(): kind for name, kind in inspect_dataset.feature_rows(dataset.catalog)
    }
    tabled = dict(inspect_dataset.catalog_rows(dataset.catalog, dataset.directory))
    assert all(found[name] == tabled[name] for name in ("dataset", "folder", "written", "fingerprint", "compression"))
    assert (found["snapshot"], found["listed"], found["rejected"]) == (None, 3, {})
    monkeypatch.setenv("IMAGEBEAM_JSON", "1")
    assert inspect() == found
    shown = inspect("-n", "2", "--save-to", str(tmp_path / "saved"))
    assert {name: each for name, each in shown.items() if name not in ("examples", "saved")} == found
    assert sorted(shown["saved"]) == sorted(map(str, (tmp_path / "saved").iterdir())) and len(shown["saved"]) == 2
    stored = list(inspect_dataset.read_examples(dataset.directory, dataset.catalog, "train"))[:2]
    for values, one in zip(stored, shown["examples"], strict=True):
        assert one.keys() == values.keys()
        assert one["image/encoded"] == [{"bytes": len(values["image/encoded"][0])}]
        assert one["image/class/text"] == [each.decode() for each in values["image/class/text"]]
        for name in ("image/height", "image/class/label", "image/object/bbox/xmin"):
            assert list(np.float32(one[name])) == list(np.float32(values[name]))


def test_json_has_numbers_that_are_not_finite_as_text() -> None:
    values = {"x": [float("nan"), float("inf"), -float("inf"), float(np.float32(0.1))]}
    assert inspect_dataset.example_to_json(values) == {"x": ["nan", "inf", "-inf", 0.100000001]}


def test_images_are_saved_under_all_their_classes(dataset: imagebeam.ImageDataset, tmp_path: pathlib.Path) -> None:
    paths = inspect_dataset.save_images(dataset.directory, dataset.catalog, "train", 3, str(tmp_path / "saved"))
    names = [pathlib.Path(path).name for path in paths]
    assert names == ["train-00000-0.jpeg", "train-00001-a-1.jpeg", "train-00002-a+b-2.jpeg"]
    assert pathlib.Path(paths[2]).read_bytes() == written.jpeg_values(2)[features.ENCODED]


@case_tables.each_case(
    "name", {"ascii": "x" * 400, "two-bytes-a-letter": "ж" * 200, "four-bytes-a-letter": "\U0002f81a" * 120}
)
def test_images_are_saved_under_names_as_long_as_file_systems_take(tmp_path: pathlib.Path, name: str) -> None:
    values = {**written.jpeg_values(0), "image/key": name.encode(), "image/format": b"../../" + b"jpeg" * 100}
    dataset = written.write(tmp_path / "out", written.IMAGE, [values, {**values, "image/format": b""}], num_shards=1)
    paths = inspect_dataset.save_images(dataset.directory, dataset.catalog, "train", 2, str(tmp_path / "saved"))
    saved = sorted((tmp_path / "saved").iterdir())
    assert sorted(paths) == [str(path) for path in saved]
    assert all(path.read_bytes() == values[features.ENCODED] for path in saved)
    assert all(150 < len(path.name.encode()) < 256 for path in saved)


def test_verify_takes_lists_of_any_length_but_none(dataset: imagebeam.ImageDataset, tmp_path: pathlib.Path) -> None:
    assert verify_dataset.verify(dataset.directory, decode=True).problems == ()
    lacking = [feature for feature in WANTED if feature.source != TEXT]
    examples = [{**written.jpeg_values(0), **written.object_values(2, 0), features.LABEL: ()}]
    other = written.write(tmp_path / "other", lacking, examples, num_shards=1)
    check = verify_dataset._DecodeRecord(dataset.catalog, is_raw=False)
    [record] = written.stored_in(pathlib.Path(other.directory))
    assert check(record) == "the example lacks the list image/class/text"


@case_tables.each_case(
    "folder, code",
    [
        ("{tmp}/file", "save-to-unwritable"),
        ("{tmp}/file/x", "save-to-unwritable"),
        ("/proc/none", "save-to-unwritable"),
        ("", "option-empty"),
    ],
)
def test_folder_that_images_cannot_be_saved_to_is_refused(
    dataset: imagebeam.ImageDataset, tmp_path: pathlib.Path, folder: str, code: str
) -> None:
    (tmp_path / "file").touch()
    with error_texts.raises(code):
        inspect_dataset.save_images(
            dataset.directory, dataset.catalog, "train", 1, folder.replace("{tmp}", str(tmp_path))
        )


@case_tables.each_case(
    "directory, code",
    [
        ("{tmp}/none", "folder-not-found"),
        ("{tmp}/file/x", "folder-not-found"),
        ("{tmp}/file", "folder-is-file"),
        ("", "folder-empty-address"),
    ],
)
def test_dataset_that_is_not_there_is_refused(tmp_path: pathlib.Path, directory: str, code: str) -> None:
    (tmp_path / "file").touch()
    with error_texts.raises(code):
        verify_dataset.verify(directory.replace("{tmp}", str(tmp_path)))


def test_dataset_without_images_has_none_to_save_or_to_decode(tmp_path: pathlib.Path) -> None:
    image_sets.write_folder(tmp_path / "in", per_label=1)
    sections = {"source": {"uri": tmp_path / "in"}, "output": {"uri": tmp_path / "out"}}
    convert.convert({**sections, "features": {"image/encoded": None}}, workers=1)
    dataset = imagebeam.open_dataset(tmp_path / "out")
    with error_texts.raises("dataset-without-images"):
        inspect_dataset.save_images(dataset.directory, dataset.catalog, "train", 1, tmp_path / "saved")
    with error_texts.raises("dataset-without-images"):
        verify_dataset.verify(dataset.directory, decode=True)


# --- the page --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("stored") / "out"
    examples = [{**written.jpeg_values(index), "image/class/label": index % 2} for index in range(12)]
    written.write(folder, (*written.IMAGE, written.LABEL), examples, labels=("cat", "dog"))
    return folder


@pytest.fixture
def report_set(stored: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    return shutil.copytree(stored, tmp_path / "out")


def files_in(folder: pathlib.Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_report_is_the_same_each_time_and_changes_nothing(report_set: pathlib.Path, tmp_path: pathlib.Path) -> None:
    before = files_in(report_set)
    sizes = [inspect_dataset.write_report(report_set, tmp_path / name) for name in ("a.html", "b.html")]
    page = (tmp_path / "a.html").read_bytes()
    assert page == (tmp_path / "b.html").read_bytes() and sizes == [len(page)] * 2
    assert page.count(b"<img src=") == 12 and b"<bdi>dog</bdi>" in page
    assert files_in(report_set) == before


def test_command_writes_into_the_current_folder(report_set: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(report_set.parent)
    done = command_line.succeed("report", "out")
    assert done.stdout.endswith(" kB written to report.html: open it in a browser\n")
    assert (report_set.parent / "report.html").exists()
    assert "'nowhere' does not exist" in command_line.end(2, "report", "nowhere").stderr


def test_report_at_another_storage(report_set: pathlib.Path) -> None:
    inspect_dataset.write_report(report_set, "memory://pages/report.html")
    assert storage.storage_of("memory://x").read("memory://pages/report.html").startswith(b"<!doctype html>")


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("out/report.html", "report-in-dataset"),
        ("out/index/page.html", "report-in-dataset"),
        ("link/labels.txt", "report-in-dataset"),
        ("none/report.html", "report-unwritable"),
        ("", "report-no-file"),
    ],
)
def test_output_that_is_no_place_for_a_report_is_refused(
    report_set: pathlib.Path, tmp_path: pathlib.Path, name: str, code: str
) -> None:
    (tmp_path / "link").symlink_to("out")
    before = files_in(tmp_path)
    with error_texts.raises(code):
        inspect_dataset.write_report(report_set, f"{tmp_path}/{name}" if name else "")
    assert files_in(tmp_path) == before


def test_report_shows_duplicates_that_the_catalog_names(report_set: pathlib.Path, tmp_path: pathlib.Path) -> None:
    line = {"kind": "near", "distance": 2, "split": "train", "key": "b.jpg"}
    line |= {"first_split": "test", "first_key": "a.jpg"}
    path = report_set / "catalog.json"
    for content, shown in ((json.dumps(line).encode(), b"b.jpg (train)"), (b"{", b"repeat one of")):
        (report_set / "duplicates.jsonl").write_bytes(content)
        fields = json.loads(path.read_text())
        fields["duplicates"] = {"near": {"train": {"test": 1}}}
        fields.pop("checksum")
        path.write_text(json.dumps(catalog_lib.with_checksum(fields)))
        inspect_dataset.write_report(report_set, tmp_path / "r.html")
        assert shown in (tmp_path / "r.html").read_bytes()


def test_report_of_a_dataset_without_statistics_or_shards_says_what_is_missing(
    report_set: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    (report_set / "statistics.json").unlink()
    for path in report_set.glob("*.tfrecord"):
        path.unlink()
    inspect_dataset.write_report(report_set, tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    assert "6 reads failed, the first: " in page and "<img" not in page


def test_report_needs_pillow(report_set: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with error_texts.raises("package-missing"):
        inspect_dataset.write_report(report_set, "r.html")


def test_output_among_the_files_of_snapshots_is_refused(report_set: pathlib.Path, tmp_path: pathlib.Path) -> None:
    snapshot = tmp_path / "all" / "snapshots" / "000001"
    shutil.copytree(report_set, snapshot)
    for name in ("LATEST", "snapshots/000001/report.html", "snapshots/000002/x.html"):
        with error_texts.raises("report-in-dataset"):
            inspect_dataset.write_report(snapshot, tmp_path / "all" / name)
