"""The preset `imagenet`, on images of that very shape: 1,000 synsets, validation images side by side and their list."""

from __future__ import annotations

import collections
import io
import pathlib
import random
from collections.abc import Mapping

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from imagebeam import catalog as catalog_lib
from imagebeam import errors
from imagebeam.pipelines import convert
from tests import datasets, docs_pages, image_sets, parsed_records

NUM_VALIDATION = 200

# as in imagenet_input.py and build_imagenet_data.py
SPEC = {
    "image/encoded": tf.io.FixedLenFeature([], tf.string),
    "image/format": tf.io.FixedLenFeature([], tf.string),
    "image/height": tf.io.FixedLenFeature([], tf.int64),
    "image/width": tf.io.FixedLenFeature([], tf.int64),
    "image/channels": tf.io.FixedLenFeature([], tf.int64),
    "image/colorspace": tf.io.FixedLenFeature([], tf.string),
    "image/filename": tf.io.FixedLenFeature([], tf.string),
    "image/class/label": tf.io.FixedLenFeature([1], tf.int64),
    "image/class/synset": tf.io.FixedLenFeature([], tf.string),
    "image/class/text": tf.io.FixedLenFeature([], tf.string),
}


class ImageNet:
    """A small ImageNet: its folder and its contents."""

    def __init__(self, folder: pathlib.Path, num_synsets: int, num_validation: int):
        rng = random.Random(0)
        self.folder = folder
        self.images = folder / "imagenet"
        self.synsets = sorted(f"n{number:08d}" for number in rng.sample(range(10**7, 10**8), num_synsets))
        self.texts = {synset: f"thing {index}, Res {synset}" for index, synset in enumerate(self.synsets)}
        self.list = [rng.choice(self.synsets) for _ in range(num_validation)]
        files = {f"train/{synset}/{synset}_{rng.randrange(20000)}.JPEG": synset for synset in self.synsets}
        self.train: Mapping[str, str] = files
        names = [f"ILSVRC2012_val_{number:08d}.JPEG" for number in range(1, num_validation + 1)]
        self.validation: Mapping[str, str] = dict(zip((f"val/{name}" for name in names), self.list))
        for seed, path in enumerate([*self.train, *self.validation]):
            target = self.images / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(image_sets.make_image(seed, mode="L" if seed % 50 == 7 else "RGB"))
        self.list_file = self.write("imagenet_2012_validation_synset_labels.txt", self.list)
        lines = [f"{synset} {text}" for synset, text in self.texts.items()]
        self.texts_file = self.write("synset_words.txt", rng.sample(lines, len(lines)))

    def write(self, name: str, lines: list[str]) -> pathlib.Path:
        (self.folder / name).write_text("".join(f"{line}\n" for line in lines))
        return self.folder / name

    def convert(self, output: str = "out", overwrite: bool = False, **label: object) -> convert.ConvertResult:
        """Converts in this process, to two shards a split."""
        sections = {
            "label": {"by": "directory", "base": 1, "lists": {"val": str(self.list_file)}, **label},
            "split": {"by": "directory", "rename": {"val": "validation"}},
            "output": {"num_shards": 2},
        }
        return datasets.make(self.images, self.folder / output, overwrite=overwrite, **sections)


@pytest.fixture
def small(tmp_path: pathlib.Path) -> ImageNet:
    return ImageNet(tmp_path, num_synsets=5, num_validation=12)


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> ImageNet:
    """All 1,000 synsets, converted by the command of the page."""
    imagenet = ImageNet(tmp_path_factory.mktemp("imagenet"), 1000, NUM_VALIDATION)
    (command,) = docs_pages.blocks("recipes/imagenet.md", "sh")
    docs_pages.run_command(command, imagenet.folder)
    return imagenet


