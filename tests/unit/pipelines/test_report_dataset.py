from __future__ import annotations

import json
import pathlib
import shutil
import sys

import pytest

import imagebeam
from imagebeam import catalog as catalog_lib
from imagebeam import errors, storage
from imagebeam.pipelines import cli, report_dataset
from tests.unit.imagebeam.reader import written


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("stored") / "out"
    examples = [{**written.jpeg_values(index), "image/class/label": index % 2} for index in range(12)]
    written.write(folder, (*written.IMAGE, written.LABEL), examples, labels=("cat", "dog"))
    return folder


@pytest.fixture
def dataset(stored: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    return shutil.copytree(stored, tmp_path / "out")


def files_in(folder: pathlib.Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_report_is_the_same_on_every_run_and_leaves_the_dataset_alone(
    dataset: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    before = files_in(dataset)
    sizes = [report_dataset.write_report(dataset, tmp_path / name) for name in ("a.html", "b.html")]
    page = (tmp_path / "a.html").read_bytes()
    assert page == (tmp_path / "b.html").read_bytes() and sizes == [len(page)] * 2
    assert page.count(b"<img src=") == 12 and b"<bdi>dog</bdi>" in page
    assert files_in(dataset) == before


def test_command_writes_into_the_current_folder(
    dataset: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["report", "out"]) == 0
    assert (tmp_path / "report.html").exists()
    assert capsys.readouterr().out.endswith(" kB written to report.html: open it in a browser\n")
    assert cli.main(["report", "nowhere"]) == 2
    assert "'nowhere' does not exist" in capsys.readouterr().err


def test_report_at_another_storage(dataset: pathlib.Path) -> None:
    report_dataset.write_report(dataset, "memory://pages/report.html")
    assert storage.storage_of("memory://x").read("memory://pages/report.html").startswith(b"<!doctype html>")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("out/report.html", r"--output '.*/out/report\.html' is in the folder of the dataset, .* give a file outside"),
        ("out/index/page.html", "is in the folder of the dataset"),
        ("link/labels.txt", "is in the folder of the dataset"),
        ("none/report.html", r"cannot be written \(No such file or directory\); give a file in a folder that exists"),
        ("", "--output is empty: give a file"),
    ],
)
def test_output_that_is_no_place_for_a_report_is_refused(
    dataset: pathlib.Path, tmp_path: pathlib.Path, name: str, message: str
) -> None:
    (tmp_path / "link").symlink_to("out")
    before = files_in(tmp_path)
    with pytest.raises(errors.ConfigError, match=message):
        report_dataset.write_report(dataset, f"{tmp_path}/{name}" if name else "")
    assert files_in(tmp_path) == before


def test_report_shows_duplicates_that_the_catalog_names(dataset: pathlib.Path, tmp_path: pathlib.Path) -> None:
    line = {
        "kind": "near",
        "distance": 2,
        "split": "train",
        "key": "b.jpg",
        "first_split": "test",
        "first_key": "a.jpg",
    }
    path = dataset / "catalog.json"
    for content, shown in ((json.dumps(line).encode(), b"b.jpg (train)"), (b"{", b"repeat one of")):
        (dataset / "duplicates.jsonl").write_bytes(content)
        fields = json.loads(path.read_text())
        fields["duplicates"] = {"near": {"train": {"test": 1}}}
        fields.pop("checksum")
        path.write_text(json.dumps(catalog_lib.with_checksum(fields)))
        report_dataset.write_report(dataset, tmp_path / "r.html")
        assert shown in (tmp_path / "r.html").read_bytes()


def test_report_of_a_dataset_without_statistics_or_shards_says_what_is_missing(
    dataset: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    (dataset / "statistics.json").unlink()
    for path in dataset.glob("*.tfrecord"):
        path.unlink()
    report_dataset.write_report(dataset, tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    assert "6 reads failed, the first: " in page and "<img" not in page


def test_report_needs_pillow(dataset: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(
        imagebeam.ConfigError, match=r"Pillow is not installed, report needs it: pip install 'imagebeam\[convert\]'"
    ):
        report_dataset.write_report(dataset, "r.html")


def test_output_among_the_files_of_snapshots_is_refused(dataset: pathlib.Path, tmp_path: pathlib.Path) -> None:
    snapshot = tmp_path / "all" / "snapshots" / "000001"
    shutil.copytree(dataset, snapshot)
    for name in ("LATEST", "snapshots/000001/report.html", "snapshots/000002/x.html"):
        with pytest.raises(errors.ConfigError, match="is in the folder of the dataset"):
            report_dataset.write_report(snapshot, tmp_path / "all" / name)
