"""Takes out of Beam what it does again and again in small jobs: half of their processor time."""

from __future__ import annotations

import collections
import contextlib
import functools
import inspect
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

_NUM_CLASSES = 5000  # more than a run of the tests uses
_NUM_VIEWS = 500  # some 15 for each job
_ANY_SIZE = 64
_NUM_PICKLES = 5000
_MAX_PICKLE_BYTES = 1 << 16


@contextlib.contextmanager
def patched() -> Iterator[None]:
    """Makes Beam look once at each class of DoFn, keep views of options and measure nothing, if it is imported already.

    A `TestPipeline` runs as any pipeline does: it is not written as a protocol buffer and read back before that, for
    the local runner writes it too, with all that a worker gets.

    A small conversion takes about half of the processor time with Beam 2.77. In a version without these functions
    nothing is patched. Forked commands are quicker too; those that start a Python run as users run them.
    """
    core = sys.modules.get("apache_beam.transforms.core")
    options = getattr(sys.modules.get("apache_beam.options.pipeline_options"), "PipelineOptions", None)
    statecache = sys.modules.get("apache_beam.runners.worker.statecache")
    statesampler = sys.modules.get("apache_beam.runners.worker.statesampler")
    userstate = sys.modules.get("apache_beam.transforms.userstate")
    inference = sys.modules.get("apache_beam.typehints.trivial_inference")
    pickler = sys.modules.get("apache_beam.internal.cloudpickle_pickler")
    test_pipeline = getattr(sys.modules.get("apache_beam.testing.test_pipeline"), "TestPipeline", None)
    with pytest.MonkeyPatch.context() as patch:
        if hasattr(core, "get_signature"):
            patch.setattr(core, "get_signature", _keep_signatures(core))
        if hasattr(core, "_check_fn_use_yield_and_return"):
            patch.setattr(core, "_check_fn_use_yield_and_return", _keep_checks(core))
        if hasattr(inference, "infer_return_type_func") and hasattr(inference, "Const"):
            patch.setattr(inference, "infer_return_type_func", _keep_return_types(inference))
        if hasattr(userstate, "get_dofn_specs") and hasattr(core, "_DoFnParam"):
            patch.setattr(userstate, "get_dofn_specs", _keep_specs(userstate, core))
        if hasattr(options, "view_as"):
            patch.setattr(options, "view_as", _keep_views(options))
        if hasattr(statecache, "get_deep_size"):  # looks at the globals of all modules, of TensorFlow's too
            patch.setattr(statecache, "get_deep_size", lambda *objects: _ANY_SIZE)
        if hasattr(getattr(pickler, "bz2", None), "compress"):
            patch.setattr(pickler, "bz2", _keep_compressed(pickler.bz2))
        if hasattr(test_pipeline, "run"):
            patch.setattr(test_pipeline, "run", functools.partialmethod(test_pipeline.run, test_runner_api=False))
        sampler = getattr(statesampler, "StateSampler", None)
        if hasattr(sampler, "start") and hasattr(sampler, "stop_if_still_running"):
            track = statesampler.set_current_tracker
            patch.setattr(sampler, "start", functools.partialmethod(_start_without_sampling, track))
            patch.setattr(sampler, "stop_if_still_running", lambda self: track(None))
        yield


def _keep_signatures(core: Any) -> Any:
    """Beam looks 7,000 times at the signature of a method of some DoFn. A signature never changes."""
    look = core.get_signature
    kept: weakref.WeakKeyDictionary[Any, inspect.Signature] = weakref.WeakKeyDictionary()

    def get_signature(function: Any) -> Any:
        if not isinstance(function, types.MethodType):
            return look(function)
        signature = kept.get(function.__func__)
        if signature is None:
            signature = kept[function.__func__] = look(function)
        return signature

    return get_signature


