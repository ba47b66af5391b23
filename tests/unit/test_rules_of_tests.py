"""The rules of tests/conftest.py, tests/case_tables.py and tests/patience.py."""

from __future__ import annotations

import ast
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator

import hypothesis
import pytest

from imagebeam import errors
from tests import case_tables, command_line, conftest, error_texts, patience, written_files

TESTS = pathlib.Path(conftest.__file__).parent
CLOCKS = ("monotonic", "perf_counter", "time")
WAITS = ("timeout", "timeout_sec", "deadline")


def test_case_that_fails_is_named_and_ends_the_test() -> None:
    seen = []

    @case_tables.each_case("number", {"one": 1, "two": 2, "three": 3})
    def check(number: int) -> None:
        seen.append(number)
        assert number == 1

    with pytest.raises(AssertionError) as raised:
        check()
    assert (seen, vars(raised.value)["__notes__"]) == ([1, 2], ["case: ('two',)"])


def test_long_files_exist() -> None:
    assert [name for name in conftest.LONG_UNIT_TESTS if not (TESTS / name).is_file()] == []


# --- no test fails because the machine is busy -----------------------------------------------------------------------


def timed(source: str) -> Iterator[str]:
    """Returns the calls of a test's source that give up after some seconds, or fail if something took too long."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.keyword) and node.arg in WAITS and isinstance(node.value, ast.Constant):
            if node.value.value not in (None, 0):
                yield f"line {node.value.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Assert):
            for compared in ast.walk(node):
                if isinstance(compared, ast.Compare) and _is_at_most(compared):
                    yield f"line {node.lineno}: {ast.unparse(compared)}"


def _is_at_most(compared: ast.Compare) -> bool:
    """Returns whether the difference of two readings of a clock must be below something."""
    for term, operator in zip([compared.left, *compared.comparators], compared.ops):
        calls = [node.func for node in ast.walk(term) if isinstance(node, ast.Call)]
        reads_clock = any(isinstance(each, ast.Attribute) and each.attr in CLOCKS for each in calls)
        if isinstance(term, ast.BinOp) and reads_clock and isinstance(operator, (ast.Lt, ast.LtE)):
            return True
    return False


def test_no_deadline_decides_a_test() -> None:
    found = {str(path): list(timed(path.read_text("utf-8"))) for path in TESTS.rglob("*.py")}
    wrong = {path: lines for path, lines in found.items() if lines}
    assert not wrong, "wait with tests.patience instead: HANG_SEC, MOMENT_SEC or wait_until"
    assert hypothesis.settings.default.deadline is None
    assert hypothesis.HealthCheck.too_slow in hypothesis.settings.default.suppress_health_check


@case_tables.each_case(
    "source, count",
    [
        ("assert time.monotonic() - begin < 15", 1),
        ("assert time.monotonic() - begin > 15", 0),
        ("process.communicate(timeout=60)", 1),
        ("process.communicate(timeout=patience.HANG_SEC)", 0),
        ("settings(deadline=None)", 0),
    ],
)
def test_deadlines_are_found(source: str, count: int) -> None:
    assert len(list(timed(source))) == count


# --- in CI an integration test that skips is a failure ---------------------------------------------------------------

SKIPS = '\nimport pytest\n\n@pytest.mark.{}\ndef test_something({}):\n    pytest.skip("no server")\n'
FILES = {  # content, outcome in CI, outcome elsewhere
    "unit/test_skip.py": (SKIPS.format("integration", ""), "FAILED", "SKIPPED"),
    "unit/test_fixture.py": (
        SKIPS.format("integration", "server") + '\n@pytest.fixture\ndef server():\n    pytest.skip("no server")\n',
        "ERROR",
        "SKIPPED",
    ),
    "integration/test_module.py": ('import pytest\npytest.importorskip("no_such_client")\n', "ERROR", "SKIPPED"),
    "unit/test_slow.py": (SKIPS.format("slow", ""), "SKIPPED", "SKIPPED"),
    "unit/test_xfail.py": (
        "import pytest\n\n@pytest.mark.integration\n@pytest.mark.xfail\ndef test_it():\n    raise AssertionError\n",
        "XFAIL",
        "XFAIL",
    ),
}


@pytest.mark.parametrize("in_ci", [True, False], ids=["in-ci", "elsewhere"])
def test_integration_test_that_skips_fails_in_ci_alone(tmp_path: pathlib.Path, in_ci: bool) -> None:
    (tmp_path / "conftest.py").write_text(pathlib.Path(conftest.__file__).read_text())
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  integration:\n  slow:\n")
    written_files.write(tmp_path, {path: text for path, (text, *_) in FILES.items()})
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "IMAGEBEAM_"))}
    environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "IMAGEBEAM_CI": str(int(in_ci)), "COLUMNS": "500"}
    command = [sys.executable, "-m", "pytest", "-ra", "--continue-on-collection-errors", str(tmp_path)]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=patience.HANG_SEC, check=False
    )
    assert done.returncode == (pytest.ExitCode.TESTS_FAILED if in_ci else pytest.ExitCode.OK)
    summary = done.stdout.rpartition("short test summary info")[2].splitlines()
    for path, (_, there, elsewhere) in FILES.items():
        [line] = [line for line in summary if path in line]
        assert line.startswith(there if in_ci else elsewhere), line
        assert ("in CI its server must be there" in line) == (in_ci and there in ("FAILED", "ERROR"))


# --- texts of errors -------------------------------------------------------------------------------------------------


CLASSES = {name for name, value in vars(errors).items() if isinstance(value, type) and name != "RecordError"}
UNSEEN = {  # cannot be raised in a test
    errors.LOST_CODE,
    "index-shard-changed",  # the file would have to grow while it is read
    "locale-not-utf8",  # Python takes the locale when a process starts; a test of that process sees the text
}


def codes_of_product() -> Iterator[str]:
    for folder in ("imagebeam", "transforms", "pipelines", "beam", "deploy"):
        for path in sorted((command_line.ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.Call) or len(node.args) < 2 or not isinstance(node.args[0], ast.Constant):
                    continue
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                if name in CLASSES or name == "explained":
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
