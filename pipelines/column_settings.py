"""What a config asks of tf.Transform, and where that writes. Imports neither it nor TensorFlow."""

from __future__ import annotations

import importlib.metadata
import secrets
import sys
import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING

from imagebeam import errors, features, storage
from imagebeam.pipelines import config as config_lib
from imagebeam.pipelines import runners

if TYPE_CHECKING:
    from imagebeam.transforms import transform_columns

_PACKAGES = ("tensorflow", "tensorflow_transform")
_REACHED_BY_TENSORFLOW = ("file", "gs")


def make_transforms(config: config_lib.Config, sources: Sequence[str]) -> tuple[transform_columns.ColumnTransform, ...]:
    """What becomes of the columns of `config`.

    Args:
        config: of the job.
        sources: of the values in ImageRef.columns, in their order.
    """
    from imagebeam.transforms import transform_columns

    keys = {feature.source: feature.key for feature in config.resolve_features()}
    transforms = []
    for name in config.transformed:
        column, source = config.columns[name], f"columns/{name}"
        transforms.append(
            transform_columns.ColumnTransform(
                column=name,
                key=keys[source],
                position=list(sources).index(source),
                kind=features.KIND_OF_TYPE[column.type],
                name=str(column.transform),
                buckets=column.buckets,
                top_k=column.top_k,
                num_oov_buckets=column.num_oov_buckets,
            )
        )
    return tuple(transforms)


def versions(config: config_lib.Config) -> dict[str, str]:
    """Of the packages that decide what becomes of columns; nothing where none is transformed.

    Raises:
        ConfigError: if one of them is not installed.
    """
    found = {}
    for package in _PACKAGES if config.transformed else ():
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError as e:
            python = " with Python 3.11 or later" if sys.version_info < (3, 11) else ""
            raise errors.ConfigError(
                f"columns.{config.transformed[0]}.transform needs {package}, which is not installed: "
                f"pip install 'imagebeam[transform]'{python}"
            ) from e
    return found


def scratch_folder(config: config_lib.Config, beam_arguments: Sequence[str]) -> str:
    """A folder for tf.Transform that every worker reaches by TensorFlow's own means; "" where nothing is transformed.

    Raises:
        ConfigError: if there is none.
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
    return storage.join(output, ".imagebeam", f"transform-{secrets.token_hex(4)}")
