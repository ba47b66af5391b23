"""Signs of pixels in CSV files: FER2013, MNIST and sets like it."""

from __future__ import annotations

import math
import posixpath
from typing import Any

from imagebeam.transforms.packed import broken_content, unpacked_content
from imagebeam.transforms.sources.folder_probe import HASH_SPLIT, Finding, FolderProbe

_MIN_COLUMNS = 17  # a column for each pixel, and the label
_FACES = {"emotion", "pixels"}
_LABELS = ("label", "emotion", "class", "target", "y")


def find(survey: FolderProbe, path: str, num_columns: int) -> Finding | None:
    """Returns the finding for a CSV with the pixels of its images; None if it has none.

    Args:
        survey: of the folder.
        path: of the table, below the root of the survey.
        num_columns: of the table.
    """
    first = survey.head(path).split(b"\n", 1)[0]
    if not path.lower().endswith(unpacked_content.CSV) or (
        num_columns < _MIN_COLUMNS and b"pixels" not in first.lower()
    ):
        return None
    from imagebeam.transforms.formats.arrays import array_places, array_source, pixel_csv  # late: NumPy

    uri = survey.uri(path)
    try:
        table = pixel_csv.look_into(uri, array_places.stat(uri).version)
    except (OSError, broken_content.BrokenContentError):
        return None
    if table is None:
        return None
    split = array_places.role_of(posixpath.basename(path).removesuffix(unpacked_content.CSV)).split
    splits: dict[str, Any] = {} if split else {"split": HASH_SPLIT}
    if table.is_text and {*table.names, pixel_csv.PIXELS} >= _FACES:
        columns = ", ".join([*table.names, pixel_csv.PIXELS])
        settings = {} if "Usage" in table.names else splits or {"split": {"by": "source"}}
        return Finding("fer2013", f"{path} has the columns {columns}", settings)
    settings = dict(splits)
    label = next((name for name in table.names if name.lower() in _LABELS), None)
    if label is None:
        settings["label"] = {"by": "none"}
    elif label != array_source.LABEL:
        settings["label.column"] = label
    evidence = f"{path} has {table.num_pixels:,} pixels of an image in each row"
    if math.isqrt(table.num_pixels) ** 2 == table.num_pixels:
        return Finding("mnist_csv", evidence, settings)
    note = f"{table.num_pixels:,} pixels are no square: set source.arrays.shape to [height, width, channels]"
    return Finding("mnist_csv", evidence, settings, doubts=(note,))
