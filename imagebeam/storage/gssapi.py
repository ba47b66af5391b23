"""Kerberos logins over HTTP (SPNEGO), through the system's MIT Kerberos.

The library `libgssapi_krb5` is part of almost every Linux. Its Python packages have no wheels for Linux: they need a
compiler and the headers of Kerberos on each worker. So its few functions are called here by ctypes.

Source: RFC 2744 (the C bindings of GSS-API), RFC 4178 (SPNEGO), RFC 4559 (SPNEGO over HTTP).
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any

from imagebeam import errors

_LIBRARY = "libgssapi_krb5.so.2"
_INITIATE, _MUTUAL = 1, 2  # GSS_C_INITIATE, GSS_C_MUTUAL_FLAG
_FAILED, _MORE = 0xFFFF0000, 1  # bits of errors in a status, GSS_S_CONTINUE_NEEDED
_OF_GSS, _OF_MECHANISM = 1, 2  # kinds of a status
_getting_tickets = threading.Lock()  # 32 threads that begin at once ask the KDC once


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
            ConfigError: if the system has no Kerberos.
            LoginError: if there is no valid ticket.
        """
        self._library = _load()
        self._context, self._server, credential = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        try:
            self._import_name(f"HTTP@{host}", _SERVICE_NAME, self._server)
            try:
                with _getting_tickets:
                    self._acquire(principal, keytab, credential)
                    self.token, _ = self._step(credential, b"")
            except LoginError as e:
                raise LoginError(f"no Kerberos ticket for HTTP@{host} ({e}): run kinit, or give a keytab") from e
        except BaseException:
            self.close()
            raise
        finally:
            if credential:
                self._library.gss_release_cred(ctypes.byref(ctypes.c_uint32()), ctypes.byref(credential))

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

    def _acquire(self, principal: str | None, keytab: str | None, credential: ctypes.c_void_p) -> None:
        name = ctypes.c_void_p()
        if principal is not None:
            self._import_name(principal, _USER_NAME, name)
        pair = _Pair(b"client_keytab", (keytab or "").encode())
        store = _Pairs(1, ctypes.pointer(pair)) if keytab is not None else _Pairs(0, None)
        mechanisms = _Oids(1, ctypes.pointer(_SPNEGO))
        try:
            self._call(
                "gss_acquire_cred_from",
                *(name, 0, ctypes.byref(mechanisms), _INITIATE, ctypes.byref(store), ctypes.byref(credential)),
                *(None, None),
            )
        finally:
            if name:
                self._library.gss_release_name(ctypes.byref(ctypes.c_uint32()), ctypes.byref(name))

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

    def _call(self, name: str, *arguments: Any) -> int:
        minor = ctypes.c_uint32()
        status: int = getattr(self._library, name)(ctypes.byref(minor), *arguments)
        if status & _FAILED:
            texts = [self._text(status, _OF_GSS), self._text(minor.value, _OF_MECHANISM)]
            raise LoginError(": ".join(text for text in texts if text))
        return status

    def _text(self, status: int, kind: int) -> str:
        text, more = _Buffer(), ctypes.c_uint32()
        self._library.gss_display_status(
            ctypes.byref(ctypes.c_uint32()), status, kind, ctypes.byref(_SPNEGO), ctypes.byref(more), ctypes.byref(text)
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
