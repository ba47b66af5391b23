"""The options of a reader, checked before anything is read."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from imagebeam import errors
from imagebeam.reader import option_values, reader_state

SHUFFLES = ("stream", "global", None)
CROPS = ("random", "center", "resize_shorter", "squash", None)
INTERPOLATIONS = ("bilinear", "bicubic")
DCTS = ("fast", "accurate")
DECODERS = ("auto", "native", "tensorflow")
DTYPES = ("uint8", "float32", "bfloat16", "float16")
IMAGENET_MEAN = (123.675, 116.28, 103.53)  # of pixels from 0 to 255; torchvision's 0.485, 0.456, 0.406
IMAGENET_STD = (58.395, 57.12, 57.375)  # torchvision's 0.229, 0.224, 0.225

MeanAndStd = tuple[Sequence[float], Sequence[float]]


@dataclasses.dataclass(frozen=True)
class ReadOptions:
    """The options for reading a split in batches.

    The defaults below are for training. With `shuffle=None` the feeds have those of an evaluation: num_epochs=1,
    crop="center" and pad=True (if there are batches), so that every example counts once. For a split other than "train"
    a feed must be given `shuffle`.

    Attributes:
        batch_size: number of examples in a batch of this process; None gives single examples.
        image_size: side in pixels, or (height, width); None keeps the size of each image.
        crop: "random" (a part of random area and aspect ratio, as Inception's), "center" (the largest square less a
            border), "resize_shorter" (the image resized until its shorter side is image_size / center_fraction, and the
            middle of that, as torchvision's Resize and CenterCrop), "squash" (the whole image, whatever its aspect
            ratio), None (the image as it is).
        flip: whether half of the images are mirrored; by default only with the random crop.
        dtype: type of the pixels: "uint8" (0 to 255), "float32", "bfloat16" or "float16".
        normalize: (mean, std) of pixels from 0 to 255, one number or one for each channel; "imagenet"; "dataset" (those
            of the train split, whatever split is read: as convert counted them with statistics.pixels, else measured
            once on 1,000 examples); None leaves 0 to 255.
        shuffle: "stream" (blocks of records in random order, and the records of many blocks mixed), "global" (a true
            permutation of all records), None (the order of the shards).
        seed: seed of the order, the crops and the flips.
        num_epochs: number of times that everything is read; None never ends.
        first_epoch: the epoch that is read first, from 0: where a loop goes on that counts epochs, as Keras'
            `initial_epoch` does. `num_epochs` counts from it.
        next_epoch_each_iteration: whether each iteration over the dataset reads the next `num_epochs` epochs, with
            their own order, crops and flips; by default each iteration reads the same. For loops that iterate over one
            dataset many times, as Keras does. All processes must iterate equally often.
        process_index: index of this process among `process_count`; together they read everything once.
        process_count: number of processes.
        drop_remainder: whether a last batch that is not full is dropped. All processes then make the same number of
            batches.
        pad: whether the last batch is filled up, with "mask" False, and all processes make the same number of batches.
        supervised: whether batches are (image, label), for Keras; with `pad` (image, label, sample_weight), the weights
            float32 [batch], 0 where the mask is False, else 1.
        weights: weight of each example: {id of a class: weight} for all classes, with the ids that the batches have, or
            the key of a feature with a number. It comes as "weight", float32 [batch], or with `supervised` as
            (image, label, weight); 0 where the mask is False.
        features: keys of further features; each comes under its own key, as it is stored.
        list_size: number of values of each list among them in a batch: a shorter list is filled up with 0 or empty
            bytes, a longer one is cut, and "KEY/count" has the stored number; None keeps the length of each list.
        label_base: id of the first class in the batches, whatever it is in the records.
        num_classes: number of classes of the model; labels that do not fit are refused at once. If images may have
            several labels, it is the length of the label vector, by default the number of classes.
        deterministic: whether examples come in the exact order. Without it, what is decoded first comes first, and
            there is no `state()`.
        on_error: "raise" for an example that cannot be read or decoded, or "skip". Batches keep their places in the
            order: with `pad` the mask is False there, with `drop_remainder` the next example that can be read comes
            twice, else the batch is smaller.
        max_error_fraction: largest fraction of skipped examples among those read since this reader began; more are an
            error.
        state: where to go on, from `ReaderState`.
        area: least and greatest part of the image's area in the random crop.
        aspect_ratio: least and greatest width over height of the random crop.
        center_fraction: part of the shorter side in the center crop: 224 of 256 as in most evaluations.
        interpolation: how pixels are computed when an image is resized: "bilinear" or "bicubic".
        antialias: whether a pixel of an image that becomes smaller is computed from all pixels that it covers; without
            it from the nearest 4 (bilinear) or 16 (bicubic).
        dct: how the blocks of a JPEG are decoded: "fast" (as TensorFlow by default), "accurate" (as Pillow).
        shuffle_bytes: bytes of records that "stream" mixes.
        shuffle_records: the same as a number of records.
        threads: number of threads that read and decode; by default the number of cores that this process may use,
            within the CPU limit of its container.
        decoder: "native" (in C, a batch in one call), "tensorflow" (its operations, for any format), "auto" (native if
            it was built and every image of the split is a JPEG or a PNG). Their pixels differ slightly, as
            docs/reader.md says.
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
    first_epoch: int = 0
    next_epoch_each_iteration: bool = False
    process_index: int = 0
    process_count: int = 1
    drop_remainder: bool = True
    pad: bool = False
    supervised: bool = False
    weights: str | Mapping[int, float] | None = None
    features: Sequence[str] = ()
    list_size: int | None = None
    label_base: int = 0
    num_classes: int | None = None
    deterministic: bool = True
    on_error: str = "raise"
    max_error_fraction: float = 0.01
    state: reader_state.ReaderState | None = None
    area: tuple[float, float] = (0.08, 1.0)
    aspect_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    center_fraction: float = 224 / 256
    interpolation: str = "bilinear"
    antialias: bool = False
    dct: str = "fast"
    shuffle_bytes: int = 256 << 20
    shuffle_records: int | None = None
    threads: int | None = None
    decoder: str = "auto"

    @classmethod
    def of(cls, batch_size: int | None, options: Mapping[str, Any], is_train: bool = True) -> ReadOptions:
        """Returns the options that a feed was called with, and the defaults that fit what it is for.

        Args:
            batch_size: as in the options.
            options: the options that were given.
            is_train: whether a training split is read, for which `shuffle` has a default.

        Raises:
            ConfigError: if an option does not exist, or the options do not fit each other.
        """
        option_values.check_names(options, [field.name for field in dataclasses.fields(cls)])
        if not is_train and "shuffle" not in options:
            raise errors.ConfigError(
                "this is not the split 'train': give shuffle=None to evaluate on it (then the defaults are "
                'num_epochs=1, crop="center", pad=True), or shuffle="stream" to train on it (random crops, without '
                "end, only full batches)"
            )
        defaults: dict[str, Any] = {}
        if options.get("shuffle", "stream") is None:
            is_whole = "image_size" in options and options["image_size"] is None
            defaults = {"num_epochs": 1, "crop": None if is_whole else "center", "drop_remainder": False}
            is_endless = options.get("num_epochs", 1) is None
            defaults["pad"] = batch_size is not None and not is_endless and "drop_remainder" not in options
        return cls(**{"batch_size": batch_size, **defaults, **options})

    def __post_init__(self) -> None:
        for name, value in option_values.plain_values(vars(self), _KINDS).items():
            object.__setattr__(self, name, value)
        if not 0 <= self.process_index < self.process_count:
            raise errors.ConfigError(
                f"process_index is {self.process_index}, with process_count {self.process_count}: "
                f"it must be 0 to {self.process_count - 1}"
            )
        if self.image_size is None and self.batch_size is not None:
            raise errors.ConfigError(
                "image_size=None keeps the size of each image, and a batch needs images of one size; give one"
            )
        if (self.crop is None) != (self.image_size is None):
            raise errors.ConfigError(
                f"crop is {self.crop!r} and image_size {self.image_size!r}: without a crop there is no size, and "
                "without a size no crop; give both, or None for both"
            )
        if self.crop is None and (self.antialias or self.interpolation != "bilinear"):
            raise errors.ConfigError(
                f"interpolation is {self.interpolation!r} and antialias {self.antialias}, and crop=None resizes "
                "nothing: leave them out, or give image_size and a crop"
            )
        if self.pad and (self.num_epochs is None or self.batch_size is None):
            raise errors.ConfigError(
                "pad=True needs batch_size and num_epochs, because a reader that never ends has no last batch"
            )
        if self.next_epoch_each_iteration and self.num_epochs is None:
            raise errors.ConfigError(
                "next_epoch_each_iteration=True needs num_epochs, because no iteration follows one that never ends: "
                "give num_epochs=1"
            )
        if self.next_epoch_each_iteration and self.state is not None:
            raise errors.ConfigError(
                "next_epoch_each_iteration=True begins each iteration with a whole epoch, and a state is in the middle "
                "of one: give one of the two"
            )
        if self.dtype == "uint8" and self.normalize is not None:
            raise errors.ConfigError("normalize gives fractions, which uint8 cannot hold; give dtype='float32'")
        for name, (low, high), limit in (("area", self.area, 1.0), ("aspect_ratio", self.aspect_ratio, 100.0)):
            if not 0 < low <= high <= limit:
                raise errors.ConfigError(f"{name} is {(low, high)}; it must be 0 < least <= greatest <= {limit:g}")
        if not 0 < self.center_fraction <= 1:
            raise errors.ConfigError(f"center_fraction is {self.center_fraction:g}; it must be above 0 and at most 1")
        if not 0 <= self.max_error_fraction <= 1:
            raise errors.ConfigError(f"max_error_fraction is {self.max_error_fraction:g}; it must be 0 to 1")
        if self.supervised and self.features:
            raise errors.ConfigError(
                f"supervised=True gives (image, label), which has no room for features={self.features!r}: leave them "
                "out, or take batches by name and map them to pairs"
            )

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
        return self.crop == "random" if self.flip is None else self.flip

    @property
    def drops_remainder(self) -> bool:
        return self.drop_remainder and not self.pad


