"""The command line. Imports are made where a command needs them, so that every command starts at once."""

from __future__ import annotations

import argparse
import difflib
import io
import json
import logging
import os
import shlex
import sys
import time
import traceback
import warnings
from collections.abc import Sequence
from typing import TextIO

import imagebeam
from imagebeam import errors
from pipelines import terminal

_EPILOG = """\
exit codes: 0 committed, or nothing to do; 2 the command, config or input is wrong; 3 more rejects than allowed;
4 verification failed; 1 anything else.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    parser = _make_parser()
    known, beam_arguments = parser.parse_known_args(arguments)
    if known.run not in (_convert, _plan) and beam_arguments:
        near = difflib.get_close_matches(beam_arguments[0], known.flags, n=1)
        parser.error(f"unknown argument {beam_arguments[0]!r}" + (f"; did you mean {near[0]}?" if near else ""))
    _quieten(known.verbose)
    _escape_what_the_encoding_lacks()
    try:
        exit_code = known.run(known, beam_arguments)
        sys.stdout.flush()  # here, where a reader that has gone is expected
        return exit_code
    except errors.ImagebeamError as e:
        if known.verbose:
            traceback.print_exc()
        _complain(str(e))
        return e.exit_code
    except KeyboardInterrupt:
        _complain("interrupted; finished shards are kept, run the same command again to go on")
        return 130
    except BrokenPipeError:  # the reader of our output has gone, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as e:  # a full disk, a folder that may not be read
        if known.verbose:
            traceback.print_exc()
        _complain(str(e))
        return 1
    except ModuleNotFoundError as e:
        _complain(f"{e.name} is not installed, this command needs it: pip install 'imagebeam[convert]'")
        return 1


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="imagebeam",
        description="Turns images into sharded TFRecord files, and checks and shows them.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"imagebeam {imagebeam.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    convert = _add(commands, "convert", _convert, "turn images into a committed dataset")
    plan = _add(commands, "plan", _plan, "list, count, and say what convert would do; writes nothing")
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
    convert.add_argument("-q", "--quiet", action="store_true", help="no progress, no table")
    verify = _add(commands, "verify", _verify, "re-read a dataset against its catalog")
    verify.add_argument("directory", metavar="DIR")
    verify.add_argument("--decode", action="store_true", help="also decode every image")
    inspect = _add(commands, "inspect", _inspect, "show splits, features, labels and examples")
    inspect.add_argument("directory", metavar="DIR")
    inspect.add_argument("-n", type=_positive, metavar="N", help="also show the first N examples")
    inspect.add_argument("--split", help="of those examples (default: the first)")
    inspect.add_argument("--save-to", metavar="FOLDER", help="write their images there as files, 5 without -n")
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


def _quieten(verbose: bool) -> None:
    """Keeps away what libraries say and the user can do nothing about; `-v` shows it."""
    logging.basicConfig(
        level=logging.INFO if verbose else logging.CRITICAL, format="%(levelname)s %(name)s: %(message)s"
    )
    if not verbose:
        warnings.simplefilter("ignore")
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def _escape_what_the_encoding_lacks() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _complain(text: str) -> None:
    _say(f"imagebeam: {text}", sys.stderr)


def _say(text: str, stream: TextIO | None = None) -> None:
    """Prints one line; control characters of file names are shown, not obeyed."""
    print(terminal.printable(text), file=stream or sys.stdout)


def _load_config(known: argparse.Namespace):  # type: ignore[no-untyped-def]
    from pipelines import config

    addresses = [("source.uri", known.input), ("output.uri", known.output)]
    given = [f"{key}={json.dumps(uri)}" for key, uri in addresses if uri is not None]
    return config.load_config(known.config, [*known.set, *given])


def _convert(known: argparse.Namespace, beam_arguments: list[str]) -> int:
    from pipelines import convert, progress, runners

    start = time.monotonic()
    config = _load_config(known)
    if not known.quiet:
        print(f"imagebeam {imagebeam.__version__} on {runners.runner_name(beam_arguments)}", file=sys.stderr)
    result = convert.convert(
        config,
        beam_arguments,
        workers=known.workers,
        overwrite=known.overwrite,
        show_progress=not known.quiet,
        own_process=True,
    )
    if known.quiet:
        return 0
    for note in result.plan.notes:
        _say(f"note: {note}", sys.stderr)
    if result.state == "kept":
        _say(f"{result.message}; nothing to do")
        return 0
    output = str(config.output.uri)  # as it was given
    progress.print_table(progress.summary_rows(result.catalog, output, time.monotonic() - start))
    _say(f"next: imagebeam verify {shlex.quote(output)}")
    return 0


def _plan(known: argparse.Namespace, beam_arguments: list[str]) -> int:
    from pipelines import convert, plan, progress

    config = _load_config(known)
    planned = convert.plan(config, beam_arguments, overwrite=known.overwrite, own_process=True)
    progress.print_table(plan.plan_rows(planned, config.output.uri or "a new folder (no --output given)"))
    return planned.exit_code


def _verify(known: argparse.Namespace, _: list[str]) -> int:
    from pipelines import verify

    start = time.monotonic()
    result = verify.run_verify(known.directory, known.decode)
    for problem in result.problems:
        _complain(str(problem))
    counts = result.catalog.counts
    decoded = ", every image decoded" if known.decode else ""
    if result.problems:
        broken = len({problem.shard for problem in result.problems})
        _complain(f"{broken:,} of {result.num_shards:,} shards differ from the catalog; convert again with --overwrite")
        return errors.VerificationError.exit_code
    _say(
        f"{known.directory}: {counts.written:,} records in {result.num_shards:,} shards are as the catalog says"
        f"{decoded} ({time.monotonic() - start:.1f} s)"
    )
    return 0


def _inspect(known: argparse.Namespace, _: list[str]) -> int:
    from imagebeam import catalog as catalog_lib
    from imagebeam import storage
    from pipelines import inspect, progress

    directory = storage.normalize(known.directory)
    catalog = catalog_lib.load_catalog(directory)
    split = known.split or next(iter(catalog.splits))
    if split not in catalog.splits:
        raise errors.ConfigError(f"--split {split!r} is none of {', '.join(catalog.splits)}")
    progress.print_table(inspect.catalog_rows(catalog, directory))
    for index, values in zip(range(known.n or 0), inspect.read_examples(directory, catalog, split)):
        print()
        _say(f"{split} {index}: {inspect.describe_example(values)}")
    if known.save_to:
        paths = inspect.save_images(directory, catalog, split, known.n or 5, known.save_to)
        print()
        _say(f"{progress.count(len(paths), 'image')} written to {known.save_to}")
    return 0


def _schema(_: argparse.Namespace, __: list[str]) -> int:
    from pipelines import schema

    print(schema.json_schema(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
