"""Images in a folder and in all folders below it; saved listings, so that one of millions is listed once."""

from __future__ import annotations

import collections
import dataclasses
import io
import json
from collections.abc import Iterator
from typing import Any, ClassVar

from imagebeam import errors, storage
from imagebeam.storage import remote
from imagebeam.transforms import elements
from imagebeam.transforms.formats import base_format
from imagebeam.transforms.formats import zip as zip_format
from imagebeam.transforms.sources import files, folder_probe, image_source, input_places


@dataclasses.dataclass(frozen=True)
class Files(base_format.Format):
    """Image files below a folder; a zip archive that is given instead is read like the folder that it holds."""

    ABOUT: ClassVar[str] = "images in a folder and in all folders below it"

    def gives(self) -> base_format.Gives:
        return base_format.Gives(folders=True, takes=frozenset({"include", "pattern", "masks"}))

    def open(self, request: base_format.Request) -> image_source.ImageSource:
        with remote.budget(remote.CHECK_BUDGET_SEC):
            if zip_format.is_archive(request.uri):
                return zip_format.Zip().open(request)
            root, include, kind = input_places.find_input(request.uri, request.include, request.output)
            if kind != storage.DIRECTORY:
                found = (base_format.format_of(by).hint_on_file(root) for by in base_format.FORMATS)
                hint = next(filter(None, found), "for a table of images set source.by=manifest")
                raise errors.ConfigError("input-not-folder", f"--input {request.uri!r} is not a folder; {hint}")
            exclude = input_places.leave_out(request.output, root)
            return files.FilesSource(root, include, exclude, request.masks)

    def reads(self, probe: folder_probe.FolderProbe, at: str) -> base_format.Reads:
        return base_format.Reads()


# --- saved listings ---------------------------------------------------------------------------------------------------

REMEDY = "set source.by: listing"

_FORMAT = "imagebeam-listing-1"


@dataclasses.dataclass(frozen=True)
class Listing(base_format.Format):
    """A listing that `plan --save-listing` wrote."""

    ABOUT: ClassVar[str] = "a listing that plan --save-listing wrote"

    def gives(self) -> base_format.Gives:
        return base_format.Gives(folders=True, is_saved=True, takes=frozenset({"pattern", "masks"}))

    def open(self, request: base_format.Request) -> SavedListingSource:
        found = SavedListingSource(request.uri, request.masks)
        found.check()
        return found

    def folder_of(self, uri: str) -> str:
        """Returns the folder that was listed, which keys are relative to."""
        return str(SavedListingSource(uri).head()["root"])

    @classmethod
    def hint_on_file(cls, uri: str) -> str:
        return f"it is a listing that plan --save-listing wrote: {REMEDY}" if is_listing(uri) else ""


def save_listing(source: image_source.ImageSource, rule: files.MaskRule | None, uri: str) -> int:
    """Writes a listing as JSON lines: a head, one line per image or reject, and the counts of what was skipped.

    Args:
        source: of a folder.
        rule: by which it finds the masks of images.
        uri: address to write.

    Returns:
        The number of images.

    Raises:
        ConfigError: if a part of the source cannot be listed.
        OSError: if the file cannot be written.
    """
    count = 0
    skipped: collections.Counter[str] = collections.Counter()
    with storage.storage_of(uri).write_file(uri) as pending:
        file: Any = io.BufferedWriter(pending.file)
        _write(file, {"format": _FORMAT, "root": source.listed_folder(), "masks": rule and rule.pairing})
        for found in source.list_all():
            if found.problems:
                raise errors.ConfigError("listing-incomplete", found.problems[0])
            for ref in elements.unpack_refs(found.packed_refs):
                masked = (ref.split, *ref.mask) if ref.mask else ()
                _write(file, [ref.key, ref.uri, ref.size, ref.version, *masked])
            for reject in found.rejects:
                _write(file, {"reject": reject._asdict()})
            count += found.num_refs
            skipped.update(found.skipped)
        _write(file, {"skipped": dict(skipped)})
        file.flush()
        file.detach()  # the storage closes the file itself
    return count


@dataclasses.dataclass(frozen=True)
class SavedListingSource(image_source.ImageSource):
    """The images of a saved listing."""

    uri: str
    masks: files.MaskRule | None = None  # with which it must have been saved

    def head(self) -> dict[str, Any]:
        """Returns the first line of the file, checked.

        Raises:
            ConfigError: if the file cannot be read, or is not a listing.
        """
        try:
            with self._open() as file:
                head = json.loads(file.readline() or b"null")
        except (OSError, ValueError) as e:
            raise errors.ConfigError("listing-unreadable", f"listing {self.uri!r} cannot be read ({e})") from e
        if not isinstance(head, dict) or head.get("format") != _FORMAT:
            raise errors.ConfigError(
                "listing-other-version",
                f"{self.uri!r} is not a saved listing of this version: make one with imagebeam plan --save-listing",
            )
        return head

    def check(self) -> None:
        """Raises ConfigError if the file cannot be read, is not a listing, or was saved with other masks."""
        saved, wanted = self.head().get("masks"), self.masks and self.masks.pairing
        if saved != wanted:
            raise errors.ConfigError(
                "listing-other-masks",
                f"listing {self.uri!r} was saved with source.masks {saved}, and the config says {wanted}; save it "
                "again, or set source.masks as it was",
            )

    def list_all(self) -> Iterator[image_source.Listing]:
        """Yields the saved images."""
        found = image_source.ListingBuilder()
        is_whole = False
        try:
            with self._open() as file:
                next(file)
                for line in file:
                    is_whole = self._add(json.loads(line), found)
                    if found.is_full:
                        yield found.take()
        except (OSError, ValueError, TypeError, KeyError, StopIteration) as e:
            found.problems.append(f"listing {self.uri!r} cannot be read to its end: {e}; save it again")
        else:
            if not is_whole:
                found.problems.append(f"listing {self.uri!r} was cut short; save it again")
        yield found.take()

    def _add(self, line: Any, found: image_source.ListingBuilder) -> bool:
        """Adds what a line holds; returns True for the last line."""
        if isinstance(line, list):
            key, uri, size, version, *masked = line
            ref = elements.ImageRef(key, uri, size, version)
            if masked:
                ref = ref._replace(split=masked[0], mask=elements.Mask(*masked[1:]))
            found.refs.append(ref)
        elif "reject" in line:
            fields = line["reject"]
            found.rejects.append(elements.Reject(**{**fields, "reason": elements.Reason(fields["reason"])}))
        else:
            found.skipped.update(line["skipped"])
            return True
        return False

    def _open(self) -> io.BufferedReader:
        raw: Any = storage.storage_of(self.uri).open_read(self.uri)
        return io.BufferedReader(raw, 1 << 20)


def is_listing(uri: str) -> bool:
    """Returns whether the first bytes of a file are those of a saved listing."""
    try:
        head = storage.storage_of(uri).read(uri, 0, 64)
    except OSError:
        return False
    return head.startswith(json.dumps({"format": _FORMAT})[:-1].encode())


def _write(file: Any, line: Any) -> None:
    file.write(json.dumps(line).encode() + b"\n")  # in ASCII, so that any file name survives
