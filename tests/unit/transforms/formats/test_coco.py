from __future__ import annotations

import copy
import dataclasses
import json
import os
import pathlib
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies

from imagebeam.pipelines import job
from imagebeam.pipelines.config import model as config_lib
from imagebeam.transforms.elements import ImageRef, Reason
from imagebeam.transforms.formats import base_format, coco, coco_json
from imagebeam.transforms.sources import annotation_tables, table_rows
from imagebeam.transforms.sources.annotation_tables import AnnotatedSplit
from tests import case_tables, coco_sets, error_texts, spread_rows

Fields = dict[str, Any]


@pytest.fixture
def root(tmp_path: pathlib.Path) -> pathlib.Path:
    coco_sets.write(tmp_path / "in")
    return tmp_path / "in"


@pytest.fixture
def train(root: pathlib.Path) -> Fields:
    loaded: Fields = json.loads((root / "annotations" / "instances_train2017.json").read_text())
    return loaded


def make_source(root: pathlib.Path, splits: tuple[str, ...] = ("train",), **options: Any) -> coco.CocoSource:
    names = {"train": "train2017", "validation": "val2017"}
    parts = [
        AnnotatedSplit(split, f"{root}/annotations/instances_{names[split]}.json", options.pop("folder", names[split]))
        for split in splits
    ]
    rule = {name: options.pop(name) for name in ("masks", "rejects_outside", "crowd") if name in options}
    return coco.CocoSource(str(root), tuple(parts), objects=coco_json.ObjectRule(**rule), **options)


def list_all(source: coco.CocoSource) -> tuple[list[ImageRef], spread_rows.Listed]:
    """Returns all references, and everything that the source lists."""
    found = spread_rows.gather(source.list_all())
    return found.refs, found


def list_changed(root: pathlib.Path, train: Fields, **options: Any) -> tuple[list[ImageRef], spread_rows.Listed]:
    """Lists the data set with another annotation file."""
    coco_sets.save(root, "train", train)
    return list_all(make_source(root, **options))


def values(ref: ImageRef) -> Fields:
    return dict(zip((*coco.COLUMNS, coco.MASKS), ref.columns))


def test_every_image_has_the_objects_of_its_id_in_the_order_of_the_file(root: pathlib.Path, train: Fields) -> None:
    refs, rest = list_all(make_source(root))
    assert (rest.rejects, rest.skipped, rest.problems) == ([], {}, [])
    assert [ref.key for ref in refs] == [f"train2017/{image['file_name']}" for image in train["images"]]
    for position, (ref, image) in enumerate(zip(refs, train["images"])):
        path = root / "train2017" / image["file_name"]
        assert (ref.uri, ref.size, ref.version) == (str(path), path.stat().st_size, path.stat().st_mtime_ns)
        assert (ref.split, ref.position, ref.expected) == ("train", position, (30, 40))
        found, objects = values(ref), coco_sets.objects_of(train, image["id"])
        assert found["image/source_id"] == str(image["id"]).encode()
        assert found["image/object/bbox/xmin"] == pytest.approx([each["bbox"][0] / 40 for each in objects])
        assert found["image/object/bbox/ymin"] == pytest.approx([each["bbox"][1] / 30 for each in objects])
        assert found["image/object/bbox/xmax"] == pytest.approx([sum(each["bbox"][::2]) / 40 for each in objects])
        assert found["image/object/bbox/ymax"] == pytest.approx([sum(each["bbox"][1::2]) / 30 for each in objects])
        assert found["image/object/class/label"] == tuple(each["category_id"] for each in objects)
        names = tuple(coco_sets.CATEGORIES[each["category_id"]].encode() for each in objects)
        assert found["image/object/class/text"] == names
        assert found["image/object/area"] == pytest.approx([each["area"] for each in objects])
        assert found["image/object/is_crowd"] == tuple(each["iscrowd"] for each in objects)
        assert coco.MASKS not in found


