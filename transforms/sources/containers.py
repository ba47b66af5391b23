"""Files that hold many images each, in a folder: found, read one after the other, their images numbered."""

from __future__ import annotations

import abc
import collections
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any, ClassVar, NamedTuple

from imagebeam import storage
from imagebeam.transforms import elements, kept_features
from imagebeam.transforms.shard import gzip_content
from imagebeam.transforms.sources import files, protocol, table_rows

_FILES_AT_ONCE = 8  # over a network; each holds some megabytes of its file
_MAX_NAMED = 20
_GZIP_MAGIC = b"\x1f\x8b"


class Container(NamedTuple):
    """One file that holds images."""

    path: str  # below the root
    uri: str
    size: int
    mtime_ns: int


class Problem(NamedTuple):
    """What makes the whole run impossible."""

    text: str


class PassedOver(NamedTuple):
    """Something that is no image."""

    kind: str


class Cells(NamedTuple):
    """The names of the cells that there were in a whole file, and the features of its records."""

    names: frozenset[str]
    features: kept_features.FeatureSurvey = kept_features.NO_FEATURES


Found = elements.ImageRef | elements.Reject | Problem | PassedOver | Cells


@dataclasses.dataclass(frozen=True)
class ContainerSource(abc.ABC):
    """A folder, `root`, and the globs below it that count. Images are numbered in the order of the files' paths."""

    NOUN: ClassVar[str]  # what a file is called
    FILE_NAME: ClassVar[re.Pattern[str]]  # of base names
    EXPECTED: ClassVar[str]  # the same in words
    CELL: ClassVar[str]  # what a cell is in it

    root: str
    include: tuple[str, ...] = files.EVERYTHING
    exclude: str = ""  # an address below the root that is no input: the output's
    fields: table_rows.RowFields = table_rows.NO_FIELDS

    @abc.abstractmethod
    def scan(self, container: Container) -> Iterator[Found]:
        """What one file holds, in its order; OSErrors are told by the caller."""

    def list_all(self) -> Iterator[protocol.Listing]:
        """Yields all that the files hold."""
        finder = _Finder(self.root, self.include, self.exclude, file_name=self.FILE_NAME)
        containers: list[Container] = []
        names: set[str] = set()
        found = protocol.ListingBuilder()
        for part in finder.list_all():
            containers += [
                Container(ref.key, ref.uri, ref.size, ref.mtime_ns) for ref in elements.unpack_refs(part.packed_refs)
            ]
            found.passed_over.update(part.passed_over)
            found.problems += part.problems
        if not containers and not found.problems:
            passed = ", ".join(f"{count:,} {kind}" for kind, count in sorted(found.passed_over.items())) or "nothing"
            found.problems.append(
                f"there is no {self.NOUN} in {self.root!r}, {self.EXPECTED} (passed over: {passed}); "
                "check --input and source.include"
            )
        num_images = 0
        for each in self._scan_all(sorted(containers)):
            if isinstance(each, elements.ImageRef):
                found.refs.append(each._replace(position=num_images))
                num_images += 1
            elif isinstance(each, elements.Reject):
                found.rejects.append(each)
                num_images += 1  # it had a place, too
            elif isinstance(each, Problem):
                found.problems.append(each.text)
            elif isinstance(each, PassedOver):
                found.passed_over[each.kind] += 1
            else:
                names |= each.names
                found.features = found.features.merge(each.features)
            if found.is_full:
                yield found.take()
        if num_images:
            found.problems += self._find_absent(names)
        yield found.take()

    def _scan_all(self, containers: list[Container]) -> Iterator[Found]:
        """What all files hold, in their order; those on a network are read ahead, by threads."""
        if storage.storage_of(self.root).is_local:
            for container in containers:
                yield from self._scan(container)
            return
        ahead: collections.deque[futures.Future[list[Found]]] = collections.deque()
        with futures.ThreadPoolExecutor(_FILES_AT_ONCE) as threads:
            for container in containers:
                ahead.append(threads.submit(lambda one=container: list(self._scan(one))))  # type: ignore[misc]
                if len(ahead) > _FILES_AT_ONCE:
                    yield from ahead.popleft().result()
            while ahead:
                yield from ahead.popleft().result()

    def _scan(self, container: Container) -> Iterator[Found]:
        try:
            yield from self.scan(container)
        except table_rows.MissingValueError as e:
            yield Problem(f"{container.uri}: {e}")
        except OSError as e:
            yield Problem(
                f"{self.NOUN} {container.uri!r} cannot be read ({e.strerror or e}), so the images in it would be lost: "
                "mend it, or leave it out with source.include"
            )

    def _find_absent(self, names: set[str]) -> list[str]:
        """The problem of cells that are asked for and nowhere."""
        optional = {column.name for column in self.fields.columns if column.missing == "default"}
        absent = [name for name in self.fields.needed if name not in names and name not in optional]
        if not absent:
            return []
        known = ", ".join(sorted(names)[:_MAX_NAMED]) or "none"
        more = ", ..." if len(names) > _MAX_NAMED else ""
        return [
            f"no image in {self.root!r} has the {self.CELL} {', '.join(map(repr, absent))}; found are {known}{more}; "
            f"set {', '.join(self._keys_of(absent))}"
        ]

    def _keys_of(self, absent: Sequence[str]) -> list[str]:
        """The config keys that ask for these cells, with what to set where there is no such cell."""
        fields = self.fields
        asked = {fields.key: "source.tfrecord.key", fields.label: "label.column (without labels label={by: none})"}
        asked |= {fields.split: "split.column (without splits split={by: none})", fields.group: "split.group"}
        asked |= dict.fromkeys(fields.label_flags, "label.columns")
        return list(dict.fromkeys(asked.get(name, f"columns.{name}") for name in absent))


