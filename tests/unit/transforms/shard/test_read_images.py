"""Files of several pictures on their way into shards: every picture is written or rejected once, under its own key."""

from __future__ import annotations

import collections
import functools
import json
import os
import pathlib
import tempfile
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagebeam import example, features, records, storage
from imagebeam.transforms import dataset_settings, elements
from imagebeam.transforms.elements import ExtraImage, ImageRef, Mask, Reason, Reject
from imagebeam.transforms.images import checked_image, image_formats, prepare, structure
from imagebeam.transforms.shard import encode, image_hashes, read_ahead, read_images, shard_writer, writer_processes
from tests import animations, encoded_images, image_sets, written_files
from tests.unit.transforms import small_dataset

EACH = prepare.ImagePolicy(frames="each")


class Stored(NamedTuple):
    """Returns what the shards of a folder hold."""

    written: list[elements.WrittenShard]
    examples: dict[str, dict[str, list[object]]]  # by key
    rejects: dict[str, elements.Reject]  # by key
    shards: dict[str, bytes]


def store(
    root: pathlib.Path,
    refs: Sequence[ImageRef],
    num_shards: int = 1,
    policy: prepare.ImagePolicy = EACH,
    pool: writer_processes.WriterProcesses | None = None,
    **fields: object,
) -> Stored:
    """Writes the shards of images, in this process or in those of `pool`."""
    layout = small_dataset.make_settings(root, policy=policy, **fields)
    plan = small_dataset.make_plan({"train": list(refs)}, num_shards)
    write = layout.writer_of(plan).write
    tasks = small_dataset.make_tasks(plan, {"train": list(refs)})
    futures = [] if pool is None else [pool.submit(write, task) for task in tasks]
    written = [future.result() for future in futures] if pool is not None else [write(task) for task in tasks]
    return Stored(written, *read(layout, written))


def read(
    layout: dataset_settings.DatasetSettings, written: Sequence[elements.WrittenShard]
) -> tuple[dict[str, dict[str, list[object]]], dict[str, elements.Reject], dict[str, bytes]]:
    staging = pathlib.Path(layout.paths.staging("f1"))
    examples, rejects, shards = {}, {}, {}
    for each in written:
        uri = storage.join(str(staging), each.shard.name)
        shards[each.shard.name] = pathlib.Path(uri).read_bytes()
        with open(uri, "rb") as file:
            for record in records.read_records(file, layout.compression):
                parsed = example.parse_example(record.data)
                key = parsed["image/key"][0].decode()
                assert key not in examples
                examples[key] = parsed
        lines = pathlib.Path(uri + shard_writer.REJECTS_SUFFIX)
        for line in lines.read_text().splitlines() if lines.exists() else ():
            reject = elements.Reject(**json.loads(line))
            assert reject.key not in rejects
            rejects[reject.key] = reject
        assert each.shard.records + sum(each.rejected.values()) >= each.further
    return examples, rejects, shards


def write_file(root: pathlib.Path, name: str, data: bytes, label: str = "cat") -> ImageRef:
    written_files.write(root, {name: data})
    return ImageRef(name, str(root / name), len(data), label=label)


# --- any folder ------------------------------------------------------------------------------------------------------


@functools.cache
def animation(kind: str, count: int, seed: int) -> bytes:
    return animations.save(animations.draw(seed, count), kind)


@pytest.fixture(scope="module")
def pools() -> Iterator[list[writer_processes.WriterProcesses | None]]:
    with writer_processes.WriterProcesses(1) as one, writer_processes.WriterProcesses(2) as two:
        yield [None, one, two]


KINDS = ("gif", "webp", "apng", "avif", "tiff", "jpeg", "png")


