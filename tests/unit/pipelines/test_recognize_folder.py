"""Which preset reads a folder: by its sign, and by listing the folder with that preset."""

from __future__ import annotations

import pathlib
import random

import pytest

from imagebeam import errors, storage
from imagebeam.pipelines import config as config_lib
from imagebeam.pipelines import open_source, recognize_folder
from imagebeam.pipelines.recognize_survey import Bounds, Folder, Survey, split_meant
from imagebeam.transforms.sources import image_source
from tests import command_line, folder_shapes
from tests.folder_shapes import images, table


def load(found: recognize_folder.Recognition) -> config_lib.Config:
    """The config of the candidate that fits beyond doubt."""
    assert found.sure is not None, found.candidates
    overrides = [*recognize_folder.overrides_of(found.sure), f"source.uri={found.address(found.sure)}"]
    return config_lib.load_config(found.sure.preset, [*overrides, f"output.uri={found.given}-out"])


@pytest.mark.parametrize("shape", folder_shapes.SHAPES)
def test_folder_is_recognized_and_its_preset_lists_all_images(tmp_path: pathlib.Path, shape: str) -> None:
    preset, number, tree = folder_shapes.SHAPES[shape]
    found = recognize_folder.recognize(str(folder_shapes.write(tmp_path / "in", tree)))
    config = load(found)
    assert found.sure is not None
    assert found.sure.preset == preset
    listings = list(image_source.list_whole(open_source.make_source(config)))
    rules = open_source.listing_rules_of(config)
    listed = [rules.apply(each) for each in listings]
    assert sum(each.num_refs for each in listed) == number
    assert [reject for each in listed for reject in each.rejects] == []


@pytest.mark.parametrize(
    ("shape", "evidence", "settings"),
    [
        ("classes", "3 folders of images (cat, dog, owl)", []),
        ("classes-in-splits", "train and test hold 2 folders of images each (cat, dog)", []),
        (
            "splits-under-other-names",
            "Training and Testing hold 2 folders of images each (cat, dog)",
            ["split.rename={Training: train, Testing: test}"],
        ),
        ("yolo", "images is beside labels, which holds .txt files (4 in labels/train)", []),
        (
            "masks",
            "4 of 4 images in images have a .png file of the same name in masks",
            [
                r"source.masks.image=images/(?P<name>.*)\.jpg",
                r"source.masks.mask=masks/\g<name>.png",
                "split={by: hash, fractions: {train: 0.9, validation: 0.1}}",
            ],
        ),
        (
            "ids",
            "train.csv has the columns id_code, diagnosis; 20 of the first 20 images that it names are in train_images",
            [
                "source.manifest.path=train.csv",
                "source.manifest.image='{id_code}.*'",
                "source.manifest.root=train_images",
                "label.column=diagnosis",
            ],
        ),
    ],
)
def test_evidence_has_counts_and_settings_are_those_that_differ(
    tmp_path: pathlib.Path, shape: str, evidence: str, settings: list[str]
) -> None:
    found = recognize_folder.recognize(str(folder_shapes.write(tmp_path, folder_shapes.SHAPES[shape][2])))
    assert found.sure is not None
    assert (found.sure.evidence, recognize_folder.overrides_of(found.sure)) == (evidence, settings)


def test_splits_of_a_column_are_renamed(tmp_path: pathlib.Path) -> None:
    config = load(
        recognize_folder.recognize(str(folder_shapes.write(tmp_path, folder_shapes.SHAPES["a-column-of-splits"][2])))
    )
    assert (config.split.by, config.split.column, config.split.rename) == ("column", "split", {"val": "validation"})


@pytest.mark.parametrize(
    ("tree", "presets"),
    [
        pytest.param({}, [], id="empty"),
        pytest.param({"notes.txt": "hello", "run.py": "print()"}, [], id="no-images"),
        pytest.param(images("IMG_#.jpg"), ["image_folder"], id="images-without-labels"),
        pytest.param(images("photos/IMG_#.jpg"), ["image_folder"], id="in-one-folder"),
        pytest.param(images("train/#.jpg", "val/#.jpg"), ["imagefolder"], id="splits-without-classes"),
        pytest.param(images("x/#.jpg") | {"t.csv": table("a,b", ["1,2", "3,4"])}, ["image_folder"], id="other-table"),
    ],
)
def test_folder_that_is_not_beyond_doubt_has_no_sure_preset(
    tmp_path: pathlib.Path, tree: folder_shapes.Tree, presets: list[str]
) -> None:
    found = recognize_folder.recognize(str(folder_shapes.write(tmp_path, tree)))
    assert found.sure is None
    assert [each.preset for each in found.candidates] == presets


