"""The section on labels: how many images each class has, and how unequal these numbers are."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from imagebeam import plural
from imagebeam.transforms.html_report import markup
from imagebeam.transforms.html_report.markup import Html

_MAX_ROWS = 40  # classes that are all listed
_ENDS = 15  # of more classes: how many of the most and of the least frequent ones
_MAX_SPLIT_COLUMNS = 4
_MAX_ABSENT = 10
_MIXED = 1.5  # ratio of the largest class to the smallest up to which classes are called balanced
_UNEQUAL = 10


class Balance(NamedTuple):
    """How equal the numbers of images of classes are. Classes without an image do not count."""

    num_classes: int
    largest: int
    smallest: int
    median: float
    effective: float  # number of equal classes with the same entropy

    @property
    def ratio(self) -> float:
        """Images of the largest class for each one of the smallest."""
        return self.largest / self.smallest


def balance_of(counts: Sequence[int]) -> Balance:
    """Returns the balance of classes with these numbers of images, none of them 0.

    Source: https://www.jstor.org/stable/1934352 (Hill, 1973) for the effective number, of order 1.
    """
    ordered, total = sorted(counts), sum(counts)
    middle = len(ordered) // 2
    median = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    entropy = -math.fsum(count / total * math.log(count / total) for count in ordered)
    return Balance(len(ordered), ordered[-1], ordered[0], median, math.exp(entropy))


def label_section(by_split: Mapping[str, Mapping[str, int]], labels: Sequence[str]) -> Html:
    """Returns the section; nothing without classes.

    Args:
        by_split: images of each class in each split. An image with several classes counts for each.
        labels: all classes.
    """
    totals: Counter[str] = Counter()
    for counts in by_split.values():
        totals.update(counts)
    present = sorted(((count, label) for label, count in totals.items() if count), key=lambda each: (-each[0], each[1]))
    if not present:
        return markup.NOTHING
    balance = balance_of([count for count, _ in present])
    parts = [_tiles(balance), _describe(balance)]
    if len(present) > _MAX_ROWS:
        description = "Images of each class, from the most frequent to the least, on a logarithmic scale"
        parts += [
            markup.curve([count for count, _ in present], description),
            markup.paragraph(markup.plain(f"{description}."), "faint"),
        ]
    parts.append(_table(present, by_split))
    absent = [label for label in labels if label not in totals]
    if absent:
        named = markup.join([markup.text(label, 40) for label in absent[:_MAX_ABSENT]], ", ")
        more = f" and {len(absent) - _MAX_ABSENT:,} more" if len(absent) > _MAX_ABSENT else ""
        text = f"{plural.count(len(absent), 'class')} without an image: "
        parts.append(markup.paragraph(Html(f"{text}{named}{more}"), "note"))
    return markup.section("labels", "Labels", markup.join(parts))


def _tiles(balance: Balance) -> Html:
    median = int(balance.median) if balance.median == int(balance.median) else balance.median
    tiles = [
        markup.tile(markup.number(balance.num_classes), "classes with images"),
        markup.tile(markup.number(balance.largest), "in the largest class"),
        markup.tile(markup.number(median), "in the median class"),
        markup.tile(markup.number(balance.smallest), "in the smallest class"),
        markup.tile(Html(f"{balance.ratio:,.1f} : 1"), "largest to smallest"),
    ]
    return Html(f'<dl class="tiles">{markup.join(tiles)}</dl>')


def _describe(balance: Balance) -> Html:
    if balance.num_classes == 1:
        return markup.NOTHING
    kind = "nearly balanced" if balance.ratio <= _MIXED else "unequal" if balance.ratio < _UNEQUAL else "very unequal"
    text = (
        f"The classes are {kind}. Equal classes with the same entropy would be {balance.effective:,.1f} in number "
        f"instead of {balance.num_classes:,}. statistics.json has weights that give every class the same total weight."
    )
    return Html(f'<p class="faint after">{markup.plain(text)}</p>')


def _table(present: Sequence[tuple[int, str]], by_split: Mapping[str, Mapping[str, int]]) -> Html:
    splits = [name for name, counts in by_split.items() if counts]
    columns = splits if 1 < len(splits) <= _MAX_SPLIT_COLUMNS else []
    total, largest = sum(count for count, _ in present), present[0][0]

    def row(count: int, label: str) -> list[Html]:
        of_splits = [markup.number(by_split[split].get(label, 0)) for split in columns]
        share = markup.percent(count, total)
        return [markup.text(label), *of_splits, markup.number(count), share, markup.bar(count, largest)]

    head = ["class", *columns, "images", "share", ""]
    numeric, minor = range(1, len(head) - 1), range(1, 1 + len(columns))

    def table_of(rows: Sequence[tuple[int, str]], caption: str = "") -> Html:
        return markup.table(head, (row(*each) for each in rows), numeric, minor, caption, "bars")

    if len(present) <= _MAX_ROWS:
        return table_of(present)
    most = table_of(present[:_ENDS], f"The {_ENDS} most frequent classes")
    least = table_of(present[-_ENDS:], f"The {_ENDS} least frequent classes")
    between = len(present) - 2 * _ENDS
    text = f"{plural.count(between, 'class')} between them; statistics.json has all of them."
    return Html(f"{most}\n{markup.paragraph(markup.plain(text), 'faint')}\n{least}")
