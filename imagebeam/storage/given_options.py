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
# A name is that of a secret if one of its words is, or a stem anywhere in it: S3's `key`, and connectionString.
_WORDS = frozenset({"auth", "jwt", "key", "keys", "pass", "pwd", "sas", "sig"})
_STEMS = re.compile(
    r"authorization|bearer|connectionstring|connstr|cookie|credential|passphrase|passwd|password|secret|signature|token"
    r"|(?:access|account|api|private|shared)key"
)
_ABOUT_ONE = re.compile(r"kms|(?:file|filename|path|type|version)$")  # a key in KMS, the file of a key
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
# In a text: a login in an address, a key, or a header; and parts that have names, as in ?sig=S, AccountKey=S, Cookie: S
_SHOWN = re.compile(r"://[^/@\s:]*:[^/@\s]+@|-----BEGIN [A-Z ]*PRIVATE KEY|\b(?:basic|bearer)\s+\S", re.IGNORECASE)
_NAMED_PART = re.compile(r"(?:^|[?&#;,\s])([\w.-]+)(?:=|:\s)\s*[^\s&;]")
_NO_SECRETS = ("anon", "browser", "cache", "cloud", "google_default")  # values of `token`


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
    """Returns the path of the first option that is a secret itself, at any depth; None if there is none.

    That is a value whose name is that of a secret, or a text that shows one, and no reference to it.
    """
    if is_reference(value):
        return None
    if not isinstance(value, (Mapping, list, tuple)):
        return path if isinstance(value, str) and _shows_secret(value) else None
    named = value.items() if isinstance(value, Mapping) else enumerate(value)
    for name, each in named:
        inner = f"{path}[{name}]" if isinstance(name, int) else f"{path}.{name}"
        if _is_secret(str(name)) and not (name == "token" and _is_harmless(each)) and _is_given(each):
            return inner
        if (found := find_secret(each, inner)) is not None:
            return found
    return None


def _is_secret(name: str) -> bool:
    words = [word.lower() for word in _WORD.findall(name)]
    whole = "".join(words)
    return _ABOUT_ONE.search(whole) is None and (not _WORDS.isdisjoint(words) or _STEMS.search(whole) is not None)


def _is_given(value: Any) -> bool:
    """Returns whether there is anything in a value but references, None, True and False."""
    if value is None or isinstance(value, bool) or is_reference(value):
        return False
    if isinstance(value, Mapping):
        value = list(value.values())
    return any(_is_given(each) for each in value) if isinstance(value, (list, tuple)) else True


def _shows_secret(text: str) -> bool:
    return _SHOWN.search(text) is not None or any(_is_secret(name) for name in _NAMED_PART.findall(text))


def _is_harmless(token: Any) -> bool:
    return isinstance(token, str) and (token in _NO_SECRETS or token.endswith(".json"))  # the file of a key of Google
