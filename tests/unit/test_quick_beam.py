"""Beam in the tests does less again and again, and nothing else."""

from __future__ import annotations

import base64
import bz2
import collections.abc
import concurrent.futures
import contextlib
import sys
import types
import typing
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.internal import cloudpickle_pickler
from apache_beam.internal.cloudpickle import cloudpickle
from apache_beam.options import pipeline_options
from apache_beam.runners.portability import fn_api_runner
from apache_beam.testing import test_pipeline, util
from apache_beam.transforms import core, environments
from apache_beam.typehints import decorators, native_type_compatibility, trivial_inference, typehints
from apache_beam.utils import interactive_utils

from tests import quick_beam
from tests.dofns import Adder, Plain, Stateful

RUNNER = "FnApiRunner"  # without a name Beam looks for Prism first


class Mixed(beam.DoFn):
    def process(self, element: int) -> Any:
        if element:
            return [element]
        yield element


def test_check_of_yield_beside_return_is_that_of_beam() -> None:
    methods = [Plain().process, Mixed().process, core.CallableWrapperDoFn(abs).process, abs]
    expected = [core._check_fn_use_yield_and_return(method) for method in methods]
    assert expected == [False, True, False, False]
    with quick_beam.patched():
        for _ in range(2):
            assert [core._check_fn_use_yield_and_return(method) for method in methods] == expected


def around(inner: Any) -> Any:
    return lambda element: [inner(element)]


def test_inferred_types_are_those_of_beam() -> None:
    def functions() -> list[Any]:
        inner = [str, None, 1, True, lambda element: (element, 1), lambda element: (element, "1"), Adder().add]
        return [*(around(each) for each in inner), len, Plain().process, lambda element, other=1: other]

    def infer() -> list[Any]:
        return [trivial_inference.infer_return_type(each, [kind]) for each in functions() for kind in (int, str)]

    expected = infer()
    assert expected[:2] == [typehints.List[str]] * 2
    pairs = [[int, int], [str, int], [int, str], [str, str]]
    assert expected[8:12] == [typehints.List[typehints.Tuple[one, other]] for one, other in pairs]
    with quick_beam.patched():
        for _ in range(2):
            assert infer() == expected
    constants = [[trivial_inference.Const(value)] for value in (1, True)]
    with quick_beam.patched():
        found = [trivial_inference.infer_return_type(lambda element: element, each) for each in constants]
    assert found == [trivial_inference.infer_return_type(lambda element: element, each) for each in constants]


class Adds:
    """A DoFn in the eyes of the inference: what it returns depends on the type of a field."""

    def __init__(self, value: Any):
        self.value = value

    def process(self, element: Any) -> Any:
        return [(element, self.value)]

    def fail(self, element: Any) -> Any:
        return self.value.missing(element).missing


@pytest.mark.parametrize("method", ["process", "fail"])
def test_inferred_types_of_methods_depend_on_the_types_of_fields(method: str) -> None:
    def infer() -> list[Any]:
        values = [1, "a", None, [1], ["a"], {"a": 1}, Adds(1), Adds("a"), len, Adds, 2, "b"]
        return [trivial_inference.infer_return_type(getattr(Adds(each), method), [int]) for each in values]

    expected = infer()
    with quick_beam.patched():
        for _ in range(2):
            assert infer() == expected


def test_options_are_those_of_beam_at_each_access() -> None:
    for context in (contextlib.nullcontext(), quick_beam.patched()):
        with context:
            options = pipeline_options.PipelineOptions(["--runner=A", "--job_name=n", "--experiments=e"])
            view = options.view_as(pipeline_options.StandardOptions)
            assert view._visible_option_list() == sorted(
                name for name in dir(view._visible_options) if not name.startswith("_")
            )
            assert (view.runner, view.streaming) == ("A", False)
            with pytest.raises(AttributeError, match="object has no attribute 'job_name'"):
                _ = view.job_name
            assert options.get_all_options(drop_default=True) == {
                "runner": "A",
                "job_name": "n",
                "experiments": ["e"],
            }


