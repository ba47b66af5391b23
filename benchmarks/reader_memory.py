"""Measures the reader's memory over many epochs: it must not grow after everything was read once.

Run from the root of the repository: python -m benchmarks.reader_memory > memory.json
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image

from benchmarks import harness

_NUM_IMAGES = 2000
_WARM_UP_EPOCHS = 20  # TensorFlow's and Python's allocators settle


def resident_mb() -> float:
    """Returns the resident set size of this process in 10^6 bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def make_dataset(folder: Path) -> Path:
    """Makes a dataset of small JPEGs of ten classes."""
    from imagebeam.pipelines import convert

    for i in range(_NUM_IMAGES):
        path = folder / "images" / f"class{i % 10}" / f"{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((48, 48), 40 + i % 50).convert("RGB").save(path, quality=90)
    config = {"source": {"uri": str(folder / "images")}, "output": {"uri": str(folder / "out"), "num_shards": 4}}
    convert.convert(config, workers=2)
    return folder / "out"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--shuffle", choices=("stream", "global"), default="stream")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="imagebeam-reader-memory-"))
    try:
        import imagebeam

        dataset = imagebeam.open_dataset(str(make_dataset(folder)))
        batches = dataset.as_tf("train", 100, image_size=32, shuffle=args.shuffle, num_epochs=args.epochs)
        resident = []
        for step, _ in enumerate(batches, 1):
            if step % (_NUM_IMAGES // 100) == 0:
                resident.append(round(resident_mb(), 1))
                if len(resident) % _WARM_UP_EPOCHS == 0:
                    harness.progress(f"epoch {len(resident)}: {resident[-1]} MB")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    settled = resident[_WARM_UP_EPOCHS - 1 :]
    growth = (settled[-1] - settled[0]) / settled[0] if settled else None
    json.dump({"epochs": len(resident), "resident_mb": resident, "growth_after_warm_up": growth}, sys.stdout)
    print()


if __name__ == "__main__":
    main()
