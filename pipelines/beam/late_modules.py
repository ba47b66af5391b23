"""Puts off the import of modules until something uses them, and makes imports quicker."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import importlib
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any


class _LateName:
    """A name in a late module, such as a function. Its first use imports the module.

    It cannot be a base class or stand in an `except` clause: both raise TypeError.
    """

    def __init__(self, module: str, name: str):
        self._late_module, self._late_name = module, name

    def _late_value(self) -> Any:
        return getattr(_load(self._late_module), self._late_name)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._late_value()(*arguments, **keywords)

    def __getattr__(self, name: str) -> Any:
        if _is_special(name):
            raise AttributeError(name)
        return getattr(self._late_value(), name)

    def __getitem__(self, parameters: Any) -> _LateName:
        return self  # a generic type in an annotation

    def __instancecheck__(self, instance: Any) -> bool:
        return self.__subclasscheck__(type(instance))

    def __subclasscheck__(self, subclass: type) -> bool:
        is_loaded = not isinstance(sys.modules.get(self._late_module), _LateModule | None)
        return is_loaded and issubclass(subclass, self._late_value())  # nothing derives from a module without classes


class _LateModule(types.ModuleType):
    """Stands for a module that is not imported yet."""

    def __getattr__(self, name: str) -> Any:
        if _is_special(name):
            raise AttributeError(f"module {self.__name__!r} is not imported yet, and has no {name!r}")
        real = sys.modules.get(self.__name__)
        return _LateName(self.__name__, name) if real is None or real is self else getattr(real, name)


def _is_special(name: str) -> bool:
    """Returns whether Python or a library that only looks at an object asks for the name, such as __path__."""
    return name.startswith("__") and name.endswith("__")


def _load(name: str) -> types.ModuleType:
    """Returns the real module."""
    package = name.partition(".")[0]
    for each in [package, *(each for each in sys.modules if each.startswith(f"{package}."))]:
        if isinstance(sys.modules.get(each), _LateModule):
            del sys.modules[each]
    return importlib.import_module(name)


@contextlib.contextmanager
def quick_imports() -> Iterator[None]:
    """Makes imports quicker: methods of dataclasses are compiled late, and no garbage is collected.

    The collector would walk through all modules again and again, which are never freed. This is for a process that does
    nothing else: what is garbage at the end of the block is never freed either.
    """
    gc.disable()
    try:
        with _methods_compiled_late():
            yield
    finally:
        gc.freeze()
        gc.enable()


_LATE_METHODS = frozenset({"__delattr__", "__eq__", "__hash__", "__repr__", "__setattr__"})


@contextlib.contextmanager
def _methods_compiled_late() -> Iterator[None]:
    """Makes dataclasses that are defined in this block compile these methods when they are first called.

    Each takes 0.15 ms, a launcher defines 300 of them, and most are never called. In a Python whose `dataclasses` makes
    methods in another way (3.13), nothing changes.
    """
    compile_now = getattr(dataclasses, "_create_fn", None)
    if compile_now is None:
        yield
        return

    def create(name: str, *arguments: Any, **keywords: Any) -> Any:
        if name not in _LATE_METHODS:
            return compile_now(name, *arguments, **keywords)

        def method(self: Any, *values: Any) -> Any:
            compiled = compile_now(name, *arguments, **keywords)
            compiled.__qualname__ = method.__qualname__
            for each in type(self).__mro__:
                if each.__dict__.get(name) is method:
                    setattr(each, name, compiled)
            return compiled(self, *values)

        method.__name__ = name
        return method

    dataclasses._create_fn = create  # type: ignore[attr-defined]
    try:
        yield
    finally:
        dataclasses._create_fn = compile_now  # type: ignore[attr-defined]


@contextlib.contextmanager
def imported_late(names: Sequence[str]) -> Iterator[None]:
    """Makes imports of these modules in this block give stand-ins, which import the real modules when they are used.

    After the block, an import gives the real module. Modules that are imported already are left alone.

    Args:
        names: of modules. `import a.b` and `from a.b import c` need "a" and "a.b" among them. If "a" is imported
            already, only `from a.b import c` and `from a import b` work: a real package gets no stand-in as attribute.
    """
    late = {name: _LateModule(name) for name in names if name not in sys.modules}
    for name, module in late.items():
        parent, _, child = name.rpartition(".")
        if parent in late:
            setattr(late[parent], child, module)
    sys.modules.update(late)
    try:
        yield
    finally:
        for name, module in late.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]
