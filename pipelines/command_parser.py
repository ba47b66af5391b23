"""The arguments of every command, which are environment variables, too: `--num-shards` is `IMAGEBEAM_NUM_SHARDS`.

The command line wins.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import io
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, TypeAlias

import imagebeam
from imagebeam.pipelines.messages import run_outputs, terminal

PREFIX = "IMAGEBEAM_"
HELP = f"""\
Each option can also be set by an environment variable: --summary-json by
{PREFIX}SUMMARY_JSON. The command line has precedence. Flags are 1 or 0;
{PREFIX}SET has a line for each setting.
"""
OTHER_VARIABLES = frozenset({f"{PREFIX}CI", f"{PREFIX}PLAIN_C"})  # no options: of the tests, and of the code in C
_FLAGS = {"1": True, "true": True, "0": False, "false": False}
_ALIKE = 0.75  # difflib ratio from which a name counts as misspelt
_NOT_GIVEN: Any = object()


class UsageError(SystemExit):
    """The command line or a variable is wrong; the text was printed. Exit code 2."""

    def __init__(self, message: str):
        super().__init__(2)
        self.message = message


class Option(NamedTuple):
    """An option of a parser."""

    action: argparse.Action
    kind: str  # name of its action in argparse: store, store_true, append, help, version

    @property
    def variable(self) -> str:
        """The name of its variable: IMAGEBEAM_SUMMARY_JSON for --summary-json."""
        longest = max(self.action.option_strings, key=len)
        return PREFIX + longest.lstrip("-").replace("-", "_").upper()


class Parser(argparse.ArgumentParser):
    """A parser that takes options that are not on the command line from environment variables.

    Attributes:
        options: all of them, with those of its groups.
        commands: the parsers of its commands, by name.
    """

    def __init__(self, *arguments: Any, **settings: Any):
        self.options: list[Option] = []
        self.commands: Mapping[str, Parser] = {}
        super().__init__(*arguments, **settings)

    def add_argument(self, *names: Any, **settings: Any) -> argparse.Action:
        return self._noted(super().add_argument, names, settings)

    def add_argument_group(self, *arguments: Any, **settings: Any) -> Any:
        group: Any = super().add_argument_group(*arguments, **settings)
        add = group.add_argument
        group.add_argument = lambda *names, **settings: self._noted(add, names, settings)
        return group

    def _noted(self, add: Callable[..., argparse.Action], names: Any, settings: Any) -> argparse.Action:
        action = add(*names, **settings)
        if action.option_strings:
            self.options.append(Option(action, settings.get("action", "store")))
        return action

    @property
    def settable(self) -> list[Option]:
        """The options that have a variable: all but --help and --version."""
        return [each for each in self.options if each.kind not in ("help", "version")]

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        given = {each: text for each in self.settable if (text := os.environ.get(each.variable))}
        defaults = {each: each.action.default for each in given}
        try:
            for each in given:
                if each.kind != "append":
                    each.action.default = _NOT_GIVEN
            found, rest = super().parse_known_args(args, namespace)
        finally:
            for each, default in defaults.items():
                each.action.default = default
        for each, text in given.items():
            name = each.action.dest
            if each.kind == "append":  # later settings override those before them
                lines = [line.strip() for line in text.splitlines() if line.strip()]
                setattr(found, name, [*lines, *getattr(found, name)])
            elif getattr(found, name) is _NOT_GIVEN:
                setattr(found, name, self._convert(each, text))
        return found, rest

    def error(self, message: str) -> NoReturn:
        """Prints the usage and the message, as argparse does, and raises UsageError."""
        self.print_usage(sys.stderr)
        print(terminal.wrap(f"{self.prog}: error: {message}", sys.stderr, 2), file=sys.stderr)
        raise UsageError(message)

    def _convert(self, option: Option, text: str) -> Any:
        try:
            return parse_value(option, text)
        except (ValueError, argparse.ArgumentTypeError) as e:
            self.error(f"environment variable {option.variable} is {text!r}: {e}")


def parse_value(option: Option, text: str) -> Any:
    """Returns the value of an option for the text of its variable.

    Raises:
        ValueError: if the option does not have such a value.
        ArgumentTypeError: the same, raised by the type of the option.
    """
    action = option.action
    if option.kind == "store_true":
        if text.strip().lower() not in _FLAGS:
            raise ValueError("a flag is 1 or true, or 0 or false")
        return _FLAGS[text.strip().lower()]
    value = action.type(text) if callable(action.type) else text
    if action.choices is not None and value not in action.choices:
        raise ValueError(f"choose one of {', '.join(map(str, action.choices))}")
    return value


def misspelt(parsers: Iterable[Parser], environment: Mapping[str, str]) -> Sequence[tuple[str, str]]:
    """Returns variables that no option has, each with the variable that was probably meant."""
    known = {each.variable.removeprefix(PREFIX) for parser in parsers for each in parser.settable}
    found = []
    for name in sorted(environment):
        short = name.removeprefix(PREFIX)
        if not name.startswith(PREFIX) or short in known or name in OTHER_VARIABLES:
            continue
        near = difflib.get_close_matches(short, sorted(known), n=1, cutoff=_ALIKE)
        found += [(name, PREFIX + each) for each in near]
    return found


Command: TypeAlias = Callable[[argparse.Namespace, list[str]], int]

_WITH_OUTPUTS = ("convert", "plan", "compact", "verify")  # commands that tell a platform how they ended

_EPILOG = """\
exit codes: 0 committed, submitted, or nothing to do; 2 the command, config or
input is wrong, or a package is missing; 3 more rejects, removals or drift than
allowed; 4 verification failed; 5 busy: another run writes to the output; 130,
143 or 129 stopped by Ctrl-C, SIGTERM or SIGHUP; 141 the reader of inspect's
output closed the pipe; 1 anything else.
"""


def make_parser(commands: Mapping[str, Command]) -> Parser:
    """Returns the parser; `run` of its result is the function in `commands` with the name of the command."""
    parser = Parser(
        prog="imagebeam",
        description="Converts images to sharded TFRecord files, and verifies and shows them.",
        epilog=f"{_EPILOG}\n{HELP}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"imagebeam {imagebeam.__version__}")
    known = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)

    def add(name: str, text: str) -> Parser:
        command = known.add_parser(name, help=text, description=text[:1].upper() + text[1:] + ".", allow_abbrev=False)
        command.add_argument("-v", "--verbose", action="store_true", help="show the libraries' own logs and warnings")
        command.set_defaults(run=commands[name], options=command.options)
        return command

    convert = add("convert", "convert images to a committed dataset")
    plan = add("plan", "list and count images, and show what convert would do; writes nothing")
    for command in (convert, plan):
        command.add_argument("--config", metavar="NAME_OR_YAML", help="a preset's name or a YAML file")
        command.add_argument("--input", metavar="URI", help="a folder, a glob, or a manifest (source.uri)")
        command.add_argument("--output", metavar="URI", help="folder of the dataset (output.uri)")
        command.add_argument(
            "--set", metavar="KEY=VALUE", action="append", default=[], help="override, e.g. output.num_shards=16"
        )
        command.add_argument("--overwrite", action="store_true", help="replace another dataset in the output")
        command.add_argument(
            "--update",
            action="store_true",
            help="write a snapshot with what is new, changed or gone since the last one (with --overwrite: with all)",
        )
        command.add_argument(
            "--retry-rejects", action="store_true", help="with --update: read only what the last snapshot rejected"
        )
        command.epilog = "Any other option goes to Beam, such as --runner=DataflowRunner --project=..."
    plan.add_argument("--save-listing", metavar="URI", help="save the listing, for source.by=listing")
    convert.add_argument(
        "--no-wait", action="store_true", help="leave a job on Dataflow once it is submitted; see status"
    )
    convert.add_argument(
        "--cancel-on-interrupt",
        action="store_true",
        help="Ctrl-C and SIGTERM cancel a job on Dataflow; else it goes on",
    )
    convert.add_argument(
        "--fail-on-drift",
        action="store_true",
        help="with --update: commit nothing if labels, sizes or rejects differ by more than update.drift allows",
    )
    init = add("init", "write a commented config for a folder of images, with the preset that fits it")
    init.add_argument("directory", metavar="FOLDER", help="the folder, or a table in it")
    init.add_argument("--output", metavar="FILE", default="imagebeam.yaml", help="file to write (imagebeam.yaml, here)")
    init.add_argument("--config", metavar="NAME", help="write this preset instead of the one that fits best")
    init.add_argument("--force", action="store_true", help="replace the file if it exists")
    compact = add("compact", "copy the latest snapshot of a dataset into fresh shards, which stand alone")
    compact.epilog = "Any other option goes to Beam, such as --runner=PrismRunner."
    index = add("index", "make TFRecord files of any tool readable where they are: a catalog and indexes beside them")
    index.add_argument("--image", metavar="KEY", help="feature with the image (default: found)")
    index.add_argument("--label", metavar="KEY", help="feature with the label, or none (default: found)")
    index.add_argument(
        "--label-base", type=int, choices=(0, 1), help="id of the first class (default: 1 if no record has the label 0)"
    )
    index.add_argument(
        "--split",
        metavar="PATTERN",
        help="a regular expression whose first group is the split in a path, such as '(train|val)_'; other files are "
        "left out (default: the usual names)",
    )
    index.add_argument("--partial", action="store_true", help="allow that files of a numbered series are missing")
    index.add_argument("--keep-broken", action="store_true", help="allow records that cannot be read")
    index.add_argument("--plan", action="store_true", help="look at the names and the first records; write nothing")
    for command in (convert, compact):
        command.add_argument(
            "--keep-snapshots",
            type=_positive,
            metavar="N",
            help="afterwards, remove all but the newest N snapshots and those that are pinned",
        )
    snapshots = add("snapshots", "list the snapshots of a dataset, pin them, or remove old ones")
    snapshots.add_argument("--pin", metavar="NAME", help="keep this snapshot until it is released")
    snapshots.add_argument("--unpin", metavar="NAME", help="release a pinned snapshot")
    snapshots.add_argument(
        "--keep", type=_positive, metavar="N", help="remove all but the newest N snapshots and those that are pinned"
    )
    snapshots.add_argument(
        "--report",
        nargs="?",
        const="",
        metavar="NAME",
        help="instead of the list, show what this snapshot changed, and its drift (default: the latest)",
    )
    status = add("status", "tell what the last run on an output does, or how it ended")
    status.add_argument("directory", metavar="OUTPUT")
    status.add_argument("--json", action="store_true", help="print the same as JSON")
    status.epilog = "exit codes: 0 committed or running; 1 failed, stopped or not known; 2 there is nothing"
    verify = add("verify", "compare a dataset with its catalog")
    verify.add_argument("--decode", action="store_true", help="also decode every image")
    inspect = add("inspect", "show splits, features, labels and examples")
    inspect.add_argument("-n", type=_positive, metavar="N", help="also show the first N examples")
    inspect.add_argument("--split", help="split of the examples (default: the first)")
    inspect.add_argument(
        "--save-to", metavar="FOLDER", help="write their images as files into this folder (5 without -n)"
    )
    report = add("report", "write a page with what is in a dataset, which opens without a network")
    report.add_argument(
        "--output", metavar="FILE", default="report.html", help="file or address to write (report.html, here)"
    )
    bench = add("bench", "measure how fast this host reads, and find the slowest stage")
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
        "--seconds", type=_duration, metavar="S", default=5.0, help="seconds for each of 4 measurements (5)"
    )
    bench.add_argument("--threads", type=_positive, metavar="N", help="threads that read and decode (default: cores)")
    bench.add_argument("--json", action="store_true", help="print all figures as JSON")
    bench.add_argument("--cache-dir", metavar="FOLDER", help="local folder for copies of remote shards")
    for command in (convert, plan, compact, index):
        command.add_argument("--workers", type=_positive, metavar="N", help="processes that read and write (cores)")
    for command in (convert, compact, index):
        command.add_argument("-q", "--quiet", action="store_true", help="print no progress and no table")
    for command in (compact, index, snapshots, verify, inspect, report, bench):
        command.add_argument("directory", metavar="DIR")
    for command in (verify, inspect, report, bench):
        command.add_argument("--snapshot", metavar="N", help="a snapshot, such as 000002, instead of the latest")
    add("schema", "print the JSON schema of the config, for editors")
    for name in _WITH_OUTPUTS:
        _add_outputs(known.choices[name])
    convert.add_argument(
        "--openlineage",
        metavar="URL_OR_YAML",
        help="send lineage events to a service, or as the client's YAML file says (default: the client's variables)",
    )
    parser.commands = known.choices
    parser.set_defaults(misspelt=misspelt(parser.commands.values(), os.environ))
    return parser


def _add_outputs(command: Parser) -> None:
    """Adds the options by which a command tells a platform what it does and how it ended."""
    group = command.add_argument_group(
        "for schedulers and monitoring (docs/platforms.md)",
        f"Each option is also an environment variable, such as {PREFIX}LOG_FORMAT.",
    )
    group.add_argument(
        "--summary-json", metavar="PATH", help="write a summary when the command ends, however it ends; - is stdout"
    )
    group.add_argument(
        "--metrics-textfile", metavar="PATH", help="write metrics for Prometheus, such as FOLDER/imagebeam.prom"
    )
    group.add_argument(
        "--log-format", choices=("text", "json"), default="text", help="json: one object a line on stderr (text)"
    )


def find_outputs(arguments: Sequence[str]) -> run_outputs.Options:
    """Returns where a command tells what it does, before its arguments are parsed: also errors in them are told."""
    command = arguments[0] if arguments else ""
    if command not in _WITH_OUTPUTS:
        return run_outputs.Options()
    parser = Parser(add_help=False, allow_abbrev=False)
    _add_outputs(parser)
    parser.add_argument("--openlineage")
    parser.add_argument("-v", "--verbose", action="store_const", const="1")  # takes any text of its variable
    for option in parser.options:
        option.action.choices = None
    with contextlib.suppress(UsageError), contextlib.redirect_stderr(io.StringIO()):
        found = vars(parser.parse_known_args(arguments[1:])[0])
        verbose = (found.pop("verbose") or "0").lower() not in ("0", "false")
        return run_outputs.Options(command, **found, verbose=verbose)
    return run_outputs.Options(command)


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
