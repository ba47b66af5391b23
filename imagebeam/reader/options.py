"""The options of a reader, checked before anything is read.

Values are converted to plain Python values, from whatever NumPy or TensorFlow type they have.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import math
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from imagebeam import errors
from imagebeam.reader import record_order

# Converts the value that was given for the option of a name; raises ConfigError if it is of another kind.
Convert = Callable[[str, Any], Any]

_MAX_SIDE = 65_500  # pixels, the largest side of a JPEG
SHUFFLES = ("stream", "global", None)
CROPS = ("random", "center", "resize_shorter", "squash", None)
INTERPOLATIONS = ("bilinear", "bicubic")
DCTS = ("fast", "accurate")
DECODERS = ("auto", "native", "pillow")
DTYPES = ("uint8", "uint16", "float32", "bfloat16", "float16")
IMAGENET_MEAN = (123.675, 116.28, 103.53)  # for pixels from 0 to 255; torchvision's 0.485, 0.456, 0.406
IMAGENET_STD = (58.395, 57.12, 57.375)  # torchvision's 0.229, 0.224, 0.225

MeanAndStd = tuple[Sequence[float], Sequence[float]]


def _check_names(given: Iterable[str], known: Sequence[str]) -> None:
    """Checks that all options exist.

    Raises:
        ConfigError: if one does not; the text names the nearest that does.
    """
    for name in given:
        if name not in known:
            nearest = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {nearest[0]!r}?" if nearest else f"there are {', '.join(known)}"
            raise errors.ConfigError("option-unknown", f"there is no option {name!r}: {hint}")


def bad_value(name: str, value: Any, expected: str) -> errors.ConfigError:
    """Returns the error for a value that an option cannot have."""
    return errors.ConfigError("option-bad-value", f"{name} is {value!r}; {expected}")


def whole(least: int | None = None, *, may_be_none: bool = False) -> Convert:
    """Returns a converter to whole numbers from `least` on."""

    def convert(name: str, value: Any) -> int | None:
        if value is None and may_be_none:
            return None
        number = None if isinstance(value, bool) or not hasattr(value, "__index__") else operator.index(value)
        if number is None or (least is not None and number < least):
            raise bad_value(name, value, "it must be a whole number" + ("" if least is None else f" from {least} on"))
        return number

    return convert


def _truth(*, may_be_none: bool = False) -> Convert:
    """Returns a converter to True or False, also from NumPy's."""

    def convert(name: str, value: Any) -> bool | None:
        if value is None and may_be_none:
            return None
        if type(value).__name__ not in ("bool_", "bool"):
            raise bad_value(name, value, "it must be True or False")
        return bool(value)

    return convert


def _number(name: str, value: Any) -> float:
    """Returns a finite number."""
    found = math.nan
    if not isinstance(value, (str, bytes, bool)):
        with contextlib.suppress(TypeError, ValueError):
            found = float(value)
    if not math.isfinite(found):
        raise bad_value(name, value, "it must be a number")
    return found


def _fraction(*, may_be_zero: bool = False) -> Convert:
    """Returns a converter to numbers up to 1."""

    def convert(name: str, value: Any) -> float:
        found = _number(name, value)
        if not 0 <= found <= 1 or (found == 0 and not may_be_zero):
            raise bad_value(name, value, "it must be 0 to 1" if may_be_zero else "it must be above 0 and at most 1")
        return found

    return convert


def _range(limit: float) -> Convert:
    """Returns a converter to the least and the greatest value of a range, up to `limit`."""

    def convert(name: str, value: Any) -> tuple[float, float]:
        found = _to_list(value)
        if found is None or len(found) != 2:
            raise bad_value(name, value, "it must be two numbers, (least, greatest)")
        low, high = _number(name, found[0]), _number(name, found[1])
        if not 0 < low <= high <= limit:
            raise bad_value(name, (low, high), f"it must be 0 < least <= greatest <= {limit:g}")
        return low, high

    return convert


