from __future__ import annotations

import pathlib
import pickle
from typing import Any

import pytest

from imagebeam import errors
from imagebeam.transforms import elements
from imagebeam.transforms.sources import image_source, listing_rules


def make(folder: pathlib.Path, unlisted: Any = "leave_out", **lists: str) -> listing_rules.SplitLists:
    for split, text in lists.items():
        (folder / f"{split}.txt").write_text(text)
    made = listing_rules.SplitLists(
        tuple((split, str(folder / f"{split}.txt")) for split in lists), str(folder), unlisted
    )
    made.check()
    return pickle.loads(pickle.dumps(made))


def splits(lists: listing_rules.SplitLists, *keys: str) -> list[str | None]:
    """Returns for each key its split, "!" and the reason, or None if it is left out."""
    found = lists.apply_all([elements.ImageRef(key, f"/data/{key}") for key in keys])
    return [
        None if each is None else f"! {each.detail}" if isinstance(each, elements.Reject) else each.split
        for each in found
    ]


@pytest.mark.parametrize(
    "line",
    [
        "images/cat/1.jpg",  # the key
        "images/cat/1",
        "cat/1.jpg",  # the end of the path
        "cat/1",
        "1.jpg",
        "1",
        "1 17 1 2",  # Oxford pets: further fields
        "1.jpg\t0\t32",
        "./images/cat/1.jpg",
    ],
)
def test_line_names_an_image_by_its_path_or_the_end_of_it(tmp_path: pathlib.Path, line: str) -> None:
    lists = make(tmp_path, train=f"# a comment\n\n{line}\r\n", test="2\n")
    assert splits(lists, "images/cat/1.jpg", "images/cat/2.jpg", "images/cat/3.jpg") == ["train", "test", None]


def test_line_is_relative_to_its_list(tmp_path: pathlib.Path) -> None:
    (tmp_path / "sets").mkdir()
    (tmp_path / "sets/a.txt").write_text("../images/1.jpg\n")
    lists = listing_rules.SplitLists((("train", str(tmp_path / "sets/a.txt")),), str(tmp_path))
    assert splits(lists, "images/1.jpg", "1.jpg") == ["train", None]


def test_line_may_be_a_name_with_blanks(tmp_path: pathlib.Path) -> None:
    assert splits(make(tmp_path, train="my cat.jpg\n", test="x\n"), "a/my cat.jpg", "x.png") == ["train", "test"]


def test_image_in_two_lists_is_a_reject_that_names_both(tmp_path: pathlib.Path) -> None:
    lists = make(tmp_path, train="1\n2\n2\n", test="1.jpg\n")
    (found, good) = splits(lists, "1.jpg", "2.jpg")
    assert good == "train"  # twice in one list
    assert found == (
        f"! '1.jpg' is in several lists: that of train, '{tmp_path}/train.txt' and that of test, "
        f"'{tmp_path}/test.txt'; remove it from all but one"
    )


def test_image_in_no_list_is_left_out_or_rejected(tmp_path: pathlib.Path) -> None:
    assert splits(make(tmp_path, train="1\n"), "2.jpg") == [None]
    said = "! '2.jpg' is in none of split.lists; split.unlisted: leave_out would leave it out"
    assert splits(make(tmp_path, "reject", train="1\n"), "2.jpg") == [said]


@pytest.mark.parametrize(
    ("text", "error"), [(None, "cannot be read"), ("# none\n\n", "names no image; give one a line")]
)
def test_list_that_cannot_be_used_is_an_error(tmp_path: pathlib.Path, text: str | None, error: str) -> None:
    if text is not None:
        (tmp_path / "a.txt").write_text(text)
    with pytest.raises(errors.ConfigError, match=f"split.lists train: .*a.txt' {error}"):
        listing_rules.SplitLists((("train", str(tmp_path / "a.txt")),), str(tmp_path)).check()


def test_rules_count_what_is_left_out_and_keep_the_rest(tmp_path: pathlib.Path) -> None:
    rules = listing_rules.ListingRules(lists=make(tmp_path, train="1\n2\n4\n", test="2\n"))
    found = image_source.ListingBuilder()
    for key in ("1.jpg", "2.jpg", "3.jpg"):
        found.add(elements.ImageRef(key, key))
    found.skipped["hidden"] = 2
    listing = rules.apply(found.take())
    assert [ref.split for ref in elements.unpack_refs(listing.packed_refs)] == ["train"]
    assert [reject.key for reject in listing.rejects] == ["2.jpg"]
    assert listing.skipped == {"hidden": 2, "not_in_lists": 1}
    (tmp_path / "test.txt").write_bytes(b"\xff\xfe\n")
    broken = rules.apply(listing)
    assert len(broken.problems) == 0  # the lists are read once in a process
    problems = pickle.loads(pickle.dumps(rules)).apply(listing).problems
    assert len(problems) == 1 and problems[0].startswith("split.lists cannot be read: 'utf-8' codec")


def test_names_without_an_image_are_noted(tmp_path: pathlib.Path) -> None:
    lists = make(tmp_path, train="1\n2\n2\n3\n", test="4\n")
    advisor = listing_rules.Advisor(image_source.ImageSource, listing_rules.ListingRules(lists=lists))  # type: ignore[arg-type]
    assert advisor.notes({"train": 2, "test": 1}) == ["split.lists names 3 images of train, and 2 were found"]
