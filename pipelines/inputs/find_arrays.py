"""Finds the arrays of images and labels in files, and checks that they belong together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from imagebeam import errors, plural
from imagebeam.pipelines.config import arrays_section
from imagebeam.pipelines.inputs import array_axes, choose_arrays, find_pixel_csv
from imagebeam.transforms.arrays import array_files, found_array, layouts, unpacked_content
from imagebeam.transforms.formats import array_places
from imagebeam.transforms.sources import arrays, pixel_csv, table_rows


def find(
    uri: str,
    wanted: arrays_section.ArraysConfig,
    fields: table_rows.RowFields,
    label_kind: str | None,
    takes_splits: bool,
) -> arrays.ArraysSource | pixel_csv.PixelCsvSource:
    """Returns the source of the arrays in a file or folder, or of the pixels in CSV files.

    Args:
        uri: address of the file or folder.
        wanted: the config's section.
        fields: what is taken of the labels.
        label_kind: as in `LabelConfig.kind`; names of classes are for classes alone.
        takes_splits: whether the split of an image is to be that of its array.

    Raises:
        ConfigError: if there are no such arrays, or they contradict each other.
    """
    files = array_places.Files(uri, looks_below=not wanted.images)
    if (tables := find_pixel_csv.find_tables(files, wanted)) is not None:
        return find_pixel_csv.csv_source(tables, wanted, fields, label_kind, takes_splits)
    if not wanted.images and (cifar := choose_arrays.find_cifar(files)) is not None:
        found, axes, classes = cifar
    else:
        found = choose_arrays.named(files, wanted) if wanted.images else choose_arrays.recognize(files)
        axes, classes = None, {}
    if not label_kind and not fields.needed:
        found = found._replace(labels={})
    if takes_splits and "" in found.images:
        raise errors.ConfigError(
            f"the names of {found.images[''][0]} and its file say no split: set split.by: hash and split.fractions, or "
            "name the arrays of each split in source.arrays.images"
        )
    for name in (name for name in found.images if not found.labels.get(name) and fields.label and found.images[name]):
        raise errors.ConfigError(
            f"there are no labels of the split {name or '(unnamed)'}, whose images are {found.images[name][0]}: name "
            f"them in source.arrays.labels, or set label.by: none{choose_arrays.name_arrays(files)}"
        )
    for name in (name for name, images in found.images.items() if not images):
        raise errors.ConfigError(f"the files of the split {name} in {files.folder!r} hold no array of images")
    given = array_axes.given_classes(wanted) or _classes_in(found.classes)
    splits: list[arrays.ArraySplit] = []
    shapes: dict[tuple[int, int, int], array_places.Place] = {}
    for name, images in found.images.items():
        parts = []
        by_place = _pair(name, images, found.labels.get(name, ()))
        for place, labels in by_place:
            rows, shape = _image_rows(place, axes, wanted)
            shapes.setdefault(shape, place)
            parts.append(arrays.ArrayPart(rows, tuple(_label_arrays(place, rows, labels, classes, given))))
        splits.append(arrays.ArraySplit(name, tuple(parts)))
    array_axes.check_shapes(shapes)
    source = arrays.ArraysSource(tuple(splits), next(iter(shapes)), fields)
    _check_cells(source)
    if label_kind == "class" and not source.class_names:
        source = _name_labels(source, lambda label: label.cell == fields.label, _numbers_in(source))
    as_numbers = {column.name for column in fields.columns if column.kind != "bytes"}
    if label_kind != "class" and fields.label is not None:
        as_numbers.add(fields.label)
    return _name_labels(source, lambda label: label.cell in as_numbers, ())


def _pair(
    split: str, images: Sequence[array_places.Place], labels: Sequence[array_places.Place]
) -> list[tuple[array_places.Place, list[array_places.Place]]]:
    """Returns each array of images with its labels: those in the same file, or in the same place of the order."""
    files = [place.uri for place in images]
    if {place.uri for place in labels} <= set(files) and len(set(files)) == len(files):
        return [(place, [each for each in labels if each.uri == place.uri]) for place in images]
    if len(labels) != len(images):
        raise errors.ConfigError(
            f"the split {split or '(unnamed)'} has {plural.count(len(images), 'array')} of images and "
            f"{len(labels):,} of labels; correct source.arrays.images or labels"
        )
    return [(place, [label]) for place, label in zip(images, labels)]


def _image_rows(
    place: array_places.Place, axes: layouts.ImageAxes | None, wanted: arrays_section.ArraysConfig
) -> tuple[arrays.ImageRows, tuple[int, int, int]]:
    """Returns where the images of an array are, and their shape."""
    array = place.array
    if np.dtype(array.dtype if array.dtype != found_array.TEXT else "O") != np.uint8:
        raise errors.ConfigError(
            f"{place.uri!r}: the array {array.name!r} is of type {_type_name(array.dtype)}; images are taken as uint8, "
            f"0 to 255: {_remedy_of(array.dtype)}"
        )
    axes = axes or array_axes.axes_of(place, wanted)
    try:
        shape = axes.image_shape(array.shape)
    except ValueError as e:
        raise errors.ConfigError(
            f"{place} does not have {e}: set source.arrays.layout, for images of one axis source.arrays.shape"
        ) from e
    if not all(shape) or shape[2] > layouts.MAX_CHANNELS:
        raise errors.ConfigError(
            f"{place} would be images of {' x '.join(map(str, shape))}; expected a height, a width and 1 to "
            f"{layouts.MAX_CHANNELS} channels: set source.arrays.layout"
        )
    count = axes.num_images(array.shape)
    if not count:
        raise errors.ConfigError(f"{place} holds no image")
    if array.start >= 0 and axes.are_rows(array.order):
        with array_places.explained(place.uri):
            array_files.check(place.uri, place.version, array)
        return arrays.ImageRows(place.uri, place.version, array.start, count), shape
    part = unpacked_content.part_of(place.uri, array_files.part_name(array, axes))
    return arrays.ImageRows(part, place.version, 0, count), shape


def _type_name(dtype: str) -> str:
    return dtype if dtype == found_array.TEXT else str(np.dtype(dtype))


def _remedy_of(dtype: str) -> str:
    if dtype != found_array.TEXT and np.dtype(dtype).kind == "f":
        return "if its values are from 0 to 1, save (255 * x).round().astype('uint8')"
    return "if its values are from 0 to 255, save x.astype('uint8')"


def _label_arrays(
    images: array_places.Place,
    rows: arrays.ImageRows,
    labels: Sequence[array_places.Place],
    classes: Mapping[str, tuple[tuple[str, str], ...]],
    given: tuple[tuple[str, str], ...],
) -> Iterator[arrays.LabelArray]:
    for place in labels:
        array = place.array
        cell = choose_arrays.CIFAR_LABELS[array.name][0] if array.name in classes else arrays.LABEL
        is_number = array.dtype == found_array.TEXT or np.dtype(array.dtype).kind in "iufbS"
        if not is_number:
            raise errors.ConfigError(
                f"{place.uri!r}: the labels {array.name!r} are of type {_type_name(array.dtype)}; expected numbers, or "
                "texts of bytes (save y.astype('S'))"
            )
        is_flat = array.num_values == rows.num_images
        is_one_hot = len(array.shape) == 2 and array.shape[0] == rows.num_images
        if not is_flat and not is_one_hot:
            raise errors.ConfigError(
                f"{place} are not the labels of {images}, which holds {plural.count(rows.num_images, 'image')}; "
                "correct source.arrays.images or labels"
            )
        yield arrays.LabelArray(cell, place.uri, place.version, array, given or classes.get(array.name, ()))


def _classes_in(places: Sequence[array_places.Place]) -> tuple[tuple[str, str], ...]:
    """Returns the classes that an array of texts names."""
    for place in places:
        if place.array.dtype == found_array.TEXT or np.dtype(place.array.dtype).kind == "S":
            label = arrays.LabelArray("", place.uri, place.version, place.array)
            with array_places.explained(place.uri):
                names = arrays.read_texts(label)
            return tuple((str(number), name or "") for number, name in enumerate(names))
    return ()


def _numbers_in(source: arrays.ArraysSource) -> tuple[tuple[str, str], ...]:
    texts: set[str | None] = set()
    for label in _labels_of(source):
        if label.cell == source.fields.label:
            with array_places.explained(label.uri):
                texts.update(arrays.read_texts(label))
    return array_axes.numbers_up_to(texts)


def _labels_of(source: arrays.ArraysSource) -> Iterator[arrays.LabelArray]:
    return (label for split in source.splits for part in split.parts for label in part.labels)


def _name_labels(
    source: arrays.ArraysSource, is_meant: Callable[[arrays.LabelArray], bool], names: tuple[tuple[str, str], ...]
) -> arrays.ArraysSource:
    """Returns the source with other names of the classes in some arrays."""

    def rename(part: arrays.ArrayPart) -> arrays.ArrayPart:
        return part._replace(
            labels=tuple(label._replace(names=names) if is_meant(label) else label for label in part.labels)
        )

    splits = (split._replace(parts=tuple(map(rename, split.parts))) for split in source.splits)
    return arrays.ArraysSource(tuple(splits), source.image_shape, source.fields)


def _check_cells(source: arrays.ArraysSource) -> None:
    cells = {label.cell for label in _labels_of(source)}
    unknown = [name for name in source.fields.needed if name not in cells]
    if unknown:
        raise errors.ConfigError(
            f"there is no column {unknown[0]!r} of these images; their columns are {', '.join(sorted(cells)) or 'none'}"
        )
