"""Signs in the names of folders and files: classes, splits, and labels in the names of images."""

from __future__ import annotations

import collections
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from imagebeam import plural
from imagebeam.pipelines.recognize import contradictions
from imagebeam.transforms.sources.folder_probe import (
    HASH_SPLIT,
    Change,
    Finding,
    Folder,
    FolderProbe,
    and_list,
    likely_first,
    name_some,
    split_meant,
    splits_in,
)

# Folders of these names hold parts of one data set, and are no classes where there is nothing but them.
_PARTS = re.compile(
    r"(?i)((images?|imgs?|masks?)(_[a-z]+)?|jpegimages|pictures?|photos?|labels?|annotations?|segmentation\w*|targets?|gt\w*|"
    r"ground[_ ]?truth|(img|ann|image|mask|label)_dir|leftimg8bit|image_\d|calib|velodyne|(\w+_)?part_?\d+|"
    r"imagesets|meta\w*|docs?|scripts?|src|code|utils|models?|data|datasets?)"
)
_ALIGNED = re.compile(
    r"(?i)[ab]|input|output|target|list|[hl]r(_\w+)?|x\d|high|low|clean|noisy\d*|original\w*|real|mean"
)
NO_CLASSES = "nothing says what the images show"
_SYNSET = re.compile(r"n\d{8}")
_RENAMED = {"train", "training", "val", "valid", "validation", "dev", "test", "testing", "eval", "evaluation"}
_STRATIFY = Change(
    "split",
    {"by": "hash", "fractions": {"train": 0.8, "validation": 0.1, "test": 0.1}, "stratify": True},
    "several splits, with the same share of every class; in place of the lines above",
)


def find_classes_in_splits(survey: FolderProbe, at: str) -> Iterator[Finding]:
    """Finds train/cat/x.jpg, and such folders under other names or one level deeper."""
    root = survey.look(at)
    splits = splits_in(root.folders)
    if not splits:
        return
    held = {name: survey.look(root.below(name)) for name in splits}
    repeated = {  # seg_train/seg_train/glacier/x.jpg
        name: survey.look(folder.below(folder.folders[0]))
        for name, folder in held.items()
        if len(folder.folders) == 1 and not folder.images
    }
    is_deeper = len(repeated) == len(held) and all(folder.folders for folder in repeated.values())
    if is_deeper:
        held = repeated
    with_classes = {
        name: folder
        for name, folder in held.items()
        if _hold_images(survey, folder) and not (len(folder.folders) == 1 and _PARTS.fullmatch(folder.folders[0]))
    }
    if "train" not in {splits[name] for name in with_classes}:
        return
    counts = {len(folder.folders) for folder in with_classes.values()}
    number = f"{counts.pop():,}" if len(counts) == 1 else f"{min(counts):,} to {max(counts):,}"
    classes = max((folder.folders for folder in with_classes.values()), key=len)
    hold = "holds" if len(with_classes) == 1 else "hold"
    evidence = f"{and_list(list(with_classes))} {hold} {number} folders of images each ({name_some(classes)})"
    settings: dict[str, Any] = {}
    if is_deeper:
        settings = {
            "source.pattern": "(?P<split>[^/]+)/[^/]+/(?P<label>[^/]+)/.*",
            "label": {"by": "column", "column": "label"},
            "split": {"by": "column", "column": "split", "rename": splits},
        }
    elif set(splits) - _RENAMED:
        settings["split.rename"] = {name: split for name, split in splits.items() if name != split}
    others = [name for name in root.folders if name not in with_classes]
    is_beside = any(folder.images for folder in with_classes.values())
    if others or root.images or is_beside:
        settings["source.include"] = [f"{name}/*/**" for name in with_classes]
    notes = []
    if others := [name for name in others if survey.with_images(root.below(name)) is not None]:
        notes.append(f"{and_list(others)} has images without such folders, which are left out")
    if all(map(_SYNSET.fullmatch, classes[:20])):
        if not is_deeper:
            yield Finding("imagenet", evidence, settings, tuple(notes), reads_images_alone=True)
        return
    doubts = _doubts_on_classes(survey, [*with_classes.values()])
    yield Finding("imagefolder", evidence, settings, tuple(notes), doubts=doubts, reads_images_alone=True)


