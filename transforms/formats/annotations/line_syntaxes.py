"""Syntaxes of text files: KITTI, DOTA, VisDrone, WIDER FACE and MOT."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any

from imagebeam.transforms.formats import box_signs
from imagebeam.transforms.formats.annotations import syntax
from imagebeam.transforms.formats.annotations.syntax import Region, Row
from imagebeam.transforms.sources import folder_probe


class Kitti(syntax.Syntax):
    """KITTI's objects: a line `type truncated occluded alpha left top right bottom ...` for each.

    Edges are pixels from the left and upper edge. The size, place and rotation in space are not stored.

    Source: readme.txt of the devkit_object, https://www.cvlibs.net/datasets/kitti/eval_object.php
    """

    TITLE = "KITTI"
    UNSTORED = tuple((what, b"") for what in ("truncation", "occlusion", "boxes in space"))
    SUFFIXES = (".txt",)
    MARKS = (rb"(?m)^\w+ +-?[\d.]+ +-?\d +-?[\d.]+( +-?[\d.e+-]+){11}\s*$",)
    FOLDERS = (("image_2", "label_2"), ("image_3", "label_3"), ("images", "labels"), ("image", "label"))

    def rows(self, file: IO[bytes]) -> Iterator[Row]:
        for number, line in syntax.lines_of(file):
            name, *fields = line.split()
            yield Row("", f"line {number}", "" if name == "DontCare" else name, fields)

    def region(self, fields: Any, size: tuple[int, int]) -> Region:
        if len(fields) != 14:
            raise ValueError(f"{len(fields) + 1} fields, expected 15: the type, 3 of it, 4 of the box and 7 in space")
        return Region(syntax.box_of_edges(*syntax.numbers(fields[3:], "left", "top", "right", "bottom")))


class Dota(syntax.Syntax):
    """DOTA's rotated boxes: a line `x1 y1 x2 y2 x3 y3 x4 y4 class difficult` for each, after a head of two lines.

    Source: https://captain-whu.github.io/DOTA/dataset.html
    """

    TITLE = "DOTA"
    SUFFIXES = (".txt",)
    MARKS = (rb"(?m)^(-?[\d.]+ +){8}[^\d\s]\S*( +\d)?\s*$",)
    FOLDERS = tuple(
        (images, annotations)
        for images in ("images", "image")
        for annotations in ("labelTxt", "labelTxt-v1.0", "labelTxt-v1.5", "labelTxt-v1.0/labelTxt", "annfiles")
    )
    OUTLINES = True
    MORE = (syntax.DIFFICULT, syntax.CORNERS)

    def rows(self, file: IO[bytes]) -> Iterator[Row]:
        for number, line in syntax.lines_of(file):
            fields = line.split()
            if not line.startswith(("imagesource:", "gsd:")):
                yield Row(
                    "", f"line {number}", fields[8] if len(fields) > 8 else syntax.UNKNOWN, fields[:8] + fields[9:]
                )

    def region(self, fields: Any, size: tuple[int, int]) -> Region:
        if len(fields) not in (8, 9):
            raise ValueError(f"{len(fields) + 1} fields, expected 8 numbers, a class, and whether it is difficult")
        found = syntax.polygon([syntax.number(value, "a corner") for value in fields[:8]])
        difficult = fields[8] if len(fields) == 9 else "0"
        if difficult not in ("0", "1", "2"):
            raise ValueError(f"difficult is {difficult!r}, expected 0, 1 or 2")
        height, width = size
        corners = tuple(float(value) / (width, height)[place % 2] for place, value in enumerate(fields[:8]))
        return found._replace(more=(int(difficult != "0"), corners))


class VisDrone(syntax.Syntax):
    """VisDrone's objects: a line `left,top,width,height,score,class,truncation,occlusion` for each.

    Classes are the challenge's. Ignored regions (class 0) and boxes with the score 0 are ignored.

    Source: https://github.com/VisDrone/VisDrone2018-DET-toolkit
    """

    TITLE = "VisDrone"
    UNSTORED = tuple((what, b"") for what in ("truncation", "occlusion"))
    SUFFIXES = (".txt",)
    MARKS = (rb"(?m)^(-?\d+,){4}[01],\d\d?,-?\d,-?\d,?\s*$",)
    FOLDERS = (("images", "annotations"), ("images", "labels"))

    def rows(self, file: IO[bytes]) -> Iterator[Row]:
        for number, line in syntax.lines_of(file):
            values = [value.strip() for value in line.rstrip(",").split(",")]
            if len(values) != 8:
                raise ValueError(
                    f"line {number} has {len(values)} values, expected 8: left, top, width, height, score, class, "
                    "truncation, occlusion"
                )
            is_ignored = "0" in values[4:6]
            name = _VISDRONE_CLASSES.get(values[5], syntax.UNKNOWN)
            yield Row("", f"line {number}", "" if is_ignored else name, values[:4])

    def region(self, fields: Any, size: tuple[int, int]) -> Region:
        return Region(syntax.box_of_size(*syntax.numbers(fields, "left", "top", "width", "height")))


_OF_VISDRONE = "pedestrian, people, bicycle, car, van, truck, tricycle, awning-tricycle, bus, motor, others"
_VISDRONE_CLASSES = syntax.codes_of(_OF_VISDRONE.split(", "))


class WiderFace(syntax.Syntax):
    """WIDER FACE's lists: the path of an image, the number of faces, and a line `x y width height ...` for each.

    An image without faces has a line of zeros. Faces that are called invalid are ignored.

    Source: readme.txt of wider_face_split.zip, http://shuoyang1213.me/WIDERFACE/
    """

    TITLE = "WIDER FACE"
    UNSTORED = tuple((what, b"") for what in ("blur", "expression", "illumination", "occlusion", "pose"))
    SUFFIXES = ("_gt.txt",)
    MARKS = (rb"(?m)^\S.*\.\w+\s*\n\d+\s*\n( *-?\d+){10}\s*$",)
    ENTRIES = True

    def rows(self, file: IO[bytes]) -> Iterator[Row]:
        lines = syntax.lines_of(file)
        for number, image in lines:
            line, count = next(lines, (number, ""))
            if not count.isdecimal() or image.isdecimal():
                raise ValueError(f"line {line} is {count[:80]!r}, expected the number of faces in {image[:80]!r}")
            yield Row(image, f"line {number}", None)
            for _ in range(max(1, int(count))):
                line, face = next(lines, (line, ""))
                fields = face.split()
                if len(fields) != 10:
                    raise ValueError(f"line {line} is {face[:80]!r}, expected 10 numbers of a face in {image[:80]!r}")
                if int(count):
                    yield Row(image, f"line {line}", "" if fields[7] == "1" else "face", fields[:4])

    def region(self, fields: Any, size: tuple[int, int]) -> Region:
        return Region(syntax.box_of_size(*syntax.numbers(fields, "x", "y", "width", "height")))


_OF_MOT = (
    "pedestrian, person on vehicle, car, bicycle, motorbike, non motorized vehicle, static person, distractor, "
    "occluder, occluder on the ground, occluder full, reflection, crowd"
)


_SIDES = re.compile(rb"(imWidth|imHeight)\s*=\s*(\d+)")


class Mot(syntax.Syntax):
    """The MOT challenge's gt.txt: a line `frame,id,left,top,width,height,flag,class,visibility` for each box.

    Frames and pixels count from 1. Boxes with the flag 0 are ignored. The ids of tracks are not stored. Classes are the
    challenge's, or those of a file labels.txt, which tools write beside gt.txt: line n is the name of class n.

    Source: section 3.2 of https://arxiv.org/abs/1603.00831 and https://arxiv.org/abs/2003.09003
    """

    TITLE = "the MOT challenge"
    UNSTORED = tuple((what, b"") for what in ("tracks", "visibility"))
    SUFFIXES = ("gt.txt",)
    CODES = syntax.codes_of(_OF_MOT.split(", "))
    CODES_FILE = "labels.txt"
    UNNAMED = "keep"  # a frame without boxes has no line
    MARKS = (rb"(?m)^\d+, *-?\d+(, *-?[\d.]+){4}, *-?[\d.]+(, *-?[\d.]+){2,3}\s*$",)

    def unstored(self, heads: Iterable[bytes]) -> str:
        return (
            f"{super().unstored(heads)}; classes are the challenge's, and pedestrian where lines have none: for others "
            "put a file labels.txt beside gt.txt, whose line n is the name of class n"
        )

    def holders(self, probe: folder_probe.FolderProbe, at: str, most: int) -> Iterator[folder_probe.Folder]:
        """Yields the folders `gt` of all sequences: MOT17/train/MOT17-02-FRCNN/gt."""
        for folder in syntax.with_inner(probe, at, most):
            is_split = folder.path != at and folder_probe.split_meant(posixpath.basename(folder.path)) is not None
            inner = [probe.look(folder.below(name)) for name in folder.folders[:most]] if is_split else []
            yield from (probe.look(each.below("gt")) for each in (folder, *inner) if "gt" in each.folders)

    def doubt_on_sizes(
        self, probe: folder_probe.FolderProbe, folder: folder_probe.Folder, sizes: Mapping[str, box_signs.Size | None]
    ) -> str:
        path = posixpath.join(posixpath.dirname(folder.path), "seqinfo.ini")
        stated = dict(_SIDES.findall(probe.head(path) if probe.holds(path) else b""))
        meant = int(stated.get(b"imWidth", 0)), int(stated.get(b"imHeight", 0))
        if all(meant) and (other := next((size for size in sizes.values() if size not in (None, meant)), None)):
            seen, said = (" x ".join(map(str, each)) for each in (other, meant))
            return f"frames are of {seen} pixels, and {path} says {said}: are the boxes of frames of that size?"
        return ""

    def rows(self, file: IO[bytes]) -> Iterator[Row]:
        for number, line in syntax.lines_of(file):
            frame, *fields = (cell.strip() for cell in line.split(","))
            if not frame.isdecimal():
                raise ValueError(f"line {number} begins with {frame[:80]!r}, expected the number of a frame")
            kind = fields[6] if len(fields) == 8 else "1"  # that of 2015 has no classes, and three places in space
            flag = fields[5] if len(fields) > 5 else ""
            yield Row(frame.lstrip("0"), f"line {number}", "" if flag == "0" else kind, fields[1:5])

    def region(self, fields: Any, size: tuple[int, int]) -> Region:
        left, top, width, height = syntax.numbers(fields, "left", "top", "width", "height")
        return Region(syntax.box_of_size(left - 1, top - 1, width, height))
