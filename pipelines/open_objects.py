"""Opens data sets of boxes: COCO, YOLO, Pascal VOC and CSV."""

from __future__ import annotations

import dataclasses

from imagebeam import storage
from imagebeam.pipelines import (
    class_files,
    find_box_csv,
    find_voc,
    find_yolo,
    open_tables,
    source_places,
    split_folders,
)
from imagebeam.pipelines import config as config_lib
from imagebeam.transforms.objects import image_objects, voc_xml, yolo_text
from imagebeam.transforms.sources import (
    annotated_files,
    annotation_tables,
    box_csv,
    coco,
    coco_json,
)


def open_coco(config: config_lib.Config, uri: str) -> coco.CocoSource:
    """Returns the source of COCO's annotations below `uri`.

    Raises:
        ConfigError: if the files are not as the config says.
    """
    wanted = config.source.coco
    splits = (
        annotation_tables.AnnotatedSplit(split, storage.join(uri, path), split_folders.path_below(wanted.images[split]))
        for split, path in wanted.annotations.items()
    )
    source = coco.CocoSource(
        root=uri,
        splits=tuple(splits),
        objects=coco_json.ObjectRule(wanted.masks, wanted.outside == "reject", wanted.crowd, wanted.categories or ()),
        without_objects=wanted.without_objects,
        fields=open_tables.row_fields(config),
    )
    source.check()
    return dataclasses.replace(source, unread=_unread_beside(source, config))


def _unread_beside(source: annotation_tables.AnnotationTableSource, config: config_lib.Config) -> tuple[str, ...]:
    used = (split.folder for split in source.splits)
    return split_folders.find_unread(source.root, used, (), storage.normalize(str(config.output.uri)))


def open_yolo(config: config_lib.Config, uri: str, output: str) -> annotated_files.AnnotatedFilesSource:
    """Returns the source of images with YOLO's label files.

    Raises:
        ConfigError: if the files are not as the config says.
    """
    wanted = config.source.yolo
    found = find_yolo.find(uri, wanted)
    reader = yolo_text.YoloReader(
        found.classes, wanted.polygons, wanted.confidence, found.num_keypoint_values, wanted.outside == "reject"
    )
    rule = annotated_files.PairRule(".txt", wanted.image_folder, wanted.label_folder, wanted.without_labels)
    source = annotated_files.AnnotatedFilesSource(
        found.root, found.parts, rule, reader, exclude=source_places.leave_out(output, found.root)
    )
    source.check("source.yolo.images")
    return _with_unread(source, wanted.label_folder)


def _with_unread(
    source: annotated_files.AnnotatedFilesSource, annotation_folder: str
) -> annotated_files.AnnotatedFilesSource:
    """Returns the source with the folders beside those of its splits, unless lists choose its images."""
    if any(part.is_list for part in source.parts):
        return source
    used = (part.path for part in source.parts)
    return dataclasses.replace(
        source, unread=split_folders.find_unread(source.root, used, (annotation_folder,), source.exclude)
    )


def open_voc(config: config_lib.Config, uri: str, output: str) -> annotated_files.AnnotatedFilesSource:
    """Returns the source of images with Pascal VOC's XML files.

    Raises:
        ConfigError: if the files are not as the config says.
    """
    wanted = config.source.voc
    found = find_voc.find(uri, wanted)
    rejects_outside = wanted.outside == "reject"
    source = annotated_files.AnnotatedFilesSource(
        uri,
        found.parts,
        annotated_files.PairRule(".xml", found.image_folder, found.annotation_folder, wanted.without_annotations),
        voc_xml.VocReader(image_objects.ClassNames(()), wanted.origin, rejects_outside),
        exclude=source_places.leave_out(output, uri),
        named_in=found.image_folder,
    )
    if wanted.classes is None:
        names = find_voc.collect_classes(source)
    else:
        names = class_files.read_classes(uri, wanted.classes, "source.voc.classes")
    source.check("source.voc.images")
    classes = image_objects.ClassNames(names, None, wanted.base)
    source = _with_unread(source, found.annotation_folder)
    return dataclasses.replace(source, reader=voc_xml.VocReader(classes, wanted.origin, rejects_outside))


def open_box_csv(config: config_lib.Config, uri: str) -> box_csv.BoxCsvSource:
    """Returns the source of images whose boxes are rows of a CSV file.

    Raises:
        ConfigError: if the files are not as the config says.
    """
    wanted = config.source.box_csv
    classes = wanted.classes
    root, splits = find_box_csv.find(uri, wanted)
    source = box_csv.BoxCsvSource(
        root=root,
        splits=splits,
        without_objects=wanted.without_objects,
        classes=None if classes is None else class_files.read_classes(root, classes, "source.box_csv.classes"),
        base=wanted.base,
        rejects_outside=wanted.outside == "reject",
        columns=tuple(wanted.columns.items()),
        delimiter=wanted.delimiter,
    )
    source.check()
    return dataclasses.replace(source, unread=_unread_beside(source, config))
