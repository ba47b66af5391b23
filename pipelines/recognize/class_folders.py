"""What speaks against folders of images as classes: their names, the names of images in them, and what is below."""

from __future__ import annotations

import collections
import itertools
import posixpath
import re
from collections.abc import Collection, Iterator, Sequence

from imagebeam.pipelines.recognize import contradictions
from imagebeam.transforms.sources import folder_probe, name_signs
from imagebeam.transforms.sources.folder_probe import Folder, FolderProbe, and_list, name_some

# A name with a number at its end; the same words before it may be the classes.
NUMBERED = re.compile(r"(?P<label>.*?[^\d_\-. ])(?P<between>[_\-. ]*)(?P<open>\(?)\d+(?P<close>\)?)\.\w+")

_OF_IMAGE = "set source.pattern='(?:.*/)?(?P<label>[^/]+)/[^/]+' and label={by: column, column: label}"
_DEEPER = f"and the first folder is the class; for the folder of the image as the class {_OF_IMAGE}"
_NOT_TRAINED = ("validation", "test")  # bullet_train may be a class
_COPY = re.compile(r"(?i)^copy of |[ _-]+\(?(copy|old|bak|backup)\)?( ?\(?\d+\)?)?$| ?\(\d+\)$")
_BEGINNING = re.compile(r"[0-9a-f]{1,4}")
NUM_CLASSES = 20  # folders of which each is looked into
_NUM_INNER = 4  # folders of one that are looked into
_ID_LENGTH = 8  # characters, at least
_LETTER, _DIGIT = re.compile("(?i)[a-z]"), re.compile(r"\d")
_ROLE_ENDING = re.compile("(.+)[_ -](.+)")
_AUGMENTED = re.compile("(?i)aug")  # one image for each, or several


def doubts_on_classes(probe: FolderProbe, holders: Sequence[Folder], own: str = "*/*") -> tuple[str, ...]:
    """Returns why the folders in one folder, or in those of the splits, may be no classes.

    Args:
        probe: of the data set.
        holders: of these folders.
        own: glob of the images directly in them.
    """
    first = holders[0]
    return tuple(
        dict.fromkeys(
            itertools.chain(
                _parts_of_sets(probe, holders),
                _images_above_others(probe, first, own),
                _names_of_others(first.folders),
                _names_of_images(probe, holders),
                _deeper_classes(probe, first),
                _equal_folders(probe, holders),
                _ids(first.folders),
            )
        )
    )


def notes_on_classes(probe: FolderProbe, holder: Folder, doubts: Sequence[str]) -> list[str]:
    """Returns notes if images are deeper, or have the same numbers or several words, unless a doubt says so already."""
    looked = [*probe.some(holder, holder.folders)]
    inner = sorted({name for each in looked for name in each.folders})
    notes = [f"the images are in further folders ({name_some(inner)}), {_DEEPER}"] if _are_deeper(looked) else []
    note, words = contradictions.numbered_alike(probe, holder), _words_in_each(probe, holder)[0]
    if note and not any(contradictions.SAME_NAMES in each for each in doubts):
        notes.append(note)
    notes += _numbered_parts(holder.folders)
    return [*notes, words] if words and words not in doubts else notes


_NUMBER_AT_END = re.compile(r"(?P<name>.*[^\W\d_].*?)[ _(-]*\d+\)?")


def _numbered_parts(names: Sequence[str]) -> Iterator[str]:
    """Yields a note if some folders, and not all, differ in a number at their ends alone: normal 1, normal 2, fire."""
    groups: dict[str, list[str]] = {}
    for name in names:
        match = _NUMBER_AT_END.fullmatch(name)
        groups.setdefault(match["name"] if match else name, []).append(name)
    several = [each for each in groups.values() if len(each) > 1]
    if several and len(groups) > 1:
        yield f"{name_some(several[0])} differ in a number alone, and each is a class of its own"


def hold_images(probe: FolderProbe, folder: Folder) -> bool:
    """Returns whether most of the folders in a folder hold images, judged by a few of them: one may be empty."""
    held = [probe.with_images(each.path) is not None for each in probe.some(folder, folder.folders)]
    return sum(held) * 2 > len(held)


