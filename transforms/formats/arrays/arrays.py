"""The format `arrays`: CIFAR's batches, NumPy's .npy and .npz, and others; labels are other arrays."""

from __future__ import annotations

import dataclasses
import math
import posixpath
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from imagebeam import errors, plural, storage
from imagebeam.transforms.formats import base_format
from imagebeam.transforms.formats.arrays import array_source
from imagebeam.transforms.packed import found_array, packed_file
from imagebeam.transforms.sources import folder_probe, input_places, name_signs, value_signs
from imagebeam.transforms.sources.folder_probe import HASH_SPLIT, Finding, Folder, FolderProbe, name_some

if TYPE_CHECKING:
    from imagebeam.transforms.formats.arrays import array_places, find_arrays
    from imagebeam.transforms.packed import pixel_csv


@dataclasses.dataclass(frozen=True)
class Arrays(base_format.Format):
    """Images and labels in arrays: CIFAR's batches, NumPy's .npy and .npz, HDF5, MATLAB's .mat; pixels in CSV."""

    ABOUT: ClassVar[str] = "images that are rows of arrays, or of pixels in CSV"
    PRESETS: ClassVar[tuple[str, ...]] = ("cifar10", "cifar100", "svhn", "npz", "hdf5")

    images: dict[str, str] = dataclasses.field(default_factory=dict)
    """Arrays with images, by split: `FILE#ARRAY`, with a file or glob below `source.uri`; `ARRAY` alone if `source.uri`
    is a file, `FILE` alone if it holds one array or is a CSV file. By default arrays and splits are found by their
    usual names, such as `x_train`, `test_images`, `data`."""
    labels: dict[str, str] = dataclasses.field(default_factory=dict)
    """Arrays with labels, by split; written as `images`. One number or text for each image, or one-hot rows."""
    layout: Literal["NHWC", "NCHW", "HWCN", "NWHC", "NCWH", "NHW", "HWN", "NWH"] | None = None
    """Names of the axes of the arrays with images: N images, H height, W width, C channels. By default NHWC or NHW, or
    NCHW if only that fits; in .mat files HWCN or HWN."""
    shape: tuple[base_format.Count, base_format.Count, base_format.Channels] | None = None
    """Height, width and channels of images whose pixels are one axis of the array, such as [28, 28, 1]. By default they
    are square and gray."""
    classes: tuple[str, ...] | dict[int, str] = ()
    """Names of the classes in the order of their numbers, from 0; or the name of each number, in the order of their
    ids, such as {10: "0", 1: "1"}. By default those that the files name; without any, a class that is a number has the
    number as its id."""

    def gives(self) -> base_format.Gives:
        return base_format.Gives(columns=True, splits=True)

    def open(self, request: base_format.Request) -> array_source.ArraysSource:
        from imagebeam.transforms.formats.arrays import find_arrays  # late: NumPy

        named = self.classes if isinstance(self.classes, dict) else dict(enumerate(self.classes))
        classes = tuple((str(number), name) for number, name in named.items())
        wanted = array_source.Wanted(self.images, self.labels, self.layout, self.shape, classes)
        return find_arrays.find(wanted, request)

    @classmethod
    def hint_on_file(cls, uri: str) -> str:
        if uri.endswith(tuple(end for end in packed_file.ARRAYS if not end.startswith("/"))):
            return (
                "for images that are rows of arrays set source.by: arrays, as the presets npz, hdf5, svhn and emnist do"
            )
        if not uri.lower().endswith(packed_file.CSV):
            return ""
        from imagebeam.transforms.packed import pixel_csv  # late: NumPy

        try:
            if pixel_csv.look_into(uri, storage.storage_of(uri).stat(uri).version) is None:
                return ""
        except (OSError, packed_file.BrokenContentError):
            return ""
        return "for pixels in CSV set source.by: arrays, as the presets mnist_csv and fer2013 do"

    @classmethod
    def is_container(cls, name: str) -> bool:
        return name.lower().endswith(tuple(end for end in packed_file.ARRAYS if not end.startswith("/")))

    @classmethod
    def detect(cls, probe: FolderProbe, at: str) -> Iterator[Finding]:
        """Finds data sets that are arrays: CIFAR, .npz, .npy, .mat, HDF5."""
        places = [*folder_probe.with_inner(probe, at)]
        first, finding = next(((each, found) for each in places if (found := _find_in(probe, each, at))), (None, None))
        if first is None or finding is None:
            return
        later = places[places.index(first) + 1 :]
        later += [each for each in folder_probe.with_inner(probe, first.path) if each not in places]
        others = [each.path for each in later if _find_in(probe, each, at)]
        if others:
            doubt = f"arrays are in {name_some(others)}, too, and only {first.path or 'the folder'} is read"
            finding = dataclasses.replace(finding, doubts=(*finding.doubts, doubt))
        yield finding

    @classmethod
    def detect_file(cls, probe: FolderProbe, name: str) -> Iterator[Finding]:
        """Finds what the arrays of one file are."""
        if name.endswith("_32x32.mat"):
            split = "train" if name.startswith("train") else name.partition("_")[0]
            yield Finding("svhn", f"{name} is a file of SVHN, with the split {split}", input=name)
            return
        for preset in (each for each, ends in _PRESETS.items() if name.lower().endswith(ends)):
            if found := _look_into(probe, name, preset, f"{name} is a file with arrays"):
                yield found


