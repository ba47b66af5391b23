"""Compares the check of the tables that a scan needs with libjpeg-turbo and TensorFlow."""

from __future__ import annotations

import os
import random
import re

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies

from imagebeam.transforms.images import checked_image, structure
from tests.pictures import encode, photo, without_segments

if os.environ.get("IMAGEBEAM_CI") != "1":  # in CI it must be built
    pytest.importorskip("imagebeam._native", reason="was not built here: docs/reader.md tells what it needs")
from imagebeam import _native

SIZE = (23, 17)  # width, height
KINDS = [
    encode(photo(*SIZE).convert(mode), **options)
    for mode in ("RGB", "L", "CMYK")
    for options in ({}, {"progressive": True}, {"optimize": True}, {"restart_marker_blocks": 1})
]


def failure_of(data: bytes) -> str:
    """Returns the error of libjpeg-turbo; "" if it decodes `data`."""
    out = np.zeros((1, SIZE[1], SIZE[0], 3), np.uint8)
    failures = _native.decode([data], np.array([[0, 0, *out.shape[1:3]]], np.int32), np.zeros(1, bool), out, 1)
    return failures[0][1] if failures else ""


def with_other_tables(data: bytes, rng: random.Random) -> bytes:
    """Changes which tables and components the segments of a JPEG name."""
    changed = bytearray(data)
    segments = [match.start() for match in re.finditer(rb"\xff[\xc0\xc2\xc4\xda\xdb](?=.{13})", data, re.DOTALL)]
    for _ in range(rng.randint(1, 2)):
        changed[rng.choice(segments) + rng.randint(4, 14)] = rng.choice([0, 1, 2, 3, 16, 17])
    return bytes(changed)


@hypothesis.settings(max_examples=400, deadline=None)
@hypothesis.given(strategies.integers(0, 2**32 - 1))
def test_jpeg_without_a_table_is_rejected_where_decoders_refuse_it(seed: int) -> None:
    tf = pytest.importorskip("tensorflow")
    rng = random.Random(seed)
    data = rng.choice(KINDS)
    if rng.random() < 0.3:
        data = without_segments(data, rng.choice([0xC4, 0xDB]))
    if rng.random() < 0.9:
        data = with_other_tables(data, rng)
    try:
        structure.check_image(data)
    except checked_image.BadImageError as e:
        if " needs " in e.detail:
            with pytest.raises(tf.errors.InvalidArgumentError):
                tf.io.decode_jpeg(data)
    else:
        assert "was not defined" not in failure_of(data)
        assert "Invalid component ID" not in failure_of(data)
