"""Accounts for the files that a probe has seen: what a reading leaves out is a line for each kind of file.

A line is a doubt where it may change what would be written. For a reading of images alone that is every file that names
its images or has their names. For one of annotations it is a list of splits where it takes none, a further file of the
kind that it reads, or more than a tenth of the images. All other lines are notes.
"""

from __future__ import annotations

import functools
import posixpath
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

from imagebeam import errors, plural
from imagebeam.pipelines.config import model as config_lib
from imagebeam.pipelines.recognize import mask_folders, naming_files, unread_files
from imagebeam.pipelines.recognize.unread_files import Line, Seen
from imagebeam.transforms.formats import base_format
from imagebeam.transforms.packed import packed_file
from imagebeam.transforms.sources import files as files_lib
from imagebeam.transforms.sources import folder_probe, listing_rules, name_signs
from imagebeam.transforms.sources.folder_probe import Finding, Folder, FolderProbe, name_some

_DEPTH, _NUM_DEEP = 4, 24  # levels of folders that are walked, and folders below whose first files are looked for
_NUM_LINES = 500  # of a list whose last line may be cut short
_NUM_FOLDERS = 6  # folders of images that are compared
OF_PIXELS = ("fer2013", "mnist_csv")  # presets whose input is the table itself
_DEEPEST, _NUM_LOOKED = 12, 8  # levels of folders above the first images, and folders of one
_MAY_HOLD_SEVERAL = (".tif", ".tiff", ".gif", ".webp")
_NUM_READ, _MAX_READ = 3, 8 << 20  # such files that are read, and bytes of one
_NUM_PICTURES = 20  # images beside containers that may be there for people


class LeftOut(NamedTuple):
    """What a reading leaves out of the folders that were seen."""

    doubts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()  # those of the doubts that are on images: it reads a part of them
    lists: Mapping[str, str] = {}  # of the splits, which it can take


def find(probe: FolderProbe, finding: Finding, config: config_lib.Config) -> LeftOut:
    """Returns lines on the files that a finding leaves out, without those that its own lines name."""
    reading = _reading_of(probe, finding, config)
    if reading is None:
        return LeftOut()
    _walk(probe)
    seen = _divide(probe, finding, reading)
    images = [*_images(probe, finding, reading, seen), *_without_files(probe, reading, seen)]
    if reading.num_pictures:
        lines = [*images, *_deeper(probe, reading)]
        doubts = tuple(each.text for each in lines if each.is_doubt)
        notes = [each.text for each in lines if not each.is_doubt]
        notes += unread_files.rest(seen, (), " ".join((_said_by(finding), *doubts)))
        return LeftOut(doubts, tuple(notes))
    lines = [*images, *_lines(probe, finding, reading, seen), *_repeated(seen)]
    said = _said_by(finding)
    lines = [each for each in lines if each.names_splits or not each.paths or any(p not in said for p in each.paths)]
    lists: Mapping[str, str] = {}
    if finding.reads_images_alone:
        lines += naming_files.further_data(probe, seen, {path for each in lines for path in each.paths})
        lines = [each._replace(is_doubt=True) for each in lines]
    elif of_splits := [each for each in lines if each.names_splits]:
        paths = [path for each in of_splits for path in each.paths if not naming_files.is_no_split(path)]
        lists = _lists_in(probe, reading, seen, paths)
        lines = [each.of_splits(is_taken=bool(lists)) if each.names_splits else each for each in lines]
    lines += _of_several_images(probe, reading, seen)
    doubts = tuple(each.text for each in lines if each.is_doubt)
    notes = [each.text for each in lines if not each.is_doubt and not (lists and each.names_splits)]
    if lists:
        notes += _beside_lists(probe, reading, [*lists.values()], [path for each in of_splits for path in each.paths])
    if finding.reads_images_alone:
        notes += _named_as_masks(seen.read)
    notes += unread_files.rest(seen, {path for each in lines for path in each.paths}, said)
    elsewhere = tuple(each.text for each in images if each.is_doubt)
    return LeftOut(doubts, tuple(notes), elsewhere, lists)


