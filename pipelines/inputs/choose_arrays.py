"""Chooses the arrays of images and labels: CIFAR's, those that the config names, or those with usual names."""

from __future__ import annotations

import fnmatch
import posixpath
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from imagebeam import errors, storage
from imagebeam.pipelines.config import arrays_section
from imagebeam.transforms.arrays import layouts, pickled_arrays
from imagebeam.transforms.formats import array_places
from imagebeam.transforms.sources import arrays

_MAX_NAMED = 12
_MAX_SHOWN = 6
# What CIFAR calls its labels, its classes in the Python version, and its classes in the binary version.
CIFAR_LABELS = {
    "labels": (arrays.LABEL, "label_names", "batches.meta.txt"),
    "fine_labels": ("fine_label", "fine_label_names", "fine_label_names.txt"),
    "coarse_labels": ("coarse_label", "coarse_label_names", "coarse_label_names.txt"),
}
_NUM_BATCHES = 5  # of CIFAR-10, for training
_CIFAR_AXES = layouts.ImageAxes("NCHW", (32, 32, 3))
_CIFAR_FILES = {  # by split, of the two versions of each data set; then the file with the names of the classes
    "cifar-10-batches-py": ({"train": "data_batch_[1-5]", "test": "test_batch"}, "batches.meta"),
    "cifar-10-batches-bin": ({"train": "data_batch_[1-5].bin", "test": "test_batch.bin"}, ""),
    "cifar-100-binary": ({"train": "train.bin", "test": "test.bin"}, ""),
    "cifar-100-python": ({"train": "train", "test": "test"}, "meta"),
}


class Roles(NamedTuple):
    """The arrays that were found, by split."""

    images: Mapping[str, Sequence[array_places.Place]]
    labels: Mapping[str, Sequence[array_places.Place]]
    classes: Sequence[array_places.Place] = ()


def find_cifar(
    files: array_places.Files,
) -> tuple[Roles, layouts.ImageAxes, dict[str, tuple[tuple[str, str], ...]]] | None:
    """Returns CIFAR's arrays, their axes, and the classes by the name of the labels; None if it is not CIFAR."""
    for globs, meta in _CIFAR_FILES.values():
        found = {split: fnmatch.filter(files.names, glob) for split, glob in globs.items()}
        if not files.is_folder or not all(found.values()) or (meta == "meta" and meta not in files.names):
            continue
        batches = sorted(found["train"])
        if "[1-5]" in globs["train"] and len(batches) != _NUM_BATCHES:
            raise errors.ConfigError(
                f"{files.folder!r} has {', '.join(batches)}, and CIFAR-10 has {_NUM_BATCHES} such files: fetch it "
                "again; for these alone name them in source.arrays.images and labels"
            )
        places = {
            split: [place for name in sorted(names) for place in files.open(files.address(name))]
            for split, names in found.items()
        }
        images = {split: [each for each in several if each.array.name == "data"] for split, several in places.items()}
        labels = {
            split: [each for each in several if each.array.name in CIFAR_LABELS] for split, several in places.items()
        }
        in_meta = {}
        if meta in files.names:
            uri = files.address(meta)
            with array_places.explained(uri):
                in_meta = pickled_arrays.load(uri, array_places.stat(uri).version)
        classes = {}
        for name, (_, pickled, text) in CIFAR_LABELS.items():
            given = [str(each, "utf-8", "replace") for each in in_meta.get(pickled, ()) if isinstance(each, bytes)]
            if text in files.names:
                given = _read_lines(files.address(text))
            classes[name] = tuple((str(number), each) for number, each in enumerate(given))
        return Roles(images, labels), _CIFAR_AXES, classes
    return None


def _read_lines(uri: str) -> list[str]:
    with array_places.explained(uri):
        text = storage.storage_of(uri).read(uri, 0, 1 << 20).decode("utf-8", "replace")
    return [line.strip() for line in text.splitlines() if line.strip()]


def named(files: array_places.Files, wanted: arrays_section.ArraysConfig) -> Roles:
    """Returns the arrays that the config names."""
    unknown = sorted(set(wanted.labels) - set(wanted.images))
    if unknown:
        raise errors.ConfigError(f"source.arrays.labels names the split {unknown[0]}, source.arrays.images does not")
    images = {split: _find_named(files, f"source.arrays.images.{split}", one) for split, one in wanted.images.items()}
    labels = {split: _find_named(files, f"source.arrays.labels.{split}", one) for split, one in wanted.labels.items()}
    return Roles(images, labels)


def _find_named(files: array_places.Files, option: str, text: str) -> list[array_places.Place]:
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


def recognize(files: array_places.Files) -> Roles:
    """Returns the arrays with usual names."""
    found: dict[str, dict[str, list[array_places.Place]]] = {"images": {}, "labels": {}, "classes": {}}
    places = list(files.all_arrays())
    for place in places:
        stem = posixpath.basename(place.uri).rpartition(".")[0]
        inside, outside = array_places.role_of(place.array.name), array_places.role_of(stem)
        kind = inside.kind or (outside.kind if len(files.open(place.uri)) == 1 else "")
        if kind:
            found[kind].setdefault(inside.split or outside.split, []).append(place)
    if not found["images"]:
        archives = [name for name in files.names if name.endswith((".tar.gz", ".tgz", ".zip"))]
        hint = f"; unpack {archives[0]} first (tar xf, unzip)" if archives else ""
        raise errors.ConfigError(
            f"no array of images was found in {files.uri!r}: name it in source.arrays.images{hint}{name_arrays(files)}"
        )
    for kind in ("images", "labels"):
        for split, several in found[kind].items():
            if len(several) > 1:
                names = ", ".join(map(str, several[:_MAX_SHOWN]))
                raise errors.ConfigError(
                    f"several arrays may be the {kind} of the split {split or '(unnamed)'}, {names}: name one in "
                    f"source.arrays.{kind}, or give one file as --input"
                )
    images = {split: found["images"][split] for split in sorted(found["images"], key=array_places.ORDER.index)}
    return Roles(images, found["labels"], [place for several in found["classes"].values() for place in several])


def name_arrays(files: array_places.Files) -> str:
    """Returns the end of an error text that names the arrays there are."""
    places = list(files.all_arrays())
    if not places:
        return f"; files with arrays end in {', '.join(array_places.shown_ends())}"
    more = ", ..." if len(places) > _MAX_NAMED else ""
    return f"; the arrays there are {', '.join(map(str, places[:_MAX_NAMED]))}{more}"
