"""Bare pixels that are written in runs make the same shard as those that are read, checked and encoded one by one."""

from __future__ import annotations

import dataclasses
import gzip
import itertools
import os
import pathlib
import random
from collections.abc import Callable
from typing import Any

import pytest

from imagebeam import features
from imagebeam.transforms import elements, user_code
from imagebeam.transforms.elements import ImageRef, Reason
from imagebeam.transforms.images import checked_image, image_functions, prepare, resample, side_by_side
from imagebeam.transforms.packed import packed_file
from imagebeam.transforms.shard import encode, image_hashes, kept_images, read_ahead, shard_writer, writer_processes
from tests import case_tables
from tests.unit.transforms import small_dataset

if os.environ.get("IMAGEBEAM_CI") != "1":  # there it must be built
    pytest.importorskip("imagebeam._writer", reason="was not built: docs/reader-speed.md says what it needs")

SHAPE = (3, 4, 1)
POLICY = prepare.ImagePolicy(raw_shape=SHAPE)
SIZE, NUM_IMAGES, HEADER = 12, 400, 5  # bytes of an image, images of a file, bytes before them
VERSION = 10**18  # of a file that nobody has changed
KEEP_IF = user_code.UserCode("image.keep_if", "operator:is_not", version="1")  # pixels are not their reference: True
NO_NAMES: dict[str, str | None] = dict.fromkeys(("image/filename", "image/key"))


@dataclasses.dataclass(frozen=True)
class Kind:
    """What is known of images besides their pixels."""

    recipe: encode.ExampleRecipe
    label: Callable[[int], elements.Label]  # of an image, by its number
    columns: Callable[[int], tuple[Any, ...]] = lambda number: ()


def _recipe(label_kind: str | None, names: bool = False, **options: Any) -> encode.ExampleRecipe:
    columns = options.pop("columns", {})
    resolved = features.resolve_features({} if names else NO_NAMES, label_kind, columns, **options)
    return encode.ExampleRecipe(resolved, {"cat": 0, "dog": 1}, tuple(f"columns/{name}" for name in columns))


RECIPE = _recipe("class")
KINDS = {
    "class": Kind(RECIPE, lambda number: ("cat", "dog")[number % 2]),
    "class-and-names": Kind(_recipe("class", names=True), lambda number: ("cat", "dog")[number % 2]),
    "classes": Kind(_recipe("class", has_many_labels=True), lambda number: ((), ("cat",), ("dog", "cat"))[number % 3]),
    "number": Kind(_recipe("int64"), lambda number: number % 10),
    "number-of-its-own": Kind(_recipe("int64"), lambda number: 10**12 + number),
    "weight": Kind(_recipe("float"), lambda number: (0.0, -0.0, 0.5)[number % 3]),
    "none": Kind(_recipe(None), lambda number: None),
    "columns": Kind(
        _recipe("int64", columns={"zero": ("float", False), "name": ("bytes", False), "many": ("int64", True)}),
        lambda number: 7,
        lambda number: ((0.0, -0.0)[number % 2], b"n" * (number % 5), (number,) * (number % 3)),
    ),
}


def make_refs(root: pathlib.Path, kind: Kind = KINDS["class"], num_files: int = 2) -> list[ImageRef]:
    """Returns the references of new files of images, shuffled."""
    root.mkdir()
    found = []
    for file in range(num_files):
        path = root / f"images\udcff-{file}"
        path.write_bytes(random.Random(file).randbytes(HEADER + SIZE * NUM_IMAGES))
        os.utime(path, ns=(VERSION, VERSION))
        for number in range(NUM_IMAGES):
            ref = ImageRef(f"{file}/{number:05d}", str(path), SIZE, VERSION, HEADER + number * SIZE, SIZE, number)
            found.append(ref._replace(label=kind.label(number), columns=kind.columns(number), fingerprint=b"facts"))
    return random.Random(0).sample(found, len(found))


def write(folder: pathlib.Path, refs: list[ImageRef], run_size: int = 30, **fields: Any) -> Any:
    """Returns the shard of the references and all its files."""
    known = {"recipe": RECIPE, "policy": POLICY} | fields
    known["recipe"] = dataclasses.replace(known["recipe"])  # nothing is cached
    return small_dataset.write_shard(folder, refs, run_size=run_size, **known)


@pytest.fixture(autouse=True)
def warm_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """No read is slow."""
    monkeypatch.setattr(read_ahead._Kernel, "note_read", lambda *_: None)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Writes a shard image by image."""

    def write_alone(*arguments: Any, **fields: Any) -> Any:
        with monkeypatch.context() as patched:
            patched.setattr(kept_images, "find_pixels", lambda *_: None)
            return write(*arguments, **fields)

    return write_alone


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of images that were written together."""
    counts: list[int] = []
    put_run = kept_images.KeptPixels.put_run

    def note(self: kept_images.KeptPixels, refs: elements.RefTable) -> bool:
        is_written = put_run(self, refs)
        counts.extend([len(refs.key)] * is_written)
        return is_written

    monkeypatch.setattr(kept_images.KeptPixels, "put_run", note)
    return counts