def _walk(probe: FolderProbe) -> None:
    """Lists all folders whose names speak of annotations, and some of the others, down to four levels or to files."""
    level = [""]
    for _ in range(_DEPTH):
        below: list[str] = []
        for folder in map(probe.look, level):
            named = [name for name in folder.folders if name_signs.ANNOTATIONS.search(name)]
            below += map(
                folder.below, dict.fromkeys([*named, *folder_probe.spread(folder.folders, _NUM_FOLDERS)[:_NUM_FOLDERS]])
            )
        level = below
    one_of_each = [*{posixpath.dirname(path): path for path in level}.values()]
    for folder in map(probe.look, folder_probe.spread(one_of_each, _NUM_DEEP)[:_NUM_DEEP]):
        for _ in range(_DEEPEST):  # a/b/c/d/e/f/x.jpg
            if folder.files or not folder.folders:
                break
            folder = probe.look(folder.below(folder.folders[0]))


# --- what is read -----------------------------------------------------------------------------------------------------


class _Reading(NamedTuple):
    at: str  # folder of the input, below the root of the probe
    config: config_lib.Config
    reads: base_format.Reads
    named: frozenset[str]  # texts of the config, some of which are paths
    num_pictures: int = 0  # images that may be there for people, in a README

    @property
    def above(self) -> str:
        """What precedes paths below the input in those below the root of the probe."""
        return f"{self.at}/" if self.at else ""

    @property
    def has_splits(self) -> bool:
        """Whether folders, files or columns say the splits."""
        by, rule = self.config.split.by, self.config.source.masks.rule
        is_named = self.reads.num_splits > 1 or (rule is not None and rule.names_split)
        return by not in ("hash", "none", "source") or (by == "source" and is_named)

    def reads_image(self, path: str) -> bool:
        """Returns whether an image is read, given its path below the root of the probe."""
        below, source = path.removeprefix(self.above), self.config.source
        is_meant = source.masks.rule is None or source.masks.rule.is_image(below)
        is_meant = is_meant and path.startswith(self.above) and self.reads.is_image(below)
        return is_meant and files_lib.is_included((*source.include,), below)

    def files_of(self, path: str) -> Iterator[str]:
        """Yields the paths of the files of an image, below the input."""
        yield from self.reads.files_of(path)
        if rule := self.config.source.masks.rule:
            yield from rule.files_of(path)

    def reads_file(self, path: str) -> bool:
        """Returns whether a file is read that is of many images, or of one that may not have been seen."""
        below, rule = path.removeprefix(self.above), self.config.source.masks.rule
        is_read = below in self.named or self.reads.is_partner(below) or (rule is not None and rule.is_mask(below))
        is_read = is_read or (bool(self.reads.files) and files_lib.is_included(self.reads.files, below))
        return is_read and path.startswith(self.above)


def _reading_of(probe: FolderProbe, finding: Finding, config: config_lib.Config) -> _Reading | None:
    try:
        if probe.holds(finding.input):
            return None
        reads = config.source.format.reads(probe, finding.input)
    except (OSError, errors.ConfigError):  # the plan says so
        return None
    if reads is None:  # images are in containers
        no_images = base_format.Reads(
            base_format.is_no_file, is_partner=functools.partial(_is_container, finding, config)
        )
        return _Reading(finding.input, config, no_images, frozenset(), _NUM_PICTURES)
    named = frozenset(_texts(config.model_dump(include={"source", "split", "label"})))
    return _Reading(finding.input, config, reads, named)


def _is_container(finding: Finding, config: config_lib.Config, path: str) -> bool:
    is_pixels = finding.preset in OF_PIXELS and path.lower().endswith(packed_file.CSV)
    return is_pixels or config.source.format.is_container(posixpath.basename(path))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts([*value.keys(), *value.values()])
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _texts(each)


