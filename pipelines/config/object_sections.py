"""Sections of `source` for objects in images: boxes with classes, in the formats other than COCO's JSON."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pydantic

from imagebeam.pipelines.config.field_types import STRICT, NotBool


def _as_lists(value: Any) -> Any:
    """Returns a mapping with each text in it as a list of one."""
    if not isinstance(value, dict):
        return value
    return {split: (path,) if isinstance(path, str) else path for split, path in value.items()}


ClassBase = Annotated[int, pydantic.Field(ge=0, le=1), NotBool]
PathsBySplit = Annotated[dict[str, tuple[str, ...]], pydantic.BeforeValidator(_as_lists)]


class YoloConfig(pydantic.BaseModel):
    """Label files in YOLO's format: `class x y width height` on each line."""

    model_config = STRICT

    data: str | None = None
    """YAML file with the names of the classes and the folders or lists of images, below `source.uri`. By default the
    file `data.yaml`, or the only YAML file there that has `names`."""
    images: PathsBySplit | None = None
    """Folders of images, or text files with a path on each line, below `source.uri`, by split. By default those of
    `data`; without such a file: `images/train` or `train/images` and the like, or all images in one split, `train`."""
    image_folder: str = pydantic.Field("images", min_length=1)
    """Name of the folders of images: the last one of this name in the path of an image is replaced by `label_folder`.
    An image in no such folder has its label file beside it."""
    label_folder: str = pydantic.Field("labels", min_length=1)
    """Name of the folders of label files."""
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


class VocConfig(pydantic.BaseModel):
    """Annotations of objects in Pascal VOC's XML, one file for each image."""

    model_config = STRICT

    images: PathsBySplit | None = None
    """Lists of images (`ImageSets/Main/train.txt`: a name on each line) or folders of images, below `source.uri`, by
    split. By default the lists train, val and test in `ImageSets/Main`, with trainval in place of a missing train;
    without lists the folders train, valid and test, or all images in one split, `train`."""
    image_folder: str = "JPEGImages"
    """Folder of the images that lists name."""
    annotation_folder: str = "Annotations"
    """Folder of the XML files: the last folder `image_folder` in the path of an image is replaced by it. An image in no
    such folder has its XML file beside it."""
    classes: str | tuple[str, ...] | None = None
    """Names of the classes in the order of their ids, or a file below `source.uri` with a name on each line. By default
    the names in all XML files, sorted: these files are then read before the images are listed."""
    base: ClassBase = 1
    """Id of the first class: 1 where 0 is the background, as in TensorFlow's label maps."""
    origin: ClassBase = 1
    """Number of the first pixel. 1: edges count from 1 and belong to the box, as Pascal VOC defines it, so `xmin` is
    stored as (xmin - 1) / width. 0: `xmin` is the distance from the left edge of the image, as some exports have it."""
    outside: Literal["clip", "reject"] = "clip"
    """What to do with a box that leaves the image, as in `source.coco.outside`."""
    without_annotations: Literal["keep", "pass_over", "reject"] = "reject"
    """What to do with an image without an XML file: keep it as an image without objects, pass it over, or reject it."""


class LabelmeConfig(pydantic.BaseModel):
    """Annotations of objects in LabelMe's JSON, one file for each image."""

    model_config = STRICT

    images: PathsBySplit | None = None
    """Folders of images below `source.uri`, by split. By default the folders train, val, valid, validation and test, or
    all images in one split, `train`."""
    image_folder: str = pydantic.Field("images", min_length=1)
    """Name of the folders of images: the last one of this name in the path of an image is replaced by
    `annotation_folder`. An image in no such folder has its JSON file beside it."""
    annotation_folder: str = pydantic.Field("images", min_length=1)
    """Name of the folders of JSON files; by default they are beside the images."""
    classes: str | tuple[str, ...] | None = None
    """Names of the classes in the order of their ids, or a file below `source.uri` with a name on each line. By default
    the labels in all files, sorted: these files are then read before the images are listed."""
    base: ClassBase = 1
    """Id of the first class: 1 where 0 is the background, as in TensorFlow's label maps."""
    masks: bool = False
    """If true, the mask of each object is stored, as a PNG of the image's size."""
    outside: Literal["clip", "reject"] = "clip"
    """What to do with a box that leaves the image, as in `source.coco.outside`."""
    without_annotations: Literal["keep", "pass_over", "reject"] = "pass_over"
    """What to do with an image without a JSON file: keep it as an image without objects, pass it over, or reject it."""


_Column = Literal["filename", "width", "height", "class", "xmin", "ymin", "xmax", "ymax", "box_width", "box_height"]


class BoxCsvConfig(pydantic.BaseModel):
    """Boxes in CSV files with a row for each: filename, width, height, class, xmin, ymin, xmax, ymax."""

    model_config = STRICT

    annotations: dict[str, str] | None = None
    """CSV files below `source.uri`, by split. By default `train_labels.csv`, `train/_annotations.csv` or `train.csv`,
    also in the folder `data` or `annotations`, and the same for val, valid, validation and test."""
    images: dict[str, str] | None = None
    """Folders of the images below `source.uri`, by split. By default the folder of the CSV file; for a file at
    `source.uri` itself, in `data` or in `annotations`, `images/train`, `train` or `images` if there is one."""
    columns: dict[_Column, Annotated[str, pydantic.Field(min_length=1)]] = {}
    """Columns that have other names: from `filename`, `width`, `height`, `class`, `xmin`, `ymin`, `xmax` or `ymax` to
    the name in the file. For boxes with their size instead of a second corner, name its columns as `box_width` and
    `box_height`, and the left and upper edge as `xmin` and `ymin`."""
    delimiter: str = pydantic.Field(",", min_length=1, max_length=1)
    """Separator between the cells."""
    classes: str | tuple[str, ...] | None = None
    """Names of the classes in the order of their ids, or a file below `source.uri` with a name on each line. By default
    the names in all files, sorted."""
    base: ClassBase = 1
    """Id of the first class: 1 where 0 is the background, as in TensorFlow's label maps."""
    outside: Literal["clip", "reject"] = "clip"
    """What to do with a box that leaves the image, as in `source.coco.outside`."""
    without_objects: bool = True
    """If true, images without an object are stored."""

    @pydantic.model_validator(mode="after")
    def _complete(self) -> BoxCsvConfig:
        sized = {"box_width", "box_height"} & set(self.columns)
        if len(sized) == 1 or (sized and {"xmax", "ymax"} & set(self.columns)):
            raise ValueError(
                "source.box_csv.columns: box_width and box_height go together, in place of xmax and ymax; it names "
                f"{', '.join(self.columns)}"
            )
        if self.images is not None and set(self.images) != set(self.annotations or ()):
            raise ValueError(
                f"source.box_csv.annotations names the splits {', '.join(self.annotations or ()) or 'none'}, "
                f"source.box_csv.images {', '.join(self.images) or 'none'}; name the same in both"
            )
        return self
