"""Columns that tf.Transform transforms: what is in the records, and that serving gets the same numbers."""

from __future__ import annotations

import collections
import csv
import functools
import json
import math
import pathlib
import random
import re
import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from imagebeam import catalog as catalog_lib
from imagebeam import errors, storage
from imagebeam.pipelines import convert
from tests import command_line, datasets, image_sets, job_graphs

tft = pytest.importorskip("tensorflow_transform")

NUM_TRAIN, NUM_TEST = 200, 40
CITIES = {"Rome": 80, "Oslo": 50, "Bonn": 50, "Lima": 20}  # in the train split; two as often as each other
COLUMNS = {
    "age": {"type": "float", "transform": "z_score"},
    "weight": {"type": "int", "transform": "z_score"},
    "height": {"type": "float", "transform": "scale_0_1"},
    "price (EUR)/kg": {"type": "float", "transform": "log"},
    "year": {"type": "int", "transform": "bucketize", "buckets": 4},
    "city": {"transform": "vocabulary", "top_k": 3},
    "town": {"transform": "vocabulary", "top_k": 1, "num_oov_buckets": 5},
    "word": {"transform": "vocabulary"},
    "same": {"type": "float", "transform": "z_score"},
    "alike": {"type": "float", "transform": "scale_0_1"},
    "equal": {"type": "int", "transform": "bucketize", "buckets": 3},
    "note": {},
}
FLOATS = ("age", "weight", "height", "price (EUR)/kg", "same", "alike")
SECTIONS: dict[str, Any] = {
    "source": {"by": "manifest", "manifest": {"key": "id"}},
    "label": {"by": "none"},
    "split": {"by": "column", "column": "part"},
    "output": {"num_shards": 3},
    "columns": COLUMNS,
}
SMALL = SECTIONS | {"columns": {"city": COLUMNS["city"]}}

Row = dict[str, str]


def make_rows() -> list[Row]:
    """Returns a table with all kinds of columns; the values of the test split differ from those of the train split."""
    rng = random.Random(7)
    cities = [name for name, count in CITIES.items() for _ in range(count)]
    years = list(range(1800, 1800 + NUM_TRAIN))
    rng.shuffle(cities)
    rng.shuffle(years)
    rows = []
    for index in range(NUM_TRAIN + NUM_TEST):
        train = index < NUM_TRAIN
        city = cities[index] if train else "Nome"
        rows.append(
            {
                "id": f"{index:04}",
                "image": f"{index % 5}.jpg",
                "part": "train" if train else "test",
                "age": repr(rng.gauss(40, 12) if train else rng.gauss(400, 1)),
                "weight": str(rng.randrange(50, 100) if train else 10_000),
                "height": repr(rng.uniform(1.4, 2.1) if train else 2.8),
                "price (EUR)/kg": repr(rng.lognormvariate(1, 2)),
                "year": str(years[index] if train else 1700 + 10 * (index - NUM_TRAIN)),
                "city": city,
                "town": city,
                "word": city,
                "same": "0.1",  # its mean of 200 is not exactly that
                "alike": "-7.3" if train else "5",
                "equal": "5",
                "note": "as it is",
            }
        )
    return rows


def write_table(folder: pathlib.Path, rows: list[Row]) -> pathlib.Path:
    folder.mkdir()
    for index in range(5):
        (folder / f"{index}.jpg").write_bytes(image_sets.make_image(index))
    write_rows(folder / "table.csv", rows)
    return folder / "table.csv"


def write_rows(table: pathlib.Path, rows: list[Row]) -> None:
    with open(table, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return make_rows()


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory, rows: list[Row]) -> pathlib.Path:
    return write_table(tmp_path_factory.mktemp("columns") / "in", rows)


@pytest.fixture(scope="module")
def output(table: pathlib.Path) -> pathlib.Path:
    """The dataset, which no test changes."""
    datasets.make(table, table.parents[1] / "out", **SECTIONS)
    return table.parents[1] / "out"


@functools.cache  # of datasets that no test changes
def read(output: pathlib.Path, split: str) -> dict[str, dict[str, Any]]:
    """Returns the transformed columns of a split by the image's key, read by TensorFlow alone."""
    spec = {name: tf.io.FixedLenFeature([], tf.float32 if name in FLOATS else tf.int64) for name in COLUMNS}
    spec |= {"note": tf.io.FixedLenFeature([], tf.string), "image/key": tf.io.FixedLenFeature([], tf.string)}
    shards = tf.data.TFRecordDataset(sorted(map(str, output.glob(f"{split}-*.tfrecord"))))
    parsed = tf.io.parse_example(list(shards), spec)
    columns = {name: values.numpy() for name, values in parsed.items()}
    return {
        key.decode(): {name: values[index] for name, values in columns.items()}
        for index, key in enumerate(columns["image/key"])
    }


