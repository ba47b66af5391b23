"""Reads with imagebeam from a fresh process, and prints one JSON line with the costs.

Imports nothing else of the project, so that an earlier version runs it in its own environment.
"""

import json
import pathlib
import re
import sys
import time

_BATCH_SIZE = 128
_FEW_BATCHES = 20  # until memory is stable


def main() -> None:
    start = time.perf_counter()
    import imagebeam

    folder, num_images = sys.argv[1], int(sys.argv[2])
    dataset = imagebeam.open_dataset(folder)
    batches = dataset.as_numpy("train", _BATCH_SIZE, image_size=224, crop="random", flip=True, shuffle="stream")
    image = next(batches)["image"]
    first_seconds, first_cpu_seconds = time.perf_counter() - start, time.process_time()
    for _ in range(_FEW_BATCHES - 1):
        next(batches)
    resident_kb = re.search(r"VmRSS:\s*(\d+)", pathlib.Path("/proc/self/status").read_text())
    begin, cpu_begin, count = time.perf_counter(), time.process_time(), 0
    while count < num_images:
        count += len(next(batches)["image"])
    line = {
        "first_seconds": first_seconds,
        "first_cpu_seconds": first_cpu_seconds,
        "resident_mb": int(resident_kb[1]) * 1024 / 1e6 if resident_kb else 0.0,
        "images_per_second": count / (time.perf_counter() - begin),
        "images_per_cpu_second": count / (time.process_time() - cpu_begin),
        "shape": list(image.shape),
        "dtype": str(image.dtype),
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
