"""Converts images to sharded TFRecord files, and feeds a TPU with them.

`import imagebeam` is light: it imports neither Beam, Pillow nor TensorFlow. The names below that need more are imported
when they are first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from imagebeam import missing_packages
from imagebeam.catalog import Catalog
from imagebeam.errors import (
    BusyError,
    CatalogError,
    ConfigError,
    DriftError,
    ExampleError,
    ImagebeamError,
    ShardError,
    TooManyRejectsError,
    VerificationError,
)
from imagebeam.find_snapshot import load_catalog
from imagebeam.version import __version__

if TYPE_CHECKING:  # the same names as in _LAZY
    from imagebeam.dataset import ImageDataset, open_dataset
    from imagebeam.mixed_dataset import Mixture, mix
    from imagebeam.pipelines.compact import CompactResult, compact
    from imagebeam.pipelines.convert import ConvertResult, Submission, convert, plan, submit
    from imagebeam.pipelines.index_dataset import IndexResult, index
    from imagebeam.pipelines.verify_dataset import VerifyResult, verify
    from imagebeam.reader.batch_iterator import BatchIterator
    from imagebeam.reader.options import ReadOptions
    from imagebeam.reader.reader_state import ReaderState

_LAZY = {
    "BatchIterator": "imagebeam.reader.batch_iterator",
    "CompactResult": "imagebeam.pipelines.compact",
    "ConvertResult": "imagebeam.pipelines.convert",
    "ImageDataset": "imagebeam.dataset",
    "IndexResult": "imagebeam.pipelines.index_dataset",
    "Mixture": "imagebeam.mixed_dataset",
    "ReadOptions": "imagebeam.reader.options",
    "ReaderState": "imagebeam.reader.reader_state",
    "Submission": "imagebeam.pipelines.convert",
    "VerifyResult": "imagebeam.pipelines.verify_dataset",
    "compact": "imagebeam.pipelines.compact",
    "convert": "imagebeam.pipelines.convert",
    "index": "imagebeam.pipelines.index_dataset",
    "mix": "imagebeam.mixed_dataset",
    "open_dataset": "imagebeam.dataset",
    "plan": "imagebeam.pipelines.convert",
    "submit": "imagebeam.pipelines.convert",
    "verify": "imagebeam.pipelines.verify_dataset",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'imagebeam' has no attribute {name!r}")
    module = _LAZY[name]
    extra = "convert" if module in ("imagebeam.pipelines.compact", "imagebeam.pipelines.convert") else None
    try:
        if extra is not None:
            importlib.import_module("imagebeam.pipelines.prepare_run")  # imports pydantic, which commands import later
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as e:
        raise missing_packages.missing_package(e, f"imagebeam.{name}", extra) from e


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})


__all__ = [
    "BatchIterator",
    "BusyError",
    "Catalog",
    "CatalogError",
    "CompactResult",
    "ConfigError",
    "ConvertResult",
    "DriftError",
    "ExampleError",
    "ImageDataset",
    "ImagebeamError",
    "IndexResult",
    "Mixture",
    "ReadOptions",
    "ReaderState",
    "ShardError",
    "Submission",
    "TooManyRejectsError",
    "VerificationError",
    "VerifyResult",
    "__version__",
    "compact",
    "convert",
    "index",
    "load_catalog",
    "mix",
    "open_dataset",
    "plan",
    "submit",
    "verify",
]
