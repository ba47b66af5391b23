"""The options of a reader, checked before anything is read.

Values are converted to plain Python values, from whatever NumPy or TensorFlow type they have.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from imagebeam import errors
from imagebeam.reader import object_options, option_values, record_order

# Options that each view may have of its own: which part it takes, and what changes at random.
_OF_VIEWS = ("crop", "flip", "area", "aspect_ratio", "center_fraction", "pad_pixels", "color_jitter", "erasing")

_MAX_PATCHES = 1024
OF_PATCHES = ("patches", "patch_coord", "patch_valid")  # names in a batch, those of timm's NaFlex


class Picture(NamedTuple):
    """What a batch holds of each image under one name."""

    name: str
    number: int | None  # of views; None for the image itself, without an axis of views
    options: ReadOptions  # with the size, crop and changes of these views


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


def _name_of(function: Any) -> str:
    """Returns module and name of a function, of the class of an object that is called, or of what a partial calls."""
    while isinstance(function, functools.partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}:{named.__qualname__}"


def _option(default: Any, convert: option_values.Convert) -> Any:
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
        shuffle: "stream" (blocks of records in random order, and the records of many blocks mixed), "global" (a true
            permutation of all records), None (the order of the shards).
        seed: seed of the order, the crops and the flips.
        num_epochs: number of times that everything is read; None never ends.
        buckets: sizes (height, width) of batches, each of one of them, such as `imagebeam.aspect_buckets` makes: an
            image comes in the bucket that loses the smallest part of it. It is resized to cover the size and cropped
            (crop is "cover", with `pad` "center", and center_fraction 1). Needs shuffle="global", which is then the
            default. All processes have the same bucket in each step. See docs/buckets.md.
        max_pixels: with `buckets`, greatest number of pixels in a batch of all processes together, in place of
            batch_size: each bucket then has a batch size of its own.
        batch_multiple: with `max_pixels`, number that these batch sizes are multiples of; by default that of processes,
            of `as_jax` that of the parts that the sharding makes, with an input_context that of all replicas. A job
            that goes on with other numbers needs one that all of them divide.
        max_enlarge: greatest factor by which an image may be enlarged to cover its size; None for any.
        too_small: what becomes of images for which no bucket is small enough: "drop", or "pad" for an image enlarged by
            max_enlarge in the middle of `fill`, in the bucket that its aspect ratio fits.
        patches: side of the patches, in pixels, that images come in, in place of "image": each image is resized, in its
            aspect ratio, to as many whole patches as fit into max_patches, and a batch has "patches", [batch,
            max_patches, patches * patches * channels], "patch_coord", int32 [batch, max_patches, 2], row and column of
            each, and "patch_valid", bool [batch, max_patches]. Names and layout as of timm's NaFlex.
        max_patches: see `patches`; by default 1024.
        repeats: number of times that each record comes in a row in an epoch, each with its own crop, flip, changes and
            random numbers of `map`: repeated augmentation. Epochs are so many times as long. For training alone.
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
        objects: an `Objects`: boxes, masks and keypoints of the objects, moved with the pixels.
        segmentation: a `Segmentation`: the mask of classes of the image, moved with the pixels.
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
        pad_pixels: border of crop="pad".
        fill: levels of the border of "pad" and "letterbox", and of what is erased, before `normalize`: one of 0 to 255,
            or red, green and blue.
        color_jitter: random changes of the colors of "image", as torchvision's ColorJitter: {"brightness": 0.4,
            "contrast": 0.4, "saturation": 0.4, "hue": 0.1}, each left out, a number or (least, greatest).
        erasing: probability that a random part of "image" is erased, as torchvision's RandomErasing.
        views: several views of each image, read and decoded once, in place of "image": {"global": (2, 224), "local":
            (8, 96, {"area": (0.05, 0.4)})} gives "global", [batch, 2, 224, 224, channels], and "local". After the
            number and the size, which is as `image_size`, each name may have its own crop, flip, area, aspect_ratio,
            center_fraction, pad_pixels, color_jitter and erasing; those of the reader are the defaults. Each view has
            random numbers of its own, which its name and number decide.
        map: fn(example, rng) -> example, called on each example before its batch is padded, on several threads. An
            example is a dict by name, of arrays and numbers as they are in a batch. `rng` is a numpy Generator that
            depends on seed, epoch, record and copy alone. What it returns must have the same names, shapes and types
            for all examples; it is first called on a black one. An exception is an error of the example (`on_error`).
        batch_map: fn(batch, rng) -> batch, called on each batch of this process, padded and with all its names. `rng`
            depends on the seed and on how many examples the job has read; it is the same in all processes.
        map_id: name of `map` and `batch_map` in a state, which a reader with another one refuses. By default the module
            and name of the functions.
        map_workers: number of processes that call `map`, for functions that hold Python's lock: `map` must be at the
            top of a module. With 0 the threads of the reader call it.
        metadata: whether a batch has "epoch" and "record" (its number in the split), with `repeats` also "copy" (from
            0), int64 [batch], and "seed", uint32 [batch, 2], which depends on seed, epoch, record and copy alone: for
            augmentation on the device.
    """

    batch_size: int | None = _option(None, option_values.whole(1, may_be_none=True))
    image_size: int | tuple[int, int] | None = _option(224, option_values.image_size)
    crop: str | None = _option("random", option_values.choice(option_values.CROPS))
    flip: bool | None = _option(None, option_values.truth(may_be_none=True))
    dtype: str = _option("uint8", option_values.dtype)
    normalize: str | option_values.MeanAndStd | None = _option(None, option_values.normalize)  # noqa: RUF009
    shuffle: str | None = _option("stream", option_values.choice(option_values.SHUFFLES))
    seed: int = _option(0, option_values.whole())
    num_epochs: int | None = _option(None, option_values.whole(1, may_be_none=True))
    buckets: tuple[tuple[int, int], ...] | None = _option(None, option_values.buckets)
    max_pixels: int | None = _option(None, option_values.whole(1, may_be_none=True))
    batch_multiple: int | None = _option(None, option_values.whole(1, may_be_none=True))
    max_enlarge: float | None = _option(None, option_values.positive(may_be_none=True))
    too_small: str = _option("drop", option_values.choice(("drop", "pad")))
    patches: int | None = _option(None, option_values.whole(1, may_be_none=True))
    max_patches: int | None = _option(None, option_values.whole(1, may_be_none=True))
    repeats: int = _option(1, option_values.whole(1))
    first_epoch: int = _option(0, option_values.whole(0))
    next_epoch_each_iteration: bool = _option(False, option_values.truth())
    process_index: int = _option(0, option_values.whole())
    process_count: int = _option(1, option_values.whole(1))
    drop_remainder: bool = _option(True, option_values.truth())
    pad: bool = _option(False, option_values.truth())
    supervised: bool = _option(False, option_values.truth())
    weights: str | Mapping[int, float] | None = _option(None, option_values.weights)
    features: Sequence[str] = _option((), option_values.keys)
    images: Sequence[str] = _option((), option_values.names)
    objects: object_options.Objects | None = _option(None, option_values.instance(object_options.Objects))  # noqa: RUF009
    segmentation: object_options.Segmentation | None = _option(  # noqa: RUF009
        None, option_values.instance(object_options.Segmentation)
    )
    max_images: int | None = _option(None, option_values.whole(1, may_be_none=True))
    list_size: int | None = _option(None, option_values.whole(1, may_be_none=True))
    label_base: int = _option(0, option_values.whole(0))
    num_classes: int | None = _option(None, option_values.whole(1, may_be_none=True))
    deterministic: bool = _option(True, option_values.truth())
    on_error: str = _option("raise", option_values.choice(("raise", "skip")))
    max_error_fraction: float = _option(0.01, option_values.fraction(may_be_zero=True))
    state: record_order.ReaderState | None = _option(None, option_values.state)  # noqa: RUF009
    area: tuple[float, float] = _option((0.08, 1.0), option_values.limits(1.0))
    aspect_ratio: tuple[float, float] = _option((3 / 4, 4 / 3), option_values.limits(100.0))
    center_fraction: float = _option(224 / 256, option_values.fraction())
    interpolation: str = _option("bilinear", option_values.choice(option_values.INTERPOLATIONS))
    antialias: bool = _option(False, option_values.truth())
    dct: str = _option("fast", option_values.choice(option_values.DCTS))
    shuffle_bytes: int = _option(256 << 20, option_values.whole(1))
    shuffle_records: int | None = _option(None, option_values.whole(1, may_be_none=True))
    threads: int | None = _option(None, option_values.whole(1, may_be_none=True))
    prefetch: int = _option(2, option_values.whole(1))
    decoder: str = _option("auto", option_values.choice(option_values.DECODERS))
    pad_pixels: int = _option(4, option_values.whole(0))
    fill: tuple[int, ...] = _option((0, 0, 0), option_values.fill)
    color_jitter: Mapping[str, Any] | tuple[tuple[float, float], ...] | None = _option(None, option_values.color_jitter)
    erasing: float = _option(0.0, option_values.fraction(may_be_zero=True))
    views: Mapping[str, Sequence[Any]] | None = _option(None, option_values.views)
    map: Callable[..., Mapping[str, Any]] | None = _option(None, option_values.function)  # noqa: RUF009
    batch_map: Callable[..., Mapping[str, Any]] | None = _option(None, option_values.function)  # noqa: RUF009
    map_id: str | None = _option(None, option_values.text)
    map_workers: int = _option(0, option_values.whole(0))
    metadata: bool = _option(False, option_values.truth())

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
        if options.get("views") is not None and "image_size" in options:
            raise errors.ConfigError(
                "options-conflict",
                f"image_size is {options['image_size']!r}, and each of views has a size of its own: leave it out",
            )
        defaults: dict[str, Any] = {}
        if options.get("buckets") is not None:
            if "image_size" in options:
                raise errors.ConfigError(
                    "options-conflict",
                    f"image_size is {options['image_size']!r}, and each of buckets is a size: leave it out",
                )
            crop = "center" if options.get("pad") else "cover"
            defaults = {"shuffle": "global", "crop": crop, "center_fraction": 1.0}
        if options.get("shuffle", "stream") is None:
            is_whole = "image_size" in options and options["image_size"] is None
            defaults = {"num_epochs": 1, "crop": None if is_whole else "center", "drop_remainder": False}
            is_endless = options.get("num_epochs", 1) is None
            defaults["pad"] = batch_size is not None and not is_endless and "drop_remainder" not in options
        if options.get("patches") is not None:
            defaults |= {"image_size": None, "crop": None}
        return cls(**{"batch_size": batch_size, **defaults, **options})

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, field.metadata["convert"](field.name, getattr(self, field.name)))
        count = self.process_count
        if not 0 <= self.process_index < count:
            expected = f"with process_count {count}: it must be 0 to {count - 1}"
            raise errors.ConfigError("option-bad-value", f"process_index is {self.process_index}, {expected}")
        if self.buckets is not None and self.max_pixels is not None and self.batch_size is None:
            object.__setattr__(self, "batch_size", max(self.bucket_batch_sizes))
        if self.patches is not None and self.max_patches is None:
            object.__setattr__(self, "max_patches", _MAX_PATCHES)
        for text in itertools.chain(self._conflicts_of_patches(), self._conflicts_of_buckets(), self._conflicts()):
            raise errors.ConfigError("options-conflict", text)
        functions = [each for each in (self.map, self.batch_map) if each is not None]
        if functions and self.map_id is None:
            object.__setattr__(self, "map_id", " ".join(map(_name_of, functions)))

    def _conflicts_of_buckets(self) -> Iterator[str]:
        """Yields an error text for each option that does not fit buckets, or needs them."""
        if self.too_small == "pad" and self.max_enlarge is None:
            yield 'too_small="pad" needs max_enlarge, which says what is too small: give it, or leave it out'
        if self.buckets is None:
            for name in ("max_pixels", "batch_multiple"):
                if getattr(self, name) is not None:
                    yield f"{name} is of batches in buckets: give buckets, or leave it out"
            if self.max_enlarge is not None and not self.pads_small and self.patches is None:
                yield 'max_enlarge without buckets can only pad small images: give too_small="pad", or leave it out'
            return
        if self.max_pixels is None and self.batch_size is None:
            yield "buckets are sizes of batches: give batch_size or max_pixels"
        if self.max_pixels is None and self.batch_multiple is not None:
            yield f"batch_multiple is {self.batch_multiple}, and batch_size is a size already: leave it out"
        if self.max_pixels is not None:
            if self.multiple % self.process_count:
                yield (
                    f"batch_multiple is {self.batch_multiple}, which {self.process_count} processes or replicas do not "
                    f"share equally: give a multiple of {self.process_count}"
                )
            for size, rows in zip(self.buckets, self.bucket_batch_sizes, strict=True):
                if not rows:
                    yield (
                        f"max_pixels is {self.max_pixels:,}, and {self.multiple} images of {size[0]} x {size[1]} have "
                        f"more: give at least {self.multiple * size[0] * size[1]:,}, or smaller buckets"
                    )
            if self.batch_size is not None and self.batch_size != max(self.bucket_batch_sizes):
                yield f"batch_size is {self.batch_size}, and max_pixels decides it: give None for one of them"
        if self.shuffle != "global":
            yield f'shuffle is {self.shuffle!r}, and a batch of a bucket needs records from anywhere: give "global"'
        if self.crop in (None, "pad"):
            yield f"crop is {self.crop!r}, which does not resize images to their bucket: leave it out"
        if not self.drops_remainder and not self.pad:
            yield "drop_remainder=False would give buckets batches of any size: leave it out, or give pad=True"
        if self.next_epoch_each_iteration and not self.pad:
            yield (
                "next_epoch_each_iteration=True needs epochs of equal length, and buckets carry what is left of one "
                "into the next: give num_epochs=None, and tell the loop how many steps an epoch has"
            )
        for name, usual in (("repeats", 1), ("views", None), ("max_images", None), ("map_workers", 0)):
            if getattr(self, name) != usual:
                yield f"{name} is {getattr(self, name)!r}, which batches in buckets do not have: leave it out"

    def _conflicts_of_patches(self) -> Iterator[str]:
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
        for name in ("buckets", "views", "images", "objects", "segmentation", "max_images", "supervised"):
            if getattr(self, name):
                yield f"{name} needs images of one size, and patches has images of any: leave it out"
        if self.pads_small:
            yield 'too_small="pad" pads images of one size, and patches has images of any: leave it out'

    @property
    def multiple(self) -> int:
        """Number that the batch sizes of max_pixels are multiples of, of all processes together."""
        return self.batch_multiple or self.process_count

    @property
    def bucket_batch_sizes(self) -> tuple[int, ...]:
        """Number of examples in a batch of one process, of each bucket."""
        sizes = self.buckets or ()
        if self.max_pixels is None:
            return (self.batch_size or 1,) * len(sizes)
        rows = (self.max_pixels // (height * width) // self.multiple * self.multiple for height, width in sizes)
        return tuple(each // self.process_count for each in rows)

    def name_of_buckets(self, num_parts: int) -> str:
        """Returns the buckets and their batches, of `num_parts` processes and replicas together, for a state."""
        sizes = zip(self.buckets or (), self.bucket_batch_sizes, strict=True)
        parts = [f"{height}x{width}:{rows * num_parts}" for (height, width), rows in sizes]
        if self.max_enlarge is not None:
            parts.append(f"{self.too_small} above {self.max_enlarge:g}")
        return " ".join([*parts, *(["padded"] if self.pad else [])])

    def of_size(self, size: tuple[int, int]) -> ReadOptions:
        """Returns the options of a reader of whole images, resized to (height, width)."""
        return dataclasses.replace(
            self, image_size=size, crop="squash", patches=None, max_patches=None, max_enlarge=None
        )

    def of_bucket(self, bucket: int) -> ReadOptions:
        """Returns the options of a reader whose batches are all of one bucket."""
        assert self.buckets is not None
        enlarge = self.max_enlarge if self.pads_small else None
        none: dict[str, Any] = {"buckets": None, "max_pixels": None, "batch_multiple": None, "state": None}
        size, rows = self.buckets[bucket], self.bucket_batch_sizes[bucket]
        return dataclasses.replace(self, image_size=size, batch_size=rows, max_enlarge=enlarge, **none)

    def _conflicts(self) -> Iterator[str]:
        """Yields an error text for each pair of options that do not fit each other."""
        if self.image_size is None and self.batch_size is not None and self.patches is None:
            yield "image_size=None keeps the size of each image, and a batch needs images of one size; give one"
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
        if self.images and self.places_images:
            yield f"crop={self.crop!r} is of the image alone, and images names others: use another crop, or map"
        if self.views is not None and len({each.options.filters for each in self.pictures()}) > 1:
            yield 'a view with crop="resize_shorter" is resized with a filter, and another is not: give antialias=True'
        for name in ("supervised", "images", "max_images", "objects", "segmentation"):
            if self.views is not None and getattr(self, name):
                yield f"{name} is of one image, and views makes several: leave it out"
        if self.crop == "pad" and self.pad_pixels >= min(self.size):
            yield f"pad_pixels is {self.pad_pixels}, and crops of {min(self.size)} px could be all border: give less"
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
        if self.repeats > 1 and self.shuffle is None:
            yield f"repeats is {self.repeats}, and shuffle=None reads every example once, to evaluate: leave it out"
        if self.dtype in ("uint8", "uint16") and self.normalize is not None:
            yield f"normalize gives fractions, which {self.dtype} cannot hold; give dtype='float32'"
        if self.batch_map is not None and self.batch_size is None:
            yield "batch_map changes batches: give batch_size"
        if self.map_id is not None and self.map is None and self.batch_map is None:
            yield f"map_id is {self.map_id!r}, and names nothing without map or batch_map: give one"
        if self.map_workers and (self.map is None or self.crop is None):
            yield f"map_workers is {self.map_workers}, which needs map, and a crop: leave it out"
        if self.supervised and self.metadata:
            yield (
                "supervised=True gives (image, label), which has no room for metadata=True: take batches by name, and "
                "map them to pairs"
            )
        if self.supervised and self.images:
            yield (
                f"supervised=True gives (image, label), which has no room for images={self.images!r}: take batches by "
                "name, and map them to pairs"
            )
        if self.supervised and (self.objects or self.segmentation):
            yield (
                "supervised=True gives (image, label), which has no room for objects or segmentation: take batches by "
                "name, and map them to pairs"
            )
        if self.segmentation is not None and "segmentation" in self.images:
            yield 'segmentation and images=["segmentation"] are the same mask: give one of them'
        if self.max_images is not None and (self.objects or self.segmentation):
            yield f"max_images is {self.max_images}, and objects and segmentation are of one image: leave them out"
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
    def names_of_pictures(self) -> tuple[str, ...]:
        """Names of the images in a batch, without those of `images`."""
        if self.patches is not None:
            return ("patches",)
        return ("image",) if self.views is None else tuple(self.views)

    def pictures(self) -> tuple[Picture, ...]:
        """Returns what a batch holds of each image.

        Raises:
            ConfigError: if the options of a view do not fit.
        """
        if self.views is None:
            return (Picture("image", None, self),)
        found = []
        for name, (number, size, own) in self.views.items():
            try:
                _check_names(own, _OF_VIEWS)
                found.append(Picture(name, number, dataclasses.replace(self, views=None, image_size=size, **own)))
            except errors.ConfigError as e:
                raise errors.ConfigError(e.code, f"view {name!r}: {e}") from e
        return tuple(found)

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

    @property
    def drops_remainder(self) -> bool:
        return self.drop_remainder and not self.pad
