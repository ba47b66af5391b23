"""The identity of each preset, and the errors of settings of sources, as tests/golden/configs.json has them.

An identity goes into the fingerprint of a dataset: it must not change. `python -m
tests.unit.pipelines.config.test_snapshot` writes the file.
"""

from __future__ import annotations

import json
import pathlib
import re

from imagebeam import errors
from imagebeam.pipelines.config import model as config_lib
from imagebeam.pipelines.config import schema, sections
from tests import case_tables, command_line

SNAPSHOT = pathlib.Path(__file__).parents[3] / "golden" / "configs.json"

# Settings on top of a preset, or of nothing.
SETTINGS: tuple[tuple[str, ...], ...] = (
    (
        "source.by=manifest",
        "source.manifest={path: t.csv, root: r, image: a, key: k, join: {key: id, tables: {x.csv: [a]}}}",
    ),
    ("source.by=manifest", "source.manifest={image: null, files: '*.png'}"),
    ("source.by=listing", "source.pattern=(?P<label>.*)/x", "label={by: column, column: label}"),
    ("source.by=listing", "source.masks={image: (.*).jpg, mask: \\1.png, colors: {a: [0, 0, 0]}, ignore: [a]}"),
    ("yolo", "source.yolo={images: {train: a, test: [b, c]}, classes: [x, y], base: 1, polygons: reject}"),
    ("voc", "source.voc={images: {train: a}, origin: 0, without_annotations: keep}"),
    ("coco", "source.coco={masks: true, categories: [cat], outside: reject}"),
    ("labelme", "source.labelme={masks: true, annotation_folder: a}"),
    ("annotations", "source.annotations={syntax: kitti, images: {train: a}, without_annotations: keep}"),
    ("annotations", "source.annotations={syntax: run_lengths, unnamed: keep}"),
    ("box_csv", "source.box_csv={columns: {xmin: x, ymin: y, box_width: w, box_height: h}, delimiter: ;}"),
    ("tfrecord", "source.tfrecord={image: i, raw_shape: [28, 28, 1], keep: [a], base64: true}"),
    ("parquet", "source.parquet={image: i, key: k}"),
    ("npz", "source.arrays={images: {train: 'a#x'}, layout: NCHW, shape: [8, 8, 3], classes: {1: a, 0: b}}"),
    ("mnist", "source.idx.images={train: x}"),
    # refused
    ("source.by=nothing",),
    ("source.by=files", "source.manifest.path=x"),
    ("source.by=manifest", "source.yolo.base=1"),
    ("source.by=yolo", "source.idx.images={train: x}"),
    ("source.by=yolo", "source.include=a/*"),
    ("source.by=yolo", "source.pattern=(?P<label>.*)"),
    ("source.by=yolo", "source.masks={image: (.*).jpg, mask: \\1.png}"),
    ("source.by=yolo", "source.yolo.base=2"),
    ("source.by=yolo", "source.yolo.base=true"),
    ("source.by=yolo", "source.yolo.imags=x"),
    ("source.by=yolo", "source.yolo=3"),
    ("source.by=yolo", "source.yolo.images=3"),
    ("source.by=yolo", "source.yolo.image_folder=''"),
    ("source.by=yolo", "source.yolo.polygons=x"),
    ("source.by=yolo", "label={by: column, column: x}"),
    ("source.by=yolo", "image.frames=each"),
    ("source.by=voc", "image.fit=pad", "image.resize=[8, 8]"),
    ("source.by=voc", "source.voc.origin=2"),
    ("source.by=labelme", "image.frames=each"),
    ("source.by=labelme", "source.labelme.annotation_folder=''"),
    ("source.by=annotations", "source.annotations.syntax=x"),
    ("source.by=annotations", "source.annotations={syntax: kitti, unnamed: keep}"),
    ("source.by=annotations", "source.annotations={syntax: kitti, masks: true}"),
    ("source.by=annotations", "source.annotations={syntax: vott, files: {train: a.csv}}"),
    ("source.by=coco", "source.coco.masks=true", "image.frames=each"),
    ("source.by=coco", "source.coco.images={}"),
    ("source.by=coco", "source.coco.captions={a: b}"),
    ("source.by=coco", "source.coco.panoptic={a: b}"),
    ("coco_panoptic", "source.coco.masks=true"),
    ("coco_panoptic", "image.resize=[8, 8]"),
    ("source.by=coco", "source.coco={objects: false, masks: true}"),
    ("source.by=box_csv", "source.box_csv.columns={box_width: x}"),
    ("source.by=box_csv", "source.box_csv.columns={widht: x}"),
    ("source.by=box_csv", "source.box_csv.images={train: x}"),
    ("source.by=box_csv", "source.box_csv.delimiter=ab"),
    ("source.by=manifest", "source.manifest.image='{'"),
    ("source.by=manifest", "source.manifest.image=null"),
    ("source.by=manifest", "source.manifest={image: null, files: '*', root: x}"),
    ("source.by=manifest", "source.manifest={image: null, files: '*', merge_rows: true}"),
    ("source.by=manifest", "source.manifest={image: null, files: '*', trust: true}"),
    ("source.by=manifest", "source.manifest={further: {after: a}, merge_rows: true}"),
    ("source.by=manifest", "source.manifest.further={'a b': x}"),
    ("source.by=manifest", "source.manifest.further={after: x}", "image.encode=raw"),
    ("source.by=manifest", "source.manifest.further={after: x}", "image.frames=each"),
    ("source.by=manifest", "source.manifest.encoding=x"),
    ("source.by=manifest", "source.manifest.size=x"),
    ("source.by=manifest", "source.manifest.trust=true"),
    ("source.by=manifest", "source.manifest.merge_rows=true"),
    ("source.by=manifest", "source.manifest.delimiter=''"),
    ("source.by=manifest", "source.manifest.join.key=x"),
    ("source.by=manifest", "source.manifest.format=xml"),
    ("source.by=tfrecord", "source.tfrecord.raw_shape=[1, 2]"),
    ("source.by=tfrecord", "source.tfrecord.raw_shape=[1, 2, 5]"),
    ("source.by=arrays", "source.arrays.layout=XYZ"),
    ("source.by=arrays", "source.arrays.shape=[28, 28]"),
    ("source.masks.colors={a: [0, 0, 0]}",),
    ("source.masks.image=(.*).jpg",),
    ("source.masks={image: (.*).jpg, mask: x.png}",),
    ("source.masks.bits=16",),
    ("source.masks.ignore=[a]",),
    ("source.pattern=(",),
    ("split.by=source",),
    ("split.by=table",),
    ("split={by: index, counts: {train: 1, test: null}}",),
    ("columns={a: {}}",),
    ("label={by: columns, columns: [a]}",),
)


