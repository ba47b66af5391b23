"""The command line. Commands import the modules they need when they run, so that each starts at once."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn

import imagebeam
from imagebeam import concurrency, errors, plural
from imagebeam.pipelines import command_parser, dataset_commands
from imagebeam.pipelines.messages import printed_tables, run_journal, run_outputs, terminal

if TYPE_CHECKING:
    from imagebeam.pipelines import convert as convert_lib
    from imagebeam.pipelines import request as request_lib
    from imagebeam.pipelines.config import model as config_lib

_STOPPED = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "stopped by SIGHUP"}
_STATES_OF_PLAN: dict[str, run_journal.State] = {"write": "planned", "keep": "kept", "refuse": "refused"}


def run() -> NoReturn:
    """Runs the command of this process, and ends the process with its exit code."""
    sys.exit(main())


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    if arguments is None:
        terminal.ensure_utf8_file_names()
    with terminal.Streams():
        try:
            return _run(arguments)
        except SystemExit as e:  # the parser has printed --help or --version
            if e.code or not _has_lost_output():
                raise
            return 1


def _has_lost_output(is_committed: bool = False) -> bool:
    """Returns whether a part of standard output could not be written, and says so."""
    failure = terminal.output_failure()
    if failure is None:
        return False
    done = "; the dataset is committed" if is_committed else ""
    terminal.complain(f"cannot write to standard output ({failure.strerror}); part of it is missing{done}")
    return True


def _run(arguments: Sequence[str] | None) -> int:
    """Runs one command, and tells how it ended where its options say."""
    texts = sys.argv[1:] if arguments is None else [*arguments]
    options = command_parser.find_outputs(texts)
    journal = run_journal.Journal(options.command)
    with contextlib.ExitStack() as stack:
        if options.log_format == "json":
            lines = stack.enter_context(terminal.standard_error_as_json(options.verbose))
            lines.context = journal.context
        outputs = run_outputs.RunOutputs(options, journal, terminal.warn)
        if options.takes_standard_output:
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        try:
            exit_code = _run_command(texts, journal, outputs)
        except SystemExit as e:
            if not isinstance(e, command_parser.UsageError):  # --help or --version
                raise
            journal.fail(2, e.message)
            outputs.close()
            raise
        except Exception as e:
            journal.fail(1, f"{type(e).__name__}: {e}")
            journal.error = e
            outputs.close()
            if terminal.current_log() is not None:
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
        "snapshots": dataset_commands.snapshots,
        "status": dataset_commands.status,
        "verify": dataset_commands.verify,
        "inspect": dataset_commands.inspect,
        "report": dataset_commands.report,
        "bench": dataset_commands.bench,
        "schema": _schema,
    }
    parser = command_parser.make_parser(commands)
    known, beam_arguments = parser.parse_known_args(arguments)
    if known.run not in (_convert, _plan, _compact) and beam_arguments:
        flags = [name for option in known.options for name in option.action.option_strings]
        near = difflib.get_close_matches(beam_arguments[0], flags, n=1)
        parser.error(f"unknown argument {beam_arguments[0]!r}" + (f"; did you mean {near[0]}?" if near else ""))
    known.journal = journal
    journal.input = getattr(known, "input", None)  # as far as known before the config is read
    journal.output = getattr(known, "output", getattr(known, "directory", None))
    terminal.quieten(known.verbose)
    for name, near_name in known.misspelt:
        terminal.warn(f"there is no option for the environment variable {name}; did you mean {near_name}?")
    with _stopped_by_signals():
        try:
            outputs.open()
            with contextlib.ExitStack() as known.stack, _storages(known):
                exit_code = known.run(known, beam_arguments)
            is_committed = known.run is _convert and not known.no_wait
            return exit_code or int(_has_lost_output(is_committed))
        except KeyboardInterrupt as e:
            number = concurrency.stop_signals[0] if concurrency.stop_signals else signal.SIGINT
            advice = "run the same command again" if known.run is _convert else ""
            text = "; ".join(text for text in (_STOPPED[number], str(e) or advice) if text)
            journal.end("interrupted", 128 + number, text)
            terminal.tell_failure(text)
            return 128 + number
        except (errors.ImagebeamError, ModuleNotFoundError, OSError) as e:
            if known.verbose and terminal.current_log() is None:
                traceback.print_exc()
            shown = errors.missing_package(e, "this command") if isinstance(e, ModuleNotFoundError) else e
            journal.fail(shown.exit_code if isinstance(shown, errors.ImagebeamError) else 1, str(shown), shown)
            journal.error = e
            terminal.tell_failure(str(shown))
            return journal.exit_code


def _storages(known: argparse.Namespace) -> contextlib.AbstractContextManager[None]:
    """Opens addresses with the options of the storage that the command line of a dataset's command has."""
    if not (settings := getattr(known, "storage_options", None)):
        return contextlib.nullcontext()
    from imagebeam.pipelines import storage_tables

    return storage_tables.of_command(known.directory, settings)