def _divide(probe: FolderProbe, finding: Finding, reading: _Reading) -> Seen:
    """Returns the folders with what is read, and with what is left out and not said yet.

    To a reading of images alone all images count as read, and those outside of its input as left out, too.
    """
    said = _said_by(finding)
    above, is_alone = reading.above, finding.reads_images_alone
    images = [path for path in _images_in(probe) if is_alone or reading.reads_image(path)]
    masks = [path for path in images if name_signs.MASKS_ALONE.fullmatch(posixpath.basename(posixpath.dirname(path)))]
    if not is_alone and len(masks) < len(images):  # of a table nothing shows that it names the images in them
        images = [path for path in images if path not in {*masks}]
    read = {*images}
    of_images = {f"{above}{each}" for path in images for each in reading.files_of(path.removeprefix(above))}

    def is_left(path: str) -> bool:
        if is_alone and path in read:
            return not path.startswith(above)
        return path not in read and path not in of_images and not reading.reads_file(path)

    seen = Seen([], [], [])
    for folder in probe.seen():
        paths = {name: folder.below(name) for name in folder.files}
        left = [name for name, path in paths.items() if is_left(path)]
        seen.read.append(unread_files.part_of(folder, [name for name in folder.images if paths[name] in read]))
        seen.images.append(unread_files.part_of(folder, [name for name in left if name in folder.images]))
        others = [name for name in left if name not in folder.images and not name_signs.ON_THE_SET.match(name)]
        others = [n for n in others if paths[n] not in said or not naming_files.is_no_split(paths[n])]
        seen.files.append(unread_files.part_of(folder, others))
    return seen


def _said_by(finding: Finding) -> str:
    return " ".join((finding.evidence, *finding.notes, *finding.doubts))


def _images_in(probe: FolderProbe) -> Iterator[str]:
    return (folder.below(name) for folder in probe.seen() for name in folder.images)


# --- images -----------------------------------------------------------------------------------------------------------


def _images(probe: FolderProbe, finding: Finding, reading: _Reading, seen: Seen) -> Iterator[Line]:
    """Yields a line for images that may be masks of those that are read, and one for others.

    Images of tests may be left out, and a reading of images alone says by itself which ones below its input it does.
    """
    held = [(each, bool(read.images)) for each, read in zip(seen.images, seen.read) if each.images]
    own = {posixpath.basename(each.path) for each in seen.read if each.images}  # rgb has images, or masks in colors
    shown = [f for f, _ in held if posixpath.basename(f.path) not in own and mask_folders.is_for_people(f.path)]
    named = name_signs.masks_among([each.path for each in (*seen.read, *seen.images) if each.images])
    masks = [folder for folder, _ in held if folder in shown or folder.path in named]
    others = [(folder, is_beside) for folder, is_beside in held if folder not in masks]
    # images of tests often have no annotations, and one beside an image that is read may be a preview of it
    guessed = tuple(posixpath.join(reading.above, each, "") for each in reading.reads.guessed)
    meant = [each for each, is_beside in others if not (is_beside or _is_of_test(each.path))]
    num_meant = sum(len(each.images) for each in meant if not f"{each.path}/".startswith(guessed))
    if finding.reads_images_alone:
        masks, others = [], held
        num_meant = sum(len(each.images) for each, _ in held)
    total = sum(len({*images.images, *read.images}) for images, read in zip(seen.images, seen.read))
    are_beside = len({posixpath.dirname(each.path) for each in meant}) < len(meant)  # as classes are
    num_pictures = 0 if are_beside else reading.num_pictures
    is_many = num_meant > max((1 - folder_probe.NEARLY_ALL) * total, num_pictures)
    for folders, what in ((masks, ": they may be masks of images that are read"), ([each for each, _ in others], "")):
        if number := sum(len(folder.images) for folder in folders):
            where = name_some([each.path or "the folder itself" for each in folders])
            such = f"{where} ({folders[0].below(folders[0].images[0])})"
            text = f"{number:,} of {plural.count(total, 'image')} that were seen are not read, in {such}{what}"
            yield Line(text, not what and is_many)
    if reading.config.source.masks.rule is not None:
        yield from _masks_of_none(probe, reading, seen)
        yield from _further_masks([folder for folder, is_beside in held if is_beside])
        yield from _classes_of_masked([each.path for each in seen.read if each.images])


