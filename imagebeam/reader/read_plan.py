"""The plan of a reader: which records one process reads in which order, and what is known of their examples."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from imagebeam import catalog as catalog_lib
from imagebeam import errors, features
from imagebeam.reader import bare_pixels, batch_names, record_bytes, schedule, selection
from imagebeam.reader import options as options_lib

_LOGGER = logging.getLogger("imagebeam.dataset")
_CHUNK_BYTES = 4 << 20  # of records in a chunk
_MAX_CHUNK_RECORDS = 64


@dataclasses.dataclass(frozen=True)
class Layout:
    """What a reader must know of the examples, whichever of them it reads.

    Attributes:
        by_source: the features of every example, by their sources.
        extra: the features that the user asked for besides image and label.
        formats: formats of the images in the split; empty if they are unknown.
        is_raw: whether the images are stored as bare pixels.
        label_base: id of the first class in the records.
        num_classes: length of the label vector if an image may have several classes, ids below the first included.
    """

    by_source: Mapping[str, features.Feature] = dataclasses.field(hash=False)
    extra: tuple[features.Feature, ...]
    formats: frozenset[str]
    is_raw: bool
    label_base: int
    num_classes: int

    @functools.cached_property
    def label(self) -> features.Feature | None:
        """The label, if each example has exactly one."""
        found = self.by_source.get(features.LABEL)
        return None if found is None or found.many else found

    @functools.cached_property
    def columns(self) -> tuple[features.Feature, ...]:
        """The requested features with one value in each example; the label, if there is one, comes first."""
        label = () if self.label is None else (self.label,)
        return (*label, *(feature for feature in self.extra if not feature.many))

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of `columns` inside a pipeline: "label", and "features/KEY" for the features in `extra`."""
        label = () if self.label is None else ("label",)
        return (*label, *(f"features/{feature.key}" for feature in self.extra if not feature.many))

    @functools.cached_property
    def lists(self) -> tuple[features.Feature, ...]:
        """The requested features with any number of values in each example; the label, if it is one, comes first."""
        label = self.by_source.get(features.LABEL)
        labels = () if label is None or not label.many else (label,)
        return (*labels, *(feature for feature in self.extra if feature.many))


@dataclasses.dataclass(frozen=True, eq=False)
class ReadPlan(Layout):
    """The records that a reader reads, and what it must know of them.

    Attributes:
        fetcher: reads the records of the split.
        schedule: the positions that this process reads, and the record at each.
        longest_side: of all images in the split, in pixels; 0 if it is unknown.
        mean_record_bytes: mean length of a record.
    """

    fetcher: record_bytes.Fetcher
    schedule: schedule.Schedule
    longest_side: int
    mean_record_bytes: int

    @property
    def chunk_records(self) -> int:
        """Number of records that one call reads where TensorFlow decodes."""
        return max(1, min(_MAX_CHUNK_RECORDS, _CHUNK_BYTES // self.mean_record_bytes))

    @property
    def layout(self) -> Layout:
        """What does not depend on the records: equal for two splits with the same features and formats."""
        return Layout(**{field.name: getattr(self, field.name) for field in dataclasses.fields(Layout)})


def make_plan(
    directory: str,
    catalog: catalog_lib.Catalog,
    statistics: Mapping[str, Any],
    selected: selection.Selection,
    fetcher: record_bytes.Fetcher,
    asked: options_lib.ReadOptions,
    replicas: int = 1,
) -> ReadPlan:
    """Returns the plan of one process for reading a selection.

    Args:
        directory: address of the dataset, for errors.
        catalog: its catalog.
        statistics: what the writer counted, by split; {} if the statistics are lost.
        selected: the records to read.
        fetcher: reads the records of their split.
        asked: options of the reader.
        replicas: number of replicas that share the batches of this process.

    Raises:
        ConfigError: if the options do not fit the dataset.
    """
    by_source = {feature.source: feature for feature in catalog.features}
    formats = bare_pixels.formats_in(statistics, selected.split)
    is_raw = bare_pixels.is_raw(catalog, formats)
    _check_options(directory, catalog, by_source, asked)
    if is_raw:
        bare_pixels.check_shape_is_stored(catalog)
    counted = statistics.get(selected.split, {})
    own_names = batch_names.own_names(catalog, asked.pad)
    return ReadPlan(
        fetcher=fetcher,
        schedule=schedule.plan(schedule.SelectionEpochs(selected), asked, replicas),
        by_source=by_source,
        extra=tuple(batch_names.choose_features(catalog, asked.features, own_names, asked.list_size)),
        formats=formats,
        is_raw=is_raw,
        longest_side=max((counted.get(side, {}).get("max", 0) for side in ("height", "width")), default=0),
        mean_record_bytes=selected.mean_record_bytes,
        label_base=catalog.label_base if catalog.label_kind == "class" else asked.label_base,
        num_classes=asked.label_base + len(catalog.labels),
    )


def lists_among(catalog: catalog_lib.Catalog, keys: Sequence[str]) -> list[str]:
    """Returns the keys whose features may have any number of values."""
    return [feature.key for feature in catalog.features if feature.many and feature.key in keys]


def _check_options(
    directory: str,
    catalog: catalog_lib.Catalog,
    by_source: Mapping[str, features.Feature],
    asked: options_lib.ReadOptions,
) -> None:
    """Checks the options against the dataset.

    Raises:
        ConfigError: if they do not fit.
    """
    if features.ENCODED not in by_source:
        raise errors.ConfigError(f"{directory} was written without images: features drops image/encoded")
    if asked.supervised and features.LABEL not in by_source:
        raise errors.ConfigError(f"{directory} has no labels, which supervised=True needs")
    if asked.list_size is not None and not lists_among(catalog, asked.features):
        known = [feature.key for feature in catalog.features]
        raise errors.ConfigError(
            f"list_size is {asked.list_size}, and features asks for no list; the dataset has "
            f"{', '.join(lists_among(catalog, known)) or 'none'}"
        )
    highest = asked.label_base + len(catalog.labels) - 1
    if asked.num_classes is not None and catalog.labels and highest >= asked.num_classes:
        raise errors.ConfigError(
            f"labels run from {asked.label_base} to {highest}, and a model of {asked.num_classes} classes takes "
            f"0 to {asked.num_classes - 1}: give label_base=0, or num_classes={highest + 1}"
        )


def check_batch_size(split: str, num_examples: int, asked: options_lib.ReadOptions, planned: schedule.Schedule) -> None:
    """Checks that at least one batch is full, if all batches must be.

    Args:
        split: the split or part of one, as the user named it.
        num_examples: number of its examples, for all processes.
        asked: options of the reader.
        planned: schedule of this process.

    Raises:
        ConfigError: if none is.
    """
    if asked.batch_size is None or not asked.drops_remainder:
        return
    share = num_examples // asked.process_count
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
