"""The presets of data sets that are arrays: pictures and labels are compared with what NumPy and pickle read."""

from __future__ import annotations

import csv
import io
import pathlib
import pickle
from collections.abc import Callable
from typing import Any

import h5py
import numpy as np
import PIL.Image
import pytest
import scipy.io

import imagebeam
from imagebeam.pipelines import convert, verify_dataset
from imagebeam.pipelines.config import model as config_lib
from tests import array_sets, datasets, idx_files


def run(preset: str, source: pathlib.Path, output: pathlib.Path, *overrides: str) -> convert.ConvertResult:
    given = (f"source.uri={source}", f"output.uri={output}", *overrides)
    result = convert.convert(config_lib.load_config(preset, given), workers=1)
    assert verify_dataset.verify(str(output), decode=True).problems == ()
    return result


def read(output: pathlib.Path, split: str) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """Returns pictures and examples of a split, in the order of the keys."""
    examples = sorted(datasets.read(output, split), key=lambda each: each["image/key"])
    pictures = [np.array(PIL.Image.open(io.BytesIO(each["image/encoded"]))) for each in examples]
    return np.array(pictures), examples


def read_pickle(path: pathlib.Path) -> dict[bytes, Any]:
    return pickle.loads(path.read_bytes(), encoding="bytes")  # type: ignore[no-any-return]


def test_cifar10_preset_writes_what_its_own_instructions_read(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "in" / "cifar-10-batches-py"
    array_sets.write_cifar10(folder)
    result = run("cifar10", tmp_path / "in", tmp_path / "out")
    assert result.catalog.labels == array_sets.CIFAR10
    for split, names in (("train", [f"data_batch_{number}" for number in range(1, 6)]), ("test", ["test_batch"])):
        batches = [read_pickle(folder / name) for name in names]
        expected = np.concatenate([batch[b"data"] for batch in batches]).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        labels = [label for batch in batches for label in batch[b"labels"]]
        pictures, examples = read(tmp_path / "out", split)
        np.testing.assert_array_equal(pictures, expected)
        assert [each["image/class/label"] for each in examples] == labels
        assert [each["image/class/text"].decode() for each in examples] == [array_sets.CIFAR10[n] for n in labels]
        assert {each["image/format"] for each in examples} == {b"png"}


@pytest.mark.parametrize("overrides", [(), ("image.encode=keep",)], ids=["png", "pixels"])
def test_cifar10_preset_writes_the_same_of_both_versions(tmp_path: pathlib.Path, overrides: tuple[str, ...]) -> None:
    array_sets.write_cifar10(tmp_path / "python")
    written = array_sets.write_cifar10(tmp_path / "binary", is_binary=True)
    for version in ("python", "binary"):
        run("cifar10", tmp_path / version, tmp_path / f"out-{version}", *overrides)
    python, binary = (datasets.read(tmp_path / f"out-{version}", "test") for version in ("python", "binary"))
    assert python == binary
    batch = next(iter(imagebeam.open_dataset(str(tmp_path / "out-binary")).as_numpy(
        "test", 3, image_size=32, crop="squash", num_epochs=1, features=("image/key",)
    )))  # fmt: skip
    order = [int(key.decode().rpartition("/")[2]) for key in batch["image/key"]]
    np.testing.assert_array_equal(batch["image"], written["test"][0][order])
    np.testing.assert_array_equal(batch["label"], written["test"][1][order])


def test_emnist_preset_writes_upright_letters(tmp_path: pathlib.Path) -> None:
    upright, labels = array_sets.pictures(5, 6, 7, 9), array_sets.numbers(5, 6, 26).astype(np.uint8) + 1
    (tmp_path / "in").mkdir()
    for split in ("train", "test"):
        for name, array in (("images-idx3", upright.transpose(0, 2, 1)), ("labels-idx1", labels)):
            idx_files.write(tmp_path / "in" / f"emnist-letters-{split}-{name}-ubyte.gz", array)
    run("emnist", tmp_path / "in", tmp_path / "out")
    for split in ("train", "test"):
        pictures, examples = read(tmp_path / "out", split)
        np.testing.assert_array_equal(pictures, upright)
        assert [each["image/class/label"] for each in examples] == labels.tolist()


@pytest.mark.parametrize("is_binary", [False, True], ids=["python", "binary"])
def test_cifar100_preset_writes_fine_and_coarse_labels(tmp_path: pathlib.Path, is_binary: bool) -> None:
    written = array_sets.write_cifar100(tmp_path / "in", is_binary=is_binary)
    result = run("cifar100", tmp_path / "in", tmp_path / "out")
    assert result.catalog.labels == array_sets.FINE
    for split, (expected, labels) in written.items():
        pictures, examples = read(tmp_path / "out", split)
        np.testing.assert_array_equal(pictures, expected)
        found = [(each["coarse_label"].decode(), each["image/class/label"]) for each in examples]
        assert found == [(array_sets.COARSE[coarse], fine) for coarse, fine in labels]
    run("cifar100", tmp_path / "in", tmp_path / "numbers", "columns.coarse_label.type=int", "split.names=[train,test]")
    _, examples = read(tmp_path / "numbers", "test")
    assert [each["coarse_label"] for each in examples] == written["test"][1][:, 0].tolist()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed], ids=["stored", "deflated"])
