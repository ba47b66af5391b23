"""Files at http:// and https://, through fsspec with a time limit for each request."""

from __future__ import annotations

import asyncio
import errno
import time
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from imagebeam.storage import fsspec_files, interface

REQUEST_SEC = 20.0  # for a whole request: its connection, its headers and its body
_MAX_SILENT = 3  # requests in a row without an answer, after which a server is left alone
_LEFT_ALONE_SEC = 60.0
_TRY_AGAIN = frozenset({408, 425, 429})
_GONE = frozenset({404, 410})
_DENIED = frozenset({401, 403})

_T = TypeVar("_T")


class HttpStorage(fsspec_files.FsspecStorage):
    """Files of web servers, to read.

    A table may name thousands of servers, some of which are down for good. So a server that fails is an error of the
    file (RequestError), not of the storage, after a few seconds of attempts. A server that gave no answer several times
    in a row is asked again after a minute: until then its files are errors at once.
    """

    budget_sec = 5.0

    def __init__(self, scheme: str, options: Mapping[str, Any] | None = None):
        """Connects to nothing yet.

        Args:
            scheme: of the addresses.
            options: those of fsspec's HTTPFileSystem, and `requests_timeout`, the limit for one request in seconds.
        """
        rest = dict(options or {})
        self._request_sec = float(rest.pop("requests_timeout", REQUEST_SEC))
        self._silent: dict[str, tuple[int, float]] = {}  # by server: requests without an answer, time of the last one
        self._downloads = _Downloads(scheme, self._request_sec, rest)
        super().__init__(scheme, rest)

    def client_options(self) -> Mapping[str, Any]:
        import aiohttp

        return {"timeout": aiohttp.ClientTimeout(total=self._request_sec), **super().client_options()}

    def download(self, uri: str, path: str) -> None:
        """Copies a file of any size to the local `path`, over any file there: only silence is limited in time."""
        self._downloads.download(uri, path)

    def _retry(self, uri: str, operate: Callable[[], _T], min_attempts: int = 1) -> _T:
        server = urllib.parse.urlsplit(uri).netloc
        number, last = self._silent.get(server, (0, 0.0))
        if number >= _MAX_SILENT and time.monotonic() < last + _LEFT_ALONE_SEC:
            raise _timeout(f"{uri}: its server gave no answer to {number} requests before, and was not asked again")
        try:
            result = super()._retry(uri, operate, min_attempts)
        except interface.RequestError as e:
            if e.cause == "timeout":
                self._silent[server] = self._silent.get(server, (0, 0.0))[0] + 1, time.monotonic()
            else:
                self._silent.pop(server, None)
            raise
        self._silent.pop(server, None)
        return result

    def _stat(self, uri: str) -> interface.Entry:
        try:
            return super()._stat(uri)
        except FileNotFoundError as e:  # fsspec raises it for any failure
            raise e.__cause__ or e from None

    def lasting_error(self, error: Exception, uri: str) -> Exception | None:
        import aiohttp

        if isinstance(error, aiohttp.ClientResponseError):
            if error.status in _GONE:
                return FileNotFoundError(errno.ENOENT, f"there is no {uri}")
            is_temporary = error.status in _TRY_AGAIN or error.status >= 500
            return None if is_temporary else _request_error(error, uri)
        if isinstance(error, (aiohttp.InvalidURL, aiohttp.ClientSSLError)):
            return _request_error(error, uri)
        return super().lasting_error(error, uri)

    def final_error(self, error: Exception, uri: str, seconds: float) -> OSError:
        if isinstance(error, asyncio.TimeoutError):
            return _timeout(f"{uri}: no whole answer within {self._request_sec:g} s")
        return _request_error(error, uri)


class _Downloads(fsspec_files.FsspecStorage):
    def __init__(self, scheme: str, silence_sec: float, options: Mapping[str, Any]):
        self._silence_sec = silence_sec
        super().__init__(scheme, options)

    def client_options(self) -> Mapping[str, Any]:
        import aiohttp

        silence = aiohttp.ClientTimeout(total=None, sock_connect=self._silence_sec, sock_read=self._silence_sec)
        return {"timeout": silence, **super().client_options()}


def _timeout(detail: str) -> interface.RequestError:
    found = interface.RequestError(errno.ETIMEDOUT, detail)
    found.cause = "timeout"
    return found


def _request_error(error: Exception, uri: str) -> interface.RequestError:
    import aiohttp

    cause, detail = "", str(error) or type(error).__name__
    if isinstance(error, aiohttp.ClientResponseError):
        status, detail = error.status, f"{error.status} {error.message}".rstrip()
        if status >= 400:
            cause = "http_403" if status in _DENIED else "http_4xx" if status < 500 else "http_5xx"
    elif isinstance(error, aiohttp.ClientConnectorDNSError):
        cause, detail = "dns", f"the name of its server has no address ({error.os_error.strerror})"
    found = interface.RequestError(errno.EIO, f"{uri}: {detail}")
    found.cause = cause
    return found
