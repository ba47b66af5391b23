"""tests/conftest.py, tried in a pytest of its own: in CI an integration test that skips is a failure."""

import os
import pathlib
import subprocess
import sys

import pytest

from tests import patience

CONFTEST = pathlib.Path(__file__).parent.parent / "conftest.py"

SKIPPING_TEST = """
import pytest

@pytest.mark.{mark}
def test_something():
    pytest.skip("no server")
"""
SKIPPING_FIXTURE = """
import pytest

@pytest.fixture
def server():
    pytest.skip("no server")

@pytest.mark.integration
def test_something(server):
    pass
"""
SKIPPING_MODULE = """
import pytest

pytest.importorskip("no_such_client", reason="no server")
"""
EXPECTED_FAILURE = """
import pytest

@pytest.mark.integration
@pytest.mark.xfail(reason="no server")
def test_something():
    raise AssertionError
"""


def run_pytest(folder: pathlib.Path, path: str, text: str, in_ci: bool) -> tuple[int, str]:
    (folder / "conftest.py").write_text(CONFTEST.read_text())
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n  integration:\n  slow:\n")
    (folder / path).parent.mkdir(exist_ok=True)
    (folder / path).write_text(text)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "IMAGEBEAM_"))}
    environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "IMAGEBEAM_CI": "1" if in_ci else "0"}
    environment["PYTHONPATH"] = str(CONFTEST.parent.parent)  # for what the conftest imports
    command = [sys.executable, "-m", "pytest", "-rs", str(folder)]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=patience.HANG_SEC, check=False
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("path", "text"),
    [
        pytest.param("unit/test_one.py", SKIPPING_TEST.format(mark="integration"), id="in-the-test"),
        pytest.param("unit/test_one.py", SKIPPING_FIXTURE, id="in-a-fixture"),
        pytest.param("integration/test_one.py", SKIPPING_MODULE, id="whole-module"),
    ],
)
def test_integration_skip_fails_in_ci_alone(tmp_path: pathlib.Path, path: str, text: str) -> None:
    code, output = run_pytest(tmp_path, path, text, in_ci=True)
    assert code in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED), output
    assert "was skipped (" in output and "in CI its server must be there" in output

    code, output = run_pytest(tmp_path, path, text, in_ci=False)
    assert code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED), output
    assert "1 skipped" in output


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        pytest.param(SKIPPING_TEST.format(mark="slow"), "1 skipped", id="skip-of-another-test"),
        pytest.param(EXPECTED_FAILURE, "1 xfailed", id="expected-failure"),
    ],
)
def test_other_outcomes_stay_in_ci(tmp_path: pathlib.Path, text: str, outcome: str) -> None:
    code, output = run_pytest(tmp_path, "unit/test_one.py", text, in_ci=True)
    assert code == pytest.ExitCode.OK, output
    assert outcome in output
