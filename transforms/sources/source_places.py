"""Addresses of an input: complete ones of relative ones, and without the output that may be in it."""

from __future__ import annotations

import os
import posixpath

from imagebeam import errors, plural, storage
from imagebeam.transforms.output import output_folder
from imagebeam.transforms.sources import files


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
        raise errors.ConfigError(f"--input {uri!r} is a glob and source.include is set; give one of the two")
    kind = kind_of(root, uri)
    refuse_input_as_output(output, root)
    return root, include if globs == files.EVERYTHING else globs, kind


def kind_of(address: str, uri: str) -> str:
    """Returns the kind of the entry at an address, for which the user gave `uri`.

    Raises:
        ConfigError: if there is none, or it cannot be read.
    """
    try:
        return storage.storage_of(address).stat(address).kind
    except OSError as e:
        raise errors.ConfigError(f"--input {uri!r} cannot be read ({e.strerror or e}); check the address") from e


def _real_address(uri: str) -> str:
    """Returns an address that is the same for all names of a folder: resolves links in local paths."""
    return os.path.realpath(uri) if storage.storage_of(uri).is_local else uri


def refuse_input_as_output(output: str, root: str) -> None:
    """Raises ConfigError if both are the same folder, perhaps by another name."""
    if _real_address(output) == _real_address(root):
        raise errors.ConfigError(f"--output {output!r} is the input itself; choose another folder")


def leave_out(output: str, root: str) -> str:
    """Returns the address of the output as a listing of the folder `root` sees it, so that it can leave it out.

    Raises:
        ConfigError: if the output is that folder itself, or is below it and holds files that must be listed.
    """
    refuse_input_as_output(output, root)
    real_output, real_root = _real_address(output), _real_address(root)
    if not real_output.startswith(storage.join(real_root, "")):
        return output
    try:
        others = output_folder.OutputFolder(output).find_files_of_others()
    except OSError as e:
        raise errors.ConfigError(
            f"--output {output!r} is inside the input, and its content cannot be listed ({e.strerror or e}); "
            "grant read access to it, or choose an --output elsewhere"
        ) from e
    if others:
        raise errors.ConfigError(
            f"--output {output!r} is inside the input {root!r}, which is listed without it, and holds "
            f"{plural.name_some(others)}, which imagebeam did not write: they would be lost silently; "
            "choose a new folder as --output, or one outside of the input"
        )
    return storage.join(root, real_output[len(storage.join(real_root, "")) :])
