"""The rules and settings of a job: plain values, made of its config in one process and used in another."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from imagebeam.transforms import dataset_settings, reference_order
from imagebeam.transforms.classes import label_names
from imagebeam.transforms.columns import transformed_column
from imagebeam.transforms.sources import image_source, label_rule, labelled_source, listing_rules, split_rule


class ImageRules(NamedTuple):
    """A source, and what is done with each image that it lists."""

    source: image_source.ImageSource
    listing: listing_rules.ListingRules
    names: label_names.LabelNames
    label: label_rule.LabelRule  # with the same names
    split: split_rule.SplitRule
    order: reference_order.Order
    is_complete: bool  # whether all that is listed is written: no step leaves out images before they are read

    @property
    def labelled(self) -> labelled_source.LabelledSource:
        """The source whose listing has labels, splits that need no other image, and ranks that no step can change."""
        names = label_names.LabelNames(self.names.vocabulary, lists=self.names.lists)  # texts can be long
        label = dataclasses.replace(self.label, names=names)
        split = None if self.split.stratify else self.split
        order = self.order if isinstance(self.order, reference_order.HashOrder) else None
        order = order if split is not None and self.is_complete else None
        return labelled_source.LabelledSource(self.source, self.listing, label, split, order)


class JobRules(NamedTuple):
    """What a config says of a job, with its source. Picklable, and of no type of pydantic or Beam."""

    settings: dataset_settings.DatasetSettings  # with all names of the label files
    names_file: str  # address where long label files are staged for the workers; "" stages none
    name: str  # of the dataset
    config: Mapping[str, Any]  # as JSON, for the catalog
    images: ImageRules
    writer: str  # stream or beam
    table: Any  # the source, if its references are rows of a table, else None
    transforms: tuple[transformed_column.ColumnTransform, ...]
    scratch: str  # folder where tf.Transform writes first