def _deeper(probe: FolderProbe, reading: _Reading) -> Iterator[Line]:
    """Yields a doubt if containers are in folders that lie deeper than those that a sign looks into."""
    folders = [folder for folder in probe.seen() if f"{folder.path}/".removeprefix(reading.above).count("/") > 1]
    paths = [path for folder in folders for path in map(folder.below, folder.files) if reading.reads_file(path)]
    if paths:
        takes = "include" in reading.config.source.format.gives().takes
        what = "would be read, too: set source.include if they are no part of it" if takes else "are not read"
        yield Line(f"{name_some(paths)} in further folders {what}", is_doubt=True)


def _without_files(probe: FolderProbe, reading: _Reading, seen: Seen) -> Iterator[Line]:
    """Yields a doubt if many images that are read have none of the files that belong to an image, as its mask."""
    paths = [f.below(name) for f in seen.read for name in f.images if not _is_of_test(f.path)]
    own = {path: [*reading.files_of(path.removeprefix(reading.above))] for path in paths}
    with_files = {path: files for path, files in own.items() if files}
    without = [p for p, files in with_files.items() if not any(probe.holds(f"{reading.above}{file}") for file in files)]
    if len(without) <= (1 - folder_probe.NEARLY_ALL) * len(with_files):
        return
    source = reading.config.source
    options = [f"source.{source.by}.{name}" for name in _WITHOUT if hasattr(source.format, name)]
    options = ["source.masks.missing", *options] if source.masks.rule is not None else options
    what = "mask" if source.masks.rule is not None else "file of annotations"
    text = f"{len(without):,} of {plural.count(len(with_files), 'image')} have no {what}, such as {without[0]} "
    text += f"(no {reading.above}{with_files[without[0]][0]})"
    is_some = options and len(without) < len(with_files)
    yield Line(f"{text}: {options[0]}=skip leaves those out" if is_some else text, is_doubt=True)


_WITHOUT = ("without_annotations", "without_labels")


def look_deeper(probe: FolderProbe) -> None:
    """Lists a few folders of each level down to the first images."""
    level = [probe.look()]
    for _ in range(_DEEPEST):
        if any(folder.images for folder in level):
            return
        below = [folder.below(name) for folder in level for name in folder_probe.spread(folder.folders, 3)[:3]]
        level = [*map(probe.look, folder_probe.spread(below, _NUM_LOOKED)[:_NUM_LOOKED])]


def images_in(probe: FolderProbe) -> Iterator[str]:
    """Yields a line on all images that were seen, for a folder that no preset recognizes."""
    folders = [folder for folder in probe.seen() if folder.images]
    if folders:
        number = plural.count(sum(len(folder.images) for folder in folders), "image")
        above = posixpath.commonpath([posixpath.dirname(each.path) for each in folders])
        places = (
            f"{number} {'' if probe.is_all_seen else 'or more '}were seen in {name_some([f.path for f in folders])}"
        )
        what = (
            f"--input with the folder {above or 'given'} and --config image_folder takes the folders in it as classes"
        )
        yield f"{places}, and nothing says how they are labelled: {what}"


def _further_masks(folders: Sequence[Folder]) -> Iterator[Line]:
    """Yields a line for images that are named as masks, beside images whose masks are read."""
    paths = [folder.below(name) for folder in folders for name in folder.images if name_signs.MASKS.search(name)]
    paths = [path for path in paths if not mask_folders.is_for_people(posixpath.splitext(path)[0])]
    if paths:
        text = f"{plural.count(len(paths), 'image')} may be further masks, and not read ({name_some(paths)})"
        yield Line(f"{text}: if an image has several, merge them into one first", is_doubt=True)


def _masks_of_none(probe: FolderProbe, reading: _Reading, seen: Seen) -> Iterator[Line]:
    """Yields a line for masks by their names that no image which is read has, such as others of the same images."""
    rule, above = reading.config.source.masks.rule, reading.above
    if rule is None or not probe.is_all_seen:
        return
    read = (folder.below(name).removeprefix(above) for folder in seen.read for name in folder.images)
    own = {f"{above}{file}" for path in read for file in rule.files_of(path)}
    paths = [path for path in _images_in(probe) if path.startswith(above) and path not in own]
    if paths := [path for path in paths if rule.is_mask(path.removeprefix(above))]:
        yield Line(f"{plural.count(len(paths), 'mask')} of no image that is read ({name_some(paths)})")


