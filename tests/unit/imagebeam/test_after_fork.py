from __future__ import annotations

import multiprocessing
import os

import pytest

from imagebeam import concurrency
from tests import patience


class Counter(concurrency.RebuiltAfterFork):
    """Counts how often its state was built."""

    builds = 0

    def rebuild(self) -> None:
        self.builds += 1


def exit_with_builds(counter: Counter) -> None:
    os._exit(counter.builds)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_state_is_built_at_first_and_in_each_forked_process() -> None:
    counter = Counter()
    assert counter.builds == 1
    process = multiprocessing.get_context("fork").Process(target=exit_with_builds, args=(counter,))
    process.start()
    process.join(patience.HANG_SEC)
    assert process.exitcode == 2
    assert counter.builds == 1
