"""Writes what the recipes of docs/recipes and the presets read, as it is downloaded.

Each writer takes the folder in which the command runs. tests/golden/recipes.json holds what the records then are.
"""

from __future__ import annotations

import base64
import csv
import json
import pathlib
import shutil
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import h5py
import numpy as np
import scipy.io
from PIL import Image

from tests import (
    array_sets,
    coco_sets,
    detection_sets,
    foreign_shards,
    idx_files,
    image_sets,
    mask_forms,
    parquet_files,
    tars,
)

Writer = Callable[[pathlib.Path], object]
PACKED: dict[bytes, str] = {}  # names of the images that were packed into containers


def images(root: pathlib.Path, *keys: str, **options: Any) -> tuple[str, ...]:
    """Writes an image under each key below `root`; returns the keys."""
    for key in keys:
        (root / key).parent.mkdir(parents=True, exist_ok=True)
        image_format = "PNG" if key.endswith(".png") else "JPEG"
        (root / key).write_bytes(image_sets.make_image(zlib.crc32(key.encode()), image_format, **options))
    return keys


def packed(number: int, image_format: str = "JPEG") -> bytes:
    """Returns an image for a container."""
    data = image_sets.make_image(number, image_format)
    PACKED[data] = f"{image_format} {number}"
    return data


def put(root: pathlib.Path, name: str, *lines: str) -> None:
    """Writes a text of lines."""
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text("".join(f"{line}\n" for line in lines), "utf-8")


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


def cats_dogs(folder: pathlib.Path) -> None:
    names = [f"{label}.{n}.jpg" for label, count in (("cat", 10), ("dog", 15)) for n in range(count)]
    images(folder / "train", *names, size=(40, 30))


def zipped_cats_dogs(folder: pathlib.Path) -> None:
    cats_dogs(folder / "in")
    shutil.make_archive(str(folder / "dogs-vs-cats"), "zip", folder / "in")


def zips_of_splits(folder: pathlib.Path) -> None:
    for split in ("train", "test"):
        images(folder / split, *(f"{split}/{label}/{n}.png" for label in ("cat", "dog") for n in range(2)))
        shutil.make_archive(str(folder / "downloads" / split), "zip", folder / split)


def photos(folder: pathlib.Path) -> None:
    images(folder / "photos", *(f"{name}/{n}.jpg" for name in ("cat", "dog") for n in range(10)))
    images(folder / "photos", *(f"{name}/deeper/{n}.png" for name in ("cat", "dog") for n in range(10)))


def imagenet_files(folder: pathlib.Path) -> None:
    images(folder / "in", *(f"{synset}_{n}.JPEG" for synset in ("n01440764", "n01443537") for n in range(3)))


def flowers(folder: pathlib.Path) -> None:
    images(folder / "bucket", *(f"{name}/{n}_n.jpg" for name in ("daisy", "roses", "tulips") for n in range(20)))
    images(folder / "bucket", "at the root.jpg", "roses/deeper/x.jpg")
    put(folder / "bucket", "LICENSE.txt", "CC-BY")


def imagefolder(folder: pathlib.Path) -> None:
    splits, labels = ("train", "test", "val"), ("cat", "dog")
    images(folder / "pets", *(f"{split}/{label}/{n}.png" for split in splits for label in labels for n in (1, 2)))


def birds(folder: pathlib.Path) -> None:
    for seed, (split, form) in enumerate((("train", "csv"), ("test", "jsonl"), ("val", "parquet"))):
        keys = images(folder / "birds", f"{split}/more/1.png", *(f"{split}/{n}.png" for n in range(3 + seed)))
        rows = [
            {"file_name": key.partition("/")[2], "species": ("jay", "owl")[sum(key.encode()) % 2], "age": age}
            for age, key in enumerate(keys, 10 * seed)
        ]
        rows_of(folder / "birds" / split / f"metadata.{form}", rows)
    images(folder / "birds", "train/in no table.png")


def imagenet(folder: pathlib.Path) -> None:
    synsets = [f"n1000000{number}" for number in range(6)]
    root = folder / "imagenet"
    images(root, *(f"train/{each}/{each}_{n}.JPEG" for n, each in enumerate(synsets * 2)))
    images(root, f"train/{synsets[0]}/gray.JPEG", mode="L")
    images(root, *(f"val/ILSVRC2012_val_{n:08d}.JPEG" for n in range(1, 11)))
    put(folder, "imagenet_2012_validation_synset_labels.txt", *(synsets[n * 7 % 6] for n in range(10)))
    put(folder, "synset_words.txt", *(f"{synset} thing {n}, {synset}" for n, synset in enumerate(synsets)))


