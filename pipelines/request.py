"""The request of a run: the arguments of `convert` and its neighbours, checked and in one form. Imports no Beam."""

from __future__ import annotations

import dataclasses
import functools
import json
import operator
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, Union

from imagebeam import catalog as catalog_lib
from imagebeam import concurrency, errors, plural, records, snapshots, storage
from imagebeam.pipelines.beam import runners
from imagebeam.storage import remote
from imagebeam.transforms import dataset_settings
from imagebeam.transforms.images import pillow_decoder
from imagebeam.transforms.output import output_folder
from imagebeam.transforms.snapshots import snapshot_drift

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions

    from imagebeam.pipelines.config import model as config_lib

AnyConfig: TypeAlias = "config_lib.Config | Mapping[str, Any] | str | os.PathLike[str] | None"
BeamOptions = Union["PipelineOptions", Sequence[str], str, None]

_FLAGS = ("overwrite", "update", "retry_rejects", "fail_on_drift", "show_progress", "cancel_on_interrupt")


@dataclasses.dataclass(frozen=True)
class Request:
    """The arguments of a run, as `convert` takes them."""

    config: AnyConfig
    beam_options: BeamOptions = None
    workers: int | None = None
    overwrite: bool = False
    update: bool = False  # whether to write a snapshot
    retry_rejects: bool = False  # whether the snapshot takes only images that the last one rejected
    fail_on_drift: bool = False  # whether a snapshot that drifts too far is not committed
    show_progress: bool = False
    cancel_on_interrupt: bool = False  # whether KeyboardInterrupt cancels a job on Dataflow

    @functools.cached_property
    def arguments(self) -> list[str]:
        """Beam's options as arguments of a command."""
        return as_beam_arguments(self.beam_options)


class Checked(NamedTuple):
    """A request whose arguments were checked."""

    config: config_lib.Config
    workers: int
    overwrite: bool = False
    snapshot: dataset_settings.SnapshotSettings | None = None  # None for a dataset without snapshots

    @property
    def paths(self) -> output_folder.OutputPaths:
        """The addresses in the folder that the run writes."""
        snapshot = self.snapshot
        return output_folder.OutputPaths(
            snapshot.folder if snapshot is not None else storage.normalize(str(self.config.output.uri or ""))
        )


class RunFiles(NamedTuple):
    """The identity of a run, and the addresses of its temporary files."""

    run_id: str = ""  # names the run that holds the lock
    report: str = ""
    names: str = ""  # where long label files are staged for the workers; "" keeps them in the job graph
    scratch: str = ""  # folder where tf.Transform writes first

    @classmethod
    def new(cls, paths: output_folder.OutputPaths, scratch: str = "") -> RunFiles:
        """Returns those of a new run that writes a folder."""
        run_id = output_folder.new_run_id()
        return cls(run_id, paths.report(run_id), paths.names_file(run_id), scratch)


def check(request: Request) -> Checked:
    """Checks the arguments of a run and reads its config.

    Raises:
        ConfigError: if they do not allow the run.
    """
    require_utf8_file_names()
    for name in _FLAGS:
        if not isinstance(value := getattr(request, name), bool):  # "no" would count as true
            raise errors.ConfigError("argument-type", f"{name} is {_describe(value)}; give True or False")
    config, overwrite, snapshot = as_config(request.config), request.overwrite, None
    runners.take_hdfs_user(request.arguments)
    records.require_fast_crc32c()
    pillow_decoder.require_pillow()
    if request.update:
        snapshot = find_base(config, overwrite, request.retry_rejects, request.fail_on_drift)
        overwrite = False
    elif request.retry_rejects or request.fail_on_drift:
        option = "--retry-rejects" if request.retry_rejects else "--fail-on-drift"
        raise errors.ConfigError("option-needs-update", f"{option} is for datasets of snapshots: add --update")
    return Checked(config, as_workers(request.workers), overwrite, snapshot)


