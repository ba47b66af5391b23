from __future__ import annotations

import pathlib
from typing import Any

import pytest

from imagebeam import errors
from imagebeam.pipelines import open_source
from imagebeam.pipelines.config import model as config_lib
from imagebeam.pipelines.config import object_sections
from imagebeam.pipelines.inputs import find_yolo
from imagebeam.transforms.sources import annotated_files

NAMES = "names: [cat, dog]\n"


def find(root: pathlib.Path, **wanted: Any) -> find_yolo.YoloSet:
    return find_yolo.find(str(root), object_sections.YoloConfig.model_validate(wanted))


def folders_of(found: find_yolo.YoloSet) -> list[tuple[str, str, bool]]:
    return [tuple(part) for part in found.parts]


def make_folders(root: pathlib.Path, *folders: str) -> None:
    for folder in folders:
        (root / folder).mkdir(parents=True, exist_ok=True)


@pytest.mark.parametrize(
    ("folders", "text", "expected"),
    [
        pytest.param(
            ["images/train", "images/val"],
            "train: images/train\nval: images/val\n",
            [("train", "images/train"), ("val", "images/val")],
            id="ultralytics",
        ),
        pytest.param(
            ["images/train", "images/val"],
            "path: ../datasets/coco8\ntrain: images/train\nval: images/val\ntest:\n",
            [("train", "images/train"), ("val", "images/val")],
            id="path-of-another-machine",
        ),
        pytest.param(
            ["coco8/images/train"],
            "path: coco8\ntrain: images/train\n",
            [("train", "coco8/images/train")],
            id="path-below",
        ),
        pytest.param(
            ["train/images", "valid/images"],
            "train: ../train/images\nval: ../valid/images\n",
            [("train", "train/images"), ("val", "valid/images")],
            id="roboflow",
        ),
        pytest.param(
            ["a/images", "b/images"],
            "train: [a/images, b/images]\n",
            [("train", "a/images"), ("train", "b/images")],
            id="list-of-folders",
        ),
        pytest.param(["images"], "train: .\n", [("train", "")], id="root"),
    ],
)
def test_data_yaml_names_folders(
    tmp_path: pathlib.Path, folders: list[str], text: str, expected: list[tuple[str, str]]
) -> None:
    make_folders(tmp_path, *folders)
    (tmp_path / "data.yaml").write_text(text + NAMES)
    for uri in (tmp_path, tmp_path / "data.yaml"):
        found = find(uri)
        assert (found.root, folders_of(found)) == (str(tmp_path), [(*each, False) for each in expected])
        assert found.classes.names == ("cat", "dog")


def test_data_yaml_names_lists_and_absolute_paths(tmp_path: pathlib.Path) -> None:
    make_folders(tmp_path, "images/val")
    (tmp_path / "train.txt").write_text("")
    (tmp_path / "coco.yml").write_text(f"train: train.txt\nval: {tmp_path}/images/val\n{NAMES}")
    (tmp_path / "other.yaml").write_text("lr: 0.1")  # without names: not of the data set
    assert folders_of(find(tmp_path)) == [("train", "train.txt", True), ("val", "images/val", False)]


@pytest.mark.parametrize(
    ("folders", "expected"),
    [
        (["images/train", "images/val", "labels/train"], [("train", "images/train"), ("val", "images/val")]),
        (["images", "labels"], [("train", "images")]),
        (["train/images", "test/images"], [("train", "train/images"), ("test", "test/images")]),
        (["train", "valid"], [("train", "train"), ("valid", "valid")]),
        ([], [("train", "")]),
    ],
)
def test_folders_show_the_splits_without_a_yaml(
    tmp_path: pathlib.Path, folders: list[str], expected: list[tuple[str, str]]
) -> None:
    make_folders(tmp_path, *folders)
    (tmp_path / "classes.txt").write_text("cat\ndog\n\n")
    found = find(tmp_path)
    assert [each[:2] for each in folders_of(found)] == expected
    assert found.classes.names == ("cat", "dog")


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("names: {0: cat, 1: dog}", (("cat", "dog"), None)),
        ("names: {'1': dog, 0: cat}", (("cat", "dog"), None)),
        ("names: {3: cat, 7: dog}", (("cat", "dog"), (3, 7))),
        ("names: [0, 1, yes, no]", (("0", "1", "yes", "no"), None)),
        ("names:\n- cat\nnc: 1", (("cat",), None)),
    ],
)
def test_names_are_a_list_or_a_mapping(tmp_path: pathlib.Path, names: str, expected: tuple[Any, ...]) -> None:
    make_folders(tmp_path, "images")
    (tmp_path / "data.yaml").write_text(f"train: images\n{names}\n")
    classes = find(tmp_path).classes
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


