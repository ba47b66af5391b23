"""Reads a dataset again, compares it with its catalog, and names every difference by shard and byte offset."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from imagebeam import catalog as catalog_lib
from imagebeam import errors, plural, records, snapshots, storage


@dataclasses.dataclass(frozen=True)
class Problem:
    """One difference between a stored file and the catalog."""

    shard: str  # the file's name below the dataset
    offset: int | None  # bytes from the start of the file; None if unknown
    detail: str
    # true if the shard's bytes match the catalog and `check_record` reported the problem
    is_in_record: bool = dataclasses.field(default=False, compare=False)

    def __str__(self) -> str:
        where = self.shard if self.offset is None else f"{self.shard}, byte offset {self.offset}"
        return f"{where}: {self.detail}"


UNNAMED = "the catalog does not name this file"
CheckRecord = Callable[[bytes], str | None]  # a record's bytes -> what is wrong with it


def verify_shard(
    directory: str,
    shard: catalog_lib.Shard,
    compression: str = "none",
    check_record: CheckRecord | None = None,
    siblings: Iterable[catalog_lib.Shard] = (),
    removed: Collection[int] = (),
) -> list[Problem]:
    """Reads one shard twice, once for its checksum and once for its records, and the files beside it.

    Args:
        directory: of the dataset.
        shard: its entry in the catalog.
        compression: of the shard, "none" or "gzip".
        check_record: called with the bytes of every record that is not removed.
        siblings: the other shards, to recognise a swapped one.
        removed: indexes of the shard's removed records.

    Returns:
        The differences; empty for a good shard.
    """
    uri = storage.join_relative(directory, shard.name)
    try:
        num_bytes, crc = checksum_file(uri)
    except FileNotFoundError:
        return [Problem(shard.name, None, f"the shard is missing; the catalog says {shard.bytes:,} bytes")]
    except OSError as e:
        return [Problem(shard.name, None, f"the shard cannot be read ({e.strerror or e})")]
    problems = list(_content_problems(uri, shard, num_bytes, crc, compression, check_record, siblings, removed))
    for file in shard.side_files(compression):
        if file.name != shard.index_name:
            problems += verify_file(directory, file.name, file.entry)
        elif not problems:
            problems += _index_problems(directory, shard)
    return problems


def _content_problems(
    uri: str,
    shard: catalog_lib.Shard,
    num_bytes: int,
    crc: int,
    compression: str,
    check_record: CheckRecord | None,
    siblings: Iterable[catalog_lib.Shard],
    removed: Collection[int],
) -> Iterator[Problem]:
    same = (num_bytes, crc) == (shard.bytes, shard.crc32c)
    if same and check_record is None:
        return
    for sibling in siblings if num_bytes and not same else ():
        if (sibling.bytes, sibling.crc32c) == (num_bytes, crc) and sibling != shard:
            yield Problem(shard.name, 0, f"the shard holds the content of {sibling.name}: the two were swapped")
            return
    count, end = 0, 0
    try:
        with storage.storage_of(uri).open_read(uri) as file:
            for record in records.read_records(file, compression):
                if count == shard.records:
                    detail = f"an extra record; the catalog says {plural.count(shard.records, 'record')}"
                    yield Problem(shard.name, record.offset, detail)
                check = None if count in removed else check_record
                if check is not None and (complaint := check(record.data)):
                    yield Problem(shard.name, record.offset, f"record {count}: {complaint}", is_in_record=same)
                count += 1
                end = record.offset + records.HEADER_BYTES + len(record.data) + records.FOOTER_BYTES
    except errors.RecordError as e:
        yield Problem(shard.name, e.offset, f"record {count}: {e.detail}")
        return
    if count < shard.records:
        found = plural.count(count, "record")
        detail = f"the shard holds {found}, the catalog says {shard.records:,}: it was cut short"
        yield Problem(shard.name, end, detail)
    elif not same and count == shard.records:
        detail = (
            f"the shard holds {num_bytes:,} bytes with crc32c {crc:08x}, "
            f"the catalog says {shard.bytes:,} bytes with {shard.crc32c:08x}"
        )
        yield Problem(shard.name, 0, detail)


def _index_problems(directory: str, shard: catalog_lib.Shard) -> list[Problem]:
    uri = storage.join_relative(directory, shard.index_name)
    store = storage.storage_of(uri)
    try:
        data = store.read(uri)
        offsets = records.decode_index(data)
    except FileNotFoundError:
        return [Problem(shard.index_name, None, "the index is missing")]
    except (OSError, ValueError) as e:
        return [Problem(shard.index_name, None, f"the index cannot be read ({e})")]
    if len(offsets) != shard.records + 1 or offsets[-1] != shard.bytes:
        listed = f"{plural.count(len(offsets) - 1, 'record')} in {offsets[-1]:,} bytes"
        detail = f"the index lists {listed}, the catalog says {shard.records:,} in {shard.bytes:,}"
        return [Problem(shard.index_name, None, detail)]
    shard_uri = storage.join_relative(directory, shard.name)
    with store.open_read(shard_uri) as file:
        for index, (start, end) in enumerate(itertools.pairwise(offsets)):
            length = end - start - records.HEADER_BYTES - records.FOOTER_BYTES
            if length >= 0 and end <= shard.bytes:
                file.seek(start)
                if file.read(records.HEADER_BYTES) == records.frame_header(length):
                    continue
            detail = f"the index says record {index} takes bytes {start:,} to {end:,}, where the shard holds none such"
            return [Problem(shard.index_name, index * 8, detail)]
    return _differences(shard.index_name, catalog_lib.entry_of(data), shard.index_file)


def _differences(name: str, found: catalog_lib.File, expected: catalog_lib.File) -> list[Problem]:
    """Returns the differences between a file and its entry in the catalog."""
    if found.bytes != expected.bytes:
        return [Problem(name, None, f"the file has {found.bytes:,} bytes, the catalog says {expected.bytes:,}")]
    if expected.crc32c is not None and expected.crc32c != found.crc32c:
        detail = f"the file has the crc32c {found.crc32c:08x}, the catalog says {expected.crc32c:08x}"
        return [Problem(name, None, f"{detail}: its content was changed")]
    return []


def verify_file(directory: str, name: str, expected: catalog_lib.File) -> list[Problem]:
    """Reads a committed file whose content the catalog alone describes, and returns its differences from it.

    Args:
        directory: of the dataset.
        name: of the file, relative to the dataset.
        expected: its entry in the catalog.
    """
    try:
        found = catalog_lib.File(*checksum_file(storage.join_relative(directory, name)))
    except FileNotFoundError:
        return [Problem(name, None, f"the file is missing; the catalog says {expected.bytes:,} bytes")]
    except OSError as e:
        return [Problem(name, None, f"the file cannot be read ({e.strerror or e})")]
    return _differences(name, found, expected)


def find_unnamed_shards(directory: str, named: Collection[str], suffixes: Collection[str] = ()) -> list[str]:
    """Returns the sorted names of files that a reader of the folder would take for shards, except those in `named`.

    Args:
        directory: an address; the folder need not exist.
        named: the names of the shards that belong there.
        suffixes: suffixes of shards here, beside the usual ones of TFRecord files.
    """
    try:
        entries = list(storage.storage_of(directory).list_directory(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(
        each.name for each in entries if each.name not in named and records.is_shard_name(each.name, suffixes)
    )


def checksum_file(uri: str) -> tuple[int, int]:
    """Returns the size in bytes and the crc32c of the file at an address."""
    with storage.storage_of(uri).open_read(uri) as file:
        return records.checksum_file(file)


def verify_dataset(
    directory: str, check_record: CheckRecord | None = None, snapshot: str | int | None = None
) -> Iterator[tuple[str, list[Problem]]]:
    """Yields the name of each committed file and its differences from the catalog.

    The shards come first, in the order of the catalog, each with the files beside it; then the other files; last the
    files that are not in the catalog: those in its folder with names like shards, and those among the files beside
    shards.

    Args:
        directory: of the dataset.
        check_record: called with the bytes of every record that is not removed.
        snapshot: name or number of a snapshot; None for the folder itself, or else the latest snapshot.

    Raises:
        CatalogError: if there is no catalog, or it was edited.
        ConfigError: if there is no such snapshot.
    """
    directory, catalog = snapshots.find(directory, snapshot)
    removed, misfit = _load_removed(directory, catalog)
    every = [shard for split in catalog.splits.values() for shard in split.shards]
    for shard in every:
        check = None if misfit and shard.removed else check_record  # it is not known which records are removed
        gone = frozenset(removed.get(shard.name, ()))
        yield shard.name, verify_shard(directory, shard, catalog.compression, check, every, gone)
    for name, file in catalog.files.items():
        found = verify_file(directory, name, file)
        yield name, found or (misfit if name == snapshots.REMOVED_FILE else [])
    if misfit and snapshots.REMOVED_FILE not in catalog.files:
        yield snapshots.REMOVED_FILE, misfit
    suffixes = {records.suffix_of(shard.name) for shard in every}
    left_out = catalog.indexed.get("left_out", ())
    for name in find_unnamed_shards(directory, {*(shard.name for shard in every), *left_out}, suffixes):
        remedy = "run imagebeam index again, or move it" if catalog.indexed else "move or delete it"
        detail = f"{UNNAMED}, and readers that list the folder read it; {remedy}"
        yield name, [Problem(name, None, detail)]
    for name in find_unnamed_files(directory, catalog):
        yield name, [Problem(name, None, f"{UNNAMED}; move or delete it")]


def find_unnamed_files(directory: str, catalog: catalog_lib.Catalog) -> list[str]:
    """Returns the sorted names of files in the folders of side files that the catalog does not name.

    Returns none while a run writes to the dataset, or after one was killed: a commit moves some early, and the next
    run removes what is left of them.

    Args:
        directory: of the catalog.
        catalog: its catalog.
    """
    entries = storage.storage_of(directory).list_directory(directory)
    if any(entry.name == catalog_lib.METADATA_DIRECTORY for entry in entries):
        return []
    named = set(catalog.files)
    for split in catalog.splits.values():
        for shard in split.shards:
            named.update(each.name for each in shard.side_files(catalog.compression))
    found: set[str] = set()
    folders = {name.rpartition("/")[0] for name in named if name.startswith(f"{catalog_lib.INDEX_DIRECTORY}/")}
    for folder in {*folders, catalog_lib.INDEX_DIRECTORY, catalog_lib.STATE_DIRECTORY}:
        uri = storage.join(directory, folder)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            found |= {f"{folder}/{entry.name}" for entry in storage.storage_of(uri).list_directory(uri)}
    return sorted(found - named - folders)


def _load_removed(directory: str, catalog: catalog_lib.Catalog) -> tuple[Mapping[str, Collection[int]], list[Problem]]:
    """Returns the removed records by shard, and what is wrong with the file that names them."""
    try:
        return snapshots.load_removed(directory, catalog), []
    except errors.CatalogError as e:
        return {}, [Problem(snapshots.REMOVED_FILE, None, str(e))]
