"""Arrows go one way: pipelines -> transforms -> imagebeam. A trainer imports imagebeam and nothing heavy with it."""

from __future__ import annotations

import ast
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests import patience

ROOT = pathlib.Path(__file__).parents[2]
IN_TENSORFLOW = {  # imported by the calls that need them
    "imagebeam.reader.gaps",
    "imagebeam.reader.lists",
    "imagebeam.reader.pixels",
    "imagebeam.reader.tf_input",
}
HEAVY = {"apache_beam", "pipelines", "transforms", "tensorflow", "PIL", "pydantic"}


def modules_of(package: str) -> list[str]:
    """The dotted names of all modules of a package."""
    paths = (path.relative_to(ROOT).with_suffix("") for path in sorted((ROOT / package).rglob("*.py")))
    return [".".join(path.parts).removesuffix(".__init__") for path in paths]


def import_afresh(*modules: str) -> set[str]:
    """The top-level packages that a new process holds after these imports."""
    code = f"import sys, {', '.join(modules)}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=patience.HANG_SEC, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def imports_of(path: pathlib.Path) -> Iterator[tuple[str, int]]:
    """Each package that a file imports, wherever in it, and the line."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from ((alias.name.partition(".")[0], node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield (node.module or "").partition(".")[0], node.lineno


def test_import_of_imagebeam_brings_nothing_heavy() -> None:
    loaded = import_afresh("imagebeam")
    assert "imagebeam" in loaded
    assert loaded & HEAVY == set()


def test_import_of_every_module_of_imagebeam_brings_nothing_heavy() -> None:
    modules = [name for name in modules_of("imagebeam") if name not in IN_TENSORFLOW]
    assert {"imagebeam", "imagebeam.records", "imagebeam.verify"} <= set(modules)
    assert import_afresh(*modules) & HEAVY == set()


@pytest.mark.parametrize("module", ["transforms.processes", "transforms.write_shard"])
def test_import_of_what_a_writer_process_needs_brings_no_beam(module: str) -> None:
    assert import_afresh(module) & {"apache_beam", "pipelines", "pydantic", "tensorflow"} == set()


@pytest.mark.parametrize(
    ("package", "forbidden"),
    [
        ("imagebeam", {"apache_beam", "pipelines", "transforms"}),
        ("transforms", {"pipelines"}),
    ],
    ids=["imagebeam", "transforms"],
)
def test_no_file_of_a_package_imports_what_lies_above_it(package: str, forbidden: set[str]) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    found = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in files
        for name, line in imports_of(path)
        if name in forbidden
    ]
    assert files
    assert found == []


def test_imports_are_seen_wherever_they_stand(tmp_path: pathlib.Path) -> None:
    source = "import a.b, c as d\nfrom e.f import g\nfrom . import h\ndef i():\n    if i:\n        import j\n"
    (tmp_path / "m.py").write_text(source)
    assert sorted(imports_of(tmp_path / "m.py")) == [("a", 1), ("c", 1), ("e", 2), ("j", 6)]
