"""Sources of the user: a class that lists images, named in a config by its import path.

Such a class derives from `Source`. Workers and writer processes get its path and its options, and import it there:
`OwnSource` stands for it in the job.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import pickle
import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from imagebeam import concurrency, errors, storage
from imagebeam.transforms import elements, user_code
from imagebeam.transforms.formats import base_format
from imagebeam.transforms.formats.base_format import SETTING
from imagebeam.transforms.sources import find_files, image_source, table_rows

_TYPES: Mapping[str, type] = {"key": str, "uri": str, "size": int, "version": int, "split": str, "group": str}
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+")


@dataclasses.dataclass(frozen=True)
class Source(base_format.Format):
    """Base of a user's own source: a frozen dataclass whose fields are its options (`source.options`).

    `images` is the only method that it needs.
    """

    ABOUT: ClassVar[str] = "a source of your own"
    SCHEME: ClassVar[str] = ""
    """Scheme of the addresses that `read_image` reads, such as "pets" for pets://17; "" if all images are in files."""

    @abc.abstractmethod
    def images(self, request: base_format.Request) -> Iterator[elements.ImageRef | elements.Reject]:
        """Yields all images, and rejects of those that cannot be used: the same ones each time, in the same order.

        One process calls this, and looks up files that are named without a size afterwards. An error ends the run.

        Args:
            request: what the config asks of the source. `request.uri` is the address of `source.uri`, "" without one;
                `request.reference` makes the reference of an image.
        """

    def read_image(self, request: base_format.Request, uri: str) -> bytes:
        """Returns the bytes of the image at an address with the scheme `SCHEME`.

        Writers call this on many threads at once: up to `source.reads_ahead` in each process.

        Args:
            request: as for `images`.
            uri: address that `images` gave.

        Raises:
            OSError: if this image cannot be read; it becomes a reject. Any other error ends the run.
        """
        raise NotImplementedError

    def gives(self) -> base_format.Gives:
        return base_format.Gives(columns=True, splits=True, folders=True)

    def open(self, request: base_format.Request) -> image_source.ImageSource:
        if bool(self.SCHEME) != (type(self).read_image is not Source.read_image):
            raise errors.ConfigError(
                "source-scheme",
                f"{type(self).__name__}: the method read_image and the attribute SCHEME go together: give both or none",
            )
        if self.SCHEME and not _SCHEME.fullmatch(self.SCHEME):
            raise errors.ConfigError(
                "source-scheme",
                f"{type(self).__name__}.SCHEME is {self.SCHEME!r}: write two or more small letters, such as 'pets'",
            )
        return _ImagesOf(self, request)


@dataclasses.dataclass(frozen=True)
class _ImagesOf(image_source.RowSource):
    """The images that a `Source` yields; workers look up the files that have no size."""

    source: Source
    request: base_format.Request

    def facts(self) -> image_source.SourceFacts:
        remedy = "give each image its own key (request.reference(..., key=...))"
        return image_source.SourceFacts(scheme=self.source.SCHEME, on_repeated_key=remedy)

    def read_image(self, uri: str) -> bytes:
        return self.source.read_image(self.request, uri)

    def list_rows(self) -> Iterator[image_source.RowBatch | image_source.Listing]:
        """Yields the references in their order. An error of the class is a problem, which fails the run."""
        others, refs = image_source.ListingBuilder(), list[elements.ImageRef]()
        try:
            for position, found in enumerate(self.source.images(self.request)):
                if isinstance(found, elements.Reject):
                    others.add(found)
                else:
                    self._check(found)
                    refs.append(found._replace(position=position))
                if len(refs) == image_source.MAX_REFS:
                    yield image_source.RowBatch(refs)
                    refs = []
                if others.is_full:
                    yield others.take()
        except (errors.ImagebeamError, table_rows.MissingValueError) as e:
            others.problems.append(f"{type(self.source).__name__}.images: {e}")
        except Exception as e:  # code of the user raises any type
            others.problems.append(f"{type(self.source).__name__}.images fails ({user_code.describe(e)})")
        if refs:
            yield image_source.RowBatch(refs)
        yield others.take()

    def _check(self, found: Any) -> None:
        """Checks what the class has yielded.

        Raises:
            TypeError: if it is nothing that it may yield.
            ValueError: if it cannot be used.
        """
        if not isinstance(found, elements.ImageRef):
            raise TypeError(f"yields {type(found).__name__}, expected ImageRef or Reject: use request.reference")
        for name, kind in _TYPES.items():
            value = getattr(found, name)
            if not isinstance(value, kind) or (name == "key" and not value):
                raise TypeError(f"{found.uri!r} has the {name} {value!r}, expected {kind.__name__}")
        num_columns = len(self.request.fields.columns)
        if len(found.columns) != num_columns:
            raise ValueError(
                f"{found.uri!r} has {len(found.columns)} columns, the config {num_columns}: use request.reference"
            )
        if found.size < 0 and found.version:
            raise ValueError(f"{found.uri!r} has a version and no size: give both, or the file is looked up")
        if found.size < 0 and self.source.SCHEME and storage.scheme_of(found.uri) == self.source.SCHEME:
            raise ValueError(f"{found.uri!r} has no size, which decides the number of shards: give size= in bytes")

    def look_up(self, batch: image_source.RowBatch) -> image_source.Listing:
        """Returns the references with the sizes and versions of their files."""
        found, refs = image_source.ListingBuilder(), list(map(elements.new_ref, batch.rows))
        unknown = [ref.uri for ref in refs if ref.size < 0]
        is_near = all(storage.scheme_of(uri) == "file" for uri in unknown)
        try:
            known = {} if is_near else find_files.find_together(unknown)
            look = functools.partial(_look_up, known=known)
            for image in concurrency.map_ahead(look, refs, 1 if is_near else find_files.REQUESTS_AT_ONCE):
                found.add(image)
        except OSError as e:
            found.problems.append(f"the files of the images cannot be looked up ({e}); run the command again")
        return found.take()


