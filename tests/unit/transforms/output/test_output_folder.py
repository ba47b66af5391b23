"""Every state in which a run may find its output, combined with every kind of next run."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import pathlib
import re
from collections.abc import Iterator

import pytest

from imagebeam import catalog as catalog_lib
from imagebeam import errors, records, storage, verify_shards
from imagebeam.transforms import dataset_settings, summaries
from imagebeam.transforms.commit import commit_dataset
from imagebeam.transforms.elements import Committed, DatasetPlan, ImageRef
from imagebeam.transforms.output import output_folder
from imagebeam.transforms.plan import decide_plan, plan_dataset
from imagebeam.transforms.publish import run_records
from tests import delayed_storage, error_texts, races
from tests.unit.transforms import small_dataset

FOREIGN = ("train-00001-of-00003", "other-00000-of-00001.tfrecord", "val-00002-of-00007.tfrecords.gz")

Files = dict[str, bytes]


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_records, "SETTLE_SEC", 0.0)  # of a run that takes over from one that was killed


@pytest.fixture(scope="module")
def refs(tmp_path_factory: pytest.TempPathFactory) -> list[ImageRef]:
    return small_dataset.make_refs(tmp_path_factory.mktemp("pets"))


@pytest.fixture
def output(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[str]:
    if request.param == "local":
        yield str(tmp_path / "out")
        return
    store = storage.storage_of("memory://folder")
    store.write_whole("memory://folder/there", b"")
    yield "memory://folder/out"
    store.remove_tree("memory://folder")


def make_settings(output: str, run: str, overwrite: bool = False) -> dataset_settings.DatasetSettings:
    num_shards = 3 if run == "other-shard-count" else 2
    dataset = small_dataset.make_settings(pathlib.Path("/nowhere"), sizing=dataset_settings.Sizing(num_shards))
    return dataclasses.replace(dataset, output=output, identity=json.dumps([{"run": run}, {}]), overwrite=overwrite)


def plan_of(dataset: dataset_settings.DatasetSettings, refs: list[ImageRef]) -> DatasetPlan:
    ranking, tally = small_dataset.make_ranking({"train": len(refs)}), summaries.Tally(len(refs), {}, ())
    plan = decide_plan.make_plan(dataset, ranking, tally, summaries.RejectSummary({}, 0, None))
    return plan_dataset.compare_with_committed(dataset, plan)


def convert(dataset: dataset_settings.DatasetSettings, refs: list[ImageRef]) -> DatasetPlan:
    """A whole run; returns its plan."""
    plan = plan_of(dataset, refs)
    written = small_dataset.write_shards(dataset, plan, {"train": refs}) if plan.action == "write" else []
    try:
        commit_dataset.Committer(dataset, "pets", {}).commit(plan, written, [])
    except errors.ConfigError as e:
        assert (plan.action, str(e)) == ("refuse", plan.message)
    return plan


def read_all(uri: str, below: str = "") -> Files:
    store, files = storage.storage_of(uri), {}
    with_folder = storage.join(uri, below) if below else uri
    if not store.exists(with_folder):
        return {}
    for entry in store.list_directory(with_folder):
        name = f"{below}/{entry.name}" if below else entry.name
        if entry.kind == storage.DIRECTORY:
            files |= read_all(uri, name)
        else:
            files[name] = store.read(storage.join(uri, name))
    return files


def kill_in_the_middle(dataset: dataset_settings.DatasetSettings, refs: list[ImageRef]) -> None:
    """A run that dies after it has moved some of its shards."""
    left = itertools.count(4, -1)
    store = type(storage.storage_of(dataset.output))
    rename = store.rename

    def rename_or_die(self: object, source: str, target: str, version: int = 0) -> None:
        if "/.imagebeam/" not in target and next(left) <= 0:
            raise Killed
        rename(self, source, target, version)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(store, "rename", rename_or_die)
        convert(dataset, refs)


def bring_about(state: str, output: str, refs: list[ImageRef]) -> None:
    """Leaves an output as the runs before did, or what happened to it since."""
    store, catalog = storage.storage_of(output), storage.join(output, "catalog.json")
    if state == "fresh":
        return
    if state == "killed":
        kill_in_the_middle(make_settings(output, "same"), refs)
        return
    if state == "killed-over-another":
        convert(make_settings(output, "before"), refs)
        kill_in_the_middle(make_settings(output, "same", overwrite=True), refs)
        return
    convert(make_settings(output, "same"), refs)
    text = store.read(catalog)
    if state == "catalog-edited":
        store.write_whole(catalog, text.replace(b'"pets"', b'"cats"'))
    elif state == "catalog-of-a-newer-format":
        store.write_whole(catalog, text.replace(b'"format_version": 1', b'"format_version": 99'))
    elif state == "catalog-cut-short":
        store.write_whole(catalog, text[:-50])
    elif state == "catalog-deleted":
        store.remove(catalog)


def expect(state: str, run: str, foreign: bool, overwrite: bool) -> tuple[str, str]:
    """The action of the plan, and what its message says."""
    if foreign:
        return "refuse", "choose another --output, or move or delete them: --overwrite replaces only"
    if state in ("catalog-cut-short", "catalog-deleted"):  # nothing says any more whose the shards are
        named = "train-00000-of-00002.tfrecord, train-00001-of-00002.tfrecord"
        return "refuse", f"holds {named}, which no catalog.json names"
    if state.startswith("catalog-"):
        return ("write", "") if overwrite else ("refuse", "--overwrite replaces it")
    if state == "committed":
        if run == "same":
            return "keep", "holds this dataset already"
        return ("write", "") if overwrite else ("refuse", "choose another --output, or --overwrite")
    return "write", ""


STATES = (
    *("fresh", "committed", "killed", "killed-over-another"),
    *("catalog-edited", "catalog-of-a-newer-format", "catalog-cut-short", "catalog-deleted"),
)


CASES = (  # the storage, the next run, and whether there are foreign shards, which stop any run
    *(("local", run, False) for run in ("same", "other-config", "other-shard-count")),
    *(("memory", run, False) for run in ("same", "other-shard-count")),
    *(("local", "other-shard-count", True), ("memory", "same", True)),
)


@pytest.mark.parametrize(("output", "run", "foreign"), CASES, indirect=["output"])
def test_run_leaves_the_shards_of_its_catalog_alone_or_refuses_and_changes_nothing(
    run: str, foreign: bool, output: str, refs: list[ImageRef]
) -> None:
    for state, overwrite in itertools.product(STATES, (False, True)):
        check_run(f"{output}/{state}-{overwrite}", refs, state, run, foreign, overwrite)


def check_run(output: str, refs: list[ImageRef], state: str, run: str, foreign: bool, overwrite: bool) -> None:
    bring_about(state, output, refs)
    store = storage.storage_of(output)
    for name in FOREIGN if foreign else ():
        store.make_directories(output)
        store.write_whole(storage.join(output, name), b"somebody else's")
    before = read_all(output)
    plan = convert(make_settings(output, run, overwrite), refs)
    action, message = expect(state, run, foreign, overwrite)
    assert (plan.action, plan.exit_code) == (action, 2 if action == "refuse" else 0), output
    assert message in plan.message
    after = read_all(output)
    if action == "refuse":
        assert after == before
        assert all(name in plan.message for name in (FOREIGN if foreign and len(before) == len(FOREIGN) else ()))
        return
    catalog = catalog_lib.load_catalog(output)
    named = {shard.name for shard in catalog.splits["train"].shards}
    assert {name for name in after if "/" not in name and records.is_shard_name(name)} == named
    assert len(named) == (3 if run == "other-shard-count" else 2)
    assert not [name for name in after if name.startswith(".imagebeam")]
    assert [problem for _, problems in verify_shards.verify_dataset(output) for problem in problems] == []


@pytest.mark.parametrize("output", ["local"], indirect=True)
def test_shard_that_appears_while_a_run_goes_on_stops_its_commit(output: str, refs: list[ImageRef]) -> None:
    dataset = make_settings(output, "same")
    plan = plan_of(dataset, refs)
    written = small_dataset.write_shards(dataset, plan, {"train": refs})
    pathlib.Path(output, FOREIGN[0]).write_bytes(b"somebody else's")
    with error_texts.raises("output-unnamed-shards"):
        commit_dataset.Committer(dataset, "pets", {}).commit(plan, written, [])
    assert sorted(path.name for path in pathlib.Path(output).iterdir()) == [".imagebeam", FOREIGN[0]]
    pathlib.Path(output, FOREIGN[0]).unlink()
    assert convert(dataset, refs).action == "write"


def test_file_counts_as_a_shard_by_its_form_and_suffix(tmp_path: pathlib.Path) -> None:
    shards = (
        *("train-00000-of-00001", "train-00000-of-00001.tfrecord", "train-00000-of-00001.TFRecords.gz"),
        *("a.b-c-00000-of-00001.record", "train-00000-of-00001.bin"),  # the latter with the output's own suffix
    )
    others = (
        *("train-00000-of-00001.parquet", "train-00000-of-00001.tfrecord.idx", "train-00001-of-00001.tfrecord"),
        *("train-0-of-1.tfrecord", "train.tfrecord"),
    )
    for name in (*shards, *others):
        (tmp_path / name).write_bytes(b"")
    with error_texts.raises("output-unnamed-shards") as refused:
        output_folder.OutputFolder(str(tmp_path)).refuse_unnamed_shards(".bin")
    assert f"holds {', '.join(sorted(shards))}, which" in str(refused.value)


def test_catalog_that_is_not_whole_names_nothing_but_shards(tmp_path: pathlib.Path) -> None:
    shard = {"name": "train-00000-of-00001.tfrecord"}
    escaping = [{"name": name} for name in ("../a-00000-of-00001", "notes.txt", "x/train-00000-of-00001")]
    text = json.dumps({"splits": {"train": {"shards": [shard, *escaping]}}, "files": {"notes.txt": 1}})
    (tmp_path / "catalog.json").write_text(text)
    named = output_folder.OutputFolder(str(tmp_path)).named_files()
    stem = "train-00000-of-00001"
    assert named == {f"{stem}.tfrecord", f"index/{stem}.index", f"index/{stem}.sizes"}


# ---- damage


@pytest.mark.parametrize("thoroughly", [False, True])
def test_whole_dataset_is_seen_by_one_listing_of_each_folder(refs: list[ImageRef], thoroughly: bool) -> None:
    requests = {}
    for num_shards in (2, 5):
        store = delayed_storage.DelayedStorage()
        with delayed_storage.mounted(store) as output:
            run = races.make_runs(output, "same-config", refs)["A"]
            run.num_shards = num_shards
            assert run.run() == "committed"
            catalog = catalog_lib.load_catalog(output)
            store.requests.clear()
            assert output_folder.OutputFolder(output).find_damage(catalog, thoroughly) is None
            requests[num_shards] = dict(store.requests)
    if thoroughly:
        assert requests[5]["read"] > requests[2]["read"] >= 2
    else:
        assert requests[2] == requests[5] == {"list": 2}  # the dataset and its indexes


def test_file_of_untold_size_counts_as_it_is(refs: list[ImageRef], monkeypatch: pytest.MonkeyPatch) -> None:
    store = delayed_storage.DelayedStorage()
    with delayed_storage.mounted(store) as output:
        assert races.make_runs(output, "same-config", refs)["A"].run() == "committed"
        catalog, folder = catalog_lib.load_catalog(output), output_folder.OutputFolder(output)
        entries = store._entries
        monkeypatch.setattr(store, "_entries", lambda uri: [entry._replace(size=-1) for entry in entries(uri)])
        assert folder.find_damage(catalog, thoroughly=False) is None
        store.remove(f"{output}/index/train-00001-of-00002.index")
        damage = "index/train-00001-of-00002.index is missing"
        assert folder.find_damage(catalog, thoroughly=False) == damage


# ---- output paths


PATHS = output_folder.OutputPaths("gs://b/pets")


def test_paths_are_below_the_output() -> None:
    assert PATHS.metadata == "gs://b/pets/.imagebeam"
    assert PATHS.commit_lock == "gs://b/pets/.imagebeam/publishing"
    assert PATHS.catalog == "gs://b/pets/catalog.json"
    assert PATHS.lock == "gs://b/pets/.imagebeam/lock"
    assert PATHS.last_run == "gs://b/pets/.imagebeam/last-run.json"
    assert PATHS.report("f00d") == "gs://b/pets/.imagebeam/run-f00d.json"
    assert PATHS.replaced("ab12") == "gs://b/pets/.imagebeam/replaced-ab12.json"
    assert PATHS.staging("ab12") == "gs://b/pets/.imagebeam/staging-ab12"
    assert PATHS.beam_folder("gs://b/pets/.imagebeam/run-f00d.json") == "gs://b/pets/.imagebeam/beam-run-f00d"


def test_paths_of_one_run_are_new_each_time() -> None:
    for make, pattern in (
        (output_folder.new_run_id, r"[0-9a-f]{16}"),
        (PATHS.new_transform_folder, r"gs://b/pets/\.imagebeam/transform-[0-9a-f]{8}"),
    ):
        first, second = make(), make()
        assert re.fullmatch(pattern, first) and re.fullmatch(pattern, second) and first != second


# ---- committed catalog


@pytest.fixture
def committed(tmp_path: pathlib.Path) -> str:
    """A committed dataset."""
    committed = str(tmp_path / "out")
    races.commit_earlier(committed, small_dataset.make_refs(tmp_path / "in"))
    return committed


def test_catalog_is_found_with_its_version_and_bytes(committed: str) -> None:
    path = pathlib.Path(committed, "catalog.json")
    found = output_folder.find_catalog(committed)
    assert found is not None and found.catalog is not None and found.error is None
    data = path.read_bytes()
    assert found.record == Committed("f0", path.stat().st_mtime_ns, len(data), records.extend_crc(0, data))
    assert output_folder.has_bytes_of(str(path), found.record)
    path.write_bytes(data.replace(b"f0", b"f9"))
    assert not output_folder.has_bytes_of(str(path), found.record)
    other = output_folder.find_catalog(committed)
    assert other is not None and other.record != found.record
    assert isinstance(other.error, errors.CatalogError) and other.record.fingerprint == ""


def test_folder_without_a_catalog_has_none(tmp_path: pathlib.Path) -> None:
    for folder in ["nothing", "file/below"]:
        (tmp_path / "file").touch()
        assert output_folder.find_catalog(str(tmp_path / folder)) is None
        assert not output_folder.has_bytes_of(str(tmp_path / folder), Committed("f", 1))


def test_unreadable_catalog_is_recorded_by_its_version(committed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(storage.LocalStorage, "read", refuse)
    found = output_folder.find_catalog(committed)
    path = pathlib.Path(committed, "catalog.json")
    assert found is not None and found.record == Committed("", path.stat().st_mtime_ns)
    assert str(found.error) == f"{path} cannot be read (Permission denied); grant read access to it"
    assert output_folder.has_bytes_of(str(path), found.record)


@pytest.mark.parametrize("replacements", [1, 4, 5])
def test_catalog_that_is_replaced_while_it_is_read_is_read_again(
    committed: str, monkeypatch: pytest.MonkeyPatch, replacements: int
) -> None:
    path, stat, left = (pathlib.Path(committed, "catalog.json"), storage.LocalStorage.stat, [replacements])

    def stat_and_replace(self: storage.LocalStorage, uri: str) -> storage.Entry:
        entry = stat(self, uri)
        if left[0]:
            left[0] -= 1
            os.utime(path, ns=(0, entry.version + 1))
        return entry

    monkeypatch.setattr(storage.LocalStorage, "stat", stat_and_replace)
    if replacements == 5:
        with pytest.raises(storage.ChangedError):
            output_folder.find_catalog(committed)
    else:
        found = output_folder.find_catalog(committed)
        assert found is not None and found.record.version == path.stat().st_mtime_ns


def test_storage_that_fails_is_no_missing_catalog(committed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> bytes:
        raise storage.UnavailableError(5, "no answer")

    monkeypatch.setattr(storage.LocalStorage, "read", fail)
    with pytest.raises(storage.UnavailableError):
        output_folder.find_catalog(committed)
