"""Azure's blob storage on this machine for tests: Azurite, which npm installs once into the user's cache."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from tests import command_line
from tests.servers import cache as cache_lib

_AZURITE = "azurite@3.37.0"
_ACCOUNT = "devstoreaccount1"  # Azurite's own, with a key that its documentation has
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@contextlib.contextmanager
def run() -> Iterator[str]:
    """Runs a server; yields the connection string that leads to it. Skips the test where it cannot be installed."""
    pytest.importorskip("adlfs")
    program = _installed() / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    options = ["--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent"]
    command = ["node", str(program), "--blobHost", "127.0.0.1", "--blobPort", "0", *options]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            found = next(filter(None, (re.search(r"listens on (http://\S+)", line) for line in process.stdout)))
            yield (
                f"DefaultEndpointsProtocol=http;AccountName={_ACCOUNT};AccountKey={_KEY};"
                f"BlobEndpoint={found[1]}/{_ACCOUNT};"
            )
        finally:
            process.kill()


def _installed() -> pathlib.Path:
    """Returns the folder with Azurite."""
    if shutil.which("npm") is None:
        pytest.skip("there is no npm here, which installs Azurite: apt-get install npm")
    with cache_lib.hold("azurite-lock") as cache:
        folder = cache / _AZURITE.replace("@", "-")
        if not folder.exists():
            new = folder.with_suffix(".new")
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir()
            quietly = ["--no-audit", "--no-fund", "--prefix", str(new)]
            installed = command_line.run_other("npm", "install", *quietly, _AZURITE)
            if installed.returncode:
                pytest.skip(f"{_AZURITE} cannot be installed: {installed.stderr}")
            os.replace(new, folder)
    return folder
