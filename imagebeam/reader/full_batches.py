"""Checks before anything is read that a job has a batch that is full, and says which examples come more than once."""

from __future__ import annotations

import logging

from imagebeam import errors, plural
from imagebeam.reader import batch_schedule, bucket_order
from imagebeam.reader import options as options_lib

_LOGGER = logging.getLogger("imagebeam.dataset")


def check_batch_size(
    split: str, num_examples: int, asked: options_lib.ReadOptions, planned: batch_schedule.BatchSchedule
) -> None:
    """Checks that at least one batch is full, if all batches must be.

    Args:
        split: the split or part of one, as the user named it.
        num_examples: number of its examples, for all processes.
        asked: options of the reader.
        planned: schedule of this process.

    Raises:
        ConfigError: if none is.
    """
    if asked.batch_size is None or not asked.drops_remainder:
        return
    if isinstance(planned.calendar, bucket_order.BucketOrder):
        if isinstance(planned.calendar.steps, bucket_order.EpochSteps):
            _check_buckets(split, asked, planned, planned.calendar.steps)
        return
    share = num_examples * asked.repeats // asked.process_count
    if planned.num_batches == 0 and asked.state is None:
        epochs = plural.count(asked.num_epochs or 0, "epoch")
        each = f" for each of {planned.replicas} replicas" if planned.replicas > 1 else ""
        raise errors.ConfigError(
            "batch-never-full",
            f"batch_size is {asked.batch_size:,}, and a process reads {plural.count(share, 'example')} of {split!r} "
            f"in each of {epochs}: no batch would be full{each}; give a smaller one, drop_remainder=False or pad=True",
        )
    if share < asked.batch_size:
        _LOGGER.warning(
            "batch_size is %s, and a process reads %s examples of %r: a batch holds some of them more than once",
            f"{asked.batch_size:,}",
            f"{share:,}",
            split,
        )


def _check_buckets(
    split: str,
    asked: options_lib.ReadOptions,
    planned: batch_schedule.BatchSchedule,
    steps: bucket_order.EpochSteps,
) -> None:
    """Checks that a bucket fills a batch, as `check_batch_size`."""
    parts = steps.counts / steps.batch_sizes
    height, width = (asked.buckets or ())[fullest := int(parts.argmax())]
    if planned.num_batches == 0 and asked.state is None:
        size = "batch_size" if asked.max_pixels is None else "max_pixels"
        raise errors.ConfigError(
            "batch-never-full",
            f"no bucket of {split!r} fills a batch in {plural.count(asked.num_epochs or 0, 'epoch')}: {height} x "
            f"{width} has {plural.count(int(steps.counts[fullest]), 'image')}, and a batch of all processes together "
            f"{steps.batch_sizes[fullest]:,}; give a smaller {size}, more num_epochs, or pad=True",
        )
    if num_rare := int(((parts > 0) & (parts < 1)).sum()):
        _LOGGER.warning(
            "%s of %r with fewer images than a batch of all processes: a batch holds some of them more than once",
            plural.count(num_rare, "bucket"),
            split,
        )
