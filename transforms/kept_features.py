"""Features of records that are rewritten: which exist, of which kind, and which are kept unchanged.

Their values stay in the records until a shard is written. Only the list of features passes through the pipeline.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from imagebeam import features, plural

_FROM_THE_IMAGE = frozenset(  # computed again from the image's bytes: nothing is lost
    {"image/format", "image/height", "image/width", "image/channels", "image/colorspace", features.ENTRY_POINTS}
)
_COORDINATES = ("image/object/", "image/segmentation/")  # prefixes of keys of boxes and masks
_MAX_NAMED = 20


class Seen(NamedTuple):
    """A feature in one record."""

    key: str
    kind: str | None  # None if it has no values, and so no kind
    is_single: bool  # whether it has exactly one value


class FeatureUse(NamedTuple):
    """Use of one feature in all records."""

    kinds: Mapping[str, str] = {}  # from kind to a record with that kind, the first by name
    num_records: int = 0  # that have values of it
    num_single: int = 0  # that have exactly one value of it

    def merge(self, other: FeatureUse) -> FeatureUse:
        """Returns the sum of both."""
        kinds = dict(self.kinds)
        for kind, place in other.kinds.items():
            kinds[kind] = min(place, kinds.get(kind, place))
        return FeatureUse(kinds, self.num_records + other.num_records, self.num_single + other.num_single)


class FeatureSurvey(NamedTuple):
    """The features of all records whose images are listed. Surveys of parts are merged."""

    num_records: int = 0
    uses: Mapping[str, FeatureUse] = {}

    def merge(self, other: FeatureSurvey) -> FeatureSurvey:
        """Returns the sum of both."""
        if not other.num_records:
            return self
        uses = dict(self.uses)
        for key, use in other.uses.items():
            uses[key] = uses[key].merge(use) if key in uses else use
        return FeatureSurvey(self.num_records + other.num_records, uses)


NO_FEATURES = FeatureSurvey()


class FeatureSurveyor:
    """Builds a survey record by record."""

    def __init__(self) -> None:
        self._num_records = 0
        self._kinds: dict[str, dict[str, str]] = {}
        self._counts: dict[str, list[int]] = {}

    def add(self, seen: Iterable[Seen], place: str) -> None:
        """Counts the features of one record; `place` names the record."""
        self._num_records += 1
        for key, kind, is_single in seen:
            counts = self._counts.get(key)
            if counts is None:
                counts = self._counts[key] = [0, 0]
                self._kinds[key] = {}
            if kind is not None:
                counts[0] += 1
                counts[1] += is_single
                self._kinds[key].setdefault(kind, place)

    @property
    def survey(self) -> FeatureSurvey:
        uses = {key: FeatureUse(self._kinds[key], *counts) for key, counts in self._counts.items()}
        return FeatureSurvey(self._num_records, uses)


class Kept(NamedTuple):
    """The decision on the features of the records."""

    features: tuple[features.Feature, ...] = ()
    notes: tuple[str, ...] = ()
    problem: str | None = None  # why nothing may be written; None if all is well


@dataclasses.dataclass(frozen=True)
class KeepRule:
    """Selects the features of the records to keep, under their own keys or renamed."""

    names: tuple[str, ...] | None = None  # None keeps all
    elsewhere: frozenset[str] = frozenset()  # keys already stored as image, label, key or column
    renamed: tuple[tuple[str, str | None], ...] = ()  # from key to key; None drops the feature

    def resolve(self, survey: FeatureSurvey, written: Sequence[features.Feature]) -> Kept:
        """Decides what to keep in addition to the features that are `written` in any case."""
        if not survey.num_records:
            return Kept()
        found = {key: use for key, use in survey.uses.items() if key not in self.elsewhere}
        if problem := self._find_absent(found):
            return Kept(problem=problem)
        renamed = {key: key for key in found} | dict(self.renamed)
        own = {feature.key for feature in written}
        wanted = found if self.names is None else set(self.names).intersection(found)
        kept: dict[str, features.Feature] = {}
        empty, sparse = [], []
        for key in sorted(key for key in wanted if renamed[key] is not None and renamed[key] not in own):
            use, new = found[key], str(renamed[key])
            if len(use.kinds) > 1:
                return Kept(problem=_several_kinds(key, use))
            if new in kept:
                other = kept[new].source
                return Kept(problem=f"features {other!r} and 'columns/{key}' both have the key {new!r}: rename one")
            if not use.kinds:
                empty.append(key)
                continue
            if use.num_single > 0 and use.num_records < survey.num_records:
                sparse.append(f"{key} (in {use.num_records:,} of {survey.num_records:,} records)")
            many = use.num_single < survey.num_records
            kept[new] = features.Feature(new, f"columns/{key}", next(iter(use.kinds)), many)
        replaced = {key for key in found if renamed[key] in own}
        notes = {
            "features of the records that are left out, which neither columns nor source.tfrecord.keep names": (
                set(found) - set(wanted) - replaced
            ),
            "features of the records that are replaced by new values": replaced - _FROM_THE_IMAGE,
            "features of the records that have no value anywhere, and are left out": empty,
            "features that some records lack, and are kept as lists": sparse,
        }
        texts = [f"{text}: {plural.name_some(sorted(keys), _MAX_NAMED)}" for text, keys in notes.items() if keys]
        if "image/key" in replaced:
            texts.append("source.tfrecord.key: image/key would keep the keys of the records, and the order by them")
        return Kept(tuple(kept.values()), tuple(texts))

    def _find_absent(self, found: Mapping[str, FeatureUse]) -> str | None:
        """Returns why nothing may be written if the config names a feature that does not exist; else None."""
        asked = {f"source.tfrecord.keep names {key!r}": key for key in self.names or () if key not in self.elsewhere}
        asked |= {f"features names {'columns/' + key!r}": key for key, _ in self.renamed}
        for what, key in asked.items():
            if key not in found:
                named = plural.name_some(sorted(found), _MAX_NAMED) or "none"
                return f"{what}, and no record has that feature; found are {named}"
        return None


NOTHING = KeepRule(names=())


def _several_kinds(key: str, use: FeatureUse) -> str:
    places = " and ".join(f"{kind} in {place}" for kind, place in sorted(use.kinds.items()))
    return (
        f"feature {key!r} holds {places}, and a feature has one kind: write those records again, leave their file out "
        f"with source.include, or the feature with features: {{columns/{key}: null}}"
    )


def has_coordinates(kept: Iterable[features.Feature]) -> bool:
    """Returns whether some of the features hold coordinates in the image, which must then not be rotated."""
    return any(each.source.removeprefix("columns/").startswith(_COORDINATES) for each in kept)
