"""Reads the images of a shard in order, with a bounded number of reads and bytes in flight.

Not built on `concurrency.map_ahead`: here the limit is in bytes as well, local files are opened ahead without threads,
and one shard may mix both kinds of files.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import hashlib
import os
import resource
import stat
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent import futures
from typing import Any, ClassVar, NamedTuple, TypeAlias, cast

from imagebeam import errors, storage
from imagebeam.storage import local
from imagebeam.transforms import elements
from imagebeam.transforms.images import structure
from imagebeam.transforms.packed import packed_file, parquet_content, unpacked_content

MAX_READS = 16  # local files opened ahead on a cold disk: the kernel reads them while earlier ones are encoded
_CAN_ADVISE = hasattr(os, "posix_fadvise")
_THREAD = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)  # the latter on macOS
_SLOW_SEC, _SLOW_SEC_PER_BYTE = 60e-6, 0.5e-9  # a slower read did not come from the page cache
# Of files whose sizes are unknown so many times `requests` may be waiting to be taken: web servers that answer after
# many seconds must not hold up those that answer at once.
_WAITING = 64
_ANNOUNCED = 256  # files opened ahead and announced after a slow read
_MAX_SHARED = 2 * MAX_READS  # open files that hold many images each, so that none is opened once for each image
# A new listing makes another dataset: without --overwrite it is refused once this one is committed.
_LIST_AGAIN = "to take it in, run the same convert command again with --overwrite"


@dataclasses.dataclass(frozen=True)
class OwnScheme:
    """A scheme whose addresses a source of the user reads: as much of a storage as is used here."""

    is_local: ClassVar[bool] = False

    scheme: str
    read_whole: Callable[[str], bytes]

    def read(self, uri: str, offset: int, length: int, size: int, version: int) -> bytes:
        """Returns the bytes of an image, or a range of them; nothing tells their version."""
        data = self.read_whole(uri)
        return data[offset : None if length < 0 else offset + length]


class ReadAhead(NamedTuple):
    """Limits of reading ahead, and where the sizes of the files come from."""

    requests: int  # in flight at once, over a network
    num_bytes: int  # total size of images requested and not taken yet; the last one may exceed it
    size_column: str = ""  # column of a table whose sizes are trusted; "" if the files were listed
    web: tuple[tuple[str, Any], ...] = ()  # options of the storage of images at http:// and https://
    own: OwnScheme | None = None  # of images whose bytes the source reads itself

    def storage_of(self, uri: str) -> storage.Storage:
        """Returns the storage that an image is read from."""
        if self.own is not None and storage.scheme_of(uri) == self.own.scheme:
            return cast(storage.Storage, self.own)
        return storage.storage_of(uri, dict(self.web) if self.web and uri.startswith(_WEB) else None)


_WEB = ("http://", "https://")
READ_AHEAD = ReadAhead(32, 64 << 20)


def _read_file(path: str, size: int, version: int) -> bytes | None:
    """Returns None: the C extension was not built."""
    return None


def _read_part(descriptor: int, offset: int, length: int, version: int) -> bytes | None:
    """Returns None: the C extension was not built."""
    return None


with contextlib.suppress(ImportError):
    from imagebeam._writer import read_file as _read_file
    from imagebeam._writer import read_part as _read_part


class ReadError(OSError):
    """One image cannot be read. Others can.

    Attributes:
        num_bytes: size of the file if it is not the expected one; otherwise -1.
    """

    def __init__(self, reason: elements.Reason, detail: str, num_bytes: int = -1):
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.num_bytes = num_bytes

    def explain(self, ref: elements.ImageRef, size_column: str) -> str:
        """Returns the detail; `size_column` is that of `ReadAhead`, if the size of `ref` is from there."""
        if not size_column or self.num_bytes < 0:
            return self.detail
        return (
            f"has {self.num_bytes:,} bytes, column {size_column!r} of the table says {ref.size:,}; to take it in, "
            "correct the table and run the same convert command again with --overwrite"
        )


Fetched = tuple[elements.ImageRef, bytes | ReadError]
Taken = tuple[elements.ImageRef, elements.Measures | bytes | ReadError]
# (a whole local file) -> its Measures if it was written, or its bytes, and how many seconds it took to read them; None
# if it was not read.
Take: TypeAlias = Callable[[elements.ImageRef], "tuple[elements.Measures | bytes, float] | None"]
# None: one of many images in a shared file.
_Opened: TypeAlias = "int | ReadError | futures.Future[bytes | ReadError] | None"


def fetch(refs: Iterable[elements.ImageRef], limit: ReadAhead = READ_AHEAD) -> Iterator[Fetched]:
    """Yields each reference with its bytes or its ReadError, in the order of `refs`, like `_fetch_ranges`.

    A member of a zip archive (see packed_file) is read as a range of the archive, and unpacked.
    """
    return cast(Iterator[Fetched], fetch_or_take(refs, limit, None))


def fetch_or_take(refs: Iterable[elements.ImageRef], limit: ReadAhead, take: Take | None) -> Iterator[Taken]:
    """Yields each reference like `fetch`, but with its Measures if `take` wrote it.

    `take` is called with whole local files, after all images before were yielded, and while reads are fast.
    """
    members: collections.deque[elements.ImageRef] = collections.deque()  # whose ranges are being read

    def find_ranges() -> Iterator[elements.ImageRef]:
        for ref in refs:
            archive = packed_file.archive_of(ref.uri) if ref.length >= 0 else None
            if archive is None:
                yield ref
            else:
                members.append(ref)
                yield ref._replace(uri=archive, size=ref.length, inside=_IN_ARCHIVE)

    with contextlib.closing(_fetch_ranges(find_ranges(), limit, take)) as ranges:
        for ref, data in ranges:
            if ref.inside is _IN_ARCHIVE:
                ref = members.popleft()
                data = _unpack(ref, data) if isinstance(data, bytes) else data
            if ref.sha256 and isinstance(data, bytes):
                data = _check(ref, data)
            yield ref, data


_IN_ARCHIVE = (-1, -1)  # `ImageRef.inside` of a range that holds a member of an archive


def _unpack(ref: elements.ImageRef, data: bytes) -> bytes | ReadError:
    try:
        return packed_file.unpack_member(data, ref.size)
    except packed_file.BrokenContentError as e:
        return ReadError(e.reason, f"{ref.uri} {e.detail}")


def _check(ref: elements.ImageRef, data: bytes) -> bytes | ReadError:
    """Returns the bytes if they have the SHA-256 that the table gives them."""
    found = hashlib.sha256(data).hexdigest()
    if found == ref.sha256.lower():
        return data
    return ReadError(elements.Reason.BAD_CHECKSUM, f"has the SHA-256 {found}, and the table says {ref.sha256}")


def _fetch_ranges(
    refs: Iterable[elements.ImageRef], limit: ReadAhead, take: Take | None
) -> Generator[Taken, None, None]:
    """Yields each reference with its bytes, its ReadError, or its Measures, in the order of `refs`.

    While reads wait for a disk, local files are opened ahead and announced to the kernel: reads then overlap without
    threads. Handing an image from thread to thread would cost more than reading it from the page cache (13 us for
    110 KB). Files on a network are requested ahead on threads, one for each request in flight. A byte range of a
    packed file (see unpacked_content) is a range of its unpacked content.

    Raises:
        OSError: if the machine or the network failed, not the image: too many open files, no answer.
    """
    ahead: collections.deque[tuple[elements.ImageRef, _Opened]] = collections.deque()
    ahead_bytes, unsized = 0, _Arrived()
    kernel = _Kernel()
    with contextlib.ExitStack() as stack:
        threads: futures.ThreadPoolExecutor | None = None
        shared = stack.enter_context(SharedFiles())
        try:
            for ref in refs:
                if not ahead and (data := _read_now(ref, limit, kernel, shared, take)) is not None:
                    yield ref, data
                    continue
                if ref.length >= 0 and unpacked_content.is_packed(ref.uri):
                    ahead.append((ref, _find_too_large(ref)))
                elif (store := limit.storage_of(ref.uri)).is_local:
                    ahead.append((ref, _open_ahead(ref, kernel, shared)))
                else:
                    if threads is None:
                        threads = stack.enter_context(futures.ThreadPoolExecutor(limit.requests))
                    future = threads.submit(_read_remote, store, ref)
                    if ref.size < 0:
                        future.add_done_callback(unsized.add)
                    ahead.append((ref, future))
                ahead_bytes += _bytes_of(ref)
                max_ahead = kernel.max_reads if threads is None else limit.requests * (_WAITING if ref.size < 0 else 1)
                while len(ahead) >= max_ahead or ahead_bytes + unsized.num_bytes > limit.num_bytes:
                    ref, opened = ahead.popleft()
                    fetched = _finish(ref, opened, kernel, shared)
                    ahead_bytes -= _bytes_of(ref)
                    if ref.size < 0 and isinstance(opened, futures.Future):
                        unsized.remove(opened)
                    yield fetched
            while ahead:
                yield _finish(*ahead.popleft(), kernel, shared)
        finally:
            for _, opened in ahead:
                if isinstance(opened, int):
                    os.close(opened)
                elif isinstance(opened, futures.Future):
                    opened.cancel()


def read_parts(refs: elements.RefTable) -> list[bytes] | None:
    """Returns the bytes of images that are parts of local files, if all are as listed and reads are fast.

    Otherwise returns None: `fetch` finds what is wrong, or reads ahead.
    """
    if not all(map(_is_plain_local, set(refs.uri))):
        return None
    kernel, found, begin = _Kernel(), [], time.perf_counter()
    with SharedFiles() as shared, contextlib.suppress(OSError):
        for uri, offset, length, version in zip(refs.uri, refs.offset, refs.length, refs.version):
            data = _read_part(shared.open(uri), offset, length, version)
            end = time.perf_counter()
            kernel.note_read(end - begin, length)
            if data is None or kernel.to_announce:
                return None
            found.append(data)
            begin = end
    return found if len(found) == len(refs.uri) else None


def _is_plain_local(uri: str) -> bool:
    is_packed = unpacked_content.is_packed(uri) or packed_file.archive_of(uri) is not None
    return storage.storage_of(uri).is_local and not is_packed


class _Arrived:
    """Counts the bytes of files of unknown sizes that have arrived and are not taken yet. Thread-safe."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._lock = threading.Lock()

    def add(self, future: futures.Future[bytes | ReadError]) -> None:
        """Counts a file that has arrived."""
        self._count(future, 1)

    def remove(self, future: futures.Future[bytes | ReadError]) -> None:
        """Counts a file that is taken."""
        self._count(future, -1)

    def _count(self, future: futures.Future[bytes | ReadError], sign: int) -> None:
        data = None if future.cancelled() or future.exception() else future.result()
        if isinstance(data, bytes):
            with self._lock:
                self.num_bytes += sign * len(data)


