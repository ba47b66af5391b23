"""Converts values of reader options to plain Python values, from whatever NumPy or TensorFlow type they have.

Each converter takes the name of an option and the value given for it, and raises ConfigError if the value is of another
kind.
"""

from __future__ import annotations

import difflib
import math
import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from imagebeam import errors

Convert = Callable[[str, Any], Any]

_MAX_SIDE = 65_500  # pixels, the largest side of a JPEG


def plain_values(given: Mapping[str, Any], kinds: Mapping[str, Convert]) -> dict[str, Any]:
    """Returns the options of `given`, each converted by the converter of its name in `kinds`."""
    return {name: convert(name, given[name]) for name, convert in kinds.items() if name in given}


def check_names(given: Iterable[str], known: Sequence[str]) -> None:
    """Checks that all options exist.

    Raises:
        ConfigError: if one does not; the text names the nearest that does.
    """
    for name in given:
        if name not in known:
            nearest = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {nearest[0]!r}?" if nearest else f"there are {', '.join(known)}"
            raise errors.ConfigError(f"there is no option {name!r}: {hint}")


def whole(least: int | None = None, *, may_be_none: bool = False) -> Convert:
    """Returns a converter to whole numbers from `least` on."""

    def convert(name: str, value: Any) -> int | None:
        if value is None and may_be_none:
            return None
        expected = "a whole number" if least is None else f"a whole number from {least} on"
        try:
            number = operator.index(value)
        except TypeError as e:
            raise errors.ConfigError(f"{name} is {value!r}; it must be {expected}") from e
        if isinstance(value, bool) or (least is not None and number < least):
            raise errors.ConfigError(f"{name} is {value!r}; it must be {expected}")
        return number

    return convert


def truth(*, may_be_none: bool = False) -> Convert:
    """Returns a converter to True or False, also from NumPy's."""

    def convert(name: str, value: Any) -> bool | None:
        if value is None and may_be_none:
            return None
        if not isinstance(value, bool) and type(value).__name__ not in ("bool_", "bool"):
            raise errors.ConfigError(f"{name} is {value!r}; it must be True or False")
        return bool(value)

    return convert


def number(name: str, value: Any) -> float:
    """Returns a finite number."""
    try:
        found = float(value)
    except (TypeError, ValueError) as e:
        raise errors.ConfigError(f"{name} is {value!r}; it must be a number") from e
    if isinstance(value, (str, bytes, bool)) or not math.isfinite(found):
        raise errors.ConfigError(f"{name} is {value!r}; it must be a number")
    return found


def pair(name: str, value: Any) -> tuple[float, float]:
    """Returns the least and the greatest value of a range."""
    found = _to_list(value)
    if found is None or len(found) != 2:
        raise errors.ConfigError(f"{name} is {value!r}; it must be two numbers, (least, greatest)")
    return number(name, found[0]), number(name, found[1])


def choice(choices: Sequence[Any]) -> Convert:
    """Returns a converter that accepts a few values."""

    def convert(name: str, value: Any) -> Any:
        for each in choices:
            if value is each or (isinstance(value, str) and value == each):
                return each
        nearest = difflib.get_close_matches(str(value), [each for each in choices if each is not None], 1)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        raise errors.ConfigError(f"{name} is {value!r}; it is one of {', '.join(map(repr, choices))}{hint}")

    return convert


def dtype(choices: Sequence[str]) -> Convert:
    """Returns a converter to the name of a type, also from NumPy's, TensorFlow's or JAX's type."""
    named = choice(choices)

    def convert(name: str, value: Any) -> Any:
        if not isinstance(value, str):
            # np.float32 and jnp.bfloat16 are classes of scalars, np.dtype and tf.DType have a name.
            for found in (getattr(value, "name", None), getattr(value, "__name__", None)):
                if found in choices:
                    return found
        return named(name, value)

    return convert


