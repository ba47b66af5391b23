"""The installed wheel next to a user's project that has its own configs/train.py, pipelines/ and transforms.py."""

from __future__ import annotations

import email
import os
import pathlib
import re
import sys
import sysconfig
import tarfile

import pytest

from imagebeam import version
from tests import command_line, environments, image_sets

SCRIPT = """
import json, pickle, sys
import configs.train, pipelines.nightly, transforms  # the user's own
import imagebeam
from imagebeam.pipelines.config import model as config_lib
from imagebeam.transforms.sources import reference_rules

assert (configs.train.OWNER, pipelines.nightly.OWNER, transforms.OWNER) == ("user", "user", "user")
assert imagebeam.__file__.startswith(sys.argv[1]), imagebeam.__file__
assert "flowers" in config_lib.preset_names()
rule = reference_rules.LabelRule("directory")
assert pickle.loads(pickle.dumps(rule)) == rule
assert type(rule).__module__ == "imagebeam.transforms.sources.reference_rules"

if __name__ == "__main__":
    sections = {"source": {"uri": "images"}, "output": {"uri": "out", "num_shards": 2}}
    assert imagebeam.plan(sections).action == "write"
    result = imagebeam.convert(sections, workers=2)
    assert imagebeam.verify("out").problems == ()
    print(json.dumps([result.state, result.catalog.counts.written]))
"""


def run(*command: str | os.PathLike[str], cwd: pathlib.Path, **environment: str) -> str:
    done = command_line.run_other(*command, cwd=cwd, **{"PYTHONPATH": "", **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return environments.copy_sources(tmp_path_factory.mktemp("source") / "imagebeam")


@pytest.fixture(scope="module")
def python(source: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The Python of an environment with the wheel and the packages of this environment, but not this checkout."""
    wheels, environment = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("environment")
    build = (sys.executable, "setup.py", "--quiet", "bdist_wheel", "--dist-dir", wheels)
    run(*build, cwd=source)
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=source)
    (wheel,) = wheels.glob("imagebeam-*.whl")
    environments.install(environment / "bin" / "python", "--no-deps", str(wheel))
    site = next(environment.glob("lib/python*/site-packages"))
    # As a path of the .pth file, not through site.addsitedir: this environment's own .pth files, among them the
    # editable install of the checkout, are not read.
    (site / "shared.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return environment / "bin" / "python"


@pytest.fixture
def project(tmp_path: pathlib.Path) -> pathlib.Path:
    for name in ("configs/train.py", "pipelines/__init__.py", "pipelines/nightly.py", "transforms.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('OWNER = "user"\n')
    (tmp_path / "run.py").write_text(SCRIPT)
    image_sets.write_folder(tmp_path / "images", per_label=3)
    return tmp_path


@pytest.mark.parametrize("repository", ["", "https://host.example/us/imagebeam"])
def test_page_of_a_registry_has_no_relative_link(source: pathlib.Path, tmp_path: pathlib.Path, repository: str) -> None:
    command = (sys.executable, "setup.py", "--quiet", "dist_info", "--output-dir", tmp_path)
    run(*command, cwd=source, IMAGEBEAM_REPOSITORY=repository)
    [file] = tmp_path.glob("*.dist-info/METADATA")
    metadata = email.message_from_string(file.read_text("utf-8"))
    page = metadata.get_payload()
    assert isinstance(page, str) and 'pip install "imagebeam[convert,tf]"\n' in page
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)]*)\)", page)]
    urls = metadata.get_all("Project-URL", [])
    if not repository:
        assert not urls and not [link for link in links if not link.startswith("https:")]
        return
    assert urls == [f"Source, {repository}", f"Changelog, {repository}/blob/v{version.__version__}/CHANGELOG.md"]
    paths = [re.sub(rf"^{repository}/(blob|raw)/v{version.__version__}/", "", link) for link in links]
    assert "docs/images/way.svg" in paths and all((command_line.ROOT / path).exists() for path in paths), paths


def test_script_of_a_project_with_modules_of_our_names_converts(python: pathlib.Path, project: pathlib.Path) -> None:
    assert run(python, "run.py", str(python.parents[1]), cwd=project) == '["committed", 6]\n'


def test_command_in_a_project_with_modules_of_our_names_converts(python: pathlib.Path, project: pathlib.Path) -> None:
    options = ("--input", "images", "--output", "out", "--config", "image_folder", "--workers", "2", "--quiet")
    run(python, "-m", "imagebeam", "convert", *options, cwd=project)
    assert "6 records in" in run(python, "-m", "imagebeam", "verify", "out", cwd=project)


def test_installed_packages_are_all_under_one_name(python: pathlib.Path) -> None:
    site = next(python.parents[1].glob("lib/python*/site-packages"))
    packages = [path.name for path in site.iterdir() if path.is_dir() and "-" not in path.name]
    assert packages == ["imagebeam"]
    names = ("pipelines/cli.py", "transforms/sources/files.py", "transforms/shard/encode.py", "configs/imagenet.yaml")
    for path in (site / "imagebeam" / name for name in names):
        assert path.is_file() and not path.is_symlink() and not path.parent.is_symlink()


def test_source_distribution_holds_files_and_no_links(source: pathlib.Path, tmp_path: pathlib.Path) -> None:
    run(sys.executable, "setup.py", "--quiet", "sdist", "--dist-dir", str(tmp_path), cwd=source)
    (path,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        members = {member.name.partition("/")[2]: member for member in archive.getmembers()}
    assert not [name for name, member in members.items() if member.issym() or member.islnk()]
    for name in ("pipelines/cli.py", "transforms/list_images.py", "configs/imagenet.yaml"):
        assert members[f"imagebeam/{name}"].isfile()
        assert members[f"imagebeam/{name}"].size == (command_line.ROOT / name).stat().st_size
