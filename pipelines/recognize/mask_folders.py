"""Finds folders of masks: beside those of the images, one for each split; or folders that are one example each."""

from __future__ import annotations

import collections
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

from imagebeam import plural
from imagebeam.transforms.images import image_formats
from imagebeam.transforms.sources import folder_probe, name_signs
from imagebeam.transforms.sources.folder_probe import Change, Finding, Folder, FolderProbe, and_list, name_some

# --- folders of masks for the images of other folders -----------------------------------------------------------------

MASK_FORMATS = (".png", ".gif", ".tif", ".tiff", ".bmp", ".npy")
LOSSY_MASKS = "masks in JPEG have lost their exact classes and are not read: convert them to PNG from their source"
_MAX_FOLDERS = 30  # more are not compared
_NUM_STEMS = 200  # images whose masks are looked for
SHARE = 0.8  # share of the images that must have a mask
_HOLE = "\0"  # for the name of the split in a path, or of an image in that of its mask
_DIGIT_BESIDE = re.compile(rf"\d{_HOLE}|{_HOLE}\d")


class _Pair(NamedTuple):
    """A folder of images and one that has a file for each of them."""

    images: Folder
    token: str  # the name of the split in both paths; "" if there is none
    image: str  # path of the folder of images, with a hole for the split
    mask: str
    form: tuple[str, str, str]  # cut from the end of an image's name, and put before and after the rest of it
    extension: str  # masks' extension as spelt


def find_pairs(probe: FolderProbe, at: str) -> Iterator[Finding]:
    """Finds pairs such as train and trainannot, val and valannot; and several folders of masks for the same images."""
    pairs = _pairs_in(probe, at)
    groups: dict[tuple[str, str, tuple[str, str, str], str], list[_Pair]] = collections.defaultdict(list)
    for pair in pairs:
        groups[pair.image, pair.mask, pair.form, pair.extension].append(pair)
    best = max((group for group in groups.values() if holds_masks(group[0].mask)), key=_rank, default=None)
    if best is None:
        return
    same = [each for each in pairs if each.image == best[0].image and each.token in {own.token for own in best}]
    rivals = sorted({_fill(each.mask) for each in same})
    if not is_for_people(best[0].mask):
        rivals = [each for each in rivals if not is_for_people(each)]
    tokens = sorted({each.token for each in pairs if each.token})
    if len(best) < 2 and len(rivals) < 2 and len(tokens) < 2:
        return
    doubts = []
    if len(rivals) > 1:
        doubts.append(
            f"{and_list(rivals)} each have a file for each image of {_fill(best[0].image)}; only "
            f"{_fill(best[0].mask)} is used: set source.masks.mask for another one"
        )
    if len(best) < len(tokens):
        shown = and_list([_fill(each.image, each.token) for each in best])
        doubts.append(
            f"{len(tokens)} pairs of folders look like splits; only {shown} is used: set source.masks.image=..."
        )
    yield _finding_of(best, tuple(doubts), at)


def holds_masks(path: str) -> bool:
    """Returns whether masks are expected in a folder of this name; COCO's panoptic PNGs have a JSON file and a sign."""
    return name_signs.MASKS.search(path) is not None and "panoptic" not in path


def is_for_people(name: str) -> bool:
    """Returns whether a folder or file is named as one that shows masks in colors, or the instances in them."""
    return name_signs.FOR_PEOPLE.search(name) is not None


def are_masks(path: str) -> bool:
    """Returns whether masks of any kind are expected in a folder."""
    return name_signs.MASKS.search(path) is not None or is_for_people(path)


def _rank(group: Sequence[_Pair]) -> tuple[bool, bool, int, bool]:
    tokens = {folder_probe.split_meant(each.token) for each in group}
    is_plain = not is_for_people(group[0].mask)
    return name_signs.IMAGES.search(group[0].image) is not None, is_plain, len(group), "train" in tokens


def _fill(path: str, token: str = "*") -> str:
    return path.replace(_HOLE, token)


