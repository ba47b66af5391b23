r"""Several aligned images in each example, found by their paths: an input and its target, low and high resolution.

The first image of an example is found by a pattern for paths; the others by a path with the groups of that pattern,
such as `HR/(.*)\.png` and `LR/\1x2.png`. All are stored as the further images of a table are.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal

from imagebeam import concurrency, errors, features, storage
from imagebeam.storage import remote
from imagebeam.transforms import elements
from imagebeam.transforms.formats import base_format, masks
from imagebeam.transforms.sources import files, image_source, input_places

_REQUESTS_AT_ONCE = 16


@dataclasses.dataclass(frozen=True)
class Pairs(base_format.Format):
    """Two or more aligned images in each example, found by their paths."""

    ABOUT: ClassVar[str] = "two or more aligned images in each example, such as an input and its target"
    PRESETS: ClassVar[tuple[str, ...]] = ("pairs",)

    image: str | None = None
    """Regular expression for the path of the first image below `source.uri`, such as `input/(.*)\\.jpg`; other files
    are skipped. A group `(?P<split>...)` is the split for `split.by: source`."""
    others: dict[base_format.Text, base_format.Text] = dataclasses.field(default_factory=dict, hash=False)
    """Paths of the other images by their names, with the groups of `image`, such as `target: target/\\1.png`. The name
    is a part of the keys: `image/target/encoded`, `image/target/format` and so on."""
    missing: Literal["reject", "skip"] = "reject"
    """What to do if one of the other images is missing: reject the example, or skip it (for a folder of which only
    some images have partners)."""

    def __post_init__(self) -> None:
        if (self.image is None) != (not self.others):
            raise ValueError("source.pairs.image and source.pairs.others go together")
        for name, path in self.others.items():
            features.check_further_name(name)
            masks.check_pattern("source.pairs.image", self.image or "", f"source.pairs.others.{name}", path)

    def gives(self) -> base_format.Gives:
        return base_format.Gives(
            splits=self.image is None or masks.SPLIT_GROUP in self._image.groupindex,
            further=tuple(self.others),
            takes=frozenset({"include"}),
            refuses=(("image.frames: each", "pairs one image with one other: set image.frames: first or reject"),),
        )

    def open(self, request: base_format.Request) -> image_source.ImageSource:
        if self.image is None:
            raise errors.ConfigError(
                "pairs-no-pattern",
                "source.pairs.image and source.pairs.others are not set: give the path of the first image as a regular "
                r"expression, such as input/(.*)\.jpg, and the path of each other one, such as {target: target/\1.jpg}",
            )
        with remote.budget(remote.CHECK_BUDGET_SEC):
            root, include, _ = input_places.find_input(request.uri, request.include, request.output)
            return _PairsSource(root, include, input_places.leave_out(request.output, root), self)

    def is_image(self, path: str) -> bool:
        """Returns whether `path` is the path of a first image."""
        return self._image.fullmatch(path) is not None

    def is_mask(self, path: str) -> bool:
        """Returns whether `path` has the form of the path of another image."""
        return any(each.fullmatch(path) for each in self._others)

    def add_masks(
        self, root: str, refs: Sequence[elements.ImageRef]
    ) -> Iterator[elements.ImageRef | elements.Reject | None]:
        """Yields each first image with the others and its split; a reject; None if the example is skipped."""
        num_ahead = 1 if storage.storage_of(root).is_local else _REQUESTS_AT_ONCE
        return concurrency.map_ahead(functools.partial(self._add_others, root), refs, num_ahead)

    def _add_others(self, root: str, ref: elements.ImageRef) -> elements.ImageRef | elements.Reject | None:
        match = self._image.fullmatch(ref.key)
        assert match is not None
        found = []
        for name, template in self.others.items():
            path, what = match.expand(template), f"image {name!r}"
            entry = masks.find_partner(root, ref, path, what)
            if entry is None and self.missing == "skip":
                return None
            if entry is None or isinstance(entry, elements.Reject):
                return entry or masks.reject_missing(ref, path, what, "source.pairs")
            found.append(elements.FurtherImage(*entry, column=f"source.pairs.others.{name}"))
        split = match[masks.SPLIT_GROUP] or "" if masks.SPLIT_GROUP in match.re.groupindex else ref.split
        return ref._replace(split=split, further=tuple(found))

    @functools.cached_property
    def _image(self) -> re.Pattern[str]:
        return re.compile(self.image or "(?!)")

    @functools.cached_property
    def _others(self) -> tuple[re.Pattern[str], ...]:
        return tuple(map(masks.pattern_of, self.others.values()))


class _PairsSource(files.FilesSource):
    def listed_folder(self) -> str:
        return ""  # a saved listing holds no further images
