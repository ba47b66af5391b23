"""Finds what `convert --update` continues: the latest snapshot of a dataset, and the folder of the next one."""

from __future__ import annotations

from imagebeam import catalog as catalog_lib
from imagebeam import errors, snapshots, storage
from imagebeam.pipelines.config import model as config_lib
from imagebeam.transforms import dataset_settings
from imagebeam.transforms.snapshots import snapshot_drift


def find_base(
    config: config_lib.Config, overwrite: bool, retry_rejects: bool = False, fail_on_drift: bool = False
) -> dataset_settings.SnapshotSettings:
    """Returns the settings of the next snapshot.

    Args:
        config: with the folder of all snapshots as `output.uri`.
        overwrite: whether the snapshot takes nothing from the one before.
        retry_rejects: whether it takes only images that the one before rejected.
        fail_on_drift: whether it is not committed if it drifts further than `update.drift` allows.

    Raises:
        ConfigError: if the config or the output allows no snapshots.
    """
    if config.output.uri is None:
        raise errors.ConfigError("--update needs --output, the folder of the dataset's snapshots (output.uri)")
    dataset = storage.normalize(config.output.uri)
    _require_allowed(config)
    try:
        if storage.storage_of(dataset).exists(storage.join(dataset, catalog_lib.CATALOG_FILE)):
            raise errors.ConfigError(
                f"{dataset} holds a dataset that was converted without --update, and it is not recorded which versions "
                "of the images it holds: choose another --output"
            )
        latest = snapshots.find_latest(dataset)
        if latest is not None and not overwrite:
            snapshots.require_committed(dataset, latest)
    except OSError as e:
        raise errors.ConfigError(f"--output {dataset} cannot be read: {e.strerror or e}") from e
    except errors.CatalogError as e:
        raise errors.ConfigError(str(e)) from e
    if retry_rejects and (overwrite or latest is None):
        raise errors.ConfigError(
            "--retry-rejects reads again what the last snapshot rejected, "
            + ("and --overwrite all images: leave out one of the two" if overwrite else f"and {dataset} holds none yet")
        )
    return dataset_settings.SnapshotSettings(
        dataset,
        snapshots.name_after(latest),
        "" if overwrite or latest is None else latest,
        config.update.new_labels,
        config.update.max_removed_fraction,
        by_content=config.update.compare == "content",
        retry_rejects=retry_rejects,
        drift=snapshot_drift.Thresholds(**config.update.drift.model_dump()),
        fail_on_drift=fail_on_drift,
    )


def _require_allowed(config: config_lib.Config) -> None:
    """Raises ConfigError if images could change their split, or records have no index."""
    if config.split.stratify:
        raise errors.ConfigError(
            "--update: split.stratify moves images to other splits when the dataset grows; leave it out, and the "
            "shares hold by the hash of the key, or give the splits by folder, column or list"
        )
    if config.output.writer != "stream":
        raise errors.ConfigError("--update: output.writer: beam does not record what it has written; leave it out")
    if config.image.frames == "each":
        raise errors.ConfigError(
            "--update keeps one record for each file, and image.frames: each makes several: set image.frames: first or "
            "reject, or convert the whole input without --update"
        )
    if config.duplicates.settings().is_on:
        raise errors.ConfigError(
            "--update reads new images alone, and cannot compare them with those of earlier snapshots: leave out "
            "duplicates.exact and duplicates.near, or convert the whole input without --update"
        )
