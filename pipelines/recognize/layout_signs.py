"""Signs in the names of folders and files: classes, splits, labels in the names of images, images of one subject."""

from __future__ import annotations

import collections
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from imagebeam import plural
from imagebeam.pipelines.config import model as config_lib
from imagebeam.pipelines.recognize import class_folders, contradictions, mask_folders
from imagebeam.pipelines.recognize.unread_files import Line
from imagebeam.transforms.sources import folder_probe, name_signs
from imagebeam.transforms.sources.folder_probe import Change, Finding, Folder, FolderProbe, and_list, name_some

NO_CLASSES = "nothing says what the images show"
_STRATIFY = Change(
    "split",
    {"by": "hash", "fractions": {"train": 0.8, "validation": 0.1, "test": 0.1}, "stratify": True},
    "several splits, with the same share of every class; in place of the lines above",
)


def find_classes_in_splits(probe: FolderProbe, at: str) -> Iterator[Finding]:
    """Finds train/cat/x.jpg, and such folders under other names or one level deeper."""
    root = probe.look(at)
    splits = folder_probe.splits_in(root.folders)
    if not splits:
        return
    held = {name: probe.look(root.below(name)) for name in splits}
    repeated = {  # seg_train/seg_train/glacier/x.jpg
        name: probe.look(folder.below(folder.folders[0]))
        for name, folder in held.items()
        if len(folder.folders) == 1 and not folder.images
    }
    is_deeper = len(repeated) == len(held) and all(folder.folders for folder in repeated.values())
    if is_deeper:
        held = repeated
    with_classes = {
        name: folder
        for name, folder in held.items()
        if class_folders.hold_images(probe, folder)
        and not (len(folder.folders) == 1 and name_signs.is_part(folder.folders[0]))
    }
    if "train" not in {splits[name] for name in with_classes}:
        return
    counts = {len(folder.folders) for folder in with_classes.values()}
    number = f"{counts.pop():,}" if len(counts) == 1 else f"{min(counts):,} to {max(counts):,}"
    classes = max((folder.folders for folder in with_classes.values()), key=len)
    hold = "holds" if len(with_classes) == 1 else "hold"
    evidence = f"{and_list(list(with_classes))} {hold} {number} folders of images each ({name_some(classes)})"
    settings: dict[str, Any] = {}
    scenes: list[str] = []
    if is_deeper:
        scenes = [
            f"{name_some(each.folders)} in {each.path} hold images of the same names: parts of an example, or classes?"
            for name, each in held.items()
            if posixpath.basename(each.path) != name and len(each.folders) > 1
            if len({folder.stems for folder in probe.some(each, each.folders)}) == 1
        ][:1]
        settings = {
            "source.pattern": "(?P<split>[^/]+)/[^/]+/(?P<label>[^/]+)/.*",
            "label": {"by": "column", "column": "label"},
            "split": {"by": "column", "column": "split", "rename": splits},
        }
    else:
        settings["split.rename"] = {name: split for name, split in splits.items() if name != split}
    others = [name for name in root.folders if name not in with_classes]
    is_beside = any(folder.images for folder in with_classes.values())
    if others or root.images or is_beside:
        settings["source.include"] = [f"{name}/*/**" for name in with_classes]
    notes = []
    if others := [name for name in others if probe.with_images(root.below(name)) is not None]:
        have = "has" if len(others) == 1 else "have"
        notes.append(f"{and_list(others)} {have} images, too, which are left out")
    if all(map(name_signs.SYNSET.fullmatch, classes[:20])):
        notes = [f"{each}; docs/recipes/imagenet.md says how to sort them into folders by a list" for each in notes]
        if not is_deeper:
            yield Finding("imagenet", evidence, settings, tuple(notes), reads_images_alone=True)
        return
    doubts = tuple(dict.fromkeys([*class_folders.doubts_on_classes(probe, [*with_classes.values()], "*/*/*"), *scenes]))
    if merged := [name for name in with_classes if [*map(splits.get, with_classes)].count(splits[name]) > 1]:
        kept = ", ".join(f"{name}/*/**" for name in with_classes if name not in merged[1:])
        doubts += (
            f"{and_list(merged)} would be one split: if one is a copy or another version, leave it out by "
            f"source.include='[{kept}]'",
        )
    first = held[next(iter(with_classes))]
    notes += class_folders.notes_on_classes(probe, first, doubts)
    yield Finding("imagefolder", evidence, settings, tuple(notes), doubts=doubts, reads_images_alone=True)


