from __future__ import annotations

import dataclasses
import itertools
import json
import os
import pathlib
import shutil
from collections.abc import Callable, Sequence

import apache_beam as beam
import google_crc32c
import pytest
from apache_beam.runners.portability import fn_api_runner
from apache_beam.testing import test_pipeline
from apache_beam.testing.util import assert_that, equal_to

from imagebeam import catalog as catalog_lib
from imagebeam import errors, features, storage, verify_shards
from imagebeam.pipelines.runs import output_lock
from imagebeam.transforms import dataset_settings, elements
from imagebeam.transforms.commit import commit_dataset, commit_step, dataset_files
from imagebeam.transforms.elements import DatasetPlan, ImageRef, Reason, Reject, WrittenShard
from imagebeam.transforms.html_report import page
from imagebeam.transforms.output import output_folder, run_report
from imagebeam.transforms.shard import shard_writer, writer_processes
from tests import error_texts
from tests.unit.transforms import small_dataset

CONFIG = {"seed": 0, "source": {"uri": "/data/pets"}}
EARLY = [Reject("odd\udcff", "/data/odd\udcff", "label", Reason.NO_LABEL, "no folder")]


@dataclasses.dataclass
class Dataset:
    """The settings, plan and shards of one run."""

    settings: dataset_settings.DatasetSettings
    splits: dict[str, list[ImageRef]]
    plan: DatasetPlan

    @property
    def committer(self) -> commit_dataset.Committer:
        return commit_dataset.Committer(self.settings, "pets", CONFIG)

    def write(self) -> list[WrittenShard]:
        if self.settings.analyze is not None:
            output = pathlib.Path(self.settings.output)
            small_dataset.write_transform(output.parent / "scratch")
            output_folder.stage(str(output.parent / "scratch"), self.settings.paths.staging(self.plan.fingerprint))
        return small_dataset.write_shards(self.settings, self.plan, self.splits)

    def run(self) -> catalog_lib.Catalog | None:
        """The whole run from the plan on: shards that an earlier run finished are kept."""
        return self.committer.commit(self.compare(), self.write(), self.store_rejects())

    def compare(self) -> DatasetPlan:
        """The plan, with the catalog that the output holds now."""
        found = output_folder.find_catalog(self.settings.output)
        return dataclasses.replace(self.plan, committed=None if found is None else found.record)

    def store_rejects(self) -> list[str]:
        if not sum(self.plan.rejected.values()):
            return []
        name = "early-00" + shard_writer.REJECTS_SUFFIX
        staging = self.settings.paths.staging(self.plan.fingerprint)
        shard_writer.store_rejects(staging, "early-00", EARLY)
        return [name]

    def at(self, output: pathlib.Path) -> Dataset:
        return dataclasses.replace(self, settings=dataclasses.replace(self.settings, output=str(output)))


