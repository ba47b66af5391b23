"""The modules of sources, each imported when it is first used: all of them take 40 ms, and a config has one source."""

from __future__ import annotations

from imagebeam.pipelines.beam import late_modules

__all__ = (
    "annotated_files",
    "annotation_tables",
    "arrays",
    "box_csv",
    "coco",
    "containers",
    "idx",
    "manifest",
    "paired_files",
    "parquet",
    "pixel_csv",
    "saved_listing",
    "table_per_folder",
    "tar",
    "tfrecord",
    "zip_source",
)

with late_modules.imported_late([f"imagebeam.transforms.sources.{name.removesuffix('_source')}" for name in __all__]):
    from imagebeam.transforms.sources import (
        annotated_files,
        annotation_tables,
        arrays,
        box_csv,
        coco,
        containers,
        idx,
        manifest,
        paired_files,
        parquet,
        pixel_csv,
        saved_listing,
        table_per_folder,
        tar,
        tfrecord,
    )
    from imagebeam.transforms.sources import zip as zip_source