def may_hold_images(probe: FolderProbe, holder: Folder, name: str, depth: int = 2) -> bool:
    """Returns whether images were seen in a folder, or it has folders deeper than is looked into."""
    folder = probe.look(holder.below(name))
    below = folder.folders[:_NUM_INNER]
    return bool(folder.images) or any(not depth or may_hold_images(probe, folder, each, depth - 1) for each in below)


# --- names of the folders --------------------------------------------------------------------------------------------


def _parts_of_sets(probe: FolderProbe, holders: Sequence[Folder]) -> Iterator[str]:
    """Yields doubts on folders that are parts of a data set, and on those that are in one split alone."""
    if masks := [each.path for each in holders if name_signs.BELOW_MASKS.search(each.path)]:
        yield f"{and_list(masks)} may hold masks of images, by the name"
    trained = {
        name for each in holders if folder_probe.split_meant(each.path) in ("train", None) for name in each.folders
    }
    for each in holders:
        if each.is_whole and (new := [name for name in each.folders if name not in trained]):
            yield f"{each.path} has folders that train does not have ({name_some(new)}): no classes, or no split"
        parts = [name for name in each.folders if name_signs.is_part(name) and may_hold_images(probe, each, name)]
        are_many = len(each.folders) > NUM_CLASSES
        names = [name for name in each.folders if are_many or may_hold_images(probe, each, name)]
        if parts or (names and name_signs.are_parts(names)):
            yield f"{name_some(parts or names)}: names of parts of a data set, not of classes"


def _images_above_others(probe: FolderProbe, holder: Folder, own: str) -> Iterator[str]:
    """Yields a doubt on the first folder with images above others, or with folders for the parts of a data set."""
    for each in probe.some(holder, holder.folders):
        inner = [name for name in each.folders if probe.with_images(each.below(name))]
        if each.images and inner:
            yield (
                f"{each.path} holds images, and its folders do, too ({name_some(inner)}): are all of one class? "
                f"source.include='{own}' leaves the latter out"
            )
            return
        inner = inner if each.images else [*each.folders, *sorted(_folders_below(probe, each))]
        if parts := [name for name in inner if name_signs.is_part(name)]:
            yield f"{each.path} has folders for the parts of a data set ({name_some(parts)})"
            return


def _names_of_others(names: Sequence[str]) -> Iterator[str]:
    """Yields doubts on folders of splits, and on those that belong to another one by their names."""
    splits = [n for n in names if n.lower() in name_signs.SPLIT_OF_WORD]
    splits += [n for n in names if n not in splits and folder_probe.split_meant(n) and _holds_other(n, names)]
    tests = [name for name in names if folder_probe.split_meant(name) in _NOT_TRAINED]
    if splits:
        yield f"{name_some([name for name in names if name in splits])}: names of a split, not of classes"
    elif 0 < len(tests) < len(names):
        yield f"{name_some(tests)}: name of a split, not of a class?"
    of_others = [name for name in names if (end := _ROLE_ENDING.fullmatch(name)) and end[1] in names]
    roles = [name for name in of_others if name_signs.is_role(_ROLE_ENDING.sub(r"\2", name))]  # chair_depth
    if masks := [name for name in names if (end := name_signs.MASK_ENDING.fullmatch(name)) and end["name"] in names]:
        yield f"{name_some(masks)}: masks of the images in the folder of the rest of the name, by the name"
    elif roles and 2 * len(roles) == len(names):
        yield f"{name_some(roles)}: parts of the examples in the folder of the rest of the name, by the name"
    if copies := [name for name in names if (of := _COPY.sub("", name)) != name and of in names]:
        yield f"{name_some(copies)}: a copy of another class, by the name"


def _holds_other(name: str, names: Sequence[str]) -> bool:
    return any(other in name for other in names if other != name)