def _load(words: tuple[str, ...]) -> object:
    """Returns the identity of a config, or the text of its error."""
    preset = None if "=" in words[0] else words[0]
    overrides = words if preset is None else words[1:]
    try:
        return config_lib.load_config(preset, overrides).identity()
    except errors.ConfigError as e:
        return str(e)


def _all() -> dict[str, dict[str, object]]:
    return {
        "presets": {name: config_lib.load_config(name).identity() for name in config_lib.preset_names()},
        "settings": {" | ".join(words): _load(words) for words in SETTINGS},
    }


@case_tables.each_case("part", ["presets", "settings"])
def test_identities_and_errors_are_those_of_the_snapshot(part: str) -> None:
    assert _all()[part] == json.loads(SNAPSHOT.read_text("utf-8"))[part]


if __name__ == "__main__":
    SNAPSHOT.write_text(json.dumps(_all(), indent=1, sort_keys=True) + "\n", "utf-8")


# --- schema ----------------------------------------------------------------------------------------------------------


def test_reference_has_each_section_of_the_config_once_in_its_order() -> None:
    sections = re.findall(r"^## (.*)$", schema.markdown_reference(), re.MULTILINE)
    assert sections == list(config_lib.Config.model_fields)


def test_reference_has_each_key_once_below_its_section() -> None:
    section, keys = "", []
    for line in schema.markdown_reference().splitlines():
        section = line.removeprefix("## ") if line.startswith("## ") else section
        if match := re.match("- `([^`]+)`", line):
            assert match[1].split(".")[0] == section
            keys.append(match[1])
    assert len(keys) == len(set(keys))
    assert {f"label.{name}" for name in sections.LabelConfig.model_fields} <= set(keys)
    assert {f"columns.NAME.{name}" for name in sections.ColumnConfig.model_fields} <= set(keys)


def test_generated_files_are_up_to_date() -> None:
    for path, text in (
        (schema.REFERENCE_PATH, schema.markdown_reference()),
        (schema.SCHEMA_PATH, schema.json_schema()),
    ):
        assert (command_line.ROOT / path).read_text("utf-8") == text, f"{path} is not up to date: make docs"


def test_every_key_of_the_json_schema_is_described_and_every_reference_leads_to_a_section() -> None:
    text = schema.json_schema()
    found = json.loads(text)
    assert set(re.findall(r'"#/\$defs/(\w+)"', text)) == set(found["$defs"])
    for model in found["$defs"].values():
        assert all("description" in field or "$ref" in field for field in model["properties"].values()), model["title"]
