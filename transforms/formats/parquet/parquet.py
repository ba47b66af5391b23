"""Images whose bytes are in a column of Parquet files, as on the Hugging Face Hub; the other columns are cells.

    data/train-00000-of-00005.parquet: image {bytes, path}, label, ...

A reference is a byte range of the file where the column is not compressed, a range of compressed blocks with Snappy,
and a range of the unpacked column otherwise.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from imagebeam import errors, features, plural, storage
from imagebeam.storage import remote
from imagebeam.transforms import elements
from imagebeam.transforms.formats import base_format
from imagebeam.transforms.formats.parquet import columns, pages
from imagebeam.transforms.packed import packed_file, parquet_content, unpacked_content
from imagebeam.transforms.sources import (
    containers,
    folder_probe,
    image_source,
    input_places,
    name_signs,
    shard_names,
    table_rows,
    value_signs,
)
from imagebeam.transforms.sources.folder_probe import Finding, FolderProbe, name_some

_MAGIC, _ENCRYPTED, _LFS = b"PAR1", b"PARE", b"version https://git-lfs"
_TAIL_BYTES = 8  # length of the footer, and the magic number

_NUMBER = re.compile(r"[-_.]?\d*")
_SPLITS = ("train", "training", "validation", "valid", "val", "dev", "test", "testing", "eval", "evaluation")


@dataclasses.dataclass(frozen=True)
class Parquet(base_format.Format):
    """Parquet files that hold the bytes of images, as on the Hugging Face Hub."""

    ABOUT: ClassVar[str] = "Parquet files with the bytes of images"
    PRESETS: ClassVar[tuple[str, ...]] = ("parquet",)

    image: str | None = None
    """Column with the images: their bytes, or a struct with the field `bytes`. By default the only column of images."""
    images: str | None = None
    """Column with a list of any number of images, as `image` holds one: all images of a row are one example. The
    features of images become lists, and `image/position` has the place of each image in the list of the file, whose
    nulls are left out. If one image is bad, the whole example is a reject; so is a row without an image."""
    key: str | None = None
    """Column with the stable id, such as `image.path`; by default the file's path and the row's number."""

    def __post_init__(self) -> None:
        if self.image is not None and self.images is not None:
            raise ValueError("source.parquet.image is for one image a row, and images for lists: leave one of them out")

    def gives(self) -> base_format.Gives:
        refuses = () if self.images is None else base_format.of_lists("source.parquet.images")
        return base_format.Gives(
            columns=True, takes=frozenset({"include"}), list_column=self.images or "", refuses=refuses
        )

    @classmethod
    def hint_on_file(cls, uri: str) -> str:
        if not ParquetSource.FILE_NAME.fullmatch(posixpath.basename(uri)):
            return ""
        return "for Parquet with the bytes of images set source.by: parquet, with their paths source.by: manifest"

    def open(self, request: base_format.Request) -> ParquetSource:
        """Returns the source, after a look at the first file."""
        found = ParquetSource.find(request.uri, request.include, request.output)
        fields = dataclasses.replace(request.fields, key=self.key)
        names_classes, has_lists = request.label_kind == "class", self.images is not None
        source = ParquetSource(*found, fields, self.images or self.image, names_classes, has_lists)
        with remote.budget(remote.CHECK_BUDGET_SEC):
            layout = source.layout
        if layout.names:
            input_places.check_names(layout.names, f"the metadata of {layout.uri!r}")
        return source

    @classmethod
    def is_container(cls, name: str) -> bool:
        return ParquetSource.FILE_NAME.fullmatch(name) is not None

    @classmethod
    def detect(cls, probe: FolderProbe, at: str) -> Iterator[Finding]:
        """Finds Parquet files that hold the bytes of images, as those of Hugging Face."""
        folders = [each for each in folder_probe.with_inner(probe, at) if each.ending(".parquet")]
        folders.sort(key=lambda each: _is_of_test(each.path))  # tests may have no labels
        for folder in folders:
            names = sorted(folder.ending(".parquet"), key=_is_of_test)
            try:
                schema = [*_schema_of(probe.uri(folder.below(names[0])))] if names else []
            except errors.ConfigError as e:
                yield Finding("parquet", folder.count(len(names), "Parquet file"), doubts=(str(e),))
                return
            if any(columns.holds_images(field.type) or columns.holds_lists(field.type) for field in schema):
                finding = _describe(probe, folder, names, schema)
                in_folders = folder_probe.splits_of_folders(folders, at, "Parquet files")[1]
                yield dataclasses.replace(finding, doubts=(*finding.doubts, *in_folders))
                return

    @classmethod
    def remarks(cls, probe: FolderProbe) -> Iterator[str]:
        """Yields a remark for each column of lists of images beside one of images in a folder's first Parquet file."""
        for folder in probe.seen():
            names = folder.ending(".parquet")
            with contextlib.suppress(errors.ConfigError):
                schema = [*_schema_of(probe.uri(folder.below(names[0])))] if names else []
                lists = [field.name for field in schema if columns.holds_lists(field.type)]
                has_single = any(columns.holds_images(field.type) for field in schema)
                for name in lists if has_single else ():
                    yield (
                        f"{plural.count(len(names), 'Parquet file')}: the column {name!r} of {folder.below(names[0])} "
                        f"holds a list of images in each row, which is not read: source.parquet.images={name} reads it"
                    )


