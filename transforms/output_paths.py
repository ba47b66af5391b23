"""Addresses of the files and folders of one output. Nothing here looks at the storage."""

from __future__ import annotations

import dataclasses
import secrets

from imagebeam import catalog as catalog_lib
from imagebeam import storage

INPUTS_FILE = "inputs.json"  # in the staging folder: what the dataset is made of, see recorded_inputs
STAGED_FILES = "files.json"  # in the staging folder: sizes and checksums of tf.Transform's staged output
REPORT_PREFIX = "run-"  # in the control folder: the report of a run


@dataclasses.dataclass(frozen=True)
class OutputPaths:
    """Addresses below the folder of one dataset."""

    output: str

    @property
    def control(self) -> str:
        """The control folder: the lock, staged shards and reports; a commit removes it."""
        return storage.join(self.output, catalog_lib.CONTROL_DIRECTORY)

    @property
    def publish_marker(self) -> str:
        """A file that exists from the moment a commit moves its first shard until the dataset is complete."""
        return storage.join(self.control, catalog_lib.PUBLISH_MARKER)

    @property
    def catalog(self) -> str:
        return storage.join(self.output, catalog_lib.CATALOG_FILE)

    def staging(self, fingerprint: str) -> str:
        """The folder where shards wait for the commit."""
        return storage.join(self.control, f"{catalog_lib.STAGING_PREFIX}{fingerprint}")

    def new_report(self) -> str:
        """An address for the report of one run."""
        return storage.join(self.control, f"{REPORT_PREFIX}{secrets.token_hex(4)}.json")

    def new_transform_folder(self) -> str:
        """An address for tf.Transform's output, before it is staged."""
        return storage.join(self.control, f"transform-{secrets.token_hex(4)}")

    def beam_folder(self, report: str) -> str:
        """The folder where `beam.io.WriteToTFRecord` writes, until its files are moved to the staging folder.

        Args:
            report: of the run, whose name the folder shares.
        """
        return storage.join(self.control, "beam-" + report.rpartition("/")[2].removesuffix(".json"))