def find_splits_in_classes(probe: FolderProbe, at: str) -> Iterator[Finding]:
    """Finds cat/train/x.jpg."""
    root = probe.look(at)
    looked = list(probe.some(root, root.folders, class_folders.NUM_CLASSES))
    splits = [folder_probe.splits_in(folder.folders) for folder in looked]
    if any(map(name_signs.is_part, root.folders)):
        return
    if (
        len(looked) < 2
        or not all(splits)
        or folder_probe.splits_in(root.folders)
        or not class_folders.hold_images(probe, looked[0])
    ):
        return
    evidence = f"{root.count(len(root.folders), 'folder')} ({name_some(root.folders)}) hold {and_list(list(splits[0]))}"
    settings = {
        "source.pattern": "(?P<label>[^/]+)/(?P<split>[^/]+)/.*",
        "label": {"by": "column", "column": "label"},
        "split": {"by": "column", "column": "split", "rename": {k: v for each in splits for k, v in each.items()}},
    }
    doubts = [f"{name_some(root.folders)}: names of parts of a data set, not of classes"]
    doubts = doubts if name_signs.are_parts(root.folders) else []
    if masks := [path for each in looked for path in mask_folders.masks_below(probe, each)]:
        doubts.append(f"{name_some(masks)} may hold masks of the images beside, by their names")
    if others := sorted(
        {name for folder, known in zip(looked, splits) for name in folder.folders if name not in known}
    ):
        doubts.append(f"{name_some(root.folders)} also hold {name_some(others)}: each may be a data set of its own")
    for known in splits:
        if parts := [name for name, split in known.items() if [*known.values()].count(split) > 1]:
            doubts.append(_ask_about_domains(parts, known))
            break
    first = next(iter(splits[0]))
    doubts += filter(None, [contradictions.aligned(probe, root, first)])
    inner = probe.look(looked[0].below(first))
    doubts += _parts_below(probe, inner)
    if not inner.images and len(inner.folders) > 1:  # canon/train/cat/x.jpg
        doubts.append(
            f"the images are in the folders {name_some(inner.folders)} of {inner.path}: for these as the classes set "
            "source.pattern='[^/]+/(?P<split>[^/]+)/(?P<label>[^/]+)/.*'"
        )
    yield Finding("image_folder", evidence, settings, doubts=tuple(doubts), reads_images_alone=True)


def _parts_below(probe: FolderProbe, folder: Folder) -> Iterator[str]:
    """Yields a doubt if folders anywhere above the images are for the parts of an example: ROIs/{image,mask}."""
    while not folder.images and (names := folder.folders):
        if any(map(name_signs.is_part, names)) or name_signs.are_parts(names) or contradictions.aligned(probe, folder):
            yield f"{folder.path} has folders for the parts of an example ({name_some(names)})"
            return
        folder = probe.look(folder.below(names[0]))


def find_classes(probe: FolderProbe, at: str) -> Iterator[Finding]:
    """Finds cat/x.jpg."""
    root = probe.look(at)
    if folder_probe.splits_in(root.folders) or any(True for _ in find_splits_in_classes(probe, at)):
        return
    looked = probe.some(root, root.folders, class_folders.NUM_CLASSES)
    held = [folder for folder in looked if probe.with_images(folder.path) is not None]
    names = (
        [posixpath.basename(folder.path) for folder in held]
        if len(root.folders) <= class_folders.NUM_CLASSES
        else root.folders
    )
    if len(held) < 2 or all(map(name_signs.is_part, names)):  # folders without images are no classes
        return
    if not any(folder.images for folder in held) and any(any(map(name_signs.is_part, each.folders)) for each in held):
        return  # each folder is a data set with folders for its parts
    evidence = f"{root.count(len(names), 'folder')} of images ({name_some(names)})"
    notes, settings, doubts = [], {}, class_folders.doubts_on_classes(probe, [root])
    others = [name for name in root.folders if name not in names and not name_signs.is_part(name)]
    if deep := [name for name in others if class_folders.may_hold_images(probe, root, name)]:
        doubts += (
            f"images further down in {name_some(deep)} would be of a class of this name: if they are of none, move "
            "them elsewhere, or name the folders of the classes in source.include",
        )
    if copies := [each.path for each in held if len({*each.folders} & {*names}) > 1]:
        doubts += (f"{copies[0]} holds folders of the same names as beside it: is it a copy? Then plan it alone",)
    if root.images:
        settings["source.include"] = ["*/**"]
        are = "is" if len(root.images) == 1 else "are"
        notes.append(f"{root.count(len(root.images), 'image')} beside the folders {are} left out")
    notes += class_folders.notes_on_classes(probe, root, doubts)
    yield Finding(
        "image_folder", evidence, settings, tuple(notes), (_STRATIFY,), doubts=doubts, reads_images_alone=True
    )


