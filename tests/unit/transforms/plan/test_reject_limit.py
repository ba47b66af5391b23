from __future__ import annotations

import dataclasses
import pathlib

from imagebeam.transforms import elements
from imagebeam.transforms.plan import decide_plan
from imagebeam.transforms.shard import read_ahead
from tests.unit.transforms import small_dataset

DATASET = small_dataset.make_settings(pathlib.Path("/out"))


def test_find_excess_blames_the_config_if_it_rejects_every_image() -> None:
    for rejected, message in [
        ({"no_label": 3}, "all 3 images were rejected (no_label 3), so the config does not fit"),  # config
        ({"no_label": 2}, "2 of 3 images were rejected (66.67%; no_label 2), rejects.max"),  # not-all
        ({"truncated": 3}, "3 of 3 images were rejected (100.00%; truncated 3), rejects.max"),  # images
    ]:
        assert str(decide_plan.find_excess(DATASET, 3, rejected)).startswith(message)


def test_find_excess_returns_an_error_only_above_the_limit() -> None:
    for rejected, refused in [(2, False), (3, True)]:
        assert (decide_plan.find_excess(DATASET, 200, {"corrupt": rejected}) is not None) == refused


def test_duplicates_that_were_dropped_do_not_count() -> None:
    assert decide_plan.find_excess(DATASET, 200, {"corrupt": 2, "duplicate": 100}) is None
    error = decide_plan.find_excess(DATASET, 200, {"corrupt": 3, "duplicate": 100})
    assert str(error).startswith("3 of 200 images were rejected (1.50%; corrupt 3), rejects.max_fraction allows 1.00%")


def test_find_excess_of_changed_images_says_to_list_again() -> None:
    for saved, again in [(False, "run the same command again"), (True, "save the listing again")]:
        error = decide_plan.find_excess(dataclasses.replace(DATASET, saved_listing=saved), 3, {"changed": 2})
        assert f"allows 1.00%: nothing was committed; 2 changed after the listing: {again}" in str(error)
        assert str(error).endswith("which lists again; for others fix the images or raise rejects.max_fraction")


def test_note_changed_counts_the_images_and_says_how_to_include_them() -> None:
    assert decide_plan.note_changed(DATASET, {"corrupt": 3}) == []
    assert decide_plan.note_changed(DATASET, {"changed": 1}) == [
        "1 image changed after the listing and was rejected; to take it in, run the same command again with --overwrite"
    ]
    (note,) = decide_plan.note_changed(DATASET, {"changed": 1200})
    assert note.startswith("1,200 images changed after the listing and were rejected; to take them in, run")


def test_images_of_another_size_than_the_table_says_blame_the_table() -> None:
    trusted = dataclasses.replace(DATASET, read_ahead=read_ahead.READ_AHEAD._replace(size_column="bytes"))
    end = "rejected; to take {} in, correct the table and run the same command again with --overwrite"
    assert decide_plan.note_changed(trusted, {"changed": 1}) == [
        "1 image differs in size from column 'bytes' of the table and was " + end.format("it")
    ]
    assert decide_plan.note_changed(trusted, {"changed": 2}) == [
        "2 images differ in size from column 'bytes' of the table and were " + end.format("them")
    ]
    error = decide_plan.find_excess(trusted, 3, {"changed": 2})
    assert "committed; 2 differ in size from column 'bytes' of the table: correct the table; for others fix" in str(
        error
    )


def test_every_reason_has_an_advice_or_a_reason_for_none() -> None:
    for reason in elements.Reason:
        assert (reason in decide_plan._ADVICE) != (reason in decide_plan._NO_ADVICE)
        advice = decide_plan.advise({reason.value: 2, "not_found": 1})
        assert advice == decide_plan._ADVICE.get(reason, "")
        without = dataclasses.replace(DATASET, max_reject_fraction=-1)  # duplicates that are dropped never count
        error = str(decide_plan.find_excess(without, 3, {reason.value: 3}, advises=True))
        assert error.endswith(
            f"nothing was committed; {advice}" if advice else ("committed", "raise rejects.max_fraction")
        )


def test_a_run_may_reject_many_images_but_not_all() -> None:
    for listed, rejected, message in [
        (3, {"truncated": 2}, None),
        (3, {"truncated": 2, "duplicate": 1}, "all 2 images were rejected (truncated 2): nothing was committed; copy"),
        (3, {"duplicate": 2}, None),
        (2, {"no_label": 2}, "all 2 images were rejected (no_label 2), so the config does not fit the input: nothing"),
        (0, {}, None),
    ]:
        lenient = dataclasses.replace(DATASET, max_reject_fraction=1.0)
        error = decide_plan.find_excess(lenient, listed, rejected, advises=True)
        assert (error is None) == (message is None)
        assert str(error).startswith(message or "None")


def test_advice_is_for_the_most_frequent_reason_and_only_if_no_image_is_left() -> None:
    rejected = {"too_small": 2, "truncated": 1}
    assert str(decide_plan.find_excess(DATASET, 3, rejected, advises=True)) == (
        "3 of 3 images were rejected (100.00%; too_small 2, truncated 1), rejects.max_fraction allows 1.00%: nothing "
        "was committed; lower image.limits.min_side"
    )
    for listed, advises in ((4, True), (3, False)):
        error = str(decide_plan.find_excess(DATASET, listed, rejected, advises))
        assert error.endswith("nothing was committed; fix the images or raise rejects.max_fraction")
    assert decide_plan.advise({}) == ""
