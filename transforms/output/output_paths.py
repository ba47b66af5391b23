"""Addresses of the files and folders of one output. Nothing here looks at the storage."""

from __future__ import annotations

import dataclasses
import secrets

from imagebeam import catalog as catalog_lib
from imagebeam import storage

INPUTS_FILE = "inputs.json"  # in the staging folder: what the dataset is made of, see recorded_inputs
STAGED_FILES = "files.json"  # in the staging folder: sizes and checksums of tf.Transform's staged output
LOCK_FILE = "lock"  # in the metadata folder
LAST_RUN_FILE = "last-run.json"  # in the metadata folder: how a job ended badly, see pipelines.runs.last_run
REPLACED_PREFIX = "replaced-"  # in the metadata folder, followed by a fingerprint: the catalog that it replaced
REPORT_PREFIX = "run-"  # in the metadata folder: the report of a run
DRIFT_REPORT_FILE = "report.json"  # in the metadata folder: of a snapshot that was refused, see snapshot_report
NAMES_PREFIX = "names-"  # in the metadata folder: staged names of a run, see label_names


def new_run_id() -> str:
    """Returns an id for one run. It signs the lock and names the report."""
    return secrets.token_hex(8)


@dataclasses.dataclass(frozen=True)
class OutputPaths:
    """Addresses below the folder of one dataset."""

    output: str

    @property
    def metadata(self) -> str:
        """The metadata folder: the lock, staged shards and reports; a commit removes it."""
        return storage.join(self.output, catalog_lib.METADATA_DIRECTORY)

    @property
    def lock(self) -> str:
        """The record of the run that writes to the output, see run_record."""
        return storage.join(self.metadata, LOCK_FILE)

    @property
    def last_run(self) -> str:
        """The record of the last job, if it ended badly."""
        return storage.join(self.metadata, LAST_RUN_FILE)

    @property
    def commit_lock(self) -> str:
        """The record of the run that commits. It exists until the dataset is complete."""
        return storage.join(self.metadata, catalog_lib.COMMIT_LOCK_FILE)

    @property
    def catalog(self) -> str:
        return storage.join(self.output, catalog_lib.CATALOG_FILE)

    def staging(self, fingerprint: str) -> str:
        """The folder where shards wait for the commit."""
        return storage.join(self.metadata, f"{catalog_lib.STAGING_PREFIX}{fingerprint}")

    def replaced(self, fingerprint: str) -> str:
        """The address to which the catalog of the dataset that this one replaces is moved."""
        return storage.join(self.metadata, f"{REPLACED_PREFIX}{fingerprint}.json")

    def report(self, run_id: str) -> str:
        """The address of the report of one run."""
        return storage.join(self.metadata, f"{REPORT_PREFIX}{run_id}.json")

    @property
    def drift_report(self) -> str:
        """The address of the report of a snapshot that was refused because it drifts too far."""
        return storage.join(self.metadata, DRIFT_REPORT_FILE)

    def names_file(self, run_id: str) -> str:
        """The address of the staged names of one run."""
        return storage.join(self.metadata, f"{NAMES_PREFIX}{run_id}.json")

    def new_transform_folder(self) -> str:
        """An address for tf.Transform's output, before it is staged."""
        return storage.join(self.metadata, f"transform-{secrets.token_hex(4)}")

    def beam_folder(self, report: str) -> str:
        """The folder where `beam.io.WriteToTFRecord` writes, until its files are moved to the staging folder.

        Args:
            report: of the run, whose name the folder shares.
        """
        return storage.join(self.metadata, "beam-" + report.rpartition("/")[2].removesuffix(".json"))
