"""Converts images to sharded TFRecord files, and feeds a TPU with them.

`import imagebeam` imports nothing: names are imported when they are first used. So a command soon gets to the line from
which Ctrl-C ends it without a traceback.
"""

from __future__ import annotations

from imagebeam.version import __version__ as __version__

TYPE_CHECKING = False  # as in typing, whose import takes 3 ms
if TYPE_CHECKING:  # the same names as in _NAMES
    from imagebeam.catalog import Catalog as Catalog
    from imagebeam.dataset import ImageDataset as ImageDataset
    from imagebeam.dataset import open_dataset as open_dataset
    from imagebeam.errors import BusyError as BusyError
    from imagebeam.errors import CatalogError as CatalogError
    from imagebeam.errors import ConfigError as ConfigError
    from imagebeam.errors import DriftError as DriftError
    from imagebeam.errors import ExampleError as ExampleError
    from imagebeam.errors import ImagebeamError as ImagebeamError
    from imagebeam.errors import ShardError as ShardError
    from imagebeam.errors import TooManyRejectsError as TooManyRejectsError
    from imagebeam.errors import VerificationError as VerificationError
    from imagebeam.mixed_dataset import Mixture as Mixture
    from imagebeam.mixed_dataset import mix as mix
    from imagebeam.pipelines.compact import CompactResult as CompactResult
    from imagebeam.pipelines.compact import compact as compact
    from imagebeam.pipelines.convert import ConvertResult as ConvertResult
    from imagebeam.pipelines.convert import Submission as Submission
    from imagebeam.pipelines.convert import convert as convert
    from imagebeam.pipelines.convert import plan as plan
    from imagebeam.pipelines.convert import submit as submit
    from imagebeam.pipelines.index_dataset import IndexResult as IndexResult
    from imagebeam.pipelines.index_dataset import index as index
    from imagebeam.pipelines.verify_dataset import VerifyResult as VerifyResult
    from imagebeam.pipelines.verify_dataset import verify as verify
    from imagebeam.reader.aspect_buckets import aspect_buckets as aspect_buckets
    from imagebeam.reader.feeds import BatchIterator as BatchIterator
    from imagebeam.reader.object_options import Objects as Objects
    from imagebeam.reader.object_options import Segmentation as Segmentation
    from imagebeam.reader.options import ReadOptions as ReadOptions
    from imagebeam.reader.record_order import ReaderState as ReaderState
    from imagebeam.snapshots import load_catalog as load_catalog
    from imagebeam.transforms.user_code import Reference as Reference

_NAMES = {
    "catalog": ("Catalog",),
    "dataset": ("ImageDataset", "open_dataset"),
    "errors": (
        *("BusyError", "CatalogError", "ConfigError", "DriftError", "ExampleError", "ImagebeamError"),
        *("ShardError", "TooManyRejectsError", "VerificationError"),
    ),
    "mixed_dataset": ("Mixture", "mix"),
    "pipelines.compact": ("CompactResult", "compact"),
    "pipelines.convert": ("ConvertResult", "Submission", "convert", "plan", "submit"),
    "pipelines.index_dataset": ("IndexResult", "index"),
    "pipelines.verify_dataset": ("VerifyResult", "verify"),
    "reader.aspect_buckets": ("aspect_buckets",),
    "reader.feeds": ("BatchIterator",),
    "reader.object_options": ("Objects", "Segmentation"),
    "reader.options": ("ReadOptions",),
    "reader.record_order": ("ReaderState",),
    "snapshots": ("load_catalog",),
    "transforms.user_code": ("Reference",),
}
_MODULE_OF = {name: f"imagebeam.{module}" for module, names in _NAMES.items() for name in names}
_MODULES = ("catalog", "errors", "features", "records", "snapshots", "storage")  # `import imagebeam` gives them, too

__all__ = ["__version__", *_MODULE_OF]


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF and name not in _MODULES:
        raise AttributeError(f"module 'imagebeam' has no attribute {name!r}")
    import importlib

    if name in _MODULES:
        return importlib.import_module(f"imagebeam.{name}")
    module = _MODULE_OF[name]
    extra = "convert" if module in ("imagebeam.pipelines.compact", "imagebeam.pipelines.convert") else None
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as e:
        from imagebeam import errors

        raise errors.missing_package(e, f"imagebeam.{name}", extra) from e


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
