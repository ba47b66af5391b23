"""Makes the page from its template, `report.html`: gives it the figures, and escapes every text."""

from __future__ import annotations

import array
import base64
import dataclasses
import functools
import hashlib
import importlib.resources
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple, TypeGuard

import jinja2
import markupsafe

from imagebeam import catalog as catalog_lib
from imagebeam import features, plural
from imagebeam.transforms import summaries
from imagebeam.transforms.html_report import bucket_chart, sample_records, thumbnails
from imagebeam.transforms.html_report.thumbnails import MAX_CHARS, shorten, visible
from imagebeam.transforms.images import image_formats
from imagebeam.transforms.shard import statistics

_MAX_PICTURE_BYTES = 480_000  # all pictures together, before base64 makes 4 bytes of 3: the page stays below 1 MB
_MAX_ROWS = 24  # rows of a table of counts
_MAX_SPLITS = 50
_MAX_FEATURES = 100
_MAX_CONFIG_CHARS, _MAX_VALUE_CHARS = 20_000, 300
_MAX_TITLE_CHARS = 400  # length of a text that a mouse shows
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
    "wide": "Of 16 bits, of which readers get the upper 8",
}
_OF_SOME = frozenset(
    ("orientations", "turned", "reencoded", "misnamed", "wide", "dark")
)  # counts of a part of the images
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


def render(facts: DatasetFacts) -> bytes:
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
            classes=describe(facts.by_split("labels"), catalog.labels),
            tables=_count_tables(facts),
            sizes=list(_sizes(facts)),
            repeats=[
                (kind, split, first, count)
                for kind, by_split in (catalog.duplicates or {}).items()
                for split, by_first in by_split.items()
                for first, count in by_first.items()
            ],
            buckets=facts.buckets,
            octaves=[f"{max(1, round(2**each))}:{max(1, round(2**-each))}" for each in bucket_chart.OCTAVES],
            bar_box=(bucket_chart.WIDTH, bucket_chart.HEIGHT, bucket_chart.MARKS),
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


def _lead(facts: DatasetFacts) -> str:
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


def _contact_sheets(facts: DatasetFacts) -> Iterator[tuple[str, sample_records.SplitSamples]]:
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


def _count_tables(facts: DatasetFacts) -> tuple[list[CountTable], list[CountTable]]:
    """Returns the tables before and after that of sizes."""
    first = [(name, facts.total(name)) for name in _SHOWN_FIRST]
    others = set(facts.names_of_counts()) - _SHOWN_ELSEWHERE - {*_SHOWN_FIRST}
    rest: list[tuple[str, Mapping[str, int]]] = [(name, facts.total(name)) for name in sorted(others)]
    rest += [  # counts of the whole dataset
        (name, value)
        for name, value in facts.statistics.items()
        if name not in facts.catalog.splits and is_counts(value)
    ]
    num_images = facts.total("formats").total()
    return (
        [_count_table(name, counts, num_images) for name, counts in first if any(counts.values())],
        [_count_table(name, counts, num_images) for name, counts in rest],
    )


def _count_table(name: str, counts: Mapping[str, int], num_images: int) -> CountTable:
    """Returns a table; the largest count is first, or the first bin of a histogram that is not empty."""
    if name in ("orientations", "turned"):
        counts = {summaries.TURNS.get(code, code): count for code, count in counts.items()}
    rows = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    if name in ("shorter_side", "aspect_ratio") and counts.keys() <= {*(bins := statistics.BINS[name])}:
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


def _sizes(facts: DatasetFacts) -> Iterator[tuple[str, list[str]]]:
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
    buckets = None
    try:
        buckets = bucket_chart.read_chart(catalog, files, removed)
    except (OSError, ValueError) as e:
        notes = (*notes, f"the sizes of the images cannot be read ({e})")
    return render(DatasetFacts(catalog, statistics, samples, examples, changes or {}, repeated, notes, buckets))


# --- the figures ------------------------------------------------------------------------------------------------------

_MAX_CLASSES = 40  # classes that are all listed
_ENDS = 15  # where there are more: how many of the most and of the least frequent ones
_MAX_SPLIT_COLUMNS = 4
_MAX_POINTS = 200
_MIXED = 1.5  # ratio of the largest class to the smallest up to which classes are called balanced
_UNEQUAL = 10

Row = tuple[str, int, list[int]]  # a class, its images, and those in each split


class Balance(NamedTuple):
    """Measures of how equal the numbers of images of classes are. Classes without an image do not count."""

    num_classes: int
    largest: int
    smallest: int
    median: float
    effective: float  # number of equal classes with the same entropy

    @property
    def ratio(self) -> float:
        """Images of the largest class for each one of the smallest."""
        return self.largest / self.smallest

    @property
    def kind(self) -> str:
        """The ratio in words."""
        return "nearly balanced" if self.ratio <= _MIXED else "unequal" if self.ratio < _UNEQUAL else "very unequal"


class Classes(NamedTuple):
    """The classes of a dataset, as the page shows them."""

    balance: Balance
    total: int  # images; an image with several classes counts for each
    columns: list[tuple[str, str]]  # splits with a column of their own, and the class of the column
    tables: list[tuple[str, list[Row]]]  # with captions; all classes, or the most and the least frequent ones
    num_between: int  # classes in no table
    points: list[tuple[float, float]]  # points on the curve of many classes, in a box of 400 x 64
    absent: list[str]  # classes without an image


