"""Parses YAML for configs: refuses repeated keys, and explains errors in one line.

PyYAML's loader with one check more. Libraries that refuse repeated keys themselves read YAML 1.2 (ruamel.yaml), where
`no` is a text, or a part of YAML (strictyaml); Beam brings PyYAML.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from imagebeam import errors

_NO_SPACE = re.compile(r"([^\s:'\"{}]+):([^\s:/].*)", re.DOTALL)  # not gs://

_REMEDIES = {  # by a part of PyYAML's text
    r"character '\t'": "indent with spaces, not with tabs",
    "unknown escape character": "put a regular expression between single quotes",
    "mapping values are not allowed": "put a text that holds ': ' between quotes, and give the keys of one section "
    "the same indent",
    "found undefined alias": "put a text that begins with '*' between quotes",
    "expected alphabetic or numeric": "put a text that begins with '*' between quotes",
    "cannot start any token": "put the text between quotes",
    "did not find expected": "give the keys of one section the same indent",
    "expected <block end>": "give the keys of one section the same indent",
    "expected ',' or": "close the bracket, and put a comma between entries",
    "found unexpected end of stream": "close the quote",
    "another document": "a config is one document; remove the line ---",
}


class _Loader(yaml.SafeLoader):
    """Checks each mapping when it is composed: before keys of other mappings are merged into it by `<<`."""

    where = ""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}  # by tag and text of a key
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            line = key.start_mark.line + 1
            if (first := lines.get((key.tag, key.value))) is not None:
                places = f"in lines {first} and {line}" if first != line else f"both times in line {line}"
                raise errors.ConfigError(
                    "config-key-twice",
                    f"{self.where}: the key {key.value!r} is given twice, {places}; keep one of them",
                )
            lines[key.tag, key.value] = line
            is_empty = isinstance(value, yaml.ScalarNode) and not value.value and value.style is None
            if is_empty and key.style is None and (hint := missing_space(key.value)):
                raise errors.ConfigError(
                    "config-key-without-value", f"{self.where}, line {line}: {key.value!r} has no value; {hint}"
                )
        return node


def parse(text: str, where: str) -> Any:
    """Returns the value of a YAML document; None for an empty one.

    Args:
        text: the document.
        where: the file or argument with the document, for errors.

    Raises:
        ConfigError: if a mapping has a key twice, or a key lacks the space after its colon.
        YAMLError: if it is not YAML; see `explain`.
    """
    loader = _Loader(text)
    loader.where = where
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def missing_space(text: str) -> str:
    """Returns what to write instead of `by:none`, which YAML reads as one text; "" if `text` is not of this form."""
    match = _NO_SPACE.fullmatch(text)
    return f"write '{match[1]}: {match[2]}', with a space after the colon" if match else ""


def explain(error: yaml.YAMLError, text: str) -> str:
    """Explains an error in one line: where, what, and what to do."""
    problem = str(getattr(error, "problem", None) or getattr(error, "reason", None) or error)
    problem = " ".join(problem.split("\n")[0].split())
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    lines = text.splitlines() or [""]
    if mark is not None:
        line = min(mark.line, len(lines) - 1)  # the end of the text counts as a line of its own
        shown = f" in {lines[line].strip()[:80]!r}" if lines[line].strip() else ""
        problem = f"line {line + 1}, column {mark.column + 1}: {problem}{shown}"
    elif isinstance(position := getattr(error, "position", None), int):
        problem = f"line {text.count(chr(10), 0, position) + 1}: {problem}"
    begun = getattr(error, "context_mark", None)
    if begun is not None and mark is not None and begun.line < min(mark.line, len(lines) - 1):
        problem += f" (begun in line {begun.line + 1})"
    remedy = next((remedy for part, remedy in _REMEDIES.items() if part in problem), "")
    return f"{problem}; {remedy}" if remedy else problem


_MAPPING = re.compile(r"\{\s*\w+:\s.*\}", re.DOTALL)  # {image: "..."}, but not {id}.jpg


def refuse_mapping(error: yaml.YAMLError, path: str, value: str) -> None:
    """Raises ConfigError if a value of --set that YAML cannot parse is meant as a mapping, not as a plain text."""
    if _MAPPING.fullmatch(value.strip()):
        raise errors.ConfigError(
            "config-not-yaml",
            f"--set {path}={value} is not valid YAML ({explain(error, value)}): use single quotes around texts with "
            "backslashes",
        ) from error
