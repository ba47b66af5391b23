"""A committed dataset opened for reading: what it holds, and the ways to read it."""

from __future__ import annotations

import array
import collections
import copy
import dataclasses
import difflib
import functools
import itertools
import logging
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from imagebeam import catalog as catalog_lib
from imagebeam import errors, snapshots
from imagebeam import features as features_lib
from imagebeam.reader import (
    aspect_buckets,
    bare_pixels,
    batch_schedule,
    dataset_source,
    feeds,
    full_batches,
    image_sizes,
    option_values,
    read_plan,
    record_order,
    record_selection,
)
from imagebeam.reader import options as options_lib

if TYPE_CHECKING:
    import tensorflow as tf

    from imagebeam.reader import example_source, grain_batches, jax_iterator, shard_reader, torch_feeds


_LOGGER = logging.getLogger(__name__)
_TRAIN = "train"  # training and evaluation must use the same numbers, so those of this split hold for all splits
_MAX_MEASURED = 1000  # examples
_MIN_STD = 1e-3  # for pixels that are all equal

ChannelStatistics = tuple[tuple[float, ...], tuple[float, ...]]  # mean and standard deviation of each channel, 0 to 255


def open_dataset(
    directory: str | os.PathLike[str],
    *,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_bytes: int = 64 << 30,
    storage_options: Mapping[str, Any] | None = None,
    snapshot: str | int | None = None,
) -> ImageDataset:
    """Opens the dataset in `directory` and checks that all its shards exist with the lengths that the catalog says.

    Args:
        directory: a local folder or an address. If it holds snapshots instead of a catalog, the latest one is read.
        cache_dir: a local folder for copies of the whole shards of an address; snapshots of a dataset share it. Without
            it, and where it has no room for all that is read, records are read at their address in every epoch.
        cache_bytes: largest size of the cache; the shards used longest ago are removed first.
        storage_options: credentials and other options of the address's storage: see docs/storage.md.
        snapshot: name or number of a snapshot to read, such as "000002" or 2, instead of the latest.

    Raises:
        CatalogError: if there is no catalog, or it was edited or written by a newer release; or the list of removed
            records is missing or damaged.
        ShardError: if a shard is missing or has another length than the catalog says.
        ConfigError: if the address cannot be read here, an option is not known, or there is no such snapshot.

    Examples:
        >>> ds = imagebeam.open_dataset("shards")
        >>> ds.labels
        ('circle', 'square', 'triangle')
        >>> ds.num_examples("train"), ds.num_examples("train[:10%]")
        (472, 47)
    """
    folder = None if cache_dir is None else option_values.path("cache_dir", cache_dir)
    max_bytes = option_values.whole(1, 1 << 60)("cache_bytes", cache_bytes)
    if storage_options is not None and not isinstance(storage_options, Mapping):
        raise errors.ConfigError(
            "option-bad-value", f"storage_options is {storage_options!r}; it must be a dict of the storage's options"
        )
    address = option_values.path("directory", directory)
    source = dataset_source.DatasetSource(address, folder, max_bytes, storage_options)
    catalog = source.load_catalog(snapshot)
    source.check_shards(catalog)
    return ImageDataset(source, catalog, removed=source.load_removed(catalog))


