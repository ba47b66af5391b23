"""Lines of texts that people read, and copy from."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st

from imagebeam.pipelines.messages import terminal
from tests import case_tables

_PIECES = (
    *(
        "a",
        "longer",
        "image's",
        "masks'",
        "--input",
        "--set",
        "--set=x",
        "'a b'",
        '"c d"',
        "'open",
        "{e: f, g: {h: i}}",
    ),
    *(
        "source.masks.mask",
        "source.masks.mask:",
        "imagebeam",
        "convert",
        "/data/x-y.png:",
        "[1, 2]",
        "{",
        "]",
        "--;",
        "é",
    ),
)


@case_tables.each_case(
    "text, lines",
    {
        "words": ("one two three", ["one two", "three"]),
        "path": ("see /data/my-images/a.png now", ["see", "/data/my-images/a.png", "now"]),
        "quoted-path": ("see '/data/my images/a.png' now", ["see", "'/data/my images/a.png'", "now"]),
        "apostrophes": ("the image's sides and masks' too", ["the", "image's", "sides and", "masks' too"]),
        "options": ("add --input x --set 'a={b: c}' to it", ["add", "--input x --set 'a={b: c}'", "to it"]),
        "bare-options": ("give --input; or --force, too", ["give", "--input;", "or", "--force,", "too"]),
        "command": ("run imagebeam index d e f", ["run", "imagebeam index d", "e f"]),
        "key-of-a-config": ("set split.by: hash, too", ["set", "split.by: hash,", "too"]),
        "value-of-a-config": ("as {road: [1, 2, 3]} is", ["as", "{road: [1, 2, 3]}", "is"]),
    },
)
def test_lines_end_at_blanks_but_not_in_what_is_copied(text: str, lines: list[str]) -> None:
    assert terminal.break_lines(text, 10) == lines


@hypothesis.given(st.lists(st.sampled_from(_PIECES), max_size=20).map(" ".join), st.integers(1, 40))
def test_lines_have_the_whole_text_and_fit_if_they_can(text: str, columns: int) -> None:
    lines = terminal.break_lines(text, columns)
    assert " ".join(lines) == text
    for line in lines:
        assert len(line) <= columns or terminal.break_lines(line, 1) == [line]


@hypothesis.given(st.text(alphabet="a-'\"{}[]:.= \t\n", max_size=40))
def test_no_text_loses_characters(text: str) -> None:
    assert "".join(" ".join(terminal.break_lines(text, 8)).split()) == "".join(text.split())
