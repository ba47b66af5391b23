"""Nouns, sizes, lists and commands in messages."""

from __future__ import annotations

import shlex
import subprocess

import hypothesis
import hypothesis.strategies as st

from imagebeam import plural


def test_counts_have_the_right_ending_and_long_lists_end_in_the_number_of_further_names() -> None:
    given = {"0 shards": (0, "shard"), "1 shard": (1, "shard"), "1,024 shards": (1024, "shard")}
    for text, (number, noun) in (given | {"1 class": (1, "class"), "2 classes": (2, "class")}).items():
        assert plural.count(number, noun) == text
    texts = [plural.name_some(names, 2) for names in ([], ["a"], ["a", "b"], ["a", "b", "c"], ["x"] * 2002)]
    assert texts == ["", "a", "a, b", "a, b and 1 more", "x, x and 2,000 more"]
    texts = [plural.format_bytes(num_bytes) for num_bytes in (0, 999, 1000, 107_100_000, 2e15)]
    assert texts == ["0 B", "999 B", "1.0 kB", "107.1 MB", "2,000.0 TB"]


def test_word_with_single_quotes_is_in_double_quotes_where_that_is_safe() -> None:
    for word, quoted in [
        ("plain/path.csv", "plain/path.csv"),
        (r"source.masks.image=images/(.*)\.jpg", r"'source.masks.image=images/(.*)\.jpg'"),
        ("source.manifest.image='{id}.*'", "\"source.manifest.image='{id}.*'\""),
        (r"label={pattern: '(?P<label>.+)_\d+\.\w+'}", r'''"label={pattern: '(?P<label>.+)_\d+\.\w+'}"'''),
        ("it's $5", """'it'"'"'s $5'"""),
        ("it's!", """'it'"'"'s!'"""),
        ("", "''"),
    ]:
        assert plural.shell_word(word) == quoted


@hypothesis.given(st.lists(st.text(alphabet=st.sampled_from("a '\"\\$`!*?\n{}<>é"), max_size=8), max_size=4))
def test_words_are_read_back(words: list[str]) -> None:
    assert shlex.split(plural.shell_command(words)) == words


def test_shell_reads_words_back() -> None:
    words = ["it's", r"'\d\.\w\'", "a'\\", "'$HOME'", "`'", 'a"\'"', "'\\\\'", "'\n", "'{a: b}'"]
    command = f"printf '%s\\0' {plural.shell_command(words)}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[:-1] == words
