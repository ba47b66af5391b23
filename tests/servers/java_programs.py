"""Programs in Java for the tests: the jars that a pom.xml names, which Maven downloads once into the user's cache."""

from __future__ import annotations

import hashlib
import os
import pathlib
import shutil
import subprocess

import pytest

from tests import patience
from tests.servers import cache as cache_lib

SMALL = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")  # starts fast, leaves nothing in /tmp
_DOWNLOAD_SEC = 1200  # 160 MB


def prepare(source: pathlib.Path) -> pathlib.Path:
    """Returns a folder with the jars of pom.xml in `source`, and the classes of the .java files beside it.

    Skips the test where there is no Java or Maven, or where the jars cannot be downloaded.
    """
    for program, package in (("java", "default-jdk-headless"), ("mvn", "maven")):
        if shutil.which(program) is None:
            pytest.skip(f"{source.name} needs {program}, and there is none here: apt-get install {package}")
    java = pathlib.Path(shutil.which("java") or "").resolve()
    digest = hashlib.sha256(f"{java} {java.stat().st_mtime_ns} plain".encode())
    programs = sorted(source.glob("*.java"))
    for path in (source / "pom.xml", *programs):
        digest.update(path.read_bytes())
    name = source.name.replace("_", "-")
    with cache_lib.hold(f"{name}-lock") as cache:
        prepared = cache / f"{name}-{digest.hexdigest()[:16]}"
        if not prepared.exists():
            new = cache / f"{prepared.name}.new"
            shutil.rmtree(new, ignore_errors=True)
            _download(source, new)
            if programs:
                command = ["javac", "-cp", f"{new}/*", "-d", new, *programs]
                subprocess.run(command, check=True, timeout=patience.HANG_SEC)
            os.replace(new, prepared)
    return prepared


def _download(source: pathlib.Path, folder: pathlib.Path) -> None:
    command = ["mvn", "-B", "-q", "dependency:copy-dependencies", "-DincludeScope=runtime"]
    command.append(f"-DoutputDirectory={folder}")
    try:
        subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=_DOWNLOAD_SEC, check=True)
    except subprocess.SubprocessError as e:  # Maven names its errors on stdout
        pytest.skip(f"the jars of {source.name} cannot be downloaded: {e}: {e.stdout}")