def test_npz_preset_writes_medmnist(tmp_path: pathlib.Path, save: Callable[..., None]) -> None:
    given = {}
    for seed, split in enumerate(("train", "val", "test")):
        given[f"{split}_images"] = array_sets.pictures(seed, 6, 28, 28, 3)
        given[f"{split}_labels"] = array_sets.numbers(seed, 6, 4).astype(np.uint8)[:, None]
    given["train_labels"][0] = 4
    save(tmp_path / "pathmnist.npz", **given)
    result = run("npz", tmp_path / "pathmnist.npz", tmp_path / "out")
    assert result.catalog.labels == tuple("01234")
    for split, name in (("train", "train"), ("validation", "val"), ("test", "test")):
        pictures, examples = read(tmp_path / "out", split)
        np.testing.assert_array_equal(pictures, given[f"{name}_images"])
        assert [each["image/class/label"] for each in examples] == given[f"{name}_labels"][:, 0].tolist()


def test_npz_preset_divides_one_set(tmp_path: pathlib.Path) -> None:
    images, labels = array_sets.pictures(0, 30, 8, 8), array_sets.numbers(0, 30)
    np.savez_compressed(tmp_path / "digits.npz", images=images, labels=labels)
    shares = "split={by: hash, fractions: {train: 0.5, test: 0.5}}"
    run("npz", tmp_path / "digits.npz", tmp_path / "out", shares, "label.type=int")
    found = {split: read(tmp_path / "out", split) for split in ("train", "test")}
    assert sum(len(pictures) for pictures, _ in found.values()) == 30
    for pictures, examples in found.values():
        rows = [int(each["image/key"].decode().rpartition("/")[2]) for each in examples]
        np.testing.assert_array_equal(pictures, images[rows])
        assert [each["image/class/label"] for each in examples] == labels[rows].tolist()


def test_hdf5_preset_writes_pcam_and_the_names_of_classes(tmp_path: pathlib.Path) -> None:
    given = {}
    (tmp_path / "pcam").mkdir()
    for seed, (split, name) in enumerate({"train": "train", "validation": "valid", "test": "test"}.items()):
        given[split] = array_sets.pictures(seed, 6, 96, 96, 3), array_sets.numbers(seed, 6, 2).astype(np.uint8)
        for what, array in zip("xy", (given[split][0], given[split][1].reshape(-1, 1, 1, 1))):
            with h5py.File(tmp_path / "pcam" / f"camelyonpatch_level_2_split_{name}_{what}.h5", "w") as file:
                file.create_dataset(what, data=array, compression="gzip", chunks=(4, *array.shape[1:]))
    run("hdf5", tmp_path / "pcam", tmp_path / "out")
    for split, (expected, labels) in given.items():
        pictures, examples = read(tmp_path / "out", split)
        np.testing.assert_array_equal(pictures, expected)
        assert [each["image/class/label"] for each in examples] == labels.tolist()
    (tmp_path / "cats").mkdir()
    for split in ("train", "test"):
        with h5py.File(tmp_path / "cats" / f"{split}_catvnoncat.h5", "w") as file:
            file[f"{split}_set_x"], file[f"{split}_set_y"] = given[split][0], given[split][1].astype(np.int64)
            file["list_classes"] = np.array([b"non-cat", b"cat"])
    result = run("hdf5", tmp_path / "cats", tmp_path / "out-cats")
    assert result.catalog.labels == ("non-cat", "cat")
    pictures, examples = read(tmp_path / "out-cats", "train")
    np.testing.assert_array_equal(pictures, given["train"][0])
    assert [each["image/class/label"] for each in examples] == given["train"][1].tolist()


