"""Opens data sets of boxes: COCO, YOLO, Pascal VOC and CSV."""

from __future__ import annotations

import dataclasses

from imagebeam import errors, storage
from imagebeam.pipelines.config import model as config_lib
from imagebeam.pipelines.config import object_sections
from imagebeam.pipelines.inputs import (
    class_files,
    collect_classes,
    find_box_csv,
    find_voc,
    find_yolo,
    open_tables,
    source_places,
    split_folders,
)
from imagebeam.transforms.images import image_objects
from imagebeam.transforms.objects import coco_json, labelme_json, object_tables, voc_xml, yolo_text
from imagebeam.transforms.sources import annotated_files, annotation_tables, box_csv, coco


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
        objects=coco_json.ObjectRule(
            wanted.masks,
            wanted.outside == "reject",
            wanted.crowd,
            wanted.categories or (),
        ),
        has_objects=wanted.objects,
        panoptic=tuple((split, storage.join(uri, path)) for split, path in (wanted.panoptic or {}).items()),
        captions=tuple((split, storage.join(uri, path)) for split, path in (wanted.captions or {}).items()),
        without_objects=wanted.without_objects,
        fields=open_tables.row_fields(config),
    )
    source.check()
    if wanted.keypoints:
        source = dataclasses.replace(
            source, objects=dataclasses.replace(source.objects, keypoints=_keypoint_names(source))
        )
    return dataclasses.replace(source, unread=_unread_beside(source, config))


def _keypoint_names(source: coco.CocoSource) -> tuple[str, ...]:
    """Returns the names of the keypoints in all annotation files. Reads these files: names are often at their end.

    Raises:
        ConfigError: if a file cannot be read, or names other keypoints than the others.
    """
    found: dict[tuple[str, ...], str] = {}
    for split in source.splits:
        try:
            with coco_json.open_file(split.annotations) as file:
                found.setdefault(coco_json.read_keypoint_names(file), split.name)
        except (object_tables.AnnotationFileError, OSError) as e:
            raise errors.ConfigError(f"source.coco.keypoints: {e}") from e
    if len(found) > 1:
        raise errors.ConfigError(
            f"source.coco.keypoints: the files of {' and '.join(found.values())} name other keypoints; convert them to "
            "two datasets"
        )
    return next(iter(found))


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
    reader = voc_xml.VocReader(image_objects.ClassNames(()), wanted.origin, wanted.outside == "reject")
    source = annotated_files.AnnotatedFilesSource(
        uri,
        found.parts,
        annotated_files.PairRule(".xml", found.image_folder, found.annotation_folder, wanted.without_annotations),
        reader,
        exclude=source_places.leave_out(output, uri),
        named_in=found.image_folder,
    )
    files = collect_classes.NamingFiles("XML", voc_xml.class_names, "source.voc")
    return _with_unread(_with_classes(source, reader, wanted, files), found.annotation_folder)


def _with_classes(
    source: annotated_files.AnnotatedFilesSource,
    reader: voc_xml.VocReader | labelme_json.LabelmeReader,
    wanted: object_sections.VocConfig | object_sections.LabelmeConfig,
    files: collect_classes.NamingFiles,
) -> annotated_files.AnnotatedFilesSource:
    """Returns the source, checked, with the classes that the config lists, or else those that its annotations name.

    Raises:
        ConfigError: if the names cannot be read, or images are not where the config says.
    """
    if wanted.classes is None:
        names = collect_classes.collect_names(source, files)
    else:
        names = class_files.read_classes(source.root, wanted.classes, f"{files.option}.classes")
    source.check(f"{files.option}.images")
    classes = image_objects.ClassNames(names, None, wanted.base)
    return dataclasses.replace(source, reader=dataclasses.replace(reader, classes=classes))


def open_labelme(config: config_lib.Config, uri: str, output: str) -> annotated_files.AnnotatedFilesSource:
    """Returns the source of images with LabelMe's JSON files.

    Raises:
        ConfigError: if the files are not as the config says.
    """
    wanted = config.source.labelme
    if split_folders.kind_of(uri) != storage.DIRECTORY:
        raise errors.ConfigError(f"--input {uri!r} is no folder; give the one with the images and JSON files")
    if wanted.images is not None:
        parts = split_folders.given_parts(uri, wanted.images, "source.labelme.images")
    else:
        folders = split_folders.names_in(uri)
        found = tuple(annotated_files.Part(split, split) for split in split_folders.SPLITS if split in folders)
        parts = found or (annotated_files.Part("train", ""),)
    rule = annotated_files.PairRule(".json", wanted.image_folder, wanted.annotation_folder, wanted.without_annotations)
    reader = labelme_json.LabelmeReader(image_objects.ClassNames(()), wanted.masks, wanted.outside == "reject")
    source = annotated_files.AnnotatedFilesSource(
        uri, parts, rule, reader, exclude=source_places.leave_out(output, uri)
    )
    files = collect_classes.NamingFiles("JSON", labelme_json.class_names, "source.labelme")
    return _with_unread(_with_classes(source, reader, wanted, files), wanted.annotation_folder)


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