@pytest.mark.parametrize("order", [["annotations", "categories", "images"], ["categories", "images", "annotations"]])
def test_order_of_the_lists_in_the_file_does_not_matter(root: pathlib.Path, train: Fields, order: list[str]) -> None:
    expected = list_all(make_source(root, masks=True))
    assert list_changed(root, {name: train[name] for name in order}, masks=True) == expected


def test_byte_order_mark_at_the_start_is_ignored(root: pathlib.Path) -> None:
    expected = list_all(make_source(root))
    path = root / "annotations" / "instances_train2017.json"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    source = make_source(root)
    source.check()
    assert list_all(source) == expected


def test_missing_value_that_is_an_error_is_a_problem(root: pathlib.Path) -> None:
    fields = table_rows.RowFields(columns=(table_rows.Column("weather", "bytes", missing="error"),))
    _, rest = list_all(make_source(root, fields=fields))
    assert "instances_train2017.json" in rest.problems[0]
    assert "column 'weather' is empty, and columns.weather.missing is error" in rest.problems[0]


# --- objects ---------------------------------------------------------------------------------------------------------


def test_box_outside_of_the_picture_is_clipped_at_its_edge(root: pathlib.Path, train: Fields) -> None:
    for bbox, edges in [
        ([-4, -3, 14, 9], (0, 10 / 40, 0, 6 / 30)),  # left-and-top
        ([30, 20, 20, 20], (30 / 40, 1, 20 / 30, 1)),  # right-and-bottom
        ([-10, -10, 100, 100], (0, 1, 0, 1)),  # all-round
        ([0, 0, 40, 30], (0, 1, 0, 1)),  # whole-picture
    ]:
        coco_sets.objects_of(train, 16)[0]["bbox"] = bbox
        refs, rest = list_changed(root, train)
        names = [f"image/object/bbox/{edge}" for edge in ("xmin", "xmax", "ymin", "ymax")]
        assert [values(refs[1])[name] for name in names] == [pytest.approx([edge]) for edge in edges]
        assert (rest.rejects, rest.skipped) == ([], {})


def test_box_that_cvat_has_turned_becomes_the_one_around_it(root: pathlib.Path, train: Fields) -> None:
    for degrees, edges in [(90, (15 / 40, 25 / 40, 5 / 30, 25 / 30)), (0.0, (10 / 40, 30 / 40, 10 / 30, 20 / 30))]:
        object_ = coco_sets.objects_of(train, 16)[0]
        object_ |= {"bbox": [10, 10, 20, 10], "attributes": {"occluded": False, "rotation": degrees}}
        refs, _ = list_changed(root, train)
        names = [f"image/object/bbox/{edge}" for edge in ("xmin", "xmax", "ymin", "ymax")]
        assert [values(refs[1])[name] for name in names] == [pytest.approx([edge]) for edge in edges]


def test_object_without_area_in_the_picture_is_dropped_and_counted(root: pathlib.Path, train: Fields) -> None:
    for change, kind in [
        ({"bbox": [40, 0, 5, 5]}, "object_outside_image"),  # right-of-it
        ({"bbox": [3, -9, 5, 9]}, "object_outside_image"),  # above-it
        ({"bbox": [3, 3, 0, 9]}, "object_without_area"),  # no-width
        ({"bbox": [3, 3, 9, 0.0]}, "object_without_area"),  # no-height
        ({"image_id": 12345}, "object_of_unknown_image"),  # unknown-image
        ({"image_id": None}, "object_of_unknown_image"),  # no-image
    ]:
        changed = copy.deepcopy(train)
        coco_sets.objects_of(changed, 23)[0].update(change)
        refs, rest = list_changed(root, changed, masks=True)
        assert (rest.rejects, rest.skipped, len(refs)) == ([], {kind: 1}, 12)
        assert {len(values(refs[2])[name]) for name in (*coco.COLUMNS[1:], coco.MASKS)} == {1}


