from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import json
import pathlib
import pickle
import random
from collections import Counter
from typing import Any

import hypothesis
import hypothesis.extra.numpy
import hypothesis.strategies as st
import numpy as np
import pytest
from PIL import Image

from imagebeam.pipelines.config import model as config_lib
from imagebeam.pipelines.recognize import recognize_folder
from imagebeam.transforms import elements
from imagebeam.transforms.formats import base_format
from imagebeam.transforms.formats.annotations import annotations
from imagebeam.transforms.formats.annotations.syntaxes import SYNTAXES
from imagebeam.transforms.images import checked_image, image_objects, object_masks
from tests import annotation_sets, case_tables, detection_sets, error_texts, image_sets, spread_rows
from tests.annotation_sets import SETS, put

ALL = pytest.mark.parametrize("name", SETS)


def options(syntax: Any, **more: Any) -> annotations.Annotations:
    return annotations.Annotations(syntax=syntax, **more)


def listed(root: pathlib.Path, wanted: annotations.Annotations) -> tuple[Any, list[elements.ImageRef], list[Any], Any]:
    """Returns the source, its images and rejects, and the counts of files that are skipped."""
    source = wanted.open(base_format.Request(str(root), str(root.parent / "out")))
    refs, rejects, skipped, problems = spread_rows.gather(source.list_all())
    assert not problems
    return pickle.loads(pickle.dumps(source)), refs, rejects, skipped


def read(source: Any, ref: elements.ImageRef) -> dict[str, Any]:
    """Returns the values of the features of an image's objects, and the counts of those left out."""
    data = None if ref.mask is None else pathlib.Path(ref.mask.uri).read_bytes()
    data = ref.columns[0] if ref.columns else data
    found = source.facts().annotations.for_image(lambda: detection_sets.SIZE[::-1]).read(data)
    return dict(zip(source.facts().columns, found.values)) | {"dropped": found.dropped, "expected": found.expected}


def boxes_of(values: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [*zip(values["image/object/class/text"], *(values[key] for key in image_objects.BOX_COLUMNS))]


@ALL
def test_every_record_has_the_objects_of_its_image(tmp_path: pathlib.Path, name: str) -> None:
    """The truth is that of the writer of the set, in pixels, before it was written in any syntax."""
    case = SETS[name]
    truth = case.write(tmp_path / "in")
    keeps = {"unnamed": "keep"} if case.settings else {}
    source, refs, rejects, skipped = listed(tmp_path / "in", options(case.syntax, **keeps))
    assert (rejects, skipped) == ([], case.skipped)
    assert sorted(ref.key for ref in refs) == sorted(truth)
    dropped: Counter[str] = Counter()
    classes = sorted({each.name for objects in truth.values() for each in objects})
    for ref in refs:
        assert ref.split == ("validation" if any(word in ref.key for word in ("val/", "valid/")) else "train")
        values = read(source, ref)
        expected = truth[ref.key]
        assert [each[0].decode() for each in boxes_of(values)] == [each.name for each in expected]
        for found, meant in zip(boxes_of(values), expected):
            assert found[1:] == pytest.approx(meant.shares, abs=1e-9)
        assert values["image/object/class/label"] == tuple(1 + classes.index(each.name) for each in expected)
        dropped.update(values["dropped"])
    assert dropped == case.dropped


@ALL
def test_set_is_recognized_and_plans_like_its_options(tmp_path: pathlib.Path, name: str) -> None:
    case = SETS[name]
    case.write(tmp_path)
    found = recognize_folder.recognize(str(tmp_path))
    first = found.candidates[0]
    assert (first.preset, first.settings) == ("annotations", {"source.annotations.syntax": case.syntax})
    asks = {
        "open_images": "names 6 of 8 images",
        "severstal": "source.annotations.unnamed=keep",
        "wider_face": "1 of 9 images that were seen are not read",
    }
    assert (found.sure is None) == (name in asks)
    assert not found.remarks
    is_of_many = annotations.SYNTAXES[case.syntax].FOLDERS is None
    left_out = case.dropped.get("object_of_other_shape") if is_of_many else None
    if is_of_many or "object_of_other_shape" not in case.dropped:  # of the others, a few files are looked into
        others = [note.partition(" ")[0] for note in first.notes if " such as points" in note]
        assert others == ([str(left_out)] if left_out else [])
    if name in asks:
        assert any(asks[name] in doubt for doubt in first.doubts)


@pytest.mark.parametrize("name", ["severstal", "science_bowl", "segment_anything"])
def test_masks_are_those_of_the_run_lengths(tmp_path: pathlib.Path, name: str) -> None:
    truth = SETS[name].write(tmp_path)
    source, refs, _, _ = listed(tmp_path, options(SETS[name].syntax, masks=True))
    height, width = detection_sets.SIZE[::-1]
    for ref in refs:
        values = read(source, ref)
        assert values["expected"] == (height, width)
        masks = [object_masks.render(each, (height, width)) for each in values[object_masks.FEATURE]]
        for mask, meant in zip(masks, truth[ref.key], strict=True):
            np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(mask))), annotation_sets.mask_of(meant))