def column(rows: list[Row], name: str, split: str | None = "train") -> Any:
    """Returns a column as serving sees it: 32-bit numbers, computed with in 64 bits."""
    return np.array([np.float32(row[name]) for row in rows if split in (None, row["part"])], np.float64)


def stored(rows: list[Row], output: pathlib.Path, name: str, split: str = "train") -> Any:
    examples = read(output, split)
    return np.array([examples[row["id"]][name] for row in rows if row["part"] == split])


# --- each transform --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", ["train", "test"])
def test_numbers_are_scaled_by_what_the_train_split_holds(rows: list[Row], output: pathlib.Path, split: str) -> None:
    for name in ("age", "weight"):
        analysed, values = column(rows, name), column(rows, name, split)
        expected = (values - analysed.mean()) / analysed.std()
        np.testing.assert_allclose(stored(rows, output, name, split), expected, rtol=3e-7)
    low, high = column(rows, "height").min(), column(rows, "height").max()
    heights = stored(rows, output, "height", split)
    np.testing.assert_allclose(heights, (column(rows, "height", split) - low) / (high - low), rtol=3e-7)
    assert (heights.min(), heights.max()) == (0.0, 1.0) if split == "train" else heights.min() > 1.5
    expected = np.log(column(rows, "price (EUR)/kg", split))
    np.testing.assert_allclose(stored(rows, output, "price (EUR)/kg", split), expected, rtol=3e-7, atol=1e-7)
    assert set(stored(rows, output, "alike", split)) == {0.0}  # columns of one value
    assert set(stored(rows, output, "same", split)) == {0.0} and set(stored(rows, output, "equal", split)) == {2}
    assert {example["note"] for example in read(output, split).values()} == {b"as it is"}