@contextlib.contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """Makes SIGTERM and SIGHUP end the command like Ctrl-C, with KeyboardInterrupt; notes all three in `concurrency`.

    A second SIGTERM or SIGHUP ends the process at once.
    """

    def stop(number: int, _: object) -> NoReturn:
        concurrency.stop_signals.append(signal.Signals(number))
        if number != signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)
        raise KeyboardInterrupt

    replaced = {}
    if threading.current_thread() is threading.main_thread():  # Python allows handlers only there
        before = {each: signal.getsignal(each) for each in _STOPPED}
        default = (signal.SIG_DFL, signal.default_int_handler)  # nohup ignores SIGHUP
        replaced = {each: handler for each, handler in before.items() if handler in default}
    for each in replaced:
        signal.signal(each, stop)
    tell_of_threads = threading.excepthook
    # Where a signal ends a call of gRPC, gRPC's own thread may fail for it.
    threading.excepthook = lambda failed: None if concurrency.stop_signals else tell_of_threads(failed)
    try:
        yield
    finally:
        threading.excepthook = tell_of_threads
        for each, handler in replaced.items():
            signal.signal(each, handler)
        concurrency.stop_signals.clear()


def _load_config(known: argparse.Namespace, beam_arguments: list[str]) -> config_lib.Config:
    """Reads the config of a command, and notes what the command works on. Its storage options hold from then on."""
    from imagebeam.pipelines import request, storage_tables

    config = request.load_config(known.config, known.set, known.input, known.output)
    known.stack.enter_context(storage_tables.of_config(config, beam_arguments))
    known.journal.begin(config.source.uri, config.output.uri, config.output.dataset, config.rejects.max_fraction)
    return config


def _request(known: argparse.Namespace, config: config_lib.Config, beam_arguments: list[str]) -> request_lib.Request:
    from imagebeam.pipelines import request

    shared = config, beam_arguments, known.workers, known.overwrite, known.update, known.retry_rejects
    if known.run is _plan:
        return request.Request(*shared, show_progress=True)
    return request.Request(*shared, known.fail_on_drift, not known.quiet, known.cancel_on_interrupt)


def _import_libraries(config: config_lib.Config, beam_arguments: list[str], verbose: bool) -> None:
    """Imports what a job needs: this process runs only that job."""
    from imagebeam.pipelines.beam import runners

    if not config.transformed:  # tf.Transform needs what is left out of Beam
        runners.import_beam_lightly(beam_arguments, (config.source.uri, config.output.uri))
    elif not verbose:  # tf.Transform looks for GPUs, and TensorFlow logs an error where there are none
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
        with contextlib.suppress(ModuleNotFoundError), terminal.hush_libraries():
            importlib.import_module("tensorflow_transform")


def _convert(known: argparse.Namespace, beam_arguments: list[str]) -> int:
    from imagebeam.pipelines import convert, dataset_facts
    from imagebeam.pipelines.beam import runners

    leaves = known.no_wait or (runners.is_dataflow(beam_arguments) and runners.leaves_job(beam_arguments))
    if known.keep_snapshots is not None and (leaves or not known.update):
        remedy = "leave it out, and run imagebeam snapshots DIR --keep N later" if leaves else "add --update"
        raise errors.ConfigError(
            "option-needs-update", f"--keep-snapshots removes snapshots after a new one is committed: {remedy}"
        )
    if leaves:
        return _submit(known, beam_arguments)
    start = time.monotonic()
    config = _load_config(known, beam_arguments)
    texts = [f"imagebeam {imagebeam.__version__} on {runners.runner_name(beam_arguments)}"]
    if transform_version := dataset_facts.transform_versions(config).get("tensorflow_transform"):
        texts.append(f"tf.Transform {transform_version}")
    if not known.quiet:
        terminal.tell(", ".join(texts))
    _import_libraries(config, beam_arguments, known.verbose)
    result, output = convert.run(_request(known, config, beam_arguments), known.journal), str(config.output.uri)
    known.journal.take_catalog(result.catalog)
    found_nothing = result.state == "kept" and result.catalog.snapshot  # an update has found nothing new
    known.journal.end("nothing_new" if found_nothing else result.state, 0, result.message)
    if known.keep_snapshots is not None:
        dataset_commands.remove_snapshots(output, known.keep_snapshots)
    if not known.quiet:
        _tell_result(result, output, start)
    return 0


def _tell_result(result: convert_lib.ConvertResult, output: str, start: float) -> None:
    for note in result.plan.notes:
        terminal.tell(f"note: {note}")
    if result.state == "kept":
        terminal.say(f"{result.message}; nothing to do")
        return
    if result.message:
        terminal.say(result.message)
    seconds = None if result.is_attached else time.monotonic() - start  # nobody here saw when the job began
    printed_tables.print_table(
        [*printed_tables.summary_rows(result.catalog, output, seconds), *printed_tables.report_rows(result.report)]
    )
    terminal.say(f"next: imagebeam verify {plural.shell_word(output)}")


