from __future__ import annotations

import math
import pathlib
from typing import Any

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagebeam.pipelines import job
from imagebeam.pipelines.config import model as config_lib
from imagebeam.transforms.elements import Reason
from imagebeam.transforms.formats import yolo, yolo_labels
from imagebeam.transforms.images import checked_image, image_objects
from imagebeam.transforms.sources import annotated_files
from tests import case_tables, error_texts

NAMES = "names: [cat, dog]\n"


def find(root: pathlib.Path, **wanted: Any) -> yolo.YoloSet:
    return yolo.find(str(root), pydantic.TypeAdapter(yolo.Yolo).validate_python(wanted))


def folders_of(found: yolo.YoloSet) -> list[tuple[str, str, bool]]:
    return [tuple(part) for part in found.parts]


def make_folders(root: pathlib.Path, *folders: str) -> None:
    for folder in folders:
        (root / folder).mkdir(parents=True, exist_ok=True)


BOTH = "train: images/train\nval: images/val\n"
VAL = ("val", "images/val")
ROBOFLOW = [("train", "train/images"), ("val", "val/images")]


def test_yaml_names_folders(tmp_path: pathlib.Path) -> None:
    for folders, text, expected in [
        ("images/train images/val", "train: images/train\nval: images/val\n", [("train", "images/train"), VAL]),
        ("images/train images/val", f"path: ../of/another/machine\n{BOTH}test:\n", [("train", "images/train"), VAL]),
        ("coco8/images/train", "path: coco8\ntrain: images/train\n", [("train", "coco8/images/train")]),
        ("train/images val/images", "train: ../train/images\nval: ../val/images\n", ROBOFLOW),
        ("a/images b/images", "train: [a/images, b/images]\n", [("train", "a/images"), ("train", "b/images")]),
        ("images", "train: .\n", [("train", "")]),
    ]:
        folder = case_tables.new_folder(tmp_path)
        make_folders(folder, *folders.split())
        (folder / "data.yaml").write_text(text + NAMES)
        for uri in (folder, folder / "data.yaml"):
            found = find(uri)
            assert (found.root, folders_of(found)) == (str(folder), [(*each, False) for each in expected])
            assert found.classes.names == ("cat", "dog")


def test_data_yaml_names_lists_and_absolute_paths(tmp_path: pathlib.Path) -> None:
    make_folders(tmp_path, "images/val")
    (tmp_path / "train.txt").write_text("")
    (tmp_path / "coco.yml").write_text(f"train: train.txt\nval: {tmp_path}/images/val\n{NAMES}")
    (tmp_path / "other.yaml").write_text("lr: 0.1")  # without names: not of the data set
    assert folders_of(find(tmp_path)) == [("train", "train.txt", True), ("val", "images/val", False)]


def test_folders_show_the_splits_without_a_yaml(tmp_path: pathlib.Path) -> None:
    for folders, expected in [
        (["images/train", "images/val", "labels/train"], [("train", "images/train"), ("val", "images/val")]),
        (["images", "labels"], [("train", "images")]),
        (["train/images", "test/images"], [("train", "train/images"), ("test", "test/images")]),
        (["train", "valid"], [("train", "train"), ("valid", "valid")]),
        ([], [("train", "")]),
    ]:
        folder = case_tables.new_folder(tmp_path)
        make_folders(folder, *folders)
        (folder / "classes.txt").write_text("cat\ndog\n\n")
        found = find(folder)
        assert [each[:2] for each in folders_of(found)] == expected
        assert found.classes.names == ("cat", "dog")


def test_names_are_a_list_or_a_mapping(tmp_path: pathlib.Path) -> None:
    for names, expected in [
        ("names: {0: cat, 1: dog}", (("cat", "dog"), None)),
        ("names: {'1': dog, 0: cat}", (("cat", "dog"), None)),
        ("names: {3: cat, 7: dog}", (("cat", "dog"), (3, 7))),
        ("names: [0, 1, yes, no]", (("0", "1", "yes", "no"), None)),
        ("names:\n- cat\nnc: 1", (("cat",), None)),
    ]:
        folder = case_tables.new_folder(tmp_path)
        make_folders(folder, "images")
        (folder / "data.yaml").write_text(f"train: images\n{names}\n")
        classes = find(folder).classes
        assert (classes.names, classes.numbers) == expected


def test_config_replaces_what_files_say(tmp_path: pathlib.Path) -> None:
    make_folders(tmp_path, "a/images", "b")
    (tmp_path / "data.yaml").write_text(f"train: nowhere\n{NAMES}kpt_shape: [17, 3]\n")
    (tmp_path / "list.txt").write_text("")
    found = find(tmp_path, images={"train": "a/images/", "test": ["b", "list.txt"]}, classes=["x", "y"], base=1)
    assert folders_of(found) == [("train", "a/images", False), ("test", "b", False), ("test", "list.txt", True)]
    assert (found.classes.names, found.classes.base, found.num_keypoint_values) == (("x", "y"), 1, 51)
    (tmp_path / "names.txt").write_text("p\nq\n")
    assert find(tmp_path, images={"train": "b"}, classes="names.txt").classes.names == ("p", "q")


