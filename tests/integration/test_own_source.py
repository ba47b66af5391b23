"""The source of docs/own_code.md as a user runs it: on each runner, killed and run again, and without its module."""

from __future__ import annotations

import pathlib
import shutil
import sys

import pytest

from imagebeam.pipelines import verify_dataset
from tests import captured_jobs, command_line, datasets, docs_pages, own_sources, patience
from tests.golden import test_golden

PAGE = "own_code.md"
CONSOLE = pathlib.Path(sys.executable).with_name("imagebeam")  # whose path lacks the working folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder with the config and the module of the page, a database in `in`, and the dataset `expected`."""
    folder = tmp_path_factory.mktemp("own")
    own_sources.write_pets(folder / "in")
    own_sources.change(folder / "in" / "pets.db", "UPDATE pets SET width = 200 WHERE id > 1")
    shutil.copy(own_sources.EXAMPLES / "pets.py", folder)
    (folder / "pets.yaml").write_text(docs_pages.blocks(PAGE, "yaml")[0])
    convert(folder, folder / "expected")
    assert verify_dataset.verify(str(folder / "expected"), decode=True).problems == ()
    return folder


def arguments(folder: pathlib.Path, output: pathlib.Path, *more: str) -> list[object]:
    where = ["--config", "pets.yaml", "--input", folder / "in" / "pets.db", "--output", output]
    return ["convert", "--quiet", *where, "--set", "output.num_shards=2", *more]


def convert(folder: pathlib.Path, output: pathlib.Path, *more: str, exit_code: int = 0) -> str:
    """Runs the command of a user; returns what it writes to standard error."""
    done = command_line.run_other(CONSOLE, *arguments(folder, output, *more), cwd=folder)
    assert done.returncode == exit_code, done.stderr
    return done.stderr


def test_page_shows_the_example() -> None:
    example = (own_sources.EXAMPLES / "pets.py").read_text()
    assert docs_pages.blocks(PAGE, "python")[0] == example[example.index("from __future__") :]


def test_commands_of_the_page_run(folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    for name in ("pets.py", "pets.yaml", "in/pets.db", *(f"in/{number}.jpg" for number in range(1, 20, 2))):
        shutil.copy(folder / name, tmp_path)
    for command in docs_pages.blocks(PAGE, "sh")[0].splitlines():
        done = command_line.run_other(CONSOLE, *command.split()[1:], cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert len(datasets.keys(tmp_path / "records")) == len(datasets.keys(folder / "expected"))


@pytest.mark.parametrize(
    "options",
    [("--workers", "1"), test_golden.TWO_BEAM_WORKERS],
    ids=["one-writer", "two-workers-of-beam"],
)
def test_other_workers_write_the_same_bytes(
    folder: pathlib.Path, tmp_path: pathlib.Path, options: tuple[str, ...]
) -> None:
    convert(folder, tmp_path / "out", *options)
    datasets.assert_same(tmp_path / "out", folder / "expected")


@pytest.mark.integration
def test_workers_of_prism_that_have_the_module_write_the_same_bytes(
    folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    convert(
        folder,
        tmp_path / "out",
        *captured_jobs.prism_with_processes(tmp_path / "w" / "worker", python_path=str(folder)),
    )
    datasets.assert_same(tmp_path / "out", folder / "expected")


@pytest.mark.integration
def test_worker_without_the_module_ends_the_run_and_names_the_remedy(
    folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    options = captured_jobs.prism_with_processes(tmp_path / "w" / "worker", python_path="")
    stderr = convert(folder, tmp_path / "out", *options, exit_code=2)
    assert "source.by: 'pets:Pets': there is no module 'pets' here: install its package" in stderr
    assert "--setup_file or --extra_package" in stderr


def test_run_that_is_killed_ends_with_the_same_bytes(folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (tmp_path / "slow").mkdir()
    shutil.copytree(folder / "in", tmp_path / "slow" / "in")
    shutil.copy(folder / "pets.yaml", tmp_path / "slow")
    wait = "import pathlib, time\nwhile pathlib.Path('waits').exists() and uri == 'pets://18':\n    time.sleep(0.01)\n"
    module = (folder / "pets.py").read_text()
    head = "    def read_image(self, request: Request, uri: str) -> bytes:\n"
    body = "".join(f"        {line}\n" for line in wait.splitlines())
    (tmp_path / "slow" / "pets.py").write_text(module.replace(head, head + body))
    (tmp_path / "slow" / "waits").touch()  # one image is never read before the run is killed
    output, given = tmp_path / "out", ["--set", "source.version='1'", "--workers", "2"]
    process = command_line.start(*arguments(tmp_path / "slow", output, *given), cwd=tmp_path / "slow")
    try:
        patience.wait_until(lambda: any(output.rglob("*.done.json")) or process.poll() is not None)
    finally:
        process.kill()
    _, stderr = process.communicate()
    assert any(output.rglob("*.done.json")), stderr
    (tmp_path / "slow" / "waits").unlink()
    convert(tmp_path / "slow", output, *given)
    assert datasets.shard_digests(output) == datasets.shard_digests(folder / "expected")
    assert verify_dataset.verify(str(output), decode=True).problems == ()