def test_views_of_options_are_those_of_beam_and_share_no_list() -> None:
    flags = ["--runner=A", "--experiments=e", "--experiments=f", "--other=1", "--update", "--num_workers=3"]

    def views() -> dict[str, Any]:
        classes = [pipeline_options.PipelineOptions, *pipeline_options.PipelineOptions.__subclasses__()]
        views = [each(flags, job_name="n") for each in classes if each.__module__ == pipeline_options.__name__]
        return {type(each).__name__: (vars(each), list(vars(each._visible_options))) for each in views}

    expected = views()
    assert expected["DebugOptions"][0]["_all_options"]["experiments"] == ["e", "f"]
    with quick_beam.patched():
        for _ in range(2):
            found = views()
            assert found == expected
            found["DebugOptions"][0]["_all_options"]["experiments"].append("g")
        one, other = (pipeline_options.DebugOptions([]) for _ in range(2))
        one.add_experiment("e")
        assert (one.experiments, other.experiments) == (["e"], None)
        with pytest.raises(ValueError, match="not a single string"):
            pipeline_options.PipelineOptions("--runner=A")


@pytest.mark.parametrize(
    ("flags", "overrides"),
    [
        pytest.param(["--runner=A", "--experiments=e", "--experiments=f"], {"job_name": "n"}, id="known"),
        pytest.param(["--runner=A", "--other=1"], {}, id="flag-that-is-not-known"),
        pytest.param(["--runner=A"], {"other": 1}, id="override-that-is-not-known"),
    ],
)
def test_all_options_are_those_of_beam_and_share_no_list(flags: list[str], overrides: dict[str, Any]) -> None:
    ways: list[dict[str, Any]] = [
        {},
        {"drop_default": True},
        {"current_only": True},
        {"retain_unknown_options": True, "display_warnings": True},
        {"add_extra_args_fn": lambda parser: parser.add_argument("--other")},
    ]

    def options() -> list[dict[str, Any]]:
        made = pipeline_options.PipelineOptions(flags, **overrides)
        return [made.get_all_options(**way) for way in ways]

    expected = options()
    with quick_beam.patched():
        for _ in range(2):
            found = options()
            assert found == expected
            for each in found:
                (each.get("experiments") or []).append("g")


def test_option_of_a_class_that_is_new_is_among_all() -> None:
    with quick_beam.patched():
        before = pipeline_options.PipelineOptions([]).get_all_options()

        class New(pipeline_options.PipelineOptions):
            @classmethod
            def _add_argparse_args(cls, parser: Any) -> None:
                parser.add_argument("--new_one", default="n")

        assert pipeline_options.PipelineOptions([]).get_all_options() == {**before, "new_one": "n"}
        del New


def test_option_with_a_wrong_metavar_is_refused_as_by_argparse() -> None:
    with quick_beam.patched():
        parser = pipeline_options._BeamArgumentParser(prog="job")
        with pytest.raises(ValueError, match="length of metavar tuple does not match nargs"):
            parser.add_argument("--pair", nargs=3, metavar=("A", "B"))
        parser.add_argument("--one", help="what it is")
        assert parser.format_help() == parser.format_help()
        assert parser.format_help().startswith("usage: job [-h]") and "what it is" in parser.format_help()


def test_annotations_are_those_that_beam_converts_and_nobody_shares_an_unannotated_one() -> None:
    @decorators.no_annotations
    def hidden(element: int) -> str:
        return str(element)

    def local(element: typing.Optional[int], *, other: list[str]) -> tuple[int, str]:  # noqa: UP045  # Beam's own way
        return element or 0, other[0]

    functions: list[Any] = [Adder().add, Adder.add, Plain().process, Stateful().process, hidden, local, len, abs, Adder]

    def types_of(function: Any) -> Any:
        found = decorators.IOTypeHints.from_callable(function)
        return found and (found.input_types, found.output_types)

    expected = [types_of(each) for each in functions]
    assert expected[0] != expected[1] and expected[4] is None
    with quick_beam.patched():
        for _ in range(2):
            assert [types_of(each) for each in functions] == expected


