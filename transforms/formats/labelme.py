"""LabelMe's format: images with a JSON file for each, of shapes with a label and points in pixels.

Rectangles, polygons and circles become boxes, and masks where those are stored. Points and lines have no area: they are
left out and counted.

Source: https://github.com/wkentaro/labelme, labelme/label_file.py
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import posixpath
import re
import reprlib
from collections.abc import Iterator, Sequence
from typing import IO, Any, ClassVar, Literal

from imagebeam.transforms.formats import base_format, box_signs
from imagebeam.transforms.formats.annotations import syntax
from imagebeam.transforms.formats.annotations.syntax import Region, Row
from imagebeam.transforms.images import image_objects
from imagebeam.transforms.sources import annotated_files, folder_probe, image_source, input_places
from imagebeam.transforms.sources.folder_probe import Change, Finding


@dataclasses.dataclass(frozen=True)
class Labelme(base_format.ObjectFormat):
    """Annotations of objects in LabelMe's JSON, one file for each image."""

    ABOUT: ClassVar[str] = "images with a JSON file of LabelMe for each"
    PRESETS: ClassVar[tuple[str, ...]] = ("labelme",)

    images: base_format.PathsBySplit | None = None
    """Folders of images below `source.uri`, by split. By default the folders train, val, valid, validation and test, or
    all images in one split, `train`."""
    image_folder: base_format.Text = "images"
    """Name of the folders of images: the last one of this name in the path of an image is replaced by
    `annotation_folder`. An image in no such folder has its JSON file beside it."""
    annotation_folder: base_format.Text = "images"
    """Name of the folders of JSON files; by default they are beside the images."""
    masks: bool = False
    """If true, the mask of each object is stored, as a PNG of the image's size."""
    without_annotations: Literal["keep", "skip", "reject"] = "skip"
    """What to do with an image without a JSON file: keep it as an image without objects, skip it, or reject it."""

    def gives(self) -> base_format.Gives:
        masks = {"object masks"} if self.masks else set()
        return base_format.Gives(
            splits=True, features=frozenset({"objects"} | masks), refuses=(base_format.no_frames("labelme"),)
        )

    def open(self, request: base_format.Request) -> image_source.ImageSource:
        uri = request.uri
        input_places.require_folder(uri, "the one with the images and JSON files")
        shapes, rejects_outside = Shapes(self.masks), self.outside == "reject"
        classes = image_objects.ClassNames(())
        reader = syntax.RowReader(classes, shapes, self.masks, rejects_outside, "source.labelme")
        source = annotated_files.AnnotatedFilesSource(
            uri,
            self._parts(uri),
            self._rule,
            reader,
            exclude=input_places.leave_out(request.output, uri),
            option="source.labelme",
            on_repeated_key="name each folder of images in one split (source.labelme.images)",
        )
        return source.with_classes(self.classes, self.base, functools.partial(syntax.class_names, shapes))

    def _parts(self, root: str) -> tuple[input_places.Part, ...]:
        if self.images is not None:
            return input_places.given_parts(root, self.images, "source.labelme.images")
        return input_places.parts_of_splits(input_places.names_in(root))

    @property
    def _rule(self) -> annotated_files.PairRule:
        return annotated_files.PairRule(".json", self.image_folder, self.annotation_folder, self.without_annotations)

    def reads(self, probe: folder_probe.FolderProbe, at: str) -> base_format.Reads:
        return base_format.Reads.of_parts(self._parts(probe.uri(at)), self._rule.files_of)

    @classmethod
    def detect(cls, probe: folder_probe.FolderProbe, at: str) -> Iterator[Finding]:
        """Finds LabelMe's x.json beside x.jpg, also in folders of splits."""
        root = probe.look(at)
        inner = [name for name in root.folders[:_NUM_FOLDERS] if name not in input_places.SPLITS]
        for places in [[*folder_probe.split_places(probe, at)], *([probe.look(root.below(name))] for name in inner)]:
            pairs = [(folder, _labelme_stems(probe, folder)) for folder in places]
            held = [(folder, stems) for folder, stems in pairs if stems]
            if not held or _has_flags_alone(probe, *held[0]):
                continue
            folder = held[0][0]
            number, num_images = (sum(len(each) for each in those) for those in zip(*((s, f.images) for f, s in pairs)))
            evidence = f"{folder.count_having(number, 'image')} a .json file of LabelMe beside them"
            is_inner = len(places) == 1 and posixpath.basename(folder.path) in inner
            doubts = list[str]()
            if number < folder_probe.NEARLY_ALL * num_images:
                have = folder.count_having(num_images, "image")
                evidence = f"{number:,} of {have} a .json file of LabelMe beside them"
                doubts.append(
                    "images without such a file are skipped; source.labelme.without_annotations=keep takes them as "
                    "images without objects"
                )
            heads = _heads(probe, *held[0])
            boxes, unstored = [box for head in heads for box in Shapes().boxes_in(head, {})], Shapes().unstored(heads)
            judged = box_signs.judge(boxes, Shapes.BOXES, "source.labelme")
            doubts += (*judged.doubts, *_of_other_images(probe, *held[0]))
            notes = (*judged.notes, *([unstored] if unstored else []))
            often = (Change("source.labelme.masks", True, "also a mask of each object"),)
            where = folder.path if is_inner else ""
            yield Finding("labelme", evidence, notes=notes, often=often, input=where, doubts=tuple(doubts))
            return

    @classmethod
    def remarks(cls, probe: folder_probe.FolderProbe) -> Iterator[str]:
        root = probe.look()
        for folder in [root, *(probe.look(root.below(name)) for name in root.folders[:_NUM_FOLDERS])]:
            stems = _labelme_stems(probe, folder)
            if stems and _has_flags_alone(probe, folder, stems):
                yield (
                    f"{folder.below(stems[0])}.json and such files are of LabelMe and have flags of the whole image in "
                    "place of shapes, which are not read: write them into a table with a row for each image "
                    "(image,label), and plan that"
                )
                return


