"""Lists of images, from tables and Parquet files to records: each image as it is stored alone, or nothing of a row."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

import imagebeam
from imagebeam.pipelines import inspect_dataset
from tests import case_tables, datasets, error_texts, image_sets, parquet_files, snapshot_sets

SECTIONS: dict[str, Any] = {"label": {"by": "none"}, "split": {"by": "none"}, "rejects": {"max_fraction": 1.0}}
MANIFEST = {"by": "manifest", "manifest": {"path": "rows.jsonl", "images": "images"}}
PARQUET = {"by": "parquet", "parquet": {"images": "images"}}
FILES = {
    "a.jpg": image_sets.make_image(1, size=(41, 30)),
    "b.png": image_sets.make_image(2, "PNG", "RGBA", size=(20, 33)),
    "turned.jpg": image_sets.make_image(3, size=(32, 48), exif=image_sets.turned()),
    "d.webp": image_sets.make_image(4, "WEBP", size=(25, 25)),
    "e.gif": image_sets.make_image(5, "GIF", "P", size=(30, 20)),
    "cut.jpg": image_sets.make_image(6)[:-200],
}
LISTS: list[list[str | None] | None] = [
    ["a.jpg", None, "b.png"],
    ["turned.jpg"],
    [None, "b.png", None, "a.jpg", "turned.jpg", "a.jpg"],
    ["d.webp", "e.gif", "a.jpg"],
    [],
    [None],
    None,
    ["a.jpg", None, "cut.jpg"],
    [None, "cut.jpg"],
]
GOOD = range(4)
LISTED = [f"image/{part}" for part in ("encoded", "format", "height", "width", "channels", "colorspace")]


def write(root: pathlib.Path, source: Mapping[str, Any], lists: Sequence[Any] = LISTS) -> pathlib.Path:
    """Writes the rows as the source reads them: paths and files, or bytes in Parquet; returns the folder."""
    root.mkdir(parents=True)
    if source is PARQUET:
        rows = [each and [name and FILES[name] for name in each] for each in lists]
        parquet_files.write_lists(root / "train.parquet", rows, {"n": [*range(len(rows))]})
        return root
    for name, data in FILES.items():
        (root / name).write_bytes(data)
    objects = [{"n": n} if each is None else {"images": each, "n": n} for n, each in enumerate(lists)]
    (root / "rows.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in objects))
    return root


@case_tables.each_case(
    "image",
    {
        "kept": {},
        "not turned": {"orientation": "keep", "metadata": "strip", "check": "decode"},
        "gray": {"encode": "jpeg", "quality": 90, "color": "gray"},
        "resized": {"encode": "webp", "resize": [16, 24]},
        "shorter side": {"encode": "png", "shortest_side": 12, "check": "header"},
        "other formats are rejects": {"other_formats": "reject", "limits": {"min_side": 25}},
    },
)
def test_each_image_of_a_list_is_stored_as_it_is_alone(tmp_path: pathlib.Path, image: dict[str, Any]) -> None:
    write(tmp_path / "alone", MANIFEST)
    datasets.make(tmp_path / "alone", tmp_path / "single", image=image, **SECTIONS)
    single = {each["image/filename"].decode(): each for each in datasets.read(tmp_path / "single")}
    named = {n: [(place, name) for place, name in enumerate(each or ()) if name] for n, each in enumerate(LISTS)}
    good = {n for n, each in named.items() if each and all(name in single for _, name in each)}
    # Where an image comes from is decided before it is changed: of the changes, one is made on images from both.
    for source in (MANIFEST, PARQUET) if image == {} or "resize" in image else (PARQUET,):
        root, output = write(tmp_path / source["by"], source), tmp_path / f"{source['by']}-out"
        datasets.make(root, output, source=source, image=image, **SECTIONS, columns={"n": {}})
        found = {int(each["n"][0]): each for each in datasets.read_lists(output)}
        assert found.keys() == good != set()
        for n, example in found.items():
            assert example["image/position"] == [place for place, _ in named[n]]
            for key in LISTED:
                assert example[key] == [single[name][key] for _, name in named[n]], (n, key)


@pytest.mark.parametrize("source", [MANIFEST, PARQUET], ids=["paths", "parquet"])
def test_bad_image_or_none_rejects_the_row_and_says_which(tmp_path: pathlib.Path, source: dict[str, Any]) -> None:
    write(tmp_path / "in", source)
    datasets.make(tmp_path / "in", tmp_path / "out", source=source, **SECTIONS)
    lines = [json.loads(line) for line in (tmp_path / "out" / "rejects.jsonl").read_text().splitlines()]
    file = "rows.jsonl" if source is MANIFEST else "train.parquet"
    found = {each["key"]: (each["reason"], each["detail"]) for each in lines}
    assert found.keys() == {f"{file}/{n}" for n in range(len(LISTS)) if n not in GOOD}
    for n in (4, 5, 6):
        assert found[f"{file}/{n}"][0] == "bad_row"
        assert found[f"{file}/{n}"][1].endswith("column 'images' lists no image")
    for n, place in ((7, 2), (8, 1)):
        reason, detail = found[f"{file}/{n}"]
        assert reason == "truncated" and detail.startswith(f"images[{place}]")


def test_bad_entry_of_a_list_is_named(tmp_path: pathlib.Path) -> None:
    expected: list[tuple[Any, str, str]] = [
        ("gone.jpg", "not_found", f"images[1]: there is no file '{tmp_path}/in/gone.jpg'"),
        ("../a.jpg", "outside_root", f"images[1]: '../a.jpg' leaves '{tmp_path}/in'"),
        ({"path": "a.jpg"}, "bad_value", "images[1]: {'path': 'a.jpg'} is a dict, expected one value"),
        (["a.jpg"], "bad_value", "images[1]: ['a.jpg'] is a list, expected one value"),
    ]
    root = write(tmp_path / "in", MANIFEST, [["b.png"], *(["a.jpg", entry] for entry, _, _ in expected)])
    datasets.make(root, tmp_path / "out", source=MANIFEST, **SECTIONS)
    lines = map(json.loads, (tmp_path / "out" / "rejects.jsonl").read_text().splitlines())
    found = {each["key"]: each for each in lines}
    assert found.keys() == {f"rows.jsonl/{n}" for n in range(1, len(expected) + 1)}
    for n, (_, reason, detail) in enumerate(expected, 1):
        assert found[f"rows.jsonl/{n}"]["reason"] == reason and detail in found[f"rows.jsonl/{n}"]["detail"]


def test_struct_without_bytes_is_no_null(tmp_path: pathlib.Path) -> None:
    """An image that is named by its path alone is not left out as a null is."""
    for compression in ("snappy", "zstd"):  # located in the pages, and read by pyarrow
        root = tmp_path / compression
        root.mkdir()
        image = {"bytes": FILES["a.jpg"], "path": "a.jpg"}
        rows = [[image, {"bytes": None, "path": "b.jpg"}], [None, image]]
        table = pa.table({"images": pa.array(rows, pa.list_(parquet_files.IMAGE))})
        pyarrow.parquet.write_table(table, root / "x.parquet", compression=compression)
        datasets.make(root, tmp_path / f"{compression}-out", source=PARQUET, **SECTIONS)
        assert datasets.rejects(tmp_path / f"{compression}-out") == {"x.parquet/0": "bad_row"}
        assert "images[1] has no bytes; where images" in (tmp_path / f"{compression}-out/rejects.jsonl").read_text()
        assert [each["image/position"] for each in datasets.read_lists(tmp_path / f"{compression}-out")] == [[1]]


def test_examples_are_duplicates_if_all_their_images_are(tmp_path: pathlib.Path) -> None:
    lists = [["a.jpg", "b.png"], ["a.jpg"], ["b.png", "a.jpg"], ["a.jpg", None, "b.png"], ["a.jpg", "b.png", "b.png"]]
    for source in (MANIFEST, PARQUET):
        root = write(tmp_path / source["by"], source, lists)
        output = tmp_path / f"{source['by']}-out"
        datasets.make(root, output, source=source, **SECTIONS, duplicates={"exact": "drop"}, columns={"n": {}})
        assert [*datasets.rejects(output).values()] == ["duplicate"]
        left = sorted(int(each["n"][0]) for each in datasets.read_lists(output))
        assert left in ([0, 1, 2, 4], [1, 2, 3, 4])


@pytest.mark.parametrize("source", [MANIFEST, PARQUET], ids=["paths", "parquet"])
def test_update_writes_the_rows_of_which_an_image_changed(tmp_path: pathlib.Path, source: dict[str, Any]) -> None:
    root, output = write(tmp_path / "in", source, [["a.jpg", "b.png"], ["turned.jpg", "a.jpg"]]), tmp_path / "out"
    label = {"by": "column", "column": "n"}
    sections = {**SECTIONS, "source": source, "label": label, "update": {"compare": "content"}}
    snapshot_sets.update(root, output, **sections)
    if source is MANIFEST:
        (root / "b.png").write_bytes(image_sets.make_image(7, "PNG"))
    else:
        rows = [[FILES["a.jpg"], image_sets.make_image(7, "PNG")], [FILES["turned.jpg"], FILES["a.jpg"]]]
        parquet_files.write_lists(root / "train.parquet", rows, {"n": [0, 1]})
    result = snapshot_sets.update(root, output, **sections)
    counts = {name: result.plan.snapshot[name] for name in ("added", "changed", "removed", "unchanged")}
    assert counts == {"added": 0, "changed": 1, "removed": 0, "unchanged": 1}


def test_saved_images_have_their_number(tmp_path: pathlib.Path) -> None:
    root = write(tmp_path / "in", MANIFEST, [["a.jpg", "b.png"]])
    catalog = datasets.make(root, tmp_path / "out", source=MANIFEST, **SECTIONS).catalog
    saved = inspect_dataset.save_images(str(tmp_path / "out"), catalog, "train", 1, str(tmp_path / "saved"))
    assert [pathlib.Path(each).read_bytes() for each in saved] == [FILES["a.jpg"], FILES["b.png"]]
    assert [pathlib.Path(each).name.partition(".jsonl")[2] for each in saved] == ["_0.0.jpeg", "_0.1.png"]


def test_one_path_is_a_list_of_one(tmp_path: pathlib.Path) -> None:
    root = write(tmp_path / "in", MANIFEST, ["a.jpg", ["b.png"]])
    datasets.make(root, tmp_path / "out", source=MANIFEST, **SECTIONS)
    assert sorted(each["image/filename"] for each in datasets.read_lists(tmp_path / "out")) == [[b"a.jpg"], [b"b.png"]]


REFUSED_FORMS = {
    "frames": {"image": {"frames": "each"}},
    "raw": {"image": {"encode": "raw"}},
    "int64": {"image": {"encode": "int64_list"}},
    "float": {"image": {"encode": "float_list"}},
    "near": {"duplicates": {"near": "report"}},
    "entry points": {"features": {"image/entry_points": "points"}},
    "function": {"image": {"function": "module:function"}},
    "keep_if": {"image": {"keep_if": "module:function"}},
}


@case_tables.each_case("source", {"paths": MANIFEST, "parquet": PARQUET})
@case_tables.each_case("more", REFUSED_FORMS)
def test_what_needs_one_image_is_refused(tmp_path: pathlib.Path, more: dict[str, Any], source: dict[str, Any]) -> None:
    root = write(tmp_path / "in", source)
    with pytest.raises(imagebeam.ConfigError) as caught:
        datasets.make(root, tmp_path / "out", **{**SECTIONS, "source": source, **more})
    assert caught.value.code == "config-invalid" and not (tmp_path / "out").exists()
    (setting,) = more.values()
    assert all(f"{name}: {value}" in str(caught.value) or name in str(caught.value) for name, value in setting.items())


@case_tables.each_case(
    "options",
    {
        "further": {"further": {"after": "b"}},
        "image_pattern": {"image": "x", "image_pattern": "(.*)"},
        "sha256": {"sha256": "x"},
        "files": {"image": None, "files": "*.jpg"},
        "merge_rows": {"merge_rows": True},
    },
)
def test_options_of_one_image_a_row_are_refused(tmp_path: pathlib.Path, options: dict[str, Any]) -> None:
    source = {"by": "manifest", "manifest": {**MANIFEST["manifest"], **options}}  # type: ignore[dict-item]
    with pytest.raises(imagebeam.ConfigError, match="for one image a row: leave one of the two out"):
        datasets.make(write(tmp_path / "in", MANIFEST), tmp_path / "out", source=source, **SECTIONS)


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ({"by": "parquet"}, "parquet-no-image"),
        ({"by": "parquet", "parquet": {"image": "images"}}, "parquet-no-image"),
        ({"by": "parquet", "parquet": {"images": "n"}}, "parquet-no-image"),
        ({"by": "parquet", "parquet": {"images": "images", "image": "n"}}, "config-invalid"),
        ({"by": "manifest", "manifest": {"path": "train.parquet", "images": "images"}}, "table-holds-images"),
        ({"by": "manifest", "manifest": {"path": "x.csv", "images": "images"}}, "table-option-of-json"),
    ],
)
def test_wrong_column_of_lists_is_refused(tmp_path: pathlib.Path, source: dict[str, Any], code: str) -> None:
    root = write(tmp_path / "in", PARQUET)
    (root / "x.csv").write_text("images\na.jpg\n")
    with error_texts.raises(code):
        datasets.make(root, tmp_path / "out", source=source, **SECTIONS)