def _named_as_masks(folders: Sequence[Folder]) -> Iterator[str]:
    """Yields a note on images that are named as masks among others that are not."""
    paths: list[str] = []
    for folder in folders:
        named = [name for name in folder.images if name_signs.MASKS.search(name)]
        if 2 * len(named) < len(folder.images) and not name_signs.MASKS.search(posixpath.basename(folder.path)):
            paths += map(folder.below, named)
    if paths:
        yield (
            f"{plural.count(len(paths), 'image')} may be masks by the name ({name_some(paths)}), and would be examples "
            "of their own: if they are masks, move them elsewhere"
        )


def _repeated(seen: Seen) -> Iterator[Line]:
    """Yields a doubt if all images of one folder that is read are in others of its split, too: All, Benign, Malign."""
    of_splits: dict[frozenset[str | None], list[Folder]] = {}
    for each in [each for each in seen.read if each.images and each.is_whole]:
        meant = frozenset(map(folder_probe.split_meant, each.path.split("/"))) - {None}
        of_splits.setdefault(meant, []).append(each)
    for folder, alike in [(each, held) for held in of_splits.values() for each in held]:
        parts = [each for each in alike if each.stems < folder.stems]
        in_parts = frozenset[str]().union(*(each.stems for each in parts))
        if len(parts) > 1 and in_parts == folder.stems and sum(len(each.stems) for each in parts) == len(in_parts):
            others = folder_probe.and_list([each.path for each in parts[:_NUM_FOLDERS]])
            yield Line(f"{folder.path or 'the folder'} has the images of {others} again, by their names", is_doubt=True)
            return


def _of_several_images(probe: FolderProbe, reading: _Reading, seen: Seen) -> Iterator[Line]:
    """Yields a line if one of a few files holds several images, of which the first alone is stored, and no mask."""
    sizes = {folder.below(name): folder.files[name] for folder in seen.read for name in folder.images}
    paths = sorted(path for path in sizes if path.lower().endswith(_MAY_HOLD_SEVERAL) and sizes[path] < _MAX_READ)
    for path in folder_probe.spread(paths, _NUM_READ)[:_NUM_READ] if reading.config.image.frames == "first" else ():
        if (count := probe.num_frames(path, sizes[path])) > 1:
            yield Line(
                f"{path} holds {count:,} images: of such files the first is stored, and all with image.frames=each"
            )
            for mask in (f"{reading.above}{each}" for each in reading.files_of(path.removeprefix(reading.above))):
                size = probe.look(posixpath.dirname(mask)).files.get(posixpath.basename(mask), 0)
                if 0 < size < _MAX_READ and (count := probe.num_frames(mask, size)) > 1:
                    yield Line(f"{mask} holds {count:,} pictures, and a mask is one: split such files", is_doubt=True)
            return


def _classes_of_masked(paths: Sequence[str]) -> Iterator[Line]:
    """Yields a line if images with masks are in folders that may be classes, for which no setting is."""
    levels = 1
    while len({*paths}) > 1 and _name_no_classes({*map(posixpath.basename, paths)}):  # as of cat/images, cat/train
        paths, levels = [posixpath.dirname(path) for path in paths], levels + 1
    names = [name for name in map(posixpath.basename, paths) if name and folder_probe.split_meant(name) is None]
    if len({*names}) > 1:
        yield Line(
            f"the folders of images are stored in no feature ({name_some([*dict.fromkeys(names)])}): if they are "
            f"classes, set source.pattern='(?:.*/)?(?P<label>[^/]+){'/[^/]+' * levels}' and "
            "label={by: column, column: label}"
        )


def _name_no_classes(names: Set[str]) -> bool:
    return len(names) == 1 or None not in {*map(folder_probe.split_meant, names)}


