"""Tables of cases that are one test each; a failure names its case."""

from __future__ import annotations

import contextlib
import functools
import inspect
import pathlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pytest

Test = Callable[..., None]


@contextlib.contextmanager
def named(*case: Any) -> Iterator[None]:
    """Adds the case to the report of any failure in the block."""
    try:
        yield
    except BaseException as e:  # a failure of pytest is no Exception
        vars(e)["__notes__"] = [*getattr(e, "__notes__", []), f"case: {case!r}"]  # as Python 3.11 does
        raise


def each_case(names: str, cases: Iterable[Any] | Mapping[str, Any]) -> Callable[[Test], Test]:
    """Decorates a test that runs once for each case, as one item; a failure names its case.

    `names` are those of the arguments that a case gives, as for pytest.mark.parametrize. The keys of a mapping are the
    names of its cases. Each case has a `tmp_path` and a `monkeypatch` of its own.
    """
    arguments = [name.strip() for name in names.split(",")]
    by_name = dict(cases) if isinstance(cases, Mapping) else {repr(case): case for case in cases}
    assert by_name, f"no case of {names}"

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            for number, (name, case) in enumerate(by_name.items()):
                given = dict(zip(arguments, case if len(arguments) > 1 else [case], strict=True))
                with named(name), pytest.MonkeyPatch.context() as monkeypatch:
                    test(**_of_case(fixtures, number, monkeypatch), **given)

        signature = inspect.signature(test)
        others = [each for name, each in signature.parameters.items() if name not in arguments]
        vars(run)["__signature__"] = signature.replace(parameters=others)
        return run

    return decorate


def _of_case(fixtures: dict[str, Any], number: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    own = dict(fixtures)
    if "monkeypatch" in own:
        own["monkeypatch"] = monkeypatch
    if "tmp_path" in own:
        own["tmp_path"] = own["tmp_path"] / f"case{number}"
        own["tmp_path"].mkdir()
    return own


def new_folder(parent: pathlib.Path) -> pathlib.Path:
    """Returns a new folder, for one case of a loop; its name does not show in the texts of error_texts.py."""
    return pathlib.Path(tempfile.mkdtemp(dir=parent))