def _is_of_test(path: str) -> bool:
    return folder_probe.split_meant(posixpath.basename(path)) == "test"


_LABEL_KEYS = ("label", "class", "target", "labels", "fine_label")


def _schema_of(uri: str) -> Any:
    """Returns the fields of a Parquet file with their types; none if it cannot be read.

    Raises:
        ConfigError: if pyarrow is not installed.
    """
    with errors.imports_for("reading Parquet"):
        import pyarrow.parquet  # noqa: F401
    try:
        with parquet_content.open_parquet(uri) as parquet:
            return parquet.schema_arrow
    except (OSError, ValueError, errors.ConfigError):
        return ()


def _describe(probe: FolderProbe, folder: folder_probe.Folder, names: Sequence[str], schema: Sequence[Any]) -> Finding:
    """Returns the finding for the files of a folder, whose columns are those of the first one."""
    kinds = [field.name for field in schema if columns.holds_images(field.type)]
    lists = [field.name for field in schema if columns.holds_lists(field.type)]
    others = [field.name for field in schema if field.name not in (*kinds, *lists)]
    texts = {field.name: how for field in schema if (how := _text_column(field.type))}
    where = f" in {folder.path}" if folder.path else ""
    held = f"images in the column {name_some(kinds)}" if kinds else f"lists of images in {name_some(lists)}"
    evidence = f"{folder.count(len(names), 'Parquet file')}{where} with {held}"
    settings: dict[str, Any] = {"source.parquet.image": kinds[0]} if len(kinds) > 1 else {}
    if not kinds:
        settings = {"source.parquet.images": lists[0]}
    label = next((name for name in _LABEL_KEYS if name in others), None)
    paths = [probe.uri(folder.below(name)) for name in names]
    of_columns, notes, on_labels = _settings_of_columns(paths, label, others, texts)
    doubts = [*on_labels, *shard_names.repeated(names)]
    if len(rivals := kinds or lists) > 1:
        doubts.append(f"which column has the images of an example: {', '.join(rivals)}? One alone is read")
    if "_delta_log" in folder.folders:
        doubts.append(
            "the files are those of a Delta table, and _delta_log, which says whose rows were deleted, is not read: "
            "write its current rows to Parquet first"
        )
    tests = [path for path in paths if _is_of_test(path)]
    if label is not None and (value := _only_value(tests, label)):
        doubts.append(
            f"all rows of {name_some([*map(posixpath.basename, tests)])} have the same {label!r}, {value}: "
            "placeholders, and no labels? source.include leaves them out"
        )
    return Finding("parquet", evidence, settings | of_columns, notes, doubts=tuple(doubts))


def _settings_of_columns(
    uris: Sequence[str], label: str | None, others: Sequence[str], texts: Mapping[str, Any]
) -> tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]]:
    """Returns the settings for the columns beside that of the images, with notes and doubts.

    Args:
        uris: of the files.
        label: the column that is called so; None if there is none.
        others: all columns but those of images.
        texts: for each of them that has texts, how it is stored.
    """
    unread = value_signs.not_stored(others, [] if label is None else [label])
    if label is not None:
        settings, notes, doubts = _settings_of_label(uris[0], label)
        if label != "label" and "label" not in settings:
            settings["label.column"] = label
        return settings, (*notes, *unread), doubts
    captions = [name for name in texts if name_signs.CAPTIONS.fullmatch(name)]
    further = [
        name
        for name in others
        if name not in captions[:1]
        if not (name_signs.NO_LABELS.fullmatch(name) or _OF_THE_FILE.fullmatch(name))
    ]
    settings = {"label": {"by": "none"}}
    if captions and not further:
        notes = (f"the texts in {captions[0]!r} are stored as a column", *value_signs.not_stored(others, captions[:1]))
        return settings | {"columns": {captions[0]: texts[captions[0]]}}, notes, ()
    if not further:
        return settings, unread, ()
    asked = f"no column is called label: name it in label.column ({', '.join(others)}), or those to store in columns"
    return settings, (), (asked,)