def test_wrongly_annotated_image_is_rejected(root: pathlib.Path, train: Fields) -> None:
    for change, detail in [
        ({"bbox": None}, "bbox is None, expected [x, y, width, height]"),  # no-box
        ({"bbox": [1, 2, 3]}, "bbox is [1, 2, 3], expected [x, y, width, height]"),  # three-numbers
        ({"bbox": [1, 2, "3", 4]}, "bbox is [1, 2, '3', 4], expected"),  # text
        ({"bbox": [1, 2, True, 4]}, "bbox is [1, 2, True, 4], expected"),  # true
        ({"bbox": [1, 2, -3, 4]}, "bbox [1, 2, -3, 4] has a negative size"),  # negative
        ({"bbox": {"x": 1}}, "bbox is {'x': 1}, expected"),  # object
        ({"category_id": 2}, "category_id is 2, which is none of the file's categories"),  # category
        ({"category_id": "dog"}, "category_id is 'dog', which is none"),  # category-text
        ({"category_id": [1]}, "category_id is [1], which is none"),  # category-list
        ({"area": -1}, "area is -1, expected pixels"),  # negative-area
        ({"area": 1e39}, "area is 1e+39, expected pixels"),  # huge-area
        ({"area": "much"}, "area is 'much', expected pixels"),  # area-text
        ({"iscrowd": 2}, "iscrowd is 2, expected 0 or 1"),  # crowd
        ({"iscrowd": "0"}, "iscrowd is '0', expected 0 or 1"),  # crowd-text
        ({"segmentation": [[1, 2]]}, "segmentation holds a polygon of 2 numbers"),  # mask
    ]:
        changed = copy.deepcopy(train)
        wrong = coco_sets.objects_of(changed, 23)[1]
        wrong.update(change)
        refs, rest = list_changed(root, changed, masks=True)
        (reject,) = rest.rejects
        assert (reject.key, reject.reason) == ("train2017/000000000023.jpg", Reason.BAD_VALUE)
        start = f"image 2 of {root}/annotations/instances_train2017.json: annotation {wrong['id']}: "
        assert reject.detail.startswith(start + detail)
        assert (len(refs), rest.skipped, rest.problems) == (11, {}, [])


def test_wrong_segmentation_is_ignored_unless_masks_are_stored(root: pathlib.Path, train: Fields) -> None:
    for each in train["annotations"]:
        each["segmentation"] = "none"
    assert list_changed(root, train)[1].rejects == []


def test_missing_area_is_that_of_the_box_and_missing_crowd_is_zero(root: pathlib.Path, train: Fields) -> None:
    (only,) = coco_sets.objects_of(train, 16)
    del only["area"], only["iscrowd"]
    found = values(list_changed(root, train)[0][1])
    assert found["image/object/area"] == pytest.approx([only["bbox"][2] * only["bbox"][3]])
    assert found["image/object/is_crowd"] == (0,)


def test_boxes_outside_of_the_picture_are_rejected_except_for_rounding(root: pathlib.Path, train: Fields) -> None:
    coco_sets.objects_of(train, 16)[0]["bbox"] = [30, 20, 10.005, 10]
    beyond = coco_sets.objects_of(train, 23)[0]
    beyond["bbox"] = [30, 20, 10.5, 10]
    refs, rest = list_changed(root, train, rejects_outside=True)
    (reject,) = rest.rejects
    assert f"annotation {beyond['id']}: the box from 30 to 40.5 leaves the image, which has 40 px" in reject.detail
    assert values(refs[1])["image/object/bbox/xmax"] == (1.0,)


def test_crowds_are_left_out_on_request_and_counted(root: pathlib.Path, train: Fields) -> None:
    crowds = sum(each["iscrowd"] for each in train["annotations"])
    refs, rest = list_all(make_source(root, crowd=False))
    assert crowds > 0
    assert rest.skipped == {"crowd": crowds}
    assert {flag for ref in refs for flag in values(ref)["image/object/is_crowd"]} == {0}
    assert sum(len(values(ref)["image/object/area"]) for ref in refs) == len(train["annotations"]) - crowds


