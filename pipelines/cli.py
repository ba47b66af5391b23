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
from imagebeam import errors, missing_packages, plural
from imagebeam.pipelines import command_parser, terminal

_STOPPED = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "stopped by SIGHUP"}
_NOBODY_READS = 128 + signal.SIGPIPE


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
    commands = {
        "convert": _convert,
        "plan": _plan,
        "status": _status,
        "verify": _verify,
        "inspect": _inspect,
        "bench": _bench,
        "schema": _schema,
    }
    parser = command_parser.make_parser(commands)
    known, beam_arguments = parser.parse_known_args(arguments)
    if known.run not in (_convert, _plan) and beam_arguments:
        near = difflib.get_close_matches(beam_arguments[0], known.flags, n=1)
        parser.error(f"unknown argument {beam_arguments[0]!r}" + (f"; did you mean {near[0]}?" if near else ""))
    _quieten(known.verbose)
    with _stopped_by_signals() as stopped_by:
        try:
            exit_code = known.run(known, beam_arguments)
            is_committed = known.run is _convert and not known.no_wait
            return exit_code or int(_has_lost_output(is_committed))
        except KeyboardInterrupt as e:
            number = stopped_by[0] if stopped_by else signal.SIGINT
            _complain("; ".join(text for text in (_STOPPED[number], str(e)) if text))
            return 128 + number
        except (errors.ImagebeamError, ModuleNotFoundError, OSError) as e:
            if known.verbose:
                traceback.print_exc()
            if isinstance(e, ModuleNotFoundError):
                e = missing_packages.missing_package(e, "this command")
            _complain(str(e))
            return e.exit_code if isinstance(e, errors.ImagebeamError) else 1


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


def _complain(text: str) -> None:
    _say(f"imagebeam: {text}", sys.stderr)


def _say(text: str, stream: TextIO | None = None) -> None:
    """Prints one line, with control characters in file names escaped."""
    print(terminal.printable(text), file=stream or sys.stdout)


def _load_config(known: argparse.Namespace):  # type: ignore[no-untyped-def]
    from imagebeam.pipelines import config

    addresses = [("source.uri", known.input), ("output.uri", known.output)]
    given = [f"{key}={json.dumps(uri)}" for key, uri in addresses if uri is not None]
    return config.load_config(known.config, [*known.set, *given])


def _convert(known: argparse.Namespace, beam_arguments: list[str]) -> int:
    from imagebeam.pipelines import column_settings, convert, progress, runners

    if known.no_wait or (runners.is_dataflow(beam_arguments) and runners.leaves_job(beam_arguments)):
        return _submit(known, beam_arguments)
    start = time.monotonic()
    config = _load_config(known)
    transform_version = column_settings.versions(config).get("tensorflow_transform")
    if not known.quiet:
        on = [
            runners.runner_name(beam_arguments),
            *([f"tf.Transform {transform_version}"] if transform_version else []),
        ]
        print(f"imagebeam {imagebeam.__version__} on {', '.join(on)}", file=sys.stderr)
    hushes = transform_version is not None and not known.verbose
    if hushes:  # tf.Transform looks for GPUs, and TensorFlow logs an error where there are none
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    result = convert.convert(
        config,
        beam_arguments,
        workers=known.workers,
        overwrite=known.overwrite,
        show_progress=not known.quiet,
        cancel_on_interrupt=known.cancel_on_interrupt,
        _own_process=True,
        _while_building=terminal.hush_libraries() if hushes else None,
    )
    if known.quiet:
        return 0
    for note in result.plan.notes:
        _say(f"note: {note}", sys.stderr)
    if result.state == "kept":
        _say(f"{result.message}; nothing to do")
        return 0
    if result.message:
        _say(result.message)
    output = str(config.output.uri)  # as the user wrote it
    seconds = None if result.is_attached else time.monotonic() - start  # nobody here saw when the job began
    progress.print_table(progress.summary_rows(result.catalog, output, seconds))
    _say(f"next: imagebeam verify {shlex.quote(output)}")
    return 0


def _submit(known: argparse.Namespace, beam_arguments: list[str]) -> int:
    from imagebeam.pipelines import convert, progress

    config = _load_config(known)
    done = convert.submit(config, beam_arguments, overwrite=known.overwrite, show_progress=not known.quiet)
    output = str(config.output.uri)
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


def _status(known: argparse.Namespace, _: list[str]) -> int:
    from imagebeam.pipelines import progress, status

    found = status.status(known.directory)
    if known.json:
        print(json.dumps(found.to_json(), indent=1))
    else:
        progress.print_table(status.status_rows(found))
    return found.exit_code


def _plan(known: argparse.Namespace, beam_arguments: list[str]) -> int:
    from imagebeam.pipelines import convert, plan_report, progress

    config = _load_config(known)
    if known.save_listing:
        command = _convert_command(known, beam_arguments, config)
        convert.check_plan(config, beam_arguments)  # before the input is listed, which may take long
        config = convert.save_listing(config, known.save_listing)
        _say(f"listed into {known.save_listing}; next: {command}")
    planned = convert.plan(config, beam_arguments, overwrite=known.overwrite, show_progress=True, _own_process=True)
    progress.print_table(plan_report.plan_rows(planned, config.output.uri or "a new folder (no --output given)"))
    return planned.exit_code


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
    words += ["--overwrite"] * known.overwrite
    return shlex.join([*words, *beam_arguments])


def _verify(known: argparse.Namespace, _: list[str]) -> int:
    from imagebeam.pipelines import verify_dataset

    start = time.monotonic()
    if known.decode and verify_dataset.needs_tensorflow(known.directory):
        if not known.verbose:  # TensorFlow logs each image that it refuses, and once more when the process ends
            os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
        _import_tensorflow(known.verbose)
    result = verify_dataset.verify(known.directory, known.decode)
    for problem in result.problems:
        _complain(str(problem))
    counts = result.catalog.counts
    decoded = ", every image decoded" if known.decode else ""
    if result.problems:
        _complain(result.advice)
        return errors.VerificationError.exit_code
    records = plural.count(counts.written, "record")
    _say(
        f"{known.directory}: {records} in {plural.count(result.num_shards, 'shard')} "
        f"{'matches' if counts.written == 1 else 'match'} the catalog{decoded} ({time.monotonic() - start:.1f} s)"
    )
    return 0


def _inspect(known: argparse.Namespace, _: list[str]) -> int:
    from imagebeam.pipelines import inspect_dataset, progress, verify_dataset

    for name in ("crop", "image_size", "seed", "cache_dir"):
        if getattr(known, name) is not None and known.preview is None:
            raise errors.ConfigError(f"--{name.replace('_', '-')} only applies to a preview: add --preview FILE.png")
    directory = verify_dataset.find_folder(known.directory)
    catalog = catalog_lib.load_catalog(directory)
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

    dataset = imagebeam.open_dataset(known.directory, cache_dir=known.cache_dir)
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


def _bench(known: argparse.Namespace, _: list[str]) -> int:
    from imagebeam import storage
    from imagebeam.pipelines import bench_reader, progress, verify_dataset

    if storage.scheme_of(known.directory) == "file":  # TensorFlow reads gs:// even if our own client is not installed
        verify_dataset.find_folder(known.directory)
    dataset = imagebeam.open_dataset(known.directory, cache_dir=known.cache_dir)
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
