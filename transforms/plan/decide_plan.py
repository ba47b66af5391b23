"""Decides what one run will write. Pure functions of the settings and of what was listed: no Beam, no storage access.

What is committed in the output already is looked at afterwards: plan_dataset.compare_with_committed.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from imagebeam import catalog as catalog_lib
from imagebeam import errors, plural
from imagebeam.transforms import dataset_settings, elements, kept_features, summaries
from imagebeam.transforms.classes import class_names
from imagebeam.transforms.dataset_settings import DatasetSettings
from imagebeam.transforms.output import run_report
from imagebeam.transforms.packed import packed_file
from imagebeam.transforms.sources import files
from imagebeam.transforms.updates import continue_snapshot

_SPLIT_LIKE = frozenset({"train", "training", "test", "testing", "val", "valid", "validation", "dev", "eval"})
_MASKS = "image/segmentation/"  # prefix of features of masks
_WRITER_VERSION = 2  # raised whenever a release writes other bytes for the same config and input


def make_plan(
    settings: DatasetSettings,
    ranking: summaries.Ranking,
    tally: summaries.Tally,
    rejects: summaries.RejectSummary,
    repeated_rows: Sequence[str] = (),
    base: catalog_lib.Catalog | None = None,
    comparison: summaries.Comparison | None = None,
    advice: str = "",
) -> elements.DatasetPlan:
    """Returns the plan to write what was listed, or to refuse it, whatever the output holds.

    With a snapshot before, the plan is to write the images that are new or changed.

    Args:
        settings: of the dataset.
        ranking: of the references that have a label and a split.
        tally: of the whole source.
        rejects: of the listing, the labels and the splits.
        repeated_rows: where the two rows with the first repeated key are, such as "line 5 of m.csv"; () if not known.
        base: catalog of the snapshot before; None if there is none.
        comparison: of the listed images with that snapshot.
        advice: what to do if all images are rejected; "" if nothing is known.
    """
    splits = {}
    if base is not None and settings.snapshot is not None and settings.snapshot.retry_rejects:
        tally = tally._replace(listed=base.counts.listed, skipped=base.counts.skipped)
    if comparison is not None:
        ranking = ranking._replace(duplicates=comparison.duplicates, num_duplicates=comparison.num_duplicates)
    for split in in_order(settings, ranking.starts):
        num_records, num_bytes = ranking.total(split), ranking.num_bytes[split]
        sizing = settings.sizing if base is None else settings.sizing.of_update()
        num_shards = sizing.shards_of(split, num_records, num_bytes)
        splits[split] = elements.SplitPlan(num_records, num_bytes, num_shards)
    kept = settings.keep.resolve(tally.features, settings.features) if settings.keep else kept_features.Kept()
    plan = elements.DatasetPlan(
        action="write",
        message="",
        fingerprint=_fingerprint(settings, ranking, rejects),
        splits=splits,
        labels=_labels(settings, ranking),
        listed=tally.listed,
        rejected=rejects.counts,
        skipped=tally.skipped,
        notes=(
            *settings.hints,
            *(_notes(settings, splits, ranking) if base is None else ()),
            *_notes_on_moves(comparison),
            *tally.lists.notes,
            *kept.notes,
        ),
        inputs=run_report.describe_inputs(
            settings.identity,
            _WRITER_VERSION,
            (settings.vocabulary, sorted(settings.texts.items())),
            tally.listed,
            rejects.counts,
            rejects.digest,
        ),
        num_unseen_labels=len(_unseen_labels(settings, ranking)),
        kept=kept.features,
    )
    problems = (*tally.problems, *([kept.problem] if kept.problem else ()))
    known_splits = frozenset() if base is None else frozenset(base.splits)
    tally = tally._replace(problems=problems)
    error = None
    if settings.snapshot is not None and comparison is not None and tally.listed and not problems:
        error = continue_snapshot.find_excess_removal(settings.snapshot, comparison)
    error = error or _find_error(settings, plan, ranking, tally, rejects, repeated_rows, known_splits, advice)
    if settings.snapshot is None or error is not None:
        return plan if error is None else refuse(plan, error)
    return _continue(settings, plan, ranking, rejects, base, comparison)


def _continue(
    settings: DatasetSettings,
    plan: elements.DatasetPlan,
    ranking: summaries.Ranking,
    rejects: summaries.RejectSummary,
    base: catalog_lib.Catalog | None,
    comparison: summaries.Comparison | None,
) -> elements.DatasetPlan:
    """Returns the plan to write a snapshot; to keep the one before if the input has not changed since."""
    snapshot, vocabulary = settings.snapshot, settings.vocabulary
    assert snapshot is not None, "decide"
    entry = continue_snapshot.describe(snapshot, base, rejects, plan, comparison if base is not None else None)
    plan = dataclasses.replace(plan, snapshot=entry)
    if base is None or comparison is None:
        return plan
    labels = continue_snapshot.labels_after(base, ranking.labels, vocabulary) if base.labels else plan.labels
    plan = dataclasses.replace(
        plan, labels=labels, fingerprint=continue_snapshot.fingerprint(base, plan.fingerprint, comparison)
    )
    if (error := continue_snapshot.find_error(snapshot, base, plan, settings.features_of(plan))) is not None:
        return refuse(plan, error)
    if continue_snapshot.is_unchanged(base, plan, comparison):
        message = f"nothing has changed since snapshot {snapshot.base}"
        return dataclasses.replace(plan, action="keep", message=message)
    return plan


def refuse(plan: elements.DatasetPlan, error: errors.ImagebeamError) -> elements.DatasetPlan:
    """Returns the plan to write nothing and to fail with `error`."""
    return dataclasses.replace(plan, action="refuse", message=str(error), error=error)


def _labels(settings: DatasetSettings, ranking: summaries.Ranking) -> tuple[str, ...]:
    if settings.label_kind != "class":
        return ()
    return settings.vocabulary or class_names.sort_names(ranking.labels, by_number=settings.label_by == "column")


def in_order(settings: DatasetSettings, splits: Iterable[str]) -> list[str]:
    """Returns splits in their order in a dataset: the declared one, otherwise train first."""
    declared = {name: index for index, name in enumerate(settings.declared_splits or ())}
    return sorted(splits, key=lambda name: (declared.get(name, len(declared)), name != "train", name))


def _fingerprint(settings: DatasetSettings, ranking: summaries.Ranking, rejects: summaries.RejectSummary) -> str:
    parts: tuple[Any, ...] = (_WRITER_VERSION, settings.identity, settings.vocabulary, ranking.digest, rejects.digest)
    if settings.texts:
        parts += (sorted(settings.texts.items()),)
    if settings.vocabulary is None and (labels := _labels(settings, ranking)) != tuple(sorted(labels)):
        parts += ("classes by number",)  # so that no shard staged with other ids is reused
    return hashlib.blake2b(repr(parts).encode("utf-8", "backslashreplace"), digest_size=12).hexdigest()


def _advise(settings: DatasetSettings, skipped: Mapping[str, int]) -> str:
    """Returns what to do about an input without an image."""
    has_masks = any(feature.source.startswith(_MASKS) for feature in settings.features)
    if has_masks and skipped.get(files.WITHOUT_MASK):
        return "no image has a mask: change source.masks.mask so that it gives the paths of the masks below --input"
    if has_masks and (skipped.get(files.NOT_INCLUDED) or skipped.get(files.MASK)):
        return "check --input and source.include, or change source.masks.image so that it matches the paths of images"
    return "check --input and source.include"


def _find_error(
    settings: DatasetSettings,
    plan: elements.DatasetPlan,
    ranking: summaries.Ranking,
    tally: summaries.Tally,
    rejects: summaries.RejectSummary,
    repeated_rows: Sequence[str],
    known_splits: frozenset[str],
    advice: str,
) -> errors.ImagebeamError | None:
    """Returns why nothing may be written, or None."""
    if tally.problems:
        return errors.ConfigError("input-broken", "; ".join(tally.problems[:5]))
    more = f"; {advice}" if advice else ""
    if not tally.listed:
        passed = ", ".join(f"{count:,} {kind}" for kind, count in plan.skipped.items()) or "nothing at all"
        remedy = _advise(settings, plan.skipped)
        return errors.ConfigError("input-no-image", f"the input holds no image (skipped: {passed}); {remedy}{more}")
    if misfit := tally.lists.find_error(has_vocabulary=settings.vocabulary is not None):
        return misfit
    unknown = rejects.first_unknown_label
    if settings.unknown_label_is_error and unknown is not None:
        return errors.ConfigError(
            "label-unknown", f"{unknown.uri}: {unknown.detail}; add it there, or set label.unknown: reject"
        )
    if excess := find_excess(settings, tally.listed, rejects.counts):
        example = f"; the first: {rejects.first.uri}: {rejects.first.detail}" if rejects.first else ""
        return excess.extended(f"; no image was read yet{example}{more}")
    if ranking.duplicates:
        text = _explain_repeated_key(ranking, repeated_rows, settings.on_repeated_key)
        return errors.ConfigError("key-repeated", text)
    if settings.analyze == "train" and "train" not in plan.splits.keys() | known_splits:
        return errors.ConfigError(
            "statistics-no-train",
            f"statistics.analyze is train, and no image goes to a split of that name; found are "
            f"{', '.join(plan.splits) or 'none'}; set statistics.analyze: all, or split.rename",
        )
    textless = [label for label in ranking.labels if label not in settings.texts] if settings.texts else []
    if textless:
        return errors.ConfigError(
            "label-without-text",
            f"{len(textless):,} of the {len(ranking.labels):,} classes have no text in label.texts, the first is "
            f"{textless[0]!r}; add them there, or leave label.texts out",
        )
    missing = [split for split in settings.declared_splits or () if split not in plan.splits.keys() | known_splits]
    if missing:
        return errors.ConfigError(
            "split-empty",
            f"no image goes to the split {', '.join(missing)}; found are {', '.join(plan.splits) or 'none'}; "
            + (_advise_on_holdout(settings, plan, missing) or "change split.fractions or split.names, or add images"),
        )
    return None


def _advise_on_holdout(settings: DatasetSettings, plan: elements.DatasetPlan, missing: Sequence[str]) -> str:
    """Returns what to do if a split is empty because another took all of its rows; "" if none did."""
    for name, taken_from, first in settings.holdout:
        if taken_from in missing and (taken := plan.splits.get(name)) is not None:
            fewer = max(1, taken.num_records // 10)
            return (
                f"split.holdout makes {name} of the first {first:,} rows of {taken_from}, which has "
                f"{taken.num_records:,}: take fewer, such as --set split.holdout.{name}.first={fewer}"
            )
    return ""


def _explain_repeated_key(ranking: summaries.Ranking, rows: Sequence[str], remedy: str) -> str:
    repeated = ranking.duplicates[0]
    more = f" ({ranking.num_duplicates:,} keys are given more than once)" if ranking.num_duplicates > 1 else ""
    uris = [packed_file.shown(uri) for uri in repeated.uris]
    first, second = (f"{uri} ({row})" for uri, row in zip(uris, rows)) if rows else uris
    is_table = not remedy
    remedy = remedy or "remove one, or name a column of unique ids in source.manifest.key"
    if is_table and repeated.uris[0] == repeated.uris[1]:
        remedy += "; if its rows are one example, sort them by image and set source.manifest.merge_rows: true"
    return f"two images have the key {repeated.key!r}{more}: {first} and {second}; {remedy}"


def _notes(
    settings: DatasetSettings, splits: Mapping[str, elements.SplitPlan], ranking: summaries.Ranking
) -> list[str]:
    notes = []
    for split, planned in splits.items():
        if empty := max(0, planned.num_shards - planned.num_records):
            notes.append(f"{empty:,} of the {plural.count(planned.num_shards, 'shard')} of {split} will be empty")
    labels = [label for label in ranking.labels if label.lower() in _SPLIT_LIKE]
    if settings.label_kind == "class" and len(labels) > 1 and len(labels) == len(ranking.labels):
        notes.append(f"the labels {', '.join(labels)} look like splits; for split/label/image set split.by=directory")
    notes += _notes_on_classes(settings, splits, ranking)
    if unseen := _unseen_labels(settings, ranking):
        notes.append(f"labels of the vocabulary without an image: {len(unseen):,}, the first is {unseen[0]!r}")
    if isinstance(settings.sizing.num_shards, Mapping):
        absent = sorted(set(settings.sizing.num_shards) - set(splits))
        notes += [f"output.num_shards names the split {split}, which receives no image" for split in absent]
    return notes


def _notes_on_moves(comparison: summaries.Comparison | None) -> list[str]:
    if comparison is None or not comparison.moved:
        return []
    return [
        f"images that the last snapshot has in another split: {comparison.moved:,}; the folder, table or list "
        "that gives the split has changed"
    ]


def _notes_on_classes(
    settings: DatasetSettings, splits: Mapping[str, elements.SplitPlan], ranking: summaries.Ranking
) -> list[str]:
    if settings.label_kind != "class":
        return []
    on_numbers = None
    if settings.vocabulary is None:
        ids = settings.label_ids(_labels(settings, ranking))
        on_numbers = class_names.note_on_numbers(ids, settings.label_by == "column")
    notes = [on_numbers, class_names.note_on_near_equals(ranking.labels)]
    if settings.label_by == "directory" and settings.vocabulary is None and len(ranking.labels) == 1:
        notes.append(
            f"there is one class, {ranking.labels[0]!r}; if the classes are the folders in it, give a folder below "
            "--input instead"
        )
    if settings.stratified:
        held = {split: ranking.classes.get(split, ()) for split in splits}
        notes += class_names.notes_on_missing(held, ranking.labels)
    return [note for note in notes if note]


def _unseen_labels(settings: DatasetSettings, ranking: summaries.Ranking) -> list[str]:
    """Returns the classes of the vocabulary that no image has."""
    seen = set(ranking.labels)
    return [label for label in settings.vocabulary or () if label not in seen]


# Reasons to reject an image before it is read. If only these reject all images, the config is probably wrong.
_REASONS_OF_CONFIG = frozenset(
    {"no_label", "no_match", "unknown_label", "bad_split", "bad_row", "bad_value", "outside_root", "not_found"}
)

# What to do if every image was rejected, and most of them for this reason while they were read.
_ADVICE = {
    elements.Reason.NOT_FOUND: "convert again when nothing removes images from the input",
    elements.Reason.UNREADABLE: "grant read access to the images",
    **dict.fromkeys((elements.Reason.HTTP_403, elements.Reason.HTTP_4XX), "give addresses that the servers answer"),
    **dict.fromkeys(
        (elements.Reason.HTTP_5XX, elements.Reason.TIMEOUT, elements.Reason.DNS),
        "check the network and the servers' names, or convert again later",
    ),
    elements.Reason.ROBOTS: "ask the owners of the images; source.web.robots: ignore would take them",
    elements.Reason.BAD_CHECKSUM: "correct the column of source.manifest.sha256, or give addresses that hold the files",
    elements.Reason.BAD_VALUE: "correct what the table, the annotations or the masks say of the images",
    elements.Reason.EMPTY_FILE: "copy the images to the input again, since their files have 0 bytes",
    elements.Reason.NOT_AN_IMAGE: "give the images as --input, or choose them with source.include",
    elements.Reason.UNSUPPORTED_FORMAT: "convert the images to JPEG or PNG, and masks to PNG, or change "
    "image.other_formats if it rejects them; for HEIC pip install pillow-heif, for JPEG XL pillow-jxl-plugin",
    elements.Reason.TRUNCATED: "copy the images to the input again, since their files end too early",
    elements.Reason.CORRUPT: "copy the images to the input again, or have another program encode them again",
    elements.Reason.UNDECODABLE: "copy the images to the input again, or have another program encode them again",
    elements.Reason.TOO_LARGE: "scale the images down, or raise image.limits if it has the limit",
    elements.Reason.CRASHED: "give the workers more memory, or leave these images out with source.include",
    elements.Reason.TOO_SLOW: "raise image.limits.max_seconds",
    elements.Reason.TOO_SMALL: "lower image.limits.min_side",
    elements.Reason.ASPECT_RATIO: "raise image.limits.max_aspect_ratio",
    elements.Reason.SEVERAL_FRAMES: "set image.frames: first, or raise image.limits.max_frames",
    elements.Reason.PIXEL_TYPE: "set image.range (one for all files), image.dtype or image.bands, as the rejects say",
    elements.Reason.NOT_UPRIGHT: "set image.orientation: apply",
    elements.Reason.FUNCTION: "correct the function as the rejects say, and try it by imagebeam plan --try 8",
}
_NO_ADVICE = {
    elements.Reason.CHANGED: "its remedy depends on the source, and is given for a part of the images, too",
    elements.Reason.DUPLICATE: "the config asks to drop these, and one of each stays",
    elements.Reason.FILTERED: "the config asks to leave these out",
    **dict.fromkeys(
        (
            elements.Reason.OUTSIDE_ROOT,
            elements.Reason.BAD_ROW,
            elements.Reason.NO_LABEL,
            elements.Reason.NO_MATCH,
            elements.Reason.UNKNOWN_LABEL,
            elements.Reason.BAD_SPLIT,
        ),
        "found before an image is read; the error then quotes the first reject, whose detail has the remedy",
    ),
}


_ASKED_FOR = (elements.Reason.DUPLICATE.value, elements.Reason.FILTERED.value)  # the config asks to leave these out


def find_excess(
    settings: dataset_settings.DatasetSettings, listed: int, rejected: Mapping[str, int], advises: bool = False
) -> errors.TooManyRejectsError | None:
    """Returns the error of a run that rejects more than `rejects.max_fraction` of its images, or all of them, or None.

    Args:
        settings: of the dataset.
        listed: number of images.
        rejected: number of rejects by reason; duplicates that were dropped and images that the user's functions leave
            out do not count.
        advises: whether the error says what to do if every image was rejected. Not needed beside the text of a reject.
    """
    others = listed - sum(rejected.get(reason, 0) for reason in _ASKED_FOR)
    rejected = {reason: number for reason, number in rejected.items() if reason not in _ASKED_FOR}
    total = sum(rejected.values())
    is_within = total <= settings.max_reject_fraction * listed
    if is_within and not 0 < total == others:
        return None
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in sorted(rejected.items(), key=lambda x: -x[1]))
    advice = advise(rejected) if advises and total == others else ""
    is_misfit = total == listed and _REASONS_OF_CONFIG.issuperset(rejected)
    if is_within or is_misfit:
        why = ", so the config does not fit the input" if is_misfit else ""
        return errors.TooManyRejectsError(
            "rejects-all",
            f"all {total:,} images were rejected ({reasons}){why}: nothing was committed{advice and '; '}{advice}",
        )
    remedy = advice or "fix the images or raise rejects.max_fraction"
    if changed := rejected.get(elements.Reason.CHANGED.value, 0):
        again = f"changed after the listing: {_list_again(settings)}, which lists again"
        if column := settings.read_ahead.size_column:
            again = f"differ in size from column {column!r} of the table: correct the table"
        remedy = f"{changed:,} {again}; for others {remedy}"
    return errors.TooManyRejectsError(
        "rejects-above-limit",
        f"{total:,} of {listed:,} images were rejected ({total / listed:.2%}; {reasons}), rejects.max_fraction "
        f"allows {settings.max_reject_fraction:.2%}: nothing was committed; {remedy}",
    )


def advise(rejected: Mapping[str, int]) -> str:
    """Returns what to do about the most frequent reason, if every image was rejected; "" if that is said elsewhere."""
    reason = max(rejected, key=lambda name: (rejected[name], name), default="")
    return _ADVICE.get(elements.Reason(reason), "") if reason else ""


def note_changed(settings: dataset_settings.DatasetSettings, rejected: Mapping[str, int]) -> list[str]:
    """Returns a note on images that differ from their listing, or from the size in the table; else nothing."""
    changed = rejected.get(elements.Reason.CHANGED.value, 0)
    images, were, them = ("1 image", "was", "it") if changed == 1 else (f"{changed:,} images", "were", "them")
    why, again = "changed after the listing", _list_again(settings)
    if column := settings.read_ahead.size_column:
        why = f"{'differs' if changed == 1 else 'differ'} in size from column {column!r} of the table"
        again = "correct the table and run the same command again"
    note = f"{images} {why} and {were} rejected; to take {them} in, {again} with --overwrite"
    return [note] if changed else []


def _list_again(settings: dataset_settings.DatasetSettings) -> str:
    saved = "save the listing again (imagebeam plan --save-listing), and then " if settings.saved_listing else ""
    return f"{saved}run the same command again"