def test_images_without_objects_are_left_out_on_request_and_counted(root: pathlib.Path) -> None:
    refs, rest = list_all(make_source(root, without_objects=False))
    assert (len(refs), rest.skipped) == (9, {"without_objects": 3})


# --- images ----------------------------------------------------------------------------------------------------------


def test_image_that_cannot_be_used_is_rejected(root: pathlib.Path, train: Fields) -> None:
    (root / "train2017" / "folder.jpg").mkdir()
    (root / "train2017" / "link.jpg").symlink_to("nowhere")
    for change, reason, detail in [
        ({"file_name": None}, Reason.BAD_ROW, "file_name is None, expected a name"),  # no-name
        ({"file_name": 7}, Reason.BAD_ROW, "file_name is 7, expected a name"),  # number-as-name
        ({"id": None}, Reason.BAD_ROW, "id is None, expected an integer or a text"),  # no-id
        ({"id": 1.5}, Reason.BAD_ROW, "id is 1.5, expected an integer"),  # half-id
        ({"id": True}, Reason.BAD_ROW, "id is None, expected an integer"),  # true-id
        ({"width": 0}, Reason.BAD_VALUE, "height and width are (30, 0), expected pixels"),  # zero
        ({"height": -1}, Reason.BAD_VALUE, "height and width are (-1, 40)"),  # negative
        ({"height": "30"}, Reason.BAD_VALUE, "height and width are ('30', 40)"),  # text
        ({"file_name": "gone.jpg"}, Reason.NOT_FOUND, "there is no file"),  # no-file
        ({"file_name": "no/folder.jpg"}, Reason.NOT_FOUND, "there is no file"),  # no-folder
        ({"file_name": "../x.jpg"}, Reason.OUTSIDE_ROOT, "leaves the folder of images"),  # above
        ({"file_name": "/etc/passwd"}, Reason.OUTSIDE_ROOT, "leaves the folder"),  # absolute
        ({"file_name": "gs://b/x.jpg"}, Reason.OUTSIDE_ROOT, "leaves the folder"),  # elsewhere
        ({"file_name": "folder.jpg"}, Reason.UNREADABLE, "is not a regular file (directory)"),  # folder
        ({"file_name": "link.jpg"}, Reason.NOT_FOUND, "there is no file"),  # broken-link
    ]:
        changed = copy.deepcopy(train)
        changed["images"][0].update(change)
        refs, rest = list_changed(root, changed)
        (reject,) = rest.rejects
        assert (reject.reason, len(refs), rest.problems) == (reason, 11, [])
        assert reject.detail.startswith(f"image 0 of {root}/annotations/instances_train2017.json: {detail}") or (
            detail in reject.detail
        )


def test_entries_that_are_not_json_objects_are_rejected_or_counted(root: pathlib.Path, train: Fields) -> None:
    train["images"][0], train["annotations"][0] = "a.jpg", ["x"]
    _, rest = list_changed(root, train)
    assert [(each.key, each.reason) for each in rest.rejects] == [("train image 0", Reason.BAD_ROW)]
    assert rest.skipped["object_of_unknown_image"] == 1


def test_file_whose_objects_are_all_of_unknown_images_is_a_problem(root: pathlib.Path, train: Fields) -> None:
    train["annotations"] = [{**each, "image_id": f"{each['image_id']}.jpg"} for each in train["annotations"]]
    refs, rest = list_changed(root, train)
    assert not refs and "no annotation is of an image in its list" in rest.problems[0]


def test_images_with_the_same_id_are_both_rejected(root: pathlib.Path, train: Fields) -> None:
    train["images"][4]["id"] = 16
    _, rest = list_changed(root, train)
    names = "000000000016.jpg, 000000000037.jpg"
    assert [each.reason for each in rest.rejects] == [Reason.BAD_VALUE] * 2
    assert all(each.detail.endswith(f"two images have the id 16: {names}") for each in rest.rejects)


