"""Google Cloud Storage, through google-cloud-storage: one request for a small object, generations pinned."""

from __future__ import annotations

import base64
import contextlib
import errno
import functools
import os
from collections.abc import Iterator
from concurrent import futures
from typing import Any

from imagebeam import errors, storage
from imagebeam.storage import remote

_PAGE_OBJECTS = 1000
_TIMEOUT_SEC = (5.0, 60.0)  # to connect, and between two pieces of an answer
_CONNECTIONS = 64
_TRANSIENT = (408, 429)  # of the errors that are said to be the client's
_DELETES_AT_ONCE = 16
_LISTED = "items(name,size,generation),prefixes,nextPageToken"


class GcsStorage(remote.RemoteStorage):
    """gs://BUCKET/NAME. A directory is the beginning of a name, up to a slash."""

    def lasting_error(self, error: Exception, uri: str) -> Exception | None:
        from google.api_core import exceptions
        from google.auth import exceptions as auth_exceptions

        detail = getattr(error, "message", None) or str(error)
        if isinstance(error, exceptions.NotFound):
            bucket, name = _parse(uri)
            is_bucket = not name or "bucket does not exist" in detail
            what = f"there is no bucket {bucket!r}" if is_bucket else f"there is no {uri}"
            return FileNotFoundError(errno.ENOENT, what)
        if isinstance(error, (exceptions.Forbidden, exceptions.Unauthorized)):
            return remote.denied(uri, detail)
        if isinstance(error, exceptions.PreconditionFailed):
            return remote.taken(uri)
        is_refused = isinstance(error, auth_exceptions.RefreshError) and not error.retryable
        if is_refused or isinstance(error, auth_exceptions.DefaultCredentialsError):
            reason = "credentials were refused" if is_refused else "no credentials"
            return errors.ConfigError(
                f"{uri}: {reason} for Google Cloud: gcloud auth application-default login, or set "
                "GOOGLE_APPLICATION_CREDENTIALS"
            )
        if isinstance(error, exceptions.ClientError) and error.code not in _TRANSIENT:
            return OSError(errno.EINVAL, f"{uri}: {detail}")
        return None

    def _list(self, uri: str) -> Iterator[list[storage.Entry]]:
        bucket, name = _parse(uri)
        return _Pages(bucket, f"{name}/" if name else "")

    def _stat(self, uri: str) -> storage.Entry:
        bucket, name = _parse(uri)
        last = name.rpartition("/")[2]
        blob = _client().bucket(bucket).get_blob(name, retry=None, timeout=_TIMEOUT_SEC) if name else None
        if blob is not None:
            return storage.Entry(last, storage.FILE, blob.size, blob.generation, (0, 0))
        below = _list_blobs(bucket, f"{name}/" if name else "", max_results=1)
        if not list(below) and name:  # a bucket may be empty; that it is there is seen by the answer
            raise FileNotFoundError(errno.ENOENT, f"there is no {uri}")
        return storage.Entry(last, storage.DIRECTORY, 0, 0, remote.identity_of(uri))

    def _read(self, uri: str, offset: int, length: int, version: int) -> bytes:
        from google.api_core import exceptions

        if length == 0:
            return b""
        blob = _blob(uri, version or None)
        end = offset + length - 1 if length > 0 else None
        whole = offset == 0 and end is None
        try:
            return blob.download_as_bytes(
                start=None if whole else offset,
                end=end,
                checksum="crc32c" if whole else None,
                retry=None,
                timeout=_TIMEOUT_SEC,
            )
        except exceptions.RequestRangeNotSatisfiable:
            return b""  # an empty object, or beyond its end
        except exceptions.NotFound:
            if version and _blob(uri).exists(retry=None, timeout=_TIMEOUT_SEC):
                raise storage.ChangedError(errno.ESTALE, f"{uri} was replaced") from None
            raise

    def _put(self, path: str, uri: str, must_be_new: bool) -> None:
        _blob(uri).upload_from_filename(
            path,
            content_type="application/octet-stream",
            checksum="crc32c",
            if_generation_match=0 if must_be_new else None,
            retry=None,
            timeout=_TIMEOUT_SEC,
        )

    def _checksum(self, uri: str) -> tuple[int, int]:
        blob = _blob(uri)
        blob.reload(retry=None, timeout=_TIMEOUT_SEC)
        return int(blob.size), int.from_bytes(base64.b64decode(blob.crc32c), "big")

    def _move(self, source: str, target: str, must_be_new: bool) -> None:
        origin, copy = _blob(source), _blob(target)
        token = None
        while True:
            token, _, _ = copy.rewrite(
                origin, token, if_generation_match=0 if must_be_new else None, retry=None, timeout=_TIMEOUT_SEC
            )
            if token is None:
                break
        self._remove(source)

    def _remove(self, uri: str) -> None:
        from google.api_core import exceptions

        with contextlib.suppress(exceptions.NotFound):
            _blob(uri).delete(retry=None, timeout=_TIMEOUT_SEC)

    def _remove_tree(self, uri: str) -> None:
        bucket, name = _parse(uri)
        found = _list_blobs(bucket, f"{name}/")
        with futures.ThreadPoolExecutor(_DELETES_AT_ONCE) as threads:
            list(threads.map(lambda blob: self.remove(f"gs://{bucket}/{blob.name}"), found))


