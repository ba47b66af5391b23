"""A base of dataclasses that keep what they compute from their fields."""

from __future__ import annotations

import dataclasses
from typing import Any


class PickledFields:
    """Base of a frozen dataclass with cached properties: a pickled copy has the fields alone, and computes the rest."""

    def __getstate__(self) -> dict[str, Any]:
        """Returns the values of the fields by their names."""
        fields: Any = self
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(fields)}
