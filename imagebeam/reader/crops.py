"""The part of each image that a batch takes: the window of its crop, and how far a JPEG is reduced as it decodes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from imagebeam.reader import aspect_buckets
from imagebeam.reader import options as options_lib

REDUCTIONS = (1, 2, 4, 8)  # factors by which libjpeg can scale an image down while it decodes
_ANTIALIAS_GAP = 2  # with antialias an image is decoded reduced only while it stays this much larger than wanted
NUM_TRIALS = 10  # to find a random part inside the image, as torchvision's RandomResizedCrop
NUM_UNIFORMS = 2 * NUM_TRIALS + 3  # random numbers for one example; the last is that of the flip
FLIP = NUM_UNIFORMS - 1
_CUTS = ("random", "cover", "center")  # crops that take a part which fills the size; of small images the middle


def windows(
    height: np.ndarray, width: np.ndarray, uniforms: np.ndarray, options: options_lib.ReadOptions
) -> np.ndarray:
    """Returns the part of each image that `options` ask for.

    Args:
        height: int [n], pixels.
        width: int [n], pixels.
        uniforms: float32 [n, NUM_UNIFORMS] in [0, 1).
        options: options of the reader, with a crop.

    Returns:
        int32 [n, 4]: top, left, height, width.
    """
    if options.crop == "random":
        found = random_windows(height, width, uniforms, options.area, options.aspect_ratio)
    elif options.crop == "cover":
        found = _covering_windows(height, width, uniforms, options)
    elif options.crop == "center":
        found = center_windows(height, width, options.size, options.center_fraction)
    elif options.crop == "resize_shorter":
        found = _resized_windows(height, width, options)
    elif options.crop == "pad":
        found = _padded_windows(height, width, uniforms, options)[0]
    else:
        zeros = np.zeros(len(height), np.int32)
        found = np.stack([zeros, zeros, height, width], axis=1).astype(np.int32)
    if options.pads_small and options.crop in _CUTS:
        small = _are_small(height, width, options)
        found[small] = _small_windows(height[small], width[small], options)[0]
    return found


def places(
    height: np.ndarray, width: np.ndarray, uniforms: np.ndarray, flips: np.ndarray, options: options_lib.ReadOptions
) -> np.ndarray | None:
    """Returns where in its image of the batch the part of each image goes; None if it fills it.

    Args:
        height: int [n], pixels.
        width: int [n], pixels.
        uniforms: as of `windows`.
        flips: bool [n], whether the part is mirrored.
        options: options of the reader, with a crop.

    Returns:
        int32 [n, 4]: top, left, height, width.
    """
    if options.crop == "pad":
        found = _padded_windows(height, width, uniforms, options)[1]
    elif options.crop == "letterbox":
        sides = np.maximum(np.stack([height, width], axis=1), 1)
        scale = np.minimum((np.array(options.size) / sides).min(axis=1, keepdims=True), _greatest_factor(options))
        found = _in_the_middle(np.clip(np.rint(sides * scale), 1, options.size), options)
    elif options.pads_small and options.crop == "resize_shorter":
        found = _in_the_middle(_resized(height, width, options)[1], options)
    elif options.pads_small:
        small = _are_small(height, width, options)
        found = np.tile(np.array([0, 0, *options.size], np.int32), (len(height), 1))
        found[small] = _small_windows(height[small], width[small], options)[1]
    else:
        return None
    found[flips, 1] = options.size[1] - found[flips, 1] - found[flips, 3]
    return np.ascontiguousarray(found)


def _padded_windows(
    height: np.ndarray, width: np.ndarray, uniforms: np.ndarray, options: options_lib.ReadOptions
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the part of each image inside of a crop of the padded image, and where it is in the crop.

    The crop is not resized. That of an image that is smaller, also padded, has it in the middle.
    Source: torchvision.transforms.RandomCrop with padding.
    """
    starts, firsts, counts = [], [], []
    for axis, side in enumerate((height, width)):
        size = options.size[axis]
        room = side + 2 * options.pad_pixels - size
        drawn = np.floor(uniforms[:, 2 * NUM_TRIALS + axis].astype(np.float64) * (room + 1)).astype(np.int64)
        start = np.where(room < 0, room // 2, drawn) - options.pad_pixels
        starts.append(start)
        firsts.append(np.maximum(start, 0))
        counts.append(np.minimum(start + size, side) - firsts[-1])
    parts = np.stack([*firsts, *counts], axis=1).astype(np.int32)
    found = np.stack([firsts[0] - starts[0], firsts[1] - starts[1], *counts], axis=1).astype(np.int32)
    return parts, found


def _in_the_middle(sides: np.ndarray, options: options_lib.ReadOptions) -> np.ndarray:
    """Returns the places of images of these heights and widths: int32 [n, 4]."""
    return np.concatenate([(np.array(options.size) - sides) // 2, sides], axis=1).astype(np.int32)


def _greatest_factor(options: options_lib.ReadOptions) -> float:
    """Returns by how much images may be enlarged; those that would be more are padded."""
    return options.max_enlarge if options.max_enlarge is not None and options.pads_small else math.inf


def _are_small(height: np.ndarray, width: np.ndarray, options: options_lib.ReadOptions) -> np.ndarray:
    """Returns which images would be enlarged by more than max_enlarge to cover the size: bool [n]."""
    times = aspect_buckets.enlargement(np.maximum(height, 1), np.maximum(width, 1), options.size)
    return times > _greatest_factor(options) * (options.center_fraction if options.crop == "center" else 1)


def _small_windows(
    height: np.ndarray, width: np.ndarray, options: options_lib.ReadOptions
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the part of each small image that is taken, enlarged by max_enlarge, and where in the size it goes."""
    times, size = _greatest_factor(options), np.array(options.size)
    sides = np.maximum(np.stack([height, width], axis=1), 1)
    counts = np.minimum(sides, np.ceil(size / times)).astype(np.int32)
    parts = np.concatenate([(sides - counts) // 2, counts], axis=1).astype(np.int32)
    return parts, _in_the_middle(np.clip(np.rint(counts * times), 1, size), options)


def windows_alike(
    sides: Sequence[tuple[np.ndarray, np.ndarray]], uniforms: np.ndarray, options: options_lib.ReadOptions
) -> list[np.ndarray]:
    """Returns the same part of several images of each example, each as of `windows`.

    Random and center crops are found in whole pixels of the smallest image, so that they are whole in all others.

    Args:
        sides: height and width of each image, int [n]; they differ by whole factors, as `are_alike` checks.
        uniforms: as of `windows`.
        options: options of the reader, with a crop.
    """
    if len(sides) == 1 or options.crop not in ("random", "center"):
        return [windows(height, width, uniforms, options) for height, width in sides]
    height, width = _least(sides)
    part = windows(height, width, uniforms, options)
    return [(part * (each[0] // height)[:, None]).astype(np.int32) for each in sides]


def are_alike(sides: Sequence[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Returns of which examples the images have equal sides, or sides that differ by a whole factor: bool [n]."""
    height, width = _least(sides)
    factors = [(each[0] // height)[:, None] for each in sides]
    pairs = zip(factors, sides, strict=True)
    least = np.stack([height, width], axis=1)
    return np.all([np.all(least * factor == np.stack(each, axis=1), axis=1) for factor, each in pairs], axis=0)


def _least(sides: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    height, width = (np.maximum(np.min(each, axis=0), 1) for each in zip(*sides, strict=True))
    return height, width


def random_windows(
    height: np.ndarray, width: np.ndarray, uniforms: np.ndarray, area: tuple[float, float], ratio: tuple[float, float]
) -> np.ndarray:
    """Returns a part of each image with random area, aspect ratio and place.

    Tries ten times; if no try fits into the image, takes the largest part in the middle with an allowed ratio.
    Source: Szegedy et al., Going Deeper with Convolutions, 2014; torchvision.transforms.RandomResizedCrop.

    Args:
        height: int [n], pixels.
        width: int [n], pixels.
        uniforms: float32 [n, NUM_UNIFORMS] in [0, 1).
        area: least and greatest, as a fraction of the image's area.
        ratio: least and greatest, width over height.

    Returns:
        int32 [n, 4]: top, left, height, width.
    """
    rows, columns = height.astype(np.float64), width.astype(np.float64)
    drawn = uniforms.astype(np.float64)  # float64, whose functions round alike on every processor
    areas = (rows * columns)[:, None] * (area[0] + (area[1] - area[0]) * drawn[:, :NUM_TRIALS])
    log_low, log_high = math.log(ratio[0]), math.log(ratio[1])
    ratios = np.exp(log_low + (log_high - log_low) * drawn[:, NUM_TRIALS : 2 * NUM_TRIALS])
    heights, widths = np.rint(np.sqrt(areas / ratios)), np.rint(np.sqrt(areas * ratios))
    fits = (heights >= 1) & (widths >= 1) & (heights <= rows[:, None]) & (widths <= columns[:, None])
    each, first, inside = np.arange(len(rows)), fits.argmax(axis=1), fits.any(axis=1)
    part_height = np.where(inside, heights[each, first], np.rint(np.minimum(rows, columns / ratio[0])))
    part_width = np.where(inside, widths[each, first], np.rint(np.minimum(columns, rows * ratio[1])))
    part_height, part_width = np.maximum(part_height, 1), np.maximum(part_width, 1)
    down = np.where(inside, drawn[:, 2 * NUM_TRIALS] * (rows - part_height + 1), (rows - part_height) / 2)
    right = np.where(inside, drawn[:, 2 * NUM_TRIALS + 1] * (columns - part_width + 1), (columns - part_width) / 2)
    return np.stack([np.floor(down), np.floor(right), part_height, part_width], axis=1).astype(np.int32)


def center_windows(height: np.ndarray, width: np.ndarray, size: tuple[int, int], fraction: float) -> np.ndarray:
    """Returns the largest part in the middle with the aspect ratio of `size`, less the border that `fraction` drops."""
    scale = fraction * np.minimum(height / size[0], width / size[1])
    part_height = np.clip(np.rint(scale * size[0]), 1, np.maximum(height, 1))
    part_width = np.clip(np.rint(scale * size[1]), 1, np.maximum(width, 1))
    top, left = (height - part_height) // 2, (width - part_width) // 2
    return np.stack([top, left, part_height, part_width], axis=1).astype(np.int32)


def _covering_windows(
    height: np.ndarray, width: np.ndarray, uniforms: np.ndarray, options: options_lib.ReadOptions
) -> np.ndarray:
    """Returns the largest part with the aspect ratio of the size, at a random place: int32 [n, 4]."""
    found = center_windows(height, width, options.size, 1.0)
    for axis, side in enumerate((height, width)):
        drawn = uniforms[:, 2 * NUM_TRIALS + axis].astype(np.float64)
        found[:, axis] = np.floor(drawn * (side - found[:, 2 + axis] + 1))
    return found


def frames(
    height: np.ndarray,
    width: np.ndarray,
    parts: np.ndarray,
    options: options_lib.ReadOptions,
    placed: np.ndarray | None = None,
) -> np.ndarray:
    """Returns where in its part the pixels of each resized image are, for resizing with a filter.

    Args:
        height: int [n], pixels.
        width: int [n], pixels.
        parts: int32 [n, 4], as `windows` returns it.
        options: options of the reader, with a crop.
        placed: int32 [n, 4], as `places` returns it.

    Returns:
        float64 [n, 4]: top, row step, left, column step. Row y of the resized image has its middle
        top + (y + 0.5) * row step below the first row of the part, in pixels of the image.
    """
    if options.crop == "resize_shorter":
        found, _ = _resized(height, width, options)
        found[:, 0] -= parts[:, 0]
        found[:, 2] -= parts[:, 1]
        return found
    zeros = np.zeros(len(parts))
    rows, columns = options.size if placed is None else placed[:, 2:].T
    return np.stack([zeros, parts[:, 2] / rows, zeros, parts[:, 3] / columns], axis=1)


def reductions(parts: np.ndarray, frames: np.ndarray | None, options: options_lib.ReadOptions) -> np.ndarray:
    """Returns the index in REDUCTIONS of the largest one that leaves each part as large as wanted: int64 [n].

    Args:
        parts: int32 [n, 4], as `windows` returns it.
        frames: float64 [n, 4], as `frames` returns it, if images are resized with a filter.
        options: options of the reader, with a crop.
    """
    if frames is None:
        times = (parts[:, 2:] // options.size).min(axis=1)
    else:
        times = frames[:, 1::2].min(axis=1) / (_ANTIALIAS_GAP if options.antialias else 1)
    return np.maximum(np.searchsorted(REDUCTIONS, times, side="right") - 1, 0)


def reduced_windows(parts: np.ndarray, factors: np.ndarray, options: options_lib.ReadOptions) -> np.ndarray:
    """Returns the part of each image after the image was reduced by its factor: int32 [n, 4].

    A filter needs all pixels that the part touches; else as many are taken as it has, rounded down.
    """
    start, stop = parts[:, :2], parts[:, :2] + parts[:, 2:]
    factor = factors[:, None].astype(np.int32)
    first = start // factor
    if options.filters:
        return np.concatenate([first, -(-stop // factor) - first], axis=1)
    return np.concatenate([first, np.maximum(parts[:, 2:] // factor, 1)], axis=1)


def _resized(height: np.ndarray, width: np.ndarray, options: options_lib.ReadOptions) -> tuple[np.ndarray, np.ndarray]:
    """Returns as `frames` the middle of each image that is resized until its shorter side is as long as wanted.

    If `options.size` is not square, the side counts that is shorter compared with it. Sides are rounded as in
    torchvision.transforms.Resize and CenterCrop, so that pixels are at the same places. An image that would be enlarged
    too much is resized less, and has fewer pixels than the size.

    Returns:
        float64 [n, 4]: the frames, in pixels of the image.
        float64 [n, 2]: height and width of the middle, the size unless the image is small.
    """
    wanted = np.maximum(np.rint(np.array(options.size) / options.center_fraction), options.size)
    sides = np.maximum(np.stack([height, width], axis=1), 1).astype(np.float64)  # float64: whole numbers are exact
    is_limit = sides[:, 0] * wanted[1] <= sides[:, 1] * wanted[0]  # whether the height is the shorter side
    shorter = np.where(is_limit, sides[:, 0], sides[:, 1])
    target = np.where(is_limit, wanted[0], wanted[1])
    greatest = np.maximum(np.rint(shorter * _greatest_factor(options)), 1)
    is_small, target = greatest < target, np.minimum(target, greatest)
    longer = np.floor(target * np.where(is_limit, sides[:, 1], sides[:, 0]) / shorter)
    resized = np.where(is_limit[:, None], np.stack([target, longer], 1), np.stack([longer, target], 1))
    resized = np.where(is_small[:, None], resized, np.maximum(resized, options.size))
    shown, step = np.minimum(resized, options.size), sides / resized
    start = np.rint((resized - shown) / 2) * step
    return np.stack([start[:, 0], step[:, 0], start[:, 1], step[:, 1]], axis=1), shown


def _resized_windows(height: np.ndarray, width: np.ndarray, options: options_lib.ReadOptions) -> np.ndarray:
    """Returns the part of each image that a filter needs for `_resized`: the frame and a margin around it."""
    found, shown = _resized(height, width, options)
    support = {"bilinear": 1, "bicubic": 2}[options.interpolation]
    ranges = []
    for axis, side in enumerate((height, width)):
        start, step = found[:, 2 * axis], found[:, 2 * axis + 1]
        margin = support * np.maximum(step, 1) + 1
        first = np.floor(np.maximum(start - margin, 0))
        ranges += [first, np.minimum(np.ceil(start + step * shown[:, axis] + margin), np.maximum(side, 1)) - first]
    return np.stack([ranges[0], ranges[2], ranges[1], ranges[3]], axis=1).astype(np.int32)