# --- paths, lists and tables -----------------------------------------------------------------------------------------


def utkface(folder: pathlib.Path) -> None:
    names = (f"{age}_{age % 2}_{age % 5}_20170104023{age:02}.jpg.chip.jpg" for age in range(20, 60))
    images(folder / "UTKFace", *names)


def oxford_pets(folder: pathlib.Path) -> None:
    for name, numbers in (("trainval", (1, 2, 3)), ("test", (4, 5))):
        stems = [f"{breed}_{n}" for breed in ("Abyssinian", "american_bulldog") for n in numbers]
        images(folder / "in", *(f"images/{stem}.jpg" for stem in stems))
        rows = [f"{stem} 1 1 1" for stem in stems]
        put(folder / "in", f"annotations/{name}.txt", "#Image CLASS-ID SPECIES BREED ID", *rows)
    images(folder / "in", "images/Abyssinian_9.jpg", "annotations/trimaps/Abyssinian_1.png")


def food101(folder: pathlib.Path) -> None:
    for split, numbers in (("train", (1, 2, 3)), ("test", (4, 5))):
        stems = [f"{food}/{n}" for food in ("pie", "soup") for n in numbers]
        images(folder / "in", *(f"images/{stem}.jpg" for stem in stems))
        put(folder / "in", f"meta/{split}.txt", *stems)


def kaggle(folder: pathlib.Path) -> None:
    images(folder / "data", *(f"images/{n:02}.{'png' if n % 3 else 'jpg'}" for n in range(20)))
    put(folder / "data", "labels.csv", "id,label", *(f"{n:02},{('cat', 'dog')[n % 2]}" for n in range(20)))
    images(folder / "data", "images/unlabelled.jpg")


def tfrecorder(folder: pathlib.Path) -> None:
    keys = images(folder, *(f"elsewhere/{n}.jpg" for n in range(6)))
    splits = ["TRAIN", "TRAIN", "TRAIN", "VALIDATION", "TEST", "TEST"]
    rows = [
        {"split": split, "image_uri": f"{folder}/{key}", "label": ("cat", "dog")[n % 2]}
        for n, (split, key) in enumerate(zip(splits, keys))
    ]
    rows_of(folder / "bucket" / "data.csv", rows)


def urls(folder: pathlib.Path) -> None:
    """Writes a table whose addresses are relative, as no server has an address that is always the same."""
    keys = images(folder, *(f"elsewhere/{n}.jpg" for n in range(4)))
    rows_of(folder / "urls.jsonl", [{"url": key, "text": f"picture {n}"} for n, key in enumerate(keys)])


def sidecars(folder: pathlib.Path) -> None:
    """Writes images with a text and a JSON file beside each."""
    for n, key in enumerate(images(folder / "photos", *(f"{n}.jpg" for n in range(40)))):
        stem = folder / "photos" / pathlib.Path(key).stem
        stem.with_suffix(".txt").write_text(f"picture {n}\n")
        stem.with_suffix(".json").write_text(json.dumps({"width": 100 + n, **({"license": "MIT"} if n % 2 else {})}))


def cub200(folder: pathlib.Path) -> None:
    root = folder / "CUB_200_2011"
    names = [f"00{label}.{bird}/{n}.jpg" for label, bird in ((1, "Albatross"), (2, "Auk")) for n in range(4)]
    images(root, *(f"images/{name}" for name in names))
    put(root, "classes.txt", "1 001.Albatross", "2 002.Auk")
    put(root, "images.txt", *(f"{n} {name}" for n, name in enumerate(names, 1)))
    put(root, "image_class_labels.txt", *(f"{n} {name[2]}" for n, name in enumerate(names, 1)))
    put(root, "train_test_split.txt", *(f"{n} {n % 2}" for n in range(1, 9)))


def captions(form: str, folder: pathlib.Path) -> None:
    """Writes a list of captions for each image, or a row for each caption."""
    keys = images(folder / "photos", *(f"{n}.jpg" for n in range(30)))
    said = {key: [f"{n}: “going”, {number}." for number in range(n % 4)] for n, key in enumerate(keys)}
    if form == "jsonl":
        rows: list[dict[str, Any]] = [{"image": key, "captions": several} for key, several in said.items()]
    else:
        rows = [{"image": key, "caption": one} for key, several in said.items() for one in several or [""]]
    rows_of(folder / "photos" / f"captions.{form}", rows)


