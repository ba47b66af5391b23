"""Signs of annotations beside images: boxes in YOLO's, Pascal VOC's and LabelMe's files, and exports of Roboflow."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from typing import Any

from imagebeam import plural
from imagebeam.pipelines.inputs import split_folders
from imagebeam.pipelines.recognize.survey import (
    Change,
    Finding,
    Folder,
    Strength,
    Survey,
    likely_first,
    name_some,
    prefix_of,
    split_meant,
    split_places,
)

_ANNOTATIONS, _IMAGES = ("Annotations", "annotations"), ("JPEGImages", "images", "Images")
_NUM_FOLDERS = 10  # in which LabelMe's files are looked for
_NUM_BELOW = 5  # folders beside those of splits in which annotations are looked for
_SHARE = 0.8  # of .xml files that must have an image
_DEEP = 3  # levels of folders with label files
_SHARE_OF_IMAGES = 0.5  # that must have LabelMe's file
_NUM_HEADS = 4  # files of LabelMe that are looked into
_NO_SHAPES, _FLAGS = re.compile(rb'"shapes"\s*:\s*\[\s*\]'), re.compile(rb'"flags"\s*:\s*\{\s*"')
_COUNTED_FROM_0 = Change("source.voc.origin", 0, "for tools whose boxes count pixels from 0")
_EXPORTS = {"_annotations.csv": "box_csv", "_annotations.coco.json": "coco"}  # of Roboflow, beside the images


def _find_below(survey: Survey, path: str, suffix: str, depth: int = _DEEP) -> tuple[Folder, int] | None:
    """Returns the first folder at a path or below it that has files with a suffix, and how many."""
    folder = survey.look(path)
    if found := folder.ending(suffix):
        return folder, len(found)
    for name in likely_first(folder, _NUM_BELOW) if depth else ():
        if below := _find_below(survey, folder.below(name), suffix, depth - 1):
            return below
    return None


def find_yolo(survey: Survey, at: str) -> Iterator[Finding]:
    """Finds images beside labels with .txt files, or x.txt beside x.jpg."""
    often = (Change("source.yolo.base", 1, "class ids from 1, for trainers that take 0 for the background"),)
    for folder in split_places(survey, at):
        prefix = prefix_of(folder, at)
        if {"images", "labels"} <= {*folder.folders}:
            found = _find_below(survey, folder.below("labels"), ".txt")
            if found is not None:
                holder, number = found
                evidence = f"{prefix}images is beside {prefix}labels, which holds .txt files ({number:,}"
                evidence += f" in {holder.path.removeprefix(f'{at}/') if at else holder.path})"
                yield Finding("yolo", Strength.CERTAIN, evidence, {}, _notes_on_names(survey, at), often)
                return
    for folder in split_places(survey, at):
        texts = {posixpath.splitext(name)[0] for name in folder.ending(".txt")}
        pairs = sorted(texts & folder.stems)
        if pairs and any(_is_yolo(survey.head(folder.below(f"{stem}.txt"))) for stem in pairs[:3]):
            evidence = f"{folder.count_having(len(pairs), 'image')} a .txt file with boxes beside them"
            yield Finding("yolo", Strength.CERTAIN, evidence, {}, _notes_on_names(survey, at), often)
            return


def _notes_on_names(survey: Survey, at: str) -> tuple[str, ...]:
    """Returns a note if no file names the classes."""
    root = survey.look(at)
    yamls = root.ending(".yaml", ".yml")[:3]
    if {"data.yaml", "classes.txt", "obj.names"} & {*root.files} or any(
        b"names:" in survey.head(root.below(name)) for name in yamls
    ):
        return ()
    return ("if no file here names the classes, list them in source.yolo.classes, such as [cat, dog]",)


_BOX_LINE = re.compile(rb"\d+(\s+-?[\d.]+(e-?\d+)?){4,}\s*")


def _is_yolo(head: bytes) -> bool:
    line = next((line for line in head.splitlines() if line.strip()), b"")
    return _BOX_LINE.fullmatch(line.strip()) is not None


def find_voc(survey: Survey, at: str) -> Iterator[Finding]:
    """Finds Annotations with .xml files beside JPEGImages, or x.xml beside x.jpg."""
    often = (_COUNTED_FROM_0,)
    for folder in split_places(survey, at):
        prefix = prefix_of(folder, at)
        images = next((name for name in _IMAGES if name in folder.folders), "")
        for name in _ANNOTATIONS if images else ():
            found = _find_below(survey, folder.below(name), ".xml") if name in folder.folders else None
            if found is not None:
                evidence = f"{prefix}{images} is beside {prefix}{name}, which holds .xml files ({found[1]:,})"
                settings, notes = _voc_folders(survey, folder, images, name, found[0])
                yield Finding("voc", Strength.CERTAIN, evidence, settings, notes, often, is_doubtful=bool(notes))
                return
        if (texts := folder.ending(".xml")) and (folder.images or folder.path != at):
            evidence = f"{prefix}{texts[0]} is beside images ({folder.count(len(texts), '.xml file')})"
            yield Finding("voc", Strength.CERTAIN, evidence, {}, (), often)
            return


def _voc_folders(
    survey: Survey, folder: Folder, images: str, annotations: str, holder: Folder
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Returns the settings for .xml files in folders below the one of annotations, and a note if several hold some.

    Folders that the images are in, too, such as those of splits, need none.
    """
    inside = holder.path.removeprefix(folder.below(annotations)).strip("/")
    first = inside.partition("/")[0]
    if inside in ("", "xmls") or first in survey.look(folder.below(images)).folders:
        return {}, ()
    above = survey.look(folder.below(annotations))
    others = [name for name in likely_first(above, _NUM_BELOW) if name != first]
    held = [name for name in others if survey.look(above.below(name)).ending(".xml")]
    notes = (f"{name_some(held)} in {above.path} has .xml files, too, and is not read",) if held else ()
    return {"source.voc.annotation_folder": f"{annotations}/{inside}"}, notes


