"""Datasets that functions of the user decide: what is written, and what makes another dataset."""

from __future__ import annotations

import importlib
import itertools
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import imagebeam
from imagebeam import errors
from imagebeam.pipelines import convert
from tests import case_tables, coco_sets, datasets, detection_sets, error_texts, idx_files, image_sets

CROP = """
def crop(image, reference):
    size = {size}
    return image[:size, :size]

def spread(images, references):
    return [[image.mean(), image.std(), 0.5] for image in images]

def words(images, references):
    return [[reference.key, "ü"] for reference in references]

def mean(images, references, scale=1):
    return [scale * int(image.mean()) for image in images]

def kind(reference):
    return reference.key.split("/")[0]

def kinds(reference):
    return reference.key.split("/")[:1] if reference.key[4] == "1" else ("dog", "cat")

def number(reference):
    return int(reference.key.split("/")[1].split(".")[0])

def flip(image, reference):
    return image[:, ::-1]

def corner(image, reference):
    left = int(reference.columns["x"])
    return image[:, left:left + 8]

def no_dark(image, reference):
    return bool(image.mean() > 120)
"""
Write = Callable[[int], None]


@pytest.fixture
def own_code(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes the module `own_code` as a user does between two runs, each of which is a process."""
    (tmp_path / "code").mkdir()
    monkeypatch.syspath_prepend(tmp_path / "code")

    def write(size: int) -> None:
        (tmp_path / "code" / "own_code.py").write_text(CROP.format(size=size))
        monkeypatch.delitem(sys.modules, "own_code", raising=False)
        importlib.invalidate_caches()

    write(8)
    return write


def test_datasets_of_other_code_are_others(own_code: Write, images: pathlib.Path, tmp_path: pathlib.Path) -> None:
    def fingerprint(size: int, **function: Any) -> str:
        own_code(size)
        crop: Any = {"function": "own_code:crop", **function} if function else "own_code:crop"
        mean = {"function": "own_code:mean", "type": "int"}
        config = {"source": {"uri": images}, "image": {"function": crop}, "features": {"functions": {"mean": mean}}}
        return convert.plan(config).fingerprint

    assert fingerprint(8) == fingerprint(8)
    assert fingerprint(8) != fingerprint(9)
    assert fingerprint(8) != fingerprint(8, version=1)
    assert fingerprint(8, version=1) != fingerprint(8, version=2)
    mean = {"mean": {"function": "own_code:mean", "type": "int", "version": "1"}}
    versions = {"image": {"function": {"function": "own_code:crop", "version": "1"}}, "features": {"functions": mean}}
    own_code(8)
    first = datasets.make(images, tmp_path / "versions", **versions)
    assert {each["image/height"] for each in datasets.read(tmp_path / "versions")} == {8}
    own_code(9)
    again = datasets.make(images, tmp_path / "versions", **versions)
    assert again.catalog == first.catalog  # the version counts alone
    mean["mean"] |= {"options": {"scale": 2}}
    with pytest.raises(errors.ImagebeamError, match=r"features\.functions\.mean\.options\.scale was not set") as caught:
        datasets.make(images, tmp_path / "versions", **versions)
    assert caught.value.code == "output-other-dataset"


def test_update_refuses_other_code(own_code: Write, images: pathlib.Path, tmp_path: pathlib.Path) -> None:
    config = {"source": {"uri": str(images)}, "image": {"function": "own_code:crop"}}
    config |= {"output": {"uri": str(tmp_path / "out")}}
    convert.convert(config, workers=1, update=True)
    convert.convert(config, workers=1, update=True)
    own_code(9)
    with pytest.raises(
        errors.ImagebeamError, match=r"source_of_functions\.image\.function was .* --overwrite"
    ) as caught:
        convert.convert(config, workers=1, update=True)
    assert caught.value.code == "snapshot-other-config"


@case_tables.each_case(
    "label, expected",
    {
        "class": ({"function": "own_code:kind"}, {"cat": [0], "dog": [1]}),
        "classes": ({"function": "own_code:kinds", "type": "classes"}, {"cat": [[0], [0, 1]], "dog": [[1], [0, 1]]}),
        "int": ({"function": "own_code:number", "type": "int"}, {"cat": [*range(10)], "dog": [*range(10)]}),
    },
)
def test_labels_are_those_of_the_function(
    own_code: Write, tmp_path: pathlib.Path, label: dict[str, Any], expected: dict[str, Any]
) -> None:
    image_sets.write_folder(tmp_path / "images")
    datasets.make(tmp_path / "images", tmp_path / "out", label={"by": "function", **label})
    for values in datasets.read_lists(tmp_path / "out"):
        found = values["image/class/label"]
        assert (found if label.get("type") == "classes" else found[0]) in expected[values["image/key"][0].decode()[:3]]


def test_classes_of_a_function_are_stratified(own_code: Write, tmp_path: pathlib.Path) -> None:
    image_sets.write_folder(tmp_path / "images")
    split = {"by": "hash", "fractions": {"train": 0.5, "test": 0.5}, "stratify": True}
    label = {"by": "function", "function": "own_code:kind"}
    datasets.make(tmp_path / "images", tmp_path / "out", label=label, split=split)
    for name in ["train", "test"]:
        labels = [each["image/class/label"] for each in datasets.read(tmp_path / "out", name)]
        assert sorted(labels) == [0] * 5 + [1] * 5


def test_features_of_functions_are_read_back(own_code: Write, images: pathlib.Path, tmp_path: pathlib.Path) -> None:
    tfds = pytest.importorskip("tensorflow_datasets")
    functions = {
        "mean": {"function": "own_code:mean", "type": "int"},
        "spread": {"function": "own_code:spread", "shape": [3], "batch": 4},
        "words": {"function": "own_code:words", "type": "string", "shape": [2]},
    }
    datasets.make(images, tmp_path / "out", features={"functions": functions}, output={"num_shards": 2})
    expected = {each["image/key"][0]: each for each in datasets.read_lists(tmp_path / "out")}
    dtypes = {"mean": ((), np.int64), "spread": ((3,), np.float32), "words": ((2,), np.object_)}
    batches = imagebeam.open_dataset(tmp_path / "out").as_numpy(
        "train", 1, features=["image/key", *functions], image_size=8, num_epochs=1
    )
    ours = [{key: batch[key][0] for key in ("image/key", *functions)} for batch in batches]
    theirs = tfds.as_numpy(tfds.builder_from_directory(str(tmp_path / "out")).as_dataset(split="train"))
    for found in (ours, list(theirs)):
        assert {each["image/key"] for each in found} == set(expected)
        for example, (key, (shape, dtype)) in itertools.product(found, dtypes.items()):
            values = np.asarray(example[key])
            assert (values.shape, values.dtype) == (shape, dtype)
            assert values.ravel().tolist() == pytest.approx(list(expected[example["image/key"]][key]))


def test_duplicates_are_those_of_what_is_stored(own_code: Write, tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.png").write_bytes(image_sets.make_image(1, "PNG"))
    rows = ["path,key,x", "a.png,1,0", "a.png,2,8", "a.png,3,8"]
    (tmp_path / "m.csv").write_text("\n".join(rows))
    sections = {
        "source": {"by": "manifest", "manifest": {"path": "m.csv", "image": "path", "key": "key"}},
        "label": {"by": "none"},
    }
    sections |= {"columns": {"x": {"type": "int"}}, "image": {"function": "own_code:corner"}}
    for kind in ["exact", "near"]:
        datasets.make(tmp_path, tmp_path / kind, **sections, duplicates={kind: "drop"})
        assert sorted(datasets.keys(tmp_path / kind)) == ["1", "2"]
        assert datasets.rejects(tmp_path / kind) == {"3": "duplicate"}
        assert {each["image/width"] for each in datasets.read(tmp_path / kind)} == {8}


def test_beams_writer_stores_what_the_functions_return(
    own_code: Write, images: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    image = {"function": "own_code:crop", "keep_if": "own_code:no_dark", "encode": "png"}
    for writer in ["stream", "beam"]:
        output = {"num_shards": 1, "writer": writer}
        made = datasets.make(images, tmp_path / writer, image=image, output=output, rejects={"max_fraction": 0})
        assert 0 < made.catalog.counts.rejected["filtered"] < made.catalog.counts.listed
    by_key = [
        {each["image/key"]: each["image/encoded"] for each in datasets.read(tmp_path / writer)}
        for writer in ["stream", "beam"]
    ]
    assert by_key[0] == by_key[1]


def test_beams_writer_computes_no_features(own_code: Write, images: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with error_texts.raises("config-invalid"):
        convert.plan(
            {
                "source": {"uri": str(images)},
                "features": {"functions": {"mean": {"function": "own_code:mean", "type": "int"}}},
                "output": {"writer": "beam", "num_shards": 1},
            }
        )


def test_size_changes_only_where_no_boxes_are_stored(own_code: Write, tmp_path: pathlib.Path) -> None:
    coco_sets.write(tmp_path / "coco")
    sides = ("bbox/xmin", "bbox/xmax", "bbox/ymin", "bbox/ymax", "area", "mask")
    dropped = {f"image/object/{name}": None for name in sides}
    config: Any = {"source": {"uri": str(tmp_path / "coco"), "by": "coco"}, "image": {"function": "own_code:crop"}}
    config |= {"label": {"by": "none"}, "split": {"by": "source"}}
    with pytest.raises(errors.TooManyRejectsError, match="function 17"):
        convert.convert({**config, "output": {"uri": str(tmp_path / "out")}}, workers=1)
    assert "keep the size, or leave them out by `features`" in (tmp_path / "out" / "rejects.jsonl").read_text()
    made = datasets.make(tmp_path / "coco", tmp_path / "free", **config, features=dropped)
    assert made.catalog.counts.written == 17


def write_masks(root: pathlib.Path) -> None:
    for number in range(3):
        for folder, mode in (("images", "RGB"), ("masks", "L")):
            path = root / folder / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(image_sets.make_image(number, "PNG", mode))


ANNOTATED: dict[str, tuple[Callable[[pathlib.Path], None], dict[str, Any]]] = {
    "yolo": (
        lambda root: detection_sets.write_yolo(root, {"images/train": 3}),
        {"source": {"by": "yolo", "yolo": {"classes": [*detection_sets.CLASSES]}}, "split": {"by": "source"}},
    ),
    "masks": (
        write_masks,
        {"source": {"masks": {"image": r"images/(?P<name>.*)\.png", "mask": r"masks/\g<name>.png"}}},
    ),
}


@case_tables.each_case("write, sections", ANNOTATED)
def test_function_keeps_the_size_of_an_annotated_image(
    own_code: Write, tmp_path: pathlib.Path, write: Callable[[pathlib.Path], None], sections: dict[str, Any]
) -> None:
    write(tmp_path / "in")
    sections = {**sections, "label": {"by": "none"}, "rejects": {"max_fraction": 0.9}}
    for function, rejected in [("flip", 0), ("crop", 3)]:
        config = {**sections, "source": {**sections["source"], "uri": str(tmp_path / "in")}}
        config |= {"output": {"uri": str(tmp_path / function)}, "image": {"function": f"own_code:{function}"}}
        if rejected:
            with pytest.raises(errors.TooManyRejectsError, match="function 3"):
                convert.convert(config, workers=1)
        else:
            made = convert.convert(config, workers=1)
            assert made.catalog is not None and made.catalog.counts.written == 3


def test_bare_pixels_that_are_kept_are_not_for_functions(own_code: Write, tmp_path: pathlib.Path) -> None:
    idx_files.write_mnist(tmp_path / "mnist", 5, 3)
    source, image = {"by": "idx"}, {"function": "own_code:crop"}
    with error_texts.raises("function-of-bare-pixels"):
        convert.plan({"source": {"uri": str(tmp_path / "mnist"), **source}, "label": {"by": "none"}, "image": image})
    sections = {"source": source, "label": {"by": "none"}, "image": {**image, "encode": "raw"}}
    datasets.make(tmp_path / "mnist", tmp_path / "out", **sections)
    assert {(each["image/height"], len(each["image/encoded"])) for each in datasets.read(tmp_path / "out")} == {(8, 64)}


def test_one_of_several_images_is_not_changed(own_code: Write, tmp_path: pathlib.Path) -> None:
    (tmp_path / "m.csv").write_text("image,after\na.png,b.png\n")
    source = {
        "by": "manifest",
        "uri": str(tmp_path),
        "manifest": {"path": "m.csv", "image": "image", "further": {"after": "after"}},
    }
    with error_texts.raises("function-of-extra-images"):
        convert.plan({"source": source, "label": {"by": "none"}, "image": {"function": "own_code:crop"}})
