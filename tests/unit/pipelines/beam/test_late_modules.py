"""A module whose import is put off is imported when something uses it, and not before."""

from __future__ import annotations

import importlib
import pathlib
import sys
from collections.abc import Iterator

import pytest

from imagebeam.pipelines.beam import late_modules
from tests import command_line

NAMES = ("latecomer", "latecomer.inner")
USER = """
import latecomer
import latecomer.inner
from latecomer.inner import double, Kind
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "latecomer").mkdir()
    (tmp_path / "latecomer" / "__init__.py").write_text("VALUE = 3\n")
    (tmp_path / "latecomer" / "inner.py").write_text("class Kind: pass\ndef double(x): return 2 * x\n")
    (tmp_path / "late_user.py").write_text(USER)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in (*NAMES, "late_user"):
        sys.modules.pop(name, None)


def import_late(name: str = "late_user"):  # type: ignore[no-untyped-def]
    with late_modules.imported_late(NAMES):
        return importlib.import_module(name)


def test_import_loads_nothing_and_leaves_no_stand_in() -> None:
    import_late()
    assert not [name for name in NAMES if name in sys.modules]


def test_use_of_a_function_imports_its_module() -> None:
    user = import_late()
    assert user.double(4) == 8
    assert "latecomer.inner" in sys.modules
    assert user.latecomer.VALUE == 3
    assert user.latecomer.inner.double is sys.modules["latecomer.inner"].double


def test_use_inside_the_block_imports_the_real_module() -> None:
    with late_modules.imported_late(NAMES):
        user = importlib.import_module("late_user")
        assert user.double(4) == 8
        assert importlib.import_module("latecomer").VALUE == 3
    assert sys.modules["latecomer.inner"].double(1) == 2


def test_nothing_is_an_instance_of_a_class_that_is_not_imported() -> None:
    user = import_late()
    assert not isinstance(3, user.Kind)
    assert not issubclass(int, user.Kind)
    assert "latecomer.inner" not in sys.modules
    real = importlib.import_module("latecomer.inner")
    assert isinstance(real.Kind(), user.Kind)
    assert issubclass(real.Kind, user.Kind)
    assert not isinstance(3, user.Kind)


def test_generic_type_in_an_annotation_imports_nothing() -> None:
    user = import_late()
    assert user.Kind[int] is user.Kind
    assert "latecomer.inner" not in sys.modules


def test_package_that_is_imported_already_is_left_alone() -> None:
    real = importlib.import_module("latecomer")
    assert import_late().latecomer is real
    assert real.VALUE == 3


def test_module_of_a_package_that_is_imported_already_is_late() -> None:
    package = importlib.import_module("latecomer")
    user = import_late()
    assert "latecomer.inner" not in sys.modules
    assert not hasattr(package, "inner")
    assert user.double(4) == 8
    assert package.inner is sys.modules["latecomer.inner"]


def test_collector_is_off_while_modules_are_imported() -> None:
    code = """
import gc
from imagebeam.pipelines.beam import late_modules
with late_modules.quick_imports():
    assert not gc.isenabled()
    before = gc.get_freeze_count()
print(gc.isenabled(), gc.get_freeze_count() > before)
"""
    assert command_line.run_python(code).stdout == "True True\n"


DATACLASSES = """
import copy, dataclasses, pickle
from imagebeam.pipelines.beam import late_modules

def define():
    @dataclasses.dataclass(frozen=True)
    class Point:
        x: int
        y: int = 2

    @dataclasses.dataclass(frozen=True)
    class Named(Point):
        name: str = "a"

    @dataclasses.dataclass(order=True)
    class Open:
        x: list

    return Point, Named, Open

def describe(Point, Named, Open):
    yield repr(Point(1)), repr(Named(1)), repr(Open([1]))
    yield Point(1) == Point(1), Point(1) == Point(3), Named(1) == Point(1), Named(1) == Named(1), Open([1]) < Open([2])
    yield hash(Point(1)) == hash((1, 2)), len({Named(1), Named(1), Named(2)}), Open.__hash__
    for change in (lambda: setattr(Named(1), "x", 3), lambda: delattr(Named(1), "x"), lambda: hash(Open([1]))):
        try:
            change()
        except Exception as e:
            yield type(e).__name__, str(e)
    yield dataclasses.replace(Named(1), y=5), copy.deepcopy(Named(1)), Point.__eq__.__qualname__
    yield Point.__eq__ is Named.__eq__, Named(1).__eq__(3), Point.__repr__(Named(1))

now = define()
create = getattr(dataclasses, "_create_fn", None)  # None in Python 3.13, which makes all methods at once
with late_modules.quick_imports():
    late = define()
assert getattr(dataclasses, "_create_fn", None) is create
before = late[0].__dict__["__eq__"]
expected, found = [str(each) for each in describe(*now)], [str(each) for each in describe(*late)]
print(expected == found, len(found), (late[0].__dict__["__eq__"] is before) == (create is None))
print([str(each) for each in describe(*late)] == found)
"""


def test_dataclasses_with_methods_that_are_compiled_late_are_like_others() -> None:
    completed = command_line.run_python(DATACLASSES)
    assert completed.stdout == "True 8 True\nTrue\n", completed.stderr


def test_special_names_are_not_there_and_load_nothing() -> None:
    user = import_late()
    with pytest.raises(AttributeError, match="module 'latecomer' is not imported yet, and has no '__version__'"):
        _ = user.latecomer.__version__
    assert not hasattr(user.double, "__wrapped__")
    assert "latecomer" not in sys.modules


def test_class_below_a_late_class_is_a_type_error() -> None:
    user = import_late()
    with pytest.raises(TypeError, match="positional arguments"):

        class Derived(user.Kind):
            pass
