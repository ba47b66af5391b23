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
from imagebeam.reader import bucket_options, object_options, option_values, order_options, picture_options

# Options that each view may have of its own: which part it takes, and what changes at random.
_OF_VIEWS = ("crop", "flip", "area", "aspect_ratio", "center_fraction", "pad_pixels", "color_jitter", "erasing")

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


@dataclasses.dataclass(frozen=True)
class ReadOptions(bucket_options.BucketOptions):
    """The options for reading a split in batches: those of the order, of pictures and of buckets, and these.

    The defaults below are for training. With `shuffle=None` the feeds have those of an evaluation: num_epochs=1,
    crop="center" and pad=True (if there are batches), so that every example counts once. For a split other than "train"
    a feed must be given `shuffle`.

    Attributes:
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
        on_error: "raise" for an example that cannot be read or decoded, or "skip". Batches keep their places in the
            order: with `pad` the mask is False there, with `drop_remainder` the next example that can be read comes
            twice, else the batch is smaller.
        max_error_fraction: largest fraction of skipped examples among those read since this reader began; more are an
            error.
        threads: number of threads that read and decode; by default the number of cores that this process may use,
            within the CPU limit of its container.
        prefetch: number of batches that are ready ahead of the trainer, besides those being made.
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

    Examples:
        >>> ds = imagebeam.open_dataset("shards")
        >>> batches = ds.as_numpy("train", 32, image_size=64, shuffle="global", dtype="float32", drop_remainder=False)
        >>> next(batches)["image"].dtype
        dtype('float32')
    """

    supervised: bool = option_values.option(False, option_values.truth())
    weights: str | Mapping[int, float] | None = option_values.option(None, option_values.weights)
    features: Sequence[str] = option_values.option((), option_values.keys)
    images: Sequence[str] = option_values.option((), option_values.names)
    objects: object_options.Objects | None = option_values.option(None, option_values.instance(object_options.Objects))  # noqa: RUF009
    segmentation: object_options.Segmentation | None = option_values.option(  # noqa: RUF009
        None, option_values.instance(object_options.Segmentation)
    )
    max_images: int | None = option_values.option(None, option_values.whole(1, may_be_none=True))
    list_size: int | None = option_values.option(None, option_values.whole(1, may_be_none=True))
    label_base: int = option_values.option(0, option_values.whole(0))
    num_classes: int | None = option_values.option(None, option_values.whole(1, may_be_none=True))
    on_error: str = option_values.option("raise", option_values.choice(("raise", "skip")))
    max_error_fraction: float = option_values.option(0.01, option_values.fraction(may_be_zero=True))
    threads: int | None = option_values.option(None, option_values.whole(1, may_be_none=True))
    prefetch: int = option_values.option(2, option_values.whole(1, 1 << 20))
    views: Mapping[str, Sequence[Any]] | None = option_values.option(None, option_values.views)
    map: Callable[..., Mapping[str, Any]] | None = option_values.option(None, option_values.function)  # noqa: RUF009
    batch_map: Callable[..., Mapping[str, Any]] | None = option_values.option(None, option_values.function)  # noqa: RUF009
    map_id: str | None = option_values.option(None, option_values.text)
    map_workers: int = option_values.option(0, option_values.whole(0))
    metadata: bool = option_values.option(False, option_values.truth())

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
            object.__setattr__(self, "max_patches", picture_options.MAX_PATCHES)
        for text in itertools.chain(
            self.conflicts_of_patches(),
            self.conflicts_of_buckets(),
            self._conflicts(),
            self.conflicts_of_pictures(),
            self.conflicts_of_order(),
        ):
            raise errors.ConfigError("options-conflict", text)
        functions = [each for each in (self.map, self.batch_map) if each is not None]
        if functions and self.map_id is None:
            object.__setattr__(self, "map_id", " ".join(map(_name_of, functions)))

    def _conflicts(self) -> Iterator[str]:
        """Yields an error text for each pair of options that do not fit each other."""
        for name, usual in (("repeats", 1), ("views", None), ("max_images", None), ("map_workers", 0)):
            if self.buckets is not None and getattr(self, name) != usual:
                yield f"{name} is {getattr(self, name)!r}, which batches in buckets do not have: leave it out"
        for name in ("buckets", "views", "images", "objects", "segmentation", "max_images", "supervised"):
            if self.patches is not None and getattr(self, name):
                yield f"{name} needs images of one size, and patches has images of any: leave it out"
        if self.image_size is None and self.batch_size is not None and self.patches is None:
            yield "image_size=None keeps the size of each image, and a batch needs images of one size; give one"
        if self.images and self.places_images:
            given, remedy = f"crop={self.crop!r}", "use another crop, or map"
            if self.pads_small:
                given, remedy = 'too_small="pad"', "leave it out"
            yield f"{given} is of the image alone, and images names others: {remedy}"
        if self.views is not None and len({each.options.filters for each in self.pictures()}) > 1:
            yield 'a view with crop="resize_shorter" is resized with a filter, and another is not: give antialias=True'
        for name in ("supervised", "images", "max_images", "objects", "segmentation"):
            if self.views is not None and getattr(self, name):
                yield f"{name} is of one image, and views makes several: leave it out"
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


_ATTRIBUTES = "Attributes:\n"
_GROUPS = (order_options.OrderOptions, picture_options.PictureOptions, bucket_options.BucketOptions, ReadOptions)
if (
    ReadOptions.__doc__ is not None
):  # which python -OO leaves out; help(ReadOptions) describes the options of all groups
    _described = [(each.__doc__ or "").partition(_ATTRIBUTES)[2].rstrip() for each in _GROUPS]
    ReadOptions.__doc__ = "\n".join([ReadOptions.__doc__.partition(_ATTRIBUTES)[0] + _ATTRIBUTES.rstrip(), *_described])
