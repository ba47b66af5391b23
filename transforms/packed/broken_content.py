"""The error of a packed file that cannot be unpacked."""

from __future__ import annotations

import errno

from imagebeam.transforms.elements import Reason


class BrokenContentError(OSError):
    """A packed file is not of its format or is cut short, so nothing in it can be relied on.

    Attributes:
        reason: CORRUPT or TRUNCATED.
        detail: follows the file's name in an error, such as `is gzip that was cut short; fetch it again`.
    """

    def __init__(self, reason: Reason, detail: str):
        super().__init__(errno.EILSEQ, detail)
        self.reason = reason
        self.detail = detail