def test_ids_may_be_texts_and_whole_numbers_may_be_written_with_a_point(root: pathlib.Path, train: Fields) -> None:
    for each in train["annotations"]:
        each["image_id"] = f"id-{each['image_id']}" if each["image_id"] < 50 else float(each["image_id"])
        each["category_id"] = float(each["category_id"])
    for image in train["images"]:
        image["id"] = f"id-{image['id']}" if image["id"] < 50 else image["id"]
        image["width"] = float(image["width"])
    expected = [values(ref) for ref in list_all(make_source(root))[0]]
    refs, rest = list_changed(root, train)
    assert rest.rejects == []
    assert values(refs[1])["image/source_id"] == b"id-16"
    for found, before in zip(map(values, refs), expected):
        assert list(found.values())[1:] == list(before.values())[1:]


def test_images_that_no_annotation_names_are_counted_once_for_splits_that_share_a_folder(root: pathlib.Path) -> None:
    for name in os.listdir(root / "val2017"):
        os.rename(root / "val2017" / name, root / "train2017" / name)
    for name in ("stray.jpg", "notes.txt", ".hidden"):
        (root / "train2017" / name).touch()
    refs, rest = list_all(make_source(root, ("train",), folder="train2017"))
    assert rest.skipped == {"not_in_annotations": 6, "hidden": 1}
    parts = [
        AnnotatedSplit(split, f"{root}/annotations/instances_{name}.json", "train2017")
        for split, name in (("train", "train2017"), ("validation", "val2017"))
    ]
    refs, rest = list_all(coco.CocoSource(str(root), tuple(parts)))
    assert (len(refs), rest.skipped, rest.rejects) == (17, {"not_in_annotations": 1, "hidden": 1}, [])


# --- files that are no use -------------------------------------------------------------------------------------------


def test_unusable_annotation_file_is_a_problem_that_names_it(root: pathlib.Path, train: Fields) -> None:
    for change, problem in [
        (lambda text: text[:-40], "is not JSON, in the last .* before byte .*: parse error"),  # cut
        (lambda text: text + "x", "is not JSON, .*trailing garbage"),  # garbage
        (lambda text: text.replace('"iscrowd": 0', '"iscrowd": NaN'), "is not JSON, .*invalid"),  # nan
        (lambda text: text.replace('"images"', '"pictures"'), "names no image: .* 'images'"),  # images
        (lambda text: '{"images": {"id": 1}}', "names no image"),  # images-no-list
        (lambda text: text.replace('"annotations"', '"objects"'), "has no list 'annotations'"),
        (lambda text: text.replace('"categories"', '"classes"'), "no list 'categories', which names"),
        (lambda text: text.replace('"id": 18', '"id": 1'), "two categories have the id 1;"),  # twice
        (lambda text: text.replace('"name": "dog"', '"name": 3'), "the category .* needs an integer id"),
    ]:
        path = coco_sets.save(root, "train", train)
        path.write_text(change(path.read_text()))
        _, rest = list_all(make_source(root))
        assert len(rest.problems) == 1
        assert rest.problems[0].startswith(repr(str(path)))
        with pytest.raises(AssertionError, match=problem):
            raise AssertionError(rest.problems[0])


def test_annotation_file_deleted_after_the_check_is_a_problem(root: pathlib.Path) -> None:
    source = make_source(root)
    source.check()
    (root / "annotations" / "instances_train2017.json").unlink()
    _, rest = list_all(source)
    assert "the images or annotations of train cannot be read: [Errno 2]" in rest.problems[0]


def test_check_raises_for_a_file_of_something_else(root: pathlib.Path) -> None:
    path = root / "annotations" / "instances_train2017.json"
    for content, code in [
        (None, "annotations-unreadable"),  # missing
        (b"", "coco-not-json"),  # empty
        (b"[1]", "coco-not-json"),  # list
        (b"\x1f\x8b\x08", "coco-not-json"),  # gzip
    ]:
        path.unlink() if content is None else path.write_bytes(content)
        with error_texts.raises(code):
            make_source(root).check()


