"""Rules for all tests.

In CI (IMAGEBEAM_CI=1) a test marked `integration` that skips is a failure: no missing server is silently green. Exempt
are the packages that Python 3.10 cannot have. No property fails because the machine is busy.
"""

import os
import pathlib
import reprlib
import signal
import sys
import traceback
from collections.abc import Generator

import hypothesis
import pytest

_IN_CI = os.environ.get("IMAGEBEAM_CI") == "1"
_TESTS = pathlib.Path(__file__).parent
_INTEGRATION = _TESTS / "integration"

# Python 3.10 cannot have these beside Beam's packages for Google Cloud, as setup.py says, so their tests skip there.
_NOT_ON_PYTHON_3_10 = ("tensorflow_datasets", "tensorflow_transform")

LONG_UNIT_TESTS = (  # 10 to 40 s each
    "unit/imagebeam/test_dataset.py",
    "unit/transforms/commit/test_commit_races.py",
    "unit/imagebeam/reader/test_bare_pixels.py",
    "unit/pipelines/test_cli.py",
)

NUM_EXAMPLES = 50  # of a property that does not choose its own number; each run draws other ones

hypothesis.settings.register_profile(
    "imagebeam", deadline=None, max_examples=NUM_EXAMPLES, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("imagebeam")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a background job of a shell: tests interrupt themselves
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the long files before the short ones, so that the workers of a run end together."""
    long = {_TESTS / name for name in LONG_UNIT_TESTS}
    items.sort(key=lambda item: (item.path.is_relative_to(_TESTS / "unit"), item.path not in long))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and call.excinfo is not None and isinstance(item, pytest.Function):
        _name_case(item, call.excinfo, report)
    xfailed = hasattr(report, "wasxfail")
    if _IN_CI and not xfailed and item.get_closest_marker("integration"):
        _fail_if_skipped(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a module that skips as a whole: its marks are never read, so the folder decides."""
    report = yield
    if _IN_CI and collector.path.is_relative_to(_INTEGRATION):
        _fail_if_skipped(report)
    return report


def _name_case(item: pytest.Function, error: pytest.ExceptionInfo[BaseException], report: pytest.TestReport) -> None:
    """Adds the variables of the failed test to its report: they name the case of a loop."""
    for frame, _ in traceback.walk_tb(error.tb):
        if frame.f_code is getattr(item.function, "__code__", None):
            lines = [f"{name} = {reprlib.repr(value)}" for name, value in frame.f_locals.items() if name[0] != "@"]
            report.sections.append(("variables of the test", "\n".join(lines)))


def _fail_if_skipped(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped:
        reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
        if sys.version_info < (3, 11) and any(f"could not import '{name}'" in reason for name in _NOT_ON_PYTHON_3_10):
            return
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid} was skipped ({reason}); in CI its server must be there: see .ci/run"
