"""Beam without what it does again and again behaves as before."""

from __future__ import annotations

import base64
import bz2
import pickle
import sys
import threading
import types

import apache_beam as beam
import pytest
from apache_beam.internal import cloudpickle_pickler
from apache_beam.options import pipeline_options
from apache_beam.runners.worker import statesampler
from apache_beam.testing import test_pipeline, util
from apache_beam.transforms import core, userstate
from apache_beam.typehints import decorators

from imagebeam.pipelines.beam import beam_shortcuts
from tests import command_line
from tests.dofns import Adder, Plain, Stateful

FIND_ARGUMENTS = core.get_function_args_defaults  # of Beam: this module is imported before it is replaced


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    beam_shortcuts.install(monkeypatch.setattr)


class Inherits(Stateful):
    pass


class Wrapped(beam.DoFn):
    """Has the state of another DoFn, whose method it keeps in a field, as Beam's own wrappers do."""

    def __init__(self) -> None:
        self.process_of_other = Stateful().process

    def process(self, element: int) -> list[int]:
        return [element]


def test_arguments_are_those_that_beam_finds_and_nobody_shares_them() -> None:
    functions = (Adder().add, Adder.add, core.DoFn().process, Stateful().process)
    expected = [FIND_ARGUMENTS(each) for each in functions]
    assert expected[0] == (["one"], []) and expected[3][1] != []
    for _ in range(2):
        found = [core.get_function_args_defaults(each) for each in functions]
        assert found == expected
        for names, defaults in found:
            names.append("another")
            defaults.clear()


@pytest.mark.parametrize(
    ("dofn", "num_states"),
    [
        pytest.param(Plain(), 0, id="none"),
        pytest.param(Stateful(), 1, id="own"),
        pytest.param(Inherits(), 1, id="inherited"),
        pytest.param(Wrapped(), 1, id="method-in-a-field"),
        pytest.param(core.CallableWrapperDoFn(abs), 0, id="built-in-function"),
    ],
)
def test_state_of_a_dofn_is_found(dofn: beam.DoFn, num_states: int) -> None:
    for _ in range(2):
        states, timers = userstate.get_dofn_specs(dofn)
        assert (len(states), len(timers)) == (num_states, 0)
        assert userstate.is_stateful_dofn(dofn) == bool(num_states)


def test_pipelines_keep_state_and_count_without_sampling_threads() -> None:
    def count(element: int) -> tuple[int, list[str]]:
        beam.metrics.Metrics.counter("test", "elements").inc()
        return element, [each.name for each in threading.enumerate() if each.name.endswith("(run)")]  # of StateSampler

    pipeline = test_pipeline.TestPipeline(runner="FnApiRunner")
    sums = pipeline | beam.Create([("a", 1), ("a", 2)]) | beam.ParDo(Stateful()) | beam.Map(count)
    util.assert_that(sums, lambda found: util.equal_to([3])([max(each for each, _ in found)]))
    util.assert_that(sums, lambda found: util.equal_to([[], []])([names for _, names in found]), label="threads")
    result = pipeline.run()
    counters = {each.key.metric.name: each.committed for each in result.metrics().query()["counters"]}
    assert counters["elements"] == 2
    assert statesampler.get_current_tracker() is None


def test_views_share_values_and_other_options_have_their_own() -> None:
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
    monkeypatch.setattr(beam_shortcuts, "_NUM_VIEWS", 3)
    for index in range(50):
        options = pipeline_options.PipelineOptions([f"--runner={index}"])
        for _ in range(2):
            assert options.view_as(pipeline_options.StandardOptions).runner == str(index)


REPLACED = """
import apache_beam.runners.portability.fn_api_runner
from imagebeam.pipelines.beam import beam_shortcuts
for _ in range(2):
    replaced = []
    beam_shortcuts.install(lambda owner, name, value: (setattr(owner, name, value), replaced.append(name)))
    print(*sorted(replaced))
"""


def test_this_beam_has_all_that_is_replaced_and_it_is_replaced_once() -> None:
    completed = command_line.run_python(REPLACED)
    assert completed.stdout.splitlines() == [
        "_check_fn_use_yield_and_return _get_formatter get_all_options get_deep_size get_dofn_specs "
        "get_function_args_defaults is_in_ipython start stop_if_still_running traceback view_as",
        "",
    ], completed.stderr


def test_type_hints_hold_no_stack() -> None:
    hints = decorators.IOTypeHints.empty().with_input_types(int)
    assert hints.input_types == ((int,), {})
    assert hints.origin == []


def test_another_beam_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    others = {
        "apache_beam.options.pipeline_options",
        "apache_beam.runners.worker.statecache",
        "apache_beam.runners.worker.statesampler",
        "apache_beam.transforms.core",
        "apache_beam.transforms.userstate",
        "apache_beam.typehints.decorators",
        "apache_beam.utils.interactive_utils",
    }
    for name in others:
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    beam_shortcuts.install()
    assert all(set(vars(sys.modules[name])) == set(vars(types.ModuleType(name))) for name in others)


def test_pickles_stay_as_they_are_and_those_made_before_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloudpickle_pickler, "bz2", bz2)  # without what the tests replace
    before = cloudpickle_pickler.dumps(Plain())
    beam_shortcuts.leave_pickles_uncompressed(monkeypatch.setattr)
    beam_shortcuts.leave_pickles_uncompressed(monkeypatch.setattr)  # changes nothing more
    plain = cloudpickle_pickler.dumps(Plain())
    assert base64.b64decode(plain).startswith(pickle.PROTO) and base64.b64decode(before).startswith(b"BZh")
    assert [type(cloudpickle_pickler.loads(each)) for each in (before, plain)] == [Plain, Plain]
