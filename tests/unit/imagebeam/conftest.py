"""The fixture of tests that read with both decoders."""

from __future__ import annotations

import os

import pytest

from imagebeam.reader import image_decoder


@pytest.fixture(params=["native", "pillow"])
def decoder(request: pytest.FixtureRequest) -> str:
    if request.param == "native" and image_decoder.library() is None and os.environ.get("IMAGEBEAM_CI") != "1":
        pytest.skip("the decoder in C was not built here: docs/reader-speed.md lists what it needs")
    return str(request.param)
