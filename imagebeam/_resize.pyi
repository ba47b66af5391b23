"""In C: resizes JPEGs and pictures of Pillow."""

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
def resize_bytes(
    data: bytes, channels: int, size: tuple[int, int], target: tuple[int, int], filter: int
) -> bytes | None: ...
def resize_pixels(array: object, size: tuple[int, int], target: tuple[int, int], filter: int) -> bytes | None: ...
