"""Makes of a file's bytes the image that is stored: checked, and changed where the config asks for it."""

from __future__ import annotations

import dataclasses

from transforms import images


@dataclasses.dataclass(frozen=True)
class ImagePolicy:
    """What is checked and stored of every image."""

    check: str = "structure"  # or "decode"
    raw_shape: tuple[int, int, int] | None = None  # height, width, channels of images that come as bare pixels

    def prepare(self, data: bytes) -> images.Image:
        """The image to store.

        Raises:
            BadImageError: if it is to be rejected.
        """
        if self.raw_shape is not None:
            return images.raw_image(data, self.raw_shape)
        return images.check_image(data, self.check)


AS_IT_IS = ImagePolicy()
