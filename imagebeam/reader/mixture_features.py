"""What must be alike in datasets that are mixed: their classes, images and requested features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any, NamedTuple

from imagebeam import catalog as catalog_lib
from imagebeam import errors, features
from imagebeam.reader import bare_pixels, read_plan


class Stored(NamedTuple):
    """How the examples of a dataset are stored."""

    by_source: Mapping[str, features.Feature]
    label_base: int
    is_raw: bool
    form: bare_pixels.PixelForm

    @classmethod
    def of_plan(cls, plan: read_plan.ReadPlan) -> Stored:
        """Returns how those that are read in batches are stored."""
        return cls(plan.by_source, plan.label_base, plan.is_raw, plan.form)

    @classmethod
    def of_catalog(cls, catalog: catalog_lib.Catalog, statistics: Mapping[str, Any]) -> Stored:
        """Returns how those of a dataset are stored."""
        by_source = {each.source: each for each in catalog.features}
        base = catalog.label_base if catalog.label_kind == "class" else 0
        is_raw = bare_pixels.is_raw(catalog, bare_pixels.formats_in(statistics))
        return cls(by_source, base, is_raw, bare_pixels.form_of(catalog))


def needed_of(plan: read_plan.ReadPlan) -> set[str]:
    """Returns the sources of the requested features, besides image and label."""
    return {
        each.source
        for each in (
            *(*plan.extra, *plan.columns.values(), *plan.objects.values()),
            *(feature for image in plan.images for feature in image.stored),
            *(plan.by_source[side] for side in bare_pixels.SHAPE[:2] if plan.images),
        )
    }


def common_features(
    parts: Sequence[Stored], needed: Set[str], directories: Sequence[str]
) -> Mapping[str, features.Feature]:
    """Returns the features that are the same in all parts, by their sources.

    Args:
        parts: how the examples of each dataset are stored.
        needed: sources of the requested features, besides image and label.
        directories: addresses of the datasets, for errors.

    Raises:
        ConfigError: if images, labels or the requested features differ.
    """
    first = parts[0]
    for part, directory in zip(parts, directories):
        for source in sorted({features.ENCODED, features.LABEL} | needed):
            mine, theirs = part.by_source.get(source), first.by_source.get(source)
            if mine != theirs:
                raise errors.ConfigError(
                    "mixture-features-differ",
                    f"{directory} stores {_described(source, mine)}, {directories[0]} {_described(source, theirs)}: "
                    "examples in one batch must be alike; convert with the same label and features",
                )
        if part.label_base != first.label_base:
            raise errors.ConfigError(
                "mixture-classes-differ",
                f"ids of classes begin at {part.label_base} in {directory} and at {first.label_base} in "
                f"{directories[0]}: convert with the same label.base",
            )
        if (part.is_raw, part.form) != (first.is_raw, first.form):
            raise errors.ConfigError(
                "mixture-features-differ",
                f"the images of {directory} are {_stored(part)}, those of {directories[0]} {_stored(first)}: "
                "examples in one batch must be alike; convert with the same image.encode, image.dtype and image.bands",
            )
    return {
        source: feature
        for source, feature in first.by_source.items()
        if all(part.by_source.get(source) == feature for part in parts)
    }


def _described(source: str, feature: features.Feature | None) -> str:
    if feature is None:
        return f"no {source}"
    return f"{source} as {feature.key!r} ({feature.describe()})"


def _stored(part: Stored) -> str:
    stored = "bare pixels" if part.is_raw else "encoded"
    return stored if part.form.is_usual else f"{stored}, {part.form.channels} channels of {part.form.dtype}"


def check_classes(labels: Sequence[Sequence[str]], directories: Sequence[str]) -> None:
    """Checks that each id means the same class in all datasets.

    Raises:
        ConfigError: if not; the text names the first class that differs.
    """
    for mine, directory in zip(labels, directories):
        if list(mine) != list(labels[0]):
            shorter = min(len(mine), len(labels[0]))
            index = next((n for n in range(shorter) if mine[n] != labels[0][n]), shorter)
            raise errors.ConfigError(
                "mixture-classes-differ",
                f"class {index} is {_class(mine, index)} in {directory} and {_class(labels[0], index)} in "
                f"{directories[0]}: an id would mean two classes in one batch; convert both with the same "
                "label.vocabulary",
            )


def check_objects(catalogs: Sequence[catalog_lib.Catalog], directories: Sequence[str]) -> None:
    """Checks that each id of an object means the same category in all datasets, and each keypoint the same point.

    Raises:
        ConfigError: if not.
    """
    names: dict[int, tuple[str, str]] = {}
    for catalog, directory in zip(catalogs, directories):
        for number, name in catalog.object_classes.items():
            known, other = names.setdefault(number, (name, directory))
            if known != name:
                raise errors.ConfigError(
                    "mixture-classes-differ",
                    f"objects of id {number} are {name!r} in {directory} and {known!r} in {other}: an id would mean "
                    "two categories in one batch; convert both with the same ids",
                )
        if catalog.keypoints != catalogs[0].keypoints:
            raise errors.ConfigError(
                "mixture-classes-differ",
                f"keypoints are {', '.join(catalog.keypoints) or 'none'} in {directory} and "
                f"{', '.join(catalogs[0].keypoints) or 'none'} in {directories[0]}: convert both with the same",
            )


def _class(labels: Sequence[str], index: int) -> str:
    return repr(labels[index]) if index < len(labels) else "none"