def _submit(known: argparse.Namespace, beam_arguments: list[str]) -> int:
    from imagebeam.pipelines import convert

    config = _load_config(known, beam_arguments)
    done = convert.submit_request(_request(known, config, beam_arguments))
    output = str(config.output.uri)
    known.journal.job, known.journal.template = done.job, done.template or None
    known.journal.end("submitted", 0)
    if done.job is None:
        terminal.say(f"template written to {done.template}")
        return 0
    printed_tables.print_table(
        [
            ("job", done.job.id + (" (was running already)" if done.is_attached else "")),
            ("console", done.job.console),
            ("output", output),
        ]
    )
    terminal.say(f"next: imagebeam status {plural.shell_word(output)}")
    return 0


def _compact(known: argparse.Namespace, beam_arguments: list[str]) -> int:
    from imagebeam.pipelines import compact, request

    workers = request.as_workers(known.workers)
    result = compact.run(known.directory, beam_arguments, workers, not known.quiet, known.journal)
    known.journal.take_catalog(result.catalog)
    known.journal.end(result.state, 0)
    if known.keep_snapshots is not None:
        dataset_commands.remove_snapshots(known.directory, known.keep_snapshots)
    if known.quiet:
        return 0
    if result.state == "kept":
        terminal.say(f"snapshot {result.snapshot} of {known.directory} stands alone already; nothing to do")
        return 0
    printed_tables.print_table(printed_tables.summary_rows(result.catalog, known.directory, result.seconds))
    return 0


def _index(known: argparse.Namespace, _: list[str]) -> int:
    from imagebeam.pipelines import index_dataset

    names = ("image", "label", "label_base", "split", "partial", "keep_broken", "plan", "workers")
    asked = {name: getattr(known, name) for name in names}
    result = index_dataset.index(known.directory, **asked, show_progress=not known.quiet)
    if known.quiet:
        return 0
    for change in result.changes:
        terminal.tell(f"changed: {change}")
    for note in result.notes:
        terminal.tell(f"note: {note}")
    if result.state == "kept":
        terminal.say(f"the index of {known.directory} fits its shards; nothing to do")
        return 0
    printed_tables.print_table(index_dataset.result_rows(result, known.directory))
    command = "index" if result.state == "planned" else "verify"
    terminal.say(f"next: imagebeam {command} {plural.shell_word(known.directory)}")
    return 0


def _plan(known: argparse.Namespace, beam_arguments: list[str]) -> int:
    from imagebeam.pipelines import convert, storage_tables
    from imagebeam.pipelines.recognize import recognize_folder

    options = "source.storage_options."
    of_input = [each.removeprefix(options) for each in known.set if each.startswith(options)]
    with storage_tables.of_command(known.input, of_input):  # it looks into the folder before there is a config
        recognized = recognize_folder.choose(known)
    if recognized.rows:
        printed_tables.print_table(recognized.rows)
    if recognized.error:
        raise errors.ConfigError("folder-not-recognized", recognized.error)
    config = _load_config(known, beam_arguments)
    if known.save_listing:
        command = _convert_command(known, beam_arguments, config)
        convert.check_plan(_request(known, config, beam_arguments))  # before the input is listed, which may take long
        config = convert.save_listing(config, known.save_listing)
        terminal.say(f"listed into {known.save_listing}; next: {command}")
    _import_libraries(config, beam_arguments, known.verbose)
    planned = convert.run_plan(_request(known, config, beam_arguments), known.journal)
    known.journal.end(_STATES_OF_PLAN[planned.action], planned.exit_code, planned.message, planned.error)
    printed_tables.print_table(
        printed_tables.plan_rows(planned, config.output.uri or "a new folder (no --output given)")
    )
    if known.num_tried is not None and planned.listed:
        from imagebeam.pipelines import try_images

        tried = try_images.try_images(_request(known, config, beam_arguments), known.num_tried)
        try_images.write_sheet(tried, known.sheet)
        printed_tables.print_table(try_images.rows(tried, known.sheet))
    if planned.action == "write":
        for number, command in enumerate(recognized.next):
            terminal.say(f"{'or' if number else 'next'}: {command}")
    return planned.exit_code


def _init(known: argparse.Namespace, _: list[str]) -> int:
    from imagebeam.pipelines import init_config
    from imagebeam.pipelines.recognize import recognize_folder

    words = ["imagebeam", "init", known.directory, *(["--config", known.config] if known.config else [])]
    written = init_config.make(known.directory, known.config, plural.shell_command(words))
    init_config.write(written, known.output, known.force)
    printed_tables.print_table([*recognize_folder.describe(written.found, written.chosen), ("written", known.output)])
    for word, command in (("next", "plan"), ("then", "convert")):
        terminal.say(f"{word}: {plural.shell_command(['imagebeam', command, '--config', known.output])}")
    return 0


def _convert_command(known: argparse.Namespace, beam_arguments: list[str], config: config_lib.Config) -> str:
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
    return plural.shell_command([*words, *beam_arguments])


def _schema(_: argparse.Namespace, __: list[str]) -> int:
    from imagebeam.pipelines.config import schema

    print(schema.json_schema(), end="")
    return 0


if __name__ == "__main__":
    run()