def multilabel(folder: pathlib.Path) -> None:
    keys = images(folder / "photos", *(f"{n:06d}.jpg" for n in range(40)))
    named = [[name for i, name in enumerate(("cat", "dog", "owl")) if n >> i & 1] for n in range(40)]
    rows = [{"image": key, "labels": " | ".join(reversed(names))} for key, names in zip(keys, named)]
    rows_of(folder / "photos" / "labels.csv", rows)


def celeba(folder: pathlib.Path) -> None:
    keys = images(folder / "celeba", *(f"{n:06d}.jpg" for n in range(40)))
    names = ("Bald", "Smiling", "Young")
    rows = [
        {"image_id": key} | {name: 1 if n >> i & 1 else -1 for i, name in enumerate(names)}
        for n, key in enumerate(keys)
    ]
    rows_of(folder / "celeba" / "list_attr_celeba.csv", rows)


def regression(folder: pathlib.Path) -> None:
    keys = images(folder / "photos", *(f"{n}.jpg" for n in range(20)))
    rows = [
        {"image": key, "target": n + 0.5, "x": n / 7, "y": "" if n % 5 == 4 else n / 9} for n, key in enumerate(keys)
    ]
    rows_of(folder / "photos" / "targets.csv", rows)


def faces(names_files: bool, folder: pathlib.Path) -> None:
    """Writes tiny PNG files and a table, with a row for each file in order, or with the files' names."""
    root, pixels = folder / "faces", np.random.default_rng(5).integers(0, 256, (40, 2, 2, 3)).astype(np.uint8)
    root.mkdir()
    for number in range(40):
        Image.fromarray(pixels[number]).save(root / f"{number:05d}.png", compress_level=0)
    if names_files:
        put(root, "ages.csv", "file,age", *(f"{row * 7 % 40:05d}.png,{row * 7 % 40 * 37 % 101}" for row in range(40)))
    else:
        put(root, "ages.csv", "age", *(str(number * 37 % 101) for number in range(40)))


# --- arrays, packed images -------------------------------------------------------------------------------------------


def medmnist(folder: pathlib.Path) -> None:
    arrays = {}
    for seed, name in enumerate(("train", "val", "test")):
        arrays[f"{name}_images"] = array_sets.pictures(seed, 6, 28, 28, 3)
        arrays[f"{name}_labels"] = (np.arange(6) % 3).astype(np.uint8)[:, None]
    np.savez_compressed(folder / "pathmnist.npz", **arrays)


def npz_digits(folder: pathlib.Path) -> None:
    np.savez(folder / "digits.npz", images=array_sets.pictures(0, 60, 8, 8), labels=np.arange(60) % 10)


def pcam(folder: pathlib.Path) -> None:
    (folder / "pcam").mkdir()
    for seed, name in enumerate(("train", "valid", "test")):
        labels = (np.arange(6, dtype=np.uint8) % 2).reshape(-1, 1, 1, 1)
        for what, array in (("x", array_sets.pictures(seed, 6, 96, 96, 3)), ("y", labels)):
            with h5py.File(folder / "pcam" / f"camelyonpatch_level_2_split_{name}_{what}.h5", "w") as file:
                file.create_dataset(what, data=array, compression="gzip", chunks=(4, *array.shape[1:]))


def catvnoncat(folder: pathlib.Path) -> None:
    (folder / "in").mkdir()
    for seed, split in enumerate(("train", "test")):
        with h5py.File(folder / "in" / f"{split}_catvnoncat.h5", "w") as file:
            file[f"{split}_set_x"], file[f"{split}_set_y"] = array_sets.pictures(seed, 6, 16, 16, 3), np.arange(6) % 2
            file["list_classes"] = np.array([b"non-cat", b"cat"])


def svhn(is_compressed: bool, folder: pathlib.Path) -> None:
    (folder / "in").mkdir()
    for seed, split in enumerate(("train", "test")):
        values = {"X": array_sets.pictures(seed, 32, 32, 3, 7), "y": np.array([[10, 1, 2, 3, 9, 10, 5]], np.uint8).T}
        scipy.io.savemat(folder / "in" / f"{split}_32x32.mat", values, do_compression=is_compressed)