def check_split(imagenet: ImageNet, split: str, num_shards: int, expected: Mapping[str, str]) -> None:
    """Compares the records of a split, read by TensorFlow alone, with what was written by hand."""
    folder = imagenet.folder / "imagenet-tfrecords"
    names = sorted(path.name for path in folder.iterdir() if path.name.startswith(f"{split}-"))
    assert names == [f"{split}-{index:05d}-of-{num_shards:05d}" for index in range(num_shards)]
    examples = parsed_records.parse((folder / name for name in names), SPEC)
    found = {example["image/filename"].decode(): example for example in examples}
    assert sorted(found) == sorted(path.rpartition("/")[2] for path in expected)
    for path, synset in expected.items():
        example, data = found[path.rpartition("/")[2]], (imagenet.images / path).read_bytes()
        assert example["image/encoded"] == data
        assert example["image/class/label"].tolist() == [imagenet.synsets.index(synset) + 1]
        assert example["image/class/synset"].decode() == synset
        assert example["image/class/text"].decode() == imagenet.texts[synset]
        image = Image.open(io.BytesIO(data))
        gray = image.mode == "L"
        assert (example["image/width"], example["image/height"]) == image.size
        assert (example["image/channels"], example["image/colorspace"]) == ((1, b"GRAY") if gray else (3, b"RGB"))
        assert example["image/format"] == b"jpeg"


def test_preset_writes_the_records_that_the_tpu_tools_write(converted: ImageNet) -> None:
    check_split(converted, "train", 1024, converted.train)
    check_split(converted, "validation", 128, converted.validation)
    assert (converted.folder / "imagenet-tfrecords" / "labels.txt").read_text().split() == converted.synsets
    assert datasets.rejects(converted.folder / "imagenet-tfrecords") == {}


def test_snippets_of_the_page_read_the_records(converted: ImageNet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(converted.folder)
    by_reader, by_tensorflow = docs_pages.blocks("recipes/imagenet.md", "python")
    names = docs_pages.run_snippet(by_reader)
    assert (names["images"].shape, names["images"].dtype) == ([4, 224, 224, 3], tf.bfloat16)
    assert names["ds"].labels == tuple(converted.synsets)
    batches = list(docs_pages.run_snippet(by_tensorflow)["batches"])
    assert all(images.shape[1:] == (224, 224, 3) for images, _ in batches)
    found = collections.Counter(np.concatenate([labels for _, labels in batches]).tolist())
    assert found == collections.Counter(range(1000))


# --- labels by number ------------------------------------------------------------------------------------------------


def test_validation_may_lie_in_folders_of_synsets_instead(small: ImageNet, tmp_path: pathlib.Path) -> None:
    for path, synset in small.validation.items():
        target = small.images / "val" / synset / path.rpartition("/")[2]
        target.parent.mkdir(exist_ok=True)
        (small.images / path).rename(target)
    small.convert(lists={})
    found = {each["image/filename"].decode(): each for each in datasets.read(tmp_path / "out", "validation")}
    for path, synset in small.validation.items():
        assert found[path.rpartition("/")[2]]["image/class/text"].decode() == synset
    with pytest.raises(errors.ConfigError, match=r"label\.lists names the folder 'val', and no image with a number"):
        small.convert("again")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(lambda lines: lines[:-1], r"the list for 'val' has 11 lines, and the 12 images there", id="short"),
        pytest.param(lambda lines: ["synset", *lines], r"has 13 lines, and the 12 images there have", id="heading"),
        pytest.param(
            lambda lines: [str(index % 3) for index, _ in enumerate(lines)],
            r"3 of the 3 labels in the list for 'val' are the name of no folder with images, the first is '0'",
            id="numbers",
        ),
        pytest.param(
            lambda lines: [*lines[:4], "", *lines[5:]],
            r"label\.lists: val: '.*labels\.txt' has an empty line 5; line n is the label of image n",
            id="empty-line",
        ),
        pytest.param(lambda lines: [], r"has an empty line 1", id="empty"),
    ],
)
def test_list_that_cannot_be_right_ends_the_run(
    small: ImageNet, tmp_path: pathlib.Path, change: object, message: str
) -> None:
    small.write(small.list_file.name, change(small.list))  # type: ignore[operator]
    with pytest.raises(errors.ConfigError, match=message):
        small.convert()
    assert not (tmp_path / "out").exists()


def test_missing_list_ends_the_run(small: ImageNet) -> None:
    small.list_file.unlink()
    with pytest.raises(errors.ConfigError, match=r"label\.lists '.*' cannot be read \(No such file"):
        small.convert()