_OF_THE_FILE = re.compile(r"(?i)\w*ids?|(file|image)_?name|id?x|index|width|height|split")  # and not of what it shows


def _text_column(type_: Any) -> dict[str, Any]:
    """Returns how a column of texts, or of lists of texts, is stored; {} for other types."""
    is_list = parquet_content.is_list(type_)
    is_text = str(type_.value_type if is_list else type_) in ("string", "large_string")
    return {} if not is_text else {"list": True} if is_list else {"type": "string"}


_NUM_VALUES = 10_000  # of the column of labels that are looked at


def _settings_of_label(uri: str, column: str) -> tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]]:
    """Returns the settings that the first values of a column of labels need, with notes and doubts."""
    try:
        with parquet_content.open_parquet(uri) as parquet:
            cells = parquet.read_row_group(0, [column]).column(0).slice(0, _NUM_VALUES).to_pylist()
    except (OSError, ValueError, errors.ConfigError):  # the plan says so
        return {}, (), ()
    if not any(isinstance(each, list) for each in cells):
        values = [str(each) for each in cells if each is not None and each == each]  # without NaN
        return *value_signs.settings_of(column, values), ()
    values = [str(each) for cell in cells for each in cell or ()]
    settings = {"label.separator": ","}  # of several classes in a cell
    if not value_signs.are_mostly_own(values):
        return settings, (), ()
    shown = name_some(sorted({*values}))
    texts = f"label={{by: none}} and columns={{{column}: {{list: true}}}}"
    return settings, (), (f"most values in the lists of {column!r} occur once ({shown}): for texts set {texts}",)


def _only_value(uris: Sequence[str], column: str) -> str:
    """Returns the value of a column that is the same in all rows of the first and the last file, by their footers."""
    found = set[Any]()
    num_rows = 0
    for uri in {*uris[:1], *uris[-1:]}:
        try:
            with parquet_content.open_parquet(uri) as parquet:
                groups = [parquet.metadata.row_group(number) for number in range(parquet.metadata.num_row_groups)]
        except (OSError, ValueError, errors.ConfigError):  # the plan says so
            return ""
        for group in groups:
            num_rows += group.num_rows
            chunks = (group.column(number) for number in range(group.num_columns))
            bounds = next((each.statistics for each in chunks if each.path_in_schema == column), None)
            if bounds is None or not bounds.has_min_max:
                return ""
            found |= {bounds.min, bounds.max}
    return str(*found) if len(found) == 1 and num_rows > 1 else ""


