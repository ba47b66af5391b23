from __future__ import annotations

import collections
import fractions as fractions_lib
import json
import random
from collections.abc import Mapping

from hypothesis import example, given, settings
from hypothesis import strategies as st

from imagebeam.transforms import elements, stratify_splits
from imagebeam.transforms.classes import class_names
from imagebeam.transforms.images import structure
from imagebeam.transforms.shard import statistics
from imagebeam.transforms.snapshots import image_states
from tests import image_sets

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


KEEPS = "label.type: int keeps the numbers"
FROM_1 = "label.base: 1 stores ids from 1, which imagebeam's reader counts from 0"
AS_TEXT = "names of folders and files sort as text; label.vocabulary gives another order"
MANY_NUMBERS = {str(number): number - (number > 3) for number in range(2000) if number != 3}


def test_note_on_numbers_names_the_ids_that_are_not_the_numbers() -> None:
    for ids, from_column, note in [
        ({}, True, None),  # none
        ({"cat": 0, "2": 1}, True, None),  # text
        ({"0": 0, "1": 1, "2": 2}, True, None),  # the-same
        ({"1": 1, "2": 2}, True, None),  # the-same-from-1
        ({"2": 0, "10": 1, "30": 2}, True, ("3 of 3", "2 -> 0, 10 -> 1, 30 -> 2", KEEPS)),  # gaps
        ({"1": 0, "2": 1}, True, ("2 of 2", "1 -> 0, 2 -> 1", f"{FROM_1}; {KEEPS}")),
        (MANY_NUMBERS, True, ("1,996 of 1,999", "4 -> 3, 5 -> 4, 6 -> 5, 7 -> 6, 8 -> 7, ...", KEEPS)),
        ({"0": 0, "10": 1, "2": 2}, False, ("1 of 3", "10 -> 1", AS_TEXT)),  # folders
    ]:
        text = "the classes are numbers, and {} get another number as their id: {}; {}"
        assert class_names.note_on_numbers(ids, from_column) == (text.format(*note) if note else None)


