"""Converts images on the disk into a committed dataset, by the call that the command makes."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
from PIL import Image

from imagebeam import catalog as catalog_lib
from imagebeam import errors
from imagebeam.pipelines import cli
from tests import datasets, image_sets, recipe_sets


@pytest.fixture
def images(tmp_path: pathlib.Path) -> pathlib.Path:
    """Ten cats and ten dogs, as label/image."""
    image_sets.write_folder(tmp_path / "in")
    return tmp_path / "in"


@pytest.fixture
def output(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "out"


@pytest.mark.parametrize("kept", ["apply", "keep"])
def test_run_table_says_which_images_readers_may_not_expect(
    images: pathlib.Path, output: pathlib.Path, capsys: pytest.CaptureFixture[str], kept: str
) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    for number, (mode, image_format) in enumerate([("LA", "PNG"), ("RGBA", "PNG"), ("RGBA", "PNG"), ("CMYK", "JPEG")]):
        (images / f"cat/odd{number}").write_bytes(image_sets.make_image(number, image_format, mode))
    (images / "dog/lying.jpg").write_bytes(image_sets.make_image(9, exif=exif))
    arguments = ["convert", "--input", str(images), "--output", str(output), "--workers", "1"]
    arguments += ["--set", "split={by: hash, fractions: {train: 0.5, test: 0.5}}", "--set", f"image.orientation={kept}"]
    assert cli.main(arguments) == 0
    rows = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines() if "  " in line.lstrip())
    expected = {
        **({"turned": "1 image: 1 on the left side (EXIF 6)"} if kept == "apply" else {}),
        "not upright": "1 image whose EXIF data ask for a rotation that was not applied; readers see the pixels as "
        "they are stored",
        "channels": "1 image of 2 channels (gray, transparency), 2 images of 4 channels (RGB, transparency), 1 image "
        "of 4 channels (CMYK); readers that ask for 3 channels convert them",
    }
    if kept == "apply":
        assert "not upright" not in rows and expected.pop("not upright")
    assert {name: rows[name].strip() for name in expected} == expected
    assert cli.main(["inspect", str(output)]) == 0
    assert expected["channels"] in capsys.readouterr().out


# --- folders ---------------------------------------------------------------------------------------------------------


def test_label_image_folder_becomes_one_split_of_its_classes(images: pathlib.Path, output: pathlib.Path) -> None:
    (images / "notes.txt").write_text("not an image")
    (images / ".hidden.jpg").write_bytes(b"")
    result = datasets.make(images, output)
    assert (result.state, result.catalog.labels, list(result.catalog.splits)) == (
        "committed",
        ("cat", "dog"),
        ["train"],
    )
    assert result.catalog.counts == catalog_lib.Counts(20, 20, {}, {"hidden": 1, "non_image": 1})
    examples = datasets.read(output)
    assert len({each["image/key"] for each in examples}) == 20
    for each in examples:
        key = each["image/key"].decode()
        label, name = key.split("/")
        assert each["image/encoded"] == (images / key).read_bytes()
        assert (each["image/class/text"].decode(), each["image/class/label"]) == (label, ["cat", "dog"].index(label))
        assert each["image/filename"].decode() == name
        assert each["image/format"] == (b"png" if name.endswith("png") else b"jpeg")
        assert (each["image/height"], each["image/width"], each["image/channels"]) == (16, 24, 3)
        assert each["image/colorspace"] == b"RGB"
    assert (output / "labels.txt").read_text() == "cat\ndog\n"
    assert json.loads((output / "statistics.json").read_text())["train"]["labels"] == {"cat": 10, "dog": 10}


# --- manifests -------------------------------------------------------------------------------------------------------


def make_rows(images: pathlib.Path) -> list[dict[str, Any]]:
    """Returns one row for each image: the first eight of a label are train, the others test."""
    rows = []
    for label in ("cat", "dog"):
        for path in sorted((images / label).iterdir()):
            number = len(rows)
            rows.append(
                {
                    "id": f"id-{number:02d}",
                    "image": f"{label}/{path.name}",
                    "kind": label,
                    "side": "train" if number % 10 < 8 else "test",
                    "person": f"person-{number % 7}",
                    "age": number / 4,
                    "weight": 100 - number,
                    "note": f"été {number}",
                }
            )
    return rows


@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_manifest_gives_key_label_split_and_columns(images: pathlib.Path, output: pathlib.Path, format: str) -> None:
    rows = make_rows(images)
    recipe_sets.rows_of(images / f"table.{format}", rows)
    result = datasets.make(
        images / f"table.{format}",
        output,
        source={"by": "manifest", "manifest": {"key": "id"}},
        label={"by": "column", "column": "kind"},
        split={"by": "column", "column": "side"},
        columns={"age": {"type": "float"}, "weight": {"type": "int"}, "note": {}},
    )
    assert result.catalog.labels == ("cat", "dog")
    for split in ("train", "test"):
        found = {each["image/key"].decode(): each for each in datasets.read(output, split)}
        assert sorted(found) == [row["id"] for row in rows if row["side"] == split]
        for row in rows:
            if row["side"] == split:
                each = found[row["id"]]
                assert each["image/class/text"].decode() == row["kind"]
                assert (each["age"], each["weight"], each["note"].decode()) == (row["age"], row["weight"], row["note"])
                assert each["image/encoded"] == (images / row["image"]).read_bytes()


@pytest.mark.parametrize("has_sizes", [True, False])
def test_trusted_manifest_rejects_a_missing_file_when_it_is_read(
    images: pathlib.Path, output: pathlib.Path, has_sizes: bool
) -> None:
    rows = [row | {"size": (images / row["image"]).stat().st_size} for row in make_rows(images)]
    (images / rows[1]["image"]).unlink()
    (images / rows[2]["image"]).write_bytes(b"")
    recipe_sets.rows_of(images / "table.csv", rows)
    trusted = {"trust": True, "size": "size"} if has_sizes else {"trust": True}
    result = datasets.make(
        images / "table.csv",
        output,
        source={"by": "manifest", "manifest": trusted},
        label={"by": "column", "column": "kind"},
        output={"target_shard_bytes": 4000} if has_sizes else {"examples_per_shard": 4},
        rejects={"max_fraction": 0.2},
    )
    other_size = "changed" if has_sizes else "empty_file"
    if has_sizes:
        notes = [note for note in result.plan.notes if "rejected" in note]
        assert notes[0].startswith(
            "1 image differs in size from column 'size' of the table and was rejected; to take it"
        )
        details = [json.loads(line)["detail"] for line in (output / "rejects.jsonl").read_text().splitlines()]
        assert any(
            each.startswith(f"has 0 bytes, column 'size' of the table says {rows[2]['size']:,};") for each in details
        )
    assert datasets.rejects(output) == {rows[1]["image"]: "not_found", rows[2]["image"]: other_size}
    expected = sum(row["size"] for row in rows) // 4000 + 1 if has_sizes else -(-len(rows) // 4)
    assert len(result.catalog.splits["train"].shards) == expected > 1


# --- splits by hash --------------------------------------------------------------------------------------------------

FRACTIONS = {"train": 0.6, "test": 0.4}


def test_hash_split_never_moves_an_image_when_others_come(images: pathlib.Path, tmp_path: pathlib.Path) -> None:
    split = {"by": "hash", "fractions": FRACTIONS}
    datasets.make(images, tmp_path / "before", split=split)
    image_sets.write_folder(images, per_label=30)
    datasets.make(images, tmp_path / "after", split=split)
    for name in FRACTIONS:
        before, after = set(datasets.keys(tmp_path / "before", name)), set(datasets.keys(tmp_path / "after", name))
        assert before
        assert before < after
    assert 24 <= len(datasets.keys(tmp_path / "after", "train")) <= 48  # 36 expected of 60


@pytest.mark.parametrize("stratify", [pytest.param(False, id="by-hash"), pytest.param(True, id="by-rank")])
def test_grouped_split_keeps_each_group_together(images: pathlib.Path, output: pathlib.Path, stratify: bool) -> None:
    rows = make_rows(images)
    recipe_sets.rows_of(images / "table.csv", rows)
    split = {"by": "hash", "fractions": FRACTIONS, "group": "person", "stratify": stratify}
    label = {"by": "column", "column": "kind"}
    datasets.make(images / "table.csv", output, source={"by": "manifest"}, label=label, split=split)
    person = {row["image"]: row["person"] for row in rows}
    sides = [{person[key] for key in datasets.keys(output, name)} for name in FRACTIONS]
    assert sides[0].isdisjoint(sides[1])
    assert sides[0] | sides[1] == set(person.values())


def test_group_of_file_name_keeps_each_group_together(tmp_path: pathlib.Path) -> None:
    (tmp_path / "in").mkdir()
    for index in range(30):
        path = tmp_path / "in" / f"{'cat' if index % 2 else 'dog'}_p{index % 6}_{index}.jpg"
        path.write_bytes(image_sets.make_image(index))
    label = {"by": "filename", "pattern": r"(?P<label>cat|dog)_(?P<person>p\d)_\d+\.jpg"}
    split = {"by": "hash", "fractions": FRACTIONS, "group": "person"}
    datasets.make(tmp_path / "in", tmp_path / "out", label=label, split=split)
    sides = [{key.split("_")[1] for key in datasets.keys(tmp_path / "out", name)} for name in FRACTIONS]
    assert sides[0].isdisjoint(sides[1])


# --- labels and features ---------------------------------------------------------------------------------------------


def test_vocabulary_fixes_ids_and_rejects_other_labels(images: pathlib.Path, output: pathlib.Path) -> None:
    (images / "labels.txt").write_text("dog\nbird\n")
    label = {"vocabulary": str(images / "labels.txt")}
    result = datasets.make(images, output, label=label, rejects={"max_fraction": 0.5})
    assert result.catalog.labels == ("dog", "bird")
    assert {each["image/class/label"] for each in datasets.read(output)} == {0}
    assert set(datasets.rejects(output).values()) == {"unknown_label"}
    assert len(datasets.rejects(output)) == 10
    assert result.plan.notes == ("labels of the vocabulary without an image: 1, the first is 'bird'",)
    assert (output / "labels.txt").read_text() == "dog\nbird\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cat\n\ndog\n", r"has an empty line 2; one label a line"),
        ("cat\ndog\ncat\n", r"names 'cat' twice; the ids would be ambiguous"),
        (None, r"label\.vocabulary '.*labels\.txt' cannot be read \(No such file"),
    ],
)
def test_vocabulary_that_is_not_usable_is_refused(
    images: pathlib.Path, output: pathlib.Path, text: str | None, message: str
) -> None:
    if text is not None:
        (images / "labels.txt").write_text(text)
    with pytest.raises(errors.ConfigError, match=message):
        datasets.make(images, output, label={"vocabulary": str(images / "labels.txt")})


# --- the output ------------------------------------------------------------------------------------------------------


def test_gzip_shards_hold_the_same_records_and_no_index(images: pathlib.Path, tmp_path: pathlib.Path) -> None:
    datasets.make(images, tmp_path / "plain", output={"num_shards": 2})
    catalog = datasets.make(images, tmp_path / "gzip", output={"num_shards": 2, "compression": "gzip"}).catalog
    assert [shard.name for shard in catalog.splits["train"].shards] == [
        "train-00000-of-00002.tfrecord.gz",
        "train-00001-of-00002.tfrecord.gz",
    ]
    assert datasets.read(tmp_path / "gzip") == datasets.read(tmp_path / "plain")
    assert not (tmp_path / "gzip" / "dataset_info.json").exists()  # TFDS cannot read compressed shards
    assert not list((tmp_path / "gzip").glob("index/*"))


def test_shuffle_none_keeps_keys_in_order(images: pathlib.Path, output: pathlib.Path) -> None:
    datasets.make(images, output, output={"shuffle": "none", "num_shards": 3})
    assert datasets.keys(output) == sorted(datasets.keys(output))
    assert datasets.shard_sizes(output) == [6, 7, 7]


def test_shuffle_none_keeps_rows_in_order(images: pathlib.Path, output: pathlib.Path) -> None:
    rows = make_rows(images)[::-1]
    recipe_sets.rows_of(images / "table.csv", rows)
    sections = {"source": {"by": "manifest"}, "label": {"by": "none"}}
    datasets.make(images / "table.csv", output, output={"shuffle": "none", "num_shards": 3}, **sections)
    assert datasets.keys(output) == [row["image"] for row in rows]


def test_shuffle_hash_mixes_labels_and_follows_the_seed(images: pathlib.Path, tmp_path: pathlib.Path) -> None:
    for seed in (0, 1):
        datasets.make(images, tmp_path / f"out{seed}", split={"seed": seed})
    orders = [datasets.keys(tmp_path / f"out{seed}") for seed in (0, 1)]
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1])
    assert orders[0] != sorted(orders[0])


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_writer_beam_holds_the_same_images(images: pathlib.Path, output: pathlib.Path, compression: str) -> None:
    split = {"by": "hash", "fractions": FRACTIONS}
    wanted = {"writer": "beam", "num_shards": {"train": 2, "test": 1}, "compression": compression}
    (images / "cat" / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0broken")
    datasets.make(images, output, split=split, output=wanted, rejects={"max_fraction": 0.1})
    assert [len(datasets.shard_sizes(output, name)) for name in FRACTIONS] == [2, 1]
    found = {
        each["image/key"].decode(): each["image/encoded"] for name in FRACTIONS for each in datasets.read(output, name)
    }
    assert found == {
        f"{path.parent.name}/{path.name}": path.read_bytes() for path in images.glob("*/*") if path.name != "broken.jpg"
    }
    assert list(datasets.rejects(output)) == ["cat/broken.jpg"]


@pytest.mark.parametrize(
    ("wanted", "sizes"),
    [
        pytest.param({}, [20], id="default-of-a-small-set"),
        pytest.param({"num_shards": 3}, [6, 7, 7], id="num-shards"),
        pytest.param({"num_shards": {"train": 2}}, [10, 10], id="by-split"),
        pytest.param({"num_shards": 25}, None, id="more-than-images"),
        pytest.param({"examples_per_shard": 8}, [6, 7, 7], id="examples-per-shard"),
        pytest.param({"target_shard_bytes": "4kB"}, [5, 5, 5, 5], id="target-bytes"),
    ],
)
def test_shards_are_equal_to_within_one(
    images: pathlib.Path, output: pathlib.Path, wanted: dict[str, Any], sizes: list[int] | None
) -> None:
    result = datasets.make(images, output, output=wanted)
    if sizes is not None:
        assert datasets.shard_sizes(output) == sizes
    else:
        assert sorted(datasets.shard_sizes(output)) == [0] * 5 + [1] * 20
        assert result.plan.notes == ("5 of the 25 shards of train will be empty",)
