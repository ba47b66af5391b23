"""Values of a reader's options: each function converts one that was given, or refuses it.

Values become plain Python values, from whatever NumPy or TensorFlow type they have.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import math
import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from imagebeam import errors

# Converts the value that was given for the option of a name; raises ConfigError if it is of another kind.
Convert = Callable[[str, Any], Any]

_JITTERS = {"brightness": 1, "contrast": 1, "saturation": 1, "hue": 0}  # and the value that changes nothing
MAX_SIDE = (1 << 15) - 1  # pixels, the largest side that the code in C resizes to
MAX_BATCH_SIZE = 1 << 24
_MAX_BUCKETS = (1 << 15) - 1  # `aspect_buckets.choose` numbers them in 16 bits
_MAX_WHOLE = (1 << 31) - 1  # epochs times records stay below 2**63
SHUFFLES = ("stream", "global", None)
CROPS = ("random", "cover", "center", "resize_shorter", "squash", "letterbox", "pad", None)
INTERPOLATIONS = ("bilinear", "bicubic")
DCTS = ("fast", "accurate")
DECODERS = ("auto", "native", "pillow")
DTYPES = ("uint8", "uint16", "float32", "bfloat16", "float16")
IMAGENET_MEAN = (123.675, 116.28, 103.53)  # for pixels from 0 to 255; torchvision's 0.485, 0.456, 0.406
IMAGENET_STD = (58.395, 57.12, 57.375)  # torchvision's 0.229, 0.224, 0.225

MeanAndStd = tuple[Sequence[float], Sequence[float]]


def option(default: Any, convert: Convert) -> Any:
    """Returns the field of an option of a dataclass, whose values `convert` checks and converts."""
    return dataclasses.field(default=default, metadata={"convert": convert})


def bad_value(name: str, value: Any, expected: str) -> errors.ConfigError:
    """Returns the error for a value that an option cannot have."""
    return errors.ConfigError("option-bad-value", f"{name} is {value!r}; {expected}")


def whole(least: int | None = None, most: int = _MAX_WHOLE, *, may_be_none: bool = False) -> Convert:
    """Returns a converter to whole numbers from `least` to `most`; to any, such as a seed, without `least`."""

    def convert(name: str, value: Any) -> int | None:
        if value is None and may_be_none:
            return None
        number = None if isinstance(value, bool) or not hasattr(value, "__index__") else operator.index(value)
        if number is None or (least is not None and number < least):
            raise bad_value(name, value, "it must be a whole number" + ("" if least is None else f" from {least} on"))
        if least is not None and number > most:
            raise bad_value(name, value, f"it must be at most {most:,}")
        return number

    return convert


def truth(*, may_be_none: bool = False) -> Convert:
    """Returns a converter to True or False, also from NumPy's."""

    def convert(name: str, value: Any) -> bool | None:
        if value is None and may_be_none:
            return None
        if type(value).__name__ not in ("bool_", "bool"):
            raise bad_value(name, value, "it must be True or False")
        return bool(value)

    return convert


def instance(wanted: type) -> Convert:
    """Returns a converter that accepts None and values of a class."""

    def convert(name: str, value: Any) -> Any:
        if value is not None and not isinstance(value, wanted):
            raise bad_value(name, value, f"it must be an imagebeam.{wanted.__name__}, or None")
        return value

    return convert


def number(name: str, value: Any) -> float:
    """Returns a finite number."""
    found = math.nan
    if not isinstance(value, (str, bytes, bool)):
        with contextlib.suppress(TypeError, ValueError):
            found = float(value)
    if not math.isfinite(found):
        raise bad_value(name, value, "it must be a number")
    return found


def positive(*, may_be_none: bool = False) -> Convert:
    """Returns a converter to numbers above 0."""

    def convert(name: str, value: Any) -> float | None:
        if value is None and may_be_none:
            return None
        if (found := number(name, value)) <= 0:
            raise bad_value(name, value, "it must be above 0")
        return found

    return convert


def fraction(*, may_be_zero: bool = False) -> Convert:
    """Returns a converter to numbers up to 1."""

    def convert(name: str, value: Any) -> float:
        found = number(name, value)
        if not 0 <= found <= 1 or (found == 0 and not may_be_zero):
            raise bad_value(name, value, "it must be 0 to 1" if may_be_zero else "it must be above 0 and at most 1")
        return found

    return convert


