"""imagebeam inside of your own Beam pipeline: steps that write and read datasets. See docs/beam.md.

`WriteDataset` and `ReadDataset` are whole parts of a pipeline. The others are the steps that they are made of.

Raises:
    ConfigError: if Beam is not installed.
"""

from __future__ import annotations

from imagebeam import errors

with errors.imports_for("imagebeam.beam", "convert"):
    from imagebeam.beam.read_dataset import Example as Example
    from imagebeam.beam.read_dataset import ReadDataset as ReadDataset

__all__ = ["Example", "ReadDataset"]