def test_masks_of_polygons_fill_their_boxes(tmp_path: pathlib.Path) -> None:
    for name in ("via-project", "cvat", "label_studio", "supervisely", "dota"):
        truth = SETS[name].write(tmp_path / name)
        source, refs, _, _ = listed(tmp_path / name, options(SETS[name].syntax, masks=True))
        for ref in refs:
            for packed, meant in zip(read(source, ref)[object_masks.FEATURE], truth[ref.key], strict=True):
                mask = np.asarray(Image.open(io.BytesIO(object_masks.render(packed, detection_sets.SIZE[::-1]))))
                assert mask.sum() == (meant.xmax - meant.xmin) * (meant.ymax - meant.ymin), name


def test_dota_has_corners_and_difficult_objects_and_open_images_has_groups(tmp_path: pathlib.Path) -> None:
    truth = SETS["dota"].write(tmp_path / "d")
    source, refs, _, _ = listed(tmp_path / "d", options("dota"))
    for ref in refs:
        values = read(source, ref)
        assert values["image/object/difficult"] == tuple(index % 2 for index in range(len(truth[ref.key])))
        corners = np.reshape(values["image/object/corners"], (-1, 4, 2)) * detection_sets.SIZE
        for index, (found, meant) in enumerate(zip(corners, truth[ref.key], strict=True)):
            clockwise = [(meant.xmin, meant.ymin), (meant.xmax, meant.ymin), (meant.xmax, meant.ymax)]
            clockwise += [(meant.xmin, meant.ymax)]
            np.testing.assert_allclose(found, np.roll(clockwise, -(index % 4), 0), atol=1e-9)
    truth = SETS["open_images"].write(tmp_path / "o")
    source, refs, _, _ = listed(tmp_path / "o", options("open_images"))
    for ref in refs:
        assert read(source, ref)["image/object/is_crowd"] == tuple(int(each.name == "dog") for each in truth[ref.key])


def test_corners_turn_with_the_image() -> None:
    from imagebeam.transforms.shard import encode

    values: dict[str, Any] = {"image/object/corners": (0.1, 0.2, 0.3, 0.2, 0.3, 0.6, 0.1, 0.6)}
    encode._turn_corners(values, 6)  # a quarter turn clockwise
    assert values["image/object/corners"] == pytest.approx([0.8, 0.1, 0.8, 0.3, 0.4, 0.3, 0.4, 0.1])


def test_project_of_cvat_has_the_splits_of_its_subsets(tmp_path: pathlib.Path) -> None:
    images = []
    for number, subset in enumerate(("Train", "Validation", "default")):
        detection_sets.write_image(tmp_path / "images" / subset / "0.jpg", number)
        box = f'<box label="{subset}" xtl="1" ytl="1" xbr="5" ybr="5"/>'
        images.append(f'<image name="0.jpg" subset="{subset}" width="40" height="20">\n{box}</image>')
    put(tmp_path / "annotations.xml", f"<annotations>{''.join(images)}</annotations>")
    found = recognize_folder.recognize(str(tmp_path))
    assert found.sure is not None and found.sure.settings == {"source.annotations.syntax": "cvat"}
    source, refs, rejects, skipped = listed(tmp_path, options("cvat"))
    assert (rejects, skipped) == ([], {})
    assert {ref.key: (ref.split, read(source, ref)["image/object/class/text"]) for ref in refs} == {
        "images/Train/0.jpg": ("train", (b"Train",)),
        "images/Validation/0.jpg": ("validation", (b"Validation",)),
        "images/default/0.jpg": ("train", (b"default",)),
    }
    named = {"files": {"test": ("annotations.xml",)}, "images": {"test": ("images",)}}
    assert {ref.split for ref in listed(tmp_path, options("cvat", **named))[1]} == {"test"}


@pytest.mark.parametrize(
    ("column", "names", "asks"),
    [("label_name", ("cat", "dog", "zebra"), ""), ("Sort", ("object",), "if it is one of Sort"), ("", ("object",), "")],
)
def test_class_of_a_box_in_csv_is_in_a_column_that_is_known_or_asked_for(
    tmp_path: pathlib.Path, column: str, names: tuple[str, ...], asks: str
) -> None:
    """A column without a name is often the number of the row."""
    SETS["vott"].write(tmp_path)
    path = tmp_path / "vott-csv-export/Cats-export.csv"
    path.write_text(path.read_text().replace("ymax,label", f"ymax,{column}"))
    found = recognize_folder.recognize(str(tmp_path))
    assert (found.sure is None) == bool(asks)
    assert asks in " ".join(found.candidates[0].doubts)
    assert listed(tmp_path, options("vott"))[0].facts().annotations.classes.names == names


