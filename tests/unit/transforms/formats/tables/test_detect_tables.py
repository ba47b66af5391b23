"""Which table of a folder is read, and where the images of a table are."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

import imagebeam
from imagebeam.pipelines.config import model as config_lib
from imagebeam.pipelines.recognize import recognize_folder
from tests import case_tables, command_line, datasets, folder_shapes
from tests.folder_shapes import Tree, images, table
from tests.odd_layouts import rows

LABELS = table("image,label", (f"{n}.jpg,{'cd'[n % 2]}" for n in range(4)))
WITHOUT_HEADER = "0.jpg,c\n1.jpg,d\n"


def recognized(root: pathlib.Path, tree: folder_shapes.Tree, name: str = "") -> recognize_folder.Recognition:
    return recognize_folder.recognize(str(folder_shapes.write(root, tree) / name))


def test_best_of_several_tables_is_read_and_the_others_are_named(tmp_path: pathlib.Path) -> None:
    for tables, read, others in [
        ({"a.csv": WITHOUT_HEADER, "t.csv": LABELS}, "t.csv", "a.csv (2 rows, no header)"),  # header
        ({"a.csv": "0.jpg,c\n1.jpg,d\n2.jpg,c\n", "b.csv": WITHOUT_HEADER}, "a.csv", "b.csv (2 rows, no header)"),
        ({"a.csv": table("image,label", ["0.jpg,c", "1.jpg,d"]), "t.csv": LABELS}, "t.csv", "a.csv (2 rows)"),
        (
            {"a.csv": table("image,label", (f"{n}.jpg,{'cd'[n % 2]}" for n in range(2, 8))), "t.csv": LABELS},
            "t.csv",
            "a.csv (6 rows)",
        ),  # rows-whose-images-exist
        (
            {
                "a_test.csv": table("image,label", (f"{2 + n % 2}.jpg,{'cd'[n % 2]}" for n in range(5))),
                "t.csv": table("image,label", ["0.jpg,c", "1.jpg,d"]),
            },
            "t.csv",
            "a_test.csv (5 rows)",
        ),  # test
    ]:
        folder = case_tables.new_folder(tmp_path)
        found = recognized(folder, images("img/#.jpg") | tables)
        assert found.sure is not None
        assert found.sure.settings["source.manifest.path"] == read
        line = f"{others} names images, too, and is not read: plan --input with the address of such a table takes that"
        assert f"{line} one" in found.sure.notes


def test_number_of_rows_of_a_long_table_is_a_guess(tmp_path: pathlib.Path) -> None:
    long = table("image,label,text", (f"{n % 4}.jpg,{'cd'[n % 2]},{'x' * 90}" for n in range(2_000)))
    found = recognized(tmp_path, images("#.jpg") | {"a.csv": LABELS, "t.csv": long, "u.csv": long + long[-200:]})
    assert found.sure is not None
    assert found.sure.settings["source.manifest.path"] == "u.csv"
    assert found.sure.notes[-1].startswith("t.csv (about 2,000 rows), a.csv (4 rows) name images, too")


def test_folder_of_a_table_is_no_split_of_images_elsewhere(tmp_path: pathlib.Path) -> None:
    found = recognized(tmp_path, images("Training_Input/#.jpg") | {"Training_Truth/t.csv": LABELS})
    assert found.sure is not None
    assert found.sure.settings["source.manifest.path"] == "Training_Truth/t.csv"
    assert "split" not in found.sure.settings


def test_lists_beside_masks_are_named(tmp_path: pathlib.Path) -> None:
    tree = images("images/cat_#.jpg", "trimaps/cat_#.png") | {"annotations/trainval.txt": "cat_0 1 1 2\ncat_1 1 1 2\n"}
    found = recognized(tmp_path, tree)
    assert found.candidates[0].preset == "segmentation"
    (doubt,) = found.candidates[0].doubts
    assert doubt.startswith(
        "annotations/trainval.txt names images (cat_0, cat_1), and is not read: set split={by: lists"
    )


def test_tables_of_splits_that_one_pattern_reads_are_no_others(tmp_path: pathlib.Path) -> None:
    found = recognized(tmp_path, images("train/#.jpg", "val/#.jpg") | {"train/t.csv": LABELS, "val/t.csv": LABELS})
    assert found.sure is not None
    assert found.sure.settings["source.manifest.path"] == "*/t.csv"
    assert not [note for note in found.sure.notes if "is not read" in note]


@pytest.mark.parametrize("as_written", ["absolute", "relative", "in-its-folder"])
def test_table_whose_images_are_beside_its_folder_is_recognized_from_there(
    tmp_path: pathlib.Path, as_written: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder_shapes.write(tmp_path / "data", images("pics/#.jpg") | {"meta/t.csv": LABELS})
    monkeypatch.chdir(tmp_path / "data/meta" if as_written == "in-its-folder" else tmp_path)
    given, above = {
        "absolute": (f"{tmp_path}/data/meta/t.csv", f"{tmp_path}/data"),
        "relative": ("data/meta/t.csv", "data"),
        "in-its-folder": ("t.csv", ".."),
    }[as_written]
    found = recognize_folder.recognize(given)
    assert found.sure is not None
    assert found.address(found.sure) == above
    assert found.sure.settings["source.manifest.path"] == "meta/t.csv"
    assert found.sure.settings["source.manifest.root"] == "../pics"


def test_images_outside_of_a_table_are_doubtful(tmp_path: pathlib.Path) -> None:
    for tree, note in [
        (
            images("pics/#.jpg", "thumbs/#.jpg"),
            "other folders have images of these names: for those set source.manifest.root=../thumbs",
        ),  # two-folders
        (images("other/pics/#.jpg"), "other/pics is not beside meta/t.csv, and may be of another data set"),
    ]:
        folder = case_tables.new_folder(tmp_path)
        found = recognized(folder, tree | {"meta/t.csv": LABELS}, "meta/t.csv")
        assert found.sure is None
        assert [each.doubts for each in found.candidates] == [(note,)]


def test_table_whose_images_are_nowhere_names_the_setting(tmp_path: pathlib.Path) -> None:
    found = recognized(tmp_path / "a/b/c", {"t.csv": LABELS}, "t.csv")
    note = (
        "t.csv names images in its column 'image', such as '0.jpg', but the folders that were looked into do not have "
        "them: set source.manifest.root to the folder that has them, with --config kaggle --set "
        "source.manifest.path=t.csv --set source.manifest.image=image"
    )
    assert (found.candidates, found.remarks) == ((), (note,))
    done = command_line.end(2, "plan", "--input", tmp_path / "a/b/c/t.csv")
    assert f"  {note}\n" in done.stdout


def test_table_of_images_deeper_than_is_looked_is_noted_beside_classes(tmp_path: pathlib.Path) -> None:
    found = recognized(tmp_path, images("a/b/c/cat/#.jpg", "a/b/c/dog/#.jpg") | {"t.csv": LABELS})
    assert [each.preset for each in found.candidates] == ["image_folder"]
    assert found.sure is None
    assert [doubt.partition(":")[0] for doubt in found.candidates[0].doubts][-1] == (
        "t.csv names images in its column 'image', such as '0.jpg', but the folders that were looked into do not have "
        "them"
    )


def test_images_in_more_folders_than_a_few_are_those_of_one_table(tmp_path: pathlib.Path) -> None:
    rows = (f"{name}{n}.jpg,{'cd'[n % 2]}" for n in range(4) for name in "pqrstuv")
    tree = images(*(f"pics/{name}/{name}#.jpg" for name in "pqrstuv")) | {"t.csv": table("image,label", rows)}
    found = recognized(tmp_path, tree)
    assert found.sure is not None
    assert found.sure.settings["source.manifest.image"] == "**/{image}"
    assert found.sure.settings["source.manifest.root"] == "pics"


def test_table_most_of_whose_images_are_missing_is_doubtful(tmp_path: pathlib.Path) -> None:
    found = recognized(
        tmp_path, images("#.jpg") | {"t.csv": table("image,label", (f"{n}.jpg,{n % 2}" for n in range(9)))}
    )
    assert found.sure is None
    assert (
        found.candidates[0].doubts[-1].startswith("the other images are in none of the folders that were looked into")
    )


def test_numbers_without_a_header_that_differ_in_most_rows_may_be_ids(tmp_path: pathlib.Path) -> None:
    found = recognized(tmp_path, images("#.jpg") | {"ids.txt": "".join(f"{n}.jpg {n + 2880}\n" for n in range(4))})
    assert found.sure is None
    assert found.candidates[0].doubts == (
        "ids.txt has no header, and most rows have a number of their own: ids are no labels",
    )


def test_numbers_of_splits_are_no_labels(tmp_path: pathlib.Path) -> None:
    rows = (f"{n}.jpg,{n % 3}" for n in range(4))
    found = recognized(tmp_path, images("#.jpg") | {"t.csv": table("image_id,partition", rows)})
    assert found.sure is None
    no_label, may_be_split = found.candidates[0].doubts
    assert no_label == "no column could be the label: name it in label.column"
    assert may_be_split.startswith("the column 'partition' may be the split (0, 1, 2): set split={")


def test_table_without_a_column_of_images_has_no_remark(tmp_path: pathlib.Path) -> None:
    assert recognized(tmp_path, {"t.csv": table("a,b", ["1,2"])}, "t.csv").remarks == ()


def test_root_that_is_no_folder_names_the_one_that_has_the_images(tmp_path: pathlib.Path) -> None:
    folder_shapes.write(tmp_path, images("pics/#.jpg") | {"meta/labels.csv": table("id,label", ["0,c", "1,d"])})
    done = command_line.end(2, "plan", "--config", "kaggle", "--input", tmp_path / "meta")
    assert f"source.manifest.root 'images': '{tmp_path}/meta/images' is not a folder; " in done.stderr
    assert f"'{tmp_path}/pics/0.jpg' exists: set source.manifest.root: ../pics\n" in done.stderr


def test_no_folder_above_the_root_of_a_bucket_is_looked_into() -> None:
    above = [*recognize_folder._folders_above("gs://b/c", "gs://b/c/t.csv")]
    assert above == [("gs://b", "gs://b", "c/t.csv")]
    assert not [*recognize_folder._folders_above("/", "/t.csv")]


TEXT = "Tiredness kills A short break could save your life the exit WAY Market Bus stop AND the A Hotel Cafe"
WORDS = TEXT.split()


def test_texts_of_which_most_are_their_own_are_no_classes(tmp_path: pathlib.Path) -> None:
    for name, header, row, doubt in [
        ("gt.txt", "", 'word_{}.png, "{}"', ""),
        ("words.csv", "image,word", "word_{}.png,{}", ""),
        ("labels.csv", "image,label", "word_{}.png,{}", "if these are classes all the same, take the preset kaggle"),
        ("words.csv", "image,word,author", "word_{}.png,{},me", "The other columns are author"),
    ]:
        folder = case_tables.new_folder(tmp_path)
        tree = images("word_#.png", numbers=range(len(WORDS)))
        rows = [row.format(number, word) for number, word in enumerate(WORDS)]
        found = recognized(folder, tree | {name: "\n".join([*([header] if header else []), *rows, ""])})
        first = found.candidates[0]
        assert first.preset == "captions" and "label" not in first.settings
        assert (found.sure is None) == bool(doubt)
        assert doubt in " ".join(first.doubts)
        assert f"{len({*WORDS})} different texts in {len(WORDS)} rows" in first.notes[0]
        assert "it is stored as text, and is no class" in first.notes[0]
        given = [*recognize_folder.overrides_of(first), f"source.uri={folder}", f"output.uri={folder}-out"]
        imagebeam.convert(config_lib.load_config(first.preset, [*given, "split={by: none}"]), workers=1)
        stored = [values["image/caption"] for values in datasets.read(pathlib.Path(f"{folder}-out"))]
        assert sorted(stored) == sorted(word.encode() for word in WORDS)


def test_texts_of_a_metadata_table_are_no_label(tmp_path: pathlib.Path) -> None:
    rows = [f"word_{number}.png,{word}" for number, word in enumerate(WORDS)]
    tree = images("word_#.png", numbers=range(len(WORDS))) | {"metadata.csv": table("file_name,word", rows)}
    found = recognized(tmp_path, tree).candidates[0]
    assert found.preset == "imagefolder_metadata" and "label" not in found.settings
    assert found.notes[0].startswith("most rows have a text of their own in the column 'word', so it is no label")


def test_images_in_folders_that_the_table_does_not_name_are_doubtful(tmp_path: pathlib.Path) -> None:
    for tree, doubt in [
        (
            images("images/#.jpg", "more/1#.jpg"),
            "4 of 8 images that were seen are not read, in more (more/10.jpg)",
        ),
        (images("images/#.jpg", "images/old/1#.jpg"), "are not read, in images/old (images/old/10.jpg)"),
        (images("images/#.jpg", "test/1#.jpg"), ""),
    ]:
        folder = case_tables.new_folder(tmp_path)
        lines = [f"{number},{('cat', 'dog')[number % 2]}" for number in range(4)]
        found = recognized(folder, {**tree, "labels.csv": table("id,label", lines)})
        assert found.candidates[0].preset == "kaggle"
        assert (found.sure is None) == bool(doubt) and doubt in " ".join(found.candidates[0].doubts)


@pytest.mark.parametrize(
    ("tree", "split"),
    [
        (
            images("p/#.jpg")
            | {"a.csv": rows("image,label,data set", "{n}.jpg,{1},{0}", ("train", "valid"), "aabb", numbers=range(4))},
            {"by": "column", "column": "data set", "rename": {"valid": "validation"}},
        ),
        (
            images("{train,val}/#.jpg")
            | {"a.csv": rows("image,label", "{0}/{n}.jpg,{1}", ("train", "val"), ("a", "b"), numbers=range(4))},
            {"by": "directory", "rename": {"val": "validation"}},
        ),
    ],
    ids=["column-of-any-name", "paths"],
)
def test_splits_are_those_of_a_column_or_of_paths(tmp_path: pathlib.Path, tree: Tree, split: dict[str, Any]) -> None:
    found = recognized(tmp_path, tree)
    assert found.sure is not None
    assert found.sure.settings["split"] == split


def test_images_that_most_rows_name_come_before_those_of_the_first_folder(tmp_path: pathlib.Path) -> None:
    tree = images("test/#.png", numbers=range(1, 7)) | images("train/#.png", numbers=range(1, 13))
    tree |= {"trainLabels.csv": rows("id,label", "{n},{0}", ("a", "b"), numbers=range(1, 13))}
    found = recognized(tmp_path, tree)
    assert found.sure is not None
    assert found.sure.settings["source.manifest.root"] == "train"