def as_config(config: AnyConfig) -> config_lib.Config:
    """Returns a Config for any value that `convert` accepts.

    Raises:
        ConfigError: if it is of another type, or anything in it is not as expected.
    """
    from imagebeam.pipelines.config import model as config_lib

    if isinstance(config, config_lib.Config):
        return config
    if isinstance(config, Mapping):
        return config_lib.parse_config(config, where="the mapping given")
    if config is None or isinstance(config, (str, os.PathLike)):
        return config_lib.load_config(None if config is None else os.fspath(config))
    raise errors.ConfigError(
        "argument-type",
        f"config is {_describe(config)}; give a mapping of sections, the name of a preset, the path of a YAML file, "
        "or a Config",
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
            raise errors.ConfigError(
                "beam-options-quotes", f"beam_options {beam_options!r} cannot be split into options: {e}"
            ) from e
    if isinstance(beam_options, Sequence) and not isinstance(beam_options, bytes):
        arguments = [os.fspath(each) if isinstance(each, os.PathLike) else each for each in beam_options]
        for each in arguments:
            if not isinstance(each, str):
                raise errors.ConfigError(
                    "argument-type", f"beam_options holds {_describe(each)}; each option is text: '--name=value'"
                )
        return arguments
    if not hasattr(beam_options, "get_all_options"):  # isinstance would import Beam, which takes a second
        raise errors.ConfigError(
            "argument-type",
            f"beam_options is {_describe(beam_options)}; give PipelineOptions, a list such as "
            "['--runner=DataflowRunner', '--project=p'], or the same in one string",
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
        raise errors.ConfigError(
            "argument-type", f"workers is {_describe(workers)}; give a number of processes, such as 4"
        )
    if workers < 1:
        raise errors.ConfigError("workers-below-1", f"workers is {workers}; it must be at least 1")
    return operator.index(workers)


def load_config(name: str | None, settings: Sequence[str], input: str | None, output: str | None) -> config_lib.Config:
    """Returns the config of a command line.

    Args:
        name: a preset or a YAML file; None for neither.
        settings: texts `section.key=value`.
        input: address instead of `source.uri`; None leaves it.
        output: address instead of `output.uri`; None leaves it.

    Raises:
        ConfigError: if anything in it is not as expected.
    """
    from imagebeam.pipelines.config import model as config_lib

    fields = config_lib.read_fields(name, settings)
    for key, uri in (("source.uri", input), ("output.uri", output)):
        if uri is not None:
            config_lib.set_field(fields, key, uri)
    try:
        return config_lib.parse_config(fields, where=name or "the command line")
    except errors.ConfigError as e:
        if name not in config_lib.preset_names():
            raise
        raise e.extended(_keys_of_preset(str(e), str(name), fields)) from e.__cause__


def _keys_of_preset(text: str, preset: str, fields: Mapping[str, Any]) -> str:
    """Returns which keys in the text of an error the preset has set, and how to leave them out; "" if none."""
    from imagebeam.pipelines.config import model as config_lib
    from imagebeam.pipelines.config import sections

    own, known = config_lib.read_fields(preset), sections.fields_of(config_lib.Config)
    found, words = [], ["add"]
    for path in (f"{section}.{key}" for section, keys in own.items() for key in keys):
        section, _, key = path.partition(".")
        field, value = sections.fields_of(known[section].kind).get(key), config_lib.value_at(own, path)
        if field is None or value != config_lib.value_at(fields, path) or not re.search(rf"{path}\b", text):
            continue
        found.append(f"{path}: {value}" if key == "by" else path)
        if key != "by":
            words += ["--set", f"{path}={json.dumps(field.default, default=lambda _: {})}"]
    if not found:
        return ""
    remedy = f"; to leave that out, {plural.shell_command(words)}" if words[1:] else ""
    return f"; the preset {preset} sets {', '.join(found)}{remedy}"


def check_address(option: str, uri: str) -> None:
    """Checks that an address on a network exists and answers, before any work.

    Raises:
        ConfigError: if not, or if the scheme is not known.
    """
    store = storage.storage_of(uri)
    if store.is_local:
        return
    with remote.budget(remote.CHECK_BUDGET_SEC):
        root = storage.root_of(uri)
        try:
            store.stat(root)
        except FileNotFoundError as e:
            remedy = "check the address, or create it" if option == "--output" else "check the address"
            raise errors.ConfigError("address-not-found", f"{option} {uri!r}: {e.strerror}; {remedy}") from e
        except OSError as e:
            remedy = "; check the address, and the network" if isinstance(e, storage.UnavailableError) else ""
            raise errors.ConfigError(
                "address-unreachable", f"{option} {uri!r} cannot be reached: {e.strerror or e}{remedy}"
            ) from e


def require_utf8_file_names() -> None:
    """Checks that keys and labels, which are file names, do not depend on the locale.

    The command line restarts Python in UTF-8 mode instead (terminal.ensure_utf8_file_names).

    Raises:
        ConfigError: if they do.
    """
    if (encoding := sys.getfilesystemencoding()) != "utf-8":
        raise errors.ConfigError(
            "locale-not-utf8",
            f"Python takes file names here for {encoding}, by the locale, and keys and labels would differ from those "
            "of other machines: start Python with PYTHONUTF8=1 in the environment",
        )


def _describe(value: Any) -> str:
    return f"{value!r}, of type {type(value).__name__}"


def find_base(
    config: config_lib.Config, overwrite: bool, retry_rejects: bool = False, fail_on_drift: bool = False
) -> dataset_settings.SnapshotSettings:
    """Returns the settings of the snapshot that `convert --update` writes after the latest one.

    Args:
        config: with the folder of all snapshots as `output.uri`.
        overwrite: whether the snapshot takes nothing from the one before.
        retry_rejects: whether it takes only images that the one before rejected.
        fail_on_drift: whether it is not committed if it drifts further than `update.drift` allows.

    Raises:
        ConfigError: if the config or the output allows no snapshots.
    """
    if config.output.uri is None:
        raise errors.ConfigError(
            "update-without-output", "--update needs --output, the folder of the dataset's snapshots (output.uri)"
        )
    dataset = storage.normalize(config.output.uri)
    _require_updatable(config)
    try:
        if storage.storage_of(dataset).exists(storage.join(dataset, catalog_lib.CATALOG_FILE)):
            raise errors.ConfigError(
                "update-of-plain-dataset",
                f"{dataset} holds a dataset that was converted without --update, and it is not recorded which versions "
                "of the images it holds: choose another --output",
            )
        latest = snapshots.find_latest(dataset)
        if latest is not None and not overwrite:
            snapshots.require_committed(dataset, latest)
    except OSError as e:
        raise errors.ConfigError("output-unreadable", f"--output {dataset} cannot be read: {e.strerror or e}") from e
    except errors.CatalogError as e:
        raise errors.ConfigError(e.code, str(e)) from e
    if retry_rejects and (overwrite or latest is None):
        raise errors.ConfigError(
            "retry-rejects-of-nothing",
            "--retry-rejects reads again what the last snapshot rejected, and "
            + ("--overwrite all images: leave out one of the two" if overwrite else f"{dataset} holds none yet"),
        )
    return dataset_settings.SnapshotSettings(
        dataset,
        snapshots.name_after(latest),
        "" if overwrite or latest is None else latest,
        config.update.new_labels,
        config.update.max_removed_fraction,
        by_content=config.update.compare == "content",
        retry_rejects=retry_rejects,
        drift=snapshot_drift.Thresholds(**config.update.drift.model_dump()),
        fail_on_drift=fail_on_drift,
    )


def _require_updatable(config: config_lib.Config) -> None:
    """Raises ConfigError if images could change their split, or records have no index."""
    why = ""
    if config.split.stratify:
        why = (
            ": split.stratify moves images to other splits when the dataset grows; leave it out, and the shares hold "
            "by the hash of the key, or give the splits by folder, column or list"
        )
    elif config.output.writer != "stream":
        why = ": output.writer: beam does not record what it has written; leave it out"
    elif config.image.frames == "each":
        why = (
            " keeps one record for each file, and image.frames: each makes several: set image.frames: first or reject, "
            "or convert the whole input without --update"
        )
    elif config.duplicates.settings().is_on:
        why = (
            " reads new images alone, and cannot compare them with those of earlier snapshots: leave out "
            "duplicates.exact and duplicates.near, or convert the whole input without --update"
        )
    if why:
        raise errors.ConfigError("update-cannot-keep", f"--update{why}")