_PRESETS = {"hdf5": packed_file.HDF5, "npz": (packed_file.NPZ, packed_file.NPY, packed_file.MATLAB)}
_MAX_FILES = 40  # folders with more are not looked into
_MAX_LABELS = 10_000_000  # values
_MAX_NOTE = 600  # characters of an error that is shown
_LABELS_APART = "save labels in the order of the images as .npy, beside the images as .npy (docs/recipes/arrays.md)"


def _find_in(probe: FolderProbe, folder: Folder, at: str) -> Finding | None:
    """Returns the finding for the files of one folder with arrays; None if there are none."""
    names = {*folder.files}
    where = f" in {folder.path.removeprefix(f'{at}/')}" if folder.path != at else ""
    if {"data_batch_1", "test_batch"} <= names or {"data_batch_1.bin", "test_batch.bin"} <= names:
        return Finding("cifar10", f"data_batch_1 and test_batch{where}", input=folder.path)
    if {"train", "test", "meta"} <= names or {"train.bin", "test.bin", "fine_label_names.txt"} <= names:
        return Finding("cifar100", f"train, test and meta{where}", input=folder.path)
    if mats := folder.ending("_32x32.mat"):
        return Finding("svhn", f"{name_some(mats)}{where}", input=folder.path)
    return next(_find_by_names(probe, folder, where), None)


def _find_by_names(probe: FolderProbe, folder: Folder, where: str) -> Iterator[Finding]:
    """Yields the finding for files with arrays, by the names of these."""
    for preset, ends in _PRESETS.items():
        names = folder.ending(*ends)
        if not names or len(names) > _MAX_FILES or (folder.images and preset == "npz"):  # masks may be .npy files
            continue
        kinds = sorted({posixpath.splitext(name)[1].lower() for name in names})
        evidence = f"{folder.count(len(names), f'{kinds[0]} file')}{where} ({name_some(names)})"
        if found := _look_into(probe, folder.path, preset, evidence):
            yield found


