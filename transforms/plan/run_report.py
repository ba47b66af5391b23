"""The report that a run leaves for its launcher: its state and its plan, as JSON, on whatever runner it runs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from imagebeam import errors, features, storage
from imagebeam.transforms import elements

State: TypeAlias = Literal["planned", "committed", "kept", "refused"]


@dataclasses.dataclass(frozen=True)
class RunReport:
    """State of a run when it wrote its report."""

    state: State
    plan: elements.DatasetPlan
    message: str = ""  # for the user
    error: errors.ImagebeamError | None = None  # that ended the run
    rejected: Mapping[str, int] | None = None  # all rejects by reason, for a run without a catalog to hold them

    def encode(self) -> bytes:
        """Returns the content of the file."""
        return json.dumps(self, default=_fields_of).encode()

    def write(self, uri: str) -> None:
        """Writes the report to `uri`, in place of an earlier one; nothing for ""."""
        if uri:
            storage.storage_of(uri).write_whole(uri, self.encode(), durable=False)


def _fields_of(value: Any) -> dict[str, Any]:
    """Returns the fields of a dataclass as they are: `dataclasses.asdict` copies each label, 10 ms for 1,000."""
    if isinstance(value, errors.ImagebeamError):
        return errors.to_fields(value)
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def read_report(uri: str) -> RunReport | None:
    """Reads the report that the run has left so far; None if there is none yet."""
    try:
        fields = json.loads(storage.storage_of(uri).read(uri))
    except FileNotFoundError:
        return None
    return RunReport(**{**fields, "plan": _decode_plan(fields["plan"]), "error": _decode_error(fields["error"])})


def _decode_error(fields: Mapping[str, str] | None) -> errors.ImagebeamError | None:
    return None if fields is None else errors.from_fields(fields)


def _decode_plan(fields: Mapping[str, Any]) -> elements.DatasetPlan:
    known = dict(fields)
    known["splits"] = {name: elements.SplitPlan(**split) for name, split in known["splits"].items()}
    known["labels"], known["notes"] = tuple(known["labels"]), tuple(known["notes"])
    known["kept"] = tuple(features.Feature(*each) for each in known["kept"])
    known["committed"] = elements.Committed(**known["committed"]) if known.get("committed") else None
    known["error"] = _decode_error(known["error"])
    return elements.DatasetPlan(**known)
