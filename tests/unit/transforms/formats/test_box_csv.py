from __future__ import annotations

import pathlib
import re
from typing import Any

import pytest

from imagebeam import errors
from imagebeam.pipelines import job
from imagebeam.pipelines.config import model as config_lib
from imagebeam.transforms import elements
from imagebeam.transforms.formats import box_csv
from tests import case_tables, detection_sets, error_texts, spread_rows, written_files

ROW = "0.jpg,40,20,cat,0,0,10,10\n"


def open_csv(root: pathlib.Path, **section: Any) -> box_csv.BoxCsvSource:
    fields = {"source": {"by": "box_csv", "uri": str(root), "box_csv": section}, "output": {"uri": f"{root}-out"}}
    found = job.make_source(config_lib.parse_config(fields, "test"))
    assert isinstance(found, box_csv.BoxCsvSource)
    return found


def listed(source: box_csv.BoxCsvSource) -> tuple[dict[str, elements.ImageRef], dict[str, str], dict[str, int]]:
    found = spread_rows.gather(source.list_all())
    assert not found.problems
    rejects = {reject.key: f"{reject.reason}: {reject.detail}" for reject in found.rejects}
    return {ref.key: ref for ref in found.refs}, rejects, found.skipped


def write_rows(root: pathlib.Path, rows: str, encoding: str = "utf-8") -> None:
    for number in range(3):
        detection_sets.write_image(root / "images" / f"{number}.jpg", number)
    (root / "train.csv").write_bytes(f"{detection_sets.CSV_HEADER}\n{rows}".encode(encoding))


def test_columns_have_other_names_and_boxes_their_size(tmp_path: pathlib.Path) -> None:
    detection_sets.write_image(tmp_path / "images/0.jpg", 0)
    (tmp_path / "data").mkdir()
    rows = "id;w;h;label;x;y;bw;bh;other\n0.jpg;40;20;cat;10;5;20;10;1\n0.jpg;40;20;;;;;;\n"
    (tmp_path / "data/train.csv").write_text(rows)
    columns = {"filename": "id", "width": "w", "height": "h", "class": "label", "xmin": "x", "ymin": "y"}
    for names, expected in (
        (("box_width", "box_height"), (0.25, 0.75, 0.25, 0.75)),
        (("xmax", "ymax"), (0.25, 0.5, 0.25, 0.5)),
    ):
        section = {**columns, names[0]: "bw", names[1]: "bh"}
        refs, rejects, _ = listed(open_csv(tmp_path, columns=section, delimiter=";"))
        assert not rejects
        edges = dict(zip(box_csv.COLUMNS, refs["images/0.jpg"].columns, strict=True))
        found = [edges[f"image/object/bbox/{edge}"] for edge in ("xmin", "xmax", "ymin", "ymax")]
        assert found == [(each,) for each in expected]


def test_head_that_does_not_fit_is_refused_with_the_setting(tmp_path: pathlib.Path) -> None:
    for head, section, code in [
        (detection_sets.CSV_HEADER.replace(",", ";").encode(), {}, "box-csv-unknown-column"),
        (f"\ufeff{ROW}".encode("utf-16-le"), {}, "box-csv-not-utf8"),
        (detection_sets.CSV_HEADER.encode(), {"columns": {"xmin": "left"}}, "box-csv-unknown-column"),
        (b"image,xmin", {}, "box-csv-unknown-column"),
        (f"{detection_sets.CSV_HEADER},class".encode(), {}, "box-csv-column-twice"),
    ]:
        folder = case_tables.new_folder(tmp_path)
        (folder / "train.csv").write_bytes(head + b"\n")
        with error_texts.raises(code):
            open_csv(folder, **section)


@pytest.mark.parametrize(
    "columns", [{"box_width": "w"}, {"box_width": "w", "box_height": "h", "xmax": "r"}], ids=["one", "both"]
)
def test_size_of_a_box_takes_the_place_of_its_other_corner(tmp_path: pathlib.Path, columns: dict[str, str]) -> None:
    with pytest.raises(errors.ConfigError, match="go together, in place of xmax and ymax"):
        open_csv(tmp_path, columns=columns)


def test_images_outside_of_all_splits_are_counted_and_their_folders_named(tmp_path: pathlib.Path) -> None:
    write_rows(tmp_path, ROW)
    for name in ("unlabeled/deep/2.PNG", "unlabeled/deep/3.txt", ".cache/4.jpg", "notes/a.txt"):
        detection_sets.write_image(tmp_path / name, 1)
    source = open_csv(tmp_path)
    assert source.unread == ("unlabeled",)
    _, _, skipped = listed(source)
    assert skipped["image_outside_splits"] == 1
    (note,) = source.facts().notes
    assert note.startswith("folders with images that belong to no split, and are not read: unlabeled; to read them")


def test_rows_of_an_image_are_joined_wherever_they_are(tmp_path: pathlib.Path) -> None:
    detection_sets.write_csv(tmp_path / "train_labels.csv", tmp_path / "images" / "train", range(8))
    refs, rejects, skipped = listed(open_csv(tmp_path))
    assert (rejects, skipped) == ({}, {})
    assert len(refs) == 8
    for number in range(8):
        ref = refs[f"images/train/{number}.jpg"]
        assert (ref.split, ref.expected) == ("train", detection_sets.SIZE[::-1])
        columns = dict(zip(box_csv.COLUMNS, ref.columns, strict=True))
        found = {
            (name.decode(), label, *(round(edge, 5) for edge in box))
            for name, label, *box in zip(
                columns["image/object/class/text"],
                columns["image/object/class/label"],
                *(columns[f"image/object/bbox/{edge}"] for edge in ("xmin", "xmax", "ymin", "ymax")),
            )
        }
        expected = detection_sets.boxes(number)
        assert found == {(each.name, detection_sets.CLASSES.index(each.name) + 1, *each.shares) for each in expected}


