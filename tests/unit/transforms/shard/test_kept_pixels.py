"""Bare pixels that are written in runs by C make the same shard as those that Python reads, checks and encodes."""

from __future__ import annotations

import dataclasses
import gzip
import os
import pathlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagebeam import features, records
from imagebeam.transforms import elements
from imagebeam.transforms.elements import ImageRef, Reason
from imagebeam.transforms.images import limits, prepare, scaling
from imagebeam.transforms.shard import (
    encode,
    image_hashes,
    kept_pixels,
    read_ahead,
    shard_file,
    statistics,
    writer_processes,
)
from tests.unit.transforms import small_dataset

if os.environ.get("IMAGEBEAM_CI") != "1":  # there it must be built
    pytest.importorskip("imagebeam._writer", reason="was not built here: docs/reader.md tells what it needs")
pytestmark = pytest.mark.skipif(records._put_parts is None, reason="this processor has no SSE 4.2")

SHAPE = (3, 4, 1)
POLICY = prepare.ImagePolicy(raw_shape=SHAPE)
SIZE, NUM_IMAGES, HEADER = 12, 400, 5  # bytes of an image, images of a file, bytes before them
VERSION = 10**18  # of a file that nobody has changed
NO_NAMES: dict[str, str | None] = dict.fromkeys(("image/filename", "image/key"))
RECIPE = encode.ExampleRecipe(features.resolve_features(NO_NAMES, "class", {}), {"cat": 0, "dog": 1})


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


def make_refs(root: pathlib.Path, kind: Kind, num_files: int = 2, num_images: int = NUM_IMAGES) -> list[ImageRef]:
    """Returns the references of new files of images, shuffled."""
    root.mkdir()
    found = []
    for file in range(num_files):
        path = root / f"images\udcff-{file}"
        path.write_bytes(random.Random(file).randbytes(HEADER + SIZE * num_images))
        os.utime(path, ns=(VERSION, VERSION))
        for number in range(num_images):
            ref = ImageRef(f"{file}/{number:05d}", str(path), SIZE, VERSION, HEADER + number * SIZE, SIZE, number)
            found.append(ref._replace(label=kind.label(number), columns=kind.columns(number), facts=b"facts"))
    return random.Random(0).sample(found, len(found))


def write(folder: pathlib.Path, refs: list[ImageRef], run_size: int = 30, **fields: Any) -> Any:
    """Returns the shard of the references and all its files."""
    known = {"recipe": RECIPE, "policy": POLICY} | fields
    known["recipe"] = dataclasses.replace(known["recipe"])  # nothing is cached
    return small_dataset.write_shard(folder, refs, run_size=run_size, **known)


