"""Finds the annotation files of one syntax in a folder, and the folders of their images."""

from __future__ import annotations

import dataclasses
import itertools
import posixpath
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from imagebeam import plural
from imagebeam.transforms.formats import box_signs
from imagebeam.transforms.formats.annotations.syntax import NO_NAME, OtherFormError, Row, Syntax
from imagebeam.transforms.sources import folder_probe
from imagebeam.transforms.sources.folder_probe import HEAD_BYTES, NEARLY_ALL, Folder, FolderProbe, split_meant

_TEMPLATES = ("{name}", "{name}/images/{name}")  # the second one is of the Data Science Bowl of 2018
_OPTION = "source.annotations"
_NUM_HEADS = 3  # files of one image that are looked into
_NUM_SIZES = 8  # images of a file whose sizes are read
_NUM_NAMES = 20  # names in a file that are looked for
_NUM_INNER = 10  # folders in which images of a file are looked for
_MANY = 4  # times as many files as folders that are looked into: such files are of one image each


class Place(NamedTuple):
    """Images of a split, and their annotations: both are paths below the data set."""

    split: str
    images: str  # folder
    file: str = ""  # of annotations; "" if each image has its own


@dataclasses.dataclass(frozen=True)
class Places:
    """Where the images and annotations of a data set are."""

    places: tuple[Place, ...]
    folders: tuple[str, str] = ("images", "images")  # names of the folders of images and of their annotation files
    image_name: str = "{name}"
    evidence: str = ""
    doubts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def find(syntax: Syntax, probe: FolderProbe, at: str, most: int, is_known: bool) -> Places | None:
    """Returns the files of a syntax in a folder; None if there are none.

    Args:
        syntax: to look for.
        probe: of the folder.
        at: the data set in it.
        most: folders that are looked into at each place, beside those of splits.
        is_known: whether the syntax was chosen, and is not only looked for: files with faults are then found, too.
    """
    find = _find_tables if syntax.FOLDERS is None else _find_beside
    return find(syntax, probe, at, most, is_known)


# --- a file for each image --------------------------------------------------------------------------------------------


def _find_beside(syntax: Syntax, probe: FolderProbe, at: str, most: int, is_known: bool) -> Places | None:
    for images, texts in syntax.FOLDERS or ():
        found, evidence, empty = [], [], list[Place]()
        num_images = num_paired = 0
        heads, boxes = list[bytes](), list[box_signs.Box]()
        for holder in syntax.holders(probe, at, most):
            if not {images, texts.partition("/")[0]} - {""} <= {*holder.folders}:
                continue
            folder = probe.look(holder.below(images)) if images else holder
            other = probe.look(holder.below(texts)) if texts else holder
            names = folder.images if syntax.WHOLE_NAMES else [posixpath.splitext(name)[0] for name in folder.images]
            image_of = {f"{name}{syntax.SUFFIXES[0]}": image for name, image in zip(names, folder.images)}
            paired = [name for name in image_of if name in other.files]
            place = Place(split_meant(holder.path) or "train", folder_probe.prefix_of(folder, at)[:-1])
            rows = [] if is_known else _rows_in(syntax, probe, other, paired)
            if paired and rows and not any(rows) and None not in rows:
                empty.append(place)
            elif paired and None not in rows:
                found.append(place)
                num_images, num_paired = num_images + len(names), num_paired + len(paired)
                for name in folder_probe.spread(paired, _NUM_HEADS)[:_NUM_HEADS]:
                    heads.append(probe.head(other.below(name)))
                    boxes += syntax.boxes_in(heads[-1], {"": probe.image_size(folder.below(image_of[name]))})
                evidence.append(
                    f"{folder.path} in {other.path}" if folder is not other else folder.path or "the folder"
                )
        if found:
            shown = f"files of {syntax.TITLE} for the images of {folder_probe.name_some(evidence)}"
            doubts: tuple[str, ...] = ()
            if empty:
                where = folder_probe.name_some([each.images or "the folder" for each in empty])
                doubts = (
                    f"the files for the images of {where} name no object: if nobody has labelled these, leave their "
                    f"folder out of {_OPTION}.images",
                )
            if num_paired < NEARLY_ALL * num_images:
                doubts += (
                    f"{num_paired:,} of {plural.count(num_images, 'image')} have one: the others are skipped; "
                    "source.annotations.without_annotations=keep takes them as images without objects",
                )
            notes: tuple[str, ...] = ()
            if num_other := _count_other_shapes(syntax, heads):
                objects, looked = plural.count(num_other, "object"), plural.count(len(heads), "file")
                notes = (f"{objects} in {looked} that were looked at, such as points, lines or masks, are not stored",)
            notes += tuple(filter(None, (_count_unnamed(syntax, heads), syntax.unstored(heads))))
            judged = box_signs.judge(boxes, syntax.BOXES, _OPTION)
            doubts, notes = doubts + judged.doubts, notes + judged.notes
            folders = images or "images", texts or images or "images"
            return Places((*found, *empty), folders, "{name}", shown, doubts, notes)
    return None


