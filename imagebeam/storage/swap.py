"""Replaces a small file only if it still has the content that was read, on a storage that has no such operation."""

from __future__ import annotations

import contextlib
import secrets

from imagebeam.storage import interface


def swap_by_moving(store: interface.Storage, uri: str, old: bytes, new: bytes) -> bool:
    """Replaces the file at `uri` if it holds `old`; returns whether this call did it.

    Of two calls at once, the one that moves the file away wins, if the storage renames atomically. For an instant
    there is no file at `uri`. A file that somebody creates in that instant stays, and this call returns False. If this
    call fails in that instant, it puts the file back; if its process is killed then, the file stays away.

    Of three at once, two can win: one replaces the file, another that has read the old one moves the new one away, and
    a third creates its own before it is back. The first then finds at its next renewal, and before its commit, that the
    file is not its own any more.
    """
    aside = f"{uri}.tmp-{secrets.token_hex(4)}"
    try:
        if store.read(uri) != old:
            return False
    except FileNotFoundError:
        return False
    try:
        with contextlib.suppress(FileNotFoundError):  # moved by another call, or by this one whose answer was lost
            store.rename(uri, aside)
        try:
            moved = store.read(aside)  # only this call knows the name: what is there shows what it moved
        except FileNotFoundError:
            return False
        if moved == old and store.create_new(uri, new):
            store.remove(aside)
            return True
    except BaseException:
        with contextlib.suppress(OSError):  # the first error is the one to report
            _put_back(store, aside, uri)
        raise
    _put_back(store, aside, uri)  # replaced after the first look, or created in the gap
    return False


def _put_back(store: interface.Storage, aside: str, uri: str) -> None:
    """Moves a file back, or removes it if there is a newer one in its place."""
    try:
        store.publish(aside, uri)
    except FileExistsError:
        store.remove(aside)
