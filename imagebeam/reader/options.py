"""What a reader can be asked for, checked before anything is read."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Sequence
from typing import Any

from imagebeam import errors
from imagebeam.reader import order

SHUFFLES = ("stream", "global", None)
CROPS = ("random", "center", "squash", None)
DECODERS = ("auto", "native", "tensorflow")
DTYPES = ("uint8", "float32", "bfloat16", "float16")
_COUNTS = ("batch_size", "num_epochs", "process_count", "list_size", "shuffle_bytes", "shuffle_records", "threads")
IMAGENET_MEAN = (123.675, 116.28, 103.53)  # of pixels from 0 to 255; torchvision's 0.485, 0.456, 0.406
IMAGENET_STD = (58.395, 57.12, 57.375)  # torchvision's 0.229, 0.224, 0.225

MeanAndStd = tuple[Sequence[float], Sequence[float]]


@dataclasses.dataclass(frozen=True)
class ReadOptions:
    """How a split becomes batches.

    Attributes:
        batch_size: examples of a batch of this process; None gives single examples.
        image_size: side in pixels, or (height, width); None keeps each picture's own.
        crop: "random" (a part of random area and aspect ratio, Inception's), "center" (the largest square, less the
            border), "squash" (the whole picture, whatever its aspect ratio), None (the picture as it is).
        flip: whether half of the pictures are mirrored; by default with the random crop.
        dtype: of the pixels: "uint8" (0 to 255), "float32", "bfloat16" or "float16".
        normalize: (mean, std) of pixels from 0 to 255, one number or one for each channel; "imagenet"; "dataset"
            (of the train split, whatever split is read: as convert counted with statistics.pixels, else measured once
            on 1,000 examples); None leaves 0 to 255.
        shuffle: "stream" (blocks of records in random order, and the records of many blocks mixed), "global" (a true
            permutation of all records), None (the order of the shards).
        seed: of the order, the crops and the flips.
        num_epochs: how often everything is read; None never ends.
        next_epoch_each_iteration: whether each iteration over the dataset reads the next `num_epochs` epochs, with
            their own order, crops and flips; by default each reads the same again. For loops that iterate over one
            dataset many times, as Keras does. All processes must iterate equally often.
        process_index: which of `process_count` processes this is; together they read everything once.
        process_count: how many there are.
        drop_remainder: whether a last batch that is not full is left out. With several processes all of them then make
            the same number of batches.
        pad: whether the last batch is filled up, with "mask" False, and all processes make the same number of batches.
        supervised: whether batches are (image, label), for Keras; with `pad` (image, label, sample_weight), the weights
            float32 [batch], 1 and 0 for the mask.
        features: keys of further features, each under its own name.
        list_size: values that each list among them has in a batch: a shorter one is filled up with 0 or empty bytes,
            a longer one cut, and "KEY/count" says how many there were; None leaves each list its length.
        label_base: id of the first class in the batches; the dataset's own base is taken away.
        num_classes: of the model; labels that do not fit are refused at once. Where an image has any number of labels,
            they are a vector of so many; by default of as many as there are classes.
        deterministic: whether examples come in the exact order; without, what is decoded first comes first, and there
            is no `state()`. With on_error="skip", TensorFlow's decoder keeps the order nevertheless: a gap in it is how
            an example that cannot be decoded is found.
        on_error: "raise" for an example that cannot be read or decoded, or "skip". Batches keep their places in the
            order: with `pad` the mask is False there, with `drop_remainder` the next example that can be read is taken
            twice, else the batch is smaller.
        max_error_fraction: of the examples read since this reader began; more skipped ones end in an error.
        state: where to go on, from `ReaderState`.
        area: least and greatest part of the picture in the random crop.
        aspect_ratio: least and greatest width over height of the random crop.
        center_fraction: of the shorter side, in the center crop: 224 of 256 as in most evaluations.
        shuffle_bytes: of records mixed in "stream".
        shuffle_records: the same as a number of records.
        threads: for reading and decoding; by default the cores of the machine.
        decoder: "native" (in C, a batch in one call), "tensorflow" (its operations, for any format), "auto" (native
            where it was built and every picture of the split is a JPEG). They differ by a level here and there.
    """

    batch_size: int | None = None
    image_size: int | tuple[int, int] | None = 224
    crop: str | None = "random"
    flip: bool | None = None
    dtype: str = "uint8"
    normalize: str | MeanAndStd | None = None
    shuffle: str | None = "stream"
    seed: int = 0
    num_epochs: int | None = None
    next_epoch_each_iteration: bool = False
    process_index: int = 0
    process_count: int = 1
    drop_remainder: bool = True
    pad: bool = False
    supervised: bool = False
    features: Sequence[str] = ()
    list_size: int | None = None
    label_base: int = 0
    num_classes: int | None = None
    deterministic: bool = True
    on_error: str = "raise"
    max_error_fraction: float = 0.01
    state: order.ReaderState | None = None
    area: tuple[float, float] = (0.08, 1.0)
    aspect_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    center_fraction: float = 224 / 256
    shuffle_bytes: int = 256 << 20
    shuffle_records: int | None = None
    threads: int | None = None
    decoder: str = "auto"

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", _whole_number("seed", self.seed))
        _check_choice("shuffle", self.shuffle, SHUFFLES)
        _check_choice("crop", self.crop, CROPS)
        _check_choice("dtype", self.dtype, DTYPES)
        _check_choice("decoder", self.decoder, DECODERS)
        _check_choice("on_error", self.on_error, ("raise", "skip"))
        counts = (
            "batch_size",
            "num_epochs",
            "process_count",
            "list_size",
            "shuffle_bytes",
            "shuffle_records",
            "threads",
        )
        for name in counts:
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise errors.ConfigError(f"{name} is {value!r}; it must be a whole number from 1 on")
        if not 0 <= self.process_index < self.process_count:
            raise errors.ConfigError(
                f"process_index is {self.process_index}, with process_count {self.process_count}: "
                f"it must be 0 to {self.process_count - 1}"
            )
        if self.image_size is not None and min(self.size) < 1:
            raise errors.ConfigError(f"image_size is {self.image_size!r}; it must be at least 1 pixel")
        if self.image_size is None and self.batch_size is not None:
            raise errors.ConfigError(
                "image_size=None keeps each picture's size, of which no batch can be made; give one"
            )
        if (self.crop is None) != (self.image_size is None):
            raise errors.ConfigError(
                f"crop is {self.crop!r} and image_size {self.image_size!r}: without a crop there is no size, and "
                "without a size no crop; give both, or None for both"
            )
        if self.pad and (self.num_epochs is None or self.batch_size is None):
            raise errors.ConfigError("pad=True needs batch_size, and num_epochs, for what never ends has no last batch")
        if self.next_epoch_each_iteration and self.num_epochs is None:
            raise errors.ConfigError(
                "next_epoch_each_iteration=True needs num_epochs, for an iteration that never ends has none after it: "
                "give num_epochs=1"
            )
        if self.next_epoch_each_iteration and self.state is not None:
            raise errors.ConfigError(
                "next_epoch_each_iteration=True begins each iteration with a whole epoch, and a state in the middle of "
                "one: give one of the two"
            )
        if self.dtype == "uint8" and self.normalize is not None:
            raise errors.ConfigError("normalize gives fractions, which uint8 cannot hold; give dtype='float32'")
        for name, (low, high), limit in (("area", self.area, 1.0), ("aspect_ratio", self.aspect_ratio, 100.0)):
            if not 0 < low <= high <= limit:
                raise errors.ConfigError(f"{name} is {(low, high)}; it must be 0 < least <= greatest <= {limit:g}")
        if not 0 < self.center_fraction <= 1:
            raise errors.ConfigError(f"center_fraction is {self.center_fraction}; it must be above 0 and at most 1")

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        assert self.image_size is not None
        return (self.image_size, self.image_size) if isinstance(self.image_size, int) else self.image_size

    @property
    def flips(self) -> bool:
        return self.crop == "random" if self.flip is None else self.flip

    @property
    def drops_remainder(self) -> bool:
        return self.drop_remainder and not self.pad


def _whole_number(name: str, value: Any) -> int:
    """`value` as Python's int, whatever integer type it has."""
    try:
        return int(operator.index(value))
    except TypeError as e:
        raise errors.ConfigError(f"{name} is {value!r}; it must be a whole number") from e


def _check_choice(name: str, value: Any, choices: Sequence[Any]) -> None:
    if value not in choices:
        raise errors.ConfigError(f"{name} is {value!r}; it is one of {', '.join(map(repr, choices))}")
