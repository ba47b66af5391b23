"""Finds the TFRecord files below a folder, whatever their names are, with the split of each."""

from __future__ import annotations

import collections
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from imagebeam import catalog as catalog_lib
from imagebeam import concurrency, errors, plural, storage
from imagebeam.transforms.formats import tfrecord

_MAX_DEPTH = 4  # folders below that of the dataset
_READS_AT_ONCE = 32
_OWN_FOLDERS = frozenset({catalog_lib.INDEX_DIRECTORY, catalog_lib.STATE_DIRECTORY})


class ForeignShard(NamedTuple):
    """A TFRecord file of another tool."""

    name: str  # path below the folder of the dataset
    split: str
    size: int  # bytes
    version: int  # see storage.Entry


class FoundShards(NamedTuple):
    """The TFRecord files of a folder."""

    splits: Mapping[str, Sequence[ForeignShard]]  # in their order
    compression: str  # "none" or "gzip"
    skipped: Mapping[str, int]  # other files, by kind
    left_out: Sequence[str]  # names of TFRecord files that the user's pattern does not match

    @property
    def shards(self) -> list[ForeignShard]:
        return [shard for shards in self.splits.values() for shard in shards]


def find_shards(directory: str, pattern: str | None = None, is_partial: bool = False) -> FoundShards:
    """Returns the TFRecord files of a folder and of those below it, each recognized by its first 12 bytes.

    Args:
        directory: address of the folder.
        pattern: a regular expression that finds the split in a path; files that it does not match are left out.
        is_partial: whether files of a numbered series may be missing.

    Raises:
        ConfigError: if there is none; or they cannot be read together; or some of a series are missing.
        OSError: if the storage cannot be read.
    """
    matcher = None if pattern is None else _compile(pattern)
    skipped: collections.Counter[str] = collections.Counter()
    store = storage.storage_of(directory)
    candidates = [each for each in _walk(directory) if _may_be_tfrecord(*each, skipped)]
    num_ahead = 1 if store.is_local else _READS_AT_ONCE
    kinds = concurrency.map_ahead(
        lambda each: tfrecord.kind_of(storage.join(directory, each[0]), each[1].size), candidates, num_ahead
    )
    by_kind: dict[str, list[str]] = {"none": [], "gzip": []}
    found, left_out, broken = [], [], []
    for (path, entry), kind in zip(candidates, kinds):
        if kind is None:
            if tfrecord.LIKE_TFRECORD.search(path):
                broken.append(path)
            else:
                skipped["other_file"] += 1
            continue
        split = tfrecord.parse_path(path).split if matcher is None else tfrecord.split_by(matcher, path)
        if split is None:
            left_out.append(path)
            continue
        if kind in by_kind:  # an empty file has no kind
            by_kind[kind].append(path)
        found.append(ForeignShard(path, split, entry.size, entry.version))
    if broken:
        raise errors.ConfigError(
            "index-no-tfrecord",
            f"{plural.name_some(broken)} of {directory} begin{'s' * (len(broken) == 1)} with no TFRecord, plain or "
            "gzip: damaged, or of another kind (TensorFlow's ZLIB is not read); fetch again, or move out of the folder",
        )
    if not found:
        passed = ", ".join(f"{count:,} {kind}" for kind, count in sorted(skipped.items())) or "nothing"
        more = f"; --split {pattern!r} matches none of {plural.name_some(left_out)}" if left_out else ""
        raise errors.ConfigError(
            "index-no-tfrecord", f"there is no TFRecord file in {directory} (skipped: {passed}){more}"
        )
    if by_kind["none"] and by_kind["gzip"]:
        raise errors.ConfigError(
            "index-mixed-compression",
            f"{directory} holds plain TFRecord files ({plural.name_some(by_kind['none'])}) and gzip ones "
            f"({plural.name_some(by_kind['gzip'])}): take one kind with --split PATTERN, or unpack the others",
        )
    _check_names([shard.name for shard in found])
    if matcher is None:
        _check_series(directory, [shard.name for shard in found], is_partial)
    splits: dict[str, list[ForeignShard]] = {}
    for shard in sorted(found, key=_order):
        splits.setdefault(shard.split, []).append(shard)
    names = sorted(splits, key=lambda name: (name != "train", name))
    skipped["left_out"] += len(left_out)
    return FoundShards(
        {name: splits[name] for name in names},
        "gzip" if by_kind["gzip"] else "none",
        {kind: count for kind, count in sorted(skipped.items()) if count},
        left_out,
    )


