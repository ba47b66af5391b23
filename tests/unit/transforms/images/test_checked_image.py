from __future__ import annotations

import pickle

from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import checked_image


def test_bad_image_error_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(checked_image.BadImageError(Reason.CORRUPT, "why")))
    assert (error.reason, error.detail, str(error)) == (Reason.CORRUPT, "why", "corrupt: why")


def test_errors_give_the_reason_the_finding_and_the_remedy() -> None:
    found = [
        checked_image.unsupported("gif"),
        checked_image.unsupported("gif", "set image.encode"),
        checked_image.corrupt("a second frame header at byte 7"),
        checked_image.truncated("no IEND chunk from byte 8 on", 20),
        checked_image.too_many_pixels(3, 70_000),
    ]
    assert [(error.reason, error.detail) for error in found] == [
        (Reason.UNSUPPORTED_FORMAT, "gif: convert it first"),
        (Reason.UNSUPPORTED_FORMAT, "gif: set image.encode"),
        (Reason.CORRUPT, "a second frame header at byte 7"),
        (
            Reason.TRUNCATED,
            "no IEND chunk from byte 8 on, the file has 20 bytes: it was cut short, fetch it again",
        ),
        (Reason.TOO_LARGE, "3 x 70000 pixels are more than decoders take: scale it down"),
    ]
