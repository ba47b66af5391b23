"""Types of config fields that several sections use, and the kinds of values in columns."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import pydantic
import pydantic_core

from imagebeam import features

# Without use_attribute_docstrings, which parses the source of every model on import (0.1 s): `schema` reads them.
STRICT = pydantic.ConfigDict(extra="forbid", frozen=True, validate_default=True)

KINDS: Mapping[str, str] = {"string": features.BYTES, "int": features.INT64, "float": features.FLOAT}  # of `type`


class Field(NamedTuple):
    """A field of a section: of a pydantic model, or of the dataclass of a format."""

    kind: Any
    default: Any


def fields_of(section: Any) -> dict[str, Field]:
    """Returns the fields of a section by name; none of what is no section."""
    if isinstance(section, type) and issubclass(section, pydantic.BaseModel):
        return {name: Field(field.annotation, field.default) for name, field in section.model_fields.items()}
    if not (isinstance(section, type) and dataclasses.is_dataclass(section)):
        return {}
    kinds, defaults = typing.get_type_hints(section), section()
    return {each.name: Field(kinds[each.name], getattr(defaults, each.name)) for each in dataclasses.fields(section)}


def _refuse_bool(value: Any) -> Any:
    if isinstance(value, bool):  # a bool is an int in Python
        raise pydantic_core.PydanticCustomError(
            "number_type", "input should be a number (or, where that is meant, text in quotes)"
        )
    return value


NotBool = pydantic.BeforeValidator(_refuse_bool)
Bytes = Annotated[pydantic.ByteSize, NotBool, pydantic.AfterValidator(int)]  # which a process without pydantic takes
Fraction = Annotated[float, pydantic.Field(gt=0, lt=1), NotBool]
Count = Annotated[int, pydantic.Field(ge=1), NotBool]
# Discriminated by the type of the value, so that an error is about that alternative alone.
CountBySplit = Annotated[
    Annotated[Count, pydantic.Tag("(one)")] | Annotated[dict[str, Count], pydantic.Tag("(by split)")],
    pydantic.Discriminator(lambda value: "(by split)" if isinstance(value, Mapping) else "(one)"),
]
