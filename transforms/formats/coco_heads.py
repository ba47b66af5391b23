"""Judges COCO's files by their beginnings and ends: what is not stored, and what contradicts a reading."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from imagebeam.transforms.formats import box_signs
from imagebeam.transforms.sources import folder_probe

_OF_IMAGE = re.compile(rb'\{[^{}]*"file_name"[^{}]*\}')
_OF_OBJECT = re.compile(rb'\{[^{}]*"image_id"[^{}]*\}')
_INNER = re.compile(rb"(:\s*)\{[^{}]*\}")
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

    @property
    def may_have_outlines(self) -> bool:
        return not self.objects or any(each.get("segmentation") not in (None, []) for each in self.objects)

    def notes(self, used: str) -> Iterator[str]:
        """Yields a line on the fields of objects that no preset stores, and one on those of images but the one used."""
        if left := [name for name in _fields_of(self.objects) if name not in _STORED]:
            yield f"the fields {', '.join(left)} of objects are not stored"
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
        usable = [(box, size) for box, size in boxes if isinstance(box, list) and len(box) == 4 and _are_numbers(box)]
        return box_signs.judge(usable, box_signs.SIZED, "source.coco")

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
    text = _INNER.sub(rb"\g<1>0", text)
    images, objects = ([*_parse(pattern.findall(text))] for pattern in (_OF_IMAGE, _OF_OBJECT))
    return Heads([each for each in images if "image_id" not in each], objects)


def _parse(texts: Sequence[bytes]) -> Iterator[Mapping[str, Any]]:
    for text in texts:
        try:
            yield json.loads(text)
        except ValueError:
            continue


def _fields_of(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    return [*dict.fromkeys(name for each in entries for name in each)]


def _are_numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in values)
