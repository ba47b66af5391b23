r"""Images with files of the same name beside them, whose content are columns: `1.jpg`, `1.txt`, `1.json`.

A column has the name of the ending of its file: `txt`, `caption`, `gt.txt`; keys of a JSON file are `json.KEY`, as of
WebDataset's tars. img2dataset (`output_format: files`), kohya's scripts, tesstrain and SROIE write such files.
"""

from __future__ import annotations

import codecs
import collections
import dataclasses
import functools
import re
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from imagebeam import plural, storage
from imagebeam.storage import remote
from imagebeam.transforms import elements
from imagebeam.transforms.formats import base_format, masks, tar
from imagebeam.transforms.sources import containers, files, folder_probe, image_source, input_places, table_rows
from imagebeam.transforms.sources.folder_probe import HASH_SPLIT, NEARLY_ALL, Finding, Folder, FolderProbe

_IMAGE, _PATH = r"(.*)\.[^./]+", r"\1.{}"
_JSON = "json"
_BYTE_ORDER_MARK = "\ufeff".encode()


@dataclasses.dataclass(frozen=True)
class Sidecars(base_format.Format):
    r"""Images, each with files of the same name beside it whose content are its columns."""

    PARTNER: ClassVar[str] = "sidecar"
    WITHOUT: ClassVar[str] = "image_without_sidecar"  # never counted: such an image is a reject
    ABOUT: ClassVar[str] = "images, each with text or JSON files of the same name beside it"
    PRESETS: ClassVar[tuple[str, ...]] = ("sidecars",)

    image: str = _IMAGE
    """Regular expression for the paths of images below `source.uri`; its groups are in `path`. For `1.bin.png` beside
    `1.gt.txt`: `(.*)\\.bin\\.png`."""
    path: str = _PATH
    """The path of a file that belongs to an image, where `{}` stands for its ending, the name of the column. For
    `images/1.jpg` and `captions/1.txt`: `captions/\\1.{}`, with `image: images/(.*)\\.jpg`."""

    def __post_init__(self) -> None:
        masks.check_pattern("source.sidecars.image", self.image, "source.sidecars.path", self.path.replace("{}", "txt"))
        if self.path.count("{}") != 1:
            raise ValueError(f"source.sidecars.path {self.path!r} must have {{}} once, for the name of the column")

    def gives(self) -> base_format.Gives:
        return base_format.Gives(columns=True, folders=True, takes=frozenset({"include"}))

    def open(self, request: base_format.Request) -> image_source.ImageSource:
        with remote.budget(remote.CHECK_BUDGET_SEC):
            root, include, _ = input_places.find_input(request.uri, request.include, request.output)
            rule = _SidecarRule(self.image, self.path, request.fields)
            return _SidecarsSource(root, include, input_places.leave_out(request.output, root), rule)

    def reads(self, probe: FolderProbe, at: str) -> base_format.Reads:
        rule = re.compile(self.image)

        def files_of(path: str) -> Iterator[str]:
            match = rule.fullmatch(path)
            yield from (match.expand(self.path.replace("{}", each)) for each in _ENDINGS if match)

        return base_format.Reads(files_of=files_of)

    @classmethod
    def detect(cls, probe: FolderProbe, at: str) -> Iterator[Finding]:
        """Finds texts beside nearly all images of a folder or of those in it."""
        places = [each for each in folder_probe.with_inner(probe, at) if each.images]
        endings = _endings_of(places) if places else []
        columns: dict[str, dict[str, Any]] = {ending: {} for ending in endings if ending != _JSON}
        if not columns:
            return
        num_images = sum(len(each.images) for each in places)
        shown = folder_probe.and_list([f".{each}" for each in endings])
        evidence = f"{plural.count(num_images, 'image')} with {shown} of the same name beside them"
        of_splits, _ = folder_probe.splits_of_folders(places, at, "images")
        settings: dict[str, Any] = {"columns": columns, "split": HASH_SPLIT, **of_splits}
        notes = [f"the text of each .{name} is stored" for name in columns]
        doubts = list[str]()
        if set(columns) != {"txt"}:
            settings["features"] = {}
        if _JSON in endings:
            notes.append("keys of the JSON are columns json.KEY, as in 'columns={json.KEY: {}}': none is stored")
        if len(places) > 1 and not of_splits:
            notes.append("if the folders are classes, set label.by=directory as well")
        first = places[0]
        for name in columns:
            paths = [first.below(file) for file in first.files if file.endswith(f".{name}")]
            text = probe.head(paths[0] if paths else "")
            if other := next((path for path in paths[:_NUM_HEADS] if not _is_utf8(probe.head(path))), None):
                doubts.append(f"{other} is not UTF-8, and bytes are stored as they are: save the texts as UTF-8 first")
            if _NUMBERS.fullmatch(text.decode("utf-8", "replace")):
                doubts.append(f"the .{name} files hold numbers, which may be boxes or marks of the images")
        yield Finding("sidecars", evidence, settings, tuple(notes), doubts=tuple(doubts))