def test_pairs_of_folders_for_splits_are_one_pattern(tmp_path: pathlib.Path) -> None:
    found = recognize_folder.recognize(
        str(folder_shapes.write(tmp_path, folder_shapes.SHAPES["masks-of-splits-with-a-suffix"][2]))
    )
    assert found.sure is not None
    assert found.sure.settings == {
        "source.masks.image": r"(?P<split>train|val)/(?P<name>.*)\.png",
        "source.masks.mask": r"\g<split>_labels/\g<name>_L.png",
        "split.rename": {"val": "validation"},
    }


@pytest.mark.parametrize(
    ("tree", "note"),
    [
        pytest.param(
            images(
                *(f"{split}/images/#_{split}.jpg" for split in ("training", "test")),
                *(f"{split}/1st_manual/#_manual1.gif" for split in ("training", "test")),
                *(f"{split}/mask/#_{split}_mask.gif" for split in ("training", "test")),
            ),
            "*/1st_manual and */mask each have a file for each image of */images; only */mask is used: set "
            "source.masks.mask for another one",
            id="several-folders-of-masks",
        ),
        pytest.param(
            images("train/#.jpg", "train_labels/#.png", "val/#.jpg", "val_gt/#.png"),
            "2 pairs of folders look like splits; only train is used: set source.masks.image=...",
            id="no-common-pattern",
        ),
    ],
)
def test_pairs_of_folders_that_are_not_beyond_doubt_have_a_note(
    tmp_path: pathlib.Path, tree: folder_shapes.Tree, note: str
) -> None:
    root = folder_shapes.write(tmp_path, tree)
    found = recognize_folder.recognize(str(root))
    assert found.sure is None
    assert found.candidates[0].notes == (note,)
    done = command_line.call("plan", "--input", root)
    assert done.returncode == 2
    assert f"segmentation fits '{root}', but not beyond doubt: see the note, give its options, or" in done.stderr


@pytest.mark.parametrize(
    ("tree", "remedy"),
    [
        pytest.param(
            images("shapes_train2018/#.jpg", "annotations/#_square_0.png", "annotations/#_circle_1.png"),
            "for masks, one for each image, take the preset segmentation with source.masks.image and .mask",
            id="a-mask-for-each-object",
        ),
        pytest.param(
            images("Original/#.jpg", "Ground Truth/#.jpg"),
            "masks in JPEG have lost their exact classes and are not read: convert them to PNG from their source",
            id="masks-in-jpeg",
        ),
    ],
)
def test_folder_of_masks_is_no_class_without_a_note(
    tmp_path: pathlib.Path, tree: folder_shapes.Tree, remedy: str
) -> None:
    found = recognize_folder.recognize(str(folder_shapes.write(tmp_path, tree)))
    assert [note.partition("; ")[2] for note in found.remarks] == [remedy]
    assert found.sure is None


def test_two_data_sets_in_one_folder_are_both_named(tmp_path: pathlib.Path) -> None:
    tree = folder_shapes.SHAPES["voc"][2]
    for year in (2007, 2012):
        folder_shapes.write(tmp_path / f"VOC{year}", tree)
    found = recognize_folder.recognize(str(tmp_path))
    assert found.sure is None
    assert [found.address(each) for each in found.candidates] == [f"{tmp_path}/VOC2007", f"{tmp_path}/VOC2012"]


def test_table_itself_is_recognized_in_its_folder(tmp_path: pathlib.Path) -> None:
    folder_shapes.write(tmp_path, folder_shapes.SHAPES["ids"][2])
    found = recognize_folder.recognize(f"{tmp_path}/train.csv")
    config = load(found)
    assert (config.source.uri, config.source.manifest.path) == (str(tmp_path), "train.csv")


def test_missing_input_is_an_error(tmp_path: pathlib.Path) -> None:
    with pytest.raises(errors.ConfigError, match=r"there is neither a folder nor a file '.*none'; check the address"):
        recognize_folder.recognize(f"{tmp_path}/none")


def test_what_nothing_reads_is_named(tmp_path: pathlib.Path) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"
    tree = {"cat/1.jpg": pointer, "dog/1.jpg": pointer, "a.mp4": "", "b.rar": ""}
    found = recognize_folder.recognize(str(folder_shapes.write(tmp_path, tree)))
    assert found.remarks == (
        "cat/1.jpg is a pointer of Git LFS, not an image: run git lfs pull in the clone first",
        "1 videos, which are not read: save their frames as images",
        "1 archives: unpack them",
    )


# --- the table of signs ----------------------------------------------------------------------------------------------

_NOT_YET = {"parquet", "cifar10", "cifar100", "npz", "svhn", "fer2013", "mnist_csv", "hdf5", "labelme", "via", "zip"}


