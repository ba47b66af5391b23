"""Converts images on the disk into a committed dataset, by the call that the command makes.

test_recipes.py has what records hold, for every preset.
"""

from __future__ import annotations

import collections
import concurrent.futures
import json
import pathlib
import threading
from collections.abc import Sequence
from typing import Any

import apache_beam as beam
import pytest

from imagebeam import catalog as catalog_lib
from imagebeam.pipelines import convert
from imagebeam.pipelines import job as job_lib
from tests import case_tables, command_line, datasets, image_sets, patience, recipe_sets

COLUMN = {"by": "column", "column": "label"}
THREADS = 3


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
    images: pathlib.Path, output: pathlib.Path, kept: str
) -> None:
    for number, (mode, image_format) in enumerate([("LA", "PNG"), ("RGBA", "PNG"), ("RGBA", "PNG"), ("CMYK", "JPEG")]):
        (images / f"cat/odd{number}").write_bytes(image_sets.make_image(number, image_format, mode))
    (images / "dog/lying.jpg").write_bytes(image_sets.make_image(9, exif=image_sets.turned()))
    arguments = ["convert", "--input", images, "--output", output, "--workers", "1"]
    arguments += ["--set", "split={by: hash, fractions: {train: 0.5, test: 0.5}}", "--set", f"image.orientation={kept}"]
    lines = command_line.succeed(*arguments).stdout.splitlines()
    rows = dict(line.split("  ", 1) for line in lines if "  " in line.lstrip())
    expected = {
        **({"turned": "1 image: 1 turned by 90 degrees clockwise (EXIF 6)"} if kept == "apply" else {}),
        "not upright": "1 image whose EXIF data ask for a rotation that was not applied; readers see the pixels as "
        "they are stored",
        "channels": "1 image of 2 channels (gray, transparency), 2 images of 4 channels (RGB, transparency), 1 image "
        "of 4 channels (CMYK); readers that ask for 3 channels convert them",
    }
    if kept == "apply":
        assert "not upright" not in rows and expected.pop("not upright")
    assert {name: rows[name].strip() for name in expected} == expected
    assert expected["channels"] in command_line.succeed("inspect", output).stdout


def test_label_image_folder_becomes_one_split_of_its_classes(images: pathlib.Path, output: pathlib.Path) -> None:
    (images / "notes.txt").write_text("not an image")
    (images / ".hidden.jpg").write_bytes(b"")
    result = datasets.make(images, output)
    assert (result.state, result.catalog.labels, [*result.catalog.splits]) == ("committed", ("cat", "dog"), ["train"])
    assert result.catalog.counts == catalog_lib.Counts(20, 20, {}, {"hidden": 1, "non_image": 1})
    assert (output / "labels.txt").read_text() == "cat\ndog\n"
    assert json.loads((output / "statistics.json").read_text())["train"]["labels"] == {"cat": 10, "dog": 10}


@pytest.mark.parametrize("has_sizes", [True, False])
def test_trusted_manifest_rejects_a_missing_file_when_it_is_read(
    images: pathlib.Path, output: pathlib.Path, has_sizes: bool
) -> None:
    paths = sorted(images.glob("*/*"))
    rows = [{"image": f"{e.parent.name}/{e.name}", "kind": e.parent.name, "size": e.stat().st_size} for e in paths]
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


# --- class names of tables, and the splits of small classes


def write_table(folder: pathlib.Path, kind: str, labels: Sequence[Any]) -> pathlib.Path:
    """Writes a table of one image for each label, in the format `kind`."""
    images = recipe_sets.images(folder, *(f"{index}.jpg" for index in range(len(labels))))
    recipe_sets.rows_of(folder / f"table.{kind}", [{"image": e, "label": label} for e, label in zip(images, labels)])
    return folder / f"table.{kind}"