def test_note_on_near_equals_names_them() -> None:
    for names, found in [
        (["cat", "dog", "cats"], None),  # none
        (["Cat", "cat ", "cat", "dog"], "'Cat' and 'cat' and 'cat '"),  # case-and-spaces
        (["guinea  pig", "guinea pig"], "'guinea  pig' and 'guinea pig'"),  # spaces-inside
        (["cafe\u0301", "caf\u00e9"], "'cafe\u0301' and 'caf\u00e9'"),  # decomposed
        (["7", "007", "70"], "'007' and '7'"),  # zeros
        (["0", "00"], "'0' and '00'"),  # zero
        ([*"abcdefgABCDEFG"], "'A' and 'a'; 'B' and 'b'; 'C' and 'c'; 'D' and 'd'; 'E' and 'e'; ..."),  # many
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


# ---- object classes


IMAGE = structure.check_image(image_sets.make_image(1))


def test_objects_are_counted_by_id_and_name() -> None:
    counted = class_names.count((10, 2, 10), (b"traffic light", b"cat", b"traffic light"))
    assert counted == {"10 traffic light": 2, "2 cat": 1}
    assert list(class_names.by_name(counted).items()) == [("cat", 1), ("traffic light", 2)]
    assert class_names.by_name({"1 cat": 1, "2 cat": 5}) == {"cat": 6}
    names = class_names.names_by_id([counted, {"2 dog": 1}], {0: b"\xff", 2: b"cat"})
    assert names == {0: "\udcff", 2: "cat", 10: "traffic light"}


def test_label_map_is_text_of_protobuf() -> None:
    text = class_names.label_map({1: 'a "b"\\', 90: "\u00e9"}).decode()
    assert text == 'item {\n  id: 1\n  name: "a \\"b\\"\\\\"\n}\nitem {\n  id: 90\n  name: "\u00e9"\n}\n'


def test_counts_of_objects_are_merged_and_subtracted_exactly() -> None:
    def counted(*objects: dict[str, int] | None) -> dict[str, object]:
        builder = statistics.StatisticsBuilder()
        for each in objects:
            builder.add((), statistics.measure("a.jpg", IMAGE, each))
        return builder.build()

    merged = statistics.merge_statistics([counted({"1 cat": 2}, {}), counted({"1 cat": 1, "2 dog": 4})])
    assert merged["objects"] == {"1 cat": 3, "2 dog": 4}
    assert statistics.describe_statistics(merged)["objects"] == {"cat": 3, "dog": 4}
    left = statistics.subtract_statistics(merged, counted({"1 cat": 1, "2 dog": 4}))
    assert left["objects"] == {"1 cat": 2}
    assert "objects" not in counted(None) and counted({})["objects"] == {}


def test_state_keeps_the_counts_of_objects() -> None:
    def encoded(*objects: dict[str, int] | None) -> bytes:
        builder = image_states.StateBuilder()
        for each in objects:
            ref = elements.ImageRef("a", "/a", fingerprint=bytes(image_states.FINGERPRINT_BYTES))
            builder.add(ref, statistics.measure("a.jpg", IMAGE, each))
        return builder.encode()

    images = image_states.decode_state(encoded({"1 cat": 2}, {}), 2, "x").images
    assert [each.measures and each.measures.objects for each in images] == [{"1 cat": 2}, {}]
    (image,) = image_states.decode_state(encoded(None), 1, "x").images
    assert image.measures == statistics.measure("a.jpg", IMAGE)
    assert json.dumps(image.measures.objects) == "null"


# ---- split shares


Sizes = Mapping[str, int]

sizes_of_classes = st.dictionaries(st.text(max_size=3), st.integers(1, 5) | st.integers(1, 2000), min_size=1)
weights = st.lists(st.integers(1, 100), min_size=2, max_size=6)
HARD = {f"{index:02}": size for index, size in enumerate([5, 9, 3, 17, 8, 2, 26, 11, 14, 6, 9, 31, 4, 4, 21] * 3)}


def totals(counts: Mapping[str, tuple[int, ...]]) -> list[int]:
    return [sum(column) for column in zip(*counts.values())]


@settings(max_examples=400, deadline=None)
@given(sizes_of_classes, weights)
@example(HARD, [5, 21, 5, 18, 21, 5])
@example(HARD, [26, 63, 26, 98, 98, 1])
def test_every_class_and_every_split_comes_within_one_image_of_its_share(sizes: Sizes, parts: list[int]) -> None:
    counts = stratify_splits.share_out(sizes, [part / sum(parts) for part in parts])
    exact = [fractions_lib.Fraction(part, sum(parts)) for part in parts]
    assert counts.keys() == sizes.keys()
    for name, row in counts.items():
        assert sum(row) == sizes[name]
        assert all(abs(count - sizes[name] * share) < 1 + 1e-9 and count >= 0 for count, share in zip(row, exact))
    whole = sum(sizes.values())
    assert all(abs(total - whole * share) < 1 + 1e-9 for total, share in zip(totals(counts), exact))


@settings(deadline=None)
@given(sizes_of_classes, weights)
def test_order_of_the_classes_does_not_count(sizes: Sizes, parts: list[int]) -> None:
    fractions = [part / sum(parts) for part in parts]
    assert stratify_splits.share_out(dict(reversed(sizes.items())), fractions) == stratify_splits.share_out(
        sizes, fractions
    )


def test_many_small_classes_give_each_split_its_share() -> None:
    for fractions, expected in [
        ([0.85, 0.15], [340, 60]),  # two
        ([0.8, 0.1, 0.1], [320, 40, 40]),  # three
        ([0.7, 0.1, 0.1, 0.1], [280, 40, 40, 40]),  # four
    ]:
        counts = stratify_splits.share_out({f"{index:03}": 4 for index in range(100)}, fractions)
        assert totals(counts) == expected
        assert len(collections.Counter(counts.values())) > 1  # not every class is rounded alike


def test_split_that_is_owed_a_whole_image_gets_it_by_way_of_another() -> None:
    for sign in [1, -1]:
        exact = [[15, 15, 10], [20, 15, 15]]  # in tenths: no class has the first and the last split rounded
        counts = [[1, 2, 1], [2, 1, 2]] if sign > 0 else [[2, 1, 1], [2, 2, 1]]
        owed = [sign * 11, sign * 4, sign * -15]
        stratify_splits._settle(counts, exact, owed, 10)
        assert owed == [sign * 1, sign * 4, sign * -5]
        assert counts == ([[2, 1, 1], [2, 2, 1]] if sign > 0 else [[1, 2, 1], [2, 1, 2]])
