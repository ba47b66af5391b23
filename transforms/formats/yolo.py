"""YOLO's format: images with a label file for each, often with a data.yaml that names folders and classes."""

from __future__ import annotations

import dataclasses
import functools
import math
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

from imagebeam import errors, plural, storage
from imagebeam.storage import remote
from imagebeam.transforms.formats import base_format, box_signs, yolo_labels
from imagebeam.transforms.images import image_objects
from imagebeam.transforms.sources import annotated_files, folder_probe, image_source, input_places
from imagebeam.transforms.sources.folder_probe import Change, Finding, name_some

_CLASS_FILES = (
    "classes.txt",
    "obj.names",
    "labels/classes.txt",
    "labels/train/classes.txt",
    "train/labels/classes.txt",
)
_BESIDE_IMAGES = ("classes.txt", "_darknet.labels")  # in the folder of each split, as LabelImg and Roboflow write them
_MAX_YAML_MIB = 1
_DATA_FILE = "data.yaml"
_YAML = (".yaml", ".yml")


@dataclasses.dataclass(frozen=True)
class Yolo(base_format.Format):
    """Label files in YOLO's format: `class x y width height` on each line."""

    ABOUT: ClassVar[str] = "images with a label file of YOLO for each"
    PRESETS: ClassVar[tuple[str, ...]] = ("yolo",)

    data: str | None = None
    """YAML file with the names of the classes and the folders or lists of images, below `source.uri`. By default the
    file `data.yaml`, or the only YAML file there that has `names`."""
    images: base_format.PathsBySplit | None = None
    """Folders of images, or text files with a path on each line, below `source.uri`, by split. By default those of
    `data`; without such a file: `images/train` or `train/images` and the like, or all images in one split, `train`."""
    image_folder: base_format.Text = "images"
    """Name of the folders of images: the last one of this name in the path of an image is replaced by `label_folder`.
    An image in no such folder has its label file beside it."""
    label_folder: base_format.Text = "labels"
    """Name of the folders of label files."""
    classes: str | tuple[str, ...] | None = None
    """Names of the classes in the order of their numbers, or a file below `source.uri` with a name on each line. By
    default the names in `data`, or the file `classes.txt` or `obj.names`, or `classes.txt` or `_darknet.labels` in the
    folders of images."""
    base: base_format.ClassBase = 0
    """Added to the number of a class, makes the id that is stored: 1 if a trainer takes 0 for the background."""
    polygons: Literal["box", "reject"] = "box"
    """What to do with a line that holds a polygon: store the box around it, or reject the image."""
    confidence: Literal["reject", "drop"] = "reject"
    """What to do with a sixth number after the box: reject the image, or leave the number out."""
    outside: Literal["clip", "reject"] = "clip"
    """What to do with a box that leaves the image, as in `source.coco.outside`."""
    without_labels: Literal["keep", "skip", "reject"] = "keep"
    """What to do with an image without a label file: keep it as an image without objects, skip it, or reject it.
    An image with an empty label file is kept."""

    def gives(self) -> base_format.Gives:
        return base_format.Gives(splits=True, features=frozenset({"objects"}), refuses=(base_format.no_frames("yolo"),))

    def open(self, request: base_format.Request) -> image_source.ImageSource:
        with remote.budget(remote.CHECK_BUDGET_SEC):
            found = find(request.uri, self)
            reader = yolo_labels.YoloReader(
                found.classes, self.polygons, self.confidence, found.num_keypoint_values, self.outside == "reject"
            )
            source = annotated_files.AnnotatedFilesSource(
                found.root,
                found.parts,
                self._rule,
                reader,
                exclude=input_places.leave_out(request.output, found.root),
                option="source.yolo",
                on_repeated_key="name each image once: in one split, and once in its list (data.yaml, or "
                "source.yolo.images)",
            )
            source.check()
            return source.with_unread()

    @property
    def _rule(self) -> annotated_files.PairRule:
        return annotated_files.PairRule(".txt", self.image_folder, self.label_folder, self.without_labels)

    def reads(self, probe: folder_probe.FolderProbe, at: str) -> base_format.Reads:
        parts = find(probe.uri(at), self).parts
        beside = (posixpath.join(part.path, name) for part in parts for name in _BESIDE_IMAGES)
        names = (*_CLASS_FILES, *beside, *(f"*{extension}" for extension in _YAML))
        return base_format.Reads.of_parts(parts, self._rule.files_of, names)

    @classmethod
    def detect(cls, probe: folder_probe.FolderProbe, at: str) -> Iterator[Finding]:
        """Finds images beside labels with .txt files, or x.txt beside x.jpg."""
        often = (Change("source.yolo.base", 1, "class ids from 1, for trainers that take 0 for the background"),)
        for folder in folder_probe.split_places(probe, at):
            prefix = folder_probe.prefix_of(folder, at)
            if {"images", "labels"} <= {*folder.folders}:
                found = folder_probe.find_below(probe, folder.below("labels"), ".txt")
                if found is not None:
                    holder, number = found
                    evidence = f"{prefix}images is beside {prefix}labels, which holds .txt files ({number:,}"
                    evidence += f" in {holder.path.removeprefix(f'{at}/')})"
                    settings, doubts = _pair(probe, folder, holder)
                    doubts += (*_other_texts(probe, holder), *_lists_from_elsewhere(probe, at))
                    texts = [name for name in holder.ending(".txt") if name not in _CLASS_FILES][:_NUM_HEADS]
                    heads = [probe.head(holder.below(name)) for name in texts]
                    yield _with_notes(probe, at, Finding("yolo", evidence, settings, (), often, doubts=doubts), heads)
                    return
        root = probe.look(at)
        inner = [
            probe.look(root.below(name)) for name in root.folders[:_NUM_FOLDERS] if name not in input_places.SPLITS
        ]
        for folder in (*folder_probe.split_places(probe, at), *inner):
            pairs = sorted({posixpath.splitext(name)[0] for name in folder.ending(".txt")} & folder.stems)
            some = folder_probe.spread(pairs, _NUM_HEADS)[:_NUM_HEADS]
            heads = [probe.head(folder.below(f"{stem}.txt")).strip() for stem in some]
            if any(heads) and all(map(is_yolo, filter(None, heads))):
                where = f" in {folder.path}" if folder in inner else ""
                evidence = f"{folder.count_having(len(pairs), 'image')} a .txt file with boxes beside them{where}"
                settings = {"source.yolo.images": _splits_beside(folder, inner, at)} if where else {}
                yield _with_notes(probe, at, Finding("yolo", evidence, settings, (), often), heads)
                return
        yield from _find_named(probe, at, often)


