"""Finds the images and splits of a data set in Pascal VOC's XML, by its lists or folders."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from imagebeam import errors, storage
from imagebeam.pipelines.config import object_sections
from imagebeam.pipelines.inputs import split_folders
from imagebeam.transforms.sources import annotated_files

_LISTS = "ImageSets/Main"
_OTHER_IMAGES, _OTHER_ANNOTATIONS = ("images", "Images"), ("annotations", "Annotations")
_NESTED = "xmls"  # in the folder of annotations, beside masks, as in the Oxford pets
_DEFAULT = object_sections.VocConfig()


class VocSet(NamedTuple):
    """A data set: where its images and XML files are."""

    parts: tuple[annotated_files.Part, ...]
    image_folder: str
    annotation_folder: str


def find(root: str, wanted: object_sections.VocConfig) -> VocSet:
    """Returns the data set in the folder `root`.

    Raises:
        ConfigError: if its images cannot be found.
    """
    if split_folders.kind_of(root) != storage.DIRECTORY:
        raise errors.ConfigError(f"--input {root!r} is no folder; give the one that holds {wanted.annotation_folder}")
    folders = split_folders.names_in(root)
    images, annotations = _folder_names(folders, wanted)
    if wanted.annotation_folder == _DEFAULT.annotation_folder and annotations in folders:
        nested = f"{annotations}/{_NESTED}"
        annotations = nested if split_folders.kind_of(storage.join(root, nested)) == storage.DIRECTORY else annotations
    if wanted.images is not None:
        return VocSet(split_folders.given_parts(root, wanted.images, "source.voc.images"), images, annotations)
    if annotations.partition("/")[0] in folders:
        return VocSet(tuple(_listed_parts(root, images)), images, annotations)
    inner = next((name for name in folders if _is_voc(storage.join(root, name), wanted)), None)
    if inner is not None:
        raise split_folders.give_inner(root, inner)
    splits = [split for split in split_folders.SPLITS if split in folders]
    return VocSet(tuple(annotated_files.Part(split, split) for split in splits) or _WHOLE, images, annotations)


_WHOLE = (annotated_files.Part("train", ""),)


def _folder_names(folders: list[str], wanted: object_sections.VocConfig) -> tuple[str, str]:
    """Returns the names of the folders of images and annotations: others that are common if those are not there."""
    images, annotations = wanted.image_folder, wanted.annotation_folder
    if images == _DEFAULT.image_folder and images not in folders:
        images = next((name for name in _OTHER_IMAGES if name in folders), images)
    if annotations == _DEFAULT.annotation_folder and annotations not in folders:
        annotations = next((name for name in _OTHER_ANNOTATIONS if name in folders), annotations)
    return images, annotations


def _is_voc(folder: str, wanted: object_sections.VocConfig) -> bool:
    return split_folders.kind_of(storage.join(folder, wanted.annotation_folder)) == storage.DIRECTORY


def _listed_parts(root: str, images: str) -> Iterator[annotated_files.Part]:
    """Yields the lists of a data set, or its folder of images if it has none."""
    there = {
        name
        for name in ("train", "val", "trainval", "test")
        if split_folders.kind_of(storage.join(root, f"{_LISTS}/{name}.txt")) == storage.FILE
    }
    chosen = {"train": "train", "val": "val", "test": "test"}
    if "train" not in there and "trainval" in there:
        chosen = {"train": "trainval", "test": "test"}
    found = [(split, name) for split, name in chosen.items() if name in there]
    yield from (annotated_files.Part(split, f"{_LISTS}/{name}.txt", is_list=True) for split, name in found)
    if not found:
        yield annotated_files.Part("train", images)
