"""What an identity `image.function` costs beside decoding and encoding the same JPEGs without one.

Both do the same images in turn, in one thread of this process; the figures are processor time::

    .venv/bin/python -m benchmarks.functions ../shared/data/imagenet
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import time
from typing import Any

from imagebeam.transforms import user_code
from imagebeam.transforms.images import image_functions, prepare


def same(image: Any, reference: Any) -> Any:
    """Returns the image as it is."""
    return image


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path, help="folder with JPEGs in color")
    parser.add_argument("--images", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    paths = sorted(path for path in args.folder.iterdir() if path.suffix.lower() in (".jpg", ".jpeg"))
    encoded = [path.read_bytes() for path in paths[: args.images]]
    code = user_code.find("image.function", "benchmarks.functions:same")
    policies = {
        "decode and encode": prepare.ImagePolicy(encode="jpeg"),
        "with a function": prepare.ImagePolicy(encode="jpeg", functions=image_functions.ImageFunctions(code)),
    }
    ratios = []
    for _ in range(args.rounds):
        seconds = dict.fromkeys(policies, 0.0)
        for data in encoded:
            stored = set()
            for name, policy in policies.items():
                start = time.thread_time()
                stored.add(policy.prepare(data).data)
                seconds[name] += time.thread_time() - start
            assert len(stored) == 1, "the function has changed the image"
        plain, changed = seconds.values()
        ratios.append(changed / plain)
        print(*(f"{name}: {each / len(encoded) * 1e3:.2f} ms an image" for name, each in seconds.items()), sep=", ")
    print(f"with a function / decode and encode: {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
