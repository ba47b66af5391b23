from __future__ import annotations

import dataclasses
import errno
import pathlib
import pickle
import random
import re
import unittest.mock
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagebeam import errors, features, storage
from imagebeam.transforms import elements
from imagebeam.transforms.sources import find_files, image_source, listing_rules, table_rows
from tests import error_texts
from tests.listed_bucket import Bucket

AGE = table_rows.Column("age", features.INT64)
FIELDS = table_rows.RowFields(label="label", split="split", group="who", columns=(AGE,))
PATTERN = r"(?P<label>\w+)/(?P<split>train|val)/(?P<age>[^_]*)_(?P<who>\d+)?\.jpg"


def apply(key: str) -> elements.ImageRef | elements.Reject:
    pattern = pickle.loads(pickle.dumps(listing_rules.PathPattern(PATTERN, FIELDS)))
    return pattern.apply(elements.ImageRef(key, f"/data/{key}"))


def test_path_that_cannot_be_used_is_a_reject() -> None:
    for key, reason, detail in [
        ("cat/test/31_7.jpg", "no_match", r"'cat/test/31_7.jpg' does not match source.pattern '\(\?P<label>"),
        ("cat/val/x_7.jpg", "bad_value", r"'cat/val/x_7.jpg': column 'age': 'x' is not an integer"),
        ("cat/val/" + "3" * 1020 + "_7.jpg", "no_match", r"the path has more than 1,024 characters"),
    ]:
        reject = apply(key)
        assert isinstance(reject, elements.Reject)
        assert (reject.key, reject.uri, reject.stage, reject.reason.value) == (key, f"/data/{key}", "list", reason)
        assert re.match(detail, reject.detail)


def test_value_that_must_not_be_missing_fails_the_run() -> None:
    strict = table_rows.RowFields(columns=(table_rows.Column("age", features.INT64, missing="error"),))
    with pytest.raises(table_rows.MissingValueError, match=r"/data/x.jpg: column 'age': 'x' is not an integer, and"):
        listing_rules.PathPattern(r"(?P<age>.+)\.jpg", strict).apply(elements.ImageRef("x.jpg", "/data/x.jpg"))


def test_pattern_that_cannot_be_used_is_an_error_and_a_harmless_one_is_taken() -> None:
    for pattern, error in [
        ("(?P<label>", "is not a regular expression: missing \\)"),
        (".*", r"has no named group; write for example \(\?P<label>"),
        (r"(?P<label>\w+)*x", r"repeats a group that ends in a repetition \('\+\)\*'\), so a path that does not match"),
        (r"(?P<label>a)(b*?){2,}", "repeats a group that ends in a repetition"),
    ]:
        with pytest.raises(ValueError, match=error):
            listing_rules.check_pattern(pattern)
    for pattern in (r"(?P<label>[^/]+)/.*", r"(?:[^/]+/)*(?P<label>\w+)_\d+\.jpg", r"(?P<a>x\+)+"):
        assert listing_rules.check_pattern(pattern) in ({"label"}, {"a"})


# --- lists ------------------------------------------------------------------------------------------------------------


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


def test_line_names_an_image_by_its_path_or_the_end_of_it(tmp_path: pathlib.Path) -> None:
    for line in [
        "images/cat/1.jpg",  # the key
        "images/cat/1",
        "cat/1.jpg",  # the end of the path
        "cat/1",
        "1.jpg",
        "1",
        "1 17 1 2",  # Oxford pets: further fields
        "1.jpg\t0\t32",
        "./images/cat/1.jpg",
    ]:
        lists = make(tmp_path, train=f"# a comment\n\n{line}\r\n", test="2\n")
        assert splits(lists, "images/cat/1.jpg", "images/cat/2.jpg", "images/cat/3.jpg") == ["train", "test", None]
    assert splits(make(tmp_path, train="my cat.jpg\n", test="x\n"), "a/my cat.jpg", "x.png") == ["train", "test"]


