from __future__ import annotations

import dataclasses
import gzip
import os
import pathlib
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from imagebeam import errors, storage
from imagebeam.pipelines import convert
from imagebeam.transforms import elements
from imagebeam.transforms.formats import base_format, idx
from imagebeam.transforms.formats.arrays import array_source
from imagebeam.transforms.shard import read_ahead
from imagebeam.transforms.sources import image_source, table_rows
from tests import case_tables, datasets, error_texts, idx_files

IMAGES = {"train": "train-images*", "test": "t10k-images*"}
LABELS = {"train": "train-labels*", "test": "t10k-labels*"}
NO_FIELDS = table_rows.NO_FIELDS
LABELLED = table_rows.RowFields(label="label")


def open_source(
    folder: Any, images: Any = IMAGES, labels: Any = LABELS, fields: table_rows.RowFields = LABELLED
) -> array_source.ArraysSource:
    return idx.Idx(images, labels).open(base_format.Request(str(folder), fields=fields, label_by="column"))


def list_refs(source: array_source.ArraysSource) -> list[elements.ImageRef]:
    listings = list(source.list_all())
    assert all(found.rejects == found.problems == () for found in listings)
    assert all(found.num_refs <= image_source.MAX_REFS for found in listings)
    return [ref for found in listings if found.num_refs for ref in elements.unpack_refs(found.packed_refs)]


@pytest.mark.parametrize("zipped", [(), ("t",), ("train-im", "t10k-la")], ids=["plain", "gz", "mixed"])
def test_list_all_yields_each_picture_and_its_label(tmp_path: pathlib.Path, zipped: tuple[str, ...]) -> None:
    written = idx_files.write_mnist(tmp_path, 12, 5, zipped=zipped)
    refs = list_refs(open_source(tmp_path))
    assert [ref.key for ref in refs] == [f"train/{n:05d}" for n in range(12)] + [f"test/{n:05d}" for n in range(5)]
    assert [(ref.split, ref.position) for ref in refs[10:14]] == [
        ("train", 10), ("train", 11), ("test", 0), ("test", 1),
    ]  # fmt: skip
    pictures, digits = (np.concatenate(each) for each in zip(*written.values()))
    fetched = [np.frombuffer(data, np.uint8) for _, data in read_ahead.fetch(refs)]
    np.testing.assert_array_equal(np.array(fetched).reshape(-1, 28, 28), pictures)
    assert [ref.label for ref in refs] == [str(digit) for digit in digits]
    assert all(ref.version == os.stat(ref.uri).st_mtime_ns and ref.size == ref.length == 784 for ref in refs)


def test_list_all_over_a_network_yields_the_same(tmp_path: pathlib.Path) -> None:
    idx_files.write_mnist(tmp_path, 12, 5, zipped=("train",))
    store = storage.storage_of("memory://mnist")
    for path in tmp_path.iterdir():
        store.write_whole(f"memory://mnist/{path.name}", path.read_bytes())
    local, remote = list_refs(open_source(tmp_path)), list_refs(open_source("memory://mnist"))
    assert [ref._replace(uri="", version=0) for ref in remote] == [ref._replace(uri="", version=0) for ref in local]
    assert [data for _, data in read_ahead.fetch(remote)] == [data for _, data in read_ahead.fetch(local)]


def test_list_all_of_many_pictures_yields_them_in_bounded_listings(tmp_path: pathlib.Path) -> None:
    idx_files.write_mnist(tmp_path, 2 * image_source.MAX_REFS + 3, 2, side=1)
    refs = list_refs(open_source(tmp_path))
    assert len({ref.key for ref in refs}) == len(refs) == 20_005
    assert [ref.offset for ref in refs[::10_000]] == [16, 10_016, 20_016]