def _ids(names: Sequence[str]) -> Iterator[str]:
    """Yields a doubt on names of one length that mix letters and digits after their beginning: barcodes, hashes."""
    if len(names) < 3 or len({*map(len, names)}) > 1 or len(names[0]) < _ID_LENGTH:
        return
    rests = [name.removeprefix(posixpath.commonprefix([*names])) for name in names]
    are_synsets = all(map(name_signs.SYNSET.fullmatch, names))
    if 2 * sum(bool(_LETTER.search(rest) and _DIGIT.search(rest)) for rest in rests) >= len(names) and not are_synsets:
        yield f"{name_some(names)} may be ids of slides, videos or subjects, and no classes, by the names"


# --- names of the images in them -------------------------------------------------------------------------------------


def _names_of_images(probe: FolderProbe, holders: Sequence[Folder]) -> Iterator[str]:
    """Yields a doubt if names of images divide them into the folders, or say other classes in the same way in each."""
    divided = (_folders_of_names(probe, each) for each in holders)
    words = (text for text, are_same in (_words_in_each(probe, each) for each in holders) if are_same)
    yield from itertools.islice(filter(None, itertools.chain(divided, words)), 1)


def _folders_of_names(probe: FolderProbe, holder: Folder) -> str:
    """Returns in words that folders divide images by their names: a1/a1f3.jpg, or 01000/01000.png and what follows."""
    looked = [each for each in probe.some(holder, holder.folders) if each.images]
    names = [posixpath.basename(each.path) for each in looked]
    if len(looked) < 2 or len({*map(len, names)}) > 1:
        return ""
    are_numbers = all(map(str.isdecimal, (*names, *(stem for each in looked for stem in each.stems))))
    is_run = are_numbers and all(min(map(int, each.stems)) == int(name) for each, name in zip(looked, names))
    is_beginning = all(map(_BEGINNING.fullmatch, names)) and all(
        stem.startswith(name) and stem[len(name) :].isalnum()
        for each, name in zip(looked, names)
        for stem in each.stems
    )
    if not is_run and not is_beginning:
        return ""
    return f"images in {name_some(names)} begin with the name of their folder: the names divide them, and no classes?"


def _words_in_each(probe: FolderProbe, holder: Folder) -> tuple[str, bool]:
    """Returns in words that several words begin the names of images in a folder, and whether they do in two folders.

    As in clean/a (1).jpg, clean/b (1).jpg, noisy/a (1).jpg, noisy/b (1).jpg.
    """
    found: dict[str, frozenset[str]] = {}
    for each in probe.some(holder, holder.folders):
        words = collections.Counter(m["label"] if (m := NUMBERED.fullmatch(name)) else "" for name in each.images)
        is_none = "" in words or any(map(name_signs.COUNTED.search, words)) or name_signs.are_parts(words)
        if len(words) > 1 and min(words.values()) > 1 and not is_none:
            found[posixpath.basename(each.path)] = frozenset(words)
    if not found:
        return "", False
    words_of_all = sorted(frozenset().union(*found.values()))
    text = (
        f"the names of images in {name_some([*found])} begin with several words ({name_some(words_of_all)}): if these "
        "are the classes set source.pattern='(?:.*/)?(?P<label>[^/]*?[^/0-9_. ])[_. ]*[(]?[0-9]+[)]?[.].*' and "
        "label={by: column, column: label}"
    )
    return text, len({*found.values()}) < len(found)


# --- what is below them ----------------------------------------------------------------------------------------------


def _deeper_classes(probe: FolderProbe, holder: Folder) -> Iterator[str]:
    """Yields a doubt if there is one folder alone, or if the folders in the folders may be the classes."""
    names = holder.folders
    looked = [*probe.some(holder, names)]
    if len(names) == 1:
        yield f"{names[0]} would be the only class"
    elif deeper := _without_images(probe, [*probe.some(holder, names, NUM_CLASSES)]):
        yield (
            f"{deeper.path} holds no images, but the folders {name_some(deeper.folders)}: are these classes? The "
            f"images are in further folders, {_DEEPER}"
        )
    elif _are_deeper(looked):
        below = [{*each.folders} for each in looked]
        are_named = all(map(_are_named, below)) and not set.intersection(*below)
        is_wrapped = all(len(inner) == 1 for inner in below)  # tiles/tiles/tumor/x.tif
        if all(len(name) == 1 for name in names) or is_wrapped or (are_named and min(map(len, below)) > 1):
            yield (
                f"the classes may be {name_some(names)}, or the folders in them: the images are in further folders, "
                f"{_DEEPER}"
            )