def _pairs_in(probe: FolderProbe, at: str) -> list[_Pair]:
    root = probe.look(at)
    near = [probe.look(root.below(name)) for name in root.folders[:_MAX_FOLDERS]]
    if not any(name_signs.MASKS.search(name) for each in (root, *near) for name in each.folders):
        return []
    inner = [probe.look(each.below(name)) for each in near for name in each.folders[:_MAX_FOLDERS]]
    folders = [each for each in (*near, *inner) if each.files][:_MAX_FOLDERS]
    found = []
    for images in folders:
        path = images.path.removeprefix(f"{at}/")
        tokens = {match[0] for match in name_signs.SPLIT_WORD.finditer(path)}
        if not images.images or name_signs.MASKS.search(path) or len(tokens) > 1:
            continue
        token = next(iter(tokens), "")
        for masks in folders:
            other = masks.path.removeprefix(f"{at}/")
            is_own = token in other if token else not name_signs.SPLIT_WORD.search(other)
            if masks is images or not is_own:
                continue
            extension, _ = collections.Counter(posixpath.splitext(name)[1] for name in masks.files).most_common(1)[0]
            form = _form_of(images, masks, token) if extension.lower() in MASK_FORMATS else None
            if form is not None:
                holes = [each.replace(token, _HOLE) if token else each for each in (path, other)]
                found.append(_Pair(images, token, holes[0], holes[1], form, extension))
    return found


def _form_of(images: Folder, masks: Folder, token: str) -> tuple[str, str, str] | None:
    """Returns how the name of a mask follows from that of its image: see `_Pair.form`; None if it does not.

    What precedes and follows has no digit beside the name of the image: 1.png is not the mask of 11.jpg.
    """
    stems, known = sorted(images.stems)[:_NUM_STEMS], stems_of(masks)
    for cut in ("", *(f"{mark}{token}" for mark in "_-." if token)):
        names = [stem.removesuffix(cut) for stem in stems if stem.endswith(cut)]
        if len(names) < len(stems):
            continue
        affixes = find_affixes(names, known, _DIGIT_BESIDE)
        if affixes is not None:
            before, after = affixes
            ending = after.replace(token, _HOLE) if token else after
            return cut.replace(token, _HOLE) if cut else "", before, ending
    return None


def find_affixes(names: Sequence[str], known: Set[str], refused: re.Pattern[str]) -> tuple[str, str] | None:
    """Returns what precedes and follows the names of images in the names of their masks; None if too few have one.

    Args:
        names: of images, sorted. The first 200 are compared.
        known: names of masks, without their extensions.
        refused: found in no affixes; it is searched for in both, with a NUL for the name of the image.
    """
    names = names[:_NUM_STEMS]
    if not names:
        return None
    first = names[0]
    in_order = sorted(known, key=lambda name: (len(name), name))
    for other in [each for each in in_order if first in each][:5]:
        before, _, after = other.partition(first)
        number = sum(f"{before}{name}{after}" in known for name in names)
        if number >= SHARE * len(names) and not refused.search(f"{before}{_HOLE}{after}"):
            return before, after
    return None


def stems_of(folder: Folder) -> Set[str]:
    """Returns the names of all files of a folder without their extensions."""
    return {posixpath.splitext(name)[0] for name in folder.files}


def extensions_of(names: Sequence[str]) -> str:
    """Returns the extensions of images as an expression: `jpg`, `(?:jpg|png)`."""
    kinds = sorted({posixpath.splitext(name)[1][1:] for name in names})
    return kinds[0] if len(kinds) == 1 else f"(?:{'|'.join(kinds)})"


def _finding_of(group: Sequence[_Pair], doubts: tuple[str, ...], at: str) -> Finding:
    first = group[0]
    kinds = extensions_of([name for each in group for name in each.images.images])
    cut, before, after = first.form
    tokens = [each.token for each in group if each.token]
    head, *rest = re.escape(first.image).replace(re.escape(_HOLE), _HOLE).split(_HOLE)
    choice = f"(?P<split>{'|'.join(tokens)})"
    image = head + "".join(f"{choice if n == 0 else '(?P=split)'}{each}" for n, each in enumerate(rest))
    end = re.escape(cut).replace(re.escape(_HOLE), _HOLE).replace(_HOLE, "(?P=split)")
    mask = f"{first.mask}/{before}\\g<name>{after}{first.extension}".replace(_HOLE, r"\g<split>")
    shown = [f"{_fill(each.mask, each.token)} for {_fill(each.image, each.token)}" for each in group]
    evidence = f"a {folder_probe.extension_of('x' + first.extension)} file for each image: {and_list(shown)}"
    return finding_of_masks(rf"{image}/(?P<name>.*){end}\.{kinds}", mask, tokens, evidence, doubts)


