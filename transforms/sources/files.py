"""Lists the images in a folder and in all folders below it."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import ClassVar, NamedTuple, Protocol

from imagebeam import concurrency, errors, storage
from imagebeam.transforms import elements
from imagebeam.transforms.images import image_formats
from imagebeam.transforms.sources import image_source

# A file with one of these extensions counts as an image. Of any other the first bytes are read, so that an image under
# another name is found and a text file is skipped.
IMAGE_EXTENSIONS = frozenset(image_formats.BY_EXTENSION)
EVERYTHING = ("**/*",)
_REQUESTS_AT_ONCE = 16

# Kinds of files and folders that are skipped and counted.
HIDDEN = "hidden"
_OF_THE_SYSTEM = frozenset({"$RECYCLE.BIN", "lost+found"})  # folders of what was deleted or found again
NON_IMAGE = "non_image"
SPECIAL = "special_file"
LINK_LOOP = "link_loop"
NOT_INCLUDED = "not_included"
OUTPUT = "output_folder"
UNREAD = "unread"  # a picture in a format that is not read, with its extension: unread_tga
MASK = "mask"
WITHOUT_MASK = "image_without_mask"


# Of a large folder so many pages are listed before the rest is cut into so many ranges, by how often it was cut before.
# Each cut asks for a few names in each range, which must be little beside the pages that are listed.
_PAGES_AND_RANGES = ((4, 8), (24, 32), (144, 64))


class Directory(NamedTuple):
    """A folder, or a range of the names in it, that is still to be listed."""

    path: str  # below the root; "" is the root
    ancestors: tuple[tuple[int, int], ...]  # identities of the folders above, which reveal loops of links
    start: str = ""  # first name of the range; "" is no bound
    end: str = ""  # name before which the range ends; "" is no bound
    num_cuts: int = 0  # how often the folder was cut for this range


class PairingRule(Protocol):
    """Tells the images in a folder from the files that belong to them, by their paths below the source's root."""

    PARTNER: ClassVar[str]  # kind of the files that belong to images, as they are counted
    WITHOUT: ClassVar[str]  # kind of an image that is skipped because its file is missing

    def is_image(self, path: str) -> bool:
        """Returns whether `path` is the path of an image."""

    def is_mask(self, path: str) -> bool:
        """Returns whether `path` has the form of the path of a file that belongs to an image."""

    def add_masks(
        self, root: str, refs: Sequence[elements.ImageRef]
    ) -> Iterator[elements.ImageRef | elements.Reject | None]:
        """Yields each image with its file; a reject; None if the image is skipped."""


class MaskRule(PairingRule, Protocol):
    """A rule that a saved listing keeps."""

    @property
    def pairing(self) -> list[str | None]:
        """Values that decide which mask an image has."""


