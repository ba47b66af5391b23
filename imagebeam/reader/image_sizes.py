"""Heights and widths of all images of some splits, before any of them is read: 4 bytes of memory for each record.

They come from the files beside the shards. What these do not tell comes from the records, once: from their features of
height and width, or else from the header of each image. The cache keeps it for the next start.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

import numpy as np

from imagebeam import catalog as catalog_lib
from imagebeam import concurrency, errors, example, features, plural, storage
from imagebeam.reader import bare_pixels, dataset_source, record_selection, shard_files, shard_reader, whole_images

_LOGGER = logging.getLogger("imagebeam.dataset")

_NUM_REQUESTS = 16  # at once
_MAX_SIDE = 65_535
_MADE_SUFFIX = ".made"  # a file of the cache, with its checksum at the end
_WHOLE = 1 << 62  # bytes: more than a record has


def load(
    source: dataset_source.DatasetSource,
    catalog: catalog_lib.Catalog,
    splits: Sequence[str],
    removed: np.ndarray,
    open_reader: Callable[[], shard_reader.ShardReader],
) -> np.ndarray:
    """Returns height and width of the image of each record of some splits, one split after the other.

    Of images with a side beyond 65,535 both sides are scaled down to it. Both are 0 if the record cannot be read, has a
    list of images, or was removed.

    Args:
        source: of the dataset.
        catalog: of the dataset.
        splits: their names.
        removed: int64 [removed], ascending: numbers of the removed records.
        open_reader: returns a reader for the records of the splits.

    Returns:
        uint16 [records, 2], read-only.

    Raises:
        ShardError: if a file of sizes is missing, cannot be read, or differs from the catalog.
        ExampleError: if the storage does not give a record.
    """
    split = shard_files.SplitShards(source.directory, record_selection.shards_of(catalog, splits), None)
    sizes = np.zeros((sum(shard.records for shard in split.shards), 2), np.uint16)
    parts = [sizes[start:end] for start, end in zip(split.starts.tolist(), split.ends.tolist(), strict=True)]
    unknown: list[int] = []  # shards

    def fill(number: int) -> None:
        shard, part = split.shards[number], parts[number]
        if not shard.num_examples:
            return
        if shard.sizes_file is not None:
            part[:] = _read(source, shard, shard.sizes_file)
        if not part.all():
            unknown.append(number)

    concurrency.call_each(fill, range(len(parts)), 1 if source.store.is_local else _NUM_REQUESTS)
    image = next((each for each in catalog.features if each.source == features.ENCODED), None)
    if unknown and image is not None and not features.is_list_of_images(image):
        _Maker(source, catalog, split, parts, removed).make(sorted(unknown), open_reader)
    sizes.flags.writeable = False
    return sizes


def _read(source: dataset_source.DatasetSource, shard: catalog_lib.Shard, expected: catalog_lib.File) -> np.ndarray:
    uri, remedy = storage.join_relative(source.directory, shard.sizes_name), f"run imagebeam verify {source.directory}"
    try:
        data = source.read(uri)
    except OSError as e:
        raise errors.ShardError("sizes-unreadable", f"{uri} cannot be read ({e.strerror or e}): {remedy}") from e
    if catalog_lib.entry_of(data) != expected:
        raise errors.ShardError(
            "sizes-damaged",
            f"{uri} is not the file of {plural.count(shard.records, 'height')} and widths that the catalog names: "
            f"it was cut short or replaced; {remedy}",
        )
    return decode(data)


def decode(data: bytes) -> np.ndarray:
    """Returns what `records.encode_sizes` encoded, read-only: uint16 [n, 2]."""
    return np.frombuffer(data, "<u2").reshape(-1, 2)


class _Maker:
    """Fills in the sizes that the files beside the shards do not tell."""

    def __init__(
        self,
        source: dataset_source.DatasetSource,
        catalog: catalog_lib.Catalog,
        split: shard_files.SplitShards,
        parts: Sequence[np.ndarray],
        removed: np.ndarray,
    ):
        self._cache = source.cache_of_made(catalog)
        self._split, self._parts, self._removed = split, parts, removed
        keys = {feature.source: feature.key for feature in catalog.features}
        self._image = keys[features.ENCODED]
        self._sides = [keys[side] for side in bare_pixels.SHAPE[:2] if side in keys]

    def make(self, shards: Sequence[int], open_reader: Callable[[], shard_reader.ShardReader]) -> None:
        """Fills in the sizes of these shards: from the cache, else from their records; logs what that took."""
        reader, num_made, num_kept, begin = None, 0, 0, time.monotonic()
        for number in shards:
            self._take_kept(number)
            rows = self._rows(number)
            if len(rows):
                reader = reader or open_reader()
                self._fill(reader, number, rows)
                num_made += len(rows)
                num_kept += len(rows) * self._keep(number)
        if num_made:
            num_unknown = sum(len(self._rows(number)) for number in shards)
            _LOGGER.warning(
                "height and width of %s, which no file beside the shards tells, took %.1f s from the records%s; %s",
                plural.count(num_made, "image"),
                time.monotonic() - begin,
                f", of which {num_unknown:,} tell none" if num_unknown else "",
                "cache_dir keeps them"
                if num_kept == num_made
                else "the next start takes as long: give cache_dir, or convert or index again, which writes the files",
            )

    def _rows(self, number: int) -> np.ndarray:
        """Returns the records of a shard whose size is unknown, without the removed ones: int64 [n]."""
        start, end = int(self._split.starts[number]), int(self._split.ends[number])
        first, last = np.searchsorted(self._removed, [start, end])
        return np.setdiff1d(np.flatnonzero(~self._parts[number].all(axis=1)), self._removed[first:last] - start)

    def _fill(self, reader: shard_reader.ShardReader, number: int, rows: np.ndarray) -> None:
        heads, part, start = reader.heads(number, rows), self._parts[number], int(self._split.starts[number])
        for row in rows.tolist():
            try:
                part[row] = self._measure(*next(heads))
            except ValueError:  # whoever reads the record reports it
                continue
            except (OSError, EOFError) as e:
                raise errors.ExampleError("example-broken", str(reader.fault(start + row, str(e)))) from e

    def _measure(self, head: bytes, read: Callable[[int, int], bytes]) -> tuple[int, int]:
        """Returns height and width of the image in a record.

        Raises:
            ValueError: if the record is broken.
        """
        if len(self._sides) == 2:
            [height], [width] = (example.find_ints(head, key, read) for key in self._sides)
        else:
            content = read(0, _WHOLE)
            [(start, length)] = example.locate_values(content, self._image, ()).spans or []
            height, width = whole_images.measure(memoryview(content)[start : start + length])
        if min(height, width) < 1:
            raise ValueError(f"{height} x {width} pixels")
        scale = min(1, _MAX_SIDE / max(height, width))
        return max(1, round(height * scale)), max(1, round(width * scale))

    def _take_kept(self, number: int) -> None:
        shard, part = self._split.shards[number], self._parts[number]
        if self._cache is None:
            return
        data = self._cache.find(shard, shard.sizes_name + _MADE_SUFFIX, _is_sealed)
        if data is not None and len(data) == part.nbytes + 4:
            np.copyto(part, decode(data[:-4]), where=part == 0)

    def _keep(self, number: int) -> bool:
        if self._cache is None:
            return False
        shard, data = self._split.shards[number], self._parts[number].astype("<u2").tobytes()
        return self._cache.keep(shard, shard.sizes_name + _MADE_SUFFIX, data + shard_files.checksum_of(data))


def _is_sealed(data: bytes) -> bool:
    return data[-4:] == shard_files.checksum_of(data[:-4])
