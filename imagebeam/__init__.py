"""Images as sharded TFRecord files, and the input of a TPU.

What a trainer imports: nothing here imports Beam, Pillow or, until a reader asks for it, TensorFlow.
"""

from imagebeam.catalog import Catalog, load_catalog
from imagebeam.errors import (
    CatalogError,
    ConfigError,
    ImagebeamError,
    TooManyRejectsError,
    VerificationError,
)

__version__ = "0.1.0"

__all__ = [
    "Catalog",
    "CatalogError",
    "ConfigError",
    "ImagebeamError",
    "TooManyRejectsError",
    "VerificationError",
    "load_catalog",
]
