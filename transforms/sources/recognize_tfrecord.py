"""Recognizes TFRecord files by their content, whatever their names are."""

from __future__ import annotations

import re

from imagebeam import errors, records, storage
from imagebeam.transforms.images import image_formats
from imagebeam.transforms.packed import gzip_content

LIKE_TFRECORD = re.compile(r"\.tfrec|tfrecord|\.records?\b|-\d{5,}-of-\d{5,}", re.IGNORECASE)  # in a name

# Extensions of other files, which are not opened: on a network, each needs a request.
_OTHERS = frozenset(
    [
        "json",
        "jsonl",
        "txt",
        "csv",
        "tsv",
        "md",
        "html",
        "htm",
        "pbtxt",
        "py",
        "ipynb",
        "yaml",
        "yml",
        "toml",
        "xml",
        "log",
        "pdf",
        "zip",
        "tar",
        "tgz",
        "npz",
        "npy",
        "h5",
        "hdf5",
        "mat",
        "parquet",
        "ckpt",
        "index",
        "sha256",
        "md5",
        "idx",
        "pickle",
        "pkl",
    ]
)


def has_other_extension(name: str) -> bool:
    """Returns whether the extension of a file says that it is no TFRecord file."""
    extension = name.rpartition(".")[2].lower() if "." in name else ""
    return extension in _OTHERS or extension in image_formats.BY_EXTENSION


def kind_of(uri: str, size: int) -> str | None:
    """Returns "none" for a plain file and "gzip", "" for an empty file, and None for one that is no TFRecord file.

    Args:
        uri: address of the file.
        size: its bytes, as listed.

    Raises:
        OSError: if it cannot be read.
    """
    if not size:
        return ""
    head = storage.storage_of(uri).read(uri, 0, records.HEADER_BYTES)
    if records.begins_with_record(head):
        return "none"
    if not head.startswith(gzip_content.MAGIC):
        return None
    try:
        with storage.storage_of(uri).open_read(uri) as file:
            first = next(iter(records.scan_records(file, "gzip")), None)
    except errors.RecordError:
        return None
    return None if first is None and not LIKE_TFRECORD.search(uri.rpartition("/")[2]) else "gzip"
