"""The states of a job at the service that runs it, in the same words for every service."""

from __future__ import annotations

from typing import Literal, TypeAlias

State: TypeAlias = Literal["queued", "running", "cancelling", "done", "failed", "cancelled"]
ENDED: frozenset[State] = frozenset({"done", "failed", "cancelled"})