def _look_into(probe: FolderProbe, path: str, preset: str, evidence: str) -> Finding | None:
    """Returns the finding for the arrays of a file or folder; None if they are no images, and image files were seen."""
    from imagebeam.transforms.formats.arrays import array_places, array_source, find_arrays  # late: NumPy

    try:
        files = array_places.Files(probe.uri(path), looks_below=False)
        roles = find_arrays.recognize(files)
        places = [place for several in roles.images.values() for place in several]
        axes = [array_places.axes_of(place, array_source.Wanted()) for place in places]
    except errors.ConfigError as e:
        if e.code == "arrays-no-images" and any(each.images for each in probe.seen()):
            return None
        named = _name_by_shape([*files.all_arrays()]) if e.code == "arrays-no-images" else {}
        return Finding(preset, evidence, named, doubts=(str(e)[:_MAX_NOTE],), input=path)
    settings: dict[str, Any] = {}
    if "" in roles.images:
        settings["split"] = HASH_SPLIT
    if not all(roles.labels.get(split) for split in roles.images):
        settings["label"] = {"by": "none"}
        if "" not in roles.images:
            settings["split"] = {"by": "source"}
    shown = f"{evidence}: images in {name_some([str(place) for place in places], 2)}"
    doubts, notes = _left_out(roles, [*files.all_arrays()])
    if "label" not in settings:
        of_labels, noted, on_labels = _settings_of_labels(roles)
        settings, notes, doubts = settings | of_labels, (*noted, *notes), (*on_labels, *doubts)
    if flat := [place for place in places if place.uri.endswith(packed_file.MATLAB) and len(place.array.shape) == 2]:
        doubts += (
            f"the pixels of an image are one axis in {flat[0]}, and MATLAB counts down the columns: if images would be "
            "turned, save them as an array of N x height x width",
        )
    doubts += tuple(filter(None, map(_doubt_on_axes, places, axes)))[:1]
    if "label" in settings and (tables := probe.look(path).ending(packed_file.CSV, ".tsv")):
        doubts += (f"no array holds labels, and the rows of {name_some(tables)} are not read: {_LABELS_APART}",)
    if wrong := [place for place in places if place.array.dtype not in ("|u1", "u1", "uint8", "<u1")]:
        note = f"{wrong[0]} is not of uint8, and images are taken as uint8, 0 to 255: save it so"
        return Finding(preset, shown, settings, doubts=(note, *doubts), input=path)
    return Finding(preset, shown, settings, notes, input=path, doubts=doubts)


def _settings_of_labels(roles: find_arrays.Roles) -> tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]]:
    """Returns the settings that arrays of labels need which are no classes, with notes and doubts."""
    places = [each for several in roles.labels.values() for each in several]
    place = next((each for each in places if each.array.dtype != found_array.TEXT and "f" in each.array.dtype), None)
    if place is None or place.array.num_values > _MAX_LABELS:
        return {}, (), ()
    try:
        values = array_source.read_texts(array_source.LabelArray("", place.uri, place.version, place.array))
    except (OSError, ValueError, errors.ConfigError):  # the plan says so
        return {}, (), ()
    if any(each is not None and each.startswith(array_source.SEVERAL) for each in values):
        return {}, (), (f"{place} has several numbers for an image, and they are no one-hot classes",)
    return *value_signs.settings_of(array_source.LABEL, [each for each in values if each is not None]), ()


def _name_by_shape(every: Sequence[array_places.Place]) -> dict[str, Any]:
    """Returns settings that name the only array that may be images, and the only one that may be their labels.

    Without settings if there are several: np.savez calls its arrays arr_0, arr_1, which says nothing.
    """
    images = [each for each in every if len(each.array.shape) > 2 and each.array.dtype == "|u1"]
    labels = [each for each in every if images and each.array.shape == images[0].array.shape[:1]]
    if len(images) != 1 or len(labels) > 1:
        return {}
    of_label = {"source.arrays.labels": {"train": _address(labels[0])}} if labels else {"label": {"by": "none"}}
    return {"source.arrays.images": {"train": _address(images[0])}, **of_label}


def _doubt_on_axes(place: array_places.Place, axes: found_array.ImageAxes) -> str:
    """Returns a doubt if the images of an array would be long strips, or the channels of one image; "" if not."""
    try:
        height, width, _ = axes.image_shape(place.array.shape)
    except ValueError:
        return ""
    count = axes.num_images(place.array.shape)
    is_strip = max(height, width) > _MAX_ASPECT * min(height, width)
    if not is_strip and not (axes.layout == "HWN" and count <= found_array.MAX_CHANNELS):
        return ""
    text = f"{place} would be {plural.count(count, 'image')} of {height} x {width} pixels"
    return f"{text}: if its axes are others, save the images as an array of N x height x width x channels"


_MAX_ASPECT = 2  # of the sides of images in arrays


