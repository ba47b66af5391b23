"""Checks the arguments of Python calls such as `imagebeam.convert`, and converts them to one form. Imports no Beam."""

from __future__ import annotations

import json
import operator
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, Union

from imagebeam import concurrency, errors

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions

    from imagebeam.pipelines.config import model as config_lib

AnyConfig: TypeAlias = "config_lib.Config | CommandConfig | Mapping[str, Any] | str | os.PathLike[str] | None"
BeamOptions = Union["PipelineOptions", Sequence[str], str, None]


class CommandConfig(NamedTuple):
    """The config of a command line, before it is read."""

    name: str | None = None  # of a preset or a YAML file
    settings: tuple[str, ...] = ()  # texts `section.key=value`
    input: str | None = None  # address, instead of the one in the config
    output: str | None = None  # the same

    def load(self) -> config_lib.Config:
        """Returns the config.

        Raises:
            ConfigError: if anything in it is not as expected.
        """
        from imagebeam.pipelines.config import model as config_lib

        fields = config_lib.read_fields(self.name, self.settings)
        for key, uri in (("source.uri", self.input), ("output.uri", self.output)):
            if uri is not None:
                config_lib.set_field(fields, key, uri)
        return config_lib.parse_config(fields, where=self.name or "the command line")


class Request(NamedTuple):
    """The arguments of a run, as `convert` takes them."""

    config: AnyConfig
    arguments: list[str]  # of Beam
    workers: int | None = None
    overwrite: bool = False
    show_progress: bool = False
    update: bool = False  # whether to write a snapshot
    retry_rejects: bool = False  # whether the snapshot takes only images that the last one rejected
    fail_on_drift: bool = False  # whether a snapshot that drifts too far is not committed
    cancel_on_interrupt: bool = False  # whether KeyboardInterrupt cancels a job on Dataflow


def as_config(config: AnyConfig) -> config_lib.Config:
    """Returns a Config for any value that `convert` accepts.

    Raises:
        ConfigError: if it is of another type, or anything in it is not as expected.
    """
    from imagebeam.pipelines.config import model as config_lib

    if isinstance(config, config_lib.Config):
        return config
    if isinstance(config, CommandConfig):
        return config.load()
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


def as_beam_arguments(beam_options: BeamOptions) -> list[str]:
    """Returns Beam's options as arguments of a command.

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
    if not hasattr(beam_options, "get_all_options"):  # isinstance would import Beam, which takes a second
        raise errors.ConfigError(
            f"beam_options is {_describe(beam_options)}; give PipelineOptions, a list such as "
            "['--runner=DataflowRunner', '--project=p'], or the same in one string"
        )
    arguments = []
    for name, value in beam_options.get_all_options(drop_default=True).items():
        values = value if isinstance(value, list) else [value]
        arguments += [_as_argument(name, each) for each in values]
    return arguments


def _as_argument(name: str, value: Any) -> str:
    """Returns an option of Beam that has not its default value as an argument of a command."""
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no_{name}"
    return f"--{name}={json.dumps(value) if isinstance(value, dict) else value}"


def as_workers(workers: Any) -> int:
    """Returns a number of processes; for None, the number of cores.

    Raises:
        ConfigError: if it is not a positive integer.
    """
    if workers is None:
        return concurrency.available_cores()
    if isinstance(workers, bool) or not hasattr(workers, "__index__"):
        raise errors.ConfigError(f"workers is {_describe(workers)}; give a number of processes, such as 4")
    if workers < 1:
        raise errors.ConfigError(f"workers is {workers}; it must be at least 1")
    return operator.index(workers)


def check_flags(**flags: Any) -> None:
    """Checks that each flag is a bool.

    Raises:
        ConfigError: if one is not.
    """
    for name, value in flags.items():
        if not isinstance(value, bool):  # "no" would count as true
            raise errors.ConfigError(f"{name} is {_describe(value)}; give True or False")


def require_utf8_file_names() -> None:
    """Checks that keys and labels, which are file names, do not depend on the locale.

    The command line restarts Python in UTF-8 mode instead (terminal.ensure_utf8_file_names).

    Raises:
        ConfigError: if they do.
    """
    if (encoding := sys.getfilesystemencoding()) != "utf-8":
        raise errors.ConfigError(
            f"Python takes file names here for {encoding}, by the locale, and keys and labels would differ from those "
            "of other machines: start Python with PYTHONUTF8=1 in the environment"
        )


def _describe(value: Any) -> str:
    return f"{value!r}, of type {type(value).__name__}"
