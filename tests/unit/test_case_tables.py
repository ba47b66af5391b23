from __future__ import annotations

import pathlib

import pytest

from tests import case_tables


def test_case_that_fails_is_named_and_ends_the_test() -> None:
    seen = []

    @case_tables.each_case("number", {"one": 1, "two": 2, "three": 3})
    def check(number: int) -> None:
        seen.append(number)
        assert number == 1

    with pytest.raises(AssertionError) as raised:
        check()
    assert (seen, vars(raised.value)["__notes__"]) == ([1, 2], ["in the case two"])


@case_tables.each_case("text, length", [("a", 1), ("bc", 2)])
def test_each_case_has_a_folder_of_its_own(tmp_path: pathlib.Path, text: str, length: int) -> None:
    (tmp_path / "file").write_text(text)
    assert [path.stat().st_size for path in tmp_path.iterdir()] == [length]