def _choice(choices: Sequence[Any]) -> Convert:
    """Returns a converter that accepts a few values."""

    def convert(name: str, value: Any) -> Any:
        for each in choices:
            if value is each or (isinstance(value, str) and value == each):
                return each
        nearest = difflib.get_close_matches(str(value), [each for each in choices if each is not None], 1)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        raise bad_value(name, value, f"it is one of {', '.join(map(repr, choices))}{hint}")

    return convert


def _dtype(name: str, value: Any) -> Any:
    """Returns the name of a type, also from NumPy's, TensorFlow's or JAX's type."""
    if not isinstance(value, str):
        # np.float32 and jnp.bfloat16 are classes of scalars, np.dtype and tf.DType have a name.
        for found in (getattr(value, "name", None), getattr(value, "__name__", None)):
            if found in DTYPES:
                return found
    return _choice(DTYPES)(name, value)


def _image_size(name: str, value: Any) -> int | tuple[int, int] | None:
    """Returns a side in pixels, or (height, width)."""
    if value is None:
        return None
    sides = _to_list(value)
    try:
        if isinstance(value, bool) or (sides is not None and len(sides) != 2):
            raise TypeError
        found = [operator.index(side) for side in ([value] if sides is None else sides)]
    except TypeError as e:
        raise bad_value(name, value, "it must be a whole number of pixels, or two of them, (height, width)") from e
    if min(found) < 1:
        raise bad_value(name, value, "it must be at least 1 pixel")
    if max(found) > _MAX_SIDE:
        raise bad_value(name, value, f"it must be at most {_MAX_SIDE:,} pixels")
    return found[0] if sides is None else (found[0], found[1])


def _normalize(name: str, value: Any) -> Any:
    """Returns a name, or mean and standard deviation: one number for all channels, or one for each."""
    names = ("imagenet", "dataset")
    if value is None or (isinstance(value, str) and value in names):
        return value
    expected = f"it is {', '.join(map(repr, names))}, or (mean, std) of pixels from 0 to 255"
    found = _to_list(value)
    if found is None or len(found) != 2:
        raise bad_value(name, value, expected)
    try:
        mean, std = (_channels(name, each) for each in found)
    except (errors.ConfigError, ValueError) as e:
        raise bad_value(name, value, f"{expected}, each one number or one for each channel") from e
    if min(std) <= 0:
        raise bad_value(f"the standard deviation of {name}", found[1], "it must be above 0 in each channel")
    return mean, std


def _channels(name: str, value: Any) -> tuple[float, ...]:
    values = _to_list(value)
    found = tuple(_number(name, each) for each in ([value] if values is None else values))
    if not found:
        raise ValueError("no channel")
    return found


def _keys(name: str, value: Any) -> tuple[str, ...]:
    """Returns keys of features."""
    if isinstance(value, (str, bytes)):
        raise bad_value(name, value, f"it must be a list of keys: give {name}=[{value!r}]")
    found = _to_list(value)
    if found is None or not all(isinstance(each, str) for each in found):
        raise bad_value(name, value, 'it must be a list of keys, such as ["image/key"]')
    return tuple(map(str, found))


def _names(name: str, value: Any) -> tuple[str, ...]:
    """Returns names of extra images, each once."""
    return tuple(dict.fromkeys(_keys(name, value)))


