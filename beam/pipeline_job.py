"""Makes the job of a config for a pipeline of the user: what its images are, and what is written of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from imagebeam import errors
from imagebeam.pipelines import job as job_lib
from imagebeam.pipelines import request as request_lib
from imagebeam.transforms.sources import image_source, reference_rules


@dataclasses.dataclass(frozen=True)
class PipelineSource(image_source.ImageSource):
    """The images that a pipeline brings."""

    def list_all(self) -> Iterator[image_source.Listing]:
        return iter(())

    def facts(self) -> image_source.SourceFacts:
        return image_source.SourceFacts(on_repeated_key="give each image of the pipeline a key of its own")


# Settings that need a source which imagebeam lists itself, and why.
_NEEDS_SOURCE = {
    "split.lists": "its lists name paths below the folder that is listed",
    "split.by: index": "a PCollection has no order",
    "split.holdout": "a PCollection has no order",
    "output.shuffle: none": "a PCollection has no order",
    "source.masks": "masks lie beside the images in a folder",
    "columns.NAME.transform": "tf.Transform writes to a folder that the command removes",
    "storage_options": "other steps of the pipeline would open the same addresses without them",
}


def make_job(config: request_lib.AnyConfig, *, overwrite: bool = False) -> job_lib.Job:
    """Returns the job of a config, for the steps of a pipeline. Reads small files only.

    Args:
        config: as for `imagebeam.convert`, with `output.uri`. With `source.uri`, the images are those of `ListImages`.
            Without it, they are what the pipeline brings, and `source.by` is manifest if a mapping does not say it:
            the images are like rows of a table, and `label.by: column`, `split.by: column` and `columns` name columns.
        overwrite: whether to replace another dataset in the output; it stays until all shards of the new one are
            written.

    Raises:
        ConfigError: if the config does not allow the job.
    """
    if isinstance(config, Mapping) and not {"uri", "by"} & set(config.get("source") or {}):
        config = {**config, "source": {"by": "manifest", **(config.get("source") or {})}}
    checked = request_lib.check(request_lib.Request(config, overwrite=overwrite))
    if checked.config.output.writer == "beam":
        raise errors.ConfigError(
            "beam-writer-in-pipeline",
            "output.writer: beam is for imagebeam convert, which holds the output meanwhile: leave it out",
        )
    source = None
    if checked.config.source.uri is None and not checked.config.source.is_own:
        job_lib.require_address("--output", "output.uri", checked.config.output.uri)
        source = PipelineSource()
    for setting in _settings_that_need_a_source(checked.config):
        if source is not None or setting in ("columns.NAME.transform", "storage_options"):
            raise errors.ConfigError(
                "pipeline-setting",
                f"{setting} is not for the images of a pipeline, since {_NEEDS_SOURCE[setting]}: leave it out, or run "
                "imagebeam convert",
            )
    return job_lib.make_job(checked, source=source)


def _settings_that_need_a_source(config: Any) -> Iterator[str]:
    used = {
        "split.lists": bool(config.split.lists),
        "split.by: index": config.split.by == "index",
        "split.holdout": bool(config.split.holdout),
        "output.shuffle: none": config.output.shuffle == "none",
        "source.masks": config.source.masks.rule is not None,
        "columns.NAME.transform": bool(config.transformed),
        "storage_options": any(config.storage_options.values()),
    }
    assert used.keys() == _NEEDS_SOURCE.keys()
    return (setting for setting, is_used in used.items() if is_used)


def rules_after_listing(job: job_lib.Job) -> reference_rules.ReferenceRules:
    """Returns the rules for labels and splits, which follow what the source lists."""
    return dataclasses.replace(job.rules, listing=reference_rules.NO_RULES.listing)
