"""Checks and completes the options of a Dataflow job before anything is written or submitted.

Dataflow itself reports most mistakes minutes later, from its workers, and Beam repeats the upload to a bucket that does
not exist for seven minutes. All functions but `prepare_options` and `require_buckets` look only at their arguments.
Values are named as Beam's options are: `PipelineOptions.get_all_options()`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from imagebeam import errors, storage, version
from imagebeam.pipelines.beam import runners
from imagebeam.pipelines.runs import remote_job
from imagebeam.transforms.images import prepare

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions

    from imagebeam.pipelines.config import model as config_lib

Values = Mapping[str, Any]

_JOB_NAME = re.compile("[a-z]([-a-z0-9]*[a-z0-9])?")  # apache_beam/options/pipeline_options_validator.py
_MAX_NAME, _MAX_LABEL = 63, 63
_BRINGS_PACKAGES = ("setup_file", "extra_packages", "requirements_file", "prebuild_sdk_container_engine")
_GIVE_IMAGE = (
    "give --sdk_container_image=IMAGE with an image that has it, or --setup_file=PATH/setup.py of a checkout, which is "
    "installed on every worker as it starts"
)
_CHECK_SEC = 20.0  # for a bucket; a wrong name is answered at once

_PYTHON_IN_NAME = re.compile(r"(?:beam_python|python|py)[-_]?(3)\.?(\d{1,2})(?!\d)")
_BEAM_IN_NAME = re.compile(r"(?:beam_python3\.\d+_sdk:|beam[-_]?)v?(\d+\.\d+\.\d+)")
_IMAGEBEAM_IN_NAME = re.compile(r"imagebeam(?:[-_/][a-z]+)*:v?(\d+\.\d+\.\d+)")
_PUBLIC = "https://dataflow.googleapis.com"  # Beam's default of --dataflow_endpoint


def prepare_options(
    config: config_lib.Config, options: PipelineOptions, beam_arguments: list[str], workers: int, purpose: str = ""
) -> PipelineOptions:
    """Checks the options of a job on Dataflow, before anything is written, and returns them with defaults added.

    Raises:
        ConfigError: if the job could not run.
    """
    try:
        import google.cloud.dataflow  # noqa: F401
    except ModuleNotFoundError as e:
        raise errors.missing_package(e, "DataflowRunner", "dataflow") from e
    values = options.get_all_options()
    require_options(values, config, launcher_versions())
    require_buckets(values)
    added = default_arguments(values, config, purpose)
    return runners.make_options([*beam_arguments, *added], workers)


def job_of(options: PipelineOptions) -> remote_job.RemoteJob:
    """Returns the job on Dataflow that the options describe, before it is submitted."""
    values = options.get_all_options()
    endpoint = "" if values["dataflow_endpoint"] == _PUBLIC else values["dataflow_endpoint"]
    return remote_job.RemoteJob(
        "DataflowRunner", values["project"], values["region"], values["job_name"], endpoint=endpoint
    )


def template_of(options: PipelineOptions) -> str:
    """Returns the address to write a template to; "" for a job."""
    return options.get_all_options()["template_location"] or ""


class Versions(NamedTuple):
    """Versions that launcher and workers must share: the job graph holds pickled Python."""

    python: str  # such as "3.11"
    beam: str
    imagebeam: str


def launcher_versions() -> Versions:
    """Returns the versions in this process."""
    import importlib.metadata  # late: 15 ms

    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return Versions(python, importlib.metadata.version("apache-beam"), version.__version__)


def require_options(values: Values, config: config_lib.Config, launcher: Versions) -> None:
    """Checks the options of a job against its config.

    Args:
        values: Beam's options.
        config: whose output may be missing: `plan` has none.
        launcher: versions in this process.

    Raises:
        ConfigError: for all options that are missing, or for the first mistake in the others; with the remedy.
    """
    missing = _missing_options(values)
    if missing:
        raise errors.ConfigError("dataflow-options-missing", "; ".join(missing))
    _require_places(values)
    _require_addresses(config)
    _require_workers(values, config)
    _require_same_versions(values, launcher)


def _missing_options(values: Values) -> list[str]:
    """Returns what to give for each option that is missing."""
    missing = []
    if not values.get("project"):
        missing.append("--project is missing: the Google Cloud project that runs and pays for the job")
    if not (values.get("region") or os.environ.get("CLOUDSDK_COMPUTE_REGION")):
        missing.append(
            "--region is missing: where the workers run, such as --region=europe-west4 (choose the region of the "
            "buckets, or set CLOUDSDK_COMPUTE_REGION)"
        )
    if not values.get("temp_location"):
        missing.append(
            "--temp_location is missing: a folder in a bucket for the files of the job, such as gs://BUCKET/tmp"
        )
    if not _image_of(values) and not any(values.get(name) for name in _BRINGS_PACKAGES):
        missing.append(f"the workers would not have imagebeam: {_GIVE_IMAGE}")
    return missing


def _require_places(values: Values) -> None:
    for name in ("temp_location", "staging_location", "template_location"):
        value = values.get(name)
        if value and not re.match(r"gs://[^/]+", value):
            raise errors.ConfigError(
                "dataflow-no-bucket", f"--{name} is {value!r}, and Dataflow reads only buckets: give gs://BUCKET/FOLDER"
            )
    job = values.get("job_name")
    if job and not _JOB_NAME.fullmatch(job):
        raise errors.ConfigError(
            "dataflow-job-name",
            f"--job_name is {job!r}; Dataflow takes lower-case letters, digits and hyphens, beginning with a letter "
            "and not ending with a hyphen; leave it out to name the job after the output",
        )


def _require_addresses(config: config_lib.Config) -> None:
    for option, uri in (("--input", config.source.uri), ("--output", config.output.uri)):
        if uri is not None and storage.scheme_of(str(uri)) == "file":
            copying = "copy the images there first: gcloud storage cp -r" if option == "--input" else "give gs://..."
            raise errors.ConfigError(
                "dataflow-local-address",
                f"{option} is {str(uri)!r}, a folder of this machine, which Dataflow's workers cannot reach; {copying}"
                + (f" {str(uri)!r} gs://BUCKET/..." if option == "--input" else ""),
            )


def _image_of(values: Values) -> str:
    return str(values.get("sdk_container_image") or values.get("worker_harness_container_image") or "")


def _is_beams_own(image: str) -> bool:
    """Returns whether the image is one that Beam publishes: it has no imagebeam."""
    return re.search(r"(^|/)beam_python3\.\d+_sdk(:|@|$)", image) is not None


def _require_workers(values: Values, config: config_lib.Config) -> None:
    """Checks that the workers get imagebeam, and tf.Transform if the config needs it."""
    image = _image_of(values)
    own_image = bool(image) and not _is_beams_own(image)
    setup_file = values.get("setup_file")
    if setup_file and (not os.path.isfile(setup_file) or os.path.basename(setup_file) != "setup.py"):
        raise errors.ConfigError(
            "dataflow-setup-file",
            f"--setup_file is {setup_file!r}, which is no file named setup.py; give the path of imagebeam's setup.py, "
            "in a checkout of its repository",
        )
    if not own_image and not any(values.get(name) for name in _BRINGS_PACKAGES):
        raise errors.ConfigError(
            "dataflow-image-of-beam", f"{image!r} is Beam's own image, without imagebeam: {_GIVE_IMAGE}"
        )
    if config.transformed and not own_image:
        raise errors.ConfigError(
            "dataflow-image-without-transform",
            f"columns.{config.transformed[0]}.transform needs tf.Transform on the workers, and a worker that starts "
            "does not install it: give --sdk_container_image=IMAGE with an image that has imagebeam[transform]",
        )


def _require_same_versions(values: Values, launcher: Versions) -> None:
    """Compares the versions in the image's name with those of this process. Most names tell only some."""
    image = _image_of(values)
    python, beam, imagebeam = (
        pattern.search(image) for pattern in (_PYTHON_IN_NAME, _BEAM_IN_NAME, _IMAGEBEAM_IN_NAME)
    )
    found = (
        ("Python", f"{python[1]}.{python[2]}" if python else "", launcher.python),
        ("Beam", beam[1] if beam else "", launcher.beam),
        ("imagebeam", imagebeam[1] if imagebeam else "", launcher.imagebeam),
    )
    for what, there, here in found:
        if there and there != here:
            raise errors.ConfigError(
                "dataflow-image-version",
                f"--sdk_container_image {image!r} has {what} {there} by its name, and this is {what} {here}: workers "
                "cannot run what another version has pickled; launch from the same versions, or give an image that "
                "was built with these",
            )