def test_empty_class_rejects_the_image_where_a_column_has_the_classes(tmp_path: pathlib.Path) -> None:
    for name, table in [
        ("vott", "image,xmin,ymin,xmax,ymax,label\n0.jpg,1,1,5,5,cat\n1.jpg,1,1,5,5,\n2.jpg,,,,,\n"),
        ("run_lengths", "ImageId,ClassId,EncodedPixels\n0.jpg,1,1 3\n1.jpg,,1 3\n2.jpg,,\n"),
        ("run_lengths", "ImageId_ClassId,EncodedPixels\n0.jpg_1,1 3\n1.jpg_,1 3\n2.jpg_1,\n"),
    ]:
        folder = case_tables.new_folder(tmp_path)
        for number in range(3):
            detection_sets.write_image(folder / f"{number}.jpg", number)
        (folder / "all.csv").write_text(table)
        source, refs, rejects, _ = listed(folder, options(name))
        assert (len(refs), rejects) == (3, [])
        assert source.facts().annotations.classes.names == (("cat",) if name == "vott" else ("1",))
        for ref in refs:
            if ref.key == "1.jpg":
                with pytest.raises(checked_image.BadImageError, match=r"line 3 of all.csv: it has no class"):
                    read(source, ref)
            else:
                assert len(read(source, ref)["image/object/class/text"]) == (ref.key == "0.jpg")


def test_frames_of_mot_of_another_size_than_the_boxes_are_asked_about(tmp_path: pathlib.Path) -> None:
    SETS["mot"].write(tmp_path)
    assert recognize_folder.recognize(str(tmp_path)).sure is not None
    put(tmp_path / "train/MOT17-02/seqinfo.ini", "[Sequence]\nimWidth=1920\nimHeight=1080\n")
    found = recognize_folder.recognize(str(tmp_path))
    assert found.sure is None and "seqinfo.ini says 1920 x 1080" in found.candidates[0].doubts[0]


def test_labels_beside_the_boxes_of_mot_name_their_classes(tmp_path: pathlib.Path) -> None:
    """Each sequence may have its own; a class beyond them keeps its number."""
    SETS["mot"].write(tmp_path)
    put(tmp_path / "train/MOT17-02/gt/labels.txt", "ship\nbuoy\nwhale\n")
    names = listed(tmp_path, options("mot"))[0].facts().annotations.classes.names
    assert names == ("7", "car", "pedestrian", "ship", "static person", "whale")
    put(tmp_path / "names.csv", "1,one\n3,three\n7,seven\n")
    names = listed(tmp_path, options("mot", class_names="names.csv"))[0].facts().annotations.classes.names
    assert names == ("one", "seven", "three")


# --- faults -----------------------------------------------------------------------------------------------------------


def test_broken_line_rejects_its_image_alone_and_names_file_line_and_value(tmp_path: pathlib.Path) -> None:
    SETS["kitti"].write(tmp_path)
    (tmp_path / "training/label_2/000001.txt").write_text("Car 0 0 0 1 1 5 x 1 1 1 1 1 1 1\n")
    (tmp_path / "training/label_2/000002.txt").write_text("Car 0 0 0 1 1 5\n")
    (tmp_path / "training/label_2/000003.txt").write_bytes(b"Car \xff\n")
    source, refs, _, _ = listed(tmp_path, options("kitti"))
    details = {}
    for ref in refs:
        try:
            read(source, ref)
        except checked_image.BadImageError as e:
            assert e.reason is elements.Reason.BAD_VALUE
            details[ref.key[-5:]] = e.detail
    assert details["1.png"] == "line 1: bottom is 'x', expected a finite number"
    assert details["2.png"].startswith("line 1: 7 fields, expected 15")
    assert details["3.png"].startswith("is no UTF-8 text after line 0")
    assert len(details) == 3


def test_broken_row_of_a_table_names_the_file(tmp_path: pathlib.Path) -> None:
    SETS["vott"].write(tmp_path)
    path = tmp_path / "vott-csv-export/Cats-export.csv"
    path.write_text(path.read_text() + "1.jpg,5,5,2,9,cat\n,1,1,2,2,cat\n9.jpg,1,1,2,2,cat\n2.jpg,1,1,nan,2,cat\n")
    source, refs, rejects, _ = listed(tmp_path, options("vott", classes=("cat", "dog", "zebra")))
    assert {each.reason.value: each.detail.partition(": ")[2][:22] for each in rejects} == {
        "bad_row": "line 15 names no image",
        "not_found": f"there is no file '{tmp_path}"[:22],
    }
    with pytest.raises(checked_image.BadImageError, match=r"line 14 of Cats-export.csv: the box ends before it begins"):
        read(source, next(ref for ref in refs if ref.key.endswith("/1.jpg")))
    with pytest.raises(checked_image.BadImageError, match="xmax is 'nan', expected a finite number"):
        read(source, next(ref for ref in refs if ref.key.endswith("/2.jpg")))