def _state(name: str, value: Any) -> reader_state.ReaderState | None:
    if isinstance(value, Mapping):
        raise errors.ConfigError(f"{name} is a dict, {value!r}; give imagebeam.ReaderState.from_dict of it")
    if value is not None and not isinstance(value, reader_state.ReaderState):
        raise errors.ConfigError(f"{name} is {value!r}; give what state() of an iterator returned")
    return value


_KINDS: Mapping[str, option_values.Convert] = {
    "batch_size": option_values.whole(1, may_be_none=True),
    "image_size": option_values.image_size,
    "crop": option_values.choice(CROPS),
    "flip": option_values.truth(may_be_none=True),
    "dtype": option_values.dtype(DTYPES),
    "normalize": option_values.normalize,
    "shuffle": option_values.choice(SHUFFLES),
    "seed": option_values.whole(),
    "num_epochs": option_values.whole(1, may_be_none=True),
    "first_epoch": option_values.whole(0),
    "next_epoch_each_iteration": option_values.truth(),
    "process_index": option_values.whole(),
    "process_count": option_values.whole(1),
    "drop_remainder": option_values.truth(),
    "pad": option_values.truth(),
    "supervised": option_values.truth(),
    "weights": option_values.weights,
    "features": option_values.keys,
    "list_size": option_values.whole(1, may_be_none=True),
    "label_base": option_values.whole(0),
    "num_classes": option_values.whole(1, may_be_none=True),
    "deterministic": option_values.truth(),
    "on_error": option_values.choice(("raise", "skip")),
    "max_error_fraction": option_values.number,
    "state": _state,
    "area": option_values.pair,
    "aspect_ratio": option_values.pair,
    "center_fraction": option_values.number,
    "interpolation": option_values.choice(INTERPOLATIONS),
    "antialias": option_values.truth(),
    "dct": option_values.choice(DCTS),
    "shuffle_bytes": option_values.whole(1),
    "shuffle_records": option_values.whole(1, may_be_none=True),
    "threads": option_values.whole(1, may_be_none=True),
    "decoder": option_values.choice(DECODERS),
}
