"""Compares what is found with a JSON file of tests/golden/, which a reviewer reads.

`…` in the file stands for what differs between machines or versions.
`IMAGEBEAM_UPDATE_GOLDEN=1 make test` writes what is found now.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
from typing import Any

FOLDER = pathlib.Path(__file__).parent / "golden"
RECIPES, FAULTS = FOLDER / "recipes.json", FOLDER / "faults.json"


def check(file: pathlib.Path, name: str, found: Any) -> None:
    """Compares what is found with the entry `name` of a file."""
    golden = json.loads(file.read_text("utf-8"))
    if _fits(golden.get(name), found):
        return
    if os.environ.get("IMAGEBEAM_UPDATE_GOLDEN"):
        golden[name] = found
        file.write_text(json.dumps(dict(sorted(golden.items())), indent=1, ensure_ascii=False) + "\n", "utf-8")
    assert golden.get(name) == found, f"{name} changed in {file.name}; if it should, see {pathlib.Path(__file__).name}"


def _fits(known: Any, found: Any) -> bool:
    if isinstance(known, dict) and isinstance(found, dict):
        return known.keys() == found.keys() and all(_fits(known[key], found[key]) for key in known)
    if isinstance(known, list) and isinstance(found, list):
        return len(known) == len(found) and all(map(_fits, known, found))
    if isinstance(known, str) and isinstance(found, str) and "…" in known:
        return re.fullmatch(re.escape(known).replace("…", ".*"), found) is not None
    return known == found