def test_types_are_those_that_beam_converts() -> None:
    variable: Any = typing.TypeVar("variable")
    kinds: list[Any] = [
        *(int, None, str, "int", list, list[int], typing.List[int], dict[str, tuple[int, ...]], int | None),  # noqa: UP006
        *(typing.Any, variable, list[variable], typing.NamedTuple, typehints.List[int], typing.Literal[1]),
        *(typing.Literal[True], typing.Annotated[int, []], Plain),
    ]
    convert = native_type_compatibility.convert_to_beam_type
    expected = [convert(each) for each in kinds]
    with quick_beam.patched():
        for _ in range(2):
            assert [native_type_compatibility.convert_to_beam_type(each) for each in kinds] == expected
        assert native_type_compatibility.convert_to_beam_type(variable) is convert(variable)
        for _ in range(2):
            with pytest.raises(ValueError, match="to have arity 2, had arity 1"):
                native_type_compatibility.convert_to_beam_type(collections.abc.Mapping[int])  # type: ignore[type-arg]


def test_classes_and_functions_are_pickled_by_reference_where_cloudpickle_does() -> None:
    class Local:
        pass

    module = types.ModuleType("other")
    values: list[Any] = [Plain, Local, around, Plain().process.__func__, lambda: 0, len, cloudpickle, module]

    def are_found() -> list[Any]:
        found = []
        for each in values:
            try:
                found.append(cloudpickle._should_pickle_by_reference(each))
            except TypeError as e:
                found.append(str(e))
        return found

    expected = are_found()
    assert expected[:4] == [True, False, True, True] and "cannot check" in expected[5] and expected[6:] == [True, False]
    with quick_beam.patched():
        assert are_found() == are_found() == expected
        assert not cloudpickle._should_pickle_by_reference(Plain, name="missing")


def test_submodules_that_a_function_uses_are_those_that_cloudpickle_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_futures() -> Any:
        return concurrent.futures.ThreadPoolExecutor

    def of_nothing() -> Any:
        return concurrent

    def find() -> list[Any]:
        dependencies = [concurrent, sys, len, None]
        return [cloudpickle._find_imported_submodules(each.__code__, dependencies) for each in (of_futures, of_nothing)]

    expected = find()
    assert expected == [[concurrent.futures], []]
    with quick_beam.patched():
        assert find() == find() == expected
        monkeypatch.setitem(sys.modules, "concurrent.ThreadPoolExecutor", types.ModuleType("new"))
        assert {each.__name__ for each in find()[0]} == {"concurrent.futures", "new"}


def test_counters_of_steps_are_kept_and_beam_counts_no_others() -> None:
    def count(element: int) -> int:
        beam.metrics.Metrics.counter("test", "elements").inc()
        beam.metrics.Metrics.distribution("test", "sizes").update(element)
        return element

    with quick_beam.patched():
        pipeline = test_pipeline.TestPipeline(runner=RUNNER)
        _ = pipeline | beam.Create([1, 2]) | beam.Map(count)
        result = pipeline.run()
    found = result.metrics().query()
    assert [(each.key.metric.name, each.committed) for each in found["counters"]] == [("elements", 2)]
    assert [(each.key.metric.name, each.committed.sum) for each in found["distributions"]] == [("sizes", 3)]
    assert {each.urn.split(":")[2] for each in result.monitoring_infos()} == {"user"}


def test_this_process_is_in_no_ipython() -> None:
    expected = interactive_utils.is_in_ipython()
    with quick_beam.patched():
        assert interactive_utils.is_in_ipython() == expected


def test_wrong_type_is_refused_with_the_step_and_the_types() -> None:
    with (
        quick_beam.patched(),
        pytest.raises(
            decorators.TypeCheckError,
            match=r"ParDo\(Plain\)' requires PCollections of type '<class 'int'>' but was applied to .*'str'",
        ),
        test_pipeline.TestPipeline(runner=RUNNER) as pipeline,
    ):
        _ = pipeline | beam.Create(["a"]) | beam.ParDo(Plain()).with_input_types(int)


