from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from imagebeam.pipelines.beam import hold_signals

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture
def called() -> Iterator[list[int]]:
    """The signals whose handlers were called, in order."""
    numbers: list[int] = []
    before = {each: signal.signal(each, lambda number, _: numbers.append(number)) for each in ENDING}
    yield numbers
    for each, handler in before.items():
        signal.signal(each, handler)


@pytest.mark.parametrize("number", ENDING, ids=lambda number: number.name)
def test_handler_is_called_at_the_end(called: list[int], number: signal.Signals) -> None:
    handlers = [signal.getsignal(each) for each in ENDING]
    with hold_signals.held_back():
        os.kill(os.getpid(), number)
        assert called == []
        assert signal.getsignal(number) is signal.SIG_DFL  # a second one ends the process
    assert called == [number]
    assert [signal.getsignal(each) for each in ENDING] == handlers


def test_handler_is_called_where_the_context_raises(called: list[int]) -> None:
    with pytest.raises(ValueError, match=r"^no server$"), hold_signals.held_back():
        os.kill(os.getpid(), signal.SIGTERM)
        raise ValueError("no server")
    assert called == [signal.SIGTERM]


def test_signals_without_a_handler_keep_their_effect(called: list[int]) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    with hold_signals.held_back():
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        os.kill(os.getpid(), signal.SIGHUP)
    assert called == []


def test_another_thread_than_the_main_one_holds_nothing(called: list[int]) -> None:
    def work() -> None:
        with hold_signals.held_back():
            seen.append(signal.getsignal(signal.SIGTERM))

    before, seen = signal.getsignal(signal.SIGTERM), list[object]()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
    assert called == []
