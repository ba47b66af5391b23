from __future__ import annotations

import json
import pathlib
import shutil
from typing import Any

import pytest

import imagebeam
from imagebeam import errors, features
from imagebeam.pipelines import bench_reader, convert
from tests import case_tables, datasets, image_sets, written_files
from tests.unit.imagebeam.reader import written

pytest.importorskip("tensorflow")

STAGES = ["read", "parse", "decode"]


def make(tmp_path: pathlib.Path, per_label: int = 5, **sections: Any) -> pathlib.Path:
    """Writes a dataset of a few JPEGs and PNGs."""
    image_sets.write_folder(tmp_path / "in", per_label=per_label)
    datasets.make(tmp_path / "in", tmp_path / "out", **sections)
    return tmp_path / "out"


@pytest.fixture(scope="module")
def pets(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Ten images; read only."""
    return make(tmp_path_factory.mktemp("pets"))


def run(directory: pathlib.Path, split: str = "train", **options: Any) -> bench_reader.BenchResult:
    options = {"batch_size": 4, "image_size": 16, "dtype": "bfloat16", "seconds": 0.002, "threads": 2, **options}
    return bench_reader.run_bench(imagebeam.open_dataset(str(directory)), split, **options)


def make_result(together: float = 1450.0, **stages: float) -> bench_reader.BenchResult:
    """Returns the measurement of a host with these rates of the stages, in images per second."""
    rates = {"read": 9900.0, "parse": 33000.0, "decode": 1980.0, **stages}
    return bench_reader.BenchResult(
        dataset="/data/cats",
        split="train",
        num_examples=1000,
        mean_record_bytes=100_000,
        batch_size=128,
        image_size=224,
        dtype="bfloat16",
        threads=2,
        decoder="libjpeg-turbo 2.1.5",
        stages={name: bench_reader.Speed((rate,)) for name, rate in rates.items()},
        together=bench_reader.Speed((together,)),
    )


def speeds_of(result: bench_reader.BenchResult) -> dict[str, float]:
    return {name: speed.images_per_second for name, speed in result.stages.items()}


# --- measuring -------------------------------------------------------------------------------------------------------


def test_every_stage_and_the_whole_are_measured(pets: pathlib.Path) -> None:
    result = run(pets)
    assert list(result.stages) == STAGES
    for speed in (*result.stages.values(), result.together):
        assert len(speed.rounds) == 5
        assert min(speed.rounds) > 0
    assert speeds_of(result)[result.slowest] == min(speeds_of(result).values())
    assert (result.num_examples, result.batch_size, result.image_size, result.threads) == (10, 4, 16, 2)


def test_images_of_several_classes_are_measured(tmp_path: pathlib.Path) -> None:
    examples = [{**written.jpeg_values(index), features.LABEL: tuple(range(index % 3))} for index in range(10)]
    written.write(tmp_path / "out", (*written.IMAGE, written.MANY_LABELS), examples, labels=["a", "b"])
    result = run(tmp_path / "out")
    assert min(*speeds_of(result).values(), result.together.images_per_second) > 0


@case_tables.each_case(
    "sections",
    {
        "compressed-without-heights": {
            "output": {"compression": "gzip"},
            "features": {"image/height": None, "image/width": None},
        },
        "renamed-without-labels": {"label": {"by": "none"}, "features": {"image/encoded": "jpg"}},
        "pixels-that-TensorFlow-reads": {"image": {"encode": "raw", "resize": [8, 8]}},
    },
)
def test_any_dataset_can_be_measured(tmp_path: pathlib.Path, sections: dict[str, Any]) -> None:
    assert list(run(make(tmp_path, **sections)).stages) == STAGES


def test_part_of_fewer_images_than_a_batch_is_repeated(pets: pathlib.Path) -> None:
    result = run(pets, split="train[:20%]", batch_size=150)
    assert result.num_examples == 2
    assert result.together.images_per_second > 0


def test_image_that_is_broken_is_named(pets: pathlib.Path, tmp_path: pathlib.Path) -> None:
    directory = pathlib.Path(shutil.copytree(pets, tmp_path / "out"))
    written_files.flip(next(directory.glob("*.tfrecord")), 200)
    with pytest.raises(errors.ExampleError, match=r"record 0 of shard .*: the checksum of a record of \d+ bytes does"):
        run(directory)


def test_dataset_without_images_is_refused(tmp_path: pathlib.Path) -> None:
    image_sets.write_folder(tmp_path / "in", per_label=1)
    sections = {"source": {"uri": str(tmp_path / "in")}, "output": {"uri": str(tmp_path / "out")}}
    convert.convert({**sections, "features": {"image/encoded": None}}, workers=1)
    with pytest.raises(errors.ConfigError, match="was written without images"):
        run(tmp_path / "out")


def test_speed_is_the_median_of_its_rounds() -> None:
    assert bench_reader.Speed((100.0, 1.0, 104.0, 102.0, 990.0)).images_per_second == 102.0


# --- what is said ----------------------------------------------------------------------------------------------------


def test_json_has_every_figure() -> None:
    parsed = json.loads(json.dumps(make_result().to_json()))
    assert list(parsed["stages"]) == STAGES
    assert parsed["stages"]["decode"] == {"images_per_second": 1980.0, "rounds": [1980.0]}
    assert parsed["together"]["images_per_second"] == 1450.0
    assert (parsed["slowest"], parsed["steps_per_second"], parsed["dtype"]) == ("decode", 11.33, "bfloat16")


def test_table_says_how_the_work_is_shared() -> None:
    rows = dict(bench_reader.bench_rows(make_result()))
    assert rows["dataset"] == "/data/cats, train: 1,000 images, 100.0 kB each"
    assert rows["reader"] == "2 threads, batches of 128, 224 x 224 px, bfloat16, decoded by libjpeg-turbo 2.1.5"
    assert rows["  read"] == "    9,900 images/s   16% of the work"
    assert rows["  decode"] == "    1,980 images/s   79% of the work"
    assert rows["together"] == "    1,450 images/s  11.3 steps/s of 128, 145.0 MB/s of records"


def test_summary_names_the_slowest_stage() -> None:
    assert bench_reader.summarize(make_result()) == "this host feeds 1,450 images/s; the slowest stage is decode"
    assert bench_reader.summarize(make_result(54352.0, read=1900.0)).endswith(
        "54,352 images/s; the slowest stage is read"
    )
