from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import pickle
import re
from collections.abc import Iterator
from typing import Any

import pytest
from PIL import Image

from imagebeam import catalog as catalog_lib
from imagebeam import errors
from imagebeam.pipelines import convert, request
from imagebeam.pipelines.config import model as config_lib
from imagebeam.pipelines.config import schema
from imagebeam.transforms.formats import folder as listing_format
from imagebeam.transforms.formats.base_format import FORMATS, format_of
from imagebeam.transforms.sources import files, image_source
from tests import case_tables, command_line, datasets, error_texts, image_sets

ROOT_NAMES = ["cat", "dog"]


@pytest.fixture
def images(tmp_path: pathlib.Path) -> pathlib.Path:
    folder = tmp_path / "in"
    image_sets.write_folder(folder, ROOT_NAMES, 6)
    (folder / "notes.txt").write_text("no image")
    (folder / "cat" / "gone.jpg").symlink_to("nowhere.jpg")
    return folder


def sections(images: Any, output: pathlib.Path, **source: Any) -> dict[str, Any]:
    return {"source": {"uri": str(images), **source}, "output": {"uri": str(output)}, "rejects": {"max_fraction": 0.5}}


def test_saved_listing_gives_the_dataset_of_the_folder(images: pathlib.Path, tmp_path: pathlib.Path) -> None:
    listing = tmp_path / "listing.jsonl"
    assert listing_format.save_listing(files.FilesSource(str(images)), None, str(listing)) == 12
    convert.convert(sections(images, tmp_path / "one"), workers=1)
    convert.convert(sections(listing, tmp_path / "two", by="listing"), workers=1)
    one, two = (catalog_lib.load_catalog(str(tmp_path / name)) for name in ("one", "two"))
    assert (one.fingerprint, one.splits, one.counts) == (two.fingerprint, two.splits, two.counts)
    assert one.counts.rejected == {"not_found": 1}
    assert one.counts.skipped == {"non_image": 1}
    assert datasets.shard_digests(tmp_path / "one") == datasets.shard_digests(tmp_path / "two")
    assert datasets.rejects(tmp_path / "one") == datasets.rejects(tmp_path / "two")


def test_plan_saves_what_it_lists(images: pathlib.Path, tmp_path: pathlib.Path) -> None:
    config = request.as_config({"source": {"uri": str(images)}})
    listed = convert.save_listing(config, str(tmp_path / "listing.jsonl"))
    assert (listed.source.by, listed.source.uri) == ("listing", str(tmp_path / "listing.jsonl"))
    assert convert.plan(listed).listed == convert.plan(config).listed == 13


def test_image_that_changes_after_the_listing_is_a_reject(images: pathlib.Path, tmp_path: pathlib.Path) -> None:
    listing = tmp_path / "listing.jsonl"
    listing_format.save_listing(files.FilesSource(str(images)), None, str(listing))
    (images / "dog" / "1.jpg").write_bytes(image_sets.make_image(99))
    convert.convert(sections(listing, tmp_path / "out", by="listing"), workers=1)
    assert datasets.rejects(tmp_path / "out") == {"cat/gone.jpg": "not_found", "dog/1.jpg": "changed"}


def test_mask_that_changes_after_the_listing_is_a_reject(images: pathlib.Path, tmp_path: pathlib.Path) -> None:
    for path in images.glob("*/[0-9]*.jpg"):
        with Image.open(path) as image:
            Image.new("L", image.size).save(path.with_suffix(".png"))
    settings = {"masks": {"image": r"(.*)\.jpg", "mask": r"\1.png"}}
    listing = tmp_path / "listing.jsonl"
    config = request.as_config({"source": {"uri": str(images), **settings}})
    convert.save_listing(config, str(listing))
    with Image.open(images / "dog" / "1.png") as image:
        mask = Image.new("L", image.size, 1)
    mask.save(images / "dog" / "1.png")
    os.utime(images / "dog" / "1.png", ns=(0, 1))
    convert.convert(sections(listing, tmp_path / "out", by="listing", **settings), workers=1)
    assert datasets.rejects(tmp_path / "out") == {"cat/gone.jpg": "not_found", "dog/1.jpg": "changed"}
    with error_texts.raises("listing-other-masks"):
        convert.convert(sections(listing, tmp_path / "other", by="listing"), workers=1)


