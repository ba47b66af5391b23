"""What `source.by: arrays` finds in files, and what it says where it finds nothing."""

from __future__ import annotations

import errno
import gzip
import os
import pathlib
import pickle
from typing import Any

import h5py
import numpy as np
import pytest

from imagebeam import storage
from imagebeam.transforms import elements
from imagebeam.transforms.formats import base_format
from imagebeam.transforms.formats.arrays import array_places, array_source, arrays
from imagebeam.transforms.shard import read_ahead
from imagebeam.transforms.sources import table_rows
from tests import array_sets, case_tables, error_texts, idx_files, written_files

LABELLED = table_rows.RowFields(label="label")
X, Y = array_sets.pictures(0, 5, 4, 4), array_sets.numbers(0, 5)
RGB = array_sets.pictures(1, 5, 4, 6, 3)


def find(
    uri: Any,
    fields: table_rows.RowFields = LABELLED,
    kind: str | None = "class",
    takes_splits: bool = True,
    **wanted: Any,
) -> array_source.ArraysSource:
    request = base_format.Request(
        str(uri), fields=fields, label_by="column", label_kind=kind, split_by="source" if takes_splits else "none"
    )
    found = arrays.Arrays(**wanted).open(request)
    assert isinstance(found, array_source.ArraysSource)
    return found


def read(source: array_source.ArraysSource) -> dict[str, tuple[np.ndarray, list[Any]]]:
    """Returns the pictures and labels of each split in their order."""
    listings = list(source.list_all())
    assert all(found.rejects == found.problems == () for found in listings)
    refs = [ref for found in listings if found.num_refs for ref in elements.unpack_refs(found.packed_refs)]
    fetched = [np.frombuffer(data, np.uint8).reshape(source.image_shape) for _, data in read_ahead.fetch(refs)]
    splits = dict.fromkeys(ref.split for ref in refs)
    return {
        split: (
            np.array([picture for ref, picture in zip(refs, fetched) if ref.split == split]),
            [ref.label for ref in refs if ref.split == split],
        )
        for split in splits
    }


def check(source: array_source.ArraysSource, **expected: tuple[np.ndarray, Any]) -> None:
    found = read(source)
    assert list(found) == list(expected)
    for split, (pictures, labels) in expected.items():
        np.testing.assert_array_equal(found[split][0], pictures.reshape(found[split][0].shape))
        assert found[split][1] == [str(label) for label in labels]


def save(folder: pathlib.Path, **arrays: np.ndarray) -> None:
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)


def save_alone(folder: pathlib.Path, **arrays: np.ndarray) -> None:
    """Saves files with one array without a name, as those of Kuzushiji-49."""
    for name, array in arrays.items():
        np.savez_compressed(folder / f"k49-{name}.npz", array)


def test_find_knows_usual_names(tmp_path: pathlib.Path) -> None:
    for names in [
        ("x_train", "y_train", "x_test", "y_test"),  # keras
        ("train_images", "train_labels", "test_images", "test_labels"),  # medmnist
        ("Xtrain", "ytrain", "Xtest", "ytest"),  # joined
        ("images_training", "targets_training", "images_testing", "targets_testing"),  # long
    ]:
        for way in [np.savez, np.savez_compressed, save, save_alone]:
            folder = case_tables.new_folder(tmp_path)
            given = dict(zip(names, (X, Y, X[:2], Y[:2, None])))
            way(folder if way in (save, save_alone) else folder / "data.npz", **given)
            check(find(folder), train=(X, Y), test=(X[:2], Y[:2]))


def test_find_of_a_file_with_one_set_leaves_the_split_open(tmp_path: pathlib.Path) -> None:
    np.savez(tmp_path / "a.npz", images=RGB, labels=Y)
    check(find(tmp_path / "a.npz", takes_splits=False), **{"": (RGB, Y)})
    with error_texts.raises("arrays-no-split"):
        find(tmp_path / "a.npz")


@pytest.mark.parametrize(
    ("layout", "axes"), [("NCHW", (0, 3, 1, 2)), ("HWCN", (1, 2, 3, 0)), (None, (0, 3, 1, 2)), ("NHWC", (0, 1, 2, 3))]
)
def test_find_turns_layouts(tmp_path: pathlib.Path, layout: str | None, axes: tuple[int, ...]) -> None:
    np.savez(tmp_path / "a.npz", x_train=np.ascontiguousarray(RGB.transpose(axes)), y_train=Y)
    check(find(tmp_path, layout=layout), train=(RGB, Y))


