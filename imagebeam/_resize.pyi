"""In C: resizes JPEGs."""

LIBRARY: str

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