def _order(shard: ForeignShard) -> tuple[str, int, str]:
    named = tfrecord.parse_path(shard.name)
    return named.series, named.number, shard.name


def _compile(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as e:
        raise errors.ConfigError("index-split-pattern", f"--split {pattern!r} is not a regular expression ({e})") from e


def _walk(
    directory: str, folder: str = "", ancestors: frozenset[tuple[int, int]] = frozenset()
) -> Iterator[tuple[str, storage.Entry]]:
    """Yields the files below a folder by their paths, without hidden ones and those of imagebeam's own folders."""
    uri = storage.join(directory, folder) if folder else directory
    for entry in sorted(storage.storage_of(uri).list_directory(uri)):
        path = f"{folder}/{entry.name}" if folder else entry.name
        if entry.name.startswith((".", "_")) or not entry.name:
            continue
        if entry.kind == storage.DIRECTORY:
            is_own = not folder and entry.name in _OWN_FOLDERS
            if not is_own and path.count("/") < _MAX_DEPTH and entry.identity not in ancestors:
                yield from _walk(directory, path, ancestors | {entry.identity})
        elif entry.kind == storage.FILE:
            yield path, entry


def _may_be_tfrecord(path: str, entry: storage.Entry, skipped: collections.Counter[str]) -> bool:
    """Returns whether the file is worth opening; counts it if not."""
    if tfrecord.has_other_extension(entry.name):
        skipped["other_file"] += 1
        return False
    return entry.size != 0 or tfrecord.LIKE_TFRECORD.search(path) is not None


def _check_names(names: Collection[str]) -> None:
    """Raises ConfigError if two files would have the same index."""
    taken: dict[str, str] = {}
    for name in names:
        other = taken.setdefault(catalog_lib.Shard(name, 0, 0, 0).index_name, name)
        if other != name:
            raise errors.ConfigError(
                "index-names-collide", f"{other} and {name} would have one index: rename one of the two"
            )


def _check_series(directory: str, names: Sequence[str], is_partial: bool) -> None:
    """Raises ConfigError if numbered files are missing, or a series is there twice."""
    numbers: dict[tuple[str, int], set[int]] = {}
    for named in map(tfrecord.parse_path, names):
        if named.total:
            numbers.setdefault((named.series, named.total), set()).add(named.number)
    totals: dict[str, int] = {}
    for (series, total), found in numbers.items():
        other = totals.setdefault(series, total)
        if other != total:
            raise errors.ConfigError(
                "index-two-series",
                f"{directory} holds {series.lstrip('/')} of {other:,} files and of {total:,}: one of the two is of "
                "another run; remove it, or choose with --split, such as --split '(train|test).*-of-"
                f"{max(other, total):05d}'",
            )
        missing = sorted(set(range(total)) - found) if min(found) == 0 else sorted(set(range(1, total + 1)) - found)
        if missing and not is_partial:
            shown = plural.name_some([f"{each:05d}" for each in missing])
            raise errors.ConfigError(
                "index-shards-missing",
                f"{plural.count(len(missing), 'file')} of the {total:,} of {series.lstrip('/')} in {directory} "
                f"{'is' if len(missing) == 1 else 'are'} missing: {shown}; fetch them, or take those that are "
                "there with --partial",
            )
