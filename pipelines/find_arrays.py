"""Finds the arrays of images and labels in files: those that the config names, or those with usual names."""

from __future__ import annotations

import fnmatch
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from imagebeam import errors, plural, storage
from imagebeam.pipelines import config_arrays
from imagebeam.transforms import broken_content, unpacked_content
from imagebeam.transforms.arrays import array_files, array_names, found_array, layouts, pickled_arrays, pixel_rows
from imagebeam.transforms.sources import arrays, pixel_csv, table_rows

_MAX_NAMED = 12
_MAX_FOLDERS = 100  # looked into below the one that is given
_MAX_SHOWN = 6
_MAX_CLASSES = 100_000

_SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("test", "testing"), "test"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "validation"),
    "extra": "extra",
}
_ORDER = ["", "train", "validation", "test", "extra"]
_IMAGES = frozenset(("x", "image", "images", "img", "imgs", "data", "pixels"))
_LABELS = frozenset(("y", "label", "labels", "target", "targets"))
_CLASSES = frozenset(("names", "classes"))
_WORD = re.compile(r"[a-z]+|\d+")
_JOINED = re.compile(r"\b([xy])(train|test|val)")  # Xtrain, ytest

# What CIFAR calls its labels, its classes in the Python version, and its classes in the binary version.
_CIFAR_LABELS = {
    "labels": (arrays.LABEL, "label_names", "batches.meta.txt"),
    "fine_labels": ("fine_label", "fine_label_names", "fine_label_names.txt"),
    "coarse_labels": ("coarse_label", "coarse_label_names", "coarse_label_names.txt"),
}
_CIFAR_AXES = layouts.ImageAxes("NCHW", (32, 32, 3))
_CIFAR_FILES = {  # by split, of the two versions of each data set; then the file with the names of the classes
    "cifar-10-batches-py": ({"train": "data_batch_[1-5]", "test": "test_batch"}, "batches.meta"),
    "cifar-10-batches-bin": ({"train": "data_batch_[1-5].bin", "test": "test_batch.bin"}, ""),
    "cifar-100-binary": ({"train": "train.bin", "test": "test.bin"}, ""),
    "cifar-100-python": ({"train": "train", "test": "test"}, "meta"),
}


class _Place(NamedTuple):
    """One array in a file."""

    uri: str
    version: int
    array: found_array.FoundArray

    def __str__(self) -> str:
        shape = " x ".join(map(str, self.array.shape))
        return f"{posixpath.basename(self.uri)}#{self.array.name} ({self.array.dtype}, {shape})"


class _Role(NamedTuple):
    """What a name says of an array."""

    split: str = ""
    kind: str = ""  # images, labels, classes or ""


class _Roles(NamedTuple):
    """The arrays that were found, by split."""

    images: Mapping[str, Sequence[_Place]]
    labels: Mapping[str, Sequence[_Place]]
    classes: Sequence[_Place] = ()


def find(
    uri: str,
    wanted: config_arrays.ArraysConfig,
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
    files = _Files(uri, looks_below=not wanted.images)
    if (tables := _find_tables(files, wanted)) is not None:
        return _csv_source(tables, wanted, fields, label_kind, takes_splits)
    if not wanted.images and (cifar := _find_cifar(files)) is not None:
        found, axes, classes = cifar
    else:
        found = _named(files, wanted) if wanted.images else _recognize(files)
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
            f"them in source.arrays.labels, or set label.by: none{_name_arrays(files)}"
        )
    given = _given_classes(wanted) or _classes_in(found.classes)
    splits: list[arrays.ArraySplit] = []
    shapes: dict[tuple[int, int, int], _Place] = {}
    for name, images in found.images.items():
        parts = []
        by_place = _pair(name, images, found.labels.get(name, ()))
        for place, labels in by_place:
            rows, shape = _image_rows(place, axes, wanted)
            shapes.setdefault(shape, place)
            parts.append(arrays.ArrayPart(rows, tuple(_label_arrays(place, rows, labels, classes, given))))
        splits.append(arrays.ArraySplit(name, tuple(parts)))
    _check_shapes(shapes)
    source = arrays.ArraysSource(tuple(splits), next(iter(shapes)), fields)
    _check_cells(source)
    if label_kind == "class" and not source.class_names:
        source = _name_labels(source, lambda label: label.cell == fields.label, _numbers_in(source))
    as_numbers = {column.name for column in fields.columns if column.kind != "bytes"}
    if label_kind != "class" and fields.label is not None:
        as_numbers.add(fields.label)
    return _name_labels(source, lambda label: label.cell in as_numbers, ())


