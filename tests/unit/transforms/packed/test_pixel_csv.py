from __future__ import annotations

import pathlib

import numpy as np
import pytest

from imagebeam.transforms import elements
from imagebeam.transforms.formats import base_format
from imagebeam.transforms.formats.arrays import array_source, arrays
from imagebeam.transforms.packed import array_files, packed_file, pixel_csv, unpacked_content
from imagebeam.transforms.sources import table_rows
from tests import array_sets, case_tables, error_texts

PIXELS = array_sets.pictures(0, 3, 16)
LABELLED = table_rows.RowFields(label="label")


def write(path: pathlib.Path, *lines: str, end: str = "\n") -> str:
    path.write_bytes(end.join([*lines, ""]).encode())
    return str(path)


def row(label: object, pixels: object, joined: str = ",") -> str:
    return f"{label},{joined.join(map(str, pixels))}"  # type: ignore[call-overload]


def find(uri: object, kind: str = "int64", split_by: str = "none", **wanted: object) -> array_source.ArraysSource:
    request = base_format.Request(str(uri), fields=LABELLED, label_by="column", label_kind=kind, split_by=split_by)
    found = arrays.Arrays(**wanted).open(request)  # type: ignore[arg-type]
    assert isinstance(found, array_source.ArraysSource)
    return found


def test_read_rows_of_each_shape_of_file(tmp_path: pathlib.Path) -> None:
    for lines in [
        [row(7, pixels) for pixels in PIXELS],  # no-header
        [row("label", range(16)), *(row(7, pixels) for pixels in PIXELS)],  # numbers
        [row("label", (f"pixel{n}" for n in range(16))), "", *(row(7, pixels) for pixels in PIXELS)],  # kaggle
        ["label,pixels", *(row(7, pixels, " ") for pixels in PIXELS)],  # text
        ['"label","pixels"', *(f'"7","{" ".join(map(str, pixels))}"' for pixels in PIXELS)],  # quoted-text
        ["\ufeffpixels,label", *(" ".join(map(str, pixels)) + ",7" for pixels in PIXELS)],  # byte-order-mark
        [row(7, pixels, ", ") + " " for pixels in PIXELS],  # blanks
        [",".join([*(f"{r}x{c}" for r in range(4) for c in range(4)), "label"])]
        + [",".join(map(str, [*pixels, 7])) for pixels in PIXELS],  # label-last
    ]:
        for end in ["\n", "\r\n"]:
            folder = case_tables.new_folder(tmp_path)
            uri = write(folder / "a.csv", *lines, end=end)
            table = pixel_csv.look_into(uri, 0)
            assert table is not None and table.names == ("label",) and table.num_pixels == 16
            rows = list(pixel_csv.read_rows(uri, 0, ["label"]))
            assert [(each.cells, each.problem) for each in rows] == [(("7",), "")] * 3
            assert [each.pixels for each in rows] == [pixels.tobytes() for pixels in PIXELS]
            assert b"".join(array_files.read_images(uri, 0, "pixels:NHWC-4x4x1")) == PIXELS.tobytes()


def test_look_into_other_tables_finds_no_pixels(tmp_path: pathlib.Path) -> None:
    for lines in [
        [],  # empty
        ["filename,label", "a.jpg,cat"],  # manifest
        ["filename,width,height,class,xmin", "a.jpg,1,2,cat,3"],  # boxes
        ["label,pixels"],  # no-rows
        ["label,pixels", "1,"],  # no-pixels
        [",".join(map(str, range(9)))],  # few-numbers
        [",".join(f"f{n}" for n in range(40)), ",".join(["1"] * 40)],  # other-numbers
    ]:
        folder = case_tables.new_folder(tmp_path)
        assert pixel_csv.look_into(write(folder / "a.csv", *lines), 0) is None


NO_PIXELS = ("256", "-1", "nan", "", "0.5", "1_0", "+5", "-0", "\u0663", "\uff15", "\u00b2", "1 0", "1" * 5000)


def changed(pixels: np.ndarray, value: object) -> list[object]:
    return [*pixels[:5], value, *pixels[6:]]


def test_list_all_rejects_rows_by_file_and_line(tmp_path: pathlib.Path) -> None:
    for line, detail in [
        (row(1, PIXELS[0][:-1]), "has 16 columns, expected 17"),  # few
        (row(1, [*PIXELS[0], 0]), "has 18 columns, expected 17"),  # many
        (row(2, PIXELS[0]), "is 2, and the classes are 0: a, 1: b"),  # 2
        *((row(1, changed(PIXELS[0], text)), f"pixel 5 is {text[:40]!r}, expected an") for text in NO_PIXELS),
    ]:
        folder = case_tables.new_folder(tmp_path)
        uri = write(folder / "a.csv", row("label", range(16)), row(0, PIXELS[0]), line, row(1, PIXELS[2]))
        [listing] = find(uri, "class", classes=("a", "b")).list_all()
        [reject] = listing.rejects
        reason = elements.Reason.UNKNOWN_LABEL if "classes" in detail else elements.Reason.BAD_ROW
        assert (reject.key, reject.reason, reject.uri) == ("images/00001", reason, uri)
        assert reject.detail.startswith(f"line 3 of {uri}: ") and detail in reject.detail
        one, other = elements.unpack_refs(listing.packed_refs)
        assert (one.label, other.label) == ("a", "b")
        assert unpacked_content.unpack(other.uri, other.version).read(other.offset, 16) == PIXELS[2].tobytes()


def test_find_says_what_is_wrong_with_csv_files(tmp_path: pathlib.Path) -> None:
    uri = write(tmp_path / "train.csv", row("label", range(16)), row(0, PIXELS[0]))
    with error_texts.raises("arrays-wrong-layout"):
        find(uri, shape=(5, 5, 1))
    with error_texts.raises("arrays-not-one"):
        find(tmp_path, images={"train": "*.csv", "test": write(tmp_path / "none.csv", "a").rpartition("/")[2]})
    write(tmp_path / "a_train.csv", row("label", range(16)), row(0, PIXELS[0]))
    with error_texts.raises("pixels-ambiguous"):
        find(tmp_path)
    (tmp_path / "a_train.csv").unlink()
    write(tmp_path / "test.csv", ",".join(f"pixel{n}" for n in range(16)), ",".join(map(str, PIXELS[0])))
    with error_texts.raises("arrays-unknown-column"):
        find(tmp_path)
    other = write(tmp_path / "other.csv", row("label", range(16)), row(0, PIXELS[0]))
    with error_texts.raises("arrays-no-split"):
        find(other, split_by="source")


def test_look_into_a_line_without_end_raises(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pixel_csv, "_MAX_LINE_BYTES", 100)
    uri = write(tmp_path / "a.csv", "1," * 60)
    with pytest.raises(packed_file.BrokenContentError, match="has more than 100 bytes in line 1; correct it"):
        pixel_csv.look_into(uri, 0)
    source = find(write(tmp_path / "b.csv", row(1, [0] * 16), row(1, [100] * 16)))
    monkeypatch.setattr(pixel_csv, "_MAX_LINE_BYTES", 40)
    [listing] = source.list_all()
    assert "b.csv' cannot be read (has more than 40 bytes in line 2" in listing.problems[0]
