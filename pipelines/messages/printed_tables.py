"""Tables that commands print: the plan of a run, its summary, and what a snapshot changed."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from imagebeam import catalog as catalog_lib
from imagebeam import plural, snapshots, storage
from imagebeam.pipelines.messages import terminal
from imagebeam.transforms import elements, summaries
from imagebeam.transforms.classes import class_names
from imagebeam.transforms.shard import image_hashes
from imagebeam.transforms.snapshots import snapshot_drift

_MAX_NAMED = 5  # classes, or files, that a row names


def name_some(labels: Sequence[str]) -> str:
    """Joins the first names of a list."""
    return ", ".join(labels[:_MAX_NAMED]) + (", ..." if len(labels) > _MAX_NAMED else "")


def describe_skipped(skipped: Mapping[str, int]) -> str:
    """Joins counts by kind."""
    return ", ".join(f"{number:,} {kind.replace('_', ' ')}" for kind, number in skipped.items()) or "nothing"


def print_table(rows: Sequence[tuple[str, str]], stream: TextIO | None = None) -> None:
    """Prints rows of a name and a value, aligned; on a terminal, long values are broken between words.

    Values that are copied from the screen into a command are never broken.
    """
    width = max(len(name) for name, _ in rows)
    output = stream or sys.stdout
    for name, value in rows:
        text = terminal.printable(value)
        if name.strip() not in _COPIED:
            text = terminal.wrap(text, output, width + 2)
        print(f"{name:<{width}}  {text}", file=output)


_COPIED = ("settings", "options")  # names of rows


def describe_changes(facts: Mapping[str, Any]) -> str:
    """Returns how a snapshot came about: how many images were added, changed, removed and left unchanged.

    Args:
        facts: as in `Catalog.snapshot`.
    """
    if facts.get("compacted"):
        return f"compacted from {facts['compacted']}"
    return describe_counts(facts)


def describe_counts(counts: Mapping[str, Any]) -> str:
    """Returns how many images were added, changed, removed and left unchanged, and how many were read and rejected."""
    rejected = ["rejected"] if counts.get("rejected") else []
    return ", ".join(f"{counts[name]:,} {name}" for name in (*summaries.CHANGES, *rejected))


def summary_rows(
    catalog: catalog_lib.Catalog, output: str, seconds: float | None, folder: str | None = None
) -> list[tuple[str, str]]:
    """Returns the rows of the table at the end of a run.

    Args:
        catalog: of the dataset.
        output: its address; of a snapshot, the folder of all snapshots.
        seconds: that the run took; None if that is not known.
        folder: the folder of the catalog, if it is known.
    """
    counts = catalog.counts
    skipped = describe_skipped(counts.skipped)
    rows = [("listed", f"{plural.count(counts.listed, 'image')} (skipped: {skipped})")]
    folder_of_catalog = folder or output
    if facts := catalog.snapshot:
        rows.append(("snapshot", f"{facts['name']}: {describe_changes(facts)}"))
        folder_of_catalog = folder or snapshots.folder_of(storage.normalize(output), facts["name"])
    for name, split in catalog.splits.items():
        images, shards = plural.count(split.num_examples, "image"), plural.count(len(split.shards), "shard")
        rows.append((f"  {name}", f"{images}, {shards}, {plural.format_bytes(split.num_bytes)}"))
    total = sum(counts.rejected.values())
    reasons = ", ".join(f"{reason} {number:,}" for reason, number in counts.rejected.items())
    rows.append(("rejected", f"{total:,}" + (f" ({reasons}; see {catalog_lib.REJECTS_FILE})" if total else "")))
    for kind, by_split in catalog.duplicates.items():
        see = f"; see {catalog_lib.DUPLICATES_FILE}" if by_split else ""
        dropped = " dropped" if catalog.config.get("duplicates", {}).get(kind) == "drop" else ""
        rows.append((f"{kind} duplicates", image_hashes.describe_counts(by_split) + dropped + see))
    if catalog.label_kind == "class":
        classes = f"{plural.count(len(catalog.labels), 'class')}, ids from {catalog.label_base}"
        rows.append(("labels", f"{classes}: {name_some(catalog.labels)}"))
    statistics = catalog_lib.load_statistics(folder_of_catalog)
    rows += [*_object_rows(statistics), *_unusual_rows(statistics)]
    if seconds is not None:
        num_read = counts.listed
        if catalog.snapshot:
            num_read = sum(catalog.snapshot.get(name, 0) for name in ("added", "changed", "rejected"))
        rows.append(("time", f"{seconds:.1f} s" + (f", {num_read / seconds:,.0f} images/s" if num_read else "")))
    rows.append(("output", output))
    return rows


def _object_rows(statistics: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns rows with the number of objects of each class, and of those left out; none where there are none."""
    stored, dropped = Counter[str](), Counter[str]()
    for split in statistics.values():
        stored.update(split.get(class_names.COUNTS, {}))
        dropped.update(split.get("dropped_objects", {}))
    named = [f"{name} {number:,}" for name, number in stored.most_common()]
    kinds = [f"{kind.removeprefix('object_').replace('_', ' ')} {number:,}" for kind, number in dropped.most_common()]
    rows = [("objects", f"{stored.total():,} of {plural.count(len(stored), 'class')}: {name_some(named)}")]
    more = [("left out", f"{plural.count(dropped.total(), 'object')}: {name_some(kinds)}")]
    return (rows if stored else []) + (more if dropped else [])