@settings(max_examples=25)
@given(
    files=st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 5), st.integers(0, 2)), min_size=1, max_size=8),
    num_shards=st.integers(1, 3),
)
def test_every_picture_of_any_folder_is_written_once_with_the_same_bytes_wherever_it_is_written(
    pools: list[writer_processes.WriterProcesses | None], files: list[tuple[str, int, int]], num_shards: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        refs, expected = [], {}
        for number, (kind, count, seed) in enumerate(files):
            is_still = kind in ("jpeg", "png")
            data = image_sets.make_image(seed, kind.upper()) if is_still else animation(kind, count, seed)
            name = f"{number}.{kind}"
            refs.append(write_file(root / "in", name, data, "ab"[number % 2]))
            shown = animations.shown(data)
            keys = [name] if len(shown) == 1 else [f"{name}#{frame:04}" for frame in range(len(shown))]
            expected.update(zip(keys, ((picture, kind, "ab"[number % 2]) for picture in shown), strict=True))
        found = [store(root / f"out{number}", refs, num_shards, pool=pool) for number, pool in enumerate(pools)]
        assert all(each[1:] == found[0][1:] for each in found)
        assert found[0].rejects == {}
        assert sum(each.further for each in found[0].written) == len(expected) - len(refs)
        assert sorted(found[0].examples) == sorted(expected)
        for key, parsed in found[0].examples.items():
            picture, kind, label = expected[key]
            assert parsed["image/class/text"] == [label.encode()]
            stored = animations.pixels_of(parsed["image/encoded"][0])
            assert stored.shape == picture.shape
            if kind != "avif":
                assert np.array_equal(stored, picture)
        labels: collections.Counter[str] = collections.Counter()
        for each in found[0].written:
            labels.update(each.statistics["labels"])
        assert labels == collections.Counter(label for _, _, label in expected.values())


# --- keys ------------------------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(
    st.dictionaries(
        st.text("a.#01", min_size=1, max_size=8) | st.from_regex(r"\Aa(#\d{3,5}){0,2}\Z"), st.integers(1, 3), min_size=1
    )
)
def test_no_two_pictures_have_the_same_key(counts: dict[str, int]) -> None:
    keys = []
    for key, count in counts.items():
        frames = [read_images.frame_key(key, number, count) for number in range(count)]
        assert frames == sorted(frames)
        keys += frames if count > 1 else [read_images.still_key(key)]
    assert len(set(keys)) == len(keys)


def test_key_of_a_frame_has_as_many_digits_as_the_last_one() -> None:
    assert read_images.frame_key("a/b.gif", 3, 12) == "a/b.gif#0003"
    assert read_images.frame_key("a/b.gif", 3, 10_001) == "a/b.gif#00003"
    assert [read_images.still_key(each) for each in ("a#b.gif", "a#001", "a#0001")] == [
        "a#b.gif",
        "a#001",
        "a#0001#0000",
    ]


# --- rejects ---------------------------------------------------------------------------------------------------------


def test_broken_frame_is_rejected_by_its_key_and_the_others_are_written(tmp_path: pathlib.Path) -> None:
    data = animations.save(animations.draw(3, 4), "tiff", compression="tiff_adobe_deflate")
    strip = data.index(b"\x78\x9c", data.index(b"\x78\x9c") + 2)
    refs = [write_file(tmp_path, "a.tif", encoded_images.overwrite(data, strip, b"\xff" * 20))]
    stored = store(tmp_path / "out", refs)
    assert list(stored.examples) == ["a.tif#0000", "a.tif#0002", "a.tif#0003"]
    assert list(stored.rejects) == ["a.tif#0001"]
    (written,) = stored.written
    assert (written.further, written.shard.records, written.rejected) == (3, 3, {"undecodable": 1})
    assert stored.rejects["a.tif#0001"].uri == refs[0].uri


def test_file_beyond_the_limit_of_frames_is_one_reject(tmp_path: pathlib.Path) -> None:
    policy = prepare.ImagePolicy(frames="each", limits=checked_image.Limits(max_frames=3))
    refs = [write_file(tmp_path, f"{count}.gif", animation("gif", count, 0)) for count in (1, 3, 4)]
    stored = store(tmp_path / "out", refs, policy=policy)
    assert list(stored.examples) == ["1.gif", "3.gif#0000", "3.gif#0001", "3.gif#0002"]
    assert {key: reject.reason for key, reject in stored.rejects.items()} == {"4.gif": "too_large"}


def test_file_that_cannot_be_opened_is_one_reject_as_without_frames(tmp_path: pathlib.Path) -> None:
    refs = [
        write_file(tmp_path, "cut.gif", animation("gif", 3, 0)[:20]),
        write_file(tmp_path, "empty.tif", b""),
        write_file(tmp_path, "text.gif", b"GIF?"),
        ImageRef("none.gif#0007", str(tmp_path / "none.gif"), 5),
    ]
    stored = store(tmp_path / "out", refs)
    first = store(tmp_path / "first", refs, policy=prepare.AS_IT_IS)
    assert stored.rejects.pop("none.gif#0007#0000").reason == first.rejects.pop("none.gif#0007").reason == "not_found"
    assert stored.rejects == first.rejects and stored.examples == {}


