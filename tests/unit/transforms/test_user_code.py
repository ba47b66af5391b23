from __future__ import annotations

import importlib
import pathlib
import pickle
import subprocess
import sys
from typing import Any

import pytest

import imagebeam
from imagebeam import errors
from imagebeam.transforms import elements, user_code
from tests import command_line, error_texts, patience, user_functions

HERE = "tests.user_functions"


def write_module(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch, text: str, name: str = "own_code"
) -> pathlib.Path:
    """Makes a module of this process, which is forgotten at the end of the test."""
    path = folder / f"{name}.py"
    path.write_text(text)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, name, raising=False)
    return path


@pytest.mark.parametrize("path", ["faces", "faces:", ":crop", "my-package:crop", "faces:crop()", "faces:a:b", ""])
def test_path_of_another_form_is_refused(path: str) -> None:
    with pytest.raises(errors.ConfigError, match="module:name") as caught:
        user_code.find("image.function", path)
    assert caught.value.code == "user-code-form"


@pytest.mark.parametrize("path", ["no_such_module:crop", "tests.no_such:crop", f"{HERE}:no_such", f"{HERE}:Paint.no"])
def test_code_that_is_not_there_is_missing(path: str) -> None:
    with error_texts.raises("user-code-missing"):
        user_code.find("image.function", path)


FAILING = {
    "raises": "raise OSError('no weights')",
    "import": "import no_such_module_of_theirs",
    "syntax": "def crop(:",
}


@pytest.mark.parametrize("text", FAILING.values(), ids=FAILING)
def test_module_that_fails_is_an_error(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    write_module(tmp_path, monkeypatch, text)
    with error_texts.raises("user-code-failed"):
        user_code.find("image.function", "own_code:crop")


def test_class_that_cannot_be_made_is_an_error() -> None:
    for path, options in [("Paint", {"depth": 3}), ("FailsInSetup", {})]:
        with error_texts.raises("user-code-failed"):
            user_code.find("image.function", f"{HERE}:{path}", options).start()


def test_what_cannot_be_called_is_an_error() -> None:
    for name in ["NUMBER", "NotCallable"]:
        with pytest.raises(errors.ConfigError, match="cannot be called"):
            user_code.find("image.function", f"{HERE}:{name}").start()


def test_module_without_source_needs_a_version() -> None:
    for path in ["math:sqrt", "sys:exit"]:
        with error_texts.raises("user-code-without-source"):
            user_code.find("image.function", path)
        assert user_code.find("image.function", path, version="1").version == "1"


def test_other_source_in_a_process_is_refused(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_module(tmp_path, monkeypatch, "def crop(*_): return 1\n")
    codes = {version: user_code.find("label.function", "own_code:crop", version=version) for version in (None, "1")}
    path.write_text("def crop(*_): return 22\n")
    monkeypatch.delitem(sys.modules, "own_code")
    importlib.invalidate_caches()
    with error_texts.raises("user-code-differs"):
        pickle.loads(pickle.dumps(codes[None])).start()
    assert codes["1"].start()() == 22


def test_class_is_made_and_set_up_once_in_a_process() -> None:
    user_functions.made.clear()
    code = user_code.find("image.function", f"{HERE}:Paint", {"level": 3})
    started = [pickle.loads(pickle.dumps(code)).start() for _ in range(3)]
    assert user_functions.made == ["made", "set up"]
    assert {each.level for each in started} == {3}


def test_options_are_keyword_arguments_of_each_call() -> None:
    assert user_code.find("", f"{HERE}:add", {"b": [1, 2], "a": None}).start()(1, 2) == (
        (1, 2),
        {"a": None, "b": [1, 2]},
    )


def test_digest_is_that_of_the_source(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = []
    for text in ["def crop(): pass\n", "def crop(): pass\n", "def crop(): pass # other\n"]:
        write_module(tmp_path, monkeypatch, text)
        importlib.invalidate_caches()
        digests.append(user_code.find("", "own_code:crop").digest)
    assert digests[0] == digests[1] != digests[2]


def test_command_finds_modules_of_the_current_folder_behind_all_others(tmp_path: pathlib.Path) -> None:
    for name in ["own_code", "json"]:
        (tmp_path / f"{name}.py").write_text("def crop(): pass\n")
    code = "import sys; sys.path = [each for each in sys.path if each]; from imagebeam.transforms import user_code\n"
    code += "user_code.load('', 'own_code:crop'); user_code.load('', 'json:loads')"
    environment = {"PYTHONPATH": str(command_line.ROOT)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, timeout=patience.HANG_SEC)
    assert done.returncode == 0


def test_reference_has_the_named_columns_as_text() -> None:
    columns: Any = ([1.0], b"x\xff", 3, [b"a", b"b"], 0.5)
    ref = elements.ImageRef("a.jpg", "/a.jpg", label=("cat",), columns=columns)
    sources = ("image/object/area", *(f"columns/{name}" for name in "abcd"))
    found = user_code.reference_of(ref, sources)
    assert isinstance(found, imagebeam.Reference)
    assert found.columns == {"a": "x\udcff", "b": 3, "c": ["a", "b"], "d": 0.5}
    assert found[:4] == ("a.jpg", "/a.jpg", ("cat",), "")


def test_errors_and_values_are_told_in_a_line() -> None:
    def fail() -> None:
        raise KeyError("a\nb")

    with pytest.raises(KeyError) as caught:
        fail()
    line = fail.__code__.co_firstlineno + 1
    assert user_code.describe(caught.value) == f"KeyError: 'a\\nb', test_user_code.py line {line}"
    assert user_code.describe(MemoryError()) == "MemoryError"
    assert user_code.describe_value("x" * 100) == f"'{'x' * 79}... (str)"
