"""Counts what a job does in Beam's metrics: runners report them while the job runs, `imagebeam status` reads them."""

from collections.abc import Mapping

from apache_beam.metrics import Metrics

from imagebeam.transforms import elements

NAMESPACE = "imagebeam"

# Of a whole run, added up over the steps:
LISTED = "images-listed"  # found by the source, also those that become rejects
PLANNED = "images-planned"  # to be read and written
COMPARED = "images-compared"  # read to find out whether they are the same: update.compare is content
OUT = "images-out"  # written by this run
KEPT = "images-kept"  # in shards that an earlier run finished
BYTES_OUT = "bytes-out"  # of the shards that this run wrote
REJECTS = "rejects-"  # followed by the reason


def count(name: str, number: int) -> None:
    """Adds to a counter. A call takes 2 us: count a shard, a listing or a bundle, not each image."""
    if number:
        Metrics.counter(NAMESPACE, name).inc(number)


def count_rejects(by_reason: Mapping[str, int]) -> None:
    """Adds to the counters of rejects."""
    for reason, number in by_reason.items():
        count(f"{REJECTS}{reason}", number)


def count_written(written: elements.WrittenShard) -> None:
    """Counts the images and bytes of a finished shard, and its rejects."""
    count(KEPT if written.is_kept else OUT, written.shard.records)
    count(BYTES_OUT, 0 if written.is_kept else written.shard.bytes)
    count_rejects(written.rejected)
    for name in (LISTED, PLANNED):  # they counted files
        count(name, written.further)
