from __future__ import annotations

import dataclasses
import pathlib
import re

import pytest

from imagebeam.transforms import elements
from imagebeam.transforms.formats import yolo_labels
from imagebeam.transforms.images import image_objects
from imagebeam.transforms.sources import annotated_files, image_source, input_places
from tests import detection_sets, error_texts, spread_rows

RULE = annotated_files.PairRule(".txt", "images", "labels", "keep")
RULE_LIST = input_places.Part("train", "train.txt", is_list=True)
READER = yolo_labels.YoloReader(image_objects.ClassNames(("cat",)))


def source(root: pathlib.Path, *parts: input_places.Part, **options: object) -> annotated_files.AnnotatedFilesSource:
    options = {"rule": RULE, "reader": READER, "option": "source.yolo"} | options
    return annotated_files.AnnotatedFilesSource(str(root), parts, **options)  # type: ignore[arg-type]


def listed(found: annotated_files.AnnotatedFilesSource) -> tuple[list[elements.ImageRef], list[elements.Reject], dict]:
    refs, rejects, skipped, problems = spread_rows.gather(found.list_all())
    assert not problems
    return refs, rejects, skipped


def test_annotations_are_in_the_sibling_of_the_last_folder_of_images() -> None:
    for path, expected in [
        ("images/train/a.jpg", "labels/train/a.txt"),
        ("train/images/a.b.jpg", "train/labels/a.b.txt"),
        ("images/x/images/a.jpg", "images/x/labels/a.txt"),
        ("train/a.jpg", "train/a.txt"),
        ("a.jpg", "a.txt"),
        ("my_images/a", "my_images/a.txt"),
    ]:
        assert RULE.annotations_of(path) == expected


def test_image_without_annotations_is_kept_skipped_or_rejected(tmp_path: pathlib.Path) -> None:
    detection_sets.write_yolo(tmp_path, {"images": 3})
    label = tmp_path / "labels" / "2.txt"
    label.unlink()
    label.symlink_to(tmp_path / "not-fetched")
    for missing, num_refs, kind in [
        ("keep", 2, annotated_files.MISSING),
        ("skip", 1, annotated_files.WITHOUT),
        ("reject", 1, None),
    ]:
        rule = dataclasses.replace(RULE, missing=missing)
        refs, rejects, skipped = listed(source(tmp_path, input_places.Part("train", "images"), rule=rule))
        assert (len(refs), skipped) == (num_refs, {kind: 1} if kind else {})
        details = {reject.key: (reject.reason.value, reject.detail) for reject in rejects}
        assert details.pop("images/2.jpg")[1] == f"'{label}' is a broken link; repair or remove it"
        assert [reason for reason, _ in details.values()] == ["not_found"] * (missing == "reject")
        assert all("there are no annotations" in detail for _, detail in details.values())


def test_annotations_beside_the_images_are_counted_and_not_opened(tmp_path: pathlib.Path) -> None:
    detection_sets.write_yolo(tmp_path, {"": 3})
    (tmp_path / "classes.txt").write_text("cat")
    refs, _, skipped = listed(source(tmp_path, input_places.Part("train", "")))
    assert sorted(ref.key for ref in refs) == ["0.jpg", "1.jpg", "2.jpg"]
    assert skipped == {annotated_files.ANNOTATIONS: 3, annotated_files.MISSING: 1}


def test_list_gives_its_images_and_rejects_what_is_not_there(tmp_path: pathlib.Path) -> None:
    detection_sets.write_yolo(tmp_path, {"images/all": 3})
    lines = ["./images/all/1.jpg", "", "images/all/2.jpg", f"{tmp_path}/images/all/0.jpg", "images/all/9.jpg"]
    lines += ["../x.jpg", "/elsewhere/x.jpg", "images/all"]
    (tmp_path / "train.txt").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    refs, rejects, skipped = listed(source(tmp_path, RULE_LIST))
    assert [(ref.key, ref.position) for ref in refs] == [
        ("images/all/1.jpg", 0),
        ("images/all/2.jpg", 2),
        ("images/all/0.jpg", 3),
    ]
    assert all(ref.size > 0 and ref.version > 0 for ref in refs)
    assert {reject.reason.value: reject.detail.split(" of ")[0] for reject in rejects} == {
        "not_found": "line 5",
        "outside_root": "line 7",
        "unreadable": "line 8",
    }
    assert len(rejects) == 4
    assert skipped == {annotated_files.MISSING: 1}


