"""Judges boxes by whether they are inside of their images: as they are read, and as they could be read instead."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from imagebeam import plural

Size: TypeAlias = tuple[float, float]  # width and height of an image, in the unit of its boxes
Box: TypeAlias = tuple[Sequence[float], Size | None]  # four numbers, and the size of the image if it is known
Edges: TypeAlias = tuple[float, float, float, float]  # or other four numbers of a box: xmin, ymin, xmax, ymax

CORNERS = "two corners (x1 y1 x2 y2)"
SIZED = "a corner and a size (x y width height)"
CENTERED = "a center and a size (x y width height)"
_EDGES_OF: Mapping[str, Callable[[float, float, float, float], Edges]] = {
    CORNERS: lambda x1, y1, x2, y2: (x1, y1, x2, y2),
    SIZED: lambda x, y, width, height: (x, y, x + width, y + height),
    CENTERED: lambda x, y, width, height: (x - width / 2, y - height / 2, x + width / 2, y + height / 2),
}
_WRITTEN: Mapping[str, Callable[[float, float, float, float], Edges]] = {
    CORNERS: lambda xmin, ymin, xmax, ymax: (xmin, ymin, xmax, ymax),
    SIZED: lambda xmin, ymin, xmax, ymax: (xmin, ymin, xmax - xmin, ymax - ymin),
    CENTERED: lambda xmin, ymin, xmax, ymax: ((xmin + xmax) / 2, (ymin + ymax) / 2, xmax - xmin, ymax - ymin),
}
_SLACK = 0.02  # of a side: a box that is no further outside is a matter of rounding
_FEW, _MANY = 0.2, 0.5  # shares of the boxes that leave their images
SHARES: Size = (1.0, 1.0)  # size of an image whose boxes are shares of its sides


class Judgement(NamedTuple):
    """Lines on boxes."""

    doubts: tuple[str, ...] = ()  # what contradicts that they are read as they are meant
    notes: tuple[str, ...] = ()


def judge(boxes: Sequence[Box], form: str, option: str) -> Judgement:
    """Judges the boxes in the beginnings of files.

    Many boxes outside of their images contradict a reading, and some do if all would be inside in another reading.

    Args:
        boxes: four numbers each as a file has them, with the size of the image; None if it is not known, and `SHARES`
            if numbers are read as shares of its sides.
        form: in which they are read.
        option: section of the config that reads them.
    """
    numbers = [number for box, _ in boxes for number in box]
    in_shares = all(size == SHARES for _, size in boxes)
    if not in_shares and numbers and all(0 <= number <= 1 for number in numbers):
        return Judgement(
            ("all numbers of boxes are from 0 to 1, where pixels are expected: multiply them by the sizes of images",)
        )
    if in_shares and sum(number > 1 + _SLACK for number in numbers) > _MANY * len(numbers):
        return Judgement(
            ("most numbers of boxes are above 1, where shares of the image are expected: divide them by its sizes",)
        )
    known = [(box, size) for box, size in boxes if size is not None]
    outside = sum(not _is_inside(form, *each) for each in known)
    if not outside:
        return Judgement()
    leave = f"{outside:,} of {plural.count(len(known), 'box')} that were looked at leave their images"
    others = [each for each in _EDGES_OF if each != form and all(_is_inside(each, *every) for every in known)]
    if outside > 1 and outside > _FEW * len(known) and others:
        return Judgement((f"{leave}, read as {form}, and none does as {others[0]}: if so, write each as {form}",))
    if outside > _MANY * len(known):
        return Judgement((f"{leave}, read as {form}: what do their numbers mean?",))
    return Judgement(notes=(f"{leave}: they are clipped at the edge; {option}.outside=reject rejects these images",))


def judge_extents(boxes: Sequence[tuple[Sequence[float], Edges]], form: str) -> str:
    """Returns a doubt if the outlines of objects are elsewhere than their boxes, as they are read; "" if not.

    Args:
        boxes: four numbers each as a file has them, with the box around the outline.
        form: in which they are read.
    """
    fits = {each: sum(_are_near(_EDGES_OF[each](*box), edges) for box, edges in boxes) for each in _EDGES_OF}
    better = [each for each, number in fits.items() if number == len(boxes) > 1 and fits[form] < _MANY * number]
    if better:
        return (
            f"the outlines of objects fit boxes of {better[0]}, and they are read as {form}: write each as the latter"
        )
    elsewhere = sum(not _do_overlap(_EDGES_OF[form](*box), edges) for box, edges in boxes)
    if elsewhere <= max(1, _MANY * len(boxes)):
        return ""
    return (
        f"outlines of {elsewhere:,} of {plural.count(len(boxes), 'object')} are not in their boxes: what do these mean?"
    )


def judge_areas(boxes: Sequence[tuple[Sequence[float], float]], form: str) -> str:
    """Returns a doubt if the areas that a file states are those of its boxes in another form alone; "" if not.

    Args:
        boxes: four numbers each as a file has them, with the area of the box.
        form: in which they are read.
    """

    def are_equal(other: str) -> bool:
        return all(abs(_area(_EDGES_OF[other](*box)) - area) <= _SLACK * area for box, area in boxes)

    fitting = [each for each in _EDGES_OF if each != form and len(boxes) > 1 and are_equal(each)]
    if not fitting or are_equal(form):
        return ""
    are = f"the areas of objects are those of boxes of {fitting[0]}"
    return f"{are}, and they are read as {form}: write each as the latter"


def _area(edges: Edges) -> float:
    xmin, ymin, xmax, ymax = edges
    return max(0.0, xmax - xmin) * max(0.0, ymax - ymin)


def _are_near(edges: Edges, others: Edges) -> bool:
    """Returns whether two boxes differ by a tenth of a side at most, or by two pixels."""
    xmin, ymin, xmax, ymax = others
    slack = max(2.0, 0.1 * (xmax - xmin)), max(2.0, 0.1 * (ymax - ymin))
    return all(abs(one - other) <= slack[at % 2] for at, (one, other) in enumerate(zip(edges, others)))


def _do_overlap(edges: Edges, others: Edges) -> bool:
    """Returns whether two boxes have a point in common."""
    return all(edges[at] < others[at + 2] and others[at] < edges[at + 2] for at in (0, 1))


def as_written(edges: Edges, form: str) -> tuple[float, ...]:
    """Returns the four numbers of a box in a form."""
    return _WRITTEN[form](*edges)


def _is_inside(form: str, box: Sequence[float], size: Size) -> bool:
    """Returns whether a box is one in a form, and inside of its image."""
    xmin, ymin, xmax, ymax = _EDGES_OF[form](*box)
    x, y = (_SLACK * side for side in size)
    return -x <= xmin <= xmax <= size[0] + x and -y <= ymin <= ymax <= size[1] + y