def _are_parts(names: Sequence[str]) -> bool:
    """Returns whether folders are parts of one data set by their names, and no classes."""
    return all(map(_PARTS.fullmatch, names)) or (len(names) < 6 and all(map(_ALIGNED.fullmatch, names)))


def _doubts_on_classes(survey: FolderProbe, holders: Sequence[Folder]) -> tuple[str, ...]:
    """Returns why the folders in one folder, or in those of the splits, may be no classes."""
    doubts = []
    first = holders[0].folders
    trained = {name for each in holders if split_meant(each.path) in ("train", None) for name in each.folders}
    for each in holders:
        if each.is_whole and (new := [name for name in each.folders if name not in trained]):
            doubts.append(
                f"{each.path} has folders that train does not have ({name_some(new)}): no classes, or no split"
            )
        parts = [name for name in each.folders if _PARTS.fullmatch(name) and survey.with_images(each.below(name))]
        if parts or _are_parts(each.folders):
            parts = parts or [*each.folders]
            doubts.append(f"{name_some(parts)}: names of parts of a data set, not of classes")
    for each in survey.some(holders[0], first):
        if each.folders and not each.images and any(map(_PARTS.fullmatch, each.folders)):
            doubts.append(f"{each.path} has folders for the parts of a data set ({name_some(each.folders)})")
            break
    if len(first) == 1:
        doubts.append(f"{first[0]} would be the only class")
    doubts += filter(None, (contradictions.aligned(survey, each) for each in holders))
    return tuple(dict.fromkeys(doubts))


def _hold_images(survey: FolderProbe, folder: Folder) -> bool:
    """Returns whether the folders in a folder hold images, judged by a few of them."""
    names = folder.folders
    return bool(names) and all(survey.with_images(each.path) is not None for each in survey.some(folder, names))


def find_splits_in_classes(survey: FolderProbe, at: str) -> Iterator[Finding]:
    """Finds cat/train/x.jpg."""
    root = survey.look(at)
    looked = list(survey.some(root, root.folders))
    splits = [splits_in(folder.folders) for folder in looked]
    if any(map(_PARTS.fullmatch, root.folders)):
        return
    if len(looked) < 2 or not all(splits) or splits_in(root.folders) or not _hold_images(survey, looked[0]):
        return
    evidence = f"{root.count(len(root.folders), 'folder')} ({name_some(root.folders)}) hold {and_list(list(splits[0]))}"
    settings = {
        "source.pattern": "(?P<label>[^/]+)/(?P<split>[^/]+)/.*",
        "label": {"by": "column", "column": "label"},
        "split": {"by": "column", "column": "split", "rename": splits[0]},
    }
    yield Finding("image_folder", evidence, settings, reads_images_alone=True)


def find_classes(survey: FolderProbe, at: str) -> Iterator[Finding]:
    """Finds cat/x.jpg."""
    root = survey.look(at)
    if splits_in(root.folders) or any(True for _ in find_splits_in_classes(survey, at)):
        return
    looked = survey.some(root, root.folders, _NUM_CLASSES)
    held = [folder for folder in looked if survey.with_images(folder.path) is not None]
    names = [posixpath.basename(folder.path) for folder in held] if len(root.folders) <= _NUM_CLASSES else root.folders
    if len(held) < 2 or all(map(_PARTS.fullmatch, names)):  # folders without images are no classes
        return
    if not any(folder.images for folder in held) and any(any(map(_PARTS.fullmatch, each.folders)) for each in held):
        return  # each folder is a data set with folders for its parts
    evidence = f"{root.count(len(names), 'folder')} of images ({name_some(names)})"
    notes, settings, doubts = [], {}, _doubts_on_classes(survey, [root])
    if root.images:
        settings["source.include"] = ["*/**"]
        notes.append(f"{root.count(len(root.images), 'image')} beside the folders are left out")
    if not held[0].images:
        notes.append(
            "the images are in further folders, and the first folder is the class; for the folder of the image as the "
            "class set source.pattern='(?:.*/)?(?P<label>[^/]+)/[^/]+' and label={by: column, column: label}"
        )
    yield Finding(
        "image_folder", evidence, settings, tuple(notes), (_STRATIFY,), doubts=doubts, reads_images_alone=True
    )