@pytest.mark.parametrize(
    ("text", "error"),
    [
        pytest.param(
            f"train: images\nval: nowhere\n{NAMES}",
            "val is 'nowhere', and below .* there is no 'nowhere'",
            id="no-folder",
        ),
        pytest.param(
            f"train: /content/x/images\n{NAMES}",
            "there is no such path: correct it, or name the folders",
            id="absolute",
        ),
        pytest.param(f"train: 3\n{NAMES}", "train is 3; expected a path", id="number"),
        pytest.param(NAMES, "names no images, as train, val and test", id="no-images"),
        pytest.param(
            "train: images\n",
            "has no names, so the classes have no names; list them in source.yolo.classes",
            id="no-names",
        ),
        pytest.param("train: images\nnames: [cat]\nnc: 2", "has nc: 2 and 1 names", id="nc"),
        pytest.param("train: images\nnames: [cat, cat]", "names 'cat' twice", id="twice"),
        pytest.param("train: images\nnames: [cat, '']", "the name of class 1 is empty", id="empty-name"),
        pytest.param("train: images\nnames: {a: cat}", "names has the key 'a'", id="key"),
        pytest.param("train: images\nnames: [[cat]]", "the name of class 0 is", id="nested"),
        pytest.param("train: images\nnames: cat", "names is 'cat'; expected a list", id="text"),
        pytest.param(f"train: images\n{NAMES}kpt_shape: 3", "kpt_shape is 3", id="keypoints"),
        pytest.param("- cat", "holds a list; expected a mapping", id="list"),
        pytest.param("a: [", "is not YAML", id="not-yaml"),
        pytest.param("[" * 1500, "is not YAML", id="deep"),
    ],
)
def test_wrong_data_yaml_is_an_error(tmp_path: pathlib.Path, text: str, error: str) -> None:
    make_folders(tmp_path, "images")
    (tmp_path / "data.yaml").write_text(text)
    with pytest.raises(errors.ConfigError, match=error):
        find(tmp_path)


def test_wrong_places_are_errors(tmp_path: pathlib.Path) -> None:
    make_folders(tmp_path, "images")
    with pytest.raises(errors.ConfigError, match=r"has no data.yaml and no classes.txt, so the classes have no names"):
        find(tmp_path)
    with pytest.raises(errors.ConfigError, match=r"names.txt' cannot be read .*; give a file below --input, or a list"):
        find(tmp_path, classes="names.txt")
    with pytest.raises(errors.ConfigError, match=r"source.yolo.images.train: '../x' is neither a folder nor a list"):
        find(tmp_path, classes=["cat"], images={"train": "../x"})
    with pytest.raises(errors.ConfigError, match="is not a folder; give the folder of the data set"):
        find(tmp_path / "nowhere")
    with pytest.raises(errors.ConfigError, match=r"x.yaml' cannot be read"):
        find(tmp_path, data="x.yaml")
    (tmp_path / "data.yaml").write_bytes(b"\xff")
    with pytest.raises(errors.ConfigError, match="is not UTF-8 text"):
        find(tmp_path)
    (tmp_path / "data.yaml").write_bytes(b"#" * ((1 << 20) + 1))
    with pytest.raises(errors.ConfigError, match="has more than 1 MiB"):
        find(tmp_path)
    (tmp_path / "data.yaml").unlink()
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(NAMES)
    with pytest.raises(errors.ConfigError, match=r"several YAML files with names of classes, a.yaml, b.yaml: name one"):
        find(tmp_path)
    assert find(tmp_path, data="a.yaml", images={"train": "images"}).classes.names == ("cat", "dog")


def test_two_splits_of_the_same_folder_are_refused_with_the_setting_for_one(tmp_path: pathlib.Path) -> None:
    make_folders(tmp_path, "images")
    (tmp_path / "data.yaml").write_text(f"{NAMES}train: images\nval: images\n")
    message = r"train and val are the same 'images', .* set source\.yolo\.images=\{train: images\}$"
    with pytest.raises(errors.ConfigError, match=message):
        find(tmp_path)
    assert folders_of(find(tmp_path, images={"train": "images"})) == [("train", "images", False)]


@pytest.mark.parametrize("file", ["data.yaml", "classes.txt", "train/labels/classes.txt"])
def test_folder_above_the_data_set_is_refused_with_the_right_one(tmp_path: pathlib.Path, file: str) -> None:
    make_folders(tmp_path, "a", "pets/images", "pets/train/labels")
    (tmp_path / "pets" / file).write_text("cat\n")
    message = rf"^--input '{tmp_path}' holds the data set in its folder 'pets': give '{tmp_path}/pets'$"
    with pytest.raises(errors.ConfigError, match=message):
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
    source = open_source.make_source(config_lib.parse_config(fields, "test"))
    assert isinstance(source, annotated_files.AnnotatedFilesSource)
    assert source.unread == ("test", "images/extra")
    assert {"image_outside_splits": 2} in [dict(found.passed_over) for found in source.list_all()]
