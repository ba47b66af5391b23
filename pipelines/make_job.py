"""Makes a job of its rules and settings: the arguments of the transforms."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

from imagebeam.pipelines import job_rules
from imagebeam.transforms import (
    commit_dataset,
    dataset_settings,
    plan_dataset,
    reference_order,
    write_shards,
    write_shards_with_beam,
)
from imagebeam.transforms.classes import label_names
from imagebeam.transforms.columns import transformed_column
from imagebeam.transforms.sources import image_source, label_rule, listing_rules, split_rule

if TYPE_CHECKING:
    from imagebeam.pipelines.config import model as config_lib


class Job(NamedTuple):
    """The arguments of the transforms, made from its rules."""

    source: image_source.ImageSource
    rules: listing_rules.ListingRules  # for every image that the source lists
    label: label_rule.LabelRule
    split: split_rule.SplitRule
    advisor: listing_rules.Advisor  # looks for what is wrong with the source
    order: reference_order.Order
    writer: type[write_shards.WriteShards] | type[write_shards_with_beam.WriteShardsWithBeam]
    committer: commit_dataset.Committer
    table: plan_dataset.Table | None  # the source, if its references are rows of a table
    transforms: tuple[transformed_column.ColumnTransform, ...]
    scratch: str  # folder where tf.Transform writes first

    @property
    def keeps_position(self) -> bool:
        """Whether the row of an image in the source decides its place."""
        return isinstance(self.order, reference_order.ListedOrder)

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


def of_rules(rules: job_rules.JobRules, is_listed_with_labels: bool = False) -> Job:
    """Returns the job with these rules.

    Args:
        rules: of the job.
        is_listed_with_labels: whether a writer process lists `rules.images.labelled`: then the steps that find labels,
            and splits that need no other image, have nothing to do.
    """
    images = rules.images
    names = label_names.stage_if_long(images.names, rules.names_file)
    settings = dataclasses.replace(rules.settings, names=names)
    job = Job(
        source=images.source,
        rules=images.listing,
        label=dataclasses.replace(images.label, names=names),
        split=images.split,
        advisor=listing_rules.Advisor(images.source, images.listing),
        order=images.order,
        writer=write_shards.WriteShards if rules.writer == "stream" else write_shards_with_beam.WriteShardsWithBeam,
        committer=commit_dataset.Committer(settings, rules.name, rules.config),
        table=rules.table,
        transforms=rules.transforms,
        scratch=rules.scratch,
    )
    if not is_listed_with_labels:
        return job
    split = images.split if images.labelled.split is None else split_rule.ASSIGNED
    return job._replace(source=images.labelled, rules=listing_rules.NO_RULES, label=label_rule.LABELLED, split=split)
