"""Re-reads a dataset against its catalog, on request decoding every image."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Collection, Mapping
from typing import Any

from imagebeam import catalog as catalog_lib
from imagebeam import errors, example, features, storage, verify

_SIDES = ("image/height", "image/width", "image/channels")


@dataclasses.dataclass(frozen=True)
class VerifyResult:
    """What was read, and what is wrong with it."""

    catalog: catalog_lib.Catalog
    num_shards: int
    problems: tuple[verify.Problem, ...]


def run_verify(directory: str, decode: bool = False) -> VerifyResult:
    """Reads every shard of the dataset.

    Args:
        directory: the dataset's.
        decode: whether each image is decoded, too.

    Raises:
        CatalogError: if there is no catalog, or it was edited.
    """
    directory = storage.normalize(directory)
    catalog = catalog_lib.load_catalog(directory)
    check = _DecodeRecord(catalog, _formats(directory)) if decode else None
    problems: list[verify.Problem] = []
    count = 0
    for _, found in verify.verify_dataset(directory, check):
        count += 1
        problems += found
    return VerifyResult(catalog, count, tuple(problems))


def _formats(directory: str) -> set[str]:
    """The formats of the images, as their writer counted them; none if its word is lost."""
    uri = storage.join(directory, catalog_lib.STATISTICS_FILE)
    try:
        by_split = json.loads(storage.storage_of(uri).read(uri))
    except (OSError, ValueError):
        return set()
    return {name for split in by_split.values() for name in split["formats"]}


class _DecodeRecord:
    """Decodes the image in a record, or counts its bare pixels; returns what is wrong with it."""

    def __init__(self, catalog: catalog_lib.Catalog, formats: Collection[str] = ()):
        keys = {feature.source: feature.key for feature in catalog.features}
        if features.ENCODED not in keys:
            raise errors.ConfigError("--decode: the examples hold no image; run verify without it")
        self._features = catalog.features
        self._image = keys[features.ENCODED]
        self._key = keys.get("image/key")
        self._is_raw = set(formats) == {"raw"}
        self._sides = [keys[name] for name in _SIDES if name in keys]

    def __call__(self, data: bytes) -> str | None:
        from transforms import images

        try:
            values = example.parse_example(data)
        except ValueError as e:
            return str(e)
        missing = [each.key for each in self._features if not each.many and len(values.get(each.key, ())) != 1]
        if missing:
            return f"the example has not exactly one value of {', '.join(missing)}"
        lost = [each.key for each in self._features if each.many and each.key not in values]
        if lost:
            return f"the example lacks the list {', '.join(lost)}"
        key = f"image {values[self._key][0].decode('utf-8', 'backslashreplace')!r}: " if self._key else ""
        if self._is_raw:
            problem = self._count_pixels(values)
            return f"{key}{problem}" if problem else None
        try:
            images.check_image(values[self._image][0], "decode")
        except images.BadImageError as e:
            return f"{key}{e.reason}: {e.detail}"
        return None

    def _count_pixels(self, values: Mapping[str, list[Any]]) -> str | None:
        """What is wrong with an image of bare pixels: only their number can be, where the sides are stored, too."""
        image = values.get(self._image, [])
        count = len(image[0]) if image and isinstance(image[0], bytes) else len(image)
        sides = [values[name][0] for name in self._sides]
        if len(sides) == len(_SIDES) and count != math.prod(sides):
            return f"{count:,} values, {' x '.join(map(str, sides))} pixels are {math.prod(sides):,}"
        return None