def test_wrong_data_yaml_is_an_error(tmp_path: pathlib.Path) -> None:
    for text, code in [
        (f"train: images\nval: nowhere\n{NAMES}", "yolo-no-images"),
        (f"train: /content/x/images\n{NAMES}", "yolo-no-images"),
        (f"train: 3\n{NAMES}", "yolo-bad-images"),  # number
        (NAMES, "yolo-no-images"),  # no-images
        ("train: images\n", "yolo-no-classes"),
        ("train: images\nnames: [cat]\nnc: 2", "yolo-names-differ"),  # nc
        ("train: images\nnames: [cat, cat]", "classes-name-twice"),  # twice
        ("train: images\nnames: [cat, '']", "classes-name-empty"),  # empty-name
        ("train: images\nnames: {a: cat}", "yolo-bad-names"),  # key
        ("train: images\nnames: [[cat]]", "yolo-bad-names"),  # nested
        ("train: images\nnames: cat", "yolo-bad-names"),  # text
        (f"train: images\n{NAMES}kpt_shape: 3", "yolo-bad-keypoints"),  # keypoints
        ("- cat", "yolo-data-no-mapping"),  # list
        ("a: [", "yolo-data-no-yaml"),  # not-yaml
        ("[" * 1500, "yolo-data-no-yaml"),  # deep
    ]:
        folder = case_tables.new_folder(tmp_path)
        make_folders(folder, "images")
        (folder / "data.yaml").write_text(text)
        with error_texts.raises(code):
            find(folder)


def test_classes_beside_images_are_those_of_all_splits(tmp_path: pathlib.Path) -> None:
    make_folders(tmp_path, "train", "valid")
    (tmp_path / "train/classes.txt").write_text("cat\ndog\n")
    (tmp_path / "valid/_darknet.labels").write_text("cat\ndog\n")
    assert find(tmp_path).classes.names == ("cat", "dog")
    (tmp_path / "valid/_darknet.labels").write_text("dog\ncat\n")
    with error_texts.raises("yolo-classes-differ"):
        find(tmp_path)


def test_wrong_places_are_errors(tmp_path: pathlib.Path) -> None:
    make_folders(tmp_path, "images")
    for code, wanted in [
        ("yolo-no-classes", {}),
        ("file-unreadable", {"classes": "names.txt"}),
        ("images-no-folder-or-list", {"classes": ["cat"], "images": {"train": "../x"}}),
        ("file-unreadable", {"data": "x.yaml"}),
    ]:
        with error_texts.raises(code):
            find(tmp_path, **wanted)
    with error_texts.raises("input-not-folder"):
        find(tmp_path / "nowhere")
    for code, data in (("file-not-utf8", b"\xff"), ("file-too-large", b"#" * ((1 << 20) + 1))):
        (tmp_path / "data.yaml").write_bytes(data)
        with error_texts.raises(code):
            find(tmp_path)
    (tmp_path / "data.yaml").unlink()
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(NAMES)
    with error_texts.raises("yolo-data-ambiguous"):
        find(tmp_path)
    assert find(tmp_path, data="a.yaml", images={"train": "images"}).classes.names == ("cat", "dog")


def test_two_splits_of_the_same_folder_are_refused_with_the_setting_for_one(tmp_path: pathlib.Path) -> None:
    make_folders(tmp_path, "images")
    (tmp_path / "data.yaml").write_text(f"{NAMES}train: images\nval: images\n")
    with error_texts.raises("yolo-split-twice"):
        find(tmp_path)
    assert folders_of(find(tmp_path, images={"train": "images"})) == [("train", "images", False)]


@pytest.mark.parametrize("file", ["data.yaml", "classes.txt", "train/labels/classes.txt"])
def test_folder_above_the_data_set_is_refused_with_the_right_one(tmp_path: pathlib.Path, file: str) -> None:
    make_folders(tmp_path, "a", "pets/images", "pets/train/labels")
    (tmp_path / "pets" / file).write_text("cat\n")
    with error_texts.raises("input-holds-folder"):
        find(tmp_path)


def test_folders_have_the_names_of_the_config(tmp_path: pathlib.Path) -> None:
    make_folders(tmp_path, "pictures/train", "pictures/val", "boxes/train")
    found = find(tmp_path, image_folder="pictures", classes=("cat",))
    assert folders_of(found) == [("train", "pictures/train", False), ("val", "pictures/val", False)]
    make_folders(tmp_path / "roboflow", "train/pictures", "valid/pictures")
    found = find(tmp_path / "roboflow", image_folder="pictures", classes=("cat",))
    assert folders_of(found) == [("train", "train/pictures", False), ("valid", "valid/pictures", False)]