def _look_up(ref: elements.ImageRef, known: find_files.Entries) -> elements.ImageRef | elements.Reject:
    if ref.size >= 0:
        return ref
    try:
        size, version = find_files.look_at(ref.uri, known)
    except table_rows.BadRowError as e:
        return elements.Reject(ref.key, ref.uri, "list", e.reason, e.detail)
    except errors.ConfigError as e:  # no storage has its scheme
        return elements.Reject(ref.key, ref.uri, "list", elements.Reason.UNREADABLE, str(e))
    return ref._replace(size=size, version=version)


@dataclasses.dataclass(frozen=True)
class OwnSource(image_source.RowSource):
    """The source of a user's format.

    Other processes get the path of its class and import it, so that one without it says so.
    """

    path: str  # of the class: "module:Class"
    code: str  # digest of the source of its module; "" if the user gives a version
    options: bytes  # its instance, pickled
    request: base_format.Request

    @classmethod
    def of(cls, path: str, version: str | None, format: base_format.Format, request: base_format.Request) -> OwnSource:
        """Returns the source of a format, after the checks of its `open`.

        Raises:
            ConfigError: if it cannot be opened, or without a version its source code cannot be read.
        """
        code = "" if version is not None else user_code.digest_of(SETTING, path)
        try:
            options = pickle.dumps(format)
        except Exception as e:  # what pickle raises is of any type
            raise user_code.failed(SETTING, path, "it cannot be sent to workers", e) from e
        source = cls(path, code, options, request)
        _ = source._opened
        return source

    @property
    def _opened(self) -> image_source.ImageSource:
        return _open(self)

    def facts(self) -> image_source.SourceFacts:
        return self._opened.facts()._replace(code=self.code)

    def column_names(self) -> Any:
        return self._opened.column_names()

    def describe_rows(self, positions: Any) -> list[str]:
        return self._opened.describe_rows(positions)

    def hint(self, reason: elements.Reason) -> str:
        return self._opened.hint(reason)

    def list_rows(self) -> Iterator[image_source.RowBatch | image_source.Listing]:
        """Yields all rows; whole listings of a source without rows."""
        opened = self._opened
        yield from opened.list_rows() if isinstance(opened, image_source.RowSource) else opened.list_all()

    def look_up(self, batch: image_source.RowBatch) -> image_source.Listing:
        """Returns the images of the rows."""
        opened = self._opened
        assert isinstance(opened, image_source.RowSource)
        return opened.look_up(batch)

    def read_image(self, uri: str) -> bytes:
        """Returns the bytes of an image; an error of the user's code other than OSError names the image."""
        try:
            data = self._opened.read_image(uri)
            return data if isinstance(data, bytes) else memoryview(data).tobytes()
        except (OSError, errors.ImagebeamError):
            raise
        except Exception as e:  # code of the user raises any type
            raise user_code.failed(SETTING, self.path, f"it fails to read {uri!r}", e) from e


@functools.lru_cache(maxsize=8)
def _open(source: OwnSource) -> image_source.ImageSource:
    """Opens a source once in each process."""
    user_code.load_same(SETTING, source.path, source.code)
    format: base_format.Format = pickle.loads(source.options)
    try:
        return format.open(source.request)
    except errors.ImagebeamError:
        raise
    except Exception as e:  # code of the user raises any type
        raise user_code.failed(SETTING, source.path, "it cannot be opened", e) from e