def _bytes_of(ref: elements.ImageRef) -> int:
    """Returns how much is read for an image; compressed blocks may be larger than it."""
    return max(ref.size, 0) if ref.blocks is None else max(ref.length, ref.blocks.num_bytes)


def _read_now(
    ref: elements.ImageRef, limit: ReadAhead, kernel: _Kernel, shared: SharedFiles, take: Take | None
) -> elements.Measures | bytes | None:
    """Returns the bytes of a local image as it was listed, while reads are fast; else None, and others read it."""
    size = ref.size
    if kernel.to_announce or ref.blocks is not None or size > structure.MAX_IMAGE_BYTES:
        return None
    if ref.length >= 0:
        size, descriptor = ref.length, shared.find(ref.uri)
        if descriptor is None or size > structure.MAX_IMAGE_BYTES:
            return None
        start = time.perf_counter()
        data = _read_part(descriptor, ref.offset, size, ref.version)
    else:
        if ref.offset or size < 0 or not limit.storage_of(ref.uri).is_local:
            return None
        if take is not None and not ref.sha256 and (taken := take(ref)) is not None:
            kernel.note_read(taken[1], size)
            return taken[0]
        start = time.perf_counter()
        data = _read_file(ref.uri, size, ref.version)
    kernel.note_read(time.perf_counter() - start, size)
    return data


