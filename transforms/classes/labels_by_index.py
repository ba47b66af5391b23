"""Labels from a file whose line n is the label of image n, like ImageNet's validation list."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

Lists = tuple[tuple[str, tuple[str, ...]], ...]  # folder, and the labels of its images in the order of their numbers

_NUMBER = re.compile(r"(\d{1,18})\.[^./]*$", re.ASCII)  # before the extension


def folder_of(key: str) -> str:
    """Returns the folder of an image, relative to the source's root."""
    return key.rpartition("/")[0]


def number_of(key: str) -> int:
    """Returns the number at the end of an image's name; 0 if there is none."""
    match = _NUMBER.search(key)
    return int(match[1]) if match else 0


class ListUse(NamedTuple):
    """Counts that show whether the images of one folder fit its list."""

    num_lines: int
    labels: frozenset[str]  # in the list
    num_images: int = 0  # whose names end in a number
    highest: int = 0  # of these numbers

    def merge(self, other: ListUse) -> ListUse:
        """Returns the sum of both."""
        return self._replace(num_images=self.num_images + other.num_images, highest=max(self.highest, other.highest))


class ListSurvey(NamedTuple):
    """Counts that show whether all images fit the lists. Surveys of parts are merged."""

    uses: Mapping[str, ListUse] = {}
    folder_labels: frozenset[str] = frozenset()  # of the images labelled by their folder

    def merge(self, other: ListSurvey) -> ListSurvey:
        """Returns the sum of both."""
        uses = dict(self.uses)
        for folder, use in other.uses.items():
            uses[folder] = uses[folder].merge(use) if folder in uses else use
        return ListSurvey(uses, self.folder_labels | other.folder_labels)

    def find_problem(self, has_vocabulary: bool) -> str | None:
        """Returns why labels by number must be wrong, or None. One line too many shifts all labels after it."""
        for folder, use in sorted(self.uses.items()):
            if not use.num_images:
                return (
                    f"label.lists names the folder {folder!r}, and no image with a number at the end of its name is "
                    "directly in it; name the folder as it is in the input, before split.rename"
                )
            if use.highest != use.num_lines or use.num_images > use.num_lines:
                return (
                    f"label.lists: the list for {folder!r} has {use.num_lines:,} lines, and the {use.num_images:,} "
                    f"images there have numbers up to {use.highest:,}; line n is the label of image n, so give the "
                    "list of these very images"
                )
            strange = use.labels - self.folder_labels
            if strange and self.folder_labels and not has_vocabulary:
                return (
                    f"label.lists: {len(strange):,} of the {len(use.labels):,} labels in the list for {folder!r} are "
                    f"the name of no folder with images, the first is {min(strange)!r}; give a list of folders' "
                    "names, or all classes in label.vocabulary"
                )
        return None

    @property
    def notes(self) -> list[str]:
        """Notes for the user."""
        return [
            f"of the {use.num_lines:,} images that label.lists has labels for in {folder!r}, "
            f"{use.num_lines - use.num_images:,} are not there"
            for folder, use in sorted(self.uses.items())
            if use.num_images < use.num_lines
        ]


NO_LISTS = ListSurvey()


class ListSurveyor:
    """Builds a survey image by image."""

    def __init__(self, lists: Lists):
        self._uses = {folder: ListUse(len(labels), frozenset(labels)) for folder, labels in lists}
        self._folder_labels: set[str] = set()

    def add(self, key: str, label: object) -> None:
        """Counts one image with its label; it may or may not be in a folder with a list."""
        use = self._uses.get(folder := folder_of(key))
        if use is not None:
            number = number_of(key)
            self._uses[folder] = use.merge(use._replace(num_images=int(number > 0), highest=number))
        elif isinstance(label, str):
            self._folder_labels.add(label)

    @property
    def survey(self) -> ListSurvey:
        return ListSurvey(self._uses, frozenset(self._folder_labels))
