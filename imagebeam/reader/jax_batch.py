"""A batch with strings, as a pytree of JAX. Imports JAX, so it is imported when the first such batch is made."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np


@jax.tree_util.register_pytree_with_keys_class
class BatchWithStrings(dict[str, Any]):
    """A dict that JAX sees without its strings: what it makes of it, as an argument of jit, is a dict of arrays."""

    def tree_flatten_with_keys(self) -> tuple[list[tuple[Any, Any]], tuple[str, ...]]:
        """Returns the arrays in the order in which JAX flattens a dict."""
        names = tuple(sorted(name for name, value in self.items() if not holds_strings(value)))
        return [(jax.tree_util.DictKey(name), self[name]) for name in names], names

    @classmethod
    def tree_unflatten(cls, names: tuple[str, ...], arrays: Iterable[Any]) -> dict[str, Any]:
        return dict(zip(names, arrays, strict=True))


def holds_strings(value: Any) -> bool:
    """Returns whether JAX has no arrays for a value of a batch."""
    return isinstance(value, np.ndarray) and value.dtype.kind in "OSU"


def as_pytree(batch: dict[str, Any]) -> dict[str, Any]:
    """Returns a batch as it is if it has no strings, else one that JAX sees without them."""
    return BatchWithStrings(batch) if any(map(holds_strings, batch.values())) else batch
