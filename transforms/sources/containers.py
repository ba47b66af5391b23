"""Base of sources whose files hold many images each: finds the files of a folder, reads them, numbers the images."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import glob
import itertools
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

from imagebeam import concurrency, errors, plural, storage
from imagebeam.storage import remote
from imagebeam.transforms import elements, kept_features
from imagebeam.transforms.packed import packed_file, unpacked_content
from imagebeam.transforms.sources import files, image_source, input_places, table_rows

_FILES_AT_ONCE = 8  # read in parallel over a network; each takes some megabytes of memory
_HEADS_AT_ONCE = 32  # read in parallel over a network, to recognize files
_MAX_NAMED = 20


class Container(NamedTuple):
    """One file that holds images."""

    path: str  # below the root
    uri: str
    size: int
    version: int
    address: str  # where its content is: in the file, or unpacked from gzip


class ContainerError(ValueError):
    """A file cannot be read to its end, which fails the run.

    Attributes:
        offset: byte offset of what is broken. A file that is broken at 0 may be gzip under another name.
    """

    def __init__(self, text: str, offset: int = -1):
        super().__init__(text)
        self.offset = offset


class Listable(NamedTuple):
    """The files that an address and globs name."""

    root: str  # folder
    include: tuple[str, ...]  # globs below it
    exclude: str  # address below it that is not listed


class _Problem(NamedTuple):
    """An error text that fails the whole run."""

    text: str


class Skipped(NamedTuple):
    """A member that is not an image, by kind."""

    kind: str


class Cells(NamedTuple):
    """The names of all cells in a file, and the features of its records."""

    names: frozenset[str]
    features: kept_features.FeatureSurvey = kept_features.NO_FEATURES


Found = elements.ImageRef | elements.Reject | Skipped | Cells


@dataclasses.dataclass(frozen=True)
class ContainerSource(image_source.ImageSource):
    """The files below a folder, `root`, that match one of the globs; images are numbered in the order of the paths."""

    NOUN: ClassVar[str]  # name of such a file in errors
    FILE_NAME: ClassVar[re.Pattern[str]]  # matches the base names of such files
    EXPECTED: ClassVar[str]  # the same pattern in words
    CELL: ClassVar[str]  # name of a cell in errors
    KEY_OPTION: ClassVar[str] = ""

    root: str
    include: tuple[str, ...] = files.EVERYTHING
    exclude: str = ""  # address below the root that is not listed: the output folder
    fields: table_rows.RowFields = table_rows.NO_FIELDS

    @property
    def globs(self) -> tuple[str, ...]:
        """Globs for the paths of the files."""
        return self.include

    @abc.abstractmethod
    def scan(self, container: Container) -> Iterator[Found]:
        """Yields the content of one file in its order.

        Raises:
            ContainerError: if it cannot be read to its end; the caller adds gzip under another name.
            MissingValueError: if a value is missing and the config says that this fails the run.
            OSError: if the storage fails.
        """

    @classmethod
    def is_one_by_name(cls, name: str) -> bool | None:
        """Returns whether a file of this name is a container; None if its content tells."""
        return cls.FILE_NAME.fullmatch(name) is not None

    @classmethod
    def is_container(cls, uri: str, size: int) -> bool:
        """Returns whether a file of `size` bytes is a container, by its content."""
        return False

    @classmethod
    def find(cls, uri: str, include: tuple[str, ...], output: str) -> Listable:
        """Returns the files that --input names: those of a folder or a glob, or one file.

        Raises:
            ConfigError: if there is no such folder or file, or it is the output itself.
        """
        with remote.budget(remote.CHECK_BUDGET_SEC):
            root, include, kind = input_places.find_input(uri, include, output)
            if kind == storage.DIRECTORY:
                return Listable(root, include, input_places.leave_out(output, root))
            name = posixpath.basename(root)
            if not cls.is_one_by_name(name) and not cls.is_container(root, storage.storage_of(root).stat(root).size):
                raise errors.ConfigError("input-wrong-kind", f"--input {uri!r} is neither a folder nor {cls.EXPECTED}")
            return Listable(posixpath.dirname(root), (glob.escape(name),), output)

    def list_all(self) -> Iterator[image_source.Listing]:
        """Yields the images of all files."""
        names: set[str] = set()
        found = image_source.ListingBuilder()
        containers, found.problems = self.find_containers(found.skipped)
        num_images = 0
        for each in self._scan_all(containers):
            if isinstance(each, elements.ImageRef):
                found.refs.append(each._replace(position=num_images))
                num_images += 1
            elif isinstance(each, elements.Reject):
                found.rejects.append(each)
                num_images += 1  # a reject has a number, too
            elif isinstance(each, _Problem):
                found.problems.append(each.text)
            elif isinstance(each, Skipped):
                found.skipped[each.kind] += 1
            else:
                names |= each.names
                found.features = found.features.merge(each.features)
            if found.is_full:
                yield found.take()
        if num_images:
            found.problems += self._find_absent(names)
        yield found.take()

    def find_containers(self, skipped: Counter[str] | None = None) -> tuple[list[Container], list[str]]:
        """Returns the files in the order of their paths, and error texts if there are none or not all are found.

        Args:
            skipped: other files are counted there, by kind.
        """
        skipped = Counter() if skipped is None else skipped
        containers: list[Container] = []
        problems: list[str] = []
        for part in _Finder(self.root, self.globs, self.exclude, is_one_by_name=self.is_one_by_name).list_all():
            refs = elements.unpack_refs(part.packed_refs)
            containers += [Container(ref.key, ref.uri, ref.size, ref.version, ref.uri) for ref in refs]
            skipped.update(part.skipped)
            problems += part.problems
        containers = self._recognize(containers, skipped, problems)
        if not containers and not problems:
            passed = ", ".join(f"{count:,} {kind}" for kind, count in sorted(skipped.items())) or "nothing"
            problems.append(
                f"there is no {self.NOUN} in {self.root!r}, {self.EXPECTED} (skipped: {passed}); "
                "check --input and source.include"
            )
        return sorted(containers), problems

    def _recognize(self, found: list[Container], skipped: Counter[str], problems: list[str]) -> list[Container]:
        """Returns the files that are containers; counts the others as skipped."""

        def is_one(each: Container) -> bool:
            return self.is_one_by_name(posixpath.basename(each.path)) or self.is_container(each.uri, each.size)

        num_ahead = 1 if storage.storage_of(self.root).is_local else _HEADS_AT_ONCE
        try:
            known = [*concurrency.map_ahead(is_one, found, num_ahead)]
        except OSError as e:
            problems.append(f"{self.NOUN}s below {self.root!r} cannot be told from other files: {e}")
            return []
        if others := known.count(False):
            skipped[files.NOT_INCLUDED if self.include != files.EVERYTHING else "other_file"] += others
        return [*itertools.compress(found, known)]

    def _scan_all(self, containers: list[Container]) -> Iterator[Found | _Problem]:
        """Yields the content of all files in their order; threads read ahead over a network."""
        if storage.storage_of(self.root).is_local:
            return itertools.chain.from_iterable(map(self._scan, containers))  # one file is never held whole
        found = concurrency.map_ahead(lambda container: list(self._scan(container)), containers, _FILES_AT_ONCE)
        return itertools.chain.from_iterable(found)

    def _scan(self, container: Container) -> Iterator[Found | _Problem]:
        try:
            try:
                yield from self.scan(container)
            except ContainerError as e:
                packed = as_gzip(container) if e.offset == 0 else None
                if packed is None:
                    raise
                yield from self.scan(packed)
        except ContainerError as e:
            yield _Problem(str(e))
        except table_rows.MissingValueError as e:
            yield _Problem(f"{container.uri}: {e}")
        except OSError as e:
            yield _Problem(
                f"{self.NOUN} {container.uri!r} cannot be read ({e.strerror or e}), so the images in it would be lost: "
                "repair it, or leave it out with source.include"
            )

    def _find_absent(self, names: set[str]) -> list[str]:
        """Returns a problem if the config asks for a cell that no image has."""
        absent = [name for name in self.fields.required if name not in names]
        if not absent:
            return []
        fields = self.fields  # with the config key of each, and the setting to use without such a cell
        asked = {fields.key: self.KEY_OPTION, fields.label: "label.column (without labels label={by: none})"}
        asked |= {fields.split: "split.column (without splits split={by: none})", fields.group: "split.group"}
        asked |= dict.fromkeys(fields.label_flags, "label.columns")
        keys = dict.fromkeys(asked.get(name, f"columns.{name}") for name in absent)
        return [
            f"no image in {self.root!r} has the {self.CELL} {', '.join(map(repr, absent))}; found are "
            f"{plural.name_some(sorted(names), _MAX_NAMED) or 'none'}; set {', '.join(keys)}"
        ]

    def key_of(self, container: Container, number: int, cells: Mapping[str, Any]) -> str:
        """Returns the key of an example: in the cell that the config names, or its file and number.

        Raises:
            BadRowError: if that cell does not hold one value.
        """
        name = self.fields.key
        if name is None:
            return f"{container.path}/{number}"
        value = cells.get(name)
        if key := None if isinstance(value, list) else table_rows.text_of(value):
            return key
        raise bad_row(f"{self.CELL} {name!r} ({self.KEY_OPTION}) has {'several values' if value else 'no value'}")


def as_gzip(container: Container) -> Container | None:
    """Returns a container whose content is gzip, though its name does not say so, to be unpacked; else None."""
    if unpacked_content.is_packed(container.address):
        return None
    head = storage.storage_of(container.uri).read(container.uri, 0, len(packed_file.GZIP_MAGIC))
    return container._replace(address=packed_file.as_gzip(container.uri)) if head == packed_file.GZIP_MAGIC else None


def bad_row(detail: str) -> table_rows.BadRowError:
    """Returns the error for an example that lacks something, or has too much of it."""
    return table_rows.BadRowError(elements.Reason.BAD_ROW, detail)


def look_up(cells: Any, path: str) -> Any:
    """Returns the value at a path of keys such as `box.width`; None if there is none."""
    if not isinstance(cells, Mapping) or path in cells:
        return cells.get(path) if isinstance(cells, Mapping) else None
    first, dot, rest = path.partition(".")
    return look_up(cells.get(first), rest) if dot else None


def fill(fields: table_rows.RowFields, ref: elements.ImageRef, cells: Mapping[str, Any]) -> elements.ImageRef:
    """Fills `ref` from the cells like `RowFields.fill`, and rejects several values where one is expected.

    Raises:
        BadRowError: if a value cannot be parsed.
        MissingValueError: if a value is missing or cannot be parsed and the config says that this fails the run.
    """
    for name in fields.needed:
        value = cells.get(name)
        several = value if isinstance(value, (list, tuple)) else (value,)
        if several is value and name not in fields.separators:
            what, hint = f"{len(value):,} values, expected one", "; columns take several with list: true"
        elif any(isinstance(each, (dict, list)) for each in several):
            what, hint = f"a {type(value).__name__} of its own", "; write for example json.box.width for what is in it"
        else:
            continue
        raise table_rows.BadRowError(elements.Reason.BAD_VALUE, f"{name!r} holds {what}{hint}")
    return fields.fill(ref, cells)


@dataclasses.dataclass(frozen=True)
class _Finder(files.FilesSource):
    """Finds files by their names; yields references to whole files."""

    is_one_by_name: Callable[[str], bool | None] = bool  # None: the file is listed, too

    def list_all(self) -> Iterator[image_source.Listing]:
        name = re.sub(r"\[([*?[])\]", r"\1", self.include[0])
        uri, entry = storage.join(self.root, name), None
        if self.include == (glob.escape(name),):
            with contextlib.suppress(OSError):  # the listing reports it
                entry = storage.storage_of(uri).stat(uri)
        if entry is None or entry.kind != storage.FILE:
            yield from super().list_all()
            return
        found = image_source.ListingBuilder()  # one file was named: its folder is not listed
        self._add_included(name, entry, found)
        yield found.take()

    def _add_included(self, path: str, entry: storage.Entry, found: image_source.ListingBuilder) -> None:
        uri = storage.join(self.root, path)
        is_one = self.is_one_by_name(entry.name)
        if not is_one and (is_one is False or entry.kind != storage.FILE):
            found.skipped[files.NOT_INCLUDED if self.include != files.EVERYTHING else "other_file"] += 1
        elif entry.kind == storage.BROKEN_LINK:
            found.problems.append(f"{uri!r} is a broken link, so the images in it would be lost: repair it")
        else:
            found.refs.append(elements.ImageRef(path, uri, entry.size, entry.version))


# --- many small ranges of a file, read with few requests --------------------------------------------------------------


class ReadSizes(NamedTuple):
    """Numbers of bytes to read at once."""

    least: int
    most: int
    near: int  # a gap up to this size is read, not skipped


LOCAL = ReadSizes(4 << 10, 128 << 10, 16 << 10)
REMOTE = ReadSizes(64 << 10, 4 << 20, 1 << 20)  # a request takes as long as reading about 1 MB


class RangeWindow:
    """Reads ahead further while what is read is near, so that one read covers many headers; less otherwise."""

    def __init__(self, read: Callable[[int, int], bytes], ahead: ReadSizes):
        self._read = read
        self._ahead = ahead
        self._num_bytes = ahead.least
        self._start, self._data = 0, b""

    def read(self, offset: int, length: int) -> bytes:
        """Returns `length` bytes from `offset`; fewer at the end of the file."""
        if length > self._ahead.most:  # not kept
            return self._read(offset, length)
        first = offset - self._start
        if first < 0 or first + length > len(self._data):
            is_near = abs(first - len(self._data)) <= self._ahead.near
            wanted = self._num_bytes * 2 if is_near else self._num_bytes // 2
            self._num_bytes = min(max(wanted, self._ahead.least), self._ahead.most)
            self._start, self._data, first = offset, self._read(offset, max(length, self._num_bytes)), 0
        return self._data[first : first + length]


def open_window(uri: str, size: int, version: int) -> RangeWindow:
    """Returns a window on a file of `size` bytes, as it was listed."""
    store = storage.storage_of(uri)

    def read(offset: int, length: int) -> bytes:
        length = min(length, size - offset)
        return store.read(uri, offset, length, version=version) if length > 0 else b""

    return RangeWindow(read, LOCAL if store.is_local else REMOTE)