def test_two_entries_of_one_image_are_an_error(tmp_path: pathlib.Path) -> None:
    for name, path, old, new, lines in [
        ("cvat", "annotations.xml", 'name="2.jpg"', 'name="1.jpg"', "line 6 and line 7"),
        ("createml", "train/_annotations.createml.json", '"2.jpg"', '"1.jpg"', "entry 2 and entry 3"),
        ("via-project", "train/via_export.json", '"filename": "2.jpg"', '"filename": "1.jpg"', "image 2 and image 3"),
        ("label_studio", "project-1.json", "1f2e-3.jpg", "1f2e-1.jpg", "task 2 and task 4"),
        ("wider_face", "wider_face_split/wider_face_train_bbx_gt.txt", "Parade_2", "Parade_1", "line 4 and line 8"),
    ]:
        folder = case_tables.new_folder(tmp_path)
        SETS[name].write(folder)
        content = (folder / path).read_text()
        assert old in content
        (folder / path).write_text(content.replace(old, new))
        source = options(SETS[name].syntax).open(base_format.Request(str(folder)))
        problems = spread_rows.gather(source.list_all())[3]
        assert len(problems) == 1 and lines in problems[0]


def test_two_files_that_name_the_same_image_are_a_question(tmp_path: pathlib.Path) -> None:
    SETS["vott"].write(tmp_path)
    folder = tmp_path / "vott-csv-export"
    put(folder / "truth.csv", "image,xmin,ymin,xmax,ymax,label\n1.jpg,1,1,5,5,cat\n")
    found = recognize_folder.recognize(str(tmp_path))
    first, second = (f"vott-csv-export/{name}" for name in ("Cats-export.csv", "truth.csv"))
    assert found.sure is None
    assert any(
        f"{first} and {second} name the same images, such as 1.jpg" in each for each in found.candidates[0].doubts
    )
    named = {"files": {"train": (first,)}, "images": {"train": ("vott-csv-export",)}}
    assert len(listed(tmp_path, options("vott", **named))[1]) == 6


def test_object_without_a_class_rejects_its_image_and_names_no_class(tmp_path: pathlib.Path) -> None:
    SETS["createml"].write(tmp_path)
    path = tmp_path / "train/_annotations.createml.json"
    entries = json.loads(path.read_text())
    del entries[1]["annotations"][0]["label"]
    path.write_text(json.dumps(entries))
    source, refs, _, _ = listed(tmp_path, options("createml"))
    assert source.facts().annotations.classes.names == ("cat", "dog", "zebra")
    where = r"annotation 1 of entry 2 of _annotations.createml.json: it has no class"
    with pytest.raises(checked_image.BadImageError, match=where):
        read(source, next(ref for ref in refs if ref.key == "train/1.jpg"))


def test_region_of_several_labels_rejects_its_image_and_tasks_of_nobody_name_none(tmp_path: pathlib.Path) -> None:
    SETS["label_studio"].write(tmp_path)
    path = tmp_path / "project-1.json"
    tasks = json.loads(path.read_text())
    tasks[2]["annotations"][0]["result"][0]["value"]["rectanglelabels"] = ["cat", "dog"]
    tasks[3]["annotations"] = tasks[3]["annotations"][1:]  # skipped
    tasks[4]["annotations"] = []
    path.write_text(json.dumps(tasks))
    source, refs, _, _ = listed(tmp_path, options("label_studio"))
    assert {"images/1f2e-3.jpg", "images/1f2e-4.jpg"}.isdisjoint(ref.key for ref in refs)
    with pytest.raises(checked_image.BadImageError, match="it has the labels cat, dog: keep one of them"):
        read(source, next(ref for ref in refs if ref.key == "images/1f2e-2.jpg"))
    found = recognize_folder.recognize(str(tmp_path)).candidates[0]
    assert found.doubts[0] == (
        "project-1.json: the images of 1 object in its beginning would be rejected; result 1 of task 3: it has the "
        "labels cat, dog: keep one of them"
    )
    assert found.doubts[1].startswith("project-1.json names 6 of 8 images in images: the others are skipped")
    tasks[5]["annotations"] *= 2  # of two people
    path.write_text(json.dumps(tasks))
    found = recognize_folder.recognize(str(tmp_path)).candidates[0]
    assert "the images of 2 objects" in found.doubts[0] and "have no class" not in " ".join(found.notes)


