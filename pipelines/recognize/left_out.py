"""Names files that seem to describe images, and that no preset for folders of images reads."""

from __future__ import annotations

import collections
import posixpath
from collections.abc import Iterator, Sequence

from imagebeam import errors, plural, storage
from imagebeam.transforms.sources.folder_probe import FolderProbe, extension_of

_REMEDIES = {
    ".txt": "captions go into a table with the columns image and caption (docs/recipes/captions.md)",
    ".caption": "captions go into a table with the columns image and caption (docs/recipes/captions.md)",
}
_REMEDY = "what they say of the images goes into a table with a row for each image (docs/recipes/tables.md)"


def notes_on_sidecars(survey: FolderProbe, remarks: Sequence[str]) -> Iterator[str]:
    """Yields a note for each extension of files that have the names of images beside them: `1.txt` beside `1.jpg`.

    Args:
        survey: of the folder.
        remarks: that are made already, on the paths that they begin with.
    """
    numbers: collections.Counter[str] = collections.Counter()
    first: dict[str, str] = {}
    for folder in survey.seen():
        image_of = {posixpath.splitext(name)[0]: name for name in folder.images}
        for name in folder.files:
            image = image_of.get(posixpath.splitext(name)[0])
            extension = extension_of(name)
            if image is not None and extension and name not in folder.images:
                numbers[extension] += 1
                first.setdefault(extension, f"{folder.below(name)} beside {image}")
    for extension, number in numbers.items():
        path = first[extension].partition(" ")[0]
        if any(each.startswith(path) for each in remarks):
            continue
        is_one = number == 1
        yield (
            f"{number:,} {extension} {'file has the name of an image' if is_one else 'files have names of images'} "
            f"({first[extension]}), and {'is' if is_one else 'are'} left out: {_REMEDIES.get(extension, _REMEDY)}"
        )


def notes_on_lists_of_images(survey: FolderProbe) -> Iterator[str]:
    """Yields a note for each column of the first Parquet file of a folder that holds several images in each row."""
    for folder in survey.seen():
        for name in folder.ending(".parquet")[:1]:
            for column in _columns_of_lists(survey.uri(folder.below(name))):
                yield (
                    f"{plural.count(len(folder.ending('.parquet')), 'Parquet file')}: the column {column!r} of "
                    f"{folder.below(name)} holds a list of images in each row, which is not read: write Parquet files "
                    "with one image in each row"
                )


def _columns_of_lists(uri: str) -> list[str]:
    """Returns the columns whose cells are lists of bytes; none if that cannot be read."""
    try:
        import pyarrow.parquet
        import pyarrow.types as types

        with storage.storage_of(uri).open_read(uri) as file:
            schema = pyarrow.parquet.ParquetFile(file).schema_arrow
    except (ImportError, OSError, ValueError, errors.ConfigError):
        return []
    found = []
    for field in schema:
        is_list = types.is_list(field.type) or types.is_large_list(field.type) or types.is_fixed_size_list(field.type)
        inner = field.type.value_type if is_list else None
        if inner is not None and types.is_struct(inner) and inner.get_field_index("bytes") >= 0:
            inner = inner.field("bytes").type
        if inner is not None and (types.is_binary(inner) or types.is_large_binary(inner)):
            found.append(field.name)
    return found


def via_files(survey: FolderProbe) -> Iterator[str]:
    """Yields the paths of files of the VGG Image Annotator, which no preset reads."""
    root = survey.look()
    for name in root.ending(".json", ".csv"):
        if "via" in name.lower() and b"region" in survey.head(name):
            yield name
