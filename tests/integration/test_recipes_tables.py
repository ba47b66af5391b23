"""Captions, several classes and targets from tables, read back as a training script does: plain TensorFlow."""

from __future__ import annotations

import csv
import io
import json
import pathlib
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from imagebeam import catalog as catalog_lib
from imagebeam import errors
from imagebeam.pipelines import convert, open_source
from imagebeam.pipelines.config import model as config_lib
from tests import datasets, image_sets, parsed_records

Row = Mapping[str, Any]
Parsed = dict[str, dict[str, Any]]

CAPTIONS = {"image/caption": tf.io.VarLenFeature(tf.string)}
CLASSES = {"image/class/label": tf.io.VarLenFeature(tf.int64), "image/class/text": tf.io.VarLenFeature(tf.string)}
ALWAYS = {
    "image/encoded": tf.io.FixedLenFeature([], tf.string),
    "image/key": tf.io.FixedLenFeature([], tf.string),
}


def write_table(folder: pathlib.Path, name: str, rows: Sequence[Row]) -> pathlib.Path:
    """Writes a table and the images that it names."""
    for path in {str(row["image"]) for row in rows}:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(image_sets.make_image(sum(path.encode())))
    table = folder / name
    if table.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(rows)), table)
    elif table.suffix == ".jsonl":
        table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
        table.write_text(text.getvalue(), "utf-8")
    return table


def convert_preset(preset: str, table: pathlib.Path, output: pathlib.Path, *overrides: str) -> convert.ConvertResult:
    one_split = () if any(each.startswith("split") for each in overrides) else ("split={by: none}",)
    config = config_lib.load_config(
        preset, [f"source.uri={table}", f"output.uri={output}", "rejects.max_fraction=0.9", *one_split, *overrides]
    )
    return convert.convert(config, workers=1)


def read(output: pathlib.Path, spec: Mapping[str, Any], split: str = "train") -> Parsed:
    """Returns the records of a split by their keys, as TensorFlow parses them: lists as lists."""
    found: Parsed = {}
    for values in parsed_records.parse(output.glob(f"{split}-*-of-*"), {**ALWAYS, **spec}):
        key = values["image/key"].decode()
        assert key not in found
        found[key] = values
    return found


def details(output: pathlib.Path) -> dict[str, tuple[str, str]]:
    lines = map(json.loads, (output / "rejects.jsonl").read_text().splitlines())
    return {line["key"]: (line["reason"], line["detail"]) for line in lines}


# Captions

SAID = {
    "a.jpg": ["A child in a pink dress.", "A girl, going \u201cin\u201d.", "Ein M\u00e4dchen."],
    "b/2.jpg": ["One caption alone, with a comma."],
    "c.jpg": [],
    "d.jpg": ["twice", "twice"],
}


@pytest.mark.parametrize("name", ["captions.jsonl", "captions.parquet"])
def test_list_of_captions_is_a_list_of_bytes(tmp_path: pathlib.Path, name: str) -> None:
    table = write_table(tmp_path / "in", name, [{"image": key, "captions": said} for key, said in SAID.items()])
    result = convert_preset("captions", table, tmp_path / "out")
    found = read(tmp_path / "out", CAPTIONS)
    assert {key: [each.decode() for each in values["image/caption"]] for key, values in found.items()} == SAID
    for key, values in found.items():
        assert values["image/encoded"] == (tmp_path / "in" / key).read_bytes()
    assert result.catalog.counts == catalog_lib.Counts(4, 4, {}, {})
    assert [feature.key for feature in result.catalog.features if feature.many] == ["image/caption"]


@pytest.mark.parametrize("name", ["captions.csv", "captions.jsonl", "captions.parquet"])
def test_row_for_each_caption_becomes_one_example_of_an_image(tmp_path: pathlib.Path, name: str) -> None:
    rows = [
        {"image": key, "comment_number": number, "caption": caption, "set": "train"}
        for key, said in SAID.items()
        for number, caption in enumerate(said or [""])
    ]
    table = write_table(tmp_path / "in", name, rows)
    result = convert_preset(
        "captions",
        table,
        tmp_path / "out",
        "columns={caption: {list: true}}",
        "features={columns/caption: image/caption}",
        "split={by: column, column: set}",
    )
    found = read(tmp_path / "out", CAPTIONS)
    assert {key: [each.decode() for each in values["image/caption"]] for key, values in found.items()} == SAID
    assert result.catalog.counts == catalog_lib.Counts(4, 4, {}, {})