def test_every_sign_names_presets_that_exist() -> None:
    named = {preset for presets in recognize_folder.SIGNS.values() for preset in presets}
    assert named - _NOT_YET <= set(config_lib.preset_names())


def test_every_shape_is_found_by_a_sign_that_names_its_preset() -> None:
    named = {preset for presets in recognize_folder.SIGNS.values() for preset in presets}
    assert {preset for preset, _, _ in folder_shapes.SHAPES.values()} <= named


@pytest.mark.parametrize("shape", folder_shapes.SHAPES)
def test_a_sign_finds_only_the_presets_that_it_names(tmp_path: pathlib.Path, shape: str) -> None:
    survey = Survey(str(folder_shapes.write(tmp_path, folder_shapes.SHAPES[shape][2])))
    for sign, presets in recognize_folder.SIGNS.items():
        assert {each.preset for each in sign(survey, "")} <= {*presets}


@pytest.mark.parametrize("shape", folder_shapes.SHAPES)
def test_no_content_of_files_breaks_a_sign(tmp_path: pathlib.Path, shape: str) -> None:
    """Each file of a shape with other bytes: random ones, its own cut short, and its own with flipped bytes."""
    rng = random.Random(shape)
    folder_shapes.write(tmp_path, folder_shapes.SHAPES[shape][2])
    paths = [path for path in tmp_path.rglob("*") if path.is_file()]
    for kind in ("random", "cut", "flipped", "empty"):
        for path in paths:
            data = bytearray(path.read_bytes() or b"x")
            if kind == "flipped":
                for _ in range(4):
                    data[rng.randrange(len(data))] = rng.randrange(256)
            changed = {"random": rng.randbytes(200), "cut": data[: rng.randrange(len(data))], "flipped": data}
            path.write_bytes(changed.get(kind, b""))
        recognize_folder.recognize(str(tmp_path))


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"[" * 60_000, id="deep-json"),
        pytest.param(b'{"a":' * 10_000, id="deep-objects"),
        pytest.param(b"a," * 30_000 + b"\n" + b"1," * 1000, id="many-columns"),
        pytest.param(b'"' + b"a,\n" * 20_000, id="open-quote"),
        pytest.param(b"image,label\n" + b"x" * 70_000, id="long-line"),
        pytest.param(b"PAR1" + b"\xff" * 100 + b"PAR1", id="parquet"),
        pytest.param(b"\xff\xfea\0,\0b\0", id="utf-16"),
        pytest.param(b"image\xff,l\n1.jpg\xff,2", id="latin-1"),
        pytest.param(b"image,image\n0.jpg,0.jpg\n", id="column-twice"),
        pytest.param(b"\xff" * 300, id="tfrecord-of-a-lying-length"),
    ],
)
def test_no_head_of_a_file_breaks_a_sign(tmp_path: pathlib.Path, head: bytes) -> None:
    folder_shapes.write(tmp_path, images("#.jpg"))
    extensions = ("csv", "tsv", "json", "jsonl", "parquet", "txt", "yaml", "tar", "tfrecord", "npz", "h5", "zip")
    for name in (*(f"train.{extension}" for extension in extensions), "0.txt", "0.json", "via.json", "metadata.csv"):
        (tmp_path / name).write_bytes(head)
    recognize_folder.recognize(str(tmp_path))
    for name in ("train.csv", "train.json", "train.parquet", "train.txt"):
        recognize_folder.recognize(str(tmp_path / name))


# --- bounds ----------------------------------------------------------------------------------------------------------


def test_survey_lists_no_more_than_its_bounds(tmp_path: pathlib.Path) -> None:
    folder_shapes.write(tmp_path, {f"{n}/{m}.txt": "x" for n in range(5) for m in range(7)})
    survey = Survey(str(tmp_path), Bounds(folders=3, entries=4, all_entries=100, heads=1))
    root = survey.look()
    assert (len(root.folders), root.is_whole) == (4, False)
    assert [len(survey.look(name).files) for name in root.folders] == [4, 4, 0, 0]
    assert survey.num_listed == 3
    assert survey.look(root.folders[0]).count(4, "text") == "4 or more texts"
    names = [f"{root.folders[0]}/{name}" for name in survey.look(root.folders[0]).files]
    assert [survey.head(name) for name in names[:2]] == [b"x", b""]


def test_all_entries_together_are_bounded(tmp_path: pathlib.Path) -> None:
    folder_shapes.write(tmp_path, {f"{n}/{m}.txt": "x" for n in range(5) for m in range(7)})
    survey = Survey(str(tmp_path), Bounds(all_entries=10))
    looked = [survey.look(), *(survey.look(str(n)) for n in range(5))]
    assert sum(len(each.folders) + len(each.files) for each in looked) == 10


