"""The shape of the images in an array, and the classes of labels that are numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from imagebeam import errors
from imagebeam.pipelines.config import arrays_section
from imagebeam.transforms.arrays import array_names, layouts
from imagebeam.transforms.formats import array_places

_MAX_CLASSES = 100_000


def axes_of(place: array_places.Place, wanted: arrays_section.ArraysConfig) -> layouts.ImageAxes:
    """Returns how an array holds images: as the config says, or what leaves no doubt.

    Raises:
        ConfigError: if neither says it.
    """
    if wanted.shape is not None and len(place.array.shape) == 2:
        if wanted.layout is None and wanted.shape[2] > 1:
            raise errors.ConfigError(
                f"{place} is of images of one axis: set source.arrays.layout to the order of their values, NHWC (the "
                "channels of a pixel follow each other) or NCHW (planes)"
            )
        return layouts.ImageAxes(wanted.layout or layouts.ROWS, wanted.shape)
    if wanted.layout is not None:
        return layouts.ImageAxes(wanted.layout)
    axes = layouts.guess(place.array.shape, is_matlab=place.uri.endswith(array_names.MATLAB))
    if axes is None:
        raise errors.ConfigError(
            f"{place} leaves open which of its axes are height, width and channels: set source.arrays.layout, for "
            "images of one axis source.arrays.shape; images in the columns of a matrix are not read: save it transposed"
        )
    return axes


def check_shapes(shapes: Mapping[tuple[int, int, int], array_places.Place]) -> None:
    """Raises ConfigError if there are images of several shapes; `shapes` has an array of each."""
    if len(shapes) > 1:
        (first, one), (second, other) = list(shapes.items())[:2]
        raise errors.ConfigError(
            f"images of {' x '.join(map(str, first))} in {one}, of {' x '.join(map(str, second))} in {other}: all must "
            "have one shape; name them in source.arrays.images of two runs"
        )


def given_classes(wanted: arrays_section.ArraysConfig) -> tuple[tuple[str, str], ...]:
    """Returns number and name of each class that the config names, both as texts."""
    named = wanted.classes if isinstance(wanted.classes, dict) else dict(enumerate(wanted.classes))
    return tuple((str(number), name) for number, name in named.items())


def numbers_up_to(texts: Iterable[str | None]) -> tuple[tuple[str, str], ...]:
    """Returns the numbers from 0 to the highest label, each as its own name; () if the labels are not such numbers."""
    highest = -1
    for text in texts:
        if text is None or not text.isascii() or not text.isdecimal() or text != str(int(text[:9])):
            return ()
        highest = max(highest, int(text))
    return tuple((str(number), str(number)) for number in range(highest + 1)) if highest < _MAX_CLASSES else ()
