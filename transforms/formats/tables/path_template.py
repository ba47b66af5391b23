"""Templates for the path of an image, filled with the cells of its row: `images/{id}.*`, `**/{id}.jpg`."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from imagebeam.transforms.sources import table_rows

ANY_EXTENSION = ".*"
ANY_FOLDER = "**/"

_CELL = re.compile(r"\{([^{}]+)\}")


class PathTemplate(NamedTuple):
    """Text with `{column}` in it.

    With `.*` at its end, the image may have any extension of an image. With `**/` before the part with the columns, it
    may be in any folder there.
    """

    text: str

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns whose cells it takes, each once."""
        return tuple(dict.fromkeys(_CELL.findall(self.text)))

    @property
    def any_extension(self) -> bool:
        """Whether the extension is found by a listing."""
        return self.text.endswith(ANY_EXTENSION)

    @property
    def any_folder(self) -> bool:
        """Whether the folder is found by a listing."""
        return ANY_FOLDER in self.text

    @property
    def folder(self) -> str:
        """The folder that all paths begin with; "" if the first cell may name it."""
        return self.text[: self.text.index("{")].partition(ANY_FOLDER)[0].rpartition("/")[0]

    @property
    def num_parts_found(self) -> int:
        """With `any_folder`, the number of names in the path after it; else 0, for the whole path."""
        return self.text.partition(ANY_FOLDER)[2].count("/") + 1 if self.any_folder else 0

    def fill(self, cells: Mapping[str, Any]) -> str:
        """Returns the path of a row; "" if one of its cells is empty.

        Raises:
            BadRowError: if a cell holds several values.
        """
        values = {name: table_rows.text_in(cells, name) for name in self.columns}
        if not all(values.values()):
            return ""
        return _CELL.sub(lambda found: str(values[found[1]]), self.text)

    def find_empty(self, cells: Mapping[str, Any]) -> str:
        """Returns the first of its columns whose cell is empty."""
        return next(name for name in self.columns if table_rows.is_empty(cells.get(name)))


@functools.lru_cache(maxsize=16)
def parse(text: str | None) -> PathTemplate | None:
    """Returns the template that `text` is; None for the name of a column.

    Raises:
        ValueError: if its braces are not closed, or it has `*` elsewhere than for a folder or the extension.
    """
    if text is None or not _CELL.search(text):
        return None
    rest = _CELL.sub("", text.removesuffix(ANY_EXTENSION))
    if "{" in rest or "}" in rest:
        raise ValueError(f"{text!r} has a brace without its other one; write for example 'images/{{id}}.jpg'")
    before, any_folder, after = text.partition(ANY_FOLDER)
    if any_folder and (not before or before.endswith("/")) and "{" not in before and "{" in after:
        rest = rest.replace(ANY_FOLDER, "", 1)
    if "*" in rest:
        raise ValueError(
            f"{text!r} has a '*' that is neither its whole extension nor '**/' before the columns; write for example "
            "'images/{id}.*' or '**/{id}.*'"
        )
    return PathTemplate(text)
