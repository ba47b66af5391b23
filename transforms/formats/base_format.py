"""The base of formats, and the table of their names.

A format is a frozen dataclass of its options: the section `source.NAME` of a config. Its fields are checked by
pydantic, from outside: a module of a format imports none of it, since workers import these modules.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import importlib
import posixpath
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from imagebeam import errors, storage
from imagebeam.transforms import elements, kept_features, user_code
from imagebeam.transforms.images import structure
from imagebeam.transforms.sources import files, folder_probe, image_source, input_places, table_rows


class Gives(NamedTuple):
    """Promises of the options alone, without a look at files: a config is checked against them."""

    columns: bool = False  # images come with columns, for label.by: column, split.by: column or index, columns
    splits: bool = False  # the source says the split of an image: split.by: source
    tables: bool = False  # it has several files whose names can be splits: split.by: table
    features: frozenset[str] = frozenset()  # `given` of features.resolve_features
    folders: bool = False  # an image may be in a folder of its class, for label.by: directory
    is_saved: bool = False  # it is a saved listing: the dataset is that of the folder that was listed
    extra_images: tuple[str, ...] = ()  # names of extra images of each example
    list_column: str = ""  # column with a list of any number of images, all of one example; "" for one image
    takes: frozenset[str] = frozenset()  # keys that formats share and that it uses: include, pattern, masks
    refuses: tuple[tuple[str, str], ...] = ()  # settings as `section.key: value`, each with the reason
    keeps: Literal["all"] | tuple[str, ...] | None = ()  # features of records; None: all, or those in `columns` alone
    needs_shards: str = ""  # the error of a config without numbers of shards or examples; "" if it may leave them out
    needs_lists: str = ""  # the error of a config without a column of lists; "" if it may have none


def _is_below(folders: Sequence[str], path: str) -> bool:
    return any(not folder or path.startswith(f"{folder}/") for folder in folders)


def _no_files(_: str) -> tuple[str, ...]:
    return ()


def is_no_file(_: str) -> bool:
    """Returns False: for a kind of files that is not read."""
    return False


class Reads(NamedTuple):
    """The files below the input that a format reads, told by their paths there."""

    is_image: Callable[[str], bool] = functools.partial(_is_below, ("",))
    files_of: Callable[[str], Iterable[str]] = _no_files  # the files that belong to one image, such as its annotations
    files: tuple[str, ...] = ()  # paths or globs of the files of many images
    is_partner: Callable[[str], bool] = is_no_file  # whether a file may belong to an image that was not seen
    num_splits: int = 1  # that it takes from folders or files
    guessed: tuple[str, ...] = ()  # folders of which more may be read: only the beginnings of files were looked at

    @classmethod
    def of_parts(
        cls,
        parts: Iterable[input_places.Part],
        files_of: Callable[[str], Iterable[str]] = _no_files,
        files: Iterable[str] = (),
        listed_in: str = "",
    ) -> Reads:
        """Returns it for all images in folders; those of lists may be anywhere below the folder `listed_in`."""
        given = [*parts]
        folders = tuple({listed_in if each.is_list else each.path for each in given})
        lists = (each.path for each in given if each.is_list)
        splits = {each.split for each in given}
        return cls(functools.partial(_is_below, folders), files_of, (*files, *lists), num_splits=len(splits))

    def in_folders_of(self, named: Iterable[str]) -> Reads:
        """Returns it for the images in the folders of all those that files name, by their paths."""
        folders = {posixpath.dirname(posixpath.normpath(path)) for path in named}
        return self._replace(is_image=lambda path: posixpath.dirname(path) in folders)


_NO_ROW: Mapping[str, Any] = types.MappingProxyType({})


class Request(NamedTuple):
    """Request of the rest of a config to a source."""

    uri: str
    output: str = ""  # address that is not listed
    include: tuple[str, ...] = ("**/*",)
    fields: table_rows.RowFields = table_rows.NO_FIELDS  # without the key, which is an option of formats
    label_by: str = "directory"
    split_by: str = "none"
    label_kind: str | None = None
    masks: files.MaskRule | None = None
    has_lists: bool = False  # whether files list images by split, or their labels
    max_image_bytes: int = structure.MAX_IMAGE_BYTES
    keep: kept_features.KeepRule = kept_features.NOTHING  # without the features that the source itself takes
    key_feature: str | None = "image/key"  # under which keys are stored

    def reference(
        self,
        uri: str,
        row: Mapping[str, Any] = _NO_ROW,
        *,
        key: str = "",
        size: int = -1,
        version: int = 0,
        split: str = "",
    ) -> elements.ImageRef | elements.Reject:
        """Returns the reference of an image, or its reject if a value is not as the config wants it.

        Args:
            uri: address of the image, or its path below the folder of `source.uri`.
            row: values by name. The config takes from them what it names: `label.column`, `split.column`,
                `split.group`, `columns`.
            key: stable id; by default the path below that folder, or the address.
            size: number of its bytes; without it the file is looked up, with its version.
            version: with `size`: a number that changes with the image, so that an update reads it again. Of a file it
                is the one that its storage has: the generation in GCS, elsewhere the change time in ns, or 0.
            split: for `split.by: source`.

        Raises:
            ConfigError: if the row lacks a column that the config names, or a path has no folder.
            MissingValueError: if a value is missing, and `columns.NAME.missing` is error.
        """
        for name in self.fields.required:
            if name not in row:
                raise errors.ConfigError(
                    "source-no-column",
                    f"the config names the column {name!r}, and the source gives {', '.join(map(repr, row)) or 'none'}",
                )
        folder = _folder_of(self.uri) if self.uri else ""
        if not folder and not table_rows.is_absolute(uri):
            raise errors.ConfigError(
                "source-no-folder",
                f"the source gives the path {uri!r}: give --input, the folder that it is relative to",
            )
        address = table_rows.resolve_path(uri, folder, allow_outside=True)
        key = key or address.removeprefix(storage.join(folder, ""))
        try:
            return self.fields.fill(elements.ImageRef(key, address, size, version, split=split), row)
        except table_rows.BadRowError as e:
            return elements.Reject(key, address, "list", e.reason, e.detail)


@functools.lru_cache(maxsize=8)
def _folder_of(uri: str) -> str:
    """Returns the folder that paths are relative to, once in each process."""
    root = files.split_glob(uri)[0]
    return root if input_places.is_folder(root) else posixpath.dirname(root)


class Format(abc.ABC):
    """The options of a format. A subclass is a frozen dataclass whose fields have defaults, and texts below them."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    ABOUT: ClassVar[str]  # the format in a few words, for a config that `init` writes
    PRESETS: ClassVar[tuple[str, ...]] = ()  # that `detect` may name
    PLACES: ClassVar[Mapping[str, Any]] = {}  # options that only say where files are: no part of a dataset's identity

    def gives(self) -> Gives:
        """Returns what the options promise of every image."""
        return Gives()

    @abc.abstractmethod
    def open(self, request: Request) -> image_source.ImageSource:
        """Returns the source, after checks that find obvious mistakes at once.

        Raises:
            ConfigError: if the files are not as the options say.
        """

    def folder_of(self, uri: str) -> str:
        """Returns the folder that addresses in the config are relative to, given that of the input."""
        return _folder_of(uri)

    @classmethod
    def hint_on_file(cls, uri: str) -> str:
        """Returns what to set to read a file, which was given instead of a folder; "" if it is not of this format."""
        return ""

    @classmethod
    def detect(cls, probe: folder_probe.FolderProbe, at: str) -> Iterator[folder_probe.Finding]:
        """Yields the presets that fit a folder below the root of a probe, with the options that they need."""
        return iter(())

    @classmethod
    def detect_file(cls, probe: folder_probe.FolderProbe, name: str) -> Iterator[folder_probe.Finding]:
        """Yields the presets that fit one file in the root of a probe."""
        one = folder_probe.FileProbe(probe, name)
        return (dataclasses.replace(each, input=name) for each in cls.detect(one, ""))

    def reads(self, probe: folder_probe.FolderProbe, at: str) -> Reads | None:
        """Returns what the options read of a folder below the root of a probe; None if images are not files there.

        Raises:
            ConfigError: if the files are not as the options say.
        """
        return None

    @classmethod
    def is_container(cls, name: str) -> bool:
        """Returns whether a file, by its name, may hold images of this format; others beside it are not read."""
        return True

    @classmethod
    def remarks(cls, probe: folder_probe.FolderProbe) -> Iterator[str]:
        """Yields remarks on files of this format that are not read, and what to do."""
        return iter(())