def test_open_source_prefers_a_plain_file_to_its_gz(tmp_path: pathlib.Path) -> None:
    idx_files.write_mnist(tmp_path, 3, 2, zipped=("t",))
    idx_files.write_mnist(tmp_path, 3, 2)
    assert {ref.uri.rpartition("/")[2] for ref in list_refs(open_source(tmp_path))} == {
        "train-images-idx3-ubyte",
        "t10k-images-idx3-ubyte",
    }


def test_list_all_fills_columns_from_the_label(tmp_path: pathlib.Path) -> None:
    idx_files.write_mnist(tmp_path, 3, 2)
    fields = table_rows.RowFields(
        columns=(table_rows.Column("label", "int64"), table_rows.Column("label", "bytes", many=True))
    )
    refs = list_refs(open_source(tmp_path, fields=fields))
    digits = [*idx_files.digits(0, 3), *idx_files.digits(1, 2)]
    assert [ref.columns for ref in refs] == [(int(digit), (b"%d" % digit,)) for digit in digits]


def test_list_all_rejects_labels_that_are_not_flags(tmp_path: pathlib.Path) -> None:
    idx_files.write(tmp_path / "train-images", idx_files.pictures(0, 3, 2, 2))
    idx_files.write(tmp_path / "train-labels", np.array([1, 7, 0], np.uint8))
    flags = table_rows.RowFields(label_flags=("label",))
    (found,) = open_source(tmp_path, {"train": "*images"}, {"train": "*labels"}, flags).list_all()
    assert [ref.label for ref in elements.unpack_refs(found.packed_refs)] == [("label",), ()]
    assert [(reject.key, reject.reason) for reject in found.rejects] == [("train/00001", elements.Reason.BAD_VALUE)]


# --- what cannot be taken --------------------------------------------------------------------------------------------


def header(kind: int, *shape: int) -> bytes:
    return bytes((0, 0, kind, len(shape))) + struct.pack(f">{len(shape)}I", *shape)


GOOD = idx_files.encode(idx_files.pictures(0, 3, 4, 5))


def test_open_source_of_a_broken_file_names_it(tmp_path: pathlib.Path) -> None:
    for name, content, code in [
        ("images", b"", "file-broken"),  # empty
        ("images", b"\0\0\x08", "file-broken"),  # three-bytes
        ("images", GOOD[:9], "file-broken"),  # header
        ("images", GOOD[:-1], "file-broken"),  # cut-short
        ("images", GOOD + b"..", "file-broken"),  # trailing
        ("images", header(8, 3) + bytes(3), "arrays-open-layout"),  # labels
        ("images", header(13, 3, 4, 5) + bytes(240), "file-broken"),  # floats
        ("images", header(7, 3, 4, 5) + bytes(60), "file-broken"),  # no-type
        ("images", b"\x01" + GOOD[1:], "file-broken"),  # first-byte
        ("images", gzip.compress(GOOD), "file-broken"),  # gzip
        ("images", header(8, 3, 0, 5), "arrays-wrong-shape"),  # no-height
        ("images", header(8, 3, 5, 5, 5) + bytes(375), "arrays-open-layout"),  # five-channels
        ("images", header(8, 2**32 - 1, 2**32 - 1, 2**32 - 1), "file-broken"),  # huge
        ("images.gz", gzip.compress(GOOD)[:-4], "file-broken"),  # gz-cut-short
        ("images.gz", GOOD, "file-broken"),  # gz-plain
        ("images.gz", gzip.compress(GOOD[:-1]), "file-broken"),  # gz-holds-less
        ("images.gz", gzip.compress(gzip.compress(GOOD)), "file-broken"),  # gzip-twice
    ]:
        folder = case_tables.new_folder(tmp_path)
        (folder / name).write_bytes(content)
        with error_texts.raises(code):
            open_source(folder, {"train": "images*"}, {}, NO_FIELDS)


