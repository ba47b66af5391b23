"""Measures the commit of many shards: seconds, requests for each shard by kind, memory, time without a dataset.

The shards are names, sizes and checksums in a storage in the memory of the process (tests/delayed_storage.py). Each
request to it sleeps, so that waiting costs no processor time. Run from the root of the repository:
python -m benchmarks.commit > commit.json
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import harness
from imagebeam import catalog as catalog_lib
from imagebeam import features, shard_names
from imagebeam.transforms import commit_dataset, dataset_settings, elements
from imagebeam.transforms.commit import publish_dataset
from imagebeam.transforms.plan import compare_with_committed
from imagebeam.transforms.shard import shard_writer, statistics
from tests import delayed_storage

_IMAGES_PER_SHARD = 1220
_SHARD_BYTES = 128 << 20
_NUM_CLASSES = 1000
_NUM_EARLY_FILES = 64
_FINGERPRINTS = {"earlier": "f0", "now": "f1"}
_RUN = "import sys; from benchmarks import commit; commit.run(*sys.argv[1:])"


@dataclasses.dataclass(frozen=True)
class FakeDataset:
    """A dataset whose shards hold nothing, before its commit."""

    settings: dataset_settings.DatasetSettings
    fingerprint: str
    num_shards: int
    reject_every: int  # one shard in this many has a reject; 0: none has

    def plan(self) -> elements.DatasetPlan:
        images = self.num_shards * _IMAGES_PER_SHARD
        return elements.DatasetPlan(
            action="write",
            message="",
            exit_code=0,
            fingerprint=self.fingerprint,
            splits={"train": elements.SplitPlan(images, self.num_shards * _SHARD_BYTES, self.num_shards)},
            labels=tuple(f"n{index:08d}" for index in range(_NUM_CLASSES)),
            listed=images,
            rejected={},
            passed_over={},
        )

    def stage(self, store: delayed_storage.DelayedStorage) -> list[elements.WrittenShard]:
        """Adds the files that the writers leave, without a request."""
        staging = self.settings.paths.staging(self.fingerprint)
        return [self._stage_shard(store, staging, index) for index in range(self.num_shards)]

    def _stage_shard(self, store: delayed_storage.DelayedStorage, staging: str, index: int) -> elements.WrittenShard:
        name = str(shard_names.ShardName("train", index, self.num_shards, self.settings.suffix))
        is_rejecting = self.reject_every > 0 and index % self.reject_every == 0
        shard = catalog_lib.Shard(name, _IMAGES_PER_SHARD - is_rejecting, _SHARD_BYTES + index, index, index)
        written = elements.WrittenShard("train", shard, {"truncated": 1} if is_rejecting else {}, {})
        store.add(f"{staging}/{name}", delayed_storage.NotKept(shard.bytes, shard.crc32c))
        staged_index = f"{staging}/{shard.index_name.rpartition('/')[2]}"
        store.add(staged_index, delayed_storage.NotKept(shard.index_file.bytes, index))
        store.add(f"{staging}/{name}{shard_writer.DONE_SUFFIX}", delayed_storage.NotKept(68_000, 0))
        if is_rejecting:
            reject = elements.Reject(f"n0/{index}.JPEG", f"gs://bucket/n0/{index}.JPEG", "check", "truncated", "at 9")
            line = json.dumps(reject._asdict()).encode() + b"\n"
            store.add(f"{staging}/{name}{shard_writer.REJECTS_SUFFIX}", line)
        return written

    def stage_early_rejects(self, store: delayed_storage.DelayedStorage) -> list[str]:
        """Adds files as the listing leaves them, here without a line: no image was rejected before."""
        names = [f"early-{index:02d}{shard_writer.REJECTS_SUFFIX}" for index in range(_NUM_EARLY_FILES)]
        for name in names:
            store.add(f"{self.settings.paths.staging(self.fingerprint)}/{name}", b"")
        return names

    def commit(self, store: delayed_storage.DelayedStorage) -> None:
        """Compares the plan with the output and commits."""
        written, early = self.stage(store), self.stage_early_rejects(store)
        plan = compare_with_committed.compare_with_committed(self.settings, self.plan())
        committer = commit_dataset.Committer(self.settings, "fake", {})
        merged = {"train": statistics.StatisticsBuilder().build()}
        assert committer.commit(plan, written, early, merged) is not None, plan.message


class _Unreadable:
    """Measures for how long readers find no catalog: from its removal to the next one."""

    def __init__(self, store: delayed_storage.DelayedStorage, catalog: str):
        self.seconds = 0.0
        self._since: float | None = None
        self._move, self._catalog = store._move, catalog
        store._move = self._watch  # type: ignore[method-assign]

    def _watch(self, source: str, target: str, must_be_new: bool) -> None:
        self._move(source, target, must_be_new)
        if source == self._catalog:
            self._since = time.monotonic()
        elif target == self._catalog and self._since is not None:
            self.seconds += time.monotonic() - self._since


def measure(num_shards: int, over: str, reject_every: int, delay_sec: float, moves_at_once: bool) -> dict[str, Any]:
    """Commits once in this process; returns what it cost.

    Args:
        num_shards: of the dataset.
        over: what the output holds before: "nothing", "same-names" or "other-names".
        reject_every: one shard in this many has a file of rejects; 0: none has.
        delay_sec: of each request.
        moves_at_once: whether a move is one request; else a copy and a deletion.
    """
    store = delayed_storage.DelayedStorage(0.0, moves_at_once)
    with delayed_storage.mounted(store) as output:
        settings = dataset_settings.DatasetSettings(
            output, "{}", features=features.resolve_features({}, "class", {}), overwrite=True, max_reject_fraction=1.0
        )
        if over != "nothing":
            earlier = num_shards if over == "same-names" else num_shards + 1
            FakeDataset(settings, _FINGERPRINTS["earlier"], earlier, 0).commit(store)
        store.requests.clear(), store.most_at_once.clear()
        store.delay_sec = delay_sec
        unreadable = _Unreadable(store, settings.paths.catalog)
        now = FakeDataset(settings, _FINGERPRINTS["now"], num_shards, reject_every)
        begin = time.monotonic()
        now.commit(store)
        seconds = time.monotonic() - begin
        store.delay_sec = 0.0
        committed = catalog_lib.load_catalog(output)
        assert (committed.fingerprint, len(committed.splits["train"].shards)) == (now.fingerprint, num_shards)
        requests = dict(store.requests)
        store.requests.clear()
        quiet = dataclasses.replace(settings, overwrite=False)
        again = compare_with_committed.compare_with_committed(quiet, now.plan())
        assert again.action == "keep", again.message
        requests_to_keep = dict(store.requests)
    return {
        "seconds": round(seconds, 2),
        "seconds_without_dataset": round(unreadable.seconds, 2),
        "requests": requests,
        "requests_per_shard": {kind: round(count / num_shards, 3) for kind, count in requests.items()},
        "most_at_once": dict(store.most_at_once),
        "requests_to_see_that_nothing_is_to_do": requests_to_keep,
    }


def run(num_shards: str, over: str, reject_every: str, delay: str, moves_at_once: str, report: str) -> None:
    """Runs `measure` and writes its result, as a process of its own."""
    found = measure(int(num_shards), over, int(reject_every), float(delay), moves_at_once == "True")
    Path(report).write_text(json.dumps(found))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=82_000)
    parser.add_argument("--over", choices=("nothing", "same-names", "other-names"), default="nothing")
    parser.add_argument("--reject-every", type=int, default=1, help="one shard in this many has rejects (1); 0: none")
    parser.add_argument("--delay", type=float, default=0.05, metavar="SEC", help="of each request (0.05)")
    parser.add_argument("--copy", action="store_true", help="a move is a copy and a deletion")
    args = parser.parse_args()
    if args.shards < 1 or args.reject_every < 0 or args.delay < 0:
        parser.error("--shards takes a number from 1, --reject-every and --delay from 0")
    with tempfile.TemporaryDirectory(prefix="imagebeam-commit-") as folder:
        report = Path(folder) / "report.json"
        options = [args.shards, args.over, args.reject_every, args.delay, not args.copy, report]
        try:
            measured = harness.run([sys.executable, "-c", _RUN, *map(str, options)])
        except harness.BenchmarkError as e:
            harness.progress(f"error: {e}")
            return 1
        found = json.loads(report.read_text())
    harness.print_json(
        {
            "benchmark": "commit",
            "machine": harness.describe_machine(),
            "shards": args.shards,
            "over": args.over,
            "reject_every": args.reject_every,
            "delay_sec": args.delay,
            "move": "copy and delete" if args.copy else "one request",
            "at_once": publish_dataset.REQUESTS_AT_ONCE,
            **found,
            "cpu_seconds": round(measured.cpu_seconds, 1),
            "peak_rss_mb": round(measured.peak_rss_bytes / harness.MEGABYTE, 1),
        }
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
