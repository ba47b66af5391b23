"""JPEGs that are written in one call of C make the same shard as those that Python reads, checks and encodes."""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
import random
import struct
from typing import Any

import pytest

from imagebeam import features, records
from imagebeam.transforms import elements
from imagebeam.transforms.elements import ImageRef, Reason, WrittenShard
from imagebeam.transforms.images import checked_image, jpeg_structure, orientations, prepare, resample, side_by_side
from imagebeam.transforms.shard import encode, image_hashes, kept_images, read_ahead, shard_file, writer_processes
from tests import encoded_images, pictures
from tests.unit.transforms import small_dataset

if os.environ.get("IMAGEBEAM_CI") != "1":  # there it must be built
    pytest.importorskip("imagebeam._writer", reason="was not built: docs/reader-speed.md says what it needs")

FEATURES = features.resolve_features({}, "class", {"weight": ("int64", False)})
RECIPE = encode.ExampleRecipe(FEATURES, {"cat": 0, "dog": 1}, ("columns/weight",))


def with_exif(jpeg: bytes, orientation: int, kind: int = 3, order: str = "<") -> bytes:
    """Inserts EXIF data of three entries; `kind` is the TIFF type of the second, the orientation."""
    signature = b"II*\0" if order == "<" else b"MM\0*"
    value = {1: "Bxxx", 3: "Hxx", 4: "I"}.get(kind, "I")
    entries = [(0x0100, 4, 1, struct.pack(f"{order}I", 8)), (0x0112, kind, 1, struct.pack(order + value, orientation))]
    content = signature + struct.pack(f"{order}IH", 8, 3)
    content += b"".join(struct.pack(f"{order}HHI4s", *entry) for entry in (*entries, entries[0]))
    segment = orientations.EXIF_HEADER + content + bytes(4)
    return encoded_images.insert(jpeg, 2, b"\xff\xe1" + struct.pack(">H", 2 + len(segment)) + segment)


UPRIGHT, TURNED = with_exif(encoded_images.JPEG, 1), with_exif(encoded_images.JPEG, 6)
FILES = {f"{name}.jpg": jpeg for name, jpeg in encoded_images.JPEGS.items()} | {
    "upright.jpg": UPRIGHT,
    "turned.jpg": TURNED,
    "jpeg.png": encoded_images.JPEG,
    "no-extension": UPRIGHT,
    "picture.png": encoded_images.PNGS["rgb"],
    "photo.JPG": pictures.encode(pictures.photo(400, 300)),
    "cut.jpg": encoded_images.JPEG[:-9],
    "empty.jpg": b"",
    "changed.jpg": encoded_images.JPEG,
    "gone.jpg": encoded_images.JPEG,
}
NUM_USUAL = len(encoded_images.JPEGS) + 4  # upright.jpg, jpeg.png, no-extension and photo.JPG


@pytest.fixture(autouse=True)
def warm_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """No read is slow: files that are opened ahead are left to Python."""
    monkeypatch.setattr(read_ahead._Kernel, "note_read", lambda *_: None)


