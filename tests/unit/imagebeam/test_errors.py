from __future__ import annotations

import pytest

from imagebeam import errors


@pytest.mark.parametrize(
    ("kind", "exit_code"),
    [
        (errors.ImagebeamError, 1),
        (errors.ConfigError, 2),
        (errors.TooManyRejectsError, 3),
        (errors.VerificationError, 4),
        (errors.BusyError, 5),
    ],
)
def test_error_of_another_process_is_rebuilt_from_its_exit_code(
    kind: type[errors.ImagebeamError], exit_code: int
) -> None:
    error = errors.from_exit_code(exit_code, "the text")
    assert (type(error), error.exit_code, str(error)) == (kind, exit_code, "the text")


def test_error_of_another_process_is_the_one_that_it_names() -> None:
    assert type(errors.from_exit_code(3, "x", "DriftError")) is errors.DriftError
    assert type(errors.from_exit_code(3, "x", "OtherError")) is errors.TooManyRejectsError


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


@pytest.mark.parametrize("exit_code", [0, 1, 6, 137])
def test_unknown_exit_code_is_any_error(exit_code: int) -> None:
    assert type(errors.from_exit_code(exit_code, "x")) is errors.ImagebeamError


def test_record_error_names_its_offset() -> None:
    error = errors.RecordError(12, "the record is cut short")
    assert (str(error), error.offset) == ("the record is cut short at byte offset 12", 12)
