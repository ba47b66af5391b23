from __future__ import annotations

import html.parser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagebeam.transforms.html_report import markup

LIMIT = markup.MAX_CHARS


class Events(html.parser.HTMLParser):
    """What a parser finds in a page."""

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


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        pytest.param("cat", "cat", id="plain"),
        pytest.param("<script>alert(1)</script>", "<script>alert(1)</script>", id="script"),
        pytest.param("\" onclick='x'", "\" onclick='x'", id="quotes"),
        pytest.param("&amp;", "&amp;", id="entity"),
        pytest.param("\u202eabc\u2066", "\\u202eabc\\u2066", id="right-to-left-override"),
        pytest.param("שלום", "שלום", id="right-to-left-script"),
        pytest.param("caf\udce9", "caf\\xe9", id="byte-that-is-no-utf8"),
        pytest.param("\ud800", "\\ud800", id="lone-surrogate"),
        pytest.param("a\nb\0\x1b[0m", "a\\u000ab\\u0000\\u001b[0m", id="controls"),
        pytest.param("\U000e0041", "\\U000e0041", id="invisible-tag"),
        pytest.param("क्\u200dष", "क्\u200dष", id="joiner"),
        pytest.param("x" * LIMIT, "x" * LIMIT, id="just-fits"),
        pytest.param(7, "7", id="number"),
    ],
)
def test_text_is_shown_as_it_is_and_adds_no_element(value: object, shown: str) -> None:
    found = Events(markup.text(value))
    assert ("".join(found.texts), found.tags, found.attributes) == (shown, ["bdi"], [])


def test_long_text_keeps_both_ends_and_more_of_it_in_its_title() -> None:
    found = Events(markup.text("a" * 5000 + "b" * 5000))
    (shown,) = found.texts
    assert len(shown) == LIMIT and shown.startswith("aaa") and shown.endswith("bbb") and "…" in shown
    ((name, title),) = found.attributes
    assert name == "title" and title is not None and len(title) == 400


@given(st.text(st.characters(), max_size=200))
def test_any_text_is_one_element_that_can_be_stored(value: str) -> None:
    shown = markup.text(value)
    shown.encode()
    assert Events(shown).tags == ["bdi"]
    assert not any(char in shown for char in "\u202a\u202b\u202d\u202e\u2066\u2067\u2068\n\r\0")


def test_decode_keeps_bytes_that_are_no_utf8() -> None:
    assert "caf\\xe9" in markup.text(markup.decode(b"caf\xe9"))


@pytest.mark.parametrize(
    ("part", "whole", "shown"),
    [
        (0, 10, "0.0 %"),
        (1, 3, "33.3 %"),
        (1, 10**6, "&lt; 0.1 %"),
        (10**6 - 1, 10**6, "&gt; 99.9 %"),
        (10, 10, "100.0 %"),
        (0, 0, "0.0 %"),
    ],
)
def test_percent_shows_no_share_as_nothing_or_as_all(part: int, whole: int, shown: str) -> None:
    assert markup.percent(part, whole) == shown


@pytest.mark.parametrize(("value", "largest", "width"), [(5, 10, "50"), (1, 10**6, "0.6"), (0, 5, "0"), (0, 0, "0")])
def test_bar_is_as_long_as_its_share_and_is_seen_unless_it_is_empty(value: int, largest: int, width: str) -> None:
    assert f'<rect width="{width}" height' in markup.bar(value, largest)


@pytest.mark.parametrize("count", [1, 2, 199, 200, 22_000])
def test_curve_has_a_bounded_number_of_points_inside_its_box(count: int) -> None:
    path = markup.curve(list(range(count, 0, -1)), 'a "curve"').split(' d="')[1].split('"')[0]
    points = [point.split(",") for point in path.replace("M", "").replace("Z", "").replace("L", "").split()]
    assert len(points) <= 203
    assert all(0 <= float(x) <= 400 and 0 <= float(y) <= 64 for x, y in points)


def test_table_without_rows_and_section_without_content_are_nothing() -> None:
    assert markup.table(("a",), []) == markup.section("x", "X", markup.NOTHING) == ""