_BUCKET_PROBLEMS: tuple[tuple[type[OSError], str], ...] = (
    (FileNotFoundError, ": {}; create it (gcloud storage buckets create), or give another"),
    (
        PermissionError,
        ", which cannot be read and written with these credentials: {}; they need roles/storage.objectAdmin on the "
        "bucket",
    ),
    (storage.UnavailableError, ", which cannot be reached: {}; check the network, and try again"),
    (OSError, ", which cannot be read and written: {}; give a folder in a bucket, such as gs://BUCKET/tmp"),
)


def require_buckets(values: Values) -> None:
    """Checks that the buckets for the job's files can be listed and written to, with two requests for each.

    Raises:
        ConfigError: if one of them does not exist or does not answer, or these credentials may not use it.
    """
    from imagebeam.storage import remote

    seen = set()
    for name in ("temp_location", "staging_location", "template_location"):
        uri = values.get(name)
        if not uri or storage.root_of(uri) in seen:
            continue
        seen.add(storage.root_of(uri))
        store = storage.storage_of(uri)
        folder = os.path.dirname(uri) if name == "template_location" else uri.rstrip("/")
        trial = storage.join(folder, f"imagebeam-{secrets.token_hex(4)}.trial")
        try:
            with remote.budget(_CHECK_SEC):
                store.stat(storage.root_of(uri))
                store.create_new(trial, b"")
                with contextlib.suppress(PermissionError):  # may create, but not delete: enough for Beam
                    store.remove(trial)
        except OSError as e:
            text = next(text for kind, text in _BUCKET_PROBLEMS if isinstance(e, kind)).format(e.strerror or e)
            raise errors.ConfigError("bucket-unusable", f"--{name} is {uri!r}{text}") from e