def test_captions_of_an_image_stay_in_one_split(tmp_path: pathlib.Path) -> None:
    rows = [{"image": f"{index}.jpg", "captions": f"{index} {number}"} for index in range(60) for number in range(3)]
    table = write_table(tmp_path / "in", "captions.csv", rows)
    convert_preset("captions", table, tmp_path / "out", "split.seed=1")
    splits = [read(tmp_path / "out", CAPTIONS, split) for split in ("train", "validation")]
    assert min(map(len, splits)) > 0
    found = {key: values["image/caption"] for split in splits for key, values in split.items()}
    assert found == {f"{index}.jpg": [f"{index} {number}".encode() for number in range(3)] for index in range(60)}


def test_rows_of_an_image_that_do_not_follow_each_other_name_the_remedy(tmp_path: pathlib.Path) -> None:
    rows = [{"image": name, "captions": "x"} for name in ("a.jpg", "a.jpg", "b.jpg", "a.jpg")]
    table = write_table(tmp_path / "in", "captions.csv", rows)
    with pytest.raises(errors.ConfigError, match=r"have the key 'a.jpg': .*sort them by image and set .*merge_rows"):
        convert_preset("captions", table, tmp_path / "out")


def test_rows_of_an_image_that_contradict_each_other_are_one_reject(tmp_path: pathlib.Path) -> None:
    rows = [
        {"image": "a.jpg", "captions": "1", "set": "train"},
        {"image": "a.jpg", "captions": "2", "set": "test"},
        {"image": "a.jpg", "captions": "3", "set": "train"},
        {"image": "b.jpg", "captions": "4", "set": "train"},
    ]
    table = write_table(tmp_path / "in", "captions.csv", rows)
    result = convert_preset("captions", table, tmp_path / "out", "split={by: column, column: set}")
    assert result.catalog.counts == catalog_lib.Counts(2, 1, {"bad_row": 1}, {})
    reason, detail = details(tmp_path / "out")["a.jpg"]
    assert reason == "bad_row"
    assert "line 2 and line 3 are of one image, and column 'set' is 'train' in one and 'test' in the other" in detail


def test_broken_line_between_the_rows_of_an_image_is_a_reject_of_its_own(tmp_path: pathlib.Path) -> None:
    lines = ['{"image": "a.jpg", "captions": ["1"]}', "{broken", '{"image": "a.jpg", "captions": "2"}']
    write_table(tmp_path / "in", "captions.jsonl", [{"image": "a.jpg"}])
    (tmp_path / "in" / "captions.jsonl").write_text("\n".join(lines))
    convert_preset("captions", tmp_path / "in" / "captions.jsonl", tmp_path / "out")
    assert read(tmp_path / "out", CAPTIONS)["a.jpg"]["image/caption"] == [b"1", b"2"]
    assert details(tmp_path / "out").keys() == {"line 2"}


def test_captions_with_an_object_in_them_are_a_reject(tmp_path: pathlib.Path) -> None:
    rows = [
        {"image": "a.jpg", "captions": [{"text": "1"}]},
        {"image": "b.jpg", "captions": [["1"]]},
        {"image": "c.jpg", "captions": {"text": "1"}},
        {"image": "d.jpg", "captions": ["1", None, ""]},
    ]
    convert_preset("captions", write_table(tmp_path / "in", "captions.jsonl", rows), tmp_path / "out")
    found = read(tmp_path / "out", CAPTIONS)
    assert {key: values["image/caption"] for key, values in found.items()} == {"d.jpg": [b"1"]}
    assert {key: reason for key, (reason, _) in details(tmp_path / "out").items()} == {
        "a.jpg": "bad_value",
        "b.jpg": "bad_value",
        "c.jpg": "bad_value",
    }
    assert "column 'captions': {'text': '1'} is a dict, expected one value" in details(tmp_path / "out")["a.jpg"][1]


# Several classes

TAGGED = {"1.jpg": ["dog", "cat"], "2.jpg": [], "3.jpg": ["owl"], "4.jpg": ["cat", "owl", "dog"], "5.jpg": ["dog"]}


