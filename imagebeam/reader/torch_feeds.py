"""Batches and examples as tensors of PyTorch. Imports PyTorch, so it is imported by `as_torch` and `as_torch_map`."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.utils.data

from imagebeam import errors
from imagebeam.reader import batch_schedule, option_values, record_order, resumable
from imagebeam.reader import options as options_lib

LAYOUTS = ("NCHW", "NHWC")


class TorchBatches(resumable.Resumable, torch.utils.data.IterableDataset):
    """Batches of tensors: the loader of a training loop, with `len`, `set_epoch`, `state_dict` and `load_state_dict`.

    An iteration reads `num_epochs` epochs, by default one, and the next iteration the epochs that follow. One from
    which no batch was taken does not count: Lightning begins one to look at it. With shuffle=None all iterations read
    the same. With num_epochs=None there is one iteration that never ends: a loop that was left goes on in the next.
    After `load_state_dict` the next iteration is the rest of the one that was saved, or the one after it if nothing is
    left.
    """

    def __init__(
        self,
        feeds: Any,
        asked: options_lib.ReadOptions,
        options: Mapping[str, Any],
        layout: str,
        pin_memory: bool,
        device: Any,
    ):
        """Reads nothing yet.

        Args:
            feeds: the `feeds.Feeds` to read.
            asked: the options of the reader.
            options: those of them that were given.
            layout: "NCHW" or "NHWC".
            pin_memory: whether tensors are copied into page-locked memory.
            device: where tensors are copied to; None leaves them in the memory of the host.
        """
        super().__init__()
        _check_layout(layout)
        self._feeds = feeds
        self._asked = asked
        self._options = options
        is_moved = layout == "NCHW" and asked.patches is None
        self._pictures = (*asked.names_of_pictures, "segmentation", *asked.images) if is_moved else ()
        self._pin_memory = pin_memory
        self._device = device
        self._batches: Any = None  # of the current iteration; None if it has not begun
        self._first_epoch, self._state = asked.first_epoch, asked.state  # where it begins
        self._is_chosen = False  # by set_epoch
        if asked.state is not None:
            self.restore(asked.state)

    def __len__(self) -> int:
        """Returns the number of batches in a whole iteration: of this one, and after its last batch of the next.

        In buckets they differ by a few.

        Raises:
            TypeError: with num_epochs=None, as PyTorch expects of a dataset without length.
        """
        is_over = self._batches is not None and self._batches.is_over and not self._is_chosen
        num_batches = self._schedule(self._next_epoch() if is_over else self._first_epoch, None).num_batches
        if num_batches is None:
            raise TypeError("num_epochs=None has no last batch, so there is no len()")
        return num_batches

    def __iter__(self) -> Iterator[Any]:
        if torch.utils.data.get_worker_info() is not None:
            raise errors.ConfigError(
                "reader-in-worker",
                "as_torch reads and decodes in threads of the training process, and each worker process of a "
                "DataLoader would read everything again: iterate over it without a DataLoader, or give num_workers=0; "
                "for transformations in worker processes, use as_torch_map",
            )
        num_epochs = self._asked.num_epochs
        if self._batches is None or num_epochs is not None:
            is_over = not self._is_chosen and self._planned(self._state).num_batches == 0
            if self._has_begun() or is_over:
                self._first_epoch, self._state = self._next_epoch(), None
            self._is_chosen = False
            place = {"first_epoch": self._first_epoch, "state": self._state}
            self._batches = self._feeds.as_numpy(self._asked.batch_size, **{**self._options, **place})
        return map(self._to_torch, self._batches)

    def set_epoch(self, epoch: int) -> None:
        """Begins the next iteration with this epoch.

        If a state in it was restored, the iteration is the rest of it, even if that is empty.
        """
        first = option_values.whole(0)("epoch", epoch)
        self._is_chosen = True
        if self._has_begun() or first != self._first_epoch:
            self._first_epoch, self._state, self._batches = first, None, None

    def _next_epoch(self) -> int:
        """Returns the first epoch of the iteration after this one."""
        return self._first_epoch + (0 if self._asked.shuffle is None else self._asked.num_epochs or 0)

    def _has_begun(self) -> bool:
        """Returns whether a batch of the current iteration was taken."""
        return self._batches is not None and self._batches.has_begun

    def state(self) -> record_order.ReaderState:
        return self._planned(self._state).start if self._batches is None else self._batches.state()

    def restore(self, state: record_order.ReaderState) -> None:
        """Begins the next iteration at `state`.

        Raises:
            ConfigError: if it belongs to other records, another order or iterations of another length.
        """
        dataclasses.replace(self._asked, state=state)  # refuses what is no state
        if state.num_epochs != self._asked.num_epochs:
            raise errors.ConfigError(
                "state-mismatch",
                f"the state is of num_epochs={state.num_epochs}, and the reader has num_epochs="
                f"{self._asked.num_epochs}, which is the length of an iteration: give the same",
            )
        self._first_epoch, self._state, self._batches = state.first_epoch, state, None
        self._planned(self._state)

    def metrics(self) -> Mapping[str, float | str]:
        """Returns what the current iteration waited for, as `feeds.BatchIterator.metrics`; {} before the first."""
        return {} if self._batches is None else self._batches.metrics()

    def _planned(self, state: record_order.ReaderState | None) -> batch_schedule.BatchSchedule:
        """Returns the schedule of the next iteration, from `state` on."""
        return self._schedule(self._first_epoch, state)

    def _schedule(self, first_epoch: int, state: record_order.ReaderState | None) -> batch_schedule.BatchSchedule:
        return self._feeds.make_schedule(dataclasses.replace(self._asked, first_epoch=first_epoch, state=state))

    def _to_torch(self, batch: Any) -> Any:
        if isinstance(batch, tuple):
            return tuple(map(self._put, ("image", "label", "weight"), batch))
        return {name: self._put(name, value) for name, value in batch.items()}

    def _put(self, name: str, value: np.ndarray) -> Any:
        if value.dtype == object:
            return [_to_tensor(row) if isinstance(row, np.ndarray) and row.dtype != object else row for row in value]
        tensor = _to_tensor(value)
        if name in self._pictures:
            tensor = tensor.movedim(-1, -3)
        if name == "label" and tensor.dtype == torch.int32:
            tensor = tensor.long()
        if self._pin_memory:
            tensor = tensor.pin_memory()
        return tensor if self._device is None else tensor.to(self._device, non_blocking=self._pin_memory)


class TorchExamples(torch.utils.data.Dataset):
    """Examples by index, each after `transform`: a map-style dataset for a DataLoader, also with worker processes."""

    def __init__(self, source: Any, layout: str, transform: Callable[[dict[str, Any]], Any] | None):
        """Reads nothing yet.

        Args:
            source: an `example_source.ExampleSource`.
            layout: "NCHW" for images [channels, height, width], "NHWC" for [height, width, channels].
            transform: is called with each example.
        """
        _check_layout(layout)
        self._source = source
        self._layout = layout
        self._transform = transform

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Any:
        return self._to_torch(self._source[index])

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Returns several examples, read together: a DataLoader asks for a batch by this name."""
        return [self._to_torch(example) for example in self._source.__getitems__(indices)]

    def _to_torch(self, example: dict[str, Any]) -> Any:
        for name, value in example.items():
            if isinstance(value, np.ndarray) and value.dtype != object:
                example[name] = _to_tensor(value)
        image = example.get("image")
        if self._layout == "NCHW" and isinstance(image, torch.Tensor):
            example["image"] = image.movedim(-1, -3)
        return example if self._transform is None else self._transform(example)


