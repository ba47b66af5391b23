"""Signs of annotations in files of their own: boxes, masks, and JSON of all images."""

from __future__ import annotations

import collections
import io
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from imagebeam.pipelines import split_folders
from imagebeam.pipelines.recognize_survey import (
    HASH_SPLIT,
    Change,
    Finding,
    Folder,
    Strength,
    Survey,
    extension_of,
    split_meant,
    splits_in,
)

_ANNOTATIONS, _IMAGES = ("Annotations", "annotations"), ("JPEGImages", "images", "Images")
_DEEP = 3  # levels of folders with label files
_EXPORTS = {"_annotations.csv": "box_csv", "_annotations.coco.json": "coco"}  # of Roboflow, beside the images


def _places(survey: Survey, at: str) -> Iterator[Folder]:
    """Yields a folder, and those in it that have the exact name of a split."""
    root = survey.look(at)
    yield root
    yield from (survey.look(root.below(name)) for name in split_folders.SPLITS if name in root.folders)


def _prefix(folder: Folder, at: str) -> str:
    """Returns the path of a folder below `at` with a slash at its end; "" for `at` itself."""
    return f"{folder.path}/".removeprefix(f"{at}/") if folder.path != at else ""


def _find_below(survey: Survey, path: str, suffix: str, depth: int = _DEEP) -> tuple[Folder, int] | None:
    """Returns the first folder at a path or below it that has files with a suffix, and how many."""
    folder = survey.look(path)
    if found := folder.ending(suffix):
        return folder, len(found)
    for name in folder.folders[:5] if depth else ():
        if below := _find_below(survey, folder.below(name), suffix, depth - 1):
            return below
    return None


# --- boxes -----------------------------------------------------------------------------------------------------------


def find_yolo(survey: Survey, at: str) -> Iterator[Finding]:
    """Finds images beside labels with .txt files, or x.txt beside x.jpg."""
    often = (Change("source.yolo.base", 1, "class ids from 1, for trainers that take 0 for the background"),)
    for folder in _places(survey, at):
        prefix = _prefix(folder, at)
        if {"images", "labels"} <= {*folder.folders}:
            found = _find_below(survey, folder.below("labels"), ".txt")
            if found is not None:
                holder, number = found
                evidence = f"{prefix}images is beside {prefix}labels, which holds .txt files ({number:,}"
                evidence += f" in {holder.path.removeprefix(f'{at}/') if at else holder.path})"
                yield Finding("yolo", Strength.CERTAIN, evidence, {}, _notes_on_names(survey, at), often)
                return
    for folder in _places(survey, at):
        texts = {posixpath.splitext(name)[0] for name in folder.ending(".txt")}
        pairs = sorted(texts & folder.stems)
        if pairs and any(_is_yolo(survey.head(folder.below(f"{stem}.txt"))) for stem in pairs[:3]):
            evidence = f"{folder.count(len(pairs), 'image')} have a .txt file with boxes beside them"
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
    often = (Change("source.voc.origin", 0, "for tools whose boxes count pixels from 0"),)
    for folder in _places(survey, at):
        prefix = _prefix(folder, at)
        images = next((name for name in _IMAGES if name in folder.folders), None)
        for name in _ANNOTATIONS if images is not None else ():
            found = _find_below(survey, folder.below(name), ".xml") if name in folder.folders else None
            if found is not None:
                evidence = f"{prefix}{images} is beside {prefix}{name}, which holds .xml files ({found[1]:,})"
                yield Finding("voc", Strength.CERTAIN, evidence, {}, (), often)
                return
        if (texts := folder.ending(".xml")) and (folder.images or folder.path != at):
            evidence = f"{prefix}{texts[0]} is beside images ({folder.count(len(texts), '.xml file')})"
            yield Finding("voc", Strength.CERTAIN, evidence, {}, (), often)
            return