def expected_classes(tagged: Mapping[str, Sequence[str]], names: Sequence[str], base: int = 0) -> Parsed:
    """Returns what TensorFlow must find: ids ascending, and the names in their order."""
    expected = {}
    for key, tags in tagged.items():
        ids = sorted(names.index(tag) for tag in tags)
        texts = [names[index].encode() for index in ids]
        expected[key] = {"image/class/label": [index + base for index in ids], "image/class/text": texts}
    return expected


def only_classes(found: Parsed) -> Parsed:
    return {key: {name: values[name] for name in CLASSES} for key, values in found.items()}


@pytest.mark.parametrize("base", [0, 1])
def test_column_with_a_separator_gives_ids_and_names(tmp_path: pathlib.Path, base: int) -> None:
    rows = [{"image": key, "labels": " | ".join(tags)} for key, tags in TAGGED.items()]
    table = write_table(tmp_path / "in", "labels.csv", rows)
    result = convert_preset("multilabel", table, tmp_path / "out", f"label.base={base}")
    names = ["cat", "dog", "owl"]
    assert only_classes(read(tmp_path / "out", CLASSES)) == expected_classes(TAGGED, names, base)
    assert result.catalog.labels == tuple(names)
    assert (tmp_path / "out" / "labels.txt").read_text().splitlines() == names
    counted = json.loads((tmp_path / "out" / "statistics.json").read_text())["train"]["labels"]
    assert counted == {"cat": 2, "dog": 3, "owl": 2}
    assert result.catalog.counts == catalog_lib.Counts(5, 5, {}, {})


@pytest.mark.parametrize("name", ["labels.jsonl", "labels.parquet"])
def test_list_of_labels_gives_the_same(tmp_path: pathlib.Path, name: str) -> None:
    rows = [{"image": key, "labels": tags} for key, tags in TAGGED.items()]
    convert_preset("multilabel", write_table(tmp_path / "in", name, rows), tmp_path / "out")
    assert only_classes(read(tmp_path / "out", CLASSES)) == expected_classes(TAGGED, ["cat", "dog", "owl"])


def test_row_for_each_label_gives_the_same(tmp_path: pathlib.Path) -> None:
    rows = [{"image": key, "labels": tag} for key, tags in TAGGED.items() for tag in tags or [""]]
    table = write_table(tmp_path / "in", "labels.csv", rows)
    convert_preset("multilabel", table, tmp_path / "out", "source.manifest.merge_rows=true")
    assert only_classes(read(tmp_path / "out", CLASSES)) == expected_classes(TAGGED, ["cat", "dog", "owl"])


@pytest.mark.parametrize("name", ["list_attr.csv", "list_attr.parquet"])
def test_column_for_each_class_as_celeba_has_them(tmp_path: pathlib.Path, name: str) -> None:
    classes = ["Young", "Bald", "Smiling", "Wearing_Hat"]  # in another order than the alphabet's
    rng = random.Random(7)
    tagged: dict[str, list[str]] = {}
    rows = []
    for index in range(1, 41):
        flags = {each: rng.choice((1, -1)) for each in classes[:3]} | {"Wearing_Hat": -1}
        key = f"{index:06d}.jpg"
        tagged[key] = [each for each, flag in flags.items() if flag == 1]
        rows.append({"image": key, **flags})
    table = write_table(tmp_path / "in", name, rows)
    result = convert_preset(
        "multilabel", table, tmp_path / "out", f"label={{by: columns, columns: [{', '.join(classes)}]}}"
    )
    assert result.catalog.labels == tuple(classes)  # also the one that no image has
    assert only_classes(read(tmp_path / "out", CLASSES)) == expected_classes(tagged, classes)


