"""Makes the page from its template, `report.html`: gives it the figures, and escapes every text."""

from __future__ import annotations

import array
import base64
import functools
import hashlib
import importlib.resources
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jinja2
import markupsafe

from imagebeam import catalog as catalog_lib
from imagebeam import features, plural
from imagebeam.transforms.html_report import dataset_facts, sample_records, thumbnails
from imagebeam.transforms.html_report.thumbnails import MAX_CHARS, shorten, visible
from imagebeam.transforms.images import image_formats
from imagebeam.transforms.shard import statistics

_MAX_PICTURE_BYTES = 480_000  # of all pictures, before base64 makes 4 bytes of 3: the page stays below 1 MB
_MAX_ROWS = 24  # of a table of counts
_MAX_SPLITS = 50
_MAX_FEATURES = 100
_MAX_CONFIG_CHARS, _MAX_VALUE_CHARS = 20_000, 300
_MAX_TITLE_CHARS = 400  # of a text that a mouse shows
_SHOWN_FIRST = ("formats", "colorspaces", "shorter_side", "aspect_ratio")
_SHOWN_ELSEWHERE = frozenset(("labels", "height", "width", "bytes"))
_TITLES = {
    "formats": "Formats",
    "colorspaces": "Colorspaces",
    "shorter_side": "Shorter side, in pixels",
    "aspect_ratio": "Width / height",
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


class CountTable(NamedTuple):
    """A table with a bar for each count."""

    title: str
    unit: str  # what is counted
    share: str  # name of the column of shares
    rows: list[tuple[str, int]]
    num_more: int  # rows that are not shown
    total: int  # what the shares are of
    largest: int


def render(facts: dataset_facts.DatasetFacts) -> bytes:
    """Returns the page in UTF-8, below 1 MB. The same facts give the same bytes."""
    catalog = facts.catalog
    text = (
        _environment()
        .get_template("report.html")
        .render(
            facts=facts,
            catalog=catalog,
            num_images=facts.num_images,
            lead=_lead(facts),
            contact_sheets=dict(_contact_sheets(facts)),
            classes=dataset_facts.describe(facts.by_split("labels"), catalog.labels),
            tables=_count_tables(facts),
            sizes=list(_sizes(facts)),
            repeats=[
                (kind, split, first, count)
                for kind, by_split in (catalog.duplicates or {}).items()
                for split, by_first in by_split.items()
                for first, count in by_first.items()
            ],
            drift=list(_drift(facts.changes.get("drift"))),
            source=_source_of(catalog.config),
            config_lines=_config_text(catalog.config).split("\n"),
            max_splits=_MAX_SPLITS,
            max_features=_MAX_FEATURES,
        )
    )
    return text.lstrip().encode()  # the definitions before the page leave their line ends


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_read),
        autoescape=True,
        undefined=jinja2.ChainableUndefined,  # lines of duplicates.jsonl may lack fields
        trim_blocks=True,
        lstrip_blocks=True,
    )
    css = _read("report.css")
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    environment.globals.update(
        css=markupsafe.Markup(css),
        # Nothing is loaded, no script runs, pictures come from the page itself, and it is sent nowhere.
        policy=f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
    )
    environment.filters.update(
        base64=lambda data: base64.b64encode(data).decode(),
        bytes=plural.format_bytes,
        cut=shorten,
        figure=lambda value: number(value) if isinstance(value, (int, float)) else "-",
        meaning=features.meaning_of,
        most_first=lambda counts: sorted(counts.items(), key=lambda each: (-each[1], each[0])),
        nonzero=lambda counts: {name: count for name, count in counts.items() if count},
        number=number,
        percent=percent,
        plural=plural.count,
        shown=shown,
        visible=visible,
    )
    return environment


def _read(name: str) -> str:
    return importlib.resources.files(__package__).joinpath(name).read_text("utf-8")


def shown(value: object, max_chars: int = MAX_CHARS) -> markupsafe.Markup:
    """Returns a text as HTML: on one line, cut in the middle to `max_chars`, and isolated in its direction.

    The title of a text that is cut has more of it.
    """
    short = shorten(value, max_chars)
    if short == str(value):
        return markupsafe.Markup("<bdi>{}</bdi>").format(visible(short))
    title = visible(shorten(value, _MAX_TITLE_CHARS))
    return markupsafe.Markup('<bdi title="{}">{}</bdi>').format(title, visible(short))