@dataclasses.dataclass(frozen=True)
class ObjectFormat(Format):
    """The options of all formats of objects whose annotations name the classes."""

    classes: str | tuple[str, ...] | None = None
    """Names of the classes in the order of their ids, or a file below `source.uri` with a name on each line. By default
    the names in all annotation files, sorted: these files are then read before the images are listed."""
    base: ClassBase = 1
    """Id of the first class: 1 where 0 is the background, as in TensorFlow's label maps."""
    outside: Literal["clip", "reject"] = "clip"
    """What to do with a box that leaves the image, as in `source.coco.outside`."""


SETTING = "source.by"
# By the value of `source.by`, in the order in which findings are taken and shown: "module:Class", imported
# when the config is checked.
FORMATS: Mapping[str, str] = {
    "files": "folder:Files",
    "listing": "folder:Listing",
    "pairs": "pairs:Pairs",
    "yolo": "yolo:Yolo",
    "voc": "voc:Voc",
    "box_csv": "box_csv:BoxCsv",
    "coco": "coco:Coco",
    "labelme": "labelme:Labelme",
    "annotations": "annotations.annotations:Annotations",
    "sidecars": "sidecars:Sidecars",
    "manifest": "tables.tables:Tables",
    "idx": "idx:Idx",
    "arrays": "arrays.arrays:Arrays",
    "tar": "tar:Tar",
    "zip": "zip:Zip",
    "tfrecord": "tfrecord:Tfrecord",
    "parquet": "parquet.parquet:Parquet",
}