def test_find_of_plain_rows_refers_to_the_file_itself(tmp_path: pathlib.Path) -> None:
    np.savez(tmp_path / "a.npz", x_train=X, y_train=Y)
    np.savez_compressed(tmp_path / "b.npz", x_train=X, y_train=Y)
    (plain,), (packed,) = (find(tmp_path / name).splits for name in ("a.npz", "b.npz"))
    assert plain.parts[0].images.address == str(tmp_path / "a.npz")
    assert packed.parts[0].images.address == f"{tmp_path}/b.npz#x_train%3ANHW"


@pytest.mark.parametrize("changed", [RGB, Y], ids=["images", "labels"])
def test_find_compares_the_checksums_of_npz(tmp_path: pathlib.Path, changed: np.ndarray) -> None:
    np.savez(tmp_path / "a.npz", x_train=RGB, y_train=Y)
    written_files.flip(tmp_path / "a.npz", (tmp_path / "a.npz").read_bytes().index(changed.tobytes()) + 5)
    with error_texts.raises("file-broken"):
        find(tmp_path / "a.npz")


def test_find_takes_arrays_by_the_names_in_the_config(tmp_path: pathlib.Path) -> None:
    np.savez(tmp_path / "a.npz", one=X, two=Y, three=X[:2], four=Y[:2])
    wanted: dict[str, Any] = {"images": {"train": "one", "dev": "three"}, "labels": {"train": "two", "dev": "four"}}
    check(find(tmp_path / "a.npz", **wanted), train=(X, Y), dev=(X[:2], Y[:2]))
    below = {key: {split: f"*.npz#{name}" for split, name in value.items()} for key, value in wanted.items()}
    check(find(tmp_path, **below), train=(X, Y), dev=(X[:2], Y[:2]))


def test_find_joins_files_that_a_glob_names(tmp_path: pathlib.Path) -> None:
    (tmp_path / "parts").mkdir()
    for number in (1, 2):
        np.save(tmp_path / "parts" / f"x{number}.npy", X + number)
        np.save(tmp_path / "parts" / f"y{number}.npy", Y + number)
    wanted: dict[str, Any] = {"images": {"all": "parts/x?.npy"}, "labels": {"all": "parts/y?.npy"}}
    check(find(tmp_path, **wanted), all=(np.concatenate([X + 1, X + 2]), np.concatenate([Y + 1, Y + 2])))


def test_find_of_images_of_one_axis_takes_their_shape(tmp_path: pathlib.Path) -> None:
    np.savez(tmp_path / "a.npz", x_train=array_sets.planar(RGB), y_train=Y)
    check(find(tmp_path, shape=(4, 6, 3), layout="NCHW"), train=(RGB, Y))
    with error_texts.raises("arrays-open-layout"):
        find(tmp_path, shape=(4, 6, 3))
    with error_texts.raises("arrays-wrong-layout"):
        find(tmp_path, shape=(4, 5, 1))
    with error_texts.raises("arrays-open-layout"):
        find(tmp_path)


def test_find_takes_labels_of_any_kind(tmp_path: pathlib.Path) -> None:
    for labels, expected, vocabulary in [
        (np.array([0, 3, 1, 1, 0], np.uint8), "03110", "0123"),  # bytes
        (np.array([[0], [3], [1], [1], [0]]), "03110", "0123"),  # column
        (np.array([0.0, 3.0, 1.0, 1.0, 0.0]), "03110", "0123"),  # whole-floats
        (np.eye(4, dtype=np.uint8)[[0, 3, 1, 1, 0]], "03110", "0123"),  # one-hot
        (np.array([False, True, True, False, True]), "01101", "01"),  # booleans
        (np.array([b"b", b"a", b"a", b"c", b"b"]), "baacb", ""),  # texts
        (np.array([-1, 1, 1, -1, 1]), None, ""),  # negative
    ]:
        folder = case_tables.new_folder(tmp_path)
        np.savez(folder / "a.npz", x_train=X, y_train=labels)
        source = find(folder)
        check(source, train=(X, labels if expected is None else expected))
        assert source.class_names == tuple(vocabulary)


def test_find_with_classes_names_them(tmp_path: pathlib.Path) -> None:
    np.savez(tmp_path / "a.npz", x_train=X, y_train=np.array([1, 10, 2, 1, 1]))
    source = find(tmp_path, classes={10: "zero", 1: "one", 2: "two"})
    check(source, train=(X, ["one", "zero", "two", "one", "one"]))
    assert source.class_names == ("zero", "one", "two")
    check(find(tmp_path, kind="int64", classes={10: "zero"}), train=(X, [1, 10, 2, 1, 1]))
    np.savez(tmp_path / "b.npz", x_train=X, y_train=np.array([0, 1, 0, 0, 1]), list_classes=np.array([b"no", b"cat"]))
    check(find(tmp_path / "b.npz"), train=(X, ["no", "cat", "no", "no", "cat"]))


