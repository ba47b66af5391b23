from __future__ import annotations

import pickle

from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import checked_image


def test_bad_image_error_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(checked_image.BadImageError(Reason.CORRUPT, "why")))
    assert (error.reason, error.detail, str(error)) == (Reason.CORRUPT, "why", "corrupt: why")
