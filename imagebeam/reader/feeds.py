"""Examples for other than tf.data: global arrays on a JAX mesh, and a random access source for Grain and PyTorch."""

from __future__ import annotations

import functools
import hashlib
import io
import operator
import struct
import zlib
from collections.abc import Iterator, Mapping
from concurrent import futures
from typing import TYPE_CHECKING, Any

import numpy as np

from imagebeam import catalog as catalog_lib
from imagebeam import errors, example, features
from imagebeam.reader import fetch, order, sources

if TYPE_CHECKING:
    from imagebeam import dataset as dataset_lib

_INT32 = np.iinfo(np.int32)


def iterate_jax(
    dataset: dataset_lib.ImageDataset, split: str, sharding: Any, batch_size: int, options: Mapping[str, Any]
) -> JaxIterator:
    """Batches of a split as global jax.Arrays; see `JaxIterator`."""
    return JaxIterator(dataset, split, sharding, batch_size, options)


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
        _check_options(options)
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
        self._state = self._batches.state()
        # One thread, so that whatever it is given runs in order. It ends with the iterator.
        self._thread = futures.ThreadPoolExecutor(1, thread_name_prefix="imagebeam-as-jax")
        self._ahead: futures.Future[tuple[dict[str, Any], order.ReaderState]] | None = None

    def __next__(self) -> dict[str, Any]:
        if self._ahead is None:
            self._ahead = self._thread.submit(self._load)
        batch, self._state = self._ahead.result()  # what it raises it raises again: an error is never taken for the end
        self._ahead = self._thread.submit(self._load)
        return batch

    def state(self) -> order.ReaderState:
        """Where the next batch begins, as `BatchIterator.state`; what was read ahead does not count."""
        return self._state

    def restore(self, state: order.ReaderState) -> None:
        """Goes on from `state`, in the time of a start: nothing that was read before is read again."""
        self._thread.submit(
            self._batches.restore, state
        ).result()  # after the batch that is on its way, if there is one
        self._ahead, self._state = None, state

    def _load(self) -> tuple[dict[str, Any], order.ReaderState]:
        batch = next(self._batches)
        return {name: self._put(name, value) for name, value in batch.items()}, self._batches.state()

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


def _check_options(options: Mapping[str, Any]) -> None:
    for name in ("process_index", "process_count"):
        if name in options:
            raise errors.ConfigError(f"{name} comes from the sharding in as_jax: leave it out")
    if options.get("supervised"):
        raise errors.ConfigError("as_jax gives batches by name: leave supervised=True out")
    is_partial = not options.get("drop_remainder", True) and options.get("num_epochs") is not None
    if is_partial and not options.get("pad"):
        raise errors.ConfigError(
            "drop_remainder=False would end in a batch that cannot be cut into equal parts for the devices: "
            "give pad=True, which fills it up and marks what counts in a mask"
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


class ExampleSource:
    """The examples of a split by their place in it: what Grain calls a data source and PyTorch a dataset.

    Each is {"image": uint8 [height, width, 3] RGB, or its encoded bytes; "label": as in the batches of `as_tf`, classes
    from 0} and every other feature under its own key: int, float or bytes. The order is that of the shards, the same
    on every machine. Thread-safe, and small to pickle: a worker process opens the shards by itself.

    Args:
        view: the records.
        catalog: of their dataset.
        decode: whether "image" is pixels, decoded with Pillow.

    Raises:
        ConfigError: if the shards are compressed, or images are to be decoded and there are none, or Pillow is not
            installed.
    """

    def __init__(self, view: sources.View, catalog: catalog_lib.Catalog, decode: bool = True):
        self._view = view
        self._name = catalog.name
        self._fingerprint = catalog.fingerprint
        self._decode = decode
        self._features = catalog.features
        self._first_label = catalog.label_base if catalog.label_kind == "class" else 0
        if catalog.compression != "none":
            raise errors.ConfigError(
                "as_grain needs records that can be read alone, and the shards are compressed: "
                "convert with output.compression=none"
            )
        if decode:
            _import_pillow()
            if all(feature.source != features.ENCODED for feature in catalog.features):
                raise errors.ConfigError(
                    f"{catalog.name} was written without images: features drops image/encoded; give decode=False"
                )

    def __len__(self) -> int:
        return len(self._view)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """The example at `index`, from the end where it is negative.

        Raises:
            IndexError: if there is no such example.
            ExampleError: if it cannot be read or decoded.
        """
        place = operator.index(index)
        if not -len(self) <= place < len(self):
            raise IndexError(f"there is no example {place} among {len(self):,}")
        record = self._view.locate(place % len(self))
        [content] = self._view.fetcher.fetch(np.array([record], np.int64))
        if isinstance(content, fetch.Trouble):
            raise errors.ExampleError(str(content))
        try:
            return self._parse(content)
        except ValueError as e:
            raise errors.ExampleError(str(self._view.fetcher.trouble(record, str(e)))) from e

    def _parse(self, content: bytes) -> dict[str, Any]:
        parsed = example.parse_example(content)
        named: dict[str, Any] = {}
        for key, source, _ in self._features:
            if len(values := parsed.get(key, [])) != 1:
                raise ValueError(f"feature {key!r} has {len(values)} values, expected 1")
            if source == features.ENCODED:
                named["image"] = _decode_image(values[0]) if self._decode else values[0]
            elif source == features.LABEL:
                named["label"] = values[0] - self._first_label
            else:
                named[key] = values[0]
        return named

    def __repr__(self) -> str:
        """What decides which example stands at an index, whatever the folder: Grain compares it on restoring."""
        return (
            f"ExampleSource({self._name!r}, fingerprint={self._fingerprint!r}, split={self._view.selection.split!r}, "
            f"examples={self._digest}, len={len(self)}, decode={self._decode})"
        )

    @functools.cached_property
    def _digest(self) -> str:
        chosen = self._view.chosen
        return "all" if chosen is None else hashlib.blake2b(chosen.astype("<i8").tobytes(), digest_size=8).hexdigest()


def _decode_image(encoded: bytes) -> np.ndarray:
    """The pixels of a picture as RGB, uint8 [height, width, 3]; transparency is left out, as TensorFlow does.

    Raises:
        ValueError: if it cannot be decoded.
    """
    pillow = _import_pillow()
    try:
        with pillow.open(io.BytesIO(encoded)) as picture:
            if picture.mode.startswith("I;16"):  # gray of 16 bits, which Pillow would cut off at 255
                gray = (np.asarray(picture) >> 8).astype(np.uint8)
                return np.repeat(gray[:, :, None], 3, axis=2)
            return np.array(picture.convert("RGB"))  # a copy: PyTorch warns of an array that cannot be written to
    except (OSError, SyntaxError, ValueError, EOFError, struct.error, zlib.error, pillow.DecompressionBombError) as e:
        # The text of UnidentifiedImageError holds an address of memory.
        found = "cannot identify the image" if isinstance(e, pillow.UnidentifiedImageError) else e
        raise ValueError(f"the image cannot be decoded, Pillow: {found}") from e


def _import_jax() -> Any:
    try:
        import jax
    except ModuleNotFoundError as e:
        raise errors.ConfigError(f"{e.name} is not installed, as_jax needs it: pip install 'imagebeam[jax]'") from e
    return jax


def _import_pillow() -> Any:
    try:
        from PIL import Image
    except ModuleNotFoundError as e:
        raise errors.ConfigError(
            f"{e.name} is not installed, as_grain decodes with it: pip install 'imagebeam[grain]', or give decode=False"
        ) from e
    return Image
