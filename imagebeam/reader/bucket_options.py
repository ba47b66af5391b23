"""Options of batches in buckets, and how many examples a batch of each bucket has."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from imagebeam.reader import option_values, order_options, picture_options


@dataclasses.dataclass(frozen=True)
class BucketOptions(picture_options.PictureOptions, order_options.OrderOptions):
    """Batches of several sizes, in an order and of pictures.

    Attributes:
        buckets: sizes (height, width) of batches, each of one of them, such as `imagebeam.aspect_buckets` makes: an
            image comes in the bucket that loses the smallest part of it. It is resized to cover the size and cropped
            (crop is "cover", with `pad` "center", and center_fraction 1). Needs shuffle="global", which is then the
            default. All processes have the same bucket in each step. See docs/buckets.md.
        max_pixels: with `buckets`, greatest number of pixels in a batch of all processes together, in place of
            batch_size: each bucket then has a batch size of its own.
        batch_multiple: with `max_pixels`, number that these batch sizes are multiples of; by default that of processes,
            of `as_jax` that of the parts that the sharding makes, with an input_context that of all replicas. A job
            that goes on with other numbers needs one that all of them divide.
    """

    buckets: tuple[tuple[int, int], ...] | None = option_values.option(None, option_values.buckets)
    max_pixels: int | None = option_values.option(None, option_values.whole(1, 1 << 53, may_be_none=True))
    batch_multiple: int | None = option_values.option(None, option_values.whole(1, may_be_none=True))

    def conflicts_of_buckets(self) -> Iterator[str]:
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
                if rows > option_values.MAX_BATCH_SIZE:
                    yield (
                        f"max_pixels is {self.max_pixels:,}, as {rows:,} images of {size[0]} x {size[1]} have, and a "
                        f"batch has {option_values.MAX_BATCH_SIZE:,} at most: give less"
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
            parts.append(f"{self.too_small} above {self.max_enlarge!r}")
        return " ".join([*parts, *(["padded"] if self.pad else [])])
