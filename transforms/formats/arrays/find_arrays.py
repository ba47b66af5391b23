"""Finds the arrays of images and labels in files, and checks that they belong together."""

from __future__ import annotations

import dataclasses
import fnmatch
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from imagebeam import errors, plural, storage
from imagebeam.transforms.formats import base_format
from imagebeam.transforms.formats.arrays import array_places, array_source
from imagebeam.transforms.formats.arrays.array_places import Place
from imagebeam.transforms.packed import array_files, cifar, found_array, packed_file, pixel_csv, unpacked_content
from imagebeam.transforms.sources import input_places, table_rows

_MAX_NAMED = 12
_MAX_SHOWN = 6
_MAX_CSV_FILES = 100  # looked into
_NUM_BATCHES = 5  # CIFAR-10's files for training
_CIFAR_AXES = found_array.ImageAxes("NCHW", (32, 32, 3))
_CIFAR_LABELS = {  # cell, classes in the Python version, file with the classes in the binary version
    "labels": (array_source.LABEL, "label_names", "batches.meta.txt"),
    "fine_labels": ("fine_label", "fine_label_names", "fine_label_names.txt"),
    "coarse_labels": ("coarse_label", "coarse_label_names", "coarse_label_names.txt"),
}
_CIFAR_FILES = (  # by split, for both versions of each data set; then the file with the names of the classes
    ({"train": "data_batch_[1-5]", "test": "test_batch"}, "batches.meta"),
    ({"train": "data_batch_[1-5].bin", "test": "test_batch.bin"}, ""),
    ({"train": "train.bin", "test": "test.bin"}, ""),
    ({"train": "train", "test": "test"}, "meta"),
)


class Roles(NamedTuple):
    """The arrays that were found, by split."""

    images: Mapping[str, Sequence[Place]]
    labels: Mapping[str, Sequence[Place]]
    classes: Sequence[Place] = ()
    cifar_classes: Mapping[str, array_source.Names] = {}  # by the name of the array of labels; for CIFAR alone


def find(wanted: array_source.Wanted, request: base_format.Request) -> array_source.ArraysSource:
    """Returns the source of the arrays in a file or folder, or of the pixels in CSV files.

    Raises:
        ConfigError: if there are no such arrays, or they contradict each other.
    """
    if request.label_by not in ("column", "none"):
        raise errors.ConfigError(
            "arrays-label-by",
            f"label.by is {request.label_by!r}, and {wanted.option} has its labels in arrays: set label.by: column "
            f"and label.column: {array_source.LABEL}, or label.by: none",
        )
    files, fields = array_places.Files(request.uri, not wanted.images, wanted.has_idx), request.fields
    found = _named(files, wanted) if wanted.images else _find_csv(files) or _find_cifar(files) or recognize(files)
    if not request.label_kind and not fields.needed:
        found = found._replace(labels={})
    found = _add_columns(files, found, fields)
    _check_roles(files, found, request, wanted.option)
    given = wanted.classes or _classes_in(found.classes)
    without_names = {column.name for column in fields.columns if column.kind != "bytes"}
    if request.label_kind != "class" and fields.label is not None:
        without_names.add(fields.label)
    splits: list[array_source.ArraySplit] = []
    shapes: dict[found_array.Shape, Place] = {}
    for name, images in found.images.items():
        parts = []
        for place, labels in _pair(name, images, found.labels.get(name, ()), wanted.option):
            rows, shape = _image_rows(place, _CIFAR_AXES if found.cifar_classes else None, wanted)
            shapes.setdefault(shape, place)
            label_arrays = []
            for each in labels:
                is_named = not each.is_csv or each.array.name == fields.label
                label = _label_array(place, rows, each, found.cifar_classes, given if is_named else (), wanted.option)
                label_arrays.append(label._replace(names=()) if label.cell in without_names else label)
            parts.append(array_source.ArrayPart(rows, tuple(label_arrays), place.uri if place.is_csv else ""))
        splits.append(array_source.ArraySplit(name, tuple(parts)))
    source = array_source.ArraysSource(tuple(splits), array_places.only_shape(shapes, wanted.option), fields)
    cells = {label.cell for label in source.labels()}
    if unknown := [name for name in fields.needed if name not in cells]:
        raise errors.ConfigError(
            "arrays-unknown-column",
            f"there is no column {unknown[0]!r} of these images; their columns are "
            f"{', '.join(sorted(cells)) or 'none'}",
        )
    if request.label_kind == "class" and not source.class_names:
        return dataclasses.replace(source, numbers=_numbers_in(source))
    return source


