"""Converts images into a committed dataset: the main job."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import operator
import os
import secrets
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Union

from imagebeam import catalog as catalog_lib
from imagebeam import cpu_count, errors, records, storage
from imagebeam.pipelines import column_settings, open_source, runners
from imagebeam.pipelines import config as config_lib
from imagebeam.transforms import elements
from imagebeam.transforms.shard import writer_processes
from imagebeam.transforms.sources import image_source

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions

    from imagebeam.pipelines import make_job

_NO_OUTPUT = "/nowhere"  # for what needs an address and writes nothing there
AnyConfig = config_lib.Config | Mapping[str, Any] | str | os.PathLike[str] | None
BeamOptions = Union["PipelineOptions", Sequence[str], str, None]


@dataclasses.dataclass(frozen=True)
class ConvertResult:
    """How a run ended."""

    state: str  # "committed", or "kept": the same dataset was there already
    message: str
    output: str
    catalog: catalog_lib.Catalog
    plan: elements.DatasetPlan
    seconds: float


def convert(
    config: AnyConfig = None,
    beam_options: BeamOptions = None,
    *,
    workers: int | None = None,
    overwrite: bool = False,
    show_progress: bool = False,
    own_process: bool = False,
) -> ConvertResult:
    """Runs the whole job and returns once the dataset is committed: the same as `imagebeam convert`.

    Args:
        config: a Config, its fields as a mapping, or the name of a preset or a YAML file; with `source.uri` and
            `output.uri`. Paths may be of pathlib.
        beam_options: Beam's own, as PipelineOptions, as arguments, or as one string of them
            ("--runner=DataflowRunner --project=p"); by default the local runner in this process.
        workers: writer processes of the local runner; by default as many as cores.
        overwrite: whether another dataset in the output is replaced; it stays until all shards of the new one are
            written.
        show_progress: whether a progress line is kept on standard error.
        own_process: whether this process does nothing else, so that Beam may be imported without its clients of
            services where the job is local.

    Raises:
        ConfigError: if the config or the input does not allow the job; nothing was written.
        TooManyRejectsError: if more images were turned away than allowed; nothing was committed.
        ImagebeamError: if the job failed; what was written is kept for the next run.
    """
    start = time.monotonic()
    _require_utf8_file_names()
    _check_flags(overwrite=overwrite, show_progress=show_progress, own_process=own_process)
    job_config = as_config(config)
    arguments = beam_arguments(beam_options)
    runners.take_hdfs_user(arguments)
    records.require_fast_crc32c()
    workers = _as_workers(workers)
    source: image_source.ImageSource | None = None
    pool: writer_processes.WriterProcesses | None = None
    complaint: errors.ConfigError | None = None
    with contextlib.ExitStack() as stack:
        if runners.is_local(arguments):  # started first: they get ready, and one lists, while Beam is imported
            pool = stack.enter_context(writer_processes.start(workers))
            try:
                source = open_source.make_source(job_config)
                pool.begin(image_source.list_whole, source)
            except errors.ConfigError as e:  # told below, after an option that Beam does not know
                complaint = e
        lightly = own_process and not job_config.transformed  # tf.Transform needs what is left out: pyarrow, type hints
        if lightly:
            runners.import_beam_lightly(arguments, [job_config.source.uri, job_config.output.uri])
        from imagebeam.pipelines import make_job, output_lock, progress

        report = storage.join(str(job_config.output.uri or ""), ".imagebeam", f"run-{secrets.token_hex(4)}.json")
        trusted = runners.TRUSTED_GRAPH if lightly and runners.is_local(arguments) else ()
        options = runners.make_options([*trusted, *arguments], workers)
        if complaint is not None:
            raise complaint
        scratch = column_settings.scratch_folder(job_config, arguments)
        if scratch:
            stack.callback(storage.storage_of(scratch).remove_tree, scratch)
        job = make_job.make_job(job_config, overwrite, storage.normalize(report), source, scratch)
        stack.enter_context(output_lock.hold(job.layout.control))
        stack.callback(storage.storage_of(job.layout.report).remove, job.layout.report)
        stack.callback(storage.storage_of(job.layout.report).remove_tree, job.layout.beam_folder)
        building: contextlib.AbstractContextManager[None] | None = None
        if show_progress:
            count_begun = pool.count_images if pool is not None else lambda: 0
            shown = stack.enter_context(progress.Progress(job.layout, count_begun=count_begun))
            if job.transforms:
                building = shown.doing("starting tf.Transform")  # takes ten seconds or more: it brings TensorFlow
        fields = run_pipeline(job, options, building=building)
        if fields["exit_code"]:
            raise errors.from_exit_code(fields["exit_code"], fields["message"])
    return ConvertResult(
        state=fields["state"],
        message=fields["message"],
        output=job.layout.output,
        catalog=catalog_lib.load_catalog(job.layout.output),
        plan=_plan_of(fields),
        seconds=time.monotonic() - start,
    )


def plan(
    config: AnyConfig = None,
    beam_options: BeamOptions = None,
    *,
    overwrite: bool = False,
    own_process: bool = False,
) -> elements.DatasetPlan:
    """Lists and counts, and returns what `convert` would do; writes nothing.

    Without `output.uri` it says what would be written into a new folder.

    Raises:
        ConfigError: if the config does not fit the input.
    """
    _require_utf8_file_names()
    _check_flags(overwrite=overwrite, own_process=own_process)
    job_config = as_config(config)
    arguments = beam_arguments(beam_options)
    runners.take_hdfs_user(arguments)
    if own_process:
        runners.import_beam_lightly(arguments, [job_config.source.uri, job_config.output.uri])
    from imagebeam.pipelines import make_job

    with _temporary_directory() as directory:
        if job_config.output.uri is None:
            output = job_config.output.model_copy(update={"uri": storage.join(directory, "output")})
            job_config = job_config.model_copy(update={"output": output})
        options = runners.make_options(arguments, cpu_count.available_cores())
        job = make_job.make_job(job_config, overwrite, storage.join(directory, "report.json"))
        return _plan_of(run_pipeline(job, options, plan_only=True))


def save_listing(config: config_lib.Config, uri: str | os.PathLike[str]) -> config_lib.Config:
    """Lists the input of `config` into a file, and returns the config that reads it instead.

    Raises:
        ConfigError: if the input is no folder, or cannot be listed, or the file cannot be written.
    """
    from imagebeam.transforms.sources import files, saved_listing

    _require_utf8_file_names()
    output = config.output.model_copy(update={"uri": config.output.uri or _NO_OUTPUT})
    source = open_source.make_source(config.model_copy(update={"output": output}))
    if not isinstance(source, files.FilesSource):
        raise errors.ConfigError(f"--save-listing is for folders: source.by {config.source.by} is a listing already")
    target = storage.normalize(uri)
    try:
        saved_listing.save(source, target)
    except OSError as e:
        raise errors.ConfigError(f"--save-listing {uri!r} cannot be written ({e.strerror or e})") from e
    listed = config.source.model_copy(update={"uri": target, "by": "listing", "include": ("**/*",)})
    return config.model_copy(update={"source": listed})


def _plan_of(fields: Mapping[str, Any]) -> elements.DatasetPlan:
    from imagebeam.transforms import layout

    return layout.decode_plan(fields["plan"])


def run_pipeline(
    job: make_job.Job,
    options: PipelineOptions,
    plan_only: bool = False,
    building: contextlib.AbstractContextManager[None] | None = None,
) -> dict[str, Any]:
    """Runs the pipeline to its end and returns the report it left.

    Args:
        job: what is to be done.
        options: Beam's.
        plan_only: whether it ends with the plan.
        building: is entered while the pipeline is built.

    Raises:
        ConfigError: if Beam cannot make the runner.
        ImagebeamError: if the pipeline failed without a report of its own.
    """
    import apache_beam as beam

    from imagebeam.pipelines import make_job, progress

    try:
        beam_pipeline = beam.Pipeline(options=options)
    except (ValueError, ImportError, AttributeError) as e:  # no such runner, or one that wants more options
        remedy = ": pip install 'imagebeam[dataflow]'" if "apache_beam[gcp]" in str(e) else ""
        raise errors.ConfigError(f"Beam cannot start this runner: {' '.join(str(e).split())}{remedy}") from e
    with building or contextlib.nullcontext():
        make_job.build(beam_pipeline, job, plan_only)
    try:
        with runners.without_tracebacks():
            beam_pipeline.run().wait_until_finish()
    except Exception as e:  # whatever a runner raises; the report, or the last line of the traceback, says why
        cause = _last_line(e)
        if cause.startswith("KeyboardInterrupt"):  # Ctrl-C in the middle of a step, of which Beam makes an error
            raise KeyboardInterrupt from e
        if f"[Errno {errno.ENOSPC}]" in cause:
            cause += f" (in {job.layout.output}: free some first)"
        fields = progress.read_report(job.layout.report)
        if fields is None or not fields["exit_code"]:
            is_local = storage.storage_of(job.layout.output).is_local
            where = "" if is_local else f" in {job.layout.control}"  # a bucket is not looked at in passing
            is_known = "[Errno " in cause  # all that Beam's long text would add is where in our code
            raise errors.ImagebeamError(
                f"the pipeline failed: {cause}; finished shards are kept{where}, run the same command again to go on"
            ) from (None if is_known else e)
        return fields
    fields = progress.read_report(job.layout.report)
    if fields is None:
        raise errors.ImagebeamError(
            f"the pipeline ended without its report, {job.layout.report}; run the command again"
        )
    return fields


def as_config(config: AnyConfig) -> config_lib.Config:
    """A Config from whatever `convert` takes.

    Raises:
        ConfigError: if it is of another type, or anything in it is not as expected.
    """
    if isinstance(config, config_lib.Config):
        return config
    if isinstance(config, Mapping):
        return config_lib.parse_config(config, where="the mapping given")
    if config is None or isinstance(config, str):
        return config_lib.load_config(config)
    if isinstance(config, os.PathLike):
        return config_lib.load_config(os.fspath(config))
    raise errors.ConfigError(
        f"config is {_describe(config)}; give a mapping of sections, the name of a preset, the path of a YAML file, "
        "or a Config"
    )


def beam_arguments(beam_options: BeamOptions) -> list[str]:
    """Beam's options as arguments of a command.

    Raises:
        ConfigError: if they are of another type, or one of them is not text.
    """
    if beam_options is None:
        return []
    if isinstance(beam_options, str):
        try:
            return shlex.split(beam_options)
        except ValueError as e:
            raise errors.ConfigError(f"beam_options {beam_options!r} cannot be split into options: {e}") from e
    if isinstance(beam_options, Sequence) and not isinstance(beam_options, bytes):
        arguments = [os.fspath(each) if isinstance(each, os.PathLike) else each for each in beam_options]
        for each in arguments:
            if not isinstance(each, str):
                raise errors.ConfigError(f"beam_options holds {_describe(each)}; each option is text: '--name=value'")
        return arguments
    if not hasattr(beam_options, "get_all_options"):  # without an import of Beam, which takes a second
        raise errors.ConfigError(
            f"beam_options is {_describe(beam_options)}; give PipelineOptions, a list such as "
            "['--runner=DataflowRunner', '--project=p'], or the same in one string"
        )
    arguments = []
    for name, value in beam_options.get_all_options(drop_default=True).items():
        values = value if isinstance(value, list) else [value]
        arguments += [f"--{name}" if each is True else f"--{name}={each}" for each in values]
    return arguments


def _as_workers(workers: Any) -> int:
    if workers is None:
        return cpu_count.available_cores()
    if isinstance(workers, bool) or not hasattr(workers, "__index__"):
        raise errors.ConfigError(f"workers is {_describe(workers)}; give a number of processes, such as 4")
    if workers < 1:
        raise errors.ConfigError(f"workers is {workers}; it must be at least 1")
    return operator.index(workers)


def _check_flags(**flags: Any) -> None:
    for name, value in flags.items():
        if not isinstance(value, bool):  # "no" would count as true
            raise errors.ConfigError(f"{name} is {_describe(value)}; give True or False")


def _describe(value: Any) -> str:
    return f"{value!r}, of type {type(value).__name__}"


def _require_utf8_file_names() -> None:
    """Keys and labels are file names: they must not depend on the locale. The command line sees to it itself."""
    if (encoding := sys.getfilesystemencoding()) != "utf-8":
        raise errors.ConfigError(
            f"Python takes file names here for {encoding}, by the locale, and keys and labels would differ from those "
            "of other machines: start Python with PYTHONUTF8=1 in the environment"
        )


def _last_line(error: BaseException) -> str:
    """The cause inside an error of Beam, whose text is a whole traceback."""
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith(" ")]
    return lines[-1] if lines else type(error).__name__


@contextlib.contextmanager
def _temporary_directory() -> Iterator[str]:
    directory = tempfile.mkdtemp(prefix="imagebeam-")
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    from imagebeam.pipelines import cli

    sys.exit(cli.main(["convert", *sys.argv[1:]]))
