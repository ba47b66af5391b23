"""Virtual environments of tools that need other versions than the tests, made once and kept in the user's cache.

Each has a file environments/NAME.txt with the exact version of every package, which `make lock` writes from NAME.in.
"""

from __future__ import annotations

import hashlib
import pathlib
import shutil
import subprocess
import sys

from tests import environments, patience
from tests.servers import cache as cache_lib

_LOCKS = pathlib.Path(__file__).parent / "environments"


def bin_of(name: str) -> pathlib.Path:
    """Returns the folder of the programs of an environment. Skips the test if it cannot be made."""
    lock = _LOCKS / f"{name}.txt"
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()[:16]
    with cache_lib.hold(f"{name}-lock") as cache:
        folder = cache / f"{name}-py{sys.version_info.major}.{sys.version_info.minor}-{digest}"
        made = folder / "made"  # written last; the programs name their folder, so it cannot be moved
        if not made.exists():
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=patience.HANG_SEC)
            environments.install_locked(folder / "bin" / "python", lock)
            made.touch()
    return folder / "bin"
