"""Takes out of Beam what it does again and again in small jobs: half of their processor time."""

from __future__ import annotations

import argparse
import contextlib
import contextvars
import copy
import enum
import functools
import importlib.util
import logging
import pickle
import sys
import types
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest

from imagebeam.pipelines.beam import beam_shortcuts

_NUM_PICKLES = 5000
_NUM_TYPES = 5000
_NUM_PACKAGES = 500
_MAX_PICKLE_BYTES = 1 << 16


@contextlib.contextmanager
def patched() -> Iterator[None]:
    """Takes out of Beam what a command does without, and more that recurs in many jobs, if it is imported already.

    DoFns are still checked for `yield` beside `return`, each once. A `TestPipeline` runs as any pipeline does: it is
    not written as a protocol buffer and read back before that, for the local runner writes it too, with all that a
    worker gets.

    A small conversion takes less than half of the processor time with Beam 2.77. In a version without these functions
    nothing is patched. Forked commands are quicker too; those that start a Python run as users run them.
    """
    core = sys.modules.get("apache_beam.transforms.core")
    pipeline_options = sys.modules.get("apache_beam.options.pipeline_options")
    options = getattr(pipeline_options, "PipelineOptions", None)
    parser = getattr(pipeline_options, "_BeamArgumentParser", None)
    hints = getattr(sys.modules.get("apache_beam.typehints.decorators"), "IOTypeHints", None)
    inference = sys.modules.get("apache_beam.typehints.trivial_inference")
    conversion = sys.modules.get("apache_beam.typehints.native_type_compatibility")
    pickler = sys.modules.get("apache_beam.internal.cloudpickle_pickler")
    by_reference = sys.modules.get("apache_beam.internal.cloudpickle.cloudpickle")
    interactive = sys.modules.get("apache_beam.utils.interactive_utils")
    processor = getattr(sys.modules.get("apache_beam.runners.worker.bundle_processor"), "BundleProcessor", None)
    fn_runner = sys.modules.get("apache_beam.runners.portability.fn_api_runner.fn_runner")
    local_runner = getattr(fn_runner, "FnApiRunner", None)
    test_pipeline = getattr(sys.modules.get("apache_beam.testing.test_pipeline"), "TestPipeline", None)
    with pytest.MonkeyPatch.context() as patch:
        if hasattr(core, "_check_fn_use_yield_and_return"):  # before the product leaves the check out
            patch.setattr(core, "_check_fn_use_yield_and_return", _keep_checks(core))
        beam_shortcuts.install(patch.setattr)
        if hasattr(inference, "infer_return_type_func") and hasattr(inference, "Const"):
            patch.setattr(inference, "infer_return_type_func", _keep_return_types(inference))
        if hasattr(options, "_visible_option_list"):
            patch.setattr(options, "_visible_option_list", _list_options)
            patch.setattr(options, "__getattr__", _look_up_options(options))
        if hasattr(parser, "_get_formatter"):
            patch.setattr(options, "__init__", _keep_parsers(options, parser))
            patch.setattr(options, "get_all_options", _keep_parser_of_all(options, parser))
        if hasattr(conversion, "convert_to_beam_type"):
            patch.setattr(conversion, "convert_to_beam_type", _keep_types(conversion))
        if hasattr(hints, "from_callable"):
            patch.setattr(hints, "from_callable", staticmethod(_keep_annotations(hints)))
        if hasattr(hints, "_make_origin"):
            patch.setattr(hints, "_make_origin", staticmethod(lambda bases, tb=True, msg=(): [*msg]))
        if hasattr(pickler, "roundtrip"):
            patch.setattr(pickler, "roundtrip", _keep_empty(pickler))
        if hasattr(by_reference, "_should_pickle_by_reference"):
            patch.setattr(by_reference, "_should_pickle_by_reference", _keep_references(by_reference))
        if hasattr(by_reference, "_find_imported_submodules"):
            patch.setattr(by_reference, "_find_imported_submodules", _find_submodules)
        if hasattr(interactive, "is_in_ipython") and not importlib.util.find_spec("IPython"):
            patch.setattr(interactive, "is_in_ipython", lambda: False)
        if hasattr(processor, "monitoring_infos"):
            patch.setattr(processor, "monitoring_infos", _user_metrics)
        if hasattr(getattr(pickler, "bz2", None), "compress"):
            patch.setattr(pickler, "bz2", _keep_compressed(pickler.bz2))
            if hasattr(local_runner, "run_pipeline"):
                patch.setattr(local_runner, "run_pipeline", _run_without_compression(local_runner))
        if hasattr(test_pipeline, "run"):
            patch.setattr(test_pipeline, "run", functools.partialmethod(test_pipeline.run, test_runner_api=False))
        yield


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
            types_of = [_seen_of(each.value) if isinstance(each, inference.Const) else each for each in input_types]
            key = _identity_of(function), tuple(types_of), debug, depth
            is_kept = key in kept
        except (TypeError, ValueError):  # also of a type without a hash, and of an empty cell
            return look(function, input_types, debug, depth)
        if not is_kept:
            try:
                kept[key] = look(function, input_types, debug, depth), None
            except Exception as e:  # Beam takes any type instead
                kept[key] = None, e.with_traceback(None)
        found, error = kept[key]
        if error is not None:
            raise error
        return found

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


