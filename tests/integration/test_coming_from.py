"""docs/coming-from: the lines of the other tool and ours, as they are printed, on the same images.

img2dataset and MDS are run by hand, as their pages say; of them our side is run here.
"""

from __future__ import annotations

import collections
import io
import json
import pathlib
import shlex

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tests import command_line, datasets, docs_pages, environments, image_sets, tars
from tests.servers import web

LABELS = ("cat", "dog")
NUM_IMAGES = 20  # of each class


@pytest.fixture(autouse=True)
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The working folder, to which paths on the pages are relative."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def python(page: str) -> list[str]:
    return docs_pages.blocks(f"coming-from/{page}.md", "python")


def run_commands(page: str) -> None:
    """Runs the commands of a page that are ours."""
    text = "\n".join(docs_pages.blocks(f"coming-from/{page}.md", "sh")).replace("\\\n", " ")
    for line in text.splitlines():
        words = shlex.split(line)
        if words[:1] == ["imagebeam"]:
            command_line.succeed(*words[1:], *(("--workers", "1") if words[1] == "convert" else ()))


def write_images(*folders: str) -> dict[str, bytes]:
    """Writes JPEGs of 48 x 32 pixels below each folder, in one for each class; returns those of all by path."""
    written = {}
    for place, root in enumerate(folders):
        for label, name in enumerate(LABELS):
            pathlib.Path(root, name).mkdir(parents=True)
            for number in range(NUM_IMAGES):
                data = image_sets.make_image(1000 * place + 100 * label + number, size=(48, 32))
                pathlib.Path(root, name, f"{number}.jpg").write_bytes(data)
                written[f"{root}/{name}/{number}.jpg"] = data
    return written


def labels_of(dataset: tf.data.Dataset) -> collections.Counter[int]:
    return collections.Counter(int(each) for _, labels in dataset for each in np.ravel(labels))


def first_batch(train: object) -> tuple[tuple[int, ...], set[int]]:
    """Returns the shape of the images of a batch, and its labels."""
    images, labels = next(iter(train))  # type: ignore[call-overload]
    return tuple(images.shape), set(np.asarray(labels).tolist())


@pytest.mark.slow
def test_script_and_imagebeam_store_the_same_images_and_labels() -> None:
    write_images("photos")
    script, ours = python("tf_example_script")
    docs_pages.run_snippet(script)
    run_commands("tf_example_script")
    stored = []
    for record in tf.data.TFRecordDataset("train.tfrecord").as_numpy_iterator():
        feature = tf.train.Example.FromString(record).features.feature
        stored.append((feature["image/encoded"].bytes_list.value[0], feature["image/class/label"].int64_list.value[0]))
    found = [(each["image/encoded"], each["image/class/label"]) for each in datasets.read(pathlib.Path("shards"))]
    assert sorted(found) == sorted(stored) and len(found) == 2 * NUM_IMAGES
    assert first_batch(docs_pages.run_snippet(ours)["train"]) == ((32, 224, 224, 3), {0, 1})


@pytest.mark.slow
def test_tfds_and_imagebeam_read_each_other(folder: pathlib.Path) -> None:
    tfds = pytest.importorskip("tensorflow_datasets")
    images = write_images("pets/train", "pets/test")
    theirs, ours, both, ours_in_place = python("tfds")
    pairs = [
        (path, {"image": np.asarray(Image.open(io.BytesIO(data))), "label": LABELS.index(path.split("/")[2])})
        for path, data in images.items()
        if path.startswith("pets/train")
    ]
    shapes = {"image": tfds.features.Image(shape=(None, None, 3)), "label": tfds.features.ClassLabel(names=LABELS)}
    stored = tfds.dataset_builders.store_as_tfds_dataset(
        name="prepared",
        version="1.0.0",
        features=tfds.features.FeaturesDict(shapes),
        split_datasets={"train": pairs},
        data_dir=str(folder / "tfds"),
        disable_shuffling=True,
    )
    (folder / "prepared").symlink_to(stored.data_dir)
    run_commands("tfds")
    assert first_batch(docs_pages.run_snippet(theirs)["train"]) == ((32, 224, 224, 3), {0, 1})
    assert first_batch(docs_pages.run_snippet(ours)["train"]) == ((32, 224, 224, 3), {0, 1})
    assert labels_of(docs_pages.run_snippet(both)["same"]) == {0: NUM_IMAGES, 1: NUM_IMAGES}
    assert first_batch(docs_pages.run_snippet(ours_in_place)["train"]) == ((32, 224, 224, 3), {0, 1})


@pytest.mark.slow
def test_webdataset_and_imagebeam_read_the_same_tars(folder: pathlib.Path) -> None:
    for shard in range(2):
        members = []
        for number in range(NUM_IMAGES):
            members.append((f"{number:03d}.jpg", image_sets.make_image(100 * shard + number, size=(48, 32))))
            members.append((f"{number:03d}.cls", str((number + shard) % 3).encode()))
        tars.write_tar(folder / f"tars/train-{shard:06d}.tar", members)
    theirs, ours = python("webdataset")
    run_commands("webdataset")
    # pixels go by their mean, which two decoders of JPEG change little
    there = "found = sorted([int(label), float(image.mean())] for image, label in train)\nprint(json.dumps(found))"
    other = environments.make(folder / "environment", "webdataset==1.0.2", "pillow")
    done = command_line.run_other(other, "-c", f"import json\n{theirs}\n{there}", cwd=folder)
    assert done.returncode == 0, done.stderr
    found = sorted(
        [each["image/class/label"], float(np.asarray(Image.open(io.BytesIO(each["image/encoded"]))).mean())]
        for each in datasets.read(pathlib.Path("shards"))
    )
    assert len(found) == 2 * NUM_IMAGES
    np.testing.assert_allclose(found, json.loads(done.stdout.splitlines()[-1]), atol=0.1)
    batch = next(docs_pages.run_snippet(ours)["train"])
    assert batch["image"].shape == (32, 224, 224, 3) and set(batch["label"].tolist()) == {0, 1, 2}


@pytest.mark.slow
def test_our_side_of_mds_runs() -> None:
    write_images("photos")
    run_commands("mds")
    batch = next(docs_pages.run_snippet(python("mds")[1])["train"])
    assert batch["image"].shape == (32, 224, 224, 3)


@pytest.mark.slow
def test_our_side_of_img2dataset_fetches_addresses_and_reads_its_tars(folder: pathlib.Path) -> None:
    images = {f"/{number}.jpg": image_sets.make_image(number, size=(400, 300)) for number in range(40)}
    members = []
    for number in range(40):
        members.append((f"{number:09d}.jpg", images[f"/{number}.jpg"]))
        members.append((f"{number:09d}.txt", f"image {number}".encode()))
    tars.write_tar(folder / "tars/00000.tar", members)
    with web.serve(images) as address:
        rows = "".join(f"{address}{path},image {number}\n" for number, path in enumerate(images))
        pathlib.Path("urls.csv").write_text(f"url,text\n{rows}")
        run_commands("img2dataset")
    texts = {f"image {number}".encode() for number in range(40)}
    fetched = datasets.read(pathlib.Path("shards"))
    assert {each["text"] for each in fetched} == texts
    assert {(each["image/height"], each["image/width"]) for each in fetched} == {(256, 341)}
    batch = next(docs_pages.run_snippet(python("img2dataset")[0])["train"])
    assert batch["image"].shape == (32, 224, 224, 3) and set(batch["txt"].tolist()) <= texts
