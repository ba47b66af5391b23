from __future__ import annotations

from collections.abc import Iterable

import pytest

from imagebeam.transforms import elements
from imagebeam.transforms.classes import label_names
from imagebeam.transforms.classes.label_names import ListSurvey, ListUse
from imagebeam.transforms.elements import ImageRef, Reason
from imagebeam.transforms.sources import image_source, reference_rules
from tests import error_texts

LISTS = (("val", ("cat", "dog", "cat")),)
RULE = reference_rules.LabelRule("directory", level=1, names=label_names.LabelNames(lists=LISTS))


def ref(key: str) -> ImageRef:
    return ImageRef(key, f"/data/{key}")


def test_number_of_a_name_stands_before_its_extension() -> None:
    for key, number in [
        ("val/ILSVRC2012_val_00000293.JPEG", 293),  # imagenet
        ("val/7.jpg", 7),  # alone
        ("val/a.7.jpg", 7),  # behind-a-dot
        ("val7/a.jpg", 0),  # in-the-folder
        ("val/7a.jpg", 0),  # not-at-the-end
        ("val/7", 0),  # no-extension
        ("val/٣.jpg", 0),  # other-digits
        ("1" * 30 + ".jpg", int("1" * 18)),  # far-too-long
    ]:
        assert label_names.number_of(key) == number


def test_rule_takes_the_line_of_the_number_for_images_directly_in_the_folder() -> None:
    for key, expected in [("val/x_1.JPEG", "cat"), ("val/x_02.JPEG", "dog"), ("val/dog/x_1.JPEG", "dog")]:
        assert RULE.apply(ref(key)).label == expected


def test_rule_has_no_label_for_another_number() -> None:
    for name in ["x_0.JPEG", "x_4.JPEG", "x.JPEG"]:
        with pytest.raises(
            reference_rules.LabelError, match=r"ends in no number from 1 to 3, the lines of label\.lists"
        ) as raised:
            RULE.apply(ref(f"val/{name}"))
        assert raised.value.reason is Reason.NO_LABEL


def survey(num_images: int = 3, highest: int = 3, folder_labels: tuple[str, ...] = ("cat", "dog", "owl")) -> ListSurvey:
    use = ListUse(3, frozenset({"cat", "dog"}), num_images, highest)
    return ListSurvey({"val": use}, frozenset(folder_labels))


def test_lists_that_fit_are_no_problem() -> None:
    for found, has_vocabulary in [
        (label_names.NO_LISTS, False),  # no-lists
        (survey(), False),  # fits
        (survey(num_images=2), False),  # one-missing-in-between
        (survey(folder_labels=("owl",)), True),  # the-vocabulary-decides
        (survey(folder_labels=()), False),  # nothing-to-compare-with
    ]:
        assert found.find_error(has_vocabulary) is None


def test_lists_that_do_not_fit_are_a_problem() -> None:
    for found in [
        survey(num_images=0, highest=0),  # nothing
        survey(highest=4),  # too few lines
        survey(highest=2),  # too many
        survey(num_images=4),  # twice
        survey(folder_labels=("cat", "owl")),  # no folder
    ]:
        error_texts.check(found.find_error(has_vocabulary=False), "label-list-misfit")


def test_missing_images_are_noted() -> None:
    assert survey().notes == []
    assert survey(num_images=1).notes == ["of the 3 images that label.lists has labels for in 'val', 2 are not there"]


def test_survey_is_the_same_however_the_images_are_divided() -> None:
    refs = [ref(f"val/x_{number}.JPEG") for number in (1, 2, 3, 9)]
    refs += [ref(f"train/{name}/1.JPEG")._replace(label=name) for name in ("cat", "owl")]
    expected = ListSurvey({"val": ListUse(3, frozenset({"cat", "dog"}), 4, 9)}, frozenset({"cat", "owl"}))
    for start in range(len(refs)):
        surveyors = [label_names.ListSurveyor(LISTS) for _ in range(3)]
        for index, each in enumerate(refs[start:] + refs[:start]):
            surveyors[index % 3].add(each.key, each.label)
        assert _merge_all([surveyor.survey for surveyor in surveyors]) == expected


def test_rules_tell_how_the_lists_fit() -> None:
    keys = ["val/x_1.JPEG", "val/x_3.JPEG", "val/x_7.JPEG", "train/owl/1.JPEG"]
    listing = image_source.Listing(elements.UnpackedRefs([ref(key) for key in keys]), len(keys), (), {}, ())
    listed = reference_rules.ReferenceRules(label=RULE).apply(listing)
    assert listed.lists == ListSurvey({"val": ListUse(3, frozenset({"cat", "dog"}), 3, 7)}, frozenset({"owl"}))
    assert [reject.key for reject in listed.rejects] == [keys[2]]
    without = reference_rules.ReferenceRules(label=reference_rules.LabelRule("directory")).apply(listing)
    assert without.lists == label_names.NO_LISTS


def _merge_all(surveys: Iterable[ListSurvey]) -> ListSurvey:
    merged = label_names.NO_LISTS
    for each in surveys:
        merged = merged.merge(each)
    return merged
