"""The rules and settings of a job: plain values, made of its config in one process and used in another."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from imagebeam.transforms import dataset_settings, label_names
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

    def with_staged_names(self) -> JobRules:
        """Returns the same rules with long names of labels staged in the output: then they are pickled no more."""
        names = self.settings.names
        if isinstance(names, label_names.LabelNames):
            names = label_names.stage_if_long(names, self.settings.paths.names_file(self.settings.run_id))
        settings = dataclasses.replace(self.settings, names=names)
        return self._replace(settings=settings, label={**self.label, "names": names})
