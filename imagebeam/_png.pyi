"""In C: decodes PNGs for `_native`."""

LIBRARY: str
