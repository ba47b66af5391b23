"""Settings of a run that writes a snapshot: what it continues, and how much may change. Imports no Beam."""

from __future__ import annotations

import dataclasses
from typing import Literal, TypeAlias

from imagebeam import catalog as catalog_lib
from imagebeam import snapshots
from imagebeam.transforms.snapshots import snapshot_drift

NewLabels: TypeAlias = Literal["append", "refuse"]


@dataclasses.dataclass(frozen=True)
class SnapshotSettings:
    """One snapshot to write, and the one that it continues."""

    dataset: str  # address of the folder with all snapshots
    name: str
    base: str = ""  # name of the snapshot before it; "" takes nothing from any
    new_labels: NewLabels = "append"  # at the end of the vocabulary
    max_removed_fraction: float = 1.0  # of the images in the snapshot before
    compacted: str = ""  # name of the snapshot whose records are copied; "" if images are read
    by_content: bool = False  # whether images with another version are the same if their bytes are
    retry_rejects: bool = False  # whether only images that the snapshot before rejected are read again
    drift: snapshot_drift.Thresholds = snapshot_drift.DEFAULT  # differences that are too large
    fail_on_drift: bool = False  # whether nothing is committed then; otherwise it is only noted

    @property
    def continues(self) -> bool:
        """True if the snapshot takes records from an earlier one."""
        return bool(self.base or self.compacted)

    @property
    def folder(self) -> str:
        return snapshots.folder_of(self.dataset, self.name)

    @property
    def base_folder(self) -> str:
        return snapshots.folder_of(self.dataset, self.base)

    @property
    def compacted_folder(self) -> str:
        return snapshots.folder_of(self.dataset, self.compacted)

    def load_base(self) -> catalog_lib.Catalog | None:
        """Returns the catalog of the snapshot before; None if there is none.

        Raises:
            CatalogError: if it cannot be read.
        """
        return catalog_lib.load_catalog(self.base_folder) if self.base else None