# --- labels in the names of images -----------------------------------------------------------------------------------

_UTKFACE = re.compile(r"\d{1,3}_[01]_[0-4]_\d+\.")
_CATS_DOGS = re.compile(r"(cat|dog)\.\d+\.jpg")
_SYNSET_FILE = re.compile(r"n\d{8}_.*\.JPEG")
_PET = re.compile(r".+_\d+\.\w+")
_NUMBERED = re.compile(r"(?P<label>.*?[^\d_\-. ])(?P<between>[_\-. ]*)(?P<open>\(?)\d+(?P<close>\)?)\.\w+")
_NO_CLASS = re.compile(
    r"(?i)^(img|image|dsc[nf]?|photo|picture|pic|p|screenshot|scan|file|page|sample)s?$|frame|mask|\d"
)
_NUM_CLASSES = 20  # folders that are looked into
_NUM_INNER = 30  # folders beside those of splits that may be the only one with images
_MANY = 10  # images that share a name before their numbers


def find_labels_in_names(survey: FolderProbe, at: str) -> Iterator[Finding]:
    """Finds cat.0.jpg and other names with a class before a number, in one folder."""
    root = survey.look(at)
    path, splits = "", {}
    if not root.images and (splits := splits_in(root.folders)):
        path = next(name for name, split in splits.items() if split == "train")
    elif not root.images and len(root.folders) == 1:
        path = root.folders[0]
    folder = survey.look(root.below(path)) if path else root
    names = folder.images
    if len(names) < 2:
        return
    where = f"in {path} " if path else ""
    evidence = folder.count(len(names), "image") + f" {where}have names such as {names[0]}"
    settings = _train_alone(splits, path)
    for pattern, preset in ((_CATS_DOGS, "cats_dogs"), (_SYNSET_FILE, "imagenet_files"), (_UTKFACE, "utkface")):
        fitting = [name for name in names if pattern.match(name)]
        if len(fitting) >= 0.9 * len(names):
            yield Finding(preset, evidence, settings, reads_images_alone=True)
            return
    yield from _find_numbered(folder, where, settings)


def _train_alone(splits: Mapping[str, str], path: str) -> dict[str, Any]:
    """Returns settings that leave out the images of other splits: those of Kaggle's `test` have no labels."""
    return {"source.include": [f"{path}/**"]} if splits else {}


