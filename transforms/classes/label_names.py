"""The names in a job's label files: classes, their texts, labels by number. Long ones are staged as a file.

Every step that needs the names would otherwise carry its own copy in the job graph: 10 MB for 200,000 classes with
texts, where a graph of Dataflow may have 10 MB in all, and each worker downloads it.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import threading
from collections.abc import Mapping

from imagebeam import errors, storage
from imagebeam.transforms.classes import labels_by_index

MAX_IN_GRAPH = 16_000  # characters; more are staged. The graph holds eight copies, and has 100 KB without them

_reading = threading.Lock()


@dataclasses.dataclass(frozen=True)
class LabelNames:
    """The content of the label files."""

    vocabulary: tuple[str, ...] | None = None  # in the order of their ids; None accepts any class
    texts: Mapping[str, str] = dataclasses.field(default_factory=dict)  # of classes whose text is not their name
    lists: labels_by_index.Lists = ()

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
    def lists(self) -> labels_by_index.Lists:
        return self._content.lists

    def write(self) -> None:
        """Writes the file.

        Raises:
            ConfigError: if it cannot be written.
        """
        store = storage.storage_of(self.address)
        try:
            store.make_directories(self.address.rpartition("/")[0])
            store.write_whole(self.address, _encode(self._content), durable=False)
        except OSError as e:
            raise errors.ConfigError(
                f"the names of the label files cannot be written to {self.address!r} ({e.strerror or e}): the workers "
                "read them there; choose another --output"
            ) from e

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
            f"the names of this run's label files are gone, expected in {address}: its launcher was stopped, or "
            "another run has committed; run the command again"
        ) from e


def _encode(names: LabelNames) -> bytes:
    # JSON escapes everything but ASCII, also the surrogates of folders' names that are not UTF-8
    return json.dumps([names.vocabulary, dict(names.texts), names.lists], separators=(",", ":")).encode()


def _decode(data: bytes) -> LabelNames:
    vocabulary, texts, lists = json.loads(data)
    labels_of = tuple((folder, tuple(labels)) for folder, labels in lists)
    return LabelNames(None if vocabulary is None else tuple(vocabulary), texts, labels_of)
