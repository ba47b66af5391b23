from __future__ import annotations

import base64
import hashlib
import html
import html.parser
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagebeam import catalog as catalog_lib
from imagebeam import features
from imagebeam.reader import bucket_counts
from imagebeam.transforms.html_report import bucket_chart, page, sample_records, thumbnails
from tests import pictures

HOSTILE = [
    "<script>alert(1)</script>",
    "\"><img src=x onerror='x'>",
    "\u202eevil",
    "x" * 10_000,
    "caf\udce9",
    "]]>-->",
    "",
]
JPEG = pictures.encode(pictures.photo(96, 64))
SIDES = np.array([(900, 600)] * 20 + [(600, 800)] * 30 + [(64, 60_000), (0, 0)], np.uint16)


class Events(html.parser.HTMLParser):
    """The tags, attributes and texts that a parser finds in a page."""

    def __init__(self, page: str):
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def make(
    labels: list[str] | None = None, picture: bytes = b"\xff\xd8", num_splits: int = 2, **more: Any
) -> page.DatasetFacts:
    labels = HOSTILE if labels is None else labels
    splits = {
        f"split {number}{HOSTILE[number % 2]}": catalog_lib.Split(
            (catalog_lib.Shard(f"{number}", 10**9, 10**12, 0, removed=number),)
        )
        for number in range(num_splits)
    }
    catalog = catalog_lib.Catalog(
        name=HOSTILE[0],
        fingerprint="f" * 32,
        compression="none",
        splits=splits,
        labels=tuple(labels),
        label_kind="class",
        label_base=0,
        features=(
            *features.resolve_features({}, "class", {}),
            features.Feature(HOSTILE[1], "columns/x", "float", True),
            features.Feature("latent", "columns/latent", "float", True, (4, 32, 32)),
        ),
        config={"source": {"uri": "gs://b/" + HOSTILE[1]}, "output": {"uri": "/secret/place"}, "long": "y" * 10**6}
        | {f"key{n}": HOSTILE[0] * 9 for n in range(1000)},
        duplicates={"exact": {}, "near": {HOSTILE[0]: {HOSTILE[1]: 3}}},
        counts=catalog_lib.Counts(10**10, 10**10 - 3, {"truncated": 3, HOSTILE[0]: 1}, {HOSTILE[0]: 5}),
        versions={"imagebeam": "1", HOSTILE[0]: HOSTILE[1]},
        created="2026-01-01T00:00:00+00:00",
        snapshot={"name": "000002", "base": "000001"},
    )
    counted = {label: number + 1 for number, label in enumerate(labels)}
    table = {
        "labels": counted,
        "formats": counted,
        "reencoded": {"gif to png": 37, HOSTILE[0]: 1},
        "aspect_ratio": {"<0.5": 3},
    }
    shot = thumbnails.Thumbnail(picture, 64, 96, HOSTILE[1], HOSTILE[3], "9 x 9")
    broken = shot._replace(data=b"", problem=HOSTILE[0])
    samples = {name: sample_records.SplitSamples((shot, broken) * 12, (HOSTILE[0],)) for name in list(splits)[:12]}
    drift = {"difference": 0.2, "by_chance": None, "threshold": 0.1, "exceeds": True}
    known: dict[str, Any] = {
        "statistics": dict.fromkeys(splits, table) | {"turned": {"90": 4}},
        "samples": samples,
        "rejects": {HOSTILE[0]: [sample_records.RejectExample(HOSTILE[3], HOSTILE[1], HOSTILE[0])] * 3},
        "changes": {"splits": {HOSTILE[0]: {"added": 5}}, "drift": {"labels": {HOSTILE[0]: drift}}},
        "duplicates": [
            {"kind": "near", "distance": 3, "key": HOSTILE[0], "split": HOSTILE[1], "first_key": HOSTILE[3]}
        ],
        "notes": (HOSTILE[0],),
        "buckets": bucket_chart.make_chart(HOSTILE[0], 10**9, bucket_counts.image_sizes(SIDES)),
    }
    return page.DatasetFacts(catalog, **{**known, **more})


