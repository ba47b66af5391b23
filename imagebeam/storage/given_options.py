"""Options of storages that hold for addresses in this process, and values that only a reference names.

`storage_of` looks here for the options of an address, so that no caller passes them. A run gives its table to every
process that works for it: `using` is for the process that begins it, `Carried` for those that it sends work to.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from imagebeam import errors
from imagebeam.storage import interface

Options: TypeAlias = Mapping[str, Any]
Table: TypeAlias = Mapping[str, Options]  # by address: of all that is below it, unless a longer address is there

ANYWHERE = ""  # in a table: every address but those of web servers, whose options are a section of their own
_WEB = ("http", "https")
_REFERENCES = ("env", "file")

_tables: list[Table] = []  # of this process; a later one wins
_entered: contextvars.ContextVar[tuple[Table, ...]] = contextvars.ContextVar("_entered", default=())

REFUSED = (
    "is a secret, and would be kept in job graphs and logs: give {env: NAME}, a variable, or {file: PATH}, which each "
    "process reads itself"
)
_SECRET = re.compile(
    r"(?:^|_)(?:auth|authorization|cookie|credentials?|key|pass|passwd|password|secret|signature|token)(?:_|$)"
    r"|connection_string|accesskey|secretkey",
    re.IGNORECASE,
)
_NAMES_ONE = re.compile(r"_(?:file|name|path)$", re.IGNORECASE)  # kms_key_name holds no key
_HIDDEN_IN_ADDRESS = re.compile(r"://[^/@\s]+:[^/@\s]+@|[?&](?:sig|token|key)=", re.IGNORECASE)
_NO_SECRETS = ("anon", "browser", "cache", "cloud", "google_default", True, False, None)  # values of `token`
_KEY_FILE = re.compile(r"[~./].*|.*\.json")  # paths that Google's `token` may be


@contextlib.contextmanager
def using(table: Table) -> Iterator[None]:
    """Makes `storage_of` open the addresses of a table with its options, in this process, until the block ends.

    Raises:
        ConfigError: if another thread's block has other options for one of the addresses.
    """
    mine = _entered.get()
    for other in [each for each in _tables if not any(each is known for known in mine)]:
        for address in table.keys() & other.keys():
            if table[address] != other[address]:
                raise errors.ConfigError(
                    "storage-options-differ",
                    f"another run in this process has other storage_options for {address or 'all'!r}: start one of the "
                    "two in a process of its own",
                )
    table = dict(table)
    _tables.append(table)
    token = _entered.set((*mine, table))
    try:
        yield
    finally:
        _entered.reset(token)
        _tables[:] = [each for each in _tables if each is not table]


def active() -> dict[str, Options]:
    """Returns the table of this process: what workers must be given."""
    return {address: options for table in _tables for address, options in table.items()}


def holds(table: Table) -> bool:
    """Returns whether this process uses a table."""
    return table in _tables or table == active()


def install(table: Table) -> Carried:
    """Makes a table that of this process for good, unless it has it. For processes of workers."""
    if table and not holds(table):
        _tables.append(dict(table))
    return Carried(table)


class Carried:
    """A table that installs itself in the process that unpickles it. Only references to secrets travel with it."""

    def __init__(self, table: Table):
        self.table = table

    def __reduce__(self) -> Any:
        return install, (self.table,)


def options_of(uri: str) -> Options:
    """Returns the options that hold for an address: those of the longest address in the table that it is below."""
    if not _tables or (scheme := interface.scheme_of(uri)) == "file":
        return {}
    table, found = active(), None
    for address in table:
        if address == ANYWHERE and scheme in _WEB:
            continue
        start = address if address.endswith("/") or address == ANYWHERE else f"{address}/"
        if f"{uri}/".startswith(start) and (found is None or len(address) >= len(found)):
            found = address
    return {} if found is None else table[found]


# --- references to secrets -------------------------------------------------------------------------------------------


def is_reference(value: Any) -> bool:
    """Returns whether a value is {env: NAME} or {file: PATH}."""
    if not isinstance(value, Mapping) or len(value) != 1:
        return False
    [(kind, name)] = value.items()
    return kind in _REFERENCES and isinstance(name, str)


def has_references(value: Any) -> bool:
    """Returns whether a mapping has references, at any depth."""
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return any(is_reference(each) or has_references(each) for each in inner)


def resolve(options: Options) -> dict[str, Any]:
    """Returns options with what their references name, at any depth, as it is in this process now.

    Ends of lines around it are left out: most tools that write a secret add one.

    Raises:
        ConfigError: if a variable is not set, a file cannot be read, or there is nothing in it.
    """
    return {name: _resolve(value, f"storage_options.{name}") for name, value in options.items()}


def _resolve(value: Any, path: str) -> Any:
    if isinstance(value, list):
        return [_resolve(each, f"{path}[{number}]") for number, each in enumerate(value)]
    if not isinstance(value, Mapping):
        return value
    if not is_reference(value):
        return {name: _resolve(each, f"{path}.{name}") for name, each in value.items()}
    [(kind, name)] = value.items()
    if kind == "file":
        try:
            with open(os.path.expanduser(name), encoding="utf-8") as file:
                found = file.read()
        except (OSError, UnicodeDecodeError) as e:
            reason = getattr(e, "strerror", None) or "no UTF-8 text"
            raise errors.ConfigError(
                "storage-secret-missing",
                f"{path} is {{file: {name}}}, which cannot be read here ({reason}): put it there, on every worker too",
            ) from e
    elif (found := os.environ.get(name, "")) == "":
        raise errors.ConfigError(
            "storage-secret-missing",
            f"{path} is {{env: {name}}}, and this process has no such variable: set it, on every worker too",
        )
    if not found.strip():  # most clients would log in by other means instead
        raise errors.ConfigError(
            "storage-secret-missing", f"{path} is {{{kind}: {name}}}, which is empty: write the secret there"
        )
    return found.strip("\r\n")


def find_secret(value: Any, path: str) -> str | None:
    """Returns the path of an option that is, by its name, a secret, and no reference; None if there is none."""
    if not isinstance(value, Mapping):
        return path if isinstance(value, str) and _HIDDEN_IN_ADDRESS.search(value) else None
    if is_reference(value):
        return None
    for name, each in value.items():
        inner = f"{path}.{name}"
        if _is_secret(str(name)) and not is_reference(each) and not (name == "token" and _is_harmless(each)):
            return inner
        if (found := find_secret(each, inner)) is not None:
            return found
    return None


def _is_secret(name: str) -> bool:
    parted = re.sub(r"(?<=[a-z])(?=[A-Z])|-", "_", name)
    return _SECRET.search(parted) is not None and _NAMES_ONE.search(parted) is None


def _is_harmless(token: Any) -> bool:
    return token in _NO_SECRETS or (isinstance(token, str) and _KEY_FILE.fullmatch(token) is not None)
