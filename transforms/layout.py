"""Decides what one dataset will look like and where its parts lie. Pure functions of what was listed; no Beam."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from imagebeam import catalog as catalog_lib
from imagebeam import errors, features, shards, storage, verify
from imagebeam.features import Feature
from transforms import encode, fetch, kept_features, prepare, references, tfds_metadata, write_shard

if TYPE_CHECKING:
    from transforms import list as list_lib
    from transforms import rank

CONTROL_DIRECTORY = ".imagebeam"  # in the output: the lock, staged shards, reports; gone after a commit
STAGED_FILES = "files.json"  # in the staging folder: what lies there of tf.Transform, with sizes
TRANSFORM_FOLDERS = ("transform_fn", "transformed_metadata")  # as tf.Transform names them
DEFAULT_SHARD_BYTES = 128 << 20  # large enough for sequential reads from a bucket, small enough to shuffle
DEFAULT_MIN_SHARDS = 16  # so that a small dataset, too, is written and read in parallel...
DEFAULT_MIN_SHARD_RECORDS = 64  # ...unless the shards would hold next to nothing

_WRITTEN_FILES = (catalog_lib.LABELS_FILE, catalog_lib.STATISTICS_FILE, *tfds_metadata.LOADED_BY)

_SPLIT_LIKE = frozenset({"train", "training", "test", "testing", "val", "valid", "validation", "dev", "eval"})
_WRITER_VERSION = 1  # raised whenever a release writes other bytes for the same config and input


@dataclasses.dataclass(frozen=True)
class Sizing:
    """How many shards a split gets."""

    num_shards: int | Mapping[str, int] | None = None
    target_shard_bytes: int | None = None
    examples_per_shard: int | None = None

    def shards_of(self, split: str, num_records: int, num_bytes: int) -> int:
        if isinstance(self.num_shards, int):
            return self.num_shards
        if isinstance(self.num_shards, Mapping) and split in self.num_shards:
            return self.num_shards[split]
        if self.examples_per_shard is not None:
            return max(1, _ceil_divide(num_records, self.examples_per_shard))
        if self.target_shard_bytes is not None:
            return max(1, _ceil_divide(num_bytes, self.target_shard_bytes))
        at_least = min(DEFAULT_MIN_SHARDS, num_records // DEFAULT_MIN_SHARD_RECORDS)
        return max(1, at_least, _ceil_divide(num_bytes, DEFAULT_SHARD_BYTES))


@dataclasses.dataclass(frozen=True)
class RejectSummary:
    """The images turned away before any was read."""

    counts: Mapping[str, int]  # by reason
    digest: int
    first_unknown_label: references.Reject | None  # in the order of keys
    first: references.Reject | None = None  # in the order of keys


@dataclasses.dataclass(frozen=True)
class DatasetLayout:
    """What is known of the dataset before its input is listed."""

    output: str
    identity: str  # canonical JSON of the config that decides the shards
    features: tuple[features.Feature, ...]
    columns: tuple[str, ...] = ()
    label_kind: str | None = "class"
    label_base: int = 0
    vocabulary: tuple[str, ...] | None = None
    texts: Mapping[str, str] = dataclasses.field(default_factory=dict)  # of the classes that have another than the name
    unknown_label_is_error: bool = False
    declared_splits: tuple[str, ...] | None = None
    sizing: Sizing = Sizing()
    policy: prepare.ImagePolicy = prepare.AS_IT_IS
    read_ahead: fetch.ReadAhead = fetch.READ_AHEAD
    compression: str = "none"
    suffix: str = ".tfrecord"
    analyze: str | None = None  # what tf.Transform looks at: "train", "all"; None where no column is transformed
    max_reject_fraction: float = 0.01
    keep: kept_features.KeepRule | None = None  # of records that are written anew
    overwrite: bool = False
    report: str = ""  # address of the report of this run; "" writes none

    @property
    def control(self) -> str:
        return storage.join(self.output, CONTROL_DIRECTORY)

    @property
    def publish_marker(self) -> str:
        """There from the moment a commit moves its first shard until a dataset is whole."""
        return storage.join(self.control, "publishing")

    @property
    def beam_folder(self) -> str:
        """Where `beam.io.WriteToTFRecord` writes, before its files are taken over."""
        return storage.join(self.control, "beam-" + self.report.rpartition("/")[2].removesuffix(".json"))

    def staging(self, fingerprint: str) -> str:
        return storage.join(self.control, f"staging-{fingerprint}")

    def shard_name(self, split: str, shard_index: int, num_shards: int) -> str:
        return str(shards.ShardName(split, shard_index, num_shards, self.suffix))

    def label_ids(self, labels: tuple[str, ...]) -> dict[str, int]:
        return {label: index for index, label in enumerate(labels, start=self.label_base)}

    def features_of(self, plan: references.DatasetPlan) -> tuple[Feature, ...]:
        """The features of every example, the image last."""
        return features.in_order((*self.features, *plan.kept)) if plan.kept else self.features

    def recipe(self, plan: references.DatasetPlan) -> encode.ExampleRecipe:
        ids = self.label_ids(plan.labels)
        return encode.ExampleRecipe(self.features_of(plan), ids, self.columns, self.texts, plan.kept)

    def policy_of(self, plan: references.DatasetPlan) -> prepare.ImagePolicy:
        """What is checked and stored of every image; one that has places in it is not turned."""
        if not kept_features.has_places(plan.kept):
            return self.policy
        return dataclasses.replace(self.policy, turn_upright=False)

    def shard_writer(self, plan: references.DatasetPlan) -> write_shard.ShardWriter:
        return write_shard.ShardWriter(
            staging=self.staging(plan.fingerprint),
            output=self.output,
            recipe=self.recipe(plan),
            policy=self.policy_of(plan),
            read_ahead=self.read_ahead,
            compression=self.compression,
            suffix=self.suffix,
        )

    def plan(self, ranking: rank.Ranking, tally: list_lib.Tally, rejects: RejectSummary) -> references.DatasetPlan:
        """What this run will do with what was listed."""
        splits = {}
        for split in self._in_order(ranking.starts):
            num_records, num_bytes = ranking.total(split), ranking.num_bytes[split]
            num_shards = self.sizing.shards_of(split, num_records, num_bytes)
            splits[split] = references.SplitPlan(num_records, num_bytes, num_shards)
        kept = self.keep.resolve(tally.features, self.features) if self.keep else kept_features.Kept()
        plan = references.DatasetPlan(
            action="write",
            message="",
            exit_code=0,
            fingerprint=self._fingerprint(ranking, rejects),
            splits=splits,
            labels=(self.vocabulary or ranking.labels) if self.label_kind == "class" else (),
            listed=tally.listed,
            rejected=rejects.counts,
            passed_over=tally.passed_over,
            notes=(*self._notes(splits, ranking), *tally.lists.notes, *kept.notes),
            kept=kept.features,
        )
        problems = (*tally.problems, *([kept.problem] if kept.problem else ()))
        refusal = self._refusal(plan, ranking, tally._replace(problems=problems), rejects)
        if refusal is not None:
            return dataclasses.replace(plan, action="refuse", message=str(refusal), exit_code=refusal.exit_code)
        return self._compare_with_committed(plan)

    def _in_order(self, splits: Iterable[str]) -> list[str]:
        """As declared; else train first."""
        declared = {name: index for index, name in enumerate(self.declared_splits or ())}
        return sorted(splits, key=lambda name: (declared.get(name, len(declared)), name != "train", name))

    def _fingerprint(self, ranking: rank.Ranking, rejects: RejectSummary) -> str:
        parts: tuple[Any, ...] = (_WRITER_VERSION, self.identity, self.vocabulary, ranking.digest, rejects.digest)
        if self.texts:
            parts += (sorted(self.texts.items()),)
        return hashlib.blake2b(repr(parts).encode("utf-8", "backslashreplace"), digest_size=12).hexdigest()

    def _refusal(
        self,
        plan: references.DatasetPlan,
        ranking: rank.Ranking,
        tally: list_lib.Tally,
        rejects: RejectSummary,
    ) -> errors.ImagebeamError | None:
        """Why nothing may be written, if so."""
        if tally.problems:
            return errors.ConfigError("; ".join(tally.problems[:5]))
        if not tally.listed:
            passed = ", ".join(f"{count:,} {kind}" for kind, count in plan.passed_over.items()) or "nothing at all"
            return errors.ConfigError(
                f"the input holds no image (passed over: {passed}); check --input and source.include"
            )
        if problem := tally.lists.find_problem(has_vocabulary=self.vocabulary is not None):
            return errors.ConfigError(problem)
        unknown = rejects.first_unknown_label
        if self.unknown_label_is_error and unknown is not None:
            return errors.ConfigError(f"{unknown.uri}: {unknown.detail}; add it there, or set label.unknown: reject")
        if refusal := self.too_many_rejects(tally.listed, rejects.counts):
            example = f"; the first: {rejects.first.uri}: {rejects.first.detail}" if rejects.first else ""
            return errors.TooManyRejectsError(f"{refusal}; no image was read yet{example}")
        if ranking.duplicates:
            key, first, second = ranking.duplicates[0]
            more = f" ({len(ranking.duplicates)} such keys or more)" if len(ranking.duplicates) > 1 else ""
            remedy = "remove one, or name a column of unique ids in source.manifest.key"
            if first == second:
                remedy += "; if its rows are one example, sort them by image and set source.manifest.merge_rows: true"
            return errors.ConfigError(f"two images have the key {key!r}{more}: {first} and {second}; {remedy}")
        if self.analyze == "train" and "train" not in plan.splits:
            return errors.ConfigError(
                f"statistics.analyze is train, and no image goes to a split of that name; found are "
                f"{', '.join(plan.splits) or 'none'}; set statistics.analyze: all, or split.rename"
            )
        textless = [label for label in ranking.labels if label not in self.texts] if self.texts else []
        if textless:
            return errors.ConfigError(
                f"{len(textless):,} of the {len(ranking.labels):,} classes have no text in label.texts, the first is "
                f"{textless[0]!r}; add them there, or leave label.texts out"
            )
        missing = [split for split in self.declared_splits or () if split not in plan.splits]
        if missing:
            return errors.ConfigError(
                f"no image goes to the split {', '.join(missing)}; found are {', '.join(plan.splits) or 'none'}; "
                "change split.fractions or split.names, or add images"
            )
        return None

    def too_many_rejects(self, listed: int, rejected: Mapping[str, int]) -> errors.TooManyRejectsError | None:
        """The error of a run that turns away more than it may."""
        total = sum(rejected.values())
        if total <= self.max_reject_fraction * listed:
            return None
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in sorted(rejected.items(), key=lambda x: -x[1]))
        return errors.TooManyRejectsError(
            f"{total:,} of {listed:,} images were rejected ({total / listed:.2%}; {reasons}), rejects.max_fraction "
            f"allows {self.max_reject_fraction:.2%}: nothing was committed; mend the images or raise "
            "rejects.max_fraction"
        )

    def _notes(self, splits: Mapping[str, references.SplitPlan], ranking: rank.Ranking) -> list[str]:
        notes = []
        for split, planned in splits.items():
            if empty := max(0, planned.num_shards - planned.num_records):
                notes.append(f"{empty:,} of the {planned.num_shards:,} shards of {split} will be empty")
        labels = [label for label in ranking.labels if label.lower() in _SPLIT_LIKE]
        if self.label_kind == "class" and len(labels) > 1 and len(labels) == len(ranking.labels):
            notes.append(
                f"the labels {', '.join(labels)} look like splits; for split/label/image set split.by=directory"
            )
        seen = set(ranking.labels)
        unseen = [label for label in self.vocabulary or () if label not in seen]
        if unseen:
            notes.append(f"labels of the vocabulary without an image: {len(unseen):,}, the first is {unseen[0]!r}")
        if isinstance(self.sizing.num_shards, Mapping):
            absent = sorted(set(self.sizing.num_shards) - set(splits))
            notes += [f"output.num_shards names the split {split}, which receives no image" for split in absent]
        return notes

    def _compare_with_committed(self, plan: references.DatasetPlan) -> references.DatasetPlan:
        """Takes into account what is in the output already."""
        try:
            committed = catalog_lib.load_catalog(self.output)
        except errors.CatalogError as e:
            if storage.storage_of(self.output).exists(storage.join(self.output, catalog_lib.CATALOG_FILE)):
                return plan if self.overwrite else _refuse(plan, f"{e}; --overwrite replaces it")
            stray = None if self.overwrite else self._find_stray_file()
            if stray is not None:
                return _refuse(
                    plan,
                    f"{self.output} holds {stray}, which no {catalog_lib.CATALOG_FILE} names; "
                    "choose another --output, or --overwrite",
                )
            return plan
        if committed.fingerprint == plan.fingerprint:
            damage = self._find_damage(committed)
            if damage is None:
                message = f"{self.output} holds this dataset already: same config, same images"
                return dataclasses.replace(plan, action="keep", message=message)
            if not self.overwrite:
                return _refuse(plan, f"{self.output} holds this dataset, but {damage}; --overwrite writes it again")
        elif not self.overwrite:
            return _refuse(
                plan,
                f"{self.output} holds another dataset ({committed.name}, {committed.counts.written:,} images, written "
                f"{committed.created}; config or images differ); choose another --output, or --overwrite",
            )
        return plan

    def _find_stray_file(self) -> str | None:
        """A file that a commit would replace, where no commit of ours was cut short."""
        store = storage.storage_of(self.output)
        if not store.exists(self.output) or store.exists(self.publish_marker):
            return None
        for entry in store.list_directory(self.output):
            if entry.name in _WRITTEN_FILES or (self.analyze is not None and entry.name in TRANSFORM_FOLDERS):
                return entry.name
            with contextlib.suppress(ValueError):
                return str(shards.ShardName.parse(entry.name))
        return None

    def _find_damage(self, committed: catalog_lib.Catalog) -> str | None:
        for split in committed.splits.values():
            for shard in split.shards:
                uri = storage.join(self.output, shard.name)
                try:
                    size = storage.storage_of(uri).stat(uri).size
                except OSError:
                    return f"{shard.name} is missing"
                if size != shard.bytes:
                    return f"{shard.name} has {size:,} bytes, the catalog says {shard.bytes:,}"
                # --overwrite of the same dataset is asked for to mend what verify has found
                if self.overwrite and (problems := verify.verify_shard(self.output, shard, committed.compression)):
                    return str(problems[0])
                index = storage.join(self.output, shard.index_name)
                if committed.compression == "none" and not storage.storage_of(index).exists(index):
                    return f"{shard.index_name} is missing"
        for name, num_bytes in committed.files.items():
            uri = storage.join(self.output, name)
            try:
                size = storage.storage_of(uri).stat(uri).size
            except OSError:
                return f"{name} is missing"
            if size != num_bytes:
                return f"{name} has {size:,} bytes, the catalog says {num_bytes:,}"
        names = [catalog_lib.STATISTICS_FILE, catalog_lib.REJECTS_FILE]
        names += [catalog_lib.LABELS_FILE] if committed.labels else []
        names += tfds_metadata.LOADED_BY if committed.compression == "none" else ()
        for name in names:
            uri = storage.join(self.output, name)
            if not storage.storage_of(uri).exists(uri):
                return f"{name} is missing"
        return None


def _refuse(plan: references.DatasetPlan, message: str) -> references.DatasetPlan:
    return dataclasses.replace(plan, action="refuse", message=message, exit_code=errors.ConfigError.exit_code)


def _ceil_divide(number: int, divisor: int) -> int:
    return -(-number // divisor)


def encode_report(state: str, plan: references.DatasetPlan, message: str = "", exit_code: int = 0) -> bytes:
    """What the launcher reads of a run, on whatever runner it ran: `state` is planned, committed, kept or refused."""
    fields = {"state": state, "message": message, "exit_code": exit_code, "plan": dataclasses.asdict(plan)}
    return json.dumps(fields).encode()


def decode_plan(fields: Mapping[str, Any]) -> references.DatasetPlan:
    """The plan inside a decoded report."""
    known = dict(fields)
    known["splits"] = {name: references.SplitPlan(**split) for name, split in known["splits"].items()}
    known["labels"], known["notes"] = tuple(known["labels"]), tuple(known["notes"])
    known["kept"] = tuple(features.Feature(*each) for each in known["kept"])
    return references.DatasetPlan(**known)