def test_flags_of_several_classes_are_an_error() -> None:
    via = annotations.SYNTAXES["via"]
    flags = {
        "shape_attributes": {"name": "rect"},
        "region_attributes": {"kind": {"cat": True, "dog": True, "cow": False}},
    }
    [_, row] = via.rows(io.BytesIO(json.dumps({"a.jpg1": {"filename": "a.jpg", "regions": [flags]}}).encode()))
    with pytest.raises(ValueError, match="it has the attributes cat, dog, and one is its class"):
        via.region(row.fields, (20, 40))


def test_class_that_is_not_listed_is_unknown(tmp_path: pathlib.Path) -> None:
    SETS["cvat"].write(tmp_path)
    source, refs, _, _ = listed(tmp_path, options("cvat", classes=("cow",)))
    with pytest.raises(checked_image.BadImageError, match=r"is none of source.annotations.classes") as caught:
        read(source, refs[1])
    assert caught.value.reason is elements.Reason.UNKNOWN_LABEL


def test_fields_that_cannot_be_used_are_named() -> None:
    for syntax, fields, detail in [
        ("kitti", ["0", "0", "0", "5", "1", "1", "1", *"1111111"], "ends before it begins"),
        ("dota", ["1", "1", "5", "1", "5", "5", "1", "5", "9"], "difficult is '9'"),
        ("dota", ["1", "1"], "3 fields, expected 8 numbers"),
        ("wider_face", ["1", "1", "-5", "1"], "negative size, -5 x 1"),
        ("mot", ["1", "1"], "expected left top width height"),
        ("open_images", ["1", "50", "0", "1", "0"], "50 is no share of the image's side"),
        ("vott", ["1", "", "3", "4"], "ymin is '', expected a finite number"),
        ("run_lengths", "1 2 3", "expected pairs of a start, from 1, and a length"),
        ("run_lengths", "5 2 6 1", "the run 6 1 after pixel 6"),
        ("run_lengths", "0 2", "the run 0 2 after pixel 0"),
        ("run_lengths", "799 3", "within the 800 pixels"),
        ("createml", {"x": 1, "y": 1, "width": None, "height": 2}, "width is None"),
        ("createml", None, "has None, expected x y width height"),
        ("via", [["a", "b"], {"name": "rect"}], "it has the attributes a, b, and one is its class"),
        ("via", [[], {"name": "cube"}], "the shape is 'cube'"),
        ("via", [[], {"name": "polygon", "all_points_x": [1, 2], "all_points_y": [1]}], "has 2 numbers"),
        ("via", [[], {"name": "polygon", "all_points_x": [1, 2], "all_points_y": [1, 2]}], "a polygon of 4 numbers"),
        ("cvat", ["polygon", ["20", "40"], {"points": "1;2"}], "expected x y"),
        ("cvat", ["box", [None, "40"], {"xtl": "1", "ytl": "1", "xbr": "2", "ybr": "2"}], "height is None"),
        ("label_studio", "it has 2 annotations: keep one of them", "it has 2 annotations"),
        ("label_studio", ["polygonlabels", [20.5, 40], {"points": []}], "the size is 40 x 20.5, expected pixels"),
        ("supervisely", ["rectangle", {}, [[1, 1]]], "a rectangle of 1 points"),
        ("supervisely", ["polygon", {}, "x"], "a list of points is 'x'"),
        ("segment_anything", [[1, 1], None], "expected x y width height"),
    ]:
        with pytest.raises(ValueError, match=detail):
            annotations.SYNTAXES[syntax].region(fields, (20, 40))


def test_turned_shapes_become_the_boxes_around_them() -> None:
    rectangle = {"x": 50, "y": 50, "width": 20, "height": 10, "rotation": 90}
    found = annotations.SYNTAXES["label_studio"].region(["rectanglelabels", [20, 40], rectangle], (20, 40))
    assert found is not None and found.box == pytest.approx((18, 20, 10, 18))  # around its first corner
    edges = {"xtl": "10", "ytl": "8", "xbr": "20", "ybr": "12", "rotation": "90"}
    found = annotations.SYNTAXES["cvat"].region(["box", ["20", "40"], edges], (20, 40))
    assert found is not None and found.box == pytest.approx((13, 17, 5, 15))  # around its center
    turned = {"cx": "10", "cy": "10", "rx": "6", "ry": "2", "rotation": "90"}
    found = annotations.SYNTAXES["cvat"].region(["ellipse", ["20", "40"], turned], (20, 40))
    assert found is not None and found.box == pytest.approx((8, 12, 4, 16)) and found.size == (20, 40)
    circle, ellipse = {"name": "circle", "r": 4}, {"name": "ellipse", "rx": 6, "ry": 2, "theta": np.pi / 2}
    for shape, box in ((circle, (6, 14, 6, 14)), (ellipse, (8, 12, 4, 16))):
        found = annotations.SYNTAXES["via"].region([["kind"], shape | {"cx": 10, "cy": 10}], (20, 40))
        assert found is not None and found.box == pytest.approx(box)