def _check_roles(files: array_places.Files, found: Roles, request: base_format.Request, option: str) -> None:
    """Raises ConfigError if the arrays do not have what the config asks for."""
    if request.split_by == "source" and "" in found.images:
        column = "split.by: column, or " if found.images[""][0].is_csv else ""
        raise errors.ConfigError(
            "arrays-no-split",
            f"the names of {found.images[''][0]} and its file say no split: set {column}split.by: hash and "
            "split.fractions, or name the arrays of each split in source.arrays.images",
        )
    for name, images in found.images.items():
        if images and not found.labels.get(name) and request.fields.label:
            raise errors.ConfigError(
                "arrays-no-labels",
                f"there are no labels of the split {name or '(unnamed)'}, whose images are {images[0]}: name "
                f"them in {option}.labels, or set label.by: none{_name_arrays(files)}",
            )
    for name in (name for name, images in found.images.items() if not images):
        raise errors.ConfigError(
            "arrays-no-images", f"the files of the split {name} in {files.folder!r} hold no array of images"
        )


def _pair(split: str, images: Sequence[Place], labels: Sequence[Place], option: str) -> list[tuple[Place, list[Place]]]:
    """Returns each array of images with its labels: those in the same file, or in the same place of the order."""
    files = [place.uri for place in images]
    if {place.uri for place in labels} <= set(files) and len(set(files)) == len(files):
        return [(place, [each for each in labels if each.uri == place.uri]) for place in images]
    if len(labels) != len(images):
        raise errors.ConfigError(
            "arrays-counts-differ",
            f"the split {split or '(unnamed)'} has {plural.count(len(images), 'array')} of images and "
            f"{len(labels):,} of labels; correct {option}.images or labels",
        )
    return [(place, [label]) for place, label in zip(images, labels)]


def _image_rows(
    place: Place, axes: found_array.ImageAxes | None, wanted: array_source.Wanted
) -> tuple[array_source.ImageRows, found_array.Shape]:
    """Returns where the images of an array are, and their shape."""
    array = place.array
    if _type_of(array) != np.uint8:
        is_float = array.dtype != found_array.TEXT and np.dtype(array.dtype).kind == "f"
        remedy = "1, save (255 * x).round().astype('uint8')" if is_float else "255, save x.astype('uint8')"
        raise errors.ConfigError(
            "arrays-wrong-type",
            f"{place.uri!r}: the array {array.name!r} is of type {_name_type(array)}; images are taken as uint8, "
            f"0 to 255: if its values are from 0 to {remedy}",
        )
    axes = axes or array_places.axes_of(place, wanted)
    try:
        shape = axes.image_shape(array.shape)
    except ValueError as e:
        raise errors.ConfigError(
            "arrays-wrong-layout",
            f"{place} does not have {e}: set source.arrays.layout, for images of one axis source.arrays.shape",
        ) from e
    if not all(shape) or shape[2] > found_array.MAX_CHANNELS:
        raise errors.ConfigError(
            "arrays-wrong-shape",
            f"{place} would be images of {' x '.join(map(str, shape))}; expected a height, a width and 1 to "
            f"{found_array.MAX_CHANNELS} channels: set source.arrays.layout",
        )
    count = axes.num_images(array.shape)
    if not count:
        raise errors.ConfigError("arrays-empty", f"{place} holds no image")
    if array.start >= 0 and axes.are_rows(array.order):
        with array_places.explained(place.uri):
            array_files.check(place.uri, place.version, array)
        return array_source.ImageRows(place.uri, place.version, array.start, count), shape
    part = unpacked_content.part_of(place.uri, array_files.part_name(array, axes))
    return array_source.ImageRows(part, place.version, 0, count), shape


def _type_of(array: found_array.FoundArray) -> np.dtype:
    return np.dtype("O" if array.dtype == found_array.TEXT else array.dtype)


def _name_type(array: found_array.FoundArray) -> str:
    return array.dtype if array.dtype == found_array.TEXT else str(np.dtype(array.dtype))


