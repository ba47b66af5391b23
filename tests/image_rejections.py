"""Asserts that an image is rejected, and why."""

from __future__ import annotations

import re

import pytest

from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import checked_image, structure


def rejection(data: bytes, check: str = "structure") -> checked_image.BadImageError:
    with pytest.raises(checked_image.BadImageError) as caught:
        structure.check_image(data, check)
    return caught.value


def assert_rejected(data: bytes, reason: Reason, match: str, check: str = "structure") -> None:
    error = rejection(data, check)
    assert error.reason is reason
    assert re.search(match, error.detail), error.detail
