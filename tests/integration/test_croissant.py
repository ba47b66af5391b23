"""What convert writes about a dataset in Croissant, loaded with MLCommons' own library."""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any

import pytest

from imagebeam.pipelines import compact, verify_dataset
from imagebeam.pipelines.config import model as config_lib
from tests import coco_sets, command_line, datasets, error_texts, image_sets, snapshot_sets
from tests.servers import locked

_LOAD = """
import fnmatch, json, os, sys
import mlcroissant

found = {}
for path in sys.argv[1:]:
    dataset = mlcroissant.Dataset(jsonld=path)
    metadata = dataset.metadata
    [shards] = metadata.distribution
    tables = {each.id: list(dataset.records(each.id)) for each in metadata.record_sets if each.data}
    [examples] = [each for each in metadata.record_sets if not each.data]
    found[path] = {
        "issues": metadata.ctx.issues.report(),
        "about": [metadata.name, metadata.license, metadata.cite_as, metadata.url, metadata.version],
        "agents": [each.name for each in (*metadata.creators, *metadata.publisher)],
        "description": metadata.description,
        "files": sorted(
            name
            for name in os.listdir(os.path.dirname(path))
            if any(fnmatch.fnmatch(name, pattern) for pattern in shards.includes)
        ),
        "tables": tables,
        "fields": {each.name: [str(kind) for kind in each.data_types] for each in examples.fields},
        "references": {each.name: each.references.field for each in examples.fields if each.references.field},
    }
print(json.dumps(found, default=lambda value: value.decode() if isinstance(value, bytes) else int(value)))
"""

ABOUT = {
    "description": "Cats and dogs.",
    "license": "https://spdx.org/licenses/CC-BY-4.0.html",
    "citation": "@misc{cats}",
    "url": "https://example.org/cats",
    "version": "1.2.0",
    "published": "2026-12-01",
    "creators": ["Ada", "Grace"],
    "publisher": "Cats and Co",
}


def load(*outputs: pathlib.Path) -> list[dict[str, Any]]:
    """Returns what mlcroissant tells of datasets."""
    paths = [str(output / "croissant.json") for output in outputs]
    done = command_line.run_other(locked.bin_of("croissant") / "python", "-c", _LOAD, *paths)
    assert done.returncode == 0, done.stderr
    assert "is not standard" not in done.stderr  # the context
    found = json.loads(done.stdout)
    return [found[path] for path in paths]


def test_mlcroissant_loads_what_convert_wrote(tmp_path: pathlib.Path) -> None:
    image_sets.write_folder(tmp_path / "images")
    coco_sets.write(tmp_path / "coco")
    halves = {"by": "hash", "fractions": {"train": 0.5, "test": 0.5}}
    label = {"by": "directory", "base": 1}
    datasets.make(tmp_path / "images", tmp_path / "cats", about=ABOUT, label=label, split=halves)
    plain = {"label": {"by": "none"}, "features": {"image/filename": "split"}}
    datasets.make(tmp_path / "images", tmp_path / "packed", output={"compression": "gzip", "suffix": ""}, **plain)
    datasets.make(tmp_path / "coco", tmp_path / "boxes", source={"by": "coco", "coco": {"masks": True}})
    cats, packed, boxes = load(tmp_path / "cats", tmp_path / "packed", tmp_path / "boxes")

    assert not cats["issues"]
    license, citation, url, version = (ABOUT[name] for name in ("license", "citation", "url", "version"))
    assert cats["about"] == ["cats", [license], citation, url, version]
    assert (cats["description"], cats["agents"]) == (ABOUT["description"], ["Ada", "Grace", "Cats and Co"])
    assert cats["files"] == ["test-00000-of-00001.tfrecord", "train-00000-of-00001.tfrecord"]
    assert cats["tables"]["splits"] == [{"splits/name": "train"}, {"splits/name": "test"}]
    assert cats["tables"]["labels"] == [
        {"labels/id": 1, "labels/name": "cat"},
        {"labels/id": 2, "labels/name": "dog"},
    ]
    assert cats["references"] == {"split": "splits/name", "image/class/label": "labels/id"}
    assert cats["fields"]["image/encoded"] == ["https://schema.org/ImageObject"]
    assert cats["fields"]["image/height"] == ["http://mlcommons.org/croissant/Int64"]

    assert packed["about"][1:] == [None] * 4
    assert packed["description"].endswith("written by imagebeam: 20 in train.")
    assert packed["files"] == ["train-00000-of-00001"]
    assert list(packed["tables"]) == ["splits"]

    names = {each["object_classes/id"]: each["object_classes/name"] for each in boxes["tables"]["object_classes"]}
    assert names == coco_sets.CATEGORIES
    assert boxes["references"]["image/object/class/label"] == "object_classes/id"
    assert boxes["fields"]["image/object/mask"] == ["https://schema.org/ImageObject"]
    assert boxes["fields"]["image/object/bbox/xmin"] == ["http://mlcommons.org/croissant/Float32"]


def test_another_section_about_is_written_with_overwrite(tmp_path: pathlib.Path) -> None:
    images, output = tmp_path / "images", tmp_path / "out"
    image_sets.write_folder(images)
    datasets.make(images, output)
    before = (output / "croissant.json").read_bytes(), datasets.shard_digests(output)
    kept = datasets.make(images, output, about=ABOUT)
    assert kept.state == "kept"
    assert re.search("earlier section about, and --overwrite writes all again", kept.plan.message)
    assert before == ((output / "croissant.json").read_bytes(), datasets.shard_digests(output))
    assert datasets.make(images, output, overwrite=True, about=ABOUT).state == "committed"
    assert json.loads((output / "croissant.json").read_text())["license"] == ABOUT["license"]
    assert datasets.shard_digests(output) == before[1]
    assert datasets.make(images, output, overwrite=True, about=ABOUT).state == "kept"


@pytest.mark.parametrize("setting", ["url=example.org", "version=1.0", "published=today"])
def test_bad_value_in_section_about_is_refused(setting: str) -> None:
    with error_texts.raises("config-invalid"):
        config_lib.load_config(None, [f"about.{setting}"])


def test_self_contained_snapshots_alone_have_croissant(tmp_path: pathlib.Path) -> None:
    images, output = tmp_path / "images", tmp_path / "out"
    image_sets.write_folder(images)
    snapshot_sets.update(images, output, about=ABOUT)
    (images / "cat" / "0.jpg").unlink()
    snapshot_sets.update(images, output, about=ABOUT)
    compact.compact(str(output))
    folders = [output / "snapshots" / name for name in ("000001", "000002", "000003")]
    assert [(folder / "croissant.json").exists() for folder in folders] == [True, False, True]
    described = json.loads((folders[2] / "croissant.json").read_text())
    assert (described["name"], described["license"]) == ("out", ABOUT["license"])
    assert verify_dataset.verify(str(output)).problems == ()
