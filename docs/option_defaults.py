"""Shows options in the Python reference with their defaults, not with the call that declares them, for `make site`."""

from __future__ import annotations

from typing import Any

import griffe


class OptionDefaults(griffe.Extension):
    """Takes the default out of `option_values.option(default, convert)`."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **kwargs: Any) -> None:
        """Griffe calls this for each attribute, before it makes the signature of a dataclass."""
        if isinstance(attr.value, griffe.ExprCall) and attr.value.canonical_path.endswith("option_values.option"):
            attr.value = attr.value.arguments[0]