def _keep_checks(core: Any) -> Any:
    """Beam reads the source of each DoFn, and splits it into tokens, to warn of `yield` beside `return`."""
    look = core._check_fn_use_yield_and_return
    kept: dict[Any, bool] = {}

    def check(function: Any) -> bool:
        code = getattr(function, "__code__", None)
        if code is None or hasattr(function, "__wrapped__"):
            return bool(look(function))
        key = code, code.co_filename
        if key not in kept:
            kept[key] = bool(look(function))
        return kept[key]

    return check


def _keep_return_types(inference: Any) -> Any:
    """Beam infers from bytecode what its own functions return, the same ones in each job."""
    look = inference.infer_return_type_func
    kept: dict[Any, Any] = {}

    def infer(function: Any, input_types: Any, debug: bool = False, depth: int = 0) -> Any:
        try:
            if any(isinstance(each, inference.Const) for each in input_types):  # those of 1 and True are equal
                raise TypeError
            key = _identity_of(function), tuple(input_types), debug, depth
            is_kept = key in kept
        except (TypeError, ValueError):  # also of a type without a hash, and of an empty cell
            return look(function, input_types, debug, depth)
        if not is_kept:
            kept[key] = look(function, input_types, debug, depth)
        return kept[key]

    return infer


def _identity_of(value: Any) -> Any:
    """Returns what is the same for functions made by the same line with the same values around them.

    Raises:
        TypeError: if a value is neither a function, a class nor None.
    """
    if value is None or isinstance(value, type):
        return value
    if type(value) is not types.FunctionType or value.__defaults__ or value.__kwdefaults__:
        raise TypeError(f"{value!r} is not known by its code")
    around = tuple(_identity_of(cell.cell_contents) for cell in value.__closure__ or ())
    return value.__code__, value.__code__.co_filename, id(value.__globals__), around


def _keep_specs(userstate: Any, core: Any) -> Any:
    """Beam looks 220 times for state and timers among the parameters of all methods of some DoFn."""
    look = userstate.get_dofn_specs

    @functools.lru_cache(_NUM_CLASSES)
    def has_parameters(dofn_class: type) -> bool:
        """Returns whether a method of the class has a parameter that Beam fills in."""
        functions = [getattr(dofn_class, name, None) for name in dir(dofn_class)]
        signatures = [core.get_function_args_defaults(each) for each in functions if inspect.isroutine(each)]
        return any(isinstance(default, core._DoFnParam) for _, defaults in signatures for default in defaults)

    def get_dofn_specs(dofn: Any) -> Any:
        has_own_methods = any(isinstance(each, types.MethodType) for each in vars(dofn).values())
        return look(dofn) if has_own_methods or has_parameters(type(dofn)) else (set(), set())

    return get_dofn_specs


def _keep_compressed(bz2: Any) -> Any:
    """Beam compresses 120 pickles for each job, 0.2 ms each, and most of them are those of the job before."""

    def keep(function: Callable[..., bytes]) -> Callable[..., bytes]:
        kept = functools.lru_cache(_NUM_PICKLES)(function)

        def call(data: bytes, **settings: int) -> bytes:
            return (kept if len(data) <= _MAX_PICKLE_BYTES else function)(data, **settings)

        return call

    return types.SimpleNamespace(compress=keep(bz2.compress), decompress=keep(bz2.decompress))


def _start_without_sampling(sampler: Any, track: Callable[[Any], None]) -> None:
    """Each of some 15 stages of a job starts a thread that measures where time goes, and waits for its end."""
    sampler.tracked_thread = threading.current_thread()
    track(sampler)


def _keep_views(options: Any) -> Any:
    """Beam builds an argparse parser for each of 370 views of its options. Views of one class share their values."""
    build = options.view_as
    kept: collections.OrderedDict[Any, Any] = collections.OrderedDict()

    def view_as(self: Any, view_class: type) -> Any:
        key = id(self._all_options), view_class
        shared, view = kept.get(key, (None, None))
        if shared is not self._all_options:
            view = build(self, view_class)
            kept[key] = self._all_options, view  # the values are kept too, so that no others get their id
            if len(kept) > _NUM_VIEWS:
                kept.popitem(last=False)
        return view

    return view_as
