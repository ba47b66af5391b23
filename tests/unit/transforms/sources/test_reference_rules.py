from __future__ import annotations

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

from imagebeam.transforms import elements, list_images, rank_references, sort_intervals, summaries
from imagebeam.transforms.classes.label_names import LabelNames
from imagebeam.transforms.elements import ImageRef
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
    "directory": LabelRule("directory", level=1),
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


@pytest.mark.parametrize(
    ("rules", "label", "split"),
    [
        ("no-rules", "directory", "directory"),
        ("no-rules", "vocabulary", "hash"),
        ("no-rules", "lists", "renamed"),
        ("no-rules", "none", "index"),
        ("pattern", "filename", "none"),
        ("pattern", "lists", "directory"),
        ("pattern", "none", "hash"),
    ],
)
def test_listing_of_a_writer_process_is_what_workers_list(rules: str, label: str, split: str) -> None:
    source, given = Listed(tuple(KEYS)), ReferenceRules(RULES[rules], LABELS[label], SPLITS[split])
    on_workers = list_in_pipeline(source, given)
    with writer_processes.start(1):
        assert list_in_pipeline(source, given) == on_workers
    assert on_workers["listed"] == len(on_workers["refs"]) + len(on_workers["rejects"]) == len(KEYS) + 1
    assert {ref.key for ref in on_workers["refs"]} < {*KEYS} or label == "none"


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


@pytest.mark.parametrize(
    ("label", "split"), [("directory", "directory"), ("lists", "renamed"), ("none", "hash"), ("none", "none")]
)
def test_ranks_of_a_writer_process_are_those_that_the_steps_of_the_pipeline_find(label: str, split: str) -> None:
    source, rules = Listed(tuple(KEYS)), ReferenceRules(NO_RULES, LABELS[label], SPLITS[split])
    in_steps = rank_in_pipeline(source, rules)
    with writer_processes.start(1):
        assert rank_in_pipeline(source, rules) == in_steps
    assert in_steps[2] == len(KEYS) + 1 and len(in_steps[1]) >= 2


ALL_RULES = ReferenceRules(NO_RULES, LABELS["none"], SPLITS["none"])


def test_many_references_are_not_ranked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    task = ListingTask(Listed(tuple(KEYS)), ALL_RULES, ORDER)
    assert any(listing.ranked is not None for listing in reference_rules.list_whole(task))
    monkeypatch.setattr(sort_intervals, "MAX_WHOLE", 1)
    listings = reference_rules.list_whole(task)
    assert all(listing.ranked is None for listing in listings)
    assert sum(len(elements.unpack_refs(listing.packed_refs)) for listing in listings) == len(KEYS)


@pytest.mark.parametrize(("num_bytes", "is_ranked"), [(1 << 10, True), (5 << 20, False)])
def test_references_with_large_columns_are_not_all_kept_as_objects(num_bytes: int, is_ranked: bool) -> None:
    class Captioned(image_source.ImageSource):
        def list_all(self) -> Iterator[image_source.Listing]:
            refs = [ImageRef(key, f"/data/{key}", columns=(key * (num_bytes // len(key)),)) for key in KEYS]
            for ref in refs:
                yield image_source.Listing(elements.UnpackedRefs([ref]), 1, (), {}, ())

    listings = reference_rules.list_whole(ListingTask(Captioned(), ALL_RULES, ORDER))
    assert any(listing.ranked is not None for listing in listings) == is_ranked
    assert sum(listing.num_refs for listing in listings) == len(KEYS)


def test_source_without_an_image_is_ranked_too() -> None:
    with writer_processes.start(1):
        ranking, by_rank, num_listed = rank_in_pipeline(Listed(()), ALL_RULES)
    assert (ranking.starts, by_rank, num_listed) == ({}, {}, 1)  # the reject


def test_lists_of_splits_that_cannot_be_read_are_a_problem_of_the_listing(tmp_path: pathlib.Path) -> None:
    rules = ListingRules(lists=listing_rules.SplitLists((("train", str(tmp_path / "absent.txt")),), "/data"))
    applied = map(ReferenceRules(rules).apply, Listed(tuple(KEYS)).list_all())
    problems = [problem for listing in applied for problem in listing.problems]
    assert len([problem for problem in problems if "split.lists cannot be read" in problem]) == 2
