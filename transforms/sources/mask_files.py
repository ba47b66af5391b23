"""Finds the mask of each image, an image with the class of each pixel, by the image's path."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterator, Sequence
from typing import Protocol

from imagebeam import look_ahead, storage
from imagebeam.transforms import elements

SPLIT_GROUP = "split"  # group of the pattern for images that matches the split
_REQUESTS_AT_ONCE = 16
_GROUP = re.compile(r"\\(?:\d+|g<\w+>)")  # a reference in the mask's path to a part of the image's path


class PairingRule(Protocol):
    """Tells the images in a folder from the files that belong to them, by their paths below the source's root."""

    def is_image(self, path: str) -> bool:
        """Returns whether `path` is the path of an image."""

    def is_mask(self, path: str) -> bool:
        """Returns whether `path` has the form of the path of a file that belongs to an image."""

    def add_masks(
        self, root: str, refs: Sequence[elements.ImageRef]
    ) -> Iterator[elements.ImageRef | elements.Reject | None]:
        """Yields each image with its file; a reject; None if the image is passed over."""


@dataclasses.dataclass(frozen=True)
class MaskRule:
    """Says which files are images and where their masks are; all paths are relative to the source's root."""

    image: str  # regular expression for the whole path of an image
    mask: str  # path of its mask, with \1 or \g<name> for the groups of `image`
    missing: str = "reject"  # or "pass_over"

    @property
    def names_split(self) -> bool:
        """True if an image's path states its split."""
        return SPLIT_GROUP in self._image.groupindex

    def is_image(self, path: str) -> bool:
        """Returns whether `path` is the path of an image."""
        return self._image.fullmatch(path) is not None

    def is_mask(self, path: str) -> bool:
        """Returns whether `path` has the form of a mask's path."""
        return self._mask.fullmatch(path) is not None

    def mask_of(self, path: str) -> str | None:
        """Returns the path of the mask of an image, which may not exist; None if `path` is no image's."""
        match = self._image.fullmatch(path)
        return None if match is None else match.expand(self.mask)

    def add_masks(
        self, root: str, refs: Sequence[elements.ImageRef]
    ) -> Iterator[elements.ImageRef | elements.Reject | None]:
        """Looks up the mask of each image; over a network with threads, since each takes a request.

        Yields:
            The image with its mask, and with its split if `image` has such a group; a reject; None if the image is
            passed over.

        Raises:
            UnavailableError: if the storage does not answer.
        """
        num_ahead = 1 if storage.storage_of(root).is_local else _REQUESTS_AT_ONCE
        return look_ahead.map_ahead(functools.partial(self._add_mask, root), refs, num_ahead)

    def _add_mask(self, root: str, ref: elements.ImageRef) -> elements.ImageRef | elements.Reject | None:
        match = self._image.fullmatch(ref.key)
        assert match is not None
        path = match.expand(self.mask)
        if ".." in path.split("/"):
            return _reject(ref, elements.Reason.OUTSIDE_ROOT, f"its mask {path!r} leaves {root!r}")
        uri = storage.join(root, path)
        try:
            entry = storage.storage_of(uri).stat(uri)
        except (FileNotFoundError, NotADirectoryError):
            if self.missing == "pass_over":
                return None
            return _reject(ref, elements.Reason.NOT_FOUND, f"there is no mask {path!r}; add it, or change source.masks")
        except OSError as e:
            if storage.is_fault(e):
                raise
            return _reject(ref, elements.Reason.of_error(e), f"its mask {path!r} cannot be read ({e.strerror or e})")
        if entry.kind != storage.FILE:
            return _reject(ref, elements.Reason.UNREADABLE, f"its mask {path!r} is not a regular file ({entry.kind})")
        split = (match[SPLIT_GROUP] or "") if self.names_split else ref.split
        return ref._replace(split=split, mask=elements.Mask(uri, entry.size, entry.version))

    @functools.cached_property
    def _image(self) -> re.Pattern[str]:
        return re.compile(self.image)

    @functools.cached_property
    def _mask(self) -> re.Pattern[str]:
        return re.compile(".*".join(map(re.escape, _GROUP.split(self.mask))), re.DOTALL)


def check_pattern(image: str, mask: str) -> None:
    """Checks that the two patterns make a valid `MaskRule`.

    Raises:
        ValueError: if they do not.
    """
    try:
        pattern = re.compile(image)
    except re.error as e:
        raise ValueError(f"source.masks.image {image!r} is not a regular expression: {e}") from e
    if "\\" in _GROUP.sub("", mask):
        raise ValueError(
            f"source.masks.mask {mask!r} is a path, not a regular expression: "
            r"only groups of source.masks.image, \1 or \g<name>, take a backslash"
        )
    if mask.startswith("/") or ".." in mask.split("/"):
        raise ValueError(f"source.masks.mask {mask!r} leaves the folder: give a path below source.uri")
    if not _GROUP.search(mask):
        raise ValueError(rf"source.masks.mask {mask!r} names one mask for all images: add a group, such as \1")
    try:
        pattern.sub(mask, "")
    except (re.error, IndexError) as e:
        raise ValueError(f"source.masks.mask {mask!r} does not fit source.masks.image {image!r}: {e}") from e


def _reject(ref: elements.ImageRef, reason: elements.Reason, detail: str) -> elements.Reject:
    return elements.Reject(ref.key, ref.uri, "list", reason, detail)
