"""A written dataset, opened for training."""

from __future__ import annotations

import difflib
import functools
import logging
import operator
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from imagebeam import catalog as catalog_lib
from imagebeam import errors, features
from imagebeam.reader import (
    bare_pixels,
    batch_names,
    dataset_source,
    normalize,
    open_files,
    option_values,
    order,
    record_reader,
    schedule,
    selection,
    source_of_address,
)
from imagebeam.reader import options as options_lib

if TYPE_CHECKING:
    import tensorflow as tf

_LOGGER = logging.getLogger(__name__)
_OF_WHOLE_PICTURES = ("image/object/bbox/", "image/object/mask", "image/segmentation/class/encoded")


def open_dataset(
    directory: str | os.PathLike[str],
    *,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_bytes: int = 64 << 30,
    storage_options: Mapping[str, Any] | None = None,
) -> ImageDataset:
    """Opens the dataset in `directory`, and checks that its shards are there and as long as the catalog says.

    Args:
        directory: a local folder, or an address: gs:// is read with TensorFlow's file system, any other with fsspec.
        cache_dir: a local folder that keeps whole shards of an address; needed for all but gs://, of which
            TensorFlow reads blocks itself.
        cache_bytes: that the cache may take; the shards used longest ago go first.
        storage_options: credentials and other options of the storage behind the cache: see docs/storage.md.

    Raises:
        CatalogError: if there is no catalog, or it was edited, or is of a newer format.
        ShardError: if a shard is missing or has another length than the catalog says.
        ConfigError: if the address cannot be read here.
    """
    folder = None if cache_dir is None else option_values.path("cache_dir", cache_dir)
    most = option_values.whole(1)("cache_bytes", cache_bytes)
    if storage_options is not None and not isinstance(storage_options, Mapping):
        raise errors.ConfigError(f"storage_options is {storage_options!r}; it must be a dict of the storage's options")
    source = source_of_address.open_source(option_values.path("directory", directory), folder, most, storage_options)
    catalog = source.load_catalog()
    source.check_shards(catalog)
    return ImageDataset(source, catalog)


