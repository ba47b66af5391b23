"""The rules and settings of a job: plain values, made of its config in one process and used in another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from imagebeam.transforms import dataset_settings
from imagebeam.transforms.sources import image_source, listing_rules


class JobRules(NamedTuple):
    """What a config says of a job, with its source. Picklable, and of no type of pydantic or Beam."""

    settings: dataset_settings.DatasetSettings
    name: str  # of the dataset
    config: Mapping[str, Any]  # as JSON, for the catalog
    source: image_source.ImageSource
    label: Mapping[str, Any]  # the fields of a LabelRule, which is a part of a transform, like the next ones
    split: Mapping[str, Any]  # the fields of a SplitRule
    seed: int
    shuffle: str  # hash or none
    writer: str  # stream or beam
    table: Any  # the source, if its references are rows of a table, else None
    transforms: tuple[dataset_settings.ColumnTransform, ...]
    scratch: str  # folder where tf.Transform writes first
    listing: listing_rules.ListingRules  # for every image that the source lists