def fer2013(columns: Sequence[str], folder: pathlib.Path) -> None:
    usages = ("Training", "PublicTest", "PrivateTest")
    rows = []
    for row, picture in enumerate(array_sets.pictures(0, 21, 48, 48)):
        named = {"emotion": row % 7, "pixels": " ".join(map(str, picture.ravel())), "Usage": usages[row % 3]}
        rows.append({name: named[name.strip()] for name in columns})
    rows_of(folder / "fer2013.csv", rows)


def mnist_csv(has_header: bool, folder: pathlib.Path) -> None:
    header = ",".join(["label", *(f"{row}x{column}" for row in range(1, 29) for column in range(1, 29))])
    for seed, split in enumerate(("train", "test")):
        pictures, labels = array_sets.pictures(seed, 6, 28, 28), array_sets.numbers(seed, 6, 24)
        lines = [",".join(map(str, [label, *p.ravel()])) for label, p in zip(labels, pictures)]
        put(folder / "in", f"sign_mnist_{split}.csv", *([header] if has_header else []), *lines)


def emnist(kind: str, num_classes: int, first: int, folder: pathlib.Path) -> None:
    (folder / "gzip").mkdir()
    for seed, split in enumerate(("train", "test")):
        lying = array_sets.pictures(seed, 6, 28, 28).transpose(0, 2, 1)
        labels = array_sets.numbers(5, 6, num_classes) + first
        for name, array in (("images-idx3", lying), ("labels-idx1", labels)):
            idx_files.write(folder / "gzip" / f"emnist-{kind}-{split}-{name}-ubyte.gz", array)


def mnist(zipped: Sequence[str], folder: pathlib.Path) -> None:
    idx_files.write_mnist(folder / "mnist", 1100, 60, zipped=zipped)


def parquet(folder: pathlib.Path) -> None:
    names = ("zebra", "ant", "monkey")
    options: tuple[dict[str, Any], ...] = (
        {"compression": "none", "use_dictionary": False},
        {"row_group_size": 4},
        {"compression": "zstd"},
    )
    for number, name in enumerate(("train-00000-of-00002", "train-00001-of-00002", "validation-00000-of-00001")):
        columns = {"label": [row % 3 for row in range(10)], "caption": ["not asked for"] * 10}
        data = [packed(10 * number + row) for row in range(10)]
        parquet_files.write(folder / "cats" / "data" / f"{name}.parquet", data, columns, names, **options[number])
    put(folder / "cats", "README.md", "license: mit")


def webdataset(ending: str, folder: pathlib.Path) -> None:
    """Writes tars with the cells cls, jpg, json and txt."""
    for shard in range(3):
        members: list[tuple[str, bytes]] = []
        for number in range(shard * 10, shard * 10 + 10):
            described = {"caption": f"picture {number}", "size": {"w": 24}, "tags": ["a", "b"][: number % 3]}
            members += [
                (f"n{number % 3}/{number:06d}.cls", str(number * 7).encode()),
                (f"n{number % 3}/{number:06d}.jpg", packed(number)),
                (f"n{number % 3}/{number:06d}.json", json.dumps(described).encode()),
                (f"n{number % 3}/{number:06d}.txt", f"text {number}\n".encode()),
            ]
        name = f"set-{('train', 'train', 'test')[shard]}-{shard:06d}{ending}"
        tars.write_tar(folder / "shards" / name, members, "w:gz" if "gz" in ending else "w")


def tfrecord(ending: str, folder: pathlib.Path) -> None:
    """Writes records in ImageNet's convention, with lists of no, one and several values."""
    for shard, name in enumerate((*(f"train-0000{n}-of-00003" for n in range(3)), "validation-00000-of-00001")):
        examples = []
        for seed in range(shard % 3 * 8, shard % 3 * 8 + 8):
            features = {
                "image/encoded": packed(seed, "PNG" if seed % 3 == 0 else "JPEG"),
                "image/class/label": seed % 5 + 1,
                "image/class/text": f"class {seed % 5}",
                "image/object/bbox/xmin": [each / 8 for each in range(seed % 4)],
                "weight": seed / 7,
                "id": 2**63 - 1 - seed,
            }
            examples.append(features)
        foreign_shards.write(folder / "imagenet" / (name + ending), examples, "GZIP" if ending else "")


def recorded(folder: pathlib.Path) -> None:
    """Writes what TFRecorder writes: pixels as base64."""
    pictures = array_sets.pictures(3, 12, 6, 5, 3)
    for shard, split in enumerate(("train", "validation", "test")):
        examples = [
            {
                "image": base64.urlsafe_b64encode(pictures[row].tobytes()),
                "image_height": 6,
                "image_width": 5,
                "image_channels": 3,
                "image_name": f"{row}.jpg",
                "label": row % 2,
                "split": split.upper(),
            }
            for row in range(shard * 4, shard * 4 + 4)
        ]
        foreign_shards.write(folder / "recorded" / f"{split}-00000-of-00001.gz", examples, "GZIP")


