from __future__ import annotations

import importlib.metadata
import pathlib
import sys
from typing import Any

import pytest

from imagebeam import errors, features, storage
from imagebeam.pipelines import dataset_facts, job, launch, request
from imagebeam.pipelines.config import model as config_lib
from imagebeam.transforms.classes import label_names
from imagebeam.transforms.elements import ColumnTransform
from tests import case_tables, command_line, error_texts, image_sets, job_graphs


def make(folder: pathlib.Path, update: bool = False, **fields: Any) -> job.Job:
    if not (folder / "images").exists():
        image_sets.write_folder(folder / "images", per_label=1)
    whole: dict[str, Any] = {"source": {"uri": str(folder / "images")}, "output": {}} | fields
    whole["output"]["uri"] = str(folder / "out")
    return job.make_job(request.check(request.Request(whole, [], update=update)))


def test_rules_of_a_folder_find_the_label_above_an_image_and_one_split(tmp_path: pathlib.Path) -> None:
    label, split = make(tmp_path).rules.label, make(tmp_path).split
    assert label is not None
    assert (label.by, label.level, split.by, split.name) == ("directory", 0, "none", "train")
    assert "level=1" in str(make(tmp_path, split={"by": "directory"}).rules.label)


def test_group_of_a_pattern_is_found_with_the_label_and_another_one_is_a_column(tmp_path: pathlib.Path) -> None:
    label = {"by": "filename", "pattern": r"(?P<label>\w+)_(?P<patient>\w+)\.png"}
    split = {"by": "hash", "fractions": {"train": 0.5, "test": 0.5}, "group": "patient"}
    made = make(tmp_path, label=label, split=split)
    assert "group='patient'" in str(made.rules.label)
    assert made.split.grouped


@case_tables.each_case(
    "fields, update, ranks",
    {
        "default": ({}, False, True),
        "split": ({"split": {"by": "hash", "fractions": {"train": 0.5, "test": 0.5}}}, False, True),
        "duplicates-reported": ({"duplicates": {"exact": "report"}}, False, True),
        "duplicates-dropped": ({"duplicates": {"exact": "drop"}}, False, False),
        "listed-order": ({"output": {"shuffle": "none"}}, False, False),
        "stratified": (
            {"split": {"by": "hash", "fractions": {"train": 0.5, "test": 0.5}, "stratify": True}},
            False,
            False,
        ),
        "update": ({}, True, False),
    },
)
def test_images_are_ranked_when_they_are_listed_where_no_later_step_leaves_some_out(
    tmp_path: pathlib.Path, fields: dict[str, Any], update: bool, ranks: bool
) -> None:
    made = make(tmp_path, update, **fields)
    assert made.early_order == (made.order if ranks else None)
    assert (made.rules.split is None) == made.split.stratify


def test_vocabulary_that_cannot_be_read_is_an_error_of_the_config(tmp_path: pathlib.Path) -> None:
    with pytest.raises(errors.ConfigError, match=r"label\.vocabulary"):
        make(tmp_path, label={"vocabulary": str(tmp_path / "absent.txt")})


def test_beams_writer_writes_to_no_other_storage(tmp_path: pathlib.Path) -> None:
    image_sets.write_folder(tmp_path / "images", per_label=1)
    storage.storage_of("memory://out").write_whole("memory://out/x", b"")
    output = {"uri": "memory://out", "writer": "beam", "num_shards": 1}
    config = config_lib.parse_config({"source": {"uri": str(tmp_path / "images")}, "output": output}, "a test")
    with error_texts.raises("beam-writer-elsewhere"):
        job.make_job(request.Checked(config, 1))


class Silent:
    """A storage on a network that does not answer."""

    is_local = False

    def stat(self, uri: str) -> None:
        raise storage.UnavailableError(5, "no answer")


def test_addresses_are_checked_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    with error_texts.raises("address-missing"):
        job.make_source(config_lib.Config())
    monkeypatch.setattr(storage, "storage_of", lambda uri: Silent())
    fields = {"source": {"uri": "gs://b/in"}, "output": {"uri": "gs://b/out"}}
    with error_texts.raises("address-unreachable"):
        job.make_source(config_lib.parse_config(fields, "a test"))


# --- columns that tf.Transform computes ------------------------------------------------------------------------------


AGE = {"type": "float", "transform": "z_score"}


def parse(**sections: Any) -> config_lib.Config:
    return config_lib.parse_config({"source": {"by": "manifest"}, **sections}, where="a test")


def test_transforms_know_where_the_value_is_and_what_it_is_called() -> None:
    city = {"transform": "vocabulary", "top_k": 9, "num_oov_buckets": 2}
    config = parse(columns={"note": {}, "age": AGE, "city": city}, features={"columns/city": "town"})
    sources = ("columns/note", "image/object/area", "columns/age", "columns/city")
    assert job.make_transforms(config, sources) == (
        ColumnTransform("age", "age", 2, features.FLOAT, "z_score"),
        ColumnTransform("city", "town", 3, features.BYTES, "vocabulary", top_k=9, num_oov_buckets=2),
    )


