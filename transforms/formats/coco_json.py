"""Streams an annotation file in COCO's JSON format into tables that take a few bytes per object."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from imagebeam import features, plural, storage
from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import class_masks, image_objects, object_masks
from imagebeam.transforms.sources import annotation_tables
from imagebeam.transforms.sources.annotation_tables import AnnotationFileError, ImageTable, ObjectTable

IMAGES, ANNOTATIONS, CATEGORIES = "images", "annotations", "categories"

# Kinds of annotations that become no object and are counted.
UNKNOWN_IMAGE = "object_of_unknown_image"
UNKNOWN_CAPTION = "caption_of_unknown_image"
NO_AREA = image_objects.NO_AREA
OUTSIDE = image_objects.OUTSIDE
CROWD = "crowd"
OTHER_CATEGORY = "object_of_other_category"

_BUFFER_BYTES = 1 << 20
_ROUNDING_PX = 0.01  # COCO rounds boxes to this; a box outside of the image by no more is always clipped
_AREA_LIMIT = 1e38  # finite as a 32-bit float
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclasses.dataclass(frozen=True)
class ObjectRule:
    """Says which objects are kept, and whether with masks."""

    masks: bool = False
    rejects_outside: bool = False  # reject boxes outside of the image; else clip them at its edge
    crowd: bool = True
    categories: tuple[str, ...] = ()  # names of the categories whose objects are kept; () keeps all
    keypoints: tuple[str, ...] = ()  # names of the keypoints of each object; () stores none


BOXES = ObjectRule()


def read_images(file: AnnotationFile, columns: Sequence[str], is_sized: bool = True) -> ImageTable:
    """Reads the images, with the values of `columns`.

    Args:
        file: in COCO's format.
        columns: fields of images.
        is_sized: whether each image must have its width and height.

    Raises:
        AnnotationFileError: if the file is not JSON, or names no image.
        OSError: if it cannot be read.
    """
    images = ImageTable(is_sized)
    for entry in file.items(IMAGES):
        images.add(entry, columns)
    if not images.names:
        raise AnnotationFileError(
            f"{file.uri!r} names no image: a file of COCO's format has them in a list, {IMAGES!r}"
        )
    return images


def _read_categories(file: AnnotationFile) -> dict[int, bytes]:
    """Reads the names of the categories, by id."""
    categories: dict[int, bytes] = {}
    for entry in file.items(CATEGORIES):
        fields = entry if isinstance(entry, dict) else {}
        label, name = annotation_tables.whole(fields.get("id")), fields.get("name")
        if not isinstance(label, int) or not features.check_value(features.INT64, label) or not isinstance(name, str):
            raise AnnotationFileError(
                f"{file.uri!r}: the category {annotation_tables.show(entry)} needs an integer id and a name"
            )
        if label in categories:
            raise AnnotationFileError(f"{file.uri!r}: two categories have the id {label}; remove one")
        categories[label] = name.encode("utf-8", "surrogateescape")
    return categories


def read_objects(file: AnnotationFile, images: ImageTable, rule: ObjectRule, left_out: Counter[str]) -> ObjectTable:
    """Reads the objects of `images`; notes a fault for an image with a wrong annotation.

    Raises:
        AnnotationFileError: if the file is not JSON, or has no list of annotations, or no categories for them.
        OSError: if it cannot be read.
    """
    objects = ObjectTable(len(images.names), _read_categories(file), len(rule.keypoints))
    known = [name.decode("utf-8", "surrogateescape") for name in objects.names.values()]
    if unknown := [name for name in rule.categories if name not in known]:
        raise AnnotationFileError(
            f"{file.uri!r} has no category {unknown[0]!r}, which source.coco.categories names; it has "
            f"{', '.join(known) or 'none'}"
        )
    count, num_unknown = 0, left_out[UNKNOWN_IMAGE]
    for entry in file.items(ANNOTATIONS):
        count += 1
        _add_object(entry, images, objects, rule, left_out)
    if not count:
        file.require_list(ANNOTATIONS)
    elif not objects.names:
        raise AnnotationFileError(f"{file.uri!r} has annotations and no list {CATEGORIES!r}, which names their classes")
    elif images.ids and left_out[UNKNOWN_IMAGE] - num_unknown == count:
        raise AnnotationFileError(
            f"{file.uri!r}: no annotation is of an image in its list, by image_id and id (the first id is "
            f"{images.ids[0]!r}), so {plural.count(count, 'object')} would be lost"
        )
    return objects


def _image_of(entry: Any, images: ImageTable) -> tuple[Mapping[str, Any], int | None]:
    """Returns the fields of an annotation, and the number of its image; None if it names none that is known."""
    fields = entry if isinstance(entry, dict) else {}
    image_id = annotation_tables.whole(fields.get("image_id"))
    return fields, images.numbers.get(image_id) if isinstance(image_id, (int, str)) else None


def _add_object(entry: Any, images: ImageTable, objects: ObjectTable, rule: ObjectRule, left_out: Counter[str]) -> None:
    fields, image = _image_of(entry, images)
    if image is None:
        left_out[UNKNOWN_IMAGE] += 1
        return
    if image in images.faults:
        return
    try:
        is_crowd = _flag(fields.get("iscrowd", 0))
        if is_crowd and not rule.crowd:
            left_out[CROWD] += 1
            return
        label = annotation_tables.whole(fields.get("category_id"))
        if not isinstance(label, int) or label not in objects.names:
            raise ValueError(f"category_id is {annotation_tables.show(label)}, which is none of the file's categories")
        if rule.categories and objects.names[label].decode("utf-8", "surrogateescape") not in rule.categories:
            left_out[OTHER_CATEGORY] += 1
            return
        height, width = images.heights[image], images.widths[image]
        box = _box(fields.get("bbox"))
        if box[2] == 0 or box[3] == 0:
            left_out[NO_AREA] += 1
            return
        left, right, top, bottom = _edges(box, fields.get("attributes"))
        rejecting = "source.coco.outside" if rule.rejects_outside else ""
        xmin, xmax = image_objects.edges(left, right, image_objects.pixels(width, _ROUNDING_PX), rejecting)
        ymin, ymax = image_objects.edges(top, bottom, image_objects.pixels(height, _ROUNDING_PX), rejecting)
        if xmin >= xmax or ymin >= ymax:
            left_out[OUTSIDE] += 1
            return
        area = _area(fields.get("area"), box[2] * box[3])
        mask = object_masks.pack(fields.get("segmentation"), height, width) if rule.masks else b""
        keypoints = _keypoints(fields.get("keypoints"), height, width, len(rule.keypoints))
        objects.add(image, label, (xmin, xmax, ymin, ymax, area), is_crowd, mask, keypoints)
    except ValueError as e:
        images.faults[image] = Reason.BAD_VALUE, f"annotation {annotation_tables.show(fields.get('id'))}: {e}"


def _box(value: Any) -> tuple[float, float, float, float]:
    if not isinstance(value, list) or len(value) != 4 or not all(map(_is_number, value)):
        raise ValueError(f"bbox is {annotation_tables.show(value)}, expected [x, y, width, height]")
    if value[2] < 0 or value[3] < 0:
        raise ValueError(f"bbox {annotation_tables.show(value)} has a negative size; expected [x, y, width, height]")
    return tuple(map(float, value))  # type: ignore[return-value]


def _edges(box: tuple[float, float, float, float], attributes: Any) -> tuple[float, float, float, float]:
    """Returns xmin, xmax, ymin and ymax in pixels, those of the box around one that CVAT has turned."""
    x, y, width, height = box
    edges = (x, x + width, y, y + height)
    degrees = attributes.get(image_objects.ROTATION) if isinstance(attributes, dict) else None
    return image_objects.around_turned(edges, degrees) if degrees and _is_number(degrees) else edges


def _keypoints(value: Any, height: int, width: int, count: int) -> list[float]:
    """Returns x, y and visibility of each keypoint, x and y as shares of the image; 0 for those that are not labeled.

    Raises:
        ValueError: if they are not `count`, or no numbers.
    """
    if not count:
        return []
    if value is None or value == []:  # as of an object of a category without keypoints
        return [0.0] * (3 * count)
    if not isinstance(value, list) or len(value) != 3 * count or not all(map(_is_number, value)):
        raise ValueError(
            f"keypoints are {annotation_tables.show(value)}, expected {3 * count} numbers: x, y and visibility of "
            f"each of {count}"
        )
    found: list[float] = []
    for x, y, visibility in zip(value[::3], value[1::3], value[2::3]):
        if visibility not in (0, 1, 2):
            raise ValueError(f"keypoints have the visibility {annotation_tables.show(visibility)}, expected 0, 1 or 2")
        inside = (min(max(x / width, 0.0), 1.0), min(max(y / height, 0.0), 1.0)) if visibility else (0.0, 0.0)
        found += (*inside, visibility)
    return found


def read_segments(file: AnnotationFile, images: ImageTable, rule: ObjectRule, left_out: Counter[str]) -> ObjectTable:
    """Reads panoptic annotations: the segments of `images` as objects, and which PNG has them.

    Source: https://cocodataset.org/#format-data, 4. Panoptic Segmentation

    Raises:
        AnnotationFileError: if the file is not JSON, or has no list of annotations, or no categories for them.
        OSError: if it cannot be read.
    """
    objects = ObjectTable(len(images.names), _read_categories(file))
    for entry in file.items(ANNOTATIONS):
        fields, image = _image_of(entry, images)
        if image is None:
            left_out[UNKNOWN_IMAGE] += 1
            continue
        name, segments = fields.get("file_name"), fields.get("segments_info")
        try:
            if not isinstance(name, str) or not name or not isinstance(segments, list):
                raise ValueError("it has no file_name or no list segments_info")
            if image in images.panoptic:
                raise ValueError(f"it is a second one: the first has {images.panoptic[image][0]!r}")
            images.panoptic[image] = name, class_masks.pack_segments(segments)
        except ValueError as e:
            images.faults[image] = Reason.BAD_VALUE, f"panoptic annotation of image {images.ids[image]!r}: {e}"
            continue
        for segment in segments:
            _add_object({**segment, "image_id": images.ids[image]}, images, objects, rule, left_out)
    if not images.panoptic:
        file.require_list(ANNOTATIONS)
    for number in range(len(images.names)):
        if number not in images.panoptic:
            images.faults.setdefault(number, (Reason.NOT_FOUND, "it has no panoptic annotation"))
    return objects


def read_captions(file: AnnotationFile, images: ImageTable, left_out: Counter[str]) -> None:
    """Reads the captions of `images`; notes a fault for an image with a wrong one.

    Raises:
        AnnotationFileError: if the file is not JSON, or has no list of annotations.
        OSError: if it cannot be read.
    """
    count = 0
    for entry in file.items(ANNOTATIONS):
        count += 1
        fields, image = _image_of(entry, images)
        caption = fields.get("caption")
        if image is None:
            left_out[UNKNOWN_CAPTION] += 1
        elif not isinstance(caption, str):
            found = f"annotation {annotation_tables.show(fields.get('id'))} of {file.uri}"
            detail = f"{found}: caption is {annotation_tables.show(caption)}, expected a text"
            images.faults.setdefault(image, (Reason.BAD_VALUE, detail))
        elif text := caption.strip():
            images.captions.setdefault(image, []).append(image_objects.encode_text(text))
    if not count:
        file.require_list(ANNOTATIONS)


def read_keypoint_names(file: AnnotationFile) -> tuple[str, ...]:
    """Returns the names of the keypoints, which all categories that have some must share.

    Without names there are numbers, as many as the first object has keypoints: WFLW and 300W come so.

    Raises:
        AnnotationFileError: if there are none, or two categories have others.
        OSError: if it cannot be read.
    """
    names: tuple[str, ...] = ()
    for entry in file.items(CATEGORIES):
        given = entry.get("keypoints") if isinstance(entry, dict) else None
        if not given:
            continue
        if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
            raise AnnotationFileError(
                f"{file.uri!r}: a category has the keypoints {annotation_tables.show(given)}, expected a list of names"
            )
        if names and names != tuple(given):
            raise AnnotationFileError(
                f"{file.uri!r} has categories with {len(names)} and with {len(given)} keypoints of other names; split "
                "the file by category"
            )
        names = tuple(given)
    if not names:
        given = next((entry.get("keypoints") for entry in file.items(ANNOTATIONS) if isinstance(entry, dict)), None)
        names = tuple(map(str, range(len(given) // 3))) if isinstance(given, list) else ()
    if not names:
        raise AnnotationFileError(
            f"{file.uri!r} has no keypoints: name the file that has them, such as "
            "annotations/person_keypoints_train2017.json, in source.coco.annotations"
        )
    return names


def _area(value: Any, of_box: float) -> float:
    if value is None:
        value = of_box
    if not _is_number(value) or not 0 <= value < _AREA_LIMIT:
        raise ValueError(f"area is {annotation_tables.show(value)}, expected pixels")
    return float(value)


def _flag(value: Any) -> int:
    if value not in (0, 1) or not isinstance(value, (int, float)):
        raise ValueError(f"iscrowd is {annotation_tables.show(value)}, expected 0 or 1")
    return int(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


@contextlib.contextmanager
def open_file(uri: str) -> Iterator[AnnotationFile]:
    """Opens an annotation file to be read several times; fetches a remote file once, to the local disk.

    Raises:
        OSError: if it cannot be read.
        AnnotationFileError: if it is nested too deep.
    """
    store = storage.storage_of(uri)
    with io.BufferedReader(store.open_read(uri), _BUFFER_BYTES) as file:  # type: ignore[type-var]
        if store.is_local:
            annotation_tables.check_depth(file, uri)
            yield AnnotationFile(uri, file)
            return
        with tempfile.TemporaryFile() as copy:
            shutil.copyfileobj(file, copy, _BUFFER_BYTES)
            annotation_tables.check_depth(copy, uri)
            yield AnnotationFile(uri, copy)


class AnnotationFile(NamedTuple):
    """An open file and its address."""

    uri: str
    file: Any

    def items(self, name: str) -> Iterator[Any]:
        """Yields the entries of the top-level list `name`, wherever it is in the file.

        Raises:
            AnnotationFileError: if the file is not JSON.
        """
        import ijson  # takes 10 ms, and is needed only here

        self._start()
        try:
            yield from ijson.items(self.file, f"{name}.item", use_float=True)
        except (ijson.JSONError, UnicodeDecodeError, OverflowError) as e:
            reason = " ".join(str(e).split())[: annotation_tables.SHOWN]
            where = f"in the last {_BUFFER_BYTES >> 10:,} KiB before byte {self.file.tell():,}"
            raise AnnotationFileError(f"{self.uri!r} is not JSON, {where}: {reason}") from e

    def require_list(self, name: str) -> None:
        """Checks that a list `name` exists. This reads the file, so it is called only if `items` yielded nothing.

        Raises:
            AnnotationFileError: if there is no such list.
        """
        import ijson

        self._start()
        events = ijson.parse(self.file, use_float=True)
        if not any(prefix == name and event == "start_array" for prefix, event, _ in events):
            raise AnnotationFileError(f"{self.uri!r} has no list {name!r}, as a file of COCO's format has")

    def _start(self) -> None:
        self.file.seek(0)
        if self.file.read(len(BYTE_ORDER_MARK)) != BYTE_ORDER_MARK:
            self.file.seek(0)