class ImageDataset:
    """A committed dataset and the ways to read it. Immutable, and cheap to make: records are read only when needed."""

    def __init__(
        self,
        source: dataset_source.DatasetSource,
        catalog: catalog_lib.Catalog,
        removed: Mapping[str, Sequence[int]] | None = None,
    ):
        """Use `open_dataset` instead.

        Args:
            source: reads the shards.
            catalog: of the dataset.
            removed: removed records by shard, ascending indexes in it; shards without removed records are left out.
        """
        self.catalog = catalog
        """The catalog of the dataset, or of the snapshot that was opened."""
        self._source = source
        self._filters: tuple[frozenset[int], ...] = ()  # label ids as stored; a selected example has one of each set
        self._unfiltered: ImageDataset | None = None
        # A filtered dataset shares all that follows.
        self._removed = removed or {}
        self._removed_of: dict[str, np.ndarray] = {}  # numbers of removed records, by split
        self._labels_of: dict[str, record_selection.LabelRows] = {}  # labels of all records, by split
        self._members_of: dict[Any, Sequence[np.ndarray]] = {}  # records of each bucket, by what decides them
        self._sizes_of: dict[tuple[str, ...], np.ndarray] = {}  # sizes of all images, by splits
        self._measured: dict[str, ChannelStatistics] = {}  # statistics of the train split, by on_error

    def __repr__(self) -> str:
        splits = ", ".join(f"{name}: {split.num_examples:,}" for name, split in self.splits.items())
        return f"ImageDataset({self.directory!r}, {splits})"

    @property
    def directory(self) -> str:
        """The folder of the catalog: that of the snapshot, if the dataset has snapshots."""
        return self._source.directory

    @property
    def snapshot(self) -> str | None:
        """Name of the snapshot, such as "000002"; None for a dataset without snapshots."""
        return snapshots.name_of(self.catalog)

    @property
    def unfiltered(self) -> ImageDataset:
        """The dataset with all of its classes."""
        return self._unfiltered or self

    @property
    def splits(self) -> Mapping[str, catalog_lib.Split]:
        """The splits by name, each with its shards and `num_examples`; filters do not change them."""
        return self.catalog.splits

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes; the first has the id 0 in the batches, whatever the base in the records."""
        return self.catalog.labels

    @property
    def feature_spec(self) -> dict[str, tf.io.FixedLenFeature | tf.io.RaggedFeature]:
        """The spec for `tf.io.parse_single_example`, which makes a Tensor [None] of a list of any length.

        `tf.io.parse_example` makes a RaggedTensor [batch, None] of it.
        """
        feeds.import_tensorflow()
        from imagebeam.reader import tf_pipeline

        return {feature.key: tf_pipeline.spec_of(feature) for feature in self.catalog.features}

    @functools.cached_property
    def statistics(self) -> Mapping[str, Any]:
        """Counts of the writer by split: formats, colour spaces, labels, heights, widths and bytes; {} if lost."""
        return catalog_lib.load_statistics(self.directory, self._source.store)

    def num_examples(self, split: str) -> int:
        """Returns the number of examples in a split, a part as "train[:10%]" or several, that the filters keep."""
        return len(self.select(split))

    def filter(self, labels: Sequence[int | str]) -> ImageDataset:
        """Returns the same dataset with only the examples of these classes; the ids of classes stay as they are.

        An example of several classes stays if it has one of these. After several filters an example stays if all of
        them keep it. Labels are read from the head of every record, once for each split: some 30 us a record.

        Args:
            labels: names of classes, or ids from 0.

        Raises:
            ConfigError: if the dataset has no such label, or `labels` is empty.

        Examples:
            >>> ds = imagebeam.open_dataset("shards")
            >>> ds.filter(["circle"]).num_examples("train")
            161
        """
        kept = frozenset(
            self._label_id(label) + self.catalog.label_base for label in record_selection.check_labels(labels)
        )
        filtered = copy.copy(self)
        filtered._filters, filtered._unfiltered = (*self._filters, kept), self.unfiltered
        return filtered

    def _label_id(self, label: int | str) -> int:
        """Returns the id of a class, from 0."""
        if isinstance(label, str) and label in self.labels:
            return self.labels.index(label)
        if not isinstance(label, (str, bool)) and hasattr(label, "__index__"):
            index = operator.index(label)
            if 0 <= index < len(self.labels):
                return index
        if not self.labels:
            raise errors.ConfigError("dataset-no-classes", f"{self.directory} has no classes to filter by")
        nearest = difflib.get_close_matches(str(label), self.labels, 1)
        ids = f": give a name, or an id from 0 to {len(self.labels) - 1}"
        wanted = f"; did you mean {nearest[0]!r}?" if nearest else ids
        known = f"none of the {len(self.labels):,} of the dataset"
        raise errors.ConfigError("label-unknown", f"label {label!r} is {known}{wanted}")

    def as_tf(
        self, split: str, batch_size: int | None = None, *, input_context: Any = None, **options: Any
    ) -> tf.data.Dataset:
        """Returns the batches of one process as a tf.data.Dataset.

        Args:
            split: "train", a part such as "train[:10%]", or several as "train+validation".
            batch_size: number of examples in a batch of this process; None gives single examples.
            input_context: a tf.distribute.InputContext, which gives process_index and process_count. If all batches
                have one size, their number is a multiple of its replicas, because tf.distribute drops the rest.
            **options: the fields of `imagebeam.ReadOptions`.

        Returns:
            {"image": [batch, height, width, 3] of `dtype`, "label": int32 [batch]}, the features and images named, and
            with `pad` "mask": bool [batch]. With `supervised` (image, label), with both (image, label, sample_weight).
            The order is a pure function of seed and epoch. If images may have several labels, "label" is float32
            [batch, classes] of 0 and 1. A list is a RaggedTensor [batch, None], or with `list_size` a Tensor
            [batch, list_size]; with a shape in the catalog it is a Tensor [batch, *shape].

        Raises:
            ConfigError: if the options do not fit each other or the dataset.

        Examples:
            >>> ds = imagebeam.open_dataset("shards")
            >>> batch = next(iter(ds.as_tf("train", 32, image_size=64, shuffle="global")))
            >>> batch["image"].shape, batch["label"].dtype
            (TensorShape([32, 64, 64, 3]), tf.int32)
        """
        return _SplitFeeds(self, split).as_tf(batch_size, input_context=input_context, **options)

    def as_numpy(self, split: str, batch_size: int | None, **options: Any) -> feeds.BatchIterator:
        """Returns an iterator over batches as NumPy arrays that can save and restore its place.

        Arguments as of `as_tf`. A list is an object array [batch] of arrays; with `list_size` an array
        [batch, list_size]; with a shape in the catalog an array [batch, *shape].

        Examples:
            >>> ds = imagebeam.open_dataset("shards")
            >>> batches = ds.as_numpy("train", 32, image_size=64, shuffle="global")
            >>> next(batches)["image"].shape
            (32, 64, 64, 3)
            >>> state = batches.state()  # its to_dict() is for JSON
            >>> second = next(batches)
            >>> batches.restore(state)
            >>> bool((next(batches)["image"] == second["image"]).all())
            True
        """
        return _SplitFeeds(self, split).as_numpy(batch_size, **options)

    def as_jax(self, split: str, sharding: Any, batch_size: int | None, **options: Any) -> jax_iterator.JaxIterator:
        """Returns an iterator over batches as global jax.Arrays; every process reads its share of each batch.

        Args:
            split: "train", a part such as "train[:10%]", or several as "train+validation".
            sharding: a jax.sharding.Sharding whose first axis the examples are laid out over.
            batch_size: number of examples in a batch of all processes together.
            **options: the fields of `imagebeam.ReadOptions`; process_index and process_count come from JAX.

        Examples:
            >>> ds = imagebeam.open_dataset("shards")
            >>> mesh = jax.make_mesh((jax.device_count(),), ("data",))
            >>> rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
            >>> next(ds.as_jax("train", rows, batch_size=64, image_size=64))["image"].shape
            (64, 64, 64, 3)
        """
        return _SplitFeeds(self, split).as_jax(sharding, batch_size, **options)

    def as_distributed(
        self, strategy: tf.distribute.Strategy, split: str, global_batch_size: int | None, **options: Any
    ) -> tf.distribute.DistributedDataset:
        """Returns batches for a tf.distribute strategy (TPUStrategy, MirroredStrategy...); each worker reads its share.

        Args:
            strategy: a tf.distribute.Strategy.
            split: "train", a part such as "train[:10%]", or several as "train+validation".
            global_batch_size: number of examples in a batch of all replicas together.
            **options: the fields of `imagebeam.ReadOptions`.

        Examples:
            >>> ds = imagebeam.open_dataset("shards")
            >>> strategy = tf.distribute.MirroredStrategy()
            >>> batch = next(iter(ds.as_distributed(strategy, "train", 64, image_size=64)))
            >>> strategy.experimental_local_results(batch["image"])[0].shape[1:]
            TensorShape([64, 64, 3])
        """
        return _SplitFeeds(self, split).as_distributed(strategy, global_batch_size, **options)

    def state_at(self, split: str, step: int, batch_size: int | None, **options: Any) -> record_order.ReaderState:
        """Returns the state of a job after `step` batches of each process: where a restart goes on. Reads no image.

        Args:
            split: "train", a part such as "train[:10%]", or several as "train+validation".
            step: number of batches that each process has taken since the reader began.
            batch_size: number of examples in a batch of one process; of `as_jax` and `as_distributed` that of all
                divided by `process_count`.
            **options: the options of the reader that decide the order: `seed`, `shuffle`, `shuffle_bytes`,
                `shuffle_records`, `process_count`, `num_epochs`, `first_epoch`.

        Raises:
            ConfigError: if the options do not fit each other, or `step` is beyond the last batch.

        Examples:
            >>> ds = imagebeam.open_dataset("shards")
            >>> state = ds.state_at("train", step=1000, batch_size=32, shuffle="global")
            >>> batches = ds.as_numpy("train", 32, image_size=64, shuffle="global")
            >>> batches.restore(state)
        """
        return _SplitFeeds(self, split).state_at(step, batch_size, **options)

    def num_batches(self, split: str, batch_size: int | None, **options: Any) -> int:
        """Returns how many batches a process makes in an epoch, or in `num_epochs` of them: the steps of a loop.

        It is the number that the feeds make, with all their options. Only if examples are skipped (`on_error`) and
        batches need not be full, they make fewer. Reads no image.

        Args:
            split: "train", a part such as "train[:10%]", or several as "train+validation".
            batch_size: number of examples in a batch of one process, as of `state_at`.
            **options: the options of the reader; of those that decide the number, `num_epochs` is 1 unless it is given.

        Raises:
            ConfigError: if the options do not fit each other, or with num_epochs=None.

        Examples:
            >>> ds = imagebeam.open_dataset("shards")
            >>> ds.num_batches("train", 32), ds.num_batches("train", 32, num_epochs=2)
            (14, 29)
        """
        return _SplitFeeds(self, split).num_batches(batch_size, **options)

    def class_weights(self, split: str = _TRAIN, label_base: int = 0) -> dict[int, float]:
        """Returns a weight for each class by its id, so that all classes have the same total weight.

        The weight is examples / (classes * examples of the class), over the classes that the filters keep and that the
        split has; it is 0 for all others. For `weights=`, and for Keras' `class_weight`.

        Args:
            split: "train", or several as "train+validation"; of parts the whole splits are counted.
            label_base: as in `ReadOptions`.

        Raises:
            ConfigError: if the dataset has no classes, or they were not counted.

        Examples:
            >>> ds = imagebeam.open_dataset("shards")
            >>> {ds.labels[label]: round(weight, 3) for label, weight in ds.class_weights("train").items()}
            {'circle': 0.977, 'square': 1.022, 'triangle': 1.002}
        """
        names = record_selection.split_names(split, self.splits)
        every = [self.statistics.get(name, {}).get("labels", {}) for name in names]
        counted = sum(map(collections.Counter, every), collections.Counter[str]()) if all(every) else {}
        if self.catalog.label_kind != "class" or not counted:
            raise errors.ConfigError(
                "dataset-no-classes",
                f"{self.directory} has no classes, or no statistics.json that counts those of {split!r}: "
                "give weights={id of a class: weight} yourself",
            )
        kept = [all(each + self.catalog.label_base in ids for ids in self._filters) for each in range(len(self.labels))]
        counts = [counted.get(label, 0) * is_kept for label, is_kept in zip(self.labels, kept)]
        share = sum(counts) / max(1, sum(map(bool, counts)))
        return {index + label_base: share / count if count else 0.0 for index, count in enumerate(counts)}

    def as_grain(
        self, split: str, *, decode: bool = True, features: Sequence[str] | None = None
    ) -> example_source.ExampleSource:
        """Returns the examples as a random access source, for Grain's DataLoader or MapDataset and for PyTorch.

        Args:
            split: "train", a part such as "train[:10%]", or several as "train+validation".
            decode: whether "image" is uint8 [height, width, 3], decoded in C or with Pillow; else it comes as it is
                stored.
            features: keys of the features besides "image" and "label"; None for all others of the dataset.

        Raises:
            ConfigError: if the examples cannot be read like this, or a feature is named "image" or "label".

        Examples:
            >>> source = imagebeam.open_dataset("shards").as_grain("train")
            >>> len(source)
            472
            >>> source[0]["image"].dtype, sorted(source[0])[:2]
            (dtype('uint8'), ['image', 'image/channels'])
            >>> batches = grain.MapDataset.source(source).shuffle(seed=0)
        """
        from imagebeam.reader import example_source

        selected = self.select(split)
        is_raw = bare_pixels.is_raw(self.catalog, bare_pixels.formats_in(self.statistics, selected.splits))
        share = selected.share_of(0, 1)
        reads = record_selection.Reads(
            share, 1, None, is_divided=True
        )  # Grain divides it, in a way that it does not say
        fetcher = self._source.open_reader(self.catalog, selected.splits, reads)
        return example_source.ExampleSource(selected, fetcher, self.catalog, decode, is_raw, features)

    def as_torch(self, split: str, batch_size: int | None, **options: Any) -> torch_feeds.TorchBatches:
        """Returns batches as tensors of PyTorch: the loader of a training loop, without a DataLoader.

        An iteration is one epoch (`num_epochs`), the next iteration the next epoch: see docs/torch.md.

        Args:
            split: "train", a part such as "train[:10%]", or several as "train+validation".
            batch_size: number of examples in a batch of this process.
            **options: the fields of `imagebeam.ReadOptions`, and
                rank, world_size: of this process; by default those of torch.distributed if it is initialized.
                layout: "NCHW" for images [batch, channels, height, width], which lie in memory as channels_last does,
                    or "NHWC". Neither copies.
                pin_memory: whether tensors are copied into page-locked memory.
                device: where tensors are copied to, without waiting if they are pinned.

        Raises:
            ConfigError: if PyTorch is not installed, or the options do not fit each other or the dataset.

        Examples:
            >>> ds = imagebeam.open_dataset("shards")
            >>> loader = ds.as_torch("train", 32, image_size=64, shuffle="global")
            >>> next(iter(loader))["image"].shape
            torch.Size([32, 3, 64, 64])
        """
        return _SplitFeeds(self, split).as_torch(batch_size, **options)

    def as_torch_map(
        self,
        split: str,
        *,
        transform: Callable[[dict[str, Any]], Any] | None = None,
        layout: str = "NCHW",
        decode: bool = True,
        features: Sequence[str] | None = None,
    ) -> torch_feeds.TorchExamples:
        """Returns the examples by index, as tensors: a map-style dataset for PyTorch's DataLoader.

        Args:
            split: "train", a part such as "train[:10%]", or several as "train+validation".
            transform: is called with each example, in the process that reads it.
            layout: "NCHW" for an image [channels, height, width], or "NHWC".
            decode: as of `as_grain`.
            features: as of `as_grain`.

        Raises:
            ConfigError: if PyTorch is not installed, or as of `as_grain`.
        """
        return _SplitFeeds(self, split).as_torch_map(
            transform=transform, layout=layout, decode=decode, features=features
        )

    def as_grain_batches(self, split: str, batch_size: int | None, **options: Any) -> grain_batches.GrainBatches:
        """Returns the batches of `as_numpy` as a `grain.IterDataset`, whose iterators save and restore their place.

        Args:
            split: "train", a part such as "train[:10%]", or several as "train+validation".
            batch_size: number of examples in a batch of this process.
            **options: the fields of `imagebeam.ReadOptions`.

        Examples:
            >>> ds = imagebeam.open_dataset("shards")
            >>> batches = iter(ds.as_grain_batches("train", 32, image_size=64, shuffle="global"))
            >>> next(batches)["image"].shape
            (32, 64, 64, 3)
        """
        return _SplitFeeds(self, split).as_grain_batches(batch_size, **options)

    def image_sizes(self, split: str) -> np.ndarray:
        """Returns height and width of each image of a split, in the order of its records: uint16 [n, 2].

        Both are 0 if the record cannot be read or has a list of images. Of images with a side beyond 65,535 both sides
        are scaled down to it.

        Args:
            split: "train", a part such as "train[:10%]", or several as "train+validation".

        Examples:
            >>> imagebeam.open_dataset("shards").image_sizes("train").shape
            (472, 2)
        """
        selected = self.select(split)
        return self._read_sizes(selected.splits)[selected.records_at(np.arange(len(selected)))]

    def select(self, split: str) -> record_selection.RecordSelection:
        """Returns the records of a split, of a part such as "train[:10%]" or of several, that the filters keep."""
        return record_selection.select(self.catalog, split, self._filters, self._read_labels, self._removed_records)

    def epochs(self, split: str, asked: options_lib.ReadOptions, replicas: int = 1) -> batch_schedule.SelectionEpochs:
        """Returns the epochs of a split, in buckets if the options have some; arguments as of `records`.

        Raises:
            ConfigError: if no image is large enough for a bucket.
        """
        if asked.buckets is None:
            return batch_schedule.SelectionEpochs(self.select(split))
        return self.bucket_epochs(split, asked, replicas)

    def bucket_epochs(
        self, split: str, asked: options_lib.ReadOptions, replicas: int = 1
    ) -> batch_schedule.BucketEpochs:
        """Returns the epochs of a split in buckets, as `epochs`."""
        assert asked.buckets is not None
        selected = self.select(split)
        members = self._members(selected, asked.buckets, asked.max_enlarge, asked.pads_small)
        return batch_schedule.BucketEpochs(selected, members, replicas)

    def _members(
        self,
        selected: record_selection.RecordSelection,
        buckets: aspect_buckets.Sizes,
        max_enlarge: float | None,
        may_be_small: bool,
    ) -> Sequence[np.ndarray]:
        """Returns the records of each bucket. Computes them once.

        Raises:
            ConfigError: if there are none.
        """
        wanted = (selected.name, buckets, max_enlarge, may_be_small)
        if wanted not in self._members_of:
            chosen = aspect_buckets.choose_selected(
                self._read_sizes(selected.splits), selected, buckets, max_enlarge, may_be_small
            )
            found = aspect_buckets.members(chosen, selected, len(buckets), selected.split_size)
            num_dropped = len(selected) - sum(map(len, found))
            if num_dropped == len(selected):
                raise errors.ConfigError(
                    "buckets-too-large",
                    f"all {num_dropped:,} images of {selected.name} in {self.directory} would be enlarged more than "
                    f"max_enlarge={max_enlarge!r} in each bucket: give smaller buckets, a greater max_enlarge, or "
                    'too_small="pad"',
                )
            if num_dropped:
                _LOGGER.warning(
                    "%s of %s images of %s in %s are left out: each bucket would enlarge them more than max_enlarge=%r",
                    f"{num_dropped:,}",
                    f"{len(selected):,}",
                    selected.name,
                    self.directory,
                    max_enlarge,
                )
            self._members_of[wanted] = found
        return self._members_of[wanted]

    def records(self, split: str, asked: options_lib.ReadOptions, replicas: int = 1) -> read_plan.ReadPlan:
        """Returns the plan for reading a split in batches: its records in their order, and what is known of them.

        Args:
            split: "train", a part such as "train[:10%]", or several as "train+validation".
            asked: options of the reader.
            replicas: number of replicas that share the batches of this process.

        Raises:
            ConfigError: if the options do not fit the dataset.
        """
        selected, epochs = self.select(split), self.epochs(split, asked, replicas)
        planned = batch_schedule.make_schedule(epochs, asked, replicas)
        open_reader = functools.partial(self._source.open_reader, self.catalog, selected.splits, epochs.reads(asked))
        plan = read_plan.make_plan(self.directory, self.catalog, self.statistics, selected, open_reader, planned, asked)
        full_batches.check_batch_size(split, len(selected), asked, planned)
        return dataclasses.replace(plan, mean_and_std=self._mean_and_std(asked))

    def _mean_and_std(self, asked: options_lib.ReadOptions) -> option_values.MeanAndStd | None:
        """Returns mean and standard deviation to normalise pixels from 0 to 255 with; None if they stay as they are.

        Raises:
            ConfigError: if they have to be measured, and there is no train split.
        """
        if asked.normalize == "imagenet":
            return option_values.IMAGENET_MEAN, option_values.IMAGENET_STD
        if asked.normalize == "dataset":
            return self._counted_by_writer() or self.unfiltered._measure_train(asked)
        assert not isinstance(asked.normalize, str), "ReadOptions refuses other names"
        return asked.normalize

    def _counted_by_writer(self) -> ChannelStatistics | None:
        """Returns mean and deviation over all pixels of the train split; None if the writer did not count them."""
        counted = self.statistics.get(_TRAIN, {}).get("pixels")
        if not counted:
            return None
        mean, std = (tuple(map(float, counted[name])) for name in ("mean", "std"))
        text = _describe(mean, std)
        _LOGGER.info("normalize='dataset': %s, of all %s images of train, by statistics.json", text, counted["images"])
        return mean, tuple(max(each, _MIN_STD) for each in std)

    def _measure_train(self, asked: options_lib.ReadOptions) -> ChannelStatistics:
        """Returns mean and standard deviation of the train split, whatever split is read; measures them once.

        Raises:
            ConfigError: if there is no such split.
        """
        if asked.on_error not in self._measured:
            if _TRAIN not in self.splits:
                first = next(iter(self.splits))
                raise errors.ConfigError(
                    "normalize-no-train",
                    f"normalize='dataset' takes mean and deviation of the split {_TRAIN!r}, and "
                    f"{self.directory} has {', '.join(self.splits)}: give "
                    f"normalize=dataset.pixel_statistics({first!r})",
                )
            on_error = {"on_error": asked.on_error, "max_error_fraction": asked.max_error_fraction}
            mean, std = self._measured[asked.on_error] = self.pixel_statistics(_TRAIN, **on_error)
            _LOGGER.info(
                "normalize='dataset': %s, measured on %s examples of %s; convert with statistics.pixels=true for those "
                "of all",
                _describe(mean, std),
                f"{min(_MAX_MEASURED, self.num_examples(_TRAIN)):,}",
                _TRAIN,
            )
        return self._measured[asked.on_error]

    def pixel_statistics(self, split: str, **options: Any) -> ChannelStatistics:
        """Returns mean and standard deviation of each channel, of pixels from 0 to 255, over 1,000 examples of a split.

        Of a list of images it takes the first.

        Args:
            split: "train", a part such as "train[:10%]", or several as "train+validation".
            **options: `on_error` and `max_error_fraction`, as in `imagebeam.ReadOptions`.

        Raises:
            ExampleError: if an example cannot be read or decoded, or none of them with on_error="skip".

        Examples:
            >>> ds = imagebeam.open_dataset("shards")
            >>> mean, std = ds.pixel_statistics("train")
            >>> batches = ds.as_numpy("train", 32, image_size=64, dtype="float32", normalize=(mean, std))
        """
        count = min(_MAX_MEASURED, self.num_examples(split))
        shuffle = "global" if self.catalog.compression == "none" else "stream"
        options |= {"crop": "squash", "image_size": 64, "shuffle": shuffle, "num_epochs": 1, "drop_remainder": False}
        if features_lib.has_lists_of_images(self.catalog.features):
            options["max_images"] = 1
        batches = itertools.islice(self.as_numpy(split, 1, **options), count)
        shape = (-1, 64, 64, bare_pixels.form_of(self.catalog).channels)  # all of one size
        images = (batch["image"].astype(np.float64).reshape(shape) for batch in batches)
        moments = [(image.mean((0, 1, 2)), (image**2).mean((0, 1, 2))) for image in images]
        if not moments:
            raise errors.ExampleError(
                "examples-all-broken",
                f"none of {count:,} examples of {split} could be read or decoded, so their mean is not known: "
                "run imagebeam verify --decode, or give normalize=(mean, std)",
            )
        mean, squares = np.mean(moments, axis=0)
        std = np.sqrt(np.maximum(squares - mean**2, _MIN_STD**2))
        return tuple(mean.tolist()), tuple(std.tolist())

    def _removed_records(self, split: str) -> np.ndarray:
        """Returns the numbers of a split's removed records: int64 [removed], ascending."""
        if split not in self._removed_of:
            shards = self.catalog.splits[split].shards
            ends = np.cumsum([shard.records for shard in shards]).tolist()
            found = [
                np.asarray(self._removed[shard.name], np.int64) + (end - shard.records)
                for shard, end in zip(shards, ends, strict=True)
                if shard.removed
            ]
            self._removed_of[split] = np.concatenate([np.zeros(0, np.int64), *found])
        return self._removed_of[split]

    def _read_labels(self, split: str) -> record_selection.LabelRows:
        """Returns every label in a split and the record that has it: int64 [labels] each. Reads them once.

        Removed records have no labels.

        Raises:
            ConfigError: if the records hold no classes.
        """
        if split not in self._labels_of:
            feature = next((each for each in self.catalog.features if each.source == features_lib.LABEL), None)
            if feature is None or self.catalog.label_kind != "class":
                raise errors.ConfigError("dataset-no-classes", f"{self.directory} has no classes to filter by")
            rows, ids = array.array("q"), array.array("q")
            reader = self._open_whole((split,))
            for row, found in enumerate(reader.find_ints(feature.key, self._removed_records(split))):
                ids.extend(found)
                rows.extend([row] * len(found))
            self._labels_of[split] = np.array(rows, np.int64), np.array(ids, np.int64)
        return self._labels_of[split]

    def _read_sizes(self, splits: Sequence[str]) -> np.ndarray:
        """Returns height and width of the image of each record, uint16 [records, 2]: see `image_sizes.load`.

        Records are numbered as in `record_selection.RecordSelection`. Those that no file tells are made once.
        """
        names = tuple(splits)
        if names not in self._sizes_of:
            removed, first = [np.zeros(0, np.int64)], 0
            for name in names:
                removed.append(self._removed_records(name) + first)
                first += sum(shard.records for shard in self.splits[name].shards)
            open_reader = functools.partial(self._open_whole, names)
            found = image_sizes.load(self._source, self.catalog, names, np.concatenate(removed), open_reader)
            if all(shard.sizes_file for name in names for shard in self.splits[name].shards):
                return found  # which files tell at any time, and which would take as much memory as the buckets
            self._sizes_of[names] = found
        return self._sizes_of[names]

    def _open_whole(self, splits: Sequence[str]) -> shard_reader.ShardReader:
        """Returns a reader for all records of some splits, in their order."""
        whole = record_selection.select(self.catalog, "+".join(splits), (), None, self._removed_records)
        reads = batch_schedule.SelectionEpochs(whole).reads(options_lib.ReadOptions(shuffle=None))
        return self._source.open_reader(self.catalog, whole.splits, reads)


def _describe(mean: Sequence[float], std: Sequence[float]) -> str:
    return " and ".join(
        f"{name} {', '.join(f'{each:.2f}' for each in values)}" for name, values in (("mean", mean), ("std", std))
    )


class _SplitFeeds(feeds.Feeds):
    """The ways to read one split of a dataset, or a part of it."""

    def __init__(self, dataset: ImageDataset, split: str):
        self._dataset = dataset
        self._split = split
        self.stored_dtype = bare_pixels.form_of(dataset.catalog).dtype
        self.is_train = _TRAIN in record_selection.split_names(split, dataset.splits)

    def make_schedule(self, asked: options_lib.ReadOptions, replicas: int = 1) -> batch_schedule.BatchSchedule:
        return batch_schedule.make_schedule(self._dataset.epochs(self._split, asked, replicas), asked, replicas)

    def make_plan(self, asked: options_lib.ReadOptions, replicas: int = 1) -> read_plan.ReadPlan:
        return self._dataset.records(self._split, asked, replicas)

    def as_grain(self, *, decode: bool = True, features: Sequence[str] | None = None) -> example_source.ExampleSource:
        return self._dataset.as_grain(self._split, decode=decode, features=features)
