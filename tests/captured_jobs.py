"""Runs a job that was submitted to the stub of Dataflow, from the pipeline that Beam's client staged."""

from __future__ import annotations

import json
import pathlib
import shlex
import sys
from collections.abc import Mapping
from typing import Any

from tests import command_line
from tests.servers import go_programs

_CODE = "import sys; from tests import captured_jobs; captured_jobs.{}(*sys.argv[1:])"


def run(pipeline_url: str, environment: Mapping[str, str]) -> command_line.Completed:
    """Runs the staged pipeline to its end in a process of its own; exit code 1 if it failed."""
    return _run("run_staged", pipeline_url, environment=environment)


def run_on_prism(
    pipeline_url: str, prism: pathlib.Path, worker: pathlib.Path, environment: Mapping[str, str]
) -> command_line.Completed:
    """Does the same on Prism, whose workers are processes of the program `worker`."""
    return _run("run_staged_on_prism", pipeline_url, str(prism), str(worker), environment=environment)


def write_worker(path: pathlib.Path, boot: pathlib.Path, python: pathlib.Path) -> None:
    """Writes the program that starts workers with a Python, by the program that does so in Beam's images."""
    # boot writes pipeline_options.json into its working folder, which would be the checkout.
    # Prism 2.77 quotes the arguments, which the shell that it does not use would remove: --id='job-001[job]_...'
    # boot starts pip to log the versions of all packages; an environment may have none.
    programs = path.with_name(f"{path.name}-programs")
    programs.mkdir()
    only_without_pip = programs / "python"
    only_without_pip.write_text(f'#!/bin/sh\n[ "$2" = pip ] || exec {shlex.quote(str(python))} "$@"\n')
    only_without_pip.chmod(0o755)
    path.write_text(
        f"""#!/bin/sh
cd {shlex.quote(str(path.parent))}
export PATH={shlex.quote(str(programs))}:$PATH RUN_PYTHON_SDK_IN_DEFAULT_ENVIRONMENT=1
for each in "$@"; do shift; set -- "$@" "$(echo "$each" | tr -d "'")"; done
exec {shlex.quote(str(boot))} "$@"
"""
    )
    path.chmod(0o755)


def _run(function: str, pipeline_url: str, *more: str, environment: Mapping[str, str]) -> command_line.Completed:
    started = command_line.start_program(_CODE.format(function), pipeline_url, *more, environment=environment)
    return command_line.finish(started)


def run_staged(pipeline_url: str) -> None:
    """Runs the staged pipeline on Beam's local runner, in this process instead of a container."""
    from apache_beam.options import pipeline_options
    from apache_beam.portability import python_urns
    from apache_beam.runners.portability import fn_api_runner

    pipeline = _load(pipeline_url, python_urns.EMBEDDED_PYTHON, b"")
    fn_api_runner.FnApiRunner().run_via_runner_api(pipeline, pipeline_options.PipelineOptions([])).wait_until_finish()


def run_staged_on_prism(pipeline_url: str, prism: str, worker: str) -> None:
    """Runs the staged pipeline on Prism. What the job staged for its workers is expected to be installed there."""
    from apache_beam.options import pipeline_options
    from apache_beam.portability import common_urns
    from apache_beam.portability.api import beam_runner_api_pb2
    from apache_beam.runners.portability import prism_runner

    payload = beam_runner_api_pb2.ProcessPayload(command=worker).SerializeToString()
    pipeline = _load(pipeline_url, common_urns.environments.PROCESS.urn, payload)
    options = pipeline_options.PipelineOptions([f"--prism_location={prism}", "--prism_log_kind=json"])
    prism_runner.PrismRunner().run_portable_pipeline(pipeline, options).wait_until_finish()


def _load(pipeline_url: str, urn: str, payload: bytes) -> Any:
    """Returns the staged pipeline with another environment of its workers."""
    from apache_beam.portability.api import beam_runner_api_pb2

    from imagebeam import storage

    pipeline = beam_runner_api_pb2.Pipeline.FromString(storage.storage_of(pipeline_url).read(pipeline_url))
    for environment in pipeline.components.environments.values():
        del environment.dependencies[:]
        environment.urn, environment.payload = urn, payload
    return pipeline


def prism_with_processes(worker: pathlib.Path, *, python_path: str) -> list[str]:
    """Beam's options for Prism with workers in processes of their own, which start in an empty folder."""
    worker.parent.mkdir()
    write_worker(worker, go_programs.boot(), pathlib.Path(sys.executable))
    worker.write_text(worker.read_text().replace("export PATH=", f"export PYTHONPATH={python_path} PATH="))
    process = ["--environment_type=PROCESS", f"--environment_config={json.dumps({'command': str(worker)})}"]
    return ["--runner=PrismRunner", f"--prism_location={go_programs.prism()}", *process]
