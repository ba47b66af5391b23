"""The state of a job: how far it has read, as plain values that fit into a checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from imagebeam import errors

_OPTIONAL = {"snapshot", "first_epoch"}


@dataclasses.dataclass(frozen=True)
class ReaderState:
    """How far a job has read: the same value in all of its processes.

    Take it from `state()` of an iterator. It names everything that decides which record is at which position, so that a
    reader of other records or of another order refuses it.

    Attributes:
        seed: seed of the order.
        epoch: the epoch that the job is in, from 0.
        position: number of places in batches that all processes together have filled in this epoch. Padding and
            skipped examples count like any other example.
        shuffle: as in `ReadOptions`.
        process_count: number of processes of the job. With `shuffle="global"` a job of any other number can go on from
            the state; with the other orders only one of the same number can.
        fingerprint: fingerprint of the dataset.
        selection: the records of the split that are read, such as "train[0:1000]", and the labels that are kept.
        block_records: records in a block of "stream", computed from `shuffle_bytes` or `shuffle_records`; for a mixture
            one number for each dataset, separated by spaces.
        window_blocks: blocks that "stream" shuffles together; for a mixture likewise.
        num_epochs: as in `ReadOptions`. A reader with more epochs can go on from the state, unless a process was
            already past its last record.
        snapshot: name of the snapshot that is read, such as "000002"; None for a dataset without snapshots. It is told
            in errors; `fingerprint` decides whether the records are the same.
        first_epoch: as in `ReadOptions`.
    """

    seed: int
    epoch: int
    position: int
    shuffle: str | None = "global"
    process_count: int = 1
    fingerprint: str | None = None
    selection: str | None = None
    block_records: int | str | None = None
    window_blocks: int | str | None = None
    num_epochs: int | None = None
    snapshot: str | None = None
    first_epoch: int = 0

    def __post_init__(self) -> None:
        for name in ("epoch", "position", "first_epoch"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 0:
                raise errors.ConfigError(f"{name} of the state is {value!r}; it must be a whole number from 0 on")

    def to_dict(self) -> dict[str, int | str | None]:
        """Returns plain values, for JSON or a checkpoint, without a snapshot or first epoch if there is none."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name not in _OPTIONAL or value}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> ReaderState:
        """Returns the state that `to_dict` was called on.

        Raises:
            ConfigError: if a field is missing or unknown, as in a state of another release.
        """
        expected = {field.name for field in dataclasses.fields(cls)}
        missing, unknown = sorted(expected - _OPTIONAL - set(fields)), sorted(set(fields) - expected)
        if unknown:
            raise errors.ConfigError(
                f"the state has {', '.join(map(repr, unknown))}, which this release does not know; it reads states "
                f"with {', '.join(sorted(expected))}: update imagebeam, or begin without the state"
            )
        if missing:
            raise errors.ConfigError(
                f"the state has no {', '.join(missing)}: an earlier release wrote it, whose states do not say what "
                "they belong to and cannot be restored exactly; begin without the state"
            )
        return cls(**fields)

    def check(self, reader: ReaderState) -> None:
        """Checks that a reader can go on from this state.

        Args:
            reader: the state of that reader before its first batch.

        Raises:
            ConfigError: if the reader has another order or other records; the text names the fields that differ.
        """
        names = ["seed", "shuffle", "fingerprint", "selection", "block_records", "window_blocks"]
        if self.shuffle != "global":
            names += ["process_count", "first_epoch"]
        different = [name for name in names if getattr(self, name) != getattr(reader, name)]
        if not different:
            return
        is_other_snapshot = "fingerprint" in different and self.snapshot != reader.snapshot
        if is_other_snapshot:
            different.insert(0, "snapshot")
        mine, theirs = (", ".join(f"{name}={getattr(each, name)!r}" for name in different) for each in (self, reader))
        advice = "give the same dataset, split, labels and options, or begin without the state"
        if is_other_snapshot:
            advice = f"{_advice_to_pin(self.snapshot)}to read other images, begin without the state"
        elif different == ["process_count"]:
            advice = 'only shuffle="global" can go on with another number; give the same, or begin without the state'
        elif different[0] in ("block_records", "window_blocks"):
            advice = "they come from shuffle_records, or shuffle_bytes; give the same, or begin without the state"
        raise errors.ConfigError(f"the state is of {mine}, and the reader has {theirs}: {advice}")


def _advice_to_pin(snapshot: str | None) -> str:
    if snapshot is None:
        return ""
    if " " in snapshot:  # of a mixture
        return "open each dataset with the snapshot of the state to go on from it; "
    return f"open_dataset(..., snapshot={snapshot!r}) goes on from it; "