# --- files -----------------------------------------------------------------------------------------------------------


class _Files:
    """The files with arrays at an address; each is looked into once."""

    def __init__(self, uri: str, looks_below: bool):
        self.uri = uri
        self._looks_below = looks_below
        self._arrays: dict[str, tuple[int, list[found_array.FoundArray]]] = {}
        self.is_folder = _stat(uri).kind == storage.DIRECTORY
        self.folder = uri if self.is_folder else posixpath.dirname(uri)
        self.names = self._list() if self.is_folder else [posixpath.basename(uri)]

    def _list(self) -> list[str]:
        names = _list_files(self.uri)
        if not self._looks_below or any(array_files.format_of(f"/{name}") for name in names):
            return names
        below = _list_folders(self.uri)
        if len(below) > _MAX_FOLDERS:
            return names
        found = {folder: _list_files(storage.join(self.uri, folder)) for folder in below}
        holding = [folder for folder in below if any(array_files.format_of(f"/{name}") for name in found[folder])]
        if len(holding) > 1:
            raise errors.ConfigError(
                f"--input {self.uri!r} has files with arrays in several folders, {', '.join(holding[:_MAX_NAMED])}: "
                "give one of them as --input"
            )
        if not holding:
            return names
        self.folder = storage.join(self.uri, holding[0])
        return found[holding[0]]

    def match(self, option: str, glob: str) -> list[str]:
        """Returns the addresses of the files that a glob matches, sorted."""
        below, _, pattern = glob.rpartition("/")
        folder = storage.join(self.uri, below) if below else self.folder
        names = _list_files(folder) if below else self.names
        found = [storage.join(folder, name) for name in sorted(fnmatch.filter(names, pattern))]
        if not found:
            raise errors.ConfigError(f"{option}: no file in {folder!r} matches {glob!r}")
        return found

    def address(self, name: str) -> str:
        return storage.join(self.folder, name)

    def open(self, uri: str) -> list[_Place]:
        """Returns the arrays of one file."""
        if uri not in self._arrays:
            format = array_files.format_of(uri)
            if format is None:
                raise errors.ConfigError(
                    f"{uri!r} is not known as a file with arrays; their names end in {', '.join(_shown_ends())}"
                )
            version = _stat(uri).version
            with _explained(uri):
                self._arrays[uri] = version, format.list_arrays(uri, version)
        version, found = self._arrays[uri]
        return [_Place(uri, version, array) for array in found]

    def all_arrays(self) -> Iterator[_Place]:
        """Yields all arrays of all files."""
        for name in self.names:
            if any(name.endswith(end) for end in array_names.ENDS if end.startswith(".")):
                yield from self.open(self.address(name))


class _explained:
    """Turns the errors of a broken file into a ConfigError that names it."""

    def __init__(self, uri: str):
        self._uri = uri

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, broken_content.BrokenContentError):
            raise errors.ConfigError(f"{self._uri!r} {error.detail}") from error
        if isinstance(error, OSError):
            raise errors.ConfigError(f"{self._uri!r} cannot be read ({error.strerror or error})") from error


def _shown_ends() -> list[str]:
    return [end for end in array_names.ENDS if end.startswith(".")]


def _stat(uri: str) -> storage.Entry:
    try:
        return storage.storage_of(uri).stat(uri)
    except OSError as e:
        raise errors.ConfigError(f"--input {uri!r} cannot be read ({e.strerror or e}); check the address") from e


def _list_entries(folder: str) -> list[storage.Entry]:
    try:
        return list(storage.storage_of(folder).list_directory(folder))
    except OSError as e:
        raise errors.ConfigError(f"{folder!r} is not a folder that can be listed ({e.strerror or e})") from e


def _list_files(folder: str) -> list[str]:
    return sorted(entry.name for entry in _list_entries(folder) if entry.kind == storage.FILE)


def _list_folders(folder: str) -> list[str]:
    return sorted(entry.name for entry in _list_entries(folder) if entry.kind == storage.DIRECTORY)


# --- which arrays ----------------------------------------------------------------------------------------------------


