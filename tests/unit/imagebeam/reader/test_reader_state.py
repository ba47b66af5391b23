"""The state of a job as plain values, and whether a reader can go on from it."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from imagebeam import errors
from imagebeam.reader.reader_state import ReaderState

STATE = ReaderState(
    seed=3,
    epoch=1,
    position=5,
    shuffle="stream",
    process_count=2,
    fingerprint="f",
    selection="train[0:9]",
    block_records=4,
    window_blocks=2,
)


def test_state_of_a_snapshot_survives_and_any_other_has_the_fields_of_earlier_releases() -> None:
    of_snapshot = dataclasses.replace(STATE, snapshot="000002")
    assert ReaderState.from_dict(json.loads(json.dumps(of_snapshot.to_dict()))) == of_snapshot
    assert of_snapshot.to_dict() == {**STATE.to_dict(), "snapshot": "000002"}


def test_state_of_another_snapshot_of_a_mixture_is_refused() -> None:
    mixed = dataclasses.replace(STATE, snapshot="000001 none")
    with pytest.raises(
        errors.ConfigError,
        match=r"snapshot='000001 none', fingerprint='f', and .*: open each dataset with the snapshot of the",
    ):
        mixed.check(dataclasses.replace(mixed, snapshot="000002 none", fingerprint="g"))


def test_state_of_an_earlier_release_is_refused() -> None:
    old = {"seed": 0, "epoch": 1, "position": 5, "shuffle": "global", "process_count": 1}
    with pytest.raises(
        errors.ConfigError,
        match="the state has no block_records, fingerprint, num_epochs, selection, window_blocks: an",
    ):
        ReaderState.from_dict(old)


def test_state_of_a_later_release_is_refused() -> None:
    with pytest.raises(errors.ConfigError, match="the state has 'lanes', which this release does not know; it reads"):
        ReaderState.from_dict(STATE.to_dict() | {"lanes": 3})


@pytest.mark.parametrize("wrong", [-1, 1.5, True, "3"])
@pytest.mark.parametrize("name", ["epoch", "position"])
def test_state_with_a_wrong_place_is_refused(name: str, wrong: Any) -> None:
    with pytest.raises(errors.ConfigError, match=f"{name} of the state is {wrong!r}; it must be a whole number"):
        ReaderState.from_dict(STATE.to_dict() | {name: wrong})