def rank_and_world_size(rank: int | None, world_size: int | None) -> dict[str, int]:
    """Returns the options `process_index` and `process_count`; those of torch.distributed if none are given.

    Raises:
        ConfigError: if only one is given, or this is one of several processes, which do not know each other yet.
    """
    if (rank is None) != (world_size is None):
        raise errors.ConfigError(
            "options-conflict",
            f"rank is {rank} and world_size {world_size}: give both, or neither for torch.distributed's",
        )
    if rank is None:
        distributed = torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            rank, world_size = distributed.get_rank(), distributed.get_world_size()
        elif os.environ.get("WORLD_SIZE", "1") != "1":
            raise errors.ConfigError(
                "options-conflict",
                f"the environment has WORLD_SIZE={os.environ['WORLD_SIZE']}, and torch.distributed is not initialized: "
                "each process would read everything; call torch.distributed.init_process_group() before as_torch, or "
                "give rank and world_size",
            )
    return {} if rank is None else {"process_index": rank, "process_count": world_size or 0}


def _check_layout(layout: str) -> None:
    if layout not in LAYOUTS:
        raise option_values.bad_value("layout", layout, f"it is one of {', '.join(map(repr, LAYOUTS))}")


def _to_tensor(values: np.ndarray) -> torch.Tensor:
    """Returns a writable tensor, in the memory of the array if that is writable."""
    values = np.require(values, requirements=("C", "W"))
    if values.dtype.name == "bfloat16":
        return torch.from_numpy(values.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(values)