def test_shard_is_the_one_that_is_written_image_by_image(
    tmp_path: pathlib.Path, taken: list[int], alone: Callable[..., Any]
) -> None:
    for number, kind in enumerate(KINDS):
        refs = make_refs(tmp_path / kind, KINDS[kind])
        for compression, keeps_state in (("none", bool(number % 2)), ("gzip", not number % 2)):
            taken.clear()
            fields = {"recipe": KINDS[kind].recipe, "compression": compression, "keeps_state": keeps_state}
            found = write(tmp_path / f"{kind}-{compression}", refs, **fields)
            assert sum(taken) == found[0].shard.records == 2 * NUM_IMAGES
            assert alone(tmp_path / f"{kind}-{compression}-alone", refs, **fields) == found
            assert sum(taken) == 2 * NUM_IMAGES


def test_shard_does_not_depend_on_runs(tmp_path: pathlib.Path, taken: list[int], alone: Callable[..., Any]) -> None:
    refs = make_refs(tmp_path / "in")
    expected = alone(tmp_path / "alone", refs)
    for run_size in (1, 7, 256, 257, 1000):
        taken.clear()
        assert write(tmp_path / f"runs-of-{run_size}", refs, run_size) == expected
        assert (sum(taken), max(taken)) == (len(refs), min(run_size, 256))


def _cut_short(path: pathlib.Path) -> None:
    os.truncate(path, HEADER + SIZE * 100 + 1)
    os.utime(path, ns=(VERSION, VERSION))


def _replace(path: pathlib.Path, make: Callable[[pathlib.Path], None]) -> None:
    path.unlink()
    make(path)


DAMAGES: dict[str, tuple[Callable[[pathlib.Path], None], Reason]] = {
    "changed": (lambda path: os.utime(path, (0, 0)), Reason.CHANGED),
    "cut-short": (_cut_short, Reason.TRUNCATED),
    "empty": (lambda path: os.truncate(path, 0), Reason.CHANGED),
    "gone": (lambda path: path.unlink(), Reason.NOT_FOUND),
    "folder": (lambda path: _replace(path, pathlib.Path.mkdir), Reason.CHANGED),
    "pipe": (lambda path: _replace(path, lambda path: os.mkfifo(path)), Reason.CHANGED),
}


def test_damaged_file_gives_the_records_and_rejects_that_single_images_give(
    tmp_path: pathlib.Path, alone: Callable[..., Any], taken: list[int]
) -> None:
    for damage, num_before in itertools.product(DAMAGES, (0, 60)):
        folder, (harm, reason) = case_tables.new_folder(tmp_path), DAMAGES[damage]
        refs = make_refs(folder / "in")
        others = [ref for ref in refs if ref.uri != refs[0].uri]
        refs = others[:num_before] + [ref for ref in refs if ref not in others[:num_before]]
        harm(pathlib.Path(refs[num_before].uri))
        taken.clear()
        found = write(folder / "runs", refs)
        assert found[0].rejected == {reason.value: NUM_IMAGES - 100 if damage == "cut-short" else NUM_IMAGES}
        assert sum(taken) == num_before
        assert alone(folder / "alone", refs) == found


OTHERS: dict[str, dict[str, Any]] = {
    "inside": {"inside": (0, SIZE)},
    "expected": {"expected": SHAPE[:2]},
    "other-size": {"expected": (4, 4)},
    "content": {"content": bytes(8)},
    "blocks": {"blocks": elements.SnappyBlocks(100, 0)},
    "mask": {"mask": elements.Mask("mask.png")},
    "extra-image": {"extra_images": (elements.ExtraImage("after.png"),)},
    "length": {"length": SIZE - 1},
    "whole-file": {"offset": 0, "length": -1},
    "negative-offset": {"offset": -1},
    "zip": {"uri": "images.zip/!/images"},
    "remote": {"uri": "gs://bucket/images"},
    "sha256": {"sha256": "0" * 64},
}