def _find_numbered(folder: Folder, where: str, settings: Mapping[str, Any]) -> Iterator[Finding]:
    forms: collections.Counter[tuple[str, str, str]] = collections.Counter()
    prefixes: collections.Counter[str] = collections.Counter()
    for name in folder.images:
        if match := _NUMBERED.fullmatch(name):
            forms[match["between"], match["open"], match["close"]] += 1
            prefixes[match["label"]] += 1
    if not forms:
        return
    (between, open_, close), number = forms.most_common(1)[0]
    classes = sorted(prefixes)
    few = [name for name in classes if prefixes[name] < min(_MANY, number // 20 + 2)]
    is_name = len(classes) > 1 and not few and not any(map(_NO_CLASS.search, classes))
    if number < 0.9 * len(folder.images) or not is_name or len(classes) > number // 5:
        return
    pattern = rf"(?P<label>.+?){re.escape(between)}{re.escape(open_)}\d+{re.escape(close)}\.\w+"
    evidence = (
        f"the names of {folder.count(len(folder.images), 'image')} {where}begin with "
        f"{plural.count(len(classes), 'name')} ({name_some(classes)}), with a number after it"
    )
    label = {"by": "filename", "pattern": pattern}
    yield Finding(
        "image_folder",
        evidence,
        {**settings, "label": label},
        ("the class is what precedes the number in the name of the file; for images without labels set label.by=none",),
        (_STRATIFY,),
        reads_images_alone=True,
    )


def find_lists_of_names(survey: FolderProbe, at: str) -> Iterator[Finding]:
    """Finds images/cat/x.jpg or images/cat_1.jpg with lists such as meta/train.txt that name the images of a split."""
    root = survey.look(at)
    folders = [name for name in root.folders if _PARTS.fullmatch(name) and survey.with_images(root.below(name), 1)]
    for name in folders[:1]:
        images = survey.look(root.below(name))
        for lists in [root, *(survey.look(root.below(each)) for each in root.folders if each != name)]:
            found = _lists_in(lists)
            if "train" not in found.values() or "test" not in found.values():
                continue
            named = {each: _first_name(survey.head(lists.below(each), 4096)) for each in found}
            paths = {split: _below(lists.below(each), at) for each, split in found.items()}
            evidence = f"{and_list(list(paths.values()))} name images in {name}"
            has_classes = bool(images.folders) and not images.images
            if has_classes and all(each.split("/")[-2:-1] and _names(survey, images, each) for each in named.values()):
                pattern = rf"{re.escape(name)}/(?P<label>[^/]+)/.*"
                settings = {"source.pattern": pattern, "split.lists": paths}
                yield Finding("food101", evidence, settings)
            elif not has_classes and all(_names(survey, images, each) for each in named.values()):
                settings = {
                    "source.include": [f"{name}/*"],
                    "source.pattern": rf"{re.escape(name)}/(?P<label>.+)_\d+\.\w+",
                    "split.lists": paths,
                }
                others = [each for each in images.images if not _PET.fullmatch(each)]
                doubts = (f"{name_some(others)} state no class before a number",) if others else ()
                yield Finding("oxford_pets", evidence, settings, doubts=doubts)
            return


def _lists_in(folder: Folder) -> dict[str, str]:
    """Returns the files that may be lists of the images of a split, with the splits; train comes first."""
    found = {name: split for name in folder.ending(".txt") if (split := _split_of_list(name))}
    return dict(sorted(found.items(), key=lambda each: (each[1] != "train", each[1] == "test")))


def _split_of_list(name: str) -> str | None:
    stem = posixpath.splitext(name)[0].lower()
    return {"train": "train", "trainval": "train", "val": "validation", "valid": "validation", "test": "test"}.get(stem)


def _first_name(head: bytes) -> str:
    line = next((line for line in head.decode("utf-8-sig", "replace").splitlines() if line.strip()), "")
    return line.split()[0] if line.strip() and not line.startswith("#") else ""


def _names(survey: FolderProbe, images: Folder, name: str) -> bool:
    """Returns whether the first name in a list is that of an image in the folder, or in a class below it."""
    *above, base = name.split("/")
    folder = survey.look(images.below(above[-1])) if above and above[-1] in images.folders else images
    return bool(base) and (base in folder.files or base in folder.stems)


def _below(path: str, at: str) -> str:
    return path.removeprefix(f"{at}/") if at else path


def find_unlabelled(survey: FolderProbe, at: str) -> Iterator[Finding]:
    """Finds images without anything that names a class."""
    root = survey.look(at)
    splits = splits_in(root.folders)
    held = {name: survey.look(root.below(name)) for name in splits}
    if splits and all(folder.images and not folder.folders for folder in held.values()):
        numbers = ", ".join(f"{name} {len(folder.images):,}" for name, folder in held.items())
        settings: dict[str, Any] = {"label": {"by": "none"}}
        if set(splits) - _RENAMED:
            settings["split.rename"] = {name: split for name, split in splits.items() if name != split}
        evidence = f"images directly in {and_list(list(splits))} ({numbers}), and nothing that names their classes"
        yield Finding("imagefolder", evidence, settings, doubts=(NO_CLASSES,), reads_images_alone=True)
        return
    folder = root
    if not root.images:
        inner = [each for each in map(survey.look, map(root.below, likely_first(root, _NUM_INNER))) if each.images]
        if len(inner) != 1:
            return
        folder = inner[0]
    where = f"directly in {folder.path}" if folder.path else "directly in the folder"
    evidence = f"{folder.count(len(folder.images), 'image')} {where}, and nothing that names their classes"
    settings = {"label": {"by": "none"}, "split": HASH_SPLIT}
    yield Finding("image_folder", evidence, settings, doubts=(NO_CLASSES,), reads_images_alone=True)