def test_open_source_of_files_that_contradict_each_other_raises(tmp_path: pathlib.Path) -> None:
    for images, labels, fields, code in [
        ({"train": "a-*"}, {}, LABELLED, "arrays-no-labels"),  # no-labels
        ({"train": "a-*"}, {"train": "few"}, LABELLED, "arrays-counts-differ"),  # fewer-labels
        ({"train": "a-*"}, {"train": "a-*"}, LABELLED, "arrays-counts-differ"),  # images-as-labels
        ({"train": "a-*", "test": "b-*"}, {}, NO_FIELDS, "arrays-shapes-differ"),  # two-shapes
        ({"train": "c-*"}, {}, NO_FIELDS, "arrays-no-file"),  # none
        ({"train": "*-images"}, {}, NO_FIELDS, "arrays-not-one"),  # several
        ({"train": "folder"}, {}, NO_FIELDS, "arrays-no-file"),  # folder
        ({"train": "x/*"}, {}, NO_FIELDS, "folder-unreadable"),  # no-folder
        ({"train": "a-*"}, {"trian": "few"}, NO_FIELDS, "arrays-unknown-split"),  # split
        ({}, {}, NO_FIELDS, "arrays-no-images"),  # nothing
        ({"train": "a-*"}, {}, table_rows.RowFields(split="digit"), "arrays-unknown-column"),  # column
    ]:
        root = case_tables.new_folder(tmp_path)
        idx_files.write(root / "a-images", idx_files.pictures(0, 3, 4, 5))
        idx_files.write(root / "b-images", idx_files.pictures(0, 3, 5, 4))
        idx_files.write(root / "few", idx_files.digits(0, 2))
        (root / "folder").mkdir()
        with error_texts.raises(code):
            open_source(root, images, labels, fields)


def test_open_source_of_a_file_asks_for_its_folder(tmp_path: pathlib.Path) -> None:
    idx_files.write_mnist(tmp_path, 3, 2)
    with error_texts.raises("input-not-folder"):
        open_source(tmp_path / "train-images-idx3-ubyte")


@pytest.mark.parametrize("zipped", [(), ("t",)], ids=["plain", "gz"])
def test_files_replaced_since_the_check_give_a_problem_or_rejects(
    tmp_path: pathlib.Path, zipped: tuple[str, ...]
) -> None:
    idx_files.write_mnist(tmp_path, 3, 2, zipped=zipped)
    source = open_source(tmp_path)
    refs = [ref._replace(version=ref.version - 1) for ref in list_refs(source)]  # that no process has unpacked
    fetched = [found for _, found in read_ahead.fetch(refs)]
    assert [isinstance(found, read_ahead.ReadError) and found.reason for found in fetched] == ["changed"] * 5
    (labels,) = source.splits[1].parts[0].labels
    part = source.splits[1].parts[0]._replace(labels=(labels._replace(version=2),))
    source = dataclasses.replace(source, splits=(source.splits[0], source.splits[1]._replace(parts=(part,))))
    found = list(source.list_all())
    (problem,) = (problem for each in found for problem in each.problems)
    assert problem.startswith(f"the labels of {part.images.address!r} cannot be read ({labels.uri} was ")
    assert problem.endswith("run the command again")


# --- fuzz ------------------------------------------------------------------------------------------------------------

MUTATIONS = st.lists(
    st.tuples(st.sampled_from(["flip", "cut", "insert"]), st.integers(0, 2**16), st.binary(min_size=1, max_size=6)),
    min_size=1,
    max_size=3,
)


