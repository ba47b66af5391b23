"""COCO's format: JSON files with the objects, captions or segments of many images each."""

from __future__ import annotations

import dataclasses
import posixpath
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from imagebeam import errors, storage
from imagebeam.storage import remote
from imagebeam.transforms import elements
from imagebeam.transforms.formats import base_format, coco_detect, coco_json
from imagebeam.transforms.images import class_masks, image_objects, object_masks
from imagebeam.transforms.sources import (
    annotation_tables,
    image_source,
    input_places,
    table_rows,
)
from imagebeam.transforms.sources.annotation_tables import AnnotatedSplit, ImageTable, Objects, ObjectTable
from imagebeam.transforms.sources.folder_probe import Finding, FolderProbe

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
            names = coco_detect.FILE_NAME.findall(probe.head(posixpath.join(at, path)))
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
        yield from coco_detect.exports(probe, at)
        yield from coco_detect.find_coco(probe, at)
        yield from coco_detect.find_lvis(probe, at)

    @classmethod
    def remarks(cls, probe: FolderProbe) -> Iterator[str]:
        return coco_detect.remarks(probe)


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
            images = coco_json.read_images(file, self.fields.needed, is_sized=self.has_objects or bool(self.panoptic))
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
