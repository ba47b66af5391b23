"""Checks the arguments of a run and makes the rules of its job. Imports no Beam."""

from __future__ import annotations

from typing import NamedTuple

from imagebeam import errors, records, storage
from imagebeam.pipelines import call_arguments, job_rules, update_settings
from imagebeam.pipelines import make_rules as make_rules_lib
from imagebeam.pipelines.beam import runners
from imagebeam.pipelines.config import model as config_lib
from imagebeam.pipelines.messages import run_journal
from imagebeam.transforms import output_paths, snapshot_settings
from imagebeam.transforms.images import pillow_decoder
from imagebeam.transforms.sources import image_source


class Checked(NamedTuple):
    """A request whose arguments were checked."""

    config: config_lib.Config
    workers: int
    snapshot: snapshot_settings.SnapshotSettings | None  # None for a dataset without snapshots


def check(request: call_arguments.Request) -> Checked:
    """Checks the arguments of a run and reads its config.

    Raises:
        ConfigError: if they do not allow the run.
    """
    call_arguments.require_utf8_file_names()
    for name in ("overwrite", "update", "retry_rejects", "fail_on_drift"):
        call_arguments.check_flags(**{name: getattr(request, name)})
    config, snapshot = call_arguments.as_config(request.config), None
    runners.take_hdfs_user(request.arguments)
    records.require_fast_crc32c()
    pillow_decoder.require_pillow()
    if request.update:
        snapshot = update_settings.find_base(config, request.overwrite, request.retry_rejects, request.fail_on_drift)
    elif request.retry_rejects:
        raise errors.ConfigError(update_settings.RETRY_WITHOUT_UPDATE)
    elif request.fail_on_drift:
        raise errors.ConfigError("--fail-on-drift is for datasets of snapshots: add --update")
    return Checked(config, call_arguments.as_workers(request.workers), snapshot)


def make_rules(
    request: call_arguments.Request,
    checked: Checked,
    source: image_source.ImageSource | None = None,
    scratch: str = "",
) -> job_rules.JobRules:
    """Returns the rules of a job that runs in this process, or in the one that started it, which stages their names.

    Args:
        request: of the run.
        checked: the same, after its check.
        source: of the config, if it is open already.
        scratch: folder where tf.Transform writes first.

    Raises:
        ConfigError: if the input is not as the config says.
    """
    run_id, paths = output_paths.new_run_id(), paths_of(checked)
    return make_rules_lib.make_rules(
        checked.config,
        request.overwrite and checked.snapshot is None,
        paths.report(run_id),
        source,
        scratch,
        run_id,
        snapshot=checked.snapshot,
    )


def subject_of(config: config_lib.Config) -> run_journal.Subject:
    """Returns what a command with this config works on."""
    output = config.output.uri
    name = config.output.name or (config_lib.default_name(output) if output else None)
    return run_journal.Subject(config.source.uri, output, name, config.rejects.max_fraction)


def paths_of(checked: Checked) -> output_paths.OutputPaths:
    """Returns the addresses in the folder that a run writes."""
    snapshot = checked.snapshot
    return output_paths.OutputPaths(
        snapshot.folder if snapshot is not None else storage.normalize(str(checked.config.output.uri or ""))
    )
