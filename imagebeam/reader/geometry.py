"""Where the pixels of a batch's images are in the stored ones: boxes, keypoints and masks move with it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Geometry(NamedTuple):
    """The window of each image, and the size to which it is resized.

    The place (y, x) in an image of the batch, in pixels from its upper left corner, is at start + step * (y, x) in the
    stored image; of a mirrored image x counts from the right.
    """

    start: np.ndarray  # float64 [n, 2]
    step: np.ndarray  # float64 [n, 2]: pixels of the stored image for one of the batch
    flips: np.ndarray  # bool [n]
    sides: np.ndarray  # int [n, 2]: height and width of the stored images
    size: tuple[int, int]  # height and width of the images in the batch

    def move(self, places: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Returns places in stored images as places in the batch's images.

        Args:
            places: float64 [m, 2]: y and x from 0 to 1.
            rows: int [m]: the image of each.

        Returns:
            float64 [m, 2]: y and x in pixels.
        """
        moved = (places * self.sides[rows] - self.start[rows]) / self.step[rows]
        mirrored = self.flips[rows]
        moved[mirrored, 1] = self.size[1] - moved[mirrored, 1]
        return moved

    def matrices(self) -> np.ndarray:
        """Returns float32 [n, 3, 3]: the matrix of each image times (x, y, 1) in the batch is (x, y, 1) as stored."""
        found = np.zeros((len(self.start), 3, 3), np.float32)
        found[:, 2, 2] = 1
        found[:, 1, 1], found[:, 1, 2] = self.step[:, 0], self.start[:, 0]
        mirrored = self.start[:, 1] + self.step[:, 1] * self.size[1]
        found[:, 0, 0] = np.where(self.flips, -self.step[:, 1], self.step[:, 1])
        found[:, 0, 2] = np.where(self.flips, mirrored, self.start[:, 1])
        return found

    def nearest(self, size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        """Returns the row and the column of the stored pixel that is nearest to each pixel of masks of one size.

        Args:
            size: height and width of the masks, which show what the images show.

        Returns:
            int32 [n, height] and [n, width]; -1 where there is none, beside the stored image.
        """
        found = []
        for axis in range(2):
            scale = self.size[axis] / size[axis]
            middles = (np.arange(size[axis]) + 0.5) * (self.step[:, axis, None] * scale)
            at = np.floor(self.start[:, axis, None] + middles).astype(np.int32)
            found.append(np.where((at >= 0) & (at < self.sides[:, axis, None]), at, -1))
        found[1][self.flips] = found[1][self.flips, ::-1]
        return found[0], found[1]