def _weights(name: str, value: Any) -> Any:
    """Returns the key of a feature, or the weights by the id of their class."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, Mapping) or not value:
        raise bad_value(name, value, "it must be {id of a class: weight}, or the key of a feature")
    found = {whole(0)("a class of " + name, key): _number(f"{name}[{key}]", each) for key, each in value.items()}
    if min(found.values()) < 0:
        raise bad_value(name, value, "a weight must be 0 or more")
    return found


def path(name: str, value: Any) -> str:
    """Returns a path or an address."""
    found = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(found, str) or not found:
        raise bad_value(name, value, "it must be a path or an address")
    scheme, colon, rest = found.partition(":/")
    if not isinstance(value, str) and colon and scheme.isalnum() and not rest.startswith("/"):
        raise bad_value(name, value, f"pathlib removes a slash from {scheme}://; give the address as a string")
    return found


def _to_list(value: Any) -> list[Any] | None:
    """Returns the values of a list, tuple, array or the like; None if `value` is none of these."""
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        return None
    try:
        return list(value)
    except TypeError:  # an array without axes
        return None


def _state(name: str, value: Any) -> record_order.ReaderState | None:
    if isinstance(value, Mapping):
        raise bad_value(name, value, "give imagebeam.ReaderState.from_dict of it")
    if value is not None and not isinstance(value, record_order.ReaderState):
        raise bad_value(name, value, "give what state() of an iterator returned")
    return value


def _option(default: Any, convert: Convert) -> Any:
    """Returns the field of an option."""
    return dataclasses.field(default=default, metadata={"convert": convert})


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
        dtype: type of the pixels: "uint8" (0 to 255), "uint16", "float32", "bfloat16" or "float16". A feed's default
            is the stored type, which is uint8 unless a dataset was converted with `image.dtype`. Never scales.
        normalize: (mean, std) of pixels as stored (0 to 255), one number or one for each channel; "imagenet"; "dataset"
            (those of the train split, whatever split is read: as convert counted them with statistics.pixels, else
            measured once on 1,000 examples); None leaves 0 to 255.
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
        images: names of extra images of each example, or "segmentation"; each comes under its name, decoded with the
            crop, flip and size of the image. Its type is that of the image too; a mask is uint8 [..., 1], and an image
            of image.extra_images of its stored type, both resized to the nearest pixel. Under a crop their sides must
            be equal or differ by a whole factor.
        max_images: for a dataset whose examples have lists of images: number of images of each example in a batch,
            whose "image" is [batch, max_images, height, width, channels]. A shorter list is filled up with black
            images, a longer one is cut, and "image/count", int64 [batch], has the stored number. The images of an
            example have the same flip, and the same crop as far as their sides are equal.
        list_size: number of values of each list without a shape among them: a shorter list is filled up with 0 or empty
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
        prefetch: number of batches that are ready ahead of the trainer, besides those being made.
        decoder: "auto" (JPEG and PNG in C, other formats with Pillow), "native" (refuses what the code in C cannot
            decode), "pillow" (all images with Pillow and NumPy, slowly; where there is no C compiler).
    """

    batch_size: int | None = _option(None, whole(1, may_be_none=True))
    image_size: int | tuple[int, int] | None = _option(224, _image_size)
    crop: str | None = _option("random", _choice(CROPS))
    flip: bool | None = _option(None, _truth(may_be_none=True))
    dtype: str = _option("uint8", _dtype)
    normalize: str | MeanAndStd | None = _option(None, _normalize)  # noqa: RUF009
    shuffle: str | None = _option("stream", _choice(SHUFFLES))
    seed: int = _option(0, whole())
    num_epochs: int | None = _option(None, whole(1, may_be_none=True))
    first_epoch: int = _option(0, whole(0))
    next_epoch_each_iteration: bool = _option(False, _truth())
    process_index: int = _option(0, whole())
    process_count: int = _option(1, whole(1))
    drop_remainder: bool = _option(True, _truth())
    pad: bool = _option(False, _truth())
    supervised: bool = _option(False, _truth())
    weights: str | Mapping[int, float] | None = _option(None, _weights)
    features: Sequence[str] = _option((), _keys)
    images: Sequence[str] = _option((), _names)
    max_images: int | None = _option(None, whole(1, may_be_none=True))
    list_size: int | None = _option(None, whole(1, may_be_none=True))
    label_base: int = _option(0, whole(0))
    num_classes: int | None = _option(None, whole(1, may_be_none=True))
    deterministic: bool = _option(True, _truth())
    on_error: str = _option("raise", _choice(("raise", "skip")))
    max_error_fraction: float = _option(0.01, _fraction(may_be_zero=True))
    state: record_order.ReaderState | None = _option(None, _state)  # noqa: RUF009
    area: tuple[float, float] = _option((0.08, 1.0), _range(1.0))
    aspect_ratio: tuple[float, float] = _option((3 / 4, 4 / 3), _range(100.0))
    center_fraction: float = _option(224 / 256, _fraction())
    interpolation: str = _option("bilinear", _choice(INTERPOLATIONS))
    antialias: bool = _option(False, _truth())
    dct: str = _option("fast", _choice(DCTS))
    shuffle_bytes: int = _option(256 << 20, whole(1))
    shuffle_records: int | None = _option(None, whole(1, may_be_none=True))
    threads: int | None = _option(None, whole(1, may_be_none=True))
    prefetch: int = _option(2, whole(1))
    decoder: str = _option("auto", _choice(DECODERS))

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
        _check_names(options, [field.name for field in dataclasses.fields(cls)])
        if not is_train and "shuffle" not in options:
            raise errors.ConfigError(
                "shuffle-missing",
                "this is not the split 'train': give shuffle=None to evaluate on it (then the defaults are "
                'num_epochs=1, crop="center", pad=True), or shuffle="stream" to train on it (random crops, without '
                "end, only full batches)",
            )
        defaults: dict[str, Any] = {}
        if options.get("shuffle", "stream") is None:
            is_whole = "image_size" in options and options["image_size"] is None
            defaults = {"num_epochs": 1, "crop": None if is_whole else "center", "drop_remainder": False}
            is_endless = options.get("num_epochs", 1) is None
            defaults["pad"] = batch_size is not None and not is_endless and "drop_remainder" not in options
        return cls(**{"batch_size": batch_size, **defaults, **options})

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, field.metadata["convert"](field.name, getattr(self, field.name)))
        count = self.process_count
        if not 0 <= self.process_index < count:
            expected = f"with process_count {count}: it must be 0 to {count - 1}"
            raise errors.ConfigError("option-bad-value", f"process_index is {self.process_index}, {expected}")
        for text in self._conflicts():
            raise errors.ConfigError("options-conflict", text)

    def _conflicts(self) -> Iterator[str]:
        """Yields an error text for each pair of options that do not fit each other."""
        if self.image_size is None and self.batch_size is not None:
            yield "image_size=None keeps the size of each image, and a batch needs images of one size; give one"
        if (self.crop is None) != (self.image_size is None):
            yield (
                f"crop is {self.crop!r} and image_size {self.image_size!r}: without a crop there is no size, and "
                "without a size no crop; give both, or None for both"
            )
        if self.crop is None and (self.antialias or self.interpolation != "bilinear"):
            yield (
                f"interpolation is {self.interpolation!r} and antialias {self.antialias}, and crop=None resizes "
                "nothing: leave them out, or give image_size and a crop"
            )
        if self.pad and (self.num_epochs is None or self.batch_size is None):
            yield "pad=True needs batch_size and num_epochs, because a reader that never ends has no last batch"
        if self.next_epoch_each_iteration and self.num_epochs is None:
            yield (
                "next_epoch_each_iteration=True needs num_epochs, because no iteration follows one that never ends: "
                "give num_epochs=1"
            )
        if self.next_epoch_each_iteration and self.state is not None:
            yield (
                "next_epoch_each_iteration=True begins each iteration with a whole epoch, and a state is in the middle "
                "of one: give one of the two"
            )
        if self.dtype in ("uint8", "uint16") and self.normalize is not None:
            yield f"normalize gives fractions, which {self.dtype} cannot hold; give dtype='float32'"
        if self.supervised and self.images:
            yield (
                f"supervised=True gives (image, label), which has no room for images={self.images!r}: take batches by "
                "name, and map them to pairs"
            )
        if self.supervised and self.max_images is not None:
            yield (
                f"supervised=True gives (image, label), which has no room for the number of images that max_images="
                f"{self.max_images} goes with: take batches by name, and map them to pairs"
            )
        if self.supervised and self.features:
            yield (
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
