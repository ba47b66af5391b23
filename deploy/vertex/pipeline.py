"""Pipelines of Vertex AI and Kubeflow that convert images and verify the dataset, in a container or on Dataflow.

`python pipeline.py` compiles them to imagebeam.yaml and imagebeam_on_dataflow.yaml in the working folder, with kfp 2.
docs/schedulers.md says how to run them every night.
"""

# No `from __future__ import annotations` here: kfp reads the annotations of components, and does not understand text.
from kfp import compiler, dsl

# --- set these -------------------------------------------------------------------------------------------------------
IMAGE = "europe-docker.pkg.dev/YOUR-PROJECT/imagebeam/imagebeam:0.1.0"
WORKER_IMAGE = "europe-docker.pkg.dev/YOUR-PROJECT/imagebeam/worker:0.1.0-py3.11-beam2.77.0"
INPUT = "gs://YOUR-BUCKET/photos"
OUTPUT = "gs://YOUR-BUCKET/datasets/flowers"
CONFIG = "image_folder"  # a preset, or the address of a YAML file
PROJECT = "YOUR-PROJECT"
REGION = "europe-west4"
TEMP_LOCATION = "gs://YOUR-BUCKET/tmp"
CPUS, MEMORY = "8", "16G"
# ---------------------------------------------------------------------------------------------------------------------

RETRIES, RETRY_DURATION = 5, "300s"  # Kubeflow retries every exit code; wrong commands end within seconds


@dsl.container_component
def convert(input_uri: str, output_uri: str, config: str, summary: dsl.OutputPath(str)):  # type: ignore[valid-type]
    """Converts images in this container, with a process for each CPU; `summary` is the JSON of --summary-json."""
    return dsl.ContainerSpec(
        image=IMAGE,
        command=["imagebeam", "convert"],
        args=[
            "--config", config, "--input", input_uri, "--output", output_uri, "--update",
            "--log-format=json", "--summary-json", summary,
        ],
    )  # fmt: skip


@dsl.container_component
def convert_on_dataflow(
    input_uri: str,
    output_uri: str,
    config: str,
    project: str,
    region: str,
    temp_location: str,
    worker_image: str,
    summary: dsl.OutputPath(str),  # type: ignore[valid-type]
):
    """Submits a job to Dataflow and waits for it; started again, it attaches to the job that runs."""
    return dsl.ContainerSpec(
        image=IMAGE,
        command=["imagebeam", "convert"],
        args=[
            "--config", config, "--input", input_uri, "--output", output_uri, "--update",
            "--runner=DataflowRunner", "--project", project, "--region", region, "--temp_location", temp_location,
            "--sdk_container_image", worker_image, "--log-format=json", "--summary-json", summary,
        ],
    )  # fmt: skip


@dsl.container_component
def verify(output_uri: str):
    """Reads the dataset again and compares it with its catalog."""
    return dsl.ContainerSpec(image=IMAGE, command=["imagebeam", "verify"], args=[output_uri])


def _finish(converted: dsl.PipelineTask, output_uri: str) -> None:
    """Adds what follows a conversion: the check, and the dataset as an artifact for the steps of a training."""
    converted.set_caching_options(False)  # otherwise the second night would take the result of the first
    converted.set_retry(RETRIES, backoff_duration=RETRY_DURATION, backoff_factor=1.0)
    verified = verify(output_uri=output_uri).after(converted).set_caching_options(False)
    verified.set_retry(2, backoff_duration=RETRY_DURATION, backoff_factor=1.0)
    dsl.importer(artifact_uri=output_uri, artifact_class=dsl.Dataset, reimport=True).after(verified)


@dsl.pipeline(name="imagebeam")
def imagebeam(input_uri: str = INPUT, output_uri: str = OUTPUT, config: str = CONFIG):
    """Converts images in one container."""
    converted = convert(input_uri=input_uri, output_uri=output_uri, config=config)
    converted.set_cpu_limit(CPUS).set_memory_limit(MEMORY)
    _finish(converted, output_uri)


@dsl.pipeline(name="imagebeam-on-dataflow")
def imagebeam_on_dataflow(
    input_uri: str = INPUT,
    output_uri: str = OUTPUT,
    config: str = CONFIG,
    project: str = PROJECT,
    region: str = REGION,
    temp_location: str = TEMP_LOCATION,
    worker_image: str = WORKER_IMAGE,
):
    """Converts images on Dataflow."""
    converted = convert_on_dataflow(
        input_uri=input_uri,
        output_uri=output_uri,
        config=config,
        project=project,
        region=region,
        temp_location=temp_location,
        worker_image=worker_image,
    )
    _finish(converted, output_uri)


if __name__ == "__main__":
    compiler.Compiler().compile(imagebeam, "imagebeam.yaml")
    compiler.Compiler().compile(imagebeam_on_dataflow, "imagebeam_on_dataflow.yaml")
