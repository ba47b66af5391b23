"""A listing that was saved, so that a folder of millions of images is looked through once."""

from __future__ import annotations

import collections
import dataclasses
import io
import json
from collections.abc import Iterator
from typing import Any

from imagebeam import errors, storage
from imagebeam.transforms import elements
from imagebeam.transforms.sources import files, mask_files, protocol

REMEDY = "set source.by: listing"

_FORMAT = "imagebeam-listing-1"


def save(source: files.FilesSource, uri: str) -> int:
    """Writes what the source holds as JSON lines: a head, an image or reject on each line, and what was passed over.

    Returns:
        How many images there are.

    Raises:
        ConfigError: if a part of the source cannot be listed.
        OSError: if the file cannot be written.
    """
    count = 0
    passed_over: collections.Counter[str] = collections.Counter()
    with storage.storage_of(uri).write_file(uri) as pending:
        file: Any = io.BufferedWriter(pending.file)
        _write(file, {"format": _FORMAT, "root": source.root, "masks": _as_list(source.masks)})
        for found in source.list_all():
            if found.problems:
                raise errors.ConfigError(found.problems[0])
            for ref in elements.unpack_refs(found.packed_refs):
                masked = (ref.split, *ref.mask) if ref.mask else ()
                _write(file, [ref.key, ref.uri, ref.size, ref.mtime_ns, *masked])
            for reject in found.rejects:
                _write(file, {"reject": reject._asdict()})
            count += found.num_refs
            passed_over.update(found.passed_over)
        _write(file, {"passed_over": dict(passed_over)})
        file.flush()
        file.detach()  # the file itself is the storage's to close
    return count


@dataclasses.dataclass(frozen=True)
class SavedSource:
    """A listing at an address."""

    uri: str
    masks: mask_files.MaskRule | None = None  # that it must have been saved with

    def check(self) -> None:
        """Reads the head.

        Raises:
            ConfigError: if the file cannot be read, or is no listing.
        """
        try:
            with self._open() as file:
                head = json.loads(file.readline() or b"null")
        except (OSError, ValueError) as e:
            raise errors.ConfigError(f"listing {self.uri!r} cannot be read ({e})") from e
        if not isinstance(head, dict) or head.get("format") != _FORMAT:
            raise errors.ConfigError(
                f"{self.uri!r} is no saved listing of this version: make one with imagebeam plan --save-listing"
            )
        if head.get("masks") != _as_list(self.masks):
            raise errors.ConfigError(
                f"listing {self.uri!r} was saved with source.masks {head.get('masks')}, and the config says "
                f"{_as_list(self.masks)}; save it again, or set source.masks as it was"
            )

    def list_all(self) -> Iterator[protocol.Listing]:
        """Yields what was listed."""
        found = protocol.ListingBuilder()
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

    def _add(self, line: Any, found: protocol.ListingBuilder) -> bool:
        """Whether it was the last line."""
        if isinstance(line, list):
            key, uri, size, mtime_ns, *masked = line
            ref = elements.ImageRef(key, uri, size, mtime_ns)
            if masked:
                ref = ref._replace(split=masked[0], mask=elements.Mask(*masked[1:]))
            found.refs.append(ref)
        elif "reject" in line:
            fields = line["reject"]
            found.rejects.append(elements.Reject(**{**fields, "reason": elements.Reason(fields["reason"])}))
        else:
            found.passed_over.update(line["passed_over"])
            return True
        return False

    def _open(self) -> io.BufferedReader:
        raw: Any = storage.storage_of(self.uri).open_read(self.uri)
        return io.BufferedReader(raw, 1 << 20)


def is_listing(uri: str) -> bool:
    """Whether a file is a saved listing, as far as its first bytes say."""
    try:
        head = storage.storage_of(uri).read(uri, 0, 64)
    except OSError:
        return False
    return head.startswith(json.dumps({"format": _FORMAT})[:-1].encode())


def _as_list(rule: mask_files.MaskRule | None) -> list[str] | None:
    """A rule as JSON holds it."""
    return None if rule is None else [rule.image, rule.mask, rule.missing]


def _write(file: Any, line: Any) -> None:
    file.write(json.dumps(line).encode() + b"\n")  # ASCII, so that any file name survives
