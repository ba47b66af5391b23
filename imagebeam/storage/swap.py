"""Replaces a small file only if it still has the content that was read, on a storage that has no such operation."""

from __future__ import annotations

import secrets

from imagebeam.storage import interface


def swap_by_moving(store: interface.Storage, uri: str, old: bytes, new: bytes) -> bool:
    """Replaces the file at `uri` if it holds `old`; returns whether this call did it.

    Of two calls at once, the one that moves the file away wins, if the storage renames atomically. For an instant
    there is no file at `uri`. A file that somebody creates in that instant stays, and this call returns False.

    Of three at once, two can win: one replaces the file, another that has read the old one moves the new one away, and
    a third creates its own before it is back. The first then finds at its next renewal, and before its commit, that the
    file is not its own any more.
    """
    aside = f"{uri}.tmp-{secrets.token_hex(4)}"
    try:
        if store.read(uri) != old:
            return False
        store.rename(uri, aside)
        moved = store.read(aside)
    except FileNotFoundError:
        return False
    if moved != old:  # replaced after the first look
        try:
            store.publish(aside, uri)
        except FileExistsError:
            store.remove(aside)
        return False
    is_created = store.create_new(uri, new)
    store.remove(aside)
    return is_created
