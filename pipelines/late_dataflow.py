"""The modules of jobs on Dataflow, each imported when it is first used: a local job uses none of them."""

from __future__ import annotations

from imagebeam.pipelines.beam import late_modules

__all__ = ("dataflow_options", "job_progress", "run_remotely")

with late_modules.imported_late(
    [
        "imagebeam.pipelines.messages.job_progress",
        "imagebeam.pipelines.runs.dataflow_options",
        "imagebeam.pipelines.runs.run_remotely",
    ]
):
    from imagebeam.pipelines.messages import job_progress
    from imagebeam.pipelines.runs import dataflow_options, run_remotely
