"""Lists images that each have a file with their objects: YOLO's label files, Pascal VOC's XML.

The images come from folders, or from lists of images in text files. The annotation files are looked up here, and are
read with the images, by the workers that write them.
"""

from __future__ import annotations

import array
import dataclasses
import functools
import io
import itertools
import os
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

from imagebeam import concurrency, errors, storage
from imagebeam.transforms import elements
from imagebeam.transforms.images import image_objects
from imagebeam.transforms.sources import files, find_files, image_source, input_places, table_rows

# Kinds of files that are counted, beside those of `files`.
ANNOTATIONS = "annotation_file"  # beside the images
MISSING = "annotation_file_missing"  # the image is kept without objects
WITHOUT = "image_without_annotation_file"  # the image is skipped

_MAX_LINE_BYTES = 1 << 16
# In Pascal VOC's list of one class: -1 for an image that does not show it, 0 if it is difficult to see.
_FLAGGED = re.compile(r"(?P<name>.*\S)\s+(?P<flag>-1|0|1)")


NamesInFile: TypeAlias = Callable[[bytes], set[str]]  # the classes in an annotation file; none if it is broken


@dataclasses.dataclass(frozen=True)
class PairRule:
    """Says where the annotations of an image are. All paths are relative to the source's root."""

    PARTNER: ClassVar[str] = ANNOTATIONS
    WITHOUT: ClassVar[str] = WITHOUT

    extension: str  # annotation files end in it, such as ".txt"
    images: str  # name of the folder of images; the last one of this name in a path is replaced by `annotations`
    annotations: str
    missing: Literal["keep", "skip", "reject"]  # what becomes of an image without annotations
    whole_names: bool = False  # whether the annotations of x.jpg are in x.jpg.json

    def annotations_of(self, path: str) -> str:
        """Returns the path of the annotations of an image: beside it if it is in no folder of the name `images`."""
        folder, slash, name = path.rpartition("/")
        stem, dot, _ = name.rpartition(".")
        own = stem if dot and not self.whole_names else name
        return f"{self.folder_of(folder)}{slash}{own}{self.extension}"

    def files_of(self, path: str) -> tuple[str, ...]:
        """Returns the paths of the files of an image: of its annotations."""
        return (self.annotations_of(path),)

    @functools.lru_cache(maxsize=64)  # noqa: B019  the rule is small, and lives as long as the process
    def folder_of(self, folder: str) -> str:
        """Returns the folder of the annotations of the images in a folder."""
        parts = folder.split("/")
        for index in range(len(parts) - 1, -1, -1):
            if parts[index] == self.images:
                return "/".join((*parts[:index], self.annotations, *parts[index + 1 :]))
        return folder

    def is_image(self, path: str) -> bool:
        """Returns whether a path is that of an image. Only the extension counts: annotation files are many."""
        return path.rpartition(".")[2].lower() in files.IMAGE_EXTENSIONS

    def is_mask(self, path: str) -> bool:
        """Returns whether a path is that of annotations."""
        return path.endswith(self.extension)

    def add_masks(self, _: str, refs: Sequence[elements.ImageRef]) -> Iterator[elements.ImageRef]:
        """Yields the images unchanged: their annotations are looked up by many workers, later."""
        return iter(refs)


class _Row(NamedTuple):
    """An image whose files are still to be looked up; size and version are known unless it is of a list."""

    split: str
    path: str  # below the root; of a list of names without extension: up to the extension
    size: int
    version: int
    position: int  # line in its list, from 0
    where: str  # "line 3 of train.txt"; "" in a folder


