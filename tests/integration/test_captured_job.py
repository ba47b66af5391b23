"""A job for Dataflow, with all that its client staged, run on Prism by workers that have only Beam and the sdist."""

from __future__ import annotations

import importlib.metadata
import pathlib

import pytest

import imagebeam
from tests import captured_jobs, command_line, datasets, environments, patience
from tests.golden import test_golden
from tests.servers import dataflow, gcs, go_programs

pytestmark = pytest.mark.integration


def test_captured_job_writes_the_golden_bytes_with_beam_and_the_sdist_alone(tmp_path: pathlib.Path) -> None:
    prism, boot = go_programs.prism(), go_programs.boot()
    setup_file = environments.copy_sources(tmp_path / "source") / "setup.py"
    python = environments.make(tmp_path / "venv", f"apache-beam[gcp]=={importlib.metadata.version('apache-beam')}")
    captured_jobs.write_worker(tmp_path / "worker", boot, python)
    # the ids of the three classes stay, and the vocabulary is long enough to be staged
    classes = "".join(f"{name}\n" for name in ("cat", "dog", "owl", *(f"class {index:06d}" for index in range(2_000))))
    with gcs.run(tmp_path) as emulator, dataflow.run() as service:
        bucket = emulator.bucket("pets")
        gcs.upload(test_golden.IMAGES, bucket, "images")
        bucket.blob("classes.txt").upload_from_string(classes)
        settings = ["--set", "output.num_shards=3", "--set", "label.vocabulary=gs://pets/classes.txt"]
        arguments = service.arguments(temp_location="gs://pets/tmp", setup_file=str(setup_file))
        launcher = command_line.start(
            *("convert", "--quiet", "--input", "gs://pets/images", "--output", "gs://pets/out"),
            *(*settings, *arguments),
            environment=emulator.environment,
        )
        try:
            patience.wait_until(lambda: service.jobs or launcher.poll() is not None)
            assert service.jobs, launcher.communicate()
            job = service.jobs[0]
            staged = {blob.name.rpartition("/")[2]: blob for blob in bucket.list_blobs(prefix=f"tmp/{job.name}")}
            assert set(staged) == {"pipeline.pb", "workflow.tar.gz"}  # nothing else of this machine
            sdist = tmp_path / f"imagebeam-{imagebeam.__version__}.tar.gz"  # uv refuses another version in the name
            sdist.write_bytes(staged["workflow.tar.gz"].download_as_bytes())
            environments.install(python, "--no-build-isolation", str(sdist))
            url = job.options["pipelineUrl"]
            ran = captured_jobs.run_on_prism(url, prism, tmp_path / "worker", emulator.environment)
            assert ran.returncode == 0, ran.stderr
            assert (tmp_path / "pipeline_options.json").exists()  # of Beam's boot program, and not in the checkout
            job.set(dataflow.DONE)
            _, stderr = launcher.communicate(timeout=patience.HANG_SEC)
        finally:
            launcher.kill()
        assert launcher.returncode == 0, stderr
        output = gcs.download(bucket, "out", tmp_path / "out")
    assert not (output / ".imagebeam").exists()
    test_golden.assert_golden(datasets.shard_digests(output))
