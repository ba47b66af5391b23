"""Writes a dataset from the images of a pipeline, and yields it once it is committed."""

from typing import Any, NamedTuple

import apache_beam as beam

from imagebeam import catalog as catalog_lib
from imagebeam.beam import pipeline_job, receive_images
from imagebeam.pipelines import job as job_lib
from imagebeam.pipelines import request as request_lib
from imagebeam.pipelines import write_references
from imagebeam.transforms import list_images, summaries
from imagebeam.transforms.output import run_report


class CommittedDataset(NamedTuple):
    """A dataset that is complete and may be read."""

    output: str
    """Address of its folder."""
    state: run_report.State
    """One of "committed", or "kept": the same dataset was there already."""
    catalog: catalog_lib.Catalog


def _describe(state: run_report.State, output: str) -> CommittedDataset:
    return CommittedDataset(output, state, catalog_lib.load_catalog(output))


def describe(output: str) -> beam.PTransform:
    """The state of a run -> the dataset that it has committed or found in the folder `output`."""
    return beam.Map(_describe, output=output).with_output_types(CommittedDataset)


def _count_alone(rejects: int) -> summaries.Tally:
    return summaries.Tally(rejects, {}, ())


def _without_count(tally: summaries.Tally) -> summaries.Tally:
    return tally._replace(listed=0)


class WriteDataset(beam.PTransform):
    """The images of a pipeline -> the committed dataset.

    Input: `EncodedImage`, images as bytes, or `ImageRef`, references to files, or batches of these (`RefBatch`), as
    `ListImages` yields them; bounded, in any windows, which are ignored. Output: one `CommittedDataset`.

    The shards are byte for byte those of `imagebeam.convert` of the same images with the same keys and config, on any
    runner and however the elements are bundled. A pipeline that failed or was killed goes on with the shards that it
    finished if it runs again on the same images. Temporary files are in the folder `.imagebeam` of the output.

    Raises, when the pipeline is built:
        ConfigError: if the config does not allow the dataset.

    Raises, when it runs; nothing is committed then:
        ConfigError: if an element is not as the config says, two images have one key, a split has no image, there is
            no image at all, or the output holds another dataset.
        BusyError: if another run writes to the output.
        TooManyRejectsError: if more images are rejected than `rejects.max_fraction` allows.
    """

    def __init__(
        self,
        config: "request_lib.AnyConfig | job_lib.Job",
        *,
        overwrite: bool = False,
        listed: list_images.ListedImages | None = None,
    ):
        """Checks the config.

        Args:
            config: as for `make_job`, or the job that it returns.
            overwrite: as for `make_job`, which a job knows already.
            listed: the outputs of `ListImages` that the images are of: its rejects are those of the dataset too.
        """
        super().__init__()
        self._job = config if isinstance(config, job_lib.Job) else pipeline_job.make_job(config, overwrite=overwrite)
        self._listed = listed

    def expand(self, images: beam.PCollection[Any]) -> beam.PCollection[CommittedDataset]:
        job = self._job
        run_id = images.pipeline | "StartRun" >> write_references.StartRun()
        receive = receive_images.ReceiveImages(receive_images.rules_of(job), run_id)
        received, spilled = images | "Receive" >> receive  # batches of ImageRef; files with bytes
        rules = pipeline_job.rules_after_listing(job)
        labelled = received.images | "Label" >> list_images.ApplyRules(rules)  # the same with labels and splits
        listed = _merge(labelled, received, self._listed)
        run = write_references.PipelineRun(run_id, spilled)
        state = labelled.images | "WriteReferences" >> write_references.WriteReferences(job, listed, run)
        return state | "Describe" >> describe(job.settings.output)


def _merge(
    labelled: list_images.ListedImages, received: list_images.ListedImages, given: list_images.ListedImages | None
) -> list_images.ListedImages:
    """Returns images with the rejects and tallies of all steps before them; they count where they are received."""
    rejects, tallies = [labelled.rejects, received.rejects], [labelled.tallies, received.tallies]
    if given is not None:
        rejects.append(given.rejects)
        tallies += [
            given.rejects
            | "CountRejects" >> beam.combiners.Count.Globally()
            | "AsTally" >> beam.Map(_count_alone).with_output_types(summaries.Tally),
            given.tallies | "WithoutCount" >> beam.Map(_without_count).with_output_types(summaries.Tally),
        ]
    return list_images.ListedImages(
        labelled.images, rejects | "AllRejects" >> beam.Flatten(), tallies | "AllTallies" >> beam.Flatten()
    )
