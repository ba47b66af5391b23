"""Functions that a config of the tests names, and what was seen of their calls in this process."""

from __future__ import annotations

from typing import Any

import numpy as np

from imagebeam.transforms import user_code

CROP = np.s_[2:9, 3:11]
seen: list[np.ndarray] = []
references: list[user_code.Reference] = []
made: list[str] = []


def identity(image: np.ndarray, reference: user_code.Reference) -> np.ndarray:
    seen.append(image.copy())
    references.append(reference)
    return image


def crop(image: np.ndarray, reference: user_code.Reference) -> np.ndarray:
    return image[CROP]


def gray(image: np.ndarray, reference: user_code.Reference) -> np.ndarray:
    return image[..., 0]


def with_alpha(image: np.ndarray, reference: user_code.Reference) -> np.ndarray:
    return np.dstack([image[..., :1]] * 3 + [np.full(image.shape[:2], 200, np.uint8)])


def nothing(image: np.ndarray, reference: user_code.Reference) -> None:
    return None


def fails(image: np.ndarray, reference: user_code.Reference) -> np.ndarray:
    raise ValueError("no face\n in it")


def floats(image: np.ndarray, reference: user_code.Reference) -> np.ndarray:
    return image / 255


def five_channels(image: np.ndarray, reference: user_code.Reference) -> np.ndarray:
    return np.zeros((2, 3, 5), np.uint8)


def empty(image: np.ndarray, reference: user_code.Reference) -> np.ndarray:
    return image[:0]


def stays(image: np.ndarray, reference: user_code.Reference) -> bool:
    seen.append(image.copy())
    image[:] = 0  # what it does to its own copy changes nothing
    return True


def leaves(image: np.ndarray, reference: user_code.Reference) -> np.bool_:
    return np.bool_(False)


def says_one(image: np.ndarray, reference: user_code.Reference) -> int:
    return 1


class Paint:
    """Paints an image in one level; is made and set up once in each process."""

    def __init__(self, level: int = 7) -> None:
        self.level = level
        made.append("made")

    def setup(self) -> None:
        made.append("set up")

    def __call__(self, image: np.ndarray, reference: user_code.Reference) -> np.ndarray:
        return np.full_like(image, self.level)


class NotCallable:
    """Something else than a function."""


class FailsInSetup:
    """Its weights are missing."""

    def setup(self) -> None:
        raise OSError("no weights")


NUMBER = 5


def add(*arguments: Any, **options: Any) -> Any:
    return arguments, options


class Levels:
    """Computes the mean level of images of a batch."""

    def __call__(self, images: list[np.ndarray], references: list[user_code.Reference]) -> list[int]:
        seen.extend(image.copy() for image in images)
        return [int(image.mean()) for image in images]
