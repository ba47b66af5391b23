"""Words of commands as they are printed."""

from __future__ import annotations

import shlex
import subprocess

import hypothesis
import hypothesis.strategies as st
import pytest

from imagebeam import plural


@pytest.mark.parametrize(
    ("word", "quoted"),
    [
        ("plain/path.csv", "plain/path.csv"),
        (r"source.masks.image=images/(.*)\.jpg", r"'source.masks.image=images/(.*)\.jpg'"),
        ("source.manifest.image='{id}.*'", "\"source.manifest.image='{id}.*'\""),
        (r"label={pattern: '(?P<label>.+)_\d+\.\w+'}", r'''"label={pattern: '(?P<label>.+)_\d+\.\w+'}"'''),
        ("it's $5", """'it'"'"'s $5'"""),
        ("it's!", """'it'"'"'s!'"""),
        ("", "''"),
    ],
)
def test_word_with_single_quotes_is_in_double_quotes_where_that_is_safe(word: str, quoted: str) -> None:
    assert plural.shell_word(word) == quoted


@hypothesis.given(st.lists(st.text(alphabet=st.sampled_from("a '\"\\$`!*?\n{}<>é"), max_size=8), max_size=4))
def test_words_are_read_back(words: list[str]) -> None:
    assert shlex.split(plural.shell_command(words)) == words


def test_shell_reads_words_back() -> None:
    words = ["it's", r"'\d\.\w\'", "a'\\", "'$HOME'", "`'", 'a"\'"', "'\\\\'", "'\n", "'{a: b}'"]
    done = subprocess.run(
        ["sh", "-c", f"printf '%s\\0' {plural.shell_command(words)}"], capture_output=True, check=True
    )
    assert done.stdout.decode().split("\0")[:-1] == words
