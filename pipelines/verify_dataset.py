"""Verifies a dataset: reads it again and compares it with its catalog; optionally decodes every image."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

from imagebeam import catalog as catalog_lib
from imagebeam import errors, example, features, plural, snapshots, storage, verify_shards
from imagebeam.reader import bare_pixels
from imagebeam.transforms.images import checked_image, reader_decoder


@dataclasses.dataclass(frozen=True)
class VerifyResult:
    """A catalog, the number of its shards that were read, and the problems found."""

    catalog: catalog_lib.Catalog
    num_shards: int
    problems: tuple[verify_shards.Problem, ...]

    @property
    def advice(self) -> str:
        """Text that says how much is wrong and what to do; "" for a good dataset."""
        num_records = sum(problem.is_in_record for problem in self.problems)
        broken = {problem.shard for problem in self.problems if not problem.is_in_record}
        every = [shard for split in self.catalog.splits.values() for shard in split.shards]
        unnamed = sum(problem.detail.startswith(verify_shards.UNNAMED) for problem in self.problems)
        compression = self.catalog.compression
        files = ((shard.name, *(each.name for each in shard.side_files(compression))) for shard in every)
        of_shards = sum(not broken.isdisjoint(names) for names in files)
        of_files = len(broken.intersection(self.catalog.files))
        differ = [f"{of_shards:,} of {plural.count(self.num_shards, 'shard')}"] if of_shards else []
        differ += [f"{of_files:,} of {len(self.catalog.files):,} other files"] if of_files else []
        again = "convert again with --overwrite"
        if self.catalog.indexed:
            again = "fetch the shards again, or run imagebeam index again, which takes them as they are"
        elif self.catalog.snapshot:
            again = "convert again with --update --overwrite, which writes a whole new snapshot"
        texts = []
        if unnamed == 1:
            texts.append("1 file is not in the catalog: move or delete it")
        elif unnamed:
            texts.append(f"{unnamed:,} files are not in the catalog: move or delete them")
        if differ:
            texts.append(f"{' and '.join(differ)} differ from the catalog; {again}")
        if num_records:
            texts.append(
                f"{num_records:,} of {self.catalog.counts.written:,} records are as they were indexed, and cannot be "
                "read: read with on_error='skip'"
                if self.catalog.indexed
                else f"{num_records:,} of {self.catalog.counts.written:,} records are as they were written, and cannot "
                f"be read: fix or remove those images in the input, or set image.check: tensorflow, then {again}"
            )
        return "; ".join(texts)


def find_folder(
    directory: str | os.PathLike[str], remedy: str = "give the --output of a convert command", of: str = "the dataset"
) -> str:
    """Returns the normalized address of a dataset's folder.

    Args:
        directory: as the user gave it.
        remedy: what to do if it does not exist.
        of: what is in the folder.

    Raises:
        ConfigError: if there is no such folder.
    """
    given = os.fspath(directory)
    if not given:
        raise errors.ConfigError("folder-empty-address", f"the address of {of} is empty; {remedy}")
    uri = storage.normalize(given)
    try:
        kind = storage.storage_of(uri).stat(uri).kind
    except (FileNotFoundError, NotADirectoryError) as e:
        raise errors.ConfigError("folder-not-found", f"{given!r} does not exist; {remedy}") from e
    except OSError:  # loading the catalog reports the error
        return uri
    if kind != storage.DIRECTORY:
        raise errors.ConfigError(
            "folder-is-file", f"{given!r} is a file; give the folder of {of}: {os.path.dirname(uri)}"
        )
    return uri


def verify(directory: str | os.PathLike[str], decode: bool = False, snapshot: str | int | None = None) -> VerifyResult:
    """Reads every committed file of a dataset and compares it with the catalog, like the command `imagebeam verify`.

    Args:
        directory: of the dataset.
        decode: whether to decode every image, too, except those of removed records.
        snapshot: name or number of a snapshot, such as "000002" or 2, instead of the latest.

    Returns:
        A result whose `problems` are empty if all is well.

    Raises:
        ConfigError: if there is no such folder, or no such snapshot.
        CatalogError: if there is no catalog, or it was edited.

    Examples:
        >>> imagebeam.verify("shards", decode=True).problems
        ()
    """
    directory, catalog = snapshots.find(find_folder(directory), snapshot)
    check = None
    if decode:
        formats = bare_pixels.formats_in(catalog_lib.load_statistics(directory))
        check = _DecodeRecord(catalog, bare_pixels.is_raw(catalog, formats))
    problems = [problem for _, found in verify_shards.verify_dataset(directory, check) for problem in found]
    num_shards = sum(len(split.shards) for split in catalog.splits.values())
    return VerifyResult(catalog, num_shards, tuple(problems))


class _DecodeRecord:
    """Decodes the image in a record; returns a description of the problem, or None."""

    def __init__(self, catalog: catalog_lib.Catalog, is_raw: bool):
        keys = {feature.source: feature.key for feature in catalog.features}
        if features.ENCODED not in keys:
            raise errors.ConfigError(
                "dataset-without-images", "--decode: the examples hold no image; run verify without it"
            )
        self._features = catalog.features
        # other tools leave a list out if it has no values
        self._lists = () if catalog.indexed else tuple(each for each in catalog.features if each.many)
        self._shaped = tuple(each for each in catalog.features if each.shape is not None)
        self._pixels = bare_pixels.PixelReader(catalog) if is_raw else None
        self._image = keys[features.ENCODED]
        self._size = [keys[source] for source in ("image/height", "image/width") if source in keys]
        self._extra_images = features.extra_images(catalog.features)
        self._extra_forms = bare_pixels.forms_of_extra_images(catalog)
        self._has_lists = features.has_lists_of_images(catalog.features)
        self._key = keys.get("image/key")
        self._points = keys.get(features.ENTRY_POINTS) if reader_decoder.has_decoder_in_c() else None
        self._decoder = reader_decoder.ImageDecoder()
        # lists of numbers as arrays: as Python numbers, those of a large image take a gigabyte
        self._arrays = frozenset(each.key for each in self._features if each.many and each.kind != features.BYTES)

    def __call__(self, data: bytes) -> str | None:
        try:
            values = example.parse_example(data, self._arrays)
        except ValueError as e:
            return str(e)
        missing = [each.key for each in self._features if not each.many and len(values.get(each.key, ())) != 1]
        if missing:
            return f"the example has not exactly one value of {', '.join(missing)}"
        lost = [each.key for each in self._lists if each.key not in values]
        if lost:
            return f"the example lacks the list {', '.join(lost)}"
        try:
            for feature in self._shaped:
                example.to_array(feature, values.get(feature.key, ()))
        except ValueError as e:
            return str(e)
        key = f"image {values[self._key][0].decode('utf-8', 'backslashreplace')!r}: " if self._key else ""
        where = key
        try:
            if self._has_lists:
                return self._check_each(values, key)
            if self._pixels is None:
                size = tuple(values[each][0] for each in self._size)
                self._decoder.check(values[self._image][0], size if len(size) == 2 else None)
                if (
                    self._points
                    and reader_decoder.find_entry_points_in(values[self._image][0]) != values[self._points][0]
                ):
                    return f"{key}{self._points} are not the entry points of this image: write the dataset again"
            else:
                self._pixels.read(values)
            for name, parts in self._extra_images.items():
                where = f"{key}image/{name}: "
                of_extra = tuple(values[parts[each]][0] for each in ("height", "width") if each in parts)
                data, form = values[parts["encoded"]][0], self._extra_forms.get(name)
                if form is not None and form.dtype == "float32":
                    if len(of_extra) == 2 and not form.fits(len(data), *of_extra, form.channels):
                        return f"{where}{len(data):,} bytes are no {of_extra[0]} x {of_extra[1]} numbers of float32"
                else:
                    self._decoder.check(data, of_extra if len(of_extra) == 2 else None)
        except checked_image.BadImageError as e:
            return f"{where}{e.reason}: {e.detail}"
        except ValueError as e:
            return f"{where}{e}"
        return None

    def _check_each(self, values: Mapping[str, Sequence[Any]], key: str) -> str | None:
        """Returns what is wrong with the images of an example that has a list of them; None if nothing is."""
        images, sizes = values[self._image], list(zip(*(values[each] for each in self._size)))
        of_each = [each.key for each in self._features if each.source in (*features.OF_EACH_IMAGE, features.POSITION)]
        if len({len(values[each]) for each in of_each}) > 1:
            return f"{key}{', '.join(of_each)} have different numbers of values"
        for number, image in enumerate(images):
            try:
                self._decoder.check(image, sizes[number] if len(self._size) == 2 else None)
            except checked_image.BadImageError as e:
                return f"{key}{self._image}[{number}]: {e.reason}: {e.detail}"
        return None


def needs_tensorflow(directory: str, snapshot: str | int | None = None) -> bool:
    """Returns whether TensorFlow decodes images of the dataset. Its import takes seconds."""
    folder, catalog = snapshots.find(directory, snapshot)
    formats = bare_pixels.formats_in(catalog_lib.load_statistics(folder))
    if features.extra_images(catalog.features) and (catalog.config.get("image") or {}).get("encode") != "jpeg":
        return True  # the statistics count the formats of first images alone
    return not formats <= ({bare_pixels.FORMAT, "jpeg"} if reader_decoder.has_decoder_in_c() else {bare_pixels.FORMAT})
