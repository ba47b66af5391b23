"""Judges COCO's files by their beginnings and ends: what is not stored, and what contradicts a reading."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

from imagebeam.transforms.formats import box_signs
from imagebeam.transforms.images import image_objects
from imagebeam.transforms.sources import folder_probe

_OF_IMAGE = re.compile(rb'\{[^{}]*"file_name"[^{}]*\}')
_OF_OBJECT = re.compile(rb'\{[^{}]*"image_id"[^{}]*\}')
_INNER = re.compile(rb"(:\s*)\{[^{}]*\}")
_TURNED = re.compile(rb'"attributes"\s*:\s*\{[^{}]*"rotation"\s*:\s*(-?(?!0+(?:\.0*)?[,\s}])[\d.]+)')
_STORED = (
    *("id", "image_id", "category_id", "bbox", "area", "iscrowd", "segmentation"),
    *("caption", "segments_info", "keypoints", "num_keypoints"),
)
_ON_IMAGES = ("id", "file_name", "width", "height", "license", "coco_url", "flickr_url", "date_captured")
_BOX_FORM = re.compile("(?i)b?box_?(mode|format|type)")
_USUAL_FORMS = ("1", "xywh", "xywh_abs", "coco")  # x, y, width and height in pixels; 1 is that of detectron2
_WORD = re.compile(r"[\w -]+")


class Heads(NamedTuple):
    """The entries in the beginnings and ends of files, with a 0 in place of each inner object."""

    images: Sequence[Mapping[str, Any]]
    objects: Sequence[Mapping[str, Any]]
    turned: Sequence[bytes] = ()  # the angles of boxes that CVAT has turned

    @property
    def may_have_outlines(self) -> bool:
        return not self.objects or any(each.get("segmentation") not in (None, []) for each in self.objects)

    def notes(self, used: str) -> Iterator[str]:
        """Yields a line on the fields of objects that no preset stores, and one on those of images but the one used."""
        if left := [name for name in _fields_of(self.objects) if name not in _STORED]:
            yield f"the fields {', '.join(left)} of objects are not stored"
        if self.turned:
            yield image_objects.NOTE_ON_TURNED
        if left := [name for name in _fields_of(self.images) if name not in (*_ON_IMAGES, used)]:
            yield f"the fields {', '.join(left)} of images are not stored unless columns names them"

    def judge_boxes(self) -> box_signs.Judgement:
        """Judges the boxes, and the fields that say how they are to be read."""
        for name in filter(_BOX_FORM.fullmatch, _fields_of(self.objects)):
            values = dict.fromkeys(str(each[name]) for each in self.objects if name in each)
            if others := [each for each in values if each.lower() not in _USUAL_FORMS]:
                text = (
                    f"the field {name} of objects is {others[0]}: are boxes not {box_signs.SIZED} in pixels, as read?"
                )
                return box_signs.Judgement((text,))
        sizes = {each.get("id"): (each.get("width"), each.get("height")) for each in self.images}
        sizes = {key: size for key, size in sizes.items() if _are_numbers(size)}
        largest = tuple(map(max, zip(*sizes.values()))) if sizes else None
        boxes = [(each.get("bbox"), sizes.get(each.get("image_id"), largest)) for each in self.objects]
        usable = [(box, size) for box, size in boxes if _is_box(box)]
        if doubt := self._judge_outlines():
            return box_signs.Judgement((doubt,))
        return box_signs.judge(usable, box_signs.SIZED, "source.coco")

    def _judge_outlines(self) -> str:
        """Returns a doubt if the outlines of objects, or their areas where they have none, contradict their boxes."""
        boxed = [each for each in self.objects if _is_box(each.get("bbox"))]
        outlines = [(each["bbox"], _points_of(each.get("segmentation"))) for each in boxed]
        outlined = [
            (box, (min(points[::2]), min(points[1::2]), max(points[::2]), max(points[1::2])))
            for box, points in outlines
            if len(points) >= 6
        ]
        if outlined:
            return box_signs.judge_extents(outlined, box_signs.SIZED)
        areas = [(each["bbox"], each["area"]) for each in boxed if _are_numbers([each.get("area")]) and each["area"]]
        return box_signs.judge_areas(areas, box_signs.SIZED)

    def judge_numbers(self) -> str:
        """Returns a doubt if objects count images from another number than the images do; "" if not.

        Both must be whole.
        """
        known = {*_whole_numbers([each.get("id") for each in self.images])}
        used = {*_whole_numbers([each.get("image_id") for each in self.objects])}
        if used <= known or not any({each + by for each in used} <= known for by in (1, -1)):
            return ""
        return (
            f"image_id of objects are {min(used)} to {max(used)}, and id of images {min(known)} to {max(known)}: do "
            "both count from the same number? If not, each object is stored with the image before or after its own"
        )

    def splits(self) -> tuple[str, Mapping[str, str | None]]:
        """Returns the field of images that says their splits, and its values with the splits that they mean."""
        for name in _fields_of(self.images):
            values = sorted({str(each[name]) for each in self.images if isinstance(each.get(name), (str, int))})
            if name in _ON_IMAGES or not values or not all(map(_WORD.fullmatch, values)):
                continue
            if folder_probe.may_be_split(name, values):
                return name, {value: folder_probe.split_meant(value) for value in values}
        return "", {}


def read(probe: folder_probe.FolderProbe, paths: Sequence[str]) -> Heads:
    """Returns the entries of files at paths below the root of a probe."""
    text = b"\n".join(end for path in paths for end in (probe.head(path), probe.tail(path)))
    turned = _TURNED.findall(text)
    text = _INNER.sub(rb"\g<1>0", text)
    images, objects = ([*_parse(pattern.findall(text))] for pattern in (_OF_IMAGE, _OF_OBJECT))
    return Heads([each for each in images if "image_id" not in each], objects, turned)


def _parse(texts: Sequence[bytes]) -> Iterator[Mapping[str, Any]]:
    for text in texts:
        try:
            yield json.loads(text)
        except ValueError:
            continue


def _fields_of(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    return [*dict.fromkeys(name for each in entries for name in each)]


def _whole_numbers(values: Sequence[Any]) -> Iterator[int]:
    return (each for each in values if isinstance(each, int))


def _is_box(value: Any) -> TypeGuard[list[float]]:
    return isinstance(value, list) and len(value) == 4 and _are_numbers(value)


def _points_of(outline: Any) -> list[float]:
    """Returns the coordinates of all polygons of an object; none if it has none, or run lengths."""
    polygons = [each for each in outline if isinstance(each, list)] if isinstance(outline, list) else []
    return [value for each in polygons if len(each) % 2 == 0 and _are_numbers(each) for value in each]


def _are_numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in values)
