"""Makes the catalog of another tool's shards from the scans of them."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import hashlib
import os
import platform
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from imagebeam import catalog as catalog_lib
from imagebeam import plural, records, storage, version
from imagebeam.transforms import dataset_settings, elements, kept_features
from imagebeam.transforms.indexing import choose_features, find_shards, scan_shard
from imagebeam.transforms.publish import commit_rights, publish_dataset
from imagebeam.transforms.shard import statistics

_SLIM_LABEL = re.compile(r"(\d+):(.*)")  # a line of labels.txt of TF-slim


@dataclasses.dataclass(frozen=True)
class IndexOptions:
    """Options of `imagebeam index`.

    Attributes:
        image: key of the feature with the image; None to find it.
        label: key of the feature with the label; "none" for none, and None to find it.
        label_base: id of the first class, 0 or 1; None to find it.
        split: a regular expression that finds the split in a path; None to find it by the usual names.
        partial: whether files of a numbered series may be missing.
        keep_broken: whether records that cannot be read may be among those of the dataset.
    """

    image: str | None = None
    label: str | None = None
    label_base: int | None = None
    split: str | None = None
    partial: bool = False
    keep_broken: bool = False


class Merged(NamedTuple):
    """Scans of all files, and their sums."""

    scans: Mapping[str, scan_shard.ShardScan]  # by name
    survey: kept_features.FeatureSurvey
    labels: Mapping[int, int]

    @classmethod
    def of(cls, scans: Iterable[scan_shard.ShardScan]) -> Merged:
        survey, labels, by_name = kept_features.NO_FEATURES, collections.Counter[int](), {}
        for scan in scans:
            by_name[scan.name] = scan
            survey = survey.merge(scan.survey)
            labels.update(scan.labels)
        return cls(by_name, survey, labels)


class Made(NamedTuple):
    """A catalog, and what goes with it."""

    catalog: catalog_lib.Catalog
    statistics: Mapping[str, Any]
    notes: tuple[str, ...]


def make_catalog(
    folder: str, found: find_shards.FoundShards, keys: scan_shard.Keys, merged: Merged, options: IndexOptions
) -> Made:
    """Returns the catalog of the files that were found."""
    wrong = sorted({key for scan in merged.scans.values() for key in scan.wrong_sizes})
    chosen = choose_features.choose_features(merged.survey, keys, wrong, merged.labels)
    notes = list(chosen.notes)
    if keys.label is None and options.label is None:
        notes.append("no feature is known as the label of the image; name it with --label KEY")
    classes = choose_features.Classes((), 0)
    if chosen.label_kind == "class":
        listed = _read_class_names(folder, keys.label or "", max(merged.labels))
        names = choose_features.merge_names([*merged.scans.values()])
        classes = choose_features.choose_classes(merged.labels, names, listed, options.label_base)
        notes += classes.notes
    splits, described, counted = {}, {}, 0
    for name, shards in found.splits.items():
        entries, parts = [], []
        labels: collections.Counter[int] = collections.Counter()
        for shard in shards:
            scan = merged.scans[shard.name]
            entries.append(scan.shard)
            parts.append(scan.statistics)
            counted += scan.records
            labels.update(scan.labels)
        splits[name] = catalog_lib.Split(tuple(entries))
        total = statistics.merge_statistics(parts)
        total |= {"labels": choose_features.as_counts(labels, classes) if classes.names else {}}
        described[name] = statistics.describe_statistics(total)
    num_broken = sum(scan.num_broken for scan in merged.scans.values())
    if num_broken:
        notes.append(f"{plural.count(num_broken, 'record')} cannot be read; readers need on_error='skip'")
    if others := _formats_that_need_pillow(described):
        notes.append(
            f"some images are {others}: Pillow decodes them, more slowly than the code in C decodes JPEG and PNG"
        )
    elif not keys.is_raw and not {"image/height", "image/width"} <= {each.source for each in chosen.features}:
        notes.append("no features hold height and width of every image: the reader takes them from the header of each")
    content = [
        [(name, [(each.name, each.bytes, each.crc32c) for each in split.shards]) for name, split in splits.items()],
        [tuple(each) for each in chosen.features],
        (classes.names, classes.base, chosen.label_kind),
    ]
    left_out = list(found.left_out)
    indexed = {"image": keys.image, "label": keys.label, "options": dataclasses.asdict(options), "left_out": left_out}
    catalog = catalog_lib.Catalog(
        name=folder.rstrip("/").rpartition("/")[2] or "images",
        fingerprint=hashlib.blake2b(repr(content).encode("utf-8", "backslashreplace"), digest_size=12).hexdigest(),
        compression=found.compression,
        splits=splits,
        labels=classes.names,
        label_kind=chosen.label_kind,
        label_base=classes.base,
        features=chosen.features,
        config={
            "source": {"by": "index", "uri": folder},
            "image": {"encode": "raw" if keys.is_raw else "keep"},
            "output": {"shuffle": "none"},
        },
        counts=catalog_lib.Counts(counted, counted, {}, found.skipped),
        versions={"imagebeam": version.__version__, "python": platform.python_version()},
        created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        indexed=indexed,
    )
    return Made(catalog, described, tuple(notes))


def describe_size(described: Mapping[str, Any]) -> str:
    """Returns the size of the images, such as "224 x 224", or from which to which they are; "" if it is not known."""
    texts = []
    for side in ("height", "width"):
        ranges = [split[side] for split in described.values() if split.get(side)]
        if not ranges:
            return ""
        least, most = min(each["min"] for each in ranges), max(each["max"] for each in ranges)
        texts.append(f"{least:,}" if least == most else f"{least:,} to {most:,}")
    return f"{texts[0]} x {texts[1]}"


def _formats_that_need_pillow(described: Mapping[str, Any]) -> str:
    formats = {name for split in described.values() for name in split.get("formats", {})}
    return ", ".join(sorted(formats - {"jpeg", "png", "raw"}))


def _read_class_names(folder: str, key: str, highest: int) -> list[str] | None:
    """Returns the names of all classes from a file of TFDS or TF-slim beside the shards; None if there is none."""
    for name in (f"{key}.labels.txt", "labels.txt"):
        uri = storage.join(folder, name)
        try:
            lines = storage.storage_of(uri).read(uri).decode().splitlines()
        except (OSError, UnicodeDecodeError):
            continue
        names = [line.strip() for line in lines if line.strip()]
        numbered = [_SLIM_LABEL.fullmatch(line) for line in names]
        if all(numbered) and [int(each[1]) for each in numbered if each] == [*range(len(names))]:
            names = [each[2] for each in numbered if each]
        if highest <= len(names) and len(set(names)) == len(names):
            return names
    return None


SCANS_FILE = f"{catalog_lib.INDEX_DIRECTORY}/scans.json.gz"  # scans of all shards, for the next index


class IndexPublication(publish_dataset.Publication):
    """Publishes indexes and a catalog, by the steps of a dataset's commit, without the shards."""

    @property
    def _files_of_old_readers(self) -> Collection[str]:
        return ()  # dataset_info.json and features.json are those of the user

    def _staged_files(self, written: elements.WrittenShard) -> list[publish_dataset.StagedFile]:
        beside = written.shard.side_files(self.settings.compression)
        return [
            publish_dataset.StagedFile(file.name, scan_shard.staged_name(file.name), file.entry.bytes)
            for file in beside
        ]