def test_file_that_cannot_be_read_is_an_error_that_names_it(tmp_path: pathlib.Path) -> None:
    for name, path, content, detail in [
        (
            "wider_face",
            "wider_face_split/wider_face_train_bbx_gt.txt",
            "a.jpg\nx\n",
            "line 2 is 'x', expected the number",
        ),
        ("wider_face", "wider_face_split/wider_face_train_bbx_gt.txt", "a.jpg\n2\n" + "1 " * 10, "expected 10 numbers"),
        ("createml", "train/_annotations.createml.json", '[{"image": "0.jpg"', "is not JSON"),
        ("createml", "train/_annotations.createml.json", "[" * 2000, "nested too deep"),
        ("open_images", "oidv6-train-annotations-bbox.csv", "ImageID,XMin\n", "has no column labelname"),
        (
            "open_images",
            "oidv6-train-annotations-bbox.csv",
            'ImageID,LabelName,XMin\n"',
            "has no column",
        ),
        ("cvat", "annotations.xml", "<annotations><!DOCTYPE", "is not XML"),
        ("cvat", "annotations.xml", "<!DOCTYPE a><annotations/>", "has a document type"),
        ("cvat", "annotations.xml", '<annotations><track id="0"/></annotations>', "tracks of a video"),
        ("mot", "train/MOT17-02/gt/gt.txt", "x,1,1,1,1,1,1,1,1\n", "begins with 'x', expected the number of a frame"),
        (
            "via-csv",
            "train/via_export_csv.csv",
            "filename,region_shape_attributes,region_attributes\na,{,\n",
            "not JSON",
        ),
    ]:
        root = case_tables.new_folder(tmp_path)
        SETS[name].write(root)
        (root / path).write_text(content)
        folder = str(pathlib.Path(path).parent)
        wanted = options(SETS[name].syntax, files={"train": (path,)}, images={"train": (folder,)})
        with error_texts.raises("annotations-other-syntax") as caught:
            wanted.open(base_format.Request(str(root)))
        assert detail in str(caught.value)


def test_options_that_contradict_are_errors(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="kitti has boxes alone"):
        options("kitti", masks=True)
    with pytest.raises(ValueError, match="name the same splits in both, with a folder for each file"):
        options("vott", files={"train": ("a.csv",)})
    with pytest.raises(ValueError, match="files is for files of many images, and kitti has none"):
        options("kitti", files={"train": ("a.txt",)})
    with pytest.raises(ValueError, match="image_folder is for files of one image each, and cvat has none"):
        options("cvat", image_folder="images")
    request = base_format.Request(str(tmp_path))
    with error_texts.raises("annotations-no-syntax"):
        options(None).open(request)
    for syntax in ("kitti", "vott"):
        with error_texts.raises("annotations-not-found"):
            options(syntax).open(request)
    put(tmp_path / "a.csv", "image,xmin,ymin,xmax,ymax\n0.jpg,,,,\n")
    detection_sets.write_image(tmp_path / "0.jpg", 0)
    with error_texts.raises("annotations-no-object"):
        options("vott").open(request)
    with error_texts.raises("annotations-unreadable"):
        options("vott", files={"train": ("b.csv",)}, images={"train": (".",)}).open(request)


def test_class_names_are_codes_with_a_name(tmp_path: pathlib.Path) -> None:
    SETS["open_images"].write(tmp_path)
    put(tmp_path / "names.csv", "/m/01yrx,Cat\n/m/0bt9lr\n")
    with error_texts.raises("annotations-bad-class-name"):
        options("open_images", class_names="names.csv").open(base_format.Request(str(tmp_path)))
    put(tmp_path / "names.csv", "/m/01yrx,Cat\n")
    source, _, _, _ = listed(tmp_path, options("open_images", class_names="names.csv"))
    assert source.facts().annotations.classes.names == ("/m/0898b", "/m/0bt9lr", "Cat")