def test_line_is_relative_to_its_list(tmp_path: pathlib.Path) -> None:
    (tmp_path / "sets").mkdir()
    (tmp_path / "sets/a.txt").write_text("../images/1.jpg\n")
    lists = listing_rules.SplitLists((("train", str(tmp_path / "sets/a.txt")),), str(tmp_path))
    assert splits(lists, "images/1.jpg", "1.jpg") == ["train", None]


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


def test_list_that_cannot_be_used_is_an_error(tmp_path: pathlib.Path) -> None:
    lists = listing_rules.SplitLists((("train", str(tmp_path / "a.txt")),), str(tmp_path))
    with error_texts.raises("split-lists-unreadable"):
        lists.check()
    (tmp_path / "a.txt").write_text("# none\n\n")
    with error_texts.raises("split-lists-empty"):
        dataclasses.replace(lists).check()


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
    hints = listing_rules.HintFinder(image_source.ImageSource, listing_rules.ListingRules(lists=lists))
    assert hints.notes({"train": 2, "test": 1}) == ["split.lists names 3 images of train, and 2 were found"]


# --- files that rows name --------------------------------------------------------------------------------------------


NAMES = st.text(st.sampled_from("ab ./\x01é"), min_size=1, max_size=4).filter(lambda name: name.strip("/") == name)


@given(
    st.sets(NAMES), st.lists(NAMES.filter(lambda name: "/" not in name), max_size=30), st.integers(1, 5), st.booleans()
)
def test_what_a_listing_decides_is_what_a_look_at_each_file_finds(
    names: set[str], wanted: list[str], page_entries: int, early_folders: bool
) -> None:
    bucket = Bucket([f"all/{name}" for name in names], page_entries, early_folders)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, "storage_of", lambda _: bucket)
        patch.setattr(find_files, "_MIN_FILES", 2)
        patch.setattr(find_files, "_FILES_PER_PAGE", 1)
        found = find_files.find_together(f"stub://b/all/{name}" for name in wanted)
    for uri, entry in found.items():
        try:
            expected = bucket.stat(uri).kind
        except FileNotFoundError:
            expected = None
        assert (entry and entry.kind) == expected


def test_dense_folder_is_listed_and_a_sparse_one_only_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = Bucket([f"all/{index:06d}.jpg" for index in range(20_000)], 100)
    monkeypatch.setattr(storage, "storage_of", lambda _: bucket)
    dense = [f"stub://b/all/{index:06d}.jpg" for index in range(5000, 6000)]
    assert set(find_files.find_together(dense)) == set(dense)
    assert bucket.num_pages <= 11
    bucket.num_pages = 0
    sparse = [f"stub://b/all/{index:06d}.jpg" for index in random.Random(0).sample(range(20_000), 100)]
    assert len(find_files.find_together(sparse)) < 20
    assert bucket.num_pages == 5


def test_nothing_is_listed_for_files_without_a_shared_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_files.find_together(f"nfs://host/all/{index}.jpg" for index in range(100)) == {}  # an unknown scheme
    bucket = Bucket([], 1)
    monkeypatch.setattr(storage, "storage_of", lambda _: bucket)
    for uris in [
        [f"/data/{index}.jpg" for index in range(100)],  # local
        [f"stub://b/{index}/1.jpg" for index in range(100)],  # a folder each
        [],
        ["stub://b", "stub://b/", "stub://"],  # no names
    ]:
        assert find_files.find_together(uris) == {}
        assert bucket.num_pages == 0


def test_folder_that_may_not_be_listed_leaves_its_files_to_a_look_and_a_fault_ends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bucket, uris = Bucket([], 1), [f"stub://b/all/{index}.jpg" for index in range(100)]
    monkeypatch.setattr(storage, "storage_of", lambda _: bucket)
    refuse = unittest.mock.Mock()
    monkeypatch.setattr(bucket, "list_range", refuse)
    for error in (PermissionError(errno.EACCES, "denied"), errors.ConfigError("a-code", "no credentials")):
        refuse.side_effect = error
        assert find_files.find_together(uris) == {}
    refuse.side_effect = storage.UnavailableError(errno.EIO, "down")
    with pytest.raises(storage.UnavailableError, match="down"):
        find_files.find_together(uris)
