"""The size of the dataset of conftest.py, and functions that run in a fresh process with several devices."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from tests import command_line

PER_LABEL = 26
SIZE = 2 * PER_LABEL
LABELS = ("cat", "dog")


def flat(batches: Sequence[Sequence[str]]) -> list[str]:
    """Returns the keys of all batches; padding has none."""
    return [key for batch in batches for key in batch if key]


def keys_of(examples: Iterator[Mapping[str, Any]]) -> list[str]:
    return [each["image/key"].decode() for each in examples]


def one_device() -> Any:
    """Returns a sharding that puts whole arrays on the first device of JAX."""
    jax = pytest.importorskip("jax")
    return jax.sharding.SingleDeviceSharding(jax.devices()[0])


def keys_in(batches: Iterable[Mapping[str, Any]]) -> list[str]:
    """Returns the keys of batches in their order, without padding."""
    found: list[str] = []
    for batch in batches:
        real = np.asarray(batch.get("mask", np.ones(len(batch["image/key"]), bool)))
        found += [key.decode() for key in np.asarray(batch["image/key"])[real]]
    return found


def start(function: Callable[..., None], *arguments: Any, num_devices: int = 1) -> command_line.Process:
    """Starts `function` in a process of its own, in which JAX has `num_devices`."""
    code = f"import {function.__module__} as module; module.{function.__name__}(*{arguments!r})"
    flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={num_devices}", "JAX_PLATFORMS": "cpu"}
    environment = {**flags, "TF_CPP_MIN_LOG_LEVEL": "3"}
    return command_line.start_program(code, environment=environment)


def finish(process: command_line.Process) -> Any:
    """Returns the JSON that the function printed last. Its process must succeed without an ignored exception."""
    done = command_line.finish(process, 0)
    assert "Exception ignored" not in done.stderr, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