def _label_array(
    images: Place,
    rows: array_source.ImageRows,
    place: Place,
    cifar_classes: Mapping[str, array_source.Names],
    given: array_source.Names,
    option: str,
) -> array_source.LabelArray:
    array = place.array
    if array.dtype != found_array.TEXT and np.dtype(array.dtype).kind not in "iufbS":
        raise errors.ConfigError(
            "arrays-label-type",
            f"{place.uri!r}: the labels {array.name!r} are of type {_name_type(array)}; expected numbers, or "
            "texts of bytes (save y.astype('S'))",
        )
    is_one_hot = len(array.shape) == 2 and array.shape[0] == rows.num_images
    if array.num_values != rows.num_images and not is_one_hot:
        raise errors.ConfigError(
            "arrays-counts-differ",
            f"{place} are not the labels of {images}, which holds {plural.count(rows.num_images, 'image')}; "
            f"correct {option}.images or labels",
        )
    cell = array.name if place.is_csv else array_source.LABEL
    cell = _CIFAR_LABELS[array.name][0] if array.name in cifar_classes else cell
    return array_source.LabelArray(cell, place.uri, place.version, array, given or cifar_classes.get(array.name, ()))


def _classes_in(places: Sequence[Place]) -> array_source.Names:
    """Returns the classes that an array of texts names."""
    for place in places:
        if place.array.dtype == found_array.TEXT or np.dtype(place.array.dtype).kind == "S":
            label = array_source.LabelArray("", place.uri, place.version, place.array)
            with array_places.explained(place.uri):
                return tuple((str(number), name or "") for number, name in enumerate(array_source.read_texts(label)))
    return ()


def _numbers_in(source: array_source.ArraysSource) -> array_source.Names:
    """Returns the numbers that are classes, where nothing names these; () if the labels are no such numbers."""
    texts: set[str | None] = set()
    for label in source.labels():
        if label.cell == source.fields.label:
            with array_places.explained(label.uri):
                texts.update(array_source.read_texts(label))
    return array_source.numbers_up_to(texts - {""})


# --- which arrays they are -------------------------------------------------------------------------------------------


def _find_csv(files: array_places.Files) -> Roles | None:
    """Returns the pixels in CSV files; None if there are none."""
    found: dict[str, Place] = {}
    for name in [name for name in files.names if name.endswith(packed_file.CSV)][:_MAX_CSV_FILES]:
        split = array_places.role_of(name.removesuffix(packed_file.CSV)).split
        for place in files.open(files.address(name))[:1]:
            if split in found:
                raise errors.ConfigError(
                    "pixels-ambiguous",
                    f"{place.uri!r} and {found[split].uri!r} both hold pixels of the split {split or '(unnamed)'}: "
                    "give one of them as --input, or name them in source.arrays.images",
                )
            found[split] = place
    return (
        Roles({split: [found[split]] for split in sorted(found, key=array_places.ORDER.index)}, {}) if found else None
    )


def _add_columns(files: array_places.Files, found: Roles, fields: table_rows.RowFields) -> Roles:
    """Adds the columns of CSV files with pixels that the config asks for to the labels."""
    labels = dict(found.labels)
    for split, place in [(split, each) for split, images in found.images.items() for each in images if each.is_csv]:
        known = {each.array.name: each for each in files.open(place.uri)[1:]}
        if missing := [name for name in fields.needed if name not in known]:
            raise errors.ConfigError(
                "arrays-unknown-column",
                f"{place.uri!r} has no column {missing[0]!r} beside its pixels, only "
                f"{', '.join(map(repr, known)) or 'none'}; name another, or leave the file out by giving the other as "
                "--input",
            )
        labels[split] = [*labels.get(split, ()), *(known[name] for name in fields.needed)]
    return found._replace(labels=labels)


def _find_cifar(files: array_places.Files) -> Roles | None:
    """Returns CIFAR's arrays and classes; None if it is not CIFAR."""
    for globs, meta in _CIFAR_FILES:
        names = {split: sorted(fnmatch.filter(files.names, glob)) for split, glob in globs.items()}
        if not files.is_folder or not all(names.values()) or (meta == "meta" and meta not in files.names):
            continue
        if "[1-5]" in globs["train"] and len(names["train"]) != _NUM_BATCHES:
            raise errors.ConfigError(
                "cifar-files-missing",
                f"{files.folder!r} has {', '.join(names['train'])}, and CIFAR-10 has {_NUM_BATCHES} such files: fetch "
                "it again; for these alone name them in source.arrays.images and labels",
            )
        places = {
            split: [place for name in several for place in files.open(files.address(name))]
            for split, several in names.items()
        }
        images = {split: [each for each in several if each.array.name == "data"] for split, several in places.items()}
        labels = {
            split: [each for each in several if each.array.name in _CIFAR_LABELS] for split, several in places.items()
        }
        return Roles(images, labels, cifar_classes=dict(_cifar_classes(files, meta)))
    return None