def slow_sec(num_bytes: int) -> float:
    """Returns the longest time in seconds that a read from the page cache takes."""
    return _SLOW_SEC + _SLOW_SEC_PER_BYTE * num_bytes


class _Kernel:
    """Announces reads to the kernel (POSIX_FADV_WILLNEED), only while reads are slow: it takes 18 us for each file.

    Reads are slow if two that follow each other are, and the thread waited in between for something other than a
    processor: on a busy machine any read may take long.

    Attributes:
        to_announce: how many of the next files are to be announced.
    """

    def __init__(self) -> None:
        self.to_announce = 0
        self._num_waits = -1  # waits of this thread after the last read, if that was slow; else -1

    @property
    def max_reads(self) -> int:
        """Number of local files to open at once."""
        return MAX_READS if self.to_announce else 1

    def announce(self, descriptor: int, ref: elements.ImageRef) -> None:
        if self.to_announce:
            self.to_announce -= 1
            with contextlib.suppress(OSError):  # a pipe takes no advice; the read reports what is wrong
                os.posix_fadvise(descriptor, ref.offset, max(ref.length, 0), os.POSIX_FADV_WILLNEED)

    def note_read(self, seconds: float, num_bytes: int) -> None:
        if seconds <= slow_sec(num_bytes):
            self._num_waits = -1
            return
        before, self._num_waits = self._num_waits, _count_waits()
        if 0 <= before < self._num_waits and _CAN_ADVISE:
            self.to_announce = _ANNOUNCED


