"""Converts images to sharded TFRecord files, and feeds a TPU with them.

`import imagebeam` imports nothing: names are imported when they are first used. So a command soon gets to the line from
which Ctrl-C ends it without a traceback.
"""

from __future__ import annotations

from imagebeam.version import __version__

TYPE_CHECKING = False  # as in typing, whose import takes 3 ms
if TYPE_CHECKING:  # the same names as in _LAZY
    from imagebeam.catalog import Catalog
    from imagebeam.dataset import ImageDataset, open_dataset
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
    from imagebeam.mixed_dataset import Mixture, mix
    from imagebeam.pipelines.compact import CompactResult, compact
    from imagebeam.pipelines.convert import ConvertResult, Submission, convert, plan, submit
    from imagebeam.pipelines.index_dataset import IndexResult, index
    from imagebeam.pipelines.verify_dataset import VerifyResult, verify
    from imagebeam.reader.batch_iterator import BatchIterator
    from imagebeam.reader.options import ReadOptions
    from imagebeam.reader.reader_state import ReaderState
    from imagebeam.snapshots import load_catalog

_LAZY = {
    "BatchIterator": "imagebeam.reader.batch_iterator",
    "BusyError": "imagebeam.errors",
    "Catalog": "imagebeam.catalog",
    "CatalogError": "imagebeam.errors",
    "CompactResult": "imagebeam.pipelines.compact",
    "ConfigError": "imagebeam.errors",
    "ConvertResult": "imagebeam.pipelines.convert",
    "DriftError": "imagebeam.errors",
    "ExampleError": "imagebeam.errors",
    "ImageDataset": "imagebeam.dataset",
    "ImagebeamError": "imagebeam.errors",
    "IndexResult": "imagebeam.pipelines.index_dataset",
    "Mixture": "imagebeam.mixed_dataset",
    "ReadOptions": "imagebeam.reader.options",
    "ReaderState": "imagebeam.reader.reader_state",
    "ShardError": "imagebeam.errors",
    "Submission": "imagebeam.pipelines.convert",
    "TooManyRejectsError": "imagebeam.errors",
    "VerificationError": "imagebeam.errors",
    "VerifyResult": "imagebeam.pipelines.verify_dataset",
    "compact": "imagebeam.pipelines.compact",
    "convert": "imagebeam.pipelines.convert",
    "index": "imagebeam.pipelines.index_dataset",
    "load_catalog": "imagebeam.snapshots",
    "mix": "imagebeam.mixed_dataset",
    "open_dataset": "imagebeam.dataset",
    "plan": "imagebeam.pipelines.convert",
    "submit": "imagebeam.pipelines.convert",
    "verify": "imagebeam.pipelines.verify_dataset",
}


# Modules that `import imagebeam` is enough for.
_MODULES = frozenset({"catalog", "errors", "features", "records", "snapshots", "storage"})


def __getattr__(name: str) -> object:
    if name not in _LAZY and name not in _MODULES:
        raise AttributeError(f"module 'imagebeam' has no attribute {name!r}")
    import importlib

    if name in _MODULES:
        return importlib.import_module(f"imagebeam.{name}")
    module = _LAZY[name]
    extra = "convert" if module in ("imagebeam.pipelines.compact", "imagebeam.pipelines.convert") else None
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as e:
        from imagebeam import errors

        raise errors.missing_package(e, f"imagebeam.{name}", extra) from e


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
