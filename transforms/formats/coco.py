"""COCO's format: JSON files with the objects, captions or segments of many images each."""

from __future__ import annotations

import dataclasses
import itertools
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

from imagebeam import errors, storage
from imagebeam.storage import remote
from imagebeam.transforms import elements
from imagebeam.transforms.formats import base_format, coco_heads, coco_json
from imagebeam.transforms.images import class_masks, image_objects, object_masks
from imagebeam.transforms.sources import (
    annotation_tables,
    folder_probe,
    image_source,
    input_places,
    name_signs,
    table_rows,
)
from imagebeam.transforms.sources.annotation_tables import AnnotatedSplit, ImageTable, Objects, ObjectTable
from imagebeam.transforms.sources.folder_probe import HEAD_BYTES, Change, Finding, Folder, FolderProbe, split_meant

# Sources of the values in ImageRef.columns, in this order; the others follow only if they are stored.
SOURCE_ID = "image/source_id"
COLUMNS = (SOURCE_ID, *image_objects.COLUMNS, "image/object/area", "image/object/is_crowd")
MASKS = object_masks.FEATURE
CAPTIONS = "image/caption"


@dataclasses.dataclass(frozen=True)
class Coco(base_format.Format):
    """Annotations of objects in COCO's JSON format."""

    ABOUT: ClassVar[str] = "COCO's JSON of objects in images"
    PRESETS: ClassVar[tuple[str, ...]] = ("coco", "coco_captions", "coco_keypoints", "coco_panoptic", "lvis")

    annotations: dict[str, str] = dataclasses.field(
        default_factory=lambda: {
            "train": "annotations/instances_train2017.json",
            "validation": "annotations/instances_val2017.json",
        }
    )
    """Annotation files below `source.uri`, by split."""
    images: dict[str, str] = dataclasses.field(default_factory=lambda: {"train": "train2017", "validation": "val2017"})
    """Folders of the images below `source.uri`, by split."""
    masks: bool = False
    """If true, each object's mask is stored, as a PNG of the image's size."""
    keypoints: bool = False
    """If true, the keypoints of each object are stored (`annotations/person_keypoints_train2017.json`): as many as the
    categories name, 0 where an object has none."""
    captions: dict[str, str] | None = None
    """Annotation files with captions below `source.uri`, by split (`annotations/captions_train2017.json`): stored as a
    list for each image."""
    panoptic: dict[str, str] | None = None
    """Folders of the PNGs of panoptic annotations below `source.uri`, by split (`annotations/panoptic_train2017`, with
    `panoptic_train2017.json` as `annotations`): the category of each pixel is stored as a mask, 255 where there is
    none, and the segments as objects."""
    objects: bool = True
    """If false, `annotations` are read for the images that they list, and not for objects: they may be files of
    captions."""
    outside: Literal["clip", "reject"] = "clip"
    """What to do with a box that leaves the image: clip it at the edge (and drop it if nothing is left), or reject
    the image."""
    categories: tuple[str, ...] | None = None
    """Names of the categories whose objects are stored, with the ids of the file; by default all. Objects of others are
    counted."""
    crowd: bool = True
    """If true, objects marked `iscrowd` are stored."""
    without_objects: bool = True
    """If true, images without an object are stored."""

    def __post_init__(self) -> None:
        if not self.annotations or set(self.annotations) != set(self.images):
            raise ValueError(_name_the_same("annotations", self.annotations, "images", self.images))
        for name, paths in (("captions", self.captions), ("panoptic", self.panoptic)):
            if paths is not None and set(paths) != set(self.annotations):
                raise ValueError(_name_the_same(name, paths, "annotations", self.annotations))
        if self.panoptic is not None and (self.masks or self.keypoints or self.captions or self.categories):
            raise ValueError(
                "source.coco.panoptic stores one mask for all segments: leave out masks, keypoints, captions and "
                "categories"
            )
        if not self.objects and (
            self.panoptic or self.masks or self.keypoints or self.categories or not self.without_objects
        ):
            raise ValueError(
                "source.coco.objects: false reads no objects: leave out masks, panoptic, keypoints, categories "
                "and without_objects"
            )

    def gives(self) -> base_format.Gives:
        features = {
            "objects": self.objects,
            "object areas": self.objects,
            "object masks": self.masks,
            "object keypoints": self.keypoints,
            "captions": self.captions is not None,
            "segmentation": self.panoptic is not None,
        }
        frames = (
            "image.frames: each",
            "repeats the boxes of a file for each of its frames, but not the masks: set source.coco.masks: false, or "
            "image.frames: first or reject",
        )
        return base_format.Gives(
            columns=True,
            splits=True,
            features=frozenset(name for name, is_given in features.items() if is_given),
            refuses=(frames,) if self.masks else (),
        )

    def open(self, request: base_format.Request) -> image_source.ImageSource:
        with remote.budget(remote.CHECK_BUDGET_SEC):
            uri = request.uri
            source = CocoSource(
                root=uri,
                splits=tuple(
                    AnnotatedSplit(split, storage.join(uri, path), input_places.path_below(self.images[split]))
                    for split, path in self.annotations.items()
                ),
                objects=coco_json.ObjectRule(self.masks, self.outside == "reject", self.crowd, self.categories or ()),
                has_objects=self.objects,
                panoptic=tuple((split, storage.join(uri, path)) for split, path in (self.panoptic or {}).items()),
                captions=tuple((split, storage.join(uri, path)) for split, path in (self.captions or {}).items()),
                without_objects=self.without_objects,
                fields=request.fields,
            )
            source.check()
            if self.keypoints:
                objects = dataclasses.replace(source.objects, keypoints=_keypoint_names(source))
                source = dataclasses.replace(source, objects=objects)
            used = (split.folder for split in source.splits)
            return dataclasses.replace(source, unread=input_places.find_unread(uri, used, (), request.output))

    def reads(self, probe: FolderProbe, at: str) -> base_format.Reads:
        exact, whole = set[str](), set[str]()  # folders that names state, and those of files that may state any
        for split, path in self.annotations.items():
            above = input_places.path_below(self.images[split])
            names = _FILE_NAME.findall(probe.head(posixpath.join(at, path)))
            exact |= {posixpath.dirname(posixpath.join(above, name.decode("utf-8", "replace"))) for name in names}
            whole |= set() if names else {posixpath.join(above, "")}
        files = (*self.annotations.values(), *(self.captions or {}).values())
        panoptic = (f"{folder}/*" for folder in (self.panoptic or {}).values())
        return base_format.Reads(
            lambda path: posixpath.dirname(path) in exact or path.startswith(tuple(whole)),
            files=(*files, *panoptic),
            num_splits=len(self.annotations),
            guessed=tuple(input_places.path_below(each) for each in self.images.values()),
        )

    @classmethod
    def detect(cls, probe: FolderProbe, at: str) -> Iterator[Finding]:
        """Finds COCO's files: boxes, captions, keypoints, panoptic masks, LVIS, and exports of Roboflow."""
        yield from exports(probe, at)
        yield from _find_coco(probe, at)
        yield from _find_lvis(probe, at)


