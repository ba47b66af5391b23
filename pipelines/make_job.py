"""Makes a job of its rules and settings: the arguments of the transforms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from imagebeam.pipelines import job_rules
from imagebeam.transforms import (
    assign_splits,
    commit_dataset,
    dataset_settings,
    label_images,
    place_in_shards,
    plan_dataset,
    rank_references,
    write_shards,
    write_shards_with_beam,
)
from imagebeam.transforms.sources import image_source, listing_rules

if TYPE_CHECKING:
    from imagebeam.pipelines.config import model as config_lib


class Job(NamedTuple):
    """The arguments of the transforms, made from its rules."""

    source: image_source.ImageSource
    label: label_images.LabelRule
    split: assign_splits.SplitRule
    order: rank_references.Order
    writer: type[write_shards.WriteShards] | type[write_shards_with_beam.WriteShardsWithBeam]
    committer: commit_dataset.Committer
    table: plan_dataset.Table | None = None  # the source, if its references are rows of a table
    transforms: tuple[dataset_settings.ColumnTransform, ...] = ()
    scratch: str = ""  # folder where tf.Transform writes first
    rules: listing_rules.ListingRules = listing_rules.NO_RULES  # for every image that the source lists

    @property
    def advisor(self) -> listing_rules.Advisor:
        """Looks for what is wrong with the source."""
        return listing_rules.Advisor(self.source, self.rules)

    @property
    def keeps_position(self) -> bool:
        """Whether the row of an image in the source decides its place."""
        return isinstance(self.order, rank_references.ListedOrder)

    @property
    def settings(self) -> dataset_settings.DatasetSettings:
        return self.committer.settings


def make_job(config: config_lib.Config, *arguments: Any, **keywords: Any) -> Job:
    """Returns the job that `config` describes; the other arguments are those of `make_rules.make_rules`.

    Raises:
        ConfigError: as `make_rules.make_rules`.
    """
    from imagebeam.pipelines import make_rules  # late: imports pydantic

    return of_rules(make_rules.make_rules(config, *arguments, **keywords))


def of_rules(rules: job_rules.JobRules) -> Job:
    """Returns the job with these rules."""
    return Job(
        source=rules.source,
        label=label_images.LabelRule(**rules.label),
        split=assign_splits.SplitRule(**rules.split),
        order=rank_references.HashOrder(rules.seed, place_in_shards.PURPOSE)
        if rules.shuffle == "hash"
        else rank_references.ListedOrder(),
        writer=write_shards.WriteShards if rules.writer == "stream" else write_shards_with_beam.WriteShardsWithBeam,
        committer=commit_dataset.Committer(rules.settings, rules.name, rules.config),
        table=rules.table,
        transforms=rules.transforms,
        scratch=rules.scratch,
        rules=rules.listing,
    )
