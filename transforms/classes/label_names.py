"""Names of classes, and labels from a file whose line n is the label of image n, like ImageNet's validation list."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import re
import threading
from collections.abc import Mapping
from typing import NamedTuple

from imagebeam import errors, storage
from imagebeam.transforms.classes import class_names

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
    highest: int = 0  # the largest of these numbers

    def merge(self, other: ListUse) -> ListUse:
        """Returns the sum of both."""
        return self._replace(num_images=self.num_images + other.num_images, highest=max(self.highest, other.highest))


class ListSurvey(NamedTuple):
    """Counts that show whether all images fit the lists. Surveys of parts are merged."""

    uses: Mapping[str, ListUse] = {}
    folder_labels: frozenset[str] = frozenset()  # labels of the images that their folder labels

    def merge(self, other: ListSurvey) -> ListSurvey:
        """Returns the sum of both."""
        uses = dict(self.uses)
        for folder, use in other.uses.items():
            uses[folder] = uses[folder].merge(use) if folder in uses else use
        return ListSurvey(uses, self.folder_labels | other.folder_labels)

    def find_error(self, has_vocabulary: bool) -> errors.ConfigError | None:
        """Returns why labels by number must be wrong, or None. One line too many shifts all labels after it."""
        for folder, use in sorted(self.uses.items()):
            if not use.num_images:
                return _misfit(
                    f"label.lists names the folder {folder!r}, and no image with a number at the end of its name is "
                    "directly in it; name the folder as it is in the input, before split.rename"
                )
            if use.highest != use.num_lines or use.num_images > use.num_lines:
                return _misfit(
                    f"label.lists: the list for {folder!r} has {use.num_lines:,} lines, and the {use.num_images:,} "
                    f"images there have numbers up to {use.highest:,}; line n is the label of image n, so give the "
                    "list of these very images"
                )
            strange = use.labels - self.folder_labels
            if strange and self.folder_labels and not has_vocabulary:
                return _misfit(
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


def _misfit(text: str) -> errors.ConfigError:
    return errors.ConfigError("label-list-misfit", text)


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


MAX_IN_GRAPH = 16_000  # characters; more are staged. The graph holds eight copies, and has 100 KB without them

_reading = threading.Lock()


@dataclasses.dataclass(frozen=True)
class LabelNames:
    """The content of the label files."""

    vocabulary: tuple[str, ...] | None = None  # in the order of their ids; None accepts any class
    texts: Mapping[str, str] = dataclasses.field(default_factory=dict)  # texts of classes, by name, where they differ
    lists: Lists = ()

    @property
    def length(self) -> int:
        """Number of characters of all names."""
        lists = (label for _, labels in self.lists for label in labels)
        return sum(map(len, itertools.chain(self.vocabulary or (), self.texts, self.texts.values(), lists)))

    def write(self) -> None:
        """Does nothing: these names are pickled into the job graph."""

    def remove(self) -> None:
        """Does nothing."""


NO_NAMES = LabelNames()


class StagedNames:
    """Names that workers read from a file: only its address is pickled. Each process reads it once, when needed."""

    def __init__(self, address: str, names: LabelNames | None = None):
        """Takes the address of the file, and its content where it is known: in the launcher."""
        self.address = address
        self._names = names

    def __reduce__(self) -> tuple[type[StagedNames], tuple[str]]:
        return StagedNames, (self.address,)

    @property
    def vocabulary(self) -> tuple[str, ...] | None:
        return self._content.vocabulary

    @property
    def texts(self) -> Mapping[str, str]:
        return self._content.texts

    @property
    def lists(self) -> Lists:
        return self._content.lists

    def write(self) -> None:
        """Writes the file.

        Raises:
            ConfigError: if it cannot be written.
        """
        store = storage.storage_of(self.address)
        problem = f"the names of the label files cannot be written to {self.address!r}"
        remedy = ": the workers read them there; choose another --output"
        with errors.explained("label-names-unwritable", problem, remedy):
            store.make_directories(self.address.rpartition("/")[0])
            store.write_whole(self.address, _encode(self._content), durable=False)

    def remove(self) -> None:
        """Removes the file, if it is there."""
        storage.storage_of(self.address).remove(self.address)

    @property
    def _content(self) -> LabelNames:
        if self._names is None:
            with _reading:  # threads of a worker ask at the same time
                self._names = _read(self.address)
        return self._names


def stage_if_long(names: LabelNames, address: str) -> LabelNames | StagedNames:
    """Returns the names as a job graph holds them: staged at `address` if they are long. "" stages none."""
    return StagedNames(address, names) if address and names.length > MAX_IN_GRAPH else names


@functools.lru_cache(maxsize=2)  # steps of the graph are unpickled one by one, and share the names of the run
def _read(address: str) -> LabelNames:
    try:
        return _decode(storage.storage_of(address).read(address))
    except FileNotFoundError as e:
        raise errors.ImagebeamError(
            "label-names-gone",
            f"the names of this run's label files are gone, expected in {address}: its launcher was stopped, or "
            "another run has committed; run the command again",
        ) from e


def _encode(names: LabelNames) -> bytes:
    # JSON escapes everything but ASCII, also the surrogates of folders' names that are not UTF-8
    return json.dumps([names.vocabulary, dict(names.texts), names.lists], separators=(",", ":")).encode()


def _decode(data: bytes) -> LabelNames:
    vocabulary, texts, lists = json.loads(data)
    labels_of = tuple((folder, tuple(labels)) for folder, labels in lists)
    return LabelNames(None if vocabulary is None else tuple(vocabulary), texts, labels_of)


def read_vocabulary(address: str | None, in_column: bool = False) -> tuple[str, ...] | None:
    """Returns the classes in the order of their ids.

    Args:
        address: of the file.
        in_column: whether labels are cells of a column; then class names are normalised like cells.

    Raises:
        ConfigError: if the file cannot be read, or has a class twice or none on a line.
    """
    if address is None:
        return None
    labels = _read_lines("label.vocabulary", address)
    if in_column:
        for number, label in enumerate(labels, 1):
            _check_text("label.vocabulary", address, number, label)  # a cell is text, a folder's name any bytes
        labels = list(map(class_names.spell, labels))
    blank = next((index for index, name in enumerate(labels, 1) if not name.strip()), None)
    if blank is not None or not labels:
        raise errors.ConfigError(
            "label-file-empty-line", f"label.vocabulary {address!r} has an empty line {blank or 1}; one label a line"
        )
    repeated = (
        next((name for name in labels if labels.count(name) > 1), None) if len(set(labels)) < len(labels) else None
    )
    if repeated is not None:
        raise errors.ConfigError(
            "vocabulary-repeats-class",
            f"label.vocabulary {address!r} names {repeated!r} twice; the ids would be ambiguous",
        )
    return tuple(labels)


def read_texts(address: str | None, in_column: bool = False) -> dict[str, str]:
    """Returns the text of each class, from lines such as `n01440764 tench, Tinca tinca`.

    The class ends at the first tab if all lines have one, otherwise at the first space. With `in_column`, class names
    are normalised like the cells of a column.

    Raises:
        ConfigError: if the file cannot be read, has no lines, or a class twice or without a text.
    """
    if address is None:
        return {}
    lines = _read_lines("label.texts", address)
    if not lines:
        raise errors.ConfigError("label-file-empty", f"label.texts {address!r} is empty; write CLASS TEXT on each line")
    separator = "\t" if all("\t" in line for line in lines) else None
    texts: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        name, *rest = line.split(separator, 1)[:2] or [""]
        text = rest[0].strip() if rest else ""
        _check_text("label.texts", address, number, text)
        name = class_names.spell(name) if in_column else name
        if not name or not text or name in texts:
            what = "twice" if name in texts else "without a text"
            raise errors.ConfigError(
                "label-texts-bad-line", f"label.texts {address!r}, line {number}: {name!r} {what}; write CLASS TEXT"
            )
        texts[name] = text
    return texts


def read_lists(addresses: Mapping[str, str]) -> Lists:
    """Returns the labels of the images in each folder, in the order of the images' numbers.

    Raises:
        ConfigError: if a file cannot be read, or has no label on a line.
    """
    lists = []
    for folder, address in addresses.items():
        labels = tuple(line.strip() for line in _read_lines("label.lists", address))
        blank = next((number for number, label in enumerate(labels, 1) if not label), None)
        if blank is not None or not labels:
            raise errors.ConfigError(
                "label-file-empty-line",
                f"label.lists: {folder}: {address!r} has an empty line {blank or 1}; line n is the label of image n",
            )
        lists.append((folder.strip("/"), labels))
    return tuple(lists)


def _read_lines(option: str, address: str) -> list[str]:
    uri = storage.normalize(address)
    with errors.explained("label-file-unreadable", f"{option} {address!r} cannot be read"):
        data = storage.storage_of(uri).read(uri)
    if b"\0" in data:
        raise errors.ConfigError(
            "label-file-not-utf8", f"{option} {address!r} looks like UTF-16 text; save it as UTF-8"
        )
    return data.decode("utf-8-sig", "surrogateescape").splitlines()


def _check_text(option: str, address: str, number: int, text: str) -> None:
    """Checks that a text in line `number` is UTF-8.

    Raises:
        ConfigError: if it is not.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as e:
        found = text.encode("utf-8", "surrogateescape")
        raise errors.ConfigError(
            "label-file-not-utf8",
            f"{option} {address!r}, line {number}: {found!r} is not UTF-8; save the file as UTF-8",
        ) from e
