"""Which options of storages a run or a command uses for which addresses.

The job takes them to its workers: writer processes get them when they start (transforms/shard/writer_processes.py),
workers of Beam with each DoFn (`carry`). Importing this module imports no Beam.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from imagebeam import errors, storage
from imagebeam.pipelines import request as request_lib
from imagebeam.pipelines.beam import job_servers
from imagebeam.storage import given_options

if TYPE_CHECKING:
    import apache_beam as beam

    from imagebeam.pipelines.config import model as config_lib

_OF_BEAM = ("--temp_location", "--staging_location")  # which Beam opens with default credentials
_P = ParamSpec("_P")
_T = TypeVar("_T")


def table_of(
    source: str | None, of_source: given_options.Options, output: str | None, of_output: given_options.Options
) -> dict[str, given_options.Options]:
    """Returns the table of a run: each address has the options of the input or of the output that it is nearer to.

    Both have their folder and their bucket or host; the rest is the input's, as tables name images elsewhere. With a
    local input, these are all addresses that are not the output's.

    Args:
        source: address of the input; None if there is none, or the pipeline of the user has it.
        of_source: its options.
        output: address of the output; None if there is none.
        of_output: its options.
    """
    if not of_source and not of_output:
        return {}
    table: dict[str, given_options.Options] = {}
    for address, options in ((output, of_output), (source, of_source)):
        if not address or storage.scheme_of(address) == "file":
            if options:
                table[given_options.ANYWHERE] = options
            continue
        folder, *globs = re.split(r"[*?\[]", storage.normalize(address))
        folder = folder.rpartition("/")[0] if globs else folder
        table[f"{storage.scheme_of(address)}://"] = options
        table[storage.root_of(folder)] = options
        table[folder] = options
    # what both have is the input's, but not the folder of the output, which may be its bucket
    return (
        table if not output or storage.scheme_of(output) == "file" else {**table, storage.normalize(output): of_output}
    )


@contextlib.contextmanager
def of_config(config: config_lib.Config, beam_arguments: Sequence[str] = ()) -> Iterator[None]:
    """Opens the addresses of a config with its options, until the block ends."""
    of_source, of_output = config.storage_options.values()
    table = table_of(config.source.uri, of_source, config.output.uri, of_output)
    if table:
        own = vars(job_servers.given(beam_arguments, *_OF_BEAM)).values()
        table = {**{address: {} for address in own if address}, **table}
    with storage.using(table):
        yield


def with_storages(
    function: Callable[Concatenate[request_lib.Request, _P], _T],
) -> Callable[Concatenate[request_lib.Request, _P], _T]:
    """Makes a function of a request read its config first, and open addresses with the options in it."""

    @functools.wraps(function)
    def call(request: request_lib.Request, /, *arguments: _P.args, **named: _P.kwargs) -> _T:
        config = request_lib.as_config(request.config)
        with of_config(config, request.arguments):
            return function(dataclasses.replace(request, config=config), *arguments, **named)

    return call


@contextlib.contextmanager
def of_command(address: str | None, settings: Sequence[str]) -> Iterator[None]:
    """Opens the address of a command, and others, with the options in texts NAME=VALUE, until the block ends.

    Raises:
        ConfigError: if a text has another form, or an option is a secret.
    """
    from imagebeam.pipelines.config import model as config_lib  # late: imports pydantic

    fields: dict[str, Any] = {}
    for each in settings:
        config_lib.apply_override(fields, each, "--storage-options")
    options = fields
    if (secret := given_options.find_secret(options, "--storage-options")) is not None:
        raise errors.ConfigError("storage-secret-literal", f"{secret} {given_options.REFUSED}")
    if options and address and storage.scheme_of(address) == "file":
        raise errors.ConfigError(
            "storage-options-local", f"{address!r} is local, and takes no --storage-options: leave them out"
        )
    with storage.using(table_of(address, options, None, {})):
        yield


def carry(pipeline: beam.Pipeline) -> None:
    """Gives each DoFn of a pipeline the options that this process uses: they are in use where one is unpickled.

    A worker of Beam unpickles the DoFns of a stage before any of them begins, and no runner has another way to tell it
    something that holds for all.
    """
    from apache_beam import pipeline as pipeline_lib
    from apache_beam import transforms

    if not (table := given_options.active()):
        return
    carried = given_options.Carried(table)

    class Visitor(pipeline_lib.PipelineVisitor):
        def visit_transform(self, transform_node: Any) -> None:
            if isinstance(transform_node.transform, transforms.ParDo):
                transform_node.transform.fn.imagebeam_storage_options = carried

    pipeline.visit(Visitor())
