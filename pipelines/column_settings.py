"""Settings for tf.Transform: the transformed columns, and where it writes. Imports neither it nor TensorFlow."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING

from imagebeam import errors, storage
from imagebeam.pipelines.beam import runners
from imagebeam.transforms import elements
from imagebeam.transforms.output import output_folder

if TYPE_CHECKING:
    from imagebeam.pipelines.config import model as config_lib

_PACKAGES = ("tensorflow", "tensorflow_transform")
_COMPUTED_HERE = frozenset({"z_score", "bucketize"})  # from statistics that are not tf.Transform's
_STATISTICS_VERSION = "2"  # raised when they give other numbers; 1 were tf.Transform's
_REACHED_BY_TENSORFLOW = ("file", "gs")


def make_transforms(config: config_lib.Config, sources: Sequence[str]) -> tuple[elements.ColumnTransform, ...]:
    """Returns how the columns of `config` are transformed.

    Args:
        config: of the job.
        sources: the names of the values in ImageRef.columns, in their order.
    """
    keys = {feature.source: feature.key for feature in config.resolve_features()}
    transforms = []
    for name in config.transformed:
        column, source = config.columns[name], f"columns/{name}"
        transforms.append(
            elements.ColumnTransform(
                column=name,
                key=keys[source],
                position=list(sources).index(source),
                kind=column.kind,
                name=str(column.transform),
                buckets=column.buckets,
                top_k=column.top_k,
                num_oov_buckets=column.num_oov_buckets,
            )
        )
    return tuple(transforms)


def versions(config: config_lib.Config) -> dict[str, str]:
    """Returns the versions of all that decides the transformed values: packages, and statistics computed by imagebeam.

    It is {} if no column is transformed.

    Raises:
        ConfigError: if one of them is not installed.
    """
    if not config.transformed:
        return {}
    import importlib.metadata  # late: 15 ms

    found = {}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError as e:
            python = " with Python 3.11 or later" if sys.version_info < (3, 11) else ""
            raise errors.ConfigError(
                f"columns.{config.transformed[0]}.transform needs {package}, which is not installed: "
                f"pip install 'imagebeam[transform]'{python}"
            ) from e
    if any(config.columns[name].transform in _COMPUTED_HERE for name in config.transformed):
        found["column_statistics"] = _STATISTICS_VERSION
    return found


def scratch_folder(config: config_lib.Config, beam_arguments: Sequence[str]) -> str:
    """Returns a folder that TensorFlow can write to on every worker; "" if no column is transformed.

    Raises:
        ConfigError: if there is no such folder.
    """
    if not config.transformed:
        return ""
    if runners.is_direct(beam_arguments):
        return tempfile.mkdtemp(prefix="imagebeam-")
    output = storage.normalize(str(config.output.uri))
    if storage.scheme_of(output) not in _REACHED_BY_TENSORFLOW:
        raise errors.ConfigError(
            f"columns.{config.transformed[0]}.transform on {runners.runner_name(beam_arguments)}: TensorFlow cannot "
            f"write to {output!r}; choose an --output that is gs:// or a folder that all workers share, or the local "
            "runner"
        )
    return output_folder.OutputPaths(output).new_transform_folder()
