"""Detects JSON in COCO's format: boxes, captions, keypoints, panoptic masks, LVIS, and exports of Roboflow."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from imagebeam.transforms.sources import folder_probe
from imagebeam.transforms.sources.folder_probe import (
    HEAD_BYTES,
    Change,
    Finding,
    Folder,
    FolderProbe,
    and_list,
    find_exports,
    split_meant,
)


def detect(probe: FolderProbe, at: str) -> Iterator[Finding]:
    """Finds COCO's files, and those of LVIS."""
    yield from exports(probe, at)
    yield from _find_coco(probe, at)
    yield from _find_lvis(probe, at)


def exports(probe: FolderProbe, at: str) -> Iterator[Finding]:
    """Finds the JSON files that Roboflow writes."""
    return find_exports(probe, at, "coco", EXPORT, _settings_of_exports)


EXPORT = "_annotations.coco.json"  # Roboflow writes it beside the images


def _settings_of_exports(paths: Mapping[str, str]) -> dict[str, Any]:
    return _settings_of({split: _Place(f"{path}{EXPORT}", path.rstrip("/")) for split, path in paths.items()})


class _Kind(NamedTuple):
    """One kind of file that COCO's images come with."""

    preset: str
    names: re.Pattern[str]  # names of such files
    what: str


_KINDS = (
    _Kind("coco_keypoints", re.compile(r"(?i).*keypoints.*\.json"), "JSON of keypoints"),
    _Kind("coco_captions", re.compile(r"(?i).*captions?.*\.json"), "JSON of captions"),
    _Kind("coco_panoptic", re.compile(r"(?i).*panoptic.*\.json"), "JSON of panoptic masks"),
)
_OTHER_KINDS = re.compile(r"(?i)caption|keypoint|panoptic|stuff|images?_info|_annotations.coco|^lvis_")
_LVIS = re.compile(r"(?i)lvis_.*\.json")


class _Place(NamedTuple):
    """Annotation file of a split and the folder of its images, both below the data set."""

    annotations: str
    images: str


class _File(NamedTuple):
    """JSON with COCO's list of images."""

    holder: Folder
    name: str
    preset: str  # that reads it; "" if none does
    first_image: Any  # the `file_name` in it, which may be no text


def _find_coco(probe: FolderProbe, at: str) -> Iterator[Finding]:
    """Finds JSON with images, annotations and categories, and the folder of the images of each."""
    files = _files_in(probe, at)
    places = _find_places(probe, at, files, "coco", prefers="instances")
    if places:
        often = (Change("source.coco.masks", True, "also the mask of each object, for Mask R-CNN"),)
        yield Finding("coco", f"JSON of COCO: {_show(places)}", _settings_of(places), (), often)
    kinds = {kind: found for kind in _KINDS if (found := _find_places(probe, at, files, kind.preset))}
    doubts: tuple[str, ...] = ()
    if len(kinds) > 1 and not places:
        doubts = (f"{and_list([kind.what for kind in kinds])} are of the same images, and one of them is read",)
    for kind, places in kinds.items():
        settings = _settings_of(places)
        if kind.preset == "coco_captions":
            settings["source.coco.captions"] = settings["source.coco.annotations"]
        evidence = f"{kind.what}: {_show(places)}"
        if kind.preset != "coco_panoptic":
            yield Finding(kind.preset, evidence, settings, doubts=doubts)
            continue
        masks = {split: posixpath.splitext(place.annotations)[0] for split, place in places.items()}
        settings["source.coco.panoptic"] = masks
        packed = [path for path in masks.values() if not probe.look(posixpath.join(at, path)).ending(".png")]
        if packed:
            note = f"unpack {packed[0]}.zip first: the folder {packed[0]} must hold the PNG files"
            yield Finding(kind.preset, evidence, settings, doubts=(note,))
        else:
            evidence += f", and PNG files in {masks[next(iter(masks))]}"
            yield Finding(kind.preset, evidence, settings, doubts=doubts)


def _find_lvis(probe: FolderProbe, at: str) -> Iterator[Finding]:
    """Finds lvis_v1_train.json, whose images are in the folders of COCO that their addresses name."""
    places: dict[str, _Place] = {}
    for holder in _holders(probe, at):
        for name in filter(_LVIS.fullmatch, holder.ending(".json")):
            split = split_meant(name)
            folder = _folder_of_urls(probe, at, probe.head(holder.below(name)))
            if split is not None and folder is not None:
                places.setdefault(split, _Place(_below(holder.below(name), at), folder))
    if "train" in places:
        evidence = f"JSON of LVIS: {_show(places)}"
        often = (Change("source.coco.masks", True, "also the mask of each object"),)
        yield Finding("lvis", evidence, _settings_of(places), (), often)


