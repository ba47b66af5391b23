"""Files at http:// and https://, through fsspec with a time limit for each request."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from imagebeam.storage import fsspec_files, interface
from imagebeam.version import __version__

REQUEST_SEC = 20.0  # for a whole request: its connection, its headers and its body
USER_AGENT = f"imagebeam/{__version__}"
ROBOTS_RULES = frozenset({"noai", "noimageai", "noindex", "noimageindex", "none"})  # in the header X-Robots-Tag
_MAX_SILENT = 3  # requests in a row without an answer, after which a server is left alone
_LEFT_ALONE_SEC = 60.0
_TRY_AGAIN = frozenset({408, 425, 429})
_GONE = frozenset({404, 410})
_DENIED = frozenset({401, 403})
_RULES_WITH_VALUES = frozenset({"unavailable_after", "max-snippet", "max-image-preview", "max-video-preview"})

_T = TypeVar("_T")


class HttpStorage(fsspec_files.FsspecStorage):
    """Files of web servers, to read.

    A table may name thousands of servers, some of which are down for good. So a server that fails is an error of the
    file (RequestError), not of the storage, after a few seconds of attempts. A server that gave no answer several times
    in a row is asked again after a minute: until then its files are errors at once.
    """

    budget_sec = 5.0
    remembers_outages = False  # a server that sends errors for one file may have the next one

    def __init__(self, scheme: str, options: Mapping[str, Any] | None = None):
        """Connects to nothing yet.

        Args:
            scheme: of the addresses.
            options: those of fsspec's HTTPFileSystem, and `requests_timeout`, the limit for one request in seconds;
                `per_host`, the largest number of files read at once from one server; `max_bytes`, the largest size of
                a file that is read whole; `respect_robots`, whether a file is refused whose server says by the header
                X-Robots-Tag that it is not to be indexed, or not to train models with.
        """
        rest = dict(options or {})
        rest["headers"] = {"User-Agent": USER_AGENT, **rest.get("headers", {})}
        self._request_sec = float(rest.pop("requests_timeout", REQUEST_SEC))
        self._per_host: int | None = rest.pop("per_host", None)
        self._max_bytes: int | None = rest.pop("max_bytes", None)
        self._robot = rest["headers"]["User-Agent"].partition("/")[0] if rest.pop("respect_robots", False) else ""
        self._silent: dict[str, tuple[int, float]] = {}  # by server: requests without an answer, time of the last one
        self._downloads = _Downloads(scheme, self._request_sec, rest)
        super().__init__(scheme, rest)

    def rebuild(self) -> None:
        super().rebuild()
        self._slots = _Slots(self._per_host)

    def filesystem(self, uri: str) -> Any:
        """Returns one file system for all servers: a table may name a million of them."""
        return super().filesystem(f"{interface.scheme_of(uri)}://")

    def client_options(self) -> Mapping[str, Any]:
        import aiohttp

        return {"timeout": aiohttp.ClientTimeout(total=self._request_sec), **super().client_options()}

    def _read_range(self, uri: str, offset: int, end: int | None) -> bytes:
        import fsspec.asyn

        with self._slots.take(_server_of(uri)):
            if offset or end is not None:
                return super()._read_range(uri, offset, end)
            filesystem = self.filesystem(uri)
            data: bytes = fsspec.asyn.sync(filesystem.loop, self._get, filesystem, uri)
            return data

    async def _get(self, filesystem: Any, uri: str) -> bytes:
        """Returns a whole file; reads no more of one that is refused for its header or its size."""
        session = await filesystem.set_session()
        async with session.get(filesystem.encode_url(uri), **filesystem.kwargs) as response:
            response.raise_for_status()
            if self._robot and (rule := _find_rule(response.headers.getall("X-Robots-Tag", ()), self._robot)):
                raise _refused(uri, "robots", f"its server says `X-Robots-Tag: {rule}`")
            data = bytearray()
            async for part in response.content.iter_any():
                data += part
                if self._max_bytes is not None and len(data) > self._max_bytes:
                    raise _refused(uri, "too_large", f"more than {self._max_bytes:,} bytes")
            return bytes(data)

    def download(self, uri: str, path: str) -> None:
        """Copies a file of any size to the local `path`, over any file there: only silence is limited in time."""
        self._downloads.download(uri, path)

    def _retry(self, uri: str, operate: Callable[[], _T], min_attempts: int = 1) -> _T:
        server = _server_of(uri)
        number, last = self._silent.get(server, (0, 0.0))
        if number >= _MAX_SILENT and time.monotonic() < last + _LEFT_ALONE_SEC:
            raise _refused(
                uri, "timeout", f"its server gave no answer to {number} requests before, and was not asked again"
            )
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

        if isinstance(error, aiohttp.ClientResponseError) and not _is_broken(error):
            if error.status in _GONE:
                return FileNotFoundError(errno.ENOENT, f"there is no {uri}")
            is_temporary = error.status in _TRY_AGAIN or error.status >= 500
            return None if is_temporary else _request_error(error, uri)
        # An address that is none is a ValueError.
        if isinstance(error, (ValueError, aiohttp.RedirectClientError, aiohttp.ClientSSLError)):
            return _request_error(error, uri)
        return super().lasting_error(error, uri)

    def final_error(self, error: Exception, uri: str, seconds: float) -> OSError:
        if isinstance(error, asyncio.TimeoutError):
            return _refused(uri, "timeout", f"no whole answer within {self._request_sec:g} s", errno.ETIMEDOUT)
        return _request_error(error, uri)


class _Downloads(fsspec_files.FsspecStorage):
    """The same files with a limit on silence alone: a large file may take longer than a request."""

    remembers_outages = False

    def __init__(self, scheme: str, silence_sec: float, options: Mapping[str, Any]):
        self._silence_sec = silence_sec
        super().__init__(scheme, options)

    def client_options(self) -> Mapping[str, Any]:
        import aiohttp

        silence = aiohttp.ClientTimeout(total=None, sock_connect=self._silence_sec, sock_read=self._silence_sec)
        return {"timeout": silence, **super().client_options()}


def _server_of(uri: str) -> str:
    try:
        return urllib.parse.urlsplit(uri).netloc
    except ValueError as e:
        raise _refused(uri, "", f"is no address ({e})", errno.EINVAL) from e


def _is_broken(error: Exception) -> bool:
    """Returns whether an answer is no HTTP, such as the rest of one before: aiohttp gives it the status 400."""
    from aiohttp import http_exceptions

    return isinstance(error.__cause__, http_exceptions.HttpProcessingError)


class _Slots:
    """Limits the number of files that are read at once from each server. Thread-safe."""

    def __init__(self, limit: int | None):
        self._limit = limit
        self._lock = threading.Lock()
        self._taken: dict[str, tuple[threading.Semaphore, list[None]]] = {}  # an entry of the list for each user

    @contextlib.contextmanager
    def take(self, server: str) -> Iterator[None]:
        """Waits until a file may be read from a server."""
        if self._limit is None:
            yield
            return
        with self._lock:
            slots, users = self._taken.setdefault(server, (threading.Semaphore(self._limit), []))
            users.append(None)
        try:
            with slots:
                yield
        finally:
            with self._lock:
                users.pop()
                if not users:
                    del self._taken[server]


def _find_rule(headers: Iterable[str], robot: str) -> str:
    """Returns the first rule of the headers `X-Robots-Tag` that forbids `robot` to take a file; "" if there is none.

    Source: developers.google.com/search/docs/crawling-indexing/robots-meta-tag; DeviantArt added noai and noimageai.
    """
    for header in headers:
        name, colon, rest = header.lower().partition(":")
        if colon and "," not in name and name.strip() not in _RULES_WITH_VALUES:  # rules for one robot
            if name.strip() != robot.lower():
                continue
            header = rest
        for rule in header.lower().split(","):
            if rule.strip() in ROBOTS_RULES:
                return rule.strip()
    return ""


def _refused(uri: str, cause: str, detail: str, number: int = errno.EACCES) -> interface.RequestError:
    found = interface.RequestError(number, f"{uri}: {detail}")
    found.cause = cause
    return found


def _request_error(error: Exception, uri: str) -> interface.RequestError:
    import aiohttp

    cause, detail = "", " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, aiohttp.TooManyRedirects):
        detail = "it is redirected again and again"
    elif _is_broken(error):
        detail = f"its server answers with what is no HTTP ({detail})"
    elif isinstance(error, aiohttp.ClientResponseError):
        status, detail = error.status, f"{error.status} {error.message}".rstrip()
        if status >= 400:
            cause = "http_403" if status in _DENIED else "http_4xx" if status < 500 else "http_5xx"
    elif isinstance(error, aiohttp.ClientConnectorDNSError):
        cause, detail = "dns", f"the name of its server has no address ({error.os_error.strerror})"
    elif isinstance(error, aiohttp.ClientConnectorError):
        number = error.os_error.errno
        detail = f"its server cannot be reached ({os.strerror(number) if number else error.os_error})"
    elif isinstance(error, aiohttp.RedirectClientError):
        detail = f"it is redirected to {detail}"
    elif isinstance(error, ValueError):  # aiohttp's InvalidURL, or one of urllib or yarl
        detail = "is no address of a web server"
    return _refused(uri, cause, detail, errno.EIO)
