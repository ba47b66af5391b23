"""Decides whether a run rejects more images than it may, and what the user can do about it. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping

from imagebeam import errors
from imagebeam.transforms import dataset_settings, elements

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
    elements.Reason.BAD_VALUE: "correct what the table, the annotations or the masks say of the images",
    elements.Reason.EMPTY_FILE: "copy the images to the input again, since their files have 0 bytes",
    elements.Reason.NOT_AN_IMAGE: "give the images as --input, or choose them with source.include",
    elements.Reason.UNSUPPORTED_FORMAT: "convert the images to JPEG or PNG first, or change image.other_formats if it "
    "rejects them; for HEIC pip install pillow-heif, for JPEG XL pillow-jxl-plugin",
    elements.Reason.TRUNCATED: "copy the images to the input again, since their files end too early",
    elements.Reason.CORRUPT: "copy the images to the input again, or have another program encode them again",
    elements.Reason.UNDECODABLE: "copy the images to the input again, or have another program encode them again",
    elements.Reason.TOO_LARGE: "scale the images down, or raise image.limits if it has the limit",
    elements.Reason.CRASHED: "give the workers more memory, or leave these images out with source.include",
    elements.Reason.TOO_SLOW: "raise image.limits.max_seconds",
    elements.Reason.TOO_SMALL: "lower image.limits.min_side",
    elements.Reason.ASPECT_RATIO: "raise image.limits.max_aspect_ratio",
    elements.Reason.SEVERAL_FRAMES: "set image.frames: first, or raise image.limits.max_frames",
    elements.Reason.NOT_UPRIGHT: "set image.orientation: apply",
}
_NO_ADVICE = {
    elements.Reason.CHANGED: "its remedy depends on the source, and is given for a part of the images, too",
    elements.Reason.DUPLICATE: "the config asks to drop these, and one of each stays",
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


def find_excess(
    settings: dataset_settings.DatasetSettings, listed: int, rejected: Mapping[str, int], advises: bool = False
) -> errors.TooManyRejectsError | None:
    """Returns the error of a run that rejects more than `rejects.max_fraction` of its images, or all of them, or None.

    Args:
        settings: of the dataset.
        listed: number of images.
        rejected: number of rejects by reason; duplicates that were dropped do not count.
        advises: whether the error says what to do if every image was rejected. Not needed beside the text of a reject.
    """
    wanted = elements.Reason.DUPLICATE.value  # the config asks to drop these
    others = listed - rejected.get(wanted, 0)
    rejected = {reason: number for reason, number in rejected.items() if reason != wanted}
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
            f"all {total:,} images were rejected ({reasons}){why}: nothing was committed{advice and '; '}{advice}"
        )
    remedy = advice or "fix the images or raise rejects.max_fraction"
    if changed := rejected.get(elements.Reason.CHANGED.value, 0):
        again = f"changed after the listing: {_list_again(settings)}, which lists again"
        if column := settings.read_ahead.size_column:
            again = f"differ in size from column {column!r} of the table: correct the table"
        remedy = f"{changed:,} {again}; for others {remedy}"
    return errors.TooManyRejectsError(
        f"{total:,} of {listed:,} images were rejected ({total / listed:.2%}; {reasons}), rejects.max_fraction "
        f"allows {settings.max_reject_fraction:.2%}: nothing was committed; {remedy}"
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
