"""WriteDataset against `convert` of the same images: the same bytes, the same errors, and nothing left behind."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import apache_beam as beam
import pytest

import imagebeam.beam as imagebeam_beam
from imagebeam import catalog as catalog_lib
from imagebeam import errors
from imagebeam.pipelines import convert, verify_dataset, write_references
from imagebeam.pipelines.runs import output_lock
from imagebeam.transforms import elements, summaries, write_shards
from imagebeam.transforms.columns import infer_features
from imagebeam.transforms.output import output_folder
from imagebeam.transforms.publish import commit_rights, run_records
from tests import case_tables, datasets, error_texts, image_sets, snapshot_sets
from tests.unit.transforms import small_dataset

SPLIT = {"by": "hash", "fractions": {"train": 0.7, "test": 0.3}}
TWO_WORKERS = ("--direct_running_mode=multi_processing", "--direct_num_workers=2")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("images")
    datasets.write_images(folder)
    return folder


@pytest.fixture(scope="module")
def converted(images: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    output = tmp_path_factory.mktemp("converted") / "out"
    datasets.make(images, output, split=SPLIT, output={"num_shards": 3})
    return output


def encoded(folder: pathlib.Path) -> list[imagebeam_beam.EncodedImage]:
    """The images of a folder as bytes."""
    files = sorted(each for each in folder.rglob("*") if each.is_file())
    return [imagebeam_beam.EncodedImage(str(each.relative_to(folder)), each.read_bytes()) for each in files]


def referred(folder: pathlib.Path) -> list[imagebeam_beam.ImageRef]:
    """The images of a folder as references."""
    return [imagebeam_beam.ImageRef(each.key, str(folder / each.key), len(each.data)) for each in encoded(folder)]


def write(images: Iterable[Any], folder: pathlib.Path, *options: str, overwrite: bool = False, **sections: Any) -> None:
    """Writes a dataset in a pipeline, and checks what is true of every one."""
    output = {"uri": str(folder), "num_shards": 3, **sections.get("output", {})}
    with beam.Pipeline(argv=list(options)) as pipeline:
        created = pipeline | beam.Create(list(images), reshuffle=True)
        config = {"split": SPLIT, **sections, "output": output}
        committed = created | imagebeam_beam.WriteDataset(config, overwrite=overwrite)
        _ = committed | beam.Map(check_committed, output=str(folder))
    assert not (folder / ".imagebeam").exists()
    assert verify_dataset.verify(str(folder), decode=True).problems == ()


def check_committed(found: imagebeam_beam.CommittedDataset, output: str) -> None:
    assert (found.output, found.catalog) == (output, catalog_lib.load_catalog(output))


@case_tables.each_case(
    "form, options",
    {
        "references": (referred, ()),
        "bytes": (encoded, ()),
        "references, two workers": (referred, TWO_WORKERS),
        "bytes, two workers": (encoded, TWO_WORKERS),
    },
)
def test_shards_are_those_of_convert(
    images: pathlib.Path,
    converted: pathlib.Path,
    tmp_path_factory: pytest.TempPathFactory,
    form: Any,
    options: tuple[str, ...],
) -> None:
    output = tmp_path_factory.mktemp("written") / "out"
    write(form(images), output, *options)
    assert datasets.shard_digests(output) == datasets.shard_digests(converted)
    if not options:
        fingerprint = catalog_lib.load_catalog(output).fingerprint
        write(reversed(form(images)), output)  # the same dataset: kept, however the bytes were divided
        assert catalog_lib.load_catalog(output).fingerprint == fingerprint


def test_columns_label_and_split_of_rows_are_those_of_a_table(images: pathlib.Path, tmp_path: pathlib.Path) -> None:
    rows = [
        each._replace(
            label=f"c{number % 3}", split=("train", "test")[number % 5 == 0], columns={"n": number, "tag": "x"}
        )
        for number, each in enumerate(encoded(images))
    ]
    table = images / "table.jsonl"
    lines = [{"image": row.key, "label": row.label, "split": row.split, **row.columns} for row in rows]
    table.write_text("".join(json.dumps(line) + "\n" for line in lines))
    sections: dict[str, Any] = {
        "label": {"by": "column", "column": "label"},
        "split": {"by": "column", "column": "split"},
        "columns": {"n": {"type": "int"}, "tag": {"type": "string"}},
    }
    try:
        output = {"uri": str(tmp_path / "a"), "num_shards": 3}
        convert.convert({**sections, "source": {"uri": str(table), "by": "manifest"}, "output": output}, workers=1)
    finally:
        table.unlink()
    write(rows, tmp_path / "b", **sections)
    assert datasets.shard_digests(tmp_path / "b") == datasets.shard_digests(tmp_path / "a")


def test_rejects_are_counted_and_stored_by_their_keys(images: pathlib.Path, tmp_path: pathlib.Path) -> None:
    bad = [imagebeam_beam.EncodedImage("cat/bad.jpg", b"no image"), imagebeam_beam.EncodedImage("alone.jpg", b"x")]
    write([*encoded(images), *bad], tmp_path / "out", rejects={"max_fraction": 0.5})
    assert datasets.rejects(tmp_path / "out") == {"cat/bad.jpg": "not_an_image", "alone.jpg": "no_label"}
    uris = [json.loads(line)["uri"] for line in (tmp_path / "out" / "rejects.jsonl").read_text().splitlines()]
    assert sorted(uris) == ["alone.jpg", "cat/bad.jpg"]


def bad_image(images: list[Any]) -> list[Any]:
    return [*images[:5], imagebeam_beam.EncodedImage("cat/bad.jpg", b"no image")]


WRONG: dict[str, tuple[Any, dict[str, Any], str]] = {
    "rejects": (bad_image, {}, "rejects-above-limit"),
    "nothing": (lambda images: [], {}, "input-no-image"),
    "one key twice": (lambda images: [*images, images[3]], {}, "key-repeated"),
    "split without images": (
        lambda images: images[:3],
        {"split": {"by": "hash", "fractions": {"train": 0.999, "test": 0.001}}},
        "split-empty",
    ),
    "label unused": (lambda images: [images[0]._replace(label="cat")], {}, "value-unused"),
    "split unused": (lambda images: [images[0]._replace(split="train")], {}, "value-unused"),
    "text instead of bytes": (lambda images: [images[0]._replace(data="text")], {}, "element-wrong"),
    "no image at all": (lambda images: ["a.jpg"], {}, "element-wrong"),
    "missing value": (
        lambda images: images[:1],
        {"columns": {"n": {"type": "int", "missing": "error"}}},
        "input-broken",
    ),
    "columns of a reference": (
        lambda images: [imagebeam_beam.ImageRef("cat/a.jpg", "/a.jpg", 3, columns=(1,))],
        {},
        "reference-columns",
    ),
    "reference without a size": (
        lambda images: [imagebeam_beam.ImageRef("cat/a.jpg", "/a.jpg")],
        {"output": {"num_shards": None}},
        "reference-without-size",
    ),
}


@case_tables.each_case("change, sections, code", WRONG)
def test_what_is_wrong_fails_the_pipeline_and_leaves_no_lock(
    images: pathlib.Path, tmp_path_factory: pytest.TempPathFactory, change: Any, sections: dict[str, Any], code: str
) -> None:
    output = tmp_path_factory.mktemp("wrong") / "out"
    with error_texts.raises_in_pipeline(code):
        write(change(encoded(images)), output, **sections)
    assert not (output / "catalog.json").exists()
    assert not (output / ".imagebeam" / "lock").exists()
    if code in ("rejects-above-limit", "input-no-image"):  # which end in a commit, and in a plan
        write(encoded(images), output)  # in the same process


def test_refused_run_keeps_its_shards_and_no_bytes(images: pathlib.Path, tmp_path: pathlib.Path) -> None:
    output, bad = tmp_path / "out", imagebeam_beam.EncodedImage("cat/bad.jpg", b"no image")
    with error_texts.raises_in_pipeline("rejects-above-limit"):
        write([*encoded(images), bad], output)
    assert [each.name.partition("-")[0] for each in (output / ".imagebeam").iterdir()] == ["staging"]
    write([*encoded(images), bad], output, rejects={"max_fraction": 0.5})


def test_other_dataset_is_replaced_only_with_overwrite(
    images: pathlib.Path, converted: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    output = tmp_path / "out"
    write(encoded(images)[:20], output)
    with error_texts.raises_in_pipeline("output-other-dataset"):
        write(encoded(images), output)
    write(encoded(images), output, overwrite=True)
    assert datasets.shard_digests(output) == datasets.shard_digests(converted)


def test_folder_of_snapshots_is_refused(tmp_path: pathlib.Path) -> None:
    image_sets.write_folder(tmp_path / "images")
    snapshot_sets.update(tmp_path / "images", tmp_path / "out")
    with error_texts.raises_in_pipeline("output-holds-snapshots"):
        write(encoded(tmp_path / "images"), tmp_path / "out")


@case_tables.each_case(
    "sections, code",
    {
        "setting": ({"output": {"shuffle": "none"}}, "pipeline-setting"),
        "writer": (
            {"output": {"writer": "beam", "num_shards": 2}, "split": {"by": "none"}},
            "beam-writer-in-pipeline",
        ),
        "no output": ({"output": {"uri": None}}, "address-missing"),
    },
)
def test_wrong_config_is_an_error_when_the_pipeline_is_built(tmp_path: pathlib.Path, sections: Any, code: str) -> None:
    with error_texts.raises(code):
        imagebeam_beam.WriteDataset({**sections, "output": {"uri": str(tmp_path / "out"), **sections["output"]}})


# --- the lock ---------------------------------------------------------------------------------------------------------


def record_of(paths: output_folder.OutputPaths, age_sec: float, process: int) -> None:
    """Leaves the lock of another pipeline."""
    os.makedirs(paths.metadata, exist_ok=True)
    record = run_records.RunRecord("other", process, socket.gethostname(), time.time() - age_sec, by_steps=True)
    pathlib.Path(paths.lock).write_bytes(record.encode())


def test_pipeline_and_command_keep_each_other_out(images: pathlib.Path, tmp_path: pathlib.Path) -> None:
    output = tmp_path / "out"
    paths = output_folder.OutputPaths(str(output))
    with output_lock.hold(paths.metadata, "command"), error_texts.raises_in_pipeline("output-busy"):
        write(encoded(images), output)
    record_of(paths, 0, os.getpid())
    with error_texts.raises("output-busy"):
        datasets.make(images, output, split=SPLIT)
    with error_texts.raises_in_pipeline("output-busy"):
        write(encoded(images), output)


@case_tables.each_case(
    "age_sec, process",
    {
        "not renewed": (200.0, os.getpid()),
        "killed": (0.0, 2**22 + 1),  # no process has this id
    },
)
def test_lock_of_a_pipeline_that_ended_is_taken_over(
    images: pathlib.Path, tmp_path_factory: pytest.TempPathFactory, age_sec: float, process: int
) -> None:
    for form in ("pipeline", "command"):
        output = tmp_path_factory.mktemp("ended") / "out"
        record_of(output_folder.OutputPaths(str(output)), age_sec, process)
        if form == "pipeline":
            write(encoded(images), output)
        else:
            datasets.make(images, output, split=SPLIT)


def test_step_that_works_renews_the_lock_and_notices_a_takeover(tmp_path: pathlib.Path) -> None:
    paths = output_folder.OutputPaths(str(tmp_path / "out"))
    output_lock.hold_for_steps(paths.metadata, "mine")
    output_lock.hold_for_steps(paths.metadata, "mine")  # the bundle runs twice
    lock = commit_rights.StepsLock(paths, "mine")
    with lock.renewed():
        found = run_records.read_record(paths.lock)
        assert found is not None and (found.run, found.process) == ("mine", os.getpid())
    with pytest.raises(KeyError), lock.renewed():
        raise KeyError
    assert run_records.read_record(paths.lock) is None  # released by the step that failed
    with lock.renewed():  # taken again by the retry
        pass
    record_of(paths, 0, os.getpid())
    with error_texts.raises("lock-taken-over"), lock.renewed():
        pass
    lock.end()
    found = run_records.read_record(paths.lock)
    assert found is not None and found.run == "other"


def test_steps_between_the_plan_and_the_shards_renew_the_lock(tmp_path: pathlib.Path) -> None:
    job = imagebeam_beam.make_job({"output": {"uri": str(tmp_path / "out")}})
    plan = small_dataset.make_plan(
        {"train": [elements.ImageRef("a", "/a")]}, 1, run_id="other", held_output=job.settings.output
    )
    run = ("train", 0, 0, 0, elements.pack_refs([]))
    ranking = summaries.Ranking({"train": [0]}, {"train": [0, 1]}, {"train": 0}, (), 0, ())
    steps: dict[str, Callable[[Any], Iterator[Any]]] = {
        "place": lambda plan: write_shards._cut_into_shards(run, plan, ranking),
        "show": lambda plan: infer_features._show((("train", 0), []), plan, job.settings),
    }
    for name, work in steps.items():
        record_of(job.settings.paths, 100, os.getppid())
        list(work(plan))
        found = run_records.read_record(job.settings.paths.lock)
        assert found is not None and found.process == os.getpid(), name
        with error_texts.raises("lock-taken-over"):
            list(work(dataclasses.replace(plan, run_id="mine")))


def test_bytes_that_another_run_has_removed_end_the_run(images: pathlib.Path, tmp_path: pathlib.Path) -> None:
    job = imagebeam_beam.make_job({"output": {"uri": str(tmp_path / "out")}})
    with error_texts.raises("spill-removed"):
        list(write_references._hold("mine", job.settings, (), [("a.zip", 10)]))
    assert not (tmp_path / "out" / ".imagebeam" / "lock").exists()


# --- bundles that run twice, and runs that are cut short --------------------------------------------------------------


def failing_once(images: Iterable[Any], mark: str) -> Iterator[Any]:
    """Yields images; raises at the end of the first ones."""
    yield from images
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    raise RuntimeError("the step before has failed")


def test_run_after_one_that_failed_while_it_received_images(
    images: pathlib.Path, converted: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    output = tmp_path / "out"
    config = {"split": SPLIT, "output": {"uri": str(output), "num_shards": 3}}
    for number in range(2):
        pipeline = beam.Pipeline()
        created = pipeline | beam.Create([encoded(images)[:30], encoded(images)[30:]], reshuffle=False)
        _ = created | beam.FlatMap(failing_once, str(tmp_path / "mark")) | imagebeam_beam.WriteDataset(config)
        if number == 0:
            with pytest.raises(Exception, match="the step before has failed"):
                pipeline.run().wait_until_finish()
            assert not (output / "catalog.json").exists()
        else:
            pipeline.run().wait_until_finish()
    assert datasets.shard_digests(output) == datasets.shard_digests(converted)
    assert not (output / ".imagebeam").exists()


# --- steps one by one -------------------------------------------------------------------------------------------------


def test_steps_one_by_one_write_the_same_shards(
    images: pathlib.Path, converted: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    config = {"source": {"uri": str(images)}, "split": SPLIT, "output": {"uri": str(tmp_path / "out"), "num_shards": 3}}
    job = imagebeam_beam.make_job(config)
    with beam.Pipeline() as pipeline:
        listed = pipeline | imagebeam_beam.ListImages(job)
        labelled = listed.images | imagebeam_beam.LabelImages(job)
        split = labelled.images | imagebeam_beam.AssignSplits(job)
        every = imagebeam_beam.ListedImages(
            split.images,
            (listed.rejects, labelled.rejects, split.rejects) | "Rejects" >> beam.Flatten(),
            (listed.tallies, labelled.tallies, split.tallies) | "Tallies" >> beam.Flatten(),
        )
        planned = split.images | imagebeam_beam.PlanDataset(job, every)
        placed = planned.runs | imagebeam_beam.PlaceInShards(planned)
        written = placed | imagebeam_beam.WriteShards(job, planned)
        _ = written | imagebeam_beam.CommitDataset(job, planned) | beam.Map(check_committed, job.settings.output)
    assert datasets.shard_digests(tmp_path / "out") == datasets.shard_digests(converted)
    assert not (tmp_path / "out" / ".imagebeam").exists()


def test_listed_images_are_written_with_their_rejects(images: pathlib.Path, tmp_path: pathlib.Path) -> None:
    table = tmp_path / "table.csv"
    keys = [each.key for each in encoded(images)[:8]]
    table.write_text("image\n" + "".join(f'"{key}"\n' for key in [*keys, "cat/missing.jpg"]))
    config = {
        "source": {"uri": str(table), "by": "manifest", "manifest": {"root": str(images)}},
        "output": {"uri": str(tmp_path / "out")},
        "rejects": {"max_fraction": 0.5},
    }
    job = imagebeam_beam.make_job(config)
    with beam.Pipeline() as pipeline:
        listed = pipeline | imagebeam_beam.ListImages(job)
        _ = listed.images | imagebeam_beam.WriteDataset(job, listed=listed)
    counts = catalog_lib.load_catalog(tmp_path / "out").counts
    assert (counts.listed, counts.written, counts.rejected) == (9, 8, {"not_found": 1})


def test_dataset_is_an_element_that_later_steps_read(images: pathlib.Path, tmp_path: pathlib.Path) -> None:
    write(encoded(images), tmp_path / "out")
    with beam.Pipeline() as pipeline:
        examples = pipeline | imagebeam_beam.ReadDataset(tmp_path / "out", features=["image/key", "image/encoded"])
        _ = examples | beam.Map(check_example, {each.key: each.data for each in encoded(images)})


def check_example(example: imagebeam_beam.Example, expected: dict[str, bytes]) -> None:
    assert expected[example["image/key"].decode()] == example["image/encoded"]


def test_error_of_a_pipeline_keeps_its_code() -> None:
    error = errors.BusyError("output-busy [while running 'WriteDataset/Commit']", "text")
    assert (error.code, str(error)) == ("output-busy", "text")