def limits(limit: float) -> Convert:
    """Returns a converter to the least and the greatest value of a range, up to `limit`."""

    def convert(name: str, value: Any) -> tuple[float, float]:
        found = _to_list(value)
        if found is None or len(found) != 2:
            raise bad_value(name, value, "it must be two numbers, (least, greatest)")
        low, high = number(name, found[0]), number(name, found[1])
        if not 0 < low <= high <= limit:
            raise bad_value(name, (low, high), f"it must be 0 < least <= greatest <= {limit:g}")
        return low, high

    return convert


def choice(choices: Sequence[Any]) -> Convert:
    """Returns a converter that accepts a few values."""

    def convert(name: str, value: Any) -> Any:
        for each in choices:
            if value is each or (isinstance(value, str) and value == each):
                return each
        nearest = difflib.get_close_matches(str(value), [each for each in choices if each is not None], 1)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        raise bad_value(name, value, f"it is one of {', '.join(map(repr, choices))}{hint}")

    return convert


def dtype(name: str, value: Any) -> Any:
    """Returns the name of a type, also from NumPy's, TensorFlow's or JAX's type."""
    if not isinstance(value, str):
        # np.float32 and jnp.bfloat16 are classes of scalars, np.dtype and tf.DType have a name.
        for found in (getattr(value, "name", None), getattr(value, "__name__", None)):
            if found in DTYPES:
                return found
    return choice(DTYPES)(name, value)


def image_size(name: str, value: Any) -> int | tuple[int, int] | None:
    """Returns a side in pixels, or (height, width)."""
    if value is None:
        return None
    sides = _to_list(value)
    try:
        given = [value] if sides is None else sides
        if any(isinstance(side, bool) for side in given) or (sides is not None and len(sides) != 2):
            raise TypeError
        found = [operator.index(side) for side in given]
    except TypeError as e:
        raise bad_value(name, value, "it must be a whole number of pixels, or two of them, (height, width)") from e
    if min(found) < 1:
        raise bad_value(name, value, "it must be at least 1 pixel")
    if max(found) > MAX_SIDE:
        raise bad_value(name, value, f"it must be at most {MAX_SIDE:,} pixels, to which images can be resized")
    return found[0] if sides is None else (found[0], found[1])


def buckets(name: str, value: Any) -> tuple[tuple[int, int], ...] | None:
    """Returns the height and width of each bucket."""
    if value is None:
        return None
    found = [image_size(f"{name}[{place}]", each) for place, each in enumerate(_to_list(value) or [])]
    sizes = [(each, each) if isinstance(each, int) else each for each in found if each is not None]
    if not sizes or len(set(sizes)) < len(found):
        raise bad_value(name, value, "it must be a list of different sizes, (height, width), as of aspect_buckets")
    if len(sizes) > _MAX_BUCKETS:
        raise errors.ConfigError("option-bad-value", f"{name} are {len(sizes):,}; give {_MAX_BUCKETS:,} at most")
    return tuple(sizes)


def normalize(name: str, value: Any) -> Any:
    """Returns a name, or mean and standard deviation: one number for all channels, or one for each."""
    names = ("imagenet", "dataset")
    if value is None or (isinstance(value, str) and value in names):
        return value
    expected = f"it is {', '.join(map(repr, names))}, or (mean, std) of pixels from 0 to 255"
    found = _to_list(value)
    if found is None or len(found) != 2:
        raise bad_value(name, value, expected)
    try:
        mean, std = (_channels(name, each) for each in found)
    except (errors.ConfigError, ValueError) as e:
        raise bad_value(name, value, f"{expected}, each one number or one for each channel") from e
    if min(std) <= 0:
        raise bad_value(f"the standard deviation of {name}", found[1], "it must be above 0 in each channel")
    return mean, std


def _channels(name: str, value: Any) -> tuple[float, ...]:
    values = _to_list(value)
    found = tuple(number(name, each) for each in ([value] if values is None else values))
    if not found:
        raise ValueError("no channel")
    return found