def _name_the_same(name: str, paths: Mapping[str, str], other: str, others: Mapping[str, str]) -> str:
    return (
        f"source.coco.{name} names the splits {', '.join(paths) or 'none'}, source.coco.{other} "
        f"{', '.join(others) or 'none'}; name the same in both"
    )


def _keypoint_names(source: CocoSource) -> tuple[str, ...]:
    """Returns the names of the keypoints in all annotation files. Reads these files: names are often at their end.

    Raises:
        ConfigError: if a file cannot be read, or names other keypoints than the others.
    """
    found: dict[tuple[str, ...], str] = {}
    for split in source.splits:
        try:
            with coco_json.open_file(split.annotations) as file:
                found.setdefault(coco_json.read_keypoint_names(file), split.name)
        except (annotation_tables.AnnotationFileError, OSError) as e:
            raise errors.ConfigError("coco-no-keypoints", f"source.coco.keypoints: {e}") from e
    if len(found) > 1:
        raise errors.ConfigError(
            "coco-keypoints-differ",
            f"source.coco.keypoints: the files of {' and '.join(found.values())} name other keypoints; convert them to "
            "two datasets",
        )
    return next(iter(found))


@dataclasses.dataclass(frozen=True)
class CocoSource(annotation_tables.AnnotationTableSource):
    """Annotation files in COCO's format, and the folders of their images below `root`."""

    objects: coco_json.ObjectRule = coco_json.BOXES
    has_objects: bool = True  # false: the files are read for their images alone
    panoptic: tuple[tuple[str, str], ...] = ()  # address of the folder of panoptic PNGs of each split
    captions: tuple[tuple[str, str], ...] = ()  # address of the file with the captions of each split

    OPTION: ClassVar[str] = "source.coco"
    ON_REPEATED_KEY: ClassVar[str] = (
        "name each image in one file of source.coco.annotations, with one entry in its list of images"
    )

    def facts(self) -> image_source.SourceFacts:
        return super().facts()._replace(keypoints=self.objects.keypoints)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the values that `values_of` returns."""
        return (
            *(COLUMNS if self.has_objects else (SOURCE_ID,)),
            *((MASKS,) if self.objects.masks else ()),
            *(image_objects.KEYPOINT_COLUMNS if self.objects.keypoints else ()),
            *((CAPTIONS,) if self.captions else ()),
            *((class_masks.SEGMENTS_COLUMN,) if self.panoptic else ()),
        )

    def read(self, split: AnnotatedSplit, found: image_source.ListingBuilder) -> tuple[ImageTable, ObjectTable]:
        with coco_json.open_file(split.annotations) as file:
            images = coco_json.read_images(file, self.fields.needed)
            if self.panoptic:
                objects = coco_json.read_segments(file, images, self.objects, found.skipped)
            elif self.has_objects:
                objects = coco_json.read_objects(file, images, self.objects, found.skipped)
            else:
                objects = ObjectTable(len(images.names), {})
        if self.captions:
            with coco_json.open_file(dict(self.captions)[split.name]) as file:
                coco_json.read_captions(file, images, found.skipped)
        return images, objects

    def check(self) -> None:
        super().check()
        for name, uri in self.captions:
            self._check_annotations(AnnotatedSplit(name, uri, ""), "captions")

    def check_head(self, split: AnnotatedSplit, head: bytes) -> None:
        head = head.removeprefix(coco_json.BYTE_ORDER_MARK).lstrip()
        if not head.startswith(b"{"):
            raise errors.ConfigError(
                "coco-not-json",
                f"{self.OPTION}.annotations.{split.name}: {split.annotations!r} begins with {head[:8]!r}; a JSON "
                "object begins with {",
            )

    def values_of(self, images: ImageTable, number: int, objects: Objects) -> tuple[Any, ...]:
        *stored, masks, keypoints = objects
        values: tuple[Any, ...] = (str(images.ids[number]).encode("utf-8", "surrogateescape"),)
        if self.has_objects:
            values += tuple(stored)
        if self.objects.masks:
            values += (masks,)
        if self.objects.keypoints:
            values += _keypoint_values(keypoints, len(self.objects.keypoints))
        if self.captions:
            values += (tuple(images.captions.get(number, ())),)
        if self.panoptic:
            values += (images.panoptic[number][1],)
        return values

    def mask_of(self, split: AnnotatedSplit, images: ImageTable, number: int) -> str | None:
        if not self.panoptic:
            return None
        name = images.panoptic[number][0]
        if "/" in name:
            raise table_rows.BadRowError(elements.Reason.OUTSIDE_ROOT, f"file_name {name!r} is not a name in a folder")
        return storage.join(dict(self.panoptic)[split.name], name)


def _keypoint_values(keypoints: tuple[float, ...], count: int) -> tuple[Any, ...]:
    """Returns x, y and visibility of all keypoints, and the number of labeled ones of each object."""
    visibility = tuple(map(int, keypoints[2::3]))
    num = tuple(sum(map(bool, visibility[start : start + count])) for start in range(0, len(visibility), count))
    return keypoints[::3], keypoints[1::3], visibility, num


# --- detection ------------------------------------------------------------------------------------------------------


def exports(probe: FolderProbe, at: str) -> Iterator[Finding]:
    """Finds the JSON files that Roboflow writes."""

    def settings_of(paths: Mapping[str, str]) -> dict[str, Any]:
        return _settings_of({split: _Place(f"{path}{EXPORT}", path.rstrip("/")) for split, path in paths.items()})

    return folder_probe.find_exports(probe, at, "coco", EXPORT, settings_of)


EXPORT = "_annotations.coco.json"  # Roboflow writes it beside the images


class _Kind(NamedTuple):
    """One kind of file that COCO's images come with."""

    preset: str
    names: re.Pattern[str]  # names of such files
    what: str


