"""Rules for all tests.

In CI (IMAGEBEAM_CI=1) a test marked `integration` that skips is a failure: no missing server is silently green. No
property fails because the machine is busy.
"""

import inspect
import os
import pathlib
import sys
import types
import weakref
from collections.abc import Generator, Iterator
from typing import Any

import hypothesis
import pytest

_IN_CI = os.environ.get("IMAGEBEAM_CI") == "1"
_INTEGRATION = pathlib.Path(__file__).parent / "integration"

hypothesis.settings.register_profile(
    "imagebeam", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("imagebeam")


@pytest.fixture(scope="session", autouse=True)
def _signatures_kept_by_beam() -> Iterator[None]:
    """Makes Beam look at the signature of each method of a DoFn once: it does so 7,000 times in a small job.

    That is a fifth of the processor time of such a job, 0.08 s of 0.38 s with Beam 2.77. A signature never changes.
    """
    core = sys.modules.get("apache_beam.transforms.core")  # imported while the tests were collected, or not needed
    original = getattr(core, "get_signature", None)
    if original is None:
        yield
        return
    kept: weakref.WeakKeyDictionary[Any, inspect.Signature] = weakref.WeakKeyDictionary()

    def get_signature(function: Any) -> inspect.Signature:
        if not isinstance(function, types.MethodType):
            return original(function)
        signature = kept.get(function.__func__)
        if signature is None:
            signature = kept[function.__func__] = original(function)
        return signature

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "get_signature", get_signature)
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