def publish_index(
    settings: dataset_settings.DatasetSettings,
    plan: elements.DatasetPlan,
    catalog: catalog_lib.Catalog,
    files: Mapping[str, bytes],
) -> catalog_lib.Catalog:
    """Commits the indexes in the staging folder of the plan with their catalog; returns the catalog.

    Args:
        settings: of the output.
        plan: names the staging folder, and the catalog that is replaced.
        catalog: without its files.
        files: other files of the dataset by name.

    Raises:
        BusyError: if another run holds the lock, commits at this moment, or has committed since the plan was made.
        VerificationError: if a staged file is gone.
    """
    staging = settings.paths.staging(plan.fingerprint)
    store = storage.storage_of(staging)
    commit_lock = commit_rights.CommitLock(settings.paths, plan.run_id, plan.fingerprint)
    written = [
        elements.WrittenShard(name, shard, {}, {}) for name, split in catalog.splits.items() for shard in split.shards
    ]
    publication = IndexPublication(settings, plan, written, commit_lock)
    publication.require_committed()
    publication.stage_catalog(catalog)
    lock = commit_rights.look_at_lock(settings.paths, plan.run_id)
    with commit_lock.held(lock.ended):
        publication.require_committed()
        publication.require_staged()
        for name, data in files.items():
            target = storage.join(staging, name)
            store.make_directories(os.path.dirname(target))
            store.write_whole(target, data)
        entries = {name: catalog_lib.File(len(data), records.extend_crc(0, data)) for name, data in files.items()}
        catalog = publication.publish(dataclasses.replace(catalog, files=entries))
        commit_rights.MetadataFolder(settings).clear(plan, lock)
    return catalog