def find_gzip(container: Container) -> Problem | None:
    """The problem of a file that cannot be understood because it is gzip, and has a name that does not say so."""
    if gzip_content.is_zipped(container.uri):
        return None
    if storage.storage_of(container.uri).read(container.uri, 0, len(_GZIP_MAGIC)) != _GZIP_MAGIC:
        return None
    return Problem(f"{container.uri!r} is gzip: give it a name that ends in .gz, by which gzip is known here")


def fill(fields: table_rows.RowFields, ref: elements.ImageRef, cells: Mapping[str, Any]) -> elements.ImageRef:
    """`ref` with what the cells say, as RowFields.fill; several values where one is expected are an error.

    Raises:
        BadRowError: if a value cannot be understood.
        MissingValueError: the same, where the config has it end the run.
    """
    lists = {column.name for column in fields.columns if column.many}
    if fields.label_separator is not None and fields.label is not None:
        lists.add(fields.label)
    for name in fields.needed:
        value = cells.get(name)
        if isinstance(value, (list, tuple)) and name not in lists:
            what, hint = f"{len(value):,} values, expected one", "; columns take several with list: true"
        elif isinstance(value, dict) or (
            isinstance(value, (list, tuple)) and any(isinstance(each, (dict, list)) for each in value)
        ):
            what, hint = f"a {type(value).__name__} of its own", "; write for example json.box.width for what is in it"
        else:
            continue
        raise table_rows.BadRowError(elements.Reason.BAD_VALUE, f"{name!r} holds {what}{hint}")
    return fields.fill(ref, cells)


@dataclasses.dataclass(frozen=True)
class _Finder(files.FilesSource):
    """Files of a folder by their names, as references to whole files."""

    file_name: re.Pattern[str] = re.compile("")

    def _add_included(self, path: str, entry: storage.Entry, found: protocol.ListingBuilder) -> None:
        uri = storage.join(self.root, path)
        if not self.file_name.fullmatch(entry.name):
            found.passed_over[files.NOT_INCLUDED if self.include != files.EVERYTHING else "other_file"] += 1
        elif entry.kind == storage.BROKEN_LINK:
            found.problems.append(f"{uri!r} is a link that leads nowhere, so the images in it would be lost: mend it")
        else:
            found.refs.append(elements.ImageRef(path, uri, entry.size, entry.mtime_ns))
