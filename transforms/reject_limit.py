"""Decides whether a run rejects more images than it may, and what the user can do about it. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping

from imagebeam import errors
from imagebeam.transforms import dataset_settings, elements

# Reasons to reject an image before it is read. If only these reject all images, the config is probably wrong.
_REASONS_OF_CONFIG = frozenset(
    {"no_label", "no_match", "unknown_label", "bad_split", "bad_row", "bad_value", "outside_root", "not_found"}
)


def find_excess(
    settings: dataset_settings.DatasetSettings, listed: int, rejected: Mapping[str, int]
) -> errors.TooManyRejectsError | None:
    """Returns the error of a run that rejects more than `rejects.max_fraction` of its images; None within the limit.

    Args:
        settings: of the dataset.
        listed: number of images.
        rejected: number of rejects by reason; duplicates that were dropped do not count.
    """
    wanted = elements.Reason.DUPLICATE.value  # the config asks to drop these
    rejected = {reason: number for reason, number in rejected.items() if reason != wanted}
    total = sum(rejected.values())
    if total <= settings.max_reject_fraction * listed:
        return None
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in sorted(rejected.items(), key=lambda x: -x[1]))
    if total == listed and _REASONS_OF_CONFIG.issuperset(rejected):
        return errors.TooManyRejectsError(
            f"all {total:,} images were rejected ({reasons}), so the config does not fit the input: nothing was "
            "committed"
        )
    remedy = "fix the images or raise rejects.max_fraction"
    if changed := rejected.get(elements.Reason.CHANGED.value, 0):
        again = f"changed after the listing: {_list_again(settings)}, which lists again"
        if column := settings.read_ahead.size_column:
            again = f"differ in size from column {column!r} of the table: correct the table"
        remedy = f"{changed:,} {again}; for others {remedy}"
    return errors.TooManyRejectsError(
        f"{total:,} of {listed:,} images were rejected ({total / listed:.2%}; {reasons}), rejects.max_fraction "
        f"allows {settings.max_reject_fraction:.2%}: nothing was committed; {remedy}"
    )


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
