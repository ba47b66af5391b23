"""Looks into an unknown folder within bounds, and holds the findings.

At most 100 folders are listed, 5,000 entries of each and 50,000 in all, and the first and last 64 KiB of 80 files are
read, of masks 2 MiB: some 400 requests for a bucket, usually 10 to 40. What lies beyond is not seen, and counts then
say `or more`.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import itertools
import posixpath
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from imagebeam import errors, plural, storage
from imagebeam.transforms.images import image_formats
from imagebeam.transforms.sources import files as files_lib
from imagebeam.transforms.sources import input_places, name_signs

HEAD_BYTES = 1 << 16
_T = TypeVar("_T")

_MACOSX = "__MACOSX"  # in it are ._x.jpg of each x.jpg, and are hidden
_WORD = re.compile(r"[a-z]+")
_WITH_SPLIT = re.compile(r"(?<=.)(split|set|data|im(age|g)s?|labels?|masks?)\Z")  # trainsplit, testset
BEFORE_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")  # seg|Train, SBU|Train


class Bounds(NamedTuple):
    """Limits of what is looked at."""

    folders: int = 100  # that are listed
    entries: int = 5_000  # entries of one folder
    all_entries: int = 50_000
    heads: int = 80  # files whose first bytes are read


_BOUNDS = Bounds()
_NUM_SPREAD = 20  # files that stand for all of a folder, and rows for all of a table
_MAX_ASKED = 100
NEARLY_ALL = 0.9  # share of the images that a finding must explain


class Change(NamedTuple):
    """A setting that users often change."""

    key: str
    value: Any
    why: str


@dataclasses.dataclass(frozen=True)
class Finding:
    """A preset that fits a folder, and why. One with a doubt is never taken without a question."""

    preset: str
    evidence: str  # with counts: "1,203 .txt files in labels are beside images"
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # by dotted key, on top of the preset
    notes: tuple[str, ...] = ()  # what is left out, and what the user may want to change
    often: tuple[Change, ...] = ()  # what such users often change
    input: str = ""  # what to give as --input, below the folder given; "" is that folder
    doubts: tuple[str, ...] = ()  # what contradicts it, or must be done or chosen first
    reads_images_alone: bool = False  # no annotations, tables or lists: each that names images contradicts it


@dataclasses.dataclass(frozen=True)
class Folder:
    """The entries of a folder, without hidden ones."""

    path: str = ""  # below the root; "" is the root
    folders: tuple[str, ...] = ()  # sorted names
    files: Mapping[str, int] = dataclasses.field(default_factory=dict)  # sorted names, with sizes in bytes
    is_whole: bool = True  # False if it has more entries than were looked at

    @functools.cached_property
    def images(self) -> tuple[str, ...]:
        """The names with the extension of an image."""
        return tuple(name for name in self.files if image_formats.extension_of(name) in files_lib.IMAGE_EXTENSIONS)

    @functools.cached_property
    def stems(self) -> frozenset[str]:
        """The names of the images without their extensions."""
        return frozenset(posixpath.splitext(name)[0] for name in self.images)

    def ending(self, *suffixes: str) -> tuple[str, ...]:
        """Returns the names of the files that end in one of `suffixes`, in any case."""
        return tuple(name for name in self.files if name.lower().endswith(suffixes))

    def count(self, number: int, noun: str) -> str:
        """Returns a number of its entries with their noun: `5,000 or more images`."""
        return plural.count(number, noun) if self.is_whole else f"{number:,} or more {noun}s"

    def count_having(self, number: int, noun: str) -> str:
        """Returns the same with its verb: `1 image has`, `2 images have`."""
        return f"{self.count(number, noun)} {'has' if number == 1 and self.is_whole else 'have'}"

    def below(self, name: str) -> str:
        """Returns the path of an entry."""
        return f"{self.path}/{name}" if self.path else name


class FolderProbe:
    """A view of a folder. Folders are listed once, when they are first asked for."""

    def __init__(self, root: str, bounds: Bounds = _BOUNDS, exclude: str = ""):
        """Looks into the folder at the address `root`, but not into the one at `exclude`: the output."""
        self.root = root
        self._exclude = exclude
        self._bounds = bounds
        self._folders: dict[str, Folder] = {}
        self._heads: dict[str, tuple[int, bytes]] = {}  # with the number of bytes that were asked for
        self._num_entries = 0
        self._num_asked = 0  # files of folders whose listing was cut short

    @property
    def num_listed(self) -> int:
        """Number of folders that were listed."""
        return len(self._folders)

    def seen(self) -> list[Folder]:
        """Returns the folders that were listed, in that order."""
        return [*self._folders.values()]

    @property
    def is_all_seen(self) -> bool:
        """Whether all that is in the folder was seen."""
        seen = self._folders
        return all(each.is_whole and seen.keys() >= set(map(each.below, each.folders)) for each in seen.values())

    def uri(self, path: str) -> str:
        """Returns the address of a path below the root."""
        return storage.join(self.root, path) if path else self.root

    def look(self, path: str = "") -> Folder:
        """Returns the entries of a folder; none if it cannot be listed, or enough was looked at."""
        path = path.rstrip("/")
        found = self._folders.get(path)
        if found is None:
            found = Folder(path, is_whole=False)
            if len(self._folders) < self._bounds.folders and self._num_entries < self._bounds.all_entries:
                found = self._folders[path] = self._list(path)
        return found

    def _list(self, path: str) -> Folder:
        uri = self.uri(path)
        most = min(self._bounds.entries, self._bounds.all_entries - self._num_entries)
        try:
            entries = list(itertools.islice(storage.storage_of(uri).list_directory(uri), most + 1))
        except (OSError, errors.ConfigError):  # the listing of the run says so
            return Folder(path)
        self._num_entries += len(entries)
        shown = [each for each in entries[:most] if each.name and not _is_ignored(each.name)]
        shown = [each for each in shown if storage.join(uri, each.name) != self._exclude]
        shown.sort(key=lambda each: each.name)
        return Folder(
            path,
            tuple(each.name for each in shown if each.kind == storage.DIRECTORY),
            {each.name: each.size for each in shown if each.kind == storage.FILE},
            len(entries) <= most,
        )

    def head(self, path: str, num_bytes: int = HEAD_BYTES) -> bytes:
        """Returns the first bytes of a file; b"" if it cannot be read, or enough was read."""
        asked, head = self._heads.get(path, (0, b""))
        if not asked and len(self._heads) >= self._bounds.heads:
            return b""
        if asked < num_bytes and len(head) == asked:
            try:
                head = self._read(path, 0, num_bytes)
            except (OSError, errors.ConfigError):
                head = b""
            self._heads[path] = num_bytes, head
        return head[:num_bytes]

    def _read(self, path: str, offset: int, num_bytes: int) -> bytes:
        uri = self.uri(path)
        return storage.storage_of(uri).read(uri, offset, num_bytes)

    def tail(self, path: str) -> bytes:
        """Returns the last 64 KiB of a file that is longer than its head; b"" for a shorter or unread one."""
        folder, name = posixpath.split(path)
        size = self.look(folder).files.get(name, 0) if self.head(path) else 0
        try:
            return self._read(path, max(HEAD_BYTES, size - HEAD_BYTES), HEAD_BYTES) if size > HEAD_BYTES else b""
        except (OSError, errors.ConfigError):
            return b""

    def image_size(self, path: str) -> tuple[int, int] | None:
        """Returns the width and height of an image; None if its beginning does not state them."""
        return self._open_image(path, HEAD_BYTES, lambda image: image.size)

    def num_frames(self, path: str, size: int) -> int:
        """Returns the number of images in a file of `size` bytes, which is read whole; 1 if it cannot be read."""
        return self._open_image(path, size, lambda image: getattr(image, "n_frames", 1)) or 1

    def _open_image(self, path: str, num_bytes: int, look: Callable[[Any], _T]) -> _T | None:
        from PIL import Image

        try:
            with Image.open(io.BytesIO(self.head(path, num_bytes))) as image:
                return look(image)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
            return None

    def holds(self, path: str) -> bool:
        """Returns whether there is a file: by the listing of its folder, or directly where that was cut short."""
        folder, _, name = path.rpartition("/")
        if name in (found := self.look(folder)).files or found.is_whole or self._num_asked >= _MAX_ASKED:
            return name in found.files
        self._num_asked += 1
        return input_places.kind_of(self.uri(path)) == storage.FILE

    def share_held(self, paths: Iterable[str]) -> float:
        """Returns which share of paths are files, judged by 20 of them."""
        asked = spread(sorted(paths), _NUM_SPREAD)[:_NUM_SPREAD]
        return sum(map(self.holds, asked)) / max(1, len(asked))

    def some(self, folder: Folder, names: Sequence[str], number: int = 3) -> Iterator[Folder]:
        """Yields a few of the folders in `folder`: the first, the last and some between them."""
        step = max(1, (len(names) - 1) // max(1, number - 1))
        chosen = [*names[: step * (number - 1) : step], *names[-1:]]
        return (self.look(folder.below(name)) for name in dict.fromkeys(chosen))

    def with_images(self, path: str, depth: int = 2) -> Folder | None:
        """Returns the first folder with images at a path or up to `depth` levels below it."""
        folder = self.look(path)
        if folder.images:
            return folder
        for name in folder.folders[:2] if depth else ():
            found = self.with_images(folder.below(name), depth - 1)
            if found is not None:
                return found
        return None


class FileProbe(FolderProbe):
    """A view of one file: its folder, as if nothing else were in it."""

    def __init__(self, probe: FolderProbe, name: str):
        super().__init__(probe.root)
        found = probe.look()
        self._folders[""] = Folder("", (), {name: found.files.get(name, 0)})


def spread(names: Sequence[_T], number: int) -> list[_T]:
    """Returns all of `names`, at first `number` that are spread over all of them."""
    number = min(number, len(names))
    first = [n * len(names) // number for n in range(number)]
    taken = {*first}
    return [names[n] for n in first] + [name for n, name in enumerate(names) if n not in taken]


def extension_of(name: str) -> str:
    """Returns the extension in lower case, such as `.jpg`."""
    return posixpath.splitext(name)[1].lower()


def _is_ignored(name: str) -> bool:
    return files_lib.is_hidden(name) or name == _MACOSX


def split_meant(name: str) -> str | None:
    """Returns the split that a name means, such as `train` for `seg_train` and `TrainingSet`; None for other names."""
    meant = splits_named(name)
    return meant.pop() if len(meant) == 1 else None


def splits_named(name: str) -> set[str]:
    """Returns the splits that the words of a name mean."""
    return {*words_of_splits(name).values()}


def words_of_splits(name: str) -> dict[str, str]:
    """Returns the words of a name that mean splits, in lower case, with these."""
    words = (_WITH_SPLIT.sub("", word) for word in _words_in(name))
    return {word: name_signs.SPLIT_OF_WORD[word] for word in words if word in name_signs.SPLIT_OF_WORD}


def split_of_short(name: str) -> str | None:
    """Returns the split that a short word in a name may mean, such as `test` for `DIS-TE1`; None for other names."""
    meant = {name_signs.SPLIT_OF_SHORT[word] for word in _words_in(name) if word in name_signs.SPLIT_OF_SHORT}
    return meant.pop() if len(meant) == 1 else None


def _words_in(name: str) -> list[str]:
    return _WORD.findall(BEFORE_CAPITAL.sub(" ", name).lower())


def may_be_split(name: str, values: Collection[str]) -> bool:
    """Returns whether a field of images may say their split, by its name or by all of its values."""
    return name.lower() in name_signs.SPLIT_COLUMNS or (bool(values) and None not in map(split_meant, values))


def splits_in(names: Iterable[str]) -> dict[str, str]:
    """Returns the names that mean splits, with these; none if no name means `train`."""
    found = {name: meant for name in names if (meant := split_meant(name)) is not None}
    found = dict(sorted(found.items(), key=lambda each: ([*name_signs.SPLITS].index(each[1]), each[0])))
    return found if "train" in found.values() else {}


def likely_first(folder: Folder, number: int) -> list[str]:
    """Returns the names of all splits in a folder, and after them of so many of its other folders."""
    splits = [name for name in folder.folders if split_meant(name) is not None]
    return [*splits, *[name for name in folder.folders if name not in splits][:number]]


def split_places(probe: FolderProbe, at: str) -> Iterator[Folder]:
    """Yields a folder, and those in it that have the exact name of a split."""
    root = probe.look(at)
    yield root
    yield from (probe.look(root.below(name)) for name in input_places.SPLITS if name in root.folders)


def with_inner(probe: FolderProbe, at: str) -> Iterator[Folder]:
    """Yields a folder and ten in it: containers are often in `data`, or in a folder for each split."""
    root = probe.look(at)
    yield root
    yield from (probe.look(root.below(name)) for name in root.folders[:10])


def splits_of_folders(folders: Sequence[Folder], at: str, what: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Returns the setting for containers that are in a folder for each split; or a doubt if they are in other folders.

    Args:
        folders: that hold containers, as `with_inner` found them.
        at: the data set.
        what: the containers in words, for the doubt.
    """
    names = [posixpath.basename(each.path) for each in folders if each.path != at]
    splits = {name: split_meant(name) for name in names}
    meant = {*splits.values()}
    if len(names) == len(folders) == len(meant) and None not in meant and meant != {"train"}:
        rename = {name: split for name, split in splits.items() if name != split}
        return {"split": {"by": "directory", **({"rename": rename} if rename else {})}}, ()
    if len(folders) > 1 and names:
        return {}, (
            f"{what} are in several folders ({name_some(names)}), and all would be read: if each is a version of the "
            "set, give one as --input; if they are splits, set split.by=directory",
        )
    return {}, ()