def test_mask_is_for_one_picture(tmp_path: pathlib.Path) -> None:
    mask = write_file(tmp_path, "mask.png", image_sets.make_image(0, "PNG", "L"))
    refs = [
        write_file(tmp_path, f"{count}.gif", animation("gif", count, 0))._replace(
            mask=elements.Mask(mask.uri, mask.size)
        )
        for count in (1, 2)
    ]
    stored = store(tmp_path / "out", refs)
    assert list(stored.examples) == ["1.gif"]
    assert stored.rejects["2.gif"].reason == "several_frames"
    assert stored.rejects["2.gif"].detail == "it holds 2 images and has one mask: split it, and give each image a mask"


def test_file_that_killed_its_process_is_left_out_whole(tmp_path: pathlib.Path) -> None:
    refs = [write_file(tmp_path, f"{number}.gif", animation("gif", 3, number)) for number in range(2)]
    images = read_images.read_images(refs, EACH, read_ahead.READ_AHEAD, {0: elements.Reason.CRASHED})
    found = [(ref.key, ref.frame, isinstance(image, elements.Reject)) for ref, image in images]
    assert found == [("0.gif", 0, True), *((f"1.gif#000{frame}", frame, False) for frame in range(3))]


def test_frame_that_takes_too_long_is_rejected(tmp_path: pathlib.Path) -> None:
    policy = prepare.ImagePolicy(frames="each", limits=checked_image.Limits(max_seconds=1e-9))
    stored = store(tmp_path / "out", [write_file(tmp_path, "a.gif", animation("gif", 2, 0))], policy=policy)
    assert {key: reject.reason for key, reject in stored.rejects.items()} == dict.fromkeys(
        ("a.gif#0000", "a.gif#0001"), "too_slow"
    )


# --- what else is done with images -----------------------------------------------------------------------------------


def test_frames_of_an_image_inside_a_file_keep_the_features_of_its_record(tmp_path: pathlib.Path) -> None:
    data = animation("gif", 2, 0)
    ref = write_file(tmp_path, "a.bin", b"before" + data + b"after")._replace(inside=(6, len(data)))
    images = list(read_images.read_images([ref], EACH, read_ahead.READ_AHEAD))
    assert [found.key for found, _ in images] == ["a.bin#0000", "a.bin#0001"]
    for _, image in images:
        assert isinstance(image, type(prepare.AS_IT_IS.prepare(data)))
        assert image.format == image_formats.PNG and image.record == b"before" + data + b"after"


def test_boxes_are_repeated_and_each_picture_has_the_size_that_they_are_for(tmp_path: pathlib.Path) -> None:
    pages = [*animations.draw(0, 2), animations.draw(0, 1, (30, 16))[0]]
    refs = [
        write_file(tmp_path, "pages.tif", animations.save(pages, "tiff")),
        write_file(tmp_path, "other.gif", animation("gif", 2, 0)),
    ]
    boxes = tuple(f"image/object/bbox/{side}" for side in ("xmin", "ymin", "xmax", "ymax"))
    every = features.resolve_features({}, "class", {}, given=("objects",))
    layout = {
        "features": tuple(each for each in every if "object" not in each.key or each.key in boxes),
        "columns": boxes,
    }
    values = ([0.25], [0.5], [0.75], [1.0])
    refs = [ref._replace(columns=values, expected=size) for ref, size in zip(refs, [(16, 24), (16, 25)], strict=True)]
    stored = store(tmp_path / "out", refs, **layout)
    assert [[each[name] for name in boxes] for each in stored.examples.values()] == [list(values)] * 2
    assert list(stored.examples) == ["pages.tif#0000", "pages.tif#0001"]
    assert {key: reject.reason for key, reject in stored.rejects.items()} == dict.fromkeys(
        ("pages.tif#0002", "other.gif"), "bad_value"
    )


def test_frames_are_compared_by_what_is_stored_of_each(tmp_path: pathlib.Path) -> None:
    frames = animations.draw(0, 3)
    refs = [
        write_file(tmp_path, "a.gif", animations.save([frames[0], frames[1]], "gif")),
        write_file(tmp_path, "b.gif", animations.save([frames[2], frames[1]], "gif")),
    ]
    hasher = image_hashes.Hasher(contents=True, pictures=True)
    images = read_images.read_images(refs, EACH, read_ahead.READ_AHEAD, hasher=hasher)
    hashes = {ref.key: image.hashes for ref, image in images if not isinstance(image, elements.Reject)}
    assert hashes["a.gif#0001"] == hashes["b.gif#0001"]
    assert len({each.content for each in hashes.values() if each is not None}) == 3