def _find_cifar(
    files: _Files,
) -> tuple[_Roles, layouts.ImageAxes, dict[str, tuple[tuple[str, str], ...]]] | None:
    """Returns CIFAR's arrays, their axes, and the classes by the name of the labels; None if it is not CIFAR."""
    for globs, meta in _CIFAR_FILES.values():
        found = {split: fnmatch.filter(files.names, glob) for split, glob in globs.items()}
        if not files.is_folder or not all(found.values()) or (meta == "meta" and meta not in files.names):
            continue
        places = {
            split: [place for name in sorted(names) for place in files.open(files.address(name))]
            for split, names in found.items()
        }
        images = {split: [each for each in several if each.array.name == "data"] for split, several in places.items()}
        labels = {
            split: [each for each in several if each.array.name in _CIFAR_LABELS] for split, several in places.items()
        }
        in_meta = {}
        if meta in files.names:
            uri = files.address(meta)
            with _explained(uri):
                in_meta = pickled_arrays.load(uri, _stat(uri).version)
        classes = {}
        for name, (_, pickled, text) in _CIFAR_LABELS.items():
            given = [str(each, "utf-8", "replace") for each in in_meta.get(pickled, ()) if isinstance(each, bytes)]
            if text in files.names:
                given = _read_lines(files.address(text))
            classes[name] = tuple((str(number), each) for number, each in enumerate(given))
        return _Roles(images, labels), _CIFAR_AXES, classes
    return None


def _read_lines(uri: str) -> list[str]:
    with _explained(uri):
        text = storage.storage_of(uri).read(uri, 0, 1 << 20).decode("utf-8", "replace")
    return [line.strip() for line in text.splitlines() if line.strip()]


def _named(files: _Files, wanted: config_arrays.ArraysConfig) -> _Roles:
    """Returns the arrays that the config names."""
    unknown = sorted(set(wanted.labels) - set(wanted.images))
    if unknown:
        raise errors.ConfigError(f"source.arrays.labels names the split {unknown[0]}, source.arrays.images does not")
    images = {split: _find_named(files, f"source.arrays.images.{split}", one) for split, one in wanted.images.items()}
    labels = {split: _find_named(files, f"source.arrays.labels.{split}", one) for split, one in wanted.labels.items()}
    return _Roles(images, labels)


def _find_named(files: _Files, option: str, text: str) -> list[_Place]:
    glob, hash, name = text.partition("#")
    if not hash and not files.is_folder:
        glob, name = "", text
    uris = files.match(option, glob) if glob else [files.uri]
    if not glob and files.is_folder:
        raise errors.ConfigError(f"{option} is {text!r}, and --input is a folder: write FILE#ARRAY")
    found = []
    for uri in uris:
        places = files.open(uri)
        chosen = [place for place in places if place.array.name == name] if name else places
        if len(chosen) != 1:
            known = ", ".join(str(place) for place in places[:_MAX_NAMED]) or "none"
            raise errors.ConfigError(f"{option}, {text!r}, must name one array of {uri!r}; its arrays are {known}")
        found.append(chosen[0])
    return found


def _recognize(files: _Files) -> _Roles:
    """Returns the arrays with usual names."""
    found: dict[str, dict[str, list[_Place]]] = {"images": {}, "labels": {}, "classes": {}}
    places = list(files.all_arrays())
    for place in places:
        stem = posixpath.basename(place.uri).rpartition(".")[0]
        inside, outside = _role_of(place.array.name), _role_of(stem)
        if place.uri.endswith(array_names.NPY):
            inside = outside
        kind = inside.kind
        if kind:
            found[kind].setdefault(inside.split or outside.split, []).append(place)
    if not found["images"]:
        archives = [name for name in files.names if name.endswith((".tar.gz", ".tgz", ".zip"))]
        hint = f"; unpack {archives[0]} first (tar xf, unzip)" if archives else ""
        raise errors.ConfigError(
            f"no array of images was found in {files.uri!r}: name it in source.arrays.images{hint}{_name_arrays(files)}"
        )
    for kind in ("images", "labels"):
        for split, several in found[kind].items():
            if len(several) > 1:
                names = ", ".join(map(str, several[:_MAX_SHOWN]))
                raise errors.ConfigError(
                    f"several arrays may be the {kind} of the split {split or '(unnamed)'}, {names}: name one in "
                    f"source.arrays.{kind}, or give one file as --input"
                )
    images = {split: found["images"][split] for split in sorted(found["images"], key=_ORDER.index)}
    return _Roles(images, found["labels"], [place for several in found["classes"].values() for place in several])


def _role_of(name: str) -> _Role:
    """Returns what the words of a name say."""
    words = _WORD.findall(_JOINED.sub(r"\1 \2", name.lower()))
    split = next((_SPLITS[word] for word in words if word in _SPLITS), "")
    for kind, known in (("classes", _CLASSES), ("labels", _LABELS), ("images", _IMAGES)):
        if known & set(words):
            return _Role(split, kind)
    return _Role(split)