@dataclasses.dataclass(frozen=True)
class AnnotatedFilesSource(image_source.RowSource):
    """Images below `root`, each with an annotation file."""

    root: str
    parts: tuple[input_places.Part, ...]
    rule: PairRule
    reader: image_objects.AnnotationReader  # parses annotation files in the workers that write the images
    exclude: str = ""  # address below the root that is not listed: the output folder
    # For lists of names without folder and extension: folder of the images, "" for lists of paths.
    named_in: str = ""
    unread: tuple[str, ...] = ()  # paths of folders whose images are in no split, and are counted
    option: str = ""  # section of the config, for errors
    on_repeated_key: str = ""  # see SourceFacts

    def facts(self) -> image_source.SourceFacts:
        return image_source.SourceFacts(
            columns=self.reader.columns,
            annotations=self.reader,
            notes=input_places.notes_on_unread(self.unread),
            on_repeated_key=self.on_repeated_key,
        )

    def list_rows(self) -> Iterator[image_source.RowBatch | image_source.Listing]:
        """Yields the images of folders and lists, part by part, and listings of what cannot be used."""
        for found in self._read_batches():
            yield found if isinstance(found, image_source.Listing) else image_source.RowBatch(found)

    def look_up(self, batch: image_source.RowBatch) -> image_source.Listing:
        """Returns images with their annotation files."""
        found = image_source.ListingBuilder()
        store = storage.storage_of(self.root)
        rows = [*map(_Row._make, batch.rows)]
        known = {} if store.is_local else find_files.find_together(self._addresses(rows))
        num_ahead = 1 if store.is_local else find_files.REQUESTS_AT_ONCE
        look_up = functools.partial(self._look_up, store=store, prefix=storage.join(self.root, ""), known=known)
        for image in concurrency.map_ahead(look_up, rows, num_ahead):
            if image is None:
                found.skipped[WITHOUT] += 1
                continue
            if isinstance(image, elements.ImageRef) and image.mask is None:
                found.skipped[MISSING] += 1
            found.add(image)
        return found.take()

    def _read_batches(self) -> Iterator[list[_Row] | image_source.Listing]:
        hashes = array.array("q")  # hashes of the paths of annotations, 8 bytes an image
        for part in self.parts:
            for found in self._read_part(part):
                if not isinstance(found, image_source.Listing):
                    hashes.extend(hash(path) for path, _ in self._annotations_of(found))
                yield found
        if problem := self._find_shared(hashes):
            last = image_source.ListingBuilder()
            last.problems.append(problem)
            yield last.take()
        if self.unread:
            last = image_source.ListingBuilder()
            last.skipped.update(input_places.count_unread(self.root, self.unread, self.exclude))
            yield last.take()

    def _read_part(self, part: input_places.Part) -> Iterator[list[_Row] | image_source.Listing]:
        return self._list_file(part) if part.is_list else self._list_folder(part)

    def _annotations_of(self, rows: Iterable[_Row]) -> Iterator[tuple[str, str]]:
        """Yields the paths of the annotations and of the image, for images whose whole path is known."""
        return ((self.rule.annotations_of(row.path), row.path) for row in rows if self._is_whole(row))

    def _find_shared(self, hashes: array.array[int]) -> str:
        """Returns what is wrong if several images have the same annotations by their names; "" if nothing is.

        Only one of them is meant, as of `a.jpg` and `a.png` with `a.txt`, and nobody can tell which one.
        """
        import numpy as np

        ordered = np.sort(np.frombuffer(hashes, np.int64))
        repeated = set(ordered[1:][ordered[1:] == ordered[:-1]].tolist())
        images: dict[str, set[str]] = {}
        for part in self.parts if repeated else ():
            for found in self._read_part(part):
                if not isinstance(found, image_source.Listing):
                    for path, image in self._annotations_of(found):
                        if hash(path) in repeated:
                            images.setdefault(path, set()).add(image)
        store = storage.storage_of(self.root)
        shared = [path for path in sorted(images) if len(images[path]) > 1 and store.exists(self._address(path))]
        if not shared:
            return ""
        first = " and ".join(map(repr, sorted(images[shared[0]])[:2]))
        return (
            f"{len(shared):,} annotation files belong to several images by their names, the first is {shared[0]!r} of "
            f"{first}: rename these images or files, or remove one of each"
        )

    def with_unread(self) -> AnnotatedFilesSource:
        """Returns the source with the folders beside those of its splits, unless lists choose its images."""
        if any(part.is_list for part in self.parts):
            return self
        used = (part.path for part in self.parts)
        unread = input_places.find_unread(self.root, used, (self.rule.annotations,), self.exclude)
        return dataclasses.replace(self, unread=unread)

    def check(self) -> None:
        """Checks that each folder of images has annotations, so that no mistake in a path makes empty images.

        Raises:
            ConfigError: if there are none.
        """
        for part in self.parts:
            if part.is_list or self.rule.missing == "reject":
                continue
            folder = posixpath.dirname(self.rule.annotations_of(posixpath.join(part.path, "x")))
            if not find_files.holds(self._address(folder), self.rule.extension):
                raise errors.ConfigError(
                    "annotations-missing",
                    f"no {self.rule.extension} file is in {self._address(folder)!r}, where the annotations of the "
                    f"images in {self._address(part.path)!r} are expected: check --input, name the folders of images "
                    f"with annotations in {self.option}.images, or set source.by: files for images without",
                )

    def with_classes(self, given: str | Sequence[str] | None, base: int, names_in: NamesInFile) -> AnnotatedFilesSource:
        """Returns the source, checked, with the classes that are given, or else those that its annotations name.

        It knows the folders beside those of its splits, too.

        Args:
            given: names of the classes, or the file that has them.
            base: id of the first class.
            names_in: finds the classes in an annotation file.

        Raises:
            ConfigError: if the names cannot be read, or images are not where the config says.
        """
        if given is None:
            names = self._collect_names(names_in)
        else:
            names = input_places.read_classes(self.root, given, f"{self.option}.classes")
        self.check()
        reader: Any = self.reader  # a dataclass
        reader = dataclasses.replace(reader, classes=image_objects.ClassNames(names, None, base))
        return dataclasses.replace(self, reader=reader).with_unread()

    def _collect_names(self, names_in: NamesInFile) -> tuple[str, ...]:
        """Returns the sorted names of all classes in the annotation files, which are read one after the other.

        Raises:
            ConfigError: if the files cannot be read, or name no class.
        """
        kind = self.rule.extension.removeprefix(".").upper()
        num_ahead = 1 if storage.storage_of(self.root).is_local else find_files.REQUESTS_AT_ONCE
        read = functools.partial(_classes_in, names_in=names_in)
        remedy = f", which name the classes; check --input, or list the classes in {self.option}.classes"
        with errors.explained("annotations-unreadable", f"the {kind} files below {self.root!r} cannot be read", remedy):
            found = concurrency.map_ahead(read, self._find_annotations(), num_ahead)
            names = sorted({name for each in found for name in each})
        if not names:
            raise errors.ConfigError(
                "annotations-no-class",
                f"no {kind} file with an object was found for the images below {self.root!r}: check --input, "
                f"{self.option}.images and {self.option}.annotation_folder",
            )
        return tuple(names)

    def _find_annotations(self) -> Iterator[str]:
        """Yields the addresses of all annotation files in the folders where those of the images are.

        Raises:
            OSError: if a folder cannot be listed.
        """
        folders = (self.named_in if part.is_list and self.named_in else part.path for part in self.parts)
        for folder in dict.fromkeys(posixpath.dirname(self.rule.annotations_of(f"{each}/x")) for each in folders):
            address = self._address(folder.lstrip("/"))
            yield from find_files.find_files(address, ("**", f"*{self.rule.extension}"), self.exclude)

    def _address(self, path: str) -> str:
        return storage.join(self.root, path) if path else self.root

    def _list_folder(self, part: input_places.Part) -> Iterator[list[_Row] | image_source.Listing]:
        folder = files.FilesSource(self._address(part.path), exclude=self.exclude, masks=self.rule)
        for found in folder.list_all():
            prefix = storage.join(part.path, "") if part.path else ""
            refs = elements.unpack_refs(found.packed_refs)
            rows = [_Row(part.split, prefix + ref.key, ref.size, ref.version, 0, "") for ref in refs]
            if rows:
                yield rows
            rejects = tuple(each._replace(key=posixpath.join(part.path, each.key)) for each in found.rejects)
            rest = found._replace(packed_refs=elements.pack_refs([]), num_refs=0, rejects=rejects)
            if rest.rejects or rest.skipped or rest.problems:
                yield rest

    def _list_file(self, part: input_places.Part) -> Iterator[list[_Row] | image_source.Listing]:
        uri = self._address(part.path)
        found = image_source.ListingBuilder()
        rows = self._read_list(part, found)
        try:
            while batch := list(itertools.islice(rows, image_source.MAX_REFS)):
                yield batch
                if found.rejects:
                    yield found.take()
        except OSError as e:
            if storage.is_fault(e):
                raise
            found.problems.append(f"list {uri!r} cannot be read to its end: {e}")
        yield found.take()

    def _read_list(self, part: input_places.Part, found: image_source.ListingBuilder) -> Iterator[_Row]:
        """Yields the images in a list, and adds rejects for lines that cannot be used."""
        uri = self._address(part.path)
        raw: Any = storage.storage_of(uri).open_read(uri)
        with io.BufferedReader(raw, 1 << 20) as file:
            for number in itertools.count():
                line = file.readline(_MAX_LINE_BYTES)
                if not line:
                    return
                if len(line) == _MAX_LINE_BYTES:
                    found.problems.append(
                        f"line {number + 1} of {uri!r} has more than {_MAX_LINE_BYTES >> 10} KiB, so this is no "
                        "list of images: write the path of one image on each line"
                    )
                    return
                name = line.decode("utf-8-sig" if number == 0 else "utf-8", "surrogateescape").strip()
                if not name:
                    continue
                where = f"line {number + 1} of {uri}"
                try:
                    path = self._path_in(name, posixpath.dirname(part.path))
                except table_rows.BadRowError as e:
                    found.rejects.append(elements.Reject(name, name, "list", e.reason, f"{where}: {e.detail}"))
                    continue
                if path is not None:
                    yield _Row(part.split, path, -1, 0, number, where)

    def _path_in(self, line: str, folder: str) -> str | None:
        """Returns the path in a line of a list in `folder`; None if the line leaves its image out.

        Raises:
            BadRowError: if it is not below the root.
        """
        if self.named_in:
            flagged = _FLAGGED.fullmatch(line)
            if flagged and flagged["flag"] == "-1":
                return None
            path = posixpath.join(self.named_in, flagged["name"] if flagged else line)
        elif table_rows.is_absolute(line):
            path = storage.normalize(line)
            if not path.startswith(storage.join(self.root, "")):
                raise table_rows.BadRowError(
                    elements.Reason.OUTSIDE_ROOT, f"{line!r} is not below {self.root!r}; write paths below it"
                )
            path = path.removeprefix(storage.join(self.root, ""))
        else:
            path = posixpath.join(folder, line)
        path = posixpath.normpath(path)
        if path.split("/")[0] in ("..", "."):
            raise table_rows.BadRowError(elements.Reason.OUTSIDE_ROOT, f"{line!r} leaves {self.root!r}")
        return path

    def _addresses(self, rows: Iterable[_Row]) -> Iterator[str]:
        for row in rows:
            path = row.path
            if row.where:
                path += "" if self._is_whole(row) else _EXTENSIONS[0]
                yield self._address(path)
            yield self._address(self.rule.annotations_of(path))

    def _look_up(
        self, row: _Row, store: storage.Storage, prefix: str, known: find_files.Entries
    ) -> elements.ImageRef | elements.Reject | None:
        """Returns an image with its annotations; None if it is skipped. Runs once per image.

        Args:
            row: the image.
            store: of the root.
            prefix: address of the root, with a slash at its end.
            known: entries of files that need no look.
        """
        try:
            split, path, size, version, position, where = row
            if where:
                path, image = self._find_image(row, store, known)
                size, version = image.size, image.version
            uri = prefix + self.rule.annotations_of(path)
            entry = _find(uri, store, known)
            if entry is not None:
                mask = elements.Mask(uri, entry.size, entry.version)
            elif self.rule.missing == "reject":
                raise table_rows.BadRowError(elements.Reason.NOT_FOUND, f"there are no annotations {uri!r}")
            elif self.rule.missing == "skip":
                return None
            else:
                mask = None
            address = prefix + path
            return elements.ImageRef(path, address, size, version, position=position, split=split, mask=mask)
        except table_rows.BadRowError as e:
            detail = f"{row.where}: {e.detail}" if row.where else e.detail
            return elements.Reject(row.path, self._address(row.path), "list", e.reason, detail)

    def _is_whole(self, row: _Row) -> bool:
        """Returns whether the path of a row has its extension."""
        return not self.named_in or self.rule.is_image(row.path)

    def _find_image(self, row: _Row, store: storage.Storage, known: find_files.Entries) -> tuple[str, storage.Entry]:
        """Returns path and entry of an image in a list.

        Raises:
            BadRowError: if there is none.
        """
        extensions = ("",) if self._is_whole(row) else _EXTENSIONS
        for extension in extensions:
            entry = _find(self._address(row.path + extension), store, known)
            if entry is not None:
                return row.path + extension, entry
        named = row.path if self._is_whole(row) else f"{row.path}.jpg or the like"
        raise table_rows.BadRowError(elements.Reason.NOT_FOUND, f"there is no image {self._address(named)!r}")


