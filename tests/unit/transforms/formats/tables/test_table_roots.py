"""Tables apart from their images: roots, templates, and hint where nothing is found."""

from __future__ import annotations

import pathlib

import pytest

from imagebeam import errors, storage
from imagebeam.pipelines import job
from imagebeam.pipelines.config import model as config_lib
from imagebeam.transforms.elements import Reason
from imagebeam.transforms.sources import image_source
from tests import case_tables, error_texts, image_sets, spread_rows, written_files

JPEG = image_sets.make_image(1)


def put(folder: pathlib.Path, *names: str) -> None:
    written_files.write(folder, dict.fromkeys(names, JPEG))


def open_table(uri: object, *overrides: str, output: str = "/tmp/no_output") -> image_source.ImageSource:
    given = [f"source.uri={uri}", f"output.uri={output}", "source.by=manifest", "label.by=none", *overrides]
    return job.make_source(config_lib.load_config(None, given))


def read(source: image_source.ImageSource) -> tuple[dict[str, str], dict[str, tuple[Reason, str]], dict[str, int]]:
    """Returns the address of each image by key, the rejects, and the counts of what was skipped."""
    assert source.spreads == "rows"
    found = spread_rows.gather(spread_rows.list_both_ways(source))
    assert not found.problems
    rejects = {reject.key: (reject.reason, reject.detail) for reject in found.rejects}
    return {ref.key: ref.uri for ref in found.refs}, rejects, found.skipped


@pytest.mark.parametrize("root", ["images", "./images/", "../data/images", "absolute"])
def test_paths_and_keys_are_relative_to_the_root(tmp_path: pathlib.Path, root: str) -> None:
    data = tmp_path / "data"
    put(data, "images/a.jpg", "images/b/c.jpg", "images/left.jpg", "images/note.txt")
    (data / "t.csv").write_text("image\na.jpg\nb/c.jpg\n")
    given = str(data / "images") if root == "absolute" else root
    for how in ([data / "t.csv"], [data, "source.manifest.path=t.csv"]):
        refs, rejects, skipped = read(open_table(*how, f"source.manifest.root={given}"))
        start = "images/" if len(how) == 2 else ""  # keys are relative to the input if it is a folder
        assert refs == {f"{start}{name}": str(data / "images" / name) for name in ("a.jpg", "b/c.jpg")}
        assert (rejects, skipped) == ({}, {"not_in_table": 1})


def test_path_that_leaves_the_root_is_a_reject_that_names_it(tmp_path: pathlib.Path) -> None:
    put(tmp_path, "images/a.jpg", "b.jpg")
    (tmp_path / "t.csv").write_text("image\na.jpg\n../b.jpg\n")
    _, rejects, _ = read(open_table(tmp_path / "t.csv", "source.manifest.root=images"))
    assert rejects["../b.jpg"][0] == Reason.OUTSIDE_ROOT
    assert f"'../b.jpg' leaves '{tmp_path}/images'" in rejects["../b.jpg"][1]


def test_root_that_is_no_folder_is_an_error(tmp_path: pathlib.Path) -> None:
    (tmp_path / "t.csv").write_text("image\na.jpg\n")
    with error_texts.raises("table-root-not-folder"):
        open_table(tmp_path / "t.csv", "source.manifest.root=pictures")


def test_table_that_is_not_there_is_named_before_its_root(tmp_path: pathlib.Path) -> None:
    put(tmp_path, "train/a1.jpg", "train/b2.jpg", "train/c3.jpg")
    (tmp_path / "train.csv").write_text("id,breed\na1,pug\nb2,boxer\nc3,pug\n")
    config = config_lib.load_config("kaggle", [f"source.uri={tmp_path}", "output.uri=/tmp/no_output"])
    with error_texts.raises("table-missing"):
        job.make_source(config)


def test_root_with_files_in_order_is_an_error() -> None:
    with pytest.raises(errors.ConfigError, match=r"source.manifest.files is relative to the table's folder"):
        open_table("x.csv", "source.manifest={image: null, files: '*.png', root: images}")


def test_template_with_any_extension_finds_each_image_by_one_listing(tmp_path: pathlib.Path) -> None:
    put(tmp_path, "images/1.jpg", "images/2.PNG", "images/x/3.jpeg", "images/2.txt", "images/4.jpg", "images/4.png")
    (tmp_path / "t.csv").write_text("id,n\n1,1\n2,2\nx/3,3\n4,4\n5,5\n,6\n../7,7\n")
    refs, rejects, _ = read(open_table(tmp_path / "t.csv", "source.manifest.image=images/{id}.*"))
    assert refs == {f"images/{name}": f"{tmp_path}/images/{name}" for name in ("1.jpg", "2.PNG", "x/3.jpeg")}
    assert {key: reason for key, (reason, _) in rejects.items()} == {
        "images/4.*": Reason.BAD_ROW,
        "images/5.*": Reason.NOT_FOUND,
        "line 7": Reason.BAD_ROW,
        "7.*": Reason.NOT_FOUND,
    }
    several = f"there are several images: '{tmp_path}/images/4.jpg', '{tmp_path}/images/4.png'; give the extension"
    assert several in rejects["images/4.*"][1]
    assert f"there is no image '{tmp_path}/images/5.*'" in rejects["images/5.*"][1]
    assert "column 'id' is empty" in rejects["line 7"][1]


