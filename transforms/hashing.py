"""Stable hashes that fix the order and the split of images: the same on every machine, version and runner."""

from __future__ import annotations

import functools
import hashlib

HASH_BITS = 64


def encode_key(key: str) -> bytes:
    """`key` as UTF-8; the undecodable bytes of a POSIX file name come back as they were."""
    try:
        return key.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half a surrogate pair, which JSON can spell and no file name can hold
        return key.encode("utf-8", "surrogatepass")


def hash64(key: str, seed: int, purpose: bytes) -> int:
    """Uniform in [0, 2**64) by BLAKE2b of the key, salted by the dataset's seed.

    `purpose` (at most 16 bytes) keeps uses apart: the order inside a split says nothing about the split.
    Source: RFC 7693, with the salt and personalisation parameters.
    """
    hasher = _salted(seed, purpose).copy()
    hasher.update(encode_key(key))
    return int.from_bytes(hasher.digest(), "big")


@functools.lru_cache(maxsize=16)
def _salted(seed: int, purpose: bytes) -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=8, salt=seed.to_bytes(8, "little", signed=True), person=purpose)