def _cifar_classes(files: array_places.Files, meta: str) -> Iterator[tuple[str, array_source.Names]]:
    """Yields the name of each array of labels with its classes, which a pickle or files of text name."""
    in_meta = {}
    if meta in files.names:
        uri = files.address(meta)
        with array_places.explained(uri):
            in_meta = cifar.load(uri, input_places.stat_input(uri, uri).version)
    for name, (_, pickled, text) in _CIFAR_LABELS.items():
        given = [str(each, "utf-8", "replace") for each in in_meta.get(pickled, ()) if isinstance(each, bytes)]
        if text in files.names:
            uri = files.address(text)
            with array_places.explained(uri):
                lines = storage.storage_of(uri).read(uri, 0, 1 << 20).decode("utf-8", "replace").splitlines()
            given = [line.strip() for line in lines if line.strip()]
        yield name, tuple((str(number), each) for number, each in enumerate(given))


def _named(files: array_places.Files, wanted: array_source.Wanted) -> Roles:
    """Returns the arrays that the config names."""
    unknown = sorted(set(wanted.labels) - set(wanted.images))
    if unknown:
        raise errors.ConfigError(
            "arrays-unknown-split",
            f"{wanted.option}.labels names the split {unknown[0]}, {wanted.option}.images does not",
        )
    images, labels = (
        {split: _find_named(files, f"{wanted.option}.{kind}.{split}", one, wanted.has_idx) for split, one in of.items()}
        for kind, of in (("images", wanted.images), ("labels", wanted.labels))
    )
    return Roles(images, labels)


def _find_named(files: array_places.Files, option: str, text: str, is_one_file: bool) -> list[Place]:
    glob, hash, name = text.partition("#")
    if not hash and not files.is_folder and not text.endswith(packed_file.CSV):
        glob, name = "", text
    uris = files.match(option, glob) if glob else [files.uri]
    if not glob and files.is_folder:
        raise errors.ConfigError(
            "arrays-no-file-named", f"{option} is {text!r}, and --input is a folder: write FILE#ARRAY"
        )
    if is_one_file and len(uris) > 1:
        names = ", ".join(map(posixpath.basename, uris))
        raise errors.ConfigError("arrays-not-one", f"{option}, {text!r}, must name one file, it matches {names}")
    found = []
    for uri in uris:
        places = files.open(uri)
        if uri.endswith(packed_file.CSV):
            name = pixel_csv.PIXELS
        chosen = [place for place in places if place.array.name == name] if name else places
        if len(chosen) != 1:
            known = ", ".join(str(place) for place in places[:_MAX_NAMED]) or "none"
            raise errors.ConfigError(
                "arrays-not-one", f"{option}, {text!r}, must name one array of {uri!r}; its arrays are {known}"
            )
        found.append(chosen[0])
    return found


def recognize(files: array_places.Files) -> Roles:
    """Returns the arrays with usual names."""
    found: dict[str, dict[str, list[Place]]] = {"images": {}, "labels": {}, "classes": {}}
    for place in files.all_arrays():
        stem = posixpath.basename(place.uri).rpartition(".")[0]
        inside, outside = array_places.role_of(place.array.name), array_places.role_of(stem)
        kind = inside.kind or (outside.kind if len(files.open(place.uri)) == 1 else "")
        if kind:
            found[kind].setdefault(inside.split or outside.split, []).append(place)
    if not found["images"]:
        archives = [name for name in files.names if name.endswith((".tar.gz", ".tgz", ".zip"))]
        hint = f"; unpack {archives[0]} first (tar xf, unzip)" if archives else ""
        raise errors.ConfigError(
            "arrays-no-images",
            f"no array of images was found in {files.uri!r}: name it in source.arrays.images{hint}"
            f"{_name_arrays(files)}",
        )
    for kind in ("images", "labels"):
        for split, several in found[kind].items():
            if len(several) > 1:
                names = ", ".join(map(str, several[:_MAX_SHOWN]))
                raise errors.ConfigError(
                    "arrays-ambiguous",
                    f"several arrays may be the {kind} of the split {split or '(unnamed)'}, {names}: name one in "
                    f"source.arrays.{kind}, or give one file as --input",
                )
    images = {split: found["images"][split] for split in sorted(found["images"], key=array_places.ORDER.index)}
    return Roles(images, found["labels"], [place for several in found["classes"].values() for place in several])


def _name_arrays(files: array_places.Files) -> str:
    """Returns the end of an error text that names the arrays there are."""
    places = list(files.all_arrays())
    if not places:
        return f"; files with arrays end in {', '.join(array_places.SHOWN_ENDS)}"
    more = ", ..." if len(places) > _MAX_NAMED else ""
    return f"; the arrays there are {', '.join(map(str, places[:_MAX_NAMED]))}{more}"