def find_exports(survey: Survey, at: str) -> Iterator[Finding]:
    """Finds the annotations that Roboflow writes beside the images of each split."""
    for name, preset in _EXPORTS.items():
        held = [folder for folder in _places(survey, at) if name in folder.files]
        if not held:
            continue
        paths = {split_meant(folder.path) or "train": _prefix(folder, at) for folder in held}
        settings: dict[str, Any] = {}
        if preset == "coco":
            settings = {
                "source.coco.annotations": {split: f"{path}{name}" for split, path in paths.items()},
                "source.coco.images": {split: path.rstrip("/") or "." for split, path in paths.items()},
            }
        evidence = f"{_prefix(held[0], at)}{name} is beside images"
        evidence += f" ({', '.join(f'{len(each.images):,} in {each.path or chr(46)}' for each in held)})"
        yield Finding(preset, Strength.CERTAIN, evidence, settings)


BOX_SIGNS = (find_yolo, find_voc, find_exports)  # of folders that look like classes


def find_coco(survey: Survey, at: str) -> Iterator[Finding]:
    """Finds JSON with images, annotations and categories, and the folder of the images of each."""
    root = survey.look(at)
    holders = [root, *(survey.look(root.below(name)) for name in root.folders if _names_annotations(name))]
    places: dict[str, tuple[str, str]] = {}  # by split
    for holder in holders:
        for name in holder.ending(".json"):
            split = split_meant(name) or "train"
            is_other = re.search(r"caption|keypoint|panoptic|stuff|image_info|_annotations.coco", name)
            if is_other or (split in places and "instances" not in name):
                continue
            shape = shape_of_json(survey.head(holder.below(name)))
            if not _is_coco(shape):
                continue
            folder = _folder_of_names(survey, at, root, shape.get("images", {}).get("file_name", ""), name)
            if folder is not None:
                places[split] = holder.below(name), folder
    if not places:
        return
    below = {split: (path.removeprefix(f"{at}/") if at else path, folder) for split, (path, folder) in places.items()}
    settings = {
        "source.coco.annotations": {split: path for split, (path, _) in below.items()},
        "source.coco.images": {split: folder or "." for split, (_, folder) in below.items()},
    }
    shown = ", ".join(f"{path} for the images in {folder or 'the folder'}" for path, folder in below.values())
    often = (Change("source.coco.masks", True, "also the mask of each object, for Mask R-CNN"),)
    yield Finding("coco", Strength.CERTAIN, f"JSON of COCO: {shown}", settings, (), often)


def _names_annotations(name: str) -> bool:
    return "annotation" in name.lower() or name.lower() in ("labels", "meta", "metadata")


def shape_of_json(head: bytes) -> dict[str, dict[str, Any]]:
    """Returns what the beginning of a JSON file shows: each key of the object, with the first object in its list.

    The key "" is for a file that is a list itself. There are none for a file with too many keys, or nested too deeply.
    """
    import ijson  # takes 10 ms, and is needed only here

    found: dict[str, dict[str, Any]] = {}
    text = head.removeprefix(b"\xef\xbb\xbf")
    try:
        for prefix, event, value in ijson.parse(io.BytesIO(text), buf_size=_BUFFER_BYTES, use_float=True):
            parts = prefix.split(".") if prefix else []
            if event == "map_key" and not prefix:
                found.setdefault(value, {})
            elif event == "start_array" and not prefix:
                found.setdefault("", {})
            elif event == "map_key" and parts[-1] == "item" and len(parts) <= 2 and parts.count("item") == 1:
                found.setdefault(parts[0] if len(parts) == 2 else "", {}).setdefault(value, None)
            elif event in ("string", "number", "start_array") and parts.count("item") == 1 and len(parts) <= 3:
                *above, _item, key = ["", *parts][-3:] if len(parts) == 2 or len(parts) == 3 else ["", "", ""]
                holder = found.get(above[-1] if len(parts) == 3 else "", {})
                if key in holder and holder[key] is None:
                    holder[key] = value if event != "start_array" else ()
            if len(found) > _MAX_KEYS or len(prefix) > _MAX_PREFIX:
                return {}
    except (ijson.JSONError, ValueError, RecursionError):  # the head ends within the file
        pass
    return found


_MAX_KEYS = 200
_BUFFER_BYTES = 1_024  # that ijson parses at once: it takes quadratic time for nested lists
_MAX_PREFIX = 1_000  # characters of the names of the lists and objects around a value