@pytest.fixture
def output(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "out"


@pytest.fixture
def refs(tmp_path: pathlib.Path) -> list[ImageRef]:
    return [
        ref._replace(size=-1, version=0) for ref in small_dataset.make_refs(tmp_path / "pets")
    ]  # the tests spoil some


def make_dataset(
    output: pathlib.Path,
    splits: dict[str, list[ImageRef]],
    num_shards: int = 2,
    fields: dict[str, object] | None = None,
    **plan: object,
) -> Dataset:
    dataset = small_dataset.make_settings(
        output, **{"max_reject_fraction": 0.5, "writes_report": True, **(fields or {})}
    )
    return Dataset(dataset, splits, small_dataset.make_plan(splits, num_shards, **plan))


@pytest.fixture
def pets(output: pathlib.Path, refs: list[ImageRef]) -> Dataset:
    """Two splits of two shards; one image was rejected before, one is rejected while a shard is written."""
    pathlib.Path(refs[1].uri).write_bytes(b"no image")
    splits = {"train": refs[:7], "test": refs[7:]}
    return make_dataset(output, splits, labels=("cat", "dog"), listed=11, rejected={"no_label": 1})


@pytest.fixture
def older(output: pathlib.Path, refs: list[ImageRef]) -> Dataset:
    """Another dataset in the same output: three shards of one split, shards of equal names, a class file of its own."""
    renamed = features.resolve_features({features.LABEL: "label"}, "class", {})
    return make_dataset(output, {"test": refs[5:], "old": refs[5:8]}, 2, {"features": renamed}, fingerprint="f0")


@pytest.fixture
def targets(output: pathlib.Path, refs: list[ImageRef]) -> Dataset:
    """A third dataset: compressed shards, no classes."""
    numbered = [ref._replace(label=index) for index, ref in enumerate(refs[2:5])]
    fields = {"label_kind": "int64", "compression": "gzip", "suffix": ".gz"}
    return make_dataset(output, {"train": numbered}, 1, fields, fingerprint="f2")


@pytest.fixture
def transformed(output: pathlib.Path, refs: list[ImageRef]) -> Dataset:
    """A fourth one, with what tf.Transform wrote."""
    return make_dataset(output, {"train": refs[2:6]}, 1, {"analyze": "all"}, fingerprint="f3")


def contents(output: pathlib.Path) -> dict[str, bytes | catalog_lib.Catalog]:
    """All files of a dataset; of the catalog what two runs have in common."""
    files: dict[str, bytes | catalog_lib.Catalog] = dict(small_dataset.read_files(output))
    if "catalog.json" in files:
        files["catalog.json"] = dataclasses.replace(catalog_lib.load_catalog(str(output)), created="")
    return files


def assert_whole(output: pathlib.Path) -> None:
    assert {name: problems for name, problems in verify_shards.verify_dataset(str(output)) if problems} == {}
    named = output_folder.files_of(catalog_lib.load_catalog(str(output)))
    for name, content in small_dataset.read_files(output).items():
        if name in named - {"catalog.json"} and not name.startswith("index/") and "-of-" not in name:
            file = catalog_lib.load_catalog(str(output)).files[name]
            assert file == (len(content), google_crc32c.value(content))


def read_rejects(path: pathlib.Path) -> list[tuple[str, Reason]]:
    return [(line["key"], line["reason"]) for line in map(json.loads, path.read_text().splitlines())]


# ---- a commit that goes through


def test_commit_publishes_the_whole_dataset(pets: Dataset, output: pathlib.Path, refs: list[ImageRef]) -> None:
    catalog = pets.run()
    assert catalog == catalog_lib.load_catalog(str(output))
    assert_whole(output)
    assert list(catalog.splits) == ["train", "test"]
    assert [[shard.records for shard in split.shards] for split in catalog.splits.values()] == [[2, 4], [1, 2]]
    assert catalog.counts == catalog_lib.Counts(11, 9, {"no_label": 1, "not_an_image": 1}, {})
    assert (catalog.name, catalog.fingerprint, catalog.config) == ("pets", "f1", CONFIG)
    assert (catalog.labels, catalog.label_kind, catalog.label_base) == (("cat", "dog"), "class", 0)
    shards = [shard for split in catalog.splits.values() for shard in split.shards]
    assert sorted(small_dataset.read_files(output)) == sorted(
        [
            *(shard.name for shard in shards),
            *(file.name for shard in shards for file in shard.side_files("none")),
            *("catalog.json", "croissant.json", "dataset_info.json", "features.json", "image.class.label.labels.txt"),
            *("labels.txt", "rejects.jsonl", "report.html", "statistics.json"),
        ]
    )
    assert (output / "labels.txt").read_text() == "cat\ndog\n"
    assert read_rejects(output / "rejects.jsonl") == [
        ("odd\udcff", Reason.NO_LABEL),
        (refs[1].key, Reason.NOT_AN_IMAGE),
    ]
    statistics = json.loads((output / "statistics.json").read_bytes())
    assert {name: split["labels"] for name, split in statistics.items()} == {
        "train": {"cat": 4, "dog": 2},
        "test": {"dog": 3},
    }


def test_commit_of_compressed_targets_publishes_no_index_and_no_classes(targets: Dataset, output: pathlib.Path) -> None:
    targets.run()
    assert_whole(output)
    names = ["catalog.json", "croissant.json", "rejects.jsonl", "report.html", "statistics.json"]
    names += ["train-00000-of-00001.gz"]
    assert sorted(small_dataset.read_files(output)) == names
    assert not (output / "index").exists()


def test_commit_over_another_dataset_leaves_nothing_of_it(
    pets: Dataset, older: Dataset, targets: Dataset, output: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    older.run()
    (output / "README.md").write_text("the user's own")
    for number, dataset in enumerate([pets, targets, older]):
        dataset.run()
        dataset.at(tmp_path / str(number)).run()
        expected = contents(tmp_path / str(number)) | {"README.md": b"the user's own"}
        assert contents(output) == expected
        assert (output / "index").exists() == (dataset is not targets)  # which are compressed


def test_commit_of_a_compressed_dataset_leaves_other_files_in_the_folder_of_indexes(
    pets: Dataset, targets: Dataset, output: pathlib.Path
) -> None:
    pets.run()
    (output / "index" / "notes.txt").write_text("the user's own")
    targets.run()
    assert [path.name for path in (output / "index").iterdir()] == ["notes.txt"]


def test_page_that_cannot_be_made_is_a_note_and_the_dataset_is_committed(
    pets: Dataset, output: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> bytes:
        raise RuntimeError("no page today")

    monkeypatch.setattr(page, "make_report", fail)
    notes: list[str] = []
    catalog = pets.committer.commit(pets.compare(), pets.write(), pets.store_rejects(), note=notes.append)
    assert catalog is not None and "report.html" not in catalog.files
    assert_whole(output)
    assert notes == [
        f"the dataset has no report.html (RuntimeError: no page today): imagebeam report {output} makes one"
    ]


def test_page_from_a_writer_process_is_the_same(pets: Dataset, output: pathlib.Path) -> None:
    catalog = pets.run()
    assert catalog is not None
    page = (output / "report.html").read_bytes()
    shutil.rmtree(output)
    with writer_processes.start(1) as pool:
        committer = dataclasses.replace(pets.committer, writers=pool.token)
        again = committer.commit(pets.compare(), pets.write(), pets.store_rejects())
    assert again is not None and again.files["report.html"] == catalog.files["report.html"]
    assert (output / "report.html").read_bytes() == page


def test_writer_process_that_dies_over_the_page_is_a_note_and_the_dataset_is_committed(
    pets: Dataset, output: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset_files, "_try_to_make", os._exit)  # by its name in another module: it can be pickled
    monkeypatch.setattr(dataset_files, "_Task", lambda *_: 5)
    notes: list[str] = []
    with writer_processes.start(1) as pool:
        committer = dataclasses.replace(pets.committer, writers=pool.token)
        catalog = committer.commit(pets.compare(), pets.write(), pets.store_rejects(), note=notes.append)
    assert catalog is not None and "report.html" not in catalog.files
    assert_whole(output)
    assert notes == [
        "the dataset has no report.html (WriterDiedError: a writer process ended with code 5): "
        f"imagebeam report {output} makes one"
    ]


def test_commit_of_kept_dataset_changes_nothing_but_the_metadata_folder(pets: Dataset, output: pathlib.Path) -> None:
    pets.run()
    before = small_dataset.read_files(output)
    pathlib.Path(pets.settings.paths.metadata).mkdir(exist_ok=True)
    for name in (
        "lock",
        "run-1.json",
        "run-2.json",
        "publishing",
        "replaced-f0.json",
        "rejects.jsonl",
        "last-run.json",
    ):
        pathlib.Path(pets.settings.paths.metadata, name).write_text("{}")
    pathlib.Path(pets.settings.paths.metadata, "staging-f0").mkdir()
    own = dataclasses.replace(pets.settings, report=storage.join(pets.settings.paths.metadata, "run-1.json"))
    kept = dataclasses.replace(pets.plan, action="keep")
    assert commit_dataset.Committer(own, "pets", {}).commit(kept, [], []) is None
    assert small_dataset.read_files(output) == before | {".imagebeam/lock": b"{}", ".imagebeam/run-1.json": b"{}"}


# ---- a commit that is refused


def test_commit_of_shards_that_do_not_add_up_raises_and_publishes_nothing(pets: Dataset, output: pathlib.Path) -> None:
    written, rejects = pets.write(), pets.store_rejects()
    first, last = written[0], written[-1]
    fewer = first._replace(shard=dataclasses.replace(first.shard, records=first.shard.records - 1))
    another = last._replace(shard=dataclasses.replace(last.shard, name="test-00002-of-00003.tfrecord"))
    for code, found in [
        ("commit-shards-lost", written[1:]),
        ("commit-shards-lost", [*written, first]),
        ("commit-shards-lost", [*written, another]),
        ("commit-images-lost", [fewer, *written[1:]]),
    ]:
        with error_texts.raises(code):
            pets.committer.commit(pets.plan, found, rejects)
        assert [path.name for path in output.iterdir()] == [".imagebeam"]


def spoil(refs: Sequence[ImageRef]) -> None:
    for ref in refs:
        pathlib.Path(ref.uri).write_bytes(b"no image")


@pytest.mark.parametrize(
    ("code", "spoiled", "declared"),
    [
        ("rejects-all-of-split", slice(7, None), ("train", "test")),
        ("rejects-all-of-split", slice(7, None), None),
        ("rejects-all", slice(None), None),
    ],
    ids=["whole-split", "split-not-declared", "all"],
)
def test_commit_of_nothing_but_rejects_raises(
    pets: Dataset, refs: list[ImageRef], code: str, spoiled: slice, declared: tuple[str, ...] | None
) -> None:
    spoil(refs[spoiled])
    pets.settings = dataclasses.replace(pets.settings, max_reject_fraction=1.0, declared_splits=declared)
    with error_texts.raises(code):
        pets.run()


@pytest.mark.parametrize(
    ("spoiled", "labels", "num_unseen", "notes"),
    [
        pytest.param([], ("cat", "dog"), 0, [], id="every-class"),
        pytest.param([5, 6], ("cat", "dog"), 0, ["1 class has no image in train: 'dog'"], id="not-in-train"),
        pytest.param(
            [*range(2, 5), 0], ("cat", "dog"), 0, ["1 class has no image in the dataset: 'cat'"], id="nowhere"
        ),
        pytest.param([], ("cat", "cow", "dog"), 1, [], id="of-the-vocabulary-alone-as-the-plan-notes"),
        pytest.param(
            [*range(2, 5), 0],
            ("cat", "cow", "dog"),
            1,
            ["2 classes have no image in the dataset: 'cat', 'cow'"],
            id="of-the-vocabulary-and-by-rejects",
        ),
    ],
)
def test_class_without_an_image_is_noted(
    pets: Dataset, refs: list[ImageRef], spoiled: list[int], labels: tuple[str, ...], num_unseen: int, notes: list[str]
) -> None:
    spoil([refs[index] for index in spoiled])
    pets.plan = dataclasses.replace(pets.plan, labels=labels, num_unseen_labels=num_unseen)
    assert commit_dataset.notes_on_dataset(pets.settings, pets.plan, pets.write()) == notes
    targets = dataclasses.replace(pets.settings, label_kind="int64")
    assert commit_dataset.notes_on_dataset(targets, pets.plan, pets.write()) == []


def test_commit_of_plan_refused_for_rejects_leaves_them_never_beside_another_dataset(
    pets: Dataset, older: Dataset, output: pathlib.Path
) -> None:
    older.run()
    before = small_dataset.read_files(output)
    pets.plan = dataclasses.replace(
        pets.plan, action="refuse", error=errors.TooManyRejectsError("rejects-all", "too many")
    )
    with error_texts.raises("rejects-all"):
        pets.committer.commit(pets.plan, [], pets.store_rejects())
    assert read_rejects(output / ".imagebeam" / "rejects.jsonl") == [("odd\udcff", Reason.NO_LABEL)]
    assert small_dataset.read_files(output).items() >= before.items()
    older.committer.commit(dataclasses.replace(older.plan, action="keep"), [], [])
    assert small_dataset.read_files(output) == before


# ---- a commit that is cut short


class Killed(BaseException):
    """The process ends here."""


CHANGES = ("replace", "rename", "link", "unlink", "rmdir", "mkdir")  # of the module os; a write alone shows nowhere


def commit_killed_before(change: int, dataset: Dataset, written: list[WrittenShard], rejects: list[str]) -> bool:
    """Commits up to the given change to the disk; returns whether there was one.

    That change and all later ones raise, so what the disk holds then is what the end of the process would leave.
    """
    left = itertools.count(change, -1)

    def watch(function: Callable[..., object]) -> Callable[..., object]:
        def watched(*arguments: object, **keywords: object) -> object:
            if next(left) <= 0:
                raise Killed
            return function(*arguments, **keywords)

        return watched

    plan = dataset.compare()
    with pytest.MonkeyPatch.context() as patch:
        for name in CHANGES:
            patch.setattr(os, name, watch(getattr(os, name)))
        try:
            dataset.committer.commit(plan, written, rejects)
        except Killed:
            return True
    return False


def folders(output: pathlib.Path) -> set[pathlib.Path]:
    return {path.relative_to(output) for path in output.rglob("*") if path.is_dir()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("over", "cut", "follower"),
    [
        pytest.param(None, "pets", "pets", id="new-and-run-again"),
        pytest.param(None, "pets", "targets", id="new-and-then-another"),
        pytest.param("older", "pets", "pets", id="over-another-and-run-again"),
        pytest.param("older", "pets", "targets", id="over-another-and-then-a-third"),
        pytest.param("older", "pets", "older", id="over-another-and-then-that-again"),
        pytest.param("older", "transformed", "transformed", id="with-a-transform-and-run-again"),
        pytest.param("older", "transformed", "pets", id="with-a-transform-and-then-one-without"),
        pytest.param("transformed", "pets", "pets", id="over-one-with-a-transform-and-run-again"),
    ],
)
def test_commit_cut_short_anywhere_shows_no_wrong_dataset_and_the_next_run_gives_the_right_one(
    request: pytest.FixtureRequest, tmp_path: pathlib.Path, over: str | None, cut: str, follower: str
) -> None:
    earlier: Dataset | None = request.getfixturevalue(over) if over is not None else None
    this_run: Dataset = request.getfixturevalue(cut)
    next_run: Dataset = request.getfixturevalue(follower)
    output, before, clean = tmp_path / "out", tmp_path / "before", tmp_path / "clean"
    with output_lock.hold(next_run.at(clean).settings.paths.metadata):  # which removes its folder
        next_run.at(clean).run()
    expected, num_images = contents(clean), sum(map(len, this_run.splits.values())) - (this_run.plan.listed == 11)
    if earlier is not None:
        earlier.run()
    written, rejects = this_run.write(), this_run.store_rejects()
    shutil.copytree(output, before)
    cut_short = 0
    for number in itertools.count():
        killed = commit_killed_before(number, this_run, written, rejects)
        fingerprint = None
        if (output / "catalog.json").exists():
            fingerprint = catalog_lib.load_catalog(str(output)).fingerprint
            assert fingerprint in {each.plan.fingerprint for each in (earlier, this_run) if each is not None}
            assert_whole(output)
        elif (output / ".imagebeam" / "publishing").exists():
            cut_short += 1
            message = rf"a dataset of {num_images} images was cut short; run .* again \(--input /data/pets\)"
            with pytest.raises(errors.CatalogError, match=message):
                catalog_lib.load_catalog(str(output))
        runs = next_run.at(output)
        if fingerprint == next_run.plan.fingerprint:
            runs.plan = dataclasses.replace(runs.plan, action="keep")
        with output_lock.hold(runs.settings.paths.metadata):
            runs.run() if runs.plan.action == "write" else runs.committer.commit(runs.plan, [], [])
        assert contents(output) == expected, number
        assert folders(output) - {pathlib.Path("index")} == folders(clean) - {pathlib.Path("index")}, number
        if not killed:
            break
        shutil.rmtree(output)
        shutil.copytree(before, output)
    assert number > 20
    assert cut_short > 10


# ---- as a step of a pipeline


def test_commit_dataset_commits_and_reports(pets: Dataset, output: pathlib.Path) -> None:
    committer = commit_dataset.Committer(
        dataclasses.replace(pets.settings, report=str(output / "report.json")), "pets", {}
    )
    with test_pipeline.TestPipeline(runner=fn_api_runner.FnApiRunner()) as pipeline:
        plan = pipeline | "Plan" >> beam.Create([pets.plan])
        rejects = pipeline | "Rejects" >> beam.Create(pets.store_rejects())
        written = pipeline | "Written" >> beam.Create(pets.write()).with_output_types(elements.WrittenShard)
        assert_that(written | commit_step.CommitDataset(committer, plan, rejects), equal_to(["committed"]))
    assert run_report.read_report(committer.settings.report) == run_report.RunReport("committed", pets.plan)
    assert_whole(output)


def test_commit_that_runs_a_second_time_finds_its_own_dataset(pets: Dataset, output: pathlib.Path) -> None:
    first = pets.run()
    before = contents(output)
    assert pets.committer.commit(pets.plan, [], []) == first
    assert contents(output) == before
