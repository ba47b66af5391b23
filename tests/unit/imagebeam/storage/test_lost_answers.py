"""A storage does what it was asked once, also if an answer is lost. tests/integration does this to real servers."""

from __future__ import annotations

import contextlib
import itertools
import pathlib

import pytest

from imagebeam import storage
from imagebeam.storage import remote
from tests import lost_answers
from tests.unit.imagebeam.storage import test_remote


class LossyStub(test_remote.StubStorage):
    """Moves in one step."""

    def lasting_error(self, error: Exception, uri: str) -> Exception | None:
        return None if isinstance(error, ConnectionError) else super().lasting_error(error, uri)


for request in ("_stat", "_read", "_put", "_move", "_remove"):
    setattr(LossyStub, request, lost_answers.LOSSES.wrap(getattr(LossyStub, request)))


@pytest.fixture(params=["stub", "lossymemory"])
def place(
    request: pytest.FixtureRequest, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[storage.Storage, str]:
    """A storage on a network, and the address of a folder."""
    monkeypatch.setattr(remote, "_FIRST_WAIT_SEC", 0.001)
    lost_answers.LOSSES.lose(-1)
    if request.param == "stub":
        return LossyStub(), "x://b"
    uri = f"{request.param}://{tmp_path.name}"
    return storage.storage_of(uri), uri


@pytest.mark.parametrize("name", lost_answers.OPERATIONS)
def test_operation_is_done_once_whatever_answer_is_lost(place: tuple[storage.Storage, str], name: str) -> None:
    assert (
        lost_answers.check(
            *place, lost_answers.OPERATIONS[name], lost_answers.LOSSES.lose, lambda: lost_answers.LOSSES.was_lost
        )
        > 0
    )


def test_file_is_never_read_empty_or_in_part(place: tuple[storage.Storage, str]) -> None:
    lost_answers.check_reads(*place, num_writes=300)


class Unreachable(storage.LocalStorage):
    """A local disk whose answer to one call is lost for good."""


for request in ("read", "rename", "create_new", "publish", "remove"):
    setattr(Unreachable, request, lost_answers.LOSSES.wrap(getattr(Unreachable, request)))


@pytest.mark.parametrize("content", [b"old", b"renewed"])
def test_swap_that_fails_anywhere_leaves_a_file(tmp_path: pathlib.Path, content: bytes) -> None:
    path, store, local = tmp_path / "lock", Unreachable(), storage.LocalStorage()
    for number in itertools.count():
        path.write_bytes(content)
        lost_answers.LOSSES.lose(number)
        with contextlib.suppress(ConnectionError):
            remote.swap_by_moving(store, str(path), b"old", b"new")
        assert lost_answers.files_in(local, str(tmp_path)) in ({"lock": content}, {"lock": b"new"})
        if not lost_answers.LOSSES.was_lost:
            break
    assert number == (5 if content == b"old" else 1)
