"""What the recipes of docs/recipes and the presets read, written as it is downloaded, and what records then hold."""

from __future__ import annotations

import csv
import io
import json
import pathlib
import shutil
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import h5py
import numpy as np
import scipy.io
from PIL import Image

from tests import array_sets, coco_sets, detection_sets, idx_files, image_sets, mask_forms, parquet_files, tars

ANY = "*"  # in place of a split: whichever one the hash chooses

Features = dict[str, Any]  # a value or a list of them; an array is a picture's pixels; a function checks what is stored
Splits = dict[str, dict[Any, Features]]  # by split and key
Writer = Callable[[pathlib.Path], Splits]  # into the folder in which the command runs


def images(root: pathlib.Path, keys: Iterable[str], **options: Any) -> dict[str, Features]:
    """Writes an image under each key below `root`."""
    found = {}
    for key in keys:
        (root / key).parent.mkdir(parents=True, exist_ok=True)
        image_format = "PNG" if key.endswith(".png") else "JPEG"
        found[key] = {"image/encoded": image_sets.make_image(zlib.crc32(key.encode()), image_format, **options)}
        (root / key).write_bytes(found[key]["image/encoded"])
    return found


def put(root: pathlib.Path, name: str, *lines: str) -> None:
    """Writes a text of lines."""
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text("".join(f"{line}\n" for line in lines), "utf-8")


def classes(found: dict[str, Features], name_of: Callable[[str], str], names: Sequence[str], base: int = 0) -> None:
    """Adds the label of each example: the name that `name_of` returns for its key."""
    for key, each in found.items():
        each |= {"image/class/label": names.index(name_of(key)) + base, "image/class/text": name_of(key)}


