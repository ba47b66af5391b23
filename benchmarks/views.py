"""What two views of 224 px and eight of 96 px of each image cost from one read and decode, and from ten readers.

All read the same records in turn; the figures are processor time of this process::

    .venv/bin/python -m benchmarks.views DATASET

The ten readers are `as_numpy` with one size each: what there is without `views`, one thread, so that each image is
read and decoded ten times.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import imagebeam

_BATCH = 32
_GLOBAL, _LOCAL = {"area": (0.4, 1.0)}, {"area": (0.05, 0.4)}
_READERS: dict[str, list[dict[str, Any]]] = {
    "one view of 224 px": [{"image_size": 224, **_GLOBAL}],
    "views": [{"views": {"global": (2, 224, _GLOBAL), "local": (8, 96, _LOCAL)}}],
    "ten readers": [{"image_size": 224, **_GLOBAL}] * 2 + [{"image_size": 96, **_LOCAL}] * 8,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset")
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=4)
    args = parser.parse_args()
    dataset = imagebeam.open_dataset(args.dataset)
    milliseconds: dict[str, list[float]] = {name: [] for name in _READERS}
    for _ in range(args.rounds):
        for name, readers in _READERS.items():
            start = time.process_time()
            for options in readers:
                # It ends by itself, so nothing is read ahead that does not count.
                batches = dataset.as_numpy(
                    f"train[:{args.batches * _BATCH}]", _BATCH, num_epochs=1, threads=1, **options
                )
                assert len(list(batches)) == args.batches
            milliseconds[name].append((time.process_time() - start) * 1e3 / (args.batches * _BATCH))
    for name, each in milliseconds.items():
        print(f"{name:20} {statistics.median(each):6.2f} ms of processor time an image")


if __name__ == "__main__":
    main()