def _is_of_test(path: str) -> bool:
    """Returns whether a folder is in one of tests, which often have no annotations, or of unlabeled images."""
    return any(folder_probe.split_meant(n) == "test" or name_signs.UNLABELED.search(n) for n in path.split("/"))


# --- files of one image each -----------------------------------------------------------------------------------------


def _lines(probe: FolderProbe, finding: Finding, reading: _Reading, seen: Seen) -> Iterator[Line]:
    is_table = "source.manifest.path" in finding.settings
    own = [*naming_files.sidecars(seen), *naming_files.folders_of_equal_names(probe, seen)]
    yield from (each._replace(is_doubt=is_table) for each in own)
    seen = seen.without({path for each in own for path in each.paths})
    yield from naming_files.repeated_files(probe, seen)
    is_paired = "source.masks.image" in finding.settings or "source.pairs.image" in finding.settings
    naming = [*naming_files.files_that_name_images(probe, seen.files, seen)]
    for each in naming:
        is_of_videos = is_paired and naming_files.OF_FOLDERS in each.text  # masks of a video may be of its objects
        names_splits = each.names_splits and not reading.has_splits
        if is_table and names_splits:  # a table of tests names other images of the same folder
            path = posixpath.join(finding.input, finding.settings["source.manifest.path"])
            table = (probe.head(path) + probe.tail(path)).decode("utf-8", "replace")
            names_splits = any(posixpath.splitext(name)[0] in table for name in each.names)
        yield each._replace(is_doubt=is_of_videos or names_splits, names_splits=names_splits)
    if not reading.has_splits:
        of_folders = [*naming_files.lists_of_folders(probe, seen)]
        yield from of_folders
        known = {path for each in (*naming, *of_folders) for path in each.paths}
        yield from naming_files.lists_of_splits(seen.without(known))
        has_partners = is_paired or reading.config.source.by == "sidecars"
        yield from naming_files.mixed_splits(probe) if has_partners and reading.config.split.by == "hash" else ()
        yield from naming_files.splits_in_names(seen) if reading.config.split.by == "hash" else ()
    if finding.reads_images_alone:
        yield from naming_files.files_above(probe, seen)
    yield from unread_files.workbooks(seen)


# --- lists of splits --------------------------------------------------------------------------------------------------


def _lists_in(probe: FolderProbe, reading: _Reading, seen: Seen, paths: Sequence[str]) -> dict[str, str]:
    """Returns lists by split, below the input; none unless each split has one, whose lines are images that are read."""
    above = reading.above
    known = {
        name
        for folder in seen.read
        for image in map(folder.below, folder.images)
        for name in listing_rules.names_of(image.removeprefix(above))
    }
    found: dict[str, str] = {}
    named = set[str]()
    for path in paths:
        meant = folder_probe.split_meant(posixpath.basename(path))
        lines = probe.head(path).decode("utf-8", "replace").splitlines()
        names = {line.split()[0] for line in lines[: len(lines) - (len(lines) > _NUM_LINES)] if line.strip()}
        beside = posixpath.dirname(path.removeprefix(above))  # as listing_rules takes ./a.jpg and ../images/a.jpg
        names = {posixpath.normpath(posixpath.join(beside, n)) if n.startswith(".") else n for n in names}
        is_list = (
            path.endswith(naming_files.LISTS) and path.startswith(above) and names <= known and named.isdisjoint(names)
        )
        if meant is None or meant in found or not names or not is_list:
            return {}
        found[meant] = path.removeprefix(above)
        named |= names
    return found if "train" in found and len(found) > 1 else {}


def _beside_lists(probe: FolderProbe, reading: _Reading, lists: Sequence[str], paths: Sequence[str]) -> Iterator[str]:
    """Yields notes on what the lists of splits say more, and on other files that name the same images."""
    taken = [f"{reading.above}{path}" for path in lists]
    if any(len(line.split()) > 1 for path in taken for line in probe.head(path).splitlines()):
        yield f"the further columns of {name_some(lists)} are not stored"
    if others := [path for path in paths if path not in taken]:
        yield f"also with names of images, and not read: {name_some(others)}"