def test_list_all_rejects_labels_that_are_not_one_class(tmp_path: pathlib.Path) -> None:
    np.savez(tmp_path / "a.npz", x_train=X, y_train=np.array([[1, 1, 0], [0, 1, 0], [0, 0, 0], [0, 2, 0], [0, 0, 1]]))
    [listing] = find(tmp_path).list_all()
    assert [ref.label for ref in elements.unpack_refs(listing.packed_refs)] == ["1", "2"]
    assert [(each.key, each.reason) for each in listing.rejects] == [
        (f"train/0000{row}", elements.Reason.BAD_VALUE) for row in (0, 2, 3)
    ]
    assert listing.rejects[0].detail.endswith("a.npz: 'y_train' has 2 of its values set to 1")
    np.savez(tmp_path / "a.npz", x_train=X, y_train=np.array([0, 1, 2, 1, 0]))
    [listing] = find(tmp_path, classes=("a", "b")).list_all()
    [reject] = listing.rejects
    assert (reject.reason, reject.key) == (elements.Reason.UNKNOWN_LABEL, "train/00002")
    assert reject.detail.endswith("'y_train' is 2, and the classes are 0: a, 1: b")


def test_list_all_of_labels_that_changed_is_a_problem(tmp_path: pathlib.Path) -> None:
    np.savez(tmp_path / "a.npz", x_train=X, y_train=Y)
    source = find(tmp_path)
    (tmp_path / "a.npz").write_bytes(b"")
    [listing] = source.list_all()
    assert "the labels of" in listing.problems[0] and "run the command again" in listing.problems[0]


FLOATS = X.astype(np.float32) / 255


def test_find_says_what_is_wrong(tmp_path: pathlib.Path) -> None:
    for given, wanted, code in [
        ({"x_train": X}, {}, "arrays-no-labels"),  # no-labels
        ({"x_train": X, "y_train": Y[:4]}, {}, "arrays-counts-differ"),  # count
        ({"x_train": FLOATS, "y_train": Y}, {}, "arrays-wrong-type"),  # floats
        ({"x_train": X.astype("i8"), "y_train": Y}, {}, "arrays-wrong-type"),  # int64
        ({"a": X, "b": Y}, {}, "arrays-no-images"),  # names
        ({"x_train": X, "train_images": X}, {}, "arrays-ambiguous"),  # several
        ({"x_train": X, "y_train": Y, "x_test": RGB, "y_test": Y}, {}, "arrays-shapes-differ"),  # shapes
        ({"x_train": X[:0], "y_train": Y[:0]}, {}, "arrays-empty"),  # none
        ({"x_train": X[:, :0], "y_train": Y}, {}, "arrays-wrong-shape"),  # no-rows
        ({"x_train": X, "y_train": np.array(["a"] * 5)}, {}, "arrays-label-type"),  # unicode
        ({"x_train": X}, {"images": {"a": "z"}}, "arrays-not-one"),  # z
        ({"x": X}, {"images": {"a": "x"}, "labels": {"b": "x"}}, "arrays-unknown-split"),  # other-split
        ({"x_train": X, "y_train": Y}, {"layout": "NHWC"}, "arrays-wrong-layout"),  # layout
    ]:
        folder = case_tables.new_folder(tmp_path)
        np.savez(folder / "a.npz", **given)  # type: ignore[arg-type]
        with error_texts.raises(code):
            find(folder / "a.npz", **wanted)


def test_find_of_labels_by_folder_or_an_unreadable_file_says_so(tmp_path: pathlib.Path) -> None:
    with error_texts.raises("arrays-label-by"):
        arrays.Arrays().open(base_format.Request(str(tmp_path)))
    with error_texts.raises("file-unreadable"), array_places.explained("a.npz"):
        raise PermissionError(errno.EACCES, "Permission denied")


def test_find_in_folders_looks_one_below(tmp_path: pathlib.Path) -> None:
    with error_texts.raises("arrays-no-images"):
        find(tmp_path)
    (tmp_path / "mnist.tar.gz").write_bytes(b"")
    with error_texts.raises("arrays-no-images"):
        find(tmp_path)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        np.savez(tmp_path / name / "a.npz", x_train=X, y_train=Y)
        if name == "a":
            check(find(tmp_path), train=(X, Y))
    with error_texts.raises("arrays-several-folders"):
        find(tmp_path)
    with error_texts.raises("input-unreadable"):
        find(tmp_path / "none")
    (tmp_path / "c.txt").touch()
    with error_texts.raises("arrays-unknown-file"):
        find(tmp_path / "c.txt", images={"train": "x"})
    with error_texts.raises("arrays-no-file"):
        find(tmp_path, images={"train": "d*#x"})
    with error_texts.raises("arrays-no-file-named"):
        find(tmp_path, images={"train": "#x"})


