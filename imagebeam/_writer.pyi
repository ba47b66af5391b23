"""In C: reads files, checks, resizes and turns images, and makes records."""

from collections.abc import Mapping
from typing import Any

RESIZER: str  # only with libjpeg
TURNER: str  # only with TurboJPEG

def read_file(path: str, size: int, version: int) -> bytes | None: ...
def read_part(descriptor: int, offset: int, length: int, version: int) -> bytes | None: ...
def encode_prefix(plain: list[Any], values: Mapping[str, Any], key: bytes, tag: int, size: int) -> bytes | None: ...
def find_marker(data: bytes, position: int) -> int: ...
def check_jpeg(data: bytes) -> tuple[int, int, int, int, int] | None: ...
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
def resize_pixels(data: bytes, channels: int, size: tuple[int, int], target: tuple[int, int], filter: int) -> bytes: ...
def resize_jpeg(
    data: bytes,
    full_size: tuple[int, int],
    part: tuple[int, int, int, int],
    reduction: int,
    filter: int,
    quality: int,
    sampling: tuple[int, int],
    is_progressive: bool,
    is_gray: bool,
) -> bytes | None: ...
def turn_jpeg(data: bytes, orientation: int, progressive: bool) -> bytes | None: ...