def _splits_beside(folder: folder_probe.Folder, inner: Sequence[folder_probe.Folder], at: str) -> dict[str, str]:
    """Returns the folders of images by split: `folder`, and those beside it of other splits: obj_train_data."""
    alike = [each for each in inner if {posixpath.splitext(name)[0] for name in each.ending(".txt")} & each.stems]
    splits = {folder_probe.split_meant(posixpath.basename(each.path)): each for each in alike}
    if len(splits) < len(alike) or not splits.keys() >= {"train"} or None in splits:
        splits = {"train": folder}
    return {str(split): folder_probe.prefix_of(each, at)[:-1] for split, each in splits.items()}


_NUM_HEADS = 5  # label files that are looked into
_NUM_FOLDERS = 10  # beside those of splits, in which x.txt is looked for beside x.jpg


def _find_named(probe: folder_probe.FolderProbe, at: str, often: tuple[Change, ...]) -> Iterator[Finding]:
    """Finds the folders of images that a YAML file names, with labels of YOLO beside them."""
    root = probe.look(at)
    files = [name for name in root.ending(*_YAML) if _NAMES_IMAGES.search(probe.head(root.below(name)))]
    if not files:
        return
    try:
        parts = find(probe.uri(at), Yolo()).parts
    except errors.ConfigError:  # the classes or folders that it names are not there
        return
    heads = []
    for part in parts:
        images = probe.look(posixpath.join(at, part.path))
        paths = map(
            folder_probe.prefix_of(images, at).__add__, folder_probe.spread(images.images, _NUM_HEADS)[:_NUM_HEADS]
        )
        labels = [posixpath.join(at, label) for path in paths for label in Yolo()._rule.files_of(path)]
        heads += [probe.head(label) for label in labels if probe.holds(label)]
    if any(heads) and all(map(is_yolo, filter(None, heads))):
        evidence = f"{files[0]} names {folder_probe.and_list([part.path for part in parts])}, which have labels of YOLO"
        yield _with_notes(probe, at, Finding("yolo", evidence, {}, (), often), heads)


