"""The extras of setup.py: the packages they install, and the errors that name an extra."""

from __future__ import annotations

import collections
import importlib.metadata
import pathlib
import runpy
import sys
from typing import Any

import apache_beam as beam
import pytest
import setuptools
from apache_beam.io.filesystems import FileSystems
from packaging import requirements

from imagebeam import errors
from imagebeam.pipelines import convert
from imagebeam.transforms import write_shards_with_beam
from tests import command_line, error_texts

READERS = ("tf", "jax", "numpy", "grain")
STORAGES = ("gcs", "hdfs", "s3")


@pytest.fixture(scope="module")
def settings() -> dict[str, Any]:
    """What setup.py of this checkout passes to setuptools; the installed metadata may be older."""
    with pytest.MonkeyPatch.context() as patch:
        found: dict[str, Any] = {}
        patch.setattr(setuptools, "setup", found.update)
        runpy.run_path(str(command_line.ROOT / "setup.py"))
        return found


@pytest.fixture(scope="module")
def base(settings: dict[str, Any]) -> list[str]:
    """What imagebeam itself requires."""
    return settings["install_requires"]  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def extras(settings: dict[str, Any]) -> dict[str, list[str]]:
    return settings["extras_require"]  # type: ignore[no-any-return]


def packages_of(wanted: list[str]) -> set[str]:
    """The packages that requirements bring, with all that these require, as installed here."""
    found: set[str] = set()
    waiting = collections.deque(requirements.Requirement(text) for text in wanted)
    seen: set[tuple[str, str]] = set()
    while waiting:
        each = waiting.popleft()
        for extra in ("", *each.extras):
            if (each.name, extra) in seen or (each.marker and not each.marker.evaluate({"extra": ""})):
                continue
            seen.add((each.name, extra))
            found.add(each.name.lower().replace("_", "-"))
            for text in importlib.metadata.requires(each.name) or ():
                inner = requirements.Requirement(text)
                if inner.marker is None or inner.marker.evaluate({"extra": extra}):
                    waiting.append(requirements.Requirement(text.partition(";")[0]))
    return found


@pytest.mark.parametrize("place", STORAGES)
@pytest.mark.parametrize("reader", READERS)
def test_trainer_installs_no_beam(base: list[str], extras: dict[str, list[str]], reader: str, place: str) -> None:
    found = packages_of(base + extras[reader] + extras[place])
    assert len(found) > 8
    assert found & {"apache-beam", "gcsfs", "hdfs", "tensorflow-transform"} == set()
    assert ("tensorflow" in found) == (reader == "tf")


@pytest.mark.parametrize(
    ("extra", "package"),
    [
        ("gcs", "google-cloud-storage"),
        ("hdfs", "requests"),
        ("s3", "s3fs"),
        ("azure", "adlfs"),
        ("web", "aiohttp"),
        ("hdf5", "h5py"),
        ("matlab", "scipy"),
        ("dataflow", "apache-beam"),
        ("medical", "pydicom"),
        ("medical", "nibabel"),
        ("openlineage", "openlineage-python"),
    ],
)
def test_extra_brings_the_package_of_its_name(extras: dict[str, list[str]], extra: str, package: str) -> None:
    assert package in packages_of(extras[extra])


def test_base_and_converter_bring_what_they_need_and_no_more(base: list[str], extras: dict[str, list[str]]) -> None:
    assert packages_of(base) == {"fsspec", "google-crc32c", "ijson", "jinja2", "markupsafe"}
    convert, dataflow = packages_of([*base, *extras["convert"]]), packages_of([*base, *extras["dataflow"]])
    assert {"apache-beam", "fsspec", "ijson", "pillow"} <= convert
    assert "google-cloud-storage" in dataflow - convert
    on_no_worker = {"pydantic", "pydantic-core", "annotated-types", "typing-inspection", "prometheus-client"}
    assert convert - dataflow <= on_no_worker  # Beam and imagebeam itself bring what a worker needs


def test_all_is_every_extra_but_dev_and_torch(extras: dict[str, list[str]]) -> None:
    every = {each for name, wanted in extras.items() if name not in ("all", "dev", "torch") for each in wanted}
    assert set(extras["all"]) == every


def test_beams_writer_without_beams_google_packages_is_refused_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> None:
        raise ValueError("Unable to get filesystem from specified path")

    monkeypatch.setattr(FileSystems, "get_filesystem", refuse)
    with error_texts.raises("output-no-file-system"):
        write_shards_with_beam.require_file_system("gs://b/o")


@pytest.mark.parametrize("output", ["/out", "gs://bucket/out"])
def test_beams_writer_takes_local_paths_and_gs(output: str) -> None:
    write_shards_with_beam.require_file_system(output)


def test_dataflow_runner_without_its_packages_is_refused_with_the_extra(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: Any) -> None:
        raise ImportError("Google Cloud Dataflow runner not available, please install apache_beam[gcp]")

    monkeypatch.setattr(beam, "Pipeline", refuse)
    with pytest.raises(errors.ConfigError, match=r"apache_beam\[gcp\]: pip install 'imagebeam\[dataflow\]'$"):
        convert.convert(
            {"source": {"uri": str(tmp_path)}, "output": {"uri": str(tmp_path / "out")}},
            ["--runner=TestDataflowRunner"],
        )


def test_dataflow_without_its_client_names_the_extra(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.cloud.dataflow", None)
    with pytest.raises(errors.ConfigError, match=r"DataflowRunner needs it: pip install 'imagebeam\[dataflow\]'$"):
        convert.convert(
            {"source": {"uri": str(tmp_path)}, "output": {"uri": str(tmp_path / "out")}}, ["--runner=DataflowRunner"]
        )
