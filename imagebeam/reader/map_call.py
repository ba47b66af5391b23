"""One call of the user's `map`: with random numbers of its own, and a result that a batch can hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from imagebeam.reader import example_columns

Arrays: TypeAlias = dict[str, np.ndarray]
Function: TypeAlias = Callable[[dict[str, Any], np.random.Generator], Mapping[str, Any]]
Specs: TypeAlias = Mapping[str, example_columns.ColumnSpec]


class ResultError(ValueError):
    """The function returned something that cannot be in the batch."""


def describe(error: Exception) -> str:
    """Returns the detail of a fault of a record."""
    return str(error) if isinstance(error, ResultError) else f"map raised {type(error).__name__}: {error}"


def generator(seed: np.uint64) -> np.random.Generator:
    """Returns a generator whose numbers depend on the seed alone, on every machine. It takes 20 us."""
    return np.random.Generator(np.random.Philox(key=np.array([seed, 0], np.uint64)))


def call(
    function: Function,
    example: dict[str, Any],
    seed: np.uint64,
    specs: Specs | None = None,
    needed: Sequence[str] = (),
) -> Arrays:
    """Returns what the function makes of an example, in arrays; `needed` are names that it must have.

    Raises:
        ValueError: if it is nothing that a batch can hold, or not as in `specs`. The function may raise any error.
    """
    result = function(example, generator(seed))
    if not isinstance(result, Mapping) or not result.keys() >= set(needed):
        names = sorted(result) if isinstance(result, Mapping) else type(result).__name__
        raise ResultError(
            f"map returned {names}, not a dict with {' and '.join(map(repr, needed)) or 'the same names'}"
        )
    arrays = {name: _to_array(name, value) for name, value in result.items()}
    if specs is not None and arrays.keys() != specs.keys():
        raise ResultError(f"map returned {sorted(arrays)} for it, and {sorted(specs)} for a black example")
    for name, spec in (specs or {}).items():
        found = arrays[name]
        fits = len(found.shape) == len(spec.shape) and all(e in (None, f) for e, f in zip(spec.shape, found.shape))
        if not fits or found.dtype != spec.dtype:
            raise ResultError(
                f"map returned {name!r} as {shape_of(found)} for it, and as {shape_of(spec)} for a black example"
            )
    return arrays


def _to_array(name: str, value: Any) -> np.ndarray:
    array: np.ndarray
    if isinstance(value, bytes):
        array = np.empty((), object)
        array[()] = value
        return array
    array = np.asarray(value)
    is_number = array.dtype.kind in "biuf" or array.dtype.name == "bfloat16"
    if not is_number and not (array.dtype == object and all(isinstance(each, bytes) for each in array.flat)):
        raise ResultError(f"map returned {name!r} as {shape_of(array)}, not as numbers or bytes")
    return array


def shape_of(values: np.ndarray | example_columns.ColumnSpec) -> str:
    """Returns type and shape, for users."""
    return f"{values.dtype.name} {list(values.shape)}"
