"""Reads and checks images as a shard writer does, and keeps only their hashes. Imports no Beam."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from imagebeam.transforms import elements
from imagebeam.transforms.images import prepare
from imagebeam.transforms.shard import image_hashes, read_images
from imagebeam.transforms.shard import read_ahead as read_ahead_lib


class HashTask(NamedTuple):
    """Some images to hash."""

    packed_refs: bytes
    skipped: tuple[tuple[int, elements.Reason], ...] = ()  # as in ShardTask, by the order in which they are read

    def without(self, image: int, reason: elements.Reason) -> HashTask:
        """Returns this task with an image that is left out unread; `image` is its number, counted from 0."""
        return self._replace(skipped=(*self.skipped, (image, reason)))


@dataclasses.dataclass(frozen=True)
class ImageReader:
    """Reads images before their shard is planned."""

    policy: prepare.ImagePolicy
    read_ahead: read_ahead_lib.ReadAhead
    hasher: image_hashes.Hasher

    def hash_images(self, task: HashTask) -> bytes:
        """Returns packed rows of HashedImage.

        Images that will be rejected are left out: nothing is dropped in favor of an image that is not written.
        """
        refs = sorted(elements.unpack_refs(task.packed_refs), key=lambda ref: (ref.uri, ref.offset))
        hashed = [
            image_hashes.hashed(ref, image)
            for ref, image in read_images.read_images(
                refs, self.policy, self.read_ahead, dict(task.skipped), self.hasher
            )
            if not isinstance(image, elements.Reject)
        ]
        return elements.pack_rows(hashed)