def finding_of_masks(image: str, mask: str, folders: Sequence[str], evidence: str, doubts: Sequence[str]) -> Finding:
    """Returns the finding for pairs of images and masks.

    Args:
        image: pattern for the paths of images; its group `split`, if there is one, is the name of a folder.
        mask: path of the mask of an image.
        folders: names of these folders; if they are not splits, the group is renamed, and splits are by hash.
        evidence: the pairs in words.
        doubts: what contradicts them.
    """
    settings: dict[str, Any] = {"source.masks.image": image, "source.masks.mask": mask}
    if splits := folder_probe.splits_in(folders):
        settings["split.rename"] = {name: split for name, split in splits.items() if name != split}
    else:
        image = image.replace("(?P<split>", "(?P<part>").replace("(?P=split)", "(?P=part)")
        settings = {"source.masks.image": image, "source.masks.mask": mask.replace(r"\g<split>", r"\g<part>")}
        settings["split"] = folder_probe.HASH_SPLIT
    ending = posixpath.splitext(mask)[1].lower()
    if ending in (".jpg", ".jpeg"):
        doubts = (*doubts, LOSSY_MASKS)
    elif ending not in ("", *MASK_FORMATS):
        doubts = (*doubts, f"masks in {ending} are not read: convert them to PNG")
    often = (Change("source.masks.missing", "skip", "if only some of the images have masks"),)
    return Finding("segmentation", evidence, settings, (), often, doubts=tuple(doubts))


_NUM_HOLDERS = 3  # folders of the root, beside those of splits, that are looked into for masks


def notes_on_masks(probe: FolderProbe) -> list[str]:
    """Returns a note if a folder that looks like a class is likely one of masks for the images of another folder."""
    root = probe.look()
    masks = [
        name for name in root.folders if name_signs.MASKS_ALONE.fullmatch(name) and probe.with_images(root.below(name))
    ]
    if len(masks) == len(root.folders):
        masks = []
    holders = [probe.look(root.below(name)) for name in folder_probe.likely_first(root, _NUM_HOLDERS)]
    masks += [path for each in holders for path in masks_below(probe, each)]
    if not masks:
        return []
    first = probe.with_images(root.below(masks[0]))
    is_lossy = first is not None and first.images[0].lower().endswith((".jpg", ".jpeg"))
    remedy = LOSSY_MASKS
    if not is_lossy:
        remedy = (
            "for masks, one for each image, take the preset segmentation with source.masks.image and .mask (several "
            "masks of an image must be merged into one first)"
        )
    shown = name_some(masks) if len(masks) > 3 else and_list(masks)
    if len(masks) > 1:
        return [f"{shown} would be read as images, but may hold masks of the images beside them; {remedy}"]
    return [f"{shown} would be a class by its name, but may hold masks of the images beside it; {remedy}"]


def notes_on_volumes(probe: FolderProbe) -> list[str]:
    """Returns a note if volumes of NIfTI are likely masks of others: they would be read as images."""
    volumes = [
        folder.below(name)
        for folder in probe.seen()
        for name in folder.images
        if image_formats.BY_EXTENSION[image_formats.extension_of(name)] == image_formats.NIFTI
    ]
    named = [path for path in volumes if name_signs.MASKS.search(path)]
    if not named:
        return []
    return [
        f"{len(named):,} of {plural.count(len(volumes), 'volume')} are named as masks, such as {named[0]}, and would "
        "be examples of their own: masks in NIfTI are not read; name the volumes of images in source.include"
    ]


def masks_below(probe: FolderProbe, folder: Folder) -> list[str]:
    """Returns the paths of the folders of masks in a folder, and in a few of its folders: see `masks_in`."""
    places = (folder, *probe.some(folder, folder.folders))
    return [each.below(name) for each in places for name in masks_in(probe, each)]


def masks_in(probe: FolderProbe, folder: Folder) -> list[str]:
    """Returns the folders in a folder that are named like masks, and whose files are named like the images beside them.

    A file is named like an image if its name begins with that of the image: 7_square_0.png for 7.jpg. Files beside a
    folder `images` may have any names, as in the Data Science Bowl of 2018, where each image has a folder of masks.
    """
    named = [name for name in folder.folders if name_signs.MASKS.search(name)]
    if not named:
        return []
    others = [name for name in folder.folders if name not in named]
    stems = {stem for name in others[:_MAX_FOLDERS] for stem in probe.look(folder.below(name)).stems}
    is_beside_images = any(name.lower() in ("images", "image") for name in others)
    found = []
    for name in named:
        masks = probe.with_images(folder.below(name))
        names = sorted(masks.stems)[:_NUM_STEMS] if masks is not None else []
        if names and (is_beside_images or sum(_begins_with_one(each, stems) for each in names) >= SHARE * len(names)):
            found.append(name)
    return found


def _begins_with_one(name: str, stems: Set[str]) -> bool:
    return name in stems or any(name[: match.start()] in stems for match in _MARK.finditer(name))