@case_tables.each_case(
    "kind, labels",
    {
        "csv": ("csv", ["10", "2", "30", "2"]),
        "csv-of-pandas": ("csv", ["10.0", " 2", "30", "2.0"]),
        "jsonl-mixed": ("jsonl", [10, 2.0, "30", "2"]),
        "parquet-integers": ("parquet", [10, 2, 30, 2]),
        "parquet-floats": ("parquet", [10.0, 2.0, 30.0, 2.0]),
        "parquet-text": ("parquet", ["10", "2", "30.0", "2"]),
    },
)
def test_integer_labels_sort_by_value_and_are_noted(tmp_path: pathlib.Path, kind: str, labels: Sequence[Any]) -> None:
    table = write_table(tmp_path / "in", kind, labels)
    result = datasets.make(table, tmp_path / "out", source={"by": "manifest"}, label=COLUMN)
    assert result.catalog.labels == ("2", "10", "30")
    found = {
        each["image/key"].decode(): (each["image/class/label"], each["image/class/text"].decode())
        for each in datasets.read(tmp_path / "out")
    }
    assert found == {"0.jpg": (1, "10"), "1.jpg": (0, "2"), "2.jpg": (2, "30"), "3.jpg": (0, "2")}
    [note] = result.plan.notes
    assert note.startswith("the classes are numbers, and 3 of 3 get another number as their id: 2 -> 0, 10 -> 1, ")


def test_stratified_splits_of_small_classes_hold_their_shares_and_name_what_they_lack(tmp_path: pathlib.Path) -> None:
    image_sets.write_folder(tmp_path / "in", [f"class {index:02}" for index in range(20)], 4)
    fractions = {"train": 0.8, "validation": 0.1, "test": 0.1}
    split = {"by": "hash", "fractions": fractions, "stratify": True}
    result = datasets.make(tmp_path / "in", tmp_path / "out", split=split)
    sizes = {name: each.num_examples for name, each in result.catalog.splits.items()}
    assert sizes == {"train": 64, "validation": 8, "test": 8}
    for name in ("validation", "test"):
        held = collections.Counter(key.split("/")[0] for key in datasets.keys(tmp_path / "out", name))
        absent = [f"class {index:02}" for index in range(20) if f"class {index:02}" not in held]
        (note,) = [note for note in result.plan.notes if note.startswith(name)]
        assert f"{name} has no image of {len(absent)} of the 20 classes" in note
        assert repr(absent[0]) in note


# --- several calls at once in threads of one process, as a server or a notebook makes them


def test_converts_in_threads_of_one_process_each_end_with_their_own_dataset(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = []
    for index in range(THREADS):
        image_sets.write_folder(tmp_path / f"in{index}", labels=["cat", f"dog{index}"], per_label=6 + index)
        datasets.make(tmp_path / f"in{index}", tmp_path / f"expected{index}", output={"num_shards": 2 + index})
        expected.append(datasets.shard_digests(tmp_path / f"expected{index}"))
    all_started, first_ended = threading.Barrier(THREADS), threading.Event()
    add_steps = convert.add_steps

    def build_together(pipeline: beam.Pipeline, job: job_lib.Job, *arguments: Any, **named: Any) -> None:
        add_steps(pipeline, job, *arguments, **named)
        all_started.wait(timeout=patience.HANG_SEC)  # ends the test where another thread failed
        if not job.settings.output.endswith("out0"):  # runs while the first one closes its writers
            first_ended.wait(timeout=patience.HANG_SEC)

    monkeypatch.setattr(convert, "add_steps", build_together)

    def run(index: int) -> convert.ConvertResult:
        output = {"uri": str(tmp_path / f"out{index}"), "num_shards": 2 + index}
        try:
            return convert.convert({"source": {"uri": str(tmp_path / f"in{index}")}, "output": output}, workers=1)
        finally:
            if index == 0:
                first_ended.set()

    with concurrent.futures.ThreadPoolExecutor(THREADS) as threads:
        results = list(threads.map(run, range(THREADS)))
    assert [result.state for result in results] == ["committed"] * THREADS
    assert [datasets.shard_digests(tmp_path / f"out{index}") for index in range(THREADS)] == expected
