from __future__ import annotations

import pathlib
from typing import Any

import pydantic
import pytest

import imagebeam
from imagebeam.pipelines import job
from imagebeam.pipelines.config import model as config_lib
from imagebeam.transforms import elements
from imagebeam.transforms.elements import Reason
from tests import error_texts, folder_shapes, spread_rows

IMAGE, LR = r"(?P<split>train|val)/HR/(?P<name>.*)\.png", r"\g<split>/LR/\g<name>x2.png"


def config(root: pathlib.Path, **pairs: Any) -> config_lib.Config:
    fields = {
        "source": {"by": "pairs", "uri": str(root), "pairs": {"image": IMAGE, "others": {"lr": LR}, **pairs}},
        "label": {"by": "none"},
        "split": {"by": "source"},
        "output": {"uri": f"{root}-out", "num_shards": 1},
    }
    return config_lib.Config.model_validate(fields)


def listed(root: pathlib.Path, **pairs: Any) -> tuple[list[elements.ImageRef], list[elements.Reject], dict[str, int]]:
    found = spread_rows.gather(job.make_source(config(root, **pairs)).list_all())
    return sorted(found.refs), found.rejects, found.skipped


@pytest.fixture
def root(tmp_path: pathlib.Path) -> pathlib.Path:
    tree = folder_shapes.images(*(f"{split}/HR/#.png" for split in ("train", "val")), numbers=range(2))
    tree |= folder_shapes.images(*(f"{split}/LR/#x2.png" for split in ("train", "val")), numbers=range(2))
    return folder_shapes.write(tmp_path / "in", tree | {"readme.txt": "x"})


def test_each_example_has_its_images_and_split(root: pathlib.Path) -> None:
    refs, rejects, skipped = listed(root)
    assert [(ref.key, ref.split, [each.uri for each in ref.extra_images]) for ref in refs] == [
        (f"{split}/HR/{n}.png", split, [str(root / f"{split}/LR/{n}x2.png")])
        for split in ("train", "val")
        for n in (0, 1)
    ]
    assert (rejects, skipped) == ([], {"image_of_a_pair": 4, "not_included": 1})


def test_example_without_a_partner_is_rejected_or_skipped(root: pathlib.Path) -> None:
    (root / "val/LR/1x2.png").unlink()
    refs, rejects, _ = listed(root)
    detail = "there is no image 'lr' 'val/LR/1x2.png'; add it, or change source.pairs"
    uri = str(root / "val/HR/1.png")
    assert (len(refs), rejects) == (3, [elements.Reject("val/HR/1.png", uri, "list", Reason.NOT_FOUND, detail)])
    refs, rejects, skipped = listed(root, missing="skip")
    assert (len(refs), rejects, skipped["image_without_partner"]) == (3, [], 1)


@pytest.mark.parametrize(
    ("pairs", "text"),
    [
        ({"others": {}}, "go together"),
        ({"image": "(", "others": {"a": r"\1"}}, "is not a regular expression"),
        ({"others": {"a": "b.png"}}, "names one file for all images"),
        ({"others": {"a": r"\g<other>"}}, "does not fit source.pairs.image"),
        ({"others": {"a": r"../\g<name>"}}, "leaves the folder"),
        ({"others": {"A b": LR}}, "a to z"),
    ],
)
def test_bad_patterns_are_refused(tmp_path: pathlib.Path, pairs: dict[str, Any], text: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=text):
        config(tmp_path, **pairs)


def test_patterns_are_asked_for(tmp_path: pathlib.Path) -> None:
    (tmp_path / "in").mkdir()
    with error_texts.raises("pairs-no-pattern"):
        listed(tmp_path / "in", image=None, others={})


def test_preset_stores_both_images(tmp_path: pathlib.Path) -> None:
    root = folder_shapes.write(tmp_path / "in", folder_shapes.images("input/#.png", "target/#.png"))
    (root / "target/0.png").write_bytes((root / "target/1.png").read_bytes())
    overrides = [f"source.uri={root}", f"output.uri={tmp_path / 'out'}", "split={by: none}"]
    result = imagebeam.convert(config_lib.load_config("pairs", overrides), workers=1)
    assert result.catalog.counts.written == 4
    names = {feature.key for feature in result.catalog.features}
    assert {"image/encoded", "image/target/encoded", "image/target/height"} <= names


def test_listing_of_pairs_cannot_be_saved(root: pathlib.Path) -> None:
    assert job.make_source(config(root)).listed_folder() == ""
