"""Rules for all tests.

In CI (IMAGEBEAM_CI=1) a test marked `integration` that skips is a failure: no missing server is silently green. No
property fails because the machine is busy.
"""

import os
import pathlib
from collections.abc import Generator, Iterator

import hypothesis
import pytest

from tests import quick_beam

_IN_CI = os.environ.get("IMAGEBEAM_CI") == "1"
_INTEGRATION = pathlib.Path(__file__).parent / "integration"

hypothesis.settings.register_profile(
    "imagebeam", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("imagebeam")


@pytest.fixture(scope="session", autouse=True)
def _quick_beam() -> Iterator[None]:
    with quick_beam.patched():  # Beam is imported while the tests are collected, or not needed
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
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


def _fail_if_skipped(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid} was skipped ({reason}); in CI its server must be there: see .ci/run"
