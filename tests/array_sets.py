"""Writes small data sets of arrays as they are downloaded, with reproducible pictures and labels."""

from __future__ import annotations

import pathlib
import pickle
from typing import Any

import numpy as np

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
COARSE, FINE = ("animals", "plants"), ("worm", "apple", "bear", "orchid", "rose")  # CIFAR-100 has 20 and 100

Written = dict[str, tuple[np.ndarray, np.ndarray]]  # by split: pictures [count, height, width, channels] and labels


def pictures(seed: int, *shape: int) -> np.ndarray:
    """Returns different pictures, uint8 of this shape."""
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def numbers(seed: int, count: int, end: int = 10) -> np.ndarray:
    """Returns labels from 0 to `end` - 1, int64."""
    return np.random.default_rng(1000 + seed).integers(0, end, count)


def planar(images: np.ndarray) -> np.ndarray:
    """Returns the pixels of each image as one axis: all red, all green, all blue."""
    return images.transpose(0, 3, 1, 2).reshape(len(images), -1)


def write_pickle(path: pathlib.Path, value: Any) -> None:
    """Pickles a value as Python 2 does."""
    path.write_bytes(pickle.dumps(value, 2))


def write_cifar10(folder: pathlib.Path, count: int = 3, is_binary: bool = False) -> Written:
    """Writes five batches of `count` pictures and one of as many for the test."""
    folder.mkdir(parents=True)
    written = {}
    for split, names in {"train": [f"data_batch_{n}" for n in range(1, 6)], "test": ["test_batch"]}.items():
        images, labels = pictures(len(names), len(names) * count, 32, 32, 3), numbers(len(names), len(names) * count)
        for index, name in enumerate(names):
            part = slice(index * count, (index + 1) * count)
            flat = planar(images[part])
            if is_binary:
                records = np.concatenate([labels[part, None].astype(np.uint8), flat], axis=1)
                (folder / f"{name}.bin").write_bytes(records.tobytes())
            else:
                batch = {b"labels": labels[part].tolist(), b"data": flat, b"filenames": [b"a_s_000004.png"] * count}
                write_pickle(folder / name, {b"batch_label": b"a batch", **batch})
        written[split] = images, labels
    if is_binary:
        (folder / "batches.meta.txt").write_text("\n".join(CIFAR10) + "\n\n")
    else:
        write_pickle(folder / "batches.meta", {b"num_vis": 3072, b"label_names": [name.encode() for name in CIFAR10]})
    return written


def write_cifar100(folder: pathlib.Path, count: int = 6, is_binary: bool = False) -> Written:
    """Writes train and test of `count` pictures; the labels are [count, 2], coarse and fine."""
    folder.mkdir(parents=True)
    written = {}
    for seed, split in enumerate(("train", "test")):
        images = pictures(seed, count, 32, 32, 3)
        labels = np.stack([numbers(seed, count, len(COARSE)), numbers(seed + 9, count, len(FINE))], axis=1)
        coarse, fine = labels.T.tolist()
        if is_binary:
            records = np.concatenate([labels.astype(np.uint8), planar(images)], axis=1)
            (folder / f"{split}.bin").write_bytes(records.tobytes())
        else:
            batch = {
                b"coarse_labels": coarse,
                b"fine_labels": fine,
                b"data": planar(images),
                b"filenames": [b"a"] * count,
            }
            write_pickle(folder / split, batch)
        written[split] = images, labels
    if is_binary:
        (folder / "coarse_label_names.txt").write_text("\n".join(COARSE))
        (folder / "fine_label_names.txt").write_text("\n".join(FINE))
    else:
        names = {b"coarse_label_names": COARSE, b"fine_label_names": FINE}
        write_pickle(folder / "meta", {key: [name.encode() for name in several] for key, several in names.items()})
    return written
