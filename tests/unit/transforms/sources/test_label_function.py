"""The label that a function of the user returns."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import numpy as np
import pytest

from imagebeam.transforms import elements, user_code
from imagebeam.transforms.elements import Reason
from imagebeam.transforms.sources import reference_rules
from imagebeam.transforms.sources.table_rows import BadRowError
from tests import case_tables

returned: list[Any] = []


def label(reference: user_code.Reference) -> Any:
    assert (reference.key, reference.columns) == ("a/b.jpg", {"name": "Ann"})
    if isinstance(returned[0], Exception):
        raise returned[0]
    if isinstance(returned[0], threading.Event):
        returned[0].wait()
    return returned[0]


def found(value: Any, kind: str, many: bool) -> Any:
    """Returns the label of an image whose function returns `value`, or the reason and detail of its reject."""
    code = user_code.find("label.function", f"{__name__}:label", version="1")
    rule = reference_rules.LabelRule("function", kind=kind, function=code, many=many, columns=("columns/name",))
    if isinstance(value, threading.Event):
        rule = dataclasses.replace(rule, max_seconds=0.01)
    returned[:] = [value]
    ref = elements.ImageRef("a/b.jpg", "/a/b.jpg", columns=(b"Ann",))
    try:
        return rule.apply(ref).label
    except BadRowError as e:
        return e.reason, e.detail


ONE, SEVERAL, INT, FLOAT = ("class", False), ("class", True), ("int64", False), ("float", False)
TAKEN = [
    (ONE, "cat", "cat"),
    (ONE, "ü", "ü"),
    (ONE, 3, "3"),
    (ONE, np.int64(3), "3"),
    (ONE, np.str_("cat"), "cat"),
    (SEVERAL, ("cat", "dog"), ("cat", "dog")),
    (SEVERAL, ["cat"], ("cat",)),
    (SEVERAL, (), ()),
    (INT, 3, 3),
    (INT, np.int32(-3), -3),
    (INT, "17", 17),
    (FLOAT, 0.5, 0.5),
    (FLOAT, np.float32(0.5), 0.5),
    (FLOAT, "0.5", 0.5),
]
REJECTED = [
    *(((*each, None), Reason.NO_LABEL, "label.function returned no label") for each in (ONE, SEVERAL, INT, FLOAT)),
    ((*ONE, " "), Reason.NO_LABEL, "label.function returned no label"),
    ((*ONE, "a\nb"), Reason.BAD_VALUE, "has a line break"),
    (
        (*ONE, ("cat",)),
        Reason.FUNCTION,
        "returned ('cat',), expected a text, or None; for several classes set label.ty",
    ),
    ((*ONE, True), Reason.FUNCTION, "returned True, expected a text"),
    ((*ONE, np.array(["cat"])), Reason.FUNCTION, "returned <U3 [1], expected a text"),
    ((*SEVERAL, "cat"), Reason.FUNCTION, "returned 'cat', expected a tuple of texts, or None"),
    ((*SEVERAL, ("cat", "")), Reason.FUNCTION, "returned ('cat', ''), expected a tuple"),
    ((*SEVERAL, (1,)), Reason.FUNCTION, "returned (1,), expected a tuple"),
    ((*INT, (1,)), Reason.FUNCTION, "returned (1,), expected a number, or None"),
    ((*INT, "cat"), Reason.BAD_VALUE, "label: "),
    ((*INT, 0.5), Reason.BAD_VALUE, "label: "),
    (
        (*ONE, KeyError("x")),
        Reason.FUNCTION,
        f"label.function '{__name__}:label' raised KeyError: 'x', test_label_function.py line ",
    ),
    ((*ONE, TimeoutError("x")), Reason.FUNCTION, "raised TimeoutError: x, test_label_function.py line "),
    (
        (*ONE, threading.Event()),
        Reason.TOO_SLOW,
        f"label.function '{__name__}:label' takes longer than 0.01 s, the limit of image.limits.max_seconds",
    ),
]


@case_tables.each_case("kind, value, expected", TAKEN)
def test_label_is_taken(kind: tuple[str, bool], value: Any, expected: Any) -> None:
    label = found(value, *kind)
    assert (label, type(label)) == (expected, type(expected))


@case_tables.each_case("call, reason, detail", REJECTED)
def test_image_without_a_label_is_rejected(call: tuple[str, bool, Any], reason: Reason, detail: str) -> None:
    kind, many, value = call
    assert found(value, kind, many)[0] is reason
    assert detail in found(value, kind, many)[1]


def test_error_of_a_missing_function_is_not_that_of_an_image() -> None:
    rule = reference_rules.LabelRule("function", function=user_code.UserCode("label.function", "no_such_module:x"))
    with pytest.raises(Exception, match="no module 'no_such_module'"):
        rule.apply(elements.ImageRef("a", "/a"))
