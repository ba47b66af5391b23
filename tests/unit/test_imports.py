"""Imports go one way: beam -> pipelines -> transforms -> imagebeam, and in one order in a package, without a circle."""

from __future__ import annotations

import ast
import functools
import pathlib
from collections.abc import Iterator

import pytest

import imagebeam
from tests import command_line

ROOT = command_line.ROOT
FOLDERS = ("imagebeam", "transforms", "pipelines", "beam", "configs")
ON_A_FRAMEWORK = {  # imported by the calls that need them
    "imagebeam.reader.grain_batches",
    "imagebeam.reader.torch_feeds",
    "imagebeam.reader.tf_decode",
    "imagebeam.reader.tf_pipeline",
}
ROOMS: dict[str, dict[str, set[str]]] = {  # the folders of two packages, and the folders beside it that each may import
    "pipelines": {
        "config": set(),
        "beam": set(),
        "recognize": {"config"},
        "runs": {"beam", "config"},
        "messages": {"beam", "runs"},
    },
    "transforms": {
        "packed": set(),
        "classes": set(),
        "snapshots": set(),
        "output": {"classes", "packed"},
        "images": set(),
        "sources": {"classes", "images", "output", "packed"},
        "formats": {"classes", "images", "output", "packed", "sources"},
        "shard": {"classes", "images", "packed", "snapshots"},
        "html_report": {"images", "shard"},
        "duplicates": {"images", "output", "packed", "shard"},
        "columns": {"images", "output", "publish", "shard"},
        "updates": {"output", "shard", "snapshots"},
        "plan": {"classes", "output", "packed", "shard", "snapshots", "sources", "updates"},
        "publish": {"output", "shard"},
        "commit": {
            *("classes", "html_report", "images", "output", "plan"),
            *("publish", "shard", "snapshots", "updates"),
        },
        "indexing": {"formats", "images", "publish", "shard"},
    },
}
WITHOUT_BEAM = (*("classes", "formats", "images", "output"), *("packed", "shard", "snapshots", "sources"))
HEAVY = {
    "apache_beam",
    "imagebeam.beam",
    "imagebeam.pipelines",
    "imagebeam.transforms",
    "tensorflow",
    "PIL",
    "pydantic",
}


def name_of(path: pathlib.Path) -> str:
    """The dotted name under which a file of the repository is imported."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts if parts[0] == "imagebeam" else ("imagebeam", *parts)).removesuffix(".__init__")


PATHS = {
    name_of(path): path
    for folder in FOLDERS
    for path in sorted((ROOT / folder).rglob("*.py"))
    if folder != "imagebeam" or path.relative_to(ROOT).parts[1] not in FOLDERS  # the links to the others
}


def modules_of_the_trainer() -> list[str]:
    """All modules that belong to the reader's side."""
    apart = (
        "imagebeam.transforms",
        "imagebeam.pipelines",
        "imagebeam.beam",
        "imagebeam.configs",
        "imagebeam.__main__",
        "imagebeam.sources",
    )
    return [name for name in PATHS if not name.startswith(apart)]


def import_afresh(*modules: str) -> set[str]:
    """The modules that a new process holds after these imports: top-level packages, and all of imagebeam."""
    code = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    names = command_line.run_python(code, exit_code=0).stdout.split()
    return {name.partition(".")[0] for name in names} | {name for name in names if name.startswith("imagebeam")}


def imports_of(source: str, at_import_only: bool = False) -> Iterator[tuple[str, int]]:
    """Each module that a source imports, as a dotted name, and the line.

    Args:
        source: Python.
        at_import_only: whether imports inside functions and for the type checker are left out.
    """
    for node, is_late in import_statements(source):
        if is_late and at_import_only:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif not node.level and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in PATHS or node.module == "imagebeam" else node.module, node.lineno