@dataclasses.dataclass(frozen=True)
class FilesSource(image_source.ImageSource):
    """The images below a folder, `root`, that match one of the globs."""

    root: str
    include: tuple[str, ...] = EVERYTHING
    exclude: str = ""  # address below the root that is not listed: the output folder
    masks: PairingRule | None = None  # if set, each image needs a mask, which is looked up with it

    spreads = "folders"

    def __post_init__(self) -> None:
        if self.include != EVERYTHING:
            _compile(self.include)

    def listed_folder(self) -> str:
        return self.root

    def start(self) -> Directory:
        """Returns the root as the first folder to list."""
        return Directory("", (storage.storage_of(self.root).stat(self.root).identity,))

    def list_all(self) -> Iterator[image_source.Listing]:
        """Lists the root and all folders below it."""
        for found in self.list_directory(self.start(), recursive=True):
            assert isinstance(found, image_source.Listing)
            yield found

    def list_directory(self, directory: Directory, recursive: bool) -> Iterator[Directory | image_source.Listing]:
        """Yields listings of one folder, and the folders in it; with `recursive` listings of those folders instead."""
        if recursive and not storage.storage_of(self.root).is_local:
            yield from self._list_by_threads(directory)
            return
        waiting, found = [directory], image_source.ListingBuilder()
        while waiting:
            current = waiting.pop()
            for entry in self._entries(current, found):
                if isinstance(entry, Directory):  # a range of names
                    if recursive:
                        waiting.append(entry)
                    else:
                        yield entry
                    continue
                path = f"{current.path}/{entry.name}" if current.path else entry.name
                if not entry.name:
                    found.problems.append(_NAMELESS_FOLDER.format(storage.join(self.root, current.path).rstrip("/")))
                elif entry.kind == storage.DIRECTORY:
                    below = self._enter(current, path, entry, found)
                    if below is not None and recursive:
                        waiting.append(below)
                    elif below is not None:
                        yield below
                else:
                    self._add(path, entry, found)
                    if found.is_full:
                        yield self._take(found)
        yield self._take(found)

    def _take(self, found: image_source.ListingBuilder) -> image_source.Listing:
        """Takes the listing from the builder after adding masks to its images."""
        if self.masks is not None:
            refs, found.refs = found.refs, []
            for image in self.masks.add_masks(self.root, refs):
                if image is None:
                    found.skipped[self.masks.WITHOUT] += 1
                else:
                    found.add(image)
        return found.take()

    def _list_by_threads(self, directory: Directory) -> Iterator[image_source.Listing]:
        """Lists folders in parallel, because each takes at least one request."""

        def list_one(folder: Directory) -> list[Directory | image_source.Listing]:
            return list(self.list_directory(folder, recursive=False))

        with futures.ThreadPoolExecutor(_REQUESTS_AT_ONCE) as threads:
            under_way = {threads.submit(list_one, directory)}
            while under_way:
                done, under_way = futures.wait(under_way, return_when=futures.FIRST_COMPLETED)
                for each in (each for future in done for each in future.result()):
                    if isinstance(each, Directory):
                        under_way.add(threads.submit(list_one, each))
                    else:
                        yield each

    def _entries(self, directory: Directory, found: image_source.ListingBuilder) -> Iterator[storage.Entry | Directory]:
        """Yields the entries of a folder, and ranges of names to be listed in parallel if there are too many."""
        uri = storage.join(self.root, directory.path) if directory.path else self.root
        store = storage.storage_of(self.root)
        try:
            if isinstance(store, storage.RangeLister):
                yield from _list_or_cut(store, uri, directory)
            else:
                yield from store.list_directory(uri)
        except OSError as e:
            if storage.is_fault(e):
                raise
            found.problems.append(
                f"folder {uri!r} cannot be listed ({e.strerror or e}), so the images in it would be lost: "
                "grant read access or move it away"
            )

    def _enter(
        self, parent: Directory, path: str, entry: storage.Entry, found: image_source.ListingBuilder
    ) -> Directory | None:
        if is_hidden(entry.name):
            found.skipped[HIDDEN] += 1
        elif self.exclude and storage.join(self.root, path) == self.exclude:
            found.skipped[OUTPUT] += 1
        elif entry.identity in parent.ancestors:
            found.skipped[LINK_LOOP] += 1
        else:
            return Directory(path, (*parent.ancestors, entry.identity))
        return None

    def _add(self, path: str, entry: storage.Entry, found: image_source.ListingBuilder) -> None:
        if entry.name.startswith("."):
            found.skipped[HIDDEN] += 1
            return
        if self.include != EVERYTHING and not is_included(self.include, path):
            found.skipped[NOT_INCLUDED] += 1
            return
        if self.masks is not None and not self.masks.is_image(path):
            found.skipped[self.masks.PARTNER if self.masks.is_mask(path) else NOT_INCLUDED] += 1
            return
        if entry.kind == storage.SPECIAL:
            found.skipped[SPECIAL] += 1
            return
        self._add_included(path, entry, found)

    def _add_included(self, path: str, entry: storage.Entry, found: image_source.ListingBuilder) -> None:
        """Adds a file that matches a glob, if it is an image."""
        uri = storage.join(self.root, path)
        extension = image_formats.extension_of(entry.name)
        named_image = extension in IMAGE_EXTENSIONS
        if entry.kind == storage.BROKEN_LINK:
            if named_image:
                detail = "a broken link; repair or remove it"
                found.rejects.append(elements.Reject(path, uri, "list", elements.Reason.NOT_FOUND, detail))
            else:
                found.skipped[SPECIAL] += 1
            return
        try:
            is_image = named_image or _is_image_by_content(uri)
        except OSError as e:
            if storage.is_fault(e):
                raise
            reason = elements.Reason.of_error(e)
            detail = f"cannot be read ({e.strerror or e}), so it is unknown whether it is an image: {_remedy(reason)}"
            found.rejects.append(elements.Reject(path, uri, "list", reason, detail))
            return
        if is_image:
            found.refs.append(elements.ImageRef(path, uri, entry.size, entry.version))
        else:
            found.skipped[f"{UNREAD}_{extension}" if extension in _UNREAD_EXTENSIONS else NON_IMAGE] += 1


