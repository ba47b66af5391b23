"""Every error of the product has a code of its own, and a text that tests have seen."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from imagebeam import errors
from tests import command_line, error_texts

CLASSES = {name for name, value in vars(errors).items() if isinstance(value, type) and name != "RecordError"}
UNSEEN = {  # cannot be raised in a test
    errors.LOST_CODE,
    "index-shard-changed",  # the file would have to grow while it is read
    "locale-not-utf8",  # Python takes the locale when a process starts; a test of that process sees the text
}


def codes_of_product() -> Iterator[str]:
    for folder in ("imagebeam", "transforms", "pipelines", "deploy"):
        for path in sorted((command_line.ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.Call) or len(node.args) < 2 or not isinstance(node.args[0], ast.Constant):
                    continue
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                if name in CLASSES:
                    yield str(node.args[0].value)


def test_each_code_has_a_text_that_tests_have_seen_and_each_text_a_code() -> None:
    codes = {*codes_of_product()}
    assert all(re.fullmatch("[a-z0-9]+(-[a-z0-9]+)*", code) for code in codes), codes
    seen = {line.split(" ", 1)[0] for line in error_texts.read_lines()}
    assert (codes - UNSEEN) - seen == set(), "no test expects these errors"
    assert seen - codes == set(), "remove the lines of these errors from error_texts.txt"


def test_lines_are_sorted_and_not_repeated() -> None:
    lines = error_texts.read_lines()
    assert lines == sorted(set(lines))
