"""Reads a dataset of snapshots without imagebeam's reader, and checks what is true of each."""

from __future__ import annotations

import array
import collections
import hashlib
import json
import pathlib
from typing import Any, NamedTuple

from imagebeam import example, records
from imagebeam.pipelines import convert


class Stored(NamedTuple):
    """One living example."""

    split: str
    label: str
    label_id: int
    data: bytes


def update(
    images: pathlib.Path,
    output: pathlib.Path,
    /,
    overwrite: bool = False,
    retry_rejects: bool = False,
    fail_on_drift: bool = False,
    **sections: Any,
) -> convert.ConvertResult:
    """Writes the next snapshot; checks that no earlier one has changed, and that it holds nothing twice."""
    sections = {**sections, "source": {"uri": str(images), **sections.get("source", {})}}
    sections["output"] = {"uri": str(output), **sections.get("output", {})}
    before = digests(output)
    rejects_before = stored_rejects(output)
    result = convert.convert(
        sections, workers=1, update=True, overwrite=overwrite, retry_rejects=retry_rejects, fail_on_drift=fail_on_drift
    )
    after = digests(output)
    assert {name: after.get(name) for name in before} == before
    counts = result.catalog.counts
    assert counts.listed == counts.written + sum(counts.rejected.values())
    assert counts.written == len(living(output))
    rejects = (latest(output) / "rejects.jsonl").read_text().splitlines()
    assert len(rejects) == sum(counts.rejected.values())
    assert not list(output.rglob(".imagebeam"))
    if result.state == "committed":
        _check_report(result, output, rejects_before)
    return result


def _check_report(
    result: convert.ConvertResult, output: pathlib.Path, rejects_before: collections.Counter[tuple[str, str]]
) -> None:
    report = json.loads((latest(output) / "report.json").read_text())
    assert report == result.report
    assert (report["snapshot"], report["base"]) == (latest(output).name, result.plan.snapshot["base"])
    assert (report["drift"] is None) == (report["base"] is None)
    found = living(output).values()
    for split, counts in report["splits"].items():
        assert counts["examples"] == sum(each.split == split for each in found)
        assert counts["examples"] == counts["added"] + counts["changed"] + counts["unchanged"]
    for name in ("added", "changed", "removed", "unchanged", "rejected"):
        assert sum(counts[name] for counts in report["splits"].values()) == result.plan.snapshot[name]
    labels = collections.Counter((each.split, each.label) for each in found)
    reported = {
        (split, label): counts["unchanged"] + counts["written"]
        for split, by_label in report["labels"].items()
        for label, counts in by_label.items()
    }
    assert {name: count for name, count in reported.items() if count} == labels
    before = rejects_before if report["base"] else collections.Counter()
    now = stored_rejects(output)
    for counter, name in ((now - before, "new"), (now & before, "kept"), (before - now, "gone")):
        reasons = collections.Counter(reason for _, reason in counter.elements())
        assert {reason: each[name] for reason, each in report["rejects"].items() if each[name]} == reasons


def stored_rejects(output: pathlib.Path) -> collections.Counter[tuple[str, str]]:
    """Returns key and reason of the rejects of the latest snapshot."""
    if not (output / "LATEST").exists():
        return collections.Counter()
    lines = map(json.loads, (latest(output) / "rejects.jsonl").read_text().splitlines())
    return collections.Counter((fields["key"], fields["reason"]) for fields in lines)


def latest(output: pathlib.Path) -> pathlib.Path:
    """Returns the folder of the latest snapshot."""
    return output / "snapshots" / (output / "LATEST").read_text().strip()


def digests(output: pathlib.Path) -> dict[str, str]:
    """Returns the digest of every file of every snapshot."""
    files = sorted(
        path for path in output.glob("snapshots/*/**/*") if path.is_file() and ".imagebeam" not in path.parts
    )
    return {str(path.relative_to(output)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def living(output: pathlib.Path, snapshot: str | None = None) -> dict[str, Stored]:
    """Returns the living examples of a snapshot by key; none is there twice."""
    folder = latest(output) if snapshot is None else output / "snapshots" / snapshot
    catalog = json.loads((folder / "catalog.json").read_text())
    removed = array.array("I", (folder / "removed.bin").read_bytes() if (folder / "removed.bin").exists() else b"")
    found: dict[str, Stored] = {}
    start = 0
    for split, fields in catalog["splits"].items():
        num_examples = 0
        for shard in fields["shards"]:
            gone = set(removed[start : start + shard.get("removed", 0)])
            start += shard.get("removed", 0)
            assert len(gone) == shard.get("removed", 0)
            with open(folder / shard["name"], "rb") as file:
                every = list(records.read_records(file, catalog["compression"]))
            assert len(every) == shard["records"]
            for index, record in enumerate(every):
                if index not in gone:
                    values = example.parse_example(record.data)
                    key, label_id = values["image/key"][0].decode(), values["image/class/label"][0]
                    assert key not in found
                    text = catalog["labels"][label_id - catalog["label_base"]]
                    assert values["image/class/text"][0].decode() == text
                    found[key] = Stored(split, text, label_id, values["image/encoded"][0])
                    num_examples += 1
        assert num_examples == fields["num_examples"]
    assert start == len(removed)
    return found