# --- objects ---------------------------------------------------------------------------------------------------------


def yolo(train: str, val: str, folder: pathlib.Path) -> None:
    detection_sets.write_yolo(folder / "dataset", {train: 5, val: 4})
    data = {"names": list(detection_sets.CLASSES), "train": train, "val": f"../{val}"}
    put(folder / "dataset", "data.yaml", json.dumps(data))


def voc(folder: pathlib.Path) -> None:
    root = folder / "VOCdevkit" / "VOC2012"
    detection_sets.write_voc(root, {"train": range(5), "val": range(5, 9)})
    detection_sets.write_image(root / "JPEGImages" / "unlisted.jpg", 1)


def box_csv(folder: pathlib.Path) -> None:
    root = folder / "dataset"
    for name, numbers in (("train", (0, 1, 4, 5)), ("test", (8, 9))):  # no image of two objects
        detection_sets.write_csv(root / f"{name}_labels.csv", root / "images" / name, numbers)


def labelme(folder: pathlib.Path) -> None:
    """Writes JSON files with rectangles and polygons by turns."""
    width, height = detection_sets.SIZE
    for number in range(8):
        name = f"{'train' if number < 5 else 'val'}/{number}"
        detection_sets.write_image(folder / "dataset" / f"{name}.jpg", number)
        shapes = []
        for index, each in enumerate(detection_sets.boxes(number)):
            points = [[each.xmax, each.ymax], [each.xmin, each.ymin]]
            if index % 2:
                points = [points[1], [each.xmax, each.ymin], points[0], [each.xmin, each.ymax]]
            shapes.append({"label": each.name, "points": points, "shape_type": ("rectangle", "polygon")[index % 2]})
        fields = {"version": "5.2.1", "shapes": shapes, "imageWidth": width, "imageHeight": height}
        put(folder / "dataset", f"{name}.json", json.dumps(fields))
    detection_sets.write_image(folder / "dataset/train/unlabeled.jpg", 1)


def coco(kind: str, folder: pathlib.Path) -> None:
    """Writes COCO 2017: instances, person_keypoints, captions or lvis."""
    annotations = folder / "coco" / "annotations"
    for split, fields in coco_sets.write(folder / "coco").items():
        name = "train2017" if split == "train" else "val2017"
        if kind == "person_keypoints":
            coco_sets.with_keypoints(fields)
        if kind == "lvis":
            for each in fields["images"]:
                each["coco_url"] = f"http://images.example.org/{name}/{each.pop('file_name')}"
                each |= {"neg_category_ids": [1, 90], "not_exhaustive_category_ids": []}
            (folder / "coco" / f"lvis_v1_{name.removesuffix('2017')}.json").write_text(json.dumps(fields))
        else:
            content = coco_sets.captions(fields) if kind == "captions" else fields
            (annotations / f"{kind}_{name}.json").write_text(json.dumps(content))


