"""Finds COCO's files in a folder, and the folders of their images."""

from __future__ import annotations

import dataclasses
import itertools
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from imagebeam.transforms.formats import coco_heads
from imagebeam.transforms.sources import folder_probe, name_signs
from imagebeam.transforms.sources.folder_probe import HEAD_BYTES, Change, Finding, Folder, FolderProbe, split_meant


def exports(probe: FolderProbe, at: str) -> Iterator[Finding]:
    """Finds the JSON files that Roboflow writes."""
    places: dict[str, _Place] = {}

    def settings_of(paths: Mapping[str, str]) -> dict[str, Any]:
        places.update({split: _Place(f"{path}{EXPORT}", path.rstrip("/")) for split, path in paths.items()})
        return _settings_of(places)

    for found in folder_probe.find_exports(probe, at, "coco", EXPORT, settings_of):
        shape = folder_probe.shape_of_json(probe.head(posixpath.join(at, next(iter(places.values())).annotations)))
        preset = _preset_of(EXPORT, shape) or found.preset
        yield _judge(dataclasses.replace(found, preset=preset), probe, at, places)


EXPORT = "_annotations.coco.json"  # Roboflow writes it beside the images


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


def find_coco(probe: FolderProbe, at: str) -> Iterator[Finding]:
    """Finds JSON with images, annotations and categories, and the folder of the images of each."""
    files = _files_in(probe, at)
    places = _find_places(probe, at, files, "coco", prefers="instances")
    if places:
        doubts = (*_rivals(files, "coco", places, at), *_without_objects(probe, at, places))
        whole = Finding("coco", f"JSON of COCO: {_show(places)}", _settings_of(places), doubts=doubts)
        yield _judge(whole, probe, at, places)
    kinds = {kind: found for kind in _KINDS if (found := _find_places(probe, at, files, kind.preset))}
    which: tuple[str, ...] = ()
    if len(kinds) > 1 and not places:
        which = (
            f"{folder_probe.and_list([kind.what for kind in kinds])} are of the same images, and one of them is read",
        )
    for kind, places in kinds.items():
        doubts = (*which, *_rivals(files, kind.preset, places, at))
        settings = _settings_of(places)
        if kind.preset == "coco_captions":
            settings["source.coco.captions"] = settings["source.coco.annotations"]
        evidence = f"{kind.what}: {_show(places)}"
        if kind.preset != "coco_panoptic":
            yield _judge(Finding(kind.preset, evidence, settings, doubts=doubts), probe, at, places)
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


_MASKS = Change("source.coco.masks", True, "also the mask of each object, for Mask R-CNN")


def _judge(finding: Finding, probe: FolderProbe, at: str, places: Mapping[str, _Place]) -> Finding:
    """Returns a finding with what its files hold that is not stored, and what contradicts how they are read."""
    heads = {split: coco_heads.read(probe, [posixpath.join(at, each.annotations)]) for split, each in places.items()}
    every = coco_heads.Heads(*(list(itertools.chain(*each)) for each in zip(*heads.values())))
    name, splits = every.splits()
    is_known = all({*each.splits()[1].values()} <= {split} for split, each in heads.items())
    is_used = len(places) == 1 and len({*splits.values()} - {None}) == len(splits) > 0
    doubts, notes, settings = [*finding.doubts], [*every.notes(name if is_used else "")], dict(finding.settings)
    doubts += [line for split, each in places.items() for line in _missing(probe, at, each, heads[split].images)]
    if all(len(probe.head(posixpath.join(at, each.annotations))) < HEAD_BYTES for each in places.values()):
        doubts += filter(None, (each.judge_numbers() for each in heads.values()))
    if finding.preset != "coco_captions":
        judged = every.judge_boxes()
        doubts += judged.doubts
        notes += judged.notes
    often = (_MASKS,) if finding.preset != "coco_captions" and every.may_have_outlines else ()
    if is_used:
        settings["split"] = {"by": "column", "column": name}
        settings["split"]["rename"] = {value: meant for value, meant in splits.items() if value != meant}
        notes.append(f"the splits are those of the field {name} of images ({', '.join(splits)})")
    elif name and not is_known:
        shown = folder_probe.name_some([*splits])
        doubts.append(
            f"the field {name} of images may be the split ({shown}): set split={{by: column, column: {name}}}"
        )
    return dataclasses.replace(finding, settings=settings, notes=tuple(notes), often=often, doubts=tuple(doubts))


