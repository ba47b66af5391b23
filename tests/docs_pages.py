"""The blocks of code of a page of docs/, and the examples in docstrings, run as they are printed there."""

from __future__ import annotations

import doctest
import inspect
import re
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from tests import command_line


def blocks(page: str, language: str) -> list[str]:
    """Returns the blocks of code in one language, in their order."""
    text = (command_line.ROOT / "docs" / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def run_snippet(block: str) -> dict[str, Any]:
    """Runs a block of Python in this process, in the working folder; returns its names."""
    names: dict[str, Any] = {"__name__": "__snippet__"}
    exec(compile(block, "snippet", "exec"), names)
    return names


def with_examples(module: ModuleType) -> Iterator[Callable[..., Any]]:
    """Yields the public functions and classes of a module, and the methods of these, whose docstrings have examples."""
    for value in (getattr(module, name) for name in module.__all__):
        methods = filter(inspect.isfunction, vars(value).values()) if inspect.isclass(value) else ()
        yield from (each for each in (value, *methods) if ">>> " in str(each.__doc__))


def run_examples(function: Callable[..., Any], **names: Any) -> None:
    """Runs the examples in a docstring, in the working folder, and compares what they print with what stands there."""
    [test] = doctest.DocTestFinder(recurse=False).find(function, function.__qualname__, globs=names)
    assert doctest.DocTestRunner(verbose=False).run(test).failed == 0
