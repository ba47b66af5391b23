"""Decodes the images of a batch: only the wanted part of each, resized, mirrored, and cast to the type of the batch.

The code in C decodes JPEGs and PNGs, and resizes RGB of 8 bits wherever it comes from. Pillow decodes other formats;
NumPy resizes pixels of other types and numbers of channels.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from imagebeam import concurrency, errors, plural
from imagebeam.reader import (
    bare_pixels,
    batch_buffers,
    crops,
    extra_images,
    geometry,
    option_values,
    read_plan,
    resampling,
    whole_images,
)
from imagebeam.reader import options as options_lib

try:
    from imagebeam import _native
except ImportError:  # installed without a compiler, or without libjpeg-turbo
    _native = None  # type: ignore[assignment]

_FILTERS = {"bilinear": 1, "bicubic": 2}  # the numbers that `_native.decode` takes
_JPEG_START, _PNG_START = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
_LEVELS = 256

Failures: TypeAlias = list[tuple[int, str]]  # the row of each image that cannot be decoded, and why


class Cuts(NamedTuple):
    """The part of each image that a batch takes, and how it changes. Several views of an image are rows in turn."""

    parts: np.ndarray | None  # int32 [n, 4]: top, left, height, width; None for a whole image
    frames: np.ndarray | None  # float64 [n, 4], as `crops.frames`, if images are resized with a filter
    flips: np.ndarray  # bool [n]
    places: np.ndarray | None = None  # int32 [n, 4], as of `crops.places`
    colors: np.ndarray | None = None  # float32 [n, 5], as of `image_changes.colors`
    erased: np.ndarray | None = None  # int32 [n, 4], as of `image_changes.erased`


class Wanted(NamedTuple):
    """Encoded images, and the parts of each that a batch takes."""

    images: Sequence[bytes | memoryview]  # encoded, or bare pixels
    points: Sequence[bytes | memoryview]  # entry points of each image, empty where it has none
    sizes: np.ndarray  # int32 [n, 2]: height and width of each
    shapes: np.ndarray | None  # int32 [n, 3] of bare pixels: height, width, channels
    cuts: Cuts

    def geometry(self, size: tuple[int, int] | None) -> geometry.Geometry:
        """Returns where the pixels of the batch's images are in these; of images of one size without a crop."""
        sides, cuts, size = self.sizes, self.cuts, size or _common_size(self)
        start, step = np.zeros(sides.shape), np.ones(sides.shape)
        if cuts.parts is not None:
            start = cuts.parts[:, :2].astype(np.float64)
            step = cuts.parts[:, 2:] / (size if cuts.places is None else cuts.places[:, 2:])
        if cuts.frames is not None:
            start, step = start + cuts.frames[:, ::2], cuts.frames[:, 1::2]
        if cuts.parts is not None and cuts.places is not None:
            first = cuts.places[:, :2].copy()
            first[cuts.flips, 1] = size[1] - first[cuts.flips, 1] - cuts.places[cuts.flips, 3]  # as if not mirrored
            start = start - first * step
        return geometry.Geometry(start, step, cuts.flips, sides, size)


# Arrays that images are written to, and the options of each: row i of the cuts goes to place i // n of array i % n.
Outs: TypeAlias = list[tuple[np.ndarray, options_lib.ReadOptions]]


def library() -> str | None:
    """Returns the JPEG library that the decoder in C was built with; None if it was not built."""
    return None if _native is None else _native.LIBRARY


def why_not_native(plan: read_plan.ReadPlan) -> str | None:
    """Returns the reason why the decoder in C cannot decode all images of a split; None if it can."""
    if _native is None:
        return "imagebeam was installed without its decoder in C: docs/reader-speed.md lists what is needed to build it"
    if not plan.form.is_usual:
        stored = plural.count(plan.form.channels, "channel")
        return f"it makes RGB of 8 bits, and the images have {stored} of {plan.form.dtype}"
    decoded = {"jpeg": "JPEG", "png": "PNG"} if _native.DECODES_PNG else {"jpeg": "JPEG"}
    if not plan.is_raw and not (plan.formats and plan.formats <= decoded.keys()):
        found = ", ".join(sorted(plan.formats)) or "unknown formats"
        return f"it decodes only {' and '.join(decoded.values())}, and the split holds {found}"
    return None


