"""The metadata folder of an output after a run: what is removed from it, and what stays."""

from __future__ import annotations

import dataclasses

from imagebeam import catalog as catalog_lib
from imagebeam import storage
from imagebeam.transforms import dataset_settings, elements
from imagebeam.transforms.output import output_paths
from imagebeam.transforms.publish import commit_rights

_LEFT_BY_RUNS = (  # prefixes of names; the lock has none of them
    f"{output_paths.LOCK_FILE}.tmp-",
    output_paths.LAST_RUN_FILE,
    output_paths.REPLACED_PREFIX,
    catalog_lib.COMMIT_LOCK_FILE,
    output_paths.REPORT_PREFIX,
    output_paths.NAMES_PREFIX,
    output_paths.DRIFT_REPORT_FILE,
    catalog_lib.REJECTS_FILE,
    catalog_lib.DUPLICATES_FILE,
)


@dataclasses.dataclass(frozen=True)
class MetadataFolder:
    """The folder for the lock, the commit lock, the reports and the staged files of the runs of one dataset."""

    settings: dataset_settings.DatasetSettings

    def clear(self, plan: elements.DatasetPlan, lock: commit_rights.LockView) -> None:
        """Empties it but for the lock, the commit lock and the report of this run.

        Whoever has a staging folder has held the lock, so their runs have ended if this one holds it. A run that has
        lost the lock removes only what is its own.
        """
        if not lock.is_held:
            self.remove_own(plan)
            return
        paths, store = self.settings.paths, storage.storage_of(self.settings.output)
        for entry in self.left_entries():
            uri = storage.join(paths.metadata, entry.name)
            if entry.kind == storage.DIRECTORY:
                store.remove_tree(uri)
            elif uri != paths.commit_lock:
                store.remove(uri)

    def remove_own(self, plan: elements.DatasetPlan) -> None:
        """Removes the staging folder of this dataset, and the catalog that it replaced."""
        paths, store = self.settings.paths, storage.storage_of(self.settings.output)
        store.remove_tree(paths.staging(plan.fingerprint))
        store.remove(paths.replaced(plan.fingerprint))

    def left_entries(self) -> list[storage.Entry]:
        """Returns what runs have left in it, without the lock and the report of this run."""
        folder, store = self.settings.paths.metadata, storage.storage_of(self.settings.output)
        try:
            entries = list(store.list_directory(folder))
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [
            entry
            for entry in entries
            if entry.kind == storage.DIRECTORY
            or (entry.name.startswith(_LEFT_BY_RUNS) and storage.join(folder, entry.name) != self.settings.report)
        ]