@functools.cache  # for several tests
def import_statements(source: str) -> list[tuple[ast.Import | ast.ImportFrom, bool]]:
    """The statements that import something, each with whether it is in a function or for the type checker."""
    found = []
    nodes: list[tuple[ast.AST, bool]] = [(ast.parse(source), False)]
    for node, is_late in nodes:  # which grows
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found.append((node, is_late))
        elif isinstance(node, (ast.Module, ast.stmt, ast.ExceptHandler, ast.match_case)):
            is_checked = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            is_late = is_late or is_checked or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            nodes += ((child, is_late) for child in ast.iter_child_nodes(node))
    return found


def graph(at_import_only: bool = False) -> dict[str, set[str]]:
    """For each module the modules of ours that it imports."""
    return {
        name: {found for found, _ in imports_of(path.read_text(), at_import_only) if found in PATHS and found != name}
        for name, path in PATHS.items()
    }


def circles_of(imports: dict[str, set[str]]) -> list[list[str]]:
    """The sets of modules that import each other, directly or by others."""
    reachable = {name: set(targets) for name, targets in imports.items()}
    for middle in imports:
        for targets in reachable.values():
            if middle in targets:
                targets |= reachable[middle]
    circles = {frozenset({n for n in reachable[name] if name in reachable.get(n, ())}) for name in imports}
    return sorted(sorted(circle) for circle in circles if circle)


def test_import_of_imagebeam_brings_nothing_heavy() -> None:
    loaded = import_afresh("imagebeam")
    assert "imagebeam" in loaded
    assert loaded & HEAVY == set()


def test_import_of_every_module_of_the_trainer_brings_nothing_heavy() -> None:
    modules = [name for name in modules_of_the_trainer() if name not in ON_A_FRAMEWORK]
    assert {"imagebeam", "imagebeam.records", "imagebeam.verify_shards"} <= set(modules)
    assert import_afresh(*modules) & HEAVY == set()


def test_import_of_what_a_writer_process_needs_brings_no_beam() -> None:
    modules = [name for name in PATHS if room_of(name) in {f"transforms.{room}" for room in WITHOUT_BEAM}]
    assert "imagebeam.transforms.shard.writer_processes" in modules
    modules.append("imagebeam.transforms.commit.dataset_files")  # a writer process makes the page
    assert import_afresh(*modules) & {"apache_beam", "imagebeam.pipelines", "pydantic", "tensorflow"} == set()


def test_no_module_imports_one_of_a_package_above_it() -> None:
    wrong, trainer = [], modules_of_the_trainer()
    for module, path in PATHS.items():
        above = ["imagebeam.pipelines", *(["apache_beam", "imagebeam.transforms"] if module in trainer else [])]
        if module.startswith(("imagebeam.pipelines", "imagebeam.beam", "imagebeam.__main__")):
            above = []
        above += [] if module.startswith("imagebeam.beam") else ["imagebeam.beam"]
        above += ["beam", "pipelines", "transforms", "configs"]  # only under imagebeam: a user's project has such names
        for name, line in imports_of(path.read_text(), at_import_only=module == "imagebeam"):
            if f"{name}.".startswith(tuple(f"{root}." for root in above)):
                wrong.append(f"{path}:{line} imports {name}")
    assert wrong == []


def room_of(module: str) -> str:
    """The folder of a package that a module is in, as "pipelines.runs"; "" for the modules beside the folders."""
    _, package, room, *_ = (*module.split("."), "", "")
    return f"{package}.{room}" if room in ROOMS.get(package, ()) else ""


@pytest.mark.parametrize("package", ROOMS)
def test_rooms_are_the_folders_of_a_package_and_import_only_rooms_below_them(package: str) -> None:
    rooms = ROOMS[package]
    assert {path.parent.name for path in (ROOT / package).glob("*/*.py")} == set(rooms)
    allowed = {f"{package}.{room}": {f"{package}.{each}" for each in (room, *below)} for room, below in rooms.items()}
    wrong = [
        f"{name} imports {target}"
        for name, targets in graph().items()
        for target in targets
        if room_of(name) in allowed and room_of(target) in set(allowed) - allowed[room_of(name)]
    ]
    assert wrong == []


