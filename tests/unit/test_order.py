"""tests/conftest.py: the order in which a run takes the files of tests."""

from __future__ import annotations

import pathlib
import types
from typing import Any

from tests import conftest

TESTS = pathlib.Path(conftest.__file__).parent


def test_long_files_come_first_among_the_unit_tests() -> None:
    short = ["golden/test_golden.py", "integration/test_verify.py", "unit/imagebeam/test_catalog.py"]
    items: list[Any] = [types.SimpleNamespace(path=TESTS / name) for name in (*short, *conftest.LONG_UNIT_TESTS)]
    conftest.pytest_collection_modifyitems(items)
    order = [item.path.relative_to(TESTS).as_posix() for item in items]
    assert order == [*short[:2], *conftest.LONG_UNIT_TESTS, short[2]]


def test_long_files_exist() -> None:
    assert [name for name in conftest.LONG_UNIT_TESTS if not (TESTS / name).is_file()] == []