def test_column_that_is_not_written_is_not_transformed() -> None:
    config = parse(columns={"age": AGE}, features={"columns/age": None})
    assert config.transformed == ()
    assert job.make_transforms(config, ("columns/age",)) == ()


def test_missing_package_is_an_error_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])  # where the versions of packages are looked up
    with error_texts.raises("package-missing"):
        dataset_facts.transform_versions(parse(columns={"age": AGE}))
    assert dataset_facts.transform_versions(parse(columns={"age": {}})) == {}


@case_tables.each_case(
    "column, expected",
    {
        "z_score": (AGE, {"column_statistics": "2"}),
        "bucketize": ({"type": "int", "transform": "bucketize"}, {"column_statistics": "2"}),
        "of-tf-transform": ({"type": "int", "transform": "scale_0_1"}, {}),
    },
)
def test_version_of_statistics_counts_for_columns_that_need_them(
    column: dict[str, Any], expected: dict[str, str]
) -> None:
    pytest.importorskip("tensorflow_transform")
    packages = {name: importlib.metadata.version(name) for name in ("tensorflow", "tensorflow_transform")}
    assert dataset_facts.transform_versions(parse(columns={"age": column})) == packages | expected


def test_scratch_folder_is_on_this_machine_for_a_runner_that_is() -> None:
    config = parse(columns={"age": AGE}, output={"uri": "s3://b/out"})
    folder = pathlib.Path(launch.scratch_folder(config, ["--direct_running_mode=multi_processing"]))
    assert folder.is_dir()
    folder.rmdir()
    assert launch.scratch_folder(parse(), []) == ""


@case_tables.each_case("output", ["gs://b/out", "/shared/out"])
def test_scratch_folder_is_below_the_output_for_another_runner(output: str) -> None:
    config = parse(columns={"age": AGE}, output={"uri": output})
    assert launch.scratch_folder(config, ["--runner=DataflowRunner"]).startswith(f"{output}/.imagebeam/transform-")


def test_output_that_tensorflow_does_not_reach_is_refused_on_another_runner() -> None:
    config = parse(columns={"age": AGE}, output={"uri": "s3://b/out"})
    with error_texts.raises("transform-output-unreachable"):
        launch.scratch_folder(config, ["--runner=FlinkRunner"])


def test_analysis_of_train_needs_a_split_of_that_name() -> None:
    split = {"by": "hash", "fractions": {"a": 0.5, "b": 0.5}}
    with error_texts.raises("config-invalid"):
        parse(columns={"age": AGE}, split=split)
    assert parse(columns={"age": AGE}, split=split, statistics={"analyze": "all"}).transformed == ("age",)
    assert parse(columns={"age": {"type": "float"}}, split=split).transformed == ()


# --- its graph, whose size a service limits --------------------------------------------------------------------------


MAX_GRAPH_BYTES = 200_000


def write_lines(path: pathlib.Path, count: int, line: str) -> str:
    path.write_text("".join(line.format(index=index) + "\n" for index in range(count)))
    return str(path)


def test_graph_of_a_folder_is_small(images: pathlib.Path, tmp_path: pathlib.Path) -> None:
    assert len(job_graphs.graph_of(tmp_path, source={"uri": str(images)})) < MAX_GRAPH_BYTES * 0.6


@pytest.mark.parametrize("count", [21_841, 200_000])
def test_graph_does_not_grow_with_the_label_files(images: pathlib.Path, tmp_path: pathlib.Path, count: int) -> None:
    classes = write_lines(tmp_path / "classes.txt", count, "n{index:08d}")
    texts = write_lines(tmp_path / "texts.txt", count, "n{index:08d} a thing, one of {index}")
    label = {"vocabulary": classes, "texts": texts, "lists": {"val": classes}}
    assert len(job_graphs.graph_of(tmp_path, source={"uri": str(images)}, label=label)) < MAX_GRAPH_BYTES * 0.6


def test_graph_with_the_longest_names_is_below_the_bound(images: pathlib.Path, tmp_path: pathlib.Path) -> None:
    count = label_names.MAX_IN_GRAPH // 32
    classes = tmp_path / "classes.txt"
    classes.write_text(
        "".join(f"{index * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128:032x}\n" for index in range(count))
    )
    graph = job_graphs.graph_of(tmp_path, source={"uri": str(images)}, label={"vocabulary": str(classes)})
    assert MAX_GRAPH_BYTES // 2 < len(graph) < MAX_GRAPH_BYTES


def test_graph_holds_no_path_of_this_checkout(images: pathlib.Path, tmp_path: pathlib.Path) -> None:
    pickles = list(job_graphs.pickles_in(job_graphs.graph_of(tmp_path, source={"uri": str(images)})))
    assert sum(str(tmp_path).encode() in each for each in pickles) > 3  # so a path would be seen
    assert not [each for each in pickles if str(command_line.ROOT).encode() in each]
