"""Tables of cases that are one test each, for what is checked in microseconds."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

Test = Callable[..., None]


def each_case(names: str, cases: Iterable[Any] | Mapping[str, Any]) -> Callable[[Test], Test]:
    """Decorates a test that runs once for each case, as one item; a failure names its case.

    `names` are those of the arguments that a case gives, as for pytest.mark.parametrize. The keys of a mapping are the
    names of its cases. Each case has a `tmp_path` and a `monkeypatch` of its own.
    """
    arguments = [name.strip() for name in names.split(",")]
    named = dict(cases) if isinstance(cases, Mapping) else {repr(case): case for case in cases}
    assert named, f"no case of {names}"

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            for number, (name, case) in enumerate(named.items()):
                given = dict(zip(arguments, case if len(arguments) > 1 else [case], strict=True))
                try:
                    with pytest.MonkeyPatch.context() as monkeypatch:
                        test(**_of_case(fixtures, number, monkeypatch), **given)
                except BaseException as e:
                    vars(e)["__notes__"] = [*getattr(e, "__notes__", []), f"in the case {name}"]  # as Python 3.11 does
                    raise

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
