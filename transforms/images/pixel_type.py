"""The type of stored pixels: which numbers and bands of a file are stored, and as what.

The usual pixels have 8 bits and are pictures of Pillow from the file to the shard. All others are arrays of NumPy,
which only `stored_numbers` and `number_reader` import.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from imagebeam import errors
from imagebeam.transforms.images import checked_image, image_formats

UINT8, UINT16, FLOAT32 = "uint8", "uint16", "float32"
ALL = "all"  # value of `bands`
PICTURE_BANDS = (1, 3)  # numbers of bands that a PNG, JPEG or WebP holds without taking one for alpha
_PACKAGES = ("imagecodecs", "tifffile", "nibabel", "pydicom", "python-gdcm")  # of the extras `bands` and `medical`


@dataclasses.dataclass(frozen=True)
class PixelType:
    """The numbers that are stored of every image, as the config's section `image` says."""

    dtype: str = UINT8  # or uint16, float32
    range: tuple[float, float] | None = None  # what becomes 0 and the largest value of `dtype`; None keeps the numbers
    bands: tuple[int, ...] | str | None = None  # from 1, in the order in which they are stored; ALL; None: all, 1 or 3
    section: str = dataclasses.field(default="image", compare=False)  # of the config, for errors

    @property
    def is_usual(self) -> bool:
        """Whether images are pictures of 8 bits, whose pixels are never arrays."""
        return self == USUAL

    def is_typed(self, encode: str) -> bool:
        """Returns whether readers must know the type: stored pixels have more bits, or bands that are no colors.

        Args:
            encode: image.encode.
        """
        return self.dtype != UINT8 or (self.bands is not None and encode == image_formats.RAW)

    def keeps(self, image: checked_image.Image) -> bool:
        """Returns whether a checked JPEG or PNG has the numbers that are stored, so that its bytes may be kept."""
        if self.is_usual:
            return True
        is_whole = self.dtype == UINT16 and self.range is None and self.bands is None
        is_upright = image.orientation == checked_image.UPRIGHT  # a turn by Pillow would keep 8 bits of a color
        return is_whole and is_upright and image.channels in PICTURE_BANDS and image.dtype == UINT16


USUAL = PixelType()


@dataclasses.dataclass(frozen=True)
class ExtraType:
    """The numbers that are stored of an extra image, where they are not those of pictures."""

    numbers: PixelType
    channels: int

    @property
    def encode(self) -> str:
        """As `ImagePolicy.encode`: no picture format that readers decode holds float32."""
        return image_formats.RAW if self.numbers.dtype == FLOAT32 else "keep"

    def check(self, image: checked_image.Image) -> checked_image.Image:
        """Returns an image if it has the channels that all of its kind must have.

        Raises:
            BadImageError: if not.
        """
        if image.channels != self.channels:
            found = f"{image.channels} channels, and {self.numbers.section}.channels is {self.channels}"
            raise checked_image.other_numbers(found, "change it if all files are so")
        return image


def set_range(section: str) -> str:
    """Returns what to do about numbers that do not fit into the type of those that are stored."""
    return f"set {section}.range: [LOWEST, HIGHEST], which holds for all files, or {section}.dtype: float32"


SET_RANGE = set_range("image")


def several_bands(there: int) -> str:
    """Returns what to do about an image of several bands."""
    chosen = [4, 3, 2] if there > 4 else [1, 2, 3] if there == 4 else [1]
    return f"set image.bands, such as {chosen}, counted from 1; all, with image.encode: raw, stores all of them"


def tifffile() -> Any:
    """Returns the module tifffile, which reads TIFFs of any numbers and bands.

    Raises:
        ConfigError: if it is not installed.
    """
    with errors.imports_for("a TIFF with image.dtype, image.range or image.bands", "bands"):
        import imagecodecs  # noqa: F401  # without it, tifffile decodes few compressions
        import tifffile
    return tifffile


def imagecodecs() -> Any:
    """Returns the module imagecodecs, which reads and writes PNGs of 16 bits a color; Pillow takes the upper 8 alone.

    Raises:
        ConfigError: if it is not installed.
    """
    with errors.imports_for("a PNG of 16 bits a color with image.dtype, image.range or image.bands", "bands"):
        import imagecodecs
    return imagecodecs


def versions() -> dict[str, str]:
    """Returns the versions of the packages that read and write other pixels than the usual ones."""
    from importlib import metadata  # late: 15 ms

    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # needed for some files alone
            continue
    return found
