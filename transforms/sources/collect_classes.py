"""Collects the names of classes from the annotation files of a data set, where no list names them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from imagebeam import concurrency, errors, storage
from imagebeam.transforms.images import image_objects
from imagebeam.transforms.sources import annotated_files, class_files, find_entries


class NamingFiles(NamedTuple):
    """Annotation files that name the classes of their objects."""

    kind: str  # for errors
    names_in: Callable[[bytes], set[str]]  # returns the classes in a file; none if it cannot be parsed
    option: str  # section of the config


def collect_names(source: annotated_files.AnnotatedFilesSource, files: NamingFiles) -> tuple[str, ...]:
    """Returns the names of all classes in the annotation files of a data set, sorted. Reads them one after the other.

    Raises:
        ConfigError: if the files cannot be read, or name no class.
    """
    num_ahead = 1 if storage.storage_of(source.root).is_local else find_entries.REQUESTS_AT_ONCE
    names: set[str] = set()
    try:
        read = functools.partial(_classes_in, names_in=files.names_in)
        for found in concurrency.map_ahead(read, source.find_annotations(), num_ahead):
            names |= found
    except OSError as e:
        raise errors.ConfigError(
            f"the {files.kind} files below {source.root!r} cannot be read ({e.strerror or e}), which name the classes; "
            f"check --input, or list the classes in {files.option}.classes"
        ) from e
    if not names:
        raise errors.ConfigError(
            f"no {files.kind} file with an object was found for the images below {source.root!r}: check --input, "
            f"{files.option}.images and {files.option}.annotation_folder"
        )
    return tuple(sorted(names))


def _classes_in(uri: str, names_in: Callable[[bytes], set[str]]) -> set[str]:
    try:
        return names_in(storage.storage_of(uri).read(uri))
    except OSError as e:
        if storage.is_fault(e):
            raise
        return set()  # the image becomes a reject when it is read


def with_classes(
    source: annotated_files.AnnotatedFilesSource, given: str | Sequence[str] | None, base: int, files: NamingFiles
) -> annotated_files.AnnotatedFilesSource:
    """Returns the source, checked, with the classes that are given, or else those that its annotations name.

    Args:
        source: whose reader has no classes yet.
        given: names of the classes, or the file that has them.
        base: id of the first class.
        files: that name the classes.

    Raises:
        ConfigError: if the names cannot be read, or images are not where the config says.
    """
    if given is None:
        names = collect_names(source, files)
    else:
        names = class_files.read_classes(source.root, given, f"{files.option}.classes")
    source.check(f"{files.option}.images")
    reader: Any = source.reader
    reader = dataclasses.replace(reader, classes=image_objects.ClassNames(names, None, base))
    return dataclasses.replace(source, reader=reader)