class _Pages(Iterator[list[storage.Entry]]):
    """Pages of a directory; one that fails can be asked for again."""

    def __init__(self, bucket: str, prefix: str):
        self._bucket = bucket
        self._prefix = prefix
        self._token: str | None = None
        self._is_over = False

    def __next__(self) -> list[storage.Entry]:
        if self._is_over:
            raise StopIteration
        listed = _list_blobs(self._bucket, self._prefix, delimiter="/", page_token=self._token)
        page = next(listed.pages)
        entries = [
            storage.Entry(blob.name[len(self._prefix) :], storage.FILE, blob.size, blob.generation, (0, 0))
            for blob in page
            if blob.name != self._prefix  # a directory that some tools mark with an empty object
        ]
        for prefix in page.prefixes:
            name = prefix[len(self._prefix) : -1]  # empty where two slashes stand side by side
            identity = remote.identity_of(f"gs://{self._bucket}/{prefix}")
            entries.append(storage.Entry(name, storage.DIRECTORY if name else storage.SPECIAL, 0, 0, identity))
        self._token = listed.next_page_token
        self._is_over = self._token is None
        return entries


def _list_blobs(bucket: str, prefix: str, **options: Any) -> Any:
    return _client().list_blobs(
        bucket, prefix=prefix, fields=_LISTED, page_size=_PAGE_OBJECTS, retry=None, timeout=_TIMEOUT_SEC, **options
    )


def _parse(uri: str) -> tuple[str, str]:
    """Bucket and name; the name of the bucket itself is "".

    Raises:
        ConfigError: if there is no bucket in the address.
    """
    bucket, _, name = uri.partition("://")[2].partition("/")
    if not bucket:
        raise errors.ConfigError(f"address {uri!r} names no bucket: write gs://BUCKET/FOLDER")
    return bucket, name


def _blob(uri: str, generation: int | None = None) -> Any:
    bucket, name = _parse(uri)
    return _client().bucket(bucket).blob(name, generation=generation)


@functools.cache
def _client() -> Any:
    """One client for each process, with room for many connections."""
    try:
        import requests.adapters
        from google.cloud import storage as gcs
    except ModuleNotFoundError as e:
        raise errors.ConfigError(f"{e.name} is not installed, gs:// needs it: pip install 'imagebeam[gcs]'") from e
    os.environ.setdefault("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")  # else every thread asks for it
    client = gcs.Client()
    adapter = requests.adapters.HTTPAdapter(pool_connections=_CONNECTIONS, pool_maxsize=_CONNECTIONS)
    for scheme in ("https://", "http://"):
        client._http.mount(scheme, adapter)  # as the documentation of google-cloud-storage tells
    return client


os.register_at_fork(after_in_child=_client.cache_clear)  # connections are not to be shared