class ImageDecoder:
    """Decodes images of a dataset into the arrays of batches. Thread-safe.

    Attributes:
        dtype: type of the pixels in a batch.
        blank: what a pixel of zeros becomes in a batch, [channels] of `dtype`.
    """

    def __init__(self, plan: read_plan.ReadPlan, options: options_lib.ReadOptions, threads: int):
        """Decodes with `threads` threads for each batch.

        Raises:
            ConfigError: if the options ask for the decoder in C and it cannot decode these images, or a package is
                missing for the type of the pixels.
        """
        reason = why_not_native(plan)
        if reason is not None and options.decoder == "native":
            text = f"decoder='native' cannot read this: {reason}; give decoder='auto'"
            raise errors.ConfigError("decoder-cannot-read", text)
        self.is_native = reason is None and options.decoder != "pillow"
        self._uses_c = _native is not None and plan.form.is_usual and options.decoder != "pillow"
        self._pictures = options.pictures()
        changed = [each for each in self._pictures if each.options.changes_images or each.options.places_images]
        if not self._uses_c and changed:
            why = reason or "decoder='pillow'"
            raise errors.ConfigError(
                "decoder-cannot-change",
                'crop="letterbox", crop="pad", too_small="pad", color_jitter and erasing are done by the code in C '
                f"alone, and it does not make these images: {why}; use map instead",
            )
        self._options, self._threads = options, threads
        self._fill = bytes(options.fill)
        self._is_raw, self._form = plan.is_raw, plan.form
        self.dtype = dtype_of(options.dtype)
        self._cast = functools.partial(_cast, dtype=self.dtype, mean_and_std=plan.mean_and_std)
        self.blank = self._cast(np.zeros(self._form.channels, self._form.dtype))
        self._values: np.ndarray | None = None  # [3, 256] of `dtype`, what each level of each channel becomes
        if plan.form.is_usual and options.dtype != plan.form.dtype:
            levels = np.arange(_LEVELS, dtype=np.uint8)[:, None].repeat(3, axis=1)
            self._values = np.ascontiguousarray(self._cast(levels).T)
        self._buffers = batch_buffers.BatchBuffers()

    def make_batch(self, *shape: int) -> np.ndarray:
        """Returns an array for the pixels of a batch, not filled."""
        return self._buffers.make(shape, self.dtype)

    def decode(self, wanted: Wanted) -> tuple[np.ndarray, Failures]:
        """Returns the images, [n, height, width, channels], and the row and error of each one that cannot be decoded.

        Without a crop all images must have one size.
        """
        sides = self._options.size if self._options.crop is not None else _common_size(wanted)
        images = self.make_batch(len(wanted.images), *sides, self._form.channels)
        return images, self._decode_into([(images, self._options)], wanted)

    def decode_to(self, wanted: Wanted, options: options_lib.ReadOptions) -> tuple[np.ndarray, Failures]:
        """Returns the images in the size of other options, as `decode`; on one thread."""
        images = np.empty((len(wanted.images), *options.size, self._form.channels), self.dtype)
        return images, self._decode_into([(images, options)], wanted, threads=1)

    def decode_pictures(self, wanted: Wanted) -> tuple[dict[str, np.ndarray], Failures]:
        """Returns the images, or their views, [n, number, height, width, channels], by name; and as `decode`."""
        [first, *_] = self._pictures
        if first.number is None:
            images, failures = self.decode(wanted)
            return {first.name: images}, failures
        shapes = {each.name: (each.number or 1, *each.options.size, self._form.channels) for each in self._pictures}
        found = {name: self.make_batch(len(wanted.images), *shape) for name, shape in shapes.items()}
        outs = [(out, each.options) for each in self._pictures for out in np.moveaxis(found[each.name], 1, 0)]
        return found, self._decode_into(outs, wanted)

    def _decode_into(self, outs: Outs, wanted: Wanted, threads: int | None = None) -> Failures:
        if self._uses_c:
            return self._decode_in_c(wanted, outs, threads or self._threads)
        rows = range(len(wanted.images) * len(outs))
        failures = self.decode_each(rows, lambda row: self._decode_here(wanted, row, outs))
        return _of_images(failures, len(outs))

    def _decode_in_c(self, wanted: Wanted, outs: Outs, threads: int) -> Failures:
        """Decodes with the code in C, which gets the pixels of what it cannot decode."""
        shapes, encoded, points = wanted.shapes, list(wanted.images), list(wanted.points)
        failures: Failures = []
        others = [] if self._is_raw else [row for row, image in enumerate(encoded) if not _is_decoded_in_c(image)]
        if others:
            shapes = np.zeros((len(encoded), 3), np.int32)

            def decode_whole(row: int) -> None:
                pixels = whole_images.decode_reduced(encoded[row], _size_of(wanted, row), 1)
                encoded[row], points[row], shapes[row] = pixels.data.cast("B"), b"", pixels.shape

            failures = self.decode_each(others, decode_whole)
        cuts, number = wanted.cuts, len(outs)
        parts = cuts.parts
        if parts is None:
            parts = np.concatenate([np.zeros_like(wanted.sizes), wanted.sizes], axis=1)
        unsigned = f"u{self.dtype.itemsize}"  # NumPy passes no bfloat16 on to C
        found = _native.decode(
            [each for each in encoded for _ in outs],
            np.ascontiguousarray(parts),
            cuts.flips,
            [out.view(unsigned) for out, _ in outs],
            threads,
            [each for each in points for _ in outs],
            cuts.frames,
            _FILTERS[self._options.interpolation],
            self._options.antialias,
            self._options.dct == "accurate",
            None if self._values is None else self._values.view(unsigned),
            wanted.sizes.repeat(number, axis=0),
            None if shapes is None else shapes.repeat(number, axis=0),
            cuts.places,
            cuts.colors,
            cuts.erased,
            self._fill,
            number > 1 or self._options.repeats > 1,
        )
        found, told = _of_images(found, number), {row for row, _ in failures}
        in_c = [(row, f"{_library_of(wanted.images[row])}: {failure}") for row, failure in found if row not in told]
        return sorted(failures + in_c)

    def _decode_here(self, wanted: Wanted, index: int, outs: Outs) -> None:
        """Decodes an image with Pillow, and resizes it with NumPy, for one of the cuts."""
        cuts, (row, view) = wanted.cuts, divmod(index, len(outs))
        out, options = outs[view]
        part = None if cuts.parts is None else cuts.parts[index]
        frame = None if cuts.frames is None else cuts.frames[index].copy()
        size = _size_of(wanted, row)
        if wanted.shapes is not None:
            height, width, channels = wanted.shapes[row].tolist()
            pixels = bare_pixels.Pixels(bytes(wanted.images[row]), height, width, channels)
            image = whole_images.of_pixels(pixels, self._form)
        elif not self._form.is_usual:
            image = whole_images.decode_numbers(wanted.images[row], self._form, size)
        else:
            reduction = 1
            if part is not None and bytes(wanted.images[row][: len(_JPEG_START)]) == _JPEG_START:
                fitting = crops.reductions(part[None], None if frame is None else frame[None], options)[0]
                reduction = crops.REDUCTIONS[fitting]
            image = whole_images.decode_reduced(wanted.images[row], size, reduction)
            if reduction > 1:
                assert part is not None
                reduced = crops.reduced_windows(part[None], np.array([reduction]), options)[0]
                if frame is not None:
                    frame[::2] = (part[:2] + frame[::2]) / reduction - reduced[:2]
                    frame[1::2] /= reduction
                part = reduced
        if part is not None:
            top, left, height, width = part.tolist()
            image = image[top : top + height, left : left + width]
            if frame is None:
                frame = np.array([0, height / options.size[0], 0, width / options.size[1]])
            image = resampling.resize(image, frame, options)
        out[row] = self._cast(image[:, ::-1] if cuts.flips[index] else image)

    def decode_each(self, rows: Sequence[int], decode: Callable[[int], None]) -> Failures:
        """Calls a function for each row, on several threads, and returns the rows for which it raises ValueError."""

        def try_decode(row: int) -> str | None:
            try:
                decode(row)
            except ValueError as e:
                return str(e)
            return None

        found = concurrency.map_ahead(try_decode, rows, min(self._threads, max(1, len(rows))))
        return [(row, failure) for row, failure in zip(rows, found) if failure is not None]

    def geometry_of(self, wanted: Wanted) -> geometry.Geometry:
        """Returns where the pixels of the batch's images are in the stored ones."""
        return wanted.geometry(None if self._options.crop is None else self._options.size)

    def decode_numbers(self, wanted: Wanted, extra: extra_images.ExtraImage) -> tuple[np.ndarray, Failures]:
        """Returns extra images that hold classes, depth or other numbers, each to the nearest pixel, and the failures.

        Numbers between those of two pixels would be of no class, and no depth of the scene.
        """
        form, moved = extra.form, self.geometry_of(wanted)
        assert form is not None
        size = extra.size or moved.size
        numbers = np.full((len(wanted.images), *size, form.channels), extra.fill, form.dtype)
        rows, columns = moved.nearest(size)

        def decode(row: int) -> None:
            whole = whole_images.decode_numbers(wanted.images[row], form, _size_of(wanted, row))
            down, across = rows[row] >= 0, columns[row] >= 0
            shown = whole.take(rows[row][down], axis=0).take(columns[row][across], axis=1)
            numbers[row][np.ix_(down, across)] = shown

        return numbers, self.decode_each(range(len(wanted.images)), decode)