def test_template_with_any_folder_finds_each_image_below_it(tmp_path: pathlib.Path) -> None:
    for template, found, several, missing in [
        ("**/{id}.*", ["1.jpg", "a/2.PNG", "b/c/3.jpeg"], ["a/4.jpg", "b/4.png"], "**/5.*"),
        ("**/{id}.jpg", ["1.jpg"], [], "**/5.jpg"),
        ("b/**/{id}.*", ["b/4.png", "b/c/3.jpeg"], [], "b/**/5.*"),
        ("**/c/{id}.*", ["b/c/3.jpeg"], [], "**/c/5.*"),
    ]:
        root = case_tables.new_folder(tmp_path)
        put(root, "1.jpg", "a/2.PNG", "b/c/3.jpeg", "a/4.jpg", "b/4.png", "a/2.txt")
        (root / "t.csv").write_text("id\n1\n2\n3\n4\n5\n../7\n")
        refs, rejects, _ = read(open_table(root / "t.csv", f"source.manifest.image={template}"))
        if template == "**/{id}.jpg":
            found = [*found, "a/4.jpg"]
        assert refs == {path: f"{root}/{path}" for path in found}
        assert rejects[missing][0] is Reason.NOT_FOUND
        assert rejects[missing][1].endswith(f"there is no image '{root}/{missing}'")
        texts = [detail.partition(": ")[2] for reason, detail in rejects.values() if reason is Reason.BAD_ROW]
        names = ", ".join(map(repr, several))
        assert texts == ([f"there are several images: {names}; give the folder in {template!r}"] if several else [])


def test_tables_of_one_folder_list_it_once(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from imagebeam.transforms.formats.tables import row_steps

    put(tmp_path, "images/1.jpg", "images/2.jpg", "images/3.jpg")
    (tmp_path / "train.csv").write_text("id\n1\n")
    (tmp_path / "valid.csv").write_text("id\n2\n")
    listed: list[str] = []
    real = row_steps.list_rests
    monkeypatch.setattr(row_steps, "list_rests", lambda folder, *others: listed.append(folder) or real(folder, *others))
    manifest = "source.manifest={path: '*.csv', root: images, image: '{id}.*'}"
    found = spread_rows.gather(open_table(tmp_path, manifest).list_all())
    assert [ref.key for ref in found.refs] == ["images/1.jpg", "images/2.jpg"]
    assert (listed, found.skipped) == ([str(tmp_path / "images")], {"not_in_table": 1})


def test_several_tables_of_a_folder_elsewhere_have_keys_relative_to_it(tmp_path: pathlib.Path) -> None:
    put(tmp_path, "images/1.jpg", "images/2.jpg", "images/3.jpg")
    written_files.write(tmp_path / "tables", {"train.csv": "image\n1.jpg\n", "valid.csv": "image\n2.jpg\n"})
    refs, _, skipped = read(open_table(tmp_path / "tables", "source.manifest={path: '*.csv', root: ../images}"))
    assert (list(refs), skipped) == (["1.jpg", "2.jpg"], {"not_in_table": 1})


def test_root_and_template_on_a_network() -> None:
    store, base = storage.storage_of("memory://x"), "memory://roots"
    for number in range(60):
        store.write_whole(f"{base}/data/images/{number:03}.{'jpg' if number % 2 else 'png'}", JPEG)
    store.write_whole(f"{base}/data/tables/t.csv", b"id\n" + b"".join(b"%03d\n" % number for number in range(55)))
    found = open_table(f"{base}/data/tables/t.csv", "source.manifest={root: ../images, image: '{id}.*'}")
    refs, rejects, skipped = read(found)
    wanted = [("000.png", f"{base}/data/images/000.png"), ("001.jpg", f"{base}/data/images/001.jpg")]
    assert list(refs.items())[:2] == wanted
    assert (len(refs), rejects, skipped) == (55, {}, {"not_in_table": 5})
    source = open_table(f"{base}/data/tables/t.csv", "source.manifest={image: '{id}.*'}")
    assert "set source.manifest.root: ../images" in source.hint(Reason.NOT_FOUND)
    store.remove_tree(base)


def test_hint_names_the_root_that_fits(tmp_path: pathlib.Path) -> None:
    for table, images, row, hint in [
        ("t.csv", "images/a.jpg", "a.jpg", "set source.manifest.root: images"),
        ("t.csv", "train/images/a.jpg", "a.jpg", "set source.manifest.root: train/images"),
        ("tables/t.csv", "a.jpg", "a.jpg", "set source.manifest.root: .."),
        ("tables/t.csv", "images/x/a.jpg", "x/a.jpg", "set source.manifest.root: ../images"),
        ("a/tables/t.csv", "images/a.jpg", "images/a.jpg", "set source.manifest.root: ../.."),
        ("t.csv", "a.png", "a", "set source.manifest.image: '{image}.*'"),
        ("t.csv", "images/a.jpg", "a", "set source.manifest.root: images and source.manifest.image: '{image}.*'"),
        ("t.csv", "b.jpg", "a.jpg", "set source.manifest.root to the folder that has the images"),
    ]:
        root = case_tables.new_folder(tmp_path)
        data = root / "data"
        put(data, images)
        written_files.write(data, {table: f"image\n{row}\n"})
        source = open_table(data / table)
        said = source.hint(Reason.NOT_FOUND)
        assert f"paths are relative to the table's folder, '{(data / table).parent}'" in said
        assert hint in said
        assert source.hint(Reason.NO_LABEL) == ""


def test_hint_names_the_root_of_the_config(tmp_path: pathlib.Path) -> None:
    put(tmp_path, "images/a.jpg")
    (tmp_path / "other").mkdir()
    (tmp_path / "t.csv").write_text("id\na\n")
    source = open_table(tmp_path / "t.csv", "source.manifest={root: other, image: '{id}.*'}")
    said = source.hint(Reason.NOT_FOUND)
    assert f"paths are relative to source.manifest.root, '{tmp_path}/other'" in said
    assert f"'{tmp_path}/images/a.jpg' exists: set source.manifest.root: images" in said