def find_other_voc(survey: Survey, at: str) -> Iterator[Finding]:
    """Finds .xml files in a folder of another name than Pascal VOC's, or beside images whose folders may be classes.

    It looks into all folders, so it is none of BOX_SIGNS, which each conversion asks.
    """
    if next(find_voc(survey, at), None) is not None:
        return
    often = (_COUNTED_FROM_0,)
    root = survey.look(at)
    if (other := _find_xml_beside(survey, root)) is not None:
        pictures, holder, number = other
        evidence = f"{holder} holds an .xml file for {number:,} images of {pictures}"
        settings = {"source.voc.annotation_folder": holder, "source.voc.image_folder": pictures}
        yield Finding("voc", Strength.CERTAIN, evidence, settings, (), often)
        return
    for name in root.folders[:_NUM_FOLDERS]:
        inner = survey.look(root.below(name))
        shared = {posixpath.splitext(each)[0] for each in inner.ending(".xml")} & inner.stems
        if len(shared) >= _SHARE * len(inner.images) > 0:
            evidence = f"{inner.path} holds an .xml file for {plural.count(len(shared), 'image')}"
            yield Finding("voc", Strength.POSSIBLE, evidence, {}, (), often)
            return


def _find_xml_beside(survey: Survey, folder: Folder) -> tuple[str, str, int] | None:
    """Returns two folders in a folder, of images and of .xml files with their names, and how many names they share."""
    inner = [(name, survey.look(folder.below(name))) for name in folder.folders[:_NUM_FOLDERS]]
    for texts, holder in inner:
        stems = {posixpath.splitext(name)[0] for name in holder.ending(".xml")}
        for pictures, other in inner if stems and not holder.images else ():
            shared = stems & other.stems
            if len(shared) >= _SHARE * len(stems):
                return pictures, texts, len(shared)
    return None