def _ask_about_domains(parts: Sequence[str], splits: Mapping[str, str]) -> str:
    """Returns the question on folders of one split: what does the rest of their names say?

    Args:
        parts: their names.
        splits: names of all folders of splits, with the splits that they mean.
    """
    words = {word for name in splits for word in folder_probe.words_of_splits(name)}
    split = f"(?P<split>(?i:{'|'.join(sorted(words, key=len, reverse=True))}))"
    is_first = all(name.lower().startswith(tuple(words)) for name in splits)
    pattern = f"{split}[_-]?(?P<label>[^/]+)" if is_first else f"(?P<label>[^/]+?)[_-]?{split}"
    return (
        f"{and_list(parts)} are of one split: if what else is in such names are classes or domains, set "
        f"source.pattern='{pattern}/[^/]+', label={{by: column, column: label}} and split={{by: column, column: split, "
        "rename: {...}}; if images of the same names are pairs, see the preset pairs (docs/recipes/pairs.md)"
    )


# --- labels in the names of images -----------------------------------------------------------------------------------

_UTKFACE = re.compile(r"\d{1,3}_[01]_[0-4]_\d{9,}\.")
_CATS_DOGS = re.compile(r"(cat|dog)\.\d+\.jpg")
_SYNSET_FILE = re.compile(r"n\d{8}_.*\.JPEG")
_PET = re.compile(r"(.+)_\d+\.\w+")
_NUM_INNER = 30  # folders beside those of splits that may be the only one with images
_MANY = 10  # images that share a name before their numbers
_NUM_LINES = 500  # of a list that are looked at


def find_labels_in_names(probe: FolderProbe, at: str) -> Iterator[Finding]:
    """Finds cat.0.jpg and other names with a class before a number, in one folder."""
    root = probe.look(at)
    path, splits = "", {}
    if not root.images and (splits := folder_probe.splits_in(root.folders)):
        path = next(name for name, split in splits.items() if split == "train")
    elif not root.images and len(root.folders) == 1:
        path = root.folders[0]
    folder = probe.look(root.below(path)) if path else root
    names = folder.images
    if len(names) < 2:
        return
    where = f"in {path} " if path else ""
    evidence = folder.count(len(names), "image") + f" {where}have names such as {names[0]}"
    settings = _train_alone(splits, path)
    others = [probe.look(root.below(name)) for name in splits if name != path]
    for pattern, preset in ((_CATS_DOGS, "cats_dogs"), (_SYNSET_FILE, "imagenet_files"), (_UTKFACE, "utkface")):
        fitting = [name for name in names if pattern.match(name)]
        if len(fitting) >= 0.9 * len(names):
            doubts = _doubts_on_other_splits(others, pattern)
            yield Finding(preset, evidence, settings, doubts=doubts, reads_images_alone=True)
            return
    yield from _find_numbered(folder, others, where, settings)


def _train_alone(splits: Mapping[str, str], path: str) -> dict[str, Any]:
    """Returns settings that leave out the images of other splits: those of Kaggle's `test` have no labels."""
    return {"source.include": [f"{path}/**"]} if splits else {}


def _doubts_on_other_splits(folders: Sequence[Folder], pattern: re.Pattern[str]) -> tuple[str, ...]:
    """Returns a doubt if the folders of other splits, which are left out, have names with labels, too."""
    named = [each.path for each in folders if any(map(pattern.match, each.images))]
    if not named:
        return ()
    have = "has" if len(named) == 1 else "have"
    option = "to read them as splits set source.include='**' and split={by: directory}"
    return (f"{and_list(named)} {have} images of such names, too: {option}",)