def number(value: float) -> str:
    """Returns a count with separators, or another number with a few digits."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def percent(part: float, whole: float) -> str:
    """Returns a share; one that is not 0 is never shown as 0, and one that is not all never as 100 %."""
    share = 100 * part / whole if whole else 0.0
    if 0 < share < 0.1:
        return "< 0.1 %"
    return f"{share:.1f} %" if share < 99.95 or part >= whole else "> 99.9 %"


def _lead(facts: dataset_facts.DatasetFacts) -> str:
    catalog = facts.catalog
    formats = ["bare pixels" if name == image_formats.RAW else name.upper() for name in sorted(facts.total("formats"))]
    kinds = {"int64": "with an integer as the target", "float": "with a number as the target"}
    parts = [
        plural.count(facts.num_images, "image"),
        f"of {plural.count(len(catalog.labels), 'class')}"
        if catalog.labels
        else kinds.get(catalog.label_kind or "", ""),
        f"stored as {' and '.join(formats)}" if formats else "",
    ]
    return ", ".join(filter(None, parts)) + ", in TFRecord files of tf.train.Example."


def _contact_sheets(facts: dataset_facts.DatasetFacts) -> Iterator[tuple[str, sample_records.SplitSamples]]:
    """Yields the pictures of each split, without those for which the page has no room."""
    num_bytes = 0
    for split, samples in facts.samples.items():
        found = []
        for each in samples.found:
            num_bytes += len(each.data)
            if num_bytes > _MAX_PICTURE_BYTES:
                each = each._replace(data=b"", problem="left out: the page would become too large")
            found.append(each)
        yield split, samples._replace(found=tuple(found))


def _count_tables(facts: dataset_facts.DatasetFacts) -> tuple[list[CountTable], list[CountTable]]:
    """Returns the tables before and after that of sizes."""
    first = [(name, facts.total(name)) for name in _SHOWN_FIRST]
    others = set(facts.names_of_counts()) - _SHOWN_ELSEWHERE - {*_SHOWN_FIRST}
    rest: list[tuple[str, Mapping[str, int]]] = [(name, facts.total(name)) for name in sorted(others)]
    rest += [  # counts of the whole dataset
        (name, value)
        for name, value in facts.statistics.items()
        if name not in facts.catalog.splits and dataset_facts.is_counts(value)
    ]
    num_images = facts.total("formats").total()
    return (
        [_count_table(name, counts, num_images) for name, counts in first if any(counts.values())],
        [_count_table(name, counts, num_images) for name, counts in rest],
    )


def _count_table(name: str, counts: Mapping[str, int], num_images: int) -> CountTable:
    """Returns a table; the largest count is first, or the first bin of a histogram that is not empty."""
    if name in ("orientations", "turned"):
        counts = {_TURNS.get(code, code): count for code, count in counts.items()}
    rows = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    if name in ("shorter_side", "aspect_ratio") and counts.keys() <= {*(bins := statistics.bins_of(name))}:
        used = [index for index, each in enumerate(bins) if counts.get(each)]
        rows = [(each, counts.get(each, 0)) for each in bins[used[0] : used[-1] + 1]] if used else []
    is_part = name in _OF_SOME
    return CountTable(
        _TITLES.get(name, name.replace("_", " ")),
        "objects" if name in _OF_OBJECTS else "images",
        "share of all" if is_part and num_images else "share",
        rows[:_MAX_ROWS],
        max(0, len(rows) - _MAX_ROWS),
        max(sum(counts.values()), num_images if is_part else 0),
        max(counts.values()),
    )


def _sizes(facts: dataset_facts.DatasetFacts) -> Iterator[tuple[str, list[str]]]:
    for name in ("height", "width", "bytes"):
        if (found := facts.range_of(name)) is not None:
            yield name, [plural.format_bytes(each) if name == "bytes" else f"{each:,.0f} px" for each in found]


def _drift(drift: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for kind, by_name in drift.items() if isinstance(drift, Mapping) else ():
        for name, fields in by_name.items() if isinstance(by_name, Mapping) else ():
            if isinstance(fields, Mapping):
                yield f"{kind}: {name}", fields


def _source_of(config: Mapping[str, Any]) -> str:
    source = config.get("source")
    return str(source.get("uri") or "") if isinstance(source, Mapping) else ""


def _config_text(config: Mapping[str, Any]) -> str:
    """Returns the settings that are not empty, one a line. The address of the output is left out: a dataset moves."""
    lines = [
        f"{name}: {value if len(value) <= _MAX_VALUE_CHARS else f'{value[: _MAX_VALUE_CHARS - 1]}…'}"
        for name, value in _flatten(config)
        if name != "output.uri"
    ]
    text = "\n".join(lines)
    return text if len(text) <= _MAX_CONFIG_CHARS else f"{text[: _MAX_CONFIG_CHARS - 1]}…"


def _flatten(fields: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        elif value not in (None, [], ""):
            yield f"{prefix}{name}", value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def make_report(
    catalog: catalog_lib.Catalog,
    statistics: Mapping[str, Any],
    files: sample_records.ShardFiles,
    rejects: str,
    *,
    removed: Mapping[str, array.array[int]] | None = None,
    changes: Mapping[str, Any] | None = None,
    duplicates: str | None = None,
    notes: tuple[str, ...] = (),
) -> bytes:
    """Returns `report.html` of a dataset. The same dataset gives the same bytes, with the same version of Pillow.

    What cannot be read is missing from the page, with a note in its place.

    Args:
        catalog: of the dataset.
        statistics: as in `statistics.json`.
        files: where its shards are.
        rejects: address of its `rejects.jsonl`.
        removed: indexes of removed records by the name of their shard.
        changes: `report.json` of a snapshot.
        duplicates: address of its `duplicates.jsonl`; None if there is none.
        notes: further notes.
    """
    make = thumbnails.maker_of(catalog, statistics).make
    samples = sample_records.read_samples(catalog, files, make, removed)
    examples: Mapping[str, Any] = {}
    if sum(catalog.counts.rejected.values()):
        try:
            examples = sample_records.find_reject_examples(rejects)
        except OSError as e:
            notes = (*notes, f"{catalog_lib.REJECTS_FILE} cannot be read ({e})")
    repeated: Sequence[Mapping[str, Any]] = ()
    if duplicates is not None:
        try:
            repeated = sample_records.find_duplicates(duplicates)
        except OSError as e:
            notes = (*notes, f"{catalog_lib.DUPLICATES_FILE} cannot be read ({e})")
    return render(dataset_facts.DatasetFacts(catalog, statistics, samples, examples, changes or {}, repeated, notes))
