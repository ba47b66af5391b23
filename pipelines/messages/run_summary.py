"""The summary of a command as one JSON document, for schedulers. docs/summary.schema.json describes it."""

from __future__ import annotations

import datetime
import hashlib
import json
import time
from typing import Any

import imagebeam
from imagebeam import catalog as catalog_lib
from imagebeam.pipelines.messages import run_journal

SCHEMA_VERSION = 1  # raised when a field is removed or changes its meaning; a new field does not raise it
_CONTENT_FILES = (catalog_lib.LABELS_FILE, "removed.bin")  # what readers take from a dataset beside its shards


def summarize(journal: run_journal.Journal) -> dict[str, Any]:
    """Returns the summary of a command that has ended."""
    catalog = journal.catalog
    splits = _splits(journal)
    return {
        "schema_version": SCHEMA_VERSION,
        "command": journal.command,
        "version": imagebeam.__version__,
        "state": journal.state,
        "exit_code": journal.exit_code,
        "message": journal.message,
        "input": journal.input,
        "output": journal.output,
        "name": journal.name,
        "run_id": journal.run_id,
        "snapshot": journal.snapshot if catalog is not None or journal.state == "planned" else None,
        "fingerprint": _fingerprint(journal),
        "counts": _counts(journal),
        "duplicates": None if catalog is None else catalog.duplicates,
        "splits": splits,
        "bytes": None if splits is None else sum(split["bytes"] for split in splits.values()),
        "digest": None if catalog is None else digest(catalog),
        "reject_limit": journal.max_reject_fraction,
        "durations": journal.seconds(),
        "job": None if journal.job is None else {**journal.job.to_fields(), "console": journal.job.console},
        "template": journal.template,
        "notes": journal.notes,
        "started": _iso(journal.times["started"]),
        "ended": _iso(journal.times.get("ended", time.time())),
    }


def encode(summary: dict[str, Any]) -> bytes:
    """Returns the document."""
    return json.dumps(summary, indent=1).encode() + b"\n"


def digest(catalog: catalog_lib.Catalog) -> str:
    """Returns a digest of what a dataset holds: equal for equal shards and classes, whenever they were written.

    It is the SHA-256 of a line for each shard and each file that readers use, in the order of the catalog: name, number
    of records (not for files), bytes and crc32c, separated by blanks.
    """
    shards = [shard for split in catalog.splits.values() for shard in split.shards]
    lines = [f"{shard.name} {shard.records} {shard.bytes} {shard.crc32c}\n" for shard in shards]
    for name in _CONTENT_FILES:
        if (file := catalog.files.get(name)) is not None:
            lines.append(f"{name} {file.bytes} {file.crc32c}\n")
    return "sha256:" + hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def _fingerprint(journal: run_journal.Journal) -> str | None:
    if journal.catalog is not None:
        return journal.catalog.fingerprint
    return None if journal.plan is None else journal.plan.fingerprint


def _counts(journal: run_journal.Journal) -> dict[str, Any] | None:
    """Returns what became of the images; None before they were listed."""
    if journal.catalog is not None:
        counted = journal.catalog.counts
        listed, written, rejected, passed_over = counted.listed, counted.written, counted.rejected, counted.passed_over
    elif journal.plan is not None:
        plan = journal.plan
        rejected = plan.rejected if journal.rejected is None else journal.rejected
        listed, written, passed_over = plan.listed, 0, plan.passed_over
    else:
        return None
    counts = {"listed": listed, "written": written, "rejected": dict(rejected), "passed_over": dict(passed_over)}
    changes = {} if journal.changes is None else journal.changes._asdict()
    return counts | {name: count for name, count in changes.items() if count is not None}


def _splits(journal: run_journal.Journal) -> dict[str, dict[str, int]] | None:
    """Returns the size of each split: as committed, or as planned by `plan`, whose bytes are those of the images."""
    if journal.catalog is not None:
        return {
            name: {"examples": split.num_examples, "shards": len(split.shards), "bytes": split.num_bytes}
            for name, split in journal.catalog.splits.items()
        }
    if journal.plan is not None and journal.command == "plan":
        return {
            name: {"examples": split.num_records, "shards": split.num_shards, "bytes": split.num_bytes}
            for name, split in journal.plan.splits.items()
        }
    return None


def _iso(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).isoformat(timespec="milliseconds")
