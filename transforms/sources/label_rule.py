"""Rules that find the label of an image. Imports no Beam: a writer process applies them too."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterable

from imagebeam.transforms import elements, parse_numbers
from imagebeam.transforms.classes import class_names, label_names


class LabelError(ValueError):
    """An image without a usable label."""

    def __init__(self, reason: elements.Reason, detail: str):
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


_parse_number = functools.lru_cache(maxsize=4096)(parse_numbers.parse_number)  # classes repeat: a sixth of the time


@dataclasses.dataclass(frozen=True)
class LabelRule(elements.PickledFields):
    """Rule that finds the label of a reference."""

    by: str  # directory, filename, column or none
    level: int = 0  # for directory: which folder below the root, from 0
    pattern: str | None = None  # for filename
    group: str | None = None  # for filename: the pattern's group that is the split's group
    kind: str | None = "class"  # class, int64, float or None
    names: label_names.LabelNames | label_names.StagedNames = label_names.NO_NAMES
    advice: str = ""  # for directory: advice for an image that is in no folder

    def apply(self, ref: elements.ImageRef) -> elements.ImageRef:
        """Returns `ref` with its label.

        Raises:
            LabelError: if there is none, or it is not allowed.
        """
        if self.by == "none":
            return ref
        group = ref.group
        if self.by == "directory":
            label = self._from_directory(ref)
        elif self.by == "filename":
            label, group = self._from_filename(ref)
        elif isinstance(ref.label, tuple):
            return self._with_several(ref, ref.label)
        else:
            label = "" if ref.label is None else str(ref.label)
            if not label or label.isspace():
                raise LabelError(elements.Reason.NO_LABEL, "the label's column is empty")
        if self.kind != "class":
            try:
                return ref.with_label(_parse_number(str(self.kind), label), group)
            except ValueError as e:
                advice = "" if parse_numbers.is_number(label) else "; for class names set label.type: class"
                raise LabelError(elements.Reason.BAD_VALUE, f"label: {e}{advice}") from e
        if self.by == "column":
            label = class_names.spell(label)
        self._check_class(ref, label)
        return ref.with_label(label, group)

    def _with_several(self, ref: elements.ImageRef, labels: tuple[str, ...]) -> elements.ImageRef:
        if self.by == "column":
            labels = tuple(dict.fromkeys(map(class_names.spell, labels)))
        for label in labels:
            self._check_class(ref, label)
        return ref.with_label(labels, ref.group)

    def _check_class(self, ref: elements.ImageRef, label: str) -> None:
        if self._vocabulary is not None and label not in self._vocabulary:
            raise LabelError(elements.Reason.UNKNOWN_LABEL, f"label {label!r} is not in label.vocabulary")
        if not label:
            raise LabelError(elements.Reason.NO_LABEL, f"{ref.key!r} is in a folder without a name")
        if label.splitlines() != [label]:
            raise LabelError(elements.Reason.BAD_VALUE, f"label {label!r} has a line break, labels.txt cannot hold it")

    @functools.cached_property
    def _regex(self) -> re.Pattern[str]:
        return re.compile(self.pattern or "")

    def _from_directory(self, ref: elements.ImageRef) -> str:
        listed = self._lists.get(label_names.folder_of(ref.key)) if self._lists else None
        if listed is not None:
            return self._from_list(ref, listed)
        folders = ref.key.split("/")[:-1]
        if len(folders) <= self.level:
            expected = "split/label/image" if self.level else "label/image"
            advice = self.advice and f"; {self.advice}"
            raise LabelError(elements.Reason.NO_LABEL, f"{ref.key!r} is not of the form {expected}{advice}")
        return folders[self.level]

    @functools.cached_property
    def _vocabulary(self) -> frozenset[str] | None:
        return None if self.names.vocabulary is None else frozenset(self.names.vocabulary)

    @functools.cached_property
    def _lists(self) -> dict[str, tuple[str, ...]]:
        return dict(self.names.lists)

    @staticmethod
    def _from_list(ref: elements.ImageRef, labels: tuple[str, ...]) -> str:
        number = label_names.number_of(ref.key)
        if not 1 <= number <= len(labels):
            raise LabelError(
                elements.Reason.NO_LABEL,
                f"the name of {ref.key!r} ends in no number from 1 to {len(labels):,}, the lines of label.lists",
            )
        return labels[number - 1]

    def _from_filename(self, ref: elements.ImageRef) -> tuple[str, str]:
        name = ref.uri.rpartition("/")[2]
        match = self._regex.fullmatch(name)
        if match is None or not match["label"]:
            raise LabelError(elements.Reason.NO_LABEL, f"{name!r} does not match label.pattern {self.pattern!r}")
        return match["label"], (match[self.group] or "") if self.group else ref.group


def label_all(
    rule: LabelRule, refs: Iterable[elements.ImageRef], surveyor: label_names.ListSurveyor | None
) -> tuple[list[elements.ImageRef], list[elements.Reject]]:
    """Returns the references with their labels, and rejects in place of those without one.

    Args:
        rule: finds the labels.
        refs: references without labels.
        surveyor: counts how the images fit label.lists; None without lists.
    """
    labelled, rejects = [], []
    for ref in refs:
        try:
            ref = rule.apply(ref)
            labelled.append(ref)
        except LabelError as e:
            rejects.append(elements.Reject(ref.key, ref.uri, "label", e.reason, e.detail))
        if surveyor is not None:
            surveyor.add(ref.key, ref.label)
    return labelled, rejects
