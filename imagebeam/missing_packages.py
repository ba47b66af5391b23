"""Errors for packages that are not installed: they name the extra of imagebeam, or the package, to install."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from imagebeam import errors

_EXTRAS = {  # by the top-level module; all other packages belong to the converter
    "fsspec": "hdfs",
    "google": "gcs",
    "grain": "grain",
    "jax": "tf,jax",  # batches for JAX come from tf.data
    "numpy": "tf",
    "requests": "hdfs",
    "tensorflow": "tf",
}
_BY_SCHEME = {  # as `pip install` takes it
    "gs": "'imagebeam[gcs]'",
    "gcs": "'imagebeam[gcs]'",
    "hdfs": "'imagebeam[hdfs]'",
    "webhdfs": "'imagebeam[hdfs]'",
    "http": "'fsspec[http]'",
    "https": "'fsspec[http]'",
    "s3": "'imagebeam[s3]'",
    "s3a": "'imagebeam[s3]'",
    "az": "adlfs",
    "abfs": "adlfs",
    "abfss": "adlfs",
}


def missing_package(error: ImportError, user: str, extra: str | None = None, otherwise: str = "") -> errors.ConfigError:
    """Returns the error for a package that is not installed; it names the package and how to install it.

    Args:
        error: the import that failed.
        user: the function, command or feature that needs the package.
        extra: the extra to install; None to choose it by the package.
        otherwise: an alternative to the installation; "" if there is none.
    """
    extra = extra or _EXTRAS.get((error.name or "").partition(".")[0], "convert")
    alternative = f", or {otherwise}" if otherwise else ""
    return errors.ConfigError(
        f"{_package_of(error)} is not installed, {user} needs it: pip install 'imagebeam[{extra}]'{alternative}"
    )


@contextlib.contextmanager
def needed(user: str, extra: str | None = None) -> Iterator[None]:
    """Within it, the import of a package that is not installed raises `missing_package`'s error.

    Raises:
        ConfigError: if the package is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as e:
        raise missing_package(e, user, extra) from e


def missing_package_of_scheme(error: ImportError, scheme: str) -> errors.ConfigError:
    """Returns the error for a scheme whose package is not installed; it names the package or the extra."""
    found = f"{_package_of(error)} is not installed, {scheme}:// needs it"
    if not isinstance(error, ModuleNotFoundError) or not error.name:  # fsspec's own text names the package
        found = f"a package that reads {scheme}:// is missing ({error})"
    requirement = _BY_SCHEME.get(scheme)
    remedy = f"pip install {requirement}" if requirement else f"install the package that reads {scheme}://"
    return errors.ConfigError(f"{found}: {remedy}")


def _package_of(error: ImportError) -> str:
    """Returns the name of the package that provides the module; the whole name in a namespace, such as google.auth."""
    name = error.name or ""
    top = name.partition(".")[0]
    return {"PIL": "Pillow", "google": name}.get(top, top)
