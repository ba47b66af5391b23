"""Errors that a user can act on. The command line prints their text alone and exits with their code."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping

_NAMED = re.compile(r"imagebeam\.errors\.(\w+): (.*)", re.DOTALL)
LOST_CODE = "failed-in-worker"  # the code of an error whose text alone came from another process
_STEP = re.compile(r" \[while running '[^']*'(?:-[^\]]*)?\]$")


class ImagebeamError(Exception):
    """Base of all errors that stop imagebeam and are not bugs.

    Attributes:
        code: stable name of the error, such as "output-busy": scripts can rely on it, but not on the text.
        text: what was found, what was expected, and what to do.
        exit_code: of a command that ends with this error.
    """

    exit_code = 1

    def __init__(self, code: str, text: str):
        super().__init__(code, text)
        self.code = _STEP.sub("", code)  # Beam makes the error again, with the step at the end of the first argument
        self.text = text

    def __str__(self) -> str:
        return self.text

    def extended(self, more: str) -> ImagebeamError:
        """Returns the same error with more text at its end."""
        return type(self)(self.code, self.text + more)


class ConfigError(ImagebeamError):
    """The command, the config or the input is wrong; nothing was written."""

    exit_code = 2


class TooManyRejectsError(ImagebeamError):
    """More images were rejected, removed or repeated than the config allows."""

    exit_code = 3


class DriftError(ImagebeamError):
    """A snapshot drifts further from the one before than `update.drift` allows; nothing was committed."""

    exit_code = 3


class DuplicatesError(TooManyRejectsError):
    """Images repeat others, and `duplicates` allows none; nothing was committed."""


class VerificationError(ImagebeamError):
    """The stored files differ from the catalog."""

    exit_code = 4


class BusyError(ImagebeamError):
    """Another run writes to the output, or committed to it in the meantime; nothing of this run was committed."""

    exit_code = 5


class CatalogError(ImagebeamError):
    """The address holds no readable catalog: no dataset, another format version, or an edited file."""

    exit_code = 4


class ShardError(ImagebeamError):
    """A shard or its index is missing, or differs from the catalog."""

    exit_code = 4


class ExampleError(ImagebeamError):
    """An example cannot be read or decoded; the text names shard, record, key and byte offset."""


class RecordError(ValueError):
    """A TFRecord file is broken at `offset` (bytes from its start, uncompressed). `data` is of the broken record."""

    def __init__(self, offset: int, detail: str, data: bytes = b""):
        super().__init__(offset, detail, data)
        self.offset = offset
        self.detail = detail
        self.data = data

    def __str__(self) -> str:
        return f"{self.detail} at byte offset {self.offset}"


@contextlib.contextmanager
def explained(code: str, problem: str, remedy: str = "") -> Iterator[None]:
    """Raises a ConfigError for an OSError of the block: the problem, what the system says of it, and the remedy.

    Raises:
        ConfigError: if a file cannot be read or written.
    """
    try:
        yield
    except OSError as e:
        raise ConfigError(code, f"{problem} ({e.strerror or e}){remedy}") from e


def find_in(text: str, error: BaseException) -> ImagebeamError | None:
    """Returns the error that a step of a pipeline has raised; None if it was of another kind.

    Args:
        text: what the runner says of it. Beam adds the step at the end: " [while running 'Compare/ReadStates']".
        error: raised by the runner: of the same kind if the step ran in this process, else `text` begins with it.
    """
    if isinstance(error, ImagebeamError):
        return type(error)(error.code, _STEP.sub("", text))
    if found := _NAMED.match(text):
        kind = _kind_of(found[1])
        return None if kind is None else kind(LOST_CODE, _STEP.sub("", found[2]))
    return None


def to_fields(error: ImagebeamError) -> dict[str, str]:
    """Returns an error as JSON, for another process: `from_fields` returns it there."""
    return {"class": type(error).__name__, "code": error.code, "text": error.text}


def from_fields(fields: Mapping[str, str]) -> ImagebeamError:
    """Returns the error that `to_fields` returned these fields for."""
    return (_kind_of(fields["class"]) or ImagebeamError)(fields["code"], fields["text"])


def _kind_of(name: str) -> type[ImagebeamError] | None:
    kind = globals().get(name)
    return kind if isinstance(kind, type) and issubclass(kind, ImagebeamError) else None


_EXTRAS = {  # by the top-level module; all other packages belong to the converter
    "fsspec": "hdfs",
    "google": "gcs",
    "grain": "grain",
    "jax": "jax",
    "numpy": "numpy",
    "requests": "hdfs",
    "tensorflow": "tf",
    "torch": "torch",
}
_BY_SCHEME = {  # as `pip install` takes it
    "gs": "'imagebeam[gcs]'",
    "gcs": "'imagebeam[gcs]'",
    "hdfs": "'imagebeam[hdfs]'",
    "webhdfs": "'imagebeam[hdfs]'",
    "swebhdfs": "'imagebeam[hdfs]'",
    "http": "'imagebeam[web]'",
    "https": "'imagebeam[web]'",
    "hf": "'imagebeam[hf]'",
    "s3": "'imagebeam[s3]'",
    "s3a": "'imagebeam[s3]'",
    "az": "'imagebeam[azure]'",
    "abfs": "'imagebeam[azure]'",
    "abfss": "'imagebeam[azure]'",
}


def missing_package(error: ImportError, user: str, extra: str | None = None, otherwise: str = "") -> ConfigError:
    """Returns the error for a package that is not installed; it names the package and how to install it.

    Args:
        error: the import that failed.
        user: the function, command or feature that needs the package.
        extra: the extra to install; None to choose it by the package.
        otherwise: an alternative to the installation; "" if there is none.
    """
    extra = extra or _EXTRAS.get((error.name or "").partition(".")[0], "convert")
    alternative = f", or {otherwise}" if otherwise else ""
    text = f"{_package_of(error)} is not installed, {user} needs it: pip install 'imagebeam[{extra}]'{alternative}"
    return ConfigError("package-missing", text)


@contextlib.contextmanager
def imports_for(user: str, extra: str | None = None) -> Iterator[None]:
    """Raises `missing_package`'s error for an import in the block whose package is not installed.

    Raises:
        ConfigError: if the package is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as e:
        raise missing_package(e, user, extra) from e


def missing_package_of_scheme(error: ImportError, scheme: str) -> ConfigError:
    """Returns the error for a scheme whose package is not installed; it names the package or the extra."""
    found = f"{_package_of(error)} is not installed, {scheme}:// needs it"
    if not isinstance(error, ModuleNotFoundError) or not error.name:  # fsspec's own text names the package
        found = f"a package that reads {scheme}:// is missing ({error})"
    requirement = _BY_SCHEME.get(scheme)
    remedy = f"pip install {requirement}" if requirement else f"install the package that reads {scheme}://"
    return ConfigError("package-missing", f"{found}: {remedy}")


def _package_of(error: ImportError) -> str:
    """Returns the name of the package that provides the module; the whole name in a namespace, such as google.auth."""
    name = error.name or ""
    top = name.partition(".")[0]
    return {"PIL": "Pillow", "google": name, "pydantic_core": "pydantic"}.get(top, top)
