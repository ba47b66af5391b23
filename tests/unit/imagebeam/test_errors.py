from __future__ import annotations

import json
import pickle
import runpy
import shlex
import subprocess

import hypothesis
import hypothesis.strategies as st
import pytest
import setuptools

from imagebeam import errors, plural
from tests import command_line, error_texts

LOST = errors.LOST_CODE


@pytest.mark.parametrize("kind", [errors.ImagebeamError, errors.ConfigError, errors.DriftError, errors.DuplicatesError])
def test_error_of_another_process_keeps_its_class_code_and_text(kind: type[errors.ImagebeamError]) -> None:
    error = errors.from_fields(json.loads(json.dumps(errors.to_fields(kind("output-busy", "the text \udcff")))))
    assert (type(error), error.code, str(error)) == (kind, "output-busy", "the text \udcff")


@pytest.mark.parametrize(
    ("text", "error", "expected"),
    [
        ("x [while running 'A/B']", errors.CatalogError("no-x", "x"), errors.CatalogError("no-x", "x")),
        ("imagebeam.errors.BusyError: x: y [while running 'A-ptr-1']", RuntimeError(), errors.BusyError(LOST, "x: y")),
        ("imagebeam.errors.BusyError: x [while running 'A'-ptr-1]", RuntimeError(), errors.BusyError(LOST, "x")),
        ("imagebeam.errors.OtherError: x", RuntimeError(), None),
        ("imagebeam.errors.RecordError: x", RuntimeError(), None),
        ("no key 'a' [while running 'A']", KeyError("a"), None),
    ],
)
def test_error_of_a_step_keeps_its_kind(text: str, error: Exception, expected: errors.ImagebeamError | None) -> None:
    found = errors.find_in(text, error)
    assert (type(found), str(found)) == (type(expected), str(expected))
    assert getattr(found, "code", None) == getattr(expected, "code", None)


def test_record_error_names_its_offset() -> None:
    error = errors.RecordError(12, "the record is cut short")
    assert (str(error), error.offset) == ("the record is cut short at byte offset 12", 12)


def test_error_keeps_its_code_when_it_is_pickled_or_extended() -> None:
    error = errors.BusyError("output-busy", "the output is busy")
    assert str(error) == "the output is busy"
    for other in (pickle.loads(pickle.dumps(error)), error.extended("")):
        assert (type(other), other.code, str(other)) == (errors.BusyError, "output-busy", "the output is busy")
    assert str(error.extended("; try again")) == "the output is busy; try again"


def test_error_of_a_missing_package_names_the_extra_that_brings_it() -> None:
    for module, extra in [
        ("tensorflow", "tf"),
        ("numpy", "numpy"),
        ("jax.numpy", "jax"),
        ("grain", "grain"),
        ("google.cloud.storage", "gcs"),
        ("requests.adapters", "hdfs"),
        ("fsspec", "hdfs"),
        ("apache_beam.options.pipeline_options", "convert"),
        ("PIL.Image", "convert"),
        ("pydantic_core", "convert"),
    ]:
        with error_texts.raises("package-missing") as caught, errors.imports_for("as_x"):
            raise ModuleNotFoundError(name=module)
        assert str(caught.value).endswith(f"'imagebeam[{extra}]'")
    chosen = errors.missing_package(ModuleNotFoundError(name="PIL"), "as_x", "grain", "give decode=False")
    error_texts.check(chosen, "package-missing")


def test_every_extra_that_is_named_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setuptools, "setup", lambda **_: None)
    extras = runpy.run_path(str(command_line.ROOT / "setup.py"))["EXTRAS"]
    requirements = [each for each in errors._BY_SCHEME.values() if "imagebeam" in each]
    in_schemes = [each.removeprefix("'imagebeam[").removesuffix("]'") for each in requirements]
    named = {name for each in (*errors._EXTRAS.values(), *in_schemes) for name in each.split(",")}
    assert len(named) == 11
    assert named < set(extras)


# --- numbers in texts ------------------------------------------------------------------------------------------------


def test_counts_have_the_right_ending_and_long_lists_end_in_the_number_of_further_names() -> None:
    given = {"0 shards": (0, "shard"), "1 shard": (1, "shard"), "1,024 shards": (1024, "shard")}
    for text, (number, noun) in (given | {"1 class": (1, "class"), "2 classes": (2, "class")}).items():
        assert plural.count(number, noun) == text
    texts = [plural.name_some(names, 2) for names in ([], ["a"], ["a", "b"], ["a", "b", "c"], ["x"] * 2002)]
    assert texts == ["", "a", "a, b", "a, b and 1 more", "x, x and 2,000 more"]
    texts = [plural.format_bytes(num_bytes) for num_bytes in (0, 999, 1000, 107_100_000, 2e15)]
    assert texts == ["0 B", "999 B", "1.0 kB", "107.1 MB", "2,000.0 TB"]


def test_word_with_single_quotes_is_in_double_quotes_where_that_is_safe() -> None:
    for word, quoted in [
        ("plain/path.csv", "plain/path.csv"),
        (r"source.masks.image=images/(.*)\.jpg", r"'source.masks.image=images/(.*)\.jpg'"),
        ("source.manifest.image='{id}.*'", "\"source.manifest.image='{id}.*'\""),
        (r"label={pattern: '(?P<label>.+)_\d+\.\w+'}", r'''"label={pattern: '(?P<label>.+)_\d+\.\w+'}"'''),
        ("it's $5", """'it'"'"'s $5'"""),
        ("it's!", """'it'"'"'s!'"""),
        ("", "''"),
    ]:
        assert plural.shell_word(word) == quoted


@hypothesis.given(st.lists(st.text(alphabet=st.sampled_from("a '\"\\$`!*?\n{}<>é"), max_size=8), max_size=4))
def test_words_are_read_back(words: list[str]) -> None:
    assert shlex.split(plural.shell_command(words)) == words


def test_shell_reads_words_back() -> None:
    words = ["it's", r"'\d\.\w\'", "a'\\", "'$HOME'", "`'", 'a"\'"', "'\\\\'", "'\n", "'{a: b}'"]
    command = f"printf '%s\\0' {plural.shell_command(words)}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[:-1] == words