def test_find_of_broken_files_names_them(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.npz").write_bytes(b"nothing")
    with error_texts.raises("file-broken"):
        find(tmp_path)
    array_sets.write_cifar10(tmp_path / "cifar")
    (tmp_path / "cifar" / "data_batch_2").write_bytes(pickle.dumps(pathlib.PurePosixPath("a"), 2))
    with error_texts.raises("file-broken"):
        find(tmp_path / "cifar")


def test_find_of_other_columns_names_those_there_are(tmp_path: pathlib.Path) -> None:
    array_sets.write_cifar100(tmp_path / "cifar")
    with error_texts.raises("arrays-unknown-column"):
        find(tmp_path / "cifar")


def test_find_of_cifar_without_its_names_takes_the_numbers(tmp_path: pathlib.Path) -> None:
    written = array_sets.write_cifar10(tmp_path / "cifar")
    (tmp_path / "cifar" / "batches.meta").unlink()
    source = find(tmp_path)
    check(source, **written)
    assert source.class_names == tuple("0123456789")


def test_find_of_binary_cifar_cut_short_names_the_file(tmp_path: pathlib.Path) -> None:
    array_sets.write_cifar10(tmp_path / "cifar", is_binary=True)
    path = tmp_path / "cifar" / "data_batch_3.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with error_texts.raises("file-broken"):
        find(tmp_path)


def test_find_of_a_part_of_cifar_says_what_is_missing(tmp_path: pathlib.Path) -> None:
    written = array_sets.write_cifar10(tmp_path / "cifar")
    (tmp_path / "cifar" / "data_batch_4").unlink()
    with error_texts.raises("cifar-files-missing"):
        find(tmp_path)
    wanted: dict[str, Any] = {
        "images": {"train": "data_batch_[12]#data"},
        "labels": {"train": "data_batch_[12]#labels"},
        "shape": (32, 32, 3),
        "layout": "NCHW",
    }
    check(find(tmp_path / "cifar", **wanted), train=(written["train"][0][:6], written["train"][1][:6]))
    array_sets.write_pickle(tmp_path / "cifar" / "data_batch_4", {b"labels": [1]})
    for number in (1, 2, 3, 5):
        array_sets.write_pickle(tmp_path / "cifar" / f"data_batch_{number}", {b"labels": [1]})
    with error_texts.raises("arrays-no-images"):
        find(tmp_path, fields=table_rows.NO_FIELDS, kind=None)


@pytest.mark.parametrize("packed", ["", ".gz"])
def test_find_turns_idx_files_whose_pixels_are_in_the_order_of_columns(tmp_path: pathlib.Path, packed: str) -> None:
    """As EMNIST's are."""
    for name, array in (("images-idx3", X.transpose(0, 2, 1)), ("labels-idx1", Y)):
        idx_files.write(tmp_path / f"emnist-letters-train-{name}-ubyte{packed}", array)
    wanted: dict[str, Any] = {"images": {"train": "*train-images*"}, "labels": {"train": "*train-labels*"}}
    check(find(tmp_path, layout="NWH", **wanted), train=(X, Y))
    source = find(tmp_path, **wanted)
    check(source, train=(X.transpose(0, 2, 1), Y))
    assert source.splits[0].parts[0].images.address.endswith(f"ubyte{packed}")  # as the file has them
    path = tmp_path / f"emnist-letters-train-images-idx3-ubyte{packed}"
    data = idx_files.encode(X)[:-1]
    path.write_bytes(gzip.compress(data) if packed else data)
    os.utime(path, ns=(0, len(data)))
    with error_texts.raises("file-broken"):
        find(tmp_path, **wanted)


def test_find_at_a_storage_on_a_network_reads_the_same(tmp_path: pathlib.Path) -> None:
    written = array_sets.write_cifar10(tmp_path / "cifar")
    store = storage.storage_of("memory://cifar")
    for path in (tmp_path / "cifar").iterdir():
        store.write_whole(f"memory://cifar/batches/{path.name}", path.read_bytes())
    check(find("memory://cifar", kind="int64"), **written)
    np.savez(tmp_path / "a.npz", x_train=X, y_train=Y)
    store.write_whole("memory://plain/a.npz", (tmp_path / "a.npz").read_bytes())
    check(find("memory://plain/a.npz"), train=(X, Y))


def test_find_never_reads_texts_of_any_length_in_hdf5(tmp_path: pathlib.Path) -> None:
    """A broken one keeps HDF5's library in an endless loop."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x_train"], file["y_train"] = X, np.array(list("abcab"), dtype=h5py.string_dtype())
    with error_texts.raises("arrays-label-type"):
        find(tmp_path)