@dataclasses.dataclass(frozen=True)
class ParquetSource(elements.PickledFields, containers.ContainerSource):
    """The Parquet files of a folder."""

    NOUN = columns.NOUN
    FILE_NAME = re.compile(r".+\.(parquet|pq)")
    EXPECTED = "a file whose name ends in .parquet"
    CELL = "column"
    KEY_OPTION = "source.parquet.key"

    image: str | None = None  # column with the images; None finds it
    names_classes: bool = True  # replace the ids in the label's column by the names of the classes, if these are known
    has_lists: bool = False  # whether a cell of `image` is a list of images, all of one example

    def facts(self) -> image_source.SourceFacts:
        placed = (features.POSITION,) if self.has_lists else ()
        return image_source.SourceFacts(placed, class_names=self.layout.names or None, notes=self.layout.notes)

    @functools.cached_property
    def layout(self) -> columns.Layout:
        """Returns what the first file holds, by which the others are checked.

        Raises:
            ConfigError: if there is no such file, it cannot be read, or its column of images cannot be told.
        """
        found, problems = self.find_containers()
        if not found:
            raise errors.ConfigError("parquet-no-file", problems[0])
        first = found[0]
        try:
            _check_ends(first)
            with parquet_content.open_parquet(first.uri) as parquet:
                layout = self._lay_out(first, parquet)
        except OSError as e:
            raise errors.ConfigError("parquet-unreadable", f"{self.NOUN} {first.uri!r} {_explain(e)}") from e
        return layout._replace(notes=(*layout.notes, *shard_names.missing(each.path for each in found)))

    def scan(self, container: containers.Container) -> Iterator[containers.Found]:
        """Yields the rows of one file. Of the other columns it reads only those that are needed."""
        try:
            _check_ends(container)
            with parquet_content.open_parquet(container.uri) as parquet:
                try:
                    layout = self._lay_out(container, parquet)
                    yield from self._scan_rows(container, parquet, layout)
                except errors.ConfigError as e:
                    raise containers.ContainerError(str(e)) from e
        except packed_file.BrokenContentError as e:
            raise containers.ContainerError(f"{self.NOUN} {container.uri!r} {e.detail}") from e

    def _scan_rows(
        self, container: containers.Container, parquet: Any, layout: columns.Layout
    ) -> Iterator[containers.Found]:
        if layout.names != self.layout.names:
            here, first = columns.few(layout.names), columns.few(self.layout.names)
            raise containers.ContainerError(
                f"{self.NOUN} {container.uri!r} names the classes in the column {self.fields.label!r} {here or 'not'}, "
                f"the first file names them {first or 'not'}: convert them apart, or set label.type: int, which keeps "
                "the numbers"
            )
        places = _Places(container, parquet, layout.image, self.image if self.has_lists else None)
        split = _split_of(container)
        cells_of = columns.CellReader(self.fields, layout, split)
        number = 0
        for group in range(parquet.metadata.num_row_groups):
            rows = cells_of.rows(parquet, group)
            for found in places.in_group(group):
                cells = next(rows, None)
                if cells is None:
                    detail = f"has columns of different lengths in row group {group}: fetch it again"
                    raise packed_file.broken(detail)
                yield self._make(container, number, found, cells, places)
                number += 1
        yield containers.Cells(frozenset({*layout.columns, *([columns.SPLIT] if split else [])}))

    def _make(
        self,
        container: containers.Container,
        number: int,
        found: list[pages.Place | None],
        cells: Mapping[str, Any] | table_rows.BadRowError,
        places: _Places,
    ) -> elements.ImageRef | elements.Reject:
        try:
            if isinstance(cells, table_rows.BadRowError):
                raise cells
            key = self.key_of(container, number, cells)
            uri = container.uri if places.are_located else places.unpacked
            if self.has_lists:
                ref = table_rows.with_list(key, str(self.image), [*self._images_in(found, uri, container.version)])
                return containers.fill(self.fields, ref, cells)
            (place,) = found
            if place is None:
                raise containers.bad_row(f"column {places.column!r} is empty; {_BY_PATH}")
            ref = elements.ImageRef(
                key, uri, place.size, container.version, offset=place.offset, length=place.length, blocks=place.blocks
            )
            return containers.fill(self.fields, ref, cells)
        except table_rows.BadRowError as e:
            key = f"{container.path}/{number}"
            return elements.Reject(key, container.uri, "list", e.reason, f"row {number} of {container.uri}: {e.detail}")

    def _images_in(
        self, found: Sequence[pages.Place | None], uri: str, version: int
    ) -> Iterator[tuple[int, elements.ExtraImage]]:
        """Yields the images of a list, each with its place in it."""
        for position, place in enumerate(found):
            if place is not None and place.size < 0:
                raise containers.bad_row(f"{self.image}[{position}] has no bytes; {_BY_PATH}")
            if place is not None:
                size, offset, length, blocks = place
                yield position, elements.ExtraImage(uri, size, version, "", offset, length, blocks)

    def _lay_out(self, container: containers.Container, parquet: Any) -> columns.Layout:
        label = self.fields.label if self.names_classes else None
        return columns.lay_out(container.uri, parquet, self.image, label, self.has_lists)


_BY_PATH = "where images are named by path alone, store their bytes: Dataset.to_parquet of `datasets` does"


