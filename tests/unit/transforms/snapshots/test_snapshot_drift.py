from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest

from imagebeam.transforms.snapshots import snapshot_drift

NO_THRESHOLDS = snapshot_drift.Thresholds(None, None, None)


def test_compare_labels_returns_the_distance_and_what_moved() -> None:
    for before, written, removed, distance, moved in [
        ({"cat": 50, "dog": 50}, {"cat": 50, "dog": 50}, {}, 0.0, []),  # same-shares
        ({"cat": 50, "dog": 50}, {"cat": 100}, {}, 0.25, ["cat", "dog"]),  # one-label-added
        ({"cat": 50, "dog": 50}, {}, {"dog": 50}, 0.5, ["cat", "dog"]),  # one-label-removed
        ({"cat": 50, "dog": 50}, {"ant": 100}, {}, 0.5, ["ant", "cat", "dog"]),  # new-label
        ({"cat": 50}, {"dog": 50}, {"cat": 50}, 1.0, ["cat", "dog"]),  # all-relabelled
        ({"cat": 90, "dog": 10}, {"dog": 20}, {"cat": 20}, 0.2, ["cat", "dog"]),  # some-relabelled
    ]:
        figure = snapshot_drift.compare_labels("train", before, written, removed)
        assert figure is not None and figure.by_chance is not None
        assert figure.difference == pytest.approx(distance)
        assert [move.label for move in figure.moved] == moved


def test_compare_labels_without_labels_on_one_side_returns_none() -> None:
    for before, written, removed in [
        ({}, {"cat": 5}, {}),  # nothing-before
        ({"cat": 5}, {}, {"cat": 5}),  # nothing-after
        ({}, {}, {}),  # no-classes
    ]:
        assert snapshot_drift.compare_labels("train", before, written, removed) is None


def test_compare_labels_names_at_most_five_labels() -> None:
    figure = snapshot_drift.compare_labels("train", {f"{n}": 10 for n in range(9)}, {"new": 900}, {})
    assert figure is not None
    assert [move.label for move in figure.moved] == ["new", "0", "1", "2", "3"]


def test_fewer_than_30_images_never_exceed_a_threshold() -> None:
    for num_before, num_moved in [(29, 1000), (1000, 29)]:
        labels = snapshot_drift.compare_labels("train", {"cat": num_before}, {"dog": num_moved}, {})
        sizes = snapshot_drift.compare_sizes(
            "bytes",
            snapshot_drift.Sizes(num_before, num_before, 1, 1),
            snapshot_drift.Sizes(num_moved, 99 * num_moved, 99, 99),
        )
        rejects = snapshot_drift.compare_rejects({}, num_before, {"corrupt": num_moved}, num_moved)
        for figure in (labels, sizes, *rejects):
            assert figure is not None
            assert figure.by_chance is None
            assert not figure.exceeds(0.0)


def test_labels_drawn_by_chance_exceed_even_a_threshold_of_zero_at_most_once_in_fifty() -> None:
    by_zipf = [1 / rank / sum(1 / n for n in range(1, 101)) for rank in range(1, 101)]
    numbers = (30, 30, 0), (100, 1000, 0), (1000, 30, 0), (1000, 0, 300), (400, 200, 100)  # before, written, removed
    for shares, drawn in itertools.product(([0.5, 0.5], [0.97, 0.03], [0.1] * 10, by_zipf), numbers):
        num_before, num_written, num_removed = drawn
        generator = np.random.default_rng(7)
        names = [f"{n}" for n in range(len(shares))]
        alarms = above_default = 0
        for _ in range(200):
            before = generator.multinomial(num_before, shares)
            written = generator.multinomial(num_written, shares)
            removed = generator.multivariate_hypergeometric(before, num_removed)
            counts = [dict(zip(names, map(int, each))) for each in (before, written, removed)]
            figure = snapshot_drift.compare_labels("train", *counts)
            assert figure is not None
            alarms += figure.exceeds(0.0)
            above_default += figure.exceeds(0.1)
        assert (alarms <= 4, above_default) == (True, 0)


def sizes(values: list[int]) -> snapshot_drift.Sizes:
    return snapshot_drift.Sizes(len(values), sum(values), min(values), max(values))


def test_compare_sizes_returns_the_relative_difference_of_means() -> None:
    for added, difference, exceeds in [
        (90, -0.1, False),  # a-little-smaller
        (30, -0.7, True),  # much-smaller
        (149, 0.49, False),  # within
        (200, 1.0, True),  # twice-as-large
    ]:
        figure = snapshot_drift.compare_sizes("height", sizes([90, 110] * 2000), sizes([added] * 1000))
        assert figure is not None
        assert figure.difference == pytest.approx(difference)
        assert (figure.before, figure.after) == (100, added)
        assert figure.exceeds(0.5) == exceeds


def test_compare_sizes_without_a_mean_returns_none() -> None:
    assert snapshot_drift.compare_sizes("bytes", sizes([0] * 40), sizes([1] * 40)) is None


