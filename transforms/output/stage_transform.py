"""Copies tf.Transform's output into the staging folder of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator

from imagebeam import catalog as catalog_lib
from imagebeam import records, storage
from imagebeam.transforms.output import output_folder, output_paths


def stage(folder: str, staging: str) -> None:
    """Copies tf.Transform's output into a staging folder, and writes a list of the files there for the commit."""
    files = {}
    source, target = storage.storage_of(folder), storage.storage_of(staging)
    for name in sorted(_files_below(folder)):
        data = source.read(storage.join(folder, name))
        uri = storage.join(staging, name)
        target.make_directories(uri.rpartition("/")[0])
        target.write_whole(uri, data)
        files[name] = catalog_lib.File(len(data), records.extend_crc(0, data))
    target.write_whole(storage.join(staging, output_paths.STAGED_FILES), json.dumps(files).encode())


def _files_below(folder: str) -> Iterator[str]:
    store = storage.storage_of(folder)
    waiting = list(output_folder.TRANSFORM_FOLDERS)
    while waiting:
        inner = waiting.pop()
        for entry in store.list_directory(storage.join(folder, inner)):
            name = f"{inner}/{entry.name}"
            if entry.kind == storage.DIRECTORY:
                waiting.append(name)
            else:
                yield name
