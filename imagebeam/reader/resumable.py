"""The names under which trainers save and restore the place of an iterator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from imagebeam.reader import record_order


class Resumable:
    """Base of the iterators that have a `ReaderState`. Their states are dicts of plain values, as JSON holds them.

    torchdata, Lightning and Accelerate ask for `state_dict`, Grain for `get_state`.
    """

    def state(self) -> record_order.ReaderState:
        """Returns where the next batch begins: plain values, the same in every process of the job."""
        raise NotImplementedError

    def restore(self, state: record_order.ReaderState) -> None:
        """Goes on from `state`, as fast as a start: nothing before it is read."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Returns `state()` as plain values."""
        return self.state().to_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes on where `state_dict()` was called, as `restore`."""
        self.restore(record_order.ReaderState.from_dict(state_dict))

    def get_state(self) -> dict[str, Any]:
        """Returns `state()` as plain values."""
        return self.state_dict()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes on where `get_state()` was called, as `restore`."""
        self.load_state_dict(state)
