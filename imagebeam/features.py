"""The features of an example: their keys, types and where each value comes from.

The default keys follow the ImageNet convention, as read by TF-slim, the TPU reference models, tf-vision and keras-cv.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

BYTES = "bytes"
INT64 = "int64"
FLOAT = "float"


class Feature(NamedTuple):
    """One feature of every example: `kind` never depends on the value of one record."""

    key: str  # the key in the tf.train.Example
    source: str  # what the value is: a key of STANDARD, or "columns/<name>"
    kind: str  # bytes, int64 or float; always exactly one value


class Standard(NamedTuple):
    """A feature that imagebeam can compute."""

    kind: str
    default: bool  # written unless the config drops it
    meaning: str


ENCODED = "image/encoded"
LABEL = "image/class/label"
TEXT = "image/class/text"

STANDARD: Mapping[str, Standard] = {
    "image/format": Standard(BYTES, True, "jpeg or png, by the content"),
    "image/height": Standard(INT64, True, "pixels"),
    "image/width": Standard(INT64, True, "pixels"),
    "image/channels": Standard(INT64, True, "1 to 4, as a decoder yields by default"),
    "image/colorspace": Standard(BYTES, True, "GRAY, GRAY_ALPHA, RGB, RGBA or CMYK"),
    "image/filename": Standard(BYTES, True, "base name of the file"),
    "image/key": Standard(BYTES, True, "the stable id: path below the source, or the manifest's key"),
    LABEL: Standard(INT64, True, "id of the class, or the target's value"),
    TEXT: Standard(BYTES, True, "name of the class"),
    "image/class/synset": Standard(BYTES, False, "name of the class under ImageNet's key for synsets"),
    "image/source_id": Standard(BYTES, False, "the key again, where tf-vision looks for it"),
    ENCODED: Standard(BYTES, True, "the image's bytes"),
}

_NEEDS_CLASSES = frozenset({TEXT, "image/class/synset"})


def resolve_features(
    renamed: Mapping[str, str | None], label_kind: str | None, columns: Mapping[str, str]
) -> tuple[Feature, ...]:
    """The features of every example, `image/encoded` last so that its bytes are written without a copy.

    Args:
        renamed: from standard key (or `columns/<name>`) to the key to write; None drops the feature.
        label_kind: "class", INT64 or FLOAT; None without labels.
        columns: from the name of a column to its kind.

    Raises:
        ValueError: if a key is not known, or two features would have one key.
    """
    known = {name: standard.kind for name, standard in STANDARD.items()}
    known |= {f"columns/{name}": kind for name, kind in columns.items()}
    for name in renamed:
        if name not in known:
            raise ValueError(f"features names {name!r}, which is none of {', '.join(sorted(known))}")
        if renamed[name] is not None and not _has_value(name, label_kind):
            raise ValueError(f"features names {name!r}, but label gives no {'classes' if label_kind else 'labels'}")
    chosen = []
    for name, kind in known.items():
        if name == LABEL and label_kind in (INT64, FLOAT):
            kind = label_kind
        wanted = name in renamed or name not in STANDARD or STANDARD[name].default
        key = renamed.get(name, name.removeprefix("columns/"))
        if wanted and key is not None and _has_value(name, label_kind):
            chosen.append(Feature(key, name, kind))
    taken: dict[str, str] = {}
    for feature in chosen:
        if feature.key in taken:
            raise ValueError(
                f"features {taken[feature.key]!r} and {feature.source!r} both have the key {feature.key!r}"
            )
        taken[feature.key] = feature.source
    return tuple(sorted(chosen, key=lambda feature: (feature.source == ENCODED, feature.key)))


def _has_value(name: str, label_kind: str | None) -> bool:
    if name in _NEEDS_CLASSES:
        return label_kind == "class"
    return name != LABEL or label_kind is not None


def check_value(kind: str, value: Any) -> bool:
    """Whether `value` can be stored as `kind`."""
    if kind == BYTES:
        return isinstance(value, bytes)
    if kind == INT64:
        return isinstance(value, int) and -(2**63) <= value < 2**63
    return isinstance(value, (int, float))
