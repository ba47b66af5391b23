"""Lists images with objects from annotation files in COCO's JSON format."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from imagebeam import errors
from imagebeam.transforms.images import object_masks
from imagebeam.transforms.objects import image_objects
from imagebeam.transforms.sources import annotation_tables, coco_json, image_source, object_tables

# Sources of the values in ImageRef.columns, in this order; MASKS follows only if masks are stored.
COLUMNS = ("image/source_id", *image_objects.COLUMNS, "image/object/area", "image/object/is_crowd")
MASKS = object_masks.FEATURE


@dataclasses.dataclass(frozen=True)
class CocoSource(annotation_tables.AnnotationTableSource):
    """Annotation files in COCO's format, and the folders of their images below `root`."""

    objects: coco_json.ObjectRule = coco_json.BOXES

    OPTION: ClassVar[str] = "source.coco"

    def read(
        self, split: annotation_tables.AnnotatedSplit, found: image_source.ListingBuilder
    ) -> tuple[object_tables.ImageTable, object_tables.ObjectTable]:
        with coco_json.open_file(split.annotations) as file:
            images = coco_json.read_images(file, self.fields.needed)
            return images, coco_json.read_objects(file, images, self.objects, found.passed_over)

    def check_head(self, split: annotation_tables.AnnotatedSplit, head: bytes) -> None:
        head = head.removeprefix(coco_json.BYTE_ORDER_MARK).lstrip()
        if not head.startswith(b"{"):
            raise errors.ConfigError(
                f"{self.OPTION}.annotations.{split.name}: {split.annotations!r} begins with {head[:8]!r}; a JSON "
                "object begins with {"
            )

    def values_of(self, image_id: int | str, objects: object_tables.Objects) -> tuple[Any, ...]:
        source_id = str(image_id).encode("utf-8", "surrogateescape")
        return (source_id, *(objects if self.objects.masks else objects[:-1]))
