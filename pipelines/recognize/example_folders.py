"""Signs of folders that are one example each: patient01/image.png beside patient01/mask.png."""

from __future__ import annotations

import collections
import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from imagebeam.pipelines.recognize import mask_pairs
from imagebeam.transforms.images import image_formats
from imagebeam.transforms.sources.folder_probe import (
    HASH_SPLIT,
    Finding,
    Folder,
    FolderProbe,
    and_list,
    name_some,
    splits_in,
)

_NUM_LOOKED = 8  # folders that are compared
_MAX_FILES = 8  # images and masks of one example
_HOLE = "\0"  # for the name of the folder in that of a file
_IMAGE = re.compile(r"(?i)(image|img|original|photo|picture|rgb|input)")
_SHOWN_TO_PEOPLE = re.compile(r"(?i)[_-](viz|vis|overlay|preview|colou?r|rgb)$")  # labelme's label_viz.png
_LOSSY = (".jpg", ".jpeg")


class _Form(NamedTuple):
    """What all folders of a data set hold. Names are without extension, with a hole for the name of the folder."""

    images: Mapping[str, frozenset[str]]  # by name: their extensions
    masks: Mapping[str, str]  # by name: the extension


def find_pairs(survey: FolderProbe, at: str) -> Iterator[Finding]:
    """Finds folders that all hold files of the same few names, one of them a mask."""
    root = survey.look(at)
    form = _form_of(survey, root)
    if form is not None:
        found = _finding_of(form, _describe(root), "", {"split": HASH_SPLIT})
        if found is not None:
            yield found
        return
    splits = splits_in(root.folders)
    names = tuple(splits) or root.folders
    if len(names) < 2 and not splits:
        return
    above = [survey.look(root.below(name)) for name in names[:_NUM_LOOKED]]
    forms = {folder.path: _form_of(survey, folder) for folder in above}
    first = forms[above[0].path]
    same = [folder for folder in above if forms[folder.path] == first]
    if first is None or (len(same) < len(above) and not splits):
        return
    held = [posixpath.basename(folder.path) for folder in same]
    evidence = f"{_describe(same[0])} of {held[0]}"
    if splits:
        renamed = {name: splits[name] for name in held if name != splits[name]}
        group = f"(?P<split>{'|'.join(map(re.escape, held))})"
        found = _finding_of(first, evidence, group, {"split.rename": renamed})
    else:
        found = _finding_of(first, evidence, "(?P<part>[^/]+)", {"split": HASH_SPLIT})
    if found is not None:
        yield found


def _describe(root: Folder) -> str:
    return f"{root.count(len(root.folders), 'folder')} ({name_some(root.folders)})"


def _names_in(folder: Folder) -> dict[str, str] | None:
    """Returns the extensions of the images and masks in a folder, by name; None if they are not a few."""
    stems: dict[str, str] = {}
    own = posixpath.basename(folder.path)
    for name in folder.files:
        stem, extension = posixpath.splitext(name)
        if extension.lower() not in mask_pairs.MASK_FORMATS and extension[1:].lower() not in image_formats.BY_EXTENSION:
            continue
        shown = stem.replace(own, _HOLE)
        if "\\" in name or shown in stems or len(stems) == _MAX_FILES:
            return None
        stems[shown] = extension
    return stems if len(stems) > 1 and not folder.folders else None


def _form_of(survey: FolderProbe, root: Folder) -> _Form | None:
    """Returns what the folders in a folder hold; None if they are not of one form, or without image or mask."""
    if len(root.folders) < 2:
        return None
    found = []
    for folder in survey.some(root, root.folders, _NUM_LOOKED):
        names = _names_in(folder)
        if names is None:
            return None
        found.append(names)
    common = [name for name in found[0] if all(name in each for each in found)]
    extensions: dict[str, collections.Counter[str]] = {
        name: collections.Counter(each[name] for each in found) for name in common
    }
    masks = {name: extensions[name].most_common(1)[0][0] for name in common if _is_mask(name)}
    plain = {name: extension for name, extension in masks.items() if not _is_for_people(name, masks)}
    images = {name: frozenset(each[1:] for each in extensions[name]) for name in common if name not in masks}
    images = {name: kinds for name, kinds in images.items() if all(each.lower() != "npy" for each in kinds)}
    return _Form(images, plain) if images and plain else None


def _is_mask(name: str) -> bool:
    return mask_pairs.MASKS.fullmatch(name.replace(_HOLE, "")) is not None


def _is_for_people(name: str, masks: Mapping[str, str]) -> bool:
    """Returns whether a file shows another mask to people."""
    return _SHOWN_TO_PEOPLE.sub("", name) in masks and _SHOWN_TO_PEOPLE.search(name) is not None


def _finding_of(form: _Form, folders: str, above: str, settings: Mapping[str, Any]) -> Finding | None:
    """Returns the finding for folders of a form.

    Args:
        form: what each folder holds.
        folders: the folders in words.
        above: pattern for the folder that they are in, with a group; "" for the root.
        settings: of the splits.
    """
    named = [name for name in form.images if _IMAGE.search(name)]
    image = (named or [*form.images])[0]
    mask, extension = next(iter(form.masks.items()))
    kinds = sorted(form.images[image])
    kind = kinds[0] if len(kinds) == 1 else f"(?:{'|'.join(kinds)})"
    group = above[len("(?P<") : above.index(">")] if above else ""
    pattern = re.escape(image).replace(re.escape(_HOLE), "(?P=folder)")
    outer = f"{above}/" if above else ""
    path = mask.replace(_HOLE, r"\g<folder>")
    is_lossy = extension.lower() in _LOSSY
    doubts = [
        f"each folder has {and_list([_shown(each) for each in names])}, and one example has one {kind_of}; only "
        f"{_shown(chosen)} is used: change source.masks.{key} for another one"
        for names, chosen, kind_of, key, is_open in (
            ([*form.images], image, "image", "image", len(form.images) > 1 and len(named) != 1),
            ([*form.masks], mask, "mask", "mask", len(form.masks) > 1),
        )
        if is_open
    ]
    if is_lossy:
        doubts.append(mask_pairs.LOSSY_MASKS)
    return Finding(
        "segmentation",
        f"{folders} each hold {_shown(image)}.{kinds[0]} and {_shown(mask)}{extension}",
        {
            "source.masks.image": rf"{outer}(?P<folder>[^/]+)/{pattern}\.{kind}",
            "source.masks.mask": (rf"\g<{group}>/" if group else "") + rf"\g<folder>/{path}{extension}",
            **settings,
        },
        doubts=tuple(doubts),
    )


def _shown(name: str) -> str:
    return name.replace(_HOLE, "*")