def is_hidden(folder: str) -> bool:
    """Returns whether a folder of this name is left out, with all in it."""
    return folder.startswith(".") or folder in _OF_THE_SYSTEM


def _list_or_cut(store: storage.RangeLister, uri: str, directory: Directory) -> Iterator[storage.Entry | Directory]:
    """Yields the entries in a range of names; if there are many, only the first, and then ranges of the rest."""
    start, end, num_cuts = directory.start, directory.end, directory.num_cuts
    max_pages, num_wanted = _PAGES_AND_RANGES[min(num_cuts, len(_PAGES_AND_RANGES) - 1)]
    folders: dict[str, storage.Entry] = {}  # a page may name them too early, and again
    bound = ""
    for num_pages, page in enumerate(store.list_range(uri, start, end)):
        found = [entry for entry in page if entry.kind == storage.FILE]
        folders.update((f"{entry.name}/", entry) for entry in page if entry.kind != storage.FILE)
        if num_pages >= max_pages:
            bound = max(entry.name for entry in found) if found else after_all(max(folders, default=""))
        if bound <= start:
            bound = ""
        yield from (entry for entry in found if not bound or entry.name < bound)
        if bound:
            break
    yield from (entry for name, entry in folders.items() if not bound or name < bound)
    if bound:
        cuts = cut_names(functools.partial(store.first_name, uri), bound, end, num_wanted)
        for first, last in itertools.pairwise((bound, *cuts, end)):
            yield directory._replace(start=first, end=last, num_cuts=num_cuts + 1)


_NAMELESS_FOLDER = (
    "folder {}//: two slashes follow each other in the names of its objects, which no path below the input can "
    "tell, so the images in it would be lost: rename the objects, or move them away"
)
# Pictures that no signature shows, or that are known and not read, by extension.
_UNREAD_EXTENSIONS = frozenset(
    ("dds", "eps", "fits", "icns", "mha", "nrrd", "pcx", "pdf", "qoi", "sgi", "svg", "tga", "xcf", "xpm")
)


def _remedy(reason: elements.Reason) -> str:
    if reason is elements.Reason.NOT_FOUND:
        return "run again when nothing removes files there"
    return "grant read access, or leave it out with source.include"


def _is_image_by_content(uri: str) -> bool:
    """Returns whether a file begins with the signature of an image format."""
    return image_formats.sniff_format(storage.storage_of(uri).read(uri, 0, image_formats.SNIFF_BYTES)) is not None


def is_included(globs: tuple[str, ...], path: str) -> bool:
    """Returns whether a path below the root matches one of the globs."""
    return any(pattern.fullmatch(path) for pattern in _compile(globs))


@functools.lru_cache(maxsize=4)
def _compile(globs: tuple[str, ...]) -> tuple[re.Pattern[str], ...]:
    """Returns the globs as patterns that match whole paths below the root.

    Raises:
        ConfigError: if a glob is malformed.
    """
    from fsspec.utils import glob_translate  # takes 40 ms, and most jobs include everything

    patterns = []
    for glob in globs:
        try:
            patterns.append(re.compile(glob_translate(glob)))  # like glob.translate of Python 3.13: ** crosses folders
        except (ValueError, re.error) as e:
            raise errors.ConfigError(
                "glob-invalid", f"glob {glob!r} cannot be read ({e}); write for example '**/*.jpg'"
            ) from e
    return tuple(patterns)


def split_glob(uri: str) -> tuple[str, tuple[str, ...]]:
    """Splits `uri`, the address of a folder or a glob such as `/data/*/*.jpg`, into a folder and globs below it."""
    if not re.search(r"[*?\[]", uri) or storage.storage_of(uri).exists(uri):
        return uri, EVERYTHING
    parts = uri.split("/")
    first = next(index for index, part in enumerate(parts) if re.search(r"[*?\[]", part))
    return "/".join(parts[:first]) or "/", ("/".join(parts[first:]),)