_KINDS = (
    _Kind("coco_keypoints", re.compile(r"(?i).*keypoints.*\.json"), "JSON of keypoints"),
    _Kind("coco_captions", re.compile(r"(?i).*captions?.*\.json"), "JSON of captions"),
    _Kind("coco_panoptic", re.compile(r"(?i).*panoptic.*\.json"), "JSON of panoptic masks"),
)
_OTHER_KINDS = re.compile(r"(?i)caption|keypoint|panoptic|stuff|images?_info|_annotations.coco|^lvis_")
_LVIS = re.compile(r"(?i)lvis_.*\.json")


class _Place(NamedTuple):
    """Annotation file of a split and the folder of its images, both below the data set."""

    annotations: str
    images: str


class _File(NamedTuple):
    """JSON with COCO's list of images."""

    holder: Folder
    name: str
    preset: str  # that reads it; "" if none does
    first_image: Any  # the `file_name` in it, which may be no text


def _find_coco(probe: FolderProbe, at: str) -> Iterator[Finding]:
    """Finds JSON with images, annotations and categories, and the folder of the images of each."""
    files = _files_in(probe, at)
    places = _find_places(probe, at, files, "coco", prefers="instances")
    if places:
        doubts = (*_rivals(files, "coco", places, at), *_without_objects(probe, at, places))
        whole = Finding("coco", f"JSON of COCO: {_show(places)}", _settings_of(places), doubts=doubts)
        yield _judge(whole, probe, at, places)
    kinds = {kind: found for kind in _KINDS if (found := _find_places(probe, at, files, kind.preset))}
    which: tuple[str, ...] = ()
    if len(kinds) > 1 and not places:
        which = (
            f"{folder_probe.and_list([kind.what for kind in kinds])} are of the same images, and one of them is read",
        )
    for kind, places in kinds.items():
        doubts = (*which, *_rivals(files, kind.preset, places, at))
        settings = _settings_of(places)
        if kind.preset == "coco_captions":
            settings["source.coco.captions"] = settings["source.coco.annotations"]
        evidence = f"{kind.what}: {_show(places)}"
        if kind.preset != "coco_panoptic":
            yield _judge(Finding(kind.preset, evidence, settings, doubts=doubts), probe, at, places)
            continue
        masks = {split: posixpath.splitext(place.annotations)[0] for split, place in places.items()}
        settings["source.coco.panoptic"] = masks
        packed = [path for path in masks.values() if not probe.look(posixpath.join(at, path)).ending(".png")]
        if packed:
            note = f"unpack {packed[0]}.zip first: the folder {packed[0]} must hold the PNG files"
            yield Finding(kind.preset, evidence, settings, doubts=(note,))
        else:
            evidence += f", and PNG files in {masks[next(iter(masks))]}"
            yield Finding(kind.preset, evidence, settings, doubts=doubts)