def _folder_of_urls(probe: FolderProbe, at: str, head: bytes) -> str | None:
    """Returns the folder that has the folders of COCO's images; None if it is nowhere."""
    named = sorted({url.decode().split("/")[-2] for url in re.findall(rb'"coco_url":\s*"([\w:/.-]+/[\w.-]+)"', head)})
    wanted = named or ["train2017", "val2017"]  # the beginning of the file may have no image
    root = probe.look(at)
    for folder in ["", *root.folders[:_NUM_FOLDERS]]:
        inner = probe.look(posixpath.join(at, folder) if folder else at)
        if any(name in inner.folders and probe.look(inner.below(name)).images for name in wanted):
            return folder
    return None


_NUM_FOLDERS = 20


def _holders(probe: FolderProbe, at: str) -> list[Folder]:
    root = probe.look(at)
    return [root, *(probe.look(root.below(name)) for name in root.folders if _names_annotations(name))]


def _files_in(probe: FolderProbe, at: str) -> list[_File]:
    found = []
    for holder in _holders(probe, at):
        for name in holder.ending(".json"):
            head = probe.head(holder.below(name))
            shape = folder_probe.shape_of_json(head)
            if _is_coco(shape, is_whole=len(head) < HEAD_BYTES):
                found.append(_File(holder, name, _preset_of(name, shape), shape["images"]["file_name"]))
    return found


def _find_places(
    probe: FolderProbe, at: str, files: Sequence[_File], preset: str, prefers: str | None = None
) -> dict[str, _Place]:
    """Returns the files that a preset reads, by split: those whose first image is found.

    Args:
        probe: of the folder.
        at: the data set in it.
        files: of the data set.
        preset: that reads one kind of file.
        prefers: part of the name of the file that is taken if there are several for a split.
    """
    root = probe.look(at)
    places: dict[str, _Place] = {}
    for holder, name, _, first_image in (each for each in files if each.preset == preset):
        split = split_meant(name) or "train"
        if split in places and (prefers is None or prefers not in name):
            continue
        folder = _folder_of_names(probe, at, root, first_image, name)
        if folder is not None:
            places[split] = _Place(_below(holder.below(name), at), folder)
    return places


def _settings_of(places: Mapping[str, _Place]) -> dict[str, Any]:
    return {
        "source.coco.annotations": {split: place.annotations for split, place in places.items()},
        "source.coco.images": {split: place.images or "." for split, place in places.items()},
    }


def _show(places: Mapping[str, _Place]) -> str:
    return ", ".join(f"{each.annotations} for the images in {each.images or 'the folder'}" for each in places.values())


def _below(path: str, at: str) -> str:
    return path.removeprefix(f"{at}/") if at else path


def _names_annotations(name: str) -> bool:
    return "annotation" in name.lower() or name.lower() in ("labels", "meta", "metadata")


def _is_coco(shape: Mapping[str, Mapping[str, Any]], is_whole: bool) -> bool:
    has_images = "file_name" in shape.get("images", {})
    return has_images and ("annotations" in shape or (not is_whole and "id" in shape["images"]))


def _preset_of(name: str, shape: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the preset that reads a file: by its first annotation, and where that tells nothing by its name."""
    first = shape.get("annotations", {})
    if "segments_info" in first:
        return "coco_panoptic"
    if "caption" in first:
        return "coco_captions"
    if "keypoints" in first:
        return "coco_keypoints"
    kinds = [kind.preset for kind in _KINDS if kind.names.fullmatch(name)]
    if "coco_keypoints" in kinds:
        return "coco_keypoints"
    if first or not _OTHER_KINDS.search(name):  # objects
        return "coco"
    return kinds[0] if kinds else ""


def _folder_of_names(probe: FolderProbe, at: str, root: Folder, name: Any, file: str) -> str | None:
    """Returns the folder below `at` that has the first image of a JSON file; None if it is nowhere."""
    if not isinstance(name, str) or not name:
        return None
    stem = posixpath.splitext(file)[0]
    near = [each for each in root.folders if stem.endswith(each) or each.endswith(stem)]
    meant = split_meant(file)
    near += [each for each in root.folders if meant is not None and split_meant(each) == meant]
    below = [
        f"{each}/{inner}"
        for each in ("images", *root.folders[:20])
        if each in root.folders
        for inner in probe.look(root.below(each)).folders[:10]
    ]
    below.sort(key=lambda each: split_meant(each) != meant if meant is not None else False)
    for each in dict.fromkeys(["", *near, *below, *root.folders]):
        path = posixpath.join(at, each, name)
        if probe.holds(path):
            return each
    return None
