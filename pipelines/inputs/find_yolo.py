"""Finds the images, splits and classes of a data set in YOLO's format: from its data.yaml, or from its folders."""

from __future__ import annotations

import functools
import math
import posixpath
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import yaml

from imagebeam import errors, storage
from imagebeam.pipelines.config import object_sections, strict_yaml
from imagebeam.pipelines.inputs import class_files, split_folders, text_files
from imagebeam.transforms.images import image_objects
from imagebeam.transforms.sources import annotated_files

_CLASS_FILES = (
    "classes.txt",
    "obj.names",
    "labels/classes.txt",
    "labels/train/classes.txt",
    "train/labels/classes.txt",
)
_MAX_YAML_MIB = 1
_DATA_FILE = "data.yaml"
_YAML = (".yaml", ".yml")


class YoloSet(NamedTuple):
    """A data set: where its images are, and what their labels mean."""

    root: str
    parts: tuple[annotated_files.Part, ...]
    classes: image_objects.ClassNames
    num_keypoint_values: int = 0  # after each box


def find(uri: str, wanted: object_sections.YoloConfig) -> YoloSet:
    """Returns the data set at an address: a folder, or its YAML file.

    Raises:
        ConfigError: if the images or the names of the classes cannot be found.
    """
    root, name = uri, wanted.data
    if is_yaml(uri) and split_folders.kind_of(uri) == storage.FILE:
        root, name = posixpath.dirname(uri) or ".", posixpath.basename(uri)
    elif split_folders.kind_of(uri) != storage.DIRECTORY:
        raise errors.ConfigError(f"--input {uri!r} is not a folder; give the folder of the data set, or its data.yaml")
    found = _find_data(root) if name is None else (name, _read_data(storage.join(root, name), "source.yolo.data"))
    path, data = found if found is not None else ("", {})
    where = storage.join(root, path) if path else ""
    classes = _classes(root, wanted, where, data)
    if wanted.images is not None:
        parts = split_folders.given_parts(root, wanted.images, "source.yolo.images")
    elif where:
        parts = tuple(_parts_of_data(root, posixpath.dirname(path), where, data))
    else:
        parts = tuple(_parts_of_folders(root, wanted.image_folder))
    _check_parts(parts, where)
    return YoloSet(root, parts, classes, _keypoints(where, data))


def _check_parts(parts: tuple[annotated_files.Part, ...], where: str) -> None:
    """Refuses two splits of the same images, which data.yaml may name: their keys would be the same.

    Raises:
        ConfigError: with the splits, and what to set instead.
    """
    splits: dict[str, str] = {}
    for part in parts:
        other = splits.setdefault(part.path, part.split)
        if other != part.split:
            raise errors.ConfigError(
                f"{where or 'source.yolo.images'}: {other} and {part.split} are the same {part.path or '.'!r}, and an "
                f"image has one split: set source.yolo.images={{train: {part.path or '.'}}}"
            )


def is_yaml(path: str) -> bool:
    """Returns whether a file has the extension of YAML."""
    return path.endswith(_YAML)


# --- data.yaml -------------------------------------------------------------------------------------------------------


def _find_data(root: str) -> tuple[str, dict[str, Any]] | None:
    """Returns name and content of the YAML file of a data set; None if there is none."""
    uri = storage.join(root, _DATA_FILE)
    if split_folders.kind_of(uri) == storage.FILE:
        return _DATA_FILE, _read_data(uri, _DATA_FILE)
    found = []
    for name in split_folders.names_in(root, storage.FILE, _YAML):
        content = _read_yaml(storage.join(root, name))
        if isinstance(content, dict) and "names" in content:
            found.append((name, content))
    if len(found) > 1:
        raise errors.ConfigError(
            f"{root!r} holds several YAML files with names of classes, {', '.join(name for name, _ in found)}: name "
            "one in source.yolo.data"
        )
    return found[0] if found else None


def _read_data(uri: str, option: str) -> dict[str, Any]:
    content = _read_yaml(uri)
    if not isinstance(content, dict):
        raise errors.ConfigError(f"{option}: {uri!r} holds a {type(content).__name__}; expected a mapping with names")
    return content


def _read_yaml(uri: str) -> Any:
    text = text_files.read_text(uri, _MAX_YAML_MIB, repr(uri), "see source.yolo.data", "no data.yaml")
    try:
        return strict_yaml.parse(text, uri)
    except (yaml.YAMLError, RecursionError, ValueError) as e:
        reason = strict_yaml.explain(e, text) if isinstance(e, yaml.YAMLError) else str(e)
        raise errors.ConfigError(f"{uri!r} is not YAML: {reason}") from e


def _classes(
    root: str, wanted: object_sections.YoloConfig, where: str, data: Mapping[str, Any]
) -> image_objects.ClassNames:
    if wanted.classes is not None:
        return image_objects.ClassNames(
            class_files.read_classes(root, wanted.classes, "source.yolo.classes"), None, wanted.base
        )
    if "names" in data:
        names, numbers = _names_of(data["names"], where)
        if isinstance(data.get("nc"), int) and data["nc"] != len(names):
            raise errors.ConfigError(
                f"{where!r} has nc: {data['nc']} and {len(names)} names; correct it, or set source.yolo.classes"
            )
        return image_objects.ClassNames(names, numbers, wanted.base)
    for path in _CLASS_FILES:
        if split_folders.kind_of(storage.join(root, path)) == storage.FILE:
            return image_objects.ClassNames(class_files.read_classes(root, path, path), None, wanted.base)
    inner = None if where else next(filter(functools.partial(_is_set, root), split_folders.names_in(root)), None)
    if inner is not None:
        raise split_folders.give_inner(root, inner)
    have = f"{where!r} has no names" if where else f"{root!r} has no data.yaml and no classes.txt"
    raise errors.ConfigError(
        f"{have}, so the classes have no names; list them in source.yolo.classes, such as [cat, dog], or name a file"
    )


