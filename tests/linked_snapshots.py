"""Makes a dataset of snapshots from ordinary datasets, each of which becomes the next snapshot."""

from __future__ import annotations

import dataclasses
import pathlib
import shutil
from collections.abc import Mapping, Sequence

import google_crc32c

from imagebeam import catalog as catalog_lib
from imagebeam import snapshots

_OF_WHOLE_SHARDS = ("dataset_info.json", "features.json", "croissant.json")
Removed = Mapping[str, Sequence[int]]  # indexes of records by the name of their shard in the new snapshot


def add(dataset: pathlib.Path, folder: pathlib.Path, removed: Removed | None = None) -> pathlib.Path:
    """Moves an ordinary dataset to the next snapshot of `dataset`, which continues the one before.

    Args:
        dataset: folder of all snapshots; made for the first one.
        folder: the ordinary dataset, with the shards of what is new.
        removed: records that the snapshot removes, besides those removed before. Shards of earlier snapshots are named
            "../000001/train-00000-of-00002.tfrecord".

    Returns:
        The folder of the snapshot.
    """
    base = snapshots.latest_name(str(dataset))
    name = snapshots.name_after(base)
    target = pathlib.Path(snapshots.folder_of(str(dataset), name))
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(folder, target)
    written = catalog_lib.load_catalog(target)
    splits: dict[str, list[catalog_lib.Shard]] = {}
    gone: dict[str, list[int]] = {each: list(indexes) for each, indexes in (removed or {}).items()}
    if base is not None:
        before = snapshots.find(dataset)
        for each, indexes in snapshots.load_removed(before.folder, before.catalog).items():
            gone.setdefault(_moved(each, base), []).extend(indexes)
        for split, old in before.catalog.splits.items():
            splits[split] = [dataclasses.replace(shard, name=_moved(shard.name, base)) for shard in old.shards]
    for split, new in written.splits.items():
        splits.setdefault(split, []).extend(new.shards)
    catalog = _of_snapshot(written, name, base, splits, gone)
    every = [shard.name for split in catalog.splits.values() for shard in split.shards]
    data = snapshots.encode_removed(sorted(gone.get(each, ())) for each in every)
    files = dict(catalog.files)
    if data:
        (target / snapshots.REMOVED_FILE).write_bytes(data)
        files[snapshots.REMOVED_FILE] = catalog_lib.File(len(data), google_crc32c.value(data))
    if not catalog.is_self_contained:
        for each in [*_OF_WHOLE_SHARDS, *(path.name for path in target.glob("*.labels.txt"))]:
            files.pop(each, None)
            (target / each).unlink(missing_ok=True)
    (target / catalog_lib.CATALOG_FILE).write_text(dataclasses.replace(catalog, files=files).to_json())
    (dataset / snapshots.LATEST_FILE).write_text(f"{name}\n")
    return target


def _of_snapshot(
    written: catalog_lib.Catalog,
    name: str,
    base: str | None,
    splits: Mapping[str, Sequence[catalog_lib.Shard]],
    gone: Mapping[str, Sequence[int]],
) -> catalog_lib.Catalog:
    living = {
        split: catalog_lib.Split(
            tuple(dataclasses.replace(shard, removed=len(gone.get(shard.name, ()))) for shard in shards)
        )
        for split, shards in splits.items()
    }
    num_examples = sum(split.num_examples for split in living.values())
    num_added = sum(split.num_examples for split in written.splits.values())
    num_removed = sum(map(len, gone.values()))
    return dataclasses.replace(
        written,
        fingerprint=f"{written.fingerprint}-{name}",
        splits=living,
        counts=catalog_lib.Counts(num_examples, num_examples, {}, {}),
        snapshot={
            "name": name,
            "base": base,
            "added": num_added,
            "changed": 0,
            "removed": num_removed,
            "unchanged": num_examples - num_added,
        },
    )


def _moved(name: str, base: str) -> str:
    """Returns the name that a shard of the snapshot `base` has in the next one."""
    return name if name.startswith("../") else f"../{base}/{name}"