def _heads(probe: FolderProbe, folder: Folder, names: Sequence[str]) -> list[bytes]:
    """Returns the first bytes of a few files."""
    return [probe.head(folder.below(name)) for name in folder_probe.spread(names, _NUM_HEADS)[:_NUM_HEADS]]


def _count_other_shapes(syntax: Syntax, heads: Sequence[bytes]) -> int:
    """Returns the number of objects of shapes that are not stored in files of one image."""
    rows = [syntax.first_rows(head, len(head) < HEAD_BYTES) or () for head in heads]
    return sum(map(syntax.has_other_shape, itertools.chain.from_iterable(rows)))


def _count_unnamed(syntax: Syntax, heads: Sequence[bytes]) -> str:
    """Returns a note on objects without a class beside others with one, in the first bytes of files."""
    rows = [syntax.first_rows(head, len(head) < HEAD_BYTES, is_known=True) or () for head in heads]
    found = itertools.chain.from_iterable(rows)
    names = [row.name for row in found if row.name and not syntax.refusal(row.fields)]
    count = names.count(NO_NAME)
    text = f"{count:,} of {plural.count(len(names), 'object')} that were looked at have no class"
    return f"{text}, and become the class {NO_NAME!r}" if 0 < count < len(names) else ""


def _rows_in(syntax: Syntax, probe: FolderProbe, folder: Folder, names: Sequence[str]) -> list[list[Row] | None]:
    """Returns the rows in the beginnings of a few files, and None for one that is of another syntax."""
    return [syntax.first_rows(head, len(head) < HEAD_BYTES) for head in _heads(probe, folder, names)]


# --- files of many images ---------------------------------------------------------------------------------------------


class NamingFile(NamedTuple):
    """A file that names images."""

    folder: Folder
    name: str
    names: list[str]  # of the images in its beginning
    num_images: int  # in the whole file, estimated from its beginning
    split: str
    num_other: int = 0  # objects in its beginning whose shapes are not stored
    fault: str = ""  # why the file is not read, and names no images

    @property
    def path(self) -> str:
        """Path below the root of the probe."""
        return self.folder.below(self.name)


def naming_files(
    syntax: Syntax, probe: FolderProbe, at: str, most: int, is_known: bool = False
) -> Iterator[NamingFile]:
    """Yields the files of a syntax that name images."""
    for folder in syntax.holders(probe, at, most):
        names = folder.ending(*syntax.SUFFIXES)
        for name in names if len(names) <= _MANY * most else ():
            head = probe.head(folder.below(name))
            try:
                rows = syntax.first_rows(head, len(head) < HEAD_BYTES, is_known) or ()
            except OtherFormError as e:
                yield NamingFile(folder, name, [], 0, "", fault=str(e))
                continue
            found = list(dict.fromkeys(row.image for row in rows if row.image))
            if found:
                scale = max(1.0, folder.files[name] / len(head)) if len(head) == HEAD_BYTES else 1.0
                split = split_meant(folder_probe.prefix_of(folder, at) + name) or "train"
                others = sum(map(syntax.has_other_shape, rows))
                yield NamingFile(folder, name, found, round(scale * len(found)), split, others)


