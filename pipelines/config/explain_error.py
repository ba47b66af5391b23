"""Says what is wrong in a config, in one line: the key that is meant, or the form of the value."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterator, Sequence
from typing import Any, get_args

import pydantic

from imagebeam.pipelines.config import sections, source_and_image
from imagebeam.transforms.sources import strict_yaml


def explain(error: Any, config: type[pydantic.BaseModel]) -> str:
    """Returns what is wrong in one place of a config, with the key or the form that is meant.

    Args:
        error: one of those of a `pydantic.ValidationError`.
        config: model of the whole config.
    """
    location = ".".join(str(part) for part in error["loc"] if part not in ("(one)", "(own)", "(by split)", "(all)"))
    if error["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"unknown key {location!r}; {_key_meant(error['loc'], error['input'], config)}"
    if error["type"] == "value_error":  # one of the checks of models: the text names its keys, but not the column
        text = error["msg"].removeprefix("Value error, ")
        return f"{location}: {text.removeprefix('columns: ')}" if text.startswith("columns: ") else text
    text = _EXPECTED.get(error["type"], error["msg"][:1].lower() + error["msg"][1:])
    if error["type"] in _MAPPINGS:
        hint = _mapping_meant(error, config)
    elif location == "source.by":
        near = difflib.get_close_matches(str(error["input"]), source_and_image.BY, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "MODULE:CLASS is a source of your own"
    else:
        hint = _FORMS.get(location, "")
    return f"{location}: {text}, got {_show(error['input'])}" + (hint and f"; {hint}")


_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxdict, _SHORT.maxlist, _SHORT.maxtuple, _SHORT.maxstring = 3, 8, 8, 8, 400


def _show(value: Any) -> str:
    """Returns a value for an error, shortened if it is long."""
    short = _SHORT.repr(value)
    return short if "..." in short else repr(value)


def _key_meant(location: Sequence[str | int], value: Any, config: type[pydantic.BaseModel]) -> str:
    """Returns a question for the key that is meant, or the known keys.

    Args:
        location: of an unknown key.
        value: its value; a mapping if keys below it are given.
        config: model of the whole config.
    """
    *section, name = map(str, location)
    siblings = _known_keys(section, config)
    near = difflib.get_close_matches(name, siblings, n=1, cutoff=0.5)
    is_misspelt = bool(difflib.get_close_matches(name, near, cutoff=0.8))
    elsewhere = [] if is_misspelt else [_with_key_below(path, value, config) for path in _paths_of(name, config)]
    if elsewhere:
        meant = [".".join(path) for path in elsewhere[:_MAX_MEANT]]
    elif near:
        path = [*section, near[0]]
        meant = [".".join(_with_key_below(path, value, config)) if isinstance(value, dict) else near[0]]
    else:
        return f"known are {', '.join(siblings)}"
    form = _FORMS.get(meant[0], "") if len(meant) == 1 and not isinstance(value, list) else ""
    return f"did you mean {' or '.join(map(repr, meant))}?" + (form and f" {form}")


def _with_key_below(path: list[str], value: Any, config: type[pydantic.BaseModel]) -> list[str]:
    """Returns a path with the key below it that `value` gives, if that is one key, and known but for its spelling."""
    given = list(value) if isinstance(value, dict) else []
    return path + (difflib.get_close_matches(str(given[0]), _known_keys(path, config), n=1) if len(given) == 1 else [])


def _paths_of(name: str, model: Any, above: tuple[str, ...] = ()) -> Iterator[list[str]]:
    """Yields the paths of all keys of a name, from the top down."""
    fields = sections.fields_of(model)
    if name in fields:
        yield [*above, name]
    for each, field in fields.items():
        yield from _paths_of(name, field.kind, (*above, each))


def _mapping_meant(error: Any, config: type[pydantic.BaseModel]) -> str:
    """Returns what to write instead of a text where a mapping is expected: `by:none`, or just `none`; "" if unknown."""
    text = error["input"]
    if not isinstance(text, str):
        return ""
    if hint := strict_yaml.missing_space(text):
        return hint
    fields = sections.fields_of(_model_at(error["loc"], config))
    key = next((name for name, field in fields.items() if text in get_args(field.kind)), None)
    return f"write {{{key}: {text}}}" if key else ""


_MAX_MEANT = 3  # keys that are named
_FORMS = {  # how to write a list, for values that are no lists; or the key that is meant
    "image.filter": "a function of yours that leaves images out is image.keep_if",
    "image.background": "write [red, green, blue], such as [255, 255, 255]",
    "image.resize": "write [height, width], such as [224, 224]",
}
_MAPPINGS = ("dict_type", "model_type", "dataclass_type")
_EXPECTED = {  # YAML's terms instead of Python's
    "dict_type": "input should be a mapping",
    "model_type": "input should be a mapping",
    "dataclass_type": "input should be a mapping",
    "tuple_type": "input should be a list",
}


def _known_keys(location: Sequence[str | int], config: type[pydantic.BaseModel]) -> list[str]:
    return sorted(sections.fields_of(_model_at(location, config)))


def _model_at(location: Sequence[str | int], config: type[pydantic.BaseModel]) -> Any:
    model: Any = config
    for part in map(str, location):
        fields = sections.fields_of(model)
        model = fields[part].kind if part in fields else sections.ColumnConfig
    return model
