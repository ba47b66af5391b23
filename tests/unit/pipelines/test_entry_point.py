"""Ctrl-C while a command starts."""

from __future__ import annotations

import pathlib
import signal
from collections.abc import Iterator

import pytest

from imagebeam.pipelines import lost_interrupt
from tests import command_line

# Runs a command that gets Ctrl-C when it imports a module.
_INTERRUPTED = """
import os, signal, sys
class Finder:
    def find_spec(name, *_):
        if name == {module!r}:
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except {dropped}:
                pass
sys.meta_path.insert(0, Finder)
sys.argv = ["imagebeam", *{arguments!r}]
{before}
from imagebeam.pipelines import entry_point
entry_point.run()
"""


def interrupt(module: str, *arguments: object, before: str = "", dropped: str = "()") -> command_line.Completed:
    words = [str(each) for each in arguments]
    return command_line.run_python(_INTERRUPTED.format(module=module, arguments=words, before=before, dropped=dropped))


@pytest.mark.parametrize(
    "module", ["imagebeam.catalog", "imagebeam.pipelines.command_parser", "imagebeam.pipelines.job_rules"]
)
def test_interrupt_while_modules_are_imported_ends_the_command_with_one_line(
    tmp_path: pathlib.Path, module: str
) -> None:
    done = interrupt(module, "plan", "--input", tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "imagebeam: interrupted\n")


def test_interrupt_that_an_import_drops_ends_the_command(tmp_path: pathlib.Path) -> None:
    done = interrupt("imagebeam.pipelines.job_rules", "plan", "--input", tmp_path, dropped="KeyboardInterrupt")
    assert (done.returncode, done.stderr) == (130, "imagebeam: interrupted\n")


def test_interrupt_that_is_ignored_stays_ignored() -> None:
    ignore = "signal.signal(signal.SIGINT, signal.SIG_IGN)"
    done = interrupt("imagebeam.pipelines.command_parser", "--version", before=ignore)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def _default_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class _Interrupted:
    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


@pytest.mark.usefixtures("_default_handler")
def test_interrupt_that_becomes_another_error_is_found() -> None:
    with pytest.raises(KeyboardInterrupt), lost_interrupt.found():
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt as e:
            raise RuntimeError("Error calling __set_name__") from e


@pytest.mark.usefixtures("_default_handler")
def test_interrupt_that_is_dropped_is_found_and_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), lost_interrupt.found():
        del [_Interrupted()][0]
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("_default_handler")
def test_other_errors_pass() -> None:
    with pytest.raises(ValueError, match=r"^x$"), lost_interrupt.found():
        raise ValueError("x")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