def dtype_of(name: str) -> np.dtype:
    """Returns the type of the pixels in a batch.

    Raises:
        ConfigError: if it is bfloat16, and its package is not installed.
    """
    if name != "bfloat16":
        return np.dtype(name)
    with errors.imports_for("dtype='bfloat16'", "numpy"):
        import ml_dtypes
    return np.dtype(ml_dtypes.bfloat16)


def _cast(pixels: np.ndarray, dtype: np.dtype, mean_and_std: option_values.MeanAndStd | None) -> np.ndarray:
    """Returns pixels, [..., channels], in the type of a batch, normalised if mean and standard deviation are given."""
    with np.errstate(all="ignore"):  # of a value too large for float16
        if mean_and_std is None:
            return pixels.astype(dtype, copy=False)
        mean, std = (np.array(each, np.float32) for each in mean_and_std)
        return ((pixels.astype(np.float32) - mean) / std).astype(dtype)


def _of_images(failures: Failures, number: int) -> Failures:
    """Returns the failures of images, given those of the rows of their cuts, `number` for each."""
    return sorted({row // number: failure for row, failure in reversed(failures)}.items())


def _common_size(wanted: Wanted) -> tuple[int, int]:
    height, width = wanted.sizes[0].tolist() if len(wanted.sizes) else (1, 1)
    return height, width


def _size_of(wanted: Wanted, row: int) -> tuple[int, int]:
    height, width = wanted.sizes[row].tolist()
    return height, width


def _is_decoded_in_c(image: bytes | memoryview) -> bool:
    start = bytes(image[: len(_PNG_START)])
    return start.startswith(_JPEG_START) or (start == _PNG_START and bool(_native.DECODES_PNG))


def _library_of(image: bytes | memoryview) -> str:
    return "libpng" if bytes(image[: len(_PNG_START)]) == _PNG_START else "libjpeg"
