"""Names of shards: `train-00000-of-00016.tfrecord`. One class both formats and parses them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection

SPLIT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")  # the names that a split may have

_PATTERN = re.compile(r"(?P<split>.+)-(?P<shard>\d{5,})-of-(?P<num>\d{5,})(?P<suffix>\.\S+)?")

_TFRECORD_SUFFIX = re.compile(r"(\.(tfrecords?|tfrec|records?))?(\.(gz|gzip|zlib|zst))?", re.IGNORECASE)


def num_digits(num_shards: int) -> int:
    """Returns the number of digits of a shard's index in its name."""
    return max(5, len(str(num_shards)))


@dataclasses.dataclass(frozen=True, order=True)
class ShardName:
    """Shard `shard_index` of `num_shards` of a split. Five digits, more when needed, as TFDS and the TPU models do."""

    split: str
    shard_index: int
    num_shards: int
    suffix: str = ".tfrecord"

    def __post_init__(self) -> None:
        if not 0 <= self.shard_index < self.num_shards:
            raise ValueError(f"shard index {self.shard_index} is outside 0..{self.num_shards - 1}")

    def __str__(self) -> str:
        digits = num_digits(self.num_shards)
        return f"{self.split}-{self.shard_index:0{digits}d}-of-{self.num_shards:0{digits}d}{self.suffix}"

    @classmethod
    def parse(cls, name: str) -> ShardName:
        """Parses a shard's name: the inverse of `str`.

        Raises:
            ValueError: if `name` is not a shard's name.
        """
        match = _PATTERN.fullmatch(name)
        parsed = match and cls(match["split"], int(match["shard"]), int(match["num"]), match["suffix"] or "")
        if not parsed or str(parsed) != name:  # with other leading zeros it is another file
            raise ValueError(f"{name!r} is not the name of a shard; expected for example train-00000-of-00016.tfrecord")
        return parsed


def suffix_of(name: str) -> str:
    """Returns the part of a shard's name after the numbers; "" for any other name."""
    try:
        return ShardName.parse(name).suffix
    except ValueError:
        return ""


def is_shard_name(name: str, suffixes: Collection[str] = ()) -> bool:
    """Returns whether a reader that lists the folder would take the file for a TFRecord shard.

    Args:
        name: of the file, without its folder.
        suffixes: accepted beside the usual suffixes of TFRecord files.
    """
    try:
        found = ShardName.parse(name).suffix
    except ValueError:
        return False
    return found in suffixes or _TFRECORD_SUFFIX.fullmatch(found) is not None
