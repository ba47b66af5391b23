"""Errors that a user can act on. The command line prints their text alone and exits with their code."""

from __future__ import annotations


class ImagebeamError(Exception):
    """Base of all errors that stop imagebeam and are not bugs."""

    exit_code = 1


class ConfigError(ImagebeamError):
    """The command, the config or the input is wrong; nothing was written."""

    exit_code = 2


class TooManyRejectsError(ImagebeamError):
    """More images were rejected, removed or repeated than the config allows, or a snapshot drifts too far."""

    exit_code = 3


class DuplicatesError(TooManyRejectsError):
    """Images repeat others, and `duplicates` allows none; nothing was committed."""


class VerificationError(ImagebeamError):
    """The stored files differ from the catalog."""

    exit_code = 4


class BusyError(ImagebeamError):
    """Another run writes to the output, or committed to it in the meantime; nothing of this run was committed."""

    exit_code = 5


class CatalogError(ImagebeamError):
    """The address holds no readable catalog: no dataset, another format version, or an edited file."""

    exit_code = 4


class ShardError(ImagebeamError):
    """A shard or its index is missing, or differs from the catalog."""

    exit_code = 4


class ExampleError(ImagebeamError):
    """An example cannot be read or decoded; the text names shard, record, key and byte offset."""


class RecordError(ValueError):
    """A TFRecord file is broken at `offset` (bytes from its start, uncompressed)."""

    def __init__(self, offset: int, detail: str):
        super().__init__(f"{detail} at byte offset {offset}")
        self.offset = offset
        self.detail = detail


def from_exit_code(exit_code: int, message: str) -> ImagebeamError:
    """Returns the error of a job that ended in another process with `exit_code`."""
    kinds = (ConfigError, TooManyRejectsError, VerificationError, BusyError)
    return next((kind for kind in kinds if kind.exit_code == exit_code), ImagebeamError)(message)