def test_recognition_asks_a_bucket_for_few_folders(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder_shapes.write(tmp_path, images(*(f"{kind}/#.jpg" for kind in map(str, range(300))), numbers=[1]))
    listed = []
    found = storage.LocalStorage.list_directory
    monkeypatch.setattr(
        storage.LocalStorage, "list_directory", lambda self, uri: listed.append(uri) or found(self, uri)
    )
    assert recognize_folder.recognize(str(tmp_path)).sure is not None
    assert len(listed) <= 100


def test_output_in_the_input_is_not_looked_into(tmp_path: pathlib.Path) -> None:
    folder_shapes.write(tmp_path, {**images("cat/#.jpg", "dog/#.jpg"), "out/train-00000-of-00001.tfrecord": "x"})
    found = recognize_folder.recognize(str(tmp_path), str(tmp_path / "out"))
    assert found.sure is not None
    assert found.sure.evidence == "2 folders of images (cat, dog)"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("train", "train"),
        ("seg_train", "train"),
        ("TrainingSet", "train"),
        ("test1", "test"),
        ("val2017", "validation"),
        ("Dev", "validation"),
        ("trainer", None),
        ("latest", None),
        ("train_test", None),
        ("cat", None),
    ],
)
def test_split_meant_by_a_name(name: str, meant: str | None) -> None:
    assert split_meant(name) == meant


def test_folder_counts_its_images_by_extension() -> None:
    folder = Folder("a", ("b",), {"1.JPG": 1, "2.txt": 1, "3": 1})
    assert (folder.images, folder.stems, folder.ending(".txt")) == (("1.JPG",), {"1"}, ("2.txt",))
    assert folder.below("b") == "a/b"


# --- the command -----------------------------------------------------------------------------------------------------


def test_plan_goes_on_with_a_preset_that_fits_beyond_doubt(tmp_path: pathlib.Path) -> None:
    root = folder_shapes.write(tmp_path / "pets", folder_shapes.SHAPES["splits-under-other-names"][2])
    done = command_line.succeed("plan", "--input", root, here=True)
    assert done.stdout.startswith(
        "recognized  imagefolder: Training and Testing hold 2 folders of images each (cat, dog)"
    )
    assert "\n  train      8 images" in done.stdout
    *_, command, config, _ = done.stdout.split("\n")
    setting = "--set 'split.rename={Training: train, Testing: test}'"
    assert command == f"next: imagebeam convert --config imagefolder --input {root} {setting} --output OUTPUT"
    assert config == f"or: imagebeam init {root} writes these settings as a config"
    words = ("convert", "--config", "imagefolder", "--input", root, "--output", tmp_path / "out", "-q", "--set")
    command_line.succeed(*words, "split.rename={Training: train, Testing: test}", here=True)


def test_plan_lists_presets_that_fit_alike(tmp_path: pathlib.Path) -> None:
    for year in (2007, 2012):
        folder_shapes.write(tmp_path / f"VOC{year}", folder_shapes.SHAPES["voc"][2])
    done = command_line.call("plan", "--input", tmp_path)
    assert done.returncode == 2
    assert f"  options  --config voc --input {tmp_path}/VOC2012\n" in done.stdout
    assert f"2 presets fit '{tmp_path}', and none of them better than the others: give the options" in done.stderr


def test_plan_with_settings_of_its_own_is_left_alone(tmp_path: pathlib.Path) -> None:
    root = folder_shapes.write(tmp_path, folder_shapes.SHAPES["masks"][2])
    done = command_line.succeed("plan", "--input", root, "--set", "label.by=none", here=True)
    assert "recognized" not in done.stdout
    assert "listed       8 images" in done.stdout


@pytest.mark.parametrize("command", ["convert", "plan"])
def test_input_of_which_no_image_can_be_used_names_the_preset(tmp_path: pathlib.Path, command: str) -> None:
    tree = folder_shapes.SHAPES["numbered-names"][2]
    root = folder_shapes.write(tmp_path / "in", tree)
    done = command_line.call(command, "--input", root, "--output", tmp_path / "out", "--set", "label.by=directory")
    assert done.returncode == 3
    expected = f"'{root}' looks like the preset image_folder: the names of 40 images begin with 2 names (lily, rose)"
    assert expected in done.stdout + done.stderr


def test_preset_for_another_source_names_the_one_that_fits(tmp_path: pathlib.Path) -> None:
    root = folder_shapes.write(tmp_path / "in", folder_shapes.SHAPES["yolo"][2])
    done = command_line.call("plan", "--config", "coco", "--input", root)
    assert done.returncode == 2
    assert f"'{root}' looks like the preset yolo: images is beside labels" in done.stderr
    assert f"use --config yolo --input {root}\n" in done.stderr
