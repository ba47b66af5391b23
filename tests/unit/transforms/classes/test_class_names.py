from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from imagebeam.transforms.classes import class_names

NUMBERS = st.integers(-(10**12), 10**12)


def test_spell_strips_cells_and_writes_whole_numbers_in_one_way() -> None:
    for cell, name in [
        ("cat", "cat"),
        (" cat\t", "cat"),
        ("Cat", "Cat"),
        ("1", "1"),
        ("1.0", "1"),
        (" 1.000 ", "1"),
        ("+1", "1"),
        ("-1.0", "-1"),
        ("-0.0", "0"),
        ("007", "007"),
        ("1.5", "1.5"),
        ("1.", "1."),
        ("1e3", "1e3"),
        ("v1.0", "v1.0"),
        ("\u0661.0", "\u0661.0"),
        ("", ""),
        ("9" * 5000 + ".0", "9" * 5000),
    ]:
        assert class_names.spell(cell) == name
        assert class_names.spell(name) == name


@given(NUMBERS)
def test_spelling_of_a_number_is_the_same_from_every_format(number: int) -> None:
    ways = {str(number), str(float(number)) if abs(number) < 10**12 else str(number), f" {number}.0 ", f"{number:+d}"}
    assert {class_names.spell(way) for way in ways} == {str(number)}


@settings(deadline=None)
@given(st.sets(NUMBERS, min_size=1), st.integers(0, 2**32))
def test_numbers_sort_by_value_and_as_text_elsewhere(numbers: set[int], seed: int) -> None:
    names = list(map(str, numbers))
    random.Random(seed).shuffle(names)
    assert class_names.sort_names(names, by_number=True) == tuple(map(str, sorted(numbers)))
    assert class_names.sort_names(names, by_number=False) == tuple(sorted(names))
    assert class_names.sort_names([*names, "cat"], by_number=True) == tuple(sorted([*names, "cat"]))


def test_names_of_one_number_keep_an_order_of_their_own() -> None:
    assert class_names.sort_names(["2", "1", "01"], by_number=True) == ("01", "1", "2")
    assert class_names.sort_names(["9" * 19, "1"], by_number=True) == ("1", "9" * 19)  # more than int64 holds: text


def test_note_on_numbers_names_the_ids_that_are_not_the_numbers() -> None:
    for ids, from_column, note in [
        ({}, True, None),  # none
        ({"cat": 0, "2": 1}, True, None),  # text
        ({"0": 0, "1": 1, "2": 2}, True, None),  # the-same
        ({"1": 1, "2": 2}, True, None),  # the-same-from-1
        (
            {"2": 0, "10": 1, "30": 2},
            True,
            "the classes are numbers, and 3 of 3 get another number as their id: 2 -> 0, 10 -> 1, 30 -> 2; "
            "label.type: int keeps the numbers",
        ),  # gaps
        (
            {"1": 0, "2": 1},
            True,
            "the classes are numbers, and 2 of 2 get another number as their id: 1 -> 0, 2 -> 1; "
            "label.base: 1 stores ids from 1, which imagebeam's reader counts from 0; label.type: int keeps "
            "the numbers",
        ),  # from-1
        (
            {str(number): number - (number > 3) for number in range(2000) if number != 3},
            True,
            "the classes are numbers, and 1,996 of 1,999 get another number as their id: 4 -> 3, 5 -> 4, 6 -> 5, "
            "7 -> 6, 8 -> 7, ...; label.type: int keeps the numbers",
        ),  # many
        (
            {"0": 0, "10": 1, "2": 2},
            False,
            "the classes are numbers, and 1 of 3 get another number as their id: 10 -> 1; names of folders and files "
            "sort as text; label.vocabulary gives another order",
        ),  # folders
    ]:
        assert class_names.note_on_numbers(ids, from_column) == note


def test_note_on_near_equals_names_them() -> None:
    for names, found in [
        (["cat", "dog", "cats"], None),  # none
        (["Cat", "cat ", "cat", "dog"], "'Cat' and 'cat' and 'cat '"),  # case-and-spaces
        (["guinea  pig", "guinea pig"], "'guinea  pig' and 'guinea pig'"),  # spaces-inside
        (["cafe\u0301", "caf\u00e9"], "'cafe\u0301' and 'caf\u00e9'"),  # decomposed
        (["7", "007", "70"], "'007' and '7'"),  # zeros
        (["0", "00"], "'0' and '00'"),  # zero
        (
            [each for letter in "abcdefg" for each in (letter, letter.upper())],
            "'A' and 'a'; 'B' and 'b'; 'C' and 'c'; 'D' and 'd'; 'E' and 'e'; ...",
        ),  # many
    ]:
        note = class_names.note_on_near_equals(names)
        if found is None:
            assert note is None
        else:
            expected = f"classes whose names are nearly equal: {found}: each is a class of its own; where one class is"
            assert note is not None and note.startswith(expected)


def test_notes_on_missing_name_the_classes_that_a_split_has_not() -> None:
    names = [f"class {index}" for index in range(1200)]
    held = {"train": set(names), "test": set(names[7:]), "dev": {names[0]}}
    assert class_names.notes_on_missing(held, names) == [
        "test has no image of 7 of the 1,200 classes, because these are too small for its share: 'class 0', 'class 1', "
        "'class 2', 'class 3', 'class 4', ...",
        "dev has no image of 1,199 of the 1,200 classes, because these are too small for its share: 'class 1', "
        "'class 2', 'class 3', 'class 4', 'class 5', ...",
    ]
