"""Batches as global arrays on a JAX mesh."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent import futures
from typing import TYPE_CHECKING, Any

import numpy as np

from imagebeam import errors
from imagebeam.reader import options as options_lib
from imagebeam.reader import order

if TYPE_CHECKING:
    from imagebeam import dataset as dataset_lib

_INT32 = np.iinfo(np.int32)


class JaxIterator(Iterator[dict[str, Any]]):
    """Global jax.Arrays: each process reads the rows that its devices hold, one batch ahead of the one in use.

    What JAX has no arrays for, such as "image/key", stays a NumPy array of this process' rows. `state` says where the
    iterator stands, `restore` goes there. Not thread-safe.

    Args:
        dataset: to read.
        split: "train", or a part of it.
        sharding: a jax.sharding.Sharding over devices of all processes, its first axis that of the examples. Further
            axes hold for the arrays that have them, so one sharding serves images and labels.
        batch_size: of all processes together.
        options: the fields of `imagebeam.ReadOptions` but process_index and process_count.

    Raises:
        ConfigError: if JAX is not installed, or the options, the batch size and the sharding do not fit each other.
    """

    def __init__(
        self,
        dataset: dataset_lib.ImageDataset,
        split: str,
        sharding: Any,
        batch_size: int,
        options: Mapping[str, Any],
    ):
        _check_options(dataset, batch_size, options)
        index, count, num_parts = _rows_of_process(sharding)
        if batch_size % num_parts:
            raise errors.ConfigError(
                f"batch_size is {batch_size}, of all processes together, and the sharding cuts it into {num_parts} "
                f"equal parts, {num_parts // count} for each of {count} processes: give a multiple of {num_parts}"
            )
        if count < _import_jax().process_count() and not options.get("deterministic", True):
            raise errors.ConfigError(
                "the sharding gives several processes the same rows, which deterministic=False would read in different "
                "orders: leave it out"
            )
        self._sharding = sharding
        self._batch_size = batch_size
        self._batches = dataset.as_numpy(
            split, batch_size // count, **options, process_index=index, process_count=count
        )
        self._is_exact = options.get("deterministic", True)
        self._state = self._state_of_batches()
        # One thread, so that whatever it is given runs in order. It ends with the iterator.
        self._thread = futures.ThreadPoolExecutor(1, thread_name_prefix="imagebeam-as-jax")
        self._ahead: futures.Future[tuple[dict[str, Any], order.ReaderState | None]] | None = None

    def __next__(self) -> dict[str, Any]:
        if self._ahead is None:
            self._ahead = self._thread.submit(self._load)
        batch, self._state = self._ahead.result()  # what it raises it raises again: an error is never taken for the end
        self._ahead = self._thread.submit(self._load)
        return batch

    def state(self) -> order.ReaderState:
        """Where the next batch begins, as `BatchIterator.state`; what was read ahead does not count.

        Raises:
            ConfigError: with deterministic=False.
        """
        return self._batches.state() if self._state is None else self._state

    def _state_of_batches(self) -> order.ReaderState | None:
        return self._batches.state() if self._is_exact else None

    def restore(self, state: order.ReaderState) -> None:
        """Goes on from `state`, in the time of a start: nothing that was read before is read again."""
        self._thread.submit(
            self._batches.restore, state
        ).result()  # after the batch that is on its way, if there is one
        self._ahead, self._state = None, self._state_of_batches()

    def _load(self) -> tuple[dict[str, Any], order.ReaderState | None]:
        batch = next(self._batches)
        return {name: self._put(name, value) for name, value in batch.items()}, self._state_of_batches()

    def _put(self, name: str, value: np.ndarray) -> Any:
        """Begins to copy the rows of this process to its devices, and returns the global array at once."""
        jax = _import_jax()
        if value.dtype == object:  # strings
            return value
        if value.dtype == np.int64 and not jax.config.jax_enable_x64:  # JAX would keep the lower 32 bits
            outside = value[(value < _INT32.min) | (value > _INT32.max)]
            if len(outside):
                raise errors.ConfigError(
                    f"feature {name!r} holds {outside[0]}, beyond int32, and JAX has 64 bits switched off: "
                    'call jax.config.update("jax_enable_x64", True), or leave the feature out'
                )
        sharding = _of_rank(self._sharding, value.ndim)
        return jax.make_array_from_process_local_data(sharding, value, (self._batch_size, *value.shape[1:]))


def _check_options(dataset: dataset_lib.ImageDataset, batch_size: int, options: Mapping[str, Any]) -> None:
    by_others = ("process_index", "process_count", "state")  # of which each process has another, checked below
    asked = options_lib.ReadOptions.of(batch_size, {k: v for k, v in options.items() if k not in by_others})
    if asked.batch_size is None:
        raise errors.ConfigError("batch_size is None; as_jax makes batches: give a whole number from 1 on")
    lists = dataset.lists_among(asked.features) if asked.features and asked.list_size is None else []
    if lists:
        raise errors.ConfigError(
            f"{', '.join(lists)} has any number of values, and a jax.Array has rows of one length: give list_size, "
            "such as list_size=100, to fill lists up and cut them; KEY/count then says how many values there were"
        )
    for name in ("process_index", "process_count"):
        if name in options:
            raise errors.ConfigError(f"{name} comes from the sharding in as_jax: leave it out")
    if options.get("supervised"):
        raise errors.ConfigError("as_jax gives batches by name: leave supervised=True out")
    may_skip = options.get("on_error") == "skip"
    is_partial = not options.get("drop_remainder", True) and (may_skip or options.get("num_epochs") is not None)
    if is_partial and not options.get("pad"):
        raise errors.ConfigError(
            "drop_remainder=False would end in a batch that cannot be cut into equal parts for the devices, and with "
            "on_error='skip' have more of them: give pad=True, which fills it up and marks what counts in a mask"
        )


def _rows_of_process(sharding: Any) -> tuple[int, int, int]:
    """Which rows of a batch the devices of this process hold.

    Processes that hold the same rows, as where a model is cut over several processes, read the same examples.

    Returns:
        The place of this process' rows among those of all processes, how many different ones there are, and into how
        many parts the rows are cut altogether.
    """
    jax = _import_jax()
    if not isinstance(sharding, jax.sharding.Sharding):
        raise errors.ConfigError(
            f"sharding is {sharding!r}; give a jax.sharding.Sharding, such as "
            'NamedSharding(jax.make_mesh((jax.device_count(),), ("data",)), PartitionSpec("data"))'
        )
    num_rows = len(sharding.device_set)  # as an example: the axes of a mesh always divide it
    parts: dict[int, set[int]] = {}  # first rows, by process
    for device, (rows,) in _of_rank(sharding, 1).devices_indices_map((num_rows,)).items():
        parts.setdefault(device.process_index, set()).add(rows.indices(num_rows)[0])
    if len(parts) < jax.process_count():
        raise errors.ConfigError(
            f"the sharding has devices of {len(parts)} of {jax.process_count()} processes: lay it over all of "
            "jax.devices(); for devices of one process, call as_numpy(process_index=..., process_count=...)"
        )
    different = sorted({tuple(sorted(each)) for each in parts.values()})
    num_parts = len(set().union(*different))
    if any(len(each) * len(different) != num_parts for each in different):
        raise errors.ConfigError(
            f"the sharding gives processes rows that overlap in part, or unequally many of them, {different} of "
            f"{num_rows}: lay the examples over whole processes"
        )
    return different.index(tuple(sorted(parts[jax.process_index()]))), len(different), num_parts


def _of_rank(sharding: Any, rank: int) -> Any:
    """`sharding` without the axes that an array of `rank` does not have."""
    jax = _import_jax()
    if not isinstance(sharding, jax.sharding.NamedSharding) or len(sharding.spec) <= rank:
        return sharding
    spec = jax.sharding.PartitionSpec(*sharding.spec[:rank])
    return jax.sharding.NamedSharding(sharding.mesh, spec, memory_kind=sharding.memory_kind)


def _import_jax() -> Any:
    try:
        import jax
    except ModuleNotFoundError as e:
        raise errors.ConfigError(f"{e.name} is not installed, as_jax needs it: pip install 'imagebeam[jax]'") from e
    return jax