def test_folders_of_no_split_are_found(tmp_path: pathlib.Path) -> None:
    for name in ("images/train/a", "images/extra/b", "labels/extra/c", "test/images/d", "images/train/in/f"):
        make_folders(tmp_path, str(pathlib.Path(name).parent))
        (tmp_path / f"{name}.jpg").write_bytes(b"x")
    fields: dict[str, Any] = {"source": {"by": "yolo", "uri": str(tmp_path)}, "output": {"uri": f"{tmp_path}/more"}}
    fields["source"]["yolo"] = {"images": {"train": "images/train"}, "classes": ["cat"], "without_labels": "reject"}
    source = job.make_source(config_lib.parse_config(fields, "test"))
    assert isinstance(source, annotated_files.AnnotatedFilesSource)
    assert source.unread == ("test", "images/extra")
    assert {"image_outside_splits": 2} in [dict(found.skipped) for found in source.list_all()]


# --- label files -----------------------------------------------------------------------------------------------------

CLASSES = image_objects.ClassNames(("cat", "dog"))
READER = yolo_labels.YoloReader(CLASSES)


def test_center_and_size_become_edges_with_ids_and_names() -> None:
    found = READER.read(b"1 0.5 0.25 0.5 0.25\n0 0.5 0.5 1 1\n")
    assert found.values == ((0.25, 0.0), (0.75, 1.0), (0.125, 0.0), (0.375, 1.0), (1, 0), (b"dog", b"cat"))
    assert found.expected is None
    assert dict(zip(READER.columns, found.values))["image/object/class/text"] == (b"dog", b"cat")


def test_spellings_of_one_box_are_equal() -> None:
    for data in [
        b"0 0.5 0.5 0.5 0.5\r\n",  # crlf
        b"0 0.5 0.5 0.5 0.5\r",  # cr
        b"\xef\xbb\xbf0 0.5 0.5 0.5 0.5",  # byte-order-mark
        b"\n\n  0\t0.5  0.5 0.5 0.5  \n\n",  # blanks
        b"0.0 5e-1 .5 +0.5 0.50",  # other-spellings
        b"0 0.25 0.25 0.75 0.25 0.75 0.75 0.25 0.75",  # polygon
        b"0 0.25 0.25 0.75 0.5 0.5 0.75",  # triangle
    ]:
        assert READER.read(data).values[:5] == ((0.25,), (0.75,), (0.25,), (0.75,), (0,))


@pytest.mark.parametrize("data", [None, b"", b"\n \r\n", b"\xef\xbb\xbf"])
def test_image_without_label_lines_has_no_objects(data: bytes | None) -> None:
    assert READER.read(data).values == ((),) * 6


def test_bad_line_rejects_the_image_and_names_the_line() -> None:
    for line, detail in [
        (b"0 nan 0.5 0.5 0.5", "'nan' is not a finite number"),  # nan
        (b"0 0.5 inf 0.5 0.5", "'inf' is not a finite number"),  # inf
        (b"0 0.5 0.5 1e999 0.5", "'1e999' is not a finite number"),  # too-large
        (b"0 0.5 0.5 1_0 0.5", "'1_0' is not a finite number"),  # underscore
        (b"cat 0.5 0.5 0.5 0.5", "'cat' is not a finite number"),  # name
        (b"0,0.5,0.5,0.5,0.5", "is not a finite number"),  # commas
        (b"0.5 0.5 0.5 0.5 0.5", "the class is '0.5', expected an integer"),  # class-fraction
        (b"0 -0.5 0.5 0.5 0.5", "-0.5 is not a share of the image"),  # negative-center
        (b"0 0.5 0.5 -0.005 0.5", "the box has a negative size"),  # negative-size
        (b"0 120 80 40 40", "120 is not a share of the image, 0 to 1; divide pixels"),  # pixels
        (b"0 0.5 0.5 1.5 0.5", "1.5 is not a share of the image"),  # beyond-one
        (b"0 0.5 0.5 0.5", "4 fields, expected class x y width height"),  # four
        (b"0", "1 fields"),  # one
        (b"0 0 0 1 0 1 1 0", "8 fields"),  # eight
        (b"0 0 0 1 0 1 7", "a polygon: 7 is not a share"),  # polygon-in-pixels
        (b"0 0.5 0.5 0.5 0.5 0.9", "source.yolo.confidence: drop leaves it out"),  # confidence
        ("0 0.5 0.5 0.5 ½".encode(), "which is no text of numbers"),  # not-ascii
        ("0 0.5 0.5 0.5 0.5".encode("utf-16"), "which is no text of numbers"),  # utf-16
        (b"0 0.5 0.5 0.5 0.5\0", "is not a finite number"),  # null
    ]:
        with pytest.raises(checked_image.BadImageError) as found:
            READER.read(b"0 0.5 0.5 0.5 0.5\n\n" + line if not line.startswith(b"\xff") else line)
        assert found.value.reason is Reason.BAD_VALUE
        assert detail in found.value.detail
        assert "line 3" in found.value.detail or line.startswith(b"\xff")