@pytest.mark.parametrize("is_compressed", [False, True], ids=["plain", "compressed"])
def test_svhn_preset_writes_what_scipy_reads(tmp_path: pathlib.Path, is_compressed: bool) -> None:
    (tmp_path / "in").mkdir()
    for seed, split in enumerate(("train", "test")):
        values = {"X": array_sets.pictures(seed, 32, 32, 3, 7), "y": np.array([[10, 1, 2, 3, 9, 10, 5]], np.uint8).T}
        scipy.io.savemat(tmp_path / "in" / f"{split}_32x32.mat", values, do_compression=is_compressed)
    result = run("svhn", tmp_path / "in", tmp_path / "out")
    assert result.catalog.labels == tuple("0123456789")
    for split in ("train", "test"):
        given = scipy.io.loadmat(tmp_path / "in" / f"{split}_32x32.mat")
        pictures, examples = read(tmp_path / "out", split)
        np.testing.assert_array_equal(pictures, np.moveaxis(given["X"], 3, 0))
        assert [each["image/class/label"] for each in examples] == (given["y"][:, 0] % 10).tolist()


EMOTIONS = ("angry", "disgust", "fear", "happy", "sad", "surprise", "neutral")
USAGES = {"train": "Training", "validation": "PublicTest", "test": "PrivateTest"}


@pytest.mark.parametrize(
    "columns", [("emotion", "pixels", "Usage"), ("emotion", " Usage", " pixels")], ids=["", "icml"]
)
def test_fer2013_preset_writes_what_a_csv_reader_reads(tmp_path: pathlib.Path, columns: tuple[str, ...]) -> None:
    pictures, emotions = array_sets.pictures(0, 9, 48, 48), array_sets.numbers(0, 9, 7)
    with open(tmp_path / "fer2013.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for index, picture in enumerate(pictures):
            cells = {
                "emotion": emotions[index],
                "pixels": " ".join(map(str, picture.ravel())),
                "Usage": list(USAGES.values())[index % 3],
            }
            writer.writerow([cells[name.strip()] for name in columns])
    result = run("fer2013", tmp_path / "fer2013.csv", tmp_path / "out")
    assert result.catalog.labels == EMOTIONS
    for number, split in enumerate(USAGES):
        found, examples = read(tmp_path / "out", split)
        np.testing.assert_array_equal(found, pictures[number::3])
        assert [each["image/class/label"] for each in examples] == emotions[number::3].tolist()


@pytest.mark.parametrize("has_header", [True, False])
def test_mnist_csv_preset_writes_what_numpy_reads(tmp_path: pathlib.Path, has_header: bool) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    header = ",".join(["label", *(f"{row}x{column}" for row in range(1, 29) for column in range(1, 29))])
    for seed, split in enumerate(("train", "test")):
        rows = np.column_stack([array_sets.numbers(seed, 6, 24), array_sets.pictures(seed, 6, 784)])
        np.savetxt(
            folder / f"sign_mnist_{split}.csv", rows, "%d", ",", header=header if has_header else "", comments=""
        )
    run("mnist_csv", folder, tmp_path / "out")
    for split in ("train", "test"):
        given = np.loadtxt(folder / f"sign_mnist_{split}.csv", np.int64, delimiter=",", skiprows=int(has_header))
        pictures, examples = read(tmp_path / "out", split)
        np.testing.assert_array_equal(pictures, given[:, 1:].reshape(-1, 28, 28))
        assert [each["image/class/label"] for each in examples] == given[:, 0].tolist()
    result = run("mnist_csv", folder, tmp_path / "classes", "label.type=class")
    assert result.catalog.labels[:3] == ("0", "1", "2")
    for each in datasets.read(tmp_path / "classes", "test"):
        assert each["image/class/text"].decode() == str(each["image/class/label"])
