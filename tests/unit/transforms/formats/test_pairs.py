from __future__ import annotations

import io
import pathlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import pydantic
import pytest
import tifffile
from PIL import Image

import imagebeam
from imagebeam.pipelines import job
from imagebeam.pipelines.config import model as config_lib
from imagebeam.pipelines.recognize import recognize_folder
from imagebeam.transforms import elements
from imagebeam.transforms.elements import Reason
from tests import case_tables, datasets, error_texts, folder_shapes, image_sets, spread_rows

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


def test_bad_patterns_are_refused(tmp_path: pathlib.Path) -> None:
    for pairs, text in [
        ({"others": {}}, "go together"),
        ({"image": "(", "others": {"a": r"\1"}}, "is not a regular expression"),
        ({"others": {"a": "b.png"}}, "names one file for all images"),
        ({"others": {"a": r"\g<other>"}}, "does not fit source.pairs.image"),
        ({"others": {"a": r"../\g<name>"}}, "leaves the folder"),
        ({"others": {"A b": LR}}, "a to z"),
    ]:
        folder = case_tables.new_folder(tmp_path)
        with pytest.raises(pydantic.ValidationError, match=text):
            config(folder, **pairs)


def test_patterns_are_asked_for(tmp_path: pathlib.Path) -> None:
    (tmp_path / "in").mkdir()
    with error_texts.raises("pairs-no-pattern"):
        listed(tmp_path / "in", image=None, others={})


# --- images side by side in one file ----------------------------------------------------------------------------------

WIDTH, HEIGHT = 24, 16  # of each image


def part_of(number: int, dtype: str = "uint8", bands: int = 3) -> np.ndarray:
    """Returns a smooth picture that no other number has."""
    down, right = np.mgrid[:HEIGHT, :WIDTH]
    levels = [down * 9 + 10 * number, right * 7 + 20 * number, 250 - down * 5 - right * 3 - number][:bands]
    return (np.stack(levels, 2) * (1 if dtype == "uint8" else 200)).astype(dtype)


def stored_of(root: pathlib.Path, names: list[str], overrides: Iterable[str] = ()) -> dict[str, dict[str, Any]]:
    """Converts a folder of images side by side, and returns by key the pixels and the format of each one stored."""
    given = ["split={by: none}", *overrides, f"source.uri={root}", f"output.uri={root}-out"]
    pairs = {"source": {"by": "pairs", "pairs": {"side_by_side": names}}, "label": {"by": "none"}}
    for each in given:
        config_lib.apply_override(pairs, each)
    imagebeam.convert(pairs, workers=1)
    found = {}
    for values in datasets.read(pathlib.Path(f"{root}-out")):
        one = {}
        for name in names:
            above = "image" if name == "image" else f"image/{name}"
            pixels = np.asarray(Image.open(io.BytesIO(values[f"{above}/encoded"])))
            assert pixels.shape[:2] == (values[f"{above}/height"], values[f"{above}/width"])
            one[name] = pixels, values[f"{above}/format"]
        found[values["image/key"].decode()] = one
    return found


@pytest.mark.parametrize("names", [["image", "target"], ["target", "image"], ["before", "image", "after"]])
def test_images_side_by_side_are_stored_by_their_names(tmp_path: pathlib.Path, names: list[str]) -> None:
    parts = [part_of(number) for number in range(len(names))]
    (tmp_path / "in").mkdir()
    for image_format in ("PNG", "BMP", "TIFF", "JPEG"):
        options = {"quality": 98, "subsampling": 0} if image_format == "JPEG" else {}
        encoded = image_sets.save(Image.fromarray(np.concatenate(parts, 1)), image_format, **options)
        (tmp_path / f"in/a.{image_format.lower()}").write_bytes(encoded)
    found = stored_of(tmp_path / "in", names)
    assert sorted(found) == ["a.bmp", "a.jpeg", "a.png", "a.tiff"]
    for key, one in found.items():
        for name, part in zip(names, parts):
            pixels, stored = one[name]
            assert stored == (b"jpeg" if key == "a.jpeg" else b"png")
            assert np.abs(pixels.astype(int) - part).max() <= (4 if key == "a.jpeg" else 0)


@pytest.mark.parametrize("resize", [None, [8, 12]])
def test_a_turned_file_is_cut_upright(tmp_path: pathlib.Path, resize: list[int] | None) -> None:
    (tmp_path / "in").mkdir()
    parts = [part_of(0), part_of(1)]
    lying = {3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270}
    for orientation, turn in lying.items():
        exif = Image.Exif()
        exif[0x0112] = orientation
        picture = Image.fromarray(np.concatenate(parts, 1)).transpose(turn)
        (tmp_path / f"in/{orientation}.png").write_bytes(image_sets.save(picture, "PNG", exif=exif))
    found = stored_of(tmp_path / "in", ["image", "target"], [f"image.resize={resize}"] if resize else ())
    assert sorted(found) == ["3.png", "6.png", "8.png"]
    for one in found.values():
        for name, part in zip(("image", "target"), parts):
            if resize is None:
                assert np.array_equal(one[name][0], part)
            else:
                scaled = Image.fromarray(part).resize(resize[::-1], Image.Resampling.BICUBIC)
                assert np.abs(one[name][0].astype(int) - np.asarray(scaled)).max() <= 2