def prefix_of(folder: Folder, at: str) -> str:
    """Returns the path of a folder below `at` with a slash at its end; "" for `at` itself."""
    return f"{folder.path}/".removeprefix(f"{at}/") if folder.path != at else ""


def name_some(names: Sequence[str], number: int = 3) -> str:
    """Joins the first names: `cat, dog, ...`."""
    return ", ".join(names[:number]) + (", ..." if len(names) > number else "")


def and_list(names: Sequence[str]) -> str:
    """Joins names: `train, val and test`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


HASH_SPLIT: Mapping[str, Any] = {"by": "hash", "fractions": {"train": 0.9, "validation": 0.1}}


_DEEP, _NUM_BELOW = 3, 5  # levels of folders with annotations, and folders beside those of splits


def find_below(probe: FolderProbe, path: str, suffix: str, depth: int = _DEEP) -> tuple[Folder, int] | None:
    """Returns the first folder at a path or below it that has files with a suffix, and how many."""
    folder = probe.look(path)
    if found := folder.ending(suffix):
        return folder, len(found)
    for name in likely_first(folder, _NUM_BELOW) if depth else ():
        if below := find_below(probe, folder.below(name), suffix, depth - 1):
            return below
    return None


# --- the beginnings of files ------------------------------------------------------------------------------------------


def shape_of_json(head: bytes) -> dict[str, dict[str, Any]]:
    """Returns what the beginning of a JSON file shows: each key of the object, with the first object in its list.

    The key "" is for a file that is a list itself. There are none for a file with too many keys, or nested too deeply.
    """
    import ijson  # takes 10 ms, and is needed only here

    found: dict[str, dict[str, Any]] = {}
    text = head.removeprefix(b"\xef\xbb\xbf")
    try:
        for prefix, event, value in ijson.parse(io.BytesIO(text), buf_size=_BUFFER_BYTES, use_float=True):
            parts = prefix.split(".") if prefix else []
            if parts[:1] == ["item"]:  # ijson's name of each entry of a list
                parts.insert(0, "")
            if event == "map_key" and not parts:
                found.setdefault(value, {})
            elif event == "start_array" and not parts:
                found.setdefault("", {})
            elif event == "map_key" and len(parts) == 2 and parts[1] == "item":
                found.setdefault(parts[0], {}).setdefault(value, None)
            elif event in ("string", "number", "start_array") and len(parts) == 3 and parts[1] == "item" != parts[2]:
                first = found.get(parts[0], {})
                if parts[2] in first and first[parts[2]] is None:
                    first[parts[2]] = value if event != "start_array" else ()
            if len(found) > _MAX_KEYS or len(prefix) > _MAX_PREFIX:
                return {}
    except (ijson.JSONError, ValueError, RecursionError):  # the head ends within the file
        pass
    return found


_MAX_KEYS = 200
_BUFFER_BYTES = 1_024  # that ijson parses at once: it takes quadratic time for nested lists
_MAX_PREFIX = 1_000  # characters of the names of the lists and objects around a value


def find_exports(
    probe: FolderProbe, at: str, preset: str, name: str, settings_of: Callable[[Mapping[str, str]], dict[str, Any]]
) -> Iterator[Finding]:
    """Finds the annotations that Roboflow writes beside the images of each split.

    Args:
        probe: of the folder.
        at: the data set in it.
        preset: that reads the annotations.
        name: of their files.
        settings_of: makes the settings of the paths of the folders below `at`, by split.
    """
    held = [folder for folder in split_places(probe, at) if name in folder.files]
    if held:
        paths = {split_meant(folder.path) or "train": prefix_of(folder, at) for folder in held}
        numbers = ", ".join(f"{len(each.images):,} in {each.path or '.'}" for each in held)
        evidence = f"{prefix_of(held[0], at)}{name} is beside images ({numbers})"
        yield Finding(preset, evidence, settings_of(paths))


_LAST_WORD, _LAST_PART = re.compile(r"[_\-. ][^_\-. \d]+\Z"), re.compile(r"[_\-. ][^_\-. ]*\Z")


def beginnings(stem: str) -> Iterator[str]:
    """Yields what precedes each mark in a name, from the longest; and "" at the end."""
    while match := _LAST_WORD.search(stem) or _LAST_PART.search(stem):
        stem = stem[: match.start()]
        yield stem
    yield ""
