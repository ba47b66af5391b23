"""Images that are stored as base64, as by TFRecorder: the usual alphabet or that for URLs.

Source: RFC 4648; tensorflow-recorder, tfrecorder/beam_image.py.
"""

from __future__ import annotations

import binascii

from imagebeam.transforms.images import checked_image

_TO_USUAL = bytes.maketrans(b"-_", b"+/")


def decoded_size(data: bytes) -> int:
    """Returns how many bytes some base64 stands for; a size that it cannot be if it is none."""
    padding = data[-2:].count(b"=")
    return len(data) // 4 * 3 - padding if len(data) % 4 == 0 else -1


def decode(data: bytes) -> bytes:
    """Returns the bytes that some base64 stands for.

    Raises:
        BadImageError: if it is none.
    """
    try:
        return binascii.a2b_base64(data.translate(_TO_USUAL), strict_mode=True)
    except binascii.Error as e:
        raise checked_image.corrupt(f"no base64 ({e}), which source.tfrecord.base64 says") from e
