"""Settings of the search for duplicates, and the order in which images keep their place. Imports no Beam."""

from __future__ import annotations

import dataclasses
from typing import Literal, TypeAlias

from imagebeam.transforms import hashing
from imagebeam.transforms.images import checked_image
from imagebeam.transforms.shard import image_hashes

Action: TypeAlias = Literal["off", "report", "drop", "fail"]
MAX_DISTANCE = 6  # bits; see match_hashes for what each more costs
_PURPOSE = b"imagebeam.near"
_MAX_PLACE = 255
_TRAIN = "train"  # a split whose name begins so keeps its image last


@dataclasses.dataclass(frozen=True)
class DuplicateSettings:
    """Settings for images that repeat others."""

    exact: Action = "off"  # the same bytes
    near: Action = "off"  # perceptual hashes that differ in few bits
    near_distance: int = 4  # bits in which they differ at most
    keep_in: tuple[str, ...] = ()  # splits that keep their image, before all others

    def only(self, *actions: Action) -> DuplicateSettings:
        """Returns the settings without the searches that lead to other actions."""
        return dataclasses.replace(
            self,
            exact=self.exact if self.exact in actions else "off",
            near=self.near if self.near in actions else "off",
        )

    @property
    def is_on(self) -> bool:
        return self.exact != "off" or self.near != "off"

    @property
    def actions(self) -> dict[str, Action]:
        """The action for each kind."""
        return {"exact": self.exact, "near": self.near}

    def hasher(self, allowed: checked_image.Limits) -> image_hashes.Hasher | None:
        """Returns what computes the hashes that are compared; None if there are none."""
        return image_hashes.Hasher(self.exact != "off", self.near != "off", allowed) if self.is_on else None

    def place_of_split(self, split: str) -> int:
        """Returns a number from 0 to 255: of two equal images, the one in the split with the smaller number stays.

        Splits named in `keep_in` come first, those that begin with "train" last. So an image that is in the training
        and the test set stays in the test set.
        """
        if split in self.keep_in:
            return min(self.keep_in.index(split), _MAX_PLACE - 2)
        return _MAX_PLACE if split.startswith(_TRAIN) else _MAX_PLACE - 1

    def order_of(self, image: image_hashes.HashedImage) -> tuple[int, bytes]:
        """Returns the order of images with equal hashes: by split, then by key. The first one stays."""
        return self.place_of_split(image.split), hashing.encode_key(image.key)

    def rank_of(self, image: image_hashes.HashedImage) -> int:
        """Returns the order of images with different hashes, an unsigned integer of 64 bits.

        By split, then by a hash of the key, because keys do not fit into 64 bits. A hash has the smallest rank of the
        images with it.
        """
        return self.place_of_split(image.split) << 56 | hashing.hash64(image.key, 0, _PURPOSE) >> 8


OFF = DuplicateSettings()