def test_bad_row_rejects_its_image(tmp_path: pathlib.Path) -> None:
    for rows, reject in [
        ("0.jpg,40,20,cat,0,0,10", "bad_value: .*line 2: ymax is '', expected a finite number"),  # short
        ("0.jpg,40,20,cat,0,0,nan,10", "bad_value: .*xmax is 'nan'"),  # nan
        ("0.jpg,40,20,cat,9,0,5,10", "bad_value: .*the box ends before it begins: 9 to 5"),  # order
        ("0.jpg,x,20,cat,0,0,5,10", "bad_value: .*line 2: height and width are .*'x'"),  # width
        (f"{ROW}0.jpg,41,20,cat,0,0,5,10", "bad_value: .*41 x 20 in line 3, and 40 x 20 in"),  # sizes
        ("0.jpg,40,20,,0,0,5,10", "unknown_label: .*line 2: the class '' is none of"),  # no-class
        ("7.jpg,40,20,cat,0,0,5,10", "not_found: .*there is no file"),  # no-image
        ("../0.jpg,40,20,cat,0,0,5,10", "outside_root: "),  # outside
        (",40,20,cat,0,0,5,10", "bad_row: .*line 2: file_name is ''"),  # no-name
    ]:
        folder = case_tables.new_folder(tmp_path)
        write_rows(folder, f"{rows}\n1.jpg,40,20,cat,0,0,10,10\n")
        refs, rejects, _ = listed(open_csv(folder))
        assert list(refs) == ["images/1.jpg"]
        (found,) = rejects.values()
        assert re.search(reject, found)


def test_boxes_are_clipped_or_dropped_and_counted(tmp_path: pathlib.Path) -> None:
    write_rows(tmp_path, "0.jpg,40,20,cat,-4,0,50,10\n0.jpg,40,20,cat,50,0,60,10\n0.jpg,40,20,cat,5,0,5,10\n")
    refs, _, skipped = listed(open_csv(tmp_path))
    assert refs["images/0.jpg"].columns[:2] == ((0.0,), (1.0,))
    assert skipped == {"object_outside_image": 1, "object_without_area": 1, "not_in_annotations": 2}
    _, rejects, _ = listed(open_csv(tmp_path, outside="reject"))
    assert "source.box_csv.outside: clip would cut it" in rejects["images/0.jpg"]


def test_images_without_objects_are_kept_or_left_out(tmp_path: pathlib.Path) -> None:
    write_rows(tmp_path, f"{ROW}1.jpg,40,20,,,,,\n")
    assert sorted(listed(open_csv(tmp_path))[0]) == ["images/0.jpg", "images/1.jpg"]
    refs, _, skipped = listed(open_csv(tmp_path, without_objects=False))
    assert (list(refs), skipped["without_objects"]) == (["images/0.jpg"], 1)


def test_given_classes_decide_the_ids(tmp_path: pathlib.Path) -> None:
    write_rows(tmp_path, ROW)
    refs, _, _ = listed(open_csv(tmp_path, classes=["dog", "cat"], base=0))
    assert refs["images/0.jpg"].columns[4] == (1,)
    _, rejects, _ = listed(open_csv(tmp_path, classes=["dog"]))
    assert "the class 'cat' is none of source.box_csv.classes" in rejects["images/0.jpg"]


def test_files_and_folders_are_found(tmp_path: pathlib.Path) -> None:
    for files, expected in [
        (["train_labels.csv", "test_labels.csv", "images/x"], [("train", "images"), ("test", "images")]),
        (["train_labels.csv", "images/train/x", "train/x"], [("train", "images/train")]),
        (["train/_annotations.csv", "valid/_annotations.csv"], [("train", "train"), ("valid", "valid")]),
        (["train.csv"], [("train", "")]),
    ]:
        place = case_tables.new_folder(tmp_path)
        written_files.write(place, dict.fromkeys(files, "x"))
        root, splits = box_csv.find(str(place), box_csv.BoxCsv())
        assert (root, [(split.name, split.folder) for split in splits]) == (str(place), expected)
        root, splits = box_csv.find(str(place / files[0]), box_csv.BoxCsv())
        assert [split.name for split in splits] == ["train"]


def test_unusable_file_is_a_problem(tmp_path: pathlib.Path) -> None:
    for content, problem in [
        (b"", "has no rows, so there are no images; fill it"),
        (
            "0.jpg,40,20,é,0,0,5,10".encode("latin-1"),
            "cannot be read as CSV in UTF-8 after line 0: .*; save it as UTF-8",
        ),
        (b'0.jpg,40,20,"cat,0,0,5,10\n1.jpg,40,20,cat,0,0,5,10\n', "unexpected end of data; correct the quotes"),
        (b'0.jpg,40,20,"cat,0,0,5,10\n1.jpg,40,20,c"at,0,0,5,10\n', "after line 1: .*; correct the quotes"),
    ]:
        folder = case_tables.new_folder(tmp_path)
        (folder / "train.csv").write_bytes(f"{detection_sets.CSV_HEADER}\n".encode() + content)
        (listing,) = open_csv(folder).list_all()
        assert re.search(problem, listing.problems[0])


def test_no_file_is_an_error(tmp_path: pathlib.Path) -> None:
    with error_texts.raises("box-csv-no-files"):
        open_csv(tmp_path)
    with error_texts.raises("input-not-folder"):
        open_csv(tmp_path / "nowhere")
    with pytest.raises(errors.ConfigError, match="name the same in both"):
        open_csv(tmp_path, annotations={"train": "a.csv"}, images={"test": "b"})