def panoptic(folder: pathlib.Path) -> None:
    """Writes PNGs whose colors are ids of segments."""
    rng, (width, height) = np.random.default_rng(0), coco_sets.SIZE
    for split, fields in coco_sets.write(folder / "coco", 4, 3).items():
        root = folder / "coco" / "annotations" / f"panoptic_{'train' if split == 'train' else 'val'}2017"
        root.mkdir()
        stored = []
        for image in fields["images"]:
            drawn = rng.choice(list(coco_sets.CATEGORIES), 5).tolist()
            categories = dict(zip(rng.integers(1, 1 << 24, 5).tolist(), drawn, strict=True))
            ids = rng.choice([0, *categories], (height, width))
            colors = np.stack([ids % 256, ids // 256 % 256, ids // 65536], -1).astype(np.uint8)
            name = f"{image['id']:012d}.png"
            Image.fromarray(colors).save(root / name)
            segments = [
                {"id": each, "category_id": category, "iscrowd": 0, "bbox": [1, 2, 10, 8], "area": 50}
                for each, category in categories.items()
            ]
            stored.append({"image_id": image["id"], "file_name": name, "segments_info": segments})
        root.with_suffix(".json").write_text(json.dumps({**fields, "annotations": stored}))


# --- masks -----------------------------------------------------------------------------------------------------------


def masked(
    root: pathlib.Path, key: str, mask: str, seed: int, num_classes: int, save: Callable[..., bytes], **options: Any
) -> None:
    """Writes an image and its mask of random classes."""
    size = (20 + seed % 5, 12 + seed % 7)
    images(root, key, size=size)
    (root / mask).parent.mkdir(parents=True, exist_ok=True)
    chosen = np.random.default_rng(seed).integers(0, num_classes, (size[1], size[0]), np.uint8)
    (root / mask).write_bytes(save(chosen, **options))


def gray_png(chosen: np.ndarray) -> bytes:
    return image_sets.save(Image.fromarray(chosen), "PNG")


def pairs(folder: pathlib.Path) -> None:
    images(folder / "pairs", *(f"{side}/{n:03d}.png" for n in range(1, 31) for side in ("input", "target")))
    put(folder / "pairs", "notes.txt", "of a camera")


def image_lists(folder: pathlib.Path) -> None:
    """Writes documents of one to three images, half of them with nulls where texts are."""
    keys = images(folder / "documents", *(f"{n}.{'png' if n % 3 else 'jpg'}" for n in range(40)))
    rows: list[dict[str, Any]] = []
    for n in range(60):
        entries: list[str | None] = [keys[(n + each) % 40] for each in range(1 + n % 3)]
        rows.append({"images": entries, "texts": [f"said {n}"]})
        if n % 2:
            rows[-1] = {"images": [None, *entries, None], "texts": [f"“before” {n}", *[None] * len(entries), "after"]}
    rows_of(folder / "documents" / "rows.jsonl", rows)


def galleries(folder: pathlib.Path) -> None:
    lists = [[packed(n * 3 + each, "PNG" if each else "JPEG") for each in range(1 + n % 3)] for n in range(12)]
    titles = {"title": [f"product {n}" for n in range(12)]}
    parquet_files.write_lists(folder / "gallery" / "train-00000-of-00001.parquet", lists, titles)


def ade20k(folder: pathlib.Path) -> None:
    root = folder / "ADEChallengeData2016"
    for name, count in (("training", 7), ("validation", 3)):
        for n in range(count):
            masked(root, f"images/{name}/{n}.jpg", f"annotations/{name}/{n}.png", n, 151, gray_png)
    put(root, "objectInfo150.txt", "Idx Ratio Train Val Name")
    (root / "annotations/training/orphan.png").write_bytes(gray_png(np.zeros((5, 5), np.uint8)))


def voc_masks(folder: pathlib.Path) -> None:
    """Writes masks with palettes of 1 to 8 bits, for half of the images."""
    root = folder / "VOCdevkit" / "VOC2012"
    options: tuple[dict[str, Any], ...] = ({}, {"transparency": 255}, {"bits": 4}, {"bits": 2}, {"bits": 1})

    def save(chosen: np.ndarray, **more: Any) -> bytes:
        return image_sets.save(mask_forms.indexed(chosen), "PNG", **more)

    for n in range(100):
        key, mask, more = f"JPEGImages/2007_{n:06d}.jpg", f"SegmentationClass/2007_{n:06d}.png", options[n % 5]
        if n % 2:
            images(root, key)
        else:
            masked(root, key, mask, n, 1 << more.get("bits", 8), save, **more)


def carvana(folder: pathlib.Path) -> None:
    def save(chosen: np.ndarray) -> bytes:
        return image_sets.save(mask_forms.indexed(chosen, [0, 0, 0, 255, 255, 255]), "GIF", optimize=False)

    for car in range(20):
        for view in ("01", "16"):
            name = f"{car:012x}_{view}"
            masked(folder / "in", f"train/{name}.jpg", f"train_masks/{name}_mask.gif", car, 2, save)
    images(folder / "in", "test/0_01.jpg")


def camvid(folder: pathlib.Path) -> None:
    colors = {"Animal": (64, 128, 64), "Void": (0, 0, 0), "Sky": (128, 128, 128), "Road": (128, 64, 128)}
    drawn = np.array(list(colors.values()), np.uint8)
    root = folder / "in"
    put(root, "class_dict.csv", "name,r,g,b", *(f"{name}, {r}, {g}, {b}" for name, (r, g, b) in colors.items()))
    for name in ("train", "val", "test"):
        for n in range(3):
            masked(root, f"{name}/{n}.png", f"{name}_labels/{n}_L.png", n, 4, lambda chosen: gray_png(drawn[chosen]))