def _left_out(roles: find_arrays.Roles, every: Sequence[array_places.Place]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns doubts and notes on the arrays that are neither the images nor their labels.

    Args:
        roles: what the arrays are by their names.
        every: all arrays there are.
    """
    images = [place for several in roles.images.values() for place in several]
    labels = [place for several in roles.labels.values() for place in several]
    doubts = []
    without = [split for split in roles.images if not roles.labels.get(split)]
    if labels and without:
        shown = folder_probe.and_list([split or "(unnamed)" for split in without])
        doubts.append(
            f"{name_some([*map(str, labels)])} may be labels, and the split {shown} has none, so none is stored: to "
            "leave it out name the arrays of the others in source.arrays.images and source.arrays.labels"
        )
    if "" in roles.images and len(roles.images) > 1:
        doubts.append(f"{roles.images[''][0]} is of no split by its name, and others are: name each in source.arrays")
    others = [each for each in every if each not in (*images, *labels, *roles.classes)]
    lengths = {place.array.shape[0] for place in images}
    of_images = [each for each in others if each.array.shape and lengths & {each.array.shape[0], each.array.num_values}]
    if of_images and (not labels or any(_may_be_split(each) for each in of_images)):
        doubts.append(
            f"{name_some([*map(str, of_images)])} may be labels or splits of the images, and are not read; to name the "
            f"labels set source.arrays={{images: {{train: {_address(images[0])}}}, labels: {{train: "
            f"{_address(of_images[0])}}}}}"
        )
        others = [each for each in others if each not in of_images]
    return tuple(doubts), (f"further arrays are not stored: {name_some([*map(str, others)])}",) if others else ()


def _address(place: array_places.Place) -> str:
    return f"{posixpath.basename(place.uri)}#{place.array.name}"


def _may_be_split(place: array_places.Place) -> bool:
    return place.array.name.rpartition("/")[2].lower() in name_signs.SPLIT_COLUMNS


# --- pixels in tables ------------------------------------------------------------------------------------------------

_MIN_COLUMNS = 17  # a column for each pixel, and the label
_FACES = {"emotion", "pixels"}
_LABELS = ("label", "emotion", "class", "target", "y")


def find_pixels(probe: FolderProbe, path: str, num_columns: int) -> Finding | None:
    """Returns the finding for a CSV with the pixels of its images; None if it has none.

    Args:
        probe: of the folder.
        path: of the table, below the root of the probe.
        num_columns: of the table.
    """
    first = probe.head(path).split(b"\n", 1)[0]
    if not path.lower().endswith(packed_file.CSV) or (num_columns < _MIN_COLUMNS and b"pixels" not in first.lower()):
        return None
    from imagebeam.transforms.formats.arrays import array_places  # late: NumPy
    from imagebeam.transforms.packed import pixel_csv  # late: NumPy

    table = _look_into_csv(probe, path)
    if table is None:
        return None
    split = array_places.role_of(posixpath.basename(path).removesuffix(packed_file.CSV)).split
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
    side = math.isqrt(table.num_pixels)
    is_square = side * side == table.num_pixels
    size = f" ({side} x {side}, gray)" if is_square else ""
    evidence = f"{path} has {table.num_pixels:,} pixels of an image in each row{size}"
    others = [name for name in table.names if name != label]
    doubts = []
    if others and label is None:
        doubts.append(
            f"its other columns, {', '.join(others)}, are not stored: for one as the label set label={{by: column, "
            f"column: {others[0] if len(others) == 1 else 'NAME'}}}"
        )
    if folder := posixpath.dirname(path):
        doubts.append(
            f"only {folder} is read: for tables in several folders set source.arrays.images={{train: {path}, ...}}"
        )
    notes = [f"its other columns are not stored unless columns names them: {', '.join(others)}"] if others else []
    if beside := _without_pixels(probe, folder):
        unread = f"the rows of {name_some(beside)} are not read"
        notes.append(unread)
        if label is None:
            doubts.append(
                f"no column is a label, and {unread}: for their labels put them into a column of the table, or "
                f"{_LABELS_APART}"
            )
    if not is_square:
        doubts.append(
            f"{table.num_pixels:,} pixels are no square: set source.arrays.shape to [height, width, channels]"
        )
    return Finding("mnist_csv", evidence, settings, tuple(notes) if label else (), input=folder, doubts=tuple(doubts))


def _look_into_csv(probe: FolderProbe, path: str) -> pixel_csv.PixelTable | None:
    from imagebeam.transforms.packed import pixel_csv  # late: NumPy

    uri = probe.uri(path)
    try:
        return pixel_csv.look_into(uri, input_places.stat_input(uri, uri).version)
    except (OSError, packed_file.BrokenContentError):
        return None


def _without_pixels(probe: FolderProbe, at: str) -> list[str]:
    """Returns the CSV files of a folder that hold no pixels."""
    folder = probe.look(at)
    return [name for name in folder.ending(packed_file.CSV) if _look_into_csv(probe, folder.below(name)) is None]
