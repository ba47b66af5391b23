"""The names that `import imagebeam` offers: light, complete, and an error that names the extra where one is missing."""

from __future__ import annotations

import ast

import pytest

import imagebeam
from tests import command_line

CALL = """
import sys
sys.modules[{missing!r}] = None  # its import fails as if it were not installed
import imagebeam
try:
    {call}
except imagebeam.ConfigError as e:
    print(e)
"""


def run_python(code: str) -> str:
    return command_line.run_python(code, exit_code=0).stdout.strip()


def test_every_public_name_is_there_and_listed() -> None:
    assert set(imagebeam.__all__) <= set(dir(imagebeam))
    assert set(imagebeam._MODULE_OF) < set(imagebeam.__all__)
    for name in imagebeam.__all__:
        assert getattr(imagebeam, name) is not None


def test_names_imported_late_are_those_that_a_type_checker_sees() -> None:
    tree = ast.parse((command_line.ROOT / "imagebeam" / "__init__.py").read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    assert {alias.name: node.module for node in imports for alias in node.names} == imagebeam._MODULE_OF


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'imagebeam' has no attribute 'konvert'"):
        _ = imagebeam.konvert  # type: ignore[attr-defined]


def test_names_of_the_converter_import_no_beam_before_the_call() -> None:
    names = "imagebeam.convert, imagebeam.plan, imagebeam.verify"
    assert run_python(f"import imagebeam, sys; {names}; print('apache_beam' in sys.modules)") == "False"


@pytest.mark.parametrize(
    ("missing", "call", "needs", "extra"),
    [
        ("apache_beam", "convert({'source': {'uri': 'in'}, 'output': {'uri': 'out'}})", "convert", "convert"),
        ("apache_beam", "plan({'source': {'uri': 'in'}})", "plan", "convert"),
        ("pydantic", "convert()", "imagebeam.convert", "convert"),
        ("numpy", "open_dataset('out')", "imagebeam.open_dataset", "tf"),
    ],
)
def test_missing_package_is_an_error_that_names_the_extra(missing: str, call: str, needs: str, extra: str) -> None:
    message = f"{missing} is not installed, {needs} needs it: pip install 'imagebeam[{extra}]'"
    assert run_python(CALL.format(missing=missing, call=f"imagebeam.{call}")) == message
