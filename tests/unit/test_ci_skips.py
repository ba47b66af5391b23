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


FILES = {
    "unit/test_in_the_test.py": SKIPPING_TEST.format(mark="integration"),
    "unit/test_in_a_fixture.py": SKIPPING_FIXTURE,
    "integration/test_whole_module.py": SKIPPING_MODULE,
    "unit/test_slow.py": SKIPPING_TEST.format(mark="slow"),
    "unit/test_expected_failure.py": EXPECTED_FAILURE,
}


def run_pytest(folder: pathlib.Path, in_ci: bool) -> tuple[int, dict[str, list[str]]]:
    """Runs all files in one pytest; returns its exit code and, by file, the lines of its summary."""
    (folder / "conftest.py").write_text(CONFTEST.read_text())
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n  integration:\n  slow:\n")
    for path, text in FILES.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "IMAGEBEAM_"))}
    environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "IMAGEBEAM_CI": "1" if in_ci else "0", "COLUMNS": "500"}
    environment["PYTHONPATH"] = str(CONFTEST.parent.parent)  # for what the conftest imports
    command = [sys.executable, "-m", "pytest", "-ra", "--continue-on-collection-errors", str(folder)]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=patience.HANG_SEC, check=False
    )
    summary = done.stdout.rpartition("short test summary info")[2].splitlines()
    return done.returncode, {path: [line for line in summary if path in line] for path in FILES}


@pytest.fixture(scope="module")
def in_ci(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, dict[str, list[str]]]:
    return run_pytest(tmp_path_factory.mktemp("in_ci"), in_ci=True)


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, dict[str, list[str]]]:
    return run_pytest(tmp_path_factory.mktemp("elsewhere"), in_ci=False)


@pytest.mark.parametrize(
    ("path", "outcome"),
    [
        pytest.param("unit/test_in_the_test.py", "FAILED", id="in-the-test"),
        pytest.param("unit/test_in_a_fixture.py", "ERROR", id="in-a-fixture"),
        pytest.param("integration/test_whole_module.py", "ERROR", id="whole-module"),
    ],
)
def test_integration_skip_fails_in_ci_alone(
    path: str, outcome: str, in_ci: tuple[int, dict[str, list[str]]], elsewhere: tuple[int, dict[str, list[str]]]
) -> None:
    code, lines = in_ci
    assert code == pytest.ExitCode.TESTS_FAILED
    [line] = lines[path]
    assert line.startswith(outcome), line
    assert "was skipped (" in line and "in CI its server must be there" in line

    code, lines = elsewhere
    assert code == pytest.ExitCode.OK
    [line] = lines[path]
    assert line.startswith("SKIPPED"), line


@pytest.mark.parametrize(
    ("path", "outcome"),
    [
        pytest.param("unit/test_slow.py", "SKIPPED", id="skip-of-another-test"),
        pytest.param("unit/test_expected_failure.py", "XFAIL", id="expected-failure"),
    ],
)
def test_other_outcomes_stay_in_ci(path: str, outcome: str, in_ci: tuple[int, dict[str, list[str]]]) -> None:
    [line] = in_ci[1][path]
    assert line.startswith(outcome), line
