"""Shows what batches in aspect-ratio buckets make of the images of a dataset, and proposes a list of buckets."""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import imagebeam
from imagebeam import errors, plural
from imagebeam.pipelines import command_parser
from imagebeam.reader import aspect_buckets, bucket_counts, option_values

_DEFAULTS = {"bucket_step": 64, "max_aspect": 2.0, "batch_size": 256}
_OF_BUCKETS = (*_DEFAULTS, "max_enlarge")
_WITHOUT_BUCKETS = ("n", "save_to")


@dataclasses.dataclass(frozen=True)
class BucketsReport:
    """What buckets make of the images of some splits.

    Attributes:
        settings: the area of the buckets and the other options, by name.
        splits: the counts of each split.
        split: the split that the proposal fits.
        proposal: the counts of this split in the buckets that have a batch of its images.
    """

    settings: Mapping[str, Any]
    splits: Mapping[str, bucket_counts.BucketCounts]
    split: str
    proposal: bucket_counts.BucketCounts

    @property
    def batch_size(self) -> int:
        batch_size: int = self.settings["batch_size"]
        return batch_size

    @property
    def has_proposal(self) -> bool:
        """Whether a bucket has a batch of images."""
        return bool(self.proposal.images.min() >= self.batch_size)

    def to_json(self) -> dict[str, Any]:
        """Returns all figures; `proposal` is None if no bucket has a batch of images."""
        proposed = {"split": self.split, **_to_json(self.proposal, self.batch_size)}
        splits = {name: _to_json(counts, self.batch_size) for name, counts in self.splits.items()}
        return {**self.settings, "splits": splits, "proposal": proposed if self.has_proposal else None}


def check_options(known: argparse.Namespace) -> None:
    """Checks that options of inspect fit each other. Variables of the environment are of all commands, so they may not.

    Raises:
        ConfigError: if an option would have no effect.
    """
    has_buckets = known.buckets is not None
    for name in _WITHOUT_BUCKETS if has_buckets else _OF_BUCKETS:
        if getattr(known, name) not in (None, False) and command_parser.PREFIX + name.upper() not in os.environ:
            option = "-n" if name == "n" else "--" + name.replace("_", "-")
            other = "--buckets shows no examples" if has_buckets else "there is no --buckets AREA that it could change"
            raise errors.ConfigError("inspect-options-conflict", f"{option} has no effect: {other}; leave it out")


def inspect(dataset: imagebeam.ImageDataset, known: argparse.Namespace) -> BucketsReport:
    """Counts the images of the splits, or of one, in buckets.

    Raises:
        ConfigError: if the options make no buckets, or the examples hold no image.
    """
    settings: dict[str, Any] = {"area": known.buckets}
    for name, usual in _DEFAULTS.items():
        settings[name] = usual if getattr(known, name) is None else getattr(known, name)
    settings["max_enlarge"] = option_values.positive(may_be_none=True)("--max-enlarge", known.max_enlarge)
    given = (settings["area"], settings["bucket_step"], settings["max_aspect"])
    made = aspect_buckets.list_sizes(*given, ("--buckets", "--bucket-step", "--max-aspect"))
    sizes = option_values.buckets("--buckets", made)
    assert sizes is not None
    names = [known.split] if known.split else [name for name, split in dataset.splits.items() if split.num_examples]
    images = {name: bucket_counts.image_sizes(dataset.image_sizes(name)) for name in names}
    counted = {name: bucket_counts.count(each, sizes, settings["max_enlarge"]) for name, each in images.items()}
    split = "train" if "train" in names else names[0]
    proposal = bucket_counts.propose(images[split], sizes, settings["max_enlarge"], settings["batch_size"])
    return BucketsReport(settings, counted, split, proposal)


def lines(report: BucketsReport) -> Iterator[str]:
    """Yields the lines of the tables and the proposal."""
    for name, counts in report.splits.items():
        yield f"{name}: {plural.count(_num_images(counts), 'image')}, batches of {report.batch_size:,}"
        yield from _table(counts, report.batch_size)
        yield from _notes(counts, report)
        yield ""
    if not report.has_proposal:
        yield (
            f"no bucket of {report.split} has a batch of images: give a smaller --batch-size, buckets of another "
            "area, or a greater --max-enlarge"
        )
        return
    whole, proposal = report.splits[report.split], report.proposal
    yield f"buckets that have a batch of {report.batch_size:,} images of {report.split}, to paste:"
    yield f"buckets={list(proposal.sizes)}"
    if num_left_out := len(whole.sizes) - len(proposal.sizes):
        yield f"{plural.count(num_left_out, 'bucket')} of {len(whole.sizes)} left out, which changes:"
        yield f"  cropped    {whole.cropped_part_of_all():.2%} -> {proposal.cropped_part_of_all():.2%} of the pixels"
        if proposal.num_small > whole.num_small:
            yield f"  too small  {whole.num_small:,} -> {plural.count(proposal.num_small, 'image')}"


def _table(counts: bucket_counts.BucketCounts, batch_size: int) -> Iterator[str]:
    yield f"  {'height x width':<16}{'images':>12}{'cropped':>10}{'enlarged':>12}{'batches':>10}"
    rows = zip(counts.sizes, counts.images, counts.cropped_part(), counts.enlarged, strict=True)
    for (height, width), images, cropped, enlarged in rows:
        size = f"{height} x {width}"
        yield f"  {size:<16}{images:>12,}{cropped:>10.2%}{enlarged:>12,}{images // batch_size:>10,}"
    total, batches = counts.images.sum(), (counts.images // batch_size).sum()
    yield f"  {'all':<16}{total:>12,}{counts.cropped_part_of_all():>10.2%}{counts.enlarged.sum():>12,}{batches:>10,}"


def _notes(counts: bucket_counts.BucketCounts, report: BucketsReport) -> Iterator[str]:
    if counts.num_small:
        yield (
            f"  {plural.count(counts.num_small, 'image')} too small: each bucket would enlarge them more than "
            f'{report.settings["max_enlarge"]!r} times; dropped, or padded with too_small="pad"'
        )
    if counts.num_unknown:
        yield f"  {plural.count(counts.num_unknown, 'image')} of unknown size: a list of images, or not readable"
    carried = _carried(counts, report.batch_size)
    yield f"  {plural.count(carried, 'image')} left of the first epoch, which begin the batches of the next"


def _num_images(counts: bucket_counts.BucketCounts) -> int:
    return int(counts.images.sum()) + counts.num_small + counts.num_unknown


def _carried(counts: bucket_counts.BucketCounts, batch_size: int) -> int:
    return int((counts.images % batch_size).sum())


def _to_json(counts: bucket_counts.BucketCounts, batch_size: int) -> dict[str, Any]:
    columns: Sequence[Any] = (counts.sizes, counts.images, counts.enlarged, counts.cropped_part())
    buckets = [
        {
            "height": height,
            "width": width,
            "images": int(images),
            "cropped": round(float(cropped), 6),
            "enlarged": int(enlarged),
            "batches": int(images) // batch_size,
        }
        for (height, width), images, enlarged, cropped in zip(*columns, strict=True)
    ]
    return {
        "images": _num_images(counts),
        "too_small": counts.num_small,
        "unknown": counts.num_unknown,
        "carried": _carried(counts, batch_size),
        "cropped": round(counts.cropped_part_of_all(), 6),
        "buckets": buckets,
    }
