"""Code of the user: functions and classes that a config names by their import path.

They travel to workers as this path, never by value. Each process imports them once.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from imagebeam import concurrency, errors
from imagebeam.transforms import elements

MAX_SECONDS = 60.0  # for one image where code of the user runs, unless image.limits.max_seconds is set
_REMEDY = (
    "install its package, or start from the folder that holds it; workers of a cluster get it by --setup_file or "
    "--extra_package, or by their image"
)
_REMEDY_FOR_DIGEST = "give its version (`version:` beside it) and raise that with each change"


class Reference(NamedTuple):
    """One image before its bytes are read: the argument of a user's functions."""

    key: str
    """Stable id: the path relative to the source's root, or the table's key."""
    uri: str
    """Address of the file that holds the bytes."""
    label: str | int | float | tuple[str, ...] | None
    """Class, number or several classes; None without labels, and for `label.function`, unless the source gives it."""
    split: str
    """Name of the split; "" where it is not known yet."""
    columns: Mapping[str, Any]
    """Values of the config's `columns` by name: str, int, float, or a list of these."""


def reference_of(ref: elements.ImageRef, columns: Sequence[str]) -> Reference:
    """Returns what a user's function gets to know of an image; `columns` are the sources of `ref.columns`."""
    named = {
        name.removeprefix("columns/"): _as_text(value)
        for name, value in zip(columns, ref.columns)
        if name.startswith("columns/")
    }
    return Reference(ref.key, ref.uri, ref.label, ref.split, named)


def _as_text(value: Any) -> Any:
    """Returns the value of a column with text instead of bytes."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return [_as_text(each) for each in value] if isinstance(value, (list, tuple)) else value


class UserCode(NamedTuple):
    """A function or class of the user. Hashable and picklable."""

    setting: str  # key of the config that names it, for errors
    path: str  # such as "my_package.faces:crop"
    options: str = "{}"  # JSON of the keyword arguments
    version: str = ""  # given by the user; "" if the module's source counts
    digest: str = ""  # of the module's source, as the launcher has it; "" if `version` counts

    def start(self) -> Callable[..., Any]:
        """Returns the function, or an instance of the class whose `setup()` was called: once in each process.

        Raises:
            ConfigError: if there is no such code in this process, it is another one than in the launcher, or it fails.
        """
        return _start(self)


def find(setting: str, path: str, options: Mapping[str, Any] | None = None, version: str | None = None) -> UserCode:
    """Returns the code that a config names, after a look that it can be imported.

    Args:
        setting: key of the config that names it.
        path: "module:name".
        options: keyword arguments of each call, or of the class when it is made.
        version: of the code, for the fingerprint; None takes a digest of the source of its module.

    Raises:
        ConfigError: if there is no such code, or without a version its source cannot be read.
    """
    load(setting, path)
    given = json.dumps(options or {}, sort_keys=True)
    if version is not None:
        return UserCode(setting, path, given, version)
    return UserCode(setting, path, given, digest=digest_of(setting, path))


def load(setting: str, path: str) -> Any:
    """Returns the function or class at an import path.

    Raises:
        ConfigError: if there is none, or its module fails.
    """
    name, _, attribute = path.partition(":")
    if not all(part.isidentifier() for part in (*name.split("."), *attribute.split("."))):
        raise errors.ConfigError(
            "user-code-form", f"{setting}: {path!r} is no import path: write module:name, such as my_package.faces:crop"
        )
    _find_in_working_folder(name.partition(".")[0])
    try:
        found: Any = importlib.import_module(name)
    except ModuleNotFoundError as e:
        if e.name is not None and (name == e.name or name.startswith(f"{e.name}.")):
            raise errors.ConfigError(
                "user-code-missing", f"{setting}: {path!r}: there is no module {e.name!r} here: {_REMEDY}"
            ) from e
        raise failed(setting, path, "its module fails", e) from e
    except Exception as e:  # code of the user raises any type
        raise failed(setting, path, "its module fails", e) from e
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise errors.ConfigError(
                "user-code-missing", f"{setting}: {path!r}: module {name!r} has no {attribute!r}: correct the name"
            )
        found = getattr(found, part)
    return found


def _find_in_working_folder(name: str) -> None:
    """Lets modules of the current folder be imported: the path of the command `imagebeam` lacks it."""
    folder = os.getcwd()
    there = os.path.exists(os.path.join(folder, name)) or os.path.exists(os.path.join(folder, f"{name}.py"))
    if there and folder not in sys.path and importlib.util.find_spec(name) is None:
        sys.path.append(folder)
        importlib.invalidate_caches()


def digest_of(setting: str, path: str) -> str:
    """Returns a digest of the source of the module that a path names.

    Raises:
        ConfigError: if the module has no source.
    """
    try:
        source = inspect.getsource(sys.modules[path.partition(":")[0]])
    except (OSError, TypeError) as e:
        raise errors.ConfigError(
            "user-code-without-source",
            f"{setting}: {path!r}: the source of its module cannot be read, so a change would not be noticed: "
            f"{_REMEDY_FOR_DIGEST}",
        ) from e
    return hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def load_same(setting: str, path: str, digest: str) -> Any:
    """Returns what `load` does, in a process that may have other code than the one that began the run.

    Args:
        setting: key of the config that names it.
        path: "module:name".
        digest: of the source of its module there; "" if the user gives a version.

    Raises:
        ConfigError: if there is no such code in this process, or it is another one.
    """
    found = load(setting, path)
    if digest and (here := digest_of(setting, path)) != digest:
        raise errors.ConfigError(
            "user-code-differs",
            f"{setting}: {path!r}: the source of its module is not that of the command that began the run "
            f"({here[:8]} here, {digest[:8]} there): install the same package on the workers, or {_REMEDY_FOR_DIGEST}",
        )
    return found


@functools.cache
def _start(code: UserCode) -> Callable[..., Any]:
    found = load_same(code.setting, code.path, code.digest)
    options = json.loads(code.options)
    try:
        if isinstance(found, type):
            found = found(**options)
            if hasattr(found, "setup"):
                found.setup()
        elif options:
            found = functools.partial(found, **options)
    except Exception as e:  # code of the user raises any type
        raise failed(code.setting, code.path, "it cannot be made", e) from e
    if not callable(found):
        raise errors.ConfigError(
            "user-code-form", f"{code.setting}: {code.path!r} is {found!r}, which cannot be called: name a function"
        )
    return found  # type: ignore[no-any-return]


def failed(setting: str, path: str, what: str, error: Exception) -> errors.ConfigError:
    """Returns the error for code of the user that raised one."""
    return errors.ConfigError(
        "user-code-failed", f"{setting}: {path!r}: {what} ({describe(error)}): try it in Python, and correct it"
    )


def too_slow(code: UserCode, error: concurrency.TooSlowError) -> str:
    """Returns the detail of a reject for whose image code of the user took longer than it may."""
    return f"{code.setting} {code.path!r} {error}, the limit of image.limits.max_seconds"


def describe(error: BaseException) -> str:
    """Returns the type and the text of an error in one line, with the line of code that raised it."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    file = "" if traceback is None else traceback.tb_frame.f_code.co_filename
    where = (
        "" if traceback is None or file.startswith("<") else f", {os.path.basename(file)} line {traceback.tb_lineno}"
    )
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}{where}" if text else f"{type(error).__name__}{where}"


def describe_value(value: Any) -> str:
    """Returns a value of the wrong kind for an error: type and shape of an array, else the value, shortened."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is not None and dtype is not None:
        return f"{dtype} {list(shape)}"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}... ({type(value).__name__})"
