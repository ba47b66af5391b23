"""Makes the files with which TensorFlow Datasets loads the output: `tfds.builder_from_directory(out)`. Needs no TFDS.

Source: tensorflow_datasets/core/proto/dataset_info.proto and feature.proto, TFDS 4.9.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from imagebeam import catalog as catalog_lib
from imagebeam import features

LOADED_BY = ("dataset_info.json", "features.json")  # TFDS needs both to find a dataset

_CORE = "tensorflow_datasets.core.features."
_VERSION = "1.0.0"
# Formats that are declared as bytes. Unless it is asked for a still picture, TensorFlow 2.21 makes an animation of one
# frame of a WebP, uint8 [1, height, width, 3]. TFDS 4.9 does not ask, so its image feature would fail.
_AS_BYTES = ("raw", "webp")
_SCALAR_TYPES = {features.INT64: "int64", features.FLOAT: "float32"}


def tfds_files(catalog: catalog_lib.Catalog, suffix: str, image_formats: set[str]) -> dict[str, bytes]:
    """Returns the files to write next to the shards, by name; none for compressed shards, which TFDS cannot read.

    Args:
        catalog: of the dataset.
        suffix: of its shards' names.
        image_formats: of the images in it; declared to TFDS if there is exactly one.
    """
    if not tfds_names(catalog):
        return {}
    encoding = next(iter(image_formats)) if len(image_formats) == 1 else None
    files = {
        "dataset_info.json": _to_json(_dataset_info(catalog, suffix)),
        "features.json": _to_json(_features(catalog, encoding)),
    }
    labels = labels_text(["background"] * catalog.label_base + list(catalog.labels))
    return files | dict.fromkeys(_labels_files(catalog), labels)


def tfds_names(catalog: catalog_lib.Catalog) -> set[str]:
    """Returns the names of the files that `tfds_files` makes, without making them."""
    return {*LOADED_BY, *_labels_files(catalog)} if catalog.compression == "none" else set()


def _labels_files(catalog: catalog_lib.Catalog) -> list[str]:
    keys = [feature.key for feature in catalog.features if feature.source == features.LABEL]
    return [f"{key.replace('/', '.')}.labels.txt" for key in keys] if catalog.label_kind == "class" else []


def labels_text(names: list[str]) -> bytes:
    """Returns the content of a labels file: one name per line."""
    return "".join(f"{name}\n" for name in names).encode("utf-8", "surrogateescape")


def _dataset_info(catalog: catalog_lib.Catalog, suffix: str) -> dict[str, Any]:
    keys = {feature.source: feature.key for feature in catalog.features}
    described: dict[str, Any] = {
        "name": catalog.name,
        "version": _VERSION,
        "moduleName": "",
        "fileFormat": "tfrecord",
        "splits": [
            {
                "name": name,
                "shardLengths": [str(shard.records) for shard in split.shards],
                "numBytes": str(split.num_bytes),
                "filepathTemplate": f"{{SPLIT}}-{{SHARD_X_OF_Y}}{suffix}",
            }
            for name, split in catalog.splits.items()
        ],
    }
    if features.ENCODED in keys and features.LABEL in keys:
        pair = [{"featureKey": keys[features.ENCODED]}, {"featureKey": keys[features.LABEL]}]
        described["supervisedKeys"] = {"tuple": {"items": pair}}
    return described


def _features(catalog: catalog_lib.Catalog, encoding: str | None) -> dict[str, Any]:
    fields = {feature.key: _feature(feature, catalog, encoding) for feature in catalog.features}
    return _node("features_dict.FeaturesDict", {"featuresDict": {"features": fields}})


def _feature(feature: features.Feature, catalog: catalog_lib.Catalog, encoding: str | None) -> dict[str, Any]:
    if feature.many:
        one = _feature(feature._replace(many=False), catalog, encoding)
        return _node("sequence_feature.Sequence", {"sequence": {"length": "-1", "feature": one}})
    if feature.source == features.ENCODED and feature.kind == features.BYTES and encoding not in _AS_BYTES:
        image = {"shape": {"dimensions": ["-1", "-1", "3"]}, "dtype": "uint8"}
        return _node("image_feature.Image", {"image": image | ({"encodingFormat": encoding} if encoding else {})})
    if _is_further(feature) and encoding not in _AS_BYTES:  # only the formats of first images are counted
        return _node("image_feature.Image", {"image": {"shape": {"dimensions": ["-1", "-1", "3"]}, "dtype": "uint8"}})
    if feature.source == features.LABEL and catalog.label_kind == "class":
        num_classes = str(len(catalog.labels) + catalog.label_base)
        return _node("class_label_feature.ClassLabel", {"classLabel": {"numClasses": num_classes}})
    if feature.kind == features.BYTES:
        return _node("text_feature.Text", {"text": {}})
    tensor = {"shape": {}, "dtype": _SCALAR_TYPES[feature.kind], "encoding": "none"}
    return _node("tensor_feature.Tensor", {"tensor": tensor})


def _is_further(feature: features.Feature) -> bool:
    return (features.extra_image_part(feature.source) or ("", ""))[1] == "encoded"


def _node(class_name: str, content: Mapping[str, Any]) -> dict[str, Any]:
    return {"pythonClassName": _CORE + class_name, **content}


def _to_json(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, indent=1, sort_keys=True).encode() + b"\n"