def find_exports(survey: Survey, at: str) -> Iterator[Finding]:
    """Finds the annotations that Roboflow writes beside the images of each split."""
    for name, preset in _EXPORTS.items():
        held = [folder for folder in split_places(survey, at) if name in folder.files]
        if not held:
            continue
        paths = {split_meant(folder.path) or "train": prefix_of(folder, at) for folder in held}
        settings: dict[str, Any] = {}
        if preset == "coco":
            settings = {
                "source.coco.annotations": {split: f"{path}{name}" for split, path in paths.items()},
                "source.coco.images": {split: path.rstrip("/") or "." for split, path in paths.items()},
            }
        evidence = f"{prefix_of(held[0], at)}{name} is beside images"
        evidence += f" ({', '.join(f'{len(each.images):,} in {each.path or chr(46)}' for each in held)})"
        yield Finding(preset, Strength.CERTAIN, evidence, settings)


BOX_SIGNS = (find_yolo, find_voc, find_exports)  # of folders that look like classes


def find_labelme(survey: Survey, at: str) -> Iterator[Finding]:
    """Finds LabelMe's x.json beside x.jpg, also in folders of splits."""
    root = survey.look(at)
    inner = [name for name in root.folders[:_NUM_FOLDERS] if name not in split_folders.SPLITS]
    for places in [[*split_places(survey, at)], *([survey.look(root.below(name))] for name in inner)]:
        pairs = [(folder, _labelme_stems(survey, folder)) for folder in places]
        held = [(folder, stems) for folder, stems in pairs if stems]
        if not held or _has_flags_alone(survey, *held[0]):
            continue
        folder = held[0][0]
        number, num_images = (sum(len(each) for each in those) for those in zip(*((s, f.images) for f, s in pairs)))
        evidence = f"{folder.count_having(number, 'image')} a .json file of LabelMe beside them"
        is_inner = len(places) == 1 and posixpath.basename(folder.path) in inner
        strength, notes = Strength.CERTAIN, list[str]()
        if number < _SHARE_OF_IMAGES * num_images:
            evidence = f"{number:,} of {folder.count_having(num_images, 'image')} a .json file of LabelMe beside them"
            strength = Strength.POSSIBLE
            notes.append(
                "images without such a file are passed over; source.labelme.without_annotations=keep takes them as "
                "images without objects"
            )
        yield Finding("labelme", strength, evidence, {}, tuple(notes), input=folder.path if is_inner else "")
        return


def _labelme_stems(survey: Survey, folder: Folder) -> list[str]:
    """Returns the sorted names of the images in a folder that have a file of LabelMe, judged by the first one."""
    stems = sorted({posixpath.splitext(name)[0] for name in folder.ending(".json")} & folder.stems)
    return stems if stems and b'"shapes"' in survey.head(folder.below(f"{stems[0]}.json")) else []


def _has_flags_alone(survey: Survey, folder: Folder, stems: Sequence[str]) -> bool:
    """Returns whether files of LabelMe have flags for the whole image and no shapes, judged by a few of them."""
    step = max(1, len(stems) // _NUM_HEADS)
    heads = [survey.head(folder.below(f"{stem}.json")) for stem in stems[::step][:_NUM_HEADS]]
    return all(map(_NO_SHAPES.search, heads)) and any(map(_FLAGS.search, heads))


def flags_alone(survey: Survey) -> Iterator[str]:
    """Yields the path of a file of LabelMe with classes of the whole image, which no preset reads."""
    root = survey.look()
    inner = [survey.look(root.below(name)) for name in root.folders[:_NUM_FOLDERS]]
    for folder in [root, *inner]:
        stems = _labelme_stems(survey, folder)
        if stems and _has_flags_alone(survey, folder, stems):
            yield folder.below(f"{stems[0]}.json")
            return


def via_files(survey: Survey) -> Iterator[str]:
    """Yields the paths of files of the VGG Image Annotator, which no preset reads."""
    root = survey.look()
    for name in root.ending(".json", ".csv"):
        if "via" in name.lower() and b"region" in survey.head(name):
            yield name