_NAMES_IMAGES = re.compile(rb"(?m)^(train|val)\s*:")


def _pair(
    probe: folder_probe.FolderProbe, folder: folder_probe.Folder, holder: folder_probe.Folder
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Returns the settings by which images find their labels, and a doubt if that leaves labels unread.

    Args:
        probe: of the data set.
        folder: that has the folders `images` and `labels`.
        holder: of the labels: `labels`, or a folder in it.
    """
    inside = holder.path.removeprefix(folder.below("labels")).strip("/")
    for below in dict.fromkeys((inside, "")):
        images = probe.look(posixpath.join(folder.below("images"), below))
        if probe.share_held([holder.below(f"{stem}.txt") for stem in images.stems]):
            unused = {posixpath.splitext(name)[0] for name in holder.ending(".txt")} - images.stems
            unused -= {"classes", "train", "val", "test"}
            some = f"{plural.count(len(unused), '.txt file')} in {holder.path} ({name_some(sorted(unused))})"
            doubts = (f"{some} have no image in {images.path}",)
            settings = {} if below == inside else {"source.yolo.label_folder": f"labels/{inside}"}
            return settings, doubts if unused and images.is_whole and holder.is_whole else ()
    return {}, (f"no image in {folder.below('images')} has a .txt file of its name in {holder.path}",)


def _with_notes(probe: folder_probe.FolderProbe, at: str, finding: Finding, heads: Iterable[bytes]) -> Finding:
    """Returns a finding with what the first labels hold that is not stored, and a note if no file names the classes."""
    root = probe.look(at)
    data = b"".join(probe.head(root.below(name)) for name in root.ending(*_YAML)[:3])
    lines = [line.split() for head in heads for line in head.splitlines() if line.strip()]
    most, least = (pick(map(len, lines), default=0) for pick in (max, min))
    notes, doubts = list[str](), [*finding.doubts]
    if b"kpt_shape" in data:
        notes.append("the keypoints after each box (kpt_shape) are not stored; those of COCO's JSON can be")
    elif least == most >= _OBB_FIELDS and ((most > _OBB_FIELDS and lines[2:]) or all(map(_are_keypoints, lines))):
        doubts.append(
            f"the {most} numbers on each line may be a box and keypoints: name them as kpt_shape in {_DATA_FILE}"
        )
    elif least == most == _OBB_FIELDS:
        notes.append("each line has four points, as turned boxes have: the upright boxes around them are stored")
    elif most > _OBB_FIELDS - 3:
        notes.append("the outlines of objects are not stored: lines of polygons become the boxes around them")
    boxes = [_numbers_of(line[1:5]) for line in lines if len(line) in (5, 6) or b"kpt_shape" in data]
    judged = box_signs.judge(
        [(box, box_signs.SHARES) for box in boxes if len(box) == 4], box_signs.CENTERED, "source.yolo"
    )
    doubts += judged.doubts
    notes += judged.notes
    listed = next((probe.head(path) for path in map(root.below, _CLASS_FILES) if probe.holds(path)), b"")
    names = [line.strip() for line in listed.splitlines() if line.strip()]
    if names and all(map(_NUMBERED_NAME.match, names)):
        shown = names[0].decode("utf-8", "replace")
        doubts.append(
            f"the names of classes have numbers before them, such as {shown!r}: leave one name alone on each line, in "
            "the order of the ids"
        )
    named = {name for folder in folder_probe.split_places(probe, at) for name in folder.files}
    if b"names:" not in data and {"obj.names", *_BESIDE_IMAGES}.isdisjoint(named):
        notes.append("if no file here names the classes, list them in source.yolo.classes, such as [cat, dog]")
    return dataclasses.replace(finding, notes=tuple(notes), doubts=tuple(doubts))


_NUMBERED_NAME = re.compile(rb"\d+\s*[:=.,)\s]\s*\S")
_BOX_FIELDS, _OBB_FIELDS = 5, 9  # class and a box, or four points


def _are_keypoints(line: list[bytes]) -> bool:
    """Returns whether what follows the first four numbers are points in the box of these."""
    if len(numbers := _numbers_of(line[1:])) < 4:
        return False
    x, y, width, height, *rest = numbers
    return any(
        len(rest) % size == 0
        and all(
            (px == py == 0) or (abs(px - x) <= width / 2 and abs(py - y) <= height / 2)
            for px, py in zip(rest[::size], rest[1::size])
        )
        for size in (2, 3)
    )


def _numbers_of(fields: Iterable[bytes]) -> list[float]:
    """Returns the numbers that fields are; none if one is no number."""
    try:
        return [*map(float, fields)]
    except ValueError:
        return []


_BOX_LINE = re.compile(rb"\d+(\s+-?[\d.]+(e-?\d+)?){4,}\s*")


def _other_texts(probe: folder_probe.FolderProbe, holder: folder_probe.Folder) -> Iterator[str]:
    """Yields a doubt if a text beside images holds words or fewer numbers, judged by the first lines of a few."""
    for name in [name for name in holder.ending(".txt") if name not in ("classes.txt", "train.txt", "val.txt")][
        :_NUM_HEADS
    ]:
        line = next(iter(probe.head(holder.below(name)).split(b"\n")), b"").strip()
        if line and (not _NUMBERS.fullmatch(line) or len(line.split()) < _BOX_FIELDS):
            shown = line[:40].decode("utf-8", "replace")
            yield f"{holder.below(name)} begins with {shown!r}: no five numbers, as YOLO has for a box"
            return


_NUMBERS = re.compile(rb"[-+.\de\s]+")


def _lists_from_elsewhere(probe: folder_probe.FolderProbe, at: str) -> Iterator[str]:
    """Yields a doubt if the first image of a list that data.yaml names is not here."""
    try:
        parts = find(probe.uri(at), Yolo()).parts
    except errors.ConfigError:  # the plan says so
        return
    for part in parts:
        line = next(iter(probe.head(posixpath.join(at, part.path)).split()), b"").decode("utf-8", "replace")
        path = posixpath.normpath(posixpath.join(at, posixpath.dirname(part.path), line))
        if part.is_list and line and not line.startswith("/") and not probe.holds(path):
            folders = {each.split: each.path for each in _parts_of_folders(probe.uri(at), "images")}
            shown = ", ".join(f"{split}: {folder}" for split, folder in folders.items())
            yield f"{part.path} names {line}, which is not here: for all images set source.yolo.images={{{shown}}}"
            return


def is_yolo(head: bytes) -> bool:
    """Returns whether the first line of a file is a box of YOLO, or a polygon."""
    line = next((line for line in head.splitlines() if line.strip()), b"")
    return _BOX_LINE.fullmatch(line.strip()) is not None


# --- where the images are ---------------------------------------------------------------------------------------------


class YoloSet(NamedTuple):
    """A data set: where its images are, and what their labels mean."""

    root: str
    parts: tuple[input_places.Part, ...]
    classes: image_objects.ClassNames
    num_keypoint_values: int = 0  # after each box


def find(uri: str, wanted: Yolo) -> YoloSet:
    """Returns the data set at an address: a folder, or its YAML file.

    Raises:
        ConfigError: if the images or the names of the classes cannot be found.
    """
    root, name = uri, wanted.data
    if uri.endswith(_YAML) and input_places.kind_of(uri) == storage.FILE:
        root, name = posixpath.dirname(uri) or ".", posixpath.basename(uri)
    else:
        input_places.require_folder(uri, "the folder of the data set, or its data.yaml")
    found = _find_data(root) if name is None else (name, _read_data(storage.join(root, name), "source.yolo.data"))
    path, data = found if found is not None else ("", {})
    where = storage.join(root, path) if path else ""
    if wanted.images is not None:
        parts = input_places.given_parts(root, wanted.images, "source.yolo.images")
    elif where:
        parts = tuple(_parts_of_data(root, posixpath.dirname(path), where, data))
    else:
        parts = tuple(_parts_of_folders(root, wanted.image_folder))
    _check_parts(parts, where)
    return YoloSet(root, parts, _classes(root, wanted, where, data, parts), _keypoints(where, data))


def _check_parts(parts: tuple[input_places.Part, ...], where: str) -> None:
    """Refuses two splits of the same images, which data.yaml may name: their keys would be the same.

    Raises:
        ConfigError: with the splits, and what to set instead.
    """
    splits: dict[str, str] = {}
    for part in parts:
        other = splits.setdefault(part.path, part.split)
        if other != part.split:
            raise errors.ConfigError(
                "yolo-split-twice",
                f"{where or 'source.yolo.images'}: {other} and {part.split} are the same {part.path or '.'!r}, and an "
                f"image has one split: set source.yolo.images={{train: {part.path or '.'}}}",
            )


# --- data.yaml -------------------------------------------------------------------------------------------------------


def _find_data(root: str) -> tuple[str, dict[str, Any]] | None:
    """Returns name and content of the YAML file of a data set; None if there is none."""
    uri = storage.join(root, _DATA_FILE)
    if input_places.kind_of(uri) == storage.FILE:
        return _DATA_FILE, _read_data(uri, _DATA_FILE)
    found = []
    for name in input_places.names_in(root, storage.FILE, _YAML):
        content = _read_yaml(storage.join(root, name))
        if isinstance(content, dict) and "names" in content:
            found.append((name, content))
    if len(found) > 1:
        raise errors.ConfigError(
            "yolo-data-ambiguous",
            f"{root!r} holds several YAML files with names of classes, {', '.join(name for name, _ in found)}: name "
            "one in source.yolo.data",
        )
    return found[0] if found else None


def _read_data(uri: str, option: str) -> dict[str, Any]:
    content = _read_yaml(uri)
    if not isinstance(content, dict):
        raise errors.ConfigError(
            "yolo-data-no-mapping", f"{option}: {uri!r} holds a {type(content).__name__}; expected a mapping with names"
        )
    return content


def _read_yaml(uri: str) -> Any:
    import yaml

    from imagebeam.transforms.sources import strict_yaml

    text = input_places.read_text(uri, _MAX_YAML_MIB, repr(uri), "see source.yolo.data", "no data.yaml")
    try:
        return strict_yaml.parse(text, uri)
    except (yaml.YAMLError, RecursionError, ValueError) as e:
        reason = strict_yaml.explain(e, text) if isinstance(e, yaml.YAMLError) else str(e)
        raise errors.ConfigError("yolo-data-no-yaml", f"{uri!r} is not YAML: {reason}") from e


def _classes(
    root: str, wanted: Yolo, where: str, data: Mapping[str, Any], parts: Sequence[input_places.Part]
) -> image_objects.ClassNames:
    if wanted.classes is not None:
        return image_objects.ClassNames(
            input_places.read_classes(root, wanted.classes, "source.yolo.classes"), None, wanted.base
        )
    if "names" in data:
        names, numbers = _names_of(data["names"], where)
        if isinstance(data.get("nc"), int) and data["nc"] != len(names):
            raise errors.ConfigError(
                "yolo-names-differ",
                f"{where!r} has nc: {data['nc']} and {len(names)} names; correct it, or set source.yolo.classes",
            )
        return image_objects.ClassNames(names, numbers, wanted.base)
    for path in _CLASS_FILES:
        if input_places.kind_of(storage.join(root, path)) == storage.FILE:
            return image_objects.ClassNames(input_places.read_classes(root, path, path), None, wanted.base)
    if found := _classes_beside_images(root, [part.path for part in parts if not part.is_list]):
        return image_objects.ClassNames(found, None, wanted.base)
    inner = None if where else next(filter(functools.partial(_is_set, root), input_places.names_in(root)), None)
    if inner is not None:
        raise input_places.give_inner(root, inner)
    have = f"{where!r} has no names" if where else f"{root!r} has no data.yaml and no classes.txt"
    raise errors.ConfigError(
        "yolo-no-classes",
        f"{have}, so the classes have no names; list them in source.yolo.classes, such as [cat, dog], or name a file",
    )


def _classes_beside_images(root: str, folders: Sequence[str]) -> tuple[str, ...]:
    """Returns the classes that files in the folders of images name; none if there are no such files.

    Raises:
        ConfigError: if files name different classes.
    """
    found: dict[tuple[str, ...], str] = {}
    for path in [posixpath.join(folder, name) for folder in folders for name in _BESIDE_IMAGES]:
        if input_places.kind_of(storage.join(root, path)) == storage.FILE:
            found.setdefault(input_places.read_classes(root, path, path), path)
    if len(found) > 1:
        raise errors.ConfigError(
            "yolo-classes-differ",
            f"{' and '.join(found.values())} in {root!r} name other classes, and a number is one class in all splits: "
            "convert each split alone, or list the classes in source.yolo.classes",
        )
    return next(iter(found), ())


def _is_set(root: str, name: str) -> bool:
    """Returns whether a folder in `root` has a file that names classes."""
    folder = storage.join(root, name)
    return any(input_places.kind_of(storage.join(folder, each)) == storage.FILE for each in (_DATA_FILE, *_CLASS_FILES))


def _names_of(value: Any, where: str) -> tuple[tuple[str, ...], tuple[int, ...] | None]:
    """Returns the names of the classes, and their numbers unless they count from 0."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found: dict[int, str] = {}
    for key, name in entries:
        number = int(key) if isinstance(key, str) and key.isdecimal() else key
        if isinstance(number, bool) or not isinstance(number, int) or number < 0 or number in found:
            raise errors.ConfigError(
                "yolo-bad-names", f"{where!r}: names has the key {key!r}; expected each number of a class once"
            )
        if isinstance(name, (dict, list)) or name is None:
            raise errors.ConfigError(
                "yolo-bad-names", f"{where!r}: the name of class {number} is {name!r}; expected a text"
            )
        found[number] = name if isinstance(name, str) else _as_written(name)
    if not found:
        raise errors.ConfigError(
            "yolo-bad-names", f"{where!r}: names is {value!r}; expected a list of names, or numbers with names"
        )
    numbers = tuple(sorted(found))
    names = tuple(found[number] for number in numbers)
    input_places.check_names(names, where)
    return names, None if numbers == tuple(range(len(numbers))) else numbers


def _as_written(value: Any) -> str:
    """Returns the text of a name that YAML takes for another type, as `no` or `1`."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _keypoints(where: str, data: Mapping[str, Any]) -> int:
    shape = data.get("kpt_shape")
    if shape is None:
        return 0
    if not isinstance(shape, list) or len(shape) != 2 or not all(isinstance(each, int) and each > 0 for each in shape):
        raise errors.ConfigError(
            "yolo-bad-keypoints",
            f"{where!r}: kpt_shape is {shape!r}; expected the number of keypoints and of values of each",
        )
    return math.prod(shape)


def _parts_of_data(root: str, folder: str, where: str, data: Mapping[str, Any]) -> Iterator[input_places.Part]:
    """Yields the folders and lists that a YAML file in `folder` names."""
    every = [(split, given) for split in input_places.SPLITS for given in _paths_of(where, split, data.get(split))]
    found = [(split, given, _find_place(root, folder, split, given, data.get("path"))) for split, given in every]
    here = [part for _, _, part in found if part is not None]
    for split, given, part in found:
        if part is None:
            shown = ", ".join(f"{each.split}: {each.path}" for each in here) or "train: train/images"
            raise errors.ConfigError(
                "yolo-no-images",
                f"{where!r}: {split} is {given!r}, and there is no such path below {root!r}: correct it, or name the "
                f"folders of images of every split that is there: source.yolo.images={{{shown}}}",
            )
        yield part
    if not found:
        raise errors.ConfigError(
            "yolo-no-images", f"{where!r} names no images, as train, val and test; add them, or set source.yolo.images"
        )


def _paths_of(where: str, split: str, value: Any) -> Iterator[str]:
    """Yields the paths that a YAML file has for a split."""
    for given in value if isinstance(value, list) else [value]:
        if given is None or given == "":
            continue
        if not isinstance(given, str):
            raise errors.ConfigError(
                "yolo-bad-images", f"{where!r}: {split} is {given!r}; expected a path, or a list of paths"
            )
        yield given


def _find_place(root: str, folder: str, split: str, given: str, base: Any) -> input_places.Part | None:
    """Returns the folder or list that a path in a YAML file means, which may have been written for another machine."""
    for path in dict.fromkeys(_candidates(root, folder, given, base if isinstance(base, str) else "")):
        kind = input_places.kind_of(storage.join(root, path) if path else root)
        if kind in (storage.DIRECTORY, storage.FILE):
            return input_places.Part(split, path, kind == storage.FILE)
    return None


def _candidates(root: str, folder: str, given: str, base: str) -> Iterator[str]:
    """Yields paths below the root in the order in which they are tried.

    Source: check_det_dataset in ultralytics/data/utils.py, which also drops a leading "../".
    """
    for start in (base, ""):
        path = posixpath.join(start, given)
        if path.startswith("/") or "://" in path:
            below = storage.normalize(path).removeprefix(storage.join(root, ""))
            if below.startswith("/") or "://" in below:
                continue
            path = below
        else:
            path = posixpath.join(folder, path)
        path = posixpath.normpath(path)
        if path.split("/")[0] != "..":
            yield "" if path == "." else path
    if not given.startswith("/"):
        path = posixpath.normpath(given)
        while path.startswith("../"):
            path = path[3:]
        if path not in ("..", "."):
            yield path


# --- folders ---------------------------------------------------------------------------------------------------------


def _parts_of_folders(root: str, images: str) -> Iterator[input_places.Part]:
    """Yields the folders of images of a data set without a YAML file."""
    folders = input_places.names_in(root)
    if images in folders:
        below = input_places.names_in(storage.join(root, images))
        for split, path, _ in input_places.parts_of_splits(below):
            yield input_places.Part(split, posixpath.join(images, path) if path else images)
        return
    for part in input_places.parts_of_splits(folders):
        inner = f"{part.path}/{images}"
        has_images = part.path and input_places.kind_of(storage.join(root, inner)) == storage.DIRECTORY
        yield part._replace(path=inner) if has_images else part
