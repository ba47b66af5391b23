"""Images that are stored as base64."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagebeam.transforms.images import checked_image, prepare, structure


@given(st.binary(max_size=80))
def test_both_alphabets_are_decoded_and_measured(data: bytes) -> None:
    for encoded in (base64.b64encode(data), base64.urlsafe_b64encode(data)):
        assert structure.decode_base64(encoded) == data
        assert structure.base64_size(encoded) == len(data)


def test_other_bytes_are_corrupt() -> None:
    for data in [b"abc", b"ab cd===", b"\xff\xd8\xff\xe0", b"ab=c"]:
        with pytest.raises(checked_image.BadImageError, match=r"no base64 .*, which source.tfrecord.base64 says"):
            structure.decode_base64(data)


def test_pixels_of_any_shape_are_prepared_by_the_expected_size() -> None:
    policy = prepare.ImagePolicy(is_raw=True, is_base64=True)
    image = policy.prepare(base64.b64encode(bytes(range(24))), (2, 4))
    assert (image.format, image.height, image.width, image.channels) == ("raw", 2, 4, 3)
    assert image.data == bytes(range(24))
    for num_bytes in (0, 23, 40):
        with pytest.raises(checked_image.BadImageError, match=f"{num_bytes} bytes are no 2 x 4 pixels"):
            policy.prepare(base64.b64encode(bytes(num_bytes)), (2, 4))
