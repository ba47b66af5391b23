"""Finds what contradicts that the images and their folders are all there is: files that name or describe the images."""

from __future__ import annotations

import collections
import io
import itertools
import posixpath
import re
from collections.abc import Collection, Iterator, Sequence

from imagebeam import errors, plural
from imagebeam.pipelines.recognize import unread_files
from imagebeam.transforms.formats import coco
from imagebeam.transforms.formats.base_format import format_of
from imagebeam.transforms.formats.tables import table_heads
from imagebeam.transforms.sources import folder_probe
from imagebeam.transforms.sources.folder_probe import Finding, Folder, FolderProbe, name_some

_XML = re.compile(rb"\A\s*(<\?xml|<annotation)")
OF_FOLDERS = "folders of images"  # what a file names, in the text on it
_SIDECARS = "the preset sidecars reads texts and JSON of the images' names (docs/recipes/sidecars.md)"
_REMEDY = "what they say of the images goes into a table with a row for each image (docs/recipes/tables.md)"
_MAPS = (".pfm", ".flo", ".exr")
_OF_SIDECARS = frozenset({".txt", ".caption", ".json"})
_DATA = (".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".odgt", ".geojson", ".xml", ".txt", ".lst", ".list", ".token")
_DATA_OF_FOLDERS = (*_DATA, ".mat", ".npy", ".yml", ".yaml", ".label", ".gt", ".pkl", ".pickle")
_ANNOTATIONS = re.compile(r"(?i).*(annot|label|meta|list|split|csv|xml|json|bbox|box|gt|truth|caption|imagesets).*")
_BETWEEN_WORDS, _BETWEEN_CELLS = re.compile(r"[\s\"',;|<>\[\]{}()=]+"), re.compile(r"[\t\n\r\",;|<>]+")
_IDENTIFIES = re.compile(r"(?=.*\d)(?=.*[^\W\d_]).+|\d{5,}")  # names in a table that no number of another kind equals
_ON_THE_SET = re.compile(r"(?i)read_?me|licen[cs]e|copying|authors|attribution|notice")
_NUMBERS = re.compile(r"(\d+)")
_SYNSET = re.compile(r"n\d{8}")  # names a class of ImageNet wherever it is found
_ENDING = re.compile(r"[_\-. ][^_\-. \d]+\Z")
_NUMBER = re.compile(r"[_\-. ][^_\-. ]*\Z")
_LISTING_CHARS = 40  # at the beginning, which name the format of a saved listing
_DEPTH = 4
_LISTS, _NUM_LISTS = (".txt", ".lst", ".list", ".csv"), 24
_NUM_FILES = 3  # read of each extension in a folder
_NUM_FOLDERS = 6  # folders of images that are compared
_BOUNDS_ABOVE = folder_probe.Bounds(folders=4, entries=1_000, heads=9)


def find(probe: FolderProbe) -> list[str]:
    """Returns what contradicts a finding that reads images alone, each in words."""
    _walk(probe, [""])
    return [
        *_sidecars(probe),
        *_folders_of_equal_names(probe),
        *_repeated_files(probe),
        *_files_that_name_images(probe, probe.seen()),
        *lists_of_folders(probe),
        *_files_above(probe),
        *_workbooks(probe),
    ]


def beside(probe: FolderProbe) -> list[str]:
    """Returns a line for the files of images that a table of all images leaves out."""
    _walk(probe, [""])
    return [*_sidecars(probe), *_folders_of_equal_names(probe)]


def _workbooks(probe: FolderProbe) -> Iterator[str]:
    """Yields a line for each kind of files that may say what the images show, or their pixels."""
    maps = [folder.below(name) for folder in probe.seen() for name in folder.ending(*_MAPS)]
    if maps:
        yield (
            f"{plural.count(len(maps), 'file')} with numbers of pixels ({name_some(maps)}), such as depth or flow, not "
            "read: save them as TIFFs of float32, and each is read as an image, or beside one (docs/recipes/bands.md)"
        )
    for kind, suffixes in (("spreadsheet", (".xlsx", ".xls", ".ods")), (".mat file", (".mat",))):
        names = [folder.below(name) for folder in probe.seen() for name in folder.ending(*suffixes)]
        if len(names) == 1:
            yield f"{names[0]} is not read: if it says what the images show, save it as CSV"
        elif names:
            shown = f"{plural.count(len(names), kind)} ({name_some(names)})"
            yield f"{shown} are not read: if they say what the images show, save them as CSV"


def _walk(probe: FolderProbe, level: Sequence[str]) -> None:
    """Lists all folders whose names speak of annotations, and some of the others, down to four levels."""
    for _ in range(_DEPTH):
        below: list[str] = []
        for folder in map(probe.look, level):
            named = [name for name in folder.folders if _ANNOTATIONS.fullmatch(name)]
            below += map(
                folder.below, dict.fromkeys([*named, *folder_probe.spread(folder.folders, _NUM_FOLDERS)[:_NUM_FOLDERS]])
            )
        level = below


def _sidecars(probe: FolderProbe) -> Iterator[str]:
    """Yields a line for each extension of files that have the names of images beside them: `1.txt` beside `1.jpg`."""
    numbers: collections.Counter[str] = collections.Counter()
    first: dict[str, str] = {}
    for folder in probe.seen():
        image_of = {name.partition(".")[0]: name for name in folder.images}  # x.gt.txt may be beside x.bin.png
        image_of |= {posixpath.splitext(name)[0]: name for name in folder.images}
        for name in folder.files if image_of else ():
            extension = folder_probe.extension_of(name)
            stem = posixpath.splitext(name)[0]
            image = image_of.get(stem) or image_of.get(stem.partition(".")[0])
            is_other = name not in folder.images and unread_files.kind_of(name) is None
            if image is not None and extension and is_other:
                numbers[extension] += 1
                first.setdefault(extension, f"{folder.below(name)} beside {image}")
    num_images = sum(len(folder.images) for folder in probe.seen())
    for extension, number in numbers.items():
        yield (
            f"{number:,} of {plural.count(num_images, 'image')} {'has' if num_images == 1 else 'have'} a {extension} "
            f"file beside them ({first[extension]}), not read: "
            f"{_SIDECARS if extension in _OF_SIDECARS else _REMEDY}"
        )


def _folders_of_equal_names(probe: FolderProbe) -> Iterator[str]:
    """Yields a line for folders without images whose files have the names of images, or of folders of them, elsewhere.

    What all names of a folder begin and end with is left out: gt_1.txt may be for img_1.jpg.
    """
    held = [folder for folder in probe.seen() if folder.images]
    above = dict.fromkeys(posixpath.dirname(folder.path) for folder in held if folder.path)
    names_of = {f"images in {each.path or 'the folder'}": each.stems | {*each.images} for each in held}  # x.jpg.txt
    names_of |= {f"folders in {path or 'the folder'}": _no_splits(probe.look(path).folders) for path in above}
    cores = {f"images in {each.path or 'the folder'}": _cores(each.stems) for each in held}
    found: dict[str, list[tuple[str, Folder]]] = collections.defaultdict(list)
    for folder in probe.seen():
        files = [] if folder.images else [name for name in folder.files if unread_files.kind_of(name) is None]
        stems = {posixpath.splitext(name)[0] for name in files}
        for own, known in ((stems, names_of), (_cores(stems), cores)) if len(stems) > 1 else ():
            if where := next((each for each in known if len(own & known[each]) > len(own) / 2), None):
                found[folder_probe.extension_of(files[0])].append((where, folder))
                break
    for extension, places in found.items():
        where, folder = places[0]
        others = f" and {plural.count(len(places) - 1, 'other folder')}" if len(places) > 1 else ""
        remedy = _SIDECARS if extension in _OF_SIDECARS and where.startswith("images") else _REMEDY
        if _XML.search(probe.head(folder.below(next(iter(folder.files))), 256)) and extension != ".xml":
            remedy = "they are XML: with .xml at the end of their names the preset voc may read them"
        holds = "hold" if others else "holds"
        yield f"{folder.path or 'the folder'}{others} {holds} files with the names of {where}, not read: {remedy}"


def _no_splits(names: Collection[str]) -> frozenset[str]:
    return frozenset(name for name in names if folder_probe.split_meant(name) is None)


def _cores(names: Collection[str]) -> set[str]:
    """Returns names without what all of them begin and end with, up to a mark or digit."""
    before = re.sub(r"[^_\-. ]*\Z", "", posixpath.commonprefix([*names]))
    after = re.sub(r"[^_\-. ]*\Z", "", posixpath.commonprefix([name[::-1] for name in names]))
    cores = {name[len(before) : len(name) - len(after)] for name in names}
    return {core for core in cores if _IDENTIFIES.fullmatch(core)} | (cores if before else set())


def _repeated_files(probe: FolderProbe) -> Iterator[str]:
    """Yields a line for the names of data files that several folders of images have: groundtruth.txt."""
    places: dict[str, list[str]] = collections.defaultdict(list)
    with_images = {path for each in probe.seen() if each.images for path in (each.path, posixpath.dirname(each.path))}
    for folder in probe.seen():
        data = (*folder.ending(*_DATA_OF_FOLDERS), *(name for name in folder.files if "." not in name))
        for name in data if folder.path in with_images else ():
            if posixpath.splitext(name)[0] not in folder.stems and not _ON_THE_SET.match(name):
                places[name].append(folder.path)
    by_places: dict[tuple[str, ...], list[str]] = collections.defaultdict(list)
    for name, paths in places.items():
        by_places[tuple(paths)].append(name)
    for (first, *others), names in by_places.items():
        if others:
            shown, number = posixpath.join(first, name_some(names)), plural.count(len(others), "other folder")
            yield f"{shown} and files of the same names in {number} are not read: {_REMEDY}"


def notes_on_tables(probe: FolderProbe) -> list[str]:
    """Returns a line for the tables, lists, JSON and XML of each folder that name two or more images."""
    return [*_files_that_name_images(probe, probe.seen())]


def unread_lists(probe: FolderProbe, preset: str) -> Iterator[str]:
    """Yields a line for lists whose names are those of splits, which a preset of boxes reads if an option names them.

    Not those of VOC in `ImageSets/Main`, nor those that a YAML file in the folder names: they are read.
    """
    root = probe.look()
    data = b"".join(probe.head(root.below(name)) for name in root.ending(".yaml", ".yml")[:3])
    stems = {stem for folder in probe.seen() for stem in folder.stems}
    lists: dict[str, str] = {}
    for folder in map(probe.look, ["", *map(root.below, root.folders[:_NUM_FOLDERS])]):
        for name in folder.ending(*_LISTS):
            meant = "train" if name.startswith("trainval.") else folder_probe.split_meant(name)
            if meant and name.encode() not in data and posixpath.splitext(name)[0] not in folder.stems:
                text = probe.head(folder.below(name)).decode("utf-8", "replace")
                bases = _bases_in(text)
                if stems & {*bases, *(posixpath.splitext(each)[0] for each in bases)}:
                    lists.setdefault(meant, folder.below(name))
    if lists:
        given = ", ".join(f"{split}: {path}" for split, path in lists.items())
        yield (
            f"lists that name images are not read: for their splits set source.{preset}.images={{{given}}}, after each "
            "line was made one path of an image without further columns, as it is below the folder"
        )


def _files_that_name_images(
    probe: FolderProbe, folders: Sequence[Folder], images: Collection[Folder] = ()
) -> Iterator[str]:
    """Yields a line for the tables, lists, JSON and XML of each folder that name two or more images."""
    held = images or probe.seen()
    names = {name for folder in held for name in folder.images}
    stems = {stem for folder in held for stem in folder.stems if _IDENTIFIES.fullmatch(stem)}
    places = {folder.below(name) for folder in probe.seen() for name in folder.images if folder.path}
    own = {posixpath.basename(folder.path) for folder in held if folder.images and folder.path}
    of_folders = {each for each in own | _cores(own) if _IDENTIFIES.fullmatch(each) and not _SYNSET.fullmatch(each)}
    if images:  # in another folder, where 1.jpg may be any image
        names = {name for name in names if posixpath.splitext(name)[0] in stems}
    for folder in folders:
        by_extension: dict[str, list[str]] = collections.defaultdict(list)
        for name in folder.ending(*_DATA):
            if posixpath.splitext(name)[0] not in folder.stems and "readme" not in name.lower():
                by_extension[folder_probe.extension_of(name)].append(folder.below(name))
        for extension, paths in by_extension.items():
            found: dict[str, set[str]] = {}
            what = "images"
            for path in folder_probe.spread(paths, _NUM_FILES)[:_NUM_FILES]:
                text = (probe.head(path) + b"\n" + probe.tail(path)).decode("utf-8", "replace").replace("\\", "/")
                if '"imagebeam-' in text[:_LISTING_CHARS]:
                    continue  # a listing that plan --save-listing wrote
                words = {*_BETWEEN_WORDS.split(text), *_BETWEEN_CELLS.split(text), *text.split('"')}
                bases = {word.rpartition("/")[2].strip() for word in words}
                whole = {word.strip().lstrip("./") for word in words if "/" in word} & places
                named = max(bases & names or bases & stems, whole, key=len)  # each folder may have an image 1.jpg
                if not named and len(named := bases & of_folders) > 1:
                    what = OF_FOLDERS
                if named:
                    found[path] = named
            if len(set().union(*found.values())) >= min(2, len(names)) and found:
                examples = name_some(sorted(next(iter(found.values()))), 2)
                if len(paths) == 1:
                    yield f"{paths[0]} names {what} ({examples}), and is not read"
                else:
                    others = plural.count(len(paths) - 1, f"other {extension} file")
                    yield f"{next(iter(found))} and {others} name {what} ({examples}), and are not read"


def mixed_splits(probe: FolderProbe) -> Iterator[str]:
    """Yields what contradicts that images are divided into splits by hash: folders or lists that are splits."""
    for folder in probe.seen():
        splits = {name: meant for name in folder.folders if (meant := folder_probe.split_meant(name))}
        if len({*splits.values()}) > 1:
            yield (
                f"{name_some([folder.below(name) for name in splits])} look like splits, and all images would be "
                "divided by hash: convert each of these folders alone, or write a table with a row for each image and "
                "a column of its split (docs/recipes/tables.md)"
            )
            return
    yield from lists_of_folders(probe)


def lists_of_folders(probe: FolderProbe) -> Iterator[str]:
    """Yields a line if lists name folders of images, each list some of them: as videos are divided into splits."""
    held = {posixpath.basename(folder.path) for folder in probe.seen() if folder.images and folder.path}
    found: dict[str, set[str]] = {}
    paths = [folder.below(name) for folder in probe.seen() for name in folder.ending(*_LISTS)]
    for path in paths if len(paths) <= _NUM_LISTS else ():  # more are no lists of a whole set
        bases = _bases_in((probe.head(path) + b"\n" + probe.tail(path)).decode("utf-8", "replace"))
        named = held & (bases | {posixpath.splitext(base)[0] for base in bases})
        if named and named < held:
            found[path] = named
    if len(found) > 1:
        yield (
            f"{name_some([*found])} name folders of images, each some of them, and are not read: if they are splits, "
            "write a table with a row for each image and a column of its split (docs/recipes/tables.md)"
        )


def _bases_in(text: str) -> set[str]:
    """Returns the base names of the paths in a list."""
    return {word.rpartition("/")[2] for word in _BETWEEN_WORDS.split(text)}


def _files_above(probe: FolderProbe) -> Iterator[str]:
    """Yields such lines for the files beside the folder itself, and in folders of annotations beside it."""
    parent = table_heads.parent_of(probe.root)
    if not parent:
        return
    above = FolderProbe(parent, _BOUNDS_ABOVE)
    root = above.look()
    named = [name for name in root.folders if _ANNOTATIONS.fullmatch(name) and name != posixpath.basename(probe.root)]
    folders = [root, *map(above.look, named)]
    yield from (f"../{each}" for each in _files_that_name_images(above, folders, probe.seen()))


def aligned(probe: FolderProbe, holder: Folder) -> str:
    """Returns in words that folders hold images of the same names, as pairs do and classes do not; "" if not.

    Numbers without gaps are no such names, as classes have them, too: there the sizes of a few images must differ
    from each other, and be the same or in the same proportion in all folders.
    """
    looked = [probe.with_images(each.path) for each in probe.some(holder, holder.folders, _NUM_FOLDERS)]
    if parts := next(filter(None, (_beside_of_other_format(each) for each in looked if each is not None)), None):
        return f"{parts[0]} has the name of {parts[1]} beside it, and more: they may be parts of one example"
    held = [each for each in probe.some(holder, holder.folders, _NUM_FOLDERS) if each.images and each.is_whole]
    if not held or len(held[0].stems) < 2:
        return ""
    if len(held) > 1 and (files := _files_of_an_example(held)):
        return (
            f"each folder holds images that end in {name_some(files)} after a beginning of its own: if it is one "
            "example, write a table with a row for each (docs/recipes/tables.md, Several images in one example)"
        )
    if longer := _longer_names(held):
        return (
            f"each image in {longer[1].path} has the name of one in {longer[0].path}, and more: they may be pairs, no "
            "classes"
        )
    if endings := paired_endings(held[0].stems):
        return (
            f"each image in {held[0].path} has one of the endings {name_some(endings)}: they may be pairs, no classes"
        )
    if len(held) < 2:
        return ""
    common = held[0].stems.intersection(*(each.stems for each in held[1:]))
    if len(common) < folder_probe.NEARLY_ALL * max(len(each.stems) for each in held):
        return ""
    if _is_counter(common) and not _have_sizes_in_proportion(probe, held, sorted(common)):
        return ""
    names = name_some([posixpath.basename(each.path) for each in held])
    return (
        f"{names} hold images of the same names ({name_some(sorted(common), 2)}): pairs of images are no classes; if "
        "each folder is one example, write a table with a row for each (docs/recipes/tables.md, Several images in one "
        "example)"
    )


def _files_of_an_example(folders: Sequence[Folder]) -> list[str]:
    """Returns what the names of images end in, if that is the same in all folders and begins differently in each."""
    own = [re.sub(r"[^_\-. ]*\Z", "", posixpath.commonprefix([*each.stems])) for each in folders]
    endings = [{stem.removeprefix(prefix) for stem in each.stems} for prefix, each in zip(own, folders)]
    first = sorted(endings[0])
    are_same = len(first) > 1 and len({*own}) == len(own) and all(each == endings[0] for each in endings)
    return [] if all(map(str.isdecimal, first)) or not are_same else first  # cat_1 may be in a class cat


def _longer_names(folders: Sequence[Folder]) -> tuple[Folder, Folder] | None:
    """Returns two folders if every name in the second one is a name in the first one and a mark with more after it."""
    for first, second in itertools.permutations(folders[:2]) if len(folders) == 2 else ():
        starts = {
            stem: next(each for each in _starts(stem) if each in first.stems or not each) for stem in second.stems
        }
        if {*starts.values()} == first.stems:
            return first, second
    return None


def _beside_of_other_format(folder: Folder) -> tuple[str, str] | None:
    """Returns an image and the one of another format whose name it begins with, if a third are so: x_seg.png."""
    image_of = {posixpath.splitext(name)[0]: name for name in folder.images}
    found = {
        name: image_of[start]
        for stem, name in image_of.items()
        for start in _starts(stem)
        if start in image_of and folder_probe.extension_of(image_of[start]) != folder_probe.extension_of(name)
    }
    return next(iter(found.items())) if len(found) * 3 >= len(image_of) and found else None


def _starts(stem: str) -> Iterator[str]:
    """Yields what precedes each mark in a name, from the longest; and "" at the end."""
    while match := _ENDING.search(stem) or _NUMBER.search(stem):
        stem = stem[: match.start()]
        yield stem
    yield ""


def paired_endings(stems: Collection[str]) -> list[str]:
    """Returns what the names of images end in, if each name is there with each ending: 1_temp and 1_test."""
    found: collections.defaultdict[str, set[str]] = collections.defaultdict(set)
    for stem in stems:
        ending = _ENDING.search(stem)
        found[stem[: ending.start()] if ending else stem].add(ending[0] if ending else "")
    endings = {frozenset(each) for each in found.values()}
    return sorted(next(iter(endings))) if len(endings) == 1 and len(found) > 1 and len(next(iter(endings))) > 1 else []


def _is_counter(stems: Collection[str]) -> bool:
    """Returns whether names differ in one number alone, which has no gaps: 0_100, 1_100."""
    parts = [*zip(*map(_NUMBERS.split, stems))]
    varying = [{*each} for each in parts if len({*each}) > 1]
    if len({len(_NUMBERS.split(stem)) for stem in stems}) > 1 or len(varying) != 1 or not _are_decimal(varying[0]):
        return False
    numbers = {*map(int, varying[0])}
    return max(numbers) - min(numbers) < len(stems)


def _are_decimal(texts: Collection[str]) -> bool:
    return all(map(str.isdecimal, texts))


def _have_sizes_in_proportion(probe: FolderProbe, folders: Sequence[Folder], stems: Sequence[str]) -> bool:
    """Returns whether images of different sizes have the same sizes, or multiples of them, in all folders."""
    asked = folder_probe.spread(stems, 4)[:4]
    sizes = []
    for folder in folders:
        name_of = {posixpath.splitext(name)[0]: name for name in folder.images}
        sizes.append([_size_of(probe.head(folder.below(name_of[stem]))) for stem in asked])
    if any(size is None for each in sizes for size in each) or len(set(sizes[0])) < 2:
        return False
    scales = [{(a[0] / b[0], a[1] / b[1]) for a, b in zip(each, sizes[0]) if a and b} for each in sizes[1:]]
    return all(len(each) == 1 for each in scales)


def _size_of(head: bytes) -> tuple[int, int] | None:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(head)) as image:
            return image.size
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None


# --- boxes as classes -------------------------------------------------------------------------------------------------

# One request for each folder; classes are more only where nothing is to be recognized.
_BOUNDS = folder_probe.Bounds(entries=1_000)


def refuse_boxes(root: str) -> None:
    """Refuses a folder of images with boxes as a folder of classes.

    Raises:
        ConfigError: if it is one; names the preset that reads it.
    """
    found = _find(root)
    if found is None:
        return
    settings = "".join(f" --set {key}={value}" for key, value in found.settings.items() if isinstance(value, str))
    raise errors.ConfigError(
        "boxes-as-classes",
        f"--input {root!r} is a data set of boxes: {found.evidence}. label.by: directory would make classes of its "
        f"folders: use --config {found.preset}{settings}. For its images without boxes set label.by: none; if its "
        "folders are classes nevertheless, set source.include='**'",
    )


def _find(root: str) -> Finding | None:
    probe = FolderProbe(root, _BOUNDS)
    signs = (*(format_of(by).detect for by in ("yolo", "voc", "box_csv", "annotations")), coco.exports)
    found = (each for sign in signs for each in sign(probe, ""))
    return next((each for each in found if not each.doubts), None)
