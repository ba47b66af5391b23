"""Options of pictures: which part of an image a batch has, in which size and as which numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from imagebeam.reader import option_values

MAX_PATCHES = 1024  # by default


@dataclasses.dataclass(frozen=True)
class PictureOptions:
    """What becomes of an image.

    Attributes:
        image_size: side in pixels, or (height, width); None keeps the size of each image.
        crop: "random" (a part of random area and aspect ratio, as Inception's), "cover" (the largest part with the
            aspect ratio of image_size, at a random place), "center" (the largest such part in the middle, less a
            border), "resize_shorter" (the image resized until its shorter side is image_size / center_fraction, and the
            middle of that, as torchvision's Resize and CenterCrop), "squash" (the whole image, whatever its aspect
            ratio), "letterbox" (the whole image in its aspect ratio, in the middle of `fill`), "pad" (a part of random
            place, not resized, of the image with a border of `pad_pixels`), None (the image as it is).
        flip: whether half of the images are mirrored; by default only with crop="random" and "pad".
        dtype: type of the pixels: "uint8" (0 to 255), "uint16", "float32", "bfloat16" or "float16". A feed's default
            is the stored type, which is uint8 unless a dataset was converted with `image.dtype`. Never scales.
        normalize: (mean, std) of pixels as stored (0 to 255), one number or one for each channel; "imagenet"; "dataset"
            (those of the train split, whatever split is read: as convert counted them with statistics.pixels, else
            measured once on 1,000 examples); None leaves 0 to 255.
        area: least and greatest part of the image's area in the random crop.
        aspect_ratio: least and greatest width over height of the random crop.
        center_fraction: part of the shorter side in the center crop: 224 of 256 as in most evaluations.
        max_enlarge: greatest factor by which an image may be enlarged to cover its size; None for any. It is of the
            whole image: the part that crop="random" takes is enlarged by more.
        too_small: what becomes of images for which no bucket is small enough: "drop", or "pad" for an image enlarged by
            max_enlarge in the middle of `fill`, in the bucket that its aspect ratio fits. Without buckets "pad" is of
            images that their crop would enlarge by more.
        patches: side of the patches, in pixels, that images come in, in place of "image": each image is resized, in its
            aspect ratio, to as many whole patches as fit into max_patches, and a batch has "patches", [batch,
            max_patches, patches * patches * channels], "patch_coord", int32 [batch, max_patches, 2], row and column of
            each, and "patch_valid", bool [batch, max_patches]. Names and layout as of timm's NaFlex.
        max_patches: see `patches`; by default 1024.
        interpolation: how pixels are computed when an image is resized: "bilinear" or "bicubic".
        antialias: whether a pixel of an image that becomes smaller is computed from all pixels that it covers; without
            it from the nearest 4 (bilinear) or 16 (bicubic).
        dct: how the blocks of a JPEG are decoded: "fast" (as TensorFlow by default), "accurate" (as Pillow).
        decoder: "auto" (JPEG and PNG in C, other formats with Pillow), "native" (refuses what the code in C cannot
            decode), "pillow" (all images with Pillow and NumPy, slowly; where there is no C compiler).
        pad_pixels: border of crop="pad".
        fill: levels of the border of "pad" and "letterbox", and of what is erased, before `normalize`: one of 0 to 255,
            or red, green and blue.
        color_jitter: random changes of the colors of "image", as torchvision's ColorJitter: {"brightness": 0.4,
            "contrast": 0.4, "saturation": 0.4, "hue": 0.1}, each left out, a number or (least, greatest).
        erasing: probability that a random part of "image" is erased, as torchvision's RandomErasing.
    """

    image_size: int | tuple[int, int] | None = option_values.option(224, option_values.image_size)
    crop: str | None = option_values.option("random", option_values.choice(option_values.CROPS))
    flip: bool | None = option_values.option(None, option_values.truth(may_be_none=True))
    dtype: str = option_values.option("uint8", option_values.dtype)
    normalize: str | option_values.MeanAndStd | None = option_values.option(None, option_values.normalize)  # noqa: RUF009
    area: tuple[float, float] = option_values.option((0.08, 1.0), option_values.limits(1.0))
    aspect_ratio: tuple[float, float] = option_values.option((3 / 4, 4 / 3), option_values.limits(100.0))
    center_fraction: float = option_values.option(224 / 256, option_values.fraction())
    max_enlarge: float | None = option_values.option(None, option_values.positive(may_be_none=True))
    too_small: str = option_values.option("drop", option_values.choice(("drop", "pad")))
    patches: int | None = option_values.option(None, option_values.whole(1, option_values.MAX_SIDE, may_be_none=True))
    max_patches: int | None = option_values.option(None, option_values.whole(1, 1 << 20, may_be_none=True))
    interpolation: str = option_values.option("bilinear", option_values.choice(option_values.INTERPOLATIONS))
    antialias: bool = option_values.option(False, option_values.truth())
    dct: str = option_values.option("fast", option_values.choice(option_values.DCTS))
    decoder: str = option_values.option("auto", option_values.choice(option_values.DECODERS))
    pad_pixels: int = option_values.option(4, option_values.whole(0, option_values.MAX_SIDE))
    fill: tuple[int, ...] = option_values.option((0, 0, 0), option_values.fill)
    color_jitter: Mapping[str, Any] | tuple[tuple[float, float], ...] | None = option_values.option(
        None, option_values.color_jitter
    )
    erasing: float = option_values.option(0.0, option_values.fraction(may_be_zero=True))

    def conflicts_of_patches(self) -> Iterator[str]:
        """Yields an error text for each option that does not fit patches."""
        if self.patches is None:
            if self.max_patches is not None:
                yield f"max_patches is {self.max_patches}, and images come whole: give patches, or leave it out"
            return
        if self.image_size is not None or self.crop is not None:
            yield (
                f"patches takes whole images in sizes of their own, and image_size is {self.image_size!r} and crop "
                f"{self.crop!r}: leave them out"
            )
        if self.pads_small:
            yield 'too_small="pad" pads images of one size, and patches has images of any: leave it out'

    def conflicts_of_pictures(self) -> Iterator[str]:
        """Yields an error text for each of these options that does not fit the others."""
        if (self.crop is None) != (self.image_size is None):
            yield (
                f"crop is {self.crop!r} and image_size {self.image_size!r}: without a crop there is no size, and "
                "without a size no crop; give both, or None for both"
            )
        if self.crop is None and (self.antialias or self.interpolation != "bilinear") and self.patches is None:
            yield (
                f"interpolation is {self.interpolation!r} and antialias {self.antialias}, and crop=None resizes "
                "nothing: leave them out, or give image_size and a crop"
            )
        if self.crop is None and self.changes_images:
            yield "color_jitter and erasing change images of one size, and crop=None keeps their own: give a crop"
        if self.pads_small and self.crop in (None, "pad", "squash") and self.patches is None:
            yield (
                f'too_small="pad" limits by how much an image is enlarged in its aspect ratio, and crop is '
                f'{self.crop!r}: give another crop, such as "letterbox" for whole images, or leave it out'
            )
        if self.crop == "pad" and self.pad_pixels >= min(self.size):
            yield f"pad_pixels is {self.pad_pixels}, and crops of {min(self.size)} px could be all border: give less"
        if self.dtype in ("uint8", "uint16") and self.normalize is not None:
            yield f"normalize gives fractions, which {self.dtype} cannot hold; give dtype='float32'"

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the images in a batch, in pixels."""
        assert self.image_size is not None
        return (self.image_size, self.image_size) if isinstance(self.image_size, int) else self.image_size

    @property
    def filters(self) -> bool:
        """Whether images are resized with a filter over their pixels; else bilinearly from the four nearest."""
        return self.antialias or self.interpolation != "bilinear" or self.crop == "resize_shorter"

    @property
    def flips(self) -> bool:
        return self.crop in ("random", "pad") if self.flip is None else self.flip

    @property
    def changes_images(self) -> bool:
        """Whether colors or parts of images change at random."""
        return self.color_jitter is not None or self.erasing > 0

    @property
    def places_images(self) -> bool:
        """Whether images do not fill their place in a batch."""
        return self.crop in ("letterbox", "pad") or self.pads_small

    @property
    def pads_small(self) -> bool:
        """Whether images too small for their size are not enlarged to it."""
        return self.max_enlarge is not None and self.too_small == "pad"
