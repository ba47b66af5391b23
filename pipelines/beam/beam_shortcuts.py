"""Takes out of Beam what it does again and again for one small job in this process: a third of its processor time.

Nothing here changes the graph, its steps or what they return. In a Beam without these functions nothing is replaced.
Importing this module does not import Beam.
"""

from __future__ import annotations

import argparse
import bz2
import collections
import functools
import inspect
import sys
import threading
import traceback
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any

_NUM_FUNCTIONS = 5000  # more than a job has
_NUM_VIEWS = 500  # some 15 for each job
_ANY_SIZE = 64
_ANY_WIDTH = 100

Replace = Callable[[Any, str, Any], None]


def install(replace: Replace = setattr) -> None:
    """Makes Beam look once at each class of DoFn, keep views of options and measure nothing, if it is imported already.

    This is for a process that runs only jobs of imagebeam, on the local runner.

    Args:
        replace: sets an attribute, as `setattr` does.
    """
    core = sys.modules.get("apache_beam.transforms.core")
    decorators = sys.modules.get("apache_beam.typehints.decorators")
    options = getattr(sys.modules.get("apache_beam.options.pipeline_options"), "PipelineOptions", None)
    interactive = sys.modules.get("apache_beam.utils.interactive_utils")
    parser = getattr(sys.modules.get("apache_beam.options.pipeline_options"), "_BeamArgumentParser", None)
    statecache = sys.modules.get("apache_beam.runners.worker.statecache")
    statesampler = sys.modules.get("apache_beam.runners.worker.statesampler")
    userstate = sys.modules.get("apache_beam.transforms.userstate")
    if _is_beams(core, "get_function_args_defaults"):
        replace(core, "get_function_args_defaults", _keep_arguments(core))
    if getattr(decorators, "traceback", None) is traceback:
        replace(decorators, "traceback", types.SimpleNamespace(format_stack=_leave_stack_out))
    if _is_beams(core, "_check_fn_use_yield_and_return"):
        replace(core, "_check_fn_use_yield_and_return", _assume_either)
    if _is_beams(userstate, "get_dofn_specs") and hasattr(core, "_DoFnParam"):
        replace(userstate, "get_dofn_specs", _keep_specs(userstate, core))
    if _is_beams(options, "view_as"):
        replace(options, "view_as", _keep_views(options))
    if _is_beams(options, "get_all_options"):
        replace(options, "get_all_options", _skip_warnings(options))
    if parser is not None and "_get_formatter" not in vars(parser):
        replace(parser, "_get_formatter", lambda self: make_formatter(self.prog))
    if _is_beams(interactive, "is_in_ipython"):
        replace(interactive, "is_in_ipython", lambda: False)  # asked for each step: looks for a package that is missing
    if _is_beams(statecache, "get_deep_size"):
        replace(statecache, "get_deep_size", _assume_size)
    sampler = getattr(statesampler, "StateSampler", None)
    if _is_beams(sampler, "start") and hasattr(sampler, "stop_if_still_running"):
        track = statesampler.set_current_tracker  # type: ignore[union-attr]
        replace(sampler, "start", functools.partialmethod(_start_without_sampling, track))
        replace(sampler, "stop_if_still_running", lambda self: track(None))


def leave_pickles_uncompressed(replace: Replace = setattr) -> None:
    """Makes Beam keep its pickles as they are: it compresses some 70 of a job, 0.2 ms each, and unpacks them again.

    This is for a process whose jobs all run in it, if Beam is imported already: no other process could read them.

    Args:
        replace: sets an attribute, as `setattr` does.
    """
    pickler = sys.modules.get("apache_beam.internal.cloudpickle_pickler")
    if getattr(pickler, "bz2", None) is not bz2:
        return

    def compress(data: bytes, compresslevel: int = 9) -> bytes:
        return data

    def decompress(data: bytes) -> bytes:
        return bz2.decompress(data) if data.startswith(b"BZh") else data  # no pickle begins like that

    replace(pickler, "bz2", types.SimpleNamespace(compress=compress, decompress=decompress))