@pytest.fixture(scope="module")
def refs(tmp_path_factory: pytest.TempPathFactory) -> list[ImageRef]:
    root = tmp_path_factory.mktemp("kept")
    found = []
    for number, (name, content) in enumerate(FILES.items()):
        path = root / name
        path.write_bytes(content)
        status, label = path.stat(), ("cat", "dog")[number % 2]
        ref = ImageRef(
            f"{name}\udcff", str(path), status.st_size, status.st_mtime_ns, label=label, fingerprint=b"facts"
        )
        found.append(ref._replace(columns=(number,)))
    (root / "gone.jpg").unlink()
    (root / "changed.jpg").write_bytes(UPRIGHT)
    return random.Random(0).sample(found * 2, 2 * len(found))  # twice, so that all is cached once


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that C wrote."""
    names: list[str] = []
    take = kept_images.KeptJpegs.take

    def note(self: kept_images.KeptJpegs, ref: ImageRef) -> Any:
        outcome = take(self, ref)
        if outcome is not None and isinstance(outcome[0], elements.Measures):
            names.append(pathlib.Path(ref.uri).name)
        return outcome

    monkeypatch.setattr(kept_images.KeptJpegs, "take", note)
    return names


def write(
    folder: pathlib.Path, refs: list[ImageRef], skipped: tuple[tuple[int, Reason], ...] = (), **fields: Any
) -> tuple[WrittenShard, dict[str, bytes]]:
    return small_dataset.write_shard(folder, refs, skipped=skipped, **{"recipe": dataclasses.replace(RECIPE), **fields})


def find_jpegs(recipe: encode.ExampleRecipe, policy: prepare.ImagePolicy) -> kept_images.KeptJpegs | None:
    return kept_images.find_jpegs(None, recipe, policy)  # type: ignore[arg-type]


@pytest.mark.parametrize("keeps_state", [False, True], ids=["no-state", "state"])
@pytest.mark.parametrize("buffer_bytes", [4 << 20, 1 << 16, 1 << 12], ids="buffers-of-{}".format)
def test_shard_is_the_one_that_python_writes(
    tmp_path: pathlib.Path,
    refs: list[ImageRef],
    taken: list[str],
    monkeypatch: pytest.MonkeyPatch,
    buffer_bytes: int,
    keeps_state: bool,
) -> None:
    monkeypatch.setattr(shard_file, "ShardFile", functools.partial(shard_file.ShardFile, buffer_bytes=buffer_bytes))
    in_c = write(tmp_path / "c", refs, keeps_state=keeps_state)
    num_taken = len(taken)
    assert num_taken == NUM_USUAL or (0 < num_taken < NUM_USUAL and buffer_bytes < 4 << 20)
    assert sum(in_c[0].rejected.values()) == 8
    assert in_c[0].statistics["misnamed"] == {"jpeg named png": 2}
    monkeypatch.setattr(records, "_put_jpeg", None)
    assert write(tmp_path / "python", refs, keeps_state=keeps_state) == in_c
    assert len(taken) == num_taken


def test_every_usual_jpeg_is_written_in_c_once_its_features_were_met(
    tmp_path: pathlib.Path, refs: list[ImageRef], taken: list[str]
) -> None:
    ordered = [ref._replace(columns=(5,)) for ref in sorted(refs)]
    write(tmp_path, [*ordered, *ordered])
    usual = set(FILES) - {"turned.jpg", "picture.png", "cut.jpg", "empty.jpg", "changed.jpg", "gone.jpg"}
    assert len(usual) == NUM_USUAL
    assert {name: taken.count(name) >= 2 for name in usual} == dict.fromkeys(usual, True)
    assert set(taken) == usual


@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow's, of broken EXIF data
@pytest.mark.parametrize("order", ["<", ">"], ids=["little-endian", "big-endian"])
@pytest.mark.parametrize("kind", [1, 2, 3, 4])
def test_orientation_is_read_as_in_python(tmp_path: pathlib.Path, taken: list[str], kind: int, order: str) -> None:
    generator = random.Random(kind)
    jpegs = [with_exif(encoded_images.JPEG, number, kind, order) for number in range(10)]
    for jpeg in jpegs[:10] * 5:  # damaged EXIF data: signature, offset, count, entries
        changed = bytearray(jpeg)
        changed[generator.randrange(12, 12 + 50)] = generator.randrange(256)
        jpegs.append(bytes(changed))
    listed, upright = [], set()
    for number, jpeg in enumerate(jpegs):
        path = tmp_path / f"{number}.jpg"
        path.write_bytes(jpeg)
        listed.append(ImageRef(path.name, str(path), len(jpeg), label="cat", columns=(5,)))
        if jpeg_structure.check_jpeg(jpeg).orientation == checked_image.UPRIGHT:
            upright.add(path.name)
    write(tmp_path / "staging", listed + listed)
    assert set(taken) == upright
    assert 2 <= len(upright) < len(jpegs) or kind == 2


def test_policy_that_looks_further_leaves_all_to_python() -> None:
    for fields in [
        {"limits": checked_image.Limits(max_bytes=10**6)},
        {"orientation": prepare.REJECT},
        {"check": "header"},
        {"check": "decode"},
        {"check": "tensorflow"},
        {"metadata": prepare.STRIP},
        {"color": "rgb"},
        {"profile": prepare.SRGB},
        {"background": (0, 0, 0)},
        {"encode": "jpeg"},
        {"frames": prepare.EACH},
        {"frames": "reject"},
        {"sum_pixels": True},
        {"scaling": resample.Scaling(shortest_side=10)},
        {"raw_shape": (1, 1, 1)},
        {"is_raw": True},
        {"is_base64": True},
        {"part": side_by_side.Part(0, 2)},
    ]:
        assert find_jpegs(RECIPE, prepare.ImagePolicy()) is not None
        assert find_jpegs(RECIPE, prepare.ImagePolicy(**fields)) is None


def test_recipe_that_needs_more_leaves_all_to_python() -> None:
    for fields in [
        {"features": FEATURES[:-1]},  # no-image
        {"features": features.resolve_features({}, "class", {}, pixels="int64")},  # list-of-pixels
        {"features": features.resolve_features({features.ENTRY_POINTS: "points"}, "class", {})},  # entry-points
        {"kept": (features.Feature("a", "columns/a", features.BYTES),)},  # kept
        {"extra_images": ("after",)},  # further
        {"columns": ("image/object/class/label", "image/object/class/text")},  # objects
    ]:
        assert find_jpegs(dataclasses.replace(RECIPE, **fields), prepare.AS_IT_IS) is None


def test_reference_that_says_more_is_left_to_python(refs: list[ImageRef]) -> None:
    for change in [
        {"inside": (0, 10)},
        {"expected": (17, 23)},
        {"content": b"content"},
        {"mask": elements.Mask("mask.png")},
        {"extra_images": (elements.ExtraImage("after.jpg"),)},
    ]:
        jpegs = find_jpegs(RECIPE, prepare.AS_IT_IS)
        assert jpegs is not None
        with pytest.raises(AttributeError):  # there is no writer to ask
            jpegs.take(refs[0])
        assert jpegs.take(refs[0]._replace(**change)) is None


@pytest.mark.parametrize("kind", ["int64", "float"])
def test_values_that_are_new_each_time_leave_the_rest_to_python(
    tmp_path: pathlib.Path, refs: list[ImageRef], taken: list[str], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    calls: list[str] = []
    write_jpeg = records.RecordWriter.write_jpeg
    monkeypatch.setattr(
        records.RecordWriter, "write_jpeg", lambda self, *args: calls.append(args[0]) or write_jpeg(self, *args)
    )
    recipe = dataclasses.replace(RECIPE, features=features.resolve_features({}, "class", {"weight": (kind, False)}))
    ref = next(ref for ref in refs if ref.uri.endswith("photo.JPG"))
    written, _ = write(tmp_path, [ref._replace(columns=(number,)) for number in range(80)], recipe=recipe)
    assert (written.shard.records, len(calls), taken) == (80, 50, [])


def test_masks_and_further_images_are_no_examples(tmp_path: pathlib.Path, taken: list[str]) -> None:
    (tmp_path / "image.jpg").write_bytes(encoded_images.JPEG)
    (tmp_path / "after.jpg").write_bytes(encoded_images.JPEG)
    after = elements.ExtraImage(str(tmp_path / "after.jpg"), len(encoded_images.JPEG))
    ref = ImageRef("a", str(tmp_path / "image.jpg"), len(encoded_images.JPEG), label="cat", columns=(5,))
    written, _ = write(tmp_path / "staging", [ref, ref, ref._replace(extra_images=(after,))] * 2)
    assert (written.shard.records, taken) == (6, ["image.jpg"] * 3)


@pytest.mark.parametrize("why", ["skipped", "hashes", "after-a-death", "gzip"])
def test_shard_that_needs_each_image_in_turn_is_left_to_python(
    tmp_path: pathlib.Path, refs: list[ImageRef], taken: list[str], monkeypatch: pytest.MonkeyPatch, why: str
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
    write(tmp_path, refs, **fields)
    assert taken == []


def test_slow_reads_are_seen_apart_from_the_rest(refs: list[ImageRef], monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[tuple[float, int]] = []
    monkeypatch.setattr(read_ahead._Kernel, "note_read", lambda self, *read: noted.append(read))
    measures = elements.Measures("jpeg", "RGB", 1, 2, 3, 4)
    found = list(read_ahead.fetch_or_take(refs[:1], read_ahead.READ_AHEAD, lambda ref: (measures, 0.125)))
    assert (found, noted) == ([(refs[0], measures)], [(0.125, refs[0].size)])
