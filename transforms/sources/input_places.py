"""Checks and finds what a config names in the input: addresses, folders of splits, files with names of classes."""

from __future__ import annotations

import itertools
import os
import posixpath
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from imagebeam import errors, plural, storage
from imagebeam.transforms.output import output_folder
from imagebeam.transforms.sources import files, find_files

SPLITS = ("train", "val", "valid", "validation", "test")  # names of folders, and keys of data.yaml
_MAX_BESIDE = 100  # folders that are looked into
_MAX_ENTRIES = 100_000  # folders are few, and come early in a listing of a bucket


class Part(NamedTuple):
    """Some images of a split: those in a folder, or those in a list."""

    split: str
    path: str  # path of the folder or list below the source's root; "" is the root itself
    is_list: bool = False


def kind_of(uri: str) -> str | None:
    """Returns the kind of an entry; None if there is none.

    Raises:
        ConfigError: if the storage does not tell.
    """
    with errors.explained("file-unreadable", f"{uri!r} cannot be read", "; check the address"):
        try:
            return storage.storage_of(uri).stat(uri).kind
        except (FileNotFoundError, NotADirectoryError):
            return None


def names_in(folder: str, kind: str = storage.DIRECTORY, suffixes: tuple[str, ...] = ("",)) -> list[str]:
    """Returns the sorted names of the entries of a kind in a folder; of a very large folder, those among the first.

    Raises:
        ConfigError: if it cannot be listed.
    """
    with errors.explained("folder-unreadable", f"{folder!r} cannot be listed", "; check --input"):
        entries = itertools.islice(storage.storage_of(folder).list_directory(folder), _MAX_ENTRIES)
        return sorted(entry.name for entry in entries if entry.kind == kind and entry.name.endswith(suffixes))


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
            if is_other and find_files.holds(address, IMAGE_SUFFIXES, if_unknown=False):
                found.append(path)
    return tuple(found)


def path_below(path: str) -> str:
    """Returns a path relative to the root without slashes at its ends; "" is the root itself."""
    path = posixpath.normpath(path.strip("/"))
    return "" if path == "." else path


def give_inner(root: str, inner: str) -> errors.ConfigError:
    """Returns the error of a data set that is in the folder `inner` of the folder given."""
    return errors.ConfigError(
        "input-holds-folder",
        f"--input {root!r} holds the data set in its folder {inner!r}: give {storage.join(root, inner)!r}",
    )


def require_folder(uri: str, expected: str) -> None:
    """Raises ConfigError if the input is no folder; `expected` says what to give."""
    if kind_of(uri) != storage.DIRECTORY:
        raise errors.ConfigError("input-not-folder", f"--input {uri!r} is not a folder; give {expected}")


def parts_of_splits(folders: Collection[str]) -> tuple[Part, ...]:
    """Returns the folders that have the names of splits; the whole root as `train` if none has."""
    return tuple(Part(split, split) for split in SPLITS if split in folders) or (Part("train", ""),)


def given_parts(root: str, images: Mapping[str, Sequence[str]], option: str) -> tuple[Part, ...]:
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
                raise errors.ConfigError(
                    "images-no-folder-or-list",
                    f"{option}.{split}: {given!r} is neither a folder nor a list below {root!r}",
                )
            parts.append(Part(split, path, kind == storage.FILE))
    return tuple(parts)


def is_absolute(address: str) -> bool:
    """Returns whether an address is complete, and not relative to the input or the table."""
    return address.startswith(("/", "~", "file://")) or storage.scheme_of(address) != "file"


def resolve(address: str, folder: str) -> str:
    """Returns a complete address; a relative one is below `folder`, or above it with `..`."""
    if is_absolute(address):
        return storage.normalize(address)
    return storage.normalize(storage.join_relative(folder, posixpath.normpath(address)).removesuffix("/."))


def is_folder(uri: str) -> bool:
    """Returns whether there is a folder; False if that cannot be told."""
    try:
        return storage.storage_of(uri).stat(uri).kind == storage.DIRECTORY
    except OSError:  # reading the table reports the error
        return False


def find_input(uri: str, include: tuple[str, ...], output: str) -> tuple[str, tuple[str, ...], str]:
    """Returns what `uri`, an address or a glob, names: an address, the globs below it, and the kind of its entry.

    Raises:
        ConfigError: if it cannot be read, is the output itself, or both `uri` and `include` are globs.
    """
    root, globs = files.split_glob(uri)
    if globs != files.EVERYTHING and include != files.EVERYTHING:
        raise errors.ConfigError(
            "input-two-globs", f"--input {uri!r} is a glob and source.include is set; give one of the two"
        )
    kind = stat_input(root, uri).kind
    refuse_input_as_output(output, root)
    return root, include if globs == files.EVERYTHING else globs, kind


def stat_input(address: str, uri: str) -> storage.Entry:
    """Returns the entry at an address, for which the user gave `uri`.

    Raises:
        ConfigError: if there is none, or it cannot be read.
    """
    with errors.explained("input-unreadable", f"--input {uri!r} cannot be read", "; check the address"):
        return storage.storage_of(address).stat(address)


