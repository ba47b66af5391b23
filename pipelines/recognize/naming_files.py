"""Files that name images or have their names, and that a reading leaves out: each kind is a line."""

from __future__ import annotations

import collections
import itertools
import posixpath
import re
from collections.abc import Collection, Iterator, Sequence

from imagebeam import plural
from imagebeam.pipelines.recognize import unread_files
from imagebeam.pipelines.recognize.unread_files import Line, Seen
from imagebeam.transforms.formats import yolo
from imagebeam.transforms.formats.tables import table_heads
from imagebeam.transforms.sources import folder_probe, name_signs
from imagebeam.transforms.sources.folder_probe import Folder, FolderProbe, name_some

OF_FOLDERS = "folders of images"
_XML = re.compile(rb"\A\s*(<\?xml|<annotation)")
_SIDECARS = "the preset sidecars reads texts and JSON of the images' names (docs/recipes/sidecars.md)"
_REMEDY = "what they say of the images goes into a table with a row for each image (docs/recipes/tables.md)"
_SPLITS_IN_TABLE = "write a table with a row for each image and a column of its split (docs/recipes/tables.md)"
_OF_SIDECARS = frozenset({".txt", ".caption", ".json"})
_TABLES = (".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".odgt", ".geojson", ".xml")
_DATA = (*_TABLES, ".txt", ".lst", ".list", ".token", ".dat")
_NAMING = (*_DATA, ".yaml", ".yml", ".toml")  # settings, too, unless they name images
_DATA_OF_FOLDERS = (*_NAMING, ".mat", ".npy", ".label", ".gt", ".pkl", ".pickle")
_FURTHER_DATA = (*_DATA, ".npy", ".h5", ".hdf5", ".pkl", ".pickle", ".db", ".sqlite", ".sqlite3")
_OF_IMAGES = (".xml", ".txt", ".json")  # files of one image each
_BETWEEN_WORDS, _BETWEEN_CELLS = re.compile(r"[\s\"',:;|<>\[\]{}()=]+"), re.compile(r"[\t\n\r\",;|<>]+")
_FIRST_WORD = re.compile(r"[^\W\d_]+")
# Names in a table that no number of another kind equals.
_IDENTIFIES = re.compile(r"(?=.*\d)(?=.*[^\W\d_]).+|\d([_\-.]?\d){4,}")
_LISTING_CHARS = 40  # at the beginning, which name the format of a saved listing
LISTS, _NUM_LISTS = (".txt", ".lst", ".list", ".csv"), 24
_NUM_FILES = 3  # read of each extension in a folder
_BOUNDS_ABOVE = folder_probe.Bounds(folders=4, entries=1_000, heads=9)


def sidecars(seen: Seen) -> Iterator[Line]:
    """Yields a line for each extension of files that have the names of images beside them: `1.txt` beside `1.jpg`."""
    found: dict[str, list[str]] = collections.defaultdict(list)
    first: dict[str, str] = {}
    for folder, others in zip(seen.read, seen.files):
        image_of = {name.partition(".")[0]: name for name in folder.images}  # x.gt.txt may be beside x.bin.png
        image_of |= {posixpath.splitext(name)[0]: name for name in folder.images}
        for name in others.files if image_of else ():
            extension = folder_probe.extension_of(name)
            stem = posixpath.splitext(name)[0]
            image = image_of.get(stem) or image_of.get(stem.partition(".")[0])
            if image is not None and extension and unread_files.kind_of(name) is None:
                found[extension].append(folder.below(name))
                first.setdefault(extension, f"{folder.below(name)} beside {image}")
    num_images = sum(len(folder.images) for folder in seen.read)
    for extension, paths in found.items():
        have = "has" if num_images == 1 else "have"
        text = (
            f"{len(paths):,} of {plural.count(num_images, 'image')} {have} a {extension} file beside them "
            f"({first[extension]}), not read: "
            f"{_SIDECARS if extension in _OF_SIDECARS else _REMEDY}"
        )
        yield Line(text, paths=paths)


def folders_of_equal_names(probe: FolderProbe, seen: Seen) -> Iterator[Line]:
    """Yields a line for folders without images whose files have the names of images, or of folders of them, elsewhere.

    What all names of a folder begin and end with is left out: gt_1.txt may be for img_1.jpg.
    """
    held = [folder for folder in seen.read if folder.images]
    above = dict.fromkeys(posixpath.dirname(folder.path) for folder in held if folder.path)
    names_of = {f"images in {each.path or 'the folder'}": each.stems | {*each.images} for each in held}  # x.jpg.txt
    names_of |= {f"folders in {path or 'the folder'}": _no_splits(probe.look(path).folders) for path in above}
    cores = {f"images in {each.path or 'the folder'}": _cores(each.stems) for each in held}
    found: dict[str, list[tuple[str, Folder]]] = collections.defaultdict(list)
    for folder in seen.files:
        files = [] if probe.look(folder.path).images else [n for n in folder.files if unread_files.kind_of(n) is None]
        stems = {posixpath.splitext(name)[0] for name in files}
        for own, known in ((stems, names_of), (_cores(stems), cores)) if len(stems) > 1 else ():
            if where := next((each for each in known if len(own & known[each]) > len(own) / 2), None):
                found[folder_probe.extension_of(files[0])].append((where, folder))
                break
    for extension, places in found.items():
        where, folder = places[0]
        others = f" and {plural.count(len(places) - 1, 'other folder')}" if len(places) > 1 else ""
        remedy = _SIDECARS if extension in _OF_SIDECARS and where.startswith("images") else _REMEDY
        head = probe.head(folder.below(next(iter(folder.files))))
        if extension == ".txt" and where.startswith("images") and yolo.is_yolo(head):
            images = posixpath.basename(where.removeprefix("images in "))
            remedy = (
                "their lines are boxes of YOLO: the preset yolo may read them with "
                f"source.yolo.image_folder={images} and source.yolo.label_folder={posixpath.basename(folder.path)}"
            )
        if _XML.search(head[:256]) and extension != ".xml":
            remedy = "they are XML: with .xml at the end of their names the preset voc may read them"
        holds = "hold" if others else "holds"
        text = f"{folder.path or 'the folder'}{others} {holds} files with the names of {where}, not read: {remedy}"
        yield Line(text, paths=[each.below(name) for _, each in places for name in each.files])


def _no_splits(names: Collection[str]) -> frozenset[str]:
    return frozenset(name for name in names if folder_probe.split_meant(name) is None)


def _cores(names: Collection[str]) -> set[str]:
    """Returns names without what all of them begin and end with, up to a mark or digit."""
    before = re.sub(r"[^_\-. ]*\Z", "", posixpath.commonprefix([*names]))
    after = re.sub(r"[^_\-. ]*\Z", "", posixpath.commonprefix([name[::-1] for name in names]))
    cores = {name[len(before) : len(name) - len(after)] for name in names}
    return {core for core in cores if _IDENTIFIES.fullmatch(core)} | (cores if before else set())


def repeated_files(probe: FolderProbe, seen: Seen) -> Iterator[Line]:
    """Yields a line for the names of data files that several folders of images have: groundtruth.txt."""
    places: dict[str, list[str]] = collections.defaultdict(list)
    with_images = {path for each in seen.read if each.images for path in (each.path, posixpath.dirname(each.path))}
    for folder in seen.files:
        data = (*folder.ending(*_DATA_OF_FOLDERS), *(name for name in folder.files if "." not in name))
        stems = probe.look(folder.path).stems
        for name in data if folder.path in with_images else ():
            if posixpath.splitext(name)[0] not in stems:
                places[name].append(folder.path)
    by_places: dict[tuple[str, ...], list[str]] = collections.defaultdict(list)
    for name, paths in places.items():
        by_places[tuple(paths)].append(name)
    for (first, *others), names in by_places.items():
        if others:
            shown, number = posixpath.join(first, name_some(names)), plural.count(len(others), "other folder")
            text = f"{shown} and files of the same names in {number} are not read: {_REMEDY}"
            yield Line(text, paths=[posixpath.join(path, name) for path in (first, *others) for name in names])


# --- files that name images -------------------------------------------------------------------------------------------


def files_that_name_images(
    probe: FolderProbe, folders: Sequence[Folder], seen: Seen, is_near: bool = True
) -> Iterator[Line]:
    """Yields a line for the tables, lists, JSON and XML of each folder that name two or more of the images.

    It is a doubt if they may say the splits of images.

    Args:
        probe: of the files.
        folders: that hold them.
        seen: the images.
        is_near: False for files in another folder, where 1.jpg may be any image.
    """
    names, stems = ({each for folder in seen.read for each in part(folder)} for part in (_images_of, _stems_of))
    others = {each for folder in seen.images for part in (_images_of, _stems_of) for each in part(folder)}
    folded = {each.lower() for each in names | stems if _IDENTIFIES.fullmatch(each)}
    starts = {start for stem in stems for start in folder_probe.beginnings(stem) if start}
    every, stems = stems, {stem for stem in stems if _IDENTIFIES.fullmatch(stem)}
    places = {folder.below(name) for folder in seen.read for name in folder.images if folder.path}
    own = {posixpath.basename(folder.path) for folder in seen.read if folder.images and folder.path}
    of_folders = {
        each for each in own | _cores(own) if _IDENTIFIES.fullmatch(each) and not name_signs.SYNSET.fullmatch(each)
    }
    if not is_near:
        names = {name for name in names if posixpath.splitext(name)[0] in stems}
    for folder in folders:
        by_extension: dict[str, list[str]] = collections.defaultdict(list)
        beside = probe.look(folder.path).stems
        for name in folder.ending(*_NAMING):
            if posixpath.splitext(name)[0] not in beside:
                by_extension[folder_probe.extension_of(name)].append(folder.below(name))
        for extension, paths in by_extension.items():
            found: dict[str, set[str]] = {}
            what = "images"
            first = [path for path in paths if not is_no_split(path)]
            for path in dict.fromkeys((*first, *folder_probe.spread(paths, _NUM_FILES))[:_NUM_FILES]):
                text = (probe.head(path) + b"\n" + probe.tail(path)).decode("utf-8", "replace").replace("\\", "/")
                if '"imagebeam-' in text[:_LISTING_CHARS]:
                    continue  # a listing that plan --save-listing wrote
                words = {*_BETWEEN_WORDS.split(text), *_BETWEEN_CELLS.split(text), *text.split('"')}
                bases = {word.rpartition("/")[2].strip() for word in words}
                whole = {word.strip().lstrip("./") for word in words if "/" in word} & places
                of_files = {
                    each for each in bases if each.endswith(_OF_IMAGES) and posixpath.splitext(each)[0] in stems
                }
                in_other_case = {each for each in bases if each.lower() in folded}
                named = bases & names or bases & stems or of_files or in_other_case
                named = max(named, whole, key=len)  # each folder may have a 1.jpg
                if not named and is_near and not is_no_split(path):  # of a list 1 and 2 may be names, too
                    firsts = {line.split()[0].rpartition("/")[2] for line in text.splitlines() if line.strip()}
                    named = firsts if firsts <= every else named
                if not named and len(named := bases & of_folders) > 1:
                    what = OF_FOLDERS
                if not named and not is_no_split(path) and (named := _parts_of(bases, stems)):
                    what = "parts of images"
                if not named and bases & starts and _says_splits(path, probe.head(path)):
                    named, what = bases & starts, "beginnings of images' names"
                if named and len(bases & others) <= len(named):
                    found[path] = named
            if len(set().union(*found.values())) >= min(2, len(names)) and found:
                examples = name_some(sorted(next(iter(found.values()))), 2)
                verb = "names" if len(paths) == 1 else "name"
                shown, are = next(iter(found)), "is" if len(paths) == 1 else "are"
                if len(paths) > 1:
                    shown += f" and {plural.count(len(paths) - 1, f'other {extension} file')}"
                names_splits = what == OF_FOLDERS or not all(map(is_no_split, found))
                names_splits = names_splits or any(_says_splits(path, probe.head(path)) for path in found)
                text = f"{shown} {verb} {what} ({examples}), and {are} not read"
                yield Line(text, paths=paths, names=set().union(*found.values()), names_splits=names_splits)


def _parts_of(words: Collection[str], stems: Collection[str]) -> set[str]:
    """Returns the words that are the name of an image and a mark with more after it, as of its tiles."""
    words = {word for each in words for word in each.split()}
    return {each for each in words if any(start in stems for start in folder_probe.beginnings(each))}


def _says_splits(path: str, head: bytes) -> bool:
    """Returns whether a file is JSON or YAML with a list for each split, or a table with a column of splits."""
    if path.endswith((".json", ".yaml", ".yml")):
        is_json = path.endswith(".json")
        keys = folder_probe.shape_of_json(head) if is_json else _YAML_KEY.findall(head.decode("utf-8", "replace"))
        return len({split for key in keys if (split := name_signs.SPLIT_OF_WORD.get(key.lower()))}) > 1
    lines = head.decode("utf-8-sig", "replace").rpartition("\n")[0].splitlines() or [""]
    names, *rows = ([cell.strip(" \"'") for cell in line.split(",")] for line in lines)
    places = [place for place, name in enumerate(names) if name.lower() in name_signs.SPLIT_COLUMNS]
    values = {row[places[0]] for row in rows if len(row) == len(names)} if path.endswith(".csv") and places else set()
    meant = {*map(folder_probe.split_meant, values)}
    return None not in meant and meant not in (set(), {"train"})  # as all are without it


_YAML_KEY = re.compile(r"(?m)^(\w+):")


def _images_of(folder: Folder) -> Collection[str]:
    return folder.images


def _stems_of(folder: Folder) -> Collection[str]:
    return folder.stems


def is_no_split(path: str) -> bool:
    """Returns whether the name of a file does not say that it lists the images of a split, or the splits of images."""
    stem = posixpath.splitext(posixpath.basename(path))[0]
    is_split = path.endswith(LISTS) and folder_probe.splits_named(stem)
    return not is_split and not name_signs.LISTS_OF_SPLITS.search(path)


def mixed_splits(probe: FolderProbe) -> Iterator[Line]:
    """Yields what contradicts that images are divided into splits by hash: folders that are splits."""
    ways = (folder_probe.split_meant, "look like"), (folder_probe.split_of_short, "may be")
    for folder, (meaning, verb) in itertools.product(probe.seen(), ways):
        splits = {name: meant for name in folder.folders if (meant := meaning(name))}
        if len({*splits.values()}) > 1:
            text = (
                f"{name_some([folder.below(name) for name in splits])} {verb} splits, and all images would be "
                f"divided by hash: convert each of these folders alone, or {_SPLITS_IN_TABLE}"
            )
            yield Line(text, is_doubt=True)
            return


def splits_in_names(seen: Seen) -> Iterator[Line]:
    """Yields a line if nearly all images that are read begin with names of splits, of which there are several."""
    words = [_FIRST_WORD.match(stem) for folder in seen.read for stem in folder.stems]
    found = [word[0].lower() for word in words if word and word[0].lower() in name_signs.SPLIT_OF_WORD]
    if len({*map(name_signs.SPLIT_OF_WORD.get, found)}) > 1 and len(found) >= folder_probe.NEARLY_ALL * len(words):
        names = name_some(sorted({*found}))
        yield Line(
            f"the names of images begin with those of splits ({names}), and all would be divided by hash: "
            f"{_SPLITS_IN_TABLE}",
            is_doubt=True,
        )


def lists_of_folders(probe: FolderProbe, seen: Seen) -> Iterator[Line]:
    """Yields a line if lists name folders with images, each list some of them: as videos are divided into splits."""
    held = {name for folder in seen.read if folder.images and folder.path for name in folder.path.split("/")}
    found: dict[str, set[str]] = {}
    paths = [folder.below(name) for folder in seen.files for name in folder.ending(*LISTS)]
    for path in paths if len(paths) <= _NUM_LISTS else ():  # more are no lists of a whole set
        text = (probe.head(path) + b"\n" + probe.tail(path)).decode("utf-8", "replace")
        bases = {word.rpartition("/")[2] for word in _BETWEEN_WORDS.split(text)}
        named = held & (bases | {posixpath.splitext(base)[0] for base in bases})
        if named and named < held:
            found[path] = named
    if len(found) > 1:
        text = (
            f"{name_some([*found])} name folders of images, each some of them, and are not read: if they are splits, "
            f"{_SPLITS_IN_TABLE}"
        )
        yield Line(text, is_doubt=True, paths=found)


def lists_of_splits(seen: Seen) -> Iterator[Line]:
    """Yields a line if lists are those of several splits by their names, where no other line says what they name."""
    paths = [folder.below(name) for folder in seen.files for name in folder.ending(*LISTS)]
    stems = {path: posixpath.splitext(posixpath.basename(path))[0] for path in paths}
    meant = {path: split for path, stem in stems.items() if (split := folder_probe.split_meant(stem))}
    if len({*meant.values()}) > 1:
        text = f"{name_some([*meant])} are lists of splits by their names, and name the images in another way"
        yield Line(f"{text}: {_SPLITS_IN_TABLE}", is_doubt=True, paths=[*meant])


def further_data(probe: FolderProbe, seen: Seen, named: Collection[str]) -> Iterator[Line]:
    """Yields a line for each kind of data that no other line names, unless it says no more than the names of classes.

    What names neither images nor their folders may still be on them: by the number of a patient, or of a video.
    """
    classes = {posixpath.basename(folder.path) for folder in seen.read if folder.images}
    if not classes:
        return
    found: dict[str, list[str]] = collections.defaultdict(list)
    for folder in seen.files:
        for path in map(folder.below, folder.ending(*_FURTHER_DATA)):
            if path not in named and _says_more(path, probe.head(path).decode("utf-8", "replace"), classes):
                found[folder_probe.extension_of(path)].append(path)
    for extension, (path, *others) in found.items():
        more = f" and {plural.count(len(others), f'other {extension} file')}" if others else ""
        are = "are" if others else "is"
        text = f"{path}{more} may say what the images show, and {are} not read: {_REMEDY}"
        yield Line(text, paths=[path, *others])


def _says_more(path: str, text: str, classes: Collection[str]) -> bool:
    """Returns whether a file has rows, and does not just list most of the classes."""
    rows = [_BETWEEN_WORDS.split(line.strip()) for line in text.splitlines() if line.strip()]
    listed = {word for row in rows for word in row} & {each for each in classes if not each.isdecimal()}
    is_prose = path.endswith(".txt") and sum(any(map(str.isdecimal, row)) for row in rows) * 2 < len(rows)
    return bool(rows) and len(listed) * 2 < len(classes) and not is_prose


def files_above(probe: FolderProbe, seen: Seen) -> Iterator[Line]:
    """Yields such lines for the files beside the folder itself, and in folders of annotations beside it."""
    parent = table_heads.parent_of(probe.root)
    if not parent:
        return
    above = FolderProbe(parent, _BOUNDS_ABOVE)
    root = above.look()
    named = [
        name for name in root.folders if name_signs.ANNOTATIONS.search(name) and name != posixpath.basename(probe.root)
    ]
    folders = [root, *map(above.look, named)]
    for each in files_that_name_images(above, folders, seen, is_near=False):
        yield each._replace(text=f"../{each.text}")
