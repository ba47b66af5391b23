"""S3 and servers that speak its protocol, through s3fs: pages of a folder, conditional writes, one request an image.

s3fs has the clients, credentials and errors. Its own listing holds a whole folder in memory, and its writes take no
condition but that a file is new: these requests are sent through its `call_s3`.
"""

from __future__ import annotations

import errno
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

from imagebeam.storage import fsspec_files, interface, remote

_HIGHEST, _BEFORE_SURROGATES = "\U0010ffff", 0xD7FF
_CONFLICT, _FAILED = 409, 412  # status codes: another conditional write at this moment; a condition that does not hold
_UNKNOWN = (405, 501, "InvalidArgument", "NotImplemented")  # of servers that refuse a condition instead of ignoring it


class S3Storage(fsspec_files.FsspecStorage):
    """s3://BUCKET/NAME. A directory is the beginning of a name, up to a slash."""

    def rebuild(self) -> None:
        super().rebuild()
        self._keeps_conditions: bool | None = None  # not known before the first write under a condition
        self.swaps_atomically = self.replaces_in_place = True  # until that shows something else

    def lasting_error(self, error: Exception, uri: str) -> Exception | None:
        status = _status_of(error)
        if status == _FAILED:
            return interface.taken(uri)
        if status == 404 and (_code_of(error) == "NoSuchBucket" or not self._split(uri)[1]):
            return FileNotFoundError(errno.ENOENT, f"there is no bucket {self._split(uri)[0]!r}")
        return super().lasting_error(error, uri)

    def list_range(self, uri: str, start: str, end: str) -> Iterator[list[interface.Entry]]:
        """Yields the entries of a directory from the name `start` to before `end`: see `interface.RangeLister`."""
        pages = self._list(uri, start, end)
        while (page := self._retry(uri, lambda: next(pages, None))) is not None:
            yield page

    def first_name(self, uri: str, start: str, end: str) -> str | None:
        """Returns the first name from `start` to before `end`: see `interface.RangeLister`."""
        pages = self._list(uri, start, end, MaxKeys=1)
        while (page := self._retry(uri, lambda: next(pages, None))) is not None:
            for entry in page:
                return f"{entry.name}/" if entry.kind != interface.FILE else entry.name
        return None

    def replace(self, uri: str, old: bytes, new: bytes) -> bool:
        """Replaces a small object if it holds `old`; returns whether this call did it."""
        if not self._retry(uri, lambda: self._has_conditions(uri)):
            return super().replace(uri, old, new)
        try:
            found, answer = self._retry(uri, lambda: self._get(uri))
            if found != old:
                return False
            self._retry(uri, lambda: self._put_if(uri, new, IfMatch=answer["ETag"]))
        except FileNotFoundError:
            return False
        except FileExistsError:
            return self._holds(uri, new)  # an earlier attempt may have succeeded, and the response was lost
        return True

    def _list(self, uri: str, start: str = "", end: str = "", **limits: Any) -> Iterator[list[interface.Entry]]:
        bucket, name = self._split(uri)
        prefix = f"{name}/" if name else ""
        after = {"StartAfter": prefix + _before(start)} if start else {}
        is_first = True

        def request(token: str) -> tuple[list[interface.Entry], str]:
            nonlocal is_first
            where = {"ContinuationToken": token} if token else after
            answer = self._call(uri, "list_objects_v2", Bucket=bucket, Prefix=prefix, Delimiter="/", **where, **limits)
            objects = [each for each in answer.get("Contents", ()) if each["Key"] != prefix]  # only marks a folder
            folders = [each["Prefix"] for each in answer.get("CommonPrefixes", ())]
            if is_first and not start and not objects and not folders and name and not answer.get("Contents"):
                self._stat(uri)  # raises if there is nothing
            is_first = False
            entries = [self._entry(_as_file(each)) for each in objects if _is_in(each["Key"], prefix, start, end)]
            for folder in (each for each in folders if _is_in(each, prefix, start, end)):
                last = folder[len(prefix) : -1]  # empty where two slashes follow each other
                kind = interface.DIRECTORY if last else interface.SPECIAL
                entries.append(interface.Entry(last, kind, 0, 0, interface.identity_of(f"s3://{bucket}/{folder}")))
            names = [*folders[-1:], *(each["Key"] for each in objects[-1:])]
            is_over = bool(end) and any(not _is_in(each, prefix, "", end) for each in names)
            return entries, "" if is_over else answer.get("NextContinuationToken", "")

        return remote.Pages(request)

    def _read(self, uri: str, offset: int, length: int, version: int) -> bytes:
        if length == 0:
            return b""
        end = offset + length - 1 if length > 0 else ""
        whole = not offset and length < 0
        try:
            data, answer = self._get(uri, **({} if whole else {"Range": f"bytes={offset}-{end}"}))
        except OSError as e:
            if _status_of(e) == 416:  # an empty object, or beyond its end
                return b""
            raise
        if version and self._entry(_as_file({"Key": uri, "Size": 0, **answer})).version != version:
            raise interface.ChangedError(errno.ESTALE, f"{uri} was replaced")
        return data

    def _get(self, uri: str, **options: Any) -> tuple[bytes, Mapping[str, Any]]:
        """Returns the bytes of an object, or a range of them, and what the server tells of it, by one request."""
        from fsspec import asyn

        bucket, key = self._split(uri)
        answer = self._call(uri, "get_object", Bucket=bucket, Key=key, **options)
        return asyn.sync(self.filesystem(uri).loop, answer["Body"].read), answer

    def _put(self, path: str, uri: str, must_be_new: bool) -> None:
        if not must_be_new or not self._has_conditions(uri):
            super()._put(path, uri, must_be_new)
            return
        with open(path, "rb") as file:
            self._put_if(uri, file.read(), IfNoneMatch="*")

    def _move(self, source: str, target: str, must_be_new: bool) -> None:
        if not must_be_new or not self._has_conditions(target):
            super()._move(source, target, must_be_new)
            return
        self._put_if(target, self._get(source)[0], IfNoneMatch="*")  # small files alone are moved so
        self._remove(source)

    def _put_if(self, uri: str, data: bytes, **condition: str) -> None:
        bucket, key = self._split(uri)
        self._call(uri, "put_object", Bucket=bucket, Key=key, Body=data, **condition)

    def _has_conditions(self, uri: str) -> bool:
        """Returns whether the server keeps the conditions of a write; asks once for an object that is not there.

        A server without conditions ignores them and writes the object, which is removed again.
        """
        if self._keeps_conditions is None:
            bucket, key = self._split(f"{uri}.tmp-{secrets.token_hex(4)}")
            try:
                self._call(uri, "put_object", Bucket=bucket, Key=key, Body=b"", IfMatch='"0"')
            except OSError as e:
                status, code = _status_of(e), _code_of(e)
                keeps = status in (404, _FAILED) and code != "NoSuchBucket"
                if not keeps and status not in _UNKNOWN and code not in _UNKNOWN:
                    raise  # any other 400, such as ExpiredToken, says nothing about conditions
                self._keeps_conditions = keeps
            else:
                self._call(uri, "delete_object", Bucket=bucket, Key=key)
                self._keeps_conditions = False
            self.swaps_atomically = self.replaces_in_place = self._keeps_conditions
        return self._keeps_conditions

    def _split(self, uri: str) -> tuple[str, str]:
        """Returns the bucket and the object's name, which is "" for the bucket itself."""
        bucket, _, name = uri.partition("://")[2].partition("/")
        return bucket, name

    def _call(self, uri: str, method: str, **options: Any) -> Any:
        """Sends one request of S3, by its name in boto3, and returns the answer."""
        filesystem = self.filesystem(uri)
        return filesystem.call_s3(method, filesystem.kwargs, **filesystem.req_kw, **options)


def _as_file(found: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": found["Key"], "type": "file", "size": found["Size"], "LastModified": found["LastModified"]}


def _is_in(name: str, prefix: str, start: str, end: str) -> bool:
    """Returns whether the name of an object, or that of a folder with its slash, is in a range of names."""
    rest = name[len(prefix) :]
    return rest >= start and (not end or rest < end)


def _before(start: str) -> str:
    """Returns a text below `start` with hardly a name between the two: a listing begins after a name, not with it."""
    last = ord(start[-1]) - 1
    if last < 0:
        return start[:-1]
    return f"{start[:-1]}{chr(_BEFORE_SURROGATES if 0xD800 <= last < 0xE000 else last)}{_HIGHEST}"


def _answer_of(error: BaseException) -> Mapping[str, Any]:
    """Returns what the server answered to a request that failed; s3fs makes an OSError of botocore's error."""
    return getattr(error, "response", None) or getattr(error.__cause__, "response", None) or {}


def _status_of(error: BaseException) -> int:
    return int(_answer_of(error).get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _code_of(error: BaseException) -> str:
    return str(_answer_of(error).get("Error", {}).get("Code", ""))