def test_images_missing_in_between_are_noted_and_move_no_label(small: ImageNet, tmp_path: pathlib.Path) -> None:
    (small.images / "val" / "ILSVRC2012_val_00000003.JPEG").unlink()
    assert small.convert().plan.notes == ("of the 12 images that label.lists has labels for in 'val', 1 are not there",)
    examples = datasets.read(tmp_path / "out", "validation")
    found = {each["image/key"].decode(): each["image/class/text"] for each in examples}
    assert found == {path: synset.encode() for path, synset in small.validation.items() if "00003" not in path}


def test_two_images_of_one_number_end_the_run(small: ImageNet) -> None:
    (small.images / "val" / "copy_3.JPEG").write_bytes(image_sets.make_image(99))
    with pytest.raises(errors.ConfigError, match=r"has 12 lines, and the 13 images there have numbers up to 12"):
        small.convert()


def test_name_without_a_number_is_a_reject(small: ImageNet, tmp_path: pathlib.Path) -> None:
    (small.images / "val" / "ILSVRC2012_val_00000012.JPEG").rename(small.images / "val" / "twelve.JPEG")
    small.write(small.list_file.name, small.list[:11])
    with pytest.raises(errors.TooManyRejectsError, match=r"'val/twelve\.JPEG' ends in no number from 1 to 11"):
        small.convert()


def test_label_of_the_list_that_is_not_in_the_vocabulary_is_a_reject(small: ImageNet, tmp_path: pathlib.Path) -> None:
    vocabulary = small.write("synsets.txt", small.synsets)
    small.write(small.list_file.name, ["n00000000", *small.list[1:]])
    with pytest.raises(errors.TooManyRejectsError, match=r"label 'n00000000' is not in label\.vocabulary"):
        small.convert(vocabulary=str(vocabulary))
    with pytest.raises(errors.ConfigError, match=r"label 'n00000000' is not in label\.vocabulary; add it there"):
        small.convert(vocabulary=str(vocabulary), unknown="error")


# --- texts -----------------------------------------------------------------------------------------------------------


def texts_of(output: pathlib.Path) -> dict[int, str]:
    return {each["image/class/label"]: each["image/class/text"].decode() for each in datasets.read(output)}


@pytest.mark.parametrize("separator", [" ", "\t", "   "])
def test_texts_follow_a_space_or_a_tab(small: ImageNet, tmp_path: pathlib.Path, separator: str) -> None:
    small.write("words.txt", [f"{synset}{separator}{text}" for synset, text in small.texts.items()])
    small.convert(texts=str(tmp_path / "words.txt"))
    assert texts_of(tmp_path / "out") == dict(enumerate(small.texts.values(), 1))
    assert catalog_lib.load_catalog(str(tmp_path / "out")).labels == tuple(small.synsets)


def test_class_without_a_text_ends_the_run_and_says_how_many(small: ImageNet, tmp_path: pathlib.Path) -> None:
    small.write("words.txt", ["n00000000 of no image", *(f"{synset} word" for synset in small.synsets[2:])])
    message = rf"2 of the 5 classes have no text in label\.texts, the first is '{small.synsets[0]}'; add them there"
    with pytest.raises(errors.ConfigError, match=message):
        small.convert(texts=str(tmp_path / "words.txt"))


# --- the fingerprint -------------------------------------------------------------------------------------------------


def test_fingerprint_depends_on_what_the_files_hold_and_not_on_where_they_lie(
    small: ImageNet, tmp_path: pathlib.Path
) -> None:
    first = small.convert(texts=str(small.texts_file))
    small.list_file = small.list_file.rename(tmp_path / "moved.txt")
    small.texts_file = small.texts_file.rename(tmp_path / "also moved.txt")
    again = small.convert(texts=str(small.texts_file))
    assert (again.state, again.catalog.fingerprint) == ("kept", first.catalog.fingerprint)
    other = next(synset for synset in small.synsets if synset != small.list[0])
    small.write("moved.txt", [other, *small.list[1:]])
    with pytest.raises(errors.ConfigError, match="holds another dataset"):
        small.convert(texts=str(small.texts_file))
    small.write("moved.txt", small.list)
    small.write("also moved.txt", [f"{synset} another word" for synset in small.synsets])
    with pytest.raises(errors.ConfigError, match="holds another dataset"):
        small.convert(texts=str(small.texts_file))
    replaced = small.convert(texts=str(small.texts_file), overwrite=True)
    assert replaced.catalog.fingerprint != first.catalog.fingerprint