def _are_named(names: Collection[str]) -> bool:
    """Returns whether folders have names of different words, apart from those with digits: 100x normal, 100x cancer."""
    words = {" ".join(word for word in _WORDS.split(name) if not any(map(str.isdigit, word))) for name in names}
    return len(words) == len(names) and not any(not each or name_signs.COUNTED.search(each) for each in words)


_WORDS = re.compile(r"[\s_-]+")


def _are_deeper(folders: Sequence[Folder]) -> bool:
    return not any(each.images for each in folders)


def _without_images(probe: FolderProbe, folders: Sequence[Folder]) -> Folder | None:
    """Returns the first folder that holds several folders of images, where the others hold images: Defect/dent."""
    for each in [] if _are_deeper(folders) else folders:
        while not each.images and len(each.folders) == 1:  # scans/scans/benign
            each = probe.look(each.below(each.folders[0]))
        if not each.images and each.folders:
            return each
    return None


def _equal_folders(probe: FolderProbe, holders: Sequence[Folder]) -> Iterator[str]:
    """Yields doubts on folders that hold folders, or images, of the same names."""
    yield from itertools.islice(filter(None, (_repeated_folders(probe, each) for each in holders)), 1)
    first = holders[0]
    outer = [each for each in probe.some(first, first.folders) if not each.images and len(each.folders) > 1]
    aligned = (contradictions.aligned(probe, each) for each in (*holders, *outer[:1]))
    yield from itertools.islice(filter(None, aligned), 1)


def _repeated_folders(probe: FolderProbe, holder: Folder) -> str:
    """Returns in words that the folders in a folder hold folders of the same names, which may be the classes."""
    looked = list(probe.some(holder, holder.folders))
    of_one = [
        name
        for each in looked
        if (own := posixpath.basename(each.path)) and len(each.folders) > 1 and not each.images
        for name in each.folders
        if name.startswith(own)
    ]
    if len(of_one) > 1 and len(of_one) == sum(len(each.folders) for each in looked):  # IMD002/IMD002_lesion
        return f"{name_some(of_one)} begin with the name of the folder above: parts of an example, not of a class"
    without = [each for each in looked if not each.images]
    inner = [{*each.folders, *_folders_below(probe, each)} for each in without]
    if len(inner) < max(2, len(looked)) or len(names := sorted({*inner[0]}.intersection(*inner[1:]))) < 2:
        return ""
    if name_signs.are_parts(names) and {*names} <= {*looked[0].folders}:
        first, *others = (probe.look(looked[0].below(name)) for name in names)
        if first.images and all(each.stems == first.stems for each in others):
            where = f"{name_some(names)} in {looked[0].path}"
            return f"{where} hold images of the same names: parts of an example, not of a class"
        if not name_signs.are_places(names):
            return _as_many_images(probe, without, names)
    where = name_some([posixpath.basename(each.path) for each in looked])
    return f"{where} all hold the folders {name_some(names)}: for these as the classes {_OF_IMAGE}"


def _as_many_images(probe: FolderProbe, folders: Sequence[Folder], names: Sequence[str]) -> str:
    """Returns in words that each folder has as many images in the one as in the other of these: left, right."""
    held = [[probe.look(folder.below(name)) for name in names] for folder in folders]
    if any(len({len(each.images) for each in parts}) > 1 for parts in held) or any(map(_AUGMENTED.match, names)):
        return ""
    where = f"{name_some(names)} in {folders[0].path}"
    return f"{where} hold as many images each: parts of an example, not of a class (docs/recipes/pairs.md)?"


def _folders_below(probe: FolderProbe, folder: Folder) -> set[str]:
    """Returns the names of the folders two levels below, if a few of those one level below hold no images."""
    below = [*probe.some(folder, folder.folders)]
    return set() if any(each.images for each in below) else {name for each in below for name in each.folders}
