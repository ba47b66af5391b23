"""How the config and the flags of a command reach the check of drift."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from imagebeam import errors
from imagebeam.pipelines import job, update_settings
from imagebeam.pipelines.config import model as config_lib
from imagebeam.transforms.snapshots import snapshot_drift
from tests import case_tables


def make_config(tmp_path: pathlib.Path, **drift: Any) -> config_lib.Config:
    (tmp_path / "in").mkdir(exist_ok=True)
    fields = {"source": {"uri": str(tmp_path / "in")}, "output": {"uri": str(tmp_path / "out")}}
    return config_lib.parse_config(fields | {"update": {"drift": drift}}, "a test")


@case_tables.each_case(
    "drift, thresholds",
    {
        "defaults": ({}, snapshot_drift.DEFAULT),
        "off-and-other": ({"labels": None, "sizes": 2}, snapshot_drift.Thresholds(None, 2.0, 0.05)),
        "zero": ({"rejects": 0}, snapshot_drift.Thresholds(0.1, 0.5, 0.0)),
    },
)
def test_thresholds_are_those_of_the_config(
    tmp_path: pathlib.Path, drift: dict[str, Any], thresholds: snapshot_drift.Thresholds
) -> None:
    settings = update_settings.find_base(make_config(tmp_path, **drift), False, fail_on_drift=True)
    assert (settings.drift, settings.fail_on_drift) == (thresholds, True)


@case_tables.each_case(
    "drift, message",
    [
        ({"labels": 1.5}, r"update\.drift\.labels: .*less than or equal to 1"),
        ({"sizes": -1}, r"update\.drift\.sizes: .*greater than or equal to 0"),
        ({"rejects": True}, r"update\.drift\.rejects"),
        ({"label": 0.1}, r"unknown key 'update\.drift\.label'; did you mean 'labels'"),
    ],
)
def test_threshold_out_of_range_is_refused_with_its_key(
    tmp_path: pathlib.Path, drift: dict[str, Any], message: str
) -> None:
    with pytest.raises(errors.ConfigError, match=message):
        make_config(tmp_path, **drift)


def test_command_that_fails_on_drift_is_another_command_for_the_same_dataset(tmp_path: pathlib.Path) -> None:
    commands, identities = set(), set()
    for fails, drift in ((False, {}), (True, {}), (True, {"labels": 0.2})):
        given = make_config(tmp_path, **drift)
        settings = job.make_job(
            job.Checked(given, 1, snapshot=update_settings.find_base(given, False, False, fails))
        ).settings
        commands.add(settings.command)
        identities.add(settings.identity)
    assert (len(commands), len(identities)) == (3, 1)