def keys(name: str, value: Any) -> tuple[str, ...]:
    """Returns keys of features."""
    if isinstance(value, (str, bytes)):
        raise bad_value(name, value, f"it must be a list of keys: give {name}=[{value!r}]")
    found = _to_list(value)
    if found is None or not all(isinstance(each, str) for each in found):
        raise bad_value(name, value, 'it must be a list of keys, such as ["image/key"]')
    return tuple(map(str, found))


def names(name: str, value: Any) -> tuple[str, ...]:
    """Returns names of extra images, each once."""
    return tuple(dict.fromkeys(keys(name, value)))


def weights(name: str, value: Any) -> Any:
    """Returns the key of a feature, or the weights by the id of their class."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, Mapping) or not value:
        raise bad_value(name, value, "it must be {id of a class: weight}, or the key of a feature")
    found = {
        whole(0, (1 << 63) - 1)("a class of " + name, key): number(f"{name}[{key}]", each)
        for key, each in value.items()
    }
    if min(found.values()) < 0:
        raise bad_value(name, value, "a weight must be 0 or more")
    return found


def path(name: str, value: Any) -> str:
    """Returns a path or an address."""
    found = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(found, str) or not found:
        raise bad_value(name, value, "it must be a path or an address")
    scheme, colon, rest = found.partition(":/")
    if not isinstance(value, str) and colon and scheme.isalnum() and not rest.startswith("/"):
        raise bad_value(name, value, f"pathlib removes a slash from {scheme}://; give the address as a string")
    return found


def _to_list(value: Any) -> list[Any] | None:
    """Returns the values of a list, tuple, array or the like; None if `value` is none of these."""
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        return None
    try:
        return list(value)
    except TypeError:  # an array without axes
        return None


def color_jitter(name: str, value: Any) -> tuple[tuple[float, float], ...] | None:
    """Returns the ranges of brightness, contrast, saturation and hue, as torchvision's ColorJitter has them."""
    if value is None or isinstance(value, tuple):  # a tuple is of other options, whose ranges were checked
        return value
    expected = f"it is {{one of {', '.join(_JITTERS)}: a number, or (least, greatest)}}"
    if not isinstance(value, Mapping) or not value or not set(value) <= set(_JITTERS):
        raise bad_value(name, value, expected)
    ranges = []
    for each, middle in _JITTERS.items():
        given = _to_list(value.get(each, 0))
        width = number(f"{name}[{each!r}]", value.get(each, 0)) if given is None else 0.0
        found = [max(middle - width, 0) if middle else -width, middle + width]
        if given is not None:
            found = [number(f"{name}[{each!r}]", one) for one in given]
        least, greatest = (0, math.inf) if middle else (-0.5, 0.5)
        if width < 0 or len(found) != 2 or not least <= found[0] <= found[1] <= greatest:
            raise bad_value(f"{name}[{each!r}]", value[each], f"{expected}, {least:g} to {greatest:g}")
        ranges.append((found[0], found[1]))
    return tuple(ranges)


def views(name: str, value: Any) -> Any:
    """Returns the number, the size and the options of the views of each name."""
    if value is None:
        return None
    expected = 'give {name: (number, size)} or {name: (number, size, {"crop": "random", ...})}'
    if not isinstance(value, Mapping) or not value:
        raise bad_value(name, value, expected)
    found = {}
    for view, given in value.items():
        own, fields = f"{name}[{view!r}]", _to_list(given) or []
        fields += [{}] * (len(fields) == 2)
        if not (isinstance(view, str) and view and len(fields) == 3 and isinstance(fields[2], Mapping)):
            raise bad_value(own, given, expected)
        found[view] = whole(1)(own, fields[0]), image_size(own, fields[1]), dict(fields[2])
    return found


def fill(name: str, value: Any) -> tuple[int, ...]:
    """Returns red, green and blue, of one level for all or three."""
    found = _to_list(value)
    levels = [whole(0)(name, each) for each in ([value] * 3 if found is None else found)]
    if len(levels) != 3 or max(levels) > 255:
        raise bad_value(name, value, "it is a level of 0 to 255, or three of them")
    return tuple(levels)


def function(name: str, value: Any) -> Any:
    """Returns a function."""
    if value is not None and not callable(value):
        raise bad_value(name, value, "it must be a function")
    return value


def text(name: str, value: Any) -> str | None:
    """Returns a string that is not empty."""
    if value is not None and not (isinstance(value, str) and value):
        raise bad_value(name, value, "it must be a string")
    return value
