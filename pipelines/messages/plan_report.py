"""Formats a plan as a table."""

from __future__ import annotations

from imagebeam import plural
from imagebeam.pipelines.messages import progress
from imagebeam.transforms import elements

_ACTIONS = {
    "write": "would be written",
    "keep": "nothing to do: {message}",
    "refuse": "would be refused: {message}",
}


def plan_rows(plan: elements.DatasetPlan, output: str) -> list[tuple[str, str]]:
    """Returns the plan as rows of a table."""
    passed_over = progress.describe_passed_over(plan.passed_over)
    rows = [("listed", f"{plural.count(plan.listed, 'image')} (passed over: {passed_over})")]
    if plan.snapshot:
        rows.append(("snapshot", f"{plan.snapshot['name']}: {progress.describe_changes(plan.snapshot)}"))
    for name, split in plan.splits.items():
        smallest, largest = split.num_records // split.num_shards, -(-split.num_records // split.num_shards)
        each = f"{largest:,}" if smallest == largest else f"{smallest:,} or {largest:,}"
        images, shards = plural.count(split.num_records, "image"), plural.count(split.num_shards, "shard")
        rows.append((f"  {name}", f"{images}, {plural.format_bytes(split.num_bytes)}; {shards} of {each}"))
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in plan.rejected.items())
    rows.append(("rejected", f"{sum(plan.rejected.values()):,} before reading" + (f" ({reasons})" if reasons else "")))
    if plan.labels:
        rows.append(("labels", f"{plural.count(len(plan.labels), 'class')}: {progress.name_some(plan.labels)}"))
    rows += [("note", note) for note in plan.notes]
    rows.append(("fingerprint", plan.fingerprint))
    rows.append(("output", f"{output}: {_ACTIONS[plan.action].format(message=plan.message)}"))
    return rows