_NUM_FOLDERS = 10  # in which files are looked for
_NUM_HEADS = 10  # files that are looked into
_NO_SHAPES, _FLAGS = re.compile(rb'"shapes"\s*:\s*\[\s*\]'), re.compile(rb'"flags"\s*:\s*\{\s*"')


def _labelme_stems(probe: folder_probe.FolderProbe, folder: folder_probe.Folder) -> list[str]:
    """Returns the sorted names of the images in a folder that have a file of LabelMe, judged by the first one."""
    stems = sorted({posixpath.splitext(name)[0] for name in folder.ending(".json")} & folder.stems)
    return stems if stems and b'"shapes"' in probe.head(folder.below(f"{stems[0]}.json")) else []


def _heads(probe: folder_probe.FolderProbe, folder: folder_probe.Folder, stems: Sequence[str]) -> list[bytes]:
    """Returns the first bytes of a few files of LabelMe."""
    chosen = folder_probe.spread(stems, _NUM_HEADS)[:_NUM_HEADS]
    return [probe.head(folder.below(f"{stem}.json")) for stem in chosen]


_IMAGE_PATH = re.compile(rb'"imagePath"\s*:\s*"(?:[^"]*[/\\])?([^"/\\]+)"')


def _of_other_images(
    probe: folder_probe.FolderProbe, folder: folder_probe.Folder, stems: Sequence[str]
) -> Iterator[str]:
    """Yields a doubt if a file of LabelMe states another image beside it than the one of its name, of a few files.

    Files that all state the same image are copies of one, and state nothing.
    """
    stated: dict[str, str] = {}
    for stem in folder_probe.spread(stems, _NUM_HEADS)[:_NUM_HEADS]:
        match = _IMAGE_PATH.search(probe.head(folder.below(f"{stem}.json")))
        stated[stem] = match[1].decode("utf-8", "replace") if match else ""
    other = [s for s, name in stated.items() if name in folder.images and posixpath.splitext(name)[0] != s]
    if other and len({*stated.values()}) > 1:
        yield (
            f"{folder.below(other[0])}.json names {stated[other[0]]} as imagePath, and would be read for the image of "
            "its name"
        )


def _has_flags_alone(probe: folder_probe.FolderProbe, folder: folder_probe.Folder, stems: Sequence[str]) -> bool:
    """Returns whether files of LabelMe have flags for the whole image and no shapes, judged by a few of them."""
    heads = _heads(probe, folder, stems)
    return all(map(_NO_SHAPES.search, heads)) and any(map(_FLAGS.search, heads))


# --- JSON files -------------------------------------------------------------------------------------------------------

_WITHOUT_AREA = ("point", "points", "line", "linestrip")


@dataclasses.dataclass(frozen=True)
class Shapes(syntax.Syntax):
    """The files of LabelMe."""

    FOLDERS = (("", ""),)
    SIZED = True
    UNSTORED = (
        ("flags", rb'"[^"]*"\s*:\s*true\b'),
        ("groups of shapes", rb'"group_id"\s*:\s*\d'),
        ("descriptions", rb'"description"\s*:\s*"[^"]'),
        ("points and lines", rf'"shape_type"\s*:\s*"({"|".join(_WITHOUT_AREA)})"'.encode()),
    )

    masks: bool = False  # whether outlines are stored: not of a shape that is a picture

    def rows(self, file: IO[bytes]) -> Iterator[Row]:
        fields = _parse(file.read())
        yield Row("", "", None, syntax.stated_size([fields.get("imageHeight"), fields.get("imageWidth")]))
        shapes = fields.get("shapes")
        if not isinstance(shapes, list):
            raise ValueError("has no list of shapes; a file of LabelMe has one")
        for number, shape in enumerate(shapes, 1):
            of_shape = shape if isinstance(shape, dict) else {}
            kind = of_shape.get("shape_type") or "polygon"  # early versions know no other
            yield Row("", f"shape {number}", syntax.name_of(of_shape.get("label")), (kind, of_shape.get("points")))

    def region(self, fields: Any, size: tuple[int, int]) -> Region | None:
        kind, points = fields
        if kind in _WITHOUT_AREA:
            return None
        corners = syntax.points_of(points)
        if kind in ("rectangle", "mask"):
            if len(corners) not in (4, 8):
                found = len(corners) // 2
                raise ValueError(f"a {kind} of {found} points, expected 2 opposite corners, or all 4")
            if kind == "mask" and self.masks:
                raise ValueError("a shape of the type mask holds a picture; source.labelme.masks takes outlines")
            xs, ys = corners[::2], corners[1::2]
            return syntax.rectangle((min(xs), max(xs), min(ys), max(ys)))
        if kind == "circle":
            if len(corners) != 4:
                raise ValueError(f"a circle of {len(corners) // 2} points, expected its center and a point on it")
            x, y, *on_it = corners
            radius = math.dist((x, y), on_it)
            return syntax.ellipse(x, y, radius, radius, 0)
        if kind != "polygon":
            raise ValueError(f"the shape_type is {reprlib.repr(kind)}, expected polygon, rectangle or circle")
        return syntax.polygon(corners)


def _parse(data: bytes) -> dict[str, Any]:
    """Returns the fields of a file."""
    try:
        fields = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as e:
        raise ValueError("is nested too deep" if isinstance(e, RecursionError) else f"is not JSON: {e}") from e
    if not isinstance(fields, dict):
        raise ValueError(f"holds a JSON {type(fields).__name__}; a file of LabelMe is an object")
    return fields
