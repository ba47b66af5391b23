"""What a job asks of a source that is open: its columns, classes and shape, and notes and advice on its images."""

from __future__ import annotations

from typing import TypeAlias, cast

from imagebeam.pipelines.config import model as config_lib
from imagebeam.pipelines.inputs.late_sources import (
    annotated_files,
    annotation_tables,
    arrays,
    box_csv,
    coco,
    idx,
    manifest,
    paired_files,
    parquet,
    pixel_csv,
    table_per_folder,
)
from imagebeam.transforms import kept_features
from imagebeam.transforms.images import image_objects
from imagebeam.transforms.output import output_folder
from imagebeam.transforms.sources import image_source, path_template

_ARRAYS = (arrays.ArraysSource, pixel_csv.PixelCsvSource)


def image_shape(source: image_source.ImageSource) -> tuple[int, int, int] | None:
    """Returns height, width and channels of the images of a source of bare pixels; None for other sources."""
    return source.image_shape if isinstance(source, (idx.IdxSource, *_ARRAYS)) else None


def class_names(source: image_source.ImageSource) -> tuple[str, ...] | None:
    """Returns the classes that the source itself names, in the order of their ids; None if it names none."""
    if isinstance(source, parquet.ParquetSource):
        return source.layout.names or None
    return (source.class_names or None) if isinstance(source, _ARRAYS) else None


Table: TypeAlias = "manifest.ManifestSource | table_per_folder.TablePerFolderSource | paired_files.PairedFilesSource"


def as_table(source: image_source.ImageSource) -> Table | None:
    """Returns the source if its references are rows of a table, else None."""
    is_table = isinstance(
        source, (manifest.ManifestSource, table_per_folder.TablePerFolderSource, paired_files.PairedFilesSource)
    )
    return cast("Table", source) if is_table else None


def advise_on_folders(config: config_lib.Config, source: image_source.ImageSource) -> str:
    """Returns advice for an image without a class folder."""
    if config.label.by != "directory":
        return ""
    if (table := as_table(source)) is not None:
        names = ", ".join(map(repr, table.column_names()))
        return (
            "label.by: directory takes the folder in the path; for a column of the table set label.by: column "
            f"and label.column (its columns are {names}), without labels label.by: none"
        )
    if config.source.by not in ("files", "listing", "zip"):
        return "set label.by: column and label.column, or label.by: none"
    by_directory = config.split.by == "directory"
    below = "'*/*/*'" if by_directory else "'*/*'"
    given = "if all folders are classes, set split={by: none}; " if by_directory else ""
    return (
        f"the folder with the image is the class: {given}if a few images are next to the class folders, leave them "
        f"out with source.include={below}; if the folder given is itself a class, give its parent folder "
        "as --input; without classes set label.by: none, for classes in the file names label.by: filename"
    )


def advise_on_repeated_key(config: config_lib.Config) -> str:
    """Returns what to do about two images with one key; "" for a table."""
    return _ON_REPEATED_KEY.get(config.source.by, "")


_ON_REPEATED_KEY = {
    "yolo": "name each image once: in one split, and once in its list (data.yaml, or source.yolo.images)",
    "voc": "name each image in one list, and once in it (ImageSets/Main, or source.voc.images)",
    "labelme": "name each folder of images in one split (source.labelme.images)",
    "coco": "name each image in one file of source.coco.annotations, with one entry in its list of images",
    "box_csv": "name each image in one file of source.box_csv.annotations; rows of one file may be anywhere in it",
    "tar": "rename one of the two members, or leave one out",
    "tfrecord": "remove one, or choose a feature of unique ids in source.tfrecord.key; by default "
    "file and number are the key",
}


def notes_on_labels(config: config_lib.Config, source: image_source.ImageSource) -> tuple[str, ...]:
    """Returns a note on a table if the config does not name its label column."""
    table = as_table(source)
    if table is None or config.label.by != "directory" or "by" in config.label.model_fields_set:
        return ()
    template = path_template.parse(config.source.manifest.image)
    in_path = (config.source.manifest.image,) if template is None else template.columns
    used = {*in_path, config.source.manifest.key, config.split.column, config.split.group}
    unused = [name for name in table.column_names() if name not in used and name not in config.columns]
    if not unused:
        return ()
    return (
        "label.by is left out, so the class of an image is the folder in its path, not a column of the table "
        f"({', '.join(map(repr, unused))}); for a column set label.by: column and label.column",
    )


def notes_on_files(source: image_source.ImageSource) -> tuple[str, ...]:
    """Returns notes on what a source found in its files, and on folders of images that it does not read."""
    if isinstance(source, parquet.ParquetSource):
        return source.layout.notes
    if not isinstance(source, (annotated_files.AnnotatedFilesSource, annotation_tables.AnnotationTableSource)):
        return ()
    if not source.unread:
        return ()
    folders = output_folder.name_some(list(source.unread))
    return (
        f"folders with images that belong to no split, and are not read: {folders}; "
        "to read them, name them with the splits in the section of the source",
    )


def object_reader(source: image_source.ImageSource) -> image_objects.AnnotationReader | None:
    """Returns what reads the annotation file of each image; None if images have no such files."""
    return source.reader if isinstance(source, annotated_files.AnnotatedFilesSource) else None


def given_columns(config: config_lib.Config, source: image_source.ImageSource) -> tuple[str, ...]:
    """Returns the names of the values that the source itself gives for each image, in their order."""
    if (reader := object_reader(source)) is not None:
        return reader.columns
    if config.source.by == "box_csv":
        return box_csv.COLUMNS
    return source.columns if isinstance(source, coco.CocoSource) else ()


def keypoint_names(source: image_source.ImageSource) -> tuple[str, ...]:
    """Returns the names of the keypoints of each object; () without keypoints."""
    return source.objects.keypoints if isinstance(source, coco.CocoSource) else ()


def keep_rule(config: config_lib.Config) -> kept_features.KeepRule | None:
    """Returns which features of rewritten records are kept; None for other sources."""
    wanted = config.source.tfrecord
    if config.source.by != "tfrecord":
        return None
    elsewhere = {wanted.image, *config.columns}
    if config.label.column is not None:
        elsewhere.add(config.label.column)
    if wanted.key is not None and wanted.key == config.features.get("image/key", "image/key"):
        elsewhere.add(wanted.key)
    return kept_features.KeepRule(
        names=config.kept_in_records,
        elsewhere=frozenset(elsewhere),
        renamed=tuple((name.removeprefix("columns/"), key) for name, key in config.renamed_in_records.items()),
    )
