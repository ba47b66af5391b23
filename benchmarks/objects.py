"""What boxes and masks of objects cost the reader beside images alone, and tf.data for the same masks.

All read the same records in turn; the figures are processor time of this process::

    .venv/bin/python -m benchmarks.objects DATASET

DATASET is one with boxes and masks, as `imagebeam convert --config coco --set source.coco.masks=true` makes it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import imagebeam

_BATCH, _SIZE, _MASK = 32, 512, 128
_KEYS = ("image/encoded", *(f"image/object/bbox/{each}" for each in ("ymin", "xmin", "ymax", "xmax")))


def _with_tensorflow(paths: list[str]) -> Iterator[Any]:
    """Yields one image after the other, with its boxes and masks, cropped in the middle with tf.data."""
    import tensorflow as tf

    spec: dict[str, Any] = {key: tf.io.VarLenFeature(tf.float32) for key in _KEYS[1:]}
    spec |= {_KEYS[0]: tf.io.FixedLenFeature([], tf.string), "image/object/mask": tf.io.VarLenFeature(tf.string)}

    def parse(record: Any) -> Any:
        values = tf.io.parse_single_example(record, spec)
        size = tf.io.extract_jpeg_shape(values["image/encoded"])
        side = tf.minimum(size[0], size[1])
        window = [(size[0] - side) // 2, (size[1] - side) // 2, side, side]
        image = tf.image.resize(tf.io.decode_and_crop_jpeg(values["image/encoded"], window, channels=3), [_SIZE, _SIZE])

        def cut(encoded: Any) -> Any:
            mask = tf.image.crop_to_bounding_box(tf.io.decode_png(encoded, channels=1), *window)
            return tf.image.resize(mask, [_MASK, _MASK], method="nearest")

        masks = tf.map_fn(cut, tf.sparse.to_dense(values["image/object/mask"]), fn_output_signature=tf.uint8)
        return tf.cast(image, tf.uint8), masks

    return iter(tf.data.TFRecordDataset(paths).repeat().map(parse, num_parallel_calls=tf.data.AUTOTUNE))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset")
    parser.add_argument("--batches", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=4)
    args = parser.parse_args()
    dataset = imagebeam.open_dataset(args.dataset)
    shards = dataset.catalog.splits["train"].shards
    options: dict[str, Any] = {"image_size": _SIZE, "crop": "center", "center_fraction": 1.0, "flip": False}
    feeds: dict[str, Callable[[], Iterator[Any]]] = {
        "images alone": lambda: dataset.as_numpy("train", _BATCH, **options),
        "with boxes": lambda: dataset.as_numpy("train", _BATCH, objects=imagebeam.Objects(), **options),
        "with masks": lambda: dataset.as_numpy(
            "train", _BATCH, objects=imagebeam.Objects(masks=(_MASK, _MASK)), **options
        ),
        "tf.data with masks": lambda: _with_tensorflow([f"{args.dataset}/{each.name}" for each in shards]),
    }
    milliseconds: dict[str, list[float]] = {name: [] for name in feeds}
    for _ in range(args.rounds):
        for name, open_feed in feeds.items():
            examples, size = open_feed(), 1 if "tf.data" in name else _BATCH
            next(examples)
            start = time.process_time()
            for _ in range(args.batches * _BATCH // size):
                next(examples)
            milliseconds[name].append((time.process_time() - start) * 1e3 / (args.batches * _BATCH))
            del examples
    for name, each in milliseconds.items():
        print(f"{name:20} {statistics.median(each):6.2f} ms of processor time an image")


if __name__ == "__main__":
    main()