def image_size(name: str, value: Any) -> int | tuple[int, int] | None:
    """Returns a side in pixels, or (height, width)."""
    if value is None:
        return None
    sides = _to_list(value)
    try:
        if isinstance(value, bool) or (sides is not None and len(sides) != 2):
            raise TypeError
        found = [operator.index(side) for side in ([value] if sides is None else sides)]
    except TypeError as e:
        raise errors.ConfigError(
            f"{name} is {value!r}; it must be a whole number of pixels, or two of them, (height, width)"
        ) from e
    if min(found) < 1:
        raise errors.ConfigError(f"{name} is {value!r}; it must be at least 1 pixel")
    if max(found) > _MAX_SIDE:
        raise errors.ConfigError(f"{name} is {value!r}; it must be at most {_MAX_SIDE:,} pixels")
    return found[0] if sides is None else (found[0], found[1])


def normalize(name: str, value: Any) -> Any:
    """Returns a name, or mean and standard deviation of each of the three channels."""
    names = ("imagenet", "dataset")
    if value is None or (isinstance(value, str) and value in names):
        return value
    expected = f"it is {', '.join(map(repr, names))}, or (mean, std) of pixels from 0 to 255"
    found = _to_list(value)
    if found is None or len(found) != 2:
        raise errors.ConfigError(f"{name} is {value!r}; {expected}")
    try:
        mean, std = (_channels(name, each) for each in found)
    except (errors.ConfigError, ValueError) as e:
        raise errors.ConfigError(
            f"{name} is {value!r}; {expected}, each one number or one for each of 3 channels"
        ) from e
    if min(std) <= 0:
        raise errors.ConfigError(f"{name} has the standard deviation {found[1]!r}; it must be above 0 in each channel")
    return mean, std


def _channels(name: str, value: Any) -> tuple[float, float, float]:
    values = _to_list(value)
    found = [number(name, each) for each in ([value] if values is None else values)]
    if len(found) not in (1, 3):
        raise ValueError(f"{len(found)} channels")
    red, green, blue = found * 3 if len(found) == 1 else found
    return red, green, blue


def keys(name: str, value: Any) -> tuple[str, ...]:
    """Returns keys of features."""
    if isinstance(value, (str, bytes)):
        raise errors.ConfigError(f"{name} is {value!r}; it must be a list of keys: give {name}=[{value!r}]")
    found = _to_list(value)
    if found is None or not all(isinstance(each, str) for each in found):
        raise errors.ConfigError(f'{name} is {value!r}; it must be a list of keys, such as ["image/key"]')
    return tuple(map(str, found))


def weights(name: str, value: Any) -> Any:
    """Returns the key of a feature, or the weights by the id of their class."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, Mapping) or not value:
        raise errors.ConfigError(f"{name} is {value!r}; it must be {{id of a class: weight}}, or the key of a feature")
    found = {whole(0)("a class of " + name, key): number(f"{name}[{key}]", each) for key, each in value.items()}
    if min(found.values()) < 0:
        raise errors.ConfigError(f"{name} is {value!r}; a weight must be 0 or more")
    return found


def path(name: str, value: Any) -> str:
    """Returns a path or an address."""
    try:
        found = os.fspath(value)
    except TypeError as e:
        raise errors.ConfigError(f"{name} is {value!r}; it must be a path or an address") from e
    if not isinstance(found, str) or not found:
        raise errors.ConfigError(f"{name} is {value!r}; it must be a path or an address")
    scheme, colon, rest = found.partition(":/")
    if not isinstance(value, str) and colon and scheme.isalnum() and not rest.startswith("/"):
        raise errors.ConfigError(
            f"{name} is {value!r}: pathlib removes a slash from {scheme}://; give the address as a string"
        )
    return found


def _to_list(value: Any) -> list[Any] | None:
    """Returns the values of a list, tuple, array or the like; None if `value` is none of these."""
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        return None
    try:
        return list(value)
    except TypeError:  # an array without axes
        return None
