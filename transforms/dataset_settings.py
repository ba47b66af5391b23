"""Settings of one dataset, made from the config before the input is listed. Imports no Beam."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from imagebeam import catalog as catalog_lib
from imagebeam import features as features_lib
from imagebeam import records, snapshots
from imagebeam.transforms import elements, kept_features
from imagebeam.transforms.classes import label_names
from imagebeam.transforms.images import prepare
from imagebeam.transforms.output import output_folder
from imagebeam.transforms.shard import encode, feature_functions, image_hashes, shard_writer
from imagebeam.transforms.shard import read_ahead as read_ahead_lib
from imagebeam.transforms.snapshots import snapshot_drift

NewLabels: TypeAlias = Literal["append", "refuse"]


@dataclasses.dataclass(frozen=True)
class SnapshotSettings:
    """One snapshot to write, and the one that it continues."""

    dataset: str  # address of the folder with all snapshots
    name: str
    base: str = ""  # name of the snapshot before it; "" takes nothing from any
    new_labels: NewLabels = "append"  # at the end of the vocabulary
    max_removed_fraction: float = 1.0  # share of the images in the snapshot before
    compacted: str = ""  # name of the snapshot whose records are copied; "" if images are read
    by_content: bool = False  # whether images with another version are the same if their bytes are
    retry_rejects: bool = False  # whether only images that the snapshot before rejected are read again
    drift: snapshot_drift.Thresholds = snapshot_drift.DEFAULT  # differences that are too large
    fail_on_drift: bool = False  # whether nothing is committed then; otherwise it is only noted

    @property
    def continues(self) -> bool:
        """True if the snapshot takes records from an earlier one."""
        return bool(self.base or self.compacted)

    @property
    def folder(self) -> str:
        return snapshots.folder_of(self.dataset, self.name)

    @property
    def base_folder(self) -> str:
        return snapshots.folder_of(self.dataset, self.base)

    @property
    def compacted_folder(self) -> str:
        return snapshots.folder_of(self.dataset, self.compacted)

    def load_base(self) -> catalog_lib.Catalog | None:
        """Returns the catalog of the snapshot before; None if there is none.

        Raises:
            CatalogError: if it cannot be read.
        """
        return catalog_lib.load_catalog(self.base_folder) if self.base else None


DEFAULT_SHARD_BYTES = 128 << 20  # large enough for sequential reads from a bucket, small enough to shuffle
DEFAULT_MIN_SHARDS = 16  # so that a small dataset, too, is written and read in parallel...
DEFAULT_MIN_SHARD_RECORDS = 64  # ...unless the shards would be almost empty


@dataclasses.dataclass(frozen=True)
class Sizing:
    """Decides the number of shards of a split."""

    num_shards: int | Mapping[str, int] | None = None
    target_shard_bytes: int | None = None
    examples_per_shard: int | None = None

    def of_update(self) -> Sizing:
        """Returns the sizing for new images beside those of earlier snapshots: a fixed number of shards is of all."""
        return Sizing() if self.num_shards is not None else self

    def shards_of(self, split: str, num_records: int, num_bytes: int) -> int:
        if isinstance(self.num_shards, int):
            return self.num_shards
        if isinstance(self.num_shards, Mapping) and split in self.num_shards:
            return self.num_shards[split]
        if self.examples_per_shard is not None:
            return max(1, _ceil_divide(num_records, self.examples_per_shard))
        if self.target_shard_bytes is not None:
            return max(1, _ceil_divide(num_bytes, self.target_shard_bytes))
        at_least = min(DEFAULT_MIN_SHARDS, num_records // DEFAULT_MIN_SHARD_RECORDS)
        return max(1, at_least, _ceil_divide(num_bytes, DEFAULT_SHARD_BYTES))


@dataclasses.dataclass(frozen=True)
class DatasetSettings:
    """Settings of one dataset and of the run that writes it."""

    output: str
    identity: str  # canonical JSON of the part of the config that decides the shards' content
    features: tuple[features_lib.Feature, ...]
    columns: tuple[str, ...] = ()
    extra_images: tuple[str, ...] = ()  # names of the extra images of each example
    about: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # the values of this section that are given
    label_kind: str | None = "class"
    label_base: int = 0
    names: label_names.LabelNames | label_names.StagedNames = label_names.NO_NAMES
    label_by: str = ""  # as in the config
    stratified: bool = False  # whether each class is divided among the splits
    unknown_label_is_error: bool = False
    declared_splits: tuple[str, ...] | None = None
    holdout: tuple[tuple[str, str, int], ...] = ()  # as in SplitRule, for errors
    sizing: Sizing = Sizing()
    policy: prepare.ImagePolicy = prepare.AS_IT_IS
    read_ahead: read_ahead_lib.ReadAhead = read_ahead_lib.READ_AHEAD
    compression: str = "none"
    suffix: str = ".tfrecord"
    analyze: str | None = None  # splits that tf.Transform analyses: "train" or "all"; None if no column is transformed
    max_reject_fraction: float = 0.01
    keep: kept_features.KeepRule | None = None  # for records that are rewritten
    overwrite: bool = False
    writes_report: bool = False  # report.html
    saved_listing: bool = False  # whether the source is a listing that was saved earlier
    run_id: str = ""  # names the run that holds the lock; "" if each run of the pipeline needs a new one
    command: str = ""  # digest of config, input, output and overwrite: equal if the same command runs again
    report: str = ""  # address of the report of this run; "" writes none
    keypoints: tuple[str, ...] = ()  # names of the keypoints of each object
    on_repeated_key: str = ""  # what to do about two images with one key; "" for tables
    hints: tuple[str, ...] = ()  # notes on the config, known before the input is listed
    snapshot: SnapshotSettings | None = None  # None for a dataset without snapshots
    duplicates: image_hashes.DuplicateSettings = image_hashes.OFF
    functions: feature_functions.FeatureFunctions = feature_functions.NONE

    @property
    def vocabulary(self) -> tuple[str, ...] | None:
        return self.names.vocabulary

    @property
    def texts(self) -> Mapping[str, str]:
        return self.names.texts

    @property
    def paths(self) -> output_folder.OutputPaths:
        return output_folder.OutputPaths(self.output)

    def shard_name(self, split: str, shard_index: int, num_shards: int) -> str:
        return str(records.ShardName(split, shard_index, num_shards, self.suffix))

    def label_ids(self, labels: tuple[str, ...]) -> dict[str, int]:
        return {label: index for index, label in enumerate(labels, start=self.label_base)}

    def features_of(self, plan: elements.DatasetPlan) -> tuple[features_lib.Feature, ...]:
        """Returns the features of every example, the image last."""
        return features_lib.in_order((*self.features, *plan.kept)) if plan.kept else self.features

    def recipe(self, plan: elements.DatasetPlan) -> encode.ExampleRecipe:
        ids = self.label_ids(plan.labels)
        computed = tuple(each.feature for each in (*self.functions.functions, *self.functions.inferred))
        return encode.ExampleRecipe(
            self.features_of(plan), ids, self.columns, self.texts, self.extra_images, plan.kept, computed
        )

    def policy_of(self, plan: elements.DatasetPlan) -> prepare.ImagePolicy:
        """Returns how every image is checked and stored. Images are not rotated if kept features hold coordinates."""
        if not kept_features.has_coordinates(plan.kept):
            return self.policy
        return dataclasses.replace(self.policy, orientation=prepare.KEEP)

    def writer_of(self, plan: elements.DatasetPlan) -> shard_writer.ShardWriter:
        copies = self.snapshot is not None and self.snapshot.compacted
        return (shard_writer.RecordCopier if copies else shard_writer.ShardWriter)(
            staging=self.paths.staging(plan.fingerprint),
            output=self.output,
            recipe=self.recipe(plan),
            policy=self.policy_of(plan),
            read_ahead=self.read_ahead,
            compression=self.compression,
            suffix=self.suffix,
            keeps_state=self.snapshot is not None,
            hasher=self.duplicates.only("report", "fail").hasher(self.policy.limits),
            functions=self.functions,
        )


def _ceil_divide(number: int, divisor: int) -> int:
    return -(-number // divisor)