# --- ranges of names --------------------------------------------------------------------------------------------------
#
# Divides the names of a large folder into ranges, which are listed in parallel.
#
# Only as many names are looked at as are needed to find out where names differ. Wrong guesses make ranges unequal,
# which a later cut of the longer ones corrects; they never change what is listed, because the ranges of a folder cover
# all possible names without overlap.

FirstName = Callable[[str, str], "str | None"]  # first name from a start to before an end, as of storage.RangeLister

_PROBES_PER_RANGE = 10  # at most; hexadecimal names are cut by 16, and so into up to 8 times as many parts
_LARGEST = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)


class _Range(NamedTuple):
    start: str
    end: str  # "" is no bound
    first: str  # the first name in it
    num_shared: int  # characters at the beginning of `first` that all names in the range are known to share


def cut_names(first_name: FirstName, start: str, end: str, num_wanted: int) -> list[str]:
    """Returns names that cut a range into parts: ascending, between the bounds, without a slash.

    Names are divided by their first character that differs, then each part by its next one, until there are enough.

    Args:
        first_name: asks the storage for the first name of a range; is called from several threads.
        start: name with which the range begins; "" is no bound.
        end: name before which it ends; "" is no bound.
        num_wanted: number of parts. There may be more if many characters occur, and fewer if the names do not allow it.
    """
    first = first_name(start, end)
    if first is None:
        return []
    prober = _Prober(first_name, _PROBES_PER_RANGE * num_wanted)
    parts = [_Range(start, end, first, 0)]
    while len(parts) < num_wanted and prober.has_probes_left:
        divided = list(concurrency.map_ahead(prober.divide, parts, _REQUESTS_AT_ONCE))
        parts = [part for below in divided for part in below]
        if len(parts) == len(divided):  # none could be divided
            break
    return [part.start for part in parts[1:]]


class _Prober:
    """Divides ranges, until it has asked for too many names."""

    def __init__(self, first_name: FirstName, max_probes: int):
        self._probe = functools.cache(first_name)  # the same name is of use twice, see `divide`
        self._max_probes = max_probes

    @property
    def has_probes_left(self) -> bool:
        return self._probe.cache_info().misses < self._max_probes

    def divide(self, whole: _Range) -> list[_Range]:
        """Divides a range by the first character in which its names differ."""
        length = self._count_shared(whole)
        parts: list[_Range] = []
        start, first = whole.start, whole.first
        for bound, following in self._characters(whole, length):
            parts.append(_Range(start, bound, first, min(length + 1, len(first))))
            start, first = bound, following
        return [*parts, _Range(start, whole.end, first, min(length + 1, len(first)))]

    def _characters(self, whole: _Range, length: int) -> Iterator[tuple[str, str]]:
        """Yields where the names with another character at `length` begin: the bound, and the first of these names."""
        first: str | None = whole.first
        while first is not None and self.has_probes_left:
            is_whole = len(first) == length and not first.endswith("/")
            bound = f"{first} " if is_whole else after_all(first[: length + 1])
            first = self._find(bound, whole.end)
            if first is not None:
                yield bound, first

    def _count_shared(self, whole: _Range) -> int:
        """Returns how many characters at the beginning all names in the range share."""

        def is_shared(length: int) -> bool:
            return self._find(after_all(whole.first[:length]), whole.end) is None

        low, high = whole.num_shared, len(whole.first)
        if low == high or not is_shared(low + 1):  # nearly always; `_characters` uses the same probe
            return low
        low += 1
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if is_shared(middle) else (low, middle - 1)
        return low

    def _find(self, start: str, end: str) -> str | None:
        """Returns the first name in a range; None if there is none, or if `start` is "", after all names."""
        return self._probe(start, end) if start and (not end or start < end) else None


def after_all(beginning: str) -> str:
    """Returns the first text without a slash that is after all names with this beginning; "" if there is none."""
    while beginning:
        following = ord(beginning[-1]) + 1
        beginning = beginning[:-1]
        if following in _SURROGATES:  # no characters
            following = _SURROGATES.stop
        if following <= _LARGEST:
            return f"{beginning}{'0' if following == ord('/') else chr(following)}"
    return ""
