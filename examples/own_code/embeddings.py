"""Computes an embedding of each image by a model of Keras."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import imagebeam


class Embed:
    """Embeds batches of images. An instance is made once in each process."""

    def __init__(self, model: str, size: int) -> None:
        self.model_path = model
        self.size = size  # height and width of the model's input

    def setup(self) -> None:
        """Loads the model."""
        import tensorflow as tf  # here, so that the command that only checks the config needs no TensorFlow

        tf.config.threading.set_intra_op_parallelism_threads(1)  # the writer processes share the processors
        tf.config.threading.set_inter_op_parallelism_threads(1)
        self.resize: Any = tf.image.resize
        self.model: Any = tf.keras.models.load_model(self.model_path)

    def __call__(
        self, images: Sequence[npt.NDArray[np.uint8]], references: Sequence[imagebeam.Reference]
    ) -> npt.NDArray[np.float32]:
        """Returns float32 [len(images), the model's outputs]."""
        resized = np.stack([self.resize(image, (self.size, self.size)).numpy() for image in images])
        found: npt.NDArray[np.float32] = self.model(resized / 255).numpy()
        return found
