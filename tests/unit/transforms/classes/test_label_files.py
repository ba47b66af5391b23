from __future__ import annotations

import pathlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imagebeam import errors
from imagebeam.transforms.classes import label_names


def write(folder: pathlib.Path, data: str | bytes) -> str:
    (folder / "file.txt").write_bytes(data if isinstance(data, bytes) else data.encode())
    return str(folder / "file.txt")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param("n1 tench, Tinca\nn2 goldfish\n", {"n1": "tench, Tinca", "n2": "goldfish"}, id="space"),
        pytest.param("n1\ttench, Tinca\r\nn2\tgoldfish", {"n1": "tench, Tinca", "n2": "goldfish"}, id="tab-and-crlf"),
        pytest.param("great white\tthe shark\n", {"great white": "the shark"}, id="class-with-a-space"),
        pytest.param("n1 a\tb\nn2 c\n", {"n1": "a\tb", "n2": "c"}, id="tab-inside-of-a-text"),
        pytest.param("\ufeffn1  été \n", {"n1": "été"}, id="bom-and-spaces"),
    ],
)
def test_texts_of_classes_are_read(tmp_path: pathlib.Path, data: str, expected: dict[str, str]) -> None:
    assert label_names.read_texts(write(tmp_path, data)) == expected


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param("n1 a\nn2\n", r"line 2: 'n2' without a text; write CLASS TEXT", id="no-text"),
        pytest.param("n1\ta\nn2\t \n", r"line 2: 'n2' without a text", id="blank-text"),
        pytest.param("n1 a\n\nn2 b\n", r"line 2: '' without a text", id="empty-line"),
        pytest.param("\ta\n", r"line 1: '' without a text", id="no-class"),
        pytest.param("n1 a\nn1 b\n", r"line 2: 'n1' twice", id="twice"),
        pytest.param("", r"is empty; write CLASS TEXT on each line", id="empty"),
        pytest.param(b"n1 a\nn2 caf\xe9\n", r"line 2: b'caf\\xe9' is not UTF-8; save the file as UTF-8", id="latin-1"),
        pytest.param("n1 a\n".encode("utf-16"), r"looks like UTF-16 text; save it as UTF-8", id="utf-16"),
    ],
)
def test_texts_that_cannot_be_used_are_a_config_error(tmp_path: pathlib.Path, data: str | bytes, message: str) -> None:
    with pytest.raises(errors.ConfigError, match=rf"label\.texts '.*file\.txt',? {message}"):
        label_names.read_texts(write(tmp_path, data))


def test_vocabulary_of_a_column_is_text_spelled_as_its_cells(tmp_path: pathlib.Path) -> None:
    uri = write(tmp_path, b"10.0\n cat \ncaf\xe9\n")
    assert label_names.read_vocabulary(uri) == ("10.0", " cat ", "caf\udce9")  # a folder's name may be any bytes
    with pytest.raises(errors.ConfigError, match=r"label\.vocabulary '.*', line 3: b'caf\\xe9' is not UTF-8; save the"):
        label_names.read_vocabulary(uri, in_column=True)
    assert label_names.read_vocabulary(write(tmp_path, "10.0\n cat \n"), in_column=True) == ("10", "cat")
    assert label_names.read_texts(write(tmp_path, "10.0 ten\n"), in_column=True) == {"10": "ten"}


def test_nothing_named_is_nothing_read() -> None:
    assert label_names.read_texts(None) == {}
    assert label_names.read_vocabulary(None) is None
    assert label_names.read_lists({}) == ()


def test_lists_are_read_by_folder(tmp_path: pathlib.Path) -> None:
    uri = write(tmp_path, "n2\r\nn1 \nn2\n")
    assert label_names.read_lists({"val/": uri}) == (("val", ("n2", "n1", "n2")),)


@pytest.mark.parametrize(("data", "line"), [("", 1), ("a\n \nb\n", 2), ("a\nb\n\n", 3)])
def test_list_with_an_empty_line_is_a_config_error(tmp_path: pathlib.Path, data: str, line: int) -> None:
    with pytest.raises(errors.ConfigError, match=rf"label\.lists: val: '.*' has an empty line {line}; line n is"):
        label_names.read_lists({"val": write(tmp_path, data)})


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.lists(st.sampled_from([b"n1", b"n2", b" ", b"\t", b"\n", b"\r", b"\xff", b"\x00", b"\xe2\x80\xa8", b"x"])))
def test_any_bytes_are_read_or_a_config_error(tmp_path: pathlib.Path, parts: list[bytes]) -> None:
    uri = write(tmp_path, b"".join(parts))
    try:
        texts = label_names.read_texts(uri)
        assert all(name and text.strip() for name, text in texts.items())
    except errors.ConfigError as e:
        assert "file.txt" in str(e)
    try:
        ((_, labels),) = label_names.read_lists({"val": uri})
        assert all(labels)
    except errors.ConfigError as e:
        assert "file.txt" in str(e)