_MASKS = Change("source.coco.masks", True, "also the mask of each object, for Mask R-CNN")


def _judge(finding: Finding, probe: FolderProbe, at: str, places: Mapping[str, _Place]) -> Finding:
    """Returns a finding with what its files hold that is not stored, and what contradicts how they are read."""
    heads = {split: coco_heads.read(probe, [posixpath.join(at, each.annotations)]) for split, each in places.items()}
    every = coco_heads.Heads(*(list(itertools.chain(*each)) for each in zip(*heads.values())))
    name, splits = every.splits()
    is_known = all({*each.splits()[1].values()} <= {split} for split, each in heads.items())
    is_used = len(places) == 1 and len({*splits.values()} - {None}) == len(splits) > 0
    doubts, notes, settings = [*finding.doubts], [*every.notes(name if is_used else "")], dict(finding.settings)
    if finding.preset != "coco_captions":
        judged = every.judge_boxes()
        doubts += judged.doubts
        notes += judged.notes
    often = (_MASKS,) if finding.preset != "coco_captions" and every.may_have_outlines else ()
    if is_used:
        settings["split"] = {"by": "column", "column": name}
        settings["split"]["rename"] = {value: meant for value, meant in splits.items() if value != meant}
        notes.append(f"the splits are those of the field {name} of images ({', '.join(splits)})")
    elif name and not is_known:
        shown = folder_probe.name_some([*splits])
        doubts.append(
            f"the field {name} of images may be the split ({shown}): set split={{by: column, column: {name}}}"
        )
    return dataclasses.replace(finding, settings=settings, notes=tuple(notes), often=often, doubts=tuple(doubts))