# --- extra images of an example ------------------------------------------------------------------------------------


FIRST = image_sets.make_image(1)
SECOND = image_sets.make_image(2, "PNG", size=(10, 30))
MASK = image_sets.make_image(3, "PNG", "L")


@pytest.fixture
def refs(tmp_path: pathlib.Path) -> list[ImageRef]:
    """References of an image with a mask and two extra images, of one without, and of one with one extra image."""
    files = {"a.jpg": FIRST, "b.png": SECOND, "m.png": MASK}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    stats = {
        name: (str(tmp_path / name), len(data), os.stat(tmp_path / name).st_mtime_ns) for name, data in files.items()
    }
    a, b = (ExtraImage(*stats[name], column) for name, column in (("a.jpg", "left"), ("b.png", "right")))
    ref = ImageRef("a.jpg", *stats["a.jpg"])
    return [ref._replace(mask=Mask(*stats["m.png"]), extra_images=(a, b)), ref, ref._replace(extra_images=(b,))]


def read_all(
    refs: list[ImageRef], policy: prepare.ImagePolicy = prepare.AS_IT_IS
) -> list[checked_image.Image | Reject]:
    return [image for _, image in read_images.read_images(refs, policy, read_ahead.READ_AHEAD)]


def test_extra_image_is_stored_under_its_name_with_format_and_size(refs: list[ImageRef]) -> None:
    wanted = features.resolve_features({}, None, {}, extra_images=("after",))
    [image] = read_all(refs[2:])
    assert isinstance(image, checked_image.Image)
    values = example.parse_example(
        b"".join(encode.ExampleRecipe(wanted, {}, extra_images=("after",)).encode(refs[2], image))
    )
    assert {key.removeprefix("image/after/"): each for key, each in values.items() if "after" in key} == {
        "encoded": [SECOND],
        "format": [b"png"],
        "height": [30],
        "width": [10],
    }
    assert (values["image/encoded"], values["image/height"]) == ([FIRST], [16])


def test_file_that_changed_since_the_listing_is_a_reject(refs: list[ImageRef]) -> None:
    (extra,) = refs[2].extra_images
    later = refs[2]._replace(extra_images=(extra._replace(version=1),))
    [reject] = read_all([later])
    assert isinstance(reject, Reject)
    assert (reject.key, reject.uri, reject.stage, reject.reason) == ("a.jpg", refs[2].uri, "read", Reason.CHANGED)
    assert reject.detail.startswith(f"column 'right', {extra.uri!r}: was written since it was listed")


def test_limits_hold_for_every_image(refs: list[ImageRef]) -> None:
    policy = prepare.ImagePolicy(limits=checked_image.Limits(max_side=25))
    rejects = [each for each in read_all(refs, policy) if isinstance(each, Reject)]
    assert [each.reason for each in rejects] == [Reason.TOO_LARGE] * 2
    assert all(each.detail.startswith("column 'right', ") for each in rejects)


def test_images_that_are_too_large_together_are_a_reject(refs: list[ImageRef], monkeypatch: pytest.MonkeyPatch) -> None:
    num_bytes = len(FIRST) + len(SECOND)
    monkeypatch.setattr(structure, "MAX_IMAGE_BYTES", num_bytes - 1)
    image, reject = read_all(refs[1:])
    assert not isinstance(image, Reject) and isinstance(reject, Reject)
    assert reject.reason is Reason.TOO_LARGE
    assert reject.detail == (f"its 2 images have {num_bytes:,} bytes, a tf.train.Example takes up to {num_bytes - 1:,}")


def test_duplicates_and_pixel_sums_are_of_the_first_image(refs: list[ImageRef]) -> None:
    hasher = image_hashes.Hasher(contents=True)
    policy = prepare.ImagePolicy(sum_pixels=True)
    found = [image for _, image in read_images.read_images(refs[1:], policy, read_ahead.READ_AHEAD, hasher=hasher)]
    alone, together = (each for each in found if isinstance(each, checked_image.Image))
    assert (alone.hashes, alone.sums) == (together.hashes, together.sums) and alone.sums is not None
    assert [each.sums for each in together.extra_images] == [None]


def test_content_for_the_next_update_covers_every_file(refs: list[ImageRef]) -> None:
    kept = [ref._replace(content=b"8 bytes.") for ref in refs]
    contents = [ref.content for ref, _ in read_images.read_images(kept, prepare.AS_IT_IS, read_ahead.READ_AHEAD)]
    assert len(set(contents)) == 3
