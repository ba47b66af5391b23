"""Images of any aspect ratio as patches: each is resized to at most so many, and all batches have one shape.

Source: Dehghani et al., Patch n' Pack: NaViT, 2023; Tschannen et al., SigLIP 2, 2025, whose rule for the size this is.
Names and layout are those of timm's NaFlex.
"""

from __future__ import annotations

import functools

import numpy as np

from imagebeam import errors
from imagebeam.reader import crops, image_decoder
from imagebeam.reader import options as options_lib

PATCHES, COORD, VALID = options_lib.OF_PATCHES
_LEAST, _MOST = 1e-6, 100.0  # factors by which an image may be resized
_ROUNDS = 24  # of the search for the factor, after which it is known to 1e-5: as many as in timm and SigLIP 2


def sizes_in_patches(sides: np.ndarray, side: int, max_patches: int, max_enlarge: float | None) -> np.ndarray:
    """Returns the numbers of patches down and across of each image: int64 [n, 2].

    The image is multiplied by the greatest factor with which its sides, rounded up to whole patches, have at most
    `max_patches`.

    Args:
        sides: int [n, 2], height and width of each image, in pixels.
        side: side of a patch, in pixels.
        max_patches: greatest number of patches of an image.
        max_enlarge: greatest factor; None for any.
    """

    def patches_with(factor: np.ndarray) -> np.ndarray:
        return np.maximum(np.ceil(sides * factor[:, None] / side), 1).astype(np.int64)

    least, most = np.full(len(sides), _LEAST), np.full(len(sides), _MOST)
    for _ in range(_ROUNDS):
        middle = (least + most) / 2
        fits = patches_with(middle).prod(axis=1) <= max_patches
        least, most = np.where(fits, middle, least), np.where(fits, most, middle)
    return patches_with(least if max_enlarge is None else np.minimum(least, max_enlarge))


class PatchDecoder:
    """Decodes images into patches. Thread-safe."""

    def __init__(self, decoder: image_decoder.ImageDecoder, options: options_lib.ReadOptions):
        """Takes the decoder of whole images of a reader with `patches`."""
        assert options.patches is not None and options.max_patches is not None
        self._decoder, self._options, self._side = decoder, options, options.patches
        self._max_patches = options.max_patches
        self._options_of = functools.lru_cache(None)(options.of_size)

    def decode(self, wanted: image_decoder.Wanted) -> tuple[dict[str, np.ndarray], image_decoder.Failures]:
        """Returns patches, [n, max_patches, side * side * channels], row by row of each image, with their places.

        Also the row and error of each image that cannot be decoded.
        """
        options, side, count = self._options, self._side, len(wanted.images)
        grids = sizes_in_patches(wanted.sizes, side, self._max_patches, options.max_enlarge)
        channels = len(self._decoder.blank)
        patches = self._decoder.make_batch(count, self._max_patches, side * side * channels)
        coord = np.zeros((count, self._max_patches, 2), np.int32)
        valid = np.arange(self._max_patches) < grids.prod(axis=1)[:, None]

        def decode(row: int) -> None:
            down, across = grids[row].tolist()
            try:
                sized = self._options_of((down * side, across * side))
            except errors.ConfigError as e:
                raise ValueError(str(e)) from e  # of this image alone, which is so long and narrow
            [image], failures = self._decoder.decode_to(_row_of(wanted, row, sized), sized)
            for _, failure in failures:
                raise ValueError(failure)
            used = down * across
            found = patches[row, :used].reshape(down, across, side, side, channels)
            found[:] = image.reshape(down, side, across, side, channels).swapaxes(1, 2)
            patches[row, used:] = 0
            coord[row, :used] = np.indices((down, across)).reshape(2, used).T

        return {PATCHES: patches, COORD: coord, VALID: valid}, self._decoder.decode_each(range(count), decode)


def _row_of(wanted: image_decoder.Wanted, row: int, options: options_lib.ReadOptions) -> image_decoder.Wanted:
    """Returns one image, whole and resized."""
    here = slice(row, row + 1)
    sizes = wanted.sizes[here]
    parts = np.concatenate([np.zeros_like(sizes), sizes], axis=1)
    frames = crops.frames(sizes[:, 0], sizes[:, 1], parts, options) if options.filters else None
    cuts = image_decoder.Cuts(parts, frames, wanted.cuts.flips[here])
    shapes = None if wanted.shapes is None else wanted.shapes[here]
    return image_decoder.Wanted(wanted.images[here], wanted.points[here], sizes, shapes, cuts)