def _seen_of(constant: Any) -> Any:
    """Returns what the types that a method returns can depend on: the classes of its object and of all in its fields.

    Raises:
        TypeError: if a value shows no fields.
    """
    if constant is None or isinstance(constant, (str, bytes, bool, int, float, enum.Enum)):
        return type(constant)
    if isinstance(constant, (list, tuple, set, frozenset)):
        return type(constant), tuple(map(_seen_of, constant))
    if isinstance(constant, Mapping):
        return type(constant), tuple((_seen_of(key), _seen_of(value)) for key, value in constant.items())
    if isinstance(constant, (type, types.FunctionType)):
        return _identity_of(constant)
    return type(constant), tuple((name, _seen_of(value)) for name, value in vars(constant).items())


def _keep_annotations(hints: Any) -> Any:
    """Beam converts the annotations of 150 methods of DoFns and of other functions into types of its own."""
    look = hints.from_callable
    kept: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def from_callable(function: Any) -> Any:
        is_method = isinstance(function, types.MethodType)
        plain = function.__func__ if is_method else function
        if type(plain) is not types.FunctionType:
            return look(function)
        key = is_method, hasattr(function, "_beam_no_annotations")
        by_key = kept.setdefault(plain, {})
        if key not in by_key:
            by_key[key] = look(function)
        return by_key[key]

    return from_callable


def _keep_types(conversion: Any) -> Any:
    """Beam converts each type of Python 200 times for one job."""
    kept = functools.lru_cache(_NUM_TYPES)(conversion.convert_to_beam_type)

    def convert_to_beam_type(typ: Any) -> Any:
        try:
            return kept(typ)
        except TypeError:  # of a type without a hash
            return kept.__wrapped__(typ)

    return convert_to_beam_type


def _keep_references(cloudpickle: Any) -> Any:
    """Beam looks 400 times for the module of a class or a function to pickle. Those found stay where they are."""
    look = cloudpickle._should_pickle_by_reference
    kept: weakref.WeakSet[Any] = weakref.WeakSet()

    def should_pickle_by_reference(value: Any, *name: Any, **settings: Any) -> bool:
        if name or settings.keys() - {"config"}:
            return bool(look(value, *name, **settings))
        if isinstance(value, (type, types.FunctionType)) and value in kept:
            return True
        found = bool(look(value, **settings))
        if found and isinstance(value, (type, types.FunctionType)):
            kept.add(value)
        return found

    return should_pickle_by_reference


@functools.lru_cache(_NUM_PACKAGES)
def _submodules(package: str, num_modules: int) -> list[str]:
    return [name for name in list(sys.modules) if name.startswith(f"{package}.")]


def _find_submodules(code: types.CodeType, dependencies: Iterable[Any]) -> list[types.ModuleType]:
    """Beam looks through the names of all 5,000 modules for each package that a lambda of a job refers to."""
    packages = [each for each in dependencies if isinstance(each, types.ModuleType) and each.__package__]
    return [
        sys.modules[name]
        for package in packages
        for name in _submodules(package.__name__, len(sys.modules))
        if set(name.removeprefix(f"{package.__name__}.").split(".")) <= set(code.co_names)
    ]


def _user_metrics(processor: Any) -> list[Any]:
    """Beam counts elements and time of each step for runners that show them: three of four metrics of a job."""
    infos: dict[Any, Any] = {}
    for transform_id, operation in processor.ops.items():
        infos.update(operation.user_monitoring_infos(transform_id))
    return list(infos.values())


