"""PyTorch trains on a dataset, in one process or in several that share the work.

    python examples/train_torch.py [DATASET] [--checkpoint FILE]
    torchrun --nproc-per-node 8 examples/train_torch.py DATASET [--checkpoint FILE]

Without DATASET it makes one of three shapes. With FILE it goes on after the last step that was saved there, also in
the middle of an epoch and with another number of processes: the batches of all of them together stay the same. It
prints the accuracy over examples that it was not trained on, each counted once.
"""

from __future__ import annotations

import argparse
import os
import pathlib

import shapes
import torch
import torch.distributed
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import imagebeam

BATCH_SIZE = 64  # for all processes together
IMAGE_SIZE = 32  # pixels a side


def make_model(num_classes: int) -> nn.Module:
    """Returns three convolutions and a dense layer, of the same weights in every process."""
    torch.manual_seed(1)
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding="same"), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(64, num_classes))


def save(path: pathlib.Path, checkpoint: dict[str, object]) -> None:
    """Writes a checkpoint under another name first: one that was cut short would be lost."""
    torch.save(checkpoint, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


def sum_of_processes(value: torch.Tensor) -> float:
    """Returns the sum of the values of all processes."""
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(value)
    return value.item()


def main() -> None:
    """Trains, and prints the accuracy."""
    parser = argparse.ArgumentParser()
    parser.add_argument("dataset", nargs="?", help="folder of a dataset (default: a new one of three shapes)")
    parser.add_argument("--checkpoint", type=pathlib.Path, help="file to go on from, and to save to")
    parser.add_argument("--epochs", type=int, default=6, help="epochs in all (default: %(default)s)")
    parser.add_argument("--save-every", type=int, default=5, help="steps between checkpoints (default: %(default)s)")
    parser.add_argument("--print-every", type=int, default=11, help="steps between losses (default: %(default)s)")
    arguments = parser.parse_args()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if torch.cuda.is_available() else None
    rank, world_size = 0, 1
    if "WORLD_SIZE" in os.environ:  # started by torchrun
        torch.distributed.init_process_group()
        rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    with shapes.open_dataset(arguments.dataset) as dataset:
        train_and_test(dataset, arguments, device, rank, world_size)
    if world_size > 1:
        torch.distributed.destroy_process_group()


def train_and_test(
    dataset: imagebeam.ImageDataset,
    arguments: argparse.Namespace,
    device: torch.device | None,
    rank: int,
    world_size: int,
) -> None:
    """Trains on one split, saves every few steps, and counts what is predicted right in the other."""
    train_split, test_split = shapes.splits_of(dataset)
    pictures = {"image_size": IMAGE_SIZE, "crop": "squash", "dtype": "float32", "normalize": "imagenet"}
    feeding = {**pictures, "device": device, "pin_memory": device is not None}
    train = dataset.as_torch(train_split, BATCH_SIZE // world_size, **feeding, flip=True, shuffle="global")
    test = dataset.as_torch(test_split, BATCH_SIZE // world_size, **feeding, shuffle=None)

    model = make_model(len(dataset.labels)).to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    checkpoint, step = arguments.checkpoint, 0
    if checkpoint is not None and checkpoint.exists():
        saved = torch.load(checkpoint, map_location=device)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        train.load_state_dict(saved["train"])
        step = saved["step"]
    if rank == 0:
        print(f"{world_size} processes, {step} steps done", flush=True)
    trained = DistributedDataParallel(model) if world_size > 1 else model
    while step < arguments.epochs * len(train):
        for batch in train:  # the rest of the epoch that was saved, then whole ones
            loss = nn.functional.cross_entropy(trained(batch["image"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % arguments.print_every == 0:
                mean = sum_of_processes(loss.detach()) / world_size  # waits for the device
                if rank == 0:
                    print(f"step {step}: loss {mean!r}", flush=True)
            if checkpoint is not None and rank == 0 and step % arguments.save_every == 0:
                parts = {"model": model, "optimizer": optimizer, "train": train}
                save(checkpoint, {"step": step, **{name: part.state_dict() for name, part in parts.items()}})

    correct = torch.zeros((), dtype=torch.int64, device=device)
    with torch.no_grad():
        for batch in test:
            is_right = model(batch["image"]).argmax(1) == batch["label"]
            correct += (is_right & batch["mask"]).sum()
    total = sum_of_processes(correct)
    if rank == 0:
        count = dataset.num_examples(test_split)
        print(f"accuracy {total / count:.3f} over {count} examples")


if __name__ == "__main__":
    main()
