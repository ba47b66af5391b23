"""The report that a run leaves for its launcher: its state and its plan, as JSON, on whatever runner it runs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from imagebeam import features, storage
from imagebeam.transforms import elements

State: TypeAlias = Literal["planned", "committed", "kept", "refused"]


def encode_report(
    state: State,
    plan: elements.DatasetPlan,
    message: str = "",
    exit_code: int = 0,
    rejected: Mapping[str, int] | None = None,
    error: str = "",
) -> bytes:
    """Returns the content of a report.

    Args:
        state: of the run.
        plan: of the run.
        message: for the user.
        exit_code: of the launcher.
        rejected: number of all rejects by reason, for a run without a catalog to hold them; None if not known.
        error: name of the class of the error that ended the run; "" if there was none.
    """
    fields = {"state": state, "message": message, "exit_code": exit_code, "plan": plan}
    added = {"rejected": rejected, "error": error or None}
    fields |= {name: value for name, value in added.items() if value is not None}
    return json.dumps(fields, default=_fields_of).encode()


def _fields_of(value: Any) -> dict[str, Any]:
    """Returns the fields of a dataclass as they are: `dataclasses.asdict` copies each label, 10 ms for 1,000."""
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def write_report(
    uri: str,
    state: State,
    plan: elements.DatasetPlan,
    message: str = "",
    exit_code: int = 0,
    rejected: Mapping[str, int] | None = None,
    error: str = "",
) -> None:
    """Writes the report to `uri`, in place of an earlier one; nothing for "". Arguments as for `encode_report`."""
    if uri:
        report = encode_report(state, plan, message, exit_code, rejected, error)
        storage.storage_of(uri).write_whole(uri, report, durable=False)


def read_report(uri: str) -> dict[str, Any] | None:
    """Reads the report that the run has left so far; None if there is none yet."""
    try:
        return json.loads(storage.storage_of(uri).read(uri))
    except FileNotFoundError:
        return None


def decode_plan(fields: Mapping[str, Any]) -> elements.DatasetPlan:
    """Returns the plan in a report that was read."""
    known = dict(fields)
    known["splits"] = {name: elements.SplitPlan(**split) for name, split in known["splits"].items()}
    known["labels"], known["notes"] = tuple(known["labels"]), tuple(known["notes"])
    known["kept"] = tuple(features.Feature(*each) for each in known["kept"])
    known["committed"] = elements.Committed(**known["committed"]) if known.get("committed") else None
    return elements.DatasetPlan(**known)
