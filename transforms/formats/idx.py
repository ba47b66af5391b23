"""Images in IDX files, the format of MNIST: for each split a file of images and one of labels, plain or .gz."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from imagebeam.transforms.formats import base_format
from imagebeam.transforms.formats.arrays import array_source
from imagebeam.transforms.sources import folder_probe, input_places
from imagebeam.transforms.sources.folder_probe import Finding, FolderProbe, name_some


@dataclasses.dataclass(frozen=True)
class Idx(base_format.Format):
    """IDX files, the format of MNIST."""

    ABOUT: ClassVar[str] = "IDX files, the format of MNIST"
    PRESETS: ClassVar[tuple[str, ...]] = ("mnist", "emnist")

    images: dict[str, str] = dataclasses.field(
        default_factory=lambda: {"train": "train-images*idx3-ubyte*", "test": "t10k-images*idx3-ubyte*"}
    )
    """Globs of the files with images, below `source.uri`, by split."""
    labels: dict[str, str] = dataclasses.field(
        default_factory=lambda: {"train": "train-labels*idx1-ubyte*", "test": "t10k-labels*idx1-ubyte*"}
    )
    """Globs of the files with labels, by split."""

    def gives(self) -> base_format.Gives:
        return base_format.Gives(columns=True, splits=True)

    def open(self, request: base_format.Request) -> array_source.ArraysSource:
        """Returns the source, after a check of every file, a .gz file to its end."""
        from imagebeam.transforms.formats.arrays import find_arrays  # late: NumPy

        input_places.require_folder(request.uri, "the one with the IDX files")
        wanted = array_source.Wanted(self.images, self.labels, option="source.idx", has_idx=True)
        return find_arrays.find(wanted, request)

    @classmethod
    def is_container(cls, name: str) -> bool:
        return _IDX.fullmatch(name) is not None

    @classmethod
    def detect(cls, probe: FolderProbe, at: str) -> Iterator[Finding]:
        """Finds the files of MNIST and its relatives."""
        for folder in folder_probe.with_inner(probe, at):
            names = [name for name in folder.files if _IDX.fullmatch(name)]
            if not any("images" in name or "idx3" in name for name in names):
                continue
            evidence = f"{folder.count(len(names), 'IDX file')} ({name_some(names, 2)})"
            input = folder.path if folder.path != at else ""
            if any(map(_EMNIST.fullmatch, names)):
                yield _emnist(names, evidence, input)
            elif sum(_MNIST.fullmatch(name) is not None for name in names) >= 2:
                others = [name for name in names if not _MNIST.fullmatch(name)]
                notes = (f"{name_some(others)} are not read: they may be further labels",) if others else ()
                yield Finding("mnist", evidence, notes=notes, input=input)
            else:
                yield _other_idx(names, evidence, input)
            return

    @classmethod
    def detect_file(cls, probe: FolderProbe, name: str) -> Iterator[Finding]:
        """Finds nothing: images and labels are in files of their own."""
        return iter(())


_IDX = re.compile(r".*idx[134][-.]ubyte(\.gz)?")
_MNIST = re.compile(r"(train|t10k)-(images|labels).*idx[134][-.]ubyte(\.gz)?")
_EMNIST = re.compile(r"emnist-(?P<set>\w+)-(?P<split>train|test)-(?P<kind>images|labels)-idx[134]-ubyte(\.gz)?")
_LETTERS = "letters"  # the set that the preset names


def _emnist(names: Sequence[str], evidence: str, input: str) -> Finding:
    """Returns the finding for EMNIST: for one of its sets, if there are several."""
    found = [match for name in names if (match := _EMNIST.fullmatch(name))]
    sets = sorted({match["set"] for match in found})
    chosen = _LETTERS if _LETTERS in sets else sets[0]
    of_set = [match for match in found if match["set"] == chosen]
    is_twice = len({(match["split"], match["kind"]) for match in of_set}) < len(of_set)  # plain, and as .gz
    settings: dict[str, Any] = {}
    for kind in ("images", "labels") if is_twice or chosen != _LETTERS else ():
        files = {match["split"]: match[0] for match in reversed(of_set) if match["kind"] == kind}
        settings[f"source.arrays.{kind}"] = {split: files[split] for split in ("train", "test") if split in files}
    notes: tuple[str, ...] = ()
    if len(sets) > 1:
        others = ", ".join(name for name in sets if name != chosen)
        notes = (f"this is the set {chosen}; for {others} change the names in source.arrays.images and labels",)
    return Finding("emnist", evidence, settings, notes, input=input)


def _other_idx(names: Sequence[str], evidence: str, input: str) -> Finding:
    """Returns the finding for IDX files of other names: what they say of splits and roles."""
    from imagebeam.transforms.formats.arrays import array_places

    roles = {name: array_places.role_of(name) for name in names}
    files = {
        kind: {role.split: name for name, role in reversed(roles.items()) if role.split and role.kind == kind}
        for kind in ("images", "labels")
    }
    if "train" not in files["images"] or set(files["images"]) != set(files["labels"]):
        note = "name the files in source.idx.images and source.idx.labels"
        return Finding("mnist", evidence, doubts=(note,), input=input)
    splits = sorted(files["images"], key=array_places.ORDER.index)
    settings = {f"source.idx.{kind}": {split: files[kind][split] for split in splits} for kind in files}
    settings["split"] = {"by": "source"}
    return Finding("mnist", evidence, settings, input=input)
