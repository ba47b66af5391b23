"""Signs of images that are rows of arrays: CIFAR, IDX files, .npz and .npy, .mat, HDF5."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from typing import Any

from imagebeam import errors
from imagebeam.transforms.packed import unpacked_content
from imagebeam.transforms.sources.folder_probe import HASH_SPLIT, Finding, Folder, FolderProbe, Strength, name_some

_IDX = re.compile(r".*idx[134][-.]ubyte(\.gz)?")
_MNIST = re.compile(r"(train|t10k)-(images|labels).*idx[134][-.]ubyte(\.gz)?")
_EMNIST = re.compile(r"emnist-(?P<set>\w+)-(?P<split>train|test)-(?P<kind>images|labels)-idx[134]-ubyte(\.gz)?")
_LETTERS = "letters"  # the set that the preset names
_HDF5, _NUMPY = unpacked_content.HDF5, (unpacked_content.NPZ, unpacked_content.NPY)
_PRESETS = {"hdf5": _HDF5, "npz": (*_NUMPY, unpacked_content.MATLAB)}
_MAX_FILES = 40  # of a folder that are looked into
_MAX_NOTE = 600  # characters of an error that is shown


def _places(survey: FolderProbe, at: str) -> Iterator[Folder]:
    root = survey.look(at)
    yield root
    yield from (survey.look(root.below(name)) for name in root.folders[:10])


def find_idx(survey: FolderProbe, at: str) -> Iterator[Finding]:
    """Finds the files of MNIST and its relatives."""
    for folder in _places(survey, at):
        names = [name for name in folder.files if _IDX.fullmatch(name)]
        if not any("images" in name or "idx3" in name for name in names):
            continue
        evidence = f"{folder.count(len(names), 'IDX file')} ({name_some(names, 2)})"
        input = folder.path if folder.path != at else ""
        if any(map(_EMNIST.fullmatch, names)):
            yield _emnist(names, evidence, input)
        elif sum(_MNIST.fullmatch(name) is not None for name in names) >= 2:
            yield Finding("mnist", Strength.CERTAIN, evidence, input=input)
        else:
            yield _other_idx(names, evidence, input)
        return


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
    return Finding("emnist", Strength.CERTAIN, evidence, settings, notes, input=input)


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
        return Finding("mnist", Strength.POSSIBLE, evidence, {}, (note,), input=input)
    splits = sorted(files["images"], key=array_places.ORDER.index)
    settings = {f"source.idx.{kind}": {split: files[kind][split] for split in splits} for kind in files}
    settings["split"] = {"by": "source"}
    return Finding("mnist", Strength.LIKELY, evidence, settings, input=input)


def find_arrays(survey: FolderProbe, at: str) -> Iterator[Finding]:
    """Finds data sets that are arrays: CIFAR, .npz, .npy, .mat, HDF5."""
    for folder in _places(survey, at):
        names = {*folder.files}
        beside = folder.path.removeprefix(f"{at}/") if at else folder.path
        where = f" in {beside}" if folder.path != at else ""
        if {"data_batch_1", "test_batch"} <= names or {"data_batch_1.bin", "test_batch.bin"} <= names:
            yield Finding("cifar10", Strength.CERTAIN, f"data_batch_1 and test_batch{where}", input=folder.path)
        elif {"train", "test", "meta"} <= names or {"train.bin", "test.bin", "fine_label_names.txt"} <= names:
            yield Finding("cifar100", Strength.CERTAIN, f"train, test and meta{where}", input=folder.path)
        elif mats := folder.ending("_32x32.mat"):
            yield Finding("svhn", Strength.CERTAIN, f"{name_some(mats)}{where}", input=folder.path)
        else:
            found = next(_find_by_names(survey, folder, where), None)
            if found is None:
                continue
            yield found
        return


def _find_by_names(survey: FolderProbe, folder: Folder, where: str) -> Iterator[Finding]:
    """Yields the finding for files with arrays, by the names of these."""
    for preset, ends in _PRESETS.items():
        names = folder.ending(*ends)
        if not names or len(names) > _MAX_FILES or (folder.images and preset == "npz"):  # masks may be .npy files
            continue
        kinds = sorted({posixpath.splitext(name)[1].lower() for name in names})
        evidence = f"{folder.count(len(names), f'{kinds[0]} file')}{where} ({name_some(names)})"
        yield look_into(survey, folder.path, preset, evidence)


def find_in_file(survey: FolderProbe, name: str) -> Iterator[Finding]:
    """Finds what the arrays of one file are."""
    if name.endswith("_32x32.mat"):
        split = "train" if name.startswith("train") else name.partition("_")[0]
        yield Finding("svhn", Strength.CERTAIN, f"{name} is a file of SVHN, with the split {split}", input=name)
        return
    for preset, ends in _PRESETS.items():
        if name.lower().endswith(ends):
            yield look_into(survey, name, preset, f"{name} is a file with arrays")


def look_into(survey: FolderProbe, path: str, preset: str, evidence: str) -> Finding:
    """Returns the finding for the arrays of a file or folder; its notes say what they leave open."""
    from imagebeam.transforms.formats.arrays import array_places, array_source, find_arrays  # late: NumPy

    try:
        roles = find_arrays.recognize(array_places.Files(survey.uri(path), looks_below=False))
        places = [place for several in roles.images.values() for place in several]
        for place in places:
            array_places.axes_of(place, array_source.Wanted())
    except errors.ConfigError as e:
        return Finding(preset, Strength.POSSIBLE, evidence, {}, (str(e)[:_MAX_NOTE],), input=path)
    settings: dict[str, Any] = {}
    if "" in roles.images:
        settings["split"] = HASH_SPLIT
    if not all(roles.labels.get(split) for split in roles.images):
        settings["label"] = {"by": "none"}
        if "" not in roles.images:
            settings["split"] = {"by": "source"}
    shown = f"{evidence}: images in {name_some([str(place) for place in places], 2)}"
    if wrong := [place for place in places if place.array.dtype not in ("|u1", "u1", "uint8", "<u1")]:
        note = f"{wrong[0]} is not of uint8, and images are taken as uint8, 0 to 255: save it so"
        return Finding(preset, Strength.POSSIBLE, shown, settings, (note,), input=path)
    return Finding(preset, Strength.LIKELY, shown, settings, input=path)