_NUM_HEADS = 5  # texts that are looked into


def _is_utf8(head: bytes) -> bool:
    """Returns whether the beginning of a file is text in UTF-8, but for a character that the beginning cuts."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return True


@dataclasses.dataclass(frozen=True)
class _SidecarRule:
    """Reads the files that belong to images, as far as they hold columns that the config asks for."""

    PARTNER: ClassVar[str] = Sidecars.PARTNER
    WITHOUT: ClassVar[str] = Sidecars.WITHOUT

    image: str
    path: str
    fields: table_rows.RowFields

    def is_image(self, path: str) -> bool:
        """Returns whether `path` may be that of an image."""
        return not self.is_mask(path) and self._image.fullmatch(path) is not None

    def is_mask(self, path: str) -> bool:
        """Returns whether `path` has the form of a file that is read for a column."""
        return any(each.fullmatch(path) for each in self._paths)

    def add_masks(self, root: str, refs: Sequence[elements.ImageRef]) -> Iterator[elements.ImageRef | elements.Reject]:
        """Yields each image with its columns, or its reject."""
        return masks.look_up_ahead(root, refs, functools.partial(self._add_columns, root))

    def _add_columns(self, root: str, ref: elements.ImageRef) -> elements.ImageRef | elements.Reject:
        cells: dict[str, Any] = {}
        missing = []
        match = self._image.fullmatch(ref.key)
        assert match is not None
        try:
            for ending, names in self._files.items():
                path = match.expand(self.path.replace("{}", ending))
                try:
                    data = storage.storage_of(root).read(storage.join(root, path))
                except FileNotFoundError:
                    missing.append(path)
                    continue
                cells |= _parse(ending, names, data, path)
            return containers.fill(self.fields, ref, cells)
        except table_rows.MissingValueError as e:
            raise table_rows.MissingValueError(f"{ref.uri}: {e}{_there_is_no(missing)}") from e
        except table_rows.BadRowError as e:
            reason = elements.Reason.NOT_FOUND if missing else e.reason
            return elements.Reject(ref.key, ref.uri, "list", reason, f"{e.detail}{_there_is_no(missing)}")
        except OSError as e:
            if storage.is_fault(e):
                raise
            reason = elements.Reason.of_error(e)
            return elements.Reject(ref.key, ref.uri, "list", reason, f"{path}: {e.strerror or e}")

    @functools.cached_property
    def _files(self) -> dict[str, list[str]]:
        """The columns in the files of each ending."""
        found = collections.defaultdict(list)
        for name in self.fields.needed:
            found[_JSON if name.startswith(f"{_JSON}.") else name].append(name)
        return dict(found)

    @functools.cached_property
    def _paths(self) -> tuple[re.Pattern[str], ...]:
        return tuple(masks.pattern_of(self.path.replace("{}", ending)) for ending in self._files)

    @functools.cached_property
    def _image(self) -> re.Pattern[str]:
        return re.compile(self.image)


class _SidecarsSource(files.FilesSource):
    def listed_folder(self) -> str:
        return ""  # a saved listing holds no columns

    def _take(self, found: image_source.ListingBuilder) -> image_source.Listing:
        try:
            return super()._take(found)
        except table_rows.MissingValueError as e:
            found.problems.append(str(e))
            return found.take()


def _parse(ending: str, names: Sequence[str], data: bytes, path: str) -> dict[str, Any]:
    """Returns the cells in a file: its text without line ends at its end, or the values of keys of its JSON."""
    if ending == _JSON:
        return tar.find_in_json(data, names, path)
    return {ending: data.removeprefix(_BYTE_ORDER_MARK).rstrip(b"\r\n")}


def _there_is_no(paths: Sequence[str]) -> str:
    return f"; there is no {', '.join(map(repr, paths))}" if paths else ""


# --- recognition ------------------------------------------------------------------------------------------------------

_ENDINGS = ("txt", "caption", "gt.txt", _JSON)
_NUMBERS = re.compile(r"[\s,;:|\[\]().+\-eE0-9]*[0-9][\s,;:|\[\]().+\-eE0-9]*")


def _endings_of(places: Sequence[Folder]) -> list[str]:
    """Returns the endings of files that nearly all images have beside them."""
    num_images = sum(len(each.images) for each in places)

    def number(ending: str) -> int:
        return sum(
            len(each.stems & {name[: -len(ending) - 1] for name in each.ending(f".{ending}")}) for each in places
        )

    return [ending for ending in _ENDINGS if number(ending) >= NEARLY_ALL * num_images]
