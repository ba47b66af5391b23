"""Compares a plan with what the output holds already: a committed dataset, other files, staged shards."""

from __future__ import annotations

import dataclasses

from imagebeam import catalog as catalog_lib
from imagebeam import errors, snapshots, storage
from imagebeam.transforms import dataset_settings, elements
from imagebeam.transforms.output import output_folder, run_report
from imagebeam.transforms.plan import decide_plan
from imagebeam.transforms.shard import shard_writer


def compare_with_committed(
    settings: dataset_settings.DatasetSettings, plan: elements.DatasetPlan
) -> elements.DatasetPlan:
    """Returns `plan`, kept or refused if the output holds this dataset or something else; reads the output.

    The plan records the catalog that it was compared with: the commit replaces this one and no other. A plan that
    still writes gets notes on shards of earlier runs that it cannot use.
    """
    if plan.action != "write":
        return plan
    try:
        plan = _compare_with_output(settings, plan)
    except errors.ImagebeamError as e:
        return decide_plan.refuse(plan, e)
    if plan.action != "write":
        return plan
    return dataclasses.replace(plan, notes=(*plan.notes, *_note_staged_shards(settings, plan)))


def _compare_with_output(
    settings: dataset_settings.DatasetSettings, plan: elements.DatasetPlan
) -> elements.DatasetPlan:
    """Returns the plan with the catalog to replace, or to keep the dataset; raises why the run is refused."""
    output = settings.output
    folder = output_folder.OutputFolder(output)
    found = output_folder.find_catalog(output)
    committed = None if found is None else found.catalog
    if committed is not None and committed.indexed:
        raise errors.ConfigError(
            "output-indexed",
            f"{output} holds TFRecord files of another tool, and an index of them that imagebeam index made: choose "
            "another --output",
        )
    folder.refuse_unnamed_shards(settings.suffix)
    if found is None:
        _require_room(settings, folder)
        return plan
    plan = dataclasses.replace(plan, committed=found.record)
    if committed is None:
        if not settings.overwrite:
            raise errors.ConfigError("catalog-unreadable", f"{found.error}; --overwrite replaces it")
    elif committed.fingerprint == plan.fingerprint:
        damage = folder.find_damage(committed, thoroughly=settings.overwrite)
        if damage is None:
            message = f"{output} holds this dataset already: same config, same images"
            return dataclasses.replace(plan, action="keep", message=message)
        if not settings.overwrite:
            raise errors.ConfigError(
                "dataset-damaged", f"{output} holds this dataset, but {damage}; --overwrite writes it again"
            )
    elif settings.snapshot is not None:
        raise errors.BusyError(
            "snapshot-by-another-run",
            f"another run has written snapshot {settings.snapshot.name} of {settings.snapshot.dataset} since this "
            "one began: run the same command again, which continues that snapshot",
        )
    elif not settings.overwrite:
        difference = run_report.compare_inputs(committed.inputs, plan.inputs)
        raise errors.ConfigError(
            "output-other-dataset",
            f"{output} holds another dataset ({output_folder.describe(committed)}; {difference}); choose another "
            "--output, or --overwrite",
        )
    return plan


def _require_room(settings: dataset_settings.DatasetSettings, folder: output_folder.OutputFolder) -> None:
    """Checks an output without a catalog: nothing there may be of another dataset."""
    output = settings.output
    if settings.snapshot is not None:
        _require_base(settings.snapshot)
    elif snapshots.latest_name(output) is not None:
        raise errors.ConfigError(
            "output-holds-snapshots",
            f"{output} holds snapshots, which convert --update writes: add --update, or choose another --output",
        )
    stray = None if settings.overwrite else folder.find_stray_file(settings.analyze is not None)
    if stray is not None:
        raise errors.ConfigError(
            "output-not-empty",
            f"{output} holds {stray}, which no {catalog_lib.CATALOG_FILE} names; choose another --output, or "
            "--overwrite",
        )


def _require_base(snapshot: dataset_settings.SnapshotSettings) -> None:
    """Checks the sizes of the files that a snapshot takes over."""
    if name := snapshot.base or snapshot.compacted:
        folder = snapshots.folder_of(snapshot.dataset, name)
        damage = output_folder.OutputFolder(folder).find_damage(catalog_lib.load_catalog(folder), thoroughly=False)
        if damage is not None:
            raise errors.VerificationError(
                "snapshot-damaged",
                f"snapshot {name} of {snapshot.dataset} is damaged: {damage}; restore the file, or write a whole new "
                "snapshot with --update --overwrite",
            )


def _note_staged_shards(settings: dataset_settings.DatasetSettings, plan: elements.DatasetPlan) -> list[str]:
    """Returns notes on finished shards of earlier runs that belong to another dataset than this one."""
    notes = []
    for staging in output_folder.OutputFolder(settings.output).staging_folders():
        if staging == settings.paths.staging(plan.fingerprint):
            continue
        entries = storage.storage_of(staging).list_directory(staging)
        count = sum(entry.name.endswith(shard_writer.DONE_SUFFIX) for entry in entries)
        if count:
            shards = "1 finished shard" if count == 1 else f"{count:,} finished shards"
            why = run_report.compare_inputs(run_report.read_inputs(staging), plan.inputs)
            notes.append(f"{shards} of an earlier run cannot be used: {why}")
    return sorted(notes)
