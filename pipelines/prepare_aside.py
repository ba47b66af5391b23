"""Prepares a job in one of its writer processes, while the launcher imports Beam: both take 0.2 s.

A command forks its writer processes before it reads its config. One of them imports pydantic, reads and checks the
config, opens the source, sends the launcher the rules of the job, and lists the source with labels and splits. So the
launcher imports neither pydantic nor YAML. This is for a command that runs a local job on local files, without
tf.Transform: the launcher then imports a part of Beam only, and has to know that before it has the config.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import pickle
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from imagebeam import errors
from imagebeam.pipelines import call_arguments
from imagebeam.pipelines.beam import late_modules, runners
from imagebeam.pipelines.messages import run_journal
from imagebeam.transforms.reports import stage_report
from imagebeam.transforms.shard import forked_child, writer_processes
from imagebeam.transforms.sources import image_source

if TYPE_CHECKING:
    from imagebeam.pipelines import job_rules

_PRESETS = os.path.join(os.path.dirname(errors.__file__), "configs")
_MAX_CONFIG_BYTES = 1 << 20
# A config on the network or with tf.Transform has the first two in its text. YAML could hide them by an escape, which
# needs a backslash in double quotes, or by a tag such as !!binary.
_NOT_ASIDE = re.compile(r"""://|transform|!|(?s:".*\\|\\.*")""")


class _Answer(NamedTuple):
    """What the writer process has found. The launcher raises each error where it would have found it itself."""

    subject: run_journal.Subject | None = None  # None if the config is wrong
    refusal: errors.ImagebeamError | None = None  # of the config, or of the arguments
    rules: job_rules.JobRules | None = None
    error: errors.ImagebeamError | None = None  # of the source


class Prepared(NamedTuple):
    """A job that a writer process has prepared."""

    pool: writer_processes.WriterProcesses
    subject: run_journal.Subject
    answer: _Answer

    def check(self) -> None:
        """Raises ConfigError if the arguments do not allow the run."""
        if self.answer.refusal is not None:
            raise self.answer.refusal

    def rules(self) -> job_rules.JobRules:
        """Returns the rules of the job. An unknown option of Beam is to be reported before an error of this.

        Raises:
            ConfigError: if the input is not as the config says.
        """
        if self.answer.rules is None:
            assert self.answer.error is not None
            raise self.answer.error
        return self.answer.rules


@contextlib.contextmanager
def prepared(request: call_arguments.Request) -> Iterator[Prepared | None]:
    """Imports Beam while a writer process prepares the job. Stops the writer processes at the end.

    Yields None if the request is none for this, or the writer process failed: then the launcher has to prepare the job.

    Raises:
        ConfigError: if the config is wrong, or the arguments do not allow the run.
    """
    config = request.config
    if isinstance(config, call_arguments.CommandConfig) and request.own_process and _fits(config, request.arguments):
        runners.take_hdfs_user(request.arguments)  # of images that a table names
        with writer_processes.start(call_arguments.as_workers(request.workers), forks=True) as pool:
            early: concurrent.futures.Future[bytes] = concurrent.futures.Future()
            listing = pool.submit(_prepare, request, on_early=early.set_result)
            runners.import_beam_lightly(request.arguments, [])
            concurrent.futures.wait((early, listing), return_when=concurrent.futures.FIRST_COMPLETED)
            if early.done():
                # loaded here, not in the thread that received it: modules are hidden from it while Beam is imported
                answer: _Answer = pickle.loads(early.result())
                if answer.subject is None:
                    assert answer.refusal is not None
                    raise answer.refusal
                if answer.rules is not None:
                    pool.keep(image_source.list_whole, answer.rules.images.labelled, listing)
                    if answer.rules.settings.writes_report:
                        stage_report.prepare_in(pool)
                yield Prepared(pool, answer.subject, answer)
                return
    yield None


def _fits(config: call_arguments.CommandConfig, beam_arguments: list[str]) -> bool:
    """Returns whether a job is local and without tf.Transform, by the text of its config, and Beam still to import."""
    if "apache_beam" in sys.modules or not runners.is_local(beam_arguments) or not forked_child.can_fork():
        return False
    addresses = (*beam_arguments, *filter(None, (config.input, config.output)))
    text = _text_of(config.name)
    return (
        text is not None
        and not any("://" in each for each in addresses)
        and not any(_NOT_ASIDE.search(each) for each in (text, *config.settings))
    )


def _text_of(name: str | None) -> str | None:
    """Returns the text of a preset or a YAML file; None if there is no such file, or it is no ordinary one."""
    if name is None:
        return ""
    path = os.path.join(_PRESETS, f"{name}.yaml")
    if os.path.basename(name) != name or not os.path.isfile(path):
        path = name
    try:
        if not os.path.isfile(path) or os.path.getsize(path) > _MAX_CONFIG_BYTES:
            return None
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, ValueError):
        return None


def _prepare(request: call_arguments.Request) -> list[image_source.Listing]:
    """Sends the launcher an answer, and returns the whole listing of the source. Runs in a writer process."""
    with late_modules.quick_imports(), late_modules.imported_late(("importlib.metadata",)):
        from imagebeam.pipelines import prepare_run

    answer = _Answer()
    try:
        config = call_arguments.as_config(request.config)
        subject = prepare_run.subject_of(config)
        if config.transformed or any("://" in (each or "") for each in (subject.input, subject.output)):
            raise errors.ConfigError("the config has changed while it was read: run the same command again")
        answer = _Answer(subject)
        checked = prepare_run.check(request._replace(config=config))
    except errors.ImagebeamError as e:
        answer = answer._replace(refusal=e)
    else:
        try:
            answer = answer._replace(rules=prepare_run.make_rules(request, checked))
        except errors.ImagebeamError as e:
            answer = answer._replace(error=e)
    writer_processes.answer_early(pickle.dumps(answer, protocol=5))
    return [] if answer.rules is None else image_source.list_whole(answer.rules.images.labelled)