def test_run_with_another_reference_and_all_after_it_are_left(
    tmp_path: pathlib.Path, taken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = make_refs(tmp_path / "in", num_files=1)[:90]
    left: list[tuple[ImageRef, int]] = []

    def stop(refs: Any, *arguments: Any) -> tuple[()]:
        left.extend((ref, arguments[-1]) for ref in refs)
        return ()

    monkeypatch.setattr(shard_writer.read_images, "read_or_take", stop)
    for change, fields in OTHERS.items():
        refs = [*plain[:40], plain[40]._replace(**fields), *plain[41:]]
        taken.clear()
        left.clear()
        written, _ = write(tmp_path / change, refs)
        assert left == [(ref, 30) for ref in refs[30:]]
        assert (taken, written.shard.records, written.statistics["formats"]) == ([30], 30, {"raw": 30})


def test_other_reference_gives_what_single_images_give(tmp_path: pathlib.Path, alone: Callable[..., Any]) -> None:
    plain = make_refs(tmp_path / "in")[:90]
    for change, fields in OTHERS.items():
        if change in ("remote", "inside", "blocks"):
            continue
        other = plain[40]._replace(**fields)
        if change in ("mask", "extra-image"):
            other = other._replace(uri="nowhere")  # else its record would need features for them
        refs = [*plain[:40], other, *plain[41:]]
        found = write(tmp_path / change, refs, keeps_state=True)
        assert found == alone(tmp_path / f"{change}-alone", refs, keeps_state=True)


def test_packed_file_gives_the_records_of_the_plain_one(tmp_path: pathlib.Path, taken: list[int]) -> None:
    refs = make_refs(tmp_path / "in", num_files=1)
    plain = pathlib.Path(refs[0].uri)
    packed = plain.with_suffix(packed_file.GZIP_SUFFIX)
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    found = write(tmp_path / "runs", refs)
    taken.clear()
    assert write(tmp_path / "packed", [ref._replace(uri=str(packed), version=0) for ref in refs]) == found
    assert taken == []


def test_slow_reads_leave_the_rest_to_reading_ahead(
    tmp_path: pathlib.Path, taken: list[int], alone: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    refs, noted = make_refs(tmp_path / "in"), list[int]()

    def note(self: Any, seconds: float, num_bytes: int) -> None:
        noted.append(num_bytes)
        self.to_announce = read_ahead._ANNOUNCED * (len(noted) == 100)

    monkeypatch.setattr(read_ahead._Kernel, "note_read", note)
    found = write(tmp_path / "runs", refs)
    assert (sum(taken), noted[:100]) == (90, [SIZE] * 100)
    assert alone(tmp_path / "alone", refs) == found


def test_progress_never_goes_back(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[int] = []
    monkeypatch.setattr(writer_processes, "note_progress", noted.append)
    refs = make_refs(tmp_path / "in")
    refs[100] = refs[100]._replace(length=SIZE - 1)
    write(tmp_path / "runs", refs)
    assert noted == [30, 60, 90, *range(90, len(refs))]


def test_policy_keeps_pixels_or_leaves_them(
    tmp_path: pathlib.Path, taken: list[int], alone: Callable[..., Any]
) -> None:
    refs = make_refs(tmp_path / "in")[:100]
    for fields, is_kept in [
        ({}, True),
        ({"check": "decode"}, True),
        ({"check": "tensorflow"}, True),
        ({"color": "rgb"}, True),  # change nothing of bare pixels that are kept
        ({"scaling": resample.Scaling(shortest_side=2)}, True),
        ({"part": side_by_side.Part(0, 2)}, True),
        ({"encode": "raw"}, False),
        ({"encode": "png"}, False),
        ({"limits": checked_image.Limits(max_bytes=10**6)}, False),
        ({"limits": checked_image.Limits(max_seconds=9)}, False),
        ({"orientation": prepare.REJECT}, False),
        ({"frames": prepare.EACH}, False),
        ({"sum_pixels": True}, False),
        ({"functions": image_functions.ImageFunctions(keep_if=KEEP_IF)}, False),
        ({"raw_shape": None}, False),
        ({"is_raw": True}, False),
        ({"is_base64": True}, False),
    ]:
        folder, policy = case_tables.new_folder(tmp_path), dataclasses.replace(POLICY, **fields)
        taken.clear()
        found = write(folder / "runs", refs, policy=policy)
        assert sum(taken) == 100 * is_kept
        assert alone(folder / "alone", refs, policy=policy) == found


def test_recipe_that_needs_more_leaves_all() -> None:
    for fields in [
        {"features": RECIPE.features[:-1]},
        {"features": features.resolve_features({}, "class", {}, pixels="int64")},
        {"features": features.resolve_features({features.ENTRY_POINTS: "points"}, "class", {})},
        {"kept": (features.Feature("a", "columns/a", features.BYTES),)},
        {"extra_images": ("after",)},
        {"columns": ("image/object/class/label", "image/object/class/text")},
    ]:
        writer: Any = None
        assert kept_images.find_pixels(writer, dataclasses.replace(RECIPE, **fields), POLICY) is None


@pytest.mark.parametrize("why", ["skipped", "hashes", "after-a-death", "large"])
def test_shard_that_needs_each_image_in_turn_is_left(
    tmp_path: pathlib.Path, taken: list[int], monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    fields: dict[str, Any] = {}
    if why == "skipped":
        fields["skipped"] = ((0, Reason.CRASHED),)
    elif why == "hashes":
        fields["hasher"] = image_hashes.Hasher()
    elif why == "large":
        monkeypatch.setattr(kept_images, "_MAX_RUN_BYTES", 30 * SIZE - 1)
    else:
        monkeypatch.setattr(writer_processes, "_notes_each", True)
    written, _ = write(tmp_path / "runs", make_refs(tmp_path / "in")[:60], **fields)
    assert taken == []
    assert written.shard.records == 60 - (why == "skipped")


def test_shard_without_images_is_empty(tmp_path: pathlib.Path) -> None:
    writer = shard_writer.ShardWriter(str(tmp_path), str(tmp_path / "out"), RECIPE, POLICY)
    runs = ((0, elements.pack_refs([])), (0, b""))
    assert writer.write(shard_writer.ShardTask("train", 0, 1, runs)).shard.bytes == 0
