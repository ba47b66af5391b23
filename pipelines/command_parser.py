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

_ON_A_FOLDER = "init compact index snapshots status verify inspect report bench"  # commands with one address

_FLAG: Any = {"action": "store_true"}
_DTYPES = ("uint8", "float32", "bfloat16", "float16")
_TO_BEAM = "Any other option goes to Beam, such as --runner="
_COMMANDS = {  # with what each does, and the end of its help
    "convert": ("convert images to a committed dataset", f"{_TO_BEAM}DataflowRunner --project=..."),
    "plan": (
        "list and count images, and show what convert would do; writes nothing",
        f"{_TO_BEAM}DataflowRunner --project=...",
    ),
    "init": ("write a commented config for a folder of images, with the preset that fits it", None),
    "compact": (
        "copy the latest snapshot of a dataset into fresh shards, which stand alone",
        f"{_TO_BEAM}PrismRunner.",
    ),
    "index": ("make TFRecord files of any tool readable where they are: a catalog and indexes beside them", None),
    "snapshots": ("list the snapshots of a dataset, pin them, or remove old ones", None),
    "status": (
        "tell what the last run on an output does, or how it ended",
        "exit codes: 0 committed or running; 1 failed, stopped or not known; 2 there is nothing",
    ),
    "verify": ("compare a dataset with its catalog", None),
    "inspect": ("show splits, features, labels and examples", None),
    "report": ("write a page with what is in a dataset, which opens without a network", None),
    "bench": ("measure how fast this host reads, and find the slowest stage", None),
    "schema": ("print the JSON schema of the config, for editors", None),
}
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

    for name, (text, epilog) in _COMMANDS.items():
        description = text[:1].upper() + text[1:] + "."
        command = known.add_parser(name, help=text, description=description, epilog=epilog, allow_abbrev=False)
        command.add_argument("-v", "--verbose", help="show the libraries' own logs and warnings", **_FLAG)
        command.set_defaults(run=commands[name], options=command.options)

    def add(names: str, option: str, text: str | None = None, **settings: Any) -> None:
        """Adds an option, or an argument, to the commands in `names`."""
        short = ["-q"] if option == "--quiet" else []
        for name in names.split():
            known.choices[name].add_argument(*short, option, help=text, **settings)

    add("convert plan", "--config", "a preset's name or a YAML file", metavar="NAME_OR_YAML")
    add("convert plan", "--input", "a folder, a glob, or a manifest (source.uri)", metavar="URI")
    add("convert plan", "--output", "folder of the dataset (output.uri)", metavar="URI")
    override = "override, e.g. output.num_shards=16"
    add("convert plan", "--set", override, metavar="KEY=VALUE", action="append", default=[])
    add("convert plan", "--overwrite", "replace another dataset in the output", **_FLAG)
    update = "write a snapshot with what is new, changed or gone since the last one (with --overwrite: with all)"
    add("convert plan", "--update", update, **_FLAG)
    retry = "with --update: read only what the last snapshot rejected"
    add("convert plan", "--retry-rejects", retry, **_FLAG)
    add("plan", "--save-listing", "save the listing, for source.by=listing", metavar="URI")
    tries = "also read this many images, and draw what is made of them; functions of yours are called"
    add("plan", "--try", tries, metavar="N", type=_positive, dest="num_tried")
    sheet = "file of that picture (imagebeam-try.png)"
    add("plan", "--sheet", sheet, metavar="PNG", default="imagebeam-try.png")
    add("convert", "--no-wait", "leave a job on Dataflow once it is submitted; see status", **_FLAG)
    cancel = "Ctrl-C and SIGTERM cancel a job on Dataflow; else it goes on"
    add("convert", "--cancel-on-interrupt", cancel, **_FLAG)
    drift = "with --update: commit nothing if labels, sizes or rejects differ by more than update.drift allows"
    add("convert", "--fail-on-drift", drift, **_FLAG)
    add("init", "directory", "the folder, or a table in it", metavar="FOLDER")
    file = "file to write (imagebeam.yaml, here)"
    add("init", "--output", file, metavar="FILE", default="imagebeam.yaml")
    add("init", "--config", "write this preset instead of the one that fits best", metavar="NAME")
    add("init", "--force", "replace the file if it exists", **_FLAG)
    add("index", "--image", "feature with the image (default: found)", metavar="KEY")
    add("index", "--label", "feature with the label, or none (default: found)", metavar="KEY")
    base = "id of the first class (default: 1 if no record has the label 0)"
    add("index", "--label-base", base, type=int, choices=(0, 1))
    pattern = (
        "a regular expression whose first group is the split in a path, such as '(train|val)_'; other files are left "
        "out (default: the usual names)"
    )
    add("index", "--split", pattern, metavar="PATTERN")
    add("index", "--partial", "allow that files of a numbered series are missing", **_FLAG)
    add("index", "--keep-broken", "allow records that cannot be read", **_FLAG)
    add("index", "--plan", "look at the names and the first records; write nothing", **_FLAG)
    newest = "remove all but the newest N snapshots and those that are pinned"
    add("convert compact", "--keep-snapshots", f"afterwards, {newest}", type=_positive, metavar="N")
    add("snapshots", "--pin", "keep this snapshot until it is released", metavar="NAME")
    add("snapshots", "--unpin", "release a pinned snapshot", metavar="NAME")
    add("snapshots", "--keep", newest, type=_positive, metavar="N")
    changed = "instead of the list, show what this snapshot changed, and its drift (default: the latest)"
    add("snapshots", "--report", changed, nargs="?", const="", metavar="NAME")
    add("status", "directory", metavar="OUTPUT")
    add("status", "--json", "print the same as JSON", **_FLAG)
    add("verify", "--decode", "also decode every image", **_FLAG)
    add("inspect", "-n", "also show the first N examples", type=_positive, metavar="N")
    add("inspect", "--split", "split of the examples (default: the first), or of --buckets (default: all)")
    add("inspect", "--save-to", "write their images as files into this folder (5 without -n)", metavar="FOLDER")
    area = "instead, show what batches in buckets of this area make of the images: in pixels, or as 1024x1024"
    add("inspect", "--buckets", area, metavar="AREA", type=_area)
    add("inspect", "--bucket-step", "pixels that sides of buckets are multiples of (64)", type=_positive, metavar="PX")
    aspect = "longer by shorter side of a bucket, at most (2)"
    add("inspect", "--max-aspect", aspect, type=_number, metavar="X")
    enlarge = "factor by which an image may be enlarged, at most (default: any)"
    add("inspect", "--max-enlarge", enlarge, type=_number, metavar="X")
    add("inspect", "--batch-size", "images in a batch of all processes together (256)", type=_positive, metavar="N")
    add("inspect", "--json", "print the same as JSON", **_FLAG)
    page = "file or address to write (report.html, here)"
    add("report", "--output", page, metavar="FILE", default="report.html")
    add("bench", "--split", "split to read (default: train, else the first)")
    add("bench", "--batch-size", "images per batch (128)", type=_positive, metavar="N", default=128)
    add("bench", "--image-size", "side of an image (224)", type=_positive, metavar="PX", default=224)
    add("bench", "--dtype", "type of pixels (bfloat16)", choices=_DTYPES, default="bfloat16")
    add("bench", "--seconds", "seconds for each of 4 measurements (5)", type=_duration, metavar="S", default=5.0)
    add("bench", "--threads", "threads that read and decode (default: cores)", type=_positive, metavar="N")
    add("bench", "--json", "print all figures as JSON", **_FLAG)
    add("bench", "--cache-dir", "local folder for copies of remote shards", metavar="FOLDER")
    processes = "processes that read and write (cores)"
    add("convert plan compact index", "--workers", processes, type=_positive, metavar="N")
    add("convert compact index", "--quiet", "print no progress and no table", **_FLAG)
    add("compact index snapshots verify inspect report bench", "directory", metavar="DIR")
    given = "option of the storage of DIR, e.g. endpoint_url=https://minio:9000 (docs/storage.md)"
    add(_ON_A_FOLDER, "--storage-options", given, metavar="NAME=VALUE", action="append", default=[])
    number = "a snapshot, such as 000002, instead of the latest"
    add("verify inspect report bench", "--snapshot", number, metavar="N")
    for name in _WITH_OUTPUTS:
        _add_outputs(known.choices[name])
    lineage = "send lineage events to a service, or as the client's YAML file says (default: the client's variables)"
    add("convert", "--openlineage", lineage, metavar="URL_OR_YAML")
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


def _area(text: str) -> int:
    height, cross, width = text.partition("x")
    if not height.isdecimal() or not (width if cross else "1").isdecimal() or not int(height) * int(width or 1):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of pixels, such as 1048576 or 1024x1024")
    return int(height) * int(width or 1)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def _duration(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of seconds")
    return seconds
