from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from imagebeam.transforms import elements, kept_features
from imagebeam.transforms.elements import ImageRef, Reason, Reject
from imagebeam.transforms.output import output_folder
from imagebeam.transforms.sources import files, image_source, input_places
from tests import error_texts

REF = ImageRef("a.jpg", "/in/a.jpg", 5, label="cat")
REJECT = Reject("b.jpg", "/in/b.jpg", "list", Reason.NOT_FOUND, "there is no file")


def test_listing_holds_all_that_was_added_and_the_builder_is_empty_after_it() -> None:
    builder = image_source.ListingBuilder()
    survey = kept_features.FeatureSurveyor().survey
    builder.add(REF)
    builder.add(REJECT)
    builder.skipped["hidden"] += 2
    builder.problems.append("folder '/in/c' cannot be listed")
    builder.features = survey
    found = builder.take()
    assert list(elements.unpack_refs(found.packed_refs)) == [REF]
    assert found[1:6] == (1, (REJECT,), {"hidden": 2}, ("folder '/in/c' cannot be listed",), survey)
    assert builder.take() == image_source.ListingBuilder().take()
    assert builder.take()[1:5] == (0, (), {}, ())
    assert found.skipped == {"hidden": 2}  # later counts do not change it


@pytest.mark.parametrize("num_rejects", [0, 1, 3])
def test_builder_is_full_of_references_and_rejects_together(monkeypatch: pytest.MonkeyPatch, num_rejects: int) -> None:
    monkeypatch.setattr(image_source, "MAX_REFS", 3)
    builder = image_source.ListingBuilder()
    for number in range(3):
        assert not builder.is_full
        builder.add(REJECT if number < num_rejects else REF)
    assert builder.is_full
    builder.take()
    assert not builder.is_full


def test_parts_are_listed_in_order_up_to_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_source, "MAX_REFS", 3)

    def fail() -> Iterator[elements.ImageRef | Reject]:
        yield REF._replace(key="last")
        raise OSError(5, "Input/output error")

    refs = [REF._replace(key=str(number)) for number in range(5)]
    found = list(image_source.list_parts([(iter([*refs[:2], REJECT, *refs[2:]]), "a"), (fail(), "b"), (iter(()), "c")]))
    assert [elements.unpack_refs(each.packed_refs) for each in found] == [
        refs[:2], refs[2:], [REF._replace(key="last")],
    ]  # fmt: skip
    assert [len(each.rejects) for each in found] == [1, 0, 0]
    assert [each.problems for each in found] == [
        (), (), ("b cannot be read (Input/output error); run the command again",),
    ]  # fmt: skip


# --- addresses of inputs ---------------------------------------------------------------------------------------------


def read(path: pathlib.Path) -> str:
    return input_places.read_text(str(path), 1, "source.x: 'f'", "give another", "no list")


def test_text_without_its_byte_order_mark_is_read_up_to_the_limit(tmp_path: pathlib.Path) -> None:
    (tmp_path / "f").write_bytes(b"\xef\xbb\xbf" + b"#" * ((1 << 20) - 3))
    assert read(tmp_path / "f") == "#" * ((1 << 20) - 3)


def test_input_that_is_unfit_for_output_is_refused(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
