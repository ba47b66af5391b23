from __future__ import annotations

import collections
import dataclasses
import functools
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.runners.portability import fn_api_runner
from apache_beam.testing import test_pipeline
from apache_beam.testing.util import assert_that
from hypothesis import given
from hypothesis import strategies as st

from imagebeam.transforms import elements, list_images, rank_references, sort_intervals, summaries
from imagebeam.transforms.classes.label_names import LabelNames
from imagebeam.transforms.elements import ImageRef, Reason
from imagebeam.transforms.shard import writer_processes
from imagebeam.transforms.sort_intervals import HashOrder
from imagebeam.transforms.sources import image_source, listing_rules, reference_rules, table_rows
from imagebeam.transforms.sources.listing_rules import NO_RULES, ListingRules
from imagebeam.transforms.sources.reference_rules import LabelRule, ListingTask, ReferenceRules, SplitRule
from imagebeam.transforms.summaries import merge_rankings

KEYS = ["train/cat/1.jpg", "train/dog/2.jpg", "test/cow/3.jpg", "test/4.jpg", "5.jpg", "tr\udcffin/cat/6.jpg"]
ORDER = HashOrder(0, b"imagebeam.order")
LISTS = (("test", ("ant", "bee", "cow", "dog")),)

LABELS = {
    "vocabulary": LabelRule("directory", level=1, names=LabelNames(("cat", "dog"), {"cat": "a cat"})),
    "lists": LabelRule("directory", level=1, names=LabelNames(lists=LISTS)),
    "filename": LabelRule("filename", pattern=r"(?P<label>[1-4])\.jpg"),
    "none": LabelRule("none", kind=None),
}
SPLITS = {
    "directory": SplitRule("directory", declared=("train", "test")),
    "renamed": SplitRule("directory", rename=(("test", "validation"),)),
    "hash": SplitRule("hash", fractions=(("train", 0.5), ("test", 0.5))),
    "index": SplitRule("index", counts=(("train", 2), ("test", 2))),
    "none": SplitRule("none"),
}
RULES = {
    "no-rules": NO_RULES,
    "pattern": ListingRules(
        pattern=listing_rules.PathPattern(r"(?P<group>t[^/]*)/.*", table_rows.RowFields(group="group"))
    ),
}


@dataclasses.dataclass(frozen=True)
class Listed(image_source.ImageSource):
    """A source with these images, in two listings, one of them with other findings."""

    keys: tuple[str, ...]

    def list_all(self) -> Iterator[image_source.Listing]:
        refs = [ImageRef(key, f"/data/{key}", 10, 1, position=row) for row, key in enumerate(self.keys)]
        reject = elements.Reject("7.jpg", "/data/7.jpg", "list", elements.Reason.NOT_FOUND, "is not there")
        yield image_source.Listing(elements.pack_refs(refs[:2]), len(refs[:2]), (reject,), {"hidden": 2}, ())
        yield image_source.Listing(elements.pack_refs(refs[2:]), len(refs[2:]), (), {}, ("a problem",))


_found: dict[str, Any] = {}  # by _keep, in the threads of the runner


def _keep(name: str, values: Iterable[Any]) -> None:
    _found[name] = sorted(values, key=repr)


def list_in_pipeline(source: image_source.ImageSource, rules: ReferenceRules) -> dict[str, Any]:
    """Returns what ListImages finds: references, rejects, and the sum of the tallies."""
    _found.clear()
    with test_pipeline.TestPipeline(runner=fn_api_runner.FnApiRunner()) as pipeline:
        listed = pipeline | list_images.ListImages(source, rules)
        assert_that(listed.images | beam.FlatMap(list), functools.partial(_keep, "refs"), label="Images")
        assert_that(listed.rejects, functools.partial(_keep, "rejects"), label="CheckRejects")
        assert_that(listed.tallies, functools.partial(_keep, "tallies"), label="Tallies")
    found = dict(_found)
    tallies = found.pop("tallies")
    found["listed"] = sum(tally.listed for tally in tallies)
    found["problems"] = sorted(problem for tally in tallies for problem in tally.problems)
    found["skipped"] = [dict(tally.skipped) for tally in tallies if tally.skipped]
    lists = tallies[0].lists
    for tally in tallies[1:]:
        lists = lists.merge(tally.lists)
    found["lists"] = lists
    return found


