"""A few images, their plan and their shards, for tests of what comes after the listing."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence
from typing import Any

from imagebeam import features
from imagebeam.transforms import dataset_settings, elements, summaries
from imagebeam.transforms.elements import DatasetPlan, ImageRef, SplitPlan, WrittenShard
from imagebeam.transforms.shard import shard_writer
from tests import image_sets


def make_refs(root: pathlib.Path, labels: Sequence[str] = ("cat", "dog"), per_label: int = 5) -> list[ImageRef]:
    """References of a new label/image folder, in the order of their keys."""
    refs = []
    for key in image_sets.write_folder(root, labels, per_label):
        status = os.stat(root / key)
        refs.append(ImageRef(key, str(root / key), status.st_size, status.st_mtime_ns, label=key.split("/")[0]))
    return refs


def make_settings(output: pathlib.Path, **fields: object) -> dataset_settings.DatasetSettings:
    every = features.resolve_features({}, str(fields.get("label_kind", "class")), {})
    return dataset_settings.DatasetSettings(str(output), "{}", **{"features": every, **fields})


def make_ranking(
    sizes: dict[str, int], labels: tuple[str, ...] = ("cat", "dog"), **fields: object
) -> summaries.Ranking:
    """Returns a ranking of splits with these numbers of images, 1,000 bytes each, all in one interval."""
    known: dict[str, object] = {
        "intervals": {name: [7] for name in sizes},
        "starts": {name: [0, size] for name, size in sizes.items()},
        "num_bytes": {name: 1000 * size for name, size in sizes.items()},
        "labels": labels,
        "digest": 1,
        "duplicates": (),
    }
    return summaries.Ranking(**{**known, **fields})


def make_plan(splits: dict[str, list[ImageRef]], num_shards: int = 2, **fields: object) -> DatasetPlan:
    """The plan to write every split in `num_shards` shards."""
    refs = [ref for each in splits.values() for ref in each]
    known: dict[str, object] = {
        "action": "write",
        "message": "",
        "fingerprint": "f1",
        "splits": {name: SplitPlan(len(each), 1000 * len(each), num_shards) for name, each in splits.items()},
        "labels": tuple(sorted({ref.label for ref in refs if isinstance(ref.label, str)})),
        "listed": len(refs),
        "rejected": {},
        "skipped": {},
    }
    return DatasetPlan(**{**known, **fields})


def make_tasks(plan: DatasetPlan, splits: dict[str, list[ImageRef]]) -> list[shard_writer.ShardTask]:
    """Returns the tasks of the shard writers, the images of a split in the order given."""
    tasks = []
    for name, planned in plan.splits.items():
        for index in range(planned.num_shards):
            start, end = planned.shard_start(index), planned.shard_start(index + 1)
            runs = ((start, elements.pack_refs(splits[name][start:end])), (start, b""))
            tasks.append(shard_writer.ShardTask(name, index, planned.num_shards, runs))
    return tasks


def write_shards(
    settings: dataset_settings.DatasetSettings, plan: DatasetPlan, splits: dict[str, list[ImageRef]]
) -> list[WrittenShard]:
    """Stages the shards of the plan."""
    writer = settings.writer_of(plan)
    return [writer.write(task) for task in make_tasks(plan, splits)]


def write_shard(
    folder: pathlib.Path,
    refs: Sequence[ImageRef],
    run_size: int | None = None,
    skipped: tuple[tuple[int, elements.Reason], ...] = (),
    **fields: Any,
) -> tuple[WrittenShard, dict[str, bytes]]:
    """Returns one shard of references, in runs of a size, and all files of its staging folder.

    `fields` are those of the ShardWriter besides its folders.
    """
    size = run_size or len(refs)
    runs = tuple((start, elements.pack_refs(refs[start : start + size])) for start in range(0, len(refs), size))
    writer = shard_writer.ShardWriter(str(folder), str(folder / "out"), **fields)
    written = writer.write(shard_writer.ShardTask("train", 0, 1, runs, skipped))
    return written, read_files(folder)


def write_transform(folder: pathlib.Path) -> None:
    """Files as tf.Transform writes them, but for what they say."""
    (folder / "transform_fn" / "assets").mkdir(parents=True, exist_ok=True)
    (folder / "transformed_metadata").mkdir(exist_ok=True)
    (folder / "transform_fn" / "saved_model.pb").write_bytes(b"1")
    (folder / "transform_fn" / "assets" / "city").write_bytes(b"Rome\n")


def read_files(root: pathlib.Path) -> dict[str, bytes]:
    """Every file below a folder by its path."""
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
