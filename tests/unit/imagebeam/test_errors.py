from __future__ import annotations

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
        ("x [while running 'A/B']", errors.CatalogError("x"), errors.CatalogError("x")),
        ("imagebeam.errors.BusyError: x: y [while running 'A-ptransform-1']", RuntimeError(), errors.BusyError("x: y")),
        ("imagebeam.errors.BusyError: x [while running 'A'-ptransform-1]", RuntimeError(), errors.BusyError("x")),
        ("imagebeam.errors.OtherError: x", RuntimeError(), None),
        ("no key 'a' [while running 'A']", KeyError("a"), None),
    ],
    ids=["in-this-process", "by-name", "other-suffix", "unknown", "bug"],
)
def test_error_of_a_step_keeps_its_kind(text: str, error: Exception, expected: errors.ImagebeamError | None) -> None:
    found = errors.find_in(text, error)
    assert (type(found), str(found)) == (type(expected), str(expected))


def test_record_error_names_its_offset() -> None:
    error = errors.RecordError(12, "the record is cut short")
    assert (str(error), error.offset) == ("the record is cut short at byte offset 12", 12)
