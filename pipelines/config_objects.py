"""Sections of `source` for objects in images: boxes with classes, in the formats other than COCO's JSON."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pydantic

from imagebeam.pipelines.config_fields import STRICT, NotBool

ClassBase = Annotated[int, pydantic.Field(ge=0, le=1), NotBool]


class YoloConfig(pydantic.BaseModel):
    """Label files in YOLO's format: `class x y width height` on each line."""

    model_config = STRICT

    data: str | None = None
    """YAML file with the names of the classes and the folders or lists of images, below `source.uri`. By default the
    file `data.yaml`, or the only YAML file there that has `names`."""
    images: dict[str, tuple[str, ...]] | None = None
    """Folders of images, or text files with a path on each line, below `source.uri`, by split. By default those of
    `data`; without such a file: `images/train` or `train/images` and the like, or all images in one split, `train`."""
    classes: str | tuple[str, ...] | None = None
    """Names of the classes in the order of their numbers, or a file below `source.uri` with a name on each line. By
    default the names in `data`, or the file `classes.txt` or `obj.names`."""
    base: ClassBase = 0
    """Added to the number of a class, makes the id that is stored: 1 if a trainer takes 0 for the background."""
    polygons: Literal["box", "reject"] = "box"
    """What to do with a line that holds a polygon: store the box around it, or reject the image."""
    confidence: Literal["reject", "drop"] = "reject"
    """What to do with a sixth number after the box: reject the image, or leave the number out."""
    outside: Literal["clip", "reject"] = "clip"
    """What to do with a box that leaves the image, as in `source.coco.outside`."""
    without_labels: Literal["keep", "pass_over", "reject"] = "keep"
    """What to do with an image without a label file: keep it as an image without objects, pass it over, or reject it.
    An image with an empty label file is kept."""

    @pydantic.field_validator("images", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {split: (path,) if isinstance(path, str) else path for split, path in value.items()}