def mutate(data: bytes, mutations: list[tuple[str, int, bytes]]) -> bytes:
    for kind, where, piece in mutations:
        at = where % (len(data) + 1)
        data = data[:at] + {"flip": piece + data[at + len(piece) :], "cut": b"", "insert": piece + data[at:]}[kind]
    return data


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.sampled_from(["images", "labels"]), st.booleans(), MUTATIONS)
@example("images", False, [("flip", 4, b"\xff\xff\xff\xff")])
@example("labels", True, [("cut", 20, b"x")])
def test_mutated_files_give_pictures_or_a_clear_error(
    tmp_path_factory: pytest.TempPathFactory, which: str, zipped: bool, mutations: list[tuple[str, int, bytes]]
) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    for name, array in (("images", idx_files.pictures(0, 4, 3, 5)), ("labels", idx_files.digits(0, 4))):
        data = gzip.compress(idx_files.encode(array)) if zipped else idx_files.encode(array)
        (folder / (name + ".gz" * zipped)).write_bytes(mutate(data, mutations) if name == which else data)
    try:
        source = open_source(folder, {"train": "images*"}, {"train": "labels*"})
    except errors.ConfigError as e:
        assert str(folder) in str(e)
        return
    refs = list_refs(source)
    height, width, channels = source.image_shape
    assert len(refs) == source.splits[0].parts[0].images.num_images
    assert all(len(data) == height * width * channels for _, data in read_ahead.fetch(refs))


@settings(max_examples=100, deadline=None)
@given(MUTATIONS)
def test_gzip_file_broken_after_it_was_listed_gives_rejects(
    tmp_path_factory: pytest.TempPathFactory, mutations: list[tuple[str, int, bytes]]
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "images.gz"
    data = gzip.compress(GOOD)
    path.write_bytes(mutate(data, mutations))
    refs = [elements.ImageRef(str(n), str(path), 20, 0, 16 + 20 * n, 20, n) for n in range(3)]
    for ref, found in read_ahead.fetch(refs):
        if isinstance(found, read_ahead.ReadError):
            assert found.reason in (elements.Reason.CORRUPT, elements.Reason.TRUNCATED)
        elif len(path.read_bytes()) <= len(data):  # more may be another whole gzip file in front of it
            assert found == GOOD[ref.offset : ref.offset + 20]


def test_convert_of_files_that_contradict_each_other_writes_nothing(tmp_path: pathlib.Path) -> None:
    idx_files.write_mnist(tmp_path / "in", 3, 2)
    idx_files.write(tmp_path / "in" / "t10k-labels-idx1-ubyte", idx_files.digits(0, 3))
    config = {"source": {"by": "idx", "uri": str(tmp_path / "in")}, "output": {"uri": str(tmp_path / "out")}}
    with error_texts.raises("arrays-counts-differ"):
        convert.convert(config | {"label": {"by": "column", "column": "label"}}, workers=1)
    assert not (tmp_path / "out").exists()


def test_convert_with_labels_from_folders_says_where_they_are(tmp_path: pathlib.Path) -> None:
    config = {"source": {"by": "idx", "uri": str(tmp_path)}, "output": {"uri": str(tmp_path / "out")}}
    with error_texts.raises("arrays-label-by"):
        convert.convert(config, workers=1)


def test_convert_of_images_alone_needs_no_labels(tmp_path: pathlib.Path) -> None:
    idx_files.write_mnist(tmp_path / "in", 3, 2)
    idx_files.write(tmp_path / "in" / "color-idx4-ubyte", colors := idx_files.pictures(5, 6, 7, 4, 3))
    result = convert.convert(
        {
            "source": {"by": "idx", "uri": str(tmp_path / "in"), "idx": {"images": {"all": "color*"}, "labels": {}}},
            "label": {"by": "none"},
            "split": {"by": "source", "rename": {"all": "train"}},
            "output": {"uri": str(tmp_path / "out"), "shuffle": "none"},
        },
        workers=1,
    )
    assert result.catalog.counts.written == 6
    examples = datasets.read(tmp_path / "out")
    assert [each["image/encoded"] for each in examples] == [picture.tobytes() for picture in colors]
    assert {(each["image/height"], each["image/width"], each["image/channels"]) for each in examples} == {(7, 4, 3)}
    assert {(each["image/format"], each["image/colorspace"]) for each in examples} == {(b"raw", b"RGB")}
