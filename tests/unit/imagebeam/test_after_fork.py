from __future__ import annotations

import gc
import multiprocessing
import os

import pytest

from imagebeam import after_fork
from tests import patience


class Counter(after_fork.RebuiltAfterFork):
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


def test_collected_objects_are_forgotten() -> None:
    gc.freeze()  # collecting then looks only at what this test makes
    before = len(after_fork._instances)
    counter = Counter()
    assert len(after_fork._instances) == before + 1
    del counter
    gc.collect()
    assert len(after_fork._instances) <= before


def test_base_has_no_state_of_its_own() -> None:
    with pytest.raises(NotImplementedError):
        after_fork.RebuiltAfterFork()
