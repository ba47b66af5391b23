"""Images as sharded TFRecord files, and the input of a TPU.

What a trainer imports: nothing here imports Beam, Pillow or, until a reader asks for it, TensorFlow.
"""

import importlib
from typing import Any

from imagebeam.catalog import Catalog, load_catalog
from imagebeam.errors import (
    CatalogError,
    ConfigError,
    ExampleError,
    ImagebeamError,
    ShardError,
    TooManyRejectsError,
    VerificationError,
)

__version__ = "0.1.0"

_READER = {  # imported when first asked for: they need NumPy
    "BatchIterator": "imagebeam.reader.batch_iterator",
    "ImageDataset": "imagebeam.dataset",
    "Mixture": "imagebeam.mixed_dataset",
    "ReadOptions": "imagebeam.reader.options",
    "ReaderState": "imagebeam.reader.reader_state",
    "mix": "imagebeam.mixed_dataset",
    "open_dataset": "imagebeam.dataset",
}


def __getattr__(name: str) -> Any:
    if name not in _READER:
        raise AttributeError(f"module 'imagebeam' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_READER[name]), name)
    except ModuleNotFoundError as e:
        raise ConfigError(f"{e.name} is not installed, the reader needs it: pip install 'imagebeam[tf]'") from e


__all__ = [
    "Catalog",
    "CatalogError",
    "ConfigError",
    "ExampleError",
    "ImagebeamError",
    "ShardError",
    "TooManyRejectsError",
    "VerificationError",
    "load_catalog",
    *_READER,
]
