"""Lists images with objects and captions from annotation files in COCO's JSON format."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from imagebeam import errors, storage
from imagebeam.transforms import elements
from imagebeam.transforms.images import image_objects, object_masks, segment_masks
from imagebeam.transforms.objects import coco_json, object_tables
from imagebeam.transforms.sources import annotation_tables, image_source, table_rows

# Sources of the values in ImageRef.columns, in this order; the others follow only if they are stored.
SOURCE_ID = "image/source_id"
COLUMNS = (SOURCE_ID, *image_objects.COLUMNS, "image/object/area", "image/object/is_crowd")
MASKS = object_masks.FEATURE
CAPTIONS = "image/caption"


@dataclasses.dataclass(frozen=True)
class CocoSource(annotation_tables.AnnotationTableSource):
    """Annotation files in COCO's format, and the folders of their images below `root`."""

    objects: coco_json.ObjectRule = coco_json.BOXES
    has_objects: bool = True  # false: the files are read for their images alone
    panoptic: tuple[tuple[str, str], ...] = ()  # address of the folder of panoptic PNGs of each split
    captions: tuple[tuple[str, str], ...] = ()  # address of the file with the captions of each split

    OPTION: ClassVar[str] = "source.coco"

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the values that `values_of` returns."""
        return (
            *(COLUMNS if self.has_objects else (SOURCE_ID,)),
            *((MASKS,) if self.objects.masks else ()),
            *(image_objects.KEYPOINT_COLUMNS if self.objects.keypoints else ()),
            *((CAPTIONS,) if self.captions else ()),
            *((segment_masks.COLUMN,) if self.panoptic else ()),
        )

    def read(
        self, split: annotation_tables.AnnotatedSplit, found: image_source.ListingBuilder
    ) -> tuple[object_tables.ImageTable, object_tables.ObjectTable]:
        with coco_json.open_file(split.annotations) as file:
            images = coco_json.read_images(file, self.fields.needed)
            if self.panoptic:
                objects = coco_json.read_segments(file, images, self.objects, found.passed_over)
            elif self.has_objects:
                objects = coco_json.read_objects(file, images, self.objects, found.passed_over)
            else:
                objects = object_tables.ObjectTable(len(images.names), {})
        if self.captions:
            with coco_json.open_file(dict(self.captions)[split.name]) as file:
                coco_json.read_captions(file, images, found.passed_over)
        return images, objects

    def check(self) -> None:
        super().check()
        for name, uri in self.captions:
            self._check_annotations(annotation_tables.AnnotatedSplit(name, uri, ""), "captions")

    def check_head(self, split: annotation_tables.AnnotatedSplit, head: bytes) -> None:
        head = head.removeprefix(coco_json.BYTE_ORDER_MARK).lstrip()
        if not head.startswith(b"{"):
            raise errors.ConfigError(
                f"{self.OPTION}.annotations.{split.name}: {split.annotations!r} begins with {head[:8]!r}; a JSON "
                "object begins with {"
            )

    def values_of(
        self, images: object_tables.ImageTable, number: int, objects: object_tables.Objects
    ) -> tuple[Any, ...]:
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

    def mask_of(
        self, split: annotation_tables.AnnotatedSplit, images: object_tables.ImageTable, number: int
    ) -> str | None:
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
