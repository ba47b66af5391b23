"""Stable hashes that fix the order and the split of images: the same on every machine, version and runner."""

from __future__ import annotations

import functools
import hashlib

HASH_BITS = 64


def encode_key(key: str) -> bytes:
    """Encodes `key` as UTF-8. The undecodable bytes of a POSIX file name are restored."""
    try:
        return key.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half a surrogate pair, which JSON can spell and no file name can hold
        return key.encode("utf-8", "surrogatepass")


def hash64(key: str, seed: int, purpose: bytes) -> int:
    """Returns a uniform hash in [0, 2**64): BLAKE2b of the key, salted with the dataset's seed.

    `purpose` (at most 16 bytes) makes hashes for different uses independent, such as the split and the order inside it.
    Source: RFC 7693, with the salt and personalisation parameters.
    """
    hasher = _salted(seed, purpose).copy()
    hasher.update(encode_key(key))
    return int.from_bytes(hasher.digest(), "big")


@functools.lru_cache(maxsize=16)
def _salted(seed: int, purpose: bytes) -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=8, salt=seed.to_bytes(8, "little", signed=True), person=purpose)
