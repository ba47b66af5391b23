"""Lines of texts that people read, and copy from."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st
import pytest

from imagebeam.pipelines.messages import terminal

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


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        pytest.param("one two three", ["one two", "three"], id="words"),
        pytest.param("see /data/my-images/a.png now", ["see", "/data/my-images/a.png", "now"], id="path"),
        pytest.param("see '/data/my images/a.png' now", ["see", "'/data/my images/a.png'", "now"], id="quoted-path"),
        pytest.param(
            "the image's sides and masks' too", ["the", "image's", "sides and", "masks' too"], id="apostrophes"
        ),
        pytest.param(
            "add --input x --set 'a={b: c}' to it", ["add", "--input x --set 'a={b: c}'", "to it"], id="options"
        ),
        pytest.param("give --input; or --force, too", ["give", "--input;", "or", "--force,", "too"], id="bare-options"),
        pytest.param("run imagebeam index d e f", ["run", "imagebeam index d", "e f"], id="command"),
        pytest.param("set split.by: hash, too", ["set", "split.by: hash,", "too"], id="key-of-a-config"),
        pytest.param("as {road: [1, 2, 3]} is", ["as", "{road: [1, 2, 3]}", "is"], id="value-of-a-config"),
    ],
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