def rank_in_pipeline(
    source: image_source.ImageSource, rules: ReferenceRules
) -> tuple[summaries.Ranking, dict[tuple[str, int], ImageRef], int]:
    """Returns the ranking, the references by split and rank, and how many images were listed."""
    _found.clear()
    with test_pipeline.TestPipeline(runner=fn_api_runner.FnApiRunner()) as pipeline:
        listed = pipeline | list_images.ListImages(source, rules, ORDER)
        ranked = listed.images | rank_references.RankInSplits(ORDER, listed.ranked)
        assert_that(ranked.runs, functools.partial(_keep, "runs"), label="Runs")
        assert_that(ranked.rankings, functools.partial(_keep, "rankings"), label="Rankings")
        assert_that(listed.tallies, functools.partial(_keep, "tallies"), label="Tallies")
    ranking = merge_rankings(_found["rankings"])
    by_rank = {}
    for run in _found["runs"]:
        for rank, ref in enumerate(elements.unpack_refs(run[-1]), rank_references.first_rank(run, ranking)):
            assert (run[0], rank) not in by_rank
            by_rank[run[0], rank] = ref
    return ranking, by_rank, sum(tally.listed for tally in _found["tallies"])


ALL_RULES = ReferenceRules(NO_RULES, LABELS["none"], SPLITS["none"])


def test_writer_process_lists_and_ranks_as_the_steps_of_the_pipeline_do() -> None:
    """One process for all cases: its start takes longer than they do."""
    source, listed, ranked = Listed(tuple(KEYS)), [], []
    for rules, label, split in [
        ("no-rules", "vocabulary", "hash"),
        ("no-rules", "none", "index"),
        ("pattern", "filename", "none"),
        ("pattern", "lists", "directory"),
    ]:
        given = ReferenceRules(RULES[rules], LABELS[label], SPLITS[split])
        listed.append((given, found := list_in_pipeline(source, given)))
        assert found["listed"] == len(found["refs"]) + len(found["rejects"]) == len(KEYS) + 1
        assert {ref.key for ref in found["refs"]} < {*KEYS} or label == "none"
    for label, split in [("lists", "renamed"), ("none", "hash")]:
        given = ReferenceRules(NO_RULES, LABELS[label], SPLITS[split])
        ranked.append((given, in_steps := rank_in_pipeline(source, given)))
        assert in_steps[2] == len(KEYS) + 1 and len(in_steps[1]) >= 2
    with writer_processes.start(1):
        assert [(given, list_in_pipeline(source, given)) for given, _ in listed] == listed
        assert [(given, rank_in_pipeline(source, given)) for given, _ in ranked] == ranked
        ranking, by_rank, num_listed = rank_in_pipeline(Listed(()), ALL_RULES)
    assert (ranking.starts, by_rank, num_listed) == ({}, {}, 1)  # the reject


def test_many_references_are_not_ranked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    task = ListingTask(Listed(tuple(KEYS)), ALL_RULES, ORDER)
    assert any(listing.ranked is not None for listing in reference_rules.list_whole(task))
    monkeypatch.setattr(sort_intervals, "MAX_WHOLE", 1)
    listings = reference_rules.list_whole(task)
    assert all(listing.ranked is None for listing in listings)
    assert sum(len(elements.unpack_refs(listing.packed_refs)) for listing in listings) == len(KEYS)


