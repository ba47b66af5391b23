"""Blocks of code of README.md and of docs/, as they are printed, on the dataset of `make demo`."""

from __future__ import annotations

import inspect
import json
import logging
import os
import pathlib
import re
import shutil

import pytest

import imagebeam
from tests import command_line, docs_pages


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A working folder with what `make demo` leaves there."""
    folder = tmp_path_factory.mktemp("demo")
    code = "import demo, pathlib\ndemo.make_images(pathlib.Path('build/demo/images'))"
    searched = {"PYTHONPATH": f"{command_line.ROOT / 'examples'}:{command_line.ROOT}"}
    command_line.finish(command_line.start_program(code, cwd=folder, environment=searched), 0)
    paths = ("--input", folder / "build/demo/images", "--output", folder / "build/demo/shapes")
    split = ("--set", "split.by=hash", "--set", "split.fractions={train: 0.8, test: 0.2}")
    command_line.succeed("convert", "--config", "image_folder", *paths, *split, "--workers", "1")
    return folder


@pytest.mark.slow
def test_tutorial_prints_what_its_comments_say(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    program = "\n".join(docs_pages.blocks("reader.md", "python"))
    docs_pages.run_snippet(program)
    printed = capsys.readouterr().out.splitlines()
    assert printed == re.findall(r"^ *print\(.*\)  # (.*)$", program, re.MULTILINE)


@pytest.mark.slow
def test_blocks_of_the_readme_run(
    folder: pathlib.Path,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "photos").symlink_to(folder / "build/demo/images")
    install, *lines = docs_pages.blocks("../README.md", "sh")[0].splitlines()
    assert install.startswith("pip install ")
    path = f"{pathlib.Path(command_line.PYTHON).parent}:{os.environ['PATH']}"
    program = "\n".join(lines)
    done = command_line.run_other("bash", "-ec", program, cwd=tmp_path, PATH=path, PYTHONPATH=str(command_line.ROOT))
    assert done.returncode == 0, done.stderr
    assert "recognized  image_folder" in done.stdout and "(32, 224, 224, 3)" in done.stdout
    [block] = docs_pages.blocks("../README.md", "python")
    [of_torch] = re.findall(r"^.*as_torch.*\n", block, re.MULTILINE)  # torch_feeds.py runs it: PyTorch is not here
    monkeypatch.chdir(tmp_path)
    with caplog.at_level(logging.WARNING):
        names = docs_pages.run_snippet(block.replace(of_torch, ""))
    assert not caplog.messages
    assert next(names["batches"])["image"].shape == (64, 224, 224, 3)
    assert sum(batch["mask"].sum() for batch in names["test"]) + len(names["source"]) == 600


@pytest.mark.slow
def test_pages_on_converting_and_on_the_output_run(
    folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").symlink_to(folder / "build/demo/images")
    [convert] = docs_pages.blocks("convert.md", "python")
    result = docs_pages.run_snippet(convert)["result"]
    assert result.catalog.counts.written == 600 and len(result.catalog.splits["train"].shards) == 16
    plain, by_tfds = docs_pages.blocks("dataset.md", "python")
    assert sum(1 for _ in docs_pages.run_snippet(plain)["examples"]) == 600
    pytest.importorskip("tensorflow_datasets")
    assert len(docs_pages.run_snippet(by_tfds)["ds"]) == 540


@pytest.mark.slow
def test_examples_of_docstrings_print_what_stands_there(
    folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").symlink_to(folder / "build/demo/images")
    shutil.copytree(folder / "build/demo/shapes", "shards")
    pathlib.Path("tfrecords").mkdir()
    for shard in pathlib.Path("shards").glob("*.tfrecord"):
        shutil.copy(shard, "tfrecords")
    for each in [folder / "build/demo/images", folder / "build/demo/images/circle"]:  # two nights
        config = {"source": {"uri": str(each)}, "output": {"uri": "nightly"}, "label": {"by": "none"}}
        config["update"] = {"max_removed_fraction": 1}
        imagebeam.convert(config, update=True, show_progress=False)
    import grain
    import jax
    import tensorflow as tf

    functions = [*docs_pages.with_examples(imagebeam)]
    for function in functions:
        if function.__name__ != "as_torch":  # torch_feeds.py runs it: PyTorch is not here
            docs_pages.run_examples(function, imagebeam=imagebeam, grain=grain, jax=jax, json=json, tf=tf)
    public = {name for name in imagebeam.__all__ if inspect.isfunction(getattr(imagebeam, name))}
    assert public <= {each.__name__ for each in functions}


# Tests that run the blocks of Python and shell of each page; what is not there needs its reason in SHOWN_ONLY.
RUN_BY = {
    "README.md": "integration/test_docs_blocks.py",
    "docs/augmentation.md": "unit/imagebeam/reader/test_example_map.py",
    "docs/beam.md": "unit/beam/test_docs.py",
    "docs/coming-from/img2dataset.md": "integration/test_coming_from.py",
    "docs/coming-from/mds.md": "integration/test_coming_from.py",
    "docs/coming-from/tf_example_script.md": "integration/test_coming_from.py",
    "docs/coming-from/tfds.md": "integration/test_coming_from.py",
    "docs/coming-from/webdataset.md": "integration/test_coming_from.py",
    "docs/convert.md": "integration/test_docs_blocks.py",
    "docs/dataset.md": "integration/test_docs_blocks.py",
    "docs/own_code.md": "unit/test_own_code_examples.py",
    "docs/reader.md": "integration/test_docs_blocks.py",
    "docs/reading.md": "unit/imagebeam/reader/test_evaluation.py",
    "docs/recipes/bands.md": "integration/test_recipes_bands.py",
    "docs/recipes/medical.md": "integration/test_recipes_medical.py",
    "docs/torch.md": "integration/torch_feeds.py",
    "docs/tpu.md": "integration/test_docs_tpu.py",
    "docs/trainers.md": "unit/imagebeam/reader/test_trainers.py",
}
SHOWN_ONLY = {
    "CONTRIBUTING.md": "the targets of make are what CI runs",
    "docs/buckets.md": "test_bucket_*.py have the same calls on small images",
    "docs/drift.md": "test_update.py runs --fail-on-drift",
    "docs/formats.md": "the outline of a module, with its bodies left out",
    "docs/objects.md": "test_objects.py and the examples of detection and segmentation have the same calls",
    "docs/platforms.md": "addresses of schedulers and of their services",
    "docs/report.md": "the command alone, which many tests run",
    "docs/schedulers.md": "needs Airflow: scheduler_airflow.py runs the files in deploy/",
    "docs/snapshots.md": "the state of a dataset after two runs, which test_update.py makes",
}


def test_each_page_with_code_is_run_or_says_why_not() -> None:
    pages = [command_line.ROOT / "README.md", command_line.ROOT / "CONTRIBUTING.md"]
    pages += (command_line.ROOT / "docs").rglob("*.md")
    has_code = {
        str(page.relative_to(command_line.ROOT))
        for page in pages
        if re.search(r"^```(python|sh)$", page.read_text("utf-8"), re.MULTILINE)
    }
    recipes = {page for page in has_code if page.startswith("docs/recipes/")} - RUN_BY.keys()  # test_recipes.py
    assert has_code - recipes == RUN_BY.keys() | SHOWN_ONLY.keys()
    for page, test in RUN_BY.items():
        text = (command_line.ROOT / "tests" / test).read_text("utf-8")
        assert pathlib.Path(page).stem in text, f"tests/{test} does not name {page}"