@pytest.mark.parametrize("number", [b"2", b"-1", b"1e9"])
def test_unknown_class_rejects_the_image(number: bytes) -> None:
    with pytest.raises(checked_image.BadImageError, match="the classes are 0 to 1") as found:
        READER.read(number + b" 0.5 0.5 0.5 0.5")
    assert found.value.reason is Reason.UNKNOWN_LABEL


def test_classes_with_gaps_keep_their_numbers_and_base_is_added() -> None:
    reader = yolo_labels.YoloReader(image_objects.ClassNames(("cat", "dog"), (3, 7), base=1))
    assert reader.read(b"7 0.5 0.5 0.5 0.5").values[4:] == ((8,), (b"dog",))
    with pytest.raises(checked_image.BadImageError, match="the class is 4, and the classes are 3 to 7"):
        reader.read(b"4 0.5 0.5 0.5 0.5")


def test_box_is_clipped_or_dropped_and_counted() -> None:
    for line, values, dropped in [
        (b"0 0 0.5 0.5 0.5", ((0.0,), (0.25,), (0.25,), (0.75,)), {}),  # clipped
        (b"0 0.5 0.5 0 0.5", ((), (), (), ()), {image_objects.NO_AREA: 1}),  # no-width
        (b"0 -0.005 0.5 0.002 0.5", ((), (), (), ()), {image_objects.OUTSIDE: 1}),  # outside
        (b"0 0.1 0.1 0.1 0.1 0.1 0.1", ((), (), (), ()), {image_objects.NO_AREA: 1}),  # point
    ]:
        found = READER.read(line)
        assert (found.values[:4], found.dropped) == (values, dropped)


def test_options_change_what_becomes_of_lines() -> None:
    strict = yolo_labels.YoloReader(CLASSES, polygons="reject", rejects_outside=True)
    with pytest.raises(checked_image.BadImageError, match=r"source.yolo.outside: clip would cut it"):
        strict.read(b"0 0 0.5 0.5 0.5")
    assert strict.read(b"0 0.25 0.5 0.500001 0.5").values[0] == (0.0,)  # rounded
    with pytest.raises(checked_image.BadImageError, match=r"a polygon of 3 points; source.yolo.polygons: box"):
        strict.read(b"0 0 0 1 0 1 1")
    dropping = yolo_labels.YoloReader(CLASSES, confidence="drop")
    assert dropping.read(b"0 0.5 0.5 0.5 0.5 0.9").values[0] == (0.25,)
    posed = yolo_labels.YoloReader(CLASSES, num_keypoint_values=6)
    assert posed.read(b"0 0.5 0.5 0.5 0.5 1 2 3 4 5 6").values[0] == (0.25,)
    with pytest.raises(checked_image.BadImageError, match="5 fields, expected 11"):
        posed.read(b"0 0.5 0.5 0.5 0.5")


def test_file_that_is_too_long_is_a_reject() -> None:
    with pytest.raises(checked_image.BadImageError, match="the annotations of one image may have 16,777,216") as found:
        READER.read(b" " * (image_objects.MAX_FILE_BYTES + 1))
    assert found.value.reason is Reason.TOO_LARGE


NUMBERS = st.one_of(
    st.floats(-0.2, 1.2).map(str), st.integers(-2, 3).map(str), st.sampled_from(["nan", "-inf", "", "x", "1e-400", "½"])
)
LINES = st.lists(NUMBERS, max_size=9).map(" ".join)
FILES = st.one_of(st.binary(max_size=80), st.lists(LINES, max_size=4).map("\n".join).map(str.encode))


@given(FILES)
def test_any_bytes_give_valid_boxes_or_a_reject(data: bytes) -> None:
    try:
        found = READER.read(data)
    except checked_image.BadImageError as e:
        assert e.reason in (Reason.BAD_VALUE, Reason.UNKNOWN_LABEL)
        return
    assert len({len(values) for values in found.values}) == 1
    for xmin, xmax, ymin, ymax, label, text in zip(*found.values):
        assert 0 <= xmin < xmax <= 1
        assert 0 <= ymin < ymax <= 1
        assert CLASSES.texts()[label] == text
        assert not any(map(math.isnan, (xmin, xmax, ymin, ymax)))