def test_multi_hot_vector_as_the_recipe_makes_it(tmp_path: pathlib.Path) -> None:
    rows = [{"image": key, "labels": "|".join(tags)} for key, tags in TAGGED.items()]
    convert_preset("multilabel", write_table(tmp_path / "in", "labels.csv", rows), tmp_path / "out")
    num_classes = 3

    def parse(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        parsed = tf.io.parse_single_example(record, {**ALWAYS, **CLASSES})
        ids = tf.sparse.to_dense(parsed["image/class/label"])
        return parsed["image/key"], tf.reduce_sum(tf.one_hot(ids, num_classes), axis=0)

    files = sorted(map(str, (tmp_path / "out").glob("train-*")))
    found = {key.numpy().decode(): vector.numpy() for key, vector in tf.data.TFRecordDataset(files).map(parse)}
    for key, tags in TAGGED.items():
        np.testing.assert_array_equal(found[key], [float(name in tags) for name in ("cat", "dog", "owl")])


def test_label_beyond_the_vocabulary_is_a_reject_or_an_error(tmp_path: pathlib.Path) -> None:
    rows = [{"image": key, "labels": "|".join(tags)} for key, tags in TAGGED.items()]
    table = write_table(tmp_path / "in", "labels.csv", rows)
    (tmp_path / "names.txt").write_text("owl\nfox\ndog\n")
    vocabulary = f"label.vocabulary={tmp_path / 'names.txt'}"
    result = convert_preset("multilabel", table, tmp_path / "out", vocabulary)
    kept = {key: tags for key, tags in TAGGED.items() if "cat" not in tags}
    names = ["owl", "fox", "dog"]
    assert only_classes(read(tmp_path / "out", CLASSES)) == expected_classes(kept, names)
    assert result.catalog.labels == tuple(names)
    assert details(tmp_path / "out") == {
        key: ("unknown_label", "label 'cat' is not in label.vocabulary") for key in ("1.jpg", "4.jpg")
    }
    with pytest.raises(errors.ConfigError, match=r"1.jpg: label 'cat' is not in label.vocabulary; add it there"):
        convert_preset("multilabel", table, tmp_path / "two", vocabulary, "label.unknown=error")


def test_flag_that_is_neither_is_a_reject_that_names_its_column(tmp_path: pathlib.Path) -> None:
    rows = [{"image": f"{flag}.jpg", "Bald": flag, "Young": 1} for flag in ("1", "0", "yes", "")]
    table = write_table(tmp_path / "in", "labels.csv", rows)
    convert_preset("multilabel", table, tmp_path / "out", "label={by: columns, columns: [Bald, Young]}")
    assert set(read(tmp_path / "out", CLASSES)) == {"1.jpg", "0.jpg"}
    found = details(tmp_path / "out")
    assert found["yes.jpg"][0] == "bad_value" and "column 'Bald': 'yes' is neither 1" in found["yes.jpg"][1]


def test_several_classes_load_with_tensorflow_datasets(tmp_path: pathlib.Path) -> None:
    tfds = pytest.importorskip("tensorflow_datasets")
    rows = [{"image": key, "labels": "|".join(tags)} for key, tags in TAGGED.items()]
    convert_preset("multilabel", write_table(tmp_path / "in", "labels.csv", rows), tmp_path / "out", "label.base=1")
    builder = tfds.builder_from_directory(tmp_path / "out")
    names = ["background", "cat", "dog", "owl"]
    assert builder.info.features["image/class/label"].feature.names == names
    found = {each["image/key"].numpy().decode(): each for each in builder.as_dataset("train")}
    assert found.keys() == TAGGED.keys()
    for key, tags in TAGGED.items():
        ids = found[key]["image/class/label"].numpy().tolist()
        assert [names[index] for index in ids] == sorted(tags)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["split.stratify=true", "split.seed=3"], "split.stratify needs one class for each image"),
        (["label={by: columns, columns: [a, b, a]}"], "label.columns names 'a' twice"),
        (["label={by: columns}"], "label.by: columns and label.columns go together"),
        (["label.type=float"], "label.separator needs label.by: column and label.type: class"),
        (["source.by=files"], "label.by: column needs source.by: manifest"),
    ],
)
def test_impossible_config_of_several_classes_is_refused_at_once(overrides: list[str], message: str) -> None:
    with pytest.raises(errors.ConfigError, match=message):
        config_lib.load_config("multilabel", overrides)


# Targets


def float32(value: float) -> float:
    return float(np.float32(value))