def test_rooms_of_the_pipelines_import_no_command() -> None:
    wrong = [
        f"{name} imports {target}"
        for name, targets in graph().items()
        for target in targets
        if room_of(name).startswith("pipelines.") and target.startswith("imagebeam.pipelines.") and not room_of(target)
    ]
    assert wrong == []


def test_rooms_and_the_modules_beside_them_import_each_other_in_no_circle() -> None:
    # the modules at the top of transforms/ are both: steps, made of the rooms, and the values that all of them share
    inside = {name: targets for name, targets in graph().items() if name.startswith("imagebeam.transforms.")}
    whole: dict[str, set[str]] = {room_of(name) or name: set() for name in inside}
    for name, targets in inside.items():
        node = room_of(name) or name
        whole[node] |= {room_of(each) or each for each in targets if each in inside} - {node}
    assert circles_of(whole) == []


def test_rooms_name_nothing_themselves_so_that_an_import_of_one_module_brings_no_other() -> None:
    paths = {f"{package}.{room}": PATHS[f"imagebeam.{package}.{room}"] for package in ROOMS for room in ROOMS[package]}
    bodies = {room: ast.parse(path.read_text()).body for room, path in paths.items()}
    assert {room: len(body) for room, body in bodies.items()} == dict.fromkeys(paths, 1)  # the docstring


def test_no_two_modules_have_one_name() -> None:
    names = [path.stem for path in PATHS.values() if path.stem != "__init__"]
    assert sorted(names) == sorted(set(names))


def test_no_modules_import_each_other_even_in_functions_or_for_types() -> None:
    assert circles_of(graph()) == []


def test_storages_and_the_shard_cache_import_late_only_the_storage_of_a_scheme() -> None:
    rooms = ("imagebeam.storage", "imagebeam.catalog", "imagebeam.verify_shards", "imagebeam.records")
    rooms += ("imagebeam.reader.shard_cache", "imagebeam.reader.dataset_source")
    at_import, at_any_time = graph(at_import_only=True), graph()
    lazily = {name: at_any_time[name] - at_import[name] for name in PATHS if name.startswith(rooms)}
    by_scheme = {f"imagebeam.storage.{name}" for name in ("gcs", "fsspec_files", "http", "s3", "webhdfs")}
    assert {name: found for name, found in lazily.items() if found} == {"imagebeam.storage": by_scheme}


def test_circles_are_found() -> None:
    assert circles_of({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]


def test_imports_are_found_anywhere_in_a_source() -> None:
    source = "import a.b, c as d\nfrom e.f import g\nfrom . import h\ndef i():\n    if i:\n        import j\n"
    assert sorted(imports_of(source)) == [("a.b", 1), ("c", 1), ("e.f", 2), ("j", 6)]
    assert sorted(imports_of(source, at_import_only=True)) == [("a.b", 1), ("c", 1), ("e.f", 2)]


# --- public names ----------------------------------------------------------------------------------------------------


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


def test_import_of_the_beam_library_without_beam_names_the_extra() -> None:
    code = "import sys\nsys.modules['apache_beam'] = None\nimport imagebeam\n"
    code += "try:\n    import imagebeam.beam\nexcept imagebeam.ConfigError as e:\n    print(e)"
    message = "apache_beam is not installed, imagebeam.beam needs it: pip install 'imagebeam[convert]'"
    assert run_python(code) == message


@pytest.mark.parametrize(
    ("missing", "call", "needs", "extra"),
    [
        ("apache_beam", "convert({'source': {'uri': 'in'}, 'output': {'uri': 'out'}})", "convert", "convert"),
        ("apache_beam", "plan({'source': {'uri': 'in'}})", "plan", "convert"),
        ("pydantic", "convert()", "imagebeam.convert", "convert"),
        ("numpy", "open_dataset('out')", "imagebeam.open_dataset", "numpy"),
    ],
)
def test_missing_package_is_an_error_that_names_the_extra(missing: str, call: str, needs: str, extra: str) -> None:
    message = f"{missing} is not installed, {needs} needs it: pip install 'imagebeam[{extra}]'"
    assert run_python(CALL.format(missing=missing, call=f"imagebeam.{call}")) == message