@pytest.mark.parametrize("folder", ["nowhere", "annotations/instances_train2017.json"])
def test_check_raises_without_a_folder_of_images(root: pathlib.Path, folder: str) -> None:
    with error_texts.raises("images-not-folder"):
        make_source(root, folder=folder).check()


TEXT = json.dumps(coco_sets.annotations(6, 9)).encode()
PIECES = (
    *(b"NaN", b"1e999", b"9" * 40, b"null", b"[", b"{", b'"', b"-1", b"true"),
    *(b"\\u0000", b"\\ud800", b"\xff", b"[[]]"),
)


@hypothesis.settings(max_examples=200, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(
    edits=strategies.lists(
        strategies.tuples(
            strategies.integers(0, len(TEXT) - 1), strategies.integers(0, 12), strategies.sampled_from(PIECES)
        ),
        min_size=1,
        max_size=4,
    ),
    masks=strategies.booleans(),
)
def test_broken_file_gives_rejects_or_a_problem_and_never_fails(
    tmp_path_factory: pytest.TempPathFactory, edits: list[tuple[int, int, bytes]], masks: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "broken.json"
    text = TEXT
    for start, length, piece in edits:
        text = text[:start] + piece + text[start + length :]
    path.write_bytes(text)
    source = coco.CocoSource(
        str(path.parent), (AnnotatedSplit("train", str(path), ""),), coco_json.ObjectRule(masks=masks)
    )
    refs, rest = list_all(source)
    assert rest.problems or len(refs) + len(rest.rejects) > 0
    for ref in refs:
        assert all(0 <= edge <= 1 for edges in ref.columns[1:5] for edge in edges)


# --- keypoints and captions ------------------------------------------------------------------------------------------


def test_bad_keypoints_are_an_error() -> None:
    for keypoints, detail in [
        ([1, 2, 2], r"keypoints are \[1, 2, 2\], expected 9 numbers"),  # few
        ([1, 2, 2] * 4, "expected 9 numbers: x, y and visibility of each of 3"),  # many
        ("1 2 2", "keypoints are '1 2 2'"),  # text
        ([float("nan")] * 9, "keypoints are"),  # nan
        ([1, 2, 3] * 3, "visibility 3, expected 0, 1 or 2"),  # visibility
    ]:
        with pytest.raises(ValueError, match=detail):
            coco_json._keypoints(keypoints, 30, 40, 3)


def test_bad_and_foreign_captions(root: pathlib.Path, train: Fields) -> None:
    spoken = coco_sets.captions(train)
    first, *_, last = spoken["images"]
    spoken["annotations"] = [
        {"image_id": first["id"], "id": 1, "caption": 5},
        {"image_id": last["id"], "id": 2, "caption": " \n"},
        {"image_id": 12345, "id": 3, "caption": "x"},
        {"image_id": last["id"], "id": 4, "caption": " A dog. "},
    ]
    path = root / "captions.json"
    path.write_text(json.dumps(spoken))
    source = make_source(root, has_objects=False, captions=(("train", str(path)),))
    source.check()
    refs, found = list_all(source)
    assert [reject.detail for reject in found.rejects if "caption is 5, expected a text" in reject.detail]
    assert {ref.columns[0]: ref.columns[1] for ref in refs}[str(last["id"]).encode()] == (b"A dog.",)
    assert found.skipped["caption_of_unknown_image"] == 1
    with error_texts.raises("annotations-unreadable"):
        make_source(root, has_objects=False, captions=(("train", "/none.json"),)).check()


def test_keypoints_without_common_names_are_refused(tmp_path: pathlib.Path) -> None:
    for categories, message in [
        ([{"id": 1, "name": "a"}], "has no keypoints: name the file"),  # none
        ([{"id": 1, "keypoints": ["a"]}, {"id": 2, "keypoints": ["b", "c"]}], "with 1 and with 2 keypoints"),
        ([{"id": 1, "keypoints": "nose"}], "has the keypoints 'nose', expected a list"),  # text
    ]:
        folder = case_tables.new_folder(tmp_path)
        (folder / "a.json").write_text(json.dumps({"categories": categories}))
        with (
            coco_json.open_file(str(folder / "a.json")) as file,
            pytest.raises(annotation_tables.AnnotationFileError, match=message),
        ):
            coco_json.read_keypoint_names(file)


SEGMENT = {"id": 1, "category_id": 1, "bbox": [0, 0, 1, 1]}


def test_bad_panoptic_annotations_are_rejects(root: pathlib.Path, train: Fields) -> None:
    for annotation, detail in [
        ({"segments_info": []}, "it has no file_name or no list segments_info"),  # name
        ({"file_name": "a.png"}, "it has no file_name or no list segments_info"),  # segments
        ({"file_name": "a.png", "segments_info": [5]}, "a segment has the id None"),  # segment
        ({"file_name": "a.png", "segments_info": [{"id": 0, "category_id": 1}]}, "expected ids from 1 to"),
        ({"file_name": "a.png", "segments_info": [SEGMENT] * 2}, "expected ids from 1 to 16,777,215, each once"),
        ({"file_name": "a.png", "segments_info": [{**SEGMENT, "category_id": 5}]}, "category_id is 5, which is none"),
        ({"file_name": "../a.png", "segments_info": []}, "is not a name in a folder"),  # path
        ({"file_name": "none.png", "segments_info": []}, "there is no mask"),  # missing
        (None, "it has no panoptic annotation"),  # none
    ]:
        image = train["images"][0]
        found = [] if annotation is None else [{**annotation, "image_id": image["id"]}]
        changed = {**train, "images": [image], "annotations": found}
        (root / "annotations/instances_train2017.json").write_text(json.dumps(changed))
        _, listing = list_all(make_source(root, panoptic=(("train", str(root)),)))
        (reject,) = listing.rejects
        assert detail in reject.detail


def test_lvis_is_read_by_the_addresses_of_its_images(root: pathlib.Path, train: Fields) -> None:
    for number, image in enumerate(train["images"]):
        folder = "val2017" if number == 0 else "train2017"
        image["coco_url"] = f"http://images.cocodataset.org/{folder}/{image.pop('file_name')}"
        image |= {"neg_category_ids": [1, 90], "not_exhaustive_category_ids": []}
    for each in train["annotations"]:
        del each["iscrowd"]
    (root / "lvis_v1_train.json").write_text(json.dumps(train))
    (root / "lvis_v1_val.json").write_text(json.dumps({**train, "images": [], "annotations": []}))
    config = config_lib.load_config("lvis", [f"source.uri={root}", f"output.uri={root}-out"])
    source = job.make_source(config)
    assert isinstance(source, coco.CocoSource)
    refs, found = list_all(dataclasses.replace(source, splits=source.splits[:1]))
    assert {ref.key.split("/")[0] for ref in refs} == {"train2017"} and len(refs) == len(train["images"]) - 1
    assert all(ref.columns[-2:] == ((1, 90), ()) for ref in refs)
    assert [reject.detail.split("; ")[0].split(": ")[1] for reject in found.rejects] == [
        f"there is no file '{root}/val2017/{train['images'][0]['coco_url'].split('/')[-1]}'"
    ]


def test_keypoints_that_splits_do_not_share_are_an_error(root: pathlib.Path, train: Fields) -> None:
    wanted = coco.Coco(keypoints=True)
    with error_texts.raises("coco-no-keypoints"):
        wanted.open(base_format.Request(str(root), f"{root}-out"))
    for split, names in (("train", ["nose"]), ("validation", ["nose", "tail"])):
        coco_sets.save(root, split, {**train, "categories": [{**train["categories"][0], "keypoints": names}]})
    with error_texts.raises("coco-keypoints-differ"):
        wanted.open(base_format.Request(str(root), f"{root}-out"))