@pytest.mark.parametrize("bands", [1, 3])
def test_images_of_16_bits_side_by_side_keep_their_numbers(tmp_path: pathlib.Path, bands: int) -> None:
    parts = [part_of(number, "uint16", bands) for number in range(2)]
    (tmp_path / "in").mkdir()
    whole = np.concatenate(parts, 1)
    tifffile.imwrite(tmp_path / "in/a.tiff", whole, photometric="rgb" if bands == 3 else "minisblack")
    if bands == 1:
        (tmp_path / "in/a.png").write_bytes(image_sets.save(Image.fromarray(whole[:, :, 0]), "PNG"))
    root, overrides = tmp_path / "in", ["image.dtype=uint16", "image.encode=raw"]
    pairs = {"source": {"by": "pairs", "pairs": {"side_by_side": ["target", "image"]}}, "label": {"by": "none"}}
    for each in (*overrides, "split={by: none}", f"source.uri={root}", f"output.uri={root}-out"):
        config_lib.apply_override(pairs, each)
    imagebeam.convert(pairs, workers=1)
    stored = list(datasets.read(tmp_path / "in-out"))
    assert len(stored) == (2 if bands == 1 else 1)
    for values in stored:
        for key, part in (("image/target/encoded", parts[0]), ("image/encoded", parts[1])):
            assert np.array_equal(np.frombuffer(values[key], "<u2").reshape(part.shape), part)


def test_file_that_cannot_be_divided_is_rejected(tmp_path: pathlib.Path) -> None:
    root = folder_shapes.write(tmp_path / "in", {"odd.png": image_sets.make_image(1, "PNG", "RGB", (7, 4))})
    (root / "even.png").write_bytes(image_sets.make_image(1, "PNG", "RGB", (8, 4)))
    found = stored_of(root, ["image", "target"], ["rejects.max_fraction=0.5"])
    assert [*found] == ["even.png"]
    assert (
        "its width of 7 pixels is not that of 2 images of one width" in (tmp_path / "in-out/rejects.jsonl").read_text()
    )


def test_split_of_files_side_by_side_is_in_the_pattern(tmp_path: pathlib.Path) -> None:
    root = folder_shapes.write(tmp_path / "in", folder_shapes.images("{train,val}/#.png", "more/#.png"))
    overrides = [r"source.pairs.image=(?P<split>train|val)/.*", "split={by: source}"]
    assert {key.partition("/")[0] for key in stored_of(root, ["image", "target"], overrides)} == {"train"}
    splits = imagebeam.open_dataset(f"{root}-out").splits
    assert {name: split.num_examples for name, split in splits.items()} == {"train": 4, "val": 4}


def test_bad_options_of_files_side_by_side_are_refused() -> None:
    for fields, text in [
        ({"source.pairs": {"side_by_side": ["image"]}}, "two or more images"),
        ({"source.pairs": {"side_by_side": ["a", "b"]}}, "one of them image"),
        ({"source.pairs": {"side_by_side": ["image", "a", "a"]}}, "each once"),
        ({"source.pairs": {"side_by_side": ["image", "A b"]}}, "a to z"),
        ({"source.pairs": {"side_by_side": ["image", "b"], "image": "("}}, "is not a regular expression"),
        ({"source.pairs": {"side_by_side": ["image", "b"], "missing": "skip"}}, "has no other files"),
        ({"source.pairs": {"side_by_side": ["image", "b"], "image": "(.*)", "others": {"c": r"\1"}}}, "no other files"),
        ({"source.pairs": {"side_by_side": ["image", "b"]}, "image.orientation": "keep"}, "in the wrong direction"),
        ({"source.pairs": {"side_by_side": ["image", "b"]}, "image.frames": "each"}, "image.frames: first or reject"),
    ]:
        found: dict[str, Any] = {"source": {"by": "pairs"}, "label": {"by": "none"}, "split": {"by": "none"}}
        for path, value in fields.items():
            config_lib.set_field(found, path, value)
        with pytest.raises(pydantic.ValidationError, match=text):
            config_lib.Config.model_validate(found)


@pytest.mark.parametrize(("prefix", "size"), [("", (32, 16)), ("{train,val}/", (32, 16)), ("train/", (33, 16))])
def test_images_twice_as_wide_as_high_may_be_pairs(tmp_path: pathlib.Path, prefix: str, size: tuple[int, int]) -> None:
    wide = image_sets.make_image(1, "PNG", "RGB", size)
    root = folder_shapes.write(tmp_path / "in", folder_shapes.files(wide, f"{prefix}#.png"))
    found = recognize_folder.recognize(str(root))
    assert found.sure is None
    assert [each.preset for each in found.candidates][1:] == (["pairs"] if size == (32, 16) else [])
    for each in found.candidates[1:]:
        overrides = [*recognize_folder.overrides_of(each), f"source.uri={root}", f"output.uri={tmp_path / 'out'}"]
        result = imagebeam.convert(config_lib.load_config("pairs", overrides), workers=1)
        assert result.catalog.counts.written == sum(1 for _ in root.rglob("*.png"))
        assert {"image/target/encoded", "image/encoded"} <= {feature.key for feature in result.catalog.features}


# --- the rest ---------------------------------------------------------------------------------------------------------


def test_listing_of_pairs_cannot_be_saved(root: pathlib.Path) -> None:
    assert job.make_source(config(root)).listed_folder() == ""
