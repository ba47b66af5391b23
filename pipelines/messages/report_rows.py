"""Shows the report of a snapshot in a few lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from imagebeam import plural
from imagebeam.pipelines.messages import progress
from imagebeam.transforms.snapshots import snapshot_drift

_MAX_LABELS = 5  # of a split that are named
_FORMATS = {"labels": ".3f", "sizes": "+.1%", "rejects": "+.3f"}  # of differences
_BY_CHANCE = {"labels": ".3f", "sizes": ".1%", "rejects": ".3f"}  # of what chance explains of them


def rows(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the rows of a table.

    Args:
        report: see transforms/reports/snapshot_report; {} without snapshots.
    """
    if not report:
        return []
    since = f" since {report['base']}" if report["base"] else ""
    if report["compacted"]:
        since = f", compacted from {report['compacted']}"
    found = [("changes", f"snapshot {report['snapshot']}{since}")]
    for split, counts in report["splits"].items():
        found.append((f"  {split}", progress.describe_counts(counts)))
    for split, labels in report["labels"].items() if report["base"] else ():
        if text := _describe_labels(labels):
            found.append((f"  {split} labels", text))
    shards = sum(each["shards"] for each in report["written"].values())
    num_bytes = sum(each["bytes"] for each in report["written"].values())
    found.append(("  written", f"{plural.count(shards, 'shard')}, {plural.format_bytes(num_bytes)}"))
    if text := _describe_rejects(report["rejects"]):
        found.append(("  rejects", text))
    return found + (_drift_rows(report["drift"]) if report["drift"] is not None else [])


def _describe_labels(labels: Mapping[str, Mapping[str, int]]) -> str:
    """Returns the labels with most changes: `cat +3 -1, dog -2`."""
    moved = {label: each["written"] + each["removed"] for label, each in labels.items()}
    order = sorted((label for label in labels if moved[label]), key=lambda label: (-moved[label], label))
    texts = []
    for label in order[:_MAX_LABELS]:
        counts = (("+", labels[label]["written"]), ("-", labels[label]["removed"]))
        texts.append(" ".join([label, *(f"{sign}{number:,}" for sign, number in counts if number)]))
    return _join_some(texts, len(order))


def _describe_rejects(rejects: Mapping[str, Mapping[str, int]] | None) -> str:
    if rejects is None:
        return "those of the snapshot before are lost, so it is not known which are new"
    parts = []
    for name, text in (("new", "new"), ("kept", "kept"), ("gone", "gone since")):
        reasons = {reason: each[name] for reason, each in rejects.items() if each[name]}
        if reasons:
            by_reason = ", ".join(f"{reason} {number:,}" for reason, number in reasons.items())
            parts.append(f"{sum(reasons.values()):,} {text} ({by_reason})")
    return ", ".join(parts)


def _drift_rows(drift: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[tuple[str, str]]:
    """Returns a row for each kind of figures; what is too far is marked."""
    found = []
    for kind, by_name in drift.items():
        figures = _shown(kind, by_name)
        differences = [f"{name} {figure['difference']:{_FORMATS[kind]}}" for name, figure in figures]
        notes = [_describe_chance(kind, figure) for _, figure in figures]
        if len(figures) > 1 and len(set(notes)) == 1:
            differences, notes = [", ".join(differences)], notes[:1]
        texts = [f"{difference} ({note})" for difference, note in zip(differences, notes)]
        if texts:
            found.append((f"  drift of {kind}", "; ".join(texts)))
    return found


def _shown(kind: str, by_name: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    """Returns the figures that are shown: of the reasons of rejects, only those that rose too far."""
    return [
        (name, figure)
        for name, figure in by_name.items()
        if kind != "rejects" or name == snapshot_drift.ALL_REASONS or figure["exceeds"]
    ]


def _describe_chance(kind: str, figure: Mapping[str, Any]) -> str:
    """Returns how much of a difference chance explains, in its unit, and whether it is too large."""
    by_chance = figure["by_chance"]
    notes = ["too few images to compare" if by_chance is None else f"{by_chance:{_BY_CHANCE[kind]}} by chance"]
    if figure["exceeds"]:
        notes.append(f"MORE THAN {figure['threshold']:g}")
    return ", ".join(notes)


def _join_some(texts: Sequence[str], total: int) -> str:
    return ", ".join(texts) + (f" and {total - len(texts):,} more" if total > len(texts) else "")
