"""The work of runs that an output holds: finished shards of a run that did not commit, or a committed dataset."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator

from imagebeam import catalog as catalog_lib
from imagebeam import errors, storage
from imagebeam.storage import remote
from imagebeam.transforms import elements
from imagebeam.transforms.output import output_folder, recorded_inputs
from imagebeam.transforms.shard import deadly_images, shard_writer


def plan_of(catalog: catalog_lib.Catalog) -> elements.DatasetPlan:
    """Returns the plan that a committed dataset must have had, as far as its catalog tells."""
    splits = {
        name: elements.SplitPlan(split.num_examples, split.num_bytes, len(split.shards))
        for name, split in catalog.splits.items()
    }
    counts = catalog.counts
    return elements.DatasetPlan(
        "write", "", 0, catalog.fingerprint, splits, catalog.labels, counts.listed, {}, counts.skipped
    )


class NotOfThisRunError(errors.ImagebeamError):
    """An output holds no dataset that a run can have committed."""


def dataset_of(output: str, identity: str) -> catalog_lib.Catalog:
    """Returns the catalog of the dataset in an output, if it is of this config.

    Args:
        output: address of the folder.
        identity: of the config: `DatasetSettings.identity`.

    Raises:
        NotOfThisRunError: if there is no dataset, or one of another config.
    """
    try:
        catalog = catalog_lib.load_catalog(output)
    except errors.CatalogError as e:
        raise NotOfThisRunError("without a dataset") from e
    if not recorded_inputs.are_of(catalog.inputs, identity):
        raise NotOfThisRunError(f"and {output} holds a dataset of another config ({output_folder.describe(catalog)})")
    return catalog


def created_sec(catalog: catalog_lib.Catalog) -> float:
    """Returns when a dataset was committed, in seconds since the epoch; 0 if its catalog does not tell."""
    try:
        return datetime.datetime.fromisoformat(catalog.created).timestamp()
    except ValueError:
        return 0.0


def count_finished_shards(output: str) -> int | None:
    """Returns the number of finished shards in the staging folders of an output; None if it has no such folder.

    Raises:
        ConfigError: if the output cannot be listed with these credentials.
        OSError: if the storage does not answer.
    """
    folders = output_folder.OutputFolder(output).staging_folders()
    return sum(1 for _ in _staged_in(folders, shard_writer.DONE_SUFFIX)) if folders else None


def has_finished_shards(output: str) -> bool:
    """Returns whether a staging folder of an output holds a finished shard; False if it cannot be listed."""
    return _has_staged(output, shard_writer.DONE_SUFFIX)


def _has_staged(output: str, suffix: str) -> bool:
    try:
        with remote.budget(remote.CHECK_BUDGET_SEC):  # no reason to keep the user waiting
            return any(_staged_in(output_folder.OutputFolder(output).staging_folders(), suffix))
    except (OSError, errors.ConfigError):
        return False


def _staged_in(folders: Iterable[str], suffix: str) -> Iterator[str]:
    """Yields the names of the files beside shards that end with `suffix`."""
    for folder in folders:
        for entry in storage.storage_of(folder).list_directory(folder):
            if entry.name.endswith(suffix):
                yield entry.name


def describe_kept(output: str) -> str:
    """Returns the end of a message on a run that failed: what of its work is kept; "" if nothing is."""
    if not has_finished_shards(output):
        return ""
    is_local = storage.storage_of(output).is_local
    where = "" if is_local else f" in {output_folder.OutputPaths(output).metadata}"  # not obvious for a bucket
    return f"; finished shards are kept{where}, run the same command again to go on"


def describe_deaths(output: str) -> str:
    """Returns the end of a message on a run that failed: whether a worker ended in the middle of a shard; else ""."""
    if not _has_staged(output, deadly_images.MARK_SUFFIX):
        return ""
    return "; an image may have killed a worker: the same command finds and rejects it"
