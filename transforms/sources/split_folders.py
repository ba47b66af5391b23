"""Finds the splits of a data set of boxes by its folders and lists."""

from __future__ import annotations

import dataclasses
import itertools
import posixpath
from collections.abc import Iterable, Mapping, Sequence

from imagebeam import errors, storage
from imagebeam.transforms.sources import annotated_files, unread_folders

SPLITS = ("train", "val", "valid", "validation", "test")  # names of folders, and keys of data.yaml
_MAX_BESIDE = 100  # folders that are looked into
_MAX_ENTRIES = 100_000  # folders are few, and come early in a listing of a bucket


def kind_of(uri: str) -> str | None:
    """Returns the kind of an entry; None if there is none.

    Raises:
        ConfigError: if the storage does not tell.
    """
    try:
        return storage.storage_of(uri).stat(uri).kind
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as e:
        raise errors.ConfigError(f"{uri!r} cannot be read ({e.strerror or e}); check the address") from e


def names_in(folder: str, kind: str = storage.DIRECTORY, suffixes: tuple[str, ...] = ("",)) -> list[str]:
    """Returns the sorted names of the entries of a kind in a folder; of a very large folder, those among the first.

    Raises:
        ConfigError: if it cannot be listed.
    """
    try:
        entries = itertools.islice(storage.storage_of(folder).list_directory(folder), _MAX_ENTRIES)
        return sorted(entry.name for entry in entries if entry.kind == kind and entry.name.endswith(suffixes))
    except OSError as e:
        raise errors.ConfigError(f"{folder!r} cannot be listed ({e.strerror or e}); check --input") from e


def find_unread(root: str, used: Iterable[str], skipped: Iterable[str], output: str) -> tuple[str, ...]:
    """Returns the folders beside those of the splits that hold images, as paths below the root.

    Folders are looked into at the root and beside each folder that is used: at most 100 in each place.

    Args:
        root: of the data set.
        used: paths of the folders of images; "" is the root itself.
        skipped: names of folders that hold annotations.
        output: address that is not looked into.
    """
    read = set(used)
    if not read or "" in read:
        return ()
    above = {path[:end] for path in read for end in range(len(path)) if path[end] == "/"}
    found = []
    for parent in sorted({"", *map(posixpath.dirname, read)}):
        for name in names_in(storage.join(root, parent) if parent else root)[:_MAX_BESIDE]:
            path = posixpath.join(parent, name)
            address = storage.join(root, path)
            is_other = path not in read and path not in above and name not in skipped and not name.startswith(".")
            is_below = any(path.startswith(f"{each}/") for each in read)
            is_other = is_other and not is_below and address != output
            if is_other and annotated_files.holds(address, unread_folders.EXTENSIONS, if_unknown=False):
                found.append(path)
    return tuple(found)


def path_below(path: str) -> str:
    """Returns a path relative to the root without slashes at its ends; "" is the root itself."""
    path = posixpath.normpath(path.strip("/"))
    return "" if path == "." else path


def give_inner(root: str, inner: str) -> errors.ConfigError:
    """Returns the error of a data set that is in the folder `inner` of the folder given."""
    return errors.ConfigError(
        f"--input {root!r} holds the data set in its folder {inner!r}: give {storage.join(root, inner)!r}"
    )


def given_parts(root: str, images: Mapping[str, Sequence[str]], option: str) -> tuple[annotated_files.Part, ...]:
    """Returns the folders and lists that a config names, by split.

    Raises:
        ConfigError: if one is not there.
    """
    parts = []
    for split, paths in images.items():
        for given in paths:
            path = path_below(given)
            kind = kind_of(storage.join(root, path) if path else root)
            if path.split("/")[0] == ".." or kind not in (storage.DIRECTORY, storage.FILE):
                raise errors.ConfigError(f"{option}.{split}: {given!r} is neither a folder nor a list below {root!r}")
            parts.append(annotated_files.Part(split, path, kind == storage.FILE))
    return tuple(parts)


def with_unread(
    source: annotated_files.AnnotatedFilesSource, annotation_folder: str
) -> annotated_files.AnnotatedFilesSource:
    """Returns the source with the folders beside those of its splits, unless lists choose its images."""
    if any(part.is_list for part in source.parts):
        return source
    used = (part.path for part in source.parts)
    return dataclasses.replace(source, unread=find_unread(source.root, used, (annotation_folder,), source.exclude))
