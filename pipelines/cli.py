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
from imagebeam import errors, missing_packages
from imagebeam.pipelines import terminal

_EPILOG = """\
exit codes: 0 committed, or nothing to do; 2 the command, config or input is wrong, or a package is missing; 3 more
rejects than allowed; 4 verification failed; 130, 143 or 129 stopped by Ctrl-C, SIGTERM or SIGHUP; 141 the reader of
inspect's output closed the pipe; 1 anything else.
"""
_STOPPED = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "stopped by SIGHUP"}
_NOBODY_READS = 128 + signal.SIGPIPE


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    if arguments is None:
        terminal.ensure_utf8_file_names()
    with terminal.Streams():
        return _run(arguments)


def _run(arguments: Sequence[str] | None) -> int:
    parser = _make_parser()
    known, beam_arguments = parser.parse_known_args(arguments)
    if known.run not in (_convert, _plan) and beam_arguments:
        near = difflib.get_close_matches(beam_arguments[0], known.flags, n=1)
        parser.error(f"unknown argument {beam_arguments[0]!r}" + (f"; did you mean {near[0]}?" if near else ""))
    _quieten(known.verbose)
    with _stopped_by_signals() as stopped_by:
        try:
            exit_code = known.run(known, beam_arguments)
            failure = terminal.output_failure()
            if failure is not None:
                _complain(f"cannot write to standard output ({failure.strerror}); part of it is missing")
                is_about_output = known.run not in (_convert, _verify)  # these two have done their work
                exit_code = exit_code or int(is_about_output)
            return exit_code
        except KeyboardInterrupt:
            number = stopped_by[0] if stopped_by else signal.SIGINT
            kept = "; finished shards are kept, run the same command again to go on" if known.run is _convert else ""
            _complain(f"{_STOPPED[number]}{kept}")
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


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="imagebeam",
        description="Converts images to sharded TFRecord files, and verifies and shows them.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"imagebeam {imagebeam.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    convert = _add(commands, "convert", _convert, "convert images to a committed dataset")
    plan = _add(commands, "plan", _plan, "list and count images, and show what convert would do; writes nothing")
    for command in (convert, plan):
        command.add_argument("--config", metavar="NAME_OR_YAML", help="a preset's name or a YAML file")
        command.add_argument("--input", metavar="URI", help="a folder, a glob, or a manifest (source.uri)")
        command.add_argument("--output", metavar="URI", help="folder of the dataset (output.uri)")
        command.add_argument(
            "--set", metavar="KEY=VALUE", action="append", default=[], help="override, e.g. output.num_shards=16"
        )
        command.add_argument("--workers", type=_positive, metavar="N", help="writer processes (default: cores)")
        command.add_argument("--overwrite", action="store_true", help="replace another dataset in the output")
        command.epilog = "Any other option goes to Beam, such as --runner=DataflowRunner --project=..."
    plan.add_argument("--save-listing", metavar="URI", help="save the listing, for source.by=listing")
    convert.add_argument("-q", "--quiet", action="store_true", help="print no progress and no table")
    verify = _add(commands, "verify", _verify, "compare a dataset with its catalog")
    verify.add_argument("directory", metavar="DIR")
    verify.add_argument("--decode", action="store_true", help="also decode every image")
    inspect = _add(commands, "inspect", _inspect, "show splits, features, labels and examples")
    inspect.add_argument("directory", metavar="DIR")
    inspect.add_argument("-n", type=_positive, metavar="N", help="also show the first N examples")
    inspect.add_argument("--split", help="split of the examples (default: the first)")
    inspect.add_argument(
        "--save-to", metavar="FOLDER", help="write their images as files into this folder (5 without -n)"
    )
    preview = inspect.add_argument_group("a batch as the model sees it")
    preview.add_argument(
        "--preview", metavar="PNG", help="draw the images of a batch with their labels (32 without -n)"
    )
    preview.add_argument(
        "--crop",
        choices=("random", "center", "squash"),
        help="random: as in training; center: as in evaluation; squash: whole images, with boxes (random)",
    )
    preview.add_argument("--image-size", type=_positive, metavar="PX", help="side of an image (224)")
    preview.add_argument("--seed", type=int, metavar="N", help="seed of the order, the crops and the flips (0)")
    bench = _add(commands, "bench", _bench, "measure how fast this host reads, and find the slowest stage")
    bench.add_argument("directory", metavar="DIR")
    bench.add_argument("--split", help="split to read (default: train, else the first)")
    bench.add_argument("--batch-size", type=_positive, metavar="N", default=128, help="images per batch (128)")
    bench.add_argument("--image-size", type=_positive, metavar="PX", default=224, help="side of an image (224)")
    bench.add_argument(
        "--dtype",
        choices=("uint8", "float32", "bfloat16", "float16"),
        default="bfloat16",
        help="type of pixels (bfloat16)",
    )
    bench.add_argument(
        "--seconds", type=_duration, metavar="S", default=5.0, help="seconds for each of 6 measurements (5)"
    )
    bench.add_argument("--threads", type=_positive, metavar="N", help="threads that read and decode (default: cores)")
    bench.add_argument(
        "--json", action="store_true", help="print all figures as JSON, with the sources of those about chips"
    )
    for group in (preview, bench):
        group.add_argument(
            "--cache-dir", metavar="FOLDER", help="local folder for shards that TensorFlow cannot read in place"
        )
    _add(commands, "schema", _schema, "print the JSON schema of the config, for editors")
    return parser


def _add(commands, name, run, text):  # type: ignore[no-untyped-def]  # argparse keeps the type of its own action private
    command = commands.add_parser(name, help=text, description=text[:1].upper() + text[1:] + ".", allow_abbrev=False)
    command.add_argument("-v", "--verbose", action="store_true", help="show the libraries' own logs and warnings")
    command.set_defaults(run=run, flags=command._option_string_actions)
    return command


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def _duration(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of seconds")
    return seconds


def _quieten(verbose: bool) -> None:
    """Hides log messages of libraries that do not help the user; `-v` shows them."""
    logging.basicConfig(
        level=logging.INFO if verbose else logging.CRITICAL, format="%(levelname)s %(name)s: %(message)s"
    )
    if not verbose:
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
    progress.print_table(progress.summary_rows(result.catalog, output, time.monotonic() - start))
    _say(f"next: imagebeam verify {shlex.quote(output)}")
    return 0


def _plan(known: argparse.Namespace, beam_arguments: list[str]) -> int:
    from imagebeam.pipelines import convert, plan_report, progress

    config = _load_config(known)
    if known.save_listing:
        command = _convert_command(known, beam_arguments, config)
        config = convert.save_listing(config, known.save_listing)
        _say(f"listed into {known.save_listing}; next: {command}")
    planned = convert.plan(config, beam_arguments, overwrite=known.overwrite, _own_process=True)
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
    from imagebeam.pipelines import progress, verify_dataset

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
    records = progress.count(counts.written, "record")
    _say(
        f"{known.directory}: {records} in {progress.count(result.num_shards, 'shard')} "
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
        _say(f"{progress.count(len(paths), 'image')} written to {known.save_to}")
    if known.preview is not None:
        count = _draw_preview(known, split)
        print()
        _say(f"{progress.count(count, 'image')} drawn to {known.preview}")
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