def make_formatter(prog: str) -> argparse.HelpFormatter:
    """Returns what writes the help of Beam's options, which nobody sees.

    argparse makes one for each option that is added, and by default asks the terminal each time how wide it is.
    """
    return argparse.HelpFormatter(prog, width=_ANY_WIDTH)


def _is_beams(owner: Any, name: str) -> bool:
    """Returns whether Beam has this function, and it was not replaced before."""
    function = inspect.getattr_static(owner, name, None)
    return function is not None and getattr(function, "__module__", "").startswith("apache_beam.")


def _keep_arguments(core: Any) -> Any:
    """Beam looks 600 times at the arguments of a method of some DoFn. They never change."""
    look = core.get_function_args_defaults
    kept: weakref.WeakKeyDictionary[Any, tuple[list[str], list[Any]]] = weakref.WeakKeyDictionary()

    def get_function_args_defaults(function: Any) -> tuple[list[str], list[Any]]:
        if not isinstance(function, types.MethodType):
            return look(function)
        found = kept.get(function.__func__)
        if found is None:
            found = kept[function.__func__] = look(function)
        names, defaults = found
        return names.copy(), defaults.copy()

    return get_function_args_defaults


def _assume_either(function: Any) -> bool:
    """Beam reads the source of each DoFn, and splits it into tokens, to warn of `yield` beside `return`."""
    return False


def _leave_stack_out(**_: Any) -> list[str]:
    """Beam formats a stack for each type hint, with lines of source, for errors of checks that are left out here."""
    return []


def _keep_specs(userstate: Any, core: Any) -> Any:
    """Beam looks 220 times for state and timers among the parameters of all methods of some DoFn."""
    look = userstate.get_dofn_specs

    @functools.lru_cache(_NUM_FUNCTIONS)
    def has_own_parameters(function: types.FunctionType) -> bool:
        defaults: Sequence[Any] = function.__defaults__ or ()
        if hasattr(function, "__wrapped__"):
            defaults = core.get_function_args_defaults(function)[1]
        return any(isinstance(default, core._DoFnParam) for default in defaults)

    @functools.lru_cache(_NUM_FUNCTIONS)
    def has_parameters(dofn_class: type) -> bool:
        """Returns whether a method of the class has a parameter that Beam fills in."""
        methods = [getattr(dofn_class, name, None) for name in dir(dofn_class)]
        functions = [getattr(method, "__func__", method) for method in methods]  # also of class methods
        return any(has_own_parameters(each) for each in functions if isinstance(each, types.FunctionType))

    def get_dofn_specs(dofn: Any) -> Any:
        has_own_methods = any(isinstance(each, types.MethodType) for each in vars(dofn).values())
        return look(dofn) if has_own_methods or has_parameters(dofn.__class__) else (set(), set())

    return get_dofn_specs


def _assume_size(*objects: Any) -> int:
    """Beam sums the sizes of all objects that a side input refers to, to forget some above 100 MB.

    Ours have kilobytes, and the sum takes longer than anything else that a step does with them.
    """
    return _ANY_SIZE


def _start_without_sampling(sampler: Any, track: Callable[[Any], None]) -> None:
    """Each of some 15 stages of a job starts a thread that measures where time goes, and waits 10 ms for its end."""
    sampler.tracked_thread = threading.current_thread()
    track(sampler)


def _skip_warnings(options: Any) -> Any:
    """Beam builds a parser of all its 350 options, to warn of unknown ones, which `make_options` has refused."""
    find = options.get_all_options

    def get_all_options(self: Any, *arguments: Any, display_warnings: bool = False, **keywords: Any) -> Any:
        return {} if display_warnings else find(self, *arguments, **keywords)

    return get_all_options


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