def test_hostile_texts_add_no_element_and_no_address() -> None:
    content = page.render(make())
    found = Events(content.decode())
    assert "script" not in found.tags and "iframe" not in found.tags
    names = {name for name, _ in found.attributes}
    assert not any(name.startswith("on") for name in names) and "style" not in names
    for name, value in found.attributes:
        if name in ("href", "src"):
            assert value is not None and re.match(r"#[a-z]+$|data:,$|data:image/jpeg;base64,", value)
    assert b"/secret/place" not in content and b"2026-01" not in content
    assert HOSTILE[0] in "".join(found.texts)


def test_sections_and_links_to_them_are_the_same() -> None:
    found = Events(page.render(make()).decode())
    ids = [value for name, value in found.attributes if name == "id"]
    links = [value[1:] for name, value in found.attributes if name == "href" and value and value.startswith("#")]
    assert links == [
        "overview",
        "pictures",
        "labels",
        "images",
        "rejects",
        "duplicates",
        "changes",
        "features",
        "origin",
    ]
    assert len(ids) == len(set(ids)) and set(links) <= set(ids)


def test_policy_allows_the_style_sheet_of_the_page_and_nothing_else() -> None:
    content = page.render(make()).decode()
    sheet = content.split("<style>")[1].split("</style>")[0]
    digest = base64.b64encode(hashlib.sha256(sheet.encode()).digest()).decode()
    policy = html.unescape(content.split('Policy" content="')[1].split('"')[0])
    assert f"style-src 'sha256-{digest}'" in policy and policy.startswith("default-src 'none'; ")
    assert content.count("<style") == 1 and content.index("Content-Security-Policy") < content.index("<style")


def test_page_of_a_large_dataset_is_below_one_megabyte() -> None:
    for num_labels, num_splits in [(1_000, 3), (22_000, 3), (200, 400)]:
        labels = [f"{number} {HOSTILE[number % len(HOSTILE)]}" for number in range(num_labels)]
        content = page.render(make(labels, b"x" * 20_000, num_splits))
        assert len(content) < 1_000_000
        assert b"left out: the page would become too large" in content


def test_facts_that_are_missing_or_have_another_shape_are_left_out() -> None:
    for more in [
        {"statistics": {}},
        {"statistics": {"split 0" + HOSTILE[0]: None, "x": [], "turned": {"a": "b"}}},
        {"statistics": {"split 0" + HOSTILE[0]: {"labels": {"a": None}, "height": {"min": 1}, "formats": 3}}},
        {"samples": {}, "rejects": {}, "duplicates": (), "notes": ()},
        {"duplicates": [{}]},
        {"changes": {"splits": 3, "drift": {"labels": 4}}},
        {"changes": {}},
    ]:
        Events(page.render(make(**more)).decode())


def test_shares_of_images_that_were_changed_are_of_all_images() -> None:
    counted = {
        "formats": {"jpeg": 900, "png": 100},
        "orientations": {"6": 250},
        "turned": {"5": 100, "8": 20, "90": 5},
        "reencoded": {"gif to png": 50},
    }
    name = "split 0" + HOSTILE[0]
    cells = list(filter(str.strip, Events(page.render(make(statistics={name: counted})).decode()).texts))

    def row_of(name: str) -> list[str]:
        start = cells.index(name)
        return cells[start : start + 3]

    assert row_of("png") == ["png", "100", "10.0 %"]
    assert row_of("turned by 90 degrees clockwise") == ["turned by 90 degrees clockwise", "250", "25.0 %"]
    assert row_of("turned by 90 degrees clockwise and mirrored")[1:] == ["100", "10.0 %"]
    assert row_of("turned by 90 degrees counterclockwise")[1:] == ["20", "2.0 %"]
    assert row_of("90")[1:] == ["5", "0.5 %"]  # no code of EXIF
    assert row_of("gif to png")[1:] == ["50", "5.0 %"]
    assert cells.count("share of all") == 3


def test_classes_without_an_image_are_named_and_few_classes_are_all_listed() -> None:
    name = "split 0" + HOSTILE[0]
    content = page.render(make(["cat", "dog", "emu"], statistics={name: {"labels": {"cat": 2, "dog": 31}}})).decode()
    assert content.index("<bdi>dog") < content.index("<bdi>cat")
    assert "15.5 : 1" in content and "very unequal" in content and "emu</bdi>" in content
    assert "1 class without an image" in content and '<svg class="curve"' not in content


