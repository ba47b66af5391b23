"""Beam in the tests does less again and again, and nothing else."""

from __future__ import annotations

import inspect
import sys
import types

import pytest
from apache_beam.options import pipeline_options
from apache_beam.transforms import core

from tests import quick_beam


class Adder:
    def add(self, one: int, *, other: int = 1) -> int:
        return one + other


def test_signatures_are_those_of_inspect() -> None:
    with quick_beam.patched():
        for function in (Adder().add, Adder().add, Adder.add, len, core.DoFn().process):
            assert core.get_signature(function) == inspect.signature(function)


def test_views_share_values_and_other_options_have_their_own() -> None:
    with quick_beam.patched():
        first, second = (pipeline_options.PipelineOptions(["--runner=A"]) for _ in range(2))
        view = first.view_as(pipeline_options.StandardOptions)
        assert view is first.view_as(pipeline_options.StandardOptions)
        assert view is view.view_as(pipeline_options.StandardOptions)
        assert type(first.view_as(pipeline_options.WorkerOptions)) is pipeline_options.WorkerOptions
        view.runner = "B"
        assert first.view_as(pipeline_options.StandardOptions).runner == "B"
        assert first.get_all_options()["runner"] == "B"
        assert second.view_as(pipeline_options.StandardOptions).runner == "A"


def test_views_of_many_options_are_their_own_though_few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick_beam, "_NUM_VIEWS", 3)
    with quick_beam.patched():
        for index in range(50):
            options = pipeline_options.PipelineOptions([f"--runner={index}"])
            for _ in range(2):
                assert options.view_as(pipeline_options.StandardOptions).runner == str(index)


def test_another_beam_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    others = {"apache_beam.transforms.core", "apache_beam.options.pipeline_options"}
    for name in others:
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    with quick_beam.patched():
        assert all(set(vars(sys.modules[name])) == set(vars(types.ModuleType(name))) for name in others)