# Tried in this order for a name without an extension.
_EXTENSIONS = (".jpg", ".jpeg", ".png", ".JPG", ".JPEG", ".PNG", ".bmp", ".webp", ".tif", ".tiff")


def _find(uri: str, store: storage.Storage, known: find_files.Entries) -> storage.Entry | None:
    """Returns the entry of a file; None if there is none.

    Raises:
        BadRowError: if it cannot be read, or is no regular file.
    """
    try:
        entry = known[uri] if uri in known else store.stat(uri)
    except (FileNotFoundError, NotADirectoryError):
        if store.is_local and os.path.islink(uri):  # as of a store that was not fetched: not the same as no file
            raise table_rows.BadRowError(
                elements.Reason.UNREADABLE, f"{uri!r} is a broken link; repair or remove it"
            ) from None
        return None
    except (OSError, ValueError) as e:
        reason = elements.Reason.UNREADABLE
        if isinstance(e, OSError):
            if storage.is_fault(e):
                raise
            reason = elements.Reason.of_error(e)
        raise table_rows.BadRowError(reason, f"{uri!r} cannot be read ({e})") from e
    if entry is None or entry.kind == storage.FILE:
        return entry
    raise table_rows.BadRowError(elements.Reason.UNREADABLE, f"{uri!r} is not a regular file ({entry.kind})")


def _classes_in(uri: str, names_in: NamesInFile) -> set[str]:
    try:
        return names_in(storage.storage_of(uri).read(uri))
    except OSError as e:
        if storage.is_fault(e):
            raise
        return set()  # the image becomes a reject when it is read