class _Places:
    """Finds the bytes of the images of one file: in one column, which may be the entries of a column of lists."""

    def __init__(self, container: containers.Container, parquet: Any, column: str, lists: str | None):
        self.column = column
        self.unpacked = unpacked_content.part_of(container.uri, column)
        self.are_located = True  # whether the last image was; else its place is in the unpacked column
        self._container, self._parquet = container, parquet
        self._index = columns.index_of(parquet, column)
        self._read = containers.open_window(container.uri, container.size, container.version).read
        self._lists = None if lists is None else parquet.schema_arrow.field(lists)
        self._num_bytes = 0  # bytes of earlier values in the unpacked column

    def in_group(self, group: int) -> Iterator[list[pages.Place | None]]:
        """Yields the places of the images in each row of a row group, None for null: one, or those of a list.

        Raises:
            BrokenContentError: if the row group has another number of rows than its footer says.
        """
        num_rows = self._parquet.metadata.row_group(group).num_rows
        found = 0
        chunk = self._chunk(group)
        self.are_located = chunk is not None
        try:
            for row in self._locate(chunk) if chunk is not None else ():
                found += 1
                self._num_bytes += sum(place.size for place in row if place and place.size > 0)
                yield row
        except pages.NotLocatedError:
            self.are_located = False
        if not self.are_located:
            for sizes in itertools.islice(self._sizes(group), found, None):
                found += 1
                starts = itertools.accumulate((max(size or 0, 0) for size in sizes), initial=self._num_bytes)
                *ahead, self._num_bytes = starts
                yield [None if size is None else pages.Place(size, at, size) for size, at in zip(sizes, ahead)]
        if found != num_rows:
            detail = f"holds {plural.count(found, 'image')} in row group {group}, its footer says {num_rows:,}"
            raise packed_file.broken(f"{detail}: fetch it again")

    def _locate(self, chunk: pages.Chunk) -> Iterator[list[pages.Place | None]]:
        if chunk.list_level:
            return pages.locate_lists(self._read, chunk)
        return ([place] for place in pages.locate_values(self._read, chunk))

    def _sizes(self, group: int) -> Iterator[list[int | None]]:
        if self._lists is not None:
            return parquet_content.list_sizes(self._parquet, self.column, group)
        return ([size] for size in parquet_content.value_sizes(self._parquet, self.column, group))

    def _chunk(self, group: int) -> pages.Chunk | None:
        """Returns where the column lies in a row group; None if its pages are of a kind that only pyarrow reads."""
        if self._index is None:
            return None
        about = self._parquet.metadata.row_group(group).column(self._index)
        column = self._parquet.schema.column(self._index)
        list_level, entry_level = (0, 0) if self._lists is None else columns.list_levels(self._lists)
        if (
            about.compression not in columns.READABLE
            or column.max_repetition_level != bool(list_level)
            or column.physical_type != "BYTE_ARRAY"
        ):
            return None
        start = about.data_page_offset
        if about.dictionary_page_offset is not None and 0 < about.dictionary_page_offset < start:
            start = about.dictionary_page_offset
        end = start + about.total_compressed_size
        if not len(_MAGIC) <= start <= end <= self._container.size - _TAIL_BYTES:
            return None
        is_snappy = columns.READABLE[about.compression]
        return pages.Chunk(
            start, end, about.num_values, is_snappy, column.max_definition_level, list_level, entry_level
        )


def _split_of(container: containers.Container) -> str | None:
    """Returns the split in the path of a file, as it is written there; None if there is none.

    That is what comes before `-00000-of-00005`, or a name that splits have: of the file, or else of a folder above it.
    Of a file whose name is a number, it is its folder.
    """
    *folders, name = container.path.split("/")
    stem = name.rpartition(".")[0]
    if match := shard_names.OF.fullmatch(stem):
        return match["stem"]
    word = stem.rstrip("0123456789").rstrip("-_.")
    if word.lower() in _SPLITS:
        return word
    for folder in reversed(folders):
        if folder.lower() in _SPLITS:
            return folder
    if _NUMBER.fullmatch(stem):
        above = folders or container.uri.split("/")[:-1]
        return above[-1] if above else None
    return None


def _check_ends(container: containers.Container) -> None:
    """Checks both ends of a file, so that the error says what it is instead.

    Raises:
        BrokenContentError: if it is not a complete Parquet file.
        OSError: if it cannot be read.
    """
    store = storage.storage_of(container.uri)
    head = store.read(container.uri, 0, len(_LFS), version=container.version)
    detail = ""
    if head.startswith(_LFS):
        detail = "is a pointer of Git LFS, not the file: run `git lfs pull` in its folder"
    elif head.startswith(_ENCRYPTED):
        detail = "is encrypted: decrypt it before"
    elif head.startswith(packed_file.GZIP_MAGIC):
        detail = "is gzip: unpack it"
    elif not head.startswith(_MAGIC):
        detail = f"is not Parquet: it begins with {head[:8]!r}, expected {_MAGIC!r}" if head else "is empty"
    else:
        tail = store.read(container.uri, max(0, container.size - len(_MAGIC)), len(_MAGIC), version=container.version)
        if tail != _MAGIC or container.size < len(_MAGIC) + _TAIL_BYTES:
            detail = f"was cut short: it ends with {tail!r}, expected {_MAGIC!r}; fetch it again"
    if detail:
        raise packed_file.broken(detail)


def _explain(error: OSError) -> str:
    if isinstance(error, packed_file.BrokenContentError):
        return error.detail
    return f"cannot be read ({error.strerror or error}); check the address"