def _missing(probe: FolderProbe, at: str, place: _Place, images: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields a doubt if some of the images that a file names are not in their folder, judged by a few."""
    names = [name for each in images if isinstance(name := each["file_name"], str)]
    asked = folder_probe.spread(names, _NUM_ASKED)[:_NUM_ASKED]
    if missing := [name for name in asked if not probe.holds(posixpath.join(at, place.images, name))]:
        yield (
            f"{len(missing):,} of {len(asked):,} images of {place.annotations} that were looked up are not in "
            f"{place.images or 'the folder'} ({folder_probe.name_some(missing, 2)})"
        )


_NUM_ASKED = 10


def find_lvis(probe: FolderProbe, at: str) -> Iterator[Finding]:
    """Finds lvis_v1_train.json, whose images are in the folders of COCO that their addresses name."""
    places: dict[str, _Place] = {}
    for holder in _holders(probe, at):
        for name in filter(_LVIS.fullmatch, holder.ending(".json")):
            split = split_meant(name)
            folder = _folder_of_urls(probe, at, probe.head(holder.below(name)))
            if split is not None and folder is not None:
                places.setdefault(split, _Place(holder.below(name).removeprefix(f"{at}/"), folder))
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
_OF_JSON = re.compile("(?i)anno|coco|json")
_NUM_DEEPER = 3  # folders of one that has no files: annotations/LIVECell/train.json


def _holders(probe: FolderProbe, at: str) -> list[Folder]:
    root = probe.look(at)
    names = [name for name in root.folders if name_signs.ANNOTATIONS.search(name) or split_meant(name) is not None]
    holders = [probe.look(root.below(name)) for name in names]
    empty = [each for name, each in zip(names, holders) if not each.files and _OF_JSON.search(name)]
    deeper = [probe.look(each.below(name)) for each in empty for name in each.folders[:_NUM_DEEPER]]
    return [root, *holders, *deeper]


def _files_in(probe: FolderProbe, at: str) -> list[_File]:
    """Returns the files of COCO in the usual folders, or else in any of the first ones."""
    root, usual = probe.look(at), _holders(probe, at)
    others = map(probe.look, map(root.below, root.folders[:_NUM_FOLDERS]))
    return [*_files_of(probe, usual)] or [*_files_of(probe, (each for each in others if each not in usual))]


def _files_of(probe: FolderProbe, holders: Iterable[Folder]) -> Iterator[_File]:
    for holder in holders:
        for name in holder.ending(".json"):
            head = probe.head(holder.below(name))
            shape = folder_probe.shape_of_json(head)
            if _is_coco(shape, is_whole=len(head) < HEAD_BYTES):
                yield _File(holder, name, _preset_of(name, shape), shape["images"]["file_name"])


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
        path = holder.below(name).removeprefix(f"{at}/")
        split = split_meant(name) or split_meant(path) or "train"
        if split in places and (prefers is None or prefers not in name):
            continue
        folder = _folder_of_names(probe, at, root, first_image, posixpath.splitext(path)[0])
        if folder is not None:
            places[split] = _Place(path, folder)
    return places


_NO_OBJECTS = re.compile(rb'"annotations"\s*:\s*\[\s*\]')


def _without_objects(probe: FolderProbe, at: str, places: Mapping[str, _Place]) -> Iterator[str]:
    """Yields a doubt for each file that has images and no object."""
    for split, place in places.items():
        path = posixpath.join(at, place.annotations)
        if _NO_OBJECTS.search(probe.head(path)) or _NO_OBJECTS.search(probe.tail(path)):
            yield (
                f"{place.annotations} has no annotations, and its images would be ones without objects: if nobody has "
                f"labelled them, leave {split} out of source.coco.annotations and source.coco.images"
            )


def _rivals(files: Sequence[_File], preset: str, places: Mapping[str, _Place], at: str) -> tuple[str, ...]:
    """Returns a doubt if other files of a preset have a split that it takes from one of them."""
    read = {place.annotations for place in places.values()}
    paths = [each.holder.below(each.name).removeprefix(f"{at}/") for each in files if each.preset == preset]
    others = [path for path in paths if path not in read and not _OTHER_KINDS.search(posixpath.basename(path))]
    shown = f"{folder_probe.name_some(others)} {'is' if len(others) == 1 else 'are'} of the same kind and splits"
    return (f"{shown}, and not read: name those that are meant in source.coco.annotations",) if others else ()


FILE_NAME = re.compile(rb'"file_name"\s*:\s*"([^"\\]*)"')


def _settings_of(places: Mapping[str, _Place]) -> dict[str, Any]:
    return {
        "source.coco.annotations": {split: place.annotations for split, place in places.items()},
        "source.coco.images": {split: place.images or "." for split, place in places.items()},
    }


def _show(places: Mapping[str, _Place]) -> str:
    return ", ".join(f"{each.annotations} for the images in {each.images or 'the folder'}" for each in places.values())


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
    if first:  # without a box, category_id is the class of an image
        return "coco" if "bbox" in first else ""
    if not _OTHER_KINDS.search(name):
        return "coco"
    return kinds[0] if kinds else ""


def _folder_of_names(probe: FolderProbe, at: str, root: Folder, name: Any, file: str) -> str | None:
    """Returns the folder below `at` that has the first image of a JSON file; None if it is nowhere."""
    if not isinstance(name, str) or not name:
        return None
    stem = posixpath.basename(file)
    near = [each for each in root.folders if stem.endswith(each) or each.endswith(stem)]
    meant = split_meant(stem) or split_meant(file)
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


def remarks(probe: FolderProbe) -> Iterator[str]:
    """Yields a line for each file of COCO whose images are not found."""
    root = probe.look()
    for file in _files_in(probe, ""):
        path, name = file.holder.below(file.name), file.first_image
        found = _folder_of_names(probe, "", root, name, posixpath.splitext(path)[0])
        if not isinstance(name, str) or found is not None:
            continue
        if "\\" in name:
            yield f"{path} is of COCO, and is not read: write / in place of \\ in its file_name, as in {name}"
            continue
        base = posixpath.basename(name)
        near = [each for each in probe.seen() if base in each.files or base in each.stems]
        where = f"are not here: {near[0].path or 'the folder'} has {base}" if near else "are not here"
        remedy = "write the paths of images there as file_name" if near else "give the folder that holds both"
        yield f"{path} is of COCO, and the images that it names ({name}, ...) {where}: {remedy}"
