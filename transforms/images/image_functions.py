"""Functions of the user over the pixels of an image: `image.function` and `image.keep_if`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from imagebeam import concurrency
from imagebeam.transforms import elements, user_code
from imagebeam.transforms.images import checked_image, pixels
from imagebeam.transforms.images.pillow_decoder import pillow

if TYPE_CHECKING:
    import numpy as np
    import PIL.Image


@dataclasses.dataclass(frozen=True)
class ImageFunctions:
    """The functions that see, and may change, every decoded image of a dataset."""

    function: user_code.UserCode | None = None
    keep_if: user_code.UserCode | None = None
    columns: tuple[str, ...] = ()  # sources of the values in ImageRef.columns
    keeps_size: bool = False  # whether boxes or masks refer to the pixels, so that no other size may be returned
    reference: user_code.Reference | None = None  # of the image that they are called for

    def __bool__(self) -> bool:
        return self.function is not None or self.keep_if is not None

    def for_image(self, ref: elements.ImageRef) -> ImageFunctions:
        """Returns the functions for the image of a reference."""
        return dataclasses.replace(self, reference=user_code.reference_of(ref, self.columns))

    def start(self) -> None:
        """Makes the functions ready to be called, which may take longer than an image may."""
        for code in (self.function, self.keep_if):
            if code is not None:
                code.start()

    def apply(self, picture: PIL.Image.Image, values: np.ndarray | None = None) -> PIL.Image.Image:
        """Returns an upright picture as it is to be stored, before it is scaled.

        Args:
            picture: the picture; need not be decoded if its pixels are given.
            values: its pixels, uint8 [height, width, channels], which the functions may change.

        Raises:
            BadImageError: if a function leaves the image out, raises, or returns no pixels.
        """
        import numpy as np  # late: a writer process needs 15 MB more with NumPy

        if values is None:
            values = np.array(picture)  # a copy that the user may change
        values = values if values.ndim == 3 else values[:, :, np.newaxis]
        if self.keep_if is not None:
            stays = call(self.keep_if, values if self.function is None else values.copy(), self.reference)
            if not isinstance(stays, (bool, np.bool_)):
                found = user_code.describe_value(stays)
                raise _refuse(self.keep_if, f"returned {found}, expected True or False")
            if not stays:
                raise _left_out(f"{self.keep_if.setting} returned False")
        if self.function is None:
            return picture
        changed = call(self.function, values, self.reference)
        if changed is None:
            raise _left_out(f"{self.function.setting} returned None")
        return self._as_picture(changed, picture, self.function)

    def _as_picture(self, changed: Any, before: PIL.Image.Image, code: user_code.UserCode) -> PIL.Image.Image:
        import numpy as np

        expected = "expected uint8 [height, width, 1 to 4 channels], or None to leave the image out"
        if not isinstance(changed, np.ndarray) or changed.dtype != np.uint8 or changed.ndim not in (2, 3):
            raise _refuse(code, f"returned {user_code.describe_value(changed)}, {expected}")
        changed = changed if changed.ndim == 3 else changed[:, :, np.newaxis]
        height, width, channels = changed.shape
        if not height or not width or channels not in pixels.MODES:
            raise _refuse(code, f"returned {user_code.describe_value(changed)}, {expected}")
        if self.keeps_size and (width, height) != before.size:
            raise _refuse(
                code,
                f"returned {height} x {width} pixels for {before.height} x {before.width}, and the boxes or masks of "
                "the image would be in the wrong place: keep the size, or leave them out by `features`",
            )
        limit = checked_image.MAX_DECODED_PIXELS
        if height * width > limit:
            raise _refuse(code, f"returned {height} x {width} pixels, which are more than {limit:,}")
        mode = pixels.MODES[channels]
        return pillow().frombuffer(mode, (width, height), np.ascontiguousarray(changed).data, "raw", mode, 0, 1)


def call(code: user_code.UserCode, *arguments: Any, max_seconds: float | None = None) -> Any:
    """Returns what a function of the user returns.

    Args:
        code: the function.
        arguments: to call it with.
        max_seconds: time that it may take; None where a `Watch` limits it, which ends the process.

    Raises:
        BadImageError: if it raises, or takes too long.
        ConfigError: if there is no such function in this process.
    """
    function: Callable[..., Any] = code.start()
    try:
        if max_seconds is None:
            return function(*arguments)
        return concurrency.call_in_time(functools.partial(function, *arguments), max_seconds)
    except concurrency.TooSlowError as e:
        raise checked_image.BadImageError(elements.Reason.TOO_SLOW, user_code.too_slow(code, e)) from e
    except (Exception, SystemExit) as e:  # code of the user raises any type
        raise _refuse(code, f"raised {user_code.describe(e)}") from e


def _refuse(code: user_code.UserCode, found: str) -> checked_image.BadImageError:
    return checked_image.BadImageError(elements.Reason.FUNCTION, f"{code.setting} {code.path!r} {found}")


def _left_out(found: str) -> checked_image.BadImageError:
    return checked_image.BadImageError(elements.Reason.FILTERED, found)


NONE = ImageFunctions()