@pytest.fixture
def in_python(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Writes a shard without `kept_pixels`."""

    def write_in_python(*arguments: Any, **fields: Any) -> Any:
        with monkeypatch.context() as patched:
            patched.setattr(records, "_put_parts", None)
            return write(*arguments, **fields)

    return write_in_python


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of images that each call of C wrote."""
    counts: list[int] = []
    write_parts = records.RecordWriter.write_parts

    def note(self: records.RecordWriter, *arguments: Any) -> tuple[int, bool]:
        written = write_parts(self, *arguments)
        counts.append(written[0])
        return written

    monkeypatch.setattr(records.RecordWriter, "write_parts", note)
    return counts


@pytest.fixture
def writer(tmp_path: pathlib.Path) -> Iterator[records.RecordWriter]:
    with open(tmp_path / "shard", "w+b") as file, shard_file.ShardFile(file.fileno()) as shard:
        yield records.RecordWriter(shard)


@pytest.fixture(autouse=True)
def warm_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """No read is slow."""
    monkeypatch.setattr(read_ahead, "_SLOW_SEC", 3600)


@pytest.mark.parametrize("keeps_state", [False, True], ids=["no-state", "state"])
@pytest.mark.parametrize("kind", KINDS)
def test_shard_is_the_one_that_python_writes(
    tmp_path: pathlib.Path, taken: list[int], in_python: Callable[..., Any], kind: str, keeps_state: bool
) -> None:
    refs, fields = make_refs(tmp_path / "in", KINDS[kind]), {"recipe": KINDS[kind].recipe, "keeps_state": keeps_state}
    in_c = write(tmp_path / "c", refs, **fields)
    assert sum(taken) == in_c[0].shard.records == 2 * NUM_IMAGES
    assert in_python(tmp_path / "python", refs, **fields) == in_c
    assert sum(taken) == 2 * NUM_IMAGES


@pytest.mark.parametrize("run_size", [1, 7, 256, 257, 1000])
@pytest.mark.parametrize("buffer_bytes", [4 << 20, 1 << 14, 1 << 12], ids="buffers-of-{}".format)
def test_shard_does_not_depend_on_runs_or_buffers(
    tmp_path: pathlib.Path,
    taken: list[int],
    in_python: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    run_size: int,
    buffer_bytes: int,
) -> None:
    monkeypatch.setattr(shard_file, "_BUFFER_BYTES", buffer_bytes)
    monkeypatch.setattr(shard_file, "_spare", [])
    refs = make_refs(tmp_path / "in", KINDS["class"])
    in_c = write(tmp_path / "c", refs, run_size)
    num_left = len(refs) - sum(taken)
    assert max(taken) <= 256
    assert num_left == 0 if buffer_bytes == 4 << 20 else 0 < num_left <= in_c[0].shard.bytes / buffer_bytes
    assert in_python(tmp_path / "python", refs) == in_c


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


@pytest.mark.parametrize("num_files", [1, 2])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_file_gives_the_records_and_rejects_that_python_gives(
    tmp_path: pathlib.Path, in_python: Callable[..., Any], damage: str, num_files: int
) -> None:
    refs, (harm, reason) = make_refs(tmp_path / "in", KINDS["class"], num_files), DAMAGES[damage]
    harm(pathlib.Path(refs[0].uri))
    in_c = write(tmp_path / "c", refs)
    assert in_c[0].rejected == {reason.value: NUM_IMAGES - 100 if damage == "cut-short" else NUM_IMAGES}
    assert in_python(tmp_path / "python", refs) == in_c


@pytest.mark.parametrize("damage", ["changed", "cut-short", "empty", "gone"])
def test_file_that_is_damaged_while_it_is_read_gives_what_python_gives(
    tmp_path: pathlib.Path,
    in_python: Callable[..., Any],
    taken: list[int],
    monkeypatch: pytest.MonkeyPatch,
    damage: str,
) -> None:
    harm, reason = DAMAGES[damage]

    def damage_after_run(write_it: Callable[..., Any], folder: pathlib.Path) -> Any:
        refs, harms = make_refs(tmp_path / "in", KINDS["class"], 1), [harm]
        reserve = shard_file.ShardFile.reserve

        def reserve_or_harm(self: shard_file.ShardFile, num_bytes: int) -> Any:
            room = reserve(self, num_bytes)
            if num_bytes and self._used >= record_bytes * 30 and harms:
                harms.pop()(pathlib.Path(refs[0].uri))
            return room

        with monkeypatch.context() as patched:
            patched.setattr(shard_file.ShardFile, "reserve", reserve_or_harm)
            found = write_it(folder, refs)
        assert not harms
        (tmp_path / "in").rename(folder / "in")
        return found

    whole, _ = write(tmp_path / "whole", make_refs(tmp_path / "other", KINDS["class"], 1))
    record_bytes = whole.shard.bytes // NUM_IMAGES
    del taken[:]
    written, files = damage_after_run(write, tmp_path / "c")
    assert taken[0] == 30
    assert damage_after_run(in_python, tmp_path / "python") == (written, files)
    # A file that is open stays readable when its name is gone.
    assert set(written.rejected) == (set() if damage == "gone" else {reason.value})
    assert written.shard.records == NUM_IMAGES - sum(written.rejected.values()) >= 30


OTHERS: dict[str, dict[str, Any]] = {
    "inside": {"inside": (0, SIZE)},
    "expected": {"expected": SHAPE[:2]},
    "content": {"content": bytes(8)},
    "blocks": {"blocks": elements.SnappyBlocks(100, 0)},
    "frame": {"frame": 1},
    "mask": {"mask": elements.Mask("mask.png")},
    "further": {"further": (elements.FurtherImage("after.png"),)},
    "length": {"length": SIZE - 1},
    "whole-file": {"offset": 0, "length": -1},
    "packed": {"uri": "images.gz"},
    "zip": {"uri": "images.zip/!/images"},
    "remote": {"uri": "gs://bucket/images"},
}


@pytest.mark.parametrize("change", OTHERS)
def test_run_with_another_reference_and_all_after_it_are_left_to_python(
    tmp_path: pathlib.Path, writer: records.RecordWriter, taken: list[int], change: str
) -> None:
    refs = make_refs(tmp_path / "in", KINDS["class"], 1)[:90]
    refs[40] = refs[40]._replace(**OTHERS[change])
    runs = [elements.columns_of(refs[start : start + 30]) for start in range(0, 90, 30)]
    counts = statistics.StatisticsBuilder()
    left = [
        (number, list(some)) for number, some in kept_pixels.KeptPixels(writer, RECIPE, SHAPE, counts, None).write(runs)
    ]
    assert left == [(30, refs[30:])]
    assert (taken, writer.num_records, counts.build()["formats"]) == ([30], 30, {"raw": 30})


def test_images_of_many_files_are_left_to_python(tmp_path: pathlib.Path, in_python: Callable[..., Any]) -> None:
    refs = make_refs(tmp_path / "in", KINDS["class"], 40, 5)
    assert in_python(tmp_path / "python", refs, 100) == write(tmp_path / "c", refs, 100)


def test_packed_file_gives_the_records_of_the_plain_one(tmp_path: pathlib.Path, taken: list[int]) -> None:
    refs = make_refs(tmp_path / "in", KINDS["class"], 1)
    plain = pathlib.Path(refs[0].uri)
    packed = plain.with_suffix(".gz")
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    in_c = write(tmp_path / "c", refs)
    del taken[:]
    assert write(tmp_path / "python", [ref._replace(uri=str(packed), version=0) for ref in refs]) == in_c
    assert taken == []


@given(st.integers(0, 2**32))
def test_calls_that_end_early_or_are_slow_change_nothing(seed: int) -> None:
    draw = random.Random(seed)
    numbers = list(range(draw.randrange(1, 700)))
    run_size = draw.choice([1, 26, 300, 700])
    runs = [numbers[start : start + run_size] for start in range(0, len(numbers), run_size)]
    found: list[int] = []

    class Writer:
        def write_parts(self, parts: list[int], length: int, slow_sec: float) -> tuple[int, bool]:
            count = min(draw.choice([0, 1, 5, 256]), len(parts))
            found.extend(parts[:count])
            return count, bool(count) and draw.random() < 0.3

    class Pixels(kept_pixels.KeptPixels):
        def _find_parts(self, run: Any, files: Any) -> Any:
            return None if draw.random() < 0.02 else list(run.position)

    counts = statistics.StatisticsBuilder()
    columns = [elements.columns_of([ImageRef("", "", position=number) for number in run]) for run in runs]
    pixels = Pixels(Writer(), RECIPE, SHAPE, counts, None)  # type: ignore[arg-type]
    num_left = 0
    for first, refs in pixels.write(columns):
        assert first == len(found)
        positions = [ref.position for ref in refs]
        num_left += len(positions)
        found += positions
    assert found == numbers
    num_taken = len(numbers) - num_left
    assert counts.build()["formats"] == ({"raw": num_taken} if num_taken else {})


@pytest.mark.parametrize("is_slow", [False, True])
def test_files_are_closed_while_images_are_left_to_python(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, is_slow: bool
) -> None:
    """Python opens them too, and a process may have as few as 64 open files."""

    class Writer:
        def write_parts(self, parts: list[records.FilePart], length: int, slow_sec: float) -> tuple[int, bool]:
            open_now.append(len({file for file, *_ in parts}))
            return min(20, len(parts)), is_slow

    close, closed, open_now = os.close, list[int](), list[int]()
    monkeypatch.setattr(os, "close", lambda file: (closed.append(file), close(file)))
    columns = [elements.columns_of(make_refs(tmp_path / "in", KINDS["class"], num_files=3, num_images=30))]
    counts = statistics.StatisticsBuilder()
    pixels = kept_pixels.KeptPixels(Writer(), RECIPE, SHAPE, counts, None)  # type: ignore[arg-type]
    num_left = 0
    for _, refs in pixels.write(columns):
        assert len(closed) == sum(open_now)
        num_left += len(list(refs))
    assert num_left and max(open_now) == 3
    assert counts.build()["formats"] == {"raw": 90 - num_left}


def test_slow_read_leaves_some_images_to_python_which_reads_ahead(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refs = make_refs(tmp_path / "in", KINDS["class"])
    expected = write(tmp_path / "c", refs)
    calls: list[int] = []
    write_parts = records.RecordWriter.write_parts

    def be_slow(self: records.RecordWriter, parts: Any, *arguments: Any) -> tuple[int, bool]:
        calls.append(self.num_records)
        return write_parts(self, parts[:3], *arguments)[0], True

    monkeypatch.setattr(records.RecordWriter, "write_parts", be_slow)
    assert write(tmp_path / "slow", refs) == expected
    assert calls == [0, 270, 540]


def test_progress_counts_each_image_once(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_file, "_BUFFER_BYTES", 1 << 14)
    monkeypatch.setattr(shard_file, "_spare", [])
    noted: list[int] = []
    monkeypatch.setattr(writer_processes, "note_progress", noted.append)
    refs = make_refs(tmp_path / "in", KINDS["class"])
    pathlib.Path(refs[-1].uri).unlink()
    write(tmp_path / "c", refs)
    assert noted == sorted(noted)
    assert len(noted) > len(refs) / 30
    assert noted[-1] in (len(refs) - 1, len(refs))


@pytest.mark.parametrize(
    ("fields", "is_kept"),
    [
        ({}, True),
        ({"encode": "raw"}, True),
        ({"encode": "raw", "check": "decode"}, True),
        ({"check": "tensorflow"}, True),
        ({"encode": "raw", "scaling": scaling.Scaling(shortest_side=SHAPE[0])}, True),
        ({"encode": "raw", "scaling": scaling.Scaling(shortest_side=2)}, False),
        ({"encode": "raw", "color": "rgb"}, False),
        ({"encode": "png"}, False),
        ({"limits": limits.Limits(max_bytes=10**6)}, False),
        ({"limits": limits.Limits(max_seconds=9)}, False),
        ({"orientation": prepare.REJECT}, False),
        ({"frames": prepare.EACH}, False),
        ({"sum_pixels": True}, False),
        ({"raw_shape": None}, False),
        ({"raw_shape": (1025, 1024, 1)}, False),
        ({"is_raw": True}, False),
        ({"is_base64": True}, False),
    ],
    ids=str,
)
def test_policy_keeps_pixels_or_leaves_all_to_python(
    tmp_path: pathlib.Path,
    writer: records.RecordWriter,
    taken: list[int],
    in_python: Callable[..., Any],
    fields: dict[str, Any],
    is_kept: bool,
) -> None:
    policy = dataclasses.replace(POLICY, **fields)
    assert kept_pixels.find_shape(writer, RECIPE, policy) == (SHAPE if is_kept else None)
    if is_kept:
        refs = make_refs(tmp_path / "in", KINDS["class"])[:100]
        assert in_python(tmp_path / "python", refs, policy=policy) == write(tmp_path / "c", refs, policy=policy)
        assert sum(taken) == 100


@pytest.mark.parametrize(
    "fields",
    [
        {"features": RECIPE.features[:-1]},
        {"features": features.resolve_features({}, "class", {}, pixels="int64")},
        {"features": features.resolve_features({features.ENTRY_POINTS: "points"}, "class", {})},
        {"kept": (features.Feature("a", "columns/a", features.BYTES),)},
        {"further": ("after",)},
        {"columns": ("image/object/class/label", "image/object/class/text")},
    ],
    ids=["no-image", "list-of-pixels", "entry-points", "kept", "further", "objects"],
)
def test_recipe_that_needs_more_leaves_all_to_python(writer: records.RecordWriter, fields: dict[str, Any]) -> None:
    assert kept_pixels.find_shape(writer, dataclasses.replace(RECIPE, **fields), POLICY) is None


@pytest.mark.parametrize("why", ["skipped", "hashes", "after-a-death", "gzip"])
def test_shard_that_needs_each_image_in_turn_is_left_to_python(
    tmp_path: pathlib.Path, taken: list[int], monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    fields: dict[str, Any] = {}
    if why == "skipped":
        fields["skipped"] = ((0, Reason.CRASHED),)
    elif why == "hashes":
        fields["hasher"] = image_hashes.Hasher()
    elif why == "gzip":
        fields["compression"] = "gzip"
    else:
        monkeypatch.setattr(writer_processes, "_notes_each", True)
    write(tmp_path / "c", make_refs(tmp_path / "in", KINDS["class"])[:50], **fields)
    assert taken == []
