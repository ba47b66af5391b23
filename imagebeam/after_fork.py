"""State that a forked process must build again."""

from __future__ import annotations

import os
import weakref


class RebuiltAfterFork:
    """Base for state that must be rebuilt after fork(): threads do not survive it, and locks may be held.

    Connections are rebuilt too: two processes must not share one.
    """

    def __init__(self) -> None:
        self.rebuild()
        _instances.add(self)

    def rebuild(self) -> None:
        """Sets all such state to its beginning. Called by the constructor, and in the child after a fork."""
        raise NotImplementedError


_instances: weakref.WeakSet[RebuiltAfterFork] = weakref.WeakSet()


def _rebuild_all() -> None:
    for each in list(_instances):
        each.rebuild()


os.register_at_fork(after_in_child=_rebuild_all)
