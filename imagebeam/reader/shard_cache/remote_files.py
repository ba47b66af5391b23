"""The files of a dataset at any address that fsspec reads."""

from __future__ import annotations

import errno
import os
import posixpath
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from imagebeam import catalog as catalog_lib
from imagebeam import errors, records, storage
from imagebeam.storage import fsspec_files

_T = TypeVar("_T")

_CHECK_BYTES = 1 << 20
_LASTING = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError, NotImplementedError)
_OF_THE_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
_PACKAGES = {
    "gs": "'imagebeam[gcs]'",
    "gcs": "'imagebeam[gcs]'",
    "hdfs": "'imagebeam[hdfs]'",
    "webhdfs": "'imagebeam[hdfs]'",
    "s3": "s3fs",
    "s3a": "s3fs",
}


class RemoteFiles:
    """The files of a dataset at its address. What fails is tried again; errors are OSErrors, whatever fsspec raises."""

    def __init__(self, directory: str, storage_options: Mapping[str, Any], retry_waits_sec: Sequence[float]):
        """Opens the file system.

        Raises:
            ConfigError: if the address cannot be read here.
        """
        self._directory = directory
        self._storage_options = dict(storage_options)
        self._retry_waits_sec = tuple(retry_waits_sec)
        self._locate(directory)

    def uri_of(self, name: str) -> str:
        return storage.join(self._directory, name)

    def read(self, uri: str) -> bytes:
        return self._call(uri, lambda filesystem, path: filesystem.cat_file(path))

    def size_of(self, uri: str) -> int:
        return self._call(uri, lambda filesystem, path: int(filesystem.info(path)["size"]))

    def list_sizes(self) -> dict[str, int]:
        """The sizes of the dataset's files by name, of those whose size a listing tells."""
        entries = self._call(self._directory, lambda filesystem, path: filesystem.ls(path, detail=True))
        return {posixpath.basename(each["name"]): each["size"] for each in entries if each.get("size") is not None}

    def download(self, shard: catalog_lib.Shard, target: str) -> None:
        """Writes a shard to the local file `target`.

        Raises:
            ShardError: if it cannot be had, or is not what the catalog says, each time it was tried.
            OSError: if the local disk fails.
        """
        uri = self.uri_of(shard.name)

        def bring(filesystem: Any, path: str) -> None:
            filesystem.get_file(path, target)
            self._check(shard, target)

        try:
            self._call(uri, bring)
        except OSError as e:
            if e.filename == target or e.errno in _OF_THE_DISK:
                raise
            if isinstance(e, FileNotFoundError):
                raise errors.ShardError(f"shard {uri} is missing ({e}): run imagebeam verify, convert again") from e
            if isinstance(e, PermissionError):
                raise errors.ShardError(f"shard {uri} cannot be read ({e}): grant read access to it") from e
            raise errors.ShardError(
                f"shard {uri} cannot be downloaded in {len(self._retry_waits_sec) + 1} attempts ({e}): see that its "
                "address can be reached from here, and run again; what was downloaded is kept"
            ) from e

    def _check(self, shard: catalog_lib.Shard, path: str) -> None:
        crc = 0
        with open(path, "rb", buffering=0) as file:
            os.fsync(file.fileno())  # after a loss of power, too, what has the shard's name is whole
            while chunk := file.read(_CHECK_BYTES):
                crc = records.extend_crc(crc, chunk)
            num_bytes = file.tell()
        if (num_bytes, crc) != (shard.bytes, shard.crc32c):
            raise errors.ShardError(
                f"shard {self.uri_of(shard.name)} comes as {num_bytes:,} bytes with crc32c {crc:08x}, the catalog says "
                f"{shard.bytes:,} bytes with {shard.crc32c:08x}: it was cut short or replaced; "
                "run imagebeam verify, convert again with --overwrite"
            )

    def _call(self, uri: str, operate: Callable[[Any, str], _T]) -> _T:
        """What `operate` returns of a file system and a path in it."""
        waits = iter(self._retry_waits_sec)
        while True:
            filesystem, path = self._locate(uri)
            try:
                filesystem.invalidate_cache()  # of listings: a dataset may have been written since
                return operate(filesystem, path)
            # Every file system raises its client's own errors: aiohttp's, botocore's, HttpError of gcsfs, RuntimeError
            # of WebHDFS. Nothing but fsspec and the check of what came runs in here.
            except Exception as e:
                if isinstance(e, _LASTING) or (isinstance(e, OSError) and e.errno in _OF_THE_DISK):
                    raise
                wait = next(waits, None)
                if wait is None and isinstance(e, errors.ShardError):
                    raise
                if wait is None:
                    raise OSError(f"{type(e).__name__}: {e}") from e
            time.sleep(wait)

    def _locate(self, uri: str) -> tuple[Any, str]:
        """The file system of an address, which fsspec keeps one of for each process or thread, and the path in it."""
        scheme = storage.scheme_of(uri)
        install = f"pip install {_PACKAGES.get(scheme, 'fsspec')}"
        try:
            import fsspec.core
        except ModuleNotFoundError as e:
            raise errors.ConfigError(f"{uri}: fsspec is not installed, which reads {scheme}://: {install}") from e
        try:
            return fsspec.core.url_to_fs(_with_webhdfs(uri), **self._storage_options)
        except ImportError as e:
            remedy = install if scheme in _PACKAGES else f"install the package that reads {scheme}://"
            raise errors.ConfigError(f"{uri}: a package that reads {scheme}:// is missing ({e}): {remedy}") from e
        except (OSError, RuntimeError, TypeError, ValueError) as e:
            remedy = "check the address and the package that reads it"
            if scheme == "hdfs":
                remedy = "it needs Java and Hadoop's libraries here; hdfs://NAMENODE:9870/... needs neither"
            reason = str(e).partition("\n")[0]
            raise errors.ConfigError(f"{uri}: fsspec cannot open {scheme}:// here ({reason}): {remedy}") from e


def _with_webhdfs(uri: str) -> str:
    """An address of HDFS with a port as fsspec knows it; without one it is left to fsspec, and Hadoop's libraries."""
    if storage.scheme_of(uri) != "hdfs":
        return uri
    try:
        host, port, user, path = fsspec_files.parse_hdfs(uri)
    except errors.ConfigError:
        return uri
    return f"webhdfs://{user}@{host}:{port}{path}"
