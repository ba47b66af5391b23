"""Finds what tells datasets and runs apart: what decides the content of shards outside the config, and the command."""

from __future__ import annotations

import hashlib
import importlib.metadata
import sys
import zlib
from typing import Any

from imagebeam import errors, features
from imagebeam.pipelines import request
from imagebeam.pipelines.config import model as config_lib
from imagebeam.transforms.images import pillow_decoder, pixel_type, prepare, reader_decoder, resample, turn_upright
from imagebeam.transforms.output import run_report

_TRANSFORM_PACKAGES = ("tensorflow", "tensorflow_transform")
_COMPUTED_HERE = frozenset({"z_score", "bucketize"})  # from statistics that are not tf.Transform's
_STATISTICS_VERSION = "2"  # raised when they give other numbers; 1 were tf.Transform's


def other_facts(config: config_lib.Config, raw_shape: tuple[int, int, int] | None) -> dict[str, Any]:
    """Returns the facts outside the config that decide what shards hold: library versions, the shape of raw pixels.

    An update goes on with other `libraries`; any other difference makes it another dataset.
    """
    facts: dict[str, Any] = {}
    libraries: dict[str, Any] = {}
    if config.output.compression == "gzip" or "object masks" in config.source.gives().features:
        libraries["zlib"] = zlib.ZLIB_RUNTIME_VERSION
    if raw_shape is None or config.image.encode != prepare.KEEP:  # any image may have to be encoded again
        libraries["pillow"] = pillow_decoder.pillow_version()
        libraries |= pillow_decoder.plugin_versions()
        if config.image.encode == prepare.KEEP and config.image.orientation == prepare.APPLY:
            libraries["turned_by"] = turn_upright.library()
    if not config.image.numbers.is_usual or config.image.extra_images:
        libraries |= pixel_type.versions()
    if config.image.numbers.is_usual and config.image.is_sized and config.image.resampler == resample.NATIVE:
        resample.require()
        libraries["resized_by"] = resample.library()
    if any(feature.source == features.ENTRY_POINTS for feature in config.resolve_features()):
        reader_decoder.require_entry_points()
    if libraries:
        facts[run_report.LIBRARIES] = libraries
    if raw_shape is not None:
        facts["raw_shape"] = raw_shape
    return facts | transform_versions(config)


def transform_versions(config: config_lib.Config) -> dict[str, str]:
    """Returns the versions of all that decides the transformed values: packages, and statistics computed by imagebeam.

    It is {} if no column is transformed.

    Raises:
        ConfigError: if one of them is not installed.
    """
    if not config.transformed:
        return {}
    found = {}
    for package in _TRANSFORM_PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError as e:
            python = " with Python 3.11 or later" if sys.version_info < (3, 11) else ""
            raise errors.ConfigError(
                "package-missing",
                f"columns.{config.transformed[0]}.transform needs {package}, which is not installed: "
                f"pip install 'imagebeam[transform]'{python}",
            ) from e
    if any(config.columns[name].transform in _COMPUTED_HERE for name in config.transformed):
        found["column_statistics"] = _STATISTICS_VERSION
    return found


def digest_command(checked: request.Checked, source: str, output: str, vocabulary: tuple[str, ...] | None) -> str:
    """Returns a digest that is equal if the same command runs again."""
    config = checked.config
    parts = config.recorded(), (source, output), vocabulary, checked.overwrite, checked.snapshot
    return hashlib.blake2b(repr(parts).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