@pytest.mark.parametrize("path", ["annotations/class-descriptions.csv", "metadata/classes.csv"])
def test_names_of_codes_are_found_beside_the_boxes(tmp_path: pathlib.Path, path: str) -> None:
    SETS["open_images"].write(tmp_path)
    (tmp_path / path).parent.mkdir()
    (tmp_path / "class-descriptions-boxable.csv").rename(tmp_path / path)
    (tmp_path / "annotations").mkdir(exist_ok=True)
    boxes = "oidv6-train-annotations-bbox.csv"
    (tmp_path / boxes).rename(tmp_path / "annotations" / boxes)
    (found,) = (each for each in recognize_folder.recognize(str(tmp_path)).candidates if each.preset == "annotations")
    assert found.settings["source.annotations.class_names"] == path


def test_name_without_extension_that_two_images_have_is_a_reject(tmp_path: pathlib.Path) -> None:
    SETS["open_images"].write(tmp_path)
    detection_sets.write_image(tmp_path / "train" / f"{1:016x}.png", 1)
    _, refs, rejects, _ = listed(tmp_path, options("open_images"))
    assert [each.reason for each in rejects] == [elements.Reason.BAD_ROW] and "add the extension" in rejects[0].detail
    assert len(refs) == 5


def test_image_without_a_file_is_skipped_kept_or_rejected(tmp_path: pathlib.Path) -> None:
    SETS["supervisely"].write(tmp_path)
    (tmp_path / "ds0/ann/a1.jpg.json").unlink()
    for wanted, numbers in (("skip", (7, 0)), ("keep", (8, 0)), ("reject", (7, 1))):
        _, refs, rejects, _ = listed(tmp_path, options("supervisely", without_annotations=wanted))
        assert (len(refs), len(rejects)) == numbers
    found = recognize_folder.recognize(str(tmp_path))
    assert "7 of 8 images have one" in found.candidates[0].doubts[0]


def test_files_and_folders_may_be_named(tmp_path: pathlib.Path) -> None:
    truth = SETS["mot"].write(tmp_path)
    files, images = (
        ("train/MOT17-02/gt/gt.txt", "train/MOT17-04/gt/gt.txt"),
        ("train/MOT17-02/img1", "train/MOT17-04/img1"),
    )
    _, refs, _, _ = listed(tmp_path, options("mot", files={"a": files}, images={"a": images}))
    assert ({ref.key for ref in refs}, {ref.split for ref in refs}) == ({*truth}, {"a"})
    SETS["kitti"].write(tmp_path / "kitti")
    given = {"images": {"val": ("training/image_2",)}, "image_folder": "image_2", "annotation_folder": "label_2"}
    _, refs, _, _ = listed(tmp_path / "kitti", options("kitti", **given))
    assert (len(refs), {ref.split for ref in refs}) == (8, {"val"})


def test_images_elsewhere_are_named_in_the_plan(tmp_path: pathlib.Path) -> None:
    SETS["label_studio"].write(tmp_path)
    (tmp_path / "images").rename(tmp_path.parent / "elsewhere")
    found = recognize_folder.recognize(str(tmp_path))
    assert any("project-1.json is of Label Studio, and the images that it names" in each for each in found.remarks)


@hypothesis.given(
    hypothesis.extra.numpy.arrays(bool, st.tuples(st.integers(1, 9), st.integers(1, 9))),
    *[st.integers(0, 3)] * 4,
)
def test_mask_of_cvat_is_drawn_where_it_is(inside: np.ndarray, left: int, right: int, top: int, bottom: int) -> None:
    counts = [len([*same]) for _, same in itertools.groupby([False, *inside.ravel().tolist()])]  # of pixels outside
    counts[0] -= 1
    height, width = inside.shape
    fields = {"left": f"{left}", "top": f"{top}", "width": f"{width}", "height": f"{height}"}
    fields["rle"] = ", ".join(map(str, counts))
    whole = np.pad(inside, ((top, bottom), (left, right)))
    if not inside.any():
        with pytest.raises(ValueError, match="no pixel of the object"):
            SYNTAXES["cvat"].region(["mask", [None, None], fields], whole.shape)
        return
    region = SYNTAXES["cvat"].region(["mask", [f"{side}" for side in whole.shape], fields], whole.shape)
    png = object_masks.render(object_masks.pack(region.outline, *whole.shape), whole.shape)
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(png))), whole)
    down, across = np.nonzero(whole)
    assert region.box == (across.min(), across.max() + 1, down.min(), down.max() + 1)
    assert region.size == whole.shape


@pytest.mark.parametrize(
    ("changed", "text"),
    [({"rle": "1, x"}, "its rle is '1, x'"), ({"rle": "1, 2"}, "its rle has 3 pixels"), ({"left": "9"}, "at left 9")],
)
def test_broken_mask_of_cvat_is_named(changed: dict[str, str], text: str) -> None:
    fields = {"left": "0", "top": "0", "width": "2", "height": "2", "rle": "1, 3"} | changed
    with pytest.raises(ValueError, match=text):
        SYNTAXES["cvat"].region(["mask", [None, None], fields], (4, 4))