def test_sizes_of_statistics_without_images_are_none() -> None:
    counted = {"formats": {"JPEG": 2}, "height": {"min": 1, "max": 3, "sum": 4}, "width": {}}
    assert snapshot_drift.sizes_of(counted, "height") == (2, 4, 1, 3)
    assert snapshot_drift.sizes_of(counted, "width") is None
    assert snapshot_drift.sizes_of({}, "height") is None


def test_sizes_drawn_by_chance_do_not_exceed_the_threshold() -> None:
    for num_added in [30, 100, 1000]:
        for deviation in [0.2, 0.8, 1.0]:
            chance = random.Random(7)
            alarms = 0
            for _ in range(50):
                before, added = (
                    [1 + int(100_000 * chance.lognormvariate(0, deviation)) for _ in range(number)]
                    for number in (1000, num_added)
                )
                figure = snapshot_drift.compare_sizes("bytes", sizes(before), sizes(added))
                assert figure is not None
                alarms += figure.exceeds(0.5)
            assert not alarms


def test_compare_rejects_counts_all_reasons_and_each_and_only_a_rise_is_too_much() -> None:
    figures = snapshot_drift.compare_rejects({"corrupt": 100, "no_label": 10}, 1000, {"corrupt": 300}, 1000)
    by_name = {figure.name: figure for figure in figures}
    assert list(by_name) == ["all", "corrupt", "no_label"]
    assert by_name["all"].difference == pytest.approx(0.19)
    assert by_name["corrupt"].difference == pytest.approx(0.2)
    assert by_name["no_label"].difference == pytest.approx(-0.01)
    assert [figure.exceeds(0.05) for figure in figures] == [True, True, False]
    fallen = snapshot_drift.compare_rejects({"corrupt": 900}, 1000, {}, 1000)
    assert [figure.exceeds(0.05) for figure in fallen] == [False, False]


def test_compare_rejects_without_images_that_were_read_returns_nothing() -> None:
    assert snapshot_drift.compare_rejects({"corrupt": 1}, 10, {}, 0) == []
    assert snapshot_drift.compare_rejects({}, 0, {"corrupt": 1}, 1) == []


def test_rejects_by_chance_exceed_the_threshold_at_most_once_in_a_hundred() -> None:
    for num_read in [30, 100, 1000]:
        for share in [0.0, 0.01, 0.2]:
            generator = np.random.default_rng(7)
            alarms = 0
            for _ in range(500):
                before, new = (int(generator.binomial(number, share)) for number in (1000, num_read))
                figures = snapshot_drift.compare_rejects({"corrupt": before}, 1000, {"corrupt": new}, num_read)
                alarms += any(figure.exceeds(0.05) for figure in figures)
            assert alarms <= 5


def test_threshold_of_none_is_never_exceeded() -> None:
    figure = snapshot_drift.compare_labels("train", {"cat": 1000}, {"dog": 100_000}, {})
    assert figure is not None
    assert figure.exceeds(0.9)
    assert not any(
        figure._replace(kind=kind).exceeds(getattr(NO_THRESHOLDS, kind)) for kind in ("labels", "sizes", "rejects")
    )


def test_report_of_figures_names_each_excess_with_its_threshold_and_what_moved_most() -> None:
    labels = snapshot_drift.compare_labels("train", {"cat": 1000, "dog": 1000}, {"cat": 2000}, {})
    size = snapshot_drift.compare_sizes("bytes", sizes([900, 1100] * 500), sizes([3000] * 1000))
    width = snapshot_drift.compare_sizes("width", sizes([9, 11] * 500), sizes([10] * 1000))
    rejects = snapshot_drift.compare_rejects({"corrupt": 10}, 1000, {"corrupt": 200}, 1000)
    assert labels is not None and size is not None and width is not None
    drift = snapshot_drift.to_json([labels, size, width, *rejects], snapshot_drift.DEFAULT)
    assert drift["labels"]["train"]["moved"] == [["cat", 0.5, 0.75], ["dog", 0.5, 0.25]]
    assert drift["sizes"]["width"] == {
        "difference": 0.0,
        "by_chance": pytest.approx(3 * math.sqrt(1 / 1000 + 1 / 1000) / 10, abs=1e-6),
        "threshold": 0.5,
        "exceeds": False,
        "before": 10.0,
        "after": 10.0,
    }
    texts = snapshot_drift.describe_excess(drift)
    assert len(texts) == 4
    assert texts[0].startswith(
        "labels of train moved by 0.250 (cat 50.0% -> 75.0%, dog 50.0% -> 25.0%); update.drift.labels allows 0.1, and "
        "chance explains 0.0"
    )
    assert texts[1].startswith("new images differ in their mean by +200.0% (1,000 -> 3,000 bytes); update.drift.sizes")
    assert texts[2].startswith(
        "share of rejects differs by +0.190 (1.0% -> 20.0% of the images that were read); update"
    )
    assert texts[3].startswith("share of rejects for corrupt differs by +0.190 (1.0% -> 20.0% of the images")
