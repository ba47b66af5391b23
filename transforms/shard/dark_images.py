"""Counts gray images of 16 bits that are nearly black with 8, since their numbers have 10, 12 or 14 bits."""

from __future__ import annotations

import collections

from imagebeam.transforms.images import checked_image, image_formats, pillow_decoder, pixels, png_structure

COUNTS, FILES = "dark", "dark_files"  # in statistics.json
NUM_FILES = 3  # that are named, of a shard
_NUM_DECODED = 4  # of a shard: PNGs whose bytes are kept are decoded only here
_MAX_DECODED_PIXELS = 1 << 24
_LOWEST_WHITE = 255  # of image.white_level
_MARGIN = 4  # an image is dark if its largest number is at most a quarter of the one that becomes white


class DarkImages:
    """Counts those of one shard, and names the first ones."""

    def __init__(self) -> None:
        self._counts: collections.Counter[str] = collections.Counter()
        self._files: collections.Counter[str] = collections.Counter()
        self._num_decoded = 0

    def add(self, key: str, image: checked_image.Image, white_level: int) -> None:
        """Counts an image as it is stored, if it is dark; of PNGs that are kept, only the first ones are looked into.

        Args:
            key: of the image.
            image: as it is stored.
            white_level: the number that becomes white.
        """
        highest = image.highest if image.highest is not None else self._highest_kept(image)
        if highest is None or white_level == _LOWEST_WHITE or not 0 < highest * _MARGIN <= white_level:
            return
        bits = highest.bit_length()
        self._counts[f"{image.source_format or image.format} up to {bits} bits"] += 1
        if len(self._files) < NUM_FILES:
            self._files[key] = highest

    def _highest_kept(self, image: checked_image.Image) -> int | None:
        """Returns the largest number of a PNG of 16 bits whose bytes are kept; None of other images."""
        if image.format != image_formats.PNG or not png_structure.is_wide_gray(image.data):
            return None
        if self._num_decoded == _NUM_DECODED or image.height * image.width > _MAX_DECODED_PIXELS:
            return None
        self._num_decoded += 1
        try:
            return pixels.find_highest(pillow_decoder.decode(image))
        except checked_image.BadImageError:  # only image.check: decode finds and rejects it
            return None

    def counts(self) -> dict[str, collections.Counter[str]]:
        """Returns how many there are by format and bits, and the largest numbers of the first ones by key; {} if none.

        {"dark": {"tiff up to 12 bits": 7}, "dark_files": {"scans/a.tif": 4021}}
        """
        return {COUNTS: self._counts, FILES: self._files} if self._counts else {}