def _real_address(uri: str) -> str:
    """Returns an address that is the same for all names of a folder: resolves links in local paths."""
    return os.path.realpath(uri) if storage.storage_of(uri).is_local else uri


def refuse_input_as_output(output: str, root: str) -> None:
    """Raises ConfigError if both are the same folder, perhaps by another name."""
    if _real_address(output) == _real_address(root):
        raise errors.ConfigError("output-is-input", f"--output {output!r} is the input itself; choose another folder")


def leave_out(output: str, root: str) -> str:
    """Returns the address of the output as a listing of the folder `root` sees it, so that it can leave it out.

    Raises:
        ConfigError: if the output is that folder itself, or is below it and holds files that must be listed.
    """
    refuse_input_as_output(output, root)
    real_output, real_root = _real_address(output), _real_address(root)
    if not real_output.startswith(storage.join(real_root, "")):
        return output
    problem = f"--output {output!r} is inside the input, and its content cannot be listed"
    remedy = "; grant read access to it, or choose an --output elsewhere"
    with errors.explained("output-unreadable", problem, remedy):
        others = output_folder.OutputFolder(output).find_files_of_others()
    if others:
        raise errors.ConfigError(
            "output-in-input",
            f"--output {output!r} is inside the input {root!r}, which is listed without it, and holds "
            f"{plural.name_some(others)}, which imagebeam did not write: they would be lost silently; "
            "choose a new folder as --output, or one outside of the input",
        )
    return storage.join(root, real_output[len(storage.join(real_root, "")) :])


UNREAD = "image_outside_splits"
IMAGE_SUFFIXES = tuple(f".{each}" for name in files.IMAGE_EXTENSIONS for each in (name, name.upper()))


def notes_on_unread(folders: Sequence[str]) -> tuple[str, ...]:
    """Returns a note that names folders which are not read; () if there are none."""
    if not folders:
        return ()
    return (
        f"folders with images that belong to no split, and are not read: {plural.name_some(folders)}; "
        "to read them, name them with the splits in the section of the source",
    )


def count_unread(root: str, folders: Iterable[str], exclude: str = "") -> dict[str, int]:
    """Returns the number of files with the extension of an image in these folders and below, as a kind of files.

    Args:
        root: of the data set.
        folders: paths below it.
        exclude: address that is not searched.

    Raises:
        OSError: if a folder cannot be listed.
    """
    every = (find_files.find_files(storage.join(root, each), find_files.EVERYTHING, exclude) for each in folders)
    count = sum(uri.endswith(IMAGE_SUFFIXES) for found in every for uri in found)
    return {UNREAD: count} if count else {}


_MAX_MIB = 16


def read_classes(root: str, given: str | Sequence[str], option: str) -> tuple[str, ...]:
    """Returns names of classes in their order.

    Args:
        root: folder of the data set.
        given: the names, or a file below `root` with a name on each line.
        option: key of the config, or file, for errors.

    Raises:
        ConfigError: if the file cannot be read, or a name is empty or repeated.
    """
    if not isinstance(given, str):
        names = tuple(given)
        where = option
    else:
        uri = resolve(given, root)
        where = f"{option}: {uri!r}"
        text = read_text(uri, _MAX_MIB, where, "give a file below --input, or a list", "no list of classes")
        names = tuple(line.strip() for line in text.rstrip().splitlines())
    check_names(names, where)
    return names


def check_names(names: Sequence[str], where: str) -> None:
    """Checks that each class has a name of its own.

    Raises:
        ConfigError: if not.
    """
    empty = next((index for index, name in enumerate(names) if not name.strip()), None)
    if empty is not None or not names:
        raise errors.ConfigError(
            "classes-name-empty", f"{where}: the name of class {empty or 0} is empty; give each class a name"
        )
    if len(set(names)) < len(names):
        repeated = next(name for index, name in enumerate(names) if name in names[:index])
        raise errors.ConfigError(
            "classes-name-twice", f"{where} names {repeated!r} twice; give each class a name of its own"
        )


def read_text(uri: str, max_mib: int, where: str, remedy: str, doubt: str) -> str:
    """Returns the text of a file.

    Args:
        uri: of the file.
        max_mib: the most that is read, in MiB.
        where: the file, for errors.
        remedy: what to do if it cannot be read.
        doubt: what a larger file is, such as `no list of colors`.

    Raises:
        ConfigError: if the file cannot be read, is not UTF-8, or is larger.
    """
    try:
        with errors.explained("file-unreadable", f"{where} cannot be read", f"; {remedy}"):
            data = storage.storage_of(uri).read(uri, 0, (max_mib << 20) + 1)
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise errors.ConfigError("file-not-utf8", f"{where} is not UTF-8 text: {e}") from e
    if len(data) > max_mib << 20:
        raise errors.ConfigError("file-too-large", f"{where} has more than {max_mib} MiB; it is {doubt}")
    return text
