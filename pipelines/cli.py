"""The command line. Commands import the modules they need when they run, so that each starts at once."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import json
import logging
import os
import shlex
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from typing import NoReturn, TextIO

import imagebeam
from imagebeam import catalog as catalog_lib
from imagebeam import errors, find_snapshot, missing_packages, plural
from imagebeam.pipelines import command_parser, json_log, option_variables, run_journal, run_outputs, terminal

_STOPPED = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "stopped by SIGHUP"}
_NOBODY_READS = 128 + signal.SIGPIPE
_MAX_NOTES = 100  # problems of a dataset in a summary
_STATES_OF_PLAN: dict[str, run_journal.State] = {"write": "planned", "keep": "kept", "refuse": "refused"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    if arguments is None:
        terminal.ensure_utf8_file_names()
    with terminal.Streams():
        try:
            return _run(arguments)
        except SystemExit as e:  # of the parser, which prints --help and --version
            if e.code or not _has_lost_output():
                raise
            return 1


def _has_lost_output(is_committed: bool = False) -> bool:
    """Returns whether a part of standard output could not be written, and says so."""
    failure = terminal.output_failure()
    if failure is None:
        return False
    done = "; the dataset is committed" if is_committed else ""
    _complain(f"cannot write to standard output ({failure.strerror}); part of it is missing{done}")
    return True


def _run(arguments: Sequence[str] | None) -> int:
    """Runs one command, and tells how it ended where its options say."""
    texts = sys.argv[1:] if arguments is None else [*arguments]
    options = command_parser.find_outputs(texts)
    journal = run_journal.Journal(options.command)
    with contextlib.ExitStack() as stack:
        if options.log_format == "json":
            lines = stack.enter_context(json_log.standard_error_as_json(options.verbose))
            lines.context = journal.context
        outputs = run_outputs.RunOutputs(options, journal, _warn)
        if options.takes_standard_output:
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        try:
            exit_code = _run_command(texts, journal, outputs)
        except SystemExit as e:
            if not isinstance(e, option_variables.UsageError):  # --help or --version
                raise
            journal.fail(2, e.message)
            outputs.close()
            raise
        except Exception as e:
            journal.fail(1, f"{type(e).__name__}: {e}")
            journal.error = e
            outputs.close()
            if json_log.current() is not None:
                return 1
            raise
        outputs.close()
        return exit_code


def _run_command(arguments: Sequence[str], journal: run_journal.Journal, outputs: run_outputs.RunOutputs) -> int:
    commands = {
        "convert": _convert,
        "plan": _plan,
        "init": _init,
        "compact": _compact,
        "index": _index,
        "snapshots": _snapshots,
        "status": _status,
        "verify": _verify,
        "inspect": _inspect,
        "report": _report,
        "bench": _bench,
        "schema": _schema,
    }
    parser = command_parser.make_parser(commands)
    known, beam_arguments = parser.parse_known_args(arguments)
    if known.run not in (_convert, _plan, _compact) and beam_arguments:
        near = difflib.get_close_matches(beam_arguments[0], known.flags, n=1)
        parser.error(f"unknown argument {beam_arguments[0]!r}" + (f"; did you mean {near[0]}?" if near else ""))
    known.journal = journal
    journal.input = getattr(known, "input", None)  # as far as known before the config is read
    journal.output = getattr(known, "output", getattr(known, "directory", None))
    _quieten(known.verbose)
    for name, near_name in known.misspelt:
        _warn(f"there is no option for the environment variable {name}; did you mean {near_name}?")
    # to look for plugins of pydantic, the first model that is defined reads the metadata of all packages
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    with _stopped_by_signals() as stopped_by:
        try:
            outputs.open()
            exit_code = known.run(known, beam_arguments)
            is_committed = known.run is _convert and not known.no_wait
            return exit_code or int(_has_lost_output(is_committed))
        except KeyboardInterrupt as e:
            number = stopped_by[0] if stopped_by else signal.SIGINT
            advice = "run the same command again" if known.run is _convert else ""
            text = "; ".join(text for text in (_STOPPED[number], str(e) or advice) if text)
            journal.end("interrupted", 128 + number, text)
            _tell_failure(text)
            return 128 + number
        except (errors.ImagebeamError, ModuleNotFoundError, OSError) as e:
            if known.verbose and json_log.current() is None:
                traceback.print_exc()
            shown = missing_packages.missing_package(e, "this command") if isinstance(e, ModuleNotFoundError) else e
            journal.fail(shown.exit_code if isinstance(shown, errors.ImagebeamError) else 1, str(shown))
            journal.error = e
            _tell_failure(str(shown))
            return journal.exit_code


@contextlib.contextmanager
def _stopped_by_signals() -> Iterator[list[signal.Signals]]:
    """Makes SIGTERM and SIGHUP end the command like Ctrl-C, with KeyboardInterrupt; yields the signals received.

    A second signal ends the process at once.
    """
    came: list[signal.Signals] = []

    def stop(number: int, _: object) -> NoReturn:
        came.append(signal.Signals(number))
        signal.signal(number, signal.SIG_DFL)
        raise KeyboardInterrupt

    handled = []
    if threading.current_thread() is threading.main_thread():  # Python allows handlers only there
        handled = [each for each in _STOPPED if signal.getsignal(each) is signal.SIG_DFL]  # nohup ignores SIGHUP
    for each in handled:
        signal.signal(each, stop)
    try:
        yield came
    finally:
        for each in handled:
            signal.signal(each, signal.SIG_DFL)


def _quieten(verbose: bool) -> None:
    """Hides log messages of libraries that do not help the user; `-v` shows them."""
    logging.basicConfig(
        level=logging.INFO if verbose else logging.CRITICAL, format="%(levelname)s %(name)s: %(message)s"
    )
    if not verbose:
        logging.getLogger("imagebeam.pipelines.output_lock").setLevel(logging.WARNING)  # it says why a run waits
        warnings.simplefilter("ignore")
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def _tell_failure(text: str) -> None:
    """Prints why the command ends. As JSON, the line of the summary says it, so that an error is one line."""
    if json_log.current() is None:
        _say(f"imagebeam: {text}", sys.stderr)


def _complain(text: str) -> None:
    """Prints what is wrong."""
    if (log := json_log.current()) is not None:
        log.log(text, "ERROR")
    else:
        _say(f"imagebeam: {text}", sys.stderr)


def _warn(text: str) -> None:
    if (log := json_log.current()) is not None:
        log.log(text, "WARNING")
    else:
        _say(f"imagebeam: {text}", sys.stderr)


def _tell(text: str) -> None:
    """Prints one line about the run on standard error."""
    if (log := json_log.current()) is not None:
        log.log(text)
    else:
        _say(text, sys.stderr)


def _say(text: str, stream: TextIO | None = None) -> None:
    """Prints one line, with control characters in file names escaped."""
    print(terminal.printable(text), file=stream or sys.stdout)


def _load_config(known: argparse.Namespace):  # type: ignore[no-untyped-def]
    from imagebeam.pipelines import config

    addresses = [("source.uri", known.input), ("output.uri", known.output)]
    given = [f"{key}={json.dumps(uri)}" for key, uri in addresses if uri is not None]
    loaded = config.load_config(known.config, [*known.set, *given])
    name = loaded.output.name or (config.default_name(str(loaded.output.uri)) if loaded.output.uri else None)
    known.journal.begin(loaded, name)
    return loaded


def _convert(known: argparse.Namespace, beam_arguments: list[str]) -> int:
    from imagebeam.pipelines import column_settings, convert, progress, report_rows, runners

    leaves = known.no_wait or (runners.is_dataflow(beam_arguments) and runners.leaves_job(beam_arguments))
    if known.keep_snapshots is not None and (leaves or not known.update):
        remedy = "leave it out, and run imagebeam snapshots DIR --keep N later" if leaves else "add --update"
        raise errors.ConfigError(f"--keep-snapshots removes snapshots after a new one is committed: {remedy}")
    if leaves:
        return _submit(known, beam_arguments)
    start = time.monotonic()
    config = _load_config(known)
    transform_version = column_settings.versions(config).get("tensorflow_transform")
    if not known.quiet:
        on = [
            runners.runner_name(beam_arguments),
            *([f"tf.Transform {transform_version}"] if transform_version else []),
        ]
        _tell(f"imagebeam {imagebeam.__version__} on {', '.join(on)}")
    hushes = transform_version is not None and not known.verbose
    if hushes:  # tf.Transform looks for GPUs, and TensorFlow logs an error where there are none
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    result = convert.convert(
        config,
        beam_arguments,
        workers=known.workers,
        overwrite=known.overwrite,
        update=known.update,
        retry_rejects=known.retry_rejects,
        fail_on_drift=known.fail_on_drift,
        show_progress=not known.quiet,
        cancel_on_interrupt=known.cancel_on_interrupt,
        _own_process=True,
        _while_building=terminal.hush_libraries() if hushes else None,
        _journal=known.journal,
    )
    known.journal.take_catalog(result.catalog)
    known.journal.end(_state_of(result.state, result.catalog), 0, result.message)
    if known.keep_snapshots is not None:
        _keep_snapshots(str(config.output.uri), known.keep_snapshots)
    if known.quiet:
        return 0
    for note in result.plan.notes:
        _tell(f"note: {note}")
    if result.state == "kept":
        _say(f"{result.message}; nothing to do")
        return 0
    if result.message:
        _say(result.message)
    output = str(config.output.uri)  # as the user wrote it
    seconds = None if result.is_attached else time.monotonic() - start  # nobody here saw when the job began
    progress.print_table([*progress.summary_rows(result.catalog, output, seconds), *report_rows.rows(result.report)])
    _say(f"next: imagebeam verify {shlex.quote(output)}")
    return 0


def _state_of(state: run_journal.State, catalog: catalog_lib.Catalog) -> run_journal.State:
    """Returns the state of a run for its summary: an update that keeps a snapshot has found nothing new."""
    return "nothing_new" if state == "kept" and catalog.snapshot else state


def _submit(known: argparse.Namespace, beam_arguments: list[str]) -> int:
    from imagebeam.pipelines import convert, progress

    config = _load_config(known)
    done = convert.submit(
        config,
        beam_arguments,
        overwrite=known.overwrite,
        update=known.update,
        retry_rejects=known.retry_rejects,
        fail_on_drift=known.fail_on_drift,
        show_progress=not known.quiet,
    )
    output = str(config.output.uri)
    known.journal.job, known.journal.template = done.job, done.template or None
    known.journal.end("submitted", 0)
    if done.job is None:
        _say(f"template written to {done.template}")
        return 0
    progress.print_table(
        [
            ("job", done.job.id + (" (was running already)" if done.is_attached else "")),
            ("console", done.job.console),
            ("output", output),
        ]
    )
    _say(f"next: imagebeam status {shlex.quote(output)}")
    return 0


def _compact(known: argparse.Namespace, beam_arguments: list[str]) -> int:
    from imagebeam.pipelines import compact, progress

    result = compact.compact(
        known.directory,
        beam_arguments,
        workers=known.workers,
        show_progress=not known.quiet,
        _own_process=True,
        _journal=known.journal,
    )
    known.journal.take_catalog(result.catalog)
    known.journal.end(result.state, 0)
    if known.quiet:
        return 0
    if known.keep_snapshots is not None:
        _keep_snapshots(known.directory, known.keep_snapshots)
    if result.state == "kept":
        _say(f"snapshot {result.snapshot} of {known.directory} stands alone already; nothing to do")
        return 0
    progress.print_table(progress.summary_rows(result.catalog, known.directory, result.seconds))
    return 0


def _index(known: argparse.Namespace, _: list[str]) -> int:
    from imagebeam.pipelines import index_dataset, progress

    result = index_dataset.index(
        known.directory,
        image=known.image,
        label=known.label,
        label_base=known.label_base,
        split=known.split,
        partial=known.partial,
        keep_broken=known.keep_broken,
        plan=known.plan,
        workers=known.workers,
        show_progress=not known.quiet,
        _own_process=True,
    )
    if known.quiet:
        return 0
    for change in result.changes:
        _tell(f"changed: {change}")
    for note in result.notes:
        _tell(f"note: {note}")
    if result.state == "kept":
        _say(f"the index of {known.directory} fits its shards; nothing to do")
        return 0
    progress.print_table(index_dataset.result_rows(result, known.directory))
    command = "index" if result.state == "planned" else "verify"
    _say(f"next: imagebeam {command} {shlex.quote(known.directory)}")
    return 0


def _snapshots(known: argparse.Namespace, _: list[str]) -> int:
    from imagebeam.pipelines import keep_snapshots, progress, report_rows

    for name, is_pinned in ((known.pin, True), (known.unpin, False)):
        if name is not None:
            keep_snapshots.set_pin(known.directory, name, is_pinned)
    if known.keep is not None:
        _keep_snapshots(known.directory, known.keep)
    if known.report is not None:
        progress.print_table(report_rows.rows(keep_snapshots.load_report(known.directory, known.report)))
        return 0
    progress.print_table(keep_snapshots.snapshot_rows(keep_snapshots.list_snapshots(known.directory)))
    return 0


def _keep_snapshots(directory: str, num_kept: int) -> None:
    from imagebeam.pipelines import keep_snapshots

    removal = keep_snapshots.keep_snapshots(directory, num_kept)
    if removal.removed:
        files = plural.count(removal.num_files, "file")
        _say(f"removed {plural.count(len(removal.removed), 'snapshot')}: {', '.join(removal.removed)} ({files})")
    if removal.pinned:
        _say(f"kept, because pinned: {', '.join(removal.pinned)}")


def _status(known: argparse.Namespace, _: list[str]) -> int:
    from imagebeam.pipelines import progress, status

    found = status.status(known.directory)
    if known.json:
        print(json.dumps(found.to_json(), indent=1))
    else:
        progress.print_table(status.status_rows(found))
    return found.exit_code


def _plan(known: argparse.Namespace, beam_arguments: list[str]) -> int:
    from imagebeam.pipelines import convert, plan_report, progress, recognized_plan

    recognized = recognized_plan.choose(known)
    if recognized.rows:
        progress.print_table(recognized.rows)
    if recognized.error:
        raise errors.ConfigError(recognized.error)
    config = _load_config(known)
    if known.save_listing:
        command = _convert_command(known, beam_arguments, config)
        convert.check_plan(config, beam_arguments)  # before the input is listed, which may take long
        config = convert.save_listing(config, known.save_listing)
        _say(f"listed into {known.save_listing}; next: {command}")
    planned = convert.plan(
        config,
        beam_arguments,
        overwrite=known.overwrite,
        update=known.update,
        retry_rejects=known.retry_rejects,
        show_progress=True,
        _own_process=True,
        _journal=known.journal,
    )
    known.journal.end(_STATES_OF_PLAN[planned.action], planned.exit_code, planned.message)
    progress.print_table(plan_report.plan_rows(planned, config.output.uri or "a new folder (no --output given)"))
    if planned.action == "write":
        for number, command in enumerate(recognized.next):
            _say(f"{'or' if number else 'next'}: {command}")
    return planned.exit_code


def _init(known: argparse.Namespace, _: list[str]) -> int:
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # as in _load_config
    from imagebeam.pipelines import init_config, progress, recognized_plan

    words = ["imagebeam", "init", known.directory]
    words += ["--config", known.config] * (known.config is not None)
    written = init_config.make(known.directory, known.config, shlex.join(words))
    init_config.write(written, known.output, known.force)
    progress.print_table([*recognized_plan.describe(written.found, written.chosen), ("written", known.output)])
    first, *others = init_config.next_commands(known.output)
    _say(f"next: {first}")
    for command in others:
        _say(f"then: {command}")
    return 0


def _convert_command(known, beam_arguments, config):  # type: ignore[no-untyped-def]  # a type would import pydantic
    """Returns the command that converts the listing of a `plan` command with the same options."""
    replaced = {"source.uri", "source.by", "source.include", "output.uri"}
    settings = [each for each in known.set if each.partition("=")[0].strip() not in replaced]
    settings.append("source.by=listing")
    if config.source.include != ("**/*",):  # the listing has been filtered already, and takes no patterns
        settings.append('source.include=["**/*"]')
    words = ["imagebeam", "convert"]
    words += ["--config", known.config] * (known.config is not None)
    words += ["--input", known.save_listing, "--output", known.output or config.output.uri or "OUTPUT"]
    for setting in settings:
        words += ["--set", setting]
    words += ["--workers", str(known.workers)] * (known.workers is not None)
    words += ["--overwrite"] * known.overwrite + ["--update"] * known.update
    words += ["--retry-rejects"] * known.retry_rejects
    return shlex.join([*words, *beam_arguments])


def _verify(known: argparse.Namespace, _: list[str]) -> int:
    from imagebeam.pipelines import verify_dataset

    start = time.monotonic()
    if known.decode and verify_dataset.needs_tensorflow(known.directory, known.snapshot):
        if not known.verbose:  # TensorFlow logs each image that it refuses, and once more when the process ends
            os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
        _import_tensorflow(known.verbose)
    journal: run_journal.Journal = known.journal
    result = verify_dataset.verify(known.directory, known.decode, known.snapshot)
    journal.take_catalog(result.catalog)
    journal.notes = [str(problem) for problem in result.problems[:_MAX_NOTES]]
    for problem in result.problems:
        _complain(str(problem))
    counts = result.catalog.counts
    decoded = ", every image decoded" if known.decode else ""
    if result.problems:
        _complain(result.advice)
        journal.end("failed", errors.VerificationError.exit_code, result.advice)
        return errors.VerificationError.exit_code
    journal.end("verified", 0)
    records = plural.count(counts.written, "record")
    snapshot = find_snapshot.name_of(result.catalog)
    which = f", snapshot {snapshot}" if snapshot else ""
    _say(
        f"{known.directory}{which}: {records} in {plural.count(result.num_shards, 'shard')} "
        f"{'matches' if counts.written == 1 else 'match'} the catalog{decoded} ({time.monotonic() - start:.1f} s)"
    )
    return 0


def _inspect(known: argparse.Namespace, _: list[str]) -> int:
    from imagebeam.pipelines import inspect_dataset, progress, verify_dataset

    for name in ("crop", "image_size", "seed", "cache_dir"):
        if getattr(known, name) is not None and known.preview is None:
            raise errors.ConfigError(f"--{name.replace('_', '-')} only applies to a preview: add --preview FILE.png")
    directory, catalog = find_snapshot.find(verify_dataset.find_folder(known.directory), known.snapshot)
    split = known.split or next(iter(catalog.splits))
    _check_split(split, catalog)
    progress.print_table(inspect_dataset.catalog_rows(catalog, directory))
    if not known.preview:  # with a preview, -n counts images
        for index, values in zip(range(known.n or 0), inspect_dataset.read_examples(directory, catalog, split)):
            print()
            _say(f"{split} {index}: {inspect_dataset.describe_example(values)}")
            if terminal.reader_has_gone() and known.save_to is None and known.preview is None:
                return _NOBODY_READS
    if known.save_to is not None:
        paths = inspect_dataset.save_images(directory, catalog, split, known.n or 5, known.save_to)
        print()
        _say(f"{plural.count(len(paths), 'image')} written to {known.save_to}")
    if known.preview is not None:
        count = _draw_preview(known, split)
        print()
        _say(f"{plural.count(count, 'image')} drawn to {known.preview}")
    return 0


def _draw_preview(known: argparse.Namespace, split: str) -> int:
    from imagebeam.pipelines import preview_batch

    dataset = imagebeam.open_dataset(known.directory, cache_dir=known.cache_dir, snapshot=known.snapshot)
    _import_tensorflow(known.verbose)
    return preview_batch.write_preview(
        dataset,
        split,
        known.preview,
        count=known.n or 32,
        crop=known.crop or "random",
        image_size=known.image_size or 224,
        seed=known.seed or 0,
    )


def _report(known: argparse.Namespace, _: list[str]) -> int:
    from imagebeam.pipelines import report_dataset

    num_bytes = report_dataset.write_report(known.directory, known.output, known.snapshot)
    _say(f"{plural.format_bytes(num_bytes)} written to {known.output}: open it in a browser")
    return 0


def _bench(known: argparse.Namespace, _: list[str]) -> int:
    from imagebeam import storage
    from imagebeam.pipelines import bench_reader, progress, verify_dataset

    if storage.scheme_of(known.directory) == "file":  # TensorFlow reads gs:// even if our own client is not installed
        verify_dataset.find_folder(known.directory)
    dataset = imagebeam.open_dataset(known.directory, cache_dir=known.cache_dir, snapshot=known.snapshot)
    split = known.split or ("train" if "train" in dataset.splits else next(iter(dataset.splits)))
    _check_split(split.partition("[")[0], dataset.catalog)
    _import_tensorflow(known.verbose)
    print(f"measuring 6 x {known.seconds:g} s; other running programs lower the result", file=sys.stderr)
    result = bench_reader.run_bench(
        dataset,
        split,
        batch_size=known.batch_size,
        image_size=known.image_size,
        dtype=known.dtype,
        seconds=known.seconds,
        threads=known.threads,
    )
    if known.json:
        print(json.dumps(result.to_json(), indent=1))
        return 0
    progress.print_table(bench_reader.bench_rows(result))
    _say(bench_reader.summarize(result))
    return 0


def _check_split(split: str, catalog: catalog_lib.Catalog) -> None:
    if split not in catalog.splits:
        raise errors.ConfigError(f"--split {split!r} is not one of {', '.join(catalog.splits)}")


def _import_tensorflow(verbose: bool) -> None:
    """Imports TensorFlow for reading alone. If it is not installed, the reader reports that."""
    with contextlib.suppress(ModuleNotFoundError), contextlib.nullcontext() if verbose else terminal.hush_libraries():
        import tensorflow as tf

        # Otherwise the first tensor would take all memory of a GPU, where a training may be running.
        tf.config.set_visible_devices([], "GPU")


def _schema(_: argparse.Namespace, __: list[str]) -> int:
    from imagebeam.pipelines import config_schema

    print(config_schema.json_schema(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
