"""A folder of images, and a stub of Dataflow that google-cloud-dataflow-client asks."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from imagebeam.pipelines.runs import remote_job
from tests import image_sets
from tests.servers import dataflow, gcs


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Five images in each of two classes; read only."""
    folder = tmp_path_factory.mktemp("images")
    image_sets.write_folder(folder, per_label=5)
    return folder


@pytest.fixture
def service(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[dataflow.Service]:
    credentials = gcs.write_credentials(tmp_path_factory.mktemp("credentials"))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(credentials))
    monkeypatch.setattr(remote_job, "_FIRST_WAIT_SEC", 0.001)
    with dataflow.run() as running:
        yield running


@pytest.fixture
def job(service: dataflow.Service) -> remote_job.RemoteJob:
    """A job of the stub, before it is submitted."""
    return remote_job.RemoteJob("DataflowRunner", "test", "europe-west1", "imagebeam-cats", endpoint=service.url)