def _name_arrays(files: _Files) -> str:
    places = list(files.all_arrays())
    if not places:
        return f"; files with arrays end in {', '.join(_shown_ends())}"
    more = ", ..." if len(places) > _MAX_NAMED else ""
    return f"; the arrays there are {', '.join(map(str, places[:_MAX_NAMED]))}{more}"


# --- pixels in CSV ---------------------------------------------------------------------------------------------------


class _Table(NamedTuple):
    """A CSV file with pixels."""

    uri: str
    version: int
    table: pixel_rows.PixelTable


def _find_tables(files: _Files, wanted: config_arrays.ArraysConfig) -> dict[str, _Table] | None:
    """Returns the CSV files with pixels by split; None if the config or the files say that images are in arrays."""
    if wanted.images:
        if not all(one.endswith(array_names.CSV) for one in wanted.images.values()):
            return None
        named = {}
        for split, one in wanted.images.items():
            uris = files.match(f"source.arrays.images.{split}", one)
            if len(uris) > 1 or (found := _look_into(uris[0])) is None:
                raise errors.ConfigError(
                    f"source.arrays.images.{split}, {one!r}, must name one CSV file with pixels; it names "
                    f"{', '.join(uris[:_MAX_SHOWN])}"
                )
            named[split] = found
        return named
    tables: dict[str, _Table] = {}
    names = [name for name in files.names if name.endswith(array_names.CSV)]
    for name in names[:_MAX_FOLDERS]:
        if (found := _look_into(files.address(name))) is not None:
            split = _role_of(name.removesuffix(array_names.CSV)).split
            if split in tables:
                raise errors.ConfigError(
                    f"{found.uri!r} and {tables[split].uri!r} both hold pixels of the split {split or '(unnamed)'}: "
                    "give one of them as --input, or name them in source.arrays.images"
                )
            tables[split] = found
    return {split: tables[split] for split in sorted(tables, key=_ORDER.index)} or None


def _look_into(uri: str) -> _Table | None:
    version = _stat(uri).version
    with _explained(uri):
        table = pixel_rows.look_into(uri, version)
    return None if table is None else _Table(uri, version, table)


def _csv_source(
    tables: Mapping[str, _Table],
    wanted: config_arrays.ArraysConfig,
    fields: table_rows.RowFields,
    label_kind: str | None,
    takes_splits: bool,
) -> pixel_csv.PixelCsvSource:
    if takes_splits and "" in tables:
        raise errors.ConfigError(
            f"the name of {tables[''].uri!r} says no split: set split.by: column or split.by: hash, or name the files "
            "of each split in source.arrays.images"
        )
    found: list[pixel_csv.PixelFile] = []
    shapes: dict[tuple[int, int, int], _Place] = {}
    for split, each in tables.items():
        missing = [name for name in fields.needed if name not in each.table.names]
        if missing:
            raise errors.ConfigError(
                f"{each.uri!r} has no column {missing[0]!r} beside its pixels, only "
                f"{', '.join(map(repr, each.table.names)) or 'none'}; name another, or leave the file out by giving "
                "the other as --input"
            )
        flat = found_array.FoundArray(pixel_rows.PIXELS, (0, each.table.num_pixels), "|u1")
        place = _Place(each.uri, each.version, flat)
        axes = _axes_of(place, wanted)
        try:
            shapes.setdefault(axes.image_shape(flat.shape), place)
        except ValueError as e:
            raise errors.ConfigError(f"{place} does not have {e}: correct source.arrays.shape") from e
        address = unpacked_content.part_of(each.uri, pixel_rows.part_name(axes))
        found.append(pixel_csv.PixelFile(split, each.uri, each.version, each.table, address))
    _check_shapes(shapes)
    names = _given_classes(wanted) if label_kind == "class" else ()
    if label_kind == "class" and not names:
        names = _numbers_in_rows(found, fields)
    return pixel_csv.PixelCsvSource(tuple(found), next(iter(shapes)), fields, names)


def _numbers_in_rows(found: Sequence[pixel_csv.PixelFile], fields: table_rows.RowFields) -> tuple[tuple[str, str], ...]:
    texts: set[str] = set()
    for file in found:
        if fields.label is not None:
            column = file.table.names.index(fields.label)
            with _explained(file.uri):
                texts.update(row.cells[column] for row in pixel_rows.read_rows(file.uri, file.version, file.table))
    return _numbers_up_to(texts - {""})


# --- what they hold --------------------------------------------------------------------------------------------------


