"""Small files of text that a config names."""

from __future__ import annotations

import pathlib

import pytest

from imagebeam.transforms.output import output_folder
from imagebeam.transforms.sources import files, input_places
from tests import error_texts


def read(path: pathlib.Path) -> str:
    return input_places.read_text(str(path), 1, "source.x: 'f'", "give another", "no list")


def test_text_without_its_byte_order_mark_is_read_up_to_the_limit(tmp_path: pathlib.Path) -> None:
    (tmp_path / "f").write_bytes(b"\xef\xbb\xbf" + b"#" * ((1 << 20) - 3))
    assert read(tmp_path / "f") == "#" * ((1 << 20) - 3)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        pytest.param(None, "file-unreadable", id="missing"),
        pytest.param(b"\xff", "file-not-utf8", id="not-utf-8"),
        pytest.param(b"#" * ((1 << 20) + 1), "file-too-large", id="too-large"),
    ],
)
def test_file_that_is_no_small_text_is_refused(tmp_path: pathlib.Path, content: bytes | None, code: str) -> None:
    if content is not None:
        (tmp_path / "f").write_bytes(content)
    with error_texts.raises(code):
        read(tmp_path / "f")


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("names.txt", "gs://b/set/names.txt"),
        ("./lists/../names.txt", "gs://b/set/names.txt"),
        ("/lists/names.txt", "/lists/names.txt"),
        ("gs://c/names.txt", "gs://c/names.txt"),
    ],
)
def test_relative_address_is_below_the_folder(given: str, address: str) -> None:
    assert input_places.resolve(given, "gs://b/set") == address


def test_input_that_cannot_be_used_with_its_output_is_refused(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").mkdir()
    with error_texts.raises("input-two-globs"):
        input_places.find_input(f"{tmp_path}/*.jpg", ("*.png",), "/out")
    with error_texts.raises("input-unreadable"):
        input_places.find_input(f"{tmp_path}/none", files.EVERYTHING, "/out")
    (tmp_path / "link").symlink_to("out")
    with error_texts.raises("output-is-input"):
        input_places.find_input(f"{tmp_path}/link", files.EVERYTHING, f"{tmp_path}/out")
    assert input_places.leave_out(f"{tmp_path}/link", str(tmp_path)) == f"{tmp_path}/out"
    (tmp_path / "out/1.jpg").touch()
    with error_texts.raises("output-in-input"):
        input_places.leave_out(f"{tmp_path}/out", str(tmp_path))

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(output_folder.OutputFolder, "find_files_of_others", refuse)
    with error_texts.raises("output-unreadable"):
        input_places.leave_out(f"{tmp_path}/out", str(tmp_path))