def test_arguments_of_a_step_are_copies() -> None:
    with quick_beam.patched():
        given: tuple[Any, ...] = ([1], {"a": [2]})
        copied = beam.ParDo(Plain(), *given, key={}).args
        assert copied == list(given) and copied[0] is not given[0]
        one, other = beam.ParDo(Plain()), beam.ParDo(Plain())
        assert (one.args, one.kwargs) == ([], {})
        assert one.args is not other.args and one.kwargs is not other.kwargs


def test_another_beam_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    others = {
        "apache_beam.internal.cloudpickle.cloudpickle",
        "apache_beam.internal.cloudpickle_pickler",
        "apache_beam.options.pipeline_options",
        "apache_beam.runners.portability.fn_api_runner.fn_runner",
        "apache_beam.runners.worker.bundle_processor",
        "apache_beam.runners.worker.statecache",
        "apache_beam.runners.worker.statesampler",
        "apache_beam.testing.test_pipeline",
        "apache_beam.transforms.core",
        "apache_beam.transforms.userstate",
        "apache_beam.typehints.decorators",
        "apache_beam.typehints.native_type_compatibility",
        "apache_beam.utils.interactive_utils",
        "apache_beam.typehints.trivial_inference",
    }
    for name in others:
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    with quick_beam.patched():
        assert all(set(vars(sys.modules[name])) == set(vars(types.ModuleType(name))) for name in others)


@pytest.mark.parametrize("size", [0, 400, 1 << 17])
def test_pickles_are_compressed_as_by_bz2_and_read_back(size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    before = cloudpickle_pickler.bz2
    with quick_beam.patched():
        for _ in range(2):
            compressed = cloudpickle_pickler.bz2.compress(data[:size], compresslevel=9)
            assert compressed == bz2.compress(data[:size], compresslevel=9)
            assert cloudpickle_pickler.bz2.decompress(compressed) == data[:size]
        with pytest.raises(OSError, match="Invalid data stream"):
            cloudpickle_pickler.bz2.decompress(b"no pickle")
    assert cloudpickle_pickler.bz2 is before


def test_test_pipeline_is_written_for_the_worker_as_it_was_built(monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    write = beam.Pipeline.to_runner_api
    monkeypatch.setattr(
        beam.Pipeline, "to_runner_api", lambda self, **options: written.append(self) or write(self, **options)
    )
    with quick_beam.patched(), test_pipeline.TestPipeline(runner=RUNNER) as pipeline:
        util.assert_that(pipeline | beam.Create([1, 2]) | beam.ParDo(Plain()), util.equal_to([1, 2]))
    assert set(written) == {pipeline}  # and no copy of it


@pytest.mark.parametrize(
    ("mode", "environment", "is_compressed"),
    [
        ("in_memory", None, False),
        ("multi_threading", None, True),
        ("multi_processing", None, True),
        ("in_memory", environments.SubprocessSDKEnvironment.from_command_string("true"), True),
    ],
)
def test_pickles_of_a_job_are_compressed_where_another_process_may_read_them(
    mode: str, environment: Any, is_compressed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[bytes] = []

    def stop(*_: object, **__: object) -> None:
        written.append(cloudpickle_pickler.dumps(Plain()))
        raise InterruptedError

    with quick_beam.patched():
        monkeypatch.setattr(beam.Pipeline, "to_runner_api", stop)
        options = pipeline_options.PipelineOptions(direct_running_mode=mode)
        pipeline = beam.Pipeline(fn_api_runner.FnApiRunner(default_environment=environment), options)
        with pytest.raises(InterruptedError):
            pipeline.run()
        written.append(cloudpickle_pickler.dumps(Plain()))
        found = [base64.b64decode(each).startswith(b"BZh") for each in written]
        assert (found[0], found[-1]) == (is_compressed, True)
        assert {type(cloudpickle_pickler.loads(each)) for each in written} == {Plain}
