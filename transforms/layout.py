"""Decides what one dataset will look like and where its parts lie. Pure functions of what was listed; no Beam."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from imagebeam import catalog as catalog_lib
from imagebeam import errors, features, shard_names, storage
from imagebeam.features import Feature
from imagebeam.transforms import class_names, elements, kept_features, output_folder, recorded_inputs
from imagebeam.transforms.images import prepare
from imagebeam.transforms.shard import encode, shard_writer
from imagebeam.transforms.shard import read_ahead as read_ahead_lib

if TYPE_CHECKING:
    from imagebeam.transforms import list_images, rank_references

INPUTS_FILE = "inputs.json"  # in the staging folder: what the dataset is made of, see recorded_inputs
STAGED_FILES = "files.json"  # in the staging folder: what lies there of tf.Transform, with sizes and checksums
DEFAULT_SHARD_BYTES = 128 << 20  # large enough for sequential reads from a bucket, small enough to shuffle
DEFAULT_MIN_SHARDS = 16  # so that a small dataset, too, is written and read in parallel...
DEFAULT_MIN_SHARD_RECORDS = 64  # ...unless the shards would hold next to nothing

# Why images are rejected before any is read; where all are, the images are hardly to blame.
_OF_THE_CONFIG = frozenset(
    {"no_label", "unknown_label", "bad_split", "bad_row", "bad_value", "outside_root", "not_found"}
)
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


class Table(Protocol):
    """A source whose references are rows."""

    def describe_rows(self, positions: Sequence[int]) -> list[str]:
        """Where the rows with these positions are: `line 5 of m.csv`."""


@dataclasses.dataclass(frozen=True)
class RejectSummary:
    """The images turned away before any was read."""

    counts: Mapping[str, int]  # by reason
    digest: int
    first_unknown_label: elements.Reject | None  # in the order of keys
    first: elements.Reject | None = None  # in the order of keys


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
    label_by: str = ""  # as in the config
    stratified: bool = False  # whether the splits share each class
    texts: Mapping[str, str] = dataclasses.field(default_factory=dict)  # of the classes that have another than the name
    unknown_label_is_error: bool = False
    declared_splits: tuple[str, ...] | None = None
    sizing: Sizing = Sizing()
    policy: prepare.ImagePolicy = prepare.AS_IT_IS
    read_ahead: read_ahead_lib.ReadAhead = read_ahead_lib.READ_AHEAD
    compression: str = "none"
    suffix: str = ".tfrecord"
    analyze: str | None = None  # what tf.Transform looks at: "train", "all"; None where no column is transformed
    max_reject_fraction: float = 0.01
    keep: kept_features.KeepRule | None = None  # of records that are written anew
    overwrite: bool = False
    saved_listing: bool = False  # whether the source is a listing that was saved earlier
    report: str = ""  # address of the report of this run; "" writes none
    table: Table | None = None  # that the references come from, if it is one with rows
    hints: tuple[str, ...] = ()  # notes on the config, known before the input is listed

    @property
    def folder(self) -> output_folder.OutputFolder:
        return output_folder.OutputFolder(self.output)

    @property
    def control(self) -> str:
        return self.folder.control

    @property
    def publish_marker(self) -> str:
        """There from the moment a commit moves its first shard until a dataset is whole."""
        return storage.join(self.control, catalog_lib.PUBLISH_MARKER)

    @property
    def beam_folder(self) -> str:
        """Where `beam.io.WriteToTFRecord` writes, before its files are taken over."""
        return storage.join(self.control, "beam-" + self.report.rpartition("/")[2].removesuffix(".json"))

    def staging(self, fingerprint: str) -> str:
        return storage.join(self.control, f"{catalog_lib.STAGING_PREFIX}{fingerprint}")

    def shard_name(self, split: str, shard_index: int, num_shards: int) -> str:
        return str(shard_names.ShardName(split, shard_index, num_shards, self.suffix))

    def label_ids(self, labels: tuple[str, ...]) -> dict[str, int]:
        return {label: index for index, label in enumerate(labels, start=self.label_base)}

    def features_of(self, plan: elements.DatasetPlan) -> tuple[Feature, ...]:
        """The features of every example, the image last."""
        return features.in_order((*self.features, *plan.kept)) if plan.kept else self.features

    def recipe(self, plan: elements.DatasetPlan) -> encode.ExampleRecipe:
        ids = self.label_ids(plan.labels)
        return encode.ExampleRecipe(self.features_of(plan), ids, self.columns, self.texts, plan.kept)

    def policy_of(self, plan: elements.DatasetPlan) -> prepare.ImagePolicy:
        """What is checked and stored of every image; one that has places in it is not turned."""
        if not kept_features.has_places(plan.kept):
            return self.policy
        return dataclasses.replace(self.policy, turn_upright=False)

    def writer_of(self, plan: elements.DatasetPlan) -> shard_writer.ShardWriter:
        return shard_writer.ShardWriter(
            staging=self.staging(plan.fingerprint),
            output=self.output,
            recipe=self.recipe(plan),
            policy=self.policy_of(plan),
            read_ahead=self.read_ahead,
            compression=self.compression,
            suffix=self.suffix,
        )

    def plan(
        self, ranking: rank_references.Ranking, tally: list_images.Tally, rejects: RejectSummary
    ) -> elements.DatasetPlan:
        """What this run will do with what was listed."""
        splits = {}
        for split in self._in_order(ranking.starts):
            num_records, num_bytes = ranking.total(split), ranking.num_bytes[split]
            num_shards = self.sizing.shards_of(split, num_records, num_bytes)
            splits[split] = elements.SplitPlan(num_records, num_bytes, num_shards)
        kept = self.keep.resolve(tally.features, self.features) if self.keep else kept_features.Kept()
        plan = elements.DatasetPlan(
            action="write",
            message="",
            exit_code=0,
            fingerprint=self._fingerprint(ranking, rejects),
            splits=splits,
            labels=self._labels(ranking),
            listed=tally.listed,
            rejected=rejects.counts,
            passed_over=tally.passed_over,
            notes=(*self.hints, *self._notes(splits, ranking), *tally.lists.notes, *kept.notes),
            inputs=recorded_inputs.describe_inputs(
                self.identity,
                _WRITER_VERSION,
                (self.vocabulary, sorted(self.texts.items())),
                tally.listed,
                rejects.counts,
                rejects.digest,
                ranking.sample,
            ),
            num_unseen_labels=len(self._unseen_labels(ranking)),
            kept=kept.features,
        )
        problems = (*tally.problems, *([kept.problem] if kept.problem else ()))
        refusal = self._refusal(plan, ranking, tally._replace(problems=problems), rejects)
        if refusal is not None:
            return dataclasses.replace(plan, action="refuse", message=str(refusal), exit_code=refusal.exit_code)
        plan = self._compare_with_committed(plan)
        if plan.action == "write":
            return dataclasses.replace(plan, notes=(*plan.notes, *self._note_staged_shards(plan)))
        return plan

    def _labels(self, ranking: rank_references.Ranking) -> tuple[str, ...]:
        if self.label_kind != "class":
            return ()
        return self.vocabulary or class_names.sort_names(ranking.labels, by_number=self.label_by == "column")

    def _in_order(self, splits: Iterable[str]) -> list[str]:
        """As declared; else train first."""
        declared = {name: index for index, name in enumerate(self.declared_splits or ())}
        return sorted(splits, key=lambda name: (declared.get(name, len(declared)), name != "train", name))

    def _fingerprint(self, ranking: rank_references.Ranking, rejects: RejectSummary) -> str:
        parts: tuple[Any, ...] = (_WRITER_VERSION, self.identity, self.vocabulary, ranking.digest, rejects.digest)
        if self.texts:
            parts += (sorted(self.texts.items()),)
        if self.vocabulary is None and (labels := self._labels(ranking)) != tuple(sorted(labels)):
            parts += ("classes by number",)  # no shard staged with other ids is taken over
        return hashlib.blake2b(repr(parts).encode("utf-8", "backslashreplace"), digest_size=12).hexdigest()

    def _refusal(
        self,
        plan: elements.DatasetPlan,
        ranking: rank_references.Ranking,
        tally: list_images.Tally,
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
            return errors.ConfigError(self._explain_repeated_key(ranking))
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

    def _explain_repeated_key(self, ranking: rank_references.Ranking) -> str:
        repeated = ranking.duplicates[0]
        more = f" ({ranking.num_duplicates:,} keys are given more than once)" if ranking.num_duplicates > 1 else ""
        first, second = repeated.uris
        if self.table is not None:
            with contextlib.suppress(OSError, ValueError):  # the error itself is what counts
                one, other = self.table.describe_rows(repeated.positions)
                first, second = f"{first} ({one})", f"{second} ({other})"
        remedy = "remove one, or name a column of unique ids in source.manifest.key"
        if repeated.uris[0] == repeated.uris[1]:
            remedy += "; if its rows are one example, sort them by image and set source.manifest.merge_rows: true"
        return f"two images have the key {repeated.key!r}{more}: {first} and {second}; {remedy}"

    def too_many_rejects(self, listed: int, rejected: Mapping[str, int]) -> errors.TooManyRejectsError | None:
        """The error of a run that turns away more than it may."""
        total = sum(rejected.values())
        if total <= self.max_reject_fraction * listed:
            return None
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in sorted(rejected.items(), key=lambda x: -x[1]))
        if total == listed and _OF_THE_CONFIG.issuperset(rejected):
            return errors.TooManyRejectsError(
                f"all {total:,} images were rejected ({reasons}), so the config does not fit the input: nothing was "
                "committed"
            )
        remedy = "mend the images or raise rejects.max_fraction"
        if changed := rejected.get(elements.Reason.CHANGED.value, 0):
            remedy = f"{changed:,} changed after the listing: {self._list_again}, which lists anew; for others {remedy}"
        return errors.TooManyRejectsError(
            f"{total:,} of {listed:,} images were rejected ({total / listed:.2%}; {reasons}), rejects.max_fraction "
            f"allows {self.max_reject_fraction:.2%}: nothing was committed; {remedy}"
        )

    @property
    def _list_again(self) -> str:
        saved = "save the listing again (imagebeam plan --save-listing), and then " if self.saved_listing else ""
        return f"{saved}run the same command again"

    def note_changed(self, rejected: Mapping[str, int]) -> list[str]:
        """What to do about images that changed while a run that was committed read them."""
        changed = rejected.get(elements.Reason.CHANGED.value, 0)
        images = "1 image" if changed == 1 else f"{changed:,} images"
        remedy = f"{images} changed after the listing and {'was' if changed == 1 else 'were'} rejected; to take "
        remedy += f"{'it' if changed == 1 else 'them'} in, {self._list_again} with --overwrite"
        return [remedy] if changed else []

    def _notes(self, splits: Mapping[str, elements.SplitPlan], ranking: rank_references.Ranking) -> list[str]:
        notes = []
        for split, planned in splits.items():
            if empty := max(0, planned.num_shards - planned.num_records):
                notes.append(f"{empty:,} of the {planned.num_shards:,} shards of {split} will be empty")
        labels = [label for label in ranking.labels if label.lower() in _SPLIT_LIKE]
        if self.label_kind == "class" and len(labels) > 1 and len(labels) == len(ranking.labels):
            notes.append(
                f"the labels {', '.join(labels)} look like splits; for split/label/image set split.by=directory"
            )
        notes += self._notes_on_classes(splits, ranking)
        if unseen := self._unseen_labels(ranking):
            notes.append(f"labels of the vocabulary without an image: {len(unseen):,}, the first is {unseen[0]!r}")
        if isinstance(self.sizing.num_shards, Mapping):
            absent = sorted(set(self.sizing.num_shards) - set(splits))
            notes += [f"output.num_shards names the split {split}, which receives no image" for split in absent]
        return notes

    def _notes_on_classes(
        self, splits: Mapping[str, elements.SplitPlan], ranking: rank_references.Ranking
    ) -> list[str]:
        if self.label_kind != "class":
            return []
        of_numbers = None
        if self.vocabulary is None:
            of_numbers = class_names.note_on_numbers(self.label_ids(self._labels(ranking)), self.label_by == "column")
        notes = [of_numbers, class_names.note_on_near_equals(ranking.labels)]
        if self.label_by == "directory" and self.vocabulary is None and len(ranking.labels) == 1:
            notes.append(
                f"there is one class, {ranking.labels[0]!r}; if the classes are the folders in it, give a folder below "
                "--input instead"
            )
        if self.stratified:
            held = {split: ranking.classes.get(split, ()) for split in splits}
            notes += class_names.notes_on_missing(held, ranking.labels)
        return [note for note in notes if note]

    def _unseen_labels(self, ranking: rank_references.Ranking) -> list[str]:
        """The classes of the vocabulary that no image has."""
        seen = set(ranking.labels)
        return [label for label in self.vocabulary or () if label not in seen]

    def _compare_with_committed(self, plan: elements.DatasetPlan) -> elements.DatasetPlan:
        """Takes into account what is in the output already."""
        if unnamed := self.folder.find_unnamed_shards(self.suffix):
            return _refuse(plan, output_folder.refuse_unnamed_shards(self.output, unnamed))
        try:
            committed = catalog_lib.load_catalog(self.output)
        except errors.CatalogError as e:
            if storage.storage_of(self.output).exists(storage.join(self.output, catalog_lib.CATALOG_FILE)):
                return plan if self.overwrite else _refuse(plan, f"{e}; --overwrite replaces it")
            stray = None if self.overwrite else self.folder.find_stray_file(self.analyze is not None)
            if stray is not None:
                return _refuse(
                    plan,
                    f"{self.output} holds {stray}, which no {catalog_lib.CATALOG_FILE} names; "
                    "choose another --output, or --overwrite",
                )
            return plan
        if committed.fingerprint == plan.fingerprint:
            damage = self.folder.find_damage(committed, thoroughly=self.overwrite)
            if damage is None:
                message = f"{self.output} holds this dataset already: same config, same images"
                return dataclasses.replace(plan, action="keep", message=message)
            if not self.overwrite:
                return _refuse(plan, f"{self.output} holds this dataset, but {damage}; --overwrite writes it again")
        elif not self.overwrite:
            difference = recorded_inputs.compare_inputs(committed.inputs, plan.inputs)
            return _refuse(
                plan,
                f"{self.output} holds another dataset ({committed.name}, {committed.counts.written:,} images, written "
                f"{committed.created}; {difference}); choose another --output, or --overwrite",
            )
        return plan

    def _note_staged_shards(self, plan: elements.DatasetPlan) -> list[str]:
        """What became of shards that earlier runs finished and that are of another dataset than this one."""
        notes = []
        for folder in self.folder.staging_folders():
            store = storage.storage_of(folder)
            if folder == self.staging(plan.fingerprint):
                continue
            count = sum(entry.name.endswith(shard_writer.DONE_SUFFIX) for entry in store.list_directory(folder))
            if count:
                shards_ = "1 finished shard" if count == 1 else f"{count:,} finished shards"
                why = recorded_inputs.compare_inputs(read_inputs(folder), plan.inputs)
                notes.append(f"{shards_} of an earlier run cannot be used: {why}")
        return sorted(notes)


def read_inputs(staging: str) -> Mapping[str, Any]:
    """What the dataset in a staging folder is made of; nothing, where its run left no word of it."""
    uri = storage.join(staging, INPUTS_FILE)
    try:
        found = json.loads(storage.storage_of(uri).read(uri))
    except (FileNotFoundError, ValueError):
        return recorded_inputs.NO_INPUTS
    return found if isinstance(found, dict) else recorded_inputs.NO_INPUTS


def write_inputs(layout: DatasetLayout, plan: elements.DatasetPlan) -> None:
    """Leaves in the staging folder what the dataset is made of, for a later run that cannot use it."""
    staging = layout.staging(plan.fingerprint)
    store = storage.storage_of(staging)
    store.make_directories(staging)
    store.write_whole(storage.join(staging, INPUTS_FILE), json.dumps(plan.inputs).encode(), durable=False)


def _refuse(plan: elements.DatasetPlan, message: str) -> elements.DatasetPlan:
    return dataclasses.replace(plan, action="refuse", message=message, exit_code=errors.ConfigError.exit_code)


def _ceil_divide(number: int, divisor: int) -> int:
    return -(-number // divisor)


def encode_report(state: str, plan: elements.DatasetPlan, message: str = "", exit_code: int = 0) -> bytes:
    """What the launcher reads of a run, on whatever runner it ran: `state` is planned, committed, kept or refused."""
    fields = {"state": state, "message": message, "exit_code": exit_code, "plan": dataclasses.asdict(plan)}
    return json.dumps(fields).encode()


def decode_plan(fields: Mapping[str, Any]) -> elements.DatasetPlan:
    """The plan inside a decoded report."""
    known = dict(fields)
    known["splits"] = {name: elements.SplitPlan(**split) for name, split in known["splits"].items()}
    known["labels"], known["notes"] = tuple(known["labels"]), tuple(known["notes"])
    known["kept"] = tuple(features.Feature(*each) for each in known["kept"])
    return elements.DatasetPlan(**known)
