"""Checks that an installed wheel holds all of the code in C: cibuildwheel runs it for each wheel."""

import io

import numpy as np
from PIL import Image

from imagebeam import _native, _writer

picture = Image.radial_gradient("L").convert("RGB").resize((40, 24))
for image_format in ("JPEG", "PNG"):
    encoded = io.BytesIO()
    picture.save(encoded, image_format)
    out = np.zeros((1, 24, 40, 3), np.uint8)
    part, flips = np.array([[0, 0, 24, 40]], np.int32), np.zeros(1, bool)
    failures = _native.decode([encoded.getvalue()], part, flips, out, 1)
    assert failures == [], failures
    assert np.abs(out[0].astype(int) - np.asarray(picture)).mean() < 3
print(_native.LIBRARY, _writer.RESIZER, _writer.TURNER)
