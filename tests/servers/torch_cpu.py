"""PyTorch without a GPU, and its trainers, beside the environment of the tests.

The registry's wheels link to 2.5 GB of CUDA's libraries, which no test calls. Stubs take their place: libraries
of the same names, whose functions return cudaErrorInsufficientDriver. So PyTorch finds no GPU.
"""

from __future__ import annotations

import collections
import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence

import pytest

from tests import command_line, patience
from tests.servers import cache as cache_lib

PACKAGES = ("torch==2.15.0", "torchdata==0.11.0", "mpmath==1.3.0", "networkx==3.4.2", "sympy==1.14.0")
TRAINERS = (
    *("lightning==2.6.6", "lightning-utilities==0.15.3", "torchmetrics==1.9.0"),
    *("accelerate==1.15.0", "huggingface_hub==2.4.0", "safetensors==0.8.0", "psutil==7.2.2"),
)
VISION = ("torchvision==0.29.2",)
_NAMES = r"(?:_*cu|nv|nccl)\w*"  # functions of CUDA's libraries
_NO_DRIVER = 35


def install() -> pathlib.Path:
    """Returns a folder for PYTHONPATH with PyTorch. Skips the test if it cannot be installed."""
    return _install(PACKAGES, lambda folder: _make_stubs(folder / "torch" / "lib"))


def install_trainers() -> pathlib.Path:
    """Returns a folder for PYTHONPATH with Lightning and Accelerate, 30 MB, as `install`."""
    return _install(TRAINERS, lambda folder: None)


def install_vision() -> pathlib.Path:
    """Returns a folder for PYTHONPATH with torchvision, 7 MB, as `install`."""
    return _install(VISION, lambda folder: None)


def _install(packages: Sequence[str], finish: Callable[[pathlib.Path], None]) -> pathlib.Path:
    with cache_lib.hold("torch-lock") as cache:
        folder = cache / "-".join((packages[0], sys.implementation.cache_tag))
        if not folder.exists():
            new = cache / f"{folder.name}.new"
            shutil.rmtree(new, ignore_errors=True)
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(new), *packages]
            installed = command_line.run_other(*command)
            if installed.returncode:
                pytest.skip(f"{packages[0]} cannot be installed: {installed.stderr}")
            finish(new)
            os.replace(new, folder)
    return folder


def _make_stubs(libraries: pathlib.Path) -> None:
    """Makes the libraries of CUDA that those in the folder are linked to."""
    needed, functions = set(), collections.defaultdict(set)  # functions by the version that the linker asks for
    for path in libraries.glob("*.so"):
        needed |= set(re.findall(r"\[(lib(?:cu|nv|nccl)[^]]+)\]", _run("readelf", "--dynamic", path)))
        for name, version in re.findall(rf" U ({_NAMES})(?:@(\S+))?", _run("nm", "--dynamic", path)):
            functions[version].add(name)
    functions["libnvshmem_host.so.3"] = functions.pop("NVSHMEM", set())
    source, script = libraries / "stub.c", libraries / "stub.map"
    for library in sorted(needed):
        names = functions[library] | (functions[""] if library.startswith("libnccl") else set())
        values = {name: 0 if name.startswith("_") else _NO_DRIVER for name in names}
        source.write_text("".join(f"long {name}(void) {{ return {value}; }}\n" for name, value in values.items()))
        version = "NVSHMEM" if "nvshmem" in library else library
        script.write_text(f"{version} {{ {''.join(f'{name};' for name in sorted(functions[library]))} }};\n")
        linker = [f"-Wl,-soname,{library}", f"-Wl,--version-script={script}"]
        _run("gcc", "-w", "-shared", "-fPIC", "-o", libraries / library, *linker, source)


def _run(*command: str | os.PathLike[str]) -> str:
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=patience.HANG_SEC)
    return done.stdout