def _count_waits() -> int:
    """Returns how often this thread has waited, for a disk or for another thread, but not for a processor."""
    return resource.getrusage(_THREAD).ru_nvcsw


def _find_too_large(ref: elements.ImageRef) -> ReadError | None:
    size = max(ref.size, ref.length)
    if size <= structure.MAX_IMAGE_BYTES:
        return None
    detail = f"{size:,} bytes, a tf.train.Example takes up to {structure.MAX_IMAGE_BYTES:,}"
    return ReadError(elements.Reason.TOO_LARGE, detail)


class SharedFiles:
    """Local files that hold many images each. They stay open between images; the least recently used one is closed."""

    def __init__(self) -> None:
        self._descriptors: collections.OrderedDict[str, int] = collections.OrderedDict()

    def open(self, uri: str) -> int:
        """Returns the descriptor of a file. It is valid until the next call."""
        if uri in self._descriptors:
            self._descriptors.move_to_end(uri)
        else:
            self._descriptors[uri] = _open(uri)
            if len(self._descriptors) > _MAX_SHARED:
                os.close(self._descriptors.popitem(last=False)[1])
        return self._descriptors[uri]

    def find(self, uri: str) -> int | None:
        """Returns the descriptor of a file that is open; None of any other. It is valid until the next `open`."""
        return self.open(uri) if uri in self._descriptors else None

    def close(self) -> None:
        """Closes the files that are open."""
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])

    def __enter__(self) -> SharedFiles:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _open(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # opening a pipe must not block


def _open_ahead(ref: elements.ImageRef, kernel: _Kernel, shared: SharedFiles) -> int | ReadError | None:
    if too_large := _find_too_large(ref):
        return too_large
    try:
        if ref.length >= 0:
            kernel.announce(shared.open(ref.uri), ref)
            return None
        descriptor = _open(ref.uri)
    except OSError as e:
        return _read_error(e)
    kernel.announce(descriptor, ref)
    return descriptor


def _read_remote(store: storage.Storage, ref: elements.ImageRef) -> bytes | ReadError:
    """Returns the bytes of one image, of the version that was listed."""
    if too_large := _find_too_large(ref):
        return too_large
    try:
        data = store.read(ref.uri, ref.offset, ref.length, ref.size, ref.version)
    except storage.ChangedError:
        return ReadError(elements.Reason.CHANGED, f"was replaced since it was listed; {_LIST_AGAIN}")
    except OSError as e:
        return _read_error(e)
    except errors.ConfigError as e:
        if e.code != storage.CANNOT_OPEN:
            raise
        return ReadError(elements.Reason.UNREADABLE, str(e))
    expected = ref.length if ref.length >= 0 else ref.size - ref.offset if ref.size >= 0 else len(data)
    if len(data) != expected:
        detail = f"came as {len(data):,} bytes, {expected:,} were listed; {_LIST_AGAIN}"
        return ReadError(elements.Reason.CHANGED, detail, len(data))
    return data if ref.blocks is None else _unpack_blocks(ref, data, ref.blocks)


def _unpack_blocks(ref: elements.ImageRef, data: bytes, blocks: elements.SnappyBlocks) -> bytes | ReadError:
    try:
        return parquet_content.decode_blocks(data, blocks.num_bytes)[blocks.start : blocks.start + ref.size]
    except OSError:
        return ReadError(elements.Reason.CORRUPT, "the compressed page that holds it is damaged; fetch the file again")


def _finish(ref: elements.ImageRef, opened: _Opened, kernel: _Kernel, shared: SharedFiles) -> Fetched:
    if isinstance(opened, ReadError):
        return ref, opened
    if isinstance(opened, futures.Future):
        return ref, opened.result()
    try:
        if opened is not None:
            data = _read_local(ref, opened, kernel)
        elif unpacked_content.is_packed(ref.uri):
            data = unpacked_content.unpack(ref.uri, ref.version).read(ref.offset, ref.length)
        else:
            data = _read_local(ref, shared.open(ref.uri), kernel)
    except ReadError as e:
        return ref, e
    except packed_file.BrokenContentError as e:
        return ref, ReadError(e.reason, f"the file {e.detail}")
    except storage.ChangedError:
        return ref, ReadError(elements.Reason.CHANGED, f"was written since it was listed; {_LIST_AGAIN}")
    except OSError as e:
        return ref, _read_error(e)
    finally:
        if opened is not None:
            os.close(opened)
    if 0 <= ref.length != len(data):
        return ref, ReadError(elements.Reason.TRUNCATED, f"the file ends {ref.length - len(data):,} bytes early")
    return ref, data if ref.blocks is None else _unpack_blocks(ref, data, ref.blocks)


def _read_local(ref: elements.ImageRef, descriptor: int, kernel: _Kernel) -> bytes:
    if change := _find_change(ref, status := os.fstat(descriptor)):
        num_bytes = -1 if status.st_size == ref.size else status.st_size
        raise ReadError(elements.Reason.CHANGED, f"{change} since it was listed; {_LIST_AGAIN}", num_bytes)
    start = time.perf_counter()
    data = local.read_descriptor(descriptor, ref.offset, ref.length, ref.size if ref.offset == 0 else -1)
    kernel.note_read(time.perf_counter() - start, len(data))
    return data


def _find_change(ref: elements.ImageRef, status: os.stat_result) -> str | None:
    """Returns how a file differs from its listing, which is part of the dataset's fingerprint; None if it does not."""
    if ref.offset == 0 and 0 <= ref.size != status.st_size and ref.length < 0 and stat.S_ISREG(status.st_mode):
        return f"grew or shrank from {ref.size:,} to {status.st_size:,} bytes"
    return "was written" if ref.version and ref.version != status.st_mtime_ns else None


def _read_error(error: OSError) -> ReadError:
    if storage.is_fault(error):
        raise error
    return ReadError(elements.Reason.of_error(error), error.strerror or str(error))