def _keep_empty(pickler: Any) -> Any:
    """Beam pickles the arguments of each DoFn and reads them back. Mostly there are none."""
    look = pickler.roundtrip

    def roundtrip(value: Any) -> Any:
        return type(value)() if type(value) in (list, tuple, dict) and not value else look(value)

    return roundtrip


def _list_options(options: Any) -> list[str]:
    """Beam looks through all attributes of a namespace at each access to one of its 4,000 options."""
    return sorted(name for name in vars(options._visible_options) if name[0] != "_")


def _keep_parsers(options: Any, parser_class: Any) -> Any:
    """Beam makes a parser for each of the 14 views of a job's options. A class of views has the same one in each job.

    The lists of a parser's defaults are copied, since jobs add to theirs.
    """
    make = options.__init__

    @functools.cache
    def parser_of(view_class: Any) -> Any:
        parser = parser_class(allow_abbrev=False)
        for each in view_class.mro()[: view_class.mro().index(options)]:
            if "_add_argparse_args" in vars(each):
                each._add_argparse_args(parser)
        return parser

    def __init__(self: Any, flags: Any = None, **overrides: Any) -> None:
        if isinstance(flags, str):  # an error
            make(self, flags)
        logging.basicConfig()
        found, _ = parser_of(type(self)).parse_known_args(flags)
        self._flags = flags
        values = {name: copy.copy(value) for name, value in vars(found).items()}
        self._visible_options = argparse.Namespace(**values)
        self._all_options = {**values, **overrides}

    return __init__


def _look_up_options(options: Any) -> Any:
    """Beam sorts the names of a view's options to look up one."""
    look = options.__getattr__

    def __getattr__(self: Any, name: str) -> Any:
        if name[:1] != "_" and name in vars(self._visible_options):
            return self._all_options[name]
        return look(self, name)

    return __getattr__


def _keep_parser_of_all(options: Any, parser_class: Any) -> Any:
    """Beam makes a parser of 180 options for each job, to warn of those that it does not know."""
    look = options.get_all_options

    @functools.cache
    def parser_of(*view_classes: Any) -> Any:
        parser = parser_class(allow_abbrev=False)
        for each in view_classes:
            each._add_argparse_args(parser)
        return parser

    def get_all_options(self: Any, **settings: Any) -> dict[str, Any]:
        parser = parser_of(*{str(each): each for each in reversed(options.__subclasses__())}.values())
        found, unknown = parser.parse_known_args(self._flags)
        values = {name: copy.copy(value) for name, value in vars(found).items()}
        shows_all = settings.keys() <= {"display_warnings", "retain_unknown_options"}
        if unknown or not shows_all or self._all_options.keys() - values:
            return look(self, **settings)
        return {**values, **self._all_options}

    return get_all_options


_all_in_this_process = contextvars.ContextVar("all_in_this_process", default=False)


def _run_without_compression(runner: Any) -> Any:
    """A job whose steps all run in this process leaves its pickles as they are: no other process could read them."""
    run = runner.run_pipeline

    def run_pipeline(self: Any, pipeline: Any, options: Any) -> Any:
        is_embedded = "Embedded" in type(self._default_environment).__name__
        mode = options.get_all_options(retain_unknown_options=True)["direct_running_mode"]
        token = _all_in_this_process.set(is_embedded and mode == "in_memory")
        try:
            return run(self, pipeline, options)
        finally:
            _all_in_this_process.reset(token)

    return run_pipeline


def _keep_compressed(bz2: Any) -> Any:
    """Beam compresses 120 pickles for each job, 0.2 ms each, and most of them are those of the job before."""
    kept_compressed, kept_data = (functools.lru_cache(_NUM_PICKLES)(each) for each in (bz2.compress, bz2.decompress))

    def compress(data: bytes, **settings: int) -> bytes:
        if _all_in_this_process.get():
            return data
        return bytes((kept_compressed if len(data) <= _MAX_PICKLE_BYTES else bz2.compress)(data, **settings))

    def decompress(data: bytes) -> bytes:
        if data.startswith(pickle.PROTO):
            return data
        return bytes((kept_data if len(data) <= _MAX_PICKLE_BYTES else bz2.decompress)(data))

    return types.SimpleNamespace(compress=compress, decompress=decompress)
