"""In C: reads files, checks JPEGs and makes records."""

from collections.abc import Mapping
from typing import Any

def read_file(path: str, size: int, version: int) -> bytes | None: ...
def read_part(descriptor: int, offset: int, length: int, version: int) -> bytes | None: ...
def encode_prefix(plain: list[Any], values: Mapping[str, Any], key: bytes, tag: int, size: int) -> bytes | None: ...
def find_marker(data: bytes, position: int) -> int: ...
def check_jpeg(data: bytes) -> tuple[int, int, int, int, int] | None: ...

# Only on a processor with SSE 4.2.
def extend_crc(crc32c: int, data: Any) -> int: ...
def put_record(buffer: Any, position: int, prefix: bytes, payload: bytes, crc32c: int) -> int: ...
def put_jpeg(
    path: str,
    size: int,
    version: int,
    buffer: Any,
    position: int,
    crc32c: int,
    plain: list[Any],
    key: bytes,
    tag: int,
    values: dict[str, Any],
    /,
) -> tuple[int, bytes | None, int, int, int, int, int] | None: ...
def put_parts(
    parts: list[tuple[int, int, int, bytes]],
    length: int,
    buffer: Any,
    position: int,
    crc32c: int,
    slow_ns: int,
    /,
) -> tuple[int, int, int, bool]: ...
