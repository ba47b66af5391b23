from __future__ import annotations

import pytest

from imagebeam.transforms.classes.label_names import LabelNames
from imagebeam.transforms.elements import ImageRef, Reason
from imagebeam.transforms.sources import reference_rules
from imagebeam.transforms.sources.reference_rules import LabelRule

CATS_DOGS = r"(?P<label>cat|dog)\.\d+\.jpg"
SCANS = r"(?P<label>\w+)_(?P<patient>p\d+)?_\d+\.png"


def ref(key: str, **fields: object) -> ImageRef:
    return ImageRef(key, f"/data/{key}", **fields)


@pytest.mark.parametrize(
    ("rule", "image", "expected"),
    [
        pytest.param(LabelRule("directory"), ref("cat/1.jpg"), "cat", id="directory"),
        pytest.param(LabelRule("directory"), ref("cat/more/1.jpg"), "cat", id="directory-above-others"),
        pytest.param(LabelRule("directory", level=1), ref("train/dog/1.jpg"), "dog", id="directory-below-split"),
        pytest.param(LabelRule("directory"), ref("caf\udce9/1.jpg"), "caf\udce9", id="directory-undecodable"),
        pytest.param(LabelRule("filename", pattern=CATS_DOGS), ref("train/dog.42.jpg"), "dog", id="filename"),
        pytest.param(LabelRule("column"), ref("1.jpg", label="cat"), "cat", id="column"),
        pytest.param(LabelRule("column"), ref("1.jpg", label=" cat "), "cat", id="column-stripped"),
        pytest.param(LabelRule("column"), ref("1.jpg", label="3.0"), "3", id="column-number-as-pandas-writes"),
        pytest.param(LabelRule("column"), ref("1.jpg", label=("3.0", "3", "4")), ("3", "4"), id="column-several"),
        pytest.param(LabelRule("columns"), ref("1.jpg", label=("3.0",)), ("3.0",), id="columns-keep-their-names"),
        pytest.param(LabelRule("directory"), ref("3.0/1.jpg"), "3.0", id="directory-keeps-its-name"),
        pytest.param(LabelRule("column", kind="int64"), ref("1.jpg", label=" -7 "), -7, id="int"),
        pytest.param(LabelRule("column", kind="int64"), ref("1.jpg", label="3.0"), 3, id="int-as-pandas-writes"),
        pytest.param(LabelRule("column", kind="float"), ref("1.jpg", label="2.5e1"), 25.0, id="float"),
        pytest.param(LabelRule("column", kind="float"), ref("1.jpg", label="3"), 3.0, id="float-of-int"),
        pytest.param(LabelRule("none", kind=None), ref("1.jpg"), None, id="none"),
        pytest.param(
            LabelRule("directory", names=LabelNames(vocabulary=("cat",))),
            ref("cat/1.jpg"),
            "cat",
            id="in-the-vocabulary",
        ),
    ],
)
def test_apply_of_usable_label_sets_it_and_nothing_else(
    rule: LabelRule, image: ImageRef, expected: str | int | float | tuple[str, ...] | None
) -> None:
    labelled = rule.apply(image)
    assert labelled == image._replace(label=expected)
    assert type(labelled.label) is type(expected)


@pytest.mark.parametrize(
    ("name", "group"),
    [
        pytest.param("scan_p7_1.png", "p7", id="matched"),
        pytest.param("scan__1.png", "", id="left-out"),
    ],
)
def test_apply_of_pattern_with_group_sets_the_group(name: str, group: str) -> None:
    labelled = LabelRule("filename", pattern=SCANS, group="patient").apply(ref(name))
    assert (labelled.label, labelled.group) == ("scan", group)


def test_apply_of_pattern_without_group_keeps_the_manifests_group() -> None:
    assert LabelRule("filename", pattern=CATS_DOGS).apply(ref("cat.1.jpg", group="litter 3")).group == "litter 3"


@pytest.mark.parametrize(
    ("rule", "image", "reason", "detail"),
    [
        pytest.param(
            LabelRule("directory"),
            ref("1.jpg"),
            Reason.NO_LABEL,
            "'1.jpg' is not of the form label/image",
            id="no-directory",
        ),
        pytest.param(
            LabelRule("directory", level=1),
            ref("train/1.jpg"),
            Reason.NO_LABEL,
            "'train/1.jpg' is not of the form split/label/image",
            id="no-directory-below-split",
        ),
        pytest.param(
            LabelRule("filename", pattern=CATS_DOGS),
            ref("cow.1.jpg"),
            Reason.NO_LABEL,
            rf"'cow.1.jpg' does not match label.pattern {CATS_DOGS!r}",
            id="no-match",
        ),
        pytest.param(
            LabelRule("filename", pattern=CATS_DOGS),
            ref("cat.1.jpg.png"),
            Reason.NO_LABEL,
            rf"'cat.1.jpg.png' does not match label.pattern {CATS_DOGS!r}",
            id="match-of-a-part",
        ),
        pytest.param(
            LabelRule("filename", pattern="(?P<label>[a-z]*)[0-9]+"),
            ref("17"),
            Reason.NO_LABEL,
            "'17' does not match label.pattern '(?P<label>[a-z]*)[0-9]+'",
            id="match-of-nothing",
        ),
        pytest.param(LabelRule("column"), ref("1.jpg"), Reason.NO_LABEL, "the label's column is empty", id="no-value"),
        pytest.param(
            LabelRule("column"),
            ref("1.jpg", label=""),
            Reason.NO_LABEL,
            "the label's column is empty",
            id="empty-value",
        ),
        pytest.param(
            LabelRule("column"),
            ref("1.jpg", label=" "),
            Reason.NO_LABEL,
            "the label's column is empty",
            id="blank-value",
        ),
        pytest.param(
            LabelRule("column", kind="int64"),
            ref("1.jpg", label="2.5"),
            Reason.BAD_VALUE,
            "label: '2.5' is not an integer",
            id="not-an-int",
        ),
        pytest.param(
            LabelRule("column", kind="int64"),
            ref("1.jpg", label="tench"),
            Reason.BAD_VALUE,
            "label: 'tench' is not an integer; for class names set label.type: class",
            id="class-name-for-an-int",
        ),
        pytest.param(
            LabelRule("column", kind="float"),
            ref("1.jpg", label="nan"),
            Reason.BAD_VALUE,
            "label: 'nan' is not a finite number",
            id="not-a-float",
        ),
        pytest.param(
            LabelRule("directory", names=LabelNames(vocabulary=("cat",))),
            ref("dog/1.jpg"),
            Reason.UNKNOWN_LABEL,
            "label 'dog' is not in label.vocabulary",
            id="unknown",
        ),
        *(
            pytest.param(
                LabelRule("column"),
                ref("1.jpg", label=f"a{line_break}b"),
                Reason.BAD_VALUE,
                f"label {f'a{line_break}b'!r} has a line break, labels.txt cannot hold it",
                id=f"line-break-{ord(line_break):x}",
            )
            for line_break in "\n\r\x0b\x85\u2028"  # all at which str.splitlines, and so a reader of labels.txt, breaks
        ),
    ],
)
def test_apply_without_usable_label_says_why(rule: LabelRule, image: ImageRef, reason: Reason, detail: str) -> None:
    with pytest.raises(reference_rules.LabelError) as caught:
        rule.apply(image)
    assert (caught.value.reason, caught.value.detail, str(caught.value)) == (reason, detail, detail)
