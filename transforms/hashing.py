"""Stable hashes that fix the order and the split of images: the same on every machine, version and runner."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence

HASH_BITS = 64


def encode_key(key: str) -> bytes:
    """Encodes `key` as UTF-8. The undecodable bytes of a POSIX file name are restored."""
    try:
        return key.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half a surrogate pair, which JSON can spell and no file name can hold
        return key.encode("utf-8", "surrogatepass")


def encode_keys(keys: Sequence[str]) -> list[bytes]:
    """Encodes keys as `encode_key` does, in less time."""
    try:
        return [key.encode("utf-8", "surrogateescape") for key in keys]
    except UnicodeEncodeError:
        return list(map(encode_key, keys))


def hash64(key: str, seed: int, purpose: bytes) -> int:
    """Returns a uniform hash in [0, 2**64): BLAKE2b of the key, salted with the dataset's seed.

    `purpose` (at most 16 bytes) makes hashes for different uses independent, such as the split and the order inside it.
    Source: RFC 7693, with the salt and personalisation parameters.
    """
    return hash64_all((key,), seed, purpose)[0]


def hash64_all(keys: Sequence[str], seed: int, purpose: bytes) -> list[int]:
    """Returns the hash of each key, as `hash64` does."""
    copy, from_bytes = _salted(seed, purpose).copy, int.from_bytes
    hashes = []
    for encoded in encode_keys(keys):
        hasher = copy()
        hasher.update(encoded)
        hashes.append(from_bytes(hasher.digest(), "big"))
    return hashes


@functools.lru_cache(maxsize=16)
def _salted(seed: int, purpose: bytes) -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=8, salt=seed.to_bytes(8, "little", signed=True), person=purpose)