def _find_lvis(probe: FolderProbe, at: str) -> Iterator[Finding]:
    """Finds lvis_v1_train.json, whose images are in the folders of COCO that their addresses name."""
    places: dict[str, _Place] = {}
    for holder in _holders(probe, at):
        for name in filter(_LVIS.fullmatch, holder.ending(".json")):
            split = split_meant(name)
            folder = _folder_of_urls(probe, at, probe.head(holder.below(name)))
            if split is not None and folder is not None:
                places.setdefault(split, _Place(holder.below(name).removeprefix(f"{at}/"), folder))
    if "train" in places:
        evidence = f"JSON of LVIS: {_show(places)}"
        often = (Change("source.coco.masks", True, "also the mask of each object"),)
        yield Finding("lvis", evidence, _settings_of(places), (), often)


def _folder_of_urls(probe: FolderProbe, at: str, head: bytes) -> str | None:
    """Returns the folder that has the folders of COCO's images; None if it is nowhere."""
    named = sorted({url.decode().split("/")[-2] for url in re.findall(rb'"coco_url":\s*"([\w:/.-]+/[\w.-]+)"', head)})
    wanted = named or ["train2017", "val2017"]  # the beginning of the file may have no image
    root = probe.look(at)
    for folder in ["", *root.folders[:_NUM_FOLDERS]]:
        inner = probe.look(posixpath.join(at, folder) if folder else at)
        if any(name in inner.folders and probe.look(inner.below(name)).images for name in wanted):
            return folder
    return None


_NUM_FOLDERS = 20


def _holders(probe: FolderProbe, at: str) -> list[Folder]:
    root = probe.look(at)
    names = [name for name in root.folders if name_signs.ANNOTATIONS.search(name) or split_meant(name) is not None]
    return [root, *(probe.look(root.below(name)) for name in names)]


def _files_in(probe: FolderProbe, at: str) -> list[_File]:
    found = []
    for holder in _holders(probe, at):
        for name in holder.ending(".json"):
            head = probe.head(holder.below(name))
            shape = folder_probe.shape_of_json(head)
            if _is_coco(shape, is_whole=len(head) < HEAD_BYTES):
                found.append(_File(holder, name, _preset_of(name, shape), shape["images"]["file_name"]))
    return found


def _find_places(
    probe: FolderProbe, at: str, files: Sequence[_File], preset: str, prefers: str | None = None
) -> dict[str, _Place]:
    """Returns the files that a preset reads, by split: those whose first image is found.

    Args:
        probe: of the folder.
        at: the data set in it.
        files: of the data set.
        preset: that reads one kind of file.
        prefers: part of the name of the file that is taken if there are several for a split.
    """
    root = probe.look(at)
    places: dict[str, _Place] = {}
    for holder, name, _, first_image in (each for each in files if each.preset == preset):
        path = holder.below(name).removeprefix(f"{at}/")
        split = split_meant(name) or split_meant(path) or "train"
        if split in places and (prefers is None or prefers not in name):
            continue
        folder = _folder_of_names(probe, at, root, first_image, posixpath.splitext(path)[0])
        if folder is not None:
            places[split] = _Place(path, folder)
    return places