def rows_of(path: pathlib.Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes a table: CSV, JSON lines or Parquet, by its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        parquet_files.pyarrow.parquet.write_table(parquet_files.pa.Table.from_pylist(list(rows)), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        with open(path, "w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, list(rows[0]))
            table.writeheader()
            table.writerows(rows)


# --- folders ---------------------------------------------------------------------------------------------------------


def cats_dogs(folder: pathlib.Path) -> Splits:
    names = [f"{label}.{n}.jpg" for label, count in (("cat", 10), ("dog", 15)) for n in range(count)]
    found = images(folder / "train", names, size=(40, 30))
    return {
        ANY: {name: {"image_raw": each["image/encoded"], "label": int(name[0] == "d")} for name, each in found.items()}
    }


def zipped_cats_dogs(folder: pathlib.Path) -> Splits:
    found = cats_dogs(folder)[ANY]
    (folder / "in").mkdir()
    (folder / "train").rename(folder / "in" / "train")
    shutil.make_archive(str(folder / "dogs-vs-cats"), "zip", folder / "in")
    return {ANY: {f"train/{name}": each for name, each in found.items()}}


def zips_of_splits(folder: pathlib.Path) -> Splits:
    splits = {}
    for split in ("train", "test"):
        found = images(folder / split, [f"{split}/{label}/{n}.png" for label in ("cat", "dog") for n in range(2)])
        classes(found, lambda key: key.split("/")[1], ("cat", "dog"))
        shutil.make_archive(str(folder / "downloads" / split), "zip", folder / split)
        splits[split] = found
    return splits


def _of_folders(root: str, *patterns: str, labels: Sequence[str], numbers: int, split: str = ANY) -> Writer:
    """Returns a writer of images in a folder for each label; `#` and `@` in a pattern are number and label."""

    def write(folder: pathlib.Path) -> Splits:
        keys = {
            pattern.replace("@", label).replace("#", str(n)): label
            for pattern in patterns
            for label in labels
            for n in range(numbers)
        }
        found = images(folder / root, keys)
        classes(found, keys.__getitem__, sorted(labels))
        return {split: found}

    return write


photos = _of_folders("photos", "@/#.jpg", "@/deeper/#.png", labels=("cat", "dog"), numbers=10)
imagenet_files = _of_folders("in", "@_#.JPEG", labels=("n01440764", "n01443537"), numbers=3, split="train")
_bucket = _of_folders("bucket", "@/#_n.jpg", labels=("daisy", "roses", "tulips"), numbers=20)


def flowers(folder: pathlib.Path) -> Splits:
    found = _bucket(folder)
    images(folder / "bucket", ["at the root.jpg", "roses/deeper/x.jpg"])
    put(folder / "bucket", "LICENSE.txt", "CC-BY")
    for each in found[ANY].values():
        del each["image/class/text"]
    return found


def imagefolder(folder: pathlib.Path) -> Splits:
    splits = {}
    for split, name in (("train", "train"), ("test", "test"), ("validation", "val")):
        splits[split] = images(folder / "pets", [f"{name}/{label}/{n}.png" for label in ("cat", "dog") for n in (1, 2)])
        classes(splits[split], lambda key: key.split("/")[1], ("cat", "dog"))
    return splits


def birds(folder: pathlib.Path, forms: Sequence[str] = ("csv", "jsonl", "parquet")) -> Splits:
    splits: Splits = {}
    for seed, (split, name, form) in enumerate(
        zip(("train", "test", "validation"), ("train", "test", "val"), forms, strict=True)
    ):
        found = images(folder / "birds", [f"{name}/more/1.png", *(f"{name}/{n}.png" for n in range(3 + seed))])
        classes(found, lambda key: ("jay", "owl")[sum(key.encode()) % 2], ("jay", "owl"))
        rows = []
        for age, (key, each) in enumerate(found.items(), 10 * seed):
            each["age"] = age
            rows.append({"file_name": key.partition("/")[2], "species": each["image/class/text"], "age": age})
        rows_of(folder / "birds" / name / f"metadata.{form}", rows)
        splits[split] = found
    images(folder / "birds", ["train/in no table.png"])
    return splits


def imagenet(folder: pathlib.Path, num_synsets: int = 6) -> Splits:
    synsets = [f"n{number:08d}" for number in range(10_000_000, 10_000_000 + num_synsets)]
    texts = [f"thing {number}, {synset}" for number, synset in enumerate(synsets)]
    of_validation = [synsets[number * 7 % num_synsets] for number in range(10)]
    train = images(folder / "imagenet", [f"train/{each}/{each}_{n}.JPEG" for n, each in enumerate(synsets * 2)])
    train |= images(folder / "imagenet", [f"train/{synsets[0]}/gray.JPEG"], mode="L")
    validation = images(folder / "imagenet", [f"val/ILSVRC2012_val_{n:08d}.JPEG" for n in range(1, 11)])
    for found, synset_of in (
        (train, lambda key: key.split("/")[1]),
        (validation, lambda key: of_validation[int(key[-13:-5]) - 1]),
    ):
        for key, each in found.items():
            number = synsets.index(synset_of(key))
            each |= {"image/class/label": number + 1, "image/class/synset": synsets[number]}
            each["image/class/text"] = texts[number]
    put(folder, "imagenet_2012_validation_synset_labels.txt", *of_validation)
    put(folder, "synset_words.txt", *(f"{synset} {text}" for synset, text in zip(synsets, texts)))
    return {
        split: {key.rpartition("/")[2]: each for key, each in found.items()}
        for split, found in (("train", train), ("validation", validation))
    }


# --- paths, lists and tables -----------------------------------------------------------------------------------------


def utkface(folder: pathlib.Path) -> Splits:
    ages = range(20, 60)
    found = images(folder / "UTKFace", [f"{age}_{age % 2}_{age % 5}_20170104023{age:02}.jpg.chip.jpg" for age in ages])
    for age, each in zip(ages, found.values()):
        each |= {"image/class/label": age, "gender": age % 2, "race": age % 5}
    return {ANY: found}


def oxford_pets(folder: pathlib.Path) -> Splits:
    breeds, splits = ("Abyssinian", "american_bulldog"), {}
    for split, name, numbers in (("train", "trainval", (1, 2, 3)), ("test", "test", (4, 5))):
        splits[split] = images(folder / "in", [f"images/{breed}_{n}.jpg" for breed in breeds for n in numbers])
        classes(splits[split], lambda key: key[7:].rpartition("_")[0], breeds)
        rows = [f"{key[7:-4]} 1 1 1" for key in splits[split]]
        put(folder / "in", f"annotations/{name}.txt", "#Image CLASS-ID SPECIES BREED ID", *rows)
    images(folder / "in", ["images/Abyssinian_9.jpg", "annotations/trimaps/Abyssinian_1.png"])
    return splits


def food101(folder: pathlib.Path) -> Splits:
    splits = {}
    for split, numbers in (("train", (1, 2, 3)), ("test", (4, 5))):
        splits[split] = images(folder / "in", [f"images/{food}/{n}.jpg" for food in ("pie", "soup") for n in numbers])
        classes(splits[split], lambda key: key.split("/")[1], ("pie", "soup"))
        put(folder / "in", f"meta/{split}.txt", *(key[7:-4] for key in splits[split]))
    return splits


def kaggle(folder: pathlib.Path) -> Splits:
    found = images(folder / "data", [f"images/{n:02}.{'png' if n % 3 else 'jpg'}" for n in range(20)])
    classes(found, lambda key: ("cat", "dog")[int(key[7:9]) % 2], ("cat", "dog"))
    put(folder / "data", "labels.csv", "id,label", *(f"{key[7:9]},{e['image/class/text']}" for key, e in found.items()))
    images(folder / "data", ["images/unlabelled.jpg"])
    return {ANY: found}


def tfrecorder(folder: pathlib.Path) -> Splits:
    found = images(folder, [f"elsewhere/{n}.jpg" for n in range(6)])
    classes(found, lambda key: ("cat", "dog")[int(key[10]) % 2], ("cat", "dog"))
    names = ["TRAIN", "TRAIN", "TRAIN", "VALIDATION", "TEST", "TEST"]
    splits: Splits = {name.lower(): {} for name in names}
    rows = []
    for name, (key, each) in zip(names, found.items()):
        splits[name.lower()][f"{folder}/{key}"] = each
        rows.append({"split": name, "image_uri": f"{folder}/{key}", "label": each["image/class/text"]})
    rows_of(folder / "bucket" / "data.csv", rows)
    return splits


def cub200(folder: pathlib.Path) -> Splits:
    root = folder / "CUB_200_2011"
    keys = [f"images/00{label}.{bird}/{n}.jpg" for label, bird in ((1, "Albatross"), (2, "Auk")) for n in range(4)]
    found = images(root, keys)
    for key, each in found.items():
        each |= {"image/class/label": int(key[9]) - 1, "image/class/text": key.split("/")[1]}
    put(root, "classes.txt", "1 001.Albatross", "2 002.Auk")
    put(root, "images.txt", *(f"{n} {key[7:]}" for n, key in enumerate(keys, 1)))
    put(root, "image_class_labels.txt", *(f"{n} {key[9]}" for n, key in enumerate(keys, 1)))
    put(root, "train_test_split.txt", *(f"{n} {n % 2}" for n in range(1, 9)))
    return {"test": dict(list(found.items())[1::2]), "train": dict(list(found.items())[::2])}


def captions(form: str) -> Writer:
    """Returns a writer of a list of captions for each image, or of a row for each caption."""

    def write(folder: pathlib.Path) -> Splits:
        found = images(folder / "photos", [f"{n}.jpg" for n in range(30)])
        for n, each in enumerate(found.values()):
            each["image/caption"] = [f"{n}: \u201cgoing\u201d, {number}." for number in range(n % 4)]
        said = {key: each["image/caption"] for key, each in found.items()}
        if form == "jsonl":
            rows = [{"image": key, "captions": several} for key, several in said.items()]
        else:
            rows = [{"image": key, "caption": one} for key, several in said.items() for one in several or [""]]
        rows_of(folder / "photos" / f"captions.{form}", rows)
        return {ANY: found}

    return write


def multilabel(form: str) -> Writer:
    """Returns a writer of labels with a separator, or of a column for each class."""

    def write(folder: pathlib.Path) -> Splits:
        names = ("cat", "dog", "owl") if form == "separator" else ("Bald", "Smiling", "Young")
        root = folder / ("photos" if form == "separator" else "celeba")
        found = images(root, [f"{n:06d}.jpg" for n in range(40)])
        rows: list[dict[str, Any]] = []
        for n, (key, each) in enumerate(found.items()):
            ids = [index for index in range(3) if n >> index & 1]
            each |= {"image/class/label": ids, "image/class/text": [names[index] for index in ids]}
            if form == "separator":
                rows.append({"image": key, "labels": " | ".join(reversed(each["image/class/text"]))})
            else:
                rows.append({"image_id": key} | {name: 1 if i in ids else -1 for i, name in enumerate(names)})
        rows_of(root / ("labels.csv" if form == "separator" else "list_attr_celeba.csv"), rows)
        return {ANY: found}

    return write


def regression(has_more: bool) -> Writer:
    def write(folder: pathlib.Path) -> Splits:
        found = images(folder / "photos", [f"{n}.jpg" for n in range(20)])
        rows = []
        for n, (key, each) in enumerate(found.items()):
            each["image/class/label"] = n + 0.5
            rows.append({"image": key, "target": n + 0.5, "x": n / 7, "y": "" if n % 5 == 4 else n / 9})
            if has_more:
                each |= {"x": n / 7, "y": -1.0 if n % 5 == 4 else n / 9}
        rows_of(folder / "photos" / "targets.csv", rows)
        return {ANY: found}

    return write


def faces(names_files: bool) -> Writer:
    """Returns a writer of tiny PNG files and a table, with a row for each file in order, or with the files' names."""

    def write(folder: pathlib.Path) -> Splits:
        root = folder / "faces"
        root.mkdir()
        count = 40
        pixels = np.random.default_rng(5).integers(0, 256, (count, 2, 2, 3)).astype(np.uint8)
        splits: Splits = {"train": {}, "test": {}}
        order = [row * 7 % count for row in range(count)] if names_files else list(range(count))
        for row, number in enumerate(order):
            Image.fromarray(pixels[number]).save(root / f"{number:05d}.png", compress_level=0)
            face = {"img": (pixels[number].astype(int).sum(2) // 3).ravel().tolist(), "age": number * 37 % 101}
            splits["train" if row < 30 else "test"][f"{number:05d}.png"] = face
        lines = [f"{number:05d}.png,{number * 37 % 101}" if names_files else str(number * 37 % 101) for number in order]
        put(root, "ages.csv", "file,age" if names_files else "age", *lines)
        return splits

    return write


# --- arrays, packed images -------------------------------------------------------------------------------------------


def pixels_of(
    split: str, pictures: np.ndarray, labels: Iterable[Any], names: Sequence[str] = ()
) -> dict[str, Features]:
    found: dict[str, Features] = {}
    for row, (picture, label) in enumerate(zip(pictures, labels, strict=True)):
        found[f"{split}/{row:05d}"] = {"image/encoded": picture, "image/class/label": int(label)}
        if names:
            found[f"{split}/{row:05d}"]["image/class/text"] = names[int(label)]
    return found


def cifar10(is_binary: bool) -> Writer:
    def write(folder: pathlib.Path) -> Splits:
        written = array_sets.write_cifar10(folder / "cifar-10-batches-py", is_binary=is_binary)
        return {split: pixels_of(split, *arrays, array_sets.CIFAR10) for split, arrays in written.items()}

    return write


def cifar100(is_binary: bool) -> Writer:
    def write(folder: pathlib.Path) -> Splits:
        splits = {}
        for split, (pictures, labels) in array_sets.write_cifar100(folder / "in", is_binary=is_binary).items():
            found = pixels_of(split, pictures, labels[:, 1], array_sets.FINE)
            for each, coarse in zip(found.values(), labels[:, 0]):
                each["coarse_label"] = array_sets.COARSE[coarse]
            splits[split] = found
        return splits

    return write


def medmnist(folder: pathlib.Path) -> Splits:
    arrays, splits = {}, {}
    for seed, (split, name) in enumerate({"train": "train", "validation": "val", "test": "test"}.items()):
        pictures, labels = array_sets.pictures(seed, 6, 28, 28, 3), np.arange(6) % 3
        arrays |= {f"{name}_images": pictures, f"{name}_labels": labels.astype(np.uint8)[:, None]}
        splits[split] = pixels_of(split, pictures, labels, "012")
    np.savez_compressed(folder / "pathmnist.npz", **arrays)
    return splits


def npz_digits(folder: pathlib.Path) -> Splits:
    pictures, labels = array_sets.pictures(0, 60, 8, 8), np.arange(60) % 10
    np.savez(folder / "digits.npz", images=pictures, labels=labels)
    return {ANY: pixels_of("images", pictures, labels, "0123456789")}


def pcam(folder: pathlib.Path) -> Splits:
    splits = {}
    (folder / "pcam").mkdir()
    for seed, (split, name) in enumerate({"train": "train", "validation": "valid", "test": "test"}.items()):
        pictures, labels = array_sets.pictures(seed, 6, 96, 96, 3), np.arange(6, dtype=np.uint8) % 2
        for what, array in (("x", pictures), ("y", labels.reshape(-1, 1, 1, 1))):
            with h5py.File(folder / "pcam" / f"camelyonpatch_level_2_split_{name}_{what}.h5", "w") as file:
                file.create_dataset(what, data=array, compression="gzip", chunks=(4, *array.shape[1:]))
        splits[split] = pixels_of(split, pictures, labels, ("0", "1"))
    return splits


def catvnoncat(folder: pathlib.Path) -> Splits:
    splits = {}
    (folder / "in").mkdir()
    for seed, split in enumerate(("train", "test")):
        pictures, labels = array_sets.pictures(seed, 6, 16, 16, 3), np.arange(6) % 2
        with h5py.File(folder / "in" / f"{split}_catvnoncat.h5", "w") as file:
            file[f"{split}_set_x"], file[f"{split}_set_y"] = pictures, labels
            file["list_classes"] = np.array([b"non-cat", b"cat"])
        splits[split] = pixels_of(split, pictures, labels, ("non-cat", "cat"))
    return splits


def svhn(is_compressed: bool) -> Writer:
    def write(folder: pathlib.Path) -> Splits:
        splits, digits = {}, np.array([[10, 1, 2, 3, 9, 10, 5]], np.uint8).T
        (folder / "in").mkdir()
        for seed, split in enumerate(("train", "test")):
            values = {"X": array_sets.pictures(seed, 32, 32, 3, 7), "y": digits}
            scipy.io.savemat(folder / "in" / f"{split}_32x32.mat", values, do_compression=is_compressed)
            found = np.moveaxis(values["X"], 3, 0)
            splits[split] = pixels_of(split, found, digits[:, 0] % 10, "0123456789")
        return splits

    return write


EMOTIONS = ("angry", "disgust", "fear", "happy", "sad", "surprise", "neutral")


def fer2013(*columns: str) -> Writer:
    def write(folder: pathlib.Path) -> Splits:
        usages = {"train": "Training", "validation": "PublicTest", "test": "PrivateTest"}
        pictures, emotions = array_sets.pictures(0, 21, 48, 48), np.arange(21) % 7
        found = pixels_of("images", pictures, emotions, EMOTIONS)
        rows = []
        for row, picture in enumerate(pictures):
            cells = [emotions[row], " ".join(map(str, picture.ravel())), list(usages.values())[row % 3]]
            named = dict(zip(("emotion", "pixels", "Usage"), cells))
            rows.append({name: named[name.strip()] for name in columns})
        rows_of(folder / "fer2013.csv", rows)
        return {split: dict(list(found.items())[n::3]) for n, split in enumerate(usages)}

    return write


def mnist_csv(has_header: bool) -> Writer:
    def write(folder: pathlib.Path) -> Splits:
        splits = {}
        (folder / "in").mkdir()
        header = ",".join(["label", *(f"{row}x{column}" for row in range(1, 29) for column in range(1, 29))])
        for seed, split in enumerate(("train", "test")):
            pictures, labels = array_sets.pictures(seed, 6, 28, 28), array_sets.numbers(seed, 6, 24)
            lines = [",".join(map(str, [label, *p.ravel()])) for label, p in zip(labels, pictures)]
            put(folder / "in", f"sign_mnist_{split}.csv", *([header] if has_header else []), *lines)
            splits[split] = pixels_of(split, pictures, labels)
        return splits

    return write


def emnist(kind: str, num_classes: int, first: int) -> Writer:
    def write(folder: pathlib.Path) -> Splits:
        splits = {}
        (folder / "gzip").mkdir()
        for seed, split in enumerate(("train", "test")):
            upright, labels = array_sets.pictures(seed, 6, 28, 28), array_sets.numbers(5, 6, num_classes) + first
            for name, array in (("images-idx3", upright.transpose(0, 2, 1)), ("labels-idx1", labels)):
                idx_files.write(folder / "gzip" / f"emnist-{kind}-{split}-{name}-ubyte.gz", array)
            splits[split] = pixels_of(split, upright, labels)
        return splits

    return write


def mnist(*zipped: str) -> Writer:
    """Returns a writer of MNIST's four files; records have no keys, so their pixels are it."""

    def write(folder: pathlib.Path) -> Splits:
        written = idx_files.write_mnist(folder / "mnist", 1100, 60, zipped=zipped)
        found = {
            name: [
                (picture.tobytes(), {"label": int(label), "depth": 1, "height": 28, "width": 28})
                for picture, label in zip(*arrays)
            ]
            for name, arrays in written.items()
        }
        train, test = found["train"], found["t10k"]
        return {"validation": dict(train[:1000]), "train": dict(train[1000:]), "test": dict(test)}

    return write


def parquet(folder: pathlib.Path) -> Splits:
    names, splits = ("zebra", "ant", "monkey"), {"train": {}, "validation": {}}
    options: tuple[dict[str, Any], ...] = (
        {"compression": "none", "use_dictionary": False},
        {"row_group_size": 4},
        {"compression": "zstd"},
    )
    for number, (split, of) in enumerate((("train", 2), ("train", 2), ("validation", 1))):
        path = folder / "cats" / "data" / f"{split}-{number % 2 * (of - 1):05d}-of-{of:05d}.parquet"
        data = [image_sets.make_image(10 * number + row) for row in range(10)]
        columns = {"label": [row % 3 for row in range(10)], "caption": ["not asked for"] * 10}
        parquet_files.write(path, data, columns, names, **options[number])
        for row, each in enumerate(data):
            splits[split][f"data/{path.name}/{row}"] = {
                "image/encoded": each,
                "image/class/label": row % 3,
                "image/class/text": names[row % 3],
            }
    put(folder / "cats", "README.md", "license: mit")
    return splits


def webdataset(ending: str) -> Writer:
    """Returns a writer of tars with the cells cls, jpg, json and txt."""

    def write(folder: pathlib.Path) -> Splits:
        found = {}
        for shard in range(3):
            members: list[tuple[str, bytes]] = []
            name = f"set-{('train', 'train', 'test')[shard]}-{shard:06d}{ending}"
            for number in range(shard * 10, shard * 10 + 10):
                stem = f"n{number % 3}/{number:06d}"
                described = {"caption": f"picture {number}", "size": {"w": 24}, "tags": ["a", "b"][: number % 3]}
                data = image_sets.make_image(number)
                members += [
                    (f"{stem}.cls", str(number * 7).encode()),
                    (f"{stem}.jpg", data),
                    (f"{stem}.json", json.dumps(described).encode()),
                    (f"{stem}.txt", f"text {number}\n".encode()),
                ]
                found[f"{name}/{stem}"] = {"image/encoded": data, "image/class/label": number * 7}
            tars.write_tar(folder / "shards" / name, members, "w:gz" if "gz" in ending else "w")
        return {"train": found}

    return write


def example(features: Mapping[str, Any]) -> bytes:
    """Returns a record of TensorFlow's: bytes, text, numbers and lists of them."""
    import tensorflow as tf

    message = tf.train.Example()
    for key, value in features.items():
        values = [each.encode() if isinstance(each, str) else each for each in listed(value)]
        kind = {bytes: "bytes", int: "int64", float: "float"}[type(values[0])] if values else "float"
        several = getattr(message.features.feature[key], f"{kind}_list")
        several.SetInParent()
        several.value.extend(values)
    return message.SerializeToString()


def listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def tfrecord(compression: str) -> Writer:
    """Returns a writer of records in ImageNet's convention, with lists of no, one and several values."""

    def write(folder: pathlib.Path) -> Splits:
        import tensorflow as tf

        splits: Splits = {"train": {}, "validation": {}}
        (folder / "imagenet").mkdir()
        for split, of in (("train", 3), ("validation", 1)):
            for shard in range(of):
                name = f"{split}-{shard:05d}-of-{of:05d}" + (".gz" if compression else "")
                with tf.io.TFRecordWriter(str(folder / "imagenet" / name), compression) as writer:
                    for index in range(8):
                        seed = shard * 8 + index
                        features = {
                            "image/encoded": image_sets.make_image(seed, "PNG" if seed % 3 == 0 else "JPEG"),
                            "image/class/label": seed % 5 + 1,
                            "image/class/text": f"class {seed % 5}",
                            "image/object/bbox/xmin": [each / 8 for each in range(seed % 4)],
                            "weight": seed / 7,
                            "id": 2**63 - 1 - seed,
                        }
                        writer.write(example(features))
                        splits[split][f"{name}/{index}"] = features
        return splits

    return write


def recorded(folder: pathlib.Path) -> Splits:
    """Writes what TFRecorder writes: pixels as base64."""
    import base64

    import tensorflow as tf

    splits: Splits = {"train": {}, "validation": {}, "test": {}}
    (folder / "recorded").mkdir()
    pictures = array_sets.pictures(3, 12, 6, 5, 3)
    for shard, split in enumerate(splits):
        with tf.io.TFRecordWriter(str(folder / "recorded" / f"{split}-00000-of-00001.gz"), "GZIP") as writer:
            for row in range(shard * 4, shard * 4 + 4):
                given = {
                    "image": base64.urlsafe_b64encode(pictures[row].tobytes()),
                    "image_height": 6,
                    "image_width": 5,
                    "image_channels": 3,
                    "image_name": f"{row}.jpg",
                    "label": row % 2,
                    "split": split.upper(),
                }
                writer.write(example(given))
                kept = {name: value for name, value in given.items() if name not in ("image", "label")}
                stored = {"image/encoded": pictures[row], "image/class/label": row % 2}
                splits[split][f"{row}.jpg"] = kept | stored
    return splits


# --- objects ---------------------------------------------------------------------------------------------------------


def objects(number: int, base: int, **more: Any) -> Features:
    """Returns the features of the objects of image `number` of detection_sets."""
    boxes = detection_sets.boxes(number)
    edges = ("xmin", "xmax", "ymin", "ymax")
    return {
        "image/encoded": image_sets.make_image(number, size=detection_sets.SIZE),
        **{f"image/object/bbox/{edge}": [each.shares[n] for each in boxes] for n, edge in enumerate(edges)},
        "image/object/class/label": [detection_sets.CLASSES.index(each.name) + base for each in boxes],
        "image/object/class/text": [each.name for each in boxes],
        **more,
    }


def _detected(base: int, keys: Mapping[str, Mapping[str, int]], has_source_id: bool = True) -> Splits:
    return {
        split: {
            key: objects(number, base, **({"image/source_id": key} if has_source_id else {}))
            for key, number in found.items()
        }
        for split, found in keys.items()
    }


def yolo(train: str, val: str, *more: str) -> Writer:
    def write(folder: pathlib.Path) -> Splits:
        detection_sets.write_yolo(folder / "dataset", {train: 5, val: 4})
        data = {"names": list(detection_sets.CLASSES), "train": train, "val": f"../{val}"}
        put(folder / "dataset", "data.yaml", json.dumps(data))
        keys = {"train": {f"{train}/{n}.jpg": n for n in range(5)}}
        splits = _detected(0, keys | {"validation": {f"{val}/{n}.jpg": n for n in range(5, 9)}})
        for split, key in (("train", f"{train}/0.jpg"), ("validation", f"{val}/5.jpg")):  # without a label file
            empty = {name: [] for name in splits[split][key] if name.startswith("image/object/")}
            splits[split][key] |= empty
        return splits

    return write


def voc(folder: pathlib.Path) -> Splits:
    root = folder / "VOCdevkit" / "VOC2012"
    detection_sets.write_voc(root, {"train": range(5), "val": range(5, 9)})
    detection_sets.write_image(root / "JPEGImages" / "unlisted.jpg", 1)
    names = {"train": range(5), "validation": range(5, 9)}
    splits = _detected(1, {split: {f"JPEGImages/{n:06d}.jpg": n for n in names[split]} for split in names})
    for found in splits.values():
        for each in found.values():
            count = len(each["image/object/class/label"])
            each["image/object/difficult"] = [index % 2 for index in range(count)]
            each["image/object/truncated"] = [int(index == 0) for index in range(count)]
            each["image/object/view"] = ["Left"] * count
            each["image/source_id"] = lambda found: None
    return splits


def box_csv(folder: pathlib.Path) -> Splits:
    root, splits = folder / "dataset", {}
    for split, name, numbers in (("train", "train", (0, 1, 4, 5)), ("test", "test", (8, 9))):  # no image of two objects
        detection_sets.write_csv(root / f"{name}_labels.csv", root / "images" / name, numbers)
        splits[split] = {f"images/{name}/{n}.jpg": n for n in numbers}
    return _detected(1, splits)


def labelme(has_masks: bool) -> Writer:
    """Returns a writer of JSON files with rectangles and polygons by turns."""

    def write(folder: pathlib.Path) -> Splits:
        width, height = detection_sets.SIZE
        keys = {"train": {}, "validation": {}}
        for number in range(8):
            split, name = ("train", "train") if number < 5 else ("validation", "val")
            keys[split][f"{name}/{number}.jpg"] = number
            detection_sets.write_image(folder / "dataset" / f"{name}/{number}.jpg", number)
            shapes = []
            for index, each in enumerate(detection_sets.boxes(number)):
                points = [[each.xmax, each.ymax], [each.xmin, each.ymin]]
                if index % 2:
                    points = [points[1], [each.xmax, each.ymin], points[0], [each.xmin, each.ymax]]
                shapes.append({"label": each.name, "points": points, "shape_type": ("rectangle", "polygon")[index % 2]})
            fields = {"version": "5.2.1", "shapes": shapes, "imageWidth": width, "imageHeight": height}
            put(folder / "dataset", f"{name}/{number}.json", json.dumps(fields))
        detection_sets.write_image(folder / "dataset/train/unlabeled.jpg", 1)
        splits = _detected(1, keys)
        for split, found in splits.items():
            for key, each in found.items():
                if has_masks:
                    expected = []
                    for box in detection_sets.boxes(keys[split][key]):
                        expected.append(np.zeros((height, width), np.uint8))
                        expected[-1][box.ymin : box.ymax, box.xmin : box.xmax] = 1
                    each["image/object/mask"] = _masks(expected)
        return splits

    return write


def pixels(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)))


def _masks(expected: Sequence[np.ndarray]) -> Callable[[list[bytes]], None]:
    def check(found: list[bytes]) -> None:
        for png, each in zip(found, expected, strict=True):
            np.testing.assert_array_equal(pixels(png), each)

    return check


def coco(kind: str = "", has_masks: bool = False) -> Writer:
    """Returns a writer of COCO 2017: of objects, or of those files alone that a preset of this kind reads."""

    def write(folder: pathlib.Path) -> Splits:
        source = coco_sets.write(folder / "coco")
        annotations = folder / "coco" / "annotations"
        image_sets_of = {"train": "train2017", "validation": "val2017"}
        splits: Splits = {}
        for split, name in image_sets_of.items():
            fields = source[split]
            if kind == "keypoints":
                coco_sets.with_keypoints(fields)
            said = coco_sets.captions(fields)
            if kind == "lvis":
                for each in fields["images"]:
                    each["coco_url"] = f"http://images.example.org/{name}/{each['file_name']}"
                    each |= {"neg_category_ids": [1, 90], "not_exhaustive_category_ids": []}
                stored = {
                    **fields,
                    "images": [{k: v for k, v in e.items() if k != "file_name"} for e in fields["images"]],
                }
                (folder / "coco" / f"lvis_v1_{name.removesuffix('2017')}.json").write_text(json.dumps(stored))
            else:
                content = {"captions": said}.get(kind, fields)
                file = {"captions": "captions", "keypoints": "person_keypoints"}.get(kind, "instances")
                (annotations / f"{file}_{name}.json").write_text(json.dumps(content))
            splits[split] = {}
            for image in fields["images"]:
                found = coco_sets.objects_of(fields, image["id"])
                if kind == "keypoints" and not found:
                    continue
                key = f"{name}/{image['file_name']}"
                each = {"image/encoded": (folder / "coco" / key).read_bytes(), "image/source_id": str(image["id"])}
                if kind == "captions":
                    texts = coco_sets.objects_of(said, image["id"])
                    each["image/caption"] = [one["caption"].strip() for one in texts]
                else:
                    each |= _coco_objects(found, has_masks)
                if kind == "keypoints":
                    each |= _coco_keypoints(found)
                if kind == "lvis":
                    each |= {name: image[name] for name in ("neg_category_ids", "not_exhaustive_category_ids")}
                splits[split][key] = each
        return splits

    return write


def _coco_objects(found: Sequence[Features], has_masks: bool) -> Features:
    width, height = coco_sets.SIZE
    x, y, w, h = np.array([each["bbox"] for each in found]).reshape(-1, 4).T
    features: Features = {
        "image/object/bbox/xmin": (x / width).tolist(),
        "image/object/bbox/xmax": ((x + w) / width).tolist(),
        "image/object/bbox/ymin": (y / height).tolist(),
        "image/object/bbox/ymax": ((y + h) / height).tolist(),
        "image/object/class/label": [each["category_id"] for each in found],
        "image/object/class/text": [coco_sets.CATEGORIES[each["category_id"]] for each in found],
        "image/object/area": [each["area"] for each in found],
        "image/object/is_crowd": [each["iscrowd"] for each in found],
    }
    return features | ({"image/object/mask": lambda pngs: _check_masks(pngs, found)} if has_masks else {})


def _check_masks(pngs: Sequence[bytes], found: Sequence[Features]) -> None:
    """Compares run lengths to the pixel, and a polygon with all pixels that lie inside, but for its edge."""
    width, height = coco_sets.SIZE
    for png, each in zip(pngs, found, strict=True):
        mask = pixels(png)
        if each["iscrowd"]:
            runs = [np.full(run, index % 2) for index, run in enumerate(each["segmentation"]["counts"])]
            np.testing.assert_array_equal(mask, np.concatenate(runs).reshape(width, height).T)
        else:
            x, y, w, h = each["bbox"]
            columns = np.clip(np.minimum(np.arange(width) + 1, x + w) - np.maximum(np.arange(width), x), 0, 1)
            rows = np.clip(np.minimum(np.arange(height) + 1, y + h) - np.maximum(np.arange(height), y), 0, 1)
            share = np.outer(rows, columns)
            assert mask.shape == share.shape and (mask[share > 0.99] == 1).all() and (mask[share == 0] == 0).all()


def _coco_keypoints(found: Sequence[Features]) -> Features:
    points = np.array([each.get("keypoints", [0] * 9) for each in found], float).reshape(-1, 3)
    shares = np.clip(points[:, :2] / coco_sets.SIZE, 0, 1) * (points[:, 2:] > 0)
    return {
        "image/object/keypoint/x": shares[:, 0].tolist(),
        "image/object/keypoint/y": shares[:, 1].tolist(),
        "image/object/keypoint/visibility": points[:, 2].astype(int).tolist(),
        "image/object/keypoint/num": [each.get("num_keypoints", 0) for each in found],
    }


def panoptic(folder: pathlib.Path) -> Splits:
    """Writes PNGs whose colors are ids of segments."""
    rng, splits = np.random.default_rng(0), {}
    width, height = coco_sets.SIZE
    for split, fields in coco_sets.write(folder / "coco", 4, 3).items():
        year = "train2017" if split == "train" else "val2017"
        root = folder / "coco" / "annotations"
        (root / f"panoptic_{year}").mkdir()
        stored, splits[split] = [], {}
        for image in fields["images"]:
            drawn = rng.choice(list(coco_sets.CATEGORIES), 5).tolist()
            categories = dict(zip(rng.integers(1, 1 << 24, 5).tolist(), drawn, strict=True))
            ids = rng.choice([0, *categories], (height, width))
            colors = np.stack([ids % 256, ids // 256 % 256, ids // 65536], -1).astype(np.uint8)
            name = f"{image['id']:012d}.png"
            Image.fromarray(colors).save(root / f"panoptic_{year}" / name)
            segments = [
                {"id": each, "category_id": category, "iscrowd": 0, "bbox": [1, 2, 10, 8], "area": 50}
                for each, category in categories.items()
            ]
            stored.append({"image_id": image["id"], "file_name": name, "segments_info": segments})
            key = f"{year}/{image['file_name']}"
            splits[split][key] = {
                "image/encoded": (folder / "coco" / key).read_bytes(),
                "image/source_id": str(image["id"]),
                "image/segmentation/class/encoded": np.vectorize({0: 255, **categories}.get)(ids),
                "image/segmentation/class/format": "png",
                **_coco_objects(segments, False),
            }
        (root / f"panoptic_{year}.json").write_text(json.dumps({**fields, "annotations": stored}))
    return splits


# --- masks -----------------------------------------------------------------------------------------------------------


def masked(
    root: pathlib.Path, key: str, mask: str, seed: int, num_classes: int, save: Callable[..., bytes]
) -> Features:
    """Writes an image and its mask of random classes."""
    size = (20 + seed % 5, 12 + seed % 7)
    chosen = np.random.default_rng(seed).integers(0, num_classes, (size[1], size[0]), np.uint8)
    (found,) = images(root, [key], size=size).values()
    (root / mask).parent.mkdir(parents=True, exist_ok=True)
    (root / mask).write_bytes(save(chosen))
    return found | {"image/segmentation/class/encoded": chosen, "image/segmentation/class/format": "png"}


def gray_png(chosen: np.ndarray) -> bytes:
    return mask_forms.save(Image.fromarray(chosen), "PNG")


def ade20k(folder: pathlib.Path) -> Splits:
    root, splits = folder / "ADEChallengeData2016", {}
    for split, name, count in (("train", "training", 7), ("validation", "validation", 3)):
        splits[split] = {
            f"images/{name}/{n}.jpg": masked(
                root, f"images/{name}/{n}.jpg", f"annotations/{name}/{n}.png", n, 151, gray_png
            )
            for n in range(count)
        }
    put(root, "objectInfo150.txt", "Idx Ratio Train Val Name")
    (root / "annotations/training/orphan.png").write_bytes(gray_png(np.zeros((5, 5), np.uint8)))
    return splits


def voc_masks(folder: pathlib.Path) -> Splits:
    """Writes masks with palettes of 1 to 8 bits, for half of the images."""
    root, found = folder / "VOCdevkit" / "VOC2012", {}
    options: tuple[dict[str, Any], ...] = ({}, {"transparency": 255}, {"bits": 4}, {"bits": 2}, {"bits": 1})

    for n in range(100):
        more = options[n % 5]

        def save(chosen: np.ndarray, more: dict[str, Any] = more) -> bytes:
            return mask_forms.save(mask_forms.indexed(chosen), "PNG", **more)

        key = f"JPEGImages/2007_{n:06d}.jpg"
        if n % 2:
            images(root, [key])
        else:
            mask = f"SegmentationClass/2007_{n:06d}.png"
            found[key] = masked(root, key, mask, n, 1 << more.get("bits", 8), save)
    return {ANY: found}


def carvana(folder: pathlib.Path) -> Splits:
    def save(chosen: np.ndarray) -> bytes:
        return mask_forms.save(mask_forms.indexed(chosen, [0, 0, 0, 255, 255, 255]), "GIF", optimize=False)

    root, found = folder / "in", {}
    for car in range(20):
        for view in ("01", "16"):
            name = f"{car:012x}_{view}"
            found[f"train/{name}.jpg"] = masked(root, f"train/{name}.jpg", f"train_masks/{name}_mask.gif", car, 2, save)
    images(root, ["test/0_01.jpg"])
    return {ANY: found}


def camvid(folder: pathlib.Path) -> Splits:
    colors = {"Animal": (64, 128, 64), "Void": (0, 0, 0), "Sky": (128, 128, 128), "Road": (128, 64, 128)}
    numbers = np.array([0, 255, 1, 2])  # Void is ignored
    drawn = np.array(list(colors.values()), np.uint8)
    root, splits = folder / "in", {}
    put(root, "class_dict.csv", "name,r,g,b", *(f"{name}, {r}, {g}, {b}" for name, (r, g, b) in colors.items()))
    for split, name in (("train", "train"), ("validation", "val"), ("test", "test")):
        splits[split] = {}
        for n in range(3):
            key = f"{name}/{n}.png"
            found = masked(root, key, f"{name}_labels/{n}_L.png", n, 4, lambda chosen: gray_png(drawn[chosen]))
            found["image/segmentation/class/encoded"] = numbers[found["image/segmentation/class/encoded"]]
            splits[split][key] = found
    return splits
