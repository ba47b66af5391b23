"""No test may fail because the machine is busy."""

from __future__ import annotations

import ast
import pathlib
import re
from collections.abc import Iterator

import hypothesis
import pytest

TESTS = pathlib.Path(__file__).parent.parent
CLOCKS = ("monotonic", "perf_counter", "time")
WAITS = ("timeout", "timeout_sec", "deadline")
TIMED = re.compile(rf"\b({'|'.join(WAITS)})\s*=|\b({'|'.join(CLOCKS)})\s*\(")  # in a source that may be timed


def timed(source: str) -> Iterator[str]:
    """Returns the calls of a test's source that give up after some seconds, or fail if something took too long."""
    if TIMED.search(source) is None:
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.keyword) and node.arg in WAITS and isinstance(node.value, ast.Constant):
            if node.value.value not in (None, 0):
                yield f"line {node.value.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Assert):
            for compared in ast.walk(node):
                if isinstance(compared, ast.Compare) and _is_at_most(compared):
                    yield f"line {node.lineno}: {ast.unparse(compared)}"


def _is_at_most(compared: ast.Compare) -> bool:
    """True if the difference of two readings of a clock must be below something."""
    terms = [compared.left, *compared.comparators]
    for term, operator in zip(terms, compared.ops):
        elapsed = isinstance(term, ast.BinOp) and isinstance(term.op, ast.Sub)
        calls = [node.func for node in ast.walk(term) if isinstance(node, ast.Call)]
        reads_clock = any(isinstance(each, ast.Attribute) and each.attr in CLOCKS for each in calls)
        if elapsed and reads_clock and isinstance(operator, (ast.Lt, ast.LtE)):
            return True
    return False


@pytest.mark.parametrize("path", sorted(TESTS.rglob("*.py")), ids=lambda path: str(path.relative_to(TESTS)))
def test_no_deadline_decides_a_test(path: pathlib.Path) -> None:
    found = list(timed(path.read_text("utf-8")))
    assert not found, f"wait with tests.patience instead: HANG_SEC, MOMENT_SEC or wait_until; {found}"


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("assert time.monotonic() - begin < 15", 1),
        ("assert 0.3 <= time.time() - begin <= 5", 1),
        ("assert time.monotonic() - begin > 15", 0),
        ("assert future.result() < before", 0),
        ("process.communicate(timeout=60)", 1),
        ("process.communicate(timeout=patience.HANG_SEC)", 0),
        ("future.exception(timeout=0)", 0),
        ("settings(deadline=200)", 1),
        ("settings(deadline=None)", 0),
    ],
)
def test_deadlines_are_found(source: str, count: int) -> None:
    assert len(list(timed(source))) == count


def test_properties_have_no_deadline() -> None:
    assert hypothesis.settings.default.deadline is None
    assert hypothesis.HealthCheck.too_slow in hypothesis.settings.default.suppress_health_check
