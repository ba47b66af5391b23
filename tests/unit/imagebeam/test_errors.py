from __future__ import annotations

import pickle

import pytest

from imagebeam import errors


def test_error_of_another_process_is_rebuilt_from_its_exit_code_or_name() -> None:
    for kind in (errors.ConfigError, errors.TooManyRejectsError, errors.VerificationError, errors.BusyError):
        error = errors.from_exit_code(kind.exit_code, "the text")
        assert (type(error), str(error)) == (kind, "the text")
    assert type(errors.from_exit_code(3, "x", "DriftError")) is errors.DriftError
    assert type(errors.from_exit_code(3, "x", "OtherError")) is errors.TooManyRejectsError
    for unknown in (0, 1, 6, 137):
        assert type(errors.from_exit_code(unknown, "x")) is errors.ImagebeamError


@pytest.mark.parametrize(
    ("text", "error", "expected"),
    [
        ("x [while running 'A/B']", errors.CatalogError("no-x", "x"), errors.CatalogError("no-x", "x")),
        ("imagebeam.errors.BusyError: x: y [while running 'A-ptransform-1']", RuntimeError(), errors.BusyError("x: y")),
        ("imagebeam.errors.BusyError: x [while running 'A'-ptransform-1]", RuntimeError(), errors.BusyError("x")),
        ("imagebeam.errors.OtherError: x", RuntimeError(), None),
        ("no key 'a' [while running 'A']", KeyError("a"), None),
    ],
    ids=["in-this-process", "by-name", "other-suffix", "unknown", "bug"],
)
def test_error_of_a_step_keeps_its_kind(text: str, error: Exception, expected: errors.ImagebeamError | None) -> None:
    found = errors.find_in(text, error)
    if isinstance(error, errors.ImagebeamError):
        assert found is not None
        assert found.code == error.code
    assert (type(found), str(found)) == (type(expected), str(expected))


def test_record_error_names_its_offset() -> None:
    error = errors.RecordError(12, "the record is cut short")
    assert (str(error), error.offset) == ("the record is cut short at byte offset 12", 12)


def test_error_keeps_its_code_when_it_is_pickled_or_extended() -> None:
    error = errors.BusyError("output-busy", "the output is busy")
    assert str(error) == "the output is busy"
    for other in (pickle.loads(pickle.dumps(error)), error.extended("")):
        assert (type(other), other.code, str(other)) == (errors.BusyError, "output-busy", "the output is busy")
    assert str(error.extended("; try again")) == "the output is busy; try again"