def is_own(by: str) -> bool:
    """Returns whether a value of `source.by` is the import path of a user's class."""
    return ":" in by


def format_of(by: str) -> type[Format]:
    """Returns the format of a value of `source.by`.

    Raises:
        ConfigError: if it is a path where no format is.
    """
    if is_own(by):
        return _check_own(by, user_code.load(SETTING, by))
    module, _, name = FORMATS[by].partition(":")
    found: type[Format] = getattr(importlib.import_module(f"imagebeam.transforms.formats.{module}"), name)
    return found


def _check_own(by: str, found: Any) -> type[Format]:
    # a subclass without the decorator would ignore its options, and the base class has the attributes, too
    params = vars(found).get("__dataclass_params__") if isinstance(found, type) else None
    if params is None or not params.frozen or not issubclass(found, Format):
        raise errors.ConfigError(
            "source-no-format",
            f"{SETTING}: {by!r} is no source: derive the class from imagebeam.sources.Source, below a line "
            "@dataclasses.dataclass(frozen=True)",
        )
    if missing := sorted(found.__abstractmethods__):
        raise errors.ConfigError("source-no-format", f"{SETTING}: {by!r} has no method {', '.join(missing)}: add it")
    return found


def no_pixels_or_frames(option: str) -> tuple[tuple[str, str], ...]:
    """Returns what a format refuses whose examples have several images by an option."""
    frames = (
        f"makes an example of each frame of a file, and {option} puts several files into one example: set "
        "image.frames: first or reject"
    )
    pixels = (
        f"is for the one image of an example, and {option} gives several: set image.encode: keep, jpeg, png or webp"
    )
    bare = ("raw", "int64_list", "float_list")
    return (("image.frames: each", frames), *((f"image.encode: {encode}", pixels) for encode in bare))


def of_lists(option: str) -> tuple[tuple[str, str], ...]:
    """Returns what a format refuses whose examples have lists of images by an option."""
    near = f"compares pictures, and {option} gives an example several: set duplicates.near: off; duplicates.exact works"
    actions = ("report", "fail", "drop")
    return (*no_pixels_or_frames(option), *((f"duplicates.near: {action}", near) for action in actions))


def no_frames(by: str) -> tuple[str, str]:
    """Returns what a format refuses whose annotations are of a file, and not of each frame in it."""
    return (
        "image.frames: each",
        f"does not repeat the boxes of {by} for each frame of a file: set image.frames: first or reject",
    )


# --- types of options ------------------------------------------------------------------------------------------------


class _Check:
    """Metadata of a type: a check that pydantic makes of a value, and limits that it puts into the schema."""

    def __init__(self, before: Callable[[Any], Any] | None = None, **limits: Any):
        self._before, self._limits = before, limits

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        found = handler(source)
        found.update(self._limits)
        return found if self._before is None else core_schema.no_info_before_validator_function(self._before, found)


def _refuse_bool(value: Any) -> Any:
    if isinstance(value, bool):  # a bool is an int in Python
        from pydantic_core import PydanticCustomError

        raise PydanticCustomError("number_type", "input should be a number (or, where that is meant, text in quotes)")
    return value


def _as_lists(value: Any) -> Any:
    """Returns a mapping with each text in it as a list of one."""
    if not isinstance(value, dict):
        return value
    return {split: (path,) if isinstance(path, str) else path for split, path in value.items()}


NOT_BOOL = _Check(_refuse_bool)
Text = Annotated[str, _Check(min_length=1)]
Character = Annotated[str, _Check(min_length=1, max_length=1)]
ClassBase = Annotated[int, _Check(ge=0, le=1), NOT_BOOL]
Count = Annotated[int, _Check(ge=1), NOT_BOOL]
Natural = Annotated[int, _Check(ge=0), NOT_BOOL]
Level = Annotated[int, _Check(ge=0, le=255), NOT_BOOL]  # one channel of a color
Bits = Annotated[Literal[8, 16], NOT_BOOL]
Channels = Annotated[int, _Check(ge=1, le=4), NOT_BOOL]
PathsBySplit = Annotated[dict[str, tuple[str, ...]], _Check(_as_lists)]