def test_bucketize_gives_quarters_whose_lower_bound_is_theirs(rows: list[Row], output: pathlib.Path) -> None:
    found = dict(zip(column(rows, "year"), stored(rows, output, "year")))
    assert found == {1800.0 + index: index * 4 // NUM_TRAIN for index in range(NUM_TRAIN)}
    outside = dict(zip(column(rows, "year", "test"), stored(rows, output, "year", "test")))
    assert outside[1700.0] == 0 and outside[2090.0] == 3


def test_vocabulary_is_ordered_by_frequency_then_backwards(rows: list[Row], output: pathlib.Path) -> None:
    names = [row["city"] for row in rows if row["part"] == "train"]
    counts = collections.Counter(zip(names, stored(rows, output, "city").tolist()))
    assert counts == {("Rome", 0): 80, ("Oslo", 1): 50, ("Bonn", 2): 50, ("Lima", -1): 20}
    assert set(stored(rows, output, "city", "test")) == {-1}
    words = set(zip(names, stored(rows, output, "word").tolist()))
    assert words == {("Rome", 0), ("Oslo", 1), ("Bonn", 2), ("Lima", 3)}
    assert (output / "transform_fn/assets/city").read_text() == "Rome\nOslo\nBonn\n"
    towns = set(zip(names, stored(rows, output, "town").tolist()))  # those beyond the vocabulary get an id by hash
    ids = dict(towns)
    assert len(towns) == len(CITIES) and ids.pop("Rome") == 0
    assert all(1 <= each <= 5 for each in (*ids.values(), *stored(rows, output, "town", "test")))


# --- what is analysed ------------------------------------------------------------------------------------------------


def test_analysis_of_all_splits_counts_all_shards(rows: list[Row], table: pathlib.Path, tmp_path: pathlib.Path) -> None:
    sections = SECTIONS | {"columns": {"age": COLUMNS["age"], "city": COLUMNS["city"]}, "output": {"num_shards": 7}}
    datasets.make(table, tmp_path / "out", **sections | {"statistics": {"analyze": "all"}})
    every = column(rows, "age", None)
    found = {
        each["image/key"].decode(): each
        for split in ("train", "test")
        for each in datasets.read(tmp_path / "out", split)
    }
    expected = (every - every.mean()) / every.std()
    np.testing.assert_allclose([found[row["id"]]["age"] for row in rows], expected, rtol=3e-7)
    assert (tmp_path / "out/transform_fn/assets/city").read_text() == "Rome\nOslo\nBonn\n"
    assert {found[row["id"]]["city"] for row in rows if row["city"] == "Nome"} == {-1}


# --- values that need care -------------------------------------------------------------------------------------------

ODD_COLUMNS = {
    "price": {"type": "float", "transform": "log"},
    "filled": {"type": "float", "transform": "scale_0_1", "missing": "default", "default": 11},
    "far": {"type": "float", "transform": "z_score"},
    "dropped": {"type": "int", "transform": "z_score"},
}
ODD_ROWS = [  # id, part, price, filled, far
    ("plain", "train", "1", "1", "1e-30"),
    ("empty", "train", "2.5", "", "2e-30"),
    ("other", "train", "1", "3", "3e-30"),
    ("word", "train", "1", "oops", "2e-30"),
    ("above", "test", "1", "3", "3e38"),
    ("below", "test", "1", "3", "-3e38"),
    *((f"no logarithm {price}", "train", price, "1000", "1") for price in ("0", "-2", "1e-60", "x")),
]


@pytest.fixture
def odd(tmp_path: pathlib.Path) -> pathlib.Path:
    """The dataset of values that need care."""
    names = ("id", "part", "price", "filled", "far")
    rows = [dict(zip(names, values), image="0.jpg", dropped="3") for values in ODD_ROWS]
    features = {"columns/filled": "shop/filled", "columns/dropped": None}
    sections = SECTIONS | {"columns": ODD_COLUMNS, "features": features, "rejects": {"max_fraction": 1}}
    datasets.make(write_table(tmp_path / "in", rows), tmp_path / "out", **sections)
    return tmp_path / "out"


def test_values_that_need_care_are_clamped_filled_rejected_or_renamed(odd: pathlib.Path) -> None:
    def found(name: str, split: str = "train") -> dict[str, float]:
        return {each["image/key"].decode(): each[name] for each in datasets.read(odd, split)}

    largest = float(np.finfo(np.float32).max)
    assert found("far", "test") == {"above": largest, "below": -largest}
    rejected = [row[0] for row in ODD_ROWS if row[0].startswith("no logarithm")]
    assert datasets.rejects(odd) == dict.fromkeys(rejected, "bad_value")
    assert "'-2' has no logarithm; transform: log needs values above 0" in (odd / "rejects.jsonl").read_text()
    assert found("price") == {"plain": 0.0, "empty": pytest.approx(math.log(2.5)), "other": 0.0, "word": 0.0}
    assert max(found("far").values()) == pytest.approx(math.sqrt(2))  # those rejected have 1, and are not analysed
    # the default of missing values is transformed like any other, and the column has another name
    assert found("shop/filled") == {"plain": 0.0, "empty": 1.0, "other": pytest.approx(0.2), "word": 1.0}
    served = tf.saved_model.load(str(odd / "transform_fn")).transform_fn
    names = served({name: tf.constant([3.0]) for name in ("price", "filled", "far")}).keys()
    assert names == {"price", "shop/filled", "far"}
    assert {"filled", "dropped"} & set(datasets.read(odd)[0]) == set()


# --- serving ---------------------------------------------------------------------------------------------------------


def test_job_graph_with_five_transformed_columns_is_below_its_bound(tmp_path: pathlib.Path) -> None:
    # tf.Transform 1.21 itself builds 350 steps for them, 560 KB. Dataflow takes 10 MB.
    columns = {name: COLUMNS[name] for name in ("age", "weight", "height", "year", "city")}
    (tmp_path / "table.csv").write_text("id,image,part,age,weight,height,year,city\n1,1.jpg,train,1,2,3,4,Rome\n")
    source = {**SECTIONS["source"], "uri": str(tmp_path / "table.csv")}
    assert len(job_graphs.graph_of(tmp_path, source=source, label=SECTIONS["label"], columns=columns)) < 800_000


def raw_features(row: Row) -> dict[str, Any]:
    kinds = {"int": (int, tf.int64), "float": (float, tf.float32), "string": (str, tf.string)}
    raw = {}
    for name, options in COLUMNS.items():
        if "transform" in options:
            cast, dtype = kinds[str(options.get("type", "string"))]
            raw[name] = tf.constant([cast(row[name])], dtype)
    return raw


def test_tf_transform_loads_what_lies_beside_the_shards(rows: list[Row], output: pathlib.Path) -> None:
    loaded = tft.TFTransformOutput(str(output))
    kinds = {
        name: tf.float32 if name in FLOATS else tf.int64 for name, options in COLUMNS.items() if "transform" in options
    }
    assert {name: spec.dtype for name, spec in loaded.transformed_feature_spec().items()} == kinds
    assert loaded.vocabulary_size_by_name("city") == 3
    examples = {**read(output, "train"), **read(output, "test")}
    for row in rows[:20] + rows[-5:]:
        for name, values in loaded.transform_raw_features(raw_features(row)).items():
            np.testing.assert_allclose(values.numpy(), [examples[row["id"]][name]], rtol=1e-7)


def test_saved_transform_says_so_where_there_is_no_logarithm(rows: list[Row], output: pathlib.Path) -> None:
    served = tf.saved_model.load(str(output / "transform_fn")).transform_fn
    with pytest.raises(tf.errors.InvalidArgumentError, match="holds a value that has no logarithm: not above 0"):
        served(raw_features(rows[0] | {"price (EUR)/kg": "-1"}))


# --- the same bytes, whole or not at all -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small_output(table: pathlib.Path) -> pathlib.Path:
    """The dataset of one column, which no test changes."""
    result = datasets.make(table, table.parents[1] / "small", **SMALL)
    assert result.state == "committed"
    return table.parents[1] / "small"


@pytest.fixture(scope="module")
def table_in_another_order(
    rows: list[Row], table: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> pathlib.Path:
    """The rows in another order, with the same image files."""
    folder = tmp_path_factory.mktemp("another-order") / "in"
    another = write_table(folder, random.Random(3).sample(rows, len(rows)))
    for image in table.parent.glob("*.jpg"):
        (folder / image.name).unlink()
        (folder / image.name).hardlink_to(image)
    return another


@pytest.mark.slow
def test_several_beam_workers_and_rows_in_another_order_and_fewer_columns_give_the_same_values(
    table_in_another_order: pathlib.Path, output: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    names = ("age", "year", "height", "city")  # one of each analysis
    config = {**SECTIONS, "source": {**SECTIONS["source"], "uri": str(table_in_another_order)}}
    config |= {"output": {"num_shards": 3, "uri": str(tmp_path / "out")}}
    config |= {"columns": {name: COLUMNS[name] for name in names}}
    convert.convert(config, ["--direct_running_mode=multi_processing", "--direct_num_workers=2"])
    together, alone = datasets.read(output), datasets.read(tmp_path / "out")
    expected = [{name: each[name] for name in ("image/key", *names)} for each in together]  # in the order of the shards
    assert [{name: each[name] for name in ("image/key", *names)} for each in alone] == expected
    assert datasets.shard_sizes(tmp_path / "out") == datasets.shard_sizes(output)
    cities = "transform_fn/assets/city"
    assert (tmp_path / "out" / cities).read_bytes() == (output / cities).read_bytes()


def test_second_run_keeps_a_lost_file_is_damage_that_overwrite_mends_and_removes(
    table: pathlib.Path, small_output: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    assert datasets.make(table, small_output, **SMALL).state == "kept"
    shutil.copytree(small_output, tmp_path / "out")
    (tmp_path / "out/transform_fn/saved_model.pb").unlink()
    with pytest.raises(
        errors.ConfigError, match=r"transform_fn/saved_model.pb is missing; --overwrite writes it again"
    ):
        datasets.make(table, tmp_path / "out", **SMALL)
    assert (tmp_path / "out/transform_fn/assets/city").exists()
    # another column, so that what is there was written by this run
    datasets.make(table, tmp_path / "out", overwrite=True, **SECTIONS | {"columns": {"age": COLUMNS["age"]}})
    assert set(tft.TFTransformOutput(str(tmp_path / "out")).transformed_feature_spec()) == {"age"}
    assert not (tmp_path / "out/transform_fn/assets/city").exists()
    plain = datasets.make(table, tmp_path / "out", overwrite=True, **SECTIONS | {"columns": {"city": {}}})
    left = [*plain.catalog.files, *(path.name for path in (tmp_path / "out").iterdir())]
    assert not [name for name in left if name.startswith("transform")]


def test_output_with_a_foreign_transform_is_refused(table: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (tmp_path / "out/transform_fn").mkdir(parents=True)
    config = {**SMALL, "source": {**SMALL["source"], "uri": str(table)}, "output": {"uri": str(tmp_path / "out")}}
    found = convert.plan(config)  # runs no transform; test_convert_again.py proves that `convert` refuses such plans
    assert found.action == "refuse"
    assert "holds transform_fn, which no catalog.json names" in found.message


@pytest.fixture
def memory() -> Iterator[str]:
    store = storage.storage_of("memory://columns")
    store.write_whole("memory://columns/there", b"")
    yield "memory://columns/out"
    store.remove_tree("memory://columns")


def test_output_on_any_storage_has_the_transform(table: pathlib.Path, memory: str, tmp_path: pathlib.Path) -> None:
    config = {**SECTIONS, "source": {**SECTIONS["source"], "uri": str(table)}}
    result = convert.convert(
        {**config, "output": {"num_shards": 3, "uri": memory}, "columns": {"city": COLUMNS["city"]}},
        ["--direct_running_mode=multi_threading"],
    )
    store = storage.storage_of(memory)
    for name, file in result.catalog.files.items():
        copy = tmp_path / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(store.read(storage.join(memory, name)))
        assert copy.stat().st_size == file.bytes
    served = tf.saved_model.load(str(tmp_path / "transform_fn")).transform_fn
    assert served({"city": tf.constant(["Bonn", "Nome"])})["city"].numpy().tolist() == [2, -1]


# --- what it costs others --------------------------------------------------------------------------------------------

_LOADED = """
import json, sys
from imagebeam.pipelines import convert
convert.convert(json.loads(sys.argv[1]), workers=1)
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def test_config_without_transforms_imports_no_tensorflow(table: pathlib.Path, tmp_path: pathlib.Path) -> None:
    config = {**SECTIONS, "source": {**SECTIONS["source"], "uri": str(table)}}
    config |= {"output": {"uri": str(tmp_path / "out")}, "columns": {"age": {"type": "float"}, "city": {}}}
    loaded = set(command_line.finish(command_line.start_program(_LOADED, json.dumps(config)), 0).stdout.split())
    assert "apache_beam" in loaded
    assert loaded & {"tensorflow", "tensorflow_transform", "tfx_bsl"} == set()


@pytest.mark.slow
def test_command_line_transforms_and_plans_the_same(table: pathlib.Path, tmp_path: pathlib.Path) -> None:
    config = {**SECTIONS, "source": {**SECTIONS["source"], "uri": str(table)}, "columns": {"age": COLUMNS["age"]}}
    (tmp_path / "config.json").write_text(json.dumps(config))  # which is YAML too
    arguments = ("--config", tmp_path / "config.json", "--output", tmp_path / "out")
    before = command_line.succeed("plan", *arguments).stdout
    shown = command_line.succeed("convert", *arguments).stderr.splitlines()
    assert re.fullmatch(r"imagebeam \S+ on FnApiRunner, tf\.Transform \d\S+", shown[0])
    progress = r"(listing images|tf\.Transform analyses the columns|shards \d).*"
    assert [line for line in shown[1:] if not re.fullmatch(progress, line)] == []  # nothing of TensorFlow's
    catalog = catalog_lib.load_catalog(str(tmp_path / "out"))
    assert catalog.fingerprint in before
    assert "transform_fn/saved_model.pb" in catalog.files


def test_update_transforms_new_rows_by_the_first_snapshot(rows: list[Row], tmp_path: pathlib.Path) -> None:
    first = rows[: NUM_TRAIN // 2]
    table = write_table(tmp_path / "in", first)
    config = SECTIONS | {"columns": {"age": COLUMNS["age"]}}
    config |= {"source": SECTIONS["source"] | {"uri": str(table)}, "output": {"uri": str(tmp_path / "out")}}
    convert.convert(config, workers=1, update=True)
    write_rows(table, rows[:NUM_TRAIN])
    result = convert.convert(config, workers=1, update=True)
    assert (result.plan.snapshot["added"], result.plan.snapshot["unchanged"]) == (NUM_TRAIN // 2, NUM_TRAIN // 2)
    folders = [tmp_path / "out" / "snapshots" / name for name in ("000001", "000002")]
    known = np.array([float(row["age"]) for row in first])
    spec = {"age": tf.io.FixedLenFeature([], tf.float32), "image/key": tf.io.FixedLenFeature([], tf.string)}
    shards = tf.data.TFRecordDataset([str(path) for folder in folders for path in folder.glob("*.tfrecord")])
    found = tf.io.parse_example(list(shards), spec)
    ages = dict(zip((key.decode() for key in found["image/key"].numpy()), found["age"].numpy(), strict=True))
    expected = {row["id"]: (float(row["age"]) - known.mean()) / known.std() for row in rows[:NUM_TRAIN]}
    assert ages.keys() == expected.keys()
    np.testing.assert_allclose([ages[key] for key in expected], list(expected.values()), rtol=1e-5, atol=1e-6)
    assert len({(folder / "transform_fn/saved_model.pb").read_bytes() for folder in folders}) == 1