def _find_numbered(
    folder: Folder, others: Sequence[Folder], where: str, settings: Mapping[str, Any]
) -> Iterator[Finding]:
    forms: collections.Counter[tuple[str, str, str]] = collections.Counter()
    prefixes: collections.Counter[str] = collections.Counter()
    for name in folder.images:
        if match := class_folders.NUMBERED.fullmatch(name):
            forms[match["between"], match["open"], match["close"]] += 1
            prefixes[match["label"]] += 1
    if not forms:
        return
    (between, open_, close), number = forms.most_common(1)[0]
    classes = sorted(prefixes)
    few = [name for name in classes if prefixes[name] < min(_MANY, number // 20 + 2)]
    is_name = len(classes) > 1 and not few and not any(map(name_signs.COUNTED.search, classes))
    if number < 0.9 * len(folder.images) or not is_name or len(classes) > number // 5:
        return
    pattern = rf"(?P<label>.+?){re.escape(between)}{re.escape(open_)}\d+{re.escape(close)}\.\w+"
    evidence = (
        f"the names of {folder.count(len(folder.images), 'image')} {where}begin with "
        f"{plural.count(len(classes), 'name')} ({name_some(classes)}), with a number after it"
    )
    label = {"by": "filename", "pattern": pattern}
    doubts = _doubts_on_other_splits(others, re.compile(pattern))
    if name_signs.are_parts(classes):
        doubts = (f"{name_some(classes)}: names of parts of an example, not of classes", *doubts)
    if all(map(folder_probe.split_meant, classes)):
        doubts = (f"{name_some(classes)}: names of splits, not of classes", *doubts)
    yield Finding(
        "image_folder",
        evidence,
        {**settings, "label": label},
        ("the class is what precedes the number in the name of the file; for images without labels set label.by=none",),
        (_STRATIFY,),
        doubts=doubts,
        reads_images_alone=True,
    )


def find_lists_of_names(probe: FolderProbe, at: str) -> Iterator[Finding]:
    """Finds images/cat/x.jpg or images/cat_1.jpg with lists such as meta/train.txt that name the images of a split."""
    root = probe.look(at)
    folders = [name for name in root.folders if name_signs.is_part(name) and probe.with_images(root.below(name), 1)]
    for name in folders[:1]:
        images = probe.look(root.below(name))
        for lists in [root, *(probe.look(root.below(each)) for each in root.folders if each != name)]:
            found = _lists_in(lists)
            if "train" not in found.values() or "test" not in found.values():
                continue
            named = {each: _first_name(probe.head(lists.below(each), 4096)) for each in found}
            paths = {split: lists.below(each).removeprefix(f"{at}/") for each, split in found.items()}
            evidence = f"{and_list(list(paths.values()))} name images in {name}"
            has_classes = bool(images.folders) and not images.images
            if has_classes and all(each.split("/")[-2:-1] and _names(probe, images, each) for each in named.values()):
                pattern = rf"{re.escape(name)}/(?P<label>[^/]+)/.*"
                settings = {"source.pattern": pattern, "split.lists": paths}
                doubts = [*_further_on_lines(probe, [*map(lists.below, found)], re.compile(r"(?:.*/)?([^/]+)/.*"))]
                yield Finding("food101", evidence, settings, doubts=tuple(doubts))
            elif not has_classes and all(_names(probe, images, each) for each in named.values()):
                settings = {
                    "source.include": [f"{name}/*"],
                    "source.pattern": rf"{re.escape(name)}/(?P<label>.+)_\d+\.\w+",
                    "split.lists": paths,
                }
                classes = {match[1] for each in images.images if (match := _PET.fullmatch(each))}
                if not classes:
                    return
                others = [each for each in images.images if not _PET.fullmatch(each)]
                doubts = [f"{name_some(others)} state no class before a number"] if others else []
                if len(classes) == 1 or all(map(name_signs.COUNTED.search, classes)):
                    doubts.append(f"what precedes the last number in {images.images[0]} would be the class")
                doubts += _further_on_lines(probe, [*map(lists.below, found)], re.compile(r"(.+)_\d+(?:\.\w+)?"))
                yield Finding("oxford_pets", evidence, settings, doubts=tuple(doubts))
            return


def _further_on_lines(probe: FolderProbe, paths: Sequence[str], name: re.Pattern[str]) -> Iterator[str]:
    """Yields a doubt if lists say more of images than their names, and nothing on a line follows from the class.

    Args:
        probe: of the folder.
        paths: of the lists.
        name: of an image, with its class.
    """
    for path in paths:
        lines = [line.split() for line in probe.head(path).decode("utf-8-sig", "replace").splitlines()[:_NUM_LINES]]
        said = [(match[1], *more) for first, *more in filter(None, lines) if more and (match := name.fullmatch(first))]
        num_columns = min(map(len, said), default=0)
        classes = {each[0] for each in said}
        if said and not any(len({(each[0], each[n]) for each in said}) == len(classes) for n in range(1, num_columns)):
            shown = " ".join(next(line for line in lines if len(line) > 1))
            yield f"lines of {path} say more than names ({shown}), which is not read: is it the label?"
            return


def _lists_in(folder: Folder) -> dict[str, str]:
    """Returns the files that may be lists of the images of a split, with the splits; train comes first."""
    found = {
        name: split
        for name in folder.ending(".txt")
        if (split := name_signs.SPLIT_OF_WORD.get(posixpath.splitext(name)[0].lower()))
    }
    return dict(sorted(found.items(), key=lambda each: (each[1] != "train", each[1] == "test")))


def _first_name(head: bytes) -> str:
    line = next((line for line in head.decode("utf-8-sig", "replace").splitlines() if line.strip()), "")
    return line.split()[0] if line.strip() and not line.startswith("#") else ""


def _names(probe: FolderProbe, images: Folder, name: str) -> bool:
    """Returns whether the first name in a list is that of an image in the folder, or in a class below it."""
    *above, base = name.split("/")
    folder = probe.look(images.below(above[-1])) if above and above[-1] in images.folders else images
    return bool(base) and (base in folder.files or base in folder.stems)


def find_unlabelled(probe: FolderProbe, at: str) -> Iterator[Finding]:
    """Finds images without anything that names a class."""
    root = probe.look(at)
    splits = folder_probe.splits_in(root.folders)
    held = {name: probe.look(root.below(name)) for name in splits}
    if splits and all(folder.images and not folder.folders for folder in held.values()):
        numbers = ", ".join(f"{name} {len(folder.images):,}" for name, folder in held.items())
        settings: dict[str, Any] = {"label": {"by": "none"}}
        settings["split.rename"] = {name: split for name, split in splits.items() if name != split}
        evidence = f"images directly in {and_list(list(splits))} ({numbers}), and nothing that names their classes"
        doubts = [NO_CLASSES]
        if parts := [name for name, split in splits.items() if list(splits.values()).count(split) > 1]:
            doubts.append(_ask_about_domains(parts, splits))
        yield Finding("imagefolder", evidence, settings, doubts=tuple(doubts), reads_images_alone=True)
        return
    folder = root
    if not root.images:
        inner = [
            each
            for each in map(probe.look, map(root.below, folder_probe.likely_first(root, _NUM_INNER)))
            if each.images
        ]
        if len(inner) != 1:
            return
        folder = inner[0]
    where = f"directly in {folder.path}" if folder.path else "directly in the folder"
    evidence = f"{folder.count(len(folder.images), 'image')} {where}, and nothing that names their classes"
    settings = {"label": {"by": "none"}, "split": folder_probe.HASH_SPLIT}
    doubts = [NO_CLASSES]
    if endings := contradictions.paired_endings(folder.stems):
        stems = {posixpath.splitext(name)[0]: posixpath.splitext(name)[1] for name in folder.images}
        kinds = {each: next(kind for stem, kind in stems.items() if stem.endswith(each)) for each in endings}
        first, *others = sorted(endings, key=mask_folders.are_masks)
        image = rf"'(.*){re.escape(first)}\{kinds[first]}'"
        partners = {each.lstrip("_-. "): rf"'\1{each}{kinds[each]}'" for each in others}
        shown = ", ".join(map(": ".join, partners.items()))
        preset = f"pairs with source.pairs.image={image} and source.pairs.others={{{shown}}}"
        if mask_folders.are_masks(others[0]):
            mask = next(iter(partners.values()))
            preset = f"segmentation with source.masks.image={image} and source.masks.mask={mask}"
        doubts.append(
            f"each name is there with the endings {name_some(endings, 4)}: if these images are one example, take the "
            f"preset {preset}, or write a table with a row for each example (docs/recipes/tables.md)"
        )
    yield Finding("image_folder", evidence, settings, doubts=tuple(doubts), reads_images_alone=True)


# --- images of one subject, which do not belong into different splits -------------------------------------------------

# p012_slice03.png, video7_frame0010.jpg, scan4-tile-2.png: the subject, and what precedes the number of its image.
_NAMED = re.compile(rf"(?i)(?P<subject>.*[^_\-. ])(?P<mark>[_\-. ]+(?:{name_signs.OF_SUBJECT})[_\-. ]?)\d+\.\w+")
_BARE = re.compile(rf"(?i)(?:{name_signs.OF_SUBJECT})[_\-. ]?\d+\.\w+")  # frame0010.jpg: the folder is the subject
_NUMBER_AFTER = re.compile(r"[_\-. ]*\d+\.\w+")  # TCGA_12/TCGA_12_3.tif, after the name of the folder
_MIN_FOLDERS = 3  # whose images have the name of the folder: two may be classes
_SHARE = 0.9  # share of the images whose names must have one form
_MIN_EACH = 2  # images of a subject, on average
_SPLIT = "split={by: hash, fractions: {train: 0.9, validation: 0.1}, group: subject}"


def line_on_groups(probe: FolderProbe, finding: Finding, config: config_lib.Config) -> Line | None:
    """Returns a line with the options that keep the images of a subject in one split; None if nothing speaks for it.

    It is a doubt if frames, slices or pages show that classes are subjects.

    A config that takes the splits from the input, or reads paths by a pattern of its own, needs no note. Nothing more
    is listed for it.

    Args:
        probe: of the input.
        finding: on a data set in it.
        config: of the finding.
    """
    is_own = config.source.pattern is not None or config.split.group is not None
    if config.source.by != "files" or config.split.by not in ("hash", "none") or is_own:
        return None
    above, rule = f"{finding.input}/" if finding.input else "", config.source.masks.rule
    paths = [folder.below(name) for folder in probe.seen() for name in folder.images]
    paths = [path.removeprefix(above) for path in paths if path.startswith(above)]
    paths = [path for path in paths if rule is None or rule.is_image(path)]
    found = _in_names(paths) or _in_folders(paths) or _in_names_of_folders(paths)
    if not found:
        return None
    number, example, pattern = found
    subjects = plural.count(number, "subject") if probe.is_all_seen else f"{number:,} or more subjects"
    is_class = config.label.by == "directory" and "/" not in posixpath.dirname(example) and pattern == _FOLDER
    options = [f"source.pattern={pattern}", _SPLIT, *(["label={by: none}"] if is_class else [])]
    subject = "a folder (if it is one subject, video or scan, and no class)" if is_class else "a subject"
    text = f"names of images such as {example} state {subjects}; to keep all images of {subject} in one split add "
    return Line(
        text + " ".join(f"--set {plural.shell_word(each)}" for each in options),
        is_doubt=is_class and _BARE.fullmatch(posixpath.basename(example)) is not None,
    )


_FOLDER = r"(?P<subject>.*)/[^/]+"


def _in_names(paths: Sequence[str]) -> tuple[int, str, str] | None:
    """Returns the number of subjects that names of files state, the first path, and the pattern."""
    forms: collections.defaultdict[str, dict[str, str]] = collections.defaultdict(dict)
    counts: collections.Counter[str] = collections.Counter()
    for path in paths:
        if match := _NAMED.fullmatch(posixpath.basename(path)):
            counts[match["mark"]] += 1
            forms[match["mark"]].setdefault(match["subject"], path)
    if not counts:
        return None
    mark, number = counts.most_common(1)[0]
    subjects = forms[mark]
    if number < _SHARE * len(paths) or len(subjects) < 2 or number < _MIN_EACH * len(subjects):
        return None
    # a file of another name is a subject of its own
    return len(subjects), next(iter(subjects.values())), rf"(?:.*/)?(?P<subject>[^/]+?)(?:{re.escape(mark)}\d+)?\.\w+"


def _in_folders(paths: Sequence[str]) -> tuple[int, str, str] | None:
    """Returns the same if files have names of numbers alone, so that each folder is a subject."""
    named = [path for path in paths if _BARE.fullmatch(posixpath.basename(path))]
    folders = {posixpath.dirname(path) for path in named}
    if not named or len(named) < _SHARE * len(paths) or len(folders) < 2 or len(named) < _MIN_EACH * len(folders):
        return None
    return len(folders), named[0], _FOLDER


def _in_names_of_folders(paths: Sequence[str]) -> tuple[int, str, str] | None:
    """Returns the same if files have the name of their folder, which has a number, and a number after it."""
    named = [path for path in paths if _has_name_of_folder(path)]
    folders = {posixpath.dirname(path) for path in named}
    is_rare = len(named) < _SHARE * len(paths) or len(named) < _MIN_EACH * len(folders)
    if len(folders) < _MIN_FOLDERS or is_rare:
        return None
    return len(folders), named[0], _FOLDER


def _has_name_of_folder(path: str) -> bool:
    folder, name = path.split("/")[-2:] if "/" in path else ("", path)
    has_number = any(map(str.isdigit, folder)) and not name_signs.SYNSET.fullmatch(folder)
    return has_number and name.startswith(folder) and _NUMBER_AFTER.fullmatch(name.removeprefix(folder)) is not None
