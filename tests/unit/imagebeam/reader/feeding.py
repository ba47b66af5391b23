"""What tests of the feeds share: their dataset's size, and processes of their own for what needs devices of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tests import command_line, forked_commands, patience

PER_LABEL = 26
SIZE = 2 * PER_LABEL
LABELS = ("cat", "dog")


def flat(batches: Sequence[Sequence[str]]) -> list[str]:
    """The keys of all batches; padding has none."""
    return [key for batch in batches for key in batch if key]


def keys_of(examples: Iterator[Mapping[str, Any]]) -> list[str]:
    return [each["image/key"].decode() for each in examples]


def start(function: Callable[..., None], *arguments: Any, num_devices: int = 1) -> forked_commands.Process:
    """Begins `function` in a process of its own, in which JAX has `num_devices`."""
    code = f"import {function.__module__} as module; module.{function.__name__}(*{arguments!r})"
    flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={num_devices}", "JAX_PLATFORMS": "cpu"}
    environment = {**flags, "TF_CPP_MIN_LOG_LEVEL": "3"}
    return command_line.start_program(code, environment=environment, preloaded="tensorflow")


def finish(process: forked_commands.Process) -> Any:
    """What the function printed last, from JSON. Its process must end well, and ignore no exception in silence."""
    try:
        stdout, stderr = process.communicate(timeout=patience.HANG_SEC)
    finally:
        process.kill()
    assert process.returncode == 0, stderr
    assert "Exception ignored" not in stderr, stderr
    return json.loads(stdout.splitlines()[-1])