def _pair(split: str, images: Sequence[_Place], labels: Sequence[_Place]) -> list[tuple[_Place, list[_Place]]]:
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
    place: _Place, axes: layouts.ImageAxes | None, wanted: config_arrays.ArraysConfig
) -> tuple[arrays.ImageRows, tuple[int, int, int]]:
    """Returns where the images of an array are, and their shape."""
    array = place.array
    if np.dtype(array.dtype if array.dtype != found_array.TEXT else "O") != np.uint8:
        raise errors.ConfigError(
            f"{place.uri!r}: the array {array.name!r} is of type {_type_name(array.dtype)}; images are taken as uint8, "
            f"0 to 255: {_remedy_of(array.dtype)}"
        )
    axes = axes or _axes_of(place, wanted)
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
        return arrays.ImageRows(place.uri, place.version, array.start, count), shape
    part = unpacked_content.part_of(place.uri, array_files.part_name(array, axes))
    return arrays.ImageRows(part, place.version, 0, count), shape


def _axes_of(place: _Place, wanted: config_arrays.ArraysConfig) -> layouts.ImageAxes:
    if wanted.shape is not None and len(place.array.shape) == 2:
        if wanted.layout is None and wanted.shape[2] > 1:
            raise errors.ConfigError(
                f"{place} is of images of one axis: set source.arrays.layout to the order of their values, NHWC (the "
                "channels of a pixel follow each other) or NCHW (planes)"
            )
        return layouts.ImageAxes(wanted.layout or layouts.ROWS, wanted.shape)
    if wanted.layout is not None:
        return layouts.ImageAxes(wanted.layout)
    axes = layouts.guess(place.array.shape, is_matlab=False)
    if axes is None:
        raise errors.ConfigError(
            f"{place} leaves open which of its axes are height, width and channels: set source.arrays.layout, for "
            "images of one axis source.arrays.shape"
        )
    return axes


def _type_name(dtype: str) -> str:
    return dtype if dtype == found_array.TEXT else str(np.dtype(dtype))


def _remedy_of(dtype: str) -> str:
    if dtype != found_array.TEXT and np.dtype(dtype).kind == "f":
        return "if its values are from 0 to 1, save (255 * x).round().astype('uint8')"
    return "if its values are from 0 to 255, save x.astype('uint8')"


def _label_arrays(
    images: _Place,
    rows: arrays.ImageRows,
    labels: Sequence[_Place],
    classes: Mapping[str, tuple[tuple[str, str], ...]],
    given: tuple[tuple[str, str], ...],
) -> Iterator[arrays.LabelArray]:
    for place in labels:
        array = place.array
        cell = _CIFAR_LABELS[array.name][0] if array.name in classes else arrays.LABEL
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


def _check_shapes(shapes: Mapping[tuple[int, int, int], _Place]) -> None:
    if len(shapes) > 1:
        (first, one), (second, other) = list(shapes.items())[:2]
        raise errors.ConfigError(
            f"images of {' x '.join(map(str, first))} in {one}, of {' x '.join(map(str, second))} in {other}: all must "
            "have one shape; name them in source.arrays.images of two runs"
        )


def _given_classes(wanted: config_arrays.ArraysConfig) -> tuple[tuple[str, str], ...]:
    named = wanted.classes if isinstance(wanted.classes, dict) else dict(enumerate(wanted.classes))
    return tuple((str(number), name) for number, name in named.items())


def _classes_in(places: Sequence[_Place]) -> tuple[tuple[str, str], ...]:
    """Returns the classes that an array of texts names."""
    for place in places:
        if place.array.dtype == found_array.TEXT or np.dtype(place.array.dtype).kind == "S":
            label = arrays.LabelArray("", place.uri, place.version, place.array)
            with _explained(place.uri):
                names = arrays.read_texts(label)
            return tuple((str(number), name or "") for number, name in enumerate(names))
    return ()


def _numbers_in(source: arrays.ArraysSource) -> tuple[tuple[str, str], ...]:
    texts: set[str | None] = set()
    for label in _labels_of(source):
        if label.cell == source.fields.label:
            with _explained(label.uri):
                texts.update(arrays.read_texts(label))
    return _numbers_up_to(texts)


def _numbers_up_to(texts: Iterable[str | None]) -> tuple[tuple[str, str], ...]:
    """Returns the numbers from 0 to the highest label, each as its own name; () if the labels are not such numbers."""
    highest = -1
    for text in texts:
        if text is None or not text.isascii() or not text.isdecimal() or text != str(int(text[:9])):
            return ()
        highest = max(highest, int(text))
    return tuple((str(number), str(number)) for number in range(highest + 1)) if highest < _MAX_CLASSES else ()


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
