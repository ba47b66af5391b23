"""The sections of the page, each a function of the facts; a section without content is left out."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from typing import Any

from imagebeam import features, plural
from imagebeam.transforms.html_report import facts as facts_lib
from imagebeam.transforms.html_report import label_section, markup, thumbnails
from imagebeam.transforms.html_report.markup import Html
from imagebeam.transforms.shard import statistics

_MAX_PICTURE_BYTES = 480_000  # of all pictures, before base64 makes 4 bytes of 3: the page stays below 1 MB
_MAX_ROWS = 24  # of a table of counts
_MAX_SPLITS = 50
_MAX_FEATURES = 100
_MAX_CONFIG_CHARS, _MAX_VALUE_CHARS = 20_000, 300
_MAX_NOTE_CHARS = 400
_CHANGES = ("added", "changed", "removed", "unchanged")
_KNOWN_COUNTS = frozenset(("formats", "colorspaces", "orientations", "labels", "shorter_side", "aspect_ratio"))
_RANGES = ("height", "width", "bytes")
_TITLES = {  # of tables of counts that a step of the converter may add
    "dark": "Gray of 16 bits that is nearly black with 8",
    "dark_files": "The first of these, and their largest numbers",
    "dropped_objects": "Objects that are left out, and why",
    "misnamed": "Named like another format",
    "objects": "Objects of each class",
    "orientations": "EXIF asks for a turn that was not applied",
    "reencoded": "Re-encoded, and why",
    "turned": "Turned upright",
}
_TURNS = {  # what EXIF orientations ask for
    "2": "mirrored",
    "3": "turned by 180 degrees",
    "4": "turned by 180 degrees and mirrored",
    "5": "turned by 90 degrees clockwise and mirrored",
    "6": "turned by 90 degrees clockwise",
    "7": "turned by 90 degrees counterclockwise and mirrored",
    "8": "turned by 90 degrees counterclockwise",
}
_OF_SOME = frozenset(("orientations", "turned", "reencoded", "misnamed", "dark"))  # counts of a part of the images
_OF_OBJECTS = frozenset(("objects", "dropped_objects"))  # counts of objects


def overview(facts: facts_lib.Facts) -> Html:
    """Returns the figures at the top, and a row for each split."""
    catalog, counts = facts.catalog, facts.catalog.counts
    rejected = sum(counts.rejected.values())
    num_bytes = sum(split.num_bytes for split in catalog.splits.values())
    tiles = [
        markup.tile(markup.number(facts.num_images), "images"),
        markup.tile(markup.number(len(catalog.splits)), "split" if len(catalog.splits) == 1 else "splits"),
        *([markup.tile(markup.number(len(catalog.labels)), "classes")] if catalog.labels else []),
        markup.tile(Html(plural.format_bytes(num_bytes)), "in shards"),
        markup.tile(markup.number(counts.listed), "images listed"),
        markup.tile(Html(f"{rejected:,}"), "rejected"),
    ]
    notes = [markup.paragraph(markup.text(note, _MAX_NOTE_CHARS), "note") for note in facts.notes]
    largest = max((split.num_examples for split in catalog.splits.values()), default=0)
    rows = [
        [
            markup.text(name),
            markup.number(split.num_examples),
            markup.percent(split.num_examples, facts.num_images),
            markup.number(len(split.shards)),
            Html(plural.format_bytes(split.num_bytes)),
            markup.bar(split.num_examples, largest),
        ]
        for name, split in list(catalog.splits.items())[:_MAX_SPLITS]
    ]
    head = ("split", "images", "share", "shards", "size", "")
    parts = [Html(f'<dl class="tiles">{markup.join(tiles)}</dl>'), *notes, markup.element("h3", markup.plain("Splits"))]
    parts.append(markup.table(head, rows, range(1, 5), (2, 3), css="bars"))
    if len(catalog.splits) > _MAX_SPLITS:
        text = f"{len(catalog.splits) - _MAX_SPLITS:,} more splits are in catalog.json."
        parts.append(markup.paragraph(markup.plain(text), "faint"))
    if facts.num_removed:
        text = f"{facts.num_removed:,} records in the shards of earlier snapshots are removed, and not counted here."
        parts.append(markup.paragraph(markup.plain(text), "faint"))
    return markup.section("overview", "Overview", markup.join(parts))


def pictures(facts: facts_lib.Facts) -> Html:
    """Returns the contact sheets."""
    parts, num_bytes = [], 0
    for split, samples in facts.samples.items():
        cells = []
        for each in samples.found:
            num_bytes += len(each.data)
            if num_bytes > _MAX_PICTURE_BYTES:
                each = each._replace(data=b"", problem="left out: the page would become too large")
            cells.append(_picture(each))
        total = facts.catalog.splits[split].num_examples
        heading = Html(f"{markup.text(split)} <span class=faint>{len(cells):,} of {total:,}</span>")
        parts.append(markup.element("h3", heading))
        if cells:
            parts.append(Html(f'<ul class="sheet">\n{markup.join(cells)}</ul>'))
        if samples.problems:
            text = f"{plural.count(len(samples.problems), 'read')} failed, the first: "
            parts.append(Html(f'<p class="note">{text}{markup.text(samples.problems[0], _MAX_NOTE_CHARS)}</p>'))
    if not parts:
        return markup.NOTHING
    if len(facts.samples) < len(facts.catalog.splits):
        text = f"The first {plural.count(len(facts.samples), 'split')} with images are shown."
        parts.append(markup.paragraph(markup.plain(text), "faint"))
    text = (
        "Picked from places spread evenly over the shards. Each picture is as it is stored, with its boxes and masks."
    )
    parts.insert(0, markup.paragraph(markup.plain(text), "faint"))
    return markup.section("pictures", "Pictures", markup.join(parts))


def _picture(each: thumbnails.Thumbnail) -> Html:
    title = markup.attribute(", ".join(filter(None, (_shorten(each.key), each.size))))
    caption = markup.text(each.caption, 60) if each.caption else markup.NOTHING
    if each.data:
        alt = markup.attribute(_shorten(each.caption or each.key))
        data = base64.b64encode(each.data).decode()
        inside = (
            f'<img src="data:image/jpeg;base64,{data}" width="{each.width}" height="{each.height}" alt="{alt}" '
            f'title="{title}">'
        )
    else:
        inside = markup.text(each.problem, 60)
    return Html(f'<li><figure><div class="frame">{inside}</div><figcaption>{caption}</figcaption></figure></li>\n')


def _shorten(value: str, max_chars: int = 200) -> str:
    return value if len(value) <= max_chars else f"{value[: max_chars - 1]}…"


def labels(facts: facts_lib.Facts) -> Html:
    """Returns how many images each class has."""
    return label_section.label_section(facts.by_split("labels"), facts.catalog.labels)


def images(facts: facts_lib.Facts) -> Html:
    """Returns formats, colorspaces, sizes, and what was done to images."""
    tables = [
        _count_table("Formats", facts.total("formats")),
        _count_table("Colorspaces", facts.total("colorspaces")),
        _count_table("Shorter side, in pixels", _histogram(facts, "shorter_side"), in_order=True),
        _count_table("Width / height", _histogram(facts, "aspect_ratio"), in_order=True),
        _size_table(facts),
        _changes_table(facts, "orientations", facts.total("orientations")),
    ]
    others = [name for name in facts.names_of_counts() if name not in _KNOWN_COUNTS and name not in _RANGES]
    tables += [_changes_table(facts, name, facts.total(name)) for name in others]
    for name, value in facts.statistics.items():  # counts of the whole dataset
        if name not in facts.catalog.splits and isinstance(value, Mapping):
            counts = value if facts_lib.is_counts(value) else {}
            tables.append(_changes_table(facts, name, counts))
    present = [each for each in tables if each]
    if not present:
        return markup.NOTHING
    parts = [Html(f'<div class="columns">{markup.join(present)}</div>')]
    if facts.num_removed:
        text = "These counts include records that are removed."
        parts.append(markup.paragraph(markup.plain(text), "faint"))
    return markup.section("images", "Images", markup.join(parts))


def _changes_table(facts: facts_lib.Facts, name: str, counts: Mapping[str, int]) -> Html:
    """Returns the table of one kind of counts that only some images may have."""
    if name in ("orientations", "turned"):
        counts = {_TURNS.get(code, code): count for code, count in counts.items()}
    title = _TITLES.get(name, name.replace("_", " "))
    num_images = sum(facts.total("formats").values()) if name in _OF_SOME else 0
    return _count_table(title, counts, num_images=num_images, of="objects" if name in _OF_OBJECTS else "images")


def _count_table(
    title: str, counts: Mapping[str, int], in_order: bool = False, num_images: int = 0, of: str = "images"
) -> Html:
    """Returns a table with a bar for each count, the largest first unless the order is given.

    Args:
        title: of the table.
        counts: how many there are by name.
        in_order: whether the order is given.
        num_images: of which the shares are; at least as many as are counted.
        of: what is counted.
    """
    if not counts:
        return markup.NOTHING
    ordered = list(counts.items())
    if not in_order:
        ordered.sort(key=lambda each: (-each[1], each[0]))
    total, largest = max(sum(counts.values()), num_images), max(counts.values())
    rows = [
        [markup.text(name), markup.number(count), markup.percent(count, total), markup.bar(count, largest)]
        for name, count in ordered[:_MAX_ROWS]
    ]
    more = len(ordered) - len(rows)
    rest = markup.paragraph(markup.plain(f"{more:,} more rows"), "faint") if more else markup.NOTHING
    heading, share = markup.element("h3", markup.text(title)), "share of all" if num_images else "share"
    return Html(f"<div>{heading}{markup.table(('', of, share, ''), rows, (1, 2), css='bars')}{rest}</div>\n")


def _histogram(facts: facts_lib.Facts, name: str) -> dict[str, int]:
    """Returns the counts of bins from the first to the last that is not empty."""
    counts = facts.total(name)
    bins = statistics.bins_of(name)
    used = [index for index, each in enumerate(bins) if counts[each]]
    if counts.keys() - set(bins):  # of another version
        return dict(counts)
    return {each: counts[each] for each in bins[used[0] : used[-1] + 1]} if used else {}


def _size_table(facts: facts_lib.Facts) -> Html:
    rows = []
    for name in _RANGES:
        found = facts.range_of(name)
        if found is not None:
            shown = [plural.format_bytes(value) if name == "bytes" else f"{value:,.0f} px" for value in found]
            rows.append([markup.plain(name), *map(markup.plain, shown)])
    if not rows:
        return markup.NOTHING
    heading = markup.element("h3", markup.plain("Sizes"))
    return Html(f"<div>{heading}{markup.table(('', 'least', 'mean', 'most'), rows, (1, 2, 3))}</div>\n")


def rejects(facts: facts_lib.Facts) -> Html:
    """Returns the rejects by reason, and some of each."""
    counts = {reason: count for reason, count in facts.catalog.counts.rejected.items() if count}
    passed_over = {name: count for name, count in facts.catalog.counts.passed_over.items() if count}
    if not counts and not passed_over:
        return markup.NOTHING
    parts = []
    if counts:
        total = sum(counts.values())
        share = markup.percent(total, facts.catalog.counts.listed)
        text = f"{plural.count(total, 'image')} of {facts.catalog.counts.listed:,} ({share}); rejects.jsonl names each."
        parts.append(markup.paragraph(Html(text)))
        largest = max(counts.values())
        rows = [
            [markup.text(reason.replace("_", " ")), markup.number(count), markup.bar(count, largest)]
            for reason, count in sorted(counts.items(), key=lambda each: (-each[1], each[0]))
        ]
        parts.append(markup.table(("reason", "images", ""), rows, (1,), css="bars"))
        examples = [
            [
                markup.text(reason.replace("_", " ")),
                markup.text(each.key),
                markup.text(each.detail, 160),
                markup.text(each.uri, 120),
            ]
            for reason, of_reason in facts.rejects.items()
            for each in of_reason
        ]
        if examples:
            shown = markup.table(("reason", "key", "detail", "address"), examples, css="wide")
            parts.append(markup.details(f"{plural.count(len(examples), 'example')}", shown))
    if passed_over:
        listed = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in passed_over.items())
        parts.append(Html(f'<p class="faint">Passed over, and not counted as images: {markup.text(listed, 300)}</p>'))
    return markup.section("rejects", "Rejects", markup.join(parts))


def duplicates(facts: facts_lib.Facts) -> Html:
    """Returns how many images repeat others, and some of them."""
    counts = facts.catalog.duplicates
    if not counts:
        return markup.NOTHING
    rows = [
        [markup.text(kind), markup.text(split), markup.text(first), markup.plain(f"{number:,}")]
        for kind, by_split in counts.items()
        for split, by_first in by_split.items()
        for first, number in by_first.items()
    ]
    if not rows:
        found = markup.paragraph(markup.plain("No image repeats another one."))
        return markup.section("duplicates", "Duplicates", found)
    parts = [markup.table(("kind", "images of", "repeat one of", "images"), rows, (3,))]
    examples = [
        [
            markup.text(f"{each.get('kind')}, {each.get('distance')} bits"),
            markup.text(f"{each.get('key')} ({each.get('split')})", _MAX_VALUE_CHARS),
            markup.text(f"{each.get('first_key')} ({each.get('first_split')})", _MAX_VALUE_CHARS),
        ]
        for each in facts.duplicates
    ]
    if examples:
        shown = markup.table(("kind", "image", "repeats"), examples, css="wide")
        parts.append(markup.details(f"{plural.count(len(examples), 'example')}", shown))
    return markup.section("duplicates", "Duplicates", markup.join(parts))


def changes(facts: facts_lib.Facts) -> Html:
    """Returns what a snapshot changed, and how far it drifts from the one before."""
    report, snapshot = facts.changes, facts.catalog.snapshot
    if not snapshot:
        return markup.NOTHING
    base = snapshot.get("base")
    text = f"Snapshot {snapshot.get('name')}, {f'after {base}' if base else 'the first one'}."
    parts = [markup.paragraph(markup.text(text, 200))]
    by_split = report.get("splits")
    if isinstance(by_split, Mapping):
        rows = [
            [markup.text(split), *(_figure(each.get(name)) for name in _CHANGES)]
            for split, each in by_split.items()
            if isinstance(each, Mapping)
        ]
        parts.append(markup.table(("split", *_CHANGES), rows, range(1, 5)))
    drift = report.get("drift")
    rows = list(_drift_rows(drift)) if isinstance(drift, Mapping) else []
    if rows:
        parts.append(markup.element("h3", markup.plain("Drift")))
        head = ("figure", "difference", "by chance", "allowed", "")
        parts.append(markup.table(head, rows, (1, 2, 3)))
    return markup.section("changes", "Changes", markup.join(parts))


def _drift_rows(drift: Mapping[str, Any]) -> Iterator[list[Html]]:
    for kind, by_name in drift.items():
        for name, fields in by_name.items() if isinstance(by_name, Mapping) else ():
            if isinstance(fields, Mapping):
                numbers = [_figure(fields.get(each)) for each in ("difference", "by_chance", "threshold")]
                yield [markup.text(f"{kind}: {name}"), *numbers, markup.plain("too far" * bool(fields.get("exceeds")))]


def _figure(value: Any) -> Html:
    return markup.number(value) if isinstance(value, (int, float)) else markup.plain("-")


def stored_features(facts: facts_lib.Facts) -> Html:
    """Returns the features of every example."""
    shown = facts.catalog.features[:_MAX_FEATURES]
    rows = [
        [
            Html(f"<code>{markup.text(each.key)}</code>"),
            markup.plain(f"{each.kind} list" if each.many else each.kind),
            markup.text(features.meaning_of(each.source)),
        ]
        for each in shown
    ]
    more = len(facts.catalog.features) - len(shown)
    rest = markup.paragraph(markup.plain(f"{more:,} more are in catalog.json."), "faint") if more else markup.NOTHING
    return markup.section("features", "Features", Html(f"{markup.table(('key', 'type', 'meaning'), rows)}{rest}"))


def origin(facts: facts_lib.Facts) -> Html:
    """Returns where the dataset comes from: source, config, fingerprint and versions."""
    catalog = facts.catalog
    rows = [[markup.plain("source"), Html(f"<code>{markup.text(_source_of(facts), 300)}</code>")]] * bool(
        _source_of(facts)
    )
    rows.append([markup.plain("fingerprint"), Html(f"<code>{markup.text(catalog.fingerprint)}</code>")])
    rows.append([markup.plain("compression"), markup.text(catalog.compression)])
    rows += [[markup.text(name.replace("_", " ")), markup.text(value)] for name, value in catalog.versions.items()]
    table = markup.table(("", ""), rows, css="plain")
    config = markup.details("Config", Html(f"<pre>{markup.attribute_lines(_config_text(catalog.config))}</pre>"))
    return markup.section("origin", "Origin", Html(f"{table}\n{config}"))


def _source_of(facts: facts_lib.Facts) -> str:
    source = facts.catalog.config.get("source")
    return str(source.get("uri") or "") if isinstance(source, Mapping) else ""


def _config_text(config: Mapping[str, Any]) -> str:
    """Returns the settings that are not empty, one a line. The address of the output is left out: a dataset moves."""
    lines = [f"{name}: {_shorten(value, _MAX_VALUE_CHARS)}" for name, value in _flatten(config) if name != "output.uri"]
    return _shorten("\n".join(lines), _MAX_CONFIG_CHARS)


def _flatten(fields: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        elif value not in (None, [], ""):
            yield f"{prefix}{name}", value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