@pytest.mark.parametrize("name", ["targets.csv", "targets.jsonl", "targets.parquet"])
def test_target_and_more_of_them_are_floats(tmp_path: pathlib.Path, name: str) -> None:
    rng = random.Random(3)
    rows = [
        {"image": f"{index}.jpg", "age": rng.gauss(40, 20), "x": rng.random(), "y": -1e-7 * index, "beds": index}
        for index in range(30)
    ]
    result = convert_preset(
        "regression",
        write_table(tmp_path / "in", name, rows),
        tmp_path / "out",
        "label.column=age",
        "columns={x: {type: float}, y: {type: float}, beds: {type: int}}",
        "features={columns/x: target/x}",
        "split={by: hash, fractions: {train: 0.8, test: 0.2}}",
    )
    spec = {
        "image/class/label": tf.io.FixedLenFeature([], tf.float32),
        "target/x": tf.io.FixedLenFeature([], tf.float32),
        "y": tf.io.FixedLenFeature([], tf.float32),
        "beds": tf.io.FixedLenFeature([], tf.int64),
    }
    found = {**read(tmp_path / "out", spec), **read(tmp_path / "out", spec, "test")}
    assert {key: {name: values[name] for name in spec} for key, values in found.items()} == {
        row["image"]: {
            "image/class/label": float32(row["age"]),
            "target/x": float32(row["x"]),
            "y": float32(row["y"]),
            "beds": row["beds"],
        }
        for row in rows
    }
    assert result.catalog.label_kind == "float" and result.catalog.labels == ()
    assert not (tmp_path / "out" / "labels.txt").exists()
    assert "image/class/text" not in [feature.key for feature in result.catalog.features]


MISSING = ["", "nan", "NaN", "inf", "-Infinity", "1e39", "old", "1,5"]


def test_target_that_is_no_finite_number_is_a_reject(tmp_path: pathlib.Path) -> None:
    rows = [{"image": f"{index}.jpg", "target": text} for index, text in enumerate(["0.5", *MISSING])]
    convert_preset("regression", write_table(tmp_path / "in", "targets.csv", rows), tmp_path / "out")
    found = read(tmp_path / "out", {"image/class/label": tf.io.FixedLenFeature([], tf.float32)})
    assert {key: values["image/class/label"] for key, values in found.items()} == {"0.jpg": 0.5}
    reasons = [details(tmp_path / "out")[f"{index}.jpg"][0] for index in range(1, len(rows))]
    assert reasons == ["no_label"] + ["bad_value"] * (len(MISSING) - 1)


@pytest.mark.parametrize("name", ["targets.jsonl", "targets.parquet"])
def test_nan_and_null_of_typed_tables_are_rejects(tmp_path: pathlib.Path, name: str) -> None:
    values = [0.5, float("nan"), None, float("inf")]
    rows = [{"image": f"{index}.jpg", "target": value, "x": 1.0} for index, value in enumerate(values)]
    rows += [{"image": f"x{index}.jpg", "target": 1.0, "x": value} for index, value in enumerate(values)]
    table = write_table(tmp_path / "in", name, rows)
    convert_preset("regression", table, tmp_path / "out", "columns={x: {type: float}}")
    spec = {name: tf.io.FixedLenFeature([], tf.float32) for name in ("image/class/label", "x")}
    assert set(read(tmp_path / "out", spec)) == {"0.jpg", "x0.jpg"}
    assert {key: reason for key, (reason, _) in details(tmp_path / "out").items()} == {
        "1.jpg": "no_label",
        "2.jpg": "no_label",
        "3.jpg": "bad_value",
        "x1.jpg": "bad_value",
        "x2.jpg": "bad_value",
        "x3.jpg": "bad_value",
    }


def test_missing_value_of_a_column_is_what_the_config_says(tmp_path: pathlib.Path) -> None:
    rows = [{"image": f"{index}.jpg", "target": 1, "x": text} for index, text in enumerate(["0.25", *MISSING])]
    table = write_table(tmp_path / "in", "targets.csv", rows)
    spec = {"x": tf.io.FixedLenFeature([], tf.float32)}
    missing = [f"{index}.jpg" for index in range(1, len(rows))]
    convert_preset("regression", table, tmp_path / "reject", "columns={x: {type: float}}")
    assert set(read(tmp_path / "reject", spec)) == {"0.jpg"}
    assert datasets.rejects(tmp_path / "reject") == dict.fromkeys(missing, "bad_value")
    convert_preset(
        "regression", table, tmp_path / "default", "columns={x: {type: float, missing: default, default: -1}}"
    )
    found = read(tmp_path / "default", spec)
    assert {key: values["x"] for key, values in found.items()} == {"0.jpg": 0.25} | dict.fromkeys(missing, -1.0)
    with pytest.raises(errors.ConfigError, match=r"line 3 of .*targets.csv: column 'x'.*columns.x.missing is error"):
        convert_preset("regression", table, tmp_path / "error", "columns={x: {type: float, missing: error}}")
    assert not (tmp_path / "error" / catalog_lib.CATALOG_FILE).exists()