def _is_coco(shape: Mapping[str, Mapping[str, Any]]) -> bool:
    has_images = "file_name" in shape.get("images", {})
    return has_images and ("id" in shape["images"] or "annotations" in shape)


def _folder_of_names(survey: Survey, at: str, root: Folder, name: Any, file: str) -> str | None:
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
        for inner in survey.look(root.below(each)).folders[:10]
    ]
    below.sort(key=lambda each: split_meant(each) != meant if meant is not None else False)
    for each in dict.fromkeys(["", *near, *below, *root.folders]):
        path = posixpath.join(at, each, name)
        if survey.holds(path):
            return each
    return None


def find_json_per_image(survey: Survey, at: str) -> Iterator[Finding]:
    """Finds LabelMe's x.json beside x.jpg, and the files of the VGG Image Annotator."""
    root = survey.look(at)
    for folder in [root, *(survey.look(root.below(name)) for name in root.folders[:10])]:
        pairs = sorted({posixpath.splitext(name)[0] for name in folder.ending(".json")} & folder.stems)
        if pairs and b'"shapes"' in survey.head(folder.below(f"{pairs[0]}.json")):
            evidence = f"{folder.count(len(pairs), 'image')} have a .json file of LabelMe beside them"
            yield Finding("labelme", Strength.CERTAIN, evidence)
            return
        for name in folder.ending(".json", ".csv"):
            if "via" in name.lower() and b"region" in survey.head(folder.below(name)):
                yield Finding("via", Strength.CERTAIN, f"{folder.below(name)} is of the VGG Image Annotator")
                return


# --- masks -----------------------------------------------------------------------------------------------------------

_MASKS = re.compile(
    r"(?i).*(mask|annot|label|segment|(?<![a-z])seg(?![a-z])|(?<![a-z])gt|ground_?truth|trimap|matte).*"
)
_MASK_FORMATS = (".png", ".gif", ".tif", ".tiff", ".bmp", ".npy")
_SPLIT_OF_IMAGE = r"\g<split>/"
_NUM_STEMS = 200
_SHARE = 0.8  # of images that must have a mask


def find_masks(survey: Survey, at: str) -> Iterator[Finding]:
    """Finds masks with the names of the images, in another folder or beside them."""
    root = survey.look(at)
    for folder in _places(survey, at):
        masks = [name for name in folder.folders if _MASKS.fullmatch(name)]
        images = [name for name in folder.folders if name not in masks]
        for mask in masks:
            for image in sorted(images, key=lambda name: _likeness(name, mask)):
                found = _match(survey, folder, image, mask, at)
                if found is not None:
                    yield found
                    return
    for folder in [root, *survey.some(root, root.folders)]:
        if (beside := _match_beside(folder, at)) is not None:
            yield beside
            return


def _likeness(image: str, mask: str) -> tuple[bool, bool, str]:
    return not mask.lower().startswith(image.lower()), image.lower() not in ("images", "image", "jpegimages"), image


def _match(survey: Survey, folder: Folder, image: str, mask: str, at: str) -> Finding | None:
    """Returns the finding for a folder of images and one of masks; None if their names do not go together."""
    images, masks = survey.look(folder.below(image)), survey.look(folder.below(mask))
    prefix = _prefix(folder, at)
    names = [prefix.rstrip("/")] if prefix else []
    inner = ""
    if not images.images:
        shared = [name for name in images.folders if name in masks.folders]
        held = next((name for name in shared if survey.look(images.below(name)).images), None)
        if held is None or len(shared) < len(images.folders) / 2:
            return None
        names, inner = shared, "(?P<split>[^/]+)/"
        images, masks = survey.look(images.below(held)), survey.look(masks.below(held))
    found = _form_of(images, masks)
    if found is None:
        return None
    before, after, number = found
    extension = collections.Counter(map(extension_of, masks.images or masks.files)).most_common(1)[0][0]
    if extension not in _MASK_FORMATS and extension not in (".jpg", ".jpeg"):
        return None
    spelt = next(name[-len(extension) :] for name in masks.files if name.lower().endswith(extension))
    of_images = sorted({posixpath.splitext(name)[1][1:] for name in images.images})
    kinds = of_images[0] if len(of_images) == 1 else f"(?:{'|'.join(of_images)})"
    outer, referred = ("(?P<split>[^/]+)/", r"\g<split>/") if prefix else ("", "")
    pattern = rf"{outer}{re.escape(image)}/{inner}(?P<name>.*)\.{kinds}"
    path = rf"{referred}{mask}/{inner and _SPLIT_OF_IMAGE}{before}\g<name>{after}{spelt}"
    evidence = (
        f"{number:,} of {images.count(len(images.images), 'image')} in "
        f"{_prefix(images, at)[:-1]} have a {extension} file of the same name in {_prefix(masks, at)[:-1]}"
    )
    return _of_masks(pattern, path, names, evidence, extension, mask)