def balance_of(counts: Sequence[int]) -> Balance:
    """Returns the balance of classes with these numbers of images, none of them 0.

    Source: https://www.jstor.org/stable/1934352 (Hill, 1973) for the effective number, of order 1.
    """
    total = sum(counts)
    entropy = -math.fsum(count / total * math.log(count / total) for count in counts)
    return Balance(len(counts), max(counts), min(counts), median(counts), math.exp(entropy))


def describe(by_split: Mapping[str, Mapping[str, int]], labels: Sequence[str]) -> Classes | None:
    """Returns what the page shows of the classes; None without any.

    Args:
        by_split: images of each class in each split. An image with several classes counts for each.
        labels: all classes.
    """
    totals: Counter[str] = Counter()
    for each in by_split.values():
        totals.update(each)
    present = sorted(((label, count) for label, count in totals.items() if count), key=lambda each: (-each[1], each[0]))
    if not present:
        return None
    counts = [count for _, count in present]
    splits = [name for name, each in by_split.items() if each]
    if not 1 < len(splits) <= _MAX_SPLIT_COLUMNS:
        splits = []
    rows = [(label, count, [by_split[split].get(label, 0) for split in splits]) for label, count in present]
    is_long = len(rows) > _MAX_CLASSES
    return Classes(
        balance_of(counts),
        sum(counts),
        [(split, "number minor") for split in splits],
        [(f"The {_ENDS} most frequent classes", rows[:_ENDS]), (f"The {_ENDS} least frequent classes", rows[-_ENDS:])]
        if is_long
        else [("", rows)],
        len(rows) - 2 * _ENDS,
        curve(counts) if is_long else [],
        [label for label in labels if label not in totals],
    )


def curve(values: Sequence[int]) -> list[tuple[float, float]]:
    """Returns points of values that fall from left to right, with a logarithmic scale of height.

    Args:
        values: several, descending.
    """
    num_points = min(len(values), _MAX_POINTS)
    picked = [values[index * (len(values) - 1) // (num_points - 1)] for index in range(num_points)]
    scale = 60 / math.log10(1 + max(picked[0], 1))
    step = 400 / (num_points - 1)
    return [(index * step, 62 - scale * math.log10(1 + value)) for index, value in enumerate(picked)]


@dataclasses.dataclass(frozen=True)
class DatasetFacts:
    """One dataset. All but the catalog may be missing or have another shape: files are edited and lost."""

    catalog: catalog_lib.Catalog
    statistics: Mapping[str, Any]  # as in statistics.json
    samples: Mapping[str, sample_records.SplitSamples]  # thumbnails by split
    rejects: Mapping[str, Sequence[sample_records.RejectExample]]  # examples by reason
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # report.json of a snapshot
    duplicates: Sequence[Mapping[str, Any]] = ()  # some lines of duplicates.jsonl
    notes: tuple[str, ...] = ()  # what is missing from the page, and why
    buckets: bucket_chart.BucketChart | None = None

    @property
    def num_images(self) -> int:
        return sum(split.num_examples for split in self.catalog.splits.values())

    @property
    def num_removed(self) -> int:
        """Records in the shards that no longer belong to the dataset."""
        return sum(shard.removed for split in self.catalog.splits.values() for shard in split.shards)

    def _counted(self) -> dict[str, Mapping[str, Any]]:
        found = {split: self.statistics.get(split) for split in self.catalog.splits}
        return {split: each for split, each in found.items() if isinstance(each, Mapping)}

    def by_split(self, name: str) -> dict[str, dict[str, int]]:
        """Returns the counts of one kind, such as "labels", of each split that has them."""
        return {split: dict(each[name]) for split, each in self._counted().items() if is_counts(each.get(name))}

    def total(self, name: str) -> Counter[str]:
        """Returns the counts of one kind in all splits together, in the order in which they are stored."""
        total: Counter[str] = Counter()
        for counts in self.by_split(name).values():
            total.update(counts)
        return total

    def names_of_counts(self) -> list[str]:
        """Returns the kinds of counts that any split has, sorted."""
        return sorted({name for each in self._counted().values() for name in each if is_counts(each[name])})

    def range_of(self, name: str) -> tuple[int, float, int] | None:
        """Returns minimum, mean and maximum of "height", "width" or "bytes"; None if they are not known."""
        found = {split: each for split, each in self.by_split(name).items() if {"min", "max", "sum"} <= each.keys()}
        num_images = sum(sum(self.by_split("formats").get(split, {}).values()) for split in found)
        if not num_images:
            return None
        ranges = found.values()
        total = sum(each["sum"] for each in ranges)
        return min(each["min"] for each in ranges), total / num_images, max(each["max"] for each in ranges)


def is_counts(value: Any) -> TypeGuard[Mapping[str, int]]:
    """Returns whether a value is a mapping of names to integers, not empty."""
    return isinstance(value, Mapping) and bool(value) and all(type(each) is int for each in value.values())
