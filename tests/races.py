"""Two runs on one output, step by step in any order, and a model of what each of them must end with."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import pathlib
import subprocess
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence

from imagebeam import catalog as catalog_lib
from imagebeam import errors, storage
from imagebeam.pipelines import verify_dataset
from imagebeam.transforms import dataset_settings, elements
from imagebeam.transforms.commit import commit_dataset
from imagebeam.transforms.elements import ImageRef
from imagebeam.transforms.plan import plan_dataset
from imagebeam.transforms.publish import run_records
from tests.unit.transforms import small_dataset

STEPS = ("plan", "write", "commit")
ORDERS = sorted(set(itertools.permutations("AAABBB")))  # whose step is next
START_STATES = tuple(itertools.product((False, True), repeat=2))  # whether there is an earlier dataset, a lock of B
OTHER_CONFIGS = {"same-config": ("f1", 2, 0), "same-shard-names": ("f2", 2, 3), "other-shard-names": ("f2", 3, 3)}
# Arguments of `play`. What a write alone would damage is seen after the commit; test_commit_races.py plays all other
# cases on a local disk, and looks after each write.
CASES_OF_STORAGES = (
    ("AABBBA", "same-shard-names", True, False, ("commit",)),
    ("AABBBA", "same-shard-names", False, False, ("commit",)),
    ("AABBAB", "same-shard-names", True, True, ("commit",)),
    ("ABABAB", "same-config", False, False, ("commit",)),
)


@dataclasses.dataclass
class Run:
    """One run on an output, from its plan to its commit."""

    settings: dataset_settings.DatasetSettings
    fingerprint: str
    refs: list[ImageRef]
    num_shards: int
    plan: elements.DatasetPlan | None = None
    written: Sequence[elements.WrittenShard] = ()
    next_step: Iterator[str] = dataclasses.field(default_factory=lambda: iter(STEPS))

    def step(self) -> str:
        """Takes the next step; returns how the commit ended, "" before it."""
        return getattr(self, f"_{next(self.next_step)}")()

    def run(self) -> str:
        """Takes all steps."""
        return [self.step() for _ in STEPS][-1]

    def sign_lock(self) -> None:
        """Holds the lock, as its launcher does."""
        store = storage.storage_of(self.settings.output)
        store.make_directories(self.settings.paths.metadata)
        record = run_records.RunRecord.of_this_process(self.settings.run_id)
        store.write_whole(self.settings.paths.lock, record.encode())

    def drop_lock(self) -> None:
        storage.storage_of(self.settings.output).remove(self.settings.paths.lock)

    @property
    def has_staged(self) -> bool:
        return storage.storage_of(self.settings.output).exists(self.settings.paths.staging(self.fingerprint))

    def _plan(self) -> str:
        plan = small_dataset.make_plan({"train": self.refs}, self.num_shards, fingerprint=self.fingerprint)
        self.plan = plan_dataset.compare_with_committed(
            self.settings, dataclasses.replace(plan, run_id=self.settings.run_id)
        )
        assert self.plan.action in ("write", "keep"), self.plan.message
        return ""

    def _write(self) -> str:
        assert self.plan is not None
        if self.plan.action == "write":
            self.written = small_dataset.write_shards(self.settings, self.plan, {"train": self.refs})
        return ""

    def _commit(self) -> str:
        assert self.plan is not None
        committer = commit_dataset.Committer(self.settings, self.settings.run_id, {})
        try:
            return "kept" if committer.commit(self.plan, self.written, []) is None else "committed"
        except errors.BusyError:
            return "busy"


def make_runs(output: str, config: str, refs: list[ImageRef]) -> dict[str, Run]:
    """Returns runs A and B; `config` is a key of OTHER_CONFIGS."""
    settings = small_dataset.make_settings(pathlib.Path("/"), overwrite=True)
    runs = {}
    for name, (fingerprint, num_shards, first) in {"A": ("f1", 2, 0), "B": OTHER_CONFIGS[config]}.items():
        own = dataclasses.replace(settings, output=output, run_id=name)
        runs[name] = Run(own, fingerprint, refs[first : first + 5], num_shards)
    return runs


def commit_earlier(output: str, refs: list[ImageRef]) -> None:
    """Commits the dataset that the output held before."""
    earlier = make_runs(output, "same-config", refs)["A"]
    earlier.settings = dataclasses.replace(earlier.settings, run_id="")
    earlier.fingerprint, earlier.num_shards, earlier.refs = "f0", 2, refs[2:6]
    assert earlier.run() == "committed"


def committed_by(output: str) -> tuple[str, str]:
    """Returns the run that committed the dataset that readers find, and its fingerprint; "" if there is none.

    The dataset is whole: every file is what the catalog says, and no other shard is beside it.
    """
    try:
        catalog = catalog_lib.load_catalog(output)
    except errors.CatalogError:
        assert not storage.storage_of(output).exists(storage.join(output, "catalog.json"))
        return "", ""
    assert verify_dataset.verify(output).problems == ()
    return catalog.name, catalog.fingerprint


@dataclasses.dataclass
class Model:
    """What is committed, and what each run saw of it: enough to say how each commit must end."""

    committed: tuple[str, str]  # run and fingerprint
    seen: dict[str, tuple[str, str]] = dataclasses.field(default_factory=dict)

    def commit(self, name: str, fingerprint: str, lock_is_taken: bool) -> str:
        if self.committed[1] == fingerprint:
            return "kept"
        if self.committed != self.seen[name] or (lock_is_taken and name == "A") or self.seen[name][1] == fingerprint:
            return "busy"
        self.committed = name, fingerprint
        return "committed"


@functools.cache
def _images() -> tuple[tempfile.TemporaryDirectory[str], list[ImageRef]]:
    """Returns a folder of images that lasts as long as this process, and its references."""
    folder = tempfile.TemporaryDirectory()
    return folder, small_dataset.make_refs(pathlib.Path(folder.name, "in"))


def play(
    output: str,
    order: Sequence[str],
    config: str,
    has_earlier: bool,
    locked: bool,
    looks_after: Collection[str] = ("write", "commit"),  # what a plan would change is seen after the next step
) -> None:
    """Lets two runs take their steps in `order`, and compares each step with the model.

    Args:
        output: a new folder.
        order: the name of a run for each step.
        config: of run B, a key of OTHER_CONFIGS.
        has_earlier: whether the output holds a dataset that both replace.
        locked: whether B holds the lock; otherwise there is none: A's is gone with its launcher, and B's later too.
        looks_after: the steps after which the committed dataset is read whole.
    """
    refs = _images()[1]
    if has_earlier:
        commit_earlier(output, refs)
    runs, lock_is_taken = make_runs(output, config, refs), False
    model = Model(committed_by(output))
    assert model.committed == (("", "f0") if has_earlier else ("", ""))
    steps = dict.fromkeys("AB", 0)
    for name in order:
        step, run = STEPS[steps[name]], runs[name]
        steps[name] += 1
        if step == "plan":
            model.seen[name] = model.committed
            if locked and name == "B":
                run.sign_lock()
                lock_is_taken = True
        outcome = run.step()
        if step == "commit":
            expected = model.commit(name, run.fingerprint, lock_is_taken)
            assert outcome == expected, (name, order)
            if outcome == "busy" and not lock_is_taken:
                assert run.has_staged or runs["B"].fingerprint == "f1" or locked
            if locked and name == "B":
                run.drop_lock()
                lock_is_taken = False
        if step in looks_after:
            assert committed_by(output) == model.committed, (name, step, order)


def play_all(outputs: str, config: str) -> int:
    """Plays all orders in folders below `outputs`, each with and without an earlier dataset and a lock of B."""
    return _play(outputs, config, itertools.product(ORDERS, START_STATES))


def play_each(outputs: str, config: str) -> int:
    """Plays all orders in folders below `outputs`, each once: on this config, an earlier dataset and a lock in turn.

    Over all configs, each order meets three of the four states to start from, and each config meets all.
    """
    states = itertools.islice(itertools.cycle(START_STATES), list(OTHER_CONFIGS).index(config), None)
    return _play(outputs, config, zip(ORDERS, states))


def _play(outputs: str, config: str, cases: Iterable[tuple[Sequence[str], tuple[bool, bool]]]) -> int:
    for count, (order, (has_earlier, locked)) in enumerate(cases, 1):
        play(f"{outputs}/{count}", order, config, has_earlier, locked)
        clear_memory(f"{outputs}/{count}")
    return count


def clear_memory(output: str) -> None:
    """Removes an output in memory, where each look at a folder goes through all files of all outputs."""
    if output.startswith("memory:"):
        storage.storage_of(output).remove_tree(output)


@functools.cache  # to start a process takes longer than what is tested with it
def pid_of_nobody() -> int:
    """Returns the id of a process that has ended."""
    with subprocess.Popen(["true"]) as process:
        return process.pid