_NO_OBJECTS = re.compile(rb'"annotations"\s*:\s*\[\s*\]')


def _without_objects(probe: FolderProbe, at: str, places: Mapping[str, _Place]) -> Iterator[str]:
    """Yields a doubt for each file that has images and no object."""
    for split, place in places.items():
        path = posixpath.join(at, place.annotations)
        if _NO_OBJECTS.search(probe.head(path)) or _NO_OBJECTS.search(probe.tail(path)):
            yield (
                f"{place.annotations} has no annotations, and its images would be ones without objects: if nobody has "
                f"labelled them, leave {split} out of source.coco.annotations and source.coco.images"
            )


def _rivals(files: Sequence[_File], preset: str, places: Mapping[str, _Place], at: str) -> tuple[str, ...]:
    """Returns a doubt if other files of a preset have a split that it takes from one of them."""
    read = {place.annotations for place in places.values()}
    paths = [each.holder.below(each.name).removeprefix(f"{at}/") for each in files if each.preset == preset]
    others = [path for path in paths if path not in read and not _OTHER_KINDS.search(posixpath.basename(path))]
    shown = f"{folder_probe.name_some(others)} {'is' if len(others) == 1 else 'are'} of the same kind and splits"
    return (f"{shown}, and not read: name those that are meant in source.coco.annotations",) if others else ()


_FILE_NAME = re.compile(rb'"file_name"\s*:\s*"([^"\\]*)"')


def _settings_of(places: Mapping[str, _Place]) -> dict[str, Any]:
    return {
        "source.coco.annotations": {split: place.annotations for split, place in places.items()},
        "source.coco.images": {split: place.images or "." for split, place in places.items()},
    }


def _show(places: Mapping[str, _Place]) -> str:
    return ", ".join(f"{each.annotations} for the images in {each.images or 'the folder'}" for each in places.values())


def _is_coco(shape: Mapping[str, Mapping[str, Any]], is_whole: bool) -> bool:
    has_images = "file_name" in shape.get("images", {})
    return has_images and ("annotations" in shape or (not is_whole and "id" in shape["images"]))


def _preset_of(name: str, shape: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the preset that reads a file: by its first annotation, and where that tells nothing by its name."""
    first = shape.get("annotations", {})
    if "segments_info" in first:
        return "coco_panoptic"
    if "caption" in first:
        return "coco_captions"
    if "keypoints" in first:
        return "coco_keypoints"
    kinds = [kind.preset for kind in _KINDS if kind.names.fullmatch(name)]
    if "coco_keypoints" in kinds:
        return "coco_keypoints"
    if first:  # without a box, category_id is the class of an image
        return "coco" if "bbox" in first else ""
    if not _OTHER_KINDS.search(name):
        return "coco"
    return kinds[0] if kinds else ""


def _folder_of_names(probe: FolderProbe, at: str, root: Folder, name: Any, file: str) -> str | None:
    """Returns the folder below `at` that has the first image of a JSON file; None if it is nowhere."""
    if not isinstance(name, str) or not name:
        return None
    stem = posixpath.basename(file)
    near = [each for each in root.folders if stem.endswith(each) or each.endswith(stem)]
    meant = split_meant(stem) or split_meant(file)
    near += [each for each in root.folders if meant is not None and split_meant(each) == meant]
    below = [
        f"{each}/{inner}"
        for each in ("images", *root.folders[:20])
        if each in root.folders
        for inner in probe.look(root.below(each)).folders[:10]
    ]
    below.sort(key=lambda each: split_meant(each) != meant if meant is not None else False)
    for each in dict.fromkeys(["", *near, *below, *root.folders]):
        path = posixpath.join(at, each, name)
        if probe.holds(path):
            return each
    return None