def test_list_that_is_missing_or_has_a_line_too_long_for_a_path_is_a_problem(tmp_path: pathlib.Path) -> None:
    (listing,) = source(tmp_path, RULE_LIST).list_all()
    assert "train.txt' cannot be read to its end" in listing.problems[0]
    (tmp_path / "train.txt").write_text("1.jpg\n" + "x" * 200_000)
    found = spread_rows.gather(source(tmp_path, RULE_LIST).list_all())
    (problem,) = found.problems
    assert re.search("line 2 of .* has more than 64 KiB, so this is no list of images: write the path of one", problem)
    assert len(found.rejects) <= 1


def test_folder_without_any_annotation_is_an_error(tmp_path: pathlib.Path) -> None:
    detection_sets.write_yolo(tmp_path, {"images/train": 2})
    part = input_places.Part("train", "images/train")
    source(tmp_path, part).check()
    (tmp_path / "labels").rename(tmp_path / "label")
    with error_texts.raises("annotations-missing"):
        source(tmp_path, part).check()


def test_images_and_lists_at_a_remote_address(tmp_path: pathlib.Path) -> None:
    import fsspec

    detection_sets.write_yolo(tmp_path, {"images": 4})
    (tmp_path / "train.txt").write_text("images/1.jpg\nimages/9.jpg\n")
    remote = fsspec.filesystem("memory")
    remote.put(f"{tmp_path}/", "/annotated/", recursive=True)
    try:
        for part, num_refs in ((input_places.Part("train", "images"), 4), (RULE_LIST, 1)):
            found = annotated_files.AnnotatedFilesSource("memory://annotated", (part,), RULE, READER)
            refs, rejects, _ = listed(found)
            assert (len(refs), len(rejects)) == (num_refs, int(part.is_list))
            assert {ref.key: ref.mask and ref.mask.uri for ref in refs}["images/1.jpg"] == (
                "memory://annotated/labels/1.txt"
            )
            found.check()
    finally:
        remote.rm("/annotated", recursive=True)


@pytest.mark.parametrize("batch", [1, 2, 1000])
@pytest.mark.parametrize("is_list", [False, True], ids=["folder", "list"])
def test_annotations_of_two_images_by_their_names_are_a_problem(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, batch: int, is_list: bool
) -> None:
    names = ["a.jfif", "a.b.jpg", "a.jpg", "b.jpg", "c.jpg", "c.png", "d.png", "e.bmp", "e.jpg"]
    (tmp_path / "images").mkdir()
    (tmp_path / "labels").mkdir()
    for name in names:
        (tmp_path / "images" / name).write_bytes(b"image")
    for stem in ("a", "b", "d", "e"):  # both images of c are without objects
        (tmp_path / "labels" / f"{stem}.txt").write_text("0 0.5 0.5 1 1\n")
    (tmp_path / "train.txt").write_text("".join(f"images/{name}\n" for name in names))
    monkeypatch.setattr(image_source, "MAX_REFS", batch)
    found = source(tmp_path, RULE_LIST if is_list else input_places.Part("train", "images"))
    assert [problem for listing in found.list_all() for problem in listing.problems] == [
        "2 annotation files belong to several images by their names, the first is 'labels/a.txt' of 'images/a.jfif' "
        "and 'images/a.jpg': rename these images or files, or remove one of each"
    ]
    for name in ("a.jfif", "e.bmp"):
        (tmp_path / "images" / name).unlink()
        (tmp_path / "train.txt").write_text((tmp_path / "train.txt").read_text().replace(f"images/{name}\n", ""))
    refs, rejects, _ = listed(found)
    assert (len(refs), rejects) == (7, [])
