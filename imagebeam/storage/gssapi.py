"""Kerberos logins over HTTP (SPNEGO), through the system's MIT Kerberos.

The library `libgssapi_krb5` is part of almost every Linux. Its Python packages have no wheels for Linux: they need a
compiler and the headers of Kerberos on each worker. So its few functions are called here by ctypes.

Source: RFC 2744 (the C bindings of GSS-API), RFC 4178 (SPNEGO), RFC 4559 (SPNEGO over HTTP).
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from typing import Any

from imagebeam import errors

_LIBRARY = "libgssapi_krb5.so.2"
_INITIATE, _ACCEPT, _MUTUAL = 1, 2, 2  # GSS_C_INITIATE, GSS_C_ACCEPT, GSS_C_MUTUAL_FLAG
_FAILED, _MORE = 0xFFFF0000, 1  # bits of errors in a status, GSS_S_CONTINUE_NEEDED
_OF_GSS, _OF_MECHANISM = 1, 2  # kinds of a status
_KEYS = "KRB5_CLIENT_KTNAME"
_getting_tickets = threading.Lock()  # 32 threads that begin at once ask the KDC once
_failures: dict[tuple[str, str | None, str | None], tuple[float, str]] = {}  # by login: when the last one was, and why


class LoginError(Exception):
    """Kerberos gave no token for a server. The text is that of the library."""


class _Oid(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint32), ("elements", ctypes.c_char_p))


class _Oids(ctypes.Structure):
    _fields_ = (("count", ctypes.c_size_t), ("elements", ctypes.POINTER(_Oid)))


class _Buffer(ctypes.Structure):
    _fields_ = (("length", ctypes.c_size_t), ("value", ctypes.c_void_p))


class _Pair(ctypes.Structure):
    _fields_ = (("key", ctypes.c_char_p), ("value", ctypes.c_char_p))


class _Pairs(ctypes.Structure):
    _fields_ = (("count", ctypes.c_uint32), ("elements", ctypes.POINTER(_Pair)))


_SPNEGO = _Oid(6, bytes.fromhex("2b0601050502"))
_KERBEROS = _Oid(9, bytes.fromhex("2a864886f712010202"))
_SERVICE_NAME = _Oid(10, bytes.fromhex("2a864886f71201020104"))  # SERVICE@HOST
_USER_NAME = _Oid(10, bytes.fromhex("2a864886f71201020101"))  # a principal


class Login:
    """One login at a server: `token` is sent to it, and `finish` checks what it answers. For one thread."""

    def __init__(self, host: str, principal: str | None = None, keytab: str | None = None):
        """Gets a ticket for HTTP/`host`, by the ticket cache or a keytab.

        Args:
            host: of the server, as its principal has it.
            principal: whose ticket; None for that of the cache, or of the first key.
            keytab: path of a file with keys, from which tickets are got and renewed; None for that of the variable
                KRB5_CLIENT_KTNAME. Without one, the ticket must be in the cache ($KRB5CCNAME).

        Raises:
            ConfigError: if the system has no Kerberos, or the keytab has no key of the principal.
            LoginError: if there is no valid ticket.
        """
        began, login = time.monotonic(), (host, principal, keytab)
        self._library = _load()
        self._context, self._server = ctypes.c_void_p(), ctypes.c_void_p()
        try:
            with _getting_tickets:  # the library has hung with a thread in the one call and one in the other
                self._import_name(f"HTTP@{host}", _SERVICE_NAME, self._server)
                failed, reason = _failures.get(login, (began, ""))
                if failed > began:  # while this thread waited: a KDC that is silent takes 30 s for each attempt
                    raise LoginError(reason)
                try:
                    self.token = self._begin(principal, keytab)
                except LoginError as e:
                    keys = self._require_key(principal, keytab)
                    reason = f"no Kerberos ticket for HTTP@{host} ({e}): run kinit, or give a keytab"
                    if keys:
                        reason = f"no Kerberos ticket for HTTP@{host} by the keys in {keys!r} ({e})"
                    _failures[login] = time.monotonic(), reason
                    raise LoginError(reason) from e
        except BaseException:
            self.close()
            raise

    def finish(self, answer: bytes) -> None:
        """Checks the server's own proof of who it is.

        Raises:
            LoginError: if it is not that of the server that was named.
        """
        _, is_complete = self._step(ctypes.c_void_p(), answer)
        if not is_complete:
            raise LoginError("the server's answer does not complete the login")

    def close(self) -> None:
        minor = ctypes.byref(ctypes.c_uint32())
        if self._context:
            self._library.gss_delete_sec_context(minor, ctypes.byref(self._context), None)
        if self._server:
            self._library.gss_release_name(minor, ctypes.byref(self._server))

    def _begin(self, principal: str | None, keytab: str | None) -> bytes:
        """Returns the first token for the server."""
        keys = None if keytab is None else ("client_keytab", keytab)
        self._release(self._acquire(_KERBEROS, _INITIATE, principal, keys))  # by SPNEGO alone, no error says its cause
        credential = self._acquire(_SPNEGO, _INITIATE, principal, keys)
        try:
            return self._step(credential, b"")[0]
        finally:
            self._release(credential)

    def _require_key(self, principal: str | None, keytab: str | None) -> str | None:
        """Returns the file with the keys, of the option or the variable; None if there is neither.

        Raises:
            ConfigError: if it has no key of the principal.
        """
        keys = keytab or os.environ.get(_KEYS)
        if not keys:
            return None
        try:
            self._release(self._acquire(_KERBEROS, _ACCEPT, principal, ("keytab", keys)))  # a server's: asks no KDC
        except LoginError as e:
            raise errors.ConfigError(
                "kerberos-keytab",
                f"{'keytab' if keytab else '$' + _KEYS} {keys!r} has no key of {principal or 'any user'} ({e}): give a "
                "file that can be read here, on every worker too, with the user's key; klist -k FILE lists them",
            ) from e
        return keys

    def _acquire(
        self, mechanism: _Oid, usage: int, principal: str | None, keys: tuple[str, str] | None
    ) -> ctypes.c_void_p:
        name, credential = ctypes.c_void_p(), ctypes.c_void_p()
        if principal is not None:
            self._import_name(principal, _USER_NAME, name)
        pair = _Pair(*(text.encode() for text in keys or ("", "")))
        store = _Pairs(0, None) if keys is None else _Pairs(1, ctypes.pointer(pair))
        mechanisms = _Oids(1, ctypes.pointer(mechanism))
        try:
            self._call(
                "gss_acquire_cred_from",
                *(name, 0, ctypes.byref(mechanisms), usage, ctypes.byref(store), ctypes.byref(credential)),
                *(None, None),
                mechanism=mechanism,
            )
        finally:
            if name:
                self._library.gss_release_name(ctypes.byref(ctypes.c_uint32()), ctypes.byref(name))
        return credential

    def _release(self, credential: ctypes.c_void_p) -> None:
        self._library.gss_release_cred(ctypes.byref(ctypes.c_uint32()), ctypes.byref(credential))

    def _import_name(self, text: str, kind: _Oid, name: ctypes.c_void_p) -> None:
        data = text.encode()
        buffer = _Buffer(len(data), ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p))
        self._call("gss_import_name", ctypes.byref(buffer), ctypes.byref(kind), ctypes.byref(name))

    def _step(self, credential: ctypes.c_void_p, answer: bytes) -> tuple[bytes, bool]:
        """Returns the next token for the server, and whether the login is complete."""
        given = _Buffer(len(answer), ctypes.cast(ctypes.c_char_p(answer), ctypes.c_void_p))
        made = _Buffer()
        status = self._call(
            "gss_init_sec_context",
            *(credential, ctypes.byref(self._context), self._server, ctypes.byref(_SPNEGO), _MUTUAL, 0, None),
            *(ctypes.byref(given), None, ctypes.byref(made), None, None),
        )
        return self._take(made), status != _MORE

    def _call(self, name: str, *arguments: Any, mechanism: _Oid = _SPNEGO) -> int:
        minor = ctypes.c_uint32()
        status: int = getattr(self._library, name)(ctypes.byref(minor), *arguments)
        if status & _FAILED:
            texts = [self._text(status, _OF_GSS, mechanism), self._text(minor.value, _OF_MECHANISM, mechanism)]
            raise LoginError(": ".join(text for text in texts if text))
        return status

    def _text(self, status: int, kind: int, mechanism: _Oid) -> str:
        text, more = _Buffer(), ctypes.c_uint32()
        self._library.gss_display_status(
            *(ctypes.byref(ctypes.c_uint32()), status, kind, ctypes.byref(mechanism)),
            *(ctypes.byref(more), ctypes.byref(text)),
        )
        return self._take(text).decode(errors="replace").strip("\0. ")

    def _take(self, buffer: _Buffer) -> bytes:
        """Returns the bytes of a buffer that the library made, and releases it."""
        data = ctypes.string_at(buffer.value, buffer.length) if buffer.length else b""
        self._library.gss_release_buffer(ctypes.byref(ctypes.c_uint32()), ctypes.byref(buffer))
        return data


def _load() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError as e:
        raise errors.ConfigError(
            "package-missing",
            f"{_LIBRARY} is not installed, Kerberos needs it: apt-get install libgssapi-krb5-2, or dnf install "
            "krb5-libs",
        ) from e
    pointer, number = ctypes.c_void_p, ctypes.c_uint32
    for name, arguments in {
        "gss_import_name": (pointer,) * 4,
        "gss_acquire_cred_from": (pointer, pointer, number, pointer, ctypes.c_int, *(pointer,) * 4),
        "gss_init_sec_context": (*(pointer,) * 5, number, number, *(pointer,) * 6),
        "gss_display_status": (pointer, number, ctypes.c_int, *(pointer,) * 3),
        "gss_release_buffer": (pointer,) * 2,
        "gss_release_cred": (pointer,) * 2,
        "gss_release_name": (pointer,) * 2,
        "gss_delete_sec_context": (pointer,) * 3,
    }.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, number
    return library