def _is_set(root: str, name: str) -> bool:
    """Returns whether a folder in `root` has a file that names classes."""
    folder = storage.join(root, name)
    return any(
        split_folders.kind_of(storage.join(folder, each)) == storage.FILE for each in (_DATA_FILE, *_CLASS_FILES)
    )


def _names_of(value: Any, where: str) -> tuple[tuple[str, ...], tuple[int, ...] | None]:
    """Returns the names of the classes, and their numbers unless they count from 0."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found: dict[int, str] = {}
    for key, name in entries:
        number = int(key) if isinstance(key, str) and key.isdecimal() else key
        if isinstance(number, bool) or not isinstance(number, int) or number < 0 or number in found:
            raise errors.ConfigError(f"{where!r}: names has the key {key!r}; expected each number of a class once")
        if isinstance(name, (dict, list)) or name is None:
            raise errors.ConfigError(f"{where!r}: the name of class {number} is {name!r}; expected a text")
        found[number] = name if isinstance(name, str) else _as_written(name)
    if not found:
        raise errors.ConfigError(f"{where!r}: names is {value!r}; expected a list of names, or numbers with names")
    numbers = tuple(sorted(found))
    names = tuple(found[number] for number in numbers)
    class_files.check_names(names, where)
    return names, None if numbers == tuple(range(len(numbers))) else numbers


def _as_written(value: Any) -> str:
    """Returns the text of a name that YAML takes for another type, as `no` or `1`."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _keypoints(where: str, data: Mapping[str, Any]) -> int:
    shape = data.get("kpt_shape")
    if shape is None:
        return 0
    if not isinstance(shape, list) or len(shape) != 2 or not all(isinstance(each, int) and each > 0 for each in shape):
        raise errors.ConfigError(
            f"{where!r}: kpt_shape is {shape!r}; expected the number of keypoints and of values of each"
        )
    return math.prod(shape)


def _parts_of_data(root: str, folder: str, where: str, data: Mapping[str, Any]) -> Iterator[annotated_files.Part]:
    """Yields the folders and lists that a YAML file in `folder` names."""
    found = False
    for split in split_folders.SPLITS:
        value = data.get(split)
        for given in value if isinstance(value, list) else [value]:
            if given is None or given == "":
                continue
            if not isinstance(given, str):
                raise errors.ConfigError(f"{where!r}: {split} is {given!r}; expected a path, or a list of paths")
            found = True
            yield _resolve(root, folder, where, split, given, data.get("path"))
    if not found:
        raise errors.ConfigError(
            f"{where!r} names no images, as train, val and test; add them, or set source.yolo.images"
        )


def _resolve(root: str, folder: str, where: str, split: str, given: str, base: Any) -> annotated_files.Part:
    """Returns the folder or list that a path in a YAML file means, which may have been written for another machine."""
    candidates = dict.fromkeys(_candidates(root, folder, given, base if isinstance(base, str) else ""))
    for path in candidates:
        kind = split_folders.kind_of(storage.join(root, path) if path else root)
        if kind in (storage.DIRECTORY, storage.FILE):
            return annotated_files.Part(split, path, kind == storage.FILE)
    raise errors.ConfigError(
        f"{where!r}: {split} is {given!r}, and below {root!r} there is no "
        f"{' or '.join(map(repr, candidates)) or 'such path'}: correct it, or name the folders of images of every "
        "split that is there, such as source.yolo.images={train: train/images}"
    )


def _candidates(root: str, folder: str, given: str, base: str) -> Iterator[str]:
    """Yields paths below the root in the order in which they are tried.

    Source: check_det_dataset in ultralytics/data/utils.py, which also drops a leading "../".
    """
    for start in (base, ""):
        path = posixpath.join(start, given)
        if path.startswith("/") or "://" in path:
            below = storage.normalize(path).removeprefix(storage.join(root, ""))
            if below.startswith("/") or "://" in below:
                continue
            path = below
        else:
            path = posixpath.join(folder, path)
        path = posixpath.normpath(path)
        if path.split("/")[0] != "..":
            yield "" if path == "." else path
    if not given.startswith("/"):
        path = posixpath.normpath(given)
        while path.startswith("../"):
            path = path[3:]
        if path not in ("..", "."):
            yield path


# --- folders ---------------------------------------------------------------------------------------------------------


def _parts_of_folders(root: str, images: str) -> Iterator[annotated_files.Part]:
    """Yields the folders of images of a data set without a YAML file."""
    folders = split_folders.names_in(root)
    if images in folders:
        below = split_folders.names_in(storage.join(root, images))
        if splits := [split for split in split_folders.SPLITS if split in below]:
            yield from (annotated_files.Part(split, f"{images}/{split}") for split in splits)
        else:
            yield annotated_files.Part("train", images)
        return
    splits = [split for split in split_folders.SPLITS if split in folders]
    for split in splits:
        has_images = split_folders.kind_of(storage.join(root, f"{split}/{images}")) == storage.DIRECTORY
        yield annotated_files.Part(split, f"{split}/{images}" if has_images else split)
    if not splits:
        yield annotated_files.Part("train", "")