@pytest.mark.parametrize("text", MISSING)
def test_missing_value_is_an_error_where_the_config_says_so(tmp_path: pathlib.Path, text: str) -> None:
    rows = [{"image": "1.jpg", "target": 1, "x": "0.25"}, {"image": "2.jpg", "target": 1, "x": text}]
    table = write_table(tmp_path / "in", "targets.csv", rows)
    columns = "columns={x: {type: float, missing: error}}"
    config = config_lib.load_config("regression", [f"source.uri={table}", f"output.uri={tmp_path / 'out'}", columns])
    [problem] = [problem for listing in open_source.make_source(config).list_all() for problem in listing.problems]
    assert re.search(r"line 3 of .*targets.csv: column 'x'.*columns.x.missing is error", problem)


def test_list_of_numbers_with_a_gap_is_a_reject(tmp_path: pathlib.Path) -> None:
    rows = [
        {"image": "1.jpg", "target": 1, "xs": [0.5, 1]},
        {"image": "2.jpg", "target": 1, "xs": [0.5, None]},
        {"image": "3.jpg", "target": 1, "xs": [float("nan")]},
        {"image": "4.jpg", "target": 1, "xs": []},
    ]
    table = write_table(tmp_path / "in", "targets.jsonl", rows)
    convert_preset("regression", table, tmp_path / "out", "columns={xs: {type: float, list: true}}")
    found = read(tmp_path / "out", {"xs": tf.io.VarLenFeature(tf.float32)})
    assert {key: values["xs"] for key, values in found.items()} == {"1.jpg": [0.5, 1.0], "4.jpg": []}
    assert {key: reason for key, (reason, _) in details(tmp_path / "out").items()} == {
        "2.jpg": "bad_value",
        "3.jpg": "bad_value",
    }


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["columns={x: {missing: default}}"], "missing: default and default go together"),
        (["columns={x: {type: float, missing: default, default: a}}"], "default of type: float: 'a' is not a finite"),
        (["columns={x: {type: float, missing: default, default: .nan}}"], "'nan' is not a finite"),
        (["columns={x: {list: true, missing: default, default: a}}"], "missing: default is for single values"),
        (["label.vocabulary=x.txt"], "need classes"),
        (["split.stratify=true"], "split.stratify needs classes"),
        (["source.manifest.merge_rows=true"], "merge_rows puts lists together"),
    ],
)
def test_impossible_config_of_targets_is_refused_at_once(overrides: list[str], message: str) -> None:
    with pytest.raises(errors.ConfigError, match=message):
        config_lib.load_config("regression", overrides)


def test_missing_column_is_named_before_anything_is_read(tmp_path: pathlib.Path) -> None:
    table = write_table(tmp_path / "in", "targets.csv", [{"image": "1.jpg", "price": 1}])
    with pytest.raises(errors.ConfigError, match="has no column 'target'; its columns are 'image', 'price'"):
        convert_preset("regression", table, tmp_path / "out")
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


def test_dataset_of_each_preset_is_the_same_again(tmp_path: pathlib.Path) -> None:
    rows = [{"image": key, "labels": "|".join(tags)} for key, tags in TAGGED.items()]
    table = write_table(tmp_path / "in", "labels.csv", rows)
    first = convert_preset("multilabel", table, tmp_path / "out")
    assert convert_preset("multilabel", table, tmp_path / "out").state == "kept"
    text = table.read_text().replace("cat | dog", "x").replace("dog|cat", "dog")
    table.write_text(text)
    second = convert_preset("multilabel", table, tmp_path / "two")
    assert first.catalog.fingerprint != second.catalog.fingerprint
    assert datasets.shard_digests(tmp_path / "out") != datasets.shard_digests(tmp_path / "two")