def test_references_with_large_columns_are_not_all_kept_as_objects() -> None:
    @dataclasses.dataclass(frozen=True)
    class Captioned(image_source.ImageSource):
        num_bytes: int

        def list_all(self) -> Iterator[image_source.Listing]:
            for key in KEYS:
                ref = ImageRef(key, f"/data/{key}", columns=(key * (self.num_bytes // len(key)),))
                yield image_source.Listing(elements.UnpackedRefs([ref]), 1, (), {}, ())

    for num_bytes, is_ranked in [(1 << 10, True), (5 << 20, False)]:
        listings = reference_rules.list_whole(ListingTask(Captioned(num_bytes), ALL_RULES, ORDER))
        assert any(listing.ranked is not None for listing in listings) == is_ranked
        assert sum(listing.num_refs for listing in listings) == len(KEYS)


def test_lists_of_splits_that_cannot_be_read_are_a_problem_of_the_listing(tmp_path: pathlib.Path) -> None:
    rules = ListingRules(lists=listing_rules.SplitLists((("train", str(tmp_path / "absent.txt")),), "/data"))
    applied = map(ReferenceRules(rules).apply, Listed(tuple(KEYS)).list_all())
    problems = [problem for listing in applied for problem in listing.problems]
    assert len([problem for problem in problems if "split.lists cannot be read" in problem]) == 2


# --- label ------------------------------------------------------------------------------------------------------------


CATS_DOGS = r"(?P<label>cat|dog)\.\d+\.jpg"
SCANS = r"(?P<label>\w+)_(?P<patient>p\d+)?_\d+\.png"


def ref(key: str, **fields: object) -> ImageRef:
    return ImageRef(key, f"/data/{key}", **fields)


def test_apply_of_usable_label_sets_it_and_nothing_else() -> None:
    for rule, image, expected in [
        (LabelRule("directory"), ref("cat/1.jpg"), "cat"),  # directory
        (LabelRule("directory"), ref("cat/more/1.jpg"), "cat"),  # directory-above-others
        (LabelRule("directory", level=1), ref("train/dog/1.jpg"), "dog"),  # directory-below-split
        (LabelRule("directory"), ref("caf\udce9/1.jpg"), "caf\udce9"),  # directory-undecodable
        (LabelRule("filename", pattern=CATS_DOGS), ref("train/dog.42.jpg"), "dog"),  # filename
        (LabelRule("column"), ref("1.jpg", label="cat"), "cat"),  # column
        (LabelRule("column"), ref("1.jpg", label=" cat "), "cat"),  # column-stripped
        (LabelRule("column"), ref("1.jpg", label="3.0"), "3"),  # column-number-as-pandas-writes
        (LabelRule("column"), ref("1.jpg", label=("3.0", "3", "4")), ("3", "4")),  # column-several
        (LabelRule("columns"), ref("1.jpg", label=("3.0",)), ("3.0",)),  # columns-keep-their-names
        (LabelRule("directory"), ref("3.0/1.jpg"), "3.0"),  # directory-keeps-its-name
        (LabelRule("column", kind="int64"), ref("1.jpg", label=" -7 "), -7),  # int
        (LabelRule("column", kind="int64"), ref("1.jpg", label="3.0"), 3),  # int-as-pandas-writes
        (LabelRule("column", kind="float"), ref("1.jpg", label="2.5e1"), 25.0),  # float
        (LabelRule("column", kind="float"), ref("1.jpg", label="3"), 3.0),  # float-of-int
        (LabelRule("none", kind=None), ref("1.jpg"), None),  # none
        (LabelRule("directory", names=LabelNames(vocabulary=("cat",))), ref("cat/1.jpg"), "cat"),
    ]:
        labelled = rule.apply(image)
        assert labelled == image._replace(label=expected)
        assert type(labelled.label) is type(expected)


def test_apply_of_pattern_sets_the_group_it_has_and_keeps_another() -> None:
    grouped = LabelRule("filename", pattern=SCANS, group="patient")
    for name, group in (("scan_p7_1.png", "p7"), ("scan__1.png", "")):
        labelled = grouped.apply(ref(name))
        assert (labelled.label, labelled.group) == ("scan", group)
    assert LabelRule("filename", pattern=CATS_DOGS).apply(ref("cat.1.jpg", group="litter 3")).group == "litter 3"


NO_LABEL = Reason.NO_LABEL
COLUMN, WHOLE, REAL = (LabelRule("column", kind=kind) for kind in ("class", "int64", "float"))
BELOW_SPLIT = LabelRule("directory", level=1)
NAMED, NOTHING = (LabelRule("filename", pattern=each) for each in (CATS_DOGS, "(?P<label>[a-z]*)[0-9]+"))
ONLY_CATS = LabelRule("directory", names=LabelNames(vocabulary=("cat",)))
CANNOT_HOLD = "labels.txt cannot hold it"
FOR_NAMES = "for class names set label.type: class"


def test_apply_without_usable_label_says_why() -> None:
    for rule, image, reason, detail in [
        (LabelRule("directory"), ref("1.jpg"), NO_LABEL, "'1.jpg' is not of the form label/image"),
        (BELOW_SPLIT, ref("train/1.jpg"), NO_LABEL, "'train/1.jpg' is not of the form split/label/image"),
        (NAMED, ref("cow.1.jpg"), NO_LABEL, f"'cow.1.jpg' does not match label.pattern {CATS_DOGS!r}"),
        (NAMED, ref("cat.1.jpg.png"), NO_LABEL, f"'cat.1.jpg.png' does not match label.pattern {CATS_DOGS!r}"),
        (NOTHING, ref("17"), NO_LABEL, "'17' does not match label.pattern '(?P<label>[a-z]*)[0-9]+'"),
        (COLUMN, ref("1.jpg"), NO_LABEL, "the label's column is empty"),
        (COLUMN, ref("1.jpg", label=""), NO_LABEL, "the label's column is empty"),
        (COLUMN, ref("1.jpg", label=" "), NO_LABEL, "the label's column is empty"),
        (WHOLE, ref("1.jpg", label="2.5"), Reason.BAD_VALUE, "label: '2.5' is not an integer"),
        (WHOLE, ref("1.jpg", label="x"), Reason.BAD_VALUE, f"label: 'x' is not an integer; {FOR_NAMES}"),
        (REAL, ref("1.jpg", label="nan"), Reason.BAD_VALUE, "label: 'nan' is not a finite number"),
        (ONLY_CATS, ref("dog/1.jpg"), Reason.UNKNOWN_LABEL, "label 'dog' is not in label.vocabulary"),
        *(  # all at which str.splitlines, and so a reader of labels.txt, breaks
            (COLUMN, ref("1.jpg", label=text), Reason.BAD_VALUE, f"label {text!r} has a line break, {CANNOT_HOLD}")
            for text in map("a{}b".format, "\n\r\x0b\x85\u2028")
        ),
    ]:
        with pytest.raises(table_rows.BadRowError) as caught:
            rule.apply(image)
        assert (caught.value.reason, caught.value.detail, str(caught.value)) == (reason, detail, detail)


# --- split ------------------------------------------------------------------------------------------------------------


ROWS = (("train", 3), ("test", 1))
EIGHTY_TWENTY = (("train", 0.8), ("test", 0.2))
THREE = (("train", 0.7), ("validation", 0.2), ("test", 0.1))

HELD_OUT = SplitRule(
    "source",
    holdout=(("validation", "train", 1000),),
    rename=(("t10k", "test"),),
    declared=("train", "test", "validation"),
)

names = st.text(st.characters(exclude_categories=()), min_size=1)
fractions = st.lists(st.integers(1, 20), min_size=2, max_size=4).map(
    lambda shares: tuple((f"split{index}", share / sum(shares)) for index, share in enumerate(shares))
)


def test_apply_gives_the_split_and_changes_nothing_else() -> None:
    for rule, image, expected in [
        (SplitRule("none"), ref("1.jpg"), "train"),  # none
        (SplitRule("none", name="all"), ref("1.jpg"), "all"),  # none-named
        (SplitRule("directory"), ref("test/cat/1.jpg"), "test"),  # directory
        (SplitRule("column"), ref("1.jpg", split="test"), "test"),  # column
        (SplitRule("directory", rename=(("val", "validation"),)), ref("val/1.jpg"), "validation"),
        (SplitRule("column", rename=(("", "rest"),)), ref("1.jpg"), "rest"),  # nothing-renamed
        (SplitRule("directory", rename=(("val", "dev"),), declared=("train", "dev")), ref("val/1.jpg"), "dev"),
        (SplitRule("source"), ref("train/00000", split="train"), "train"),  # source
        (SplitRule("source", rename=(("t10k", "test"),), declared=("train", "test")), ref("1", split="t10k"), "test"),
        (HELD_OUT, ref("train/00999", split="train", position=999), "validation"),  # held-out-last
        (HELD_OUT, ref("train/01000", split="train", position=1000), "train"),  # held-out-no-more
        (HELD_OUT, ref("test/00000", split="t10k"), "test"),  # held-out-from-another
        (SplitRule("index", counts=ROWS), ref("1.jpg", position=3), "test"),
        (SplitRule("hash", fractions=EIGHTY_TWENTY), ref("cat/1.jpg"), "train"),  # hash
        (SplitRule("hash", fractions=EIGHTY_TWENTY), ref("cat/3.jpg"), "test"),  # hash-of-another
        (SplitRule("hash", fractions=EIGHTY_TWENTY, seed=5), ref("cat/3.jpg"), "train"),  # other-seed
    ]:
        assert rule.apply(image) == image._replace(split=expected)


def test_apply_without_usable_split_says_why() -> None:
    for rule, image, message in [
        (SplitRule("directory"), ref("1.jpg"), r"^'1\.jpg' is in no folder; expected split/image or split/label/im"),
        (SplitRule("directory"), ref("a b/1.jpg"), r"^split 'a b' must consist of letters, .*; set split\.rename$"),
        (SplitRule("column"), ref("1.jpg"), r"^split '' must consist of letters"),
        (SplitRule("column"), ref("1.jpg", split="\u0664"), r"must consist of letters"),
        (HELD_OUT, ref("1", split="extra"), r"^split 'extra' is not among the declared ones, train, test, validation$"),
        (
            SplitRule("index", counts=ROWS),
            ref("1.jpg", position=4),
            r"row 4 comes after the 4 that split\.counts names; give the last split null",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            rule.apply(image)


@given(fractions, st.integers(1, 3000))
def test_at_gives_each_split_its_fraction_rounded(shares: tuple[tuple[str, float], ...], total: int) -> None:
    rule = SplitRule("hash", fractions=shares)
    counts = collections.Counter(rule.at(position, total) for position in range(total))
    reached, before = 0.0, 0
    for name, share in shares[:-1]:
        reached += share
        assert counts[name] == round(reached * total) - before
        before = round(reached * total)
    assert counts[shares[-1][0]] == total - before  # no position is lost to the error of a sum of floats


@given(fractions)
def test_of_hash_of_the_outermost_hashes_is_the_first_and_the_last_split(shares: tuple[tuple[str, float], ...]) -> None:
    rule = SplitRule("hash", fractions=shares)
    assert (rule.of_hash(0), rule.of_hash(2**64 - 1)) == (shares[0][0], shares[-1][0])


@given(names, st.integers(-(2**63), 2**63 - 1), st.floats(0.01, 0.98), st.floats(0, 1))
def test_apply_with_a_larger_training_fraction_takes_no_image_out_of_training(
    key: str, seed: int, fraction: float, more: float
) -> None:
    larger = fraction + (0.99 - fraction) * more
    small = SplitRule("hash", fractions=(("train", fraction), ("test", 1 - fraction)), seed=seed).apply(ref(key))
    large = SplitRule("hash", fractions=(("train", larger), ("test", 1 - larger)), seed=seed).apply(ref(key))
    assert large.split == "train" or small.split == "test"


def test_apply_by_hash_of_many_images_comes_near_the_fractions() -> None:
    rule = SplitRule("hash", fractions=THREE)
    counts = collections.Counter(rule.apply(ref(f"cat/{index}.jpg")).split for index in range(10_000))
    assert {name: round(count / 10_000, 2) for name, count in counts.items()} == dict(THREE)


@given(st.lists(names, min_size=2, max_size=20), names, fractions)
def test_apply_by_group_keeps_groups_whole(keys: list[str], group: str, shares: tuple[tuple[str, float], ...]) -> None:
    rule = SplitRule("hash", fractions=shares, grouped=True)
    assert len({rule.apply(ref(key, group=group)).split for key in keys}) == 1


def test_apply_by_group_to_images_without_one_splits_each_by_its_key() -> None:
    grouped, alone = SplitRule("hash", fractions=THREE, grouped=True), SplitRule("hash", fractions=THREE)
    refs = [ref(f"{index}.jpg") for index in range(100)]
    assert [grouped.apply(each) for each in refs] == [alone.apply(each) for each in refs]


@given(st.sets(names, min_size=1), st.sets(names), fractions)
def test_split_of_an_image_never_changes_when_others_are_added(
    first: set[str], more: set[str], shares: tuple[tuple[str, float], ...]
) -> None:
    rule = SplitRule("hash", fractions=shares)
    before = {key: rule.apply(ref(key)).split for key in first}
    after = {key: rule.apply(ref(key)).split for key in first | more}
    assert before.items() <= after.items()


@pytest.mark.parametrize("by", ["source", "column", "index"])
def test_first_rows_of_a_split_are_held_out(by: str) -> None:
    counts = (("train", None),) if by == "index" else ()
    rule = SplitRule(by, counts=counts, holdout=(("validation", "train", 2),))
    found = [rule.apply(ref("1.jpg", position=row, split="train")).split for row in range(4)]
    assert found == ["validation", "validation", "train", "train"]
    if by != "index":
        assert rule.apply(ref("1.jpg", position=0, split="test")).split == "test"