def test_tracks_of_a_video_are_named_in_the_plan(tmp_path: pathlib.Path) -> None:
    detection_sets.write_image(tmp_path / "images/frame_000001.png", 1)
    put(tmp_path / "annotations.xml", '<annotations>\n<track id="0" label="cat">\n</track>\n</annotations>\n')
    expected = "annotations.xml is of CVAT, and is not read: it holds tracks of a video: export it as CVAT for images"
    assert expected in recognize_folder.recognize(str(tmp_path)).remarks


def test_plan_notes_objects_of_other_shapes_in_files_of_one_image(tmp_path: pathlib.Path) -> None:
    SETS["supervisely"].write(tmp_path)
    found = recognize_folder.recognize(str(tmp_path)).sure
    assert found is not None
    assert found.notes[:2] == (
        "5 objects in 6 files that were looked at, such as points, lines or masks, are not stored",
        "outlines of objects are not stored unless source.annotations.masks=true",
    )


def test_two_syntaxes_of_the_same_images_are_a_question(tmp_path: pathlib.Path) -> None:
    SETS["cvat"].write(tmp_path)
    label_studio = [
        {
            "data": {"image": f"{n}.jpg"},
            "annotations": [
                {
                    "result": [
                        {
                            "type": "rectanglelabels",
                            "original_width": 40,
                            "original_height": 20,
                            "value": {"x": 1, "y": 1, "width": 5, "height": 5, "rectanglelabels": ["a"]},
                        }
                    ]
                }
            ],
        }
        for n in annotation_sets.NUMBERS
    ]
    put(tmp_path / "tasks.json", json.dumps(label_studio))
    found = recognize_folder.recognize(str(tmp_path))
    assert found.sure is None and "there are also files of CVAT" in " ".join(found.candidates[0].doubts)


def test_gives_what_the_syntax_has() -> None:
    def features(syntax: Any, **more: Any) -> set[str]:
        settings = [f"source.annotations.syntax={syntax}", *(f"source.annotations.{k}={v}" for k, v in more.items())]
        config = config_lib.load_config("annotations", settings)
        return {each.key for each in config.resolve_features() if each.key.startswith("image/object/")}

    usual = features("kitti")
    assert len(usual) == 6
    assert features("dota") - usual == {"image/object/difficult", "image/object/corners"}
    assert features("open_images") - usual == {"image/object/is_crowd"}
    assert features("run_lengths") - usual == features("cvat", masks="true") - usual == {"image/object/mask"}
    assert dataclasses.replace(options("mot"), masks=False).gives().splits


def test_sizes_are_those_of_the_picture_that_boxes_refer_to() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    turned = image_sets.make_image(1, size=(40, 20), exif=exif)
    from imagebeam.transforms.images import prepare

    assert prepare.ImagePolicy(annotations="stored").find_size(turned) == (20, 40)
    assert prepare.ImagePolicy(annotations="upright").find_size(turned) == (40, 20)
    assert prepare.ImagePolicy().find_size(image_sets.make_image(1, "GIF", size=(40, 20))) == (20, 40)
    for data in (b"", b"<html>"):
        with pytest.raises(checked_image.BadImageError):
            prepare.ImagePolicy().find_size(data)


@ALL
def test_damaged_files_are_bad_images_or_errors_with_a_text(tmp_path: pathlib.Path, name: str) -> None:
    """Whatever the bytes of a file are, its rows and regions are read, or the fault is a ValueError."""
    SETS[name].write(tmp_path)
    syntax = annotations.SYNTAXES[SETS[name].syntax]
    files = (path.read_bytes() for path in tmp_path.rglob("*") if path.name.endswith(syntax.SUFFIXES))
    whole = max(files, key=len)
    rng = random.Random(name)
    for _ in range(200):
        damaged = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            place = rng.randrange(len(damaged))
            damaged[place : place + rng.randrange(3)] = rng.choice(
                (b"", b"\xff", b"9" * 400, b"null", b"[", b'"', b"\n")
            )
        with contextlib.suppress(ValueError):
            for row in syntax.rows(io.BytesIO(damaged)):
                json.dumps(row)
                with contextlib.suppress(ValueError):
                    syntax.region(row.fields, (20, 40))


def test_run_lengths_may_be_longer_than_a_usual_cell() -> None:
    runs = " ".join(f"{start} 1" for start in range(1, 60_001, 2))
    file = io.BytesIO(f"ImageId,EncodedPixels\na.png,{runs}\n".encode())
    (row,) = annotations.SYNTAXES["run_lengths"].rows(file)
    found = annotations.SYNTAXES["run_lengths"].region(row.fields, (300, 200))
    assert len(row.fields) > 1 << 17 and found is not None and found.box == (0, 200, 0, 299)
