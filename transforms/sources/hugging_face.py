"""Reads what `datasets` of Hugging Face says of the columns of a Parquet file: images, and the names of classes.

Source: https://github.com/huggingface/datasets (src/datasets/features: Features.to_dict, ClassLabel, Image); the key
`huggingface` of the file's metadata holds {"info": {"features": {"label": {"names": [...], "_type": "ClassLabel"}}}}.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

KEY = b"huggingface"
NO_LABEL = -1  # id of the class in splits whose classes are not published


@dataclasses.dataclass(frozen=True)
class Columns:
    """What is said of the columns of a file."""

    images: tuple[str, ...] = ()  # columns of images
    names: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)  # of classes, by column of their ids
    problem: str = ""  # why it cannot be used; "" if it can, or nothing is said


def read_columns(metadata: Mapping[bytes, bytes] | None) -> Columns:
    """Returns what the metadata of a file say of its columns; nothing if they have no such key."""
    data = (metadata or {}).get(KEY)
    if data is None:
        return Columns()
    try:
        found = json.loads(data)
        features = found["info"]["features"]
        described = list(features.items())
    except (ValueError, RecursionError) as e:
        return Columns(problem=f"is not JSON ({str(e)[:100]})")
    except (KeyError, TypeError, AttributeError):
        return Columns(problem="has no info.features")
    images = tuple(name for name, feature in described if _type_of(feature) == "Image")
    names = {}
    for name, feature in described:
        inner = _element_of(feature)
        if _type_of(inner) == "ClassLabel" and isinstance(inner, dict):
            listed = inner.get("names")
            if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
                return Columns(images, problem=f"has no list of names for the column {name!r}")
            names[name] = tuple(listed)
    return Columns(images, names)


def _type_of(feature: Any) -> Any:
    return feature.get("_type") if isinstance(feature, dict) else None


def _element_of(feature: Any) -> Any:
    """Returns the feature of the elements of a list, or the feature itself."""
    if isinstance(feature, Sequence) and not isinstance(feature, str) and len(feature) == 1:
        return feature[0]
    if _type_of(feature) in ("Sequence", "List", "LargeList"):
        return feature.get("feature")
    return feature