def test_many_classes_are_shown_by_a_curve_and_both_ends() -> None:
    for count in [41, 1_000, 22_000]:
        counts = {f"class {index:05d}": count - index for index in range(count)}
        content = page.render(make(list(counts), statistics={"split 0" + HOSTILE[0]: {"labels": counts}})).decode()
        section = content.split('id="labels"')[1].split("</section>")[0]
        assert section.count("<tr><th") - 2 == 30 and 'class="curve"' in section
        assert f"{count - 30:,} class" in section
        assert "class 00000<" in section and f"class {count - 1:05d}<" in section and "class 00020<" not in section


def test_bars_are_as_long_as_their_shares_and_are_seen_unless_they_are_empty() -> None:
    counts = {"formats": {"jpeg": 10**6, "png": 1, "gif": 500_000, "bmp": 0}}
    content = page.render(make(statistics={"split 0" + HOSTILE[0]: counts})).decode()
    images = content.split('id="images"')[1].split("</section>")[0]
    assert re.findall(r'<rect width="([0-9.]+)"', images)[:4] == ["100", "50", "0.6", "0"]


def test_text_is_shown_as_it_is_and_adds_no_element() -> None:
    for value, shown in [
        ("cat", "cat"),  # plain
        ("<script>alert(1)</script>", "<script>alert(1)</script>"),  # script
        ("\" onclick='x'", "\" onclick='x'"),  # quotes
        ("&amp;", "&amp;"),  # entity
        ("\u202eabc\u2066", "\\u202eabc\\u2066"),  # right-to-left-override
        ("שלום", "שלום"),  # right-to-left-script
        ("caf\udce9", "caf\\xe9"),  # byte-that-is-no-utf8
        ("\ud800", "\\ud800"),  # lone-surrogate
        ("a\nb\0\x1b[0m", "a\\u000ab\\u0000\\u001b[0m"),  # controls
        ("\U000e0041", "\\U000e0041"),  # invisible-tag
        ("क्\u200dष", "क्\u200dष"),  # joiner
        ("x" * thumbnails.MAX_CHARS, "x" * thumbnails.MAX_CHARS),  # just-fits
        (7, "7"),  # number
    ]:
        found = Events(page.shown(value))
        assert ("".join(found.texts), found.tags, found.attributes) == (shown, ["bdi"], [])


def test_long_text_keeps_both_ends_and_more_of_it_in_its_title() -> None:
    found = Events(page.shown("a" * 5000 + "b" * 5000))
    (shown,) = found.texts
    assert len(shown) == thumbnails.MAX_CHARS and shown.startswith("aaa") and shown.endswith("bbb") and "…" in shown
    ((name, title),) = found.attributes
    assert name == "title" and title is not None and len(title) == 400


@given(st.text(st.characters(), max_size=200))
def test_any_text_is_one_element_that_can_be_stored(value: str) -> None:
    shown = page.shown(value)
    shown.encode()
    assert Events(shown).tags == ["bdi"]
    assert not any(char in shown for char in "\u202a\u202b\u202d\u202e\u2066\u2067\u2068\n\r\0")


def test_percent_shows_no_share_as_nothing_or_as_all() -> None:
    for part, whole, shown in [
        (0, 10, "0.0 %"),
        (1, 3, "33.3 %"),
        (1, 10**6, "< 0.1 %"),
        (10**6 - 1, 10**6, "> 99.9 %"),
        (10, 10, "100.0 %"),
        (0, 0, "0.0 %"),
    ]:
        assert page.percent(part, whole) == shown


# --- classes ---------------------------------------------------------------------------------------------------------


def test_balance_of_counts() -> None:
    for counts, ratio, median, effective in [
        ([7], 1, 7, 1),  # one
        ([5, 5, 5, 5], 1, 5, 4),  # equal
        ([1, 3], 3, 2, 1.7548),  # two
        ([1, 10**9], 10**9, 500_000_000.5, 1),  # all-but-one
    ]:
        balance = page.balance_of(counts)
        assert (balance.ratio, balance.median) == (ratio, median)
        assert balance.effective == pytest.approx(effective, rel=1e-4)


def test_curve_has_a_bounded_number_of_points_inside_its_box() -> None:
    for count in [2, 199, 200, 22_000]:
        points = page.curve(list(range(count, 0, -1)))
        assert len(points) <= 200
        assert all(0 <= x <= 400 and 0 <= y <= 64 for x, y in points)