def _of_masks(pattern: str, path: str, folders: Sequence[str], evidence: str, extension: str, mask: str) -> Finding:
    """Returns the finding for pairs of paths; `folders` are those of the splits, if there are some."""
    settings: dict[str, Any] = {"source.masks.image": pattern, "source.masks.mask": path}
    splits = splits_in(folders)
    if splits:
        settings["split.rename"] = {name: split for name, split in splits.items() if name != split}
    else:  # folders that are no splits
        settings["source.masks.image"] = pattern.replace("(?P<split>", "(?P<part>")
        settings["source.masks.mask"] = path.replace(_SPLIT_OF_IMAGE, r"\g<part>/")
        settings["split"] = HASH_SPLIT
    is_lossy = extension in (".jpg", ".jpeg")
    notes = ("masks in JPEG have lost their exact classes: convert them to PNG from their source",) if is_lossy else ()
    is_certain = _MASKS.fullmatch(mask) is not None and not is_lossy
    often = (Change("source.masks.missing", "pass_over", "if only some of the images have masks"),)
    strength = Strength.CERTAIN if is_certain else Strength.POSSIBLE
    return Finding("segmentation", strength, evidence, settings, notes, often)


def _form_of(images: Folder, masks: Folder) -> tuple[str, str, int] | None:
    """Returns what precedes and follows the name of an image in that of its mask, and how many images have one."""
    stems = sorted(images.stems)[:_NUM_STEMS]
    known = {posixpath.splitext(name)[0] for name in masks.files}
    if not stems or not known:
        return None
    first = stems[0]
    forms = [each.partition(first)[::2] for each in sorted(known, key=len) if first in each][:5]
    for before, after in forms:
        number = sum(f"{before}{stem}{after}" in known for stem in stems)
        if number >= _SHARE * len(stems) and not re.search(r"\d", before + after):
            return before, after, sum(f"{before}{stem}{after}" in known for stem in images.stems)
    return None


_MASK_SUFFIX = re.compile(r"(?P<name>.+)(?P<suffix>[_\-.](mask|seg|segmentation|label|labels|gt|L))", re.IGNORECASE)


def _match_beside(folder: Folder, at: str) -> Finding | None:
    """Returns the finding for x_mask.png beside x.png."""
    suffixes: collections.Counter[tuple[str, str]] = collections.Counter()
    for name in folder.images:
        stem, extension = posixpath.splitext(name)
        match = _MASK_SUFFIX.fullmatch(stem)
        if match and match["name"] in folder.stems:
            suffixes[match["suffix"], extension] += 1
    if not suffixes:
        return None
    (suffix, extension), number = suffixes.most_common(1)[0]
    if number < 0.4 * len(folder.images):
        return None
    of_images = sorted(
        {posixpath.splitext(name)[1][1:] for name in folder.images if not posixpath.splitext(name)[0].endswith(suffix)}
    )
    kinds = of_images[0] if len(of_images) == 1 else f"(?:{'|'.join(of_images)})"
    pattern = rf"(?P<name>.*)(?<!{re.escape(suffix)})\.{kinds}"
    evidence = (
        f"{folder.count(number, 'image')} have a file with {suffix}{extension} at the end of its name beside them"
    )
    return _of_masks(pattern, rf"\g<name>{suffix}{extension}", (), evidence, extension.lower(), "mask")
