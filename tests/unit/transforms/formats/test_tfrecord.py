from __future__ import annotations

import json
import pathlib
import pickle
import re
import struct
from collections.abc import Sequence
from typing import Any

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from imagebeam.transforms.elements import Reason
from imagebeam.transforms.formats import tfrecord
from imagebeam.transforms.packed import unpacked_content
from imagebeam.transforms.sources import table_rows
from tests import case_tables, foreign_shards, image_sets, tars, written_files

JPEG = image_sets.make_image(1)


def make_example(**features: Any) -> bytes:
    """Serializes a tf.train.Example; in keys __ is a slash, and the type of a feature is that of its value."""
    message = tf.train.Example()
    for key, value in features.items():
        values = value if isinstance(value, list) else [value]
        feature = message.features.feature[key.replace("__", "/")]
        kind = {bytes: "bytes_list", int: "int64_list", float: "float_list"}[type((values or [b""])[0])]
        getattr(feature, kind).value.extend(values)
    return message.SerializeToString()


def write(path: pathlib.Path, examples: Sequence[bytes], compression: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for each in examples:
            writer.write(each)


def list_records(folder: pathlib.Path, **options: Any) -> tars.Listed:
    return tars.list_all(tfrecord.TfrecordSource(str(folder), **options))


def images(count: int, **more: Any) -> list[bytes]:
    return [
        make_example(
            image__encoded=image_sets.make_image(index, size=(8 + index, 8)),
            image__class__label=index,
            image__key=f"key{index}".encode(),
            **more,
        )
        for index in range(count)
    ]


@pytest.mark.parametrize("compression", ["", "GZIP"])
def test_records_are_byte_ranges_with_their_features(tmp_path: pathlib.Path, compression: str) -> None:
    suffix = ".gz" if compression else ""
    for split, shard, start in (("train", 0, 0), ("train", 1, 5), ("validation", 0, 9)):
        examples = [
            make_example(
                image__encoded=image_sets.make_image(number),
                big=b"z" * 5000,
                weights=[0.1, float(number)],
                name=f"n{number}".encode(),
                none=[],
                image__class__label=number - 3,
            )
            for number in range(start, start + 4)
        ]
        write(tmp_path / "in" / f"{split}-0000{shard}-of-00002.tfrecord{suffix}", examples, compression)
    (tmp_path / "in" / "index").mkdir()
    (tmp_path / "in" / "index" / "train-00000-of-00002.index").write_bytes(b"1")
    (tmp_path / "in" / "train-00000-of-00002.json").write_bytes(b"{}")
    fields = table_rows.RowFields(
        label="image/class/label",
        split="split",
        columns=(
            table_rows.Column("weights", "float", many=True),
            table_rows.Column("name", "bytes"),
            table_rows.Column("none", "bytes", missing="default", default="-"),
        ),
    )
    found = list_records(tmp_path / "in", fields=fields)
    assert (found.rejects, found.problems, found.skipped) == ([], [], {"other_file": 2})
    numbers = [*range(4), *range(5, 9), *range(9, 13)]
    for position, (number, ref) in enumerate(zip(numbers, found.refs, strict=True)):
        assert (ref.position, ref.label, ref.split) == (
            position,
            str(number - 3),
            "validation" if number > 8 else "train",
        )
        weights, name, none = ref.columns
        assert (name, none) == (f"n{number}".encode(), b"-")
        assert [struct.pack("<f", each) for each in weights] == [struct.pack("<f", each) for each in (0.1, number)]
        data = unpacked_content.unpack(ref.uri).read(ref.offset, ref.length) if compression else tars.read_ref(ref)
        assert data == image_sets.make_image(number)
    assert found.refs[5].key == f"train-00001-of-00002.tfrecord{suffix}/1"


def test_split_is_read_from_the_name_of_the_shard() -> None:
    for name, split in [
        ("train-00000-of-00010", "train"),
        ("validation-00003-of-00128.tfrecord", "validation"),
        ("my-set-test-00003-of-00128.tfrecord.gz", "my-set-test"),
        ("mnist-test.tfrecord-00000-of-00001", "test"),
        ("train.tfrecord", "train"),
        ("data.tfrecord", None),
        ("coco_val.record-00000-of-00010", "val"),
        ("train-3-of-8", "train"),
    ]:
        assert tfrecord.split_of(name) == split
        assert bool(tfrecord.TfrecordSource.FILE_NAME.fullmatch(name)) == (name != "train-3-of-8")


def test_feature_named_split_overrides_the_name_of_the_shard(tmp_path: pathlib.Path) -> None:
    write(tmp_path / "train-00000-of-00001", images(1, split=b"test"))
    assert list_records(tmp_path, fields=table_rows.RowFields(split="split")).refs[0].split == "test"


def test_record_without_image_is_a_reject(tmp_path: pathlib.Path) -> None:
    for record, reason, detail in [
        (make_example(other=b"x"), Reason.BAD_ROW, "no feature 'image/encoded' .*'other'"),  # no-image
        (make_example(image__encoded=[]), Reason.BAD_ROW, "has 0 values, expected one"),  # empty
        (make_example(image__encoded=[b"", b""]), Reason.BAD_ROW, "has 2 values"),  # two
        (make_example(image__encoded=[1, 2]), Reason.CORRUPT, "holds numbers, expected bytes"),  # numbers
        (b"\xff no example", Reason.CORRUPT, "not a tf.train.Example"),  # no-example
        (make_example(image__encoded=JPEG, n=[1, 2]), Reason.BAD_VALUE, "'n' holds 2 values, expected one"),  # list
    ]:
        folder = case_tables.new_folder(tmp_path)
        write(folder / "x.tfrecord", [images(1, n=1)[0], record, images(1, n=2)[0]])
        found = list_records(folder, fields=table_rows.RowFields(columns=(table_rows.Column("n", "int64"),)))
        assert [ref.columns for ref in found.refs] == [(1,), (2,)]
        (reject,) = found.rejects
        offset = 16 + len(images(1, n=1)[0])
        assert (reject.key, reject.stage, reject.reason) == ("x.tfrecord/1", "list", reason)
        assert reject.detail.startswith(f"record 1 of {folder}/x.tfrecord at byte offset {offset}: ")
        assert re.search(detail, reject.detail)


def test_flipped_byte_in_a_record_rejects_only_that_record(tmp_path: pathlib.Path) -> None:
    examples = images(5)
    write(tmp_path / "x.tfrecord", examples)
    second = 16 + len(examples[0])
    written_files.flip(tmp_path / "x.tfrecord", second + 12 + 40)
    found = list_records(tmp_path, fields=table_rows.RowFields(label="image/class/label"))
    assert [ref.label for ref in found.refs] == ["0", "2", "3", "4"]
    (reject,) = found.rejects
    assert (reject.key, reject.stage, reject.reason) == ("x.tfrecord/1", "list", Reason.CORRUPT)
    assert f"x.tfrecord at byte offset {second}: the checksum of a record of {len(examples[1])} bytes" in reject.detail


@pytest.mark.parametrize("compression", ["", "GZIP"])
@pytest.mark.parametrize("damage", ["length", "cut"])
def test_records_after_a_broken_length_are_a_problem(tmp_path: pathlib.Path, compression: str, damage: str) -> None:
    import gzip

    examples = images(5)
    write(tmp_path / "x.tfrecord", examples)
    data = bytearray((tmp_path / "x.tfrecord").read_bytes())
    third = 32 + len(examples[0]) + len(examples[1])
    if damage == "length":
        data[third + 2] ^= 1
    else:
        del data[third + 100 :]
    (tmp_path / "x.tfrecord").unlink()
    name = "x.tfrecord.gz" if compression else "x.tfrecord"
    (tmp_path / name).write_bytes(gzip.compress(data) if compression else data)
    found = list_records(tmp_path)
    assert len(found.refs) == 2
    (problem,) = found.problems
    what = "checksum of a record's length does not match" if damage == "length" else "is cut short"
    assert f"TFRecord file '{tmp_path}/{name}': " in problem and what in problem
    assert f"at byte offset {third}, after 2 records; those from there on would be lost" in problem
    if not compression:
        assert f"lost, {len(data) - third:,} bytes: fetch the file again" in problem


def test_files_are_recognized_by_their_content(tmp_path: pathlib.Path) -> None:
    for name in ("train", "a.records", "b.record", "c.TFREC", "d.bin", "deep/e"):
        write(tmp_path / name, images(1))
    write(tmp_path / "f", images(1), "GZIP")
    (tmp_path / "notes").write_bytes(b"no records here at all")
    (tmp_path / "readme.md").write_bytes(b"x" * 40)
    found = list_records(tmp_path)
    names = ["a.records", "b.record", "c.TFREC", "d.bin", "deep/e", "f", "train"]
    assert ([ref.key for ref in found.refs], found.problems) == ([f"{name}/0" for name in names], [])
    assert found.skipped == {"other_file": 2}


def recorded(index: int, **changes: Any) -> bytes:
    return foreign_shards.serialize(foreign_shards.tfrecorder(index) | changes)


def test_shapes_and_base64_of_each_record_are_checked(tmp_path: pathlib.Path) -> None:
    keys = ("image_height", "image_width", "image_channels")
    write(
        tmp_path / "train-00000-of-00001.tfrecord",
        [recorded(0), recorded(1, image_width=7), recorded(2, image_height=[4, 4]), recorded(3, image_channels=b"3")],
    )
    found = list_records(tmp_path, options=tfrecord.Tfrecord(image="image", raw_shape=keys, base64=True))
    assert [(ref.key[-1], ref.expected) for ref in found.refs] == [("0", (4, 6))]
    wrong, several, text = (reject.detail for reject in found.rejects)
    assert wrong.endswith("the image has 72 bytes, and image_height, image_width, image_channels are 4, 7 and 3")
    assert "(source.tfrecord.raw_shape) are not one whole number each" in several
    assert "are not one whole number each" in text


def test_record_whose_length_looks_like_gzip_is_read(tmp_path: pathlib.Path) -> None:
    record = make_example(image__encoded=JPEG, pad=b"x" * 35000)
    record = make_example(image__encoded=JPEG, pad=b"x" * (35000 + 0x8B1F - len(record)))
    write(tmp_path / "x.tfrecord", [record])
    assert (tmp_path / "x.tfrecord").read_bytes()[:2] == b"\x1f\x8b"
    assert len(list_records(tmp_path).refs) == 1


def test_unused_features_are_not_read(tmp_path: pathlib.Path) -> None:
    write(tmp_path / "x.tfrecord", images(50, big=b"z" * 100_000))
    parts = list(tfrecord.TfrecordSource(str(tmp_path)).list_all())
    assert sum(len(pickle.dumps(part)) for part in parts) < 5_000


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_mutated_files_give_references_rejects_and_problems(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    from imagebeam import records

    folder = tmp_path_factory.mktemp("fuzz")
    examples = [bytearray(each) for each in images(3, name=[b"a", b"b"], weights=[1.0, 2.0])]
    for _ in range(data.draw(st.integers(0, 4))):  # under a checksum that is right, too
        each = data.draw(st.sampled_from(examples))
        position = data.draw(st.integers(0, 40) | st.integers(0, len(each) - 1))
        each[position] = data.draw(st.integers(0, 255))
    with open(folder / "x.tfrecord", "wb") as file:
        writer = records.RecordWriter(file)
        for each in examples:
            writer.write(bytes(each))
        writer.finish()
    mutated = bytearray((folder / "x.tfrecord").read_bytes())
    for _ in range(data.draw(st.integers(0, 2))):
        mutated[data.draw(st.integers(0, len(mutated) - 1))] = data.draw(st.integers(0, 255))
    cut = mutated[: data.draw(st.integers(0, len(mutated)))] if data.draw(st.booleans()) else mutated
    (folder / "x.tfrecord").write_bytes(cut)
    fields = table_rows.RowFields(key="image/key", columns=(table_rows.Column("weights", "float", many=True),))
    found = list_records(folder, fields=fields)
    assert found.problems or len(found.refs) + len(found.rejects) == 3 or len(cut) < len(mutated)
    assert all(0 <= ref.offset <= ref.offset + ref.length <= len(cut) for ref in found.refs)
    json.dumps([reject._asdict() for reject in found.rejects])


def test_split_and_number_of_a_path() -> None:
    for path, split, number, total in [
        ("train-00000-of-01024", "train", 0, 1024),
        ("validation-00127-of-00128", "validation", 127, 128),
        ("train-00000-of-00016.tfrecord", "train", 0, 16),
        ("mnist-test.tfrecord-00000-of-00001", "test", 0, 1),
        ("my_set-extra.tfrecord-00001-of-00002", "extra", 1, 2),
        ("flowers_train_00003-of-00005.tfrecord", "train", 3, 5),
        ("coco_val.record-00000-of-00010", "val", 0, 10),
        ("val2017-00000-of-00032.tfrecord", "val2017", 0, 32),
        ("Train-00000-of-00001.tfrecord.gz", "train", 0, 1),
        ("pets_00000_of_00002.tfrecord", "pets", 0, 2),
        ("train.record", "train", -1, 0),
        ("test.tfrecords", "test", -1, 0),
        ("train_0007.tfrecord", "train", 7, 0),
        ("val12.tfrec", "val12", -1, 0),
        ("validation/00-512x512-798.tfrec", "validation", 798, 0),
        ("tfrecords-jpeg-512x512/test/01-512x512-462.tfrec", "test", 462, 0),
        ("validation_tfrecords/part-00000-of-00004", "validation", 0, 4),
        ("data.tfrecord", "train", -1, 0),
        ("train", "train", -1, 0),
        ("blood cells (1)-00000-of-00001", "blood_cells_1", 0, 1),
    ]:
        named = tfrecord.parse_path(path)
        assert (named.split, named.number, named.total) == (split, number, total)


def test_split_by_the_users_pattern() -> None:
    for pattern, path, split in [
        (r"^(a|b)_", "a_1.tfrecord", "a"),
        (r"^(a|b)_", "c_1.tfrecord", None),
        (r"(x)?(?P<split>ours|theirs)", "theirs.tfrecord", "theirs"),
        (r"^[^/]+", "fold 1/0.tfrecord", "fold_1"),
    ]:
        assert tfrecord.split_by(re.compile(pattern), path) == split
