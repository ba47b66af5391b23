"""Images in IDX files, the format of MNIST: for each split a file of images and one of labels, plain or .gz."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from imagebeam import errors, plural
from imagebeam.transforms.formats import base_format
from imagebeam.transforms.formats.arrays import array_source
from imagebeam.transforms.packed import packed_file
from imagebeam.transforms.sources import folder_probe, input_places
from imagebeam.transforms.sources.folder_probe import Finding, FolderProbe, name_some

if TYPE_CHECKING:
    from imagebeam.transforms.formats.arrays import array_places

_MAX_CHANNELS = 4


@dataclasses.dataclass(frozen=True)
class Idx(base_format.Format):
    """IDX files, the format of MNIST."""

    ABOUT: ClassVar[str] = "IDX files, the format of MNIST"
    PRESETS: ClassVar[tuple[str, ...]] = ("mnist", "emnist")

    images: dict[str, str] = dataclasses.field(
        default_factory=lambda: {"train": "train-images*idx3-ubyte*", "test": "t10k-images*idx3-ubyte*"}
    )
    """Globs of the files with images, below `source.uri`, by split."""
    labels: dict[str, str] = dataclasses.field(
        default_factory=lambda: {"train": "train-labels*idx1-ubyte*", "test": "t10k-labels*idx1-ubyte*"}
    )
    """Globs of the files with labels, by split."""

    def gives(self) -> base_format.Gives:
        return base_format.Gives(columns=True, splits=True)

    def open(self, request: base_format.Request) -> array_source.ArraysSource:
        """Returns the source, after a check of every file, a .gz file to its end."""
        from imagebeam.transforms.formats.arrays import array_places  # late: NumPy

        fields = request.fields
        if request.label_by not in ("column", "columns", "none"):
            raise errors.ConfigError(
                "idx-label-by",
                f"label.by is {request.label_by!r}, and source.by: idx has its labels in files: set label.by: column, "
                f"label.column: {array_source.LABEL} and label.type: int, or label.by: none",
            )
        if unknown := [name for name in fields.needed if name != array_source.LABEL]:
            raise errors.ConfigError(
                "idx-unknown-column",
                f"IDX files have no column {unknown[0]!r}; their one column is {array_source.LABEL!r}",
            )
        if not self.images or set(self.labels) - set(self.images):
            names = ", ".join(self.labels) or "none"
            raise errors.ConfigError(
                "idx-unknown-split",
                f"source.idx.labels names the splits {names}, source.idx.images has not all of them",
            )
        files = array_places.Files(request.uri, looks_below=False)
        if not files.is_folder:
            raise errors.ConfigError(
                "input-not-folder", f"--input {request.uri!r} is not a folder; give the one with the IDX files"
            )
        splits: list[array_source.ArraySplit] = []
        shapes: dict[tuple[int, int, int], array_places.Place] = {}
        for name, glob in self.images.items():
            images = _open(files, f"source.idx.images.{name}", glob, "images", (3, 4))
            count, height, width, *channels = images.array.shape
            shapes.setdefault((height, width, *(channels or [1])), images)  # type: ignore[arg-type]
            labels = []
            if name in self.labels:
                place = _open(files, f"source.idx.labels.{name}", self.labels[name], "labels", (1,))
                if place.array.num_values != count:
                    raise errors.ConfigError(
                        "idx-counts-differ",
                        f"{place.uri!r} holds {place.array.num_values:,} labels, {images.uri!r} "
                        f"{plural.count(count, 'image')}: they are not of one split; correct source.idx.images or "
                        "labels",
                    )
                labels.append(array_source.LabelArray(array_source.LABEL, *place, read_as=packed_file.IDX[0]))
            elif fields.needed:
                raise errors.ConfigError(
                    "idx-no-labels",
                    f"source.idx.labels names no file for the split {name}; add it, or set label.by: none",
                )
            rows = array_source.ImageRows(images.uri, images.version, images.array.start, count)
            splits.append(array_source.ArraySplit(name, (array_source.ArrayPart(rows, tuple(labels)),)))
        for shape, place in shapes.items():
            if not all(shape) or shape[2] > _MAX_CHANNELS:
                raise errors.ConfigError(
                    "idx-wrong-shape",
                    f"{place.uri!r} says images of {' x '.join(map(str, shape))}; expected a height, a width, and 1 to "
                    f"{_MAX_CHANNELS} channels where there are four dimensions",
                )
        return array_source.ArraysSource(tuple(splits), array_places.only_shape(shapes, "source.idx.images"), fields)

    @classmethod
    def detect(cls, probe: FolderProbe, at: str) -> Iterator[Finding]:
        """Finds the files of MNIST and its relatives."""
        for folder in folder_probe.with_inner(probe, at):
            names = [name for name in folder.files if _IDX.fullmatch(name)]
            if not any("images" in name or "idx3" in name for name in names):
                continue
            evidence = f"{folder.count(len(names), 'IDX file')} ({name_some(names, 2)})"
            input = folder.path if folder.path != at else ""
            if any(map(_EMNIST.fullmatch, names)):
                yield _emnist(names, evidence, input)
            elif sum(_MNIST.fullmatch(name) is not None for name in names) >= 2:
                yield Finding("mnist", evidence, input=input)
            else:
                yield _other_idx(names, evidence, input)
            return

    @classmethod
    def detect_file(cls, probe: FolderProbe, name: str) -> Iterator[Finding]:
        """Finds nothing: images and labels are in files of their own."""
        return iter(())


_IDX = re.compile(r".*idx[134][-.]ubyte(\.gz)?")
_MNIST = re.compile(r"(train|t10k)-(images|labels).*idx[134][-.]ubyte(\.gz)?")
_EMNIST = re.compile(r"emnist-(?P<set>\w+)-(?P<split>train|test)-(?P<kind>images|labels)-idx[134]-ubyte(\.gz)?")
_LETTERS = "letters"  # the set that the preset names


def _emnist(names: Sequence[str], evidence: str, input: str) -> Finding:
    """Returns the finding for EMNIST: for one of its sets, if there are several."""
    found = [match for name in names if (match := _EMNIST.fullmatch(name))]
    sets = sorted({match["set"] for match in found})
    chosen = _LETTERS if _LETTERS in sets else sets[0]
    of_set = [match for match in found if match["set"] == chosen]
    is_twice = len({(match["split"], match["kind"]) for match in of_set}) < len(of_set)  # plain, and as .gz
    settings: dict[str, Any] = {}
    for kind in ("images", "labels") if is_twice or chosen != _LETTERS else ():
        files = {match["split"]: match[0] for match in reversed(of_set) if match["kind"] == kind}
        settings[f"source.arrays.{kind}"] = {split: files[split] for split in ("train", "test") if split in files}
    notes: tuple[str, ...] = ()
    if len(sets) > 1:
        others = ", ".join(name for name in sets if name != chosen)
        notes = (f"this is the set {chosen}; for {others} change the names in source.arrays.images and labels",)
    return Finding("emnist", evidence, settings, notes, input=input)


def _other_idx(names: Sequence[str], evidence: str, input: str) -> Finding:
    """Returns the finding for IDX files of other names: what they say of splits and roles."""
    from imagebeam.transforms.formats.arrays import array_places

    roles = {name: array_places.role_of(name) for name in names}
    files = {
        kind: {role.split: name for name, role in reversed(roles.items()) if role.split and role.kind == kind}
        for kind in ("images", "labels")
    }
    if "train" not in files["images"] or set(files["images"]) != set(files["labels"]):
        note = "name the files in source.idx.images and source.idx.labels"
        return Finding("mnist", evidence, doubts=(note,), input=input)
    splits = sorted(files["images"], key=array_places.ORDER.index)
    settings = {f"source.idx.{kind}": {split: files[kind][split] for split in splits} for kind in files}
    settings["split"] = {"by": "source"}
    return Finding("mnist", evidence, settings, input=input)


def _open(
    files: array_places.Files, option: str, glob: str, what: str, dimensions: tuple[int, ...]
) -> array_places.Place:
    """Returns the array of the one file that a glob matches; prefers a plain file to its .gz.

    Raises:
        ConfigError: if there is no such file, or several, or it is no complete IDX file with so many dimensions.
    """
    from imagebeam.transforms.formats.arrays import array_places  # late: NumPy
    from imagebeam.transforms.packed import array_files  # late: NumPy

    found = files.match(option, glob)
    packed = {f"{uri}{packed_file.GZIP_SUFFIX}" for uri in found}
    found = [uri for uri in found if uri not in packed]
    if len(found) > 1:
        names = ", ".join(uri.rpartition("/")[2] for uri in found)
        raise errors.ConfigError(
            "idx-not-one-file", f"{option}, {glob!r}, must name one file, it matches several: {names}; name one"
        )
    uri, version = found[0], input_places.stat_input(found[0], found[0]).version
    with array_places.explained(uri):
        (array,) = array_files.list_idx(uri, version)
    if len(array.shape) not in dimensions:
        raise errors.ConfigError(
            "idx-wrong-dimensions",
            f"{uri!r} is not an IDX file of {what}: it has {plural.count(len(array.shape), 'dimension')}, expected "
            f"{' or '.join(map(str, dimensions))}",
        )
    return array_places.Place(uri, version, array)