def test_check_of_another_file_raises(tmp_path: pathlib.Path) -> None:
    for content, code in [
        (None, "listing-unreadable"),
        (b"", "listing-other-version"),
        (b"[]\n", "listing-other-version"),
        (b"image,label\n", "listing-unreadable"),
    ]:
        folder = case_tables.new_folder(tmp_path)
        listing = folder / "listing.jsonl"
        if content is not None:
            listing.write_bytes(content)
        with error_texts.raises(code):
            convert.convert(sections(listing, folder / "out", by="listing"), workers=1)


@pytest.mark.parametrize("keep", [-1, -3])
def test_truncated_listing_is_a_problem(images: pathlib.Path, tmp_path: pathlib.Path, keep: int) -> None:
    listing = tmp_path / "listing.jsonl"
    listing_format.save_listing(files.FilesSource(str(images)), None, str(listing))
    listing.write_bytes(b"".join(listing.read_bytes().splitlines(keepends=True)[:keep]))
    with pytest.raises(errors.ConfigError, match=r"listing .* was cut short; save it again"):
        convert.convert(sections(listing, tmp_path / "out", by="listing"), workers=1)
    with listing.open("ab") as file:
        file.write(b'["half a li')
    with pytest.raises(errors.ConfigError, match=r"listing .* cannot be read to its end"):
        convert.convert(sections(listing, tmp_path / "out", by="listing"), workers=1)


def test_manifest_is_not_saved_as_a_listing(tmp_path: pathlib.Path) -> None:
    (tmp_path / "table.jsonl").write_text(json.dumps({"image": "a.jpg"}))
    config = request.as_config(
        {"source": {"uri": str(tmp_path / "table.jsonl"), "by": "manifest"}, "label": {"by": "none"}}
    )
    with error_texts.raises("listing-of-no-folder"):
        convert.save_listing(config, str(tmp_path / "listing.jsonl"))
    (tmp_path / "in").mkdir()
    with error_texts.raises("listing-unwritable"):
        convert.save_listing(
            request.as_config({"source": {"uri": str(tmp_path / "in")}}), tmp_path / "none" / "listing"
        )


def test_listing_of_a_source_with_a_problem_is_not_saved(tmp_path: pathlib.Path) -> None:
    class Broken(image_source.ImageSource):
        def list_all(self) -> Iterator[image_source.Listing]:
            yield image_source.Listing(b"", 0, (), {}, ("folder '/in/x' cannot be listed",))

    with error_texts.raises("listing-incomplete"):
        listing_format.save_listing(Broken(), None, str(tmp_path / "listing.jsonl"))
    assert not (tmp_path / "listing.jsonl").exists()


# --- all formats -----------------------------------------------------------------------------------------------------


DOCS = pathlib.Path(command_line.ROOT) / "docs"


def test_options_are_a_frozen_dataclass_whose_every_field_has_a_default_and_a_text() -> None:
    described = {key for key, _, meaning in schema.key_rows() if meaning}
    for by in FORMATS:
        options = format_of(by)()
        assert pickle.loads(pickle.dumps(options)) == options
        with pytest.raises(dataclasses.FrozenInstanceError):
            options.ABOUT = ""  # type: ignore[misc]
        names = {f"source.{by}.{field.name}" for field in dataclasses.fields(options)}  # type: ignore[arg-type]
        assert [each for each in names if not any(f"{key}.".startswith(f"{each}.") for key in described)] == []


def test_modules_import_neither_pydantic_nor_beam_nor_numpy() -> None:
    """In one process: the first line names the module that does."""
    modules = [f"imagebeam.transforms.formats.{each.partition(':')[0]}" for each in FORMATS.values()]
    heavy = {"pydantic", "apache_beam", "numpy", "yaml", "ijson"}
    done = command_line.run_python(
        f"import importlib, sys\nfor each in {modules}:\n"
        f"    importlib.import_module(each)\n    for found in {heavy} & {{*sys.modules}}: print(each, found)"
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_presets_that_formats_detect_exist_and_are_in_the_recipes() -> None:
    pages = " ".join(page.read_text("utf-8") for page in (DOCS / "recipes").glob("*.md"))
    for by in FORMATS:
        presets = format_of(by).PRESETS
        assert set(presets) <= set(config_lib.preset_names())
        assert [name for name in presets if not re.search(rf"\b{name}\b", pages)] == []
        assert not presets or any(config_lib.load_config(name).source.by == by for name in presets)


def test_refused_settings_are_those_of_a_config() -> None:
    config = config_lib.load_config()
    for by in FORMATS:
        for setting, _ in format_of(by)().gives().refuses:
            section, _, key = setting.partition(": ")[0].partition(".")
            assert hasattr(getattr(config, section), key), setting
