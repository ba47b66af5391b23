"""imagebeam inside of your own Beam pipeline: steps that write and read datasets. See docs/beam.md.

`WriteDataset` and `ReadDataset` are whole parts of a pipeline. The others are the steps that they are made of.

Raises:
    ConfigError: if Beam is not installed.
"""

from __future__ import annotations

from imagebeam import errors

with errors.imports_for("imagebeam.beam", "convert"):
    from imagebeam.beam.pipeline_job import make_job as make_job
    from imagebeam.beam.read_dataset import Example as Example
    from imagebeam.beam.read_dataset import ReadDataset as ReadDataset
    from imagebeam.beam.receive_images import EncodedImage as EncodedImage
    from imagebeam.beam.steps import AssignSplits as AssignSplits
    from imagebeam.beam.steps import CommitDataset as CommitDataset
    from imagebeam.beam.steps import LabelImages as LabelImages
    from imagebeam.beam.steps import ListImages as ListImages
    from imagebeam.beam.steps import PlaceInShards as PlaceInShards
    from imagebeam.beam.steps import PlanDataset as PlanDataset
    from imagebeam.beam.steps import WriteShards as WriteShards
    from imagebeam.beam.write_dataset import CommittedDataset as CommittedDataset
    from imagebeam.beam.write_dataset import WriteDataset as WriteDataset
    from imagebeam.transforms.elements import ImageRef as ImageRef
    from imagebeam.transforms.list_images import ListedImages as ListedImages
    from imagebeam.transforms.step import RefBatch as RefBatch

__all__ = [
    "AssignSplits",
    "CommitDataset",
    "CommittedDataset",
    "EncodedImage",
    "Example",
    "ImageRef",
    "LabelImages",
    "ListImages",
    "ListedImages",
    "PlaceInShards",
    "PlanDataset",
    "ReadDataset",
    "RefBatch",
    "WriteDataset",
    "WriteShards",
    "make_job",
]
