"""In C: turns JPEGs upright without loss."""

LIBRARY: str

def turn_jpeg(data: bytes, orientation: int, max_memory_bytes: int) -> bytes | None: ...