def _unusual_rows(statistics: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns rows on images that readers may not expect, from the `statistics.json` of a dataset."""
    names = ("orientations", "colorspaces", "reencoded", "turned", "misnamed", "wide", "dark", "dark_files")
    counted: dict[str, Counter[str]] = {name: Counter() for name in names}
    for split in statistics.values():
        for name, total in counted.items():
            total.update(split.get(name, {}))
    rows = []
    if turned := counted["turned"]:
        lay = [f"{count:,} {summaries.TURNS.get(code, 'turned')} (EXIF {code})" for code, count in turned.most_common()]
        rows.append(("turned", f"{plural.count(turned.total(), 'image')}: {', '.join(lay)}"))
    for name, label in (("reencoded", "re-encoded"), ("misnamed", "misnamed")):
        if counter := counted[name]:
            rows.append((label, f"{plural.count(counter.total(), 'image')} ({_most_common(counter)})"))
    if wide := counted["wide"]:
        what = f"{plural.count(wide.total(), 'image')} ({_most_common(wide)}), of which readers get the upper 8"
        rows.append(("16 bits", f"{what}: image.dtype: uint16 stores and reads all"))
    if dark := counted["dark"]:
        files = [f"{key} ({highest:,})" for key, highest in sorted(counted["dark_files"].items())[:_MAX_NAMED]]
        # only a few of the PNGs whose bytes are kept are looked into
        at_least = "at least " if any(name.startswith("png") for name in dark) else ""
        count = f"{at_least}{plural.count(dark.total(), 'gray image')}"
        what = f"{count} of 16 bits with small numbers ({_most_common(dark)})"
        white = "image.white_level says the number that becomes white: their largest, 255 at least"
        remedy = f"readers show them nearly black; {white}"
        rows.append(("dark", f"{what}, such as {', '.join(files)}: {remedy}"))
    if turns := counted["orientations"].total():
        what = f"{plural.count(turns, 'image')} whose EXIF data ask for a rotation that was not applied"
        rows.append(("not upright", f"{what}; readers see the pixels as they are stored"))
    colorspaces = counted["colorspaces"]
    unusual = [(colorspaces[name], f"of {what}") for name, what in _UNUSUAL_COLORSPACES.items() if colorspaces[name]]
    if unusual:
        found = ", ".join(f"{plural.count(number, 'image')} {what}" for number, what in unusual)
        rows.append(("channels", f"{found}; readers that ask for 3 channels convert them"))
    return rows


def _most_common(counter: Counter[str]) -> str:
    named = [f"{name}: {number:,}" for name, number in counter.most_common(_MAX_CAUSES)]
    return ", ".join(named) + (", ..." if len(counter) > _MAX_CAUSES else "")


_MAX_CAUSES = 6
_UNUSUAL_COLORSPACES = {
    "GRAY_ALPHA": "2 channels (gray, transparency)",
    "RGBA": "4 channels (RGB, transparency)",
    "CMYK": "4 channels (CMYK)",
}


_ACTIONS = {"write": "would be written", "keep": "nothing to do: {}", "refuse": "would be refused: {}"}


def plan_rows(plan: elements.DatasetPlan, output: str) -> list[tuple[str, str]]:
    """Returns the plan as rows of a table."""
    skipped = describe_skipped(plan.skipped)
    rows = [("listed", f"{plural.count(plan.listed, 'image')} (skipped: {skipped})")]
    if plan.snapshot:
        rows.append(("snapshot", f"{plan.snapshot['name']}: {describe_changes(plan.snapshot)}"))
    for name, split in plan.splits.items():
        smallest, largest = split.num_records // split.num_shards, -(-split.num_records // split.num_shards)
        each = f"{largest:,}" if smallest == largest else f"{smallest:,} or {largest:,}"
        images, shards = plural.count(split.num_records, "image"), plural.count(split.num_shards, "shard")
        rows.append((f"  {name}", f"{images}, {plural.format_bytes(split.num_bytes)}; {shards} of {each}"))
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in plan.rejected.items())
    rows.append(("rejected", f"{sum(plan.rejected.values()):,} before reading" + (f" ({reasons})" if reasons else "")))
    if plan.labels:
        rows.append(("labels", f"{plural.count(len(plan.labels), 'class')}: {name_some(plan.labels)}"))
    rows += [("note", note) for note in plan.notes]
    rows.append(("fingerprint", f"{plan.fingerprint} (of the config and the images: equal ones make equal shards)"))
    rows.append(("output", f"{output}: {_ACTIONS[plan.action].format(plan.message)}"))
    return rows


_FORMATS = {"labels": ".3f", "sizes": "+.1%", "rejects": "+.3f"}  # formats of differences


def report_rows(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the rows of a table.

    Args:
        report: see transforms/commit/snapshot_report; {} without snapshots.
    """
    if not report:
        return []
    since = f" since {report['base']}" if report["base"] else ""
    if report["compacted"]:
        since = f", compacted from {report['compacted']}"
    found = [("changes", f"snapshot {report['snapshot']}{since}")]
    for split, counts in report["splits"].items():
        found.append((f"  {split}", describe_counts(counts)))
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
    for label in order:
        counts = (("+", labels[label]["written"]), ("-", labels[label]["removed"]))
        texts.append(" ".join([label, *(f"{sign}{number:,}" for sign, number in counts if number)]))
    return plural.name_some(texts, _MAX_NAMED)


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
        shown = [  # for rejects, only all together and the reasons that rose too far
            (name, figure)
            for name, figure in by_name.items()
            if kind != "rejects" or name == snapshot_drift.ALL_REASONS or figure["exceeds"]
        ]
        differences = [f"{name} {figure['difference']:{_FORMATS[kind]}}" for name, figure in shown]
        notes = [_describe_chance(kind, figure) for _, figure in shown]
        if len(shown) > 1 and len(set(notes)) == 1:
            differences, notes = [", ".join(differences)], notes[:1]
        texts = [f"{difference} ({note})" for difference, note in zip(differences, notes)]
        if texts:
            found.append((f"  drift of {kind}", "; ".join(texts)))
    return found


def _describe_chance(kind: str, figure: Mapping[str, Any]) -> str:
    """Returns how much of a difference chance explains, in its unit, and whether it is too large."""
    by_chance = figure["by_chance"]
    notes = [
        "too few images to compare" if by_chance is None else f"{by_chance:{_FORMATS[kind].lstrip('+')}} by chance"
    ]
    if figure["exceeds"]:
        notes.append(f"MORE THAN {figure['threshold']:g}")
    return ", ".join(notes)