class ImageDataset:
    """A dataset and its ways out. Immutable; cheap to make, for nothing is read before it is asked for."""

    def __init__(
        self,
        source: dataset_source.Source,
        catalog: catalog_lib.Catalog,
        filters: Sequence[frozenset[int]] = (),
        unfiltered: ImageDataset | None = None,
    ):
        self._source = source
        self._unfiltered = unfiltered
        self._lifetime: open_files.Lifetime = unfiltered._lifetime if unfiltered else open_files.Lifetime(source.close)
        self.measured: dict[str, options_lib.MeanAndStd] = {}  # of the train split by on_error: see `normalize`
        self.catalog = catalog
        self._filters = tuple(filters)  # ids as stored; an example has one of each

    def __repr__(self) -> str:
        splits = ", ".join(f"{name}: {split.num_examples:,}" for name, split in self.splits.items())
        return f"ImageDataset({self.directory!r}, {splits})"

    @property
    def directory(self) -> str:
        return self._source.directory

    @property
    def unfiltered(self) -> ImageDataset:
        """The dataset with all of its classes."""
        return self._unfiltered or self

    @property
    def kept_open(self) -> Any:
        """What keeps the files of this dataset open, as long as it is held."""
        return self._lifetime

    @property
    def splits(self) -> Mapping[str, catalog_lib.Split]:
        """By name, each with its shards and `num_examples`, labels that were filtered out included."""
        return self.catalog.splits

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes; the first has the id 0 in the batches, whatever the base in the records."""
        return self.catalog.labels

    @property
    def feature_spec(self) -> dict[str, tf.io.FixedLenFeature | tf.io.RaggedFeature]:
        """What `tf.io.parse_single_example` needs to parse a record: a list becomes a Tensor [None].

        `tf.io.parse_example` makes of it a RaggedTensor [batch, None].
        """
        tf = _import_tensorflow()
        from imagebeam.reader import list_features

        types = {features.BYTES: tf.string, features.INT64: tf.int64, features.FLOAT: tf.float32}
        return {
            feature.key: list_features.spec_of(feature)
            if feature.many
            else tf.io.FixedLenFeature([], types[feature.kind])
            for feature in self.catalog.features
        }

    @functools.cached_property
    def statistics(self) -> Mapping[str, Any]:
        """What the writer counted, by split: formats, colour spaces, labels, heights, widths and bytes; {} if lost."""
        return catalog_lib.load_statistics(self.directory, self._source.read)

    def num_examples(self, split: str) -> int:
        """Examples of a split or a part of one, such as "train[:10%]", without labels that were filtered out."""
        return len(self.view(split))

    def filter(self, labels: Sequence[int | str]) -> ImageDataset:
        """The same dataset with the examples of these classes alone, by names or ids from 0; ids stay as they are.

        An example of several classes stays if it has one of these. Of a dataset that was filtered before, those
        examples stay that both filters keep.

        The labels are read from the head of every record once for each split, some 30 us a record.

        Raises:
            ConfigError: if a label is none of the dataset's, or none is given.
        """
        kept = frozenset(self._label_id(label) + self.catalog.label_base for label in selection.listed(labels))
        return ImageDataset(self._source, self.catalog, (*self._filters, kept), self.unfiltered)

    def _label_id(self, label: int | str) -> int:
        """The id from 0 of a class."""
        if isinstance(label, str) and label in self.labels:
            return self.labels.index(label)
        if not isinstance(label, (str, bool)) and hasattr(label, "__index__"):
            index = operator.index(label)
            if 0 <= index < len(self.labels):
                return index
        if not self.labels:
            raise errors.ConfigError(f"{self.directory} has no classes to filter by")
        nearest = difflib.get_close_matches(str(label), self.labels, 1)
        raise errors.ConfigError(
            f"label {label!r} is none of the {len(self.labels):,} of the dataset"
            + (
                f"; did you mean {nearest[0]!r}?"
                if nearest
                else f": give a name, or an id from 0 to {len(self.labels) - 1}"
            )
        )

    def view(self, split: str) -> dataset_source.View:
        """The records of a split or a part of one: the ground of all that reads."""
        return self._source.view(self.catalog, split, self._filters)

    def as_tf(
        self, split: str, batch_size: int | None = None, *, input_context: Any = None, **options: Any
    ) -> tf.data.Dataset:
        """Batches of one process as a tf.data.Dataset.

        Args:
            split: "train", or a part such as "train[:10%]".
            batch_size: examples of a batch of this process; None gives single examples.
            input_context: a tf.distribute.InputContext, which gives process_index and process_count. Of batches
                of one size there is a multiple of its replicas, for tf.distribute drops those left over.
            **options: the fields of `imagebeam.ReadOptions`.

        Returns:
            {"image": [batch, height, width, 3] of `dtype`, "label": int32 [batch]}, the features named, and with `pad`
            "mask": bool [batch]; with `supervised` (image, label), with both (image, label, sample_weight). The order
            is a pure function of seed and epoch. Where an image may have several labels, "label" is float32
            [batch, classes] of 0 and 1. A list is a RaggedTensor [batch, None], or with `list_size` a Tensor
            [batch, list_size].

        Raises:
            ConfigError: if the options do not fit each other or the dataset.
        """
        _import_tensorflow()
        replicas = 1
        if input_context is not None:
            replicas = input_context.num_replicas_in_sync // input_context.num_input_pipelines
            for name in ("process_index", "process_count"):
                if name in options:
                    raise errors.ConfigError(f"{name} comes from the input_context: leave it out")
            options |= {
                "process_index": input_context.input_pipeline_id,
                "process_count": input_context.num_input_pipelines,
            }
        asked = options_lib.ReadOptions.of(batch_size, options)
        return self.build(split, self.records(split, asked, replicas), asked)

    def as_numpy(self, split: str, batch_size: int, **options: Any) -> BatchIterator:
        """Batches as NumPy arrays, from an iterator that can say where it stands. Options as of `as_tf`.

        A list is an object array [batch] of arrays; with `list_size` an array [batch, list_size].
        """
        return BatchIterator(self, split, batch_size, options)

    def as_distributed(self, strategy: Any, split: str, global_batch_size: int, **options: Any) -> Any:
        """Batches for a tf.distribute strategy (TPUStrategy, MirroredStrategy...): each worker reads its own share.

        Args:
            strategy: a tf.distribute.Strategy.
            split: "train", or a part of it.
            global_batch_size: of all replicas together.
            **options: the fields of `imagebeam.ReadOptions`.
        """
        asked = options_lib.ReadOptions.of(global_batch_size, {k: v for k, v in options.items() if k != "state"})
        replicas = strategy.num_replicas_in_sync
        if asked.batch_size is None or asked.batch_size % replicas:
            raise errors.ConfigError(
                f"global_batch_size is {global_batch_size!r}, and the strategy has {replicas} replicas, which take "
                f"equal parts of it: give a multiple of {replicas}"
            )

        def make(context: Any) -> tf.data.Dataset:
            batch_size = context.get_per_replica_batch_size(asked.batch_size)
            return self.as_tf(split, batch_size, input_context=context, **options)

        return strategy.distribute_datasets_from_function(make)

    def as_jax(self, split: str, sharding: Any, batch_size: int, **options: Any) -> Iterator[dict[str, Any]]:
        """Global jax.Arrays: every process reads its share of each batch.

        Args:
            split: "train", or a part of it.
            sharding: a jax.sharding.Sharding whose first axis the batch is laid out over.
            batch_size: of all processes together.
            **options: the fields of `imagebeam.ReadOptions`; process_index and process_count come from JAX.
        """
        from imagebeam.reader import jax_iterator

        return jax_iterator.JaxIterator(self, split, sharding, batch_size, options)

    def as_grain(self, split: str, *, decode: bool = True, features: Sequence[str] | None = None) -> Any:
        """The examples as a random access source: for Grain's DataLoader and MapDataset, and PyTorch's DataLoader.

        Args:
            split: "train", or a part of it.
            decode: whether "image" is uint8 [height, width, 3] by Pillow, else as it is stored.
            features: keys of the features beside "image" and "label"; None for all others of the dataset.

        Raises:
            ConfigError: if the examples cannot be read so, or a feature is named as "image" or "label" are.
        """
        from imagebeam.reader import example_source

        view = self.view(split)
        is_raw = self._is_raw(view.selection.split)
        return example_source.ExampleSource(view, self.catalog, decode, is_raw, features, self._lifetime)

    def mean_and_std(self, asked: options_lib.ReadOptions) -> options_lib.MeanAndStd | None:
        """What pixels from 0 to 255 are normalised with."""
        return normalize.mean_and_std(self, asked)

    def pixel_statistics(self, split: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation of each channel, of pixels from 0 to 255, over 1,000 examples of the split."""
        return normalize.measure(self, split)

    def _is_raw(self, split: str) -> bool:
        return bare_pixels.is_raw(self.catalog, bare_pixels.formats_in(self.statistics, split))

    def records(self, split: str, asked: options_lib.ReadOptions, replicas: int = 1) -> record_reader.Records:
        """What the tf.data pipeline reads of a split, with these options, for `replicas` that share this process."""
        view = self.view(split)
        by_source = {feature.source: feature for feature in self.catalog.features}
        is_raw = self._is_raw(view.selection.split)
        self._check(by_source, asked)
        if is_raw:
            bare_pixels.check_shape_is_stored(self.catalog)
        own = batch_names.own_names(self.catalog, asked.pad)
        counted = self.statistics.get(view.selection.split, {})
        longest = max((counted.get(side, {}).get("max", 0) for side in ("height", "width")), default=0)
        source = self.source(view)
        return record_reader.Records(
            fetcher=view.fetcher,
            schedule=schedule.plan(source, asked, replicas),
            chosen=view.chosen,
            by_source=by_source,
            extra=batch_names.choose_features(self.catalog, asked.features, own, asked.list_size),
            formats=bare_pixels.formats_in(self.statistics, view.selection.split),
            is_raw=is_raw,
            longest_side=longest,
            mean_record_bytes=source.mean_record_bytes,
            label_base=self.catalog.label_base if self.catalog.label_kind == "class" else asked.label_base,
            num_classes=asked.label_base + len(self.labels),
        )

    def source(self, view: dataset_source.View) -> schedule.Source:
        """What a schedule must know of the records of a view."""
        mean_bytes = max(1, self.splits[view.selection.split].num_bytes // max(1, view.num_records_of_split))
        is_compressed = self.catalog.compression != "none"
        return schedule.Source(view.sizes, mean_bytes, is_compressed, self.catalog.fingerprint, self._named(view))

    def _named(self, view: dataset_source.View) -> str:
        """The records of a view as a state names them."""
        kept = [f" of labels {' '.join(map(str, sorted(ids)))}" for ids in self._filters]
        return "".join((str(view.selection), *sorted(kept)))  # in whatever order the filters came

    def build(
        self, split: str, records: record_reader.Records, asked: options_lib.ReadOptions, keep_empty: bool = False
    ) -> tf.data.Dataset:
        """The tf.data pipeline over records; `keep_empty` keeps batches of which every example was skipped."""
        from imagebeam.reader import tf_input

        _warn_of_places(records.extra, asked)
        batches = tf_input.build(records, asked, self.mean_and_std(asked), keep_empty)
        self.check_batch_size(split, asked, records.schedule)
        batches.imagebeam_lifetime = self.kept_open  # datasets and iterators made of it hold it
        return batches

    def check_batch_size(self, split: str, asked: options_lib.ReadOptions, planned: schedule.Schedule) -> None:
        """Raises ConfigError where not one batch would be full, and all are to be."""
        if asked.batch_size is None or not asked.drops_remainder:
            return
        share = self.num_examples(split) // asked.process_count
        if planned.num_batches == 0 and asked.state is None:
            epochs = "1 epoch" if asked.num_epochs == 1 else f"{asked.num_epochs} epochs"
            each = f" for each of {planned.replicas} replicas" if planned.replicas > 1 else ""
            raise errors.ConfigError(
                f"batch_size is {asked.batch_size:,}, and a process reads {share:,} examples of {split!r} in each of "
                f"{epochs}: no batch would be full{each}; give a smaller one, drop_remainder=False or pad=True"
            )
        if share < asked.batch_size:
            _LOGGER.warning(
                "batch_size is %s, and a process reads %s examples of %r: a batch holds some of them more than once",
                f"{asked.batch_size:,}",
                f"{share:,}",
                split,
            )

    def lists_among(self, keys: Sequence[str]) -> list[str]:
        """Those of the keys whose features have any number of values."""
        return [feature.key for feature in self.catalog.features if feature.many and feature.key in keys]

    def _check(self, by_source: Mapping[str, features.Feature], asked: options_lib.ReadOptions) -> None:
        if features.ENCODED not in by_source:
            raise errors.ConfigError(f"{self.directory} was written without images: features drops image/encoded")
        if asked.supervised and features.LABEL not in by_source:
            raise errors.ConfigError(f"{self.directory} has no labels, which supervised=True needs")
        if asked.list_size is not None and not self.lists_among(asked.features):
            known = [feature.key for feature in self.catalog.features]
            raise errors.ConfigError(
                f"list_size is {asked.list_size}, and features asks for no list; the dataset has "
                f"{', '.join(self.lists_among(known)) or 'none'}"
            )
        highest = asked.label_base + len(self.labels) - 1
        if asked.num_classes is not None and self.labels and highest >= asked.num_classes:
            raise errors.ConfigError(
                f"labels run from {asked.label_base} to {highest}, and a model of {asked.num_classes} classes takes "
                f"0 to {asked.num_classes - 1}: give label_base=0, or num_classes={highest + 1}"
            )


def _warn_of_places(extra: Sequence[features.Feature], asked: options_lib.ReadOptions) -> None:
    """Says so where boxes or masks will not lie on the pictures."""
    told = [feature.key for feature in extra if feature.source.startswith(_OF_WHOLE_PICTURES)]
    if told and (asked.crop in ("random", "center") or asked.flips):
        _LOGGER.warning(
            "%s: of the whole picture as it is stored, while crop=%r, flip=%r change the pictures alone; "
            'with crop="squash", flip=False boxes lie where they belong',
            ", ".join(told),
            asked.crop,
            asked.flips,
        )


class BatchIterator(Iterator[dict[str, np.ndarray]]):
    """Batches as NumPy arrays; `state` says where it stands, `restore` goes there."""

    def __init__(self, dataset: ImageDataset, split: str, batch_size: int, options: Mapping[str, Any]):
        self._dataset = dataset
        self._split = split
        self._batch_size = batch_size
        self._options = dict(options)
        self._begin(self._options.pop("state", None))

    def _begin(self, state: order.ReaderState | None) -> None:
        _import_tensorflow()
        from imagebeam.reader import tf_input

        asked = options_lib.ReadOptions.of(self._batch_size, {**self._options, "state": state})
        if asked.batch_size is None:
            raise errors.ConfigError("batch_size is None; as_numpy makes batches: give a whole number from 1 on")
        if asked.next_epoch_each_iteration:
            raise errors.ConfigError(
                "next_epoch_each_iteration=True is for datasets, which can be iterated over again, and as_numpy and "
                "as_jax give one iterator: leave it out, and give num_epochs"
            )
        records = self._dataset.records(self._split, asked)
        batches = tf_input.NumpyIterator(self._dataset.build(self._split, records, asked, keep_empty=True))
        self._asked, self._schedule, self._batches = asked, records.schedule, batches
        self._num_batches = 0  # since the schedule began

    def __next__(self) -> Any:
        while True:
            batch = next(self._batches)
            self._num_batches += 1
            if len(batch[0] if isinstance(batch, tuple) else batch["image"]):  # else every example was skipped
                return batch

    def state(self) -> order.ReaderState:
        """Where the next batch begins: plain values, the same in every process of the job.

        Raises:
            ConfigError: with deterministic=False, which leaves open what was read.
        """
        if not self._asked.deterministic:
            raise errors.ConfigError(
                "deterministic=False gives examples in the order in which they are decoded, so there is no state from "
                "which another reader could go on exactly: leave it out where you need state()"
            )
        return self._schedule.state_after(self._num_batches)

    def restore(self, state: order.ReaderState) -> None:
        """Goes on from `state`, in the time of a start: nothing that was read before is read again."""
        self._begin(state)


def _import_tensorflow() -> Any:
    try:
        import tensorflow as tf
    except ModuleNotFoundError as e:
        raise errors.ConfigError(f"{e.name} is not installed, the reader needs it: pip install 'imagebeam[tf]'") from e
    return tf