_MARK = re.compile(r"[^0-9A-Za-z]")  # between the name of an image and the rest of the name of its mask


# --- folders that are one example each: patient01/image.png beside patient01/mask.png ---------------------------------

_NUM_LOOKED = 8  # folders that are compared
_MAX_FILES = 8  # images and masks of one example


class _Form(NamedTuple):
    """Files that all folders of a data set hold. Names have no extension, and a hole for the name of the folder."""

    images: Mapping[str, frozenset[str]]  # by name: their extensions
    masks: Mapping[str, str]  # by name: the extension


def find_example_folders(probe: FolderProbe, at: str) -> Iterator[Finding]:
    """Finds folders that all hold files of the same few names, one of them a mask."""
    root = probe.look(at)
    if (form := _example_form(probe, root)) is not None:
        yield _example_finding(form, _describe_folders(root), "", ())
        return
    splits = folder_probe.splits_in(root.folders)
    above = [probe.look(root.below(name)) for name in (tuple(splits) or root.folders)[:_NUM_LOOKED]]
    if len(above) < 2 and not splits:
        return
    forms = [_example_form(probe, folder) for folder in above]
    same = [folder for folder, form in zip(above, forms) if form == forms[0]]
    if forms[0] is None or (len(same) < len(above) and not splits):
        return
    held = [posixpath.basename(folder.path) for folder in same]
    group = "|".join(map(re.escape, held)) if splits else "[^/]+"
    yield _example_finding(forms[0], f"{_describe_folders(same[0])} of {held[0]}", f"(?P<split>{group})/", held)


def _describe_folders(root: Folder) -> str:
    return f"{root.count(len(root.folders), 'folder')} ({name_some(root.folders)})"


def _names_in(folder: Folder) -> dict[str, str] | None:
    """Returns the extensions of the images and masks in a folder, by name; None if they are not a few."""
    stems: dict[str, str] = {}
    own = posixpath.basename(folder.path)
    for name in folder.files:
        stem, extension = posixpath.splitext(name)
        if extension.lower() not in MASK_FORMATS and extension[1:].lower() not in image_formats.BY_EXTENSION:
            continue
        shown = stem.replace(own, _HOLE)
        if "\\" in name or shown in stems or len(stems) == _MAX_FILES:
            return None
        stems[shown] = extension
    return stems if len(stems) > 1 and not folder.folders else None


def _example_form(probe: FolderProbe, root: Folder) -> _Form | None:
    """Returns what the folders in a folder hold; None if they are not of one form, or without image or mask."""
    if len(root.folders) < 2:
        return None
    found = []
    for folder in probe.some(root, root.folders, _NUM_LOOKED):
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
    return name_signs.MASKS.search(name.replace(_HOLE, "")) is not None


def _is_for_people(name: str, masks: Mapping[str, str]) -> bool:
    """Returns whether a file shows another mask to people."""
    return name_signs.FOR_PEOPLE.sub("", name) in masks and name_signs.FOR_PEOPLE.search(name) is not None


def _example_finding(form: _Form, folders: str, above: str, names: Sequence[str]) -> Finding:
    """Returns the finding for folders of a form.

    Args:
        form: what each folder holds.
        folders: the folders in words.
        above: pattern for the folder that they are in, with the group `split`; "" for the root.
        names: of the folders that this pattern matches.
    """
    named = [name for name in form.images if name_signs.IMAGES.search(name)]
    image = (named or [*form.images])[0]
    mask, extension = next(iter(form.masks.items()))
    kinds = sorted(form.images[image])
    kind = kinds[0] if len(kinds) == 1 else f"(?:{'|'.join(kinds)})"
    pattern = re.escape(image).replace(re.escape(_HOLE), "(?P=folder)")
    doubts = [
        f"each folder has {and_list([_fill(each) for each in found])}, and one example has one {kind_of}; only "
        f"{_fill(chosen)} is used: change source.masks.{kind_of} for another one"
        for found, chosen, kind_of, is_open in (
            ([*form.images], image, "image", len(form.images) > 1 and len(named) != 1),
            ([*form.masks], mask, "mask", len(form.masks) > 1),
        )
        if is_open
    ]
    return finding_of_masks(
        rf"{above}(?P<folder>[^/]+)/{pattern}\.{kind}",
        (r"\g<split>/" if above else "") + r"\g<folder>/" + mask.replace(_HOLE, r"\g<folder>") + extension,
        names,
        f"{folders} each hold {_fill(image)}.{kinds[0]} and {_fill(mask)}{extension}",
        doubts,
    )
