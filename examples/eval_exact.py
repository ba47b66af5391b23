"""Evaluation in which every example counts once, on any number of processes: `python examples/eval_exact.py [DATASET]`.

Processes that evaluate together exchange their sums after every batch: if one makes a batch more than the others, it
waits forever. `pad=True` gives all of them the same number of full batches, and a mask that says which examples count.
Three processes are acted out here in one. Without DATASET it makes one of three shapes.
"""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import collections

import shapes

PROCESS_COUNT = 3
BATCH_SIZE = 16  # for each process


def main() -> None:
    """Prints the counts of each process."""
    with shapes.open_dataset(shapes.parse_arguments()) as dataset:
        _, test = shapes.splits_of(dataset)
        print(f"{dataset.num_examples(test)} examples for {PROCESS_COUNT} processes in batches of {BATCH_SIZE}")
        counted: collections.Counter[bytes] = collections.Counter()
        for process_index in range(PROCESS_COUNT):
            batches = dataset.as_tf(
                test,
                BATCH_SIZE,
                image_size=64,
                shuffle=None,  # one epoch, center crop, pad=True
                process_index=process_index,
                process_count=PROCESS_COUNT,
                features=("image/key",),
            )
            num_batches, num_examples = 0, 0
            for batch in batches.as_numpy_iterator():
                keys = batch["image/key"][batch["mask"]]
                counted.update(keys.tolist())
                num_batches, num_examples = num_batches + 1, num_examples + len(keys)
            padding = num_batches * BATCH_SIZE - num_examples
            print(f"process {process_index}: {num_batches} batches, {num_examples} examples, {padding} of padding")
        print(f"counted {counted.total()} examples, {len(counted)} different ones")


if __name__ == "__main__":
    main()