def default_arguments(values: Values, config: config_lib.Config, purpose: str = "") -> list[str]:
    """Returns arguments for the options that the user has left open.

    Args:
        values: Beam's options.
        config: of the job.
        purpose: part of the name of a job that is no conversion: "plan".
    """
    output = storage.normalize(str(config.output.uri)) if config.output.uri else ""
    dataset = config.output.dataset or "new"
    arguments = []
    if not values.get("job_name"):
        arguments.append(f"--job_name={job_name(dataset, output, purpose)}")
    if not values.get("region") and os.environ.get("CLOUDSDK_COMPUTE_REGION"):
        arguments.append(f"--region={os.environ['CLOUDSDK_COMPUTE_REGION']}")
    given = {str(label).partition("=")[0] for label in values.get("labels") or ()}
    for label, value in (("imagebeam-version", version.__version__), ("imagebeam-dataset", dataset)):
        if label not in given:
            arguments.append(f"--labels={label}={label_value(value)}")
    # otherwise Beam stages what pip lists here, with paths of this machine, which takes a second or two
    arguments.append("--experiments=disable_logging_submission_environment")
    machine_type, threads = _worker_of(config)
    if not values.get("machine_type"):
        arguments.append(f"--machine_type={machine_type}")
    if not values.get("number_of_worker_harness_threads"):
        arguments.append(f"--number_of_worker_harness_threads={threads}")
    return arguments


def _worker_of(config: config_lib.Config) -> tuple[str, int]:
    """Returns the machine type of the workers, and threads for each of their processes; there is one for each core.

    A thread writes one shard at a time, with `source.bytes_ahead` bytes in flight. Dataflow's default of 12 threads
    would hold 12 times that for each core.
    """
    if config.transformed:
        return "e2-highmem-4", 2  # each process imports TensorFlow and holds its graphs
    decodes = config.image.check == "decode" or config.image.encode != prepare.KEEP or config.statistics.pixels
    if decodes or config.source.masks.rule is not None:
        return "e2-standard-4", 2  # bound by the processor; every thread holds decoded images
    return "e2-standard-2", 4  # bytes go from bucket to bucket: a core waits most of the time


def job_name(dataset: str, output: str, purpose: str = "") -> str:
    """Returns a name for the job that writes an output: always the same, and another one for every output.

    Dataflow runs one job of a name at a time. So it, too, refuses a second job that writes there.
    """
    digest = hashlib.blake2b(output.encode("utf-8", "surrogateescape"), digest_size=4).hexdigest()
    begin = "-".join(part for part in ("imagebeam", purpose) if part)
    middle = re.sub("[^a-z0-9]+", "-", dataset.lower()).strip("-")
    middle = middle[: _MAX_NAME - len(begin) - len(digest) - 2].strip("-")
    return "-".join(part for part in (begin, middle, digest) if part)


def label_value(text: str) -> str:
    """Returns a text as the value of a label in Google Cloud."""
    return re.sub("[^a-z0-9_-]", "-", text.lower())[:_MAX_LABEL]