def _find_tables(syntax: Syntax, probe: FolderProbe, at: str, most: int, is_known: bool) -> Places | None:
    found: list[Place] = []
    evidence, doubts, notes = list[str](), list[str](), list[str]()
    heads = list[bytes]()
    image_name = "{name}"
    named: dict[tuple[str, str], str] = {}  # file that names an image first, by folder and name of the image
    for file in naming_files(syntax, probe, at, most, is_known):
        share, template, folder = find_images(probe, at, file)
        if not share:
            continue
        image_name = template
        first = {name: named.setdefault((folder.path, name), file.path) for name in file.names}
        if twice := next((name for name, path in first.items() if path != file.path), None):
            doubts.append(
                f"{first[twice]} and {file.path} name the same images, such as {twice}: name one of them in "
                "source.annotations.files, with the folder of its images in source.annotations.images"
            )
        if file.num_other:
            objects = plural.count(file.num_other, "object")
            notes.append(f"{objects} in the beginning of {file.path}, such as points, lines or masks, are not stored")
        heads.append(probe.head(file.path))
        if of_splits := syntax.doubt_on_splits(heads[-1:], split_meant(file.path)):
            doubts.append(f"{file.path}: {of_splits}")
        if question := syntax.question(heads[-1]):
            doubts.append(f"{file.path}: {question}")
        sizes = _sizes_of(probe, folder, template, file.names)
        if doubt := syntax.doubt_on_sizes(probe, file.folder, sizes):
            doubts.append(doubt)
        boxes = [*syntax.boxes_in(heads[-1], sizes)]
        judged = box_signs.judge(boxes, syntax.BOXES, _OPTION)
        doubts += [each for each in judged.doubts if not question]
        notes += judged.notes
        where = folder.path or "the folder"
        if share < NEARLY_ALL:
            doubts.append(f"{share:.0%} of the images that {file.path} names are in {where}")
        elif folder.is_whole and file.num_images < NEARLY_ALL * len(folder.images) and syntax.UNNAMED == "skip":
            number = f"{file.num_images:,}" if file.num_images == len(file.names) else f"about {file.num_images:,}"
            doubts.append(
                f"{file.path} names {number} of {plural.count(len(folder.images), 'image')} in "
                f"{where}: the others are skipped; source.annotations.unnamed=keep takes them as images without objects"
            )
        found.append(Place(file.split, folder_probe.prefix_of(folder, at)[:-1], file.path.removeprefix(f"{at}/")))
        evidence.append(f"{file.path} names images in {where}")
    if not found:
        return None
    notes += filter(None, (_count_unnamed(syntax, heads), syntax.unstored(heads)))
    shown = f"{syntax.TITLE}: {folder_probe.name_some(evidence)}"
    return Places(tuple(found), image_name=image_name, evidence=shown, doubts=tuple(doubts), notes=tuple(notes))


def find_images(probe: FolderProbe, at: str, file: NamingFile) -> tuple[float, str, Folder]:
    """Returns the folder that has most of the images that a file names: their share, and how they are named there."""
    best = 0.0, _TEMPLATES[0], file.folder
    if file.fault:
        return best
    asked = folder_probe.spread(sorted(file.names), _NUM_NAMES)[:_NUM_NAMES]
    for folder in _folders(probe, probe.look(at), file.folder, file.split):
        for template in _TEMPLATES:
            is_nested = template != _TEMPLATES[0]
            if is_nested and asked[0] not in folder.folders:
                continue
            some = asked[:_NUM_HEADS] if is_nested else asked
            there = sum(_has_image(probe, folder, template.format(name=name)) for name in some)
            best = max(best, (there / len(some), template, folder), key=lambda each: each[0])
            if best[0] >= NEARLY_ALL:
                return best
    return best


def _folders(probe: FolderProbe, root: Folder, holder: Folder, split: str) -> Iterator[Folder]:
    """Yields the folders in which the images of a file are looked for, the likely ones first."""
    above = probe.look(posixpath.dirname(holder.path)) if holder.path != root.path else root
    inner = [each.below(name) for each in (holder, above, root) for name in each.folders[:_NUM_INNER]]
    inner = [path for path in dict.fromkeys(inner) if split_meant(path) in (split, None)]
    inner.sort(key=lambda path: split_meant(path) != split)
    yield holder
    for path in (*inner, above.path, root.path):
        folder = probe.look(path)
        yield folder
        for name in folder_probe.likely_first(folder, 2) if not folder.images else ():
            if split_meant(name) in (split, None):
                yield probe.look(folder.below(name))


def _sizes_of(
    probe: FolderProbe, folder: Folder, template: str, names: Sequence[str]
) -> dict[str, tuple[int, int] | None]:
    """Returns width and height of the first images of a file, by name; without those that cannot be read."""
    numbered = _by_number(folder)
    named = {name: numbered.get(name) or template.format(name=name) for name in names[:_NUM_SIZES]}
    paths = {name: folder.below(path) for name, path in named.items()}
    return {name: probe.image_size(path) for name, path in paths.items() if probe.holds(path)}


def _by_number(folder: Folder) -> dict[str, str]:
    """Returns the images of a folder whose names are numbers, by these without zeros before them."""
    stems = ((posixpath.splitext(name)[0], name) for name in folder.images)
    return {stem.lstrip("0"): name for stem, name in stems if stem.isdecimal()}


def _has_image(probe: FolderProbe, folder: Folder, name: str) -> bool:
    """Returns whether a folder has an image with a name, perhaps without its extension and without zeros before it."""
    path, _, base = folder.below(name).rpartition("/")
    if path != folder.path and path.removeprefix(f"{folder.path}/").partition("/")[0] not in folder.folders:
        return False
    inner = probe.look(path)
    is_there = base in inner.images or base in inner.stems or base in _by_number(inner)
    return is_there or (not inner.is_whole and probe.holds(inner.below(base)))
